"""Conditions, lists, joins and retries of tasks."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.worlds import agent, app, plan, task

from failsoft.base.errors import BadInput, DownstreamUnavailable, PlanRefused
from failsoft.kernel.retry import RetryPolicy
from failsoft.runs.conditions import Condition, holds
from failsoft.runs.plan import Plan, PlanLimits, check_plan
from failsoft.runs.result import RunRequest
from failsoft.runs.state import RunState
from failsoft.tools.python import tool
from failsoft.tools.registry import Default


async def ask(the_app, **options):
    async with the_app as running:
        return await running.ask("question", **options)


def statuses(result):
    return {one.id: one.status for one in result.tasks}


# --- conditions ---


@pytest.mark.parametrize(
    ("test", "found", "value", "expected"),
    [
        ("present", 0, None, True),
        ("present", None, None, False),
        ("absent", None, None, True),
        ("true", [], None, False),
        ("true", 3, None, True),
        ("false", "", None, True),
        ("filled", [0], None, True),
        ("filled", [], None, False),
        ("empty", [], None, True),
        ("empty", None, None, True),
        ("eq", 3, 3, True),
        ("ne", 3, 3, False),
        ("lt", 2, 3, True),
        ("le", 3, 3, True),
        ("gt", 2, 3, False),
        ("ge", 3, 3, True),
        ("in", "a", ["a", "b"], True),
        ("contains", ["a"], "b", False),
        ("gt", float("nan"), 0, False),
    ],
)
def test_conditions(test, found, value, expected):
    condition = Condition(of={"$from": "a"}, test=test, value=value)
    assert holds(condition, {"a": found}) is expected


def test_a_condition_on_what_is_missing_or_leads_nowhere():
    deep = {"$from": "a", "path": "x.y"}
    assert not holds(Condition(of={"$from": "a"}, test="present"), {}, {"a"})
    assert not holds(Condition(of=deep, test="present"), {"a": {}})
    with pytest.raises(BadInput, match="has no"):
        holds(Condition(of=deep, test="gt", value=1), {"a": {}})
    with pytest.raises(BadInput, match="does not apply to str"):
        holds(Condition(of={"$from": "a"}, test="gt", value=1), {"a": "text"})
    assert holds(Condition(of={**deep, "default": 5}, test="gt", value=1), {"a": {}})


async def test_a_branch_that_is_not_wanted_is_left_out_and_nothing_is_missing():
    made = plan(
        task("count", value={"rows": 0}),
        task("many", needs=["count"], when={"of": {"$from": "count", "path": "rows"}, "test": "gt", "value": 0}),
        task("chart", needs=["many"]),
        task("none", needs=["count"], when={"of": {"$from": "count", "path": "rows"}, "test": "eq", "value": 0}),
        task("end", "join", ["chart", "none"], parts=[{"$from": "none"}], tolerates_missing=True),
    )
    result = await ask(app(made))
    assert statuses(result) == {
        "count": "completed",
        "many": "skipped",
        "chart": "skipped",
        "none": "completed",
        "end": "completed",
    }
    assert result.task("chart").outcome.provenance.reason == "condition_false"
    assert (result.status, result.shortfalls) == (RunState.COMPLETED, ())


async def test_a_condition_that_cannot_be_judged_fails_its_task_alone():
    made = plan(
        task("a", value="text"),
        task("b", needs=["a"], when={"of": {"$from": "a"}, "test": "gt", "value": 1}),
        task("c", value=3),
    )
    result = await ask(app(made))
    assert statuses(result) == {"a": "completed", "b": "failed", "c": "completed"}
    assert result.task("b").outcome.provenance.reason == "bad_input"


# --- lists ---


def mapped(over, *, tool="work", arguments=None, needs=(), **options):
    each = {"over": over, **{name: options.pop(name) for name in ("width", "limit") if name in options}}
    made = task("each", tool, needs, map=each, **options)
    return made.model_copy(update={"arguments": arguments or {"value": {"$item": ""}}})


async def test_a_task_is_done_for_each_item_in_order_and_at_once():
    made = plan(
        task("list", value=[{"n": 3}, {"n": 1}]),
        mapped({"$from": "list"}, arguments={"seconds": {"$item": "n"}, "value": {"$item": "n"}}, needs=["list"]),
        task("end", "join", ["each"], parts={"$from": "each"}),
    )
    result = await ask(app(made))
    assert result.task("end").value == [3, 1]
    assert result.elapsed == 3.0
    assert result.status is RunState.COMPLETED


@pytest.mark.parametrize(("width", "seconds"), [(1, 6.0), (2, 3.0), (4, 2.0), (100, 1.0)])
async def test_a_maps_width_is_kept(width, seconds):
    made = plan(mapped(list(range(6)), width=width, arguments={"seconds": 1.0, "value": {"$item": ""}}))
    result = await ask(app(made))
    assert result.task("each").value == [0, 1, 2, 3, 4, 5]
    assert result.elapsed == seconds


async def test_the_runs_width_bounds_a_map_too():
    made = plan(mapped(list(range(6)), width=6, arguments={"seconds": 1.0, "value": 1}))
    assert (await ask(app(made, width=2))).elapsed == 3.0


async def test_an_empty_list_gives_an_empty_list():
    result = await ask(app(plan(mapped([]))))
    assert (result.task("each").value, result.task("each").status) == ([], "completed")


async def test_more_items_than_the_limit_are_left_out_and_it_says_so():
    result = await ask(app(plan(mapped(list(range(50)), limit=3))))
    one = result.task("each")
    assert (one.value, one.status, one.outcome.provenance.reason) == ([0, 1, 2], "degraded", "too_many_items")
    assert [short.kind for short in result.shortfalls] == ["truncated"]


async def test_items_that_fail_leave_a_gap_and_all_that_fail_are_a_missing_result():
    @tool(kind="external")
    async def odd(n: int) -> int:
        if n % 2 == 0:
            raise RuntimeError
        return n

    each = mapped([0, 1, 2, 3], tool="odd", arguments={"n": {"$item": ""}})
    result = await ask(app(plan(each), tools=[odd]))
    one = result.task("each")
    assert (one.value, one.status, one.outcome.provenance.truncated) == ([None, 1, None, 3], "degraded", True)
    assert one.outcome.provenance.reason == "tool_failed"
    none = await ask(app(plan(mapped([0, 2], tool="odd", arguments={"n": {"$item": ""}})), tools=[odd]))
    assert none.task("each").outcome.provenance.served is None
    assert none.task("each").outcome.provenance.reason == "tool_failed"
    spare = await ask(
        app(plan(mapped([0], tool="odd", arguments={"n": {"$item": ""}}, fallback={"value": "spare"})), tools=[odd])
    )
    assert spare.task("each").value == "spare"


async def test_what_had_been_done_when_the_budget_ran_out_is_kept():
    made = plan(mapped(list(range(10)), width=2, arguments={"seconds": 1.0, "value": {"$item": ""}}))
    result = await ask(app(made), budget=2.5)
    one = result.task("each")
    assert one.value == [0, 1, 2, 3, *[None] * 6]
    assert (one.status, one.outcome.provenance.truncated, result.status) == ("degraded", True, RunState.DEGRADED)
    assert result.elapsed <= 2.5


async def test_cancelling_a_run_ends_a_map_and_its_items():
    gone = 0

    @tool(kind="external")
    async def long(n: int) -> None:
        nonlocal gone
        try:
            await asyncio.sleep(100)
        finally:
            gone += 1

    made = plan(mapped(list(range(10)), tool="long", width=4, arguments={"n": {"$item": ""}}))
    async with app(made, tools=[long]) as running:
        handle = running.start(RunRequest("question"))
        await asyncio.sleep(1)
        handle.cancel()
        result = await handle.result()
        await asyncio.sleep(0.1)
        assert running.orphans() == []
    assert gone == 4
    assert result.status is RunState.CANCELLED


async def test_what_is_no_list_fails_the_task():
    result = await ask(app(plan(task("a", value=5), mapped({"$from": "a"}, needs=["a"]), task("b"))))
    assert statuses(result) == {"a": "completed", "each": "failed", "b": "completed"}


async def test_one_action_per_item_has_its_own_key():
    result = await ask(
        app(plan(mapped([1, 2], tool="key", arguments={"unused": 1}).model_copy(update={"arguments": {}})))
    )
    assert result.task("each").value == [f"{result.run_id}:each[0]", f"{result.run_id}:each[1]"]


def test_items_are_refused_where_there_are_none():
    made = Plan(tasks=(task("a").model_copy(update={"arguments": {"value": {"$item": ""}}}),))
    with pytest.raises(PlanRefused, match="no item"):
        check_plan(made, agent(made).tools, PlanLimits())
    with pytest.raises(PlanRefused, match="does not need"):
        check_plan(plan(task("a"), mapped({"$from": "a"})), agent(made).tools, PlanLimits())


# --- joins ---


async def test_a_join_of_any_starts_with_the_first_that_brings_something():
    made = plan(
        task("bad", "broken"),
        task("quick", seconds=1.0, value="quick"),
        task("slow", seconds=3.0, value="slow"),
        task("end", "join", ["bad", "quick", "slow"], parts=[{"$from": "quick"}, {"$from": "slow"}], join="any"),
    )
    async with app(made) as running:
        result = await running.ask("question")
    assert result.task("end").value == ["quick", None]
    assert result.task("end").started == 1.0
    assert result.elapsed == 3.0


async def test_a_join_of_any_is_skipped_only_when_none_brought_anything():
    made = plan(task("a", "broken"), task("b", "broken", seconds=1.0), task("end", needs=["a", "b"], join="any"))
    result = await ask(app(made))
    assert statuses(result) == {"a": "failed", "b": "failed", "end": "skipped"}


# --- retries ---


def flaky(failures, kind="query", seconds=0.1):
    calls = []

    @tool(kind=kind, name="flaky")
    async def one() -> str:
        calls.append(1)
        await asyncio.sleep(seconds)
        if len(calls) <= failures:
            raise DownstreamUnavailable("gone")
        return "here"

    return one, calls


def once(the_app):
    """No retry of a call: those of the task are the question."""
    for guard in the_app.kernel.guards.values():
        guard.reconfigure(replace(guard.policy, retry=RetryPolicy(queries=0)))
    return the_app


async def test_a_task_is_tried_again_from_the_runs_budget():
    one, calls = flaky(2)
    result = await ask(once(app(plan(task("a", "flaky", retries=2)), tools=[one])))
    assert (result.task("a").value, len(calls)) == ("here", 3)
    assert result.status is RunState.COMPLETED


async def test_an_action_is_not_tried_again_and_neither_is_what_cannot_pass():
    one, calls = flaky(1, kind="action")
    result = await ask(once(app(plan(task("a", "flaky", retries=3)), tools=[one])))
    assert (result.task("a").status, len(calls)) == ("failed", 1)

    tried = 0

    @tool
    async def wrong() -> None:
        nonlocal tried
        tried += 1
        raise RuntimeError

    await ask(once(app(plan(task("a", "wrong", retries=3)), tools=[wrong])))
    assert tried == 1


async def test_there_is_no_retry_without_room_for_it():
    one, calls = flaky(5, seconds=1.0)
    result = await ask(once(app(plan(task("a", "flaky", retries=3, fallback={"value": 0})), tools=[one])), budget=2.5)
    assert len(calls) == 1
    assert result.elapsed == 1.0


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 4), st.integers(0, 3))
async def test_never_more_tries_than_asked_for(failures, retries):
    one, calls = flaky(failures, seconds=0.0)
    result = await ask(once(app(plan(task("a", "flaky", retries=retries)), tools=[one])), budget=60)
    assert len(calls) == min(failures, retries) + 1
    assert (result.task("a").status == "completed") is (failures <= retries)


async def test_last_resorts_come_after_the_last_try():
    one, calls = flaky(5)
    spare = tool(kind="query", name="spare", fallback=Default("spare"))(one.__wrapped__)
    result = await ask(once(app(plan(task("a", "spare", retries=1)), tools=[spare])))
    assert (result.task("a").value, len(calls)) == ("spare", 2)
