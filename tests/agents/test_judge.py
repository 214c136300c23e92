"""The judge's tiers: status, a small model with bounds, rules."""

import asyncio

from tests.agents.worlds import Script, app

from failsoft.base.errors import DownstreamUnavailable
from failsoft.kernel.deadline import deadline_scope
from failsoft.runs.judge import Judge, by_rules
from failsoft.runs.loop_model import Reply

GOOD = '{"ok": true, "why": "fine"}'


async def test_the_status_costs_no_model():
    model = Script(GOOD)
    judge = Judge(model)
    assert (await judge.judge("q", "  ")).tier == "status"
    assert not (await judge.judge("q", "a", complete=False)).good
    assert model.asked == []


async def test_a_small_model_judges_within_bounds():
    model = Script('```json\n{"ok": false, "why": "other topic"}\n```')
    found = await Judge(model).judge("q" * 50_000, "a" * 50_000, facts=["f" * 50_000])
    assert (found.good, found.tier, found.why) == (False, "model", "other topic")
    (asked,) = model.asked
    assert asked.max_tokens == 100
    assert sum(len(m["content"]) for m in asked.messages) < 4_000


async def test_rules_judge_when_the_model_cannot():
    for line in (DownstreamUnavailable("gone"), "no idea", Reply(GOOD[:9], finish="length"), 1_000.0):
        start = asyncio.get_running_loop().time()
        found = await Judge(Script(line)).judge("q", "It is fine.")
        assert (found.good, found.tier) == (True, "rules"), line
        assert found.failed
        assert asyncio.get_running_loop().time() - start <= 2.0


async def test_the_model_gets_a_share_of_what_is_left():
    start = asyncio.get_running_loop().time()
    async with deadline_scope(4.0):
        found = await Judge(Script(1_000.0)).judge("q", "fine")
    assert found.tier == "rules"
    assert asyncio.get_running_loop().time() - start == 1.0


async def test_it_is_bypassed_while_models_fail_as_a_whole():
    model = Script(GOOD)
    found = await Judge(model, bypassed=lambda: True).judge("q", "fine")
    assert (found.good, found.tier, found.failed) == (True, "rules", "bypassed")
    assert model.asked == []


def test_rules_know_repetition_and_strange_numbers():
    assert not by_rules("so on and on " * 100).good
    assert not by_rules("There were 4711 of 99 flights.", ['{"flights": 1234}']).good
    assert by_rules("There were 1,234 flights in 3 months, about 1230.", ['{"flights": 1234}']).good
    assert by_rules("No numbers at all.", ["1"]).good


async def test_an_answer_that_is_judged_poor_is_degraded_and_says_so():
    judge = Script('{"ok": false, "why": "other topic"}')
    async with app(Script("Something else."), judge=judge) as running:
        result = await running.ask("q")
    assert result.status == "degraded"
    assert [one.reason for one in result.shortfalls] == ["judged_poor"]
    async with app(Script("Something."), judge=Script(GOOD)) as running:
        assert (await running.ask("q")).status == "completed"


async def test_no_judge_is_asked_while_models_fail_as_a_whole():
    judge = Script('{"ok": false}')
    made = app(Script("Something."), judge=judge)
    made.models_failing = lambda: True
    async with made as running:
        assert (await running.ask("q")).status == "completed"
    assert judge.asked == []
