"""More runs run out of time than may: an alarm, once, over two windows; and the diagnosis that it starts."""

import asyncio
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runs.worlds import agent, plan, task

from failsoft.app import App
from failsoft.config import Settings
from failsoft.models.webhook import signature
from failsoft.runs.result import RunRequest
from failsoft.telemetry.burn import Burn, BurnPolicy
from failsoft.testing.fakes import FakeResponse, FakeTransport


def ends(burn, count, *, late=False, agent="a", now=0.0):
    return [alarm for _ in range(count) if (alarm := burn.ended(agent, timed_out=late, now=now)) is not None]


def test_one_late_run_in_two_hundred_may_be():
    burn = Burn()
    for second in range(0, 7200, 10):  # one in two hundred, for two hours
        assert ends(burn, 1, late=second % 2000 == 0, now=second) == []


def test_more_raise_one_alarm_and_another_an_hour_later():
    burn = Burn()
    assert ends(burn, 100) == []
    (alarm,) = ends(burn, 50, late=True)
    assert (alarm.agent, alarm.ended, alarm.timed_out) == ("a", 105, 5)
    for now in range(0, 3600, 100):  # it goes on, or comes and goes
        assert ends(burn, 5, late=now % 1000 < 500, now=now) == []
    assert len(ends(burn, 5, late=True, now=3600)) == 1


def test_a_burst_that_is_long_over_and_few_runs_raise_none():
    burn = Burn()
    assert ends(burn, 4, late=True) == []  # fewer than `least`
    burn = Burn()
    ends(burn, 5000)
    assert ends(burn, 10, late=True, now=100) == []  # 0.2 % of the hour's


def test_agents_are_counted_apart_and_forgotten_when_many():
    burn = Burn()
    assert ends(burn, 4, late=True, agent="a") + ends(burn, 4, late=True, agent="b") == []
    for number in range(2000):
        ends(burn, 1, agent=f"agent {number}")
    assert len(burn._agents) <= 1000


@given(st.lists(st.tuples(st.floats(0, 400), st.booleans()), max_size=200))
def test_an_alarm_is_never_raised_below_the_share(steps):
    burn, now, seen = Burn(BurnPolicy(share=0.2, least=2)), 0.0, []
    for wait, late in steps:
        now += wait
        seen.append((now, late))
        if ends(burn, 1, late=late, now=now):
            hour = [late for at, late in seen if at > now - 3600 - 60]
            assert sum(hour) >= 2
            assert late


WEBHOOK = {"webhook": "https://pager.example.com/hook", "webhook_secret": "whsec"}


def burning(transport: FakeTransport, **alarms) -> App:
    """An app whose one tool never answers."""
    settings = Settings.model_validate({"alarms": {**WEBHOOK, **alarms}, "run": {"budget": 1}, "agent": "tester"})
    made = App(settings, agents=[agent(plan(task("t", "hanging")))], store="off")
    made._transport = transport
    return made


async def test_the_alarm_brings_the_diagnosis_to_whoever_is_on_call(caplog):
    transport = FakeTransport(FakeResponse(status=204))
    seen = []
    with caplog.at_level(logging.WARNING):
        async with burning(transport, timed_out=0.5, diagnosis=60) as app:
            app.bus.add(seen.append, only=lambda kind: kind == "budget.burning")
            for _ in range(7):
                await app.start(RunRequest("q")).result()
            await asyncio.sleep(1)
    (request,) = transport.requests
    message = json.loads(request.body)
    assert (message["event"], message["agent"], message["timed_out"]) == ("budget_burn", "tester", 5)
    assert message["diagnosis"]["seconds"] == 60
    assert message["diagnosis"]["blamed"][0]["downstream"] == "hanging"
    at = int(request.headers["X-Failsoft-Signature"].split(",")[0].removeprefix("t="))
    assert request.headers["X-Failsoft-Signature"] == signature("whsec", request.body, at)
    assert "5 of the last 5 runs of tester ran out of time" in caplog.text
    assert "blame hanging (slow)" in caplog.text
    (event,) = seen
    assert event.data["diagnosis"]["suggestion"]


@pytest.mark.parametrize("response", [FakeResponse(status=500), FakeResponse(body=[None], status=200)])
async def test_a_receiver_that_fails_or_hangs_harms_nothing(response):
    async with burning(FakeTransport(response)) as app:
        ended = [await app.start(RunRequest("q")).result() for _ in range(8)]
        assert all(result.elapsed <= 1.05 for result in ended)
