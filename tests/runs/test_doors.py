"""One breaker per agent: what keeps failing as a whole is refused at the door."""

import asyncio

import pytest
from tests.runs.worlds import App, agent, plan, task

from failsoft.base.errors import BreakerOpen, DownstreamUnavailable, PlanRefused
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.runs.planner import RulesPlanner
from failsoft.runs.result import RunRequest

STRICT = BreakerPolicy(consecutive_failures=3, open_for=5.0, open_jitter=0.0, close_after=1, probes=1, ramp=0.0)


class Switch:
    """A planner's rule that works, or raises."""

    def __init__(self, error):
        self.error, self.asked = error, 0

    def __call__(self, request):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return plan(task("a"))


def app(rule, breaker=STRICT):
    return App(agents=[agent(planners=[RulesPlanner(rule)], breaker=breaker)], store="off")


async def test_after_three_failed_runs_the_agent_is_refused_at_the_door_and_a_probe_brings_it_back():
    rule = Switch(DownstreamUnavailable("the planner's service is gone"))
    async with app(rule) as running:
        for _ in range(4):  # a row rolls: three of the last four
            try:
                assert (await running.ask("x", budget=1.0)).status == "failed"
            except BreakerOpen:
                break
        asked = rule.asked
        with pytest.raises(BreakerOpen) as caught:
            await running.ask("x", budget=1.0)
        assert 0 < caught.value.retry_after <= 5.0
        assert rule.asked == asked
        rule.error = None
        await asyncio.sleep(5.0)
        assert (await running.ask("x", budget=1.0)).status == "completed"
        assert str(running.doors.breaker("tester").state) == "closed"


async def test_degraded_and_cancelled_runs_and_refused_plans_do_not_count():
    async with App(agents=[agent(plan(task("a", "broken")), breaker=STRICT)], store="off") as running:
        for _ in range(6):
            assert (await running.ask("x", budget=1.0)).status == "degraded"
        for _ in range(6):
            handle = running.start(RunRequest(input="x"))
            handle.cancel()
            await handle.result()
        assert str(running.doors.breaker("tester").state) == "closed"
    rule = Switch(PlanRefused("a cycle"))
    async with app(rule) as running:
        for _ in range(6):
            await running.ask("x", budget=1.0)
        assert str(running.doors.breaker("tester").state) == "closed"


async def test_an_agent_may_have_no_breaker():
    rule = Switch(DownstreamUnavailable("gone"))
    async with app(rule, breaker=None) as running:
        for _ in range(10):
            assert (await running.ask("x", budget=1.0)).status == "failed"


async def test_whoever_gives_no_time_closes_the_door_to_nobody():
    class Slow:
        name = "slow"

        async def plan(self, request, tools, context):
            await asyncio.sleep(600)

    async with App(agents=[agent(planners=[Slow()], breaker=STRICT)], store="off") as running:
        for _ in range(20):
            result = await running.ask("x", budget=0.5)
            assert (result.status, result.error.type) == ("failed", "timeout")
        for _ in range(3):
            assert (await running.ask("x")).status == "failed"
        with pytest.raises(BreakerOpen):
            await running.ask("x")
