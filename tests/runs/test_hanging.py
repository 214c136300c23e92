"""What a hang does, computed, and shown true by letting each downstream hang in a running app."""

import asyncio
import random

import pytest
from tests.runs.worlds import App, agent, plan, task

from failsoft.config import Settings
from failsoft.kernel.policy import preset
from failsoft.runs.hanging import hangs
from failsoft.runs.limits import RunLimits
from failsoft.runs.planner import RulesPlanner
from failsoft.runs.stages import stage_budget
from failsoft.runs.strict import http_status
from failsoft.tools.python import tool
from failsoft.tools.registry import Alternate, Default


@tool(downstream="a")
async def plain() -> str:
    """Nothing stands in."""
    return "plain"


@tool(downstream="b", alternates=[Alternate("other", equivalent=True)])
async def twin() -> str:
    """Another one is as good."""
    return "twin"


@tool(downstream="c", timeout=1.0)
async def other() -> str:
    """Has a limit of its own."""
    return "other"


@tool(downstream="d", fallback=Default("spare"))
async def spare() -> str:
    """Has a default."""
    return "spare"


@tool(downstream="e", kind="external", fallback=Default("same", equivalent=True))
async def same() -> str:
    """Has a default that is as good."""
    return "same"


MINE = (plain, twin, other, spare, same)
DOWNSTREAMS = {"a": {"preset": "data"}, "d": {"call_timeout": "2s", "retries": 1, "attempt_timeout": "800ms"}}


async def never(*_):
    await asyncio.get_running_loop().create_future()


async def shown(one, budget):
    """Lets each downstream hang and compares what happens with what was computed."""
    config = Settings.model_validate({"downstreams": DOWNSTREAMS, "run": {"budget": budget}})
    rows = hangs([one], lambda name, default: config.policy(name, default=default), RunLimits(default_budget=budget))
    for row in rows:
        async with App(config, agents=[one], store="off") as running:
            running.kernel.guard(row.downstream).interceptor = never
            result = await running.ask("question")
        strict = http_status(result, strict=True).status
        if not row.agents:
            assert row.spared == (one.name,)
            assert (result.status, result.elapsed) == ("completed", 0.0)
            continue
        (told,) = row.agents
        assert result.elapsed <= told.answers_within + 1e-6, (row, result.elapsed)
        assert (result.status, strict) == (told.sees, told.strict), row
    return {row.downstream: row for row in rows}


async def test_each_row_is_what_happens():
    made = plan(task("p", "plain"), task("t", "twin"), task("s", "spare"), task("e", "same"))
    rows = await shown(agent(made, tools=MINE), 12.0)
    told = {name: row.agents[0] for name, row in rows.items() if row.agents}
    assert set(told) == {"a", "b", "d", "e"}  # nobody uses c but when b is out
    assert told["a"].sees == "degraded"
    assert told["a"].answers_within == pytest.approx(8.0 + 0.05)
    assert told["b"].instead == {"twin": "other answers (as good)"}
    assert (told["b"].sees, told["e"].sees) == ("completed", "completed")
    assert told["d"].instead == {"spare": "its default"}
    assert told["d"].answers_within == pytest.approx(2 * 0.8 + 0.3 + 0.05)
    assert rows["a"].opens_after is not None
    assert rows["a"].to_dict()["agents"][0]["strict_status"] == 504


async def test_with_a_small_budget_the_budget_is_the_bound():
    rows = await shown(agent(plan(task("p", "plain"), task("e", "same")), tools=MINE), 1.5)
    assert rows["a"].agents[0].answers_within == 1.5


async def test_tasks_behind_each_other_that_go_on_hang_one_after_another():
    chain = plan(task("s1", "spare"), task("s2", "spare", ["s1"]), task("s3", "spare", ["s2"]))
    rows = await shown(agent(chain, tools=MINE), 20.0)
    assert rows["d"].agents[0].answers_within == pytest.approx(3 * 1.9 + 0.05)
    stops = plan(task("p1", "plain"), task("p2", "plain", ["p1"]))
    rows = await shown(agent(stops, tools=MINE), 20.0)
    assert rows["a"].agents[0].answers_within == pytest.approx(8.05)


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_the_plan_no_row_promises_too_much(seed):
    chance = random.Random(seed)
    tasks = []
    for i in range(chance.randint(2, 5)):
        needs = chance.sample([one.id for one in tasks], min(len(tasks), chance.randint(0, 2)))
        name = chance.choice(MINE).spec.name
        tasks.append(task(f"t{i}", name, needs, tolerates_missing=chance.random() < 0.5))
    config = Settings.model_validate({"downstreams": DOWNSTREAMS})
    one = agent(plan(*tasks), tools=MINE)
    for row in hangs([one], lambda name, default: config.policy(name, default=default), RunLimits()):
        async with App(config, agents=[one], store="off") as running:
            running.kernel.guard(row.downstream).interceptor = never
            result = await running.ask("question")
        for told in row.agents:
            assert result.elapsed <= told.answers_within + 1e-6
            assert result.status in {"completed", told.sees}


# --- the stages of a budget ---


@pytest.mark.parametrize("budget", [0.2, 2.0, 8.0, 120.0])
@pytest.mark.parametrize("fixed", [True, False])
def test_stages_sum_to_the_budget(budget, fixed):
    made = plan(task("a", "plain"), task("b", "other", ["a"]), task("c", "spare"), task("d", timeout=0.5, needs=["b"]))
    one = agent(made, tools=MINE) if fixed else agent(planners=[RulesPlanner(lambda request: None)], tools=MINE)
    stages = stage_budget(one, lambda name, default: preset(default), RunLimits(default_budget=budget))
    assert sum(stage.seconds for stage in stages) == pytest.approx(budget)
    assert all(stage.seconds >= 0 for stage in stages)
    names = [stage.name for stage in stages]
    assert names[:2] == ["door", "planning"]
    assert names[-2:] == ["answer", "serialising"]
    if fixed:
        assert names[2:-2] == ["task a (plain)", "task b (other)", "task d (work)"]
        assert stages[1].seconds == 0.0
