"""What people who tried to break a server did, and what it then said or lost."""

import asyncio
import logging

import duckdb
import pytest
from tests.config.test_reload import File

from failsoft.app import App
from failsoft.base.errors import BadInput, ConfigError, StoreError
from failsoft.cli.loading import load_agents
from failsoft.cli.main import execute
from failsoft.config import Settings, load_settings
from failsoft.kernel.guard import Kernel
from failsoft.runs.result import RunRequest
from failsoft.stores.protocols import RunRecord
from failsoft.stores.sqlite import SqliteStore
from failsoft.testing.fakes import FakeTransport
from failsoft.tools.http import http_tool
from failsoft.tools.registry import ToolContext
from failsoft.tools.sql_duckdb import _Instance

# --- stores ----------------------------------------------------------------------------------------------------


def record(run):
    return RunRecord(run=run, tenant=None, agent="a", request={}, body_hash="x", created=1.0, budget=1.0, node="n")


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_store_whose_file_was_taken_away_accepts_nothing_more(tmp_path, replaced):
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.create_run(record("run_1"))
    await asyncio.to_thread(path.unlink)
    if replaced:
        await asyncio.to_thread(path.write_bytes, b"")
    with pytest.raises(StoreError, match="removed or replaced while it was in use"):
        await store.create_run(record("run_2"))
    await store.aclose()


def test_serving_over_a_file_that_is_no_store_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage.db").write_bytes(b"this is no database, " * 1000)
    (tmp_path / "agents.py").write_text(PROCESS_TOOL)
    assert execute(["serve", "--port", "0", "--store", "garbage.db", "--load", "agents.py:agent"]) == 2
    assert "--store: the database" in capsys.readouterr().err.strip().splitlines()[-1]


# --- tools ----------------------------------------------------------------------------------------------------

PROCESS_TOOL = """
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner
from failsoft.tools.python import tool

@tool(isolation="process")
def double(n: int) -> int:
    return 2 * n

agent = Agent("doubler", "Doubles.", [double],
              [StaticPlanner(Plan(tasks=(TaskSpec(id="a", tool="double", arguments={"n": 21}),)))])
"""


@pytest.mark.realtime
async def test_tools_of_a_loaded_file_run_in_processes(tmp_path):
    file = tmp_path / "doubling_agents.py"
    await asyncio.to_thread(file.write_text, PROCESS_TOOL)
    agents = await asyncio.to_thread(load_agents, [f"{file}:agent"])
    async with App(Settings(agent="doubler"), agents=agents, store="off") as app:
        result = await app.start(RunRequest("q", budget_ms=15_000)).result()
        assert (result.status, result.task("a").value) == ("completed", 42), result.to_dict()


async def test_an_argument_that_makes_no_url_is_the_callers_fault_and_no_breaker_hears_of_it():
    from failsoft.base.errors import DownstreamUnavailable

    def refuses(request):
        raise DownstreamUnavailable("the URL is not valid: x", details={"fault": "url"})

    any_host = http_tool("any", "GET {url}", hosts=["*"], transport=FakeTransport(refuses))
    kernel = Kernel()
    guard = kernel.guard(any_host.spec.downstream, "external")
    context = ToolContext(run="r", task="t", idempotency_key="k")
    for _ in range(10):
        with pytest.raises(BadInput, match="the URL is not valid"):
            await any_host.call(guard, {"url": "http://2130706433/"}, context)
    figures = guard.statistics()
    assert (figures.breaker, figures.retries, figures.failed) == ("closed", 0, 0)


async def test_a_database_that_is_still_busy_keeps_nothing_else_open(caplog):
    class Busy:
        def close(self):
            raise duckdb.ConnectionException("connection is busy with another call")

    class Broken:
        async def aclose(self):
            raise RuntimeError("cannot be closed")

    class Other:
        closed = False

        async def aclose(self):
            self.closed = True

    instance, other = _Instance.__new__(_Instance), Other()
    instance._connection = Busy()
    await instance.aclose()
    guard = Kernel().guard("x")
    guard.keep("broken", Broken)
    guard.keep("other", lambda: other)
    with caplog.at_level(logging.ERROR):
        await guard.aclose()
    assert other.closed
    assert "something of x could not be closed" in caplog.text
    caplog.clear()


# --- settings ----------------------------------------------------------------------------------------------------


def refused(tmp_path, text, **environ):
    file = tmp_path / "failsoft.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file, environ=environ)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('model: {base_url: "http://user:LEAK@x/v1"}', "1: model.base_url: a password is not written into a URL"),
        ('models: {a: {routes: {m: {base_url: "http://u:LEAK@x/v1"}}}}', "models.a.routes.m.base_url: a password"),
        (
            'tools: {sql: {a: {description: d, query: select 1, database: "postgresql://u:LEAK@h/d", agents: [x]}}}',
            "tools.sql.a.database: a password",
        ),
        ('tools: {http: {a: {url: "GET https://h/d?api_key=LEAK"}}}', "tools.http.a.url: a secret is not written"),
        ("tools: {mcp: {a: {command: [x], env: {API_KEY: LEAK}}}}", "tools.mcp.a.env.API_KEY: a secret is not written"),
    ],
)
def test_secrets_are_not_written_into_the_file_whatever_they_stand_in(tmp_path, text, where):
    said = refused(tmp_path, text)
    assert where in said
    assert "LEAK" not in said


def test_a_url_may_take_its_password_from_the_environment(tmp_path):
    file = tmp_path / "failsoft.yaml"
    file.write_text('model: {base_url: "http://user:${WORD}@x/v1"}')
    assert load_settings(file, environ={"WORD": "w"}).model.base_url == "http://user:w@x/v1"


@pytest.mark.parametrize("tag", ['!!python/object/apply:os.system ["x"]', "!mine {budget: 3}", "!mine 3"])
def test_yamls_tags_are_refused_with_their_line(tmp_path, tag):
    assert refused(tmp_path, f"agent: a\nrun: {tag}\n").startswith("failsoft.yaml:2: run: YAML's tags")


async def test_a_file_that_is_being_written_takes_nothing_away(tmp_path, caplog):
    file = File(tmp_path)
    text = "models: {a: {routes: {r: {text: one}}}}\n"
    await file.change(text)
    applied = []
    reloader = await file.reloader(applied.append)
    await file.change("")
    assert (await reloader.look()).error == "the file is empty"
    assert applied == []
    await file.change("agent: other\n")  # all models gone, and back: what serves them is still there
    assert (await reloader.look()).changed == ("agent", "models.a")
    await file.change(text)
    said = await reloader.look()
    assert (said.changed, said.restart) == (("agent", "models.a"), ())
    await asyncio.to_thread(file.path.unlink)
    assert await reloader.look() is None
    assert "is gone; they stay as they were" in caplog.text
