"""Every pair of policies, together: one test each. A pair without a test fails, and so does a test without a pair."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from failsoft.base.errors import (
    AttemptTimeout,
    BreakerOpen,
    CallTimeout,
    DeadlineExceeded,
    IdleTimeout,
    QueueFull,
)
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.cache import CachePolicy
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import guard
from failsoft.kernel.ladder import Rung, climb
from failsoft.kernel.policy import HedgePolicy, Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.timeout import AdaptiveTimeoutPolicy
from failsoft.testing.clock import VirtualEvent

POLICIES = (
    "deadline",
    "call limit",
    "attempt limit",
    "retry",
    "hedge",
    "breaker",
    "bulkhead",
    "cache",
    "coalesce",
    "stream",
    "detached",
    "ladder",
)
PAIRS: dict[tuple[str, str], Any] = {}


def pair(one, other):
    def register(test):
        assert (one, other) not in PAIRS
        PAIRS[one, other] = test
        return test

    return register


@pytest.mark.parametrize("names", list(combinations(POLICIES, 2)), ids=" + ".join)
async def test_pair(names):
    assert names in PAIRS, "this pair has no test"
    await PAIRS[names]()


def test_no_test_is_left_out():
    assert set(PAIRS) == set(combinations(POLICIES, 2))


# --- what they have in common --------------------------------------------------------------------------------------

BASE = Policy(
    call_timeout=None,
    retry=RetryPolicy(queries=0),
    breaker=BreakerPolicy(ramp=0.0, open_jitter=0.0),
    bulkhead=BulkheadPolicy(permits=4, queue=4),
)
RETRY = RetryPolicy(queries=2, base=0.5, spread=0.0, room=0.0)
HEDGE = HedgePolicy(minimum=0.25, share=1.0)
TRIPS_AT_ONCE = BreakerPolicy(
    consecutive_failures=1, consecutive_timeouts=1, open_for=5.0, open_jitter=0.0, close_after=1, ramp=0.0
)


def guarded(**changes):
    return guard("d", replace(BASE, **changes))


async def warmed(one):
    """Knows that a call usually takes 1/8 s, which is what hedges wait for."""
    for _ in range(40):
        await one.call(asyncio.sleep, 0.125)
    return one


def now():
    return asyncio.get_running_loop().time()


class Clock:
    def __init__(self):
        self.began = now()

    @property
    def seconds(self):
        return now() - self.began


class Down:
    """Each use takes the next of `seconds` (then the last) and raises the next of `errors` (then none)."""

    def __init__(self, *seconds, errors=(), deaf=False):
        self.seconds, self.errors, self.deaf = seconds or (0.0,), list(errors), deaf
        self.started = self.ended = 0

    async def __call__(self):
        number = self.started
        self.started += 1
        error = self.errors.pop(0) if self.errors else None
        wait = self.seconds[min(number, len(self.seconds) - 1)]
        try:
            if self.deaf:
                until = now() + wait
                while now() < until:
                    try:
                        await asyncio.sleep(until - now())
                    except asyncio.CancelledError:
                        continue
            else:
                await asyncio.sleep(wait)
        finally:
            self.ended += 1
        if error is not None:
            raise error
        return f"value {number}"


def lost():
    return ConnectionResetError("lost")


def items(*waits, error=None):
    """A source that gives one item after each wait, and then ends or fails."""
    opened = []

    async def source():
        opened.append(now())
        for number, wait in enumerate(waits):
            await asyncio.sleep(wait)
            yield number
        if error is not None:
            raise error

    source.opened = opened
    return source


async def consumed(stream):
    async with stream as got:
        return [item async for item in got]


@asynccontextmanager
async def released(one):
    """Afterwards nothing is held, when what was cancelled has had the time to end."""
    yield
    await asyncio.sleep(2.0**-20)
    figures = one.statistics()
    assert (figures.in_use, figures.waiting, figures.orphans, one.holders()) == (0, 0, 0, [])
    assert asyncio.current_task().cancelling() == 0


async def ends(awaitable):
    try:
        return await awaitable
    except Exception as error:
        return type(error)


async def within(seconds, call, *args):
    async with deadline_scope(seconds):
        return await call(*args)


# --- deadline ------------------------------------------------------------------------------------------------------


@pair("deadline", "call limit")
async def the_earlier_one_ends_the_call_and_is_named():
    one = guarded(call_timeout=2.0)
    async with released(one):
        clock = Clock()
        assert await ends(within(1.0, one.call, Down(9.0))) is DeadlineExceeded
        assert clock.seconds == 1.0
        assert await ends(within(5.0, one.call, Down(9.0))) is CallTimeout
        assert clock.seconds == 3.0


@pair("deadline", "attempt limit")
async def an_attempt_cut_short_by_the_deadline_blames_nobody_and_teaches_no_limit():
    one = guarded(adaptive_timeout=AdaptiveTimeoutPolicy(floor=1.0, cap=3.0), breaker=TRIPS_AT_ONCE)
    async with released(one):
        for _ in range(5):
            assert await ends(within(0.5, one.call, Down(9.0))) is DeadlineExceeded
        figures = one.statistics()
        assert (figures.timed_out, figures.neutral, figures.breaker) == (0, 5, "closed")
        assert figures.attempt_limit == 3.0


@pair("deadline", "retry")
async def no_retry_sleeps_past_the_deadline():
    one, down, clock = guarded(retry=replace(RETRY, base=1.0)), Down(0.75, errors=[lost()] * 3), Clock()
    async with released(one):
        assert await ends(within(1.5, one.call, down)) is ConnectionResetError
        assert (clock.seconds, down.started) == (0.75, 1)


@pair("deadline", "hedge")
async def the_deadline_ends_both_legs():
    one = await warmed(guarded(hedge=HEDGE))
    down, clock = Down(9.0), Clock()
    async with released(one):
        assert await ends(within(1.0, one.call, down)) is DeadlineExceeded
        await asyncio.sleep(0)
        assert (down.started, down.ended, clock.seconds) == (2, 2, 1.0)


@pair("deadline", "breaker")
async def callers_in_a_hurry_open_no_breaker_unless_the_downstream_was_slow_already():
    one = guarded(breaker=TRIPS_AT_ONCE)
    async with released(one):
        for _ in range(10):
            assert await ends(within(0.5, one.call, Down(9.0))) is DeadlineExceeded
        assert one.statistics().breaker == "closed"
    one = guarded(breaker=replace(TRIPS_AT_ONCE, slow_threshold=1.0), attempt_timeout=9.0)
    async with released(one):
        assert await ends(within(2.0, one.call, Down(9.0))) is DeadlineExceeded
        assert one.statistics().breaker == "open"


@pair("deadline", "bulkhead")
async def a_deadline_in_the_queue_leaves_the_place_and_never_runs():
    one = guarded(bulkhead=BulkheadPolicy(permits=1, queue=1))
    holder, down = asyncio.create_task(one.call(Down(2.0))), Down()
    async with released(one):
        await asyncio.sleep(0)
        assert await ends(within(1.0, one.call, down)) is DeadlineExceeded
        assert one.statistics().waiting == 0
        await holder
        await asyncio.sleep(5.0)
        assert down.started == 0


@pair("deadline", "cache")
async def a_fresh_value_needs_no_time_and_a_stale_one_saves_a_call_limit_inside_the_deadline():
    one = guarded(cache=CachePolicy(ttl=1.0, jitter=0.0), call_timeout=0.5)
    async with released(one):
        assert (await one.fetch("k", Down())).value == "value 0"
        async with deadline_scope(9.0):
            assert not (await one.fetch("k", Down(9.0))).degraded
            await asyncio.sleep(2.0)
            outcome = await one.fetch("k", Down(9.0))
        assert (outcome.provenance.rung, outcome.provenance.age, outcome.provenance.remaining) == ("stale", 2.5, 6.5)


@pair("deadline", "coalesce")
async def each_waits_under_its_own_deadline():
    one, down, clock = guarded(), Down(2.0), Clock()
    async with released(one):
        short = asyncio.create_task(within(1.0, one.fetch, "k", down))
        long = asyncio.create_task(within(9.0, one.fetch, "k", down))
        assert await ends(short) is DeadlineExceeded
        assert clock.seconds == 1.0
        assert (await long).value == "value 0"
        assert (down.started, clock.seconds) == (1, 2.0)


@pair("deadline", "stream")
async def the_deadline_ends_a_stream_wherever_it_is_and_blames_nobody():
    one, clock = guarded(breaker=TRIPS_AT_ONCE), Clock()
    async with released(one):
        assert await ends(within(1.0, consumed, one.stream(items(0.25, 9.0), idle=20.0))) is DeadlineExceeded
        assert clock.seconds == 1.0
        assert (one.statistics().neutral, one.statistics().breaker) == (1, "closed")


@pair("deadline", "detached")
async def at_the_deadline_the_caller_goes_and_the_thread_keeps_its_permit():
    one, go, clock = guarded(), VirtualEvent(), Clock()
    async with released(one):
        assert await ends(within(1.0, one.call_sync, go.wait)) is DeadlineExceeded
        assert clock.seconds == 1.0
        assert (one.statistics().orphans, one.statistics().in_use) == (1, 1)
        go.set()
        await asyncio.sleep(1.0)
    await one.aclose()


@pair("deadline", "ladder")
async def each_rung_leaves_the_next_its_usual_time():
    one, clock = guarded(), Clock()
    async with released(one), deadline_scope(3.0):
        outcome = await climb(
            [Rung("slow", lambda: one.call(Down(9.0))), Rung("quick", lambda: one.call(Down(0.5)), reserve=1.0)]
        )
        assert (outcome.provenance.served, outcome.provenance.reason, clock.seconds) == ("quick", "task_timeout", 2.5)


# --- call limit ----------------------------------------------------------------------------------------------------


@pair("call limit", "attempt limit")
async def the_earlier_limit_fires_and_is_named():
    one, clock = guarded(call_timeout=2.0, attempt_timeout=1.0), Clock()
    async with released(one):
        assert await ends(one.call(Down(9.0))) is AttemptTimeout
        assert clock.seconds == 1.0
        assert await ends(one.call(Down(9.0), timeout=0.5)) is CallTimeout
        assert clock.seconds == 1.5


@pair("call limit", "retry")
async def retries_and_their_pauses_count_against_the_call_limit():
    one, down, clock = guarded(call_timeout=2.0, retry=RETRY), Down(0.5, 0.5, 9.0, errors=[lost()] * 3), Clock()
    async with released(one):
        assert await ends(one.call(down)) is ConnectionResetError  # 0.5, pause 0.5, 0.5, and a pause of 1.0 is too long
        assert (clock.seconds, down.started) == (1.5, 2)


@pair("call limit", "hedge")
async def the_call_limit_ends_both_legs():
    one = await warmed(guarded(hedge=HEDGE))
    down, clock = Down(9.0), Clock()
    async with released(one):
        assert await ends(one.call(down, timeout=1.0)) is CallTimeout
        await asyncio.sleep(0)
        assert (down.started, down.ended, clock.seconds) == (2, 2, 1.0)


@pair("call limit", "breaker")
async def a_call_that_had_its_whole_limit_counts_as_timed_out():
    one = guarded(call_timeout=1.0, breaker=TRIPS_AT_ONCE)
    async with released(one):
        assert await ends(one.call(Down(9.0))) is CallTimeout
        assert one.statistics().breaker == "open"


@pair("call limit", "bulkhead")
async def the_call_limit_covers_the_wait_and_a_late_start_is_not_the_downstreams_fault():
    one, clock = guarded(call_timeout=2.0, bulkhead=BulkheadPolicy(permits=1, queue=2), breaker=TRIPS_AT_ONCE), Clock()
    async with released(one):
        calls = [one.call(Down(1.5)), one.call(Down(1.5)), one.call(Down(1.5), timeout=1.0)]
        assert await asyncio.gather(*map(ends, calls)) == ["value 0", CallTimeout, CallTimeout]
        assert clock.seconds == 2.0
        assert (one.statistics().timed_out, one.statistics().breaker) == (0, "closed")


@pair("call limit", "cache")
async def a_call_limit_that_passes_is_answered_from_what_is_stale():
    one, clock = guarded(call_timeout=1.0, cache=CachePolicy(ttl=1.0, jitter=0.0)), Clock()
    async with released(one):
        await one.fetch("k", Down())
        await asyncio.sleep(2.0)
        outcome = await one.fetch("k", Down(9.0))
        assert (outcome.value, outcome.provenance.reason, outcome.provenance.age) == ("value 0", "call_timeout", 3.0)
        assert clock.seconds == 3.0


@pair("call limit", "coalesce")
async def a_participant_never_waits_longer_than_its_own_call_limit():
    one, down, clock = guarded(call_timeout=3.0), Down(2.0), Clock()
    async with released(one):
        first = asyncio.create_task(one.fetch("k", down))
        await asyncio.sleep(0.5)
        assert await ends(one.fetch("k", down, timeout=1.0)) is CallTimeout
        assert clock.seconds == 1.5
        assert (await first).value == "value 0"
        assert down.started == 1


@pair("call limit", "stream")
async def the_call_limit_covers_the_wait_for_the_first_content_only():
    one, clock = guarded(call_timeout=1.0), Clock()
    async with released(one):
        assert await consumed(one.stream(items(0.5, 2.0, 2.0))) == [0, 1, 2]
        assert clock.seconds == 4.5
        assert await ends(consumed(one.stream(items(2.0)))) is CallTimeout
        assert clock.seconds == 5.5


@pair("call limit", "detached")
async def a_deaf_callee_is_left_behind_at_the_call_limit():
    one, down, clock = guarded(call_timeout=1.0, detachable=True), Down(3.0, deaf=True), Clock()
    async with released(one):
        assert await ends(one.call(down)) is CallTimeout
        assert (clock.seconds, one.statistics().orphans, one.statistics().in_use) == (1.0, 1, 1)
        await asyncio.sleep(3.0)


@pair("call limit", "ladder")
async def a_rung_whose_call_limit_passes_makes_way_for_the_next():
    one, clock = guarded(call_timeout=1.0), Clock()
    async with released(one):
        outcome = await climb([Rung("hangs", lambda: one.call(Down(9.0))), Rung("serves", lambda: one.call(Down(0.5)))])
        assert (outcome.provenance.served, outcome.provenance.reason, clock.seconds) == ("serves", "call_timeout", 1.5)


# --- attempt limit -------------------------------------------------------------------------------------------------


@pair("attempt limit", "retry")
async def each_attempt_has_the_whole_attempt_limit():
    one, down, clock = guarded(attempt_timeout=1.0, retry=RETRY), Down(9.0, 9.0, 0.5), Clock()
    async with released(one):
        assert await one.call(down) == "value 2"
        assert clock.seconds == 1.0 + 0.5 + 1.0 + 1.0 + 0.5
        assert one.statistics().timed_out == 2


@pair("attempt limit", "hedge")
async def both_legs_end_at_the_attempt_limit_which_counts_once():
    one = await warmed(guarded(hedge=HEDGE, attempt_timeout=1.0))
    down, clock = Down(9.0), Clock()
    async with released(one):
        assert await ends(one.call(down)) is AttemptTimeout
        await asyncio.sleep(0)
        assert (down.started, down.ended, clock.seconds) == (2, 2, 1.0)
        assert (one.statistics().timed_out, one.statistics().neutral) == (1, 1)


@pair("attempt limit", "breaker")
async def a_learned_limit_does_not_hide_a_slow_down_from_the_breaker():
    one = guarded(
        adaptive_timeout=AdaptiveTimeoutPolicy(floor=0.5, cap=2.0),
        breaker=replace(TRIPS_AT_ONCE, consecutive_failures=None, consecutive_timeouts=3),
    )
    await warmed(one)
    async with released(one):
        assert one.statistics().attempt_limit == 0.5
        assert [await ends(one.call(Down(9.0))) for _ in range(4)] == [AttemptTimeout] * 3 + [BreakerOpen]


@pair("attempt limit", "bulkhead")
async def the_attempt_limit_begins_with_the_permit():
    one, clock = guarded(attempt_timeout=2.0, bulkhead=BulkheadPolicy(permits=1, queue=2)), Clock()
    async with released(one):
        assert await asyncio.gather(*(one.call(Down(1.5)) for _ in range(3))) == ["value 0"] * 3
        assert clock.seconds == 4.5


@pair("attempt limit", "cache")
async def an_attempt_that_times_out_is_answered_from_what_is_stale():
    one = guarded(attempt_timeout=1.0, cache=CachePolicy(ttl=1.0, jitter=0.0))
    async with released(one):
        await one.fetch("k", Down())
        await asyncio.sleep(2.0)
        outcome = await one.fetch("k", Down(9.0))
        assert (outcome.provenance.reason, outcome.provenance.age) == ("attempt_timeout", 3.0)
        assert (await one.fetch("k", Down())).provenance.rung == "primary"  # and stale was not stored as fresh


@pair("attempt limit", "coalesce")
async def one_attempt_times_out_for_all_who_share_it():
    one, down, clock = guarded(attempt_timeout=1.0), Down(9.0), Clock()
    async with released(one):
        assert await asyncio.gather(*(ends(one.fetch("k", down)) for _ in range(5))) == [AttemptTimeout] * 5
        assert (down.started, clock.seconds, one.statistics().timed_out) == (1, 1.0, 1)


@pair("attempt limit", "stream")
async def a_stream_has_limits_of_its_own():
    one, clock = guarded(attempt_timeout=1.0), Clock()
    async with released(one):
        assert await consumed(one.stream(items(2.0, 2.0), first_item=3.0, idle=3.0)) == [0, 1]
        assert clock.seconds == 4.0


@pair("attempt limit", "detached")
async def a_thread_that_outlives_its_attempt_counts_once_at_the_limit():
    one, go, clock = guarded(attempt_timeout=1.0), VirtualEvent(), Clock()
    async with released(one):
        assert await ends(one.call_sync(go.wait)) is AttemptTimeout
        assert (clock.seconds, one.statistics().timed_out) == (1.0, 1)
        go.set()
        await asyncio.sleep(1.0)
        assert (one.statistics().timed_out, one.statistics().ok) == (1, 0)
    await one.aclose()


@pair("attempt limit", "ladder")
async def a_learned_limit_passes_a_hanging_rung_sooner():
    one = await warmed(guarded(adaptive_timeout=AdaptiveTimeoutPolicy(floor=0.5, cap=3.0)))
    clock = Clock()
    async with released(one):
        outcome = await climb([Rung("hangs", lambda: one.call(Down(9.0))), Rung("serves", lambda: one.call(Down()))])
        assert (outcome.provenance.served, clock.seconds) == ("serves", 0.5)


# --- retry ---------------------------------------------------------------------------------------------------------


@pair("retry", "hedge")
async def when_both_legs_fail_the_attempt_is_retried_from_the_same_budget():
    one = await warmed(guarded(hedge=HEDGE, retry=RETRY, retry_ratio=0.0))
    down = Down(1.0, 1.0, 0.0, errors=[lost(), lost()])
    async with released(one):
        assert await one.call(down) == "value 2"
        assert (down.started, one.budget.statistics().granted) == (3, 2)


@pair("retry", "breaker")
async def an_opening_breaker_ends_the_retries():
    one, down = guarded(retry=RETRY, breaker=TRIPS_AT_ONCE), Down(errors=[lost()] * 3)
    async with released(one):
        assert await ends(one.call(down)) is BreakerOpen
        assert down.started == 1


@pair("retry", "bulkhead")
async def the_permit_is_free_during_the_pause():
    one, clock = guarded(retry=RETRY, bulkhead=BulkheadPolicy(permits=1, queue=2)), Clock()
    async with released(one):
        first = asyncio.create_task(one.call(Down(0.5, errors=[lost()])))
        await asyncio.sleep(0.625)
        assert (one.statistics().in_use, await one.call(Down(0.25))) == (0, "value 0")
        assert clock.seconds == 0.875
        assert await first == "value 1"
        assert clock.seconds == 1.5


@pair("retry", "cache")
async def stale_comes_after_the_last_retry():
    one, down = guarded(retry=RETRY, cache=CachePolicy(ttl=1.0, jitter=0.0)), Down(errors=[lost()] * 3)
    async with released(one):
        await one.fetch("k", Down())
        await asyncio.sleep(2.0)
        assert (await one.fetch("k", down)).provenance.rung == "stale"
        assert down.started == 3


@pair("retry", "coalesce")
async def those_who_share_a_call_share_its_retries():
    one, down = guarded(retry=RETRY), Down(0.5, errors=[lost()])
    async with released(one):
        outcomes = await asyncio.gather(*(one.fetch("k", down) for _ in range(5)))
        assert {outcome.value for outcome in outcomes} == {"value 1"}
        assert (down.started, one.statistics().retries) == (2, 1)


@pair("retry", "stream")
async def a_stream_is_retried_before_its_first_content_and_never_after():
    one, before, after = guarded(retry=RETRY), items(error=lost()), items(0.5, error=lost())
    async with released(one):
        assert await ends(consumed(one.stream(before))) is ConnectionResetError
        assert len(before.opened) == 3
        assert await ends(consumed(one.stream(after))) is ConnectionResetError
        assert len(after.opened) == 1


@pair("retry", "detached")
async def a_retry_takes_a_permit_of_its_own_beside_the_orphan():
    one, down = guarded(attempt_timeout=1.0, retry=RETRY, detachable=True), Down(4.0, 0.5, deaf=True)
    async with released(one):
        assert await one.call(down) == "value 1"
        assert (one.statistics().orphans, one.statistics().in_use, down.ended) == (1, 1, 1)
        await asyncio.sleep(4.0)


@pair("retry", "ladder")
async def the_next_rung_comes_after_the_last_retry_and_is_marked_as_fallback():
    one, first, second = guarded(retry=RETRY), Down(errors=[lost()] * 3), Down()
    async with released(one):
        outcome = await climb([Rung("a", lambda: one.call(first)), Rung("b", lambda: one.call(second))])
        assert (outcome.provenance.served, first.started, second.started) == ("b", 3, 1)


# --- hedge ---------------------------------------------------------------------------------------------------------


@pair("hedge", "breaker")
async def nothing_is_hedged_unless_the_breaker_is_clear_and_a_loser_is_no_failure():
    one = await warmed(guarded(hedge=HEDGE, breaker=TRIPS_AT_ONCE))
    async with released(one):
        down = Down(2.0, 0.25)
        assert await one.call(down) == "value 1"
        assert (down.started, one.statistics().breaker) == (2, "closed")
        one.breaker.force_open(now(), for_=1.0)
        await asyncio.sleep(1.0)
        probe = Down(2.0, 0.25)
        assert await one.call(probe) == "value 0"
        assert (probe.started, one.statistics().breaker) == (1, "closed")


@pair("hedge", "bulkhead")
async def a_hedge_takes_no_place_that_anybody_needs():
    one = await warmed(guarded(hedge=HEDGE, bulkhead=BulkheadPolicy(permits=2, queue=4)))
    async with released(one):
        both = [Down(1.0), Down(1.0)]
        await asyncio.gather(*map(one.call, both))
        assert [down.started for down in both] == [1, 1]
        assert one.statistics().hedges == 0


@pair("hedge", "cache")
async def whichever_leg_wins_its_value_is_kept_once():
    one = await warmed(guarded(hedge=HEDGE, cache=CachePolicy(ttl=9.0)))
    down = Down(2.0, 0.25)
    async with released(one):
        assert (await one.fetch("k", down)).value == "value 1"
        again = await one.fetch("k", down)
        assert (again.value, again.provenance.rung, down.started) == ("value 1", "cache", 2)


@pair("hedge", "coalesce")
async def a_shared_call_has_one_hedge_for_all():
    one = await warmed(guarded(hedge=HEDGE))
    down, clock = Down(2.0, 0.25), Clock()
    async with released(one):
        outcomes = await asyncio.gather(*(one.fetch("k", down) for _ in range(5)))
        assert {outcome.value for outcome in outcomes} == {"value 1"}
        assert (down.started, clock.seconds) == (2, 0.5)


@pair("hedge", "stream")
async def a_stream_is_never_hedged():
    one = await warmed(guarded(hedge=HEDGE))
    source = items(2.0, 2.0)
    async with released(one):
        assert await consumed(one.stream(source)) == [0, 1]
        assert (len(source.opened), one.statistics().hedges) == (1, 0)


@pair("hedge", "detached")
async def a_loser_that_ignores_its_cancel_keeps_its_permit_and_a_thread_is_not_hedged():
    one = await warmed(guarded(hedge=HEDGE, detachable=True))
    legs = iter([Down(3.0, deaf=True), Down(0.25)])

    async def race():
        return await next(legs)()

    async with released(one):
        clock = Clock()
        assert await one.call(race) == "value 0"
        assert (clock.seconds, one.statistics().orphans, one.statistics().in_use) == (0.5, 1, 1)
        await asyncio.sleep(3.0)
        go = VirtualEvent()
        asyncio.get_running_loop().call_later(2.0, go.set)
        assert await one.call_sync(go.wait) is True
        assert one.statistics().hedges == 1
    await one.aclose()


@pair("hedge", "ladder")
async def a_hedge_that_serves_spares_the_next_rung():
    one = await warmed(guarded(hedge=HEDGE))
    down, spare = Down(2.0, 0.25), Down()
    async with released(one):
        outcome = await climb([Rung("a", lambda: one.call(down)), Rung("b", lambda: one.call(spare))])
        assert (outcome.value, outcome.degraded, spare.started) == ("value 1", False, 0)


# --- breaker -------------------------------------------------------------------------------------------------------


@pair("breaker", "bulkhead")
async def an_opening_breaker_refuses_all_who_wait_and_probes_are_counted_when_they_leave_the_queue():
    one = guarded(breaker=replace(TRIPS_AT_ONCE, probes=1), bulkhead=BulkheadPolicy(permits=1, queue=3))
    async with released(one):
        calls = [one.call(Down(1.0, errors=[lost()])), *(one.call(Down()) for _ in range(3))]
        assert await asyncio.gather(*map(ends, calls)) == [ConnectionResetError, *[BreakerOpen] * 3]
        await asyncio.sleep(5.0)
        calls = [one.call(Down(1.0)) for _ in range(3)]
        assert await asyncio.gather(*map(ends, calls)) == ["value 0", BreakerOpen, BreakerOpen]
        assert one.statistics().breaker == "closed"


@pair("breaker", "cache")
async def while_it_is_open_what_is_stale_is_served_and_nothing_is_tried():
    one, down = guarded(breaker=TRIPS_AT_ONCE, cache=CachePolicy(ttl=1.0, jitter=0.0)), Down()
    async with released(one):
        await one.fetch("k", down)
        await asyncio.sleep(2.0)
        one.breaker.force_open(now())
        outcome = await one.fetch("k", down)
        assert (outcome.provenance.rung, outcome.provenance.reason, down.started) == ("stale", "breaker_open", 1)


@pair("breaker", "coalesce")
async def a_shared_failure_counts_once():
    one = guarded(breaker=replace(TRIPS_AT_ONCE, consecutive_failures=2))
    async with released(one):
        calls = [one.fetch("k", Down(0.5, errors=[lost()])) for _ in range(9)]
        assert await asyncio.gather(*map(ends, calls)) == [ConnectionResetError] * 9
        assert (one.statistics().breaker, one.statistics().failed) == ("closed", 1)


@pair("breaker", "stream")
async def a_stream_that_breaks_off_counts_and_an_open_breaker_refuses_streams():
    one, source = guarded(breaker=TRIPS_AT_ONCE), items(0.5, error=lost())
    async with released(one):
        assert await ends(consumed(one.stream(source))) is ConnectionResetError
        assert one.statistics().breaker == "open"
        assert await ends(consumed(one.stream(source))) is BreakerOpen
        assert len(source.opened) == 1


@pair("breaker", "detached")
async def threads_that_hang_count_while_they_hang():
    one = guarded(breaker=replace(TRIPS_AT_ONCE, inflight_age=1.0, consecutive_timeouts=2))
    go = VirtualEvent()
    async with released(one):
        hanging = [asyncio.create_task(ends(one.call_sync(go.wait))) for _ in range(2)]
        await asyncio.sleep(1.5)
        down = Down()
        assert await ends(one.call(down)) is BreakerOpen
        assert down.started == 0
        go.set()
        assert await asyncio.gather(*hanging) == [True, True]
    await one.aclose()


@pair("breaker", "ladder")
async def an_open_breaker_costs_a_ladder_no_time():
    one, other, clock = guarded(breaker=TRIPS_AT_ONCE), guarded(), Clock()
    one.bind()
    one.breaker.force_open(now())
    async with released(one):
        outcome = await climb([Rung("a", lambda: one.call(Down(1.0))), Rung("b", lambda: other.call(Down()))])
        assert (outcome.provenance.served, outcome.provenance.reason, clock.seconds) == ("b", "breaker_open", 0.0)


# --- bulkhead ------------------------------------------------------------------------------------------------------


@pair("bulkhead", "cache")
async def a_fresh_value_needs_no_permit_and_a_full_queue_is_answered_from_what_is_stale():
    one = guarded(bulkhead=BulkheadPolicy(permits=1, queue=0), cache=CachePolicy(ttl=1.0, jitter=0.0))
    async with released(one):
        await one.fetch("k", Down())
        holder = asyncio.create_task(one.call(Down(3.0)))
        await asyncio.sleep(0.5)
        assert (await one.fetch("k", Down())).provenance.rung == "cache"
        await asyncio.sleep(1.0)
        assert (await one.fetch("k", Down())).provenance.reason == "queue_full"
        await holder


@pair("bulkhead", "coalesce")
async def those_who_share_a_call_share_its_permit():
    one, down = guarded(bulkhead=BulkheadPolicy(permits=1, queue=0)), Down(1.0)
    async with released(one):
        outcomes = await asyncio.gather(*(one.fetch("k", down) for _ in range(10)), ends(one.fetch("other", down)))
        assert [getattr(outcome, "value", outcome) for outcome in outcomes] == ["value 0"] * 10 + [QueueFull]


@pair("bulkhead", "stream")
async def a_stream_holds_its_permit_to_its_end():
    one, clock = guarded(bulkhead=BulkheadPolicy(permits=1, queue=1)), Clock()
    async with released(one):
        first = asyncio.create_task(consumed(one.stream(items(1.0, 1.0))))
        await asyncio.sleep(0)
        assert await one.call(Down()) == "value 0"
        assert clock.seconds == 2.0
        await first


@pair("bulkhead", "detached")
async def an_orphan_keeps_its_permit_from_others():
    one = guarded(attempt_timeout=1.0, detachable=True, bulkhead=BulkheadPolicy(permits=1, queue=1))
    clock = Clock()
    async with released(one):
        assert await ends(one.call(Down(3.0, deaf=True))) is AttemptTimeout
        assert await one.call(Down(0.5)) == "value 0"
        assert clock.seconds == 3.5


@pair("bulkhead", "ladder")
async def traffic_that_fell_back_gets_at_most_half_of_the_permits():
    broken, target = guarded(breaker=TRIPS_AT_ONCE), guarded(bulkhead=BulkheadPolicy(permits=4, queue=9))
    broken.bind()
    broken.breaker.force_open(now())
    clock = Clock()
    async with released(target):
        ladders = [
            climb([Rung("a", lambda: broken.call(Down())), Rung("b", lambda: target.call(Down(1.0)))]) for _ in range(6)
        ]
        waiting = asyncio.gather(*ladders)
        await asyncio.sleep(0.5)
        assert (target.statistics().in_use, target.statistics().waiting) == (2, 4)
        assert await target.call(Down(0.25)) == "value 0"  # first choice goes first
        assert clock.seconds == 0.75
        await waiting
        assert clock.seconds == 3.0


# --- cache ---------------------------------------------------------------------------------------------------------


@pair("cache", "coalesce")
async def a_value_that_expires_under_load_is_fetched_once():
    one, down = guarded(cache=CachePolicy(ttl=1.0, jitter=0.0)), Down(0.5)
    async with released(one):
        await one.fetch("k", down)
        await asyncio.sleep(2.0)
        outcomes = await asyncio.gather(*(one.fetch("k", down) for _ in range(20)))
        assert {outcome.value for outcome in outcomes} == {"value 1"}
        assert down.started == 2


@pair("cache", "stream")
async def a_stream_is_neither_kept_nor_served_from_the_cache():
    one, source = guarded(cache=CachePolicy()), items(0.5)
    async with released(one):
        assert [await consumed(one.stream(source)) for _ in range(2)] == [[0], [0]]
        assert (len(source.opened), len(one.cache)) == (2, 0)


@pair("cache", "detached")
async def what_an_orphan_brings_in_the_end_is_not_kept():
    one = guarded(attempt_timeout=1.0, detachable=True, cache=CachePolicy(ttl=9.0))
    async with released(one):
        assert await ends(one.fetch("k", Down(2.0, deaf=True))) is AttemptTimeout
        await asyncio.sleep(3.0)
        assert len(one.cache) == 0


@pair("cache", "ladder")
async def a_stale_value_from_a_rung_keeps_its_age_and_degrades():
    one = guarded(breaker=TRIPS_AT_ONCE, cache=CachePolicy(ttl=1.0, jitter=0.0))
    async with released(one):
        await one.fetch("k", Down())
        await asyncio.sleep(2.0)
        one.breaker.force_open(now())
        outcome = await climb([Rung("a", lambda: one.fetch("k", Down())), Rung("b", lambda: one.call(Down()))])
        assert (outcome.degraded, outcome.provenance.rung, outcome.provenance.age) == (True, "stale", 2.0)


# --- coalesce ------------------------------------------------------------------------------------------------------


@pair("coalesce", "stream")
async def two_readers_of_a_stream_have_a_source_each():
    one, source = guarded(), items(0.5, 0.5)
    async with released(one):
        assert await asyncio.gather(*(consumed(one.stream(source)) for _ in range(2))) == [[0, 1], [0, 1]]
        assert len(source.opened) == 2


@pair("coalesce", "detached")
async def when_the_last_participant_leaves_a_deaf_callee_is_an_orphan_until_it_ends():
    one, down = guarded(detachable=True), Down(3.0, deaf=True)
    async with released(one):
        assert (
            await asyncio.gather(*(ends(within(1.0, one.fetch, "k", down)) for _ in range(2))) == [DeadlineExceeded] * 2
        )
        await asyncio.sleep(0.5)
        assert (len(one.flights), one.statistics().orphans, one.statistics().in_use) == (0, 1, 1)
        await asyncio.sleep(3.0)


@pair("coalesce", "ladder")
async def two_ladders_share_the_call_of_a_rung_and_fall_together():
    one, first, second = guarded(), Down(1.0, errors=[lost()]), Down()

    def ladder():
        return climb(
            [Rung("a", lambda: one.fetch("k", first)), Rung("b", lambda: one.fetch("other", second), kind="alternate")]
        )

    async with released(one):
        outcomes = await asyncio.gather(ladder(), ladder())
        assert [outcome.provenance.rung for outcome in outcomes] == ["alternate", "alternate"]
        assert (first.started, second.started) == (1, 1)


# --- stream --------------------------------------------------------------------------------------------------------


@pair("stream", "detached")
async def a_stream_is_read_in_place_even_where_callees_can_be_left_behind():
    one, clock = guarded(detachable=True), Clock()
    async with released(one):
        reading = asyncio.create_task(ends(consumed(one.stream(items(0.5, 9.0), idle=1.0))))
        await asyncio.sleep(0.75)
        assert (one.statistics().in_use, len(one._children)) == (1, 0)
        assert await reading is IdleTimeout
        assert (clock.seconds, one.statistics().orphans) == (1.5, 0)


@pair("stream", "ladder")
async def a_stream_that_breaks_off_makes_way_for_the_next_rung():
    one, broken, whole = guarded(retry=RETRY), items(0.5, error=lost()), items(0.5)
    async with released(one):
        outcome = await climb(
            [Rung("a", lambda: consumed(one.stream(broken))), Rung("b", lambda: consumed(one.stream(whole)))]
        )
        assert (outcome.value, outcome.provenance.served, len(broken.opened)) == ([0], "b", 1)


# --- detached ------------------------------------------------------------------------------------------------------


@pair("detached", "ladder")
async def a_hanging_thread_makes_way_for_the_next_rung_and_stays_listed():
    one, other, go, clock = guarded(attempt_timeout=1.0), guarded(), VirtualEvent(), Clock()
    async with released(one):
        outcome = await climb([Rung("a", lambda: one.call_sync(go.wait)), Rung("b", lambda: other.call(Down(0.5)))])
        assert (outcome.provenance.served, clock.seconds) == ("b", 1.5)
        assert [holder.orphan for holder in one.holders()] == [True]
        go.set()
        await asyncio.sleep(1.0)
    await one.aclose()
