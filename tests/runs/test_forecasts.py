"""Estimates: told in time whatever hangs, revised inside one long call, compared with the truth at the end."""

import asyncio
from itertools import pairwise

import pytest
from tests.runs.worlds import app, plan, task

from failsoft.base.events import Event
from failsoft.runs.limits import RunLimits
from failsoft.runs.planner import PlanRequest
from failsoft.runs.result import RunRequest
from failsoft.runs.state import RunState
from failsoft.tools.python import tool
from failsoft.tools.registry import ToolContext


def estimates(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == "run.eta"]


class Slow:
    """Plans after a while."""

    name = "slow"

    async def plan(self, request: PlanRequest, tools, context):
        await asyncio.sleep(40)
        return plan(task("a", seconds=1))


@pytest.mark.parametrize("what", [plan(task("a", "hanging")), Slow()])
async def test_something_is_told_at_least_every_25_seconds_from_the_planning_on(what):
    options = {"planners": [what]} if isinstance(what, Slow) else {"what": what}
    async with app(limits=RunLimits(planning_share=0.9), **options) as world:
        handle = world.start(RunRequest("q", budget_ms=200_000))
        began = asyncio.get_running_loop().time()
        events = [event async for event in handle.events()]
        told = estimates(events)
        assert told[0].at - began == 1
        assert all(0 < later.at - earlier.at <= 25 for earlier, later in pairwise(told))
        assert told[0].data["eta_s"] is None  # nothing is known, so nothing is invented
        assert told[0].data["at_most_s"] <= 199
        assert repr(world.forecasts).startswith("<Forecasts running=0")


@tool(downstream="model", kind="external", timeout=600)
async def writes(context: ToolContext, seconds: float) -> str:
    """A long stream that tells how far it is."""
    for step in range(1, 11):
        await asyncio.sleep(seconds / 10)
        context.progress(step / 10)
    return "done"


async def test_the_estimate_is_revised_inside_one_long_stream():
    async with app(plan(task("w", "writes", seconds=30)), tools=[writes]) as world:
        handle = world.start(RunRequest("q", budget_ms=100_000))
        events = [event async for event in handle.events()]
        end = events[-1].at
        known = [event for event in estimates(events) if event.data["eta_s"] is not None]
        assert len(known) >= 9
        assert all(abs(event.at + event.data["eta_s"] - end) < 0.5 for event in known if event.data["done"] < 1)
        shares = [event.data["done"] for event in known]
        assert shares == sorted(shares)


async def test_the_error_of_estimates_is_a_figure():
    async with app(plan(task("a", seconds=6))) as world:
        assert world.statistics().forecasts is not None
        for _ in range(3):
            await world.ask("q", budget=100)
        figures = world.statistics().forecasts
        assert figures is not None
        assert figures.runs == 2  # the first had nothing to go by
        assert figures.median is not None
        assert figures.median < 0.01  # every run is like the one before
    async with app(lambda request: plan(task("a", seconds=float(request.input)))) as world:
        for seconds in ("6", "6", "7.5"):
            assert (await world.ask(seconds, budget=50)).status is RunState.COMPLETED
        assert world.forecasts is not None
        assert world.forecasts.errors()[-1] > 0.1


async def test_what_is_told_while_planning_comes_from_earlier_runs():
    async with app(planners=[Slow()], limits=RunLimits(planning_share=0.9)) as world:
        await world.ask("q", budget=100)
        handle = world.start(RunRequest("q", budget_ms=100_000))
        events = [event async for event in handle.events()]
        first = estimates(events)[0]
        assert abs(first.data["eta_s"] - 40) < 1
        assert 0 < first.data["done"] < 0.1


async def test_nothing_is_told_of_a_short_run_and_nothing_after_the_end():
    async with app(plan(task("a", seconds=0.5))) as world:
        handle = world.start(RunRequest("q"))
        await handle.result()
        await asyncio.sleep(60)
        assert [event.data["done"] for event in estimates([event async for event in handle.events()])] == [1.0]
