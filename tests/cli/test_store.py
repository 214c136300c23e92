"""``failsoft store`` and ``failsoft approvals`` on a file: what they say, what they change, how they refuse."""

import asyncio
import json
import sqlite3
import time

import pytest

from failsoft.base.errors import ConfigError
from failsoft.cli.loading import load_agents
from failsoft.cli.main import BAD_INPUT, OK, execute
from failsoft.stores.approvals import ApprovalRecord, arguments_hash
from failsoft.stores.protocols import RunRecord
from failsoft.stores.sqlite import SqliteStore


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A store with a run that ended long ago, one that waits, and its approval."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs.db"

    async def fill() -> None:
        store = SqliteStore(path)
        for run in ("run_1", "run_2"):
            await store.create_run(RunRecord(run, "a", {"input": "q"}, 1.0, 8.0, "n"))
        await store.finish_run("run_1", 1, "completed", {}, 2.0)
        now, arguments = time.time(), {"amount": 5}
        digest = arguments_hash("pay", arguments)
        await store.ask_approval(
            "run_2", 1, ApprovalRecord("apr_1", "run_2", "t", "pay", arguments, digest, "tool", now, now + 60)
        )
        await store.aclose()

    asyncio.run(fill())
    return path


def said(capsys, *arguments: str, code: int = OK) -> str:
    assert execute(arguments) == code
    printed = capsys.readouterr()
    return str(printed.out + printed.err)


def test_what_is_there_is_told(file, capsys):
    told = json.loads(said(capsys, "store", "stats", "--store", str(file), "--json"))
    assert (told["runs"], told["rows"]["approvals"]) == ({"completed": 1, "received": 1}, 1)
    assert "1 runs completed" in said(capsys, "store", "stats", "--store", str(file))


def test_what_was_kept_long_enough_is_removed(file, capsys):
    assert json.loads(said(capsys, "store", "prune", "--store", str(file), "--json"))["runs"] == 1
    assert "removed 0 runs" in said(capsys, "store", "prune", "--store", str(file))


def test_an_approval_is_listed_and_resolved_once(file, capsys):
    assert 'pay({"amount": 5})  run run_2' in said(capsys, "approvals", "list", "--store", str(file))
    told = json.loads(
        said(capsys, "approvals", "approve", "apr_1", "--store", str(file), "--by", "ann", "--note", "ok", "--json")
    )
    assert (told["status"], told["by"], told["note"]) == ("approved", "ann", "ok")
    assert "was approved before" in said(capsys, "approvals", "reject", "apr_1", "--store", str(file), code=BAD_INPUT)
    assert "nothing waits" in said(capsys, "approvals", "list", "--store", str(file))
    assert "approved by ann" in said(capsys, "approvals", "list", "--all", "--store", str(file))
    assert "no approval" in said(capsys, "approvals", "approve", "apr_x", "--store", str(file), code=BAD_INPUT)


def test_an_old_file_is_refused_until_it_is_migrated(file, capsys):
    old = file.with_name("old.db")
    connection = sqlite3.connect(old)
    from tests.stores.test_migrations import FIRST

    connection.executescript(FIRST)
    connection.close()
    refused = said(capsys, "store", "stats", "--store", str(old), code=1)
    assert f"failsoft store migrate --store {old}" in refused
    assert "0001 → 0002" in said(capsys, "store", "migrate", "--store", str(old))
    assert "is up to date" in said(capsys, "store", "migrate", "--store", str(old))
    assert "1 runs completed" in said(capsys, "store", "stats", "--store", str(old))


def test_a_file_that_is_not_there_is_bad_input(file, capsys):
    assert "there is no file" in said(capsys, "store", "stats", "--store", "nowhere.db", code=BAD_INPUT)
    assert "which file?" in said(capsys, "approvals", "list", code=BAD_INPUT)


def test_agents_are_loaded_from_a_file_and_mistakes_named(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from failsoft.runs.agents import Agent\n"
        "from failsoft.runs.planner import RulesPlanner\n"
        "one = Agent('one', 'One.', [], [RulesPlanner(lambda request: None)])\n"
        "def both():\n    return [one, one.with_planners('rules')]\n"
        "wrong = 3\n"
    )
    assert [agent.name for agent in load_agents([f"{path}:one", f"{path}:both"])] == ["one", "one", "one"]
    for place in (f"{path}:wrong", f"{path}:none", "no.such.module:x", "mine", f"{path}:a b"):
        with pytest.raises(ConfigError, match="load: "):
            load_agents([place])
