"""Every command of these tests has its own cache and no settings from outside."""

import functools
import os

import pytest
import typer.main

SALES = """day,region,product,revenue
2024-04-03,north,lamp,100
2024-05-02,north,lamp,50
2024-05-09,south,desk,300
2024-06-11,south,lamp,100
2024-07-01,north,desk,450
2024-08-19,north,lamp,150
2024-08-20,south,desk,200
2024-09-30,south,lamp,200
"""


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One cache for the session: what is loaded once stays loaded."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session", autouse=True)
def made_once():
    """The commands and their options: a process makes them once, and so do these tests, for all that they run."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True)
def outside(monkeypatch, tmp_path, cache):
    """No variables of ours, no model, and a folder without settings."""
    for name in list(os.environ):
        if name.startswith(("FAILSOFT_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FAILSOFT_CACHE_DIR", str(cache))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sales(tmp_path):
    """A small table: revenue per region and product."""
    file = tmp_path / "sales.csv"
    file.write_text(SALES)
    return file
