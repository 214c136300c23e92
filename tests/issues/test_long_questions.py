"""A long question is read off the loop: reading ten thousand characters takes longer than other runs have to spare."""

import asyncio
import threading

import pytest
from tests.runs.worlds import agent, plan, task

from failsoft.app import App
from failsoft.base.errors import BadInput
from failsoft.runs.planner import RulesPlanner
from failsoft.runs.state import RunState
from failsoft.testing.work import VirtualEvent


def app(rule) -> App:
    return App(agents=[agent(planners=[RulesPlanner(rule)])], store="off")


async def test_a_long_question_is_read_in_a_thread_and_a_short_one_at_once():
    readers = []

    def rule(request):
        readers.append(threading.current_thread() is threading.main_thread())
        return plan(task("a"))

    async with app(rule) as running:
        assert (await running.ask("short")).status is RunState.COMPLETED
        assert (await running.ask("long " * 1000)).status is RunState.COMPLETED
    assert readers == [True, False]


async def test_a_question_that_is_read_for_ever_ends_at_its_share_and_is_shown_until_it_has_been_read():
    done = VirtualEvent()

    def rule(request):
        if len(request.input) > 1000:
            done.wait()
        return plan(task("a"))

    async with app(rule) as running:
        long, short = await asyncio.gather(running.ask("long " * 1000, budget=2), running.ask("short", budget=2))
        assert (long.status, long.error.type) == (RunState.FAILED, "timeout")
        assert long.elapsed <= 2
        assert short.status is RunState.COMPLETED
        guard = running.guards["planner.rules"]
        assert len(guard.orphans()) == 1
        done.set()
        await asyncio.sleep(0.1)
        assert guard.orphans() == []
        assert guard.statistics().in_use == 0


@pytest.mark.parametrize("length", [10, 5000])
async def test_what_the_rules_say_is_the_same_from_a_thread(length):
    async def later(request):
        return plan(task("a", value=1))

    def wrong(request):
        raise BadInput("no such column", param="input", details={"reason": "unknown_metric"})

    question = "x" * length
    async with app(later) as running:
        assert (await running.ask(question)).task("a").value == 1
    async with app(wrong) as running:
        for _ in range(30):  # and a wrong question closes nothing
            error = (await running.ask(question)).error
            assert (error.code, error.param, error.details["reason"]) == ("bad_input", "input", "unknown_metric")
    async with app(lambda request: None) as running:
        assert (await running.ask(question)).error.details["planners"][0]["reason"] == "not_understood"
    async with app(lambda request: 1 / 0) as running:
        assert (await running.ask(question)).error.code == "plan_refused"
