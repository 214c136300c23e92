"""A run's states, budget, cancellation and its one terminal event, whatever breaks."""

import asyncio
import itertools
import math

import pytest
from tests.runs.worlds import App, agent, app, plan, task

from failsoft.base.errors import (
    BadInput,
    DownstreamUnavailable,
    IdempotencyConflict,
    PlanRefused,
    QueueFull,
    StoreError,
    UnknownAgent,
)
from failsoft.base.events import EventBus
from failsoft.kernel.deadline import deadline_scope
from failsoft.runs.answer import Answer, Artifact
from failsoft.runs.limits import Grace, RunLimits
from failsoft.runs.plan import Plan
from failsoft.runs.planner import RulesPlanner
from failsoft.runs.result import RunRequest
from failsoft.runs.state import TERMINAL, TRANSITIONS, RunState, StateCell
from failsoft.stores.memory import MemoryStore
from failsoft.testing.cancellation import cancel_at_every_await
from failsoft.testing.clock import VirtualEvent
from failsoft.testing.fakes import FakePlanner, FakeStore, ignore_cancellation
from failsoft.tools.python import tool

ENDS = {f"run.{state}" for state in TERMINAL}
GOOD = plan(task("a", seconds=1.0, value="first"), task("b", needs=["a"], seconds=1.0, value="second"))


async def watched(running, request):
    """The events and the result of a run."""
    handle = running.start(request)
    events = [event async for event in handle.events()]
    return events, await handle.result()


def one_end(events):
    ends = [event.kind for event in events if event.kind in ENDS]
    assert len(ends) == 1
    assert events[-1].kind == ends[0]
    return ends[0]


# --- the states ----------------------------------------------------------------------------------------------------


def test_the_table_is_complete_and_ends_are_final():
    assert set(TRANSITIONS) == set(RunState)
    for state in TERMINAL:
        assert TRANSITIONS[state] == frozenset()
    for state in set(RunState) - TERMINAL:
        assert {RunState.FAILED, RunState.CANCELLED} <= TRANSITIONS[state]


@pytest.mark.parametrize(("start", "target"), list(itertools.product(RunState, RunState)))
def test_only_what_the_table_allows_happens(start, target):
    cell = StateCell(start)
    assert cell.to(target) is (target in TRANSITIONS[start])
    assert cell.value is (target if target in TRANSITIONS[start] else start)


def test_a_change_that_expects_another_state_does_nothing():
    cell = StateCell(RunState.PLANNING)
    assert not cell.to(RunState.DISPATCHING, expected=RunState.RECEIVED)
    assert cell.value is RunState.PLANNING


async def test_a_run_goes_through_its_states_in_order():
    async with app(GOOD) as running:
        events, result = await watched(running, RunRequest("question"))
    states = [event.kind for event in events if event.kind.startswith("run.") and event.kind != "run.eta"]
    assert states == ["run.received", "run.planning", "run.dispatching", "run.aggregating", "run.completed"]
    assert result.elapsed == pytest.approx(2.0)
    assert events[-1].data["answer"] == result.answer
    assert [event.id for event in events][:2] == ["1.1", "1.2"]


async def test_events_can_be_taken_up_again_after_any_of_them():
    async with app(GOOD) as running:
        events, result = await watched(running, RunRequest("question"))
        handle = running.run(result.run_id)
        assert [event async for event in handle.events(after=events[3].id)] == events[4:]
        assert [event async for event in handle.events(after="9.9")] == events
        assert [event async for event in handle.events(after="rubbish")] == events
        assert [event async for event in handle.events(after=events[-1].id)] == []


async def test_many_watch_one_run_each_at_its_own_pace():
    async with app(GOOD) as running:
        handle = running.start(RunRequest("question"))

        async def watch(pause):
            seen = []
            async for event in handle.events():
                seen.append(event)
                await asyncio.sleep(pause)
            return seen

        first, second = await asyncio.gather(watch(0), watch(0.7))
    assert first == second


# --- input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": "  \n"}, "input"),
        ({"input": "x" * 10_001}, "input"),
        ({"input": None}, "input"),
        ({"budget_ms": 0}, "budget"),
        ({"budget_ms": -5}, "budget"),
        ({"budget_ms": math.nan}, "budget"),
        ({"budget_ms": math.inf}, "budget"),
        ({"budget_ms": 10**400}, "budget"),
        ({"budget_ms": "5"}, "budget"),
        ({"budget_ms": True}, "budget"),
        ({"budget_ms": 1e9}, "budget"),
        ({"spent_ms": -1}, "spent_ms"),
        ({"mode": "turbo"}, "mode"),
    ],
)
async def test_bad_input_names_the_field_and_starts_nothing(changes, param):
    async with app(GOOD) as running:
        with pytest.raises(BadInput) as caught:
            running.start(RunRequest(**{"input": "question", **changes}))
        assert caught.value.param == param
        assert running.runs == []


async def test_an_unknown_agent_is_told_which_there_are():
    async with App(agents=[agent(GOOD, name="one"), agent(GOOD, name="two")], store="off") as running:
        for wanted in ("three", None):
            with pytest.raises(UnknownAgent, match="one, two") as caught:
                running.start(RunRequest("question", agent=wanted))
            assert caught.value.details == {"agents": ["one", "two"]}
        assert (await running.ask("question", agent="two")).agent == "two"


async def test_the_budget_is_the_agents_the_requests_or_the_callers_scope():
    slow = plan(task("a", "hanging"))
    async with app(slow, budget=3.0) as running:
        assert (await running.ask("question")).budget == 3.0
        assert (await running.ask("question", budget=1.5)).elapsed <= 1.5
        async with deadline_scope(1.0):
            result = await running.ask("question", budget=60)
        assert result.elapsed < 1.0
        spent = await running.start(RunRequest("question", budget_ms=2000, spent_ms=1500)).result()
        assert spent.elapsed <= 2.0
    assert [one.budget for one in (result,)] == [1.0]


async def test_too_many_runs_are_refused():
    async with app(plan(task("a", "hanging")), limits=RunLimits(max_runs=2)) as running:
        for _ in range(2):
            running.start(RunRequest("question"))
        with pytest.raises(QueueFull):
            running.start(RunRequest("question"))


# --- planners ------------------------------------------------------------------------------------------------------


async def test_a_refused_plan_falls_to_the_next_planner_and_the_reason_is_kept():
    """Case 43."""
    cyclic = plan(task("a", needs=["b"]), task("b", needs=["a"]))
    planners = [
        RulesPlanner(lambda request: None),
        FakePlanner(cyclic, name="first"),
        FakePlanner(RuntimeError("bug"), name="second"),
        FakePlanner(GOOD, name="third"),
    ]
    async with app(planners=planners) as running:
        events, result = await watched(running, RunRequest("question"))
    assert result.planner == "third"
    assert result.status is RunState.COMPLETED
    assert [(one.planner, one.reason) for one in result.refused] == [
        ("rules", "not_understood"),
        ("first", "cycle"),
        ("second", None),
    ]
    assert [event.data["planner"] for event in events if event.kind == "plan.refused"] == ["rules", "first", "second"]


async def test_a_wrong_question_is_not_guessed_around():
    next_one = FakePlanner(GOOD)
    planners = [FakePlanner(BadInput("there is no column 'x'", param="column")), next_one]
    async with app(planners=planners) as running:
        result = await running.ask("question")
    assert result.status is RunState.FAILED
    assert (result.error.code, result.error.param) == ("bad_input", "column")
    assert next_one.asked == []
    with pytest.raises(BadInput):
        result.raise_for_status()


async def test_when_nobody_can_plan_all_reasons_are_told():
    planners = [RulesPlanner(lambda request: None), FakePlanner(plan(), name="empty")]
    async with app(planners=planners) as running:
        result = await running.ask("question")
    assert isinstance(result.error, PlanRefused)
    assert [one["reason"] for one in result.error.details["planners"]] == ["not_understood", "no_task"]
    assert result.error.run_id == result.run_id


async def test_what_may_be_better_later_is_said_first():
    planners = [RulesPlanner(lambda request: None), FakePlanner(DownstreamUnavailable("model is down", retry_after=3))]
    async with app(planners=planners) as running:
        result = await running.ask("question")
    assert (result.error.code, result.error.retry_after) == ("downstream_unavailable", 3)


async def test_a_planner_that_hangs_leaves_time_for_the_next_one():
    planners = [FakePlanner(GOOD, delay=100, name="slow"), FakePlanner(GOOD, name="next")]
    async with app(planners=planners) as running:
        result = await running.ask("question", budget=8)
    assert result.planner == "next"
    assert result.status is RunState.COMPLETED
    assert result.elapsed < 8


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_planner_that_hangs_does_not_hold_up_the_answer(stubborn):
    stop = asyncio.Event()

    class Hanging:
        name = "hanging"

        async def plan(self, request, tools, context) -> Plan:
            if stubborn:
                await ignore_cancellation(stop)
            else:
                await asyncio.get_running_loop().create_future()
            return GOOD

    async with app(planners=[Hanging()]) as running:
        events, result = await watched(running, RunRequest("question", budget_ms=2000))
        assert result.status is RunState.FAILED
        assert result.error.type == "timeout"
        assert result.elapsed <= 2.0
        assert one_end(events) == "run.failed"
        stop.set()


async def test_a_planner_that_returns_something_else_is_refused():
    async with app(planners=[FakePlanner(lambda request: {"tasks": []})]) as running:
        assert (await running.ask("question")).error.code == "plan_refused"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_a_planner_that_raises_fatally_fails_the_run_only(error):
    async with app(planners=[FakePlanner(error())]) as running:
        events, result = await watched(running, RunRequest("question"))
    assert one_end(events) == "run.failed"
    assert result.status is RunState.FAILED


# --- the budget ----------------------------------------------------------------------------------------------------


async def test_a_coroutine_that_hangs_costs_only_its_own_part():
    async with app(plan(task("a", value=1), task("b", "hanging"))) as running:
        events, result = await watched(running, RunRequest("question", budget_ms=5000))
    assert result.status is RunState.DEGRADED
    assert 4.0 <= result.elapsed <= 5.0
    assert one_end(events) == "run.degraded"
    assert "“b” is missing" in result.answer


async def test_a_thread_that_hangs_is_shown_as_orphan_until_it_ends():
    """Case 8."""
    event = VirtualEvent()

    @tool(kind="external", timeout=3)
    def blocks() -> str:
        event.wait()
        return "late"

    async with app(plan(task("a", "blocks"), task("b", value=2)), tools=[blocks]) as running:
        result = await running.ask("question", budget=8)
        assert result.elapsed == pytest.approx(3.0)
        assert result.task("b").value == 2
        guard = running.guards["blocks"]
        assert len(guard.orphans()) == 1
        assert guard.statistics().in_use == 1
        event.set()
        await asyncio.sleep(0.1)
        assert guard.orphans() == []
        assert guard.statistics().in_use == 0


def test_grace_is_learned_between_a_floor_and_a_ceiling():
    limits, grace = RunLimits(), Grace()
    assert grace.of(8.0, limits) == 0.05
    assert grace.of(0.1, limits) == pytest.approx(0.0125)
    grace.learn(0.2)
    assert grace.of(8.0, limits) == pytest.approx(0.4)
    grace.learn(60)
    assert grace.of(120.0, limits) == 15.0


# --- what breaks around a run --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, SystemExit])
async def test_a_listener_that_raises_breaks_nothing(error):
    bus = EventBus()

    def listener(event):
        if event.seq:  # an event of a run
            raise error("boom")

    bus.add(listener)
    async with app(GOOD, bus=bus) as running:
        events, result = await watched(running, RunRequest("question"))
    assert result.status is RunState.COMPLETED
    assert one_end(events) == "run.completed"
    assert bus.errors > 0


@pytest.mark.parametrize("broken", ["raises", "fatal", "nothing", "text", "cancelled"])
async def test_an_answer_function_that_fails_gives_way_to_the_generic_answer(broken):
    def answer(parts):
        if broken == "raises":
            raise KeyError("rows")
        if broken == "fatal":
            raise SystemExit
        if broken == "cancelled":
            raise asyncio.CancelledError
        return None if broken == "nothing" else "text"

    async with app(GOOD, answer=answer) as running:
        events, result = await watched(running, RunRequest("question"))
    assert one_end(events) == "run.degraded"
    assert "second" in result.answer
    assert "The report" in result.answer
    assert result.failures[0]["part"] == "answer"


async def test_the_agents_answer_gets_outcomes_and_gives_artifacts():
    def answer(parts):
        assert parts.language == "zh"
        assert parts.value("a") == "first"
        return Answer(f"{parts.value('b')}", (Artifact("chart.png", "image/png", b"\x89PNG", task="b"),))

    async with app(GOOD, answer=answer) as running:
        result = await running.ask("第三季度的收入是多少？")
    assert result.answer == "second"
    assert result.to_dict()["artifacts"][0]["bytes"] == 4
    assert result.to_dict(artifact_data=True)["artifacts"][0]["data"] == "iVBORw=="


@pytest.mark.parametrize("fault", ["fails", "hangs", "odd"])
@pytest.mark.parametrize("with_key", [False, True])
async def test_a_store_that_is_broken_costs_no_answer(fault, with_key):
    """Case 7."""
    store = FakeStore(
        fails={"fails": StoreError("the disk is full"), "odd": ValueError("?"), "hangs": False}[fault],
        hangs=fault == "hangs",
    )
    async with app(GOOD, store=store) as running:
        events, result = await watched(
            running, RunRequest("question", budget_ms=8000, idempotency_key="k" if with_key else None)
        )
        statistics = running.statistics()
    assert one_end(events) == "run.completed"
    assert result.elapsed <= 8.0
    assert result.answer
    if fault != "hangs" or with_key:
        assert result.failures[0]["part"] == "store"
        assert statistics.recorder.errors >= 1


async def test_a_store_that_fails_in_the_middle_is_named_in_the_result():
    store = FakeStore()
    async with app(GOOD, store=store) as running:
        handle = running.start(RunRequest("question"))
        await asyncio.sleep(0.5)
        store.fails = True
        result = await handle.result()
    assert result.status is RunState.COMPLETED
    assert result.failures == ({"part": "store", "code": "store_error", "message": "the disk is full"},)
    assert result.to_dict()["provenance"]["failures"][0]["code"] == "store_error"


async def test_everything_about_a_run_is_in_the_store():
    store = MemoryStore()
    async with app(GOOD, store=store) as running:
        events, result = await watched(running, RunRequest("question", tenant="t1", session_id="s"))
    stored = await store.load_run(result.run_id, tenant="t1")
    assert stored.terminal == "completed"
    assert stored.record.session == "s"
    assert [event.kind for event in stored.events] == [event.kind for event in events]
    assert [event.seq for event in stored.events] == [event.seq for event in events]
    assert {name: one.value for name, one in stored.tasks.items()} == {"a": "first", "b": "second"}
    assert Plan.from_dict(stored.snapshot["plan"]) == GOOD
    assert stored.result["answer"] == result.answer


async def test_history_is_taken_from_the_store():
    store = MemoryStore()
    async with app(GOOD, store=store) as running:
        await running.ask("question")
    async with app(GOOD, store=store) as running:
        assert running.history.median("tool:work") == pytest.approx(1.0)
        events, _ = await watched(running, RunRequest("question"))
    etas = [event.data for event in events if event.kind == "run.eta"]
    half = next(eta for eta in etas if eta["finished"] == 1)  # one more came in the same instant, just before
    assert (half["eta_s"], half["done"]) == (pytest.approx(1.0), pytest.approx(0.5))
    last = {name: value for name, value in etas[-1].items() if name != "at_most_s"}
    assert last == {"done": 1.0, "eta_s": 0.0, "finished": 2, "running": [], "total": 2}


# --- idempotency ---------------------------------------------------------------------------------------------------


async def test_the_same_key_gives_the_same_run_and_another_body_a_conflict():
    """Case 29."""
    async with app(GOOD, store="memory") as running:
        request = RunRequest("question", idempotency_key="k")
        first, second = running.start(request), running.start(request)
        assert first.run_id == second.run_id
        with pytest.raises(IdempotencyConflict):
            running.start(RunRequest("other", idempotency_key="k"))
        other = running.start(RunRequest("question", idempotency_key="k", tenant="t2"))
        assert other.run_id != first.run_id
        await first.result()
        assert running.start(request).run_id == first.run_id


# --- cancelling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0.0, 0.5, 1.5])
async def test_a_cancelled_run_is_cancelled_at_once_and_never_overwritten(after):
    """Case 18."""
    planners = [FakePlanner(plan(task("a", seconds=1.0), task("b", "hanging", needs=["a"])), delay=0.2)]
    store = MemoryStore()
    async with app(planners=planners, store=store) as running:
        handle = running.start(RunRequest("question"))
        await asyncio.sleep(after)
        assert handle.cancel()
        result = await handle.result()
        assert result.status is RunState.CANCELLED
        assert result.error.code == "run_cancelled"
        events = [event async for event in handle.events()]
        await asyncio.sleep(20)
        assert handle.state is RunState.CANCELLED
        assert [event async for event in handle.events()] == events
        assert running.guards["hanging"].statistics().in_use == 0
    assert one_end(events) == "run.cancelled"
    assert (await store.load_run(result.run_id)).terminal == "cancelled"


async def test_cancelling_a_finished_run_changes_nothing():
    """Case 20."""
    async with app(GOOD) as running:
        handle = running.start(RunRequest("question"))
        result = await handle.result()
        assert not handle.cancel()
        assert await handle.result() is result
        assert result.status is RunState.COMPLETED
        assert running.run("run_unknown") is None


async def test_a_stubborn_tool_does_not_hold_up_a_cancel():
    stop = asyncio.Event()

    @tool(kind="external")
    async def stubborn() -> None:
        await ignore_cancellation(stop)

    async with app(plan(task("a", "stubborn")), tools=[stubborn]) as running:
        handle = running.start(RunRequest("question"))
        await asyncio.sleep(1)
        handle.cancel()
        result = await handle.result()
        assert result.elapsed == pytest.approx(1.0)
        await asyncio.sleep(1)
        assert len(running.orphans()) == 1
        stop.set()


async def test_leaving_the_app_cancels_what_runs_and_what_ignores_that_is_left_behind():
    stop = asyncio.Event()

    @tool(kind="external")
    async def stubborn() -> None:
        await ignore_cancellation(stop)

    loop = asyncio.get_running_loop()
    async with app(plan(task("a", "stubborn")), tools=[stubborn]) as running:
        handle = running.start(RunRequest("question"))
        await asyncio.sleep(1)
        start = loop.time()
    assert loop.time() - start <= 5
    assert handle.state is RunState.CANCELLED
    stop.set()
    await asyncio.sleep(0.1)


async def test_closing_lets_runs_finish_within_the_drain_time():
    async with app(GOOD) as running:
        handle = running.start(RunRequest("question"))
        await asyncio.sleep(0.5)
        await running.aclose(drain=10)
        assert handle.state is RunState.COMPLETED


@pytest.mark.parametrize("key", [None, "k"])
def test_cancelled_at_any_await_a_run_ends_as_cancelled_or_had_ended(key):
    seen: list = []

    async def ask():
        store = MemoryStore()
        bus = EventBus()
        events: list = []
        bus.add(events.append)
        seen[:] = [store, events]
        planners = [FakePlanner(RuntimeError(), delay=0.1), FakePlanner(GOOD, delay=0.1)]
        async with app(planners=planners, store=store, bus=bus) as running:
            await running.ask("question", idempotency_key=key)

    def check():
        _, events = seen
        ends = [event.kind for event in events if event.kind in ENDS]
        started = any(event.kind.startswith("run.") for event in events)
        assert len(ends) == (1 if started else 0)
        if ends:
            assert [e for e in events if e.run][-1].kind in ENDS

    assert cancel_at_every_await(ask, check) >= 2


def test_the_driving_task_cancelled_at_any_await_ends_the_run():
    """The run's own task, at every suspension of it, with children that behave."""
    seen: list = []

    async def drive():
        store = FakeStore(delay=0.01)
        planners = [FakePlanner(RuntimeError(), delay=0.1), FakePlanner(GOOD, delay=0.1)]
        async with app(planners=planners, store=store) as running:
            handle = running.start(RunRequest("question", idempotency_key="k"))
            run = handle._run
            run.task.cancel()  # the app's own task is replaced by this one
            await asyncio.sleep(0)
            fresh = type(run)("run_2", run.request, run.agent, 8.0, running._parts)
            seen[:] = [fresh]
            try:
                await fresh.drive()
            finally:
                assert fresh.cell.terminal

    def check():
        fresh = seen[0] if seen else None
        if fresh is not None:
            ends = [event.kind for event in fresh.events if event.kind in ENDS]
            assert len(ends) == 1
        seen.clear()

    assert cancel_at_every_await(drive, check) >= 5
