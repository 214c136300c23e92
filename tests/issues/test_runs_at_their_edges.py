"""Runs cancelled before their first step, fatal errors of every kind, crowds, and memory that results hold."""

import asyncio
import gc
import warnings

import pytest
from tests.deep import some_of
from tests.runs.worlds import app, plan, task

from failsoft.app import application as app_module
from failsoft.base.weights import weight
from failsoft.runs.limits import Grace, RunLimits
from failsoft.runs.result import RunRequest
from failsoft.runs.state import RunState
from failsoft.stores.memory import MemoryStore
from failsoft.stores.protocols import CreateRun, FinishRun, FinishTask, RunRecord, TaskRecord
from failsoft.testing.fakes import FakePlanner, FakeStore
from failsoft.tools.python import tool


class Fatal(BaseException):
    """No Exception, and none that Python knows."""


@pytest.mark.parametrize("store", ["off", "memory", "own"])
@pytest.mark.parametrize("key", [None, "k"])
async def test_cancelled_before_its_first_step_a_run_has_a_beginning_and_an_end(store, key):
    kept = MemoryStore()
    async with app(plan(task("a")), store=kept if store == "own" else store) as running:
        handle = running.start(RunRequest("question", idempotency_key=key))
        assert handle.cancel()
        assert [event.kind async for event in handle.events()] == ["run.received", "run.cancelled"]
        await asyncio.wait_for(handle.accepted(), 1)
    if store == "own" and key is None:
        assert (await kept.load_run(handle.run_id)).terminal == "cancelled"


@pytest.mark.parametrize("turns", some_of(range(8), each=4))
async def test_cancelled_early_nothing_is_left_unawaited(turns):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with app(planners=[FakePlanner(plan(task("a")))], store="memory") as running:
            handle = running.start(RunRequest("question", idempotency_key="k"))
            for _ in range(turns):
                await asyncio.sleep(0)
            handle.cancel()
            await handle.result()
        del handle, running
        gc.collect()


async def test_a_planner_that_raises_fatally_gives_way_to_the_next():
    async with app(planners=[FakePlanner(Fatal()), FakePlanner(plan(task("a", value=1)), name="next")]) as running:
        result = await running.ask("question")
    assert (result.status, result.planner) == (RunState.COMPLETED, "next")


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_store_that_raises_fatally_costs_no_answer_and_no_later_write(key):
    store = FakeStore(fails=Fatal())
    async with app(plan(task("a", seconds=0.5)), store=store) as running:
        result = await running.ask("question", idempotency_key=key)
        assert result.status is RunState.COMPLETED
        assert result.failures[0]["part"] == "store"
        store.fails = False
        later = await running.ask("again")
    assert (await store.load_run(later.run_id)).terminal == "completed"


async def test_a_coroutine_that_raises_fatally_fails_its_task_only():
    @tool(kind="external")
    async def fatal() -> None:
        raise Fatal

    async with app(plan(task("a", "fatal"), task("b", value=2)), tools=[fatal]) as running:
        result = await running.ask("question")
        assert result.task("a").status == "failed"
        assert result.task("b").value == 2
        assert running.guards["fatal"].statistics().in_use == 0


async def test_runs_cut_together_keep_time_for_each_others_answers():
    grace, limits = Grace(), RunLimits()
    grace.learn(0.002)
    assert grace.of(8.0, limits) == limits.grace_floor
    grace.crowd = 200
    assert grace.of(8.0, limits) == pytest.approx(0.8)
    assert grace.of(2.0, limits) == pytest.approx(0.25)

    async with app(plan(task("a", "hanging"))) as running:
        handles = [running.start(RunRequest("question", budget_ms=3000)) for _ in range(50)]
        running._grace.learn(0.01)
        late = running.start(RunRequest("question", budget_ms=3000))
        assert late._run.cut < handles[0]._run.cut
        for handle in handles:
            handle.cancel()
        late.cancel()


async def test_how_late_answers_were_is_kept_back_of_later_budgets():
    async with app(plan(task("a", "hanging"))) as running:
        first = running.start(RunRequest("question", budget_ms=8000))
        assert (await first.result()).elapsed == pytest.approx(7.95)
        await asyncio.sleep(0.3)  # a busy loop: its client has it only now
        first.told()
        assert (await running.ask("question", budget=8)).elapsed == pytest.approx(7.7)
        assert (await running.ask("question", budget=1)).elapsed == pytest.approx(0.875)
    async with app(plan(task("a"))) as running:
        quick = running.start(RunRequest("question", budget_ms=8000))
        await quick.result()
        await asyncio.sleep(9)
        quick.told()
        assert running._grace.of(8.0, RunLimits()) == 0.05


async def test_what_ended_runs_hold_is_bounded_by_memory_not_only_by_number(monkeypatch):
    monkeypatch.setattr(app_module, "_REMEMBERED_BYTES", 1_000_000)
    async with app(plan(task("a", value="x" * 300_000)), store="memory") as running:
        ended = [await running.ask("question", idempotency_key=str(i)) for i in range(6)]
        assert [running.run(one.run_id) is not None for one in ended] == [False, False, False, True, True, True]
        assert (await running.ask("question", idempotency_key="5")) is ended[5]
        assert (await running.ask("question", idempotency_key="4")) is ended[4]
    async with app(plan(task("a", value="x" * 3_000_000))) as running:
        one = await running.ask("question")
        assert running.run(one.run_id) is not None


async def test_the_memory_store_is_bounded_by_memory_and_keeps_no_run_whose_end_was_lost(monkeypatch):
    store = MemoryStore(room=1_000_000)
    monkeypatch.setattr("failsoft.stores.memory.UNENDED", 5)
    for i in range(20):
        name = f"run_{i}"
        value = TaskRecord("a", "completed", ["x" * 1000] * 300)
        await store.write(
            [
                CreateRun(RunRecord(name, "a", {}, 0.0, 1.0, "n")),
                FinishTask(name, 1, value),
                FinishRun(name, 1, "completed", {}),
            ]
        )
    kept = [i for i in range(20) if await store.load_run(f"run_{i}") is not None]
    assert kept == [17, 18, 19]
    small = MemoryStore(max_runs=3)
    for i in range(20):
        await small.create_run(RunRecord(f"run_{i}", "a", {}, 0.0, 1.0, "n", idempotency_key=str(i)))
    assert [await small.load_run(f"run_{i}") is not None for i in (0, 11, 12, 19)] == [False, False, True, True]
    assert not (await small.create_run(RunRecord("run_x", "a", {}, 0.0, 1.0, "n", idempotency_key="0"))).existing


def test_a_weight_is_about_the_memory_held_and_cheap_for_anything():
    assert weight("x" * 1000) == pytest.approx(1000, rel=0.1)
    assert weight([{"a": "x" * 1000}] * 1000) == pytest.approx(1_000_000, rel=0.3)
    endless: list = []
    endless.append(endless)
    assert weight(endless) < 10_000
    assert weight(object()) > 0
    assert weight(TaskRecord("a", "completed", b"x" * 5000)) > 5000


async def test_writing_behind_never_holds_up_the_loop_for_long():
    """Entries become writes a group at a time."""
    sizes = []

    class Watched(FakeStore):
        async def write(self, writes):
            sizes.append(len(writes))
            await asyncio.sleep(0.01)
            return await super().write(writes)

    async with app(plan(*[task(f"t{i}", value=i) for i in range(40)]), store=Watched()) as running:
        await asyncio.gather(*[running.ask(f"question {i}") for i in range(60)])
    assert max(sizes) <= 200
    assert sum(sizes) > 2000
