"""Parallel → half → serial and back (case: report E's scheduler), as pure functions of now, and in an app."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.worlds import app, plan, task

from failsoft.kernel.bulkhead_policy import BulkheadPolicy
from failsoft.runs.pace import Pace, PacePolicy
from failsoft.tools.python import tool


def told(pace, count, at, *, timed_out, seconds=1.0):
    for i in range(count):
        pace.record("t", at + i * 0.01, timed_out=timed_out, seconds=seconds)
    return at + count * 0.01


def test_time_outs_step_down_to_half_and_to_serial_and_successes_back():
    pace = Pace()
    now = told(pace, 20, 0.0, timed_out=False)
    assert pace.level("t", now) == "parallel"
    now = told(pace, 5, now, timed_out=True)
    assert (pace.level("t", now), pace.width("t", 16, now), pace.width("t", 5, now)) == ("half", 8, 3)
    now = told(pace, 5, now, timed_out=True)
    assert (pace.level("t", now), pace.width("t", 16, now)) == ("serial", 1)
    now = told(pace, 20, now, timed_out=True)
    assert pace.level("t", now) == "serial"
    now = told(pace, 19, now, timed_out=False)
    assert pace.level("t", now) == "serial"
    now = told(pace, 1, now, timed_out=False)
    assert pace.level("t", now) == "half"
    now = told(pace, 20, now, timed_out=False)
    assert (pace.level("t", now), pace.narrow) == ("parallel", 0)


def test_a_few_time_outs_among_many_or_among_very_few_change_nothing():
    pace = Pace()
    now = told(pace, 4, 0.0, timed_out=True)
    assert pace.level("t", now) == "parallel"
    pace = Pace()
    for i in range(100):
        pace.record("t", i * 0.1, timed_out=i % 4 == 3, seconds=1.0)
    assert pace.level("t", 10.0) == "parallel"


def test_what_is_neither_good_nor_bad_does_not_make_it_swing():
    pace = Pace()
    now = told(pace, 5, 0.0, timed_out=True)
    levels = set()
    for i in range(200):  # every fifth times out
        pace.record("t", now + i * 0.1, timed_out=i % 5 == 4, seconds=1.0)
        levels.add(pace.level("t", now + i * 0.1))
    assert levels == {"half"}


def test_silence_widens_within_the_window_but_not_before_a_slow_time_out_could_have_come():
    pace = Pace()
    now = told(pace, 10, 0.0, timed_out=True)
    assert pace.level("t", now) == "serial"
    assert pace.level("t", now + 4.9) == "serial"
    assert pace.level("t", now + 5.0) == "half"
    assert pace.level("t", now + 10.0) == "parallel"
    slow = Pace()
    now = told(slow, 10, 0.0, timed_out=True, seconds=30.0)
    assert slow.level("t", now + 44.0) == "serial"
    assert slow.level("t", now + 45.1) == "half"


def test_tools_are_kept_apart_and_their_number_is_bounded():
    pace = Pace()
    now = told(pace, 10, 0.0, timed_out=True)
    for i in range(3_000):
        pace.record(f"other-{i}", now)
    assert len(pace._stages) == 1_000
    assert pace.levels(now) == {"t": "serial"}
    assert pace.narrow == 1
    for i in range(15_000):  # now all are bad, and still the number is bounded
        pace.record(f"bad-{i // 5}", now, timed_out=True)
    assert len(pace._stages) == 1_000
    assert pace.narrow == sum(stage.level > 0 for stage in pace._stages.values())


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans(), st.floats(0.0, 30.0)), max_size=200))
def test_it_never_steps_twice_at_once_and_always_comes_back(said):
    pace, now, levels = Pace(), 0.0, ["parallel", "half", "serial"]
    before = 0
    for wait, bad, seconds in said:
        now += wait
        quiet = levels.index(pace.level("t", now))
        pace.record("t", now, timed_out=bad, seconds=seconds)
        after = levels.index(pace.level("t", now))
        assert abs(after - quiet) <= 1
        assert quiet <= before
        assert pace.narrow == (after > 0)
        before = after
    assert pace.level("t", now + 2 * max(10.0, 45.0)) == "parallel"


@pytest.mark.parametrize("wrong", [{"window": 0}, {"minimum": 0}, {"down": 0.0}, {"down": 1.5}])
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="needs"):
        PacePolicy(**wrong)


async def test_a_tool_that_times_out_is_soon_started_one_by_one_and_nothing_else_is():
    hangs = True
    most = {"slow": 0, "good": 0}
    now = {"slow": 0, "good": 0}

    async def busy(name, seconds):
        now[name] += 1
        most[name] = max(most[name], now[name])
        try:
            await asyncio.sleep(seconds)
        finally:
            now[name] -= 1

    @tool(kind="external", timeout=1.0)
    async def slow() -> None:
        await busy("slow", 60.0 if hangs else 0.1)

    @tool(kind="external")
    async def good() -> None:
        await busy("good", 0.1)

    tasks = [task(f"s{i}", "slow") for i in range(10)] + [task(f"g{i}", "good") for i in range(5)]
    async with app(plan(*tasks), tools=[slow, good]) as running:
        guard = running.kernel.guard("slow")  # the pace alone is the question
        guard.reconfigure(replace(guard.policy, breaker=None, bulkhead=BulkheadPolicy(permits=100)))
        first = await running.ask("question", budget=20)
        assert most == {"slow": 10, "good": 5}
        assert sum(one.status == "failed" for one in first.tasks) == 10
        hangs, start = False, asyncio.get_running_loop().time()
        most.update(slow=0, good=0)
        second = await running.ask("question", budget=20)
        assert most == {"slow": 1, "good": 5}
        while most["slow"] < 10:  # and back, within ten seconds
            most.update(slow=0)
            await running.ask("question", budget=20)
            assert asyncio.get_running_loop().time() - start < 10.0
    assert second.task("g0").elapsed == pytest.approx(0.1)


async def test_running_tasks_are_never_dropped_by_the_pace():
    @tool(kind="external", timeout=1.0)
    async def slow(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    lengths = [60.0] * 5 + [0.9] * 3
    tasks = [task(f"t{i}", "slow", seconds=seconds) for i, seconds in enumerate(lengths)]
    async with app(plan(*tasks), tools=[slow]) as running:
        result = await running.ask("question", budget=20)
    assert [one.status for one in result.tasks] == ["failed"] * 5 + ["completed"] * 3


async def test_runs_that_are_neither_good_nor_bad_do_not_make_the_width_swing():
    """Hysteresis of whole runs: it takes a bad stretch to step down and a good one to step back, nothing between."""
    calls = hanging = 0

    @tool(kind="external", timeout=1.0)
    async def slow() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(60.0 if hanging and calls % hanging == 0 else 0.1)

    async with app(plan(*(task(f"s{i}", "slow") for i in range(12))), tools=[slow]) as running:
        guard = running.kernel.guard("slow")  # the pace alone is the question
        guard.reconfigure(replace(guard.policy, breaker=None, bulkhead=BulkheadPolicy(permits=100)))
        pace, loop = running._parts.pace, asyncio.get_running_loop()

        async def levels(runs: int) -> list[str]:
            found = []
            for _ in range(runs):
                await running.ask("question", budget=60)
                found.append(pace.level("slow", loop.time()))
            return found

        hanging = 12  # one in twelve
        assert set(await levels(10)) == {"parallel"}
        hanging = 1
        assert (await levels(2))[-1] == "serial"
        hanging = 4  # one in four: too many to widen, and there is nothing to step down to
        mixed = await levels(10)
        assert sum(one != other for one, other in pairwise(mixed)) <= 1, mixed
        assert "parallel" not in mixed
        hanging = 0
        back = await levels(5)
        assert back[-1] == "parallel"
        assert back == sorted(back, key=["serial", "half", "parallel"].index), back  # and only ever wider
