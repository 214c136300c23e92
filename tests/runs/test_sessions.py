"""Sessions: the next turn knows what the last one said. Background runs: written before they are accepted."""

import asyncio
from typing import Any

import pytest
from tests.runs.worlds import App, agent, app, plan, task

from failsoft.base.errors import StoreError
from failsoft.base.messages import Message
from failsoft.runs.planner import PlanRequest, StaticPlanner
from failsoft.runs.result import RunRequest
from failsoft.runs.sessions import TURNS, Sessions, Turn, messages_of
from failsoft.runs.state import RunState
from failsoft.stores.memory import MemoryStore
from failsoft.stores.sqlite import SqliteStore


def listening(heard: list[PlanRequest], **options: Any) -> App:
    """An app whose planner keeps what it is asked, and whose answer says so."""

    def make(request: PlanRequest):
        heard.append(request)
        return plan(task("a", value=request.input))

    return app(planners=[StaticPlanner(make)], **options)


def said(request: PlanRequest) -> list[tuple[str, str]]:
    return [(one.role, (one.content or "")[:20]) for one in request.history]


@pytest.mark.parametrize("store", ["off", "memory"])
async def test_the_next_turn_of_a_session_is_told_what_was_said(store):
    heard: list[PlanRequest] = []
    async with listening(heard, store=store) as world:
        first = await world.ask("one", session_id="s")
        await world.ask("two", session_id="s")
        await world.ask("three", session_id="other")
        await world.ask("four", session_id="s", tenant="red")
        await world.ask("five")
    assert [len(one.history) for one in heard] == [0, 2, 0, 0, 0]
    assert heard[1].history == (Message("user", "one"), Message("assistant", first.answer))


async def test_a_session_outlives_its_process_and_each_turn_is_told_once(tmp_path):
    heard: list[PlanRequest] = []
    for words in (("one", "two"), ("three",)):
        store = SqliteStore(tmp_path / "runs.db")
        async with listening(heard, store=store) as world:
            for word in words:
                await world.ask(word, session_id="s", tenant="blue")
        await store.aclose()
    assert [content for role, content in said(heard[2]) if role == "user"] == ["one", "two"]


async def test_a_run_that_brings_its_own_history_gets_that_only():
    heard: list[PlanRequest] = []
    mine = (Message("user", "mine"),)
    async with listening(heard) as world:
        await world.ask("one", session_id="s")
        await world.ask("two", session_id="s", history=mine)
    assert heard[1].history == mine


async def test_what_is_told_is_bounded_in_turns_and_length():
    heard: list[PlanRequest] = []
    async with listening(heard) as world:
        for number in range(TURNS + 5):
            await world.ask(f"{number} " + "x" * 9_000, session_id="s")
    last = heard[-1].history
    assert len(last) == 2 * TURNS
    assert last[-2].content is not None
    assert last[-2].content.startswith(f"{TURNS + 3} x")
    assert max(len(one.content or "") for one in last) == 4_000


def test_the_sessions_used_last_are_kept():
    sessions = Sessions()
    for number in range(2_500):
        sessions.add(None, f"s{number}", Turn(f"r{number}", 1.0, "completed", "q", "a"))
    assert sessions.recent(None, "s0") == ()
    assert len(sessions.recent(None, "s2499")) == 1
    assert messages_of([Turn("r", 1.0, "failed", "q", None)]) == ()


class Hanging(MemoryStore):
    """Lists nothing, for ever."""

    async def list_runs(self, **wanted: Any):
        await asyncio.get_running_loop().create_future()
        raise AssertionError


async def test_a_store_that_hangs_costs_a_session_its_memory_and_not_its_answer():
    heard: list[PlanRequest] = []
    async with listening(heard, store=Hanging()) as world:
        await world.ask("one", session_id="s")
        began = asyncio.get_running_loop().time()
        result = await world.ask("two", session_id="s", budget=1.0)
        assert asyncio.get_running_loop().time() - began <= 0.3
    assert (result.status, [one["part"] for one in result.failures]) == (RunState.COMPLETED, ["session"])
    assert len(heard[1].history) == 2  # memory knows it


async def test_an_answer_without_what_was_said_before_says_so():
    heard: list[PlanRequest] = []
    async with listening(heard, store=Hanging()) as world:
        result = await world.ask("two", session_id="of another process", budget=1.0)
    assert result.status is RunState.DEGRADED
    assert [(one.title, one.reason) for one in result.shortfalls] == [("What was said before", "memory_lost")]
    assert "What was said before" in (result.answer or "")


# --- background ----------------------------------------------------------------------------------------------------


async def test_a_background_run_is_in_the_store_when_it_is_accepted():
    store = MemoryStore()
    async with app(plan(task("a", seconds=5)), store=store) as world:
        handle = world.start(RunRequest("q", background=True))
        await handle.accepted()
        stored = await store.load_run(handle.run_id)
        assert stored is not None
        assert (stored.record.background, stored.terminal) == (True, None)
        assert (await handle.result()).status is RunState.COMPLETED


class Broken(MemoryStore):
    """Takes no run."""

    async def create_run(self, record):
        raise OSError("disk full")


@pytest.mark.parametrize("store", ["off", Broken()])
async def test_a_background_run_that_cannot_be_written_is_not_accepted(store):
    async with App(agents=[agent(plan(task("a")))], store=store) as world:
        handle = world.start(RunRequest("q", background=True))
        await handle.accepted()
        result = await handle.result()
        assert (result.status, result.tasks) == (RunState.FAILED, ())
        assert isinstance(result.error, StoreError)
        assert (await world.ask("q")).status is RunState.COMPLETED
