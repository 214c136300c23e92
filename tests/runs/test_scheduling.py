"""What the scheduler promises: one outcome per task, in the order of needs, never too wide, whatever fails."""

import asyncio
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.worlds import agent, app, plan, task

from failsoft.base.outcomes import Outcome, Provenance
from failsoft.kernel.guard import Kernel
from failsoft.runs.crew import Crew
from failsoft.runs.progress import History
from failsoft.runs.runners import ToolRunner
from failsoft.runs.scheduler import Scheduler
from failsoft.runs.state import RunState
from failsoft.tools.python import tool
from failsoft.tools.registry import Alternate, Default, ToolContext
from failsoft.tools.stale import StaleResults


async def ask(the_app, **options):
    async with the_app as running:
        return await running.ask("question", **options)


def statuses(result):
    return {one.id: one.status for one in result.tasks}


async def test_results_flow_along_the_plan():
    result = await ask(
        app(
            plan(
                task("a", value=1),
                task("b", value={"rows": [5]}),
                task("c", "join", ["a", "b"], parts=[{"$from": "a"}, {"$from": "b", "path": "rows[0]"}]),
            )
        )
    )
    assert result.status is RunState.COMPLETED
    assert result.task("c").value == [1, 5]
    assert result.shortfalls == ()


async def test_independent_tasks_run_at_once():
    result = await ask(app(plan(*(task(f"t{i}", seconds=1.0) for i in range(8)))))
    assert result.elapsed == pytest.approx(1.0)


async def test_one_of_five_fails_and_the_other_four_are_kept():
    """Case 22."""
    result = await ask(
        app(plan(*(task(f"t{i}", seconds=1.0, value=i) for i in range(4)), task("bad", "broken", seconds=0.5)))
    )
    assert statuses(result) == {
        "t0": "completed",
        "t1": "completed",
        "t2": "completed",
        "t3": "completed",
        "bad": "failed",
    }
    assert result.status is RunState.DEGRADED
    assert [one.value for one in result.tasks] == [0, 1, 2, 3, None]
    assert [one.task for one in result.shortfalls] == ["bad"]
    assert result.task("bad").outcome.provenance.reason == "tool_failed"


async def test_dependants_of_a_failed_task_are_skipped_and_say_why():
    result = await ask(
        app(plan(task("a", "broken"), task("b", needs=["a"]), task("c", needs=["b"]), task("d", value=4)))
    )
    assert statuses(result) == {"a": "failed", "b": "skipped", "c": "skipped", "d": "completed"}
    assert result.task("b").outcome.provenance.reason == "dependency_failed"
    assert "'a'" in result.task("b").outcome.provenance.tried[0].message
    assert "it needs" in result.answer or "needs" in result.answer


async def test_a_task_that_tolerates_missing_inputs_runs_with_what_there_is():
    result = await ask(
        app(
            plan(
                task("a", "broken"),
                task("b", value=2),
                task("c", "join", ["a", "b"], parts=[{"$from": "a"}, {"$from": "b"}], tolerates_missing=True),
            )
        )
    )
    assert result.task("c").value == [None, 2]
    assert result.status is RunState.DEGRADED


async def test_three_tools_of_two_seconds_in_three_seconds():
    """Case 10."""
    result = await ask(
        app(
            plan(
                task("a", seconds=2.0, value="first"),
                task("b", seconds=2.0, needs=["a"]),
                task("c", seconds=2.0, needs=["b"]),
            )
        ),
        budget=3.0,
    )
    assert 2.5 <= result.elapsed <= 3.0
    assert result.status is RunState.DEGRADED
    assert statuses(result) == {"a": "completed", "b": "failed", "c": "skipped"}
    assert result.task("c").started is None
    assert "first" in result.answer
    assert result.task("b").outcome.provenance.reason == "deadline_exceeded"


async def test_a_late_result_is_no_success():
    """Case 15."""
    result = await ask(app(plan(task("a", seconds=1.96))), budget=2.0)
    assert result.task("a").status == "failed"
    assert result.status is RunState.DEGRADED


async def test_priority_decides_who_goes_first():
    order: list[str] = []

    @tool(kind="external")
    async def note(name: str) -> None:
        order.append(name)
        await asyncio.sleep(1)

    tasks = [
        task("optional", "note", priority="optional", essential=False),
        task("normal", "note"),
        task("less", "note", essential=False),
        task("critical", "note", priority="critical"),
    ]
    tasks = [one.model_copy(update={"arguments": {"name": one.id}}) for one in tasks]
    await ask(app(plan(*tasks), tools=[note], width=1))
    assert order == ["critical", "normal", "less", "optional"]


async def test_the_longest_way_goes_first_once_history_is_known():
    order: list[str] = []

    @tool(kind="external")
    async def slow(name: str) -> None:
        order.append(name)
        await asyncio.sleep(2)

    @tool(kind="external")
    async def quick(name: str) -> None:
        order.append(name)
        await asyncio.sleep(0.1)

    tasks = [
        task("q", "quick").model_copy(update={"arguments": {"name": "q"}}),
        task("s", "slow").model_copy(update={"arguments": {"name": "s"}}),
    ]
    async with app(plan(*tasks), tools=[slow, quick], width=1) as running:
        await running.ask("first")
        assert order == ["q", "s"]
        await running.ask("second")
        assert order[2:] == ["s", "q"]


async def test_optional_tasks_that_do_not_fit_are_skipped_and_reported():
    tasks = [task("a", seconds=2.0, value=1), task("extra", seconds=2.0, essential=False, needs=["a"])]
    async with app(plan(*tasks)) as running:
        first = await running.ask("question", budget=8)
        assert first.status is RunState.COMPLETED
        second = await running.ask("question", budget=3)
    assert statuses(second) == {"a": "completed", "extra": "skipped"}
    assert second.task("extra").outcome.provenance.reason == "unaffordable"
    assert second.elapsed == pytest.approx(2.0)
    assert second.status is RunState.DEGRADED


async def test_fast_mode_leaves_out_what_is_optional_and_is_complete():
    tasks = [task("a", value=1), task("extra", seconds=5.0, essential=False, priority="optional")]
    result = await ask(app(plan(*tasks)), mode="fast")
    assert result.elapsed == 0.0
    assert result.task("extra").outcome.provenance.reason == "mode_fast"
    assert result.status is RunState.COMPLETED


async def test_a_task_keeps_time_for_what_usually_comes_after_it():
    calls = 0

    @tool(kind="external")
    async def sometimes() -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.5 if calls == 1 else 60)
        return "here"

    tasks = [
        task("first", "sometimes", fallback={"value": "nothing"}),
        task("second", "work", ["first"], seconds=2.0, value="second", tolerates_missing=True),
    ]
    async with app(plan(*tasks), tools=[sometimes]) as running:
        assert (await running.ask("question", budget=8)).status is RunState.COMPLETED
        result = await running.ask("question", budget=8)
    assert statuses(result) == {"first": "degraded", "second": "completed"}
    assert result.task("first").value == "nothing"
    assert result.task("first").outcome.provenance.reason == "task_timeout"
    assert result.elapsed <= 8.0


async def test_a_tasks_own_timeout_cuts_it():
    result = await ask(app(plan(task("a", "hanging", timeout=1.0), task("b", value=2))), budget=8)
    assert result.elapsed == pytest.approx(1.0)
    assert result.task("a").outcome.provenance.reason == "task_timeout"


# --- the ladder ----------------------------------------------------------------------------------------------------


async def test_an_equivalent_alternate_is_complete_and_another_one_degraded():
    @tool(kind="external", alternates=[Alternate("work", equivalent=True)])
    async def same(seconds: float = 0, value: int = 0) -> None:
        raise RuntimeError

    @tool(kind="external", alternates=["work"])
    async def other(seconds: float = 0, value: int = 0) -> None:
        raise RuntimeError

    result = await ask(app(plan(task("a", "same", value=1), task("b", "other", value=2)), tools=[same, other]))
    a, b = result.task("a"), result.task("b")
    assert (a.value, a.status, a.outcome.provenance.rung) == (1, "completed", "alternate")
    assert (b.value, b.status, b.outcome.provenance.served) == (2, "degraded", "work")
    assert [one.kind for one in result.shortfalls] == ["substituted"]


async def test_an_alternate_gets_time_when_the_first_choice_hangs():
    @tool(kind="external", timeout=60, alternates=[Alternate("work", equivalent=True)])
    async def stuck(seconds: float = 0, value: int = 0) -> None:
        await asyncio.get_running_loop().create_future()

    result = await ask(app(plan(task("a", "stuck", seconds=0.5, value=7)), tools=[stuck]), budget=3)
    assert result.task("a").value == 7
    assert result.status is RunState.COMPLETED
    assert result.elapsed <= 3.0


async def test_a_stale_result_is_served_with_its_age():
    fails = False

    @tool(kind="external", stale_for="1h", timeout=1)
    async def cached(x: int) -> dict:
        if fails:
            await asyncio.get_running_loop().create_future()
        return {"x": x}

    one = task("a", "cached").model_copy(update={"arguments": {"x": 1}})
    async with app(plan(one), tools=[cached]) as running:
        await running.ask("question", tenant="t1")
        await asyncio.sleep(120)
        fails = True
        stale = await running.ask("question", tenant="t1")
        other_tenant = await running.ask("question", tenant="t2")
        await asyncio.sleep(3600)
        too_old = await running.ask("question", tenant="t1")
    assert stale.task("a").value == {"x": 1}
    assert stale.task("a").outcome.provenance.rung == "stale"
    assert stale.task("a").outcome.provenance.age == pytest.approx(121)
    assert re.search(r"is as of [0-9 :-]+ UTC, 2 min ago, and may be out of date", stale.answer)
    assert stale.status is RunState.DEGRADED
    assert other_tenant.task("a").outcome.provenance.served is None
    assert too_old.task("a").outcome.provenance.served is None


async def test_defaults_and_rules_and_the_plans_fallback_come_last():
    @tool(kind="external", fallback=Default(rule=lambda arguments: arguments["x"] * 2))
    async def ruled(x: int) -> int:
        raise RuntimeError

    @tool(kind="external", fallback=Default(rule=lambda arguments: 1 / 0))
    async def broken_rule() -> int:
        raise RuntimeError

    tasks = [
        task("a", "with_default"),
        task("b", "ruled").model_copy(update={"arguments": {"x": 4}}),
        task("c", "broken_rule", fallback={"value": 3}),
        task("d", "broken", fallback={"value": 4, "equivalent": True}),
        task("e", "broken_rule"),
    ]
    result = await ask(app(plan(*tasks), tools=[ruled, broken_rule]))
    assert [one.value for one in result.tasks] == [{"rows": []}, 8, 3, 4, None]
    assert [one.outcome.provenance.rung for one in result.tasks] == ["default", "rule", "default", "default", "skipped"]
    assert statuses(result) == {"a": "degraded", "b": "degraded", "c": "degraded", "d": "completed", "e": "failed"}


async def test_a_fallback_stands_in_for_a_task_that_never_started():
    tasks = [
        task("a", "broken"),
        task("b", needs=["a"], fallback={"value": "b"}),
        task("c", "join", ["b"], parts=[{"$from": "b"}]),
    ]
    result = await ask(app(plan(*tasks)))
    assert result.task("c").value == ["b"]


async def test_actions_are_given_the_same_key_in_each_run_of_a_task():
    result = await ask(app(plan(task("a", "key"))))
    assert result.task("a").value == f"{result.run_id}:a"


# --- hostile tools -------------------------------------------------------------------------------------------------


async def test_a_task_that_ignores_cancellation_is_left_behind_and_tracked_until_it_ends():
    stop = asyncio.Event()

    @tool(kind="external", timeout=600)
    async def stubborn() -> None:
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue

    async with app(plan(task("a", "stubborn"), task("b", value=2)), tools=[stubborn]) as running:
        result = await running.ask("question", budget=2)
        assert result.elapsed <= 2.0
        assert result.task("a").outcome.provenance.reason == "task_timeout"
        assert result.task("b").value == 2
        await asyncio.sleep(1)
        orphans = running.orphans()
        assert [one.run for one in orphans] == [result.run_id]
        assert "stubborn" in orphans[0].what
        stop.set()
        await asyncio.sleep(0.1)
        assert running.orphans() == []


async def test_a_stubborn_task_with_its_own_timeout_holds_up_nobody():
    stop = asyncio.Event()

    @tool(kind="external", timeout=600)
    async def stubborn() -> None:
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue

    tasks = [task("a", "stubborn", timeout=1.0), task("b", needs=["a"], tolerates_missing=True, value=2)]
    async with app(plan(*tasks), tools=[stubborn]) as running:
        result = await running.ask("question", budget=8)
        stop.set()
        await asyncio.sleep(0.1)
    assert result.elapsed == pytest.approx(1.05)
    assert result.task("b").value == 2


async def test_a_tool_that_cancels_itself_fails_alone():
    """Case 5."""

    @tool(kind="external")
    async def gives_up() -> None:
        raise asyncio.CancelledError

    @tool(kind="external")
    async def cancels_its_task() -> None:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()
        await asyncio.sleep(1)

    tasks = [task("a", "gives_up"), task("b", "cancels_its_task"), task("c", seconds=1.0, value=3)]
    result = await ask(app(plan(*tasks), tools=[gives_up, cancels_its_task]))
    assert statuses(result) == {"a": "failed", "b": "failed", "c": "completed"}
    assert result.status is RunState.DEGRADED


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, BaseException, GeneratorExit])
async def test_fatal_errors_of_tools_fail_their_task_only(error):
    """Case 6."""

    @tool(kind="external")
    def in_thread() -> None:
        raise error

    tasks = [task("a", "in_thread"), task("c", seconds=1.0, value=3)]
    result = await ask(app(plan(*tasks), tools=[in_thread]))
    assert statuses(result) == {"a": "failed", "c": "completed"}


async def test_tools_report_progress_from_the_loop_and_from_threads():
    @tool(kind="external")
    async def steps(context: ToolContext) -> None:
        for i in range(4):
            context.progress(i / 4, f"step {i}")
            await asyncio.sleep(0.2)
        context.progress(float("nan"))

    @tool(kind="external")
    def threaded(context: ToolContext) -> None:
        context.progress(0.5, "half")

    async with app(plan(task("a", "steps"), task("b", "threaded")), tools=[steps, threaded]) as running:
        from failsoft.runs.result import RunRequest

        handle = running.start(RunRequest("question"))
        seen = [event async for event in handle.events() if event.kind == "task.progress"]
    assert [event.data["fraction"] for event in seen if event.task == "a"][:4] == [0.0, 0.25, 0.5, 0.75]
    assert [event.data["text"] for event in seen if event.task == "b"] == ["half"]


# --- any plan ------------------------------------------------------------------------------------------------------


@st.composite
def plans(draw):
    size = draw(st.integers(1, 12))
    tasks = []
    for i in range(size):
        needs = draw(st.lists(st.sampled_from([f"t{j}" for j in range(i)]), unique=True, max_size=3)) if i else []
        what = draw(st.sampled_from(["work", "work", "work", "broken", "hanging"]))
        options = {} if what == "hanging" else {"seconds": draw(st.sampled_from([0.0, 0.5, 2.0]))}
        tasks.append(
            task(
                f"t{i}",
                what,
                needs,
                essential=draw(st.booleans()),
                priority=draw(st.sampled_from(["critical", "normal", "optional"])),
                tolerates_missing=draw(st.booleans()),
                timeout=draw(st.sampled_from([None, None, 1.0])),
                fallback=draw(st.sampled_from([None, None, {"value": 0}])),
                **options,
            )
        )
    return plan(*draw(st.permutations(tasks)))


@settings(max_examples=60, deadline=None)
@given(plans(), st.integers(1, 5), st.sampled_from([1.0, 4.0, 30.0]))
async def test_every_task_has_one_outcome_in_the_order_of_needs_never_wider_than_allowed(made, width, budget):
    from failsoft.runs.result import RunRequest

    async with app(made, width=width) as running:
        handle = running.start(RunRequest("question", budget_ms=budget * 1000))
        events = [event async for event in handle.events()]
        result = await handle.result()
    finished = [event.task for event in events if event.kind == "task.finished"]
    assert sorted(finished) == sorted(one.id for one in made.tasks)
    assert result.elapsed <= budget + 0.05
    assert all(one.outcome is not None for one in result.tasks)
    ended: set[str] = set()
    running_now = widest = 0
    for event in events:
        if event.kind == "task.started":
            assert set(made.task(event.task).needs) <= ended
            running_now += 1
            widest = max(widest, running_now)
        elif event.kind == "task.finished":
            ended.add(event.task)
            if event.data["elapsed_ms"] is not None:
                running_now -= 1
    assert widest <= width
    terminal = [
        event.kind for event in events if event.kind in {"run.completed", "run.degraded", "run.failed", "run.cancelled"}
    ]
    assert len(terminal) == 1
    assert events[-1].kind == terminal[0]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


# --- going on after a restart ----------------------------------------------------------------------------------------


async def scheduled(made, finished, *, tools=None, events=None):
    """A scheduler alone, as a restarted run uses it; returns it when it is done."""
    loop = asyncio.get_running_loop()
    kernel, history = Kernel(), History()
    registry = tools or agent(made).tools
    crew = Crew(loop)
    scheduler = Scheduler(
        made,
        run="r",
        tenant=None,
        runners={"tool": ToolRunner(registry, kernel, StaleResults(loop.time), history)},
        history=history,
        crew=crew,
        emit=lambda kind, one, data: None if events is None else events.append((kind, one)),
        began=loop.time(),
        cut=loop.time() + 8,
        finished=finished,
    )
    scheduler.start()
    await scheduler.done
    await kernel.aclose()
    return scheduler


def served(value, **marks):
    return Outcome(value, Provenance(**{"requested": "work", "served": "work", **marks}))


async def test_what_had_finished_before_is_not_run_again_and_nothing_is_told_of_it():
    made = plan(
        task("a", "broken"),
        task("b", needs=["a"], value=2),
        task("c", "join", ["a", "b"], parts=[{"$from": "a"}, {"$from": "b"}]),
    )
    events: list = []
    scheduler = await scheduled(made, {"a": served("kept")}, events=events)
    assert scheduler.outcomes["c"].value == ["kept", 2]
    assert scheduler.result("a").status == "completed"
    assert {one for _, one in events if one} == {"b", "c"}


async def test_what_had_failed_or_been_skipped_before_stays_so_and_its_dependants_say_why():
    nothing = served(None, served=None, rung="skipped", reason="tool_failed", equivalent=False)
    made = plan(task("a", "work"), task("b", needs=["a"]), task("c", value=3))
    scheduler = await scheduled(made, {"a": nothing})
    assert [one.status for one in scheduler.results()] == ["failed", "skipped", "completed"]


async def test_a_run_whose_tasks_have_all_finished_has_nothing_to_do():
    made = plan(task("a", "broken"), task("b", "broken", needs=["a"]))
    scheduler = await scheduled(made, {"a": served(1), "b": served(2, age=4.0)})
    assert [one.status for one in scheduler.results()] == ["completed", "degraded"]
