"""The command line as a whole: help, version, and how fast they are there."""

import subprocess
import sys

import pytest

from failsoft import __version__
from failsoft.cli.main import execute


def test_version(capsys):
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"failsoft {__version__}\n"


@pytest.mark.parametrize("command", [[], ["ask"], ["serve"], ["demo"], ["check"]])
def test_help_teaches_by_examples(capsys, command):
    assert execute([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "failsoft check" in out or "failsoft ask" in out or "failsoft serve" in out or "failsoft demo" in out
    for option in {"ask": ["--budget", "--fault", "--json", "--data"], "serve": ["--port"], "demo": ["--fault"]}.get(
        command[0] if command else "", []
    ):
        assert option in out


def test_no_command_shows_the_help(capsys):
    assert execute([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_unknown_command_is_one_line(capsys):
    assert execute(["frobnicate"]) == 2
    assert capsys.readouterr().err == "error: No such command 'frobnicate'; see: failsoft --help\n"


@pytest.mark.timeout(60)
def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from failsoft.cli.main import execute\n"
        "assert execute(['--help']) == 0\n"
        "heavy = {'duckdb', 'matplotlib', 'numpy', 'fastapi', 'uvicorn', 'aiohttp', 'pydantic', 'rich', 'asyncio'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=50)
