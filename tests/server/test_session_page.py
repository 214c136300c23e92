"""The session with curl that the documentation shows is what happens."""

import importlib.util
import sys
from pathlib import Path

import pytest
from tests.services import program

SCRIPT = Path(__file__).parents[2] / "scripts" / "curl_session.py"


@pytest.mark.realtime
def test_the_session_with_curl_is_what_happens():
    program("curl", "curl")
    spec = importlib.util.spec_from_file_location("curl_session", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = sys.modules["curl_session"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text() == script.page()
