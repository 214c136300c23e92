"""Case 43: a plan that cannot be run is refused with its reason, and the next planner takes over."""

import asyncio

import pytest
from tests.runs.worlds import app, plan, task

from failsoft.base.errors import PlanRefused
from failsoft.runs.plan import Plan
from failsoft.runs.planner import StaticPlanner
from failsoft.testing.fakes import FakePlanner
from failsoft.tools.python import tool

RULES = StaticPlanner(plan(task("a", value="by rules")))

PLANS = {
    "no_task": {"tasks": []},
    "too_many_tasks": {"tasks": [{"id": f"t{i}", "tool": "work"} for i in range(500)]},
    "duplicate_id": {"tasks": [{"id": "a", "tool": "work"}, {"id": "a", "tool": "work"}]},
    "unknown_need": {"tasks": [{"id": "a", "tool": "work", "needs": ["b"]}]},
    "cycle": {"tasks": [{"id": "a", "tool": "work", "needs": ["b"]}, {"id": "b", "tool": "work", "needs": ["a"]}]},
    "unknown_tool": {"tasks": [{"id": "a", "tool": "wrok"}]},
    "bad_arguments": {"tasks": [{"id": "a", "tool": "work", "arguments": {"second": 1}}]},
    "unknown_kind": {"tasks": [{"id": "a", "tool": "work", "kind": "agent"}]},
    "not_a_dependency": {
        "tasks": [{"id": "a", "tool": "work"}, {"id": "b", "tool": "work", "arguments": {"value": {"$from": "a"}}}]
    },
    "schema": {"tasks": [{"id": "a"}]},
}


@pytest.mark.parametrize("reason", PLANS)
async def test_the_next_planner_takes_over_and_the_reason_is_kept(reason):
    model = FakePlanner(lambda _: Plan.from_dict(PLANS[reason]), name="model")
    async with app(planners=[model, RULES]) as running:
        result = await running.ask("q")
    assert (result.status, result.planner) == ("completed", "static")
    assert "by rules" in result.answer
    assert [(one.planner, one.reason) for one in result.refused] == [("model", reason)]


def slow_then(*others):
    slow = FakePlanner(plan(task("a", seconds=6.0), task("b", needs=["a"], seconds=6.0)), name="model")
    return [slow, *others]


async def test_a_plan_that_usually_takes_longer_than_there_is_gives_way():
    quick = StaticPlanner(plan(task("c", "join", parts=["quick"])))
    async with app(planners=slow_then(quick)) as running:
        running.history.add_to("tool:work", "tool", 6.0)
        running.history.add_to("tool:join", "tool", 0.1)
        result = await running.ask("q", budget=10.0)
        assert (result.status, result.planner) == ("completed", "static")
        assert [one.reason for one in result.refused] == ["unaffordable"]
        assert (await running.ask("q", budget=20.0)).planner == "model"


async def test_it_is_used_all_the_same_when_there_is_no_other():
    refusing = FakePlanner(PlanRefused("no"), name="rules")
    for planners in (slow_then(refusing), slow_then()):
        async with app(planners=planners) as running:
            running.history.add_to("tool:work", "tool", 6.0)
            result = await running.ask("q", budget=10.0)
        assert (result.status, result.planner) == ("degraded", "model")


async def test_before_it_was_ever_called_a_tool_takes_what_it_says_of_itself():
    @tool(downstream="slow", usual="6s", kind="external")
    async def slow() -> str:
        await asyncio.sleep(6.0)
        return "slow"

    model = FakePlanner(plan(task("a", "slow"), task("b", "slow", needs=["a"])), name="model")
    async with app(planners=[model, RULES], tools=[slow]) as running:
        result = await running.ask("q", budget=10.0)
        assert (result.status, result.planner) == ("completed", "static")
        assert [one.reason for one in result.refused] == ["unaffordable"]
        assert (await running.ask("q", budget=20.0)).planner == "model"
