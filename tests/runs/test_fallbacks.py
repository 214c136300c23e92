"""An agent whose essential tasks have nothing to fall back on is told of, before it is asked anything."""

from tests.runs.worlds import agent, plan, task

from failsoft.runs.fallbacks import uncovered
from failsoft.runs.planner import RulesPlanner, StaticPlanner


def told(one):
    return [(gap.task, gap.tool) for gap in uncovered(one)]


def test_essential_tasks_need_a_fallback():
    made = plan(
        task("bare"),
        task("spare", fallback={"value": 0}),
        task("optional", essential=False),
        task("default", "with_default"),
    )
    assert told(agent(made)) == [("bare", "work")]
    assert "task 'bare' (tool 'work') is essential and has no fallback" in str(uncovered(agent(made))[0])


def test_an_answer_that_can_do_without_makes_up_for_it():
    assert told(agent(plan(task("bare")), makes_up_for=["work"])) == []


def test_alternates_and_earlier_results_are_no_fallback():
    from failsoft.tools.python import tool

    @tool(kind="external", stale_for="1h", alternates=["work"])
    async def first(seconds: float = 0, value: int = 0) -> None: ...

    assert told(agent(plan(task("a", "first")), tools=[first])) == [("a", "first")]


def test_whoever_plans_anew_may_use_any_tool_and_all_planners_count():
    rules = RulesPlanner(lambda request: None)
    one = agent(planners=[StaticPlanner(plan(task("bare"))), rules])
    names = [name for name in one.tools.names if name != "with_default"]
    assert told(one) == [("bare", "work"), *((None, name) for name in names)]
