"""Programs that tests ask for and Python cannot bring: missing, they are a failure in CI, and said elsewhere."""

import os
import shutil

import pytest


def missing(what: str) -> None:
    """Skips the test, or fails it where everything must be there."""
    if os.environ.get("TEST_SERVICES"):
        pytest.fail(f"{what} is missing")
    pytest.skip(f"{what} is not installed here; CI has it")


def program(name: str, package: str) -> str:
    """Where a program is."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name} (apt-get install {package})")
    assert found is not None
    return found
