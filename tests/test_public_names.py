"""``from failsoft import …``: every public name is there, documented, and costs only what it needs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import failsoft


@pytest.mark.parametrize("name", sorted(set(failsoft.__all__) - {"__version__"}))
def test_every_public_name_is_there_and_documented(name):
    assert getattr(failsoft, name).__doc__
    assert name in dir(failsoft)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(failsoft.__file__).read_text())
    typed = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("failsoft.")
        for alias in node.names
    }
    assert typed == set(failsoft.__all__) - {"__version__"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        failsoft.no_such_name  # noqa: B018


def test_the_kernel_alone_loads_nothing_heavy():
    heavy = ["pydantic", "aiohttp", "ruamel", "typer", "rich", "msgspec", "sqlite3"]
    program = f"import sys\nfrom failsoft import guard, deadline_scope\nprint([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=18, check=True)
    assert done.stdout.strip() == "[]"
