"""Small things that hold, and that only a changed line would notice: found by bench/mutants.py."""

import asyncio
import random
import threading
from dataclasses import replace

import pytest

from failsoft.base.errors import (
    AttemptTimeout,
    BreakerOpen,
    CallTimeout,
    ConfigError,
    DeadlineExceeded,
    FirstItemTimeout,
    InternalError,
    ToolFailed,
)
from failsoft.base.events import EventBus
from failsoft.kernel import threads
from failsoft.kernel.adaptive import AdaptiveLimitPolicy
from failsoft.kernel.breaker import Breaker, BreakerPolicy, breaker_preset
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.cache import Cache, CachePolicy, rough_size
from failsoft.kernel.codel import HoldTimes
from failsoft.kernel.deadline import Deadline, deadline_scope
from failsoft.kernel.guard import Kernel, guard
from failsoft.kernel.latency import LatencyHistogram
from failsoft.kernel.policy import HedgePolicy, Policy
from failsoft.kernel.retry import RetryPolicy, parse_retry_after
from failsoft.kernel.timeout import TYPICAL_SAMPLES, AdaptiveTimeout, AdaptiveTimeoutPolicy
from failsoft.testing.clock import virtual_loop

PLAIN = Policy(
    call_timeout=None,
    retry=RetryPolicy(queries=0),
    breaker=BreakerPolicy(ramp=0.0, open_jitter=0.0, probes=1, close_after=1),
    bulkhead=BulkheadPolicy(permits=1, queue=4),
)


async def hang():
    await asyncio.sleep(10_000)


async def test_closing_a_guard_ends_the_callees_that_were_left_behind():
    one = guard("d", replace(PLAIN, attempt_timeout=1.0, detachable=True))
    deaf = 1

    async def callee():
        nonlocal deaf
        while True:
            try:
                return await hang()
            except asyncio.CancelledError:
                if not deaf:
                    raise
                deaf -= 1

    with pytest.raises(AttemptTimeout):
        await one.call(callee)
    await asyncio.sleep(5.0)
    assert one.statistics().orphans == 1
    await one.aclose()
    assert one.statistics().orphans == one.statistics().in_use == 0


async def test_events_of_the_kernel_have_no_number_of_their_own():
    events = []
    one = Kernel(bus=EventBus([events.append])).guard("d", PLAIN)
    await one.call(asyncio.sleep, 0.0)
    with pytest.raises(KeyError):
        await one.call({}.__getitem__, "nothing")
    assert [(event.seq, event.epoch, event.id) for event in events] == [(0, 0, "0.0")] * 2


async def test_a_guard_refuses_another_loop_while_a_call_runs_or_waits():
    one = guard("d", PLAIN)
    running = asyncio.create_task(one.call(asyncio.sleep, 1.0))
    await asyncio.sleep(0.5)

    def elsewhere():
        with pytest.raises(InternalError, match="in use by another event loop"):
            asyncio.run(one.call(asyncio.sleep, 0.0))

    await asyncio.to_thread(elsewhere)
    await running


async def test_what_a_dead_loop_left_in_a_guard_is_forgotten():
    one = guard("d", PLAIN)

    def dies():
        loop = asyncio.new_event_loop()
        task = loop.create_task(one.call(hang))
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        task._log_destroy_pending = False
        return task

    task = await asyncio.to_thread(dies)
    assert len(one.holders()) == 1
    assert await one.call(asyncio.sleep, 0.0, "serves") == "serves"
    assert one.statistics().in_use == 0
    task.get_coro().close()


async def test_an_attempt_that_had_all_of_its_limit_counts_also_when_the_call_ends_with_it():
    one = guard("d", replace(PLAIN, call_timeout=2.0, attempt_timeout=2.0))
    with pytest.raises(AttemptTimeout):
        await one.call(hang)
    assert (one.statistics().timed_out, one.statistics().neutral) == (1, 0)
    with pytest.raises(CallTimeout):
        await one.call(hang, timeout=1.875)
    assert (one.statistics().timed_out, one.statistics().neutral) == (1, 1)


async def test_a_probe_granted_to_a_caller_that_has_gone_is_given_back():
    one = guard("d", PLAIN)
    loop = asyncio.get_running_loop()
    holder = asyncio.create_task(one.call(asyncio.sleep, 3.0))
    await asyncio.sleep(0.5)
    one.breaker.force_open(loop.time(), for_=1.0)
    await asyncio.sleep(1.5)
    gone = asyncio.create_task(one.call(hang))
    await asyncio.sleep(0.25)
    assert one.statistics().waiting == 1
    loop.call_at(3.0, loop.call_soon, gone.cancel)  # in the pass after the grant, before its task wakes
    await asyncio.wait([gone, holder])
    assert one.breaker.statistics(loop.time()).probes == 0
    assert str(one.breaker.state) in {"open", "half_open"}
    assert await one.call(asyncio.sleep, 0.25, "a probe") == "a probe"
    assert str(one.breaker.state) == "closed"


async def test_a_probe_that_waits_its_turn_is_given_back_when_granted_and_cancelled_at_once():
    one = guard("d", PLAIN)
    loop = asyncio.get_running_loop()
    assert one.bulkhead.try_acquire(0.0) or one.bind() is None
    one.bind()
    one.breaker.force_open(0.0, for_=0.0)
    gone = asyncio.create_task(one.call(hang))
    await asyncio.sleep(0.25)
    assert one.statistics().waiting == 1
    one.bulkhead.release(loop.time())
    assert one.breaker.statistics(loop.time()).probes == 1
    gone.cancel()
    await asyncio.wait([gone])
    assert one.breaker.statistics(loop.time()).probes == 0
    assert one.statistics().in_use == 0
    assert await one.call(asyncio.sleep, 0.0, "a probe") == "a probe"


async def test_streams_earn_retries_as_calls_do():
    one = guard("d", PLAIN)

    async def source():
        yield 1

    for _ in range(3):
        async with one.stream(source) as items:
            assert [item async for item in items] == [1]
    await one.call(asyncio.sleep, 0.0)
    assert (one.statistics().calls, one.statistics().attempts, one.statistics().ok) == (4, 4, 4)


class Source:
    """An iterator that is no generator, and counts its closings."""

    def __init__(self, items=(), error=None):
        self.items, self.error, self.closed = list(items), error, 0

    def __aiter__(self):
        return self

    async def __anext__(self):
        await asyncio.sleep(0.5)
        if self.items:
            return self.items.pop(0)
        raise self.error or StopAsyncIteration

    async def aclose(self):
        self.closed += 1


async def test_a_source_is_closed_once_whatever_its_end():
    one = guard("d", replace(PLAIN, breaker=None))
    whole, broken, left = Source([1, 2]), Source([1], ConnectionResetError()), Source([1, 2])
    async with one.stream(lambda: whole) as items:
        assert [item async for item in items] == [1, 2]
        assert whole.closed == 1  # at its end already
    with pytest.raises(ConnectionResetError):
        async with one.stream(lambda: broken) as items:
            async for _ in items:
                pass
    async with one.stream(lambda: left) as items:
        async for _ in items:
            break
    assert (whole.closed, broken.closed, left.closed) == (1, 1, 1)


async def test_a_stream_gives_one_sample_of_its_first_content():
    one = guard("d", PLAIN)
    async with one.stream(lambda: Source([1, 2, 3])) as items:
        async for _ in items:
            pass
    one.latency.refresh(0.0)
    histogram = one.latency.histogram
    assert (histogram.samples, histogram.longest()) == (1, pytest.approx(0.5, rel=0.02))
    assert not histogram.cut


@pytest.mark.parametrize("value", [2.0**14 - 1, 2.0**14, 20_000.0, 1e9, float("inf")])
def test_the_longest_times_share_a_bucket(value):
    histogram = LatencyHistogram()
    histogram.record(value, 0.0)
    histogram.record_many([value], 0.0)
    assert histogram.quantile(0.5) == 16_256.0
    assert histogram.count(0.0) == 2.0


def test_what_is_slow_by_nature_or_shortened_may_reach_the_hard_cap():
    for nature, shortened, most in ((True, None, 40.0), (False, 1.5, 15.0), (False, None, 10.0), (True, 3.0, 30.0)):
        latency = AdaptiveTimeout(AdaptiveTimeoutPolicy(floor=0.1, cap=10.0, hard_cap=40.0, slow_by_nature=nature))
        for _ in range(40):
            latency.record(5.0, 0.0)
        latency.shorten(shortened)
        assert latency.limit(size=10.0) == pytest.approx(most)


async def test_idle_threads_end_by_themselves(monkeypatch):
    monkeypatch.setattr(threads, "_IDLE", 0.02)
    one = Kernel().guard("idle", PLAIN)
    assert await one.call_sync(int) == 0

    def until_it_has_ended():
        while one.threads.threads:
            pass

    await asyncio.to_thread(until_it_has_ended)
    assert repr(one.threads) == "<ThreadLane idle threads=0 idle=0>"
    assert await one.call_sync(int) == 0
    await asyncio.to_thread(until_it_has_ended)


@pytest.mark.parametrize("value", [5000.0, 8192.0, 10_000.0, 16_000.0])
def test_hours_are_known_as_exactly_as_seconds(value):
    histogram = LatencyHistogram()
    histogram.record(value, 0.0)
    histogram.record_many([value], 0.0)
    histogram.record_censored(value, 0.0)
    assert histogram.quantile(0.5) == pytest.approx(value, rel=0.017)


async def test_a_refused_probe_costs_no_permit_and_says_when_to_come_back():
    one = guard("d", replace(PLAIN, bulkhead=BulkheadPolicy(permits=3, queue=0)))
    loop = asyncio.get_running_loop()
    one.bind()
    one.breaker.force_open(0.0, for_=0.0)
    probe = asyncio.create_task(one.call(asyncio.sleep, 1.0))
    await asyncio.sleep(0.5)
    with pytest.raises(BreakerOpen) as refused:
        await one.call(hang)
    assert refused.value.retry_after == min(one.policy.breaker.open_for, 29.5)
    assert (one.statistics().in_use, loop.time()) == (1, 0.5)
    await probe


@pytest.mark.parametrize(
    ("seconds", "error", "counted"),
    [(2.0, None, "ok"), (2.0, ConnectionResetError(), "failed"), (2.125, ConnectionResetError(), "neutral")],
)
async def test_what_comes_at_the_very_instant_of_the_limit_is_in_time(seconds, error, counted):
    one = guard("d", replace(PLAIN, attempt_timeout=2.0))

    async def callee():
        virtual_loop().stall(seconds)  # so that no alarm can come in between
        if error is not None:
            raise error
        return "value"

    ended = await asyncio.gather(one.call(callee), return_exceptions=True)
    assert ended == [error or "value"]
    figures = one.statistics()
    assert {"ok": figures.ok, "failed": figures.failed, "neutral": figures.neutral}[counted] == 1
    assert figures.attempts == figures.ok + figures.failed + figures.neutral == 1


async def test_a_threads_stack_is_its_innermost_five_frames():
    one = guard("d", PLAIN)
    inside, go = threading.Event(), threading.Event()

    def deep(calls):
        if calls:
            return deep(calls - 1)
        inside.set()
        return go.wait()

    call = asyncio.create_task(one.call_sync(deep, 10))
    await asyncio.to_thread(inside.wait)
    (ticket,) = one._tickets
    frames = [line.rpartition(" ")[2] for line in ticket.callee.stack()]
    go.set()
    assert await call
    assert len(frames) == 5
    assert frames[0] == "deep"


async def test_a_retry_cut_short_by_the_call_blames_nobody():
    await asyncio.sleep(100.0)  # the time of day is no part of it
    one = guard("d", replace(PLAIN, call_timeout=10.0, retry=RetryPolicy(queries=1, base=0.0, spread=0.0)))
    tries = []

    async def callee():
        tries.append(1)
        if len(tries) == 1:
            await asyncio.sleep(6.0)
            raise ConnectionResetError
        await hang()

    with pytest.raises(CallTimeout):
        await one.call(callee)
    found = one.statistics()
    assert (len(tries), found.failed, found.timed_out, found.neutral) == (2, 1, 0, 1)


def test_the_mean_leaves_out_failures_of_earlier_buckets_too():
    policy = BreakerPolicy(failure_ratio=None, mean=1.0, minimum=6, window=10.0)
    one = Breaker(policy, rng=random.Random(1))
    for now, counts, seconds in [(0.0, "failed", 0.01)] * 3 + [(5.0, "ok", 1.5)] * 3:
        assert one.state == "closed"
        one.settle(one.standing, counts, seconds, now)
    assert "mean latency 1.5 s" in one.statistics(5.0).reason


def test_a_precision_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="precision"):
        AdaptiveLimitPolicy(precision=0.0)


@pytest.mark.parametrize(("recent", "kept"), [(0.6, 13), (0.4, 3)])
def test_only_calls_far_faster_than_expected_put_the_expectation_in_doubt(recent, kept):
    times = HoldTimes()
    for seconds in [1.0] * 10:
        times.add(seconds)
        times.stale += 1
    times.last = 0.0
    assert times.refresh(0.0)
    for _ in range(3):
        times.add(recent)
    times.doubt()
    assert len(times.samples) == kept


def test_a_tenth_of_the_cache_is_not_too_large_and_a_byte_more_is():
    cache = Cache(CachePolicy(max_bytes=1000), rng=random.Random(1))
    assert [cache.put("k", b"", 0.0, size=size) for size in (100, 101)] == [True, False]


def test_times_to_wait_may_be_nothing():
    assert [parse_retry_after(value, wall=0.0) for value in (0, 0.5, -1, True)] == [0.0, 0.5, None, None]


def test_full_jitter_begins_at_nothing():
    class Lowest(random.Random):
        def uniform(self, a, b):
            return a

    assert RetryPolicy(jitter="full", base=1.0).backoff(1, Lowest()) == 0.0


async def test_the_first_items_limit_also_holds_for_a_source_that_does_not_get_started():
    one = guard("d", replace(PLAIN, attempt_timeout=None))

    async def starts_never():
        await hang()

    began = asyncio.get_running_loop().time()
    with pytest.raises(FirstItemTimeout):
        async with one.stream(starts_never, first_item=1.0):
            pass
    assert asyncio.get_running_loop().time() == began + 1.0


def test_calls_that_were_cut_say_nothing_of_the_usual_time():
    times = AdaptiveTimeout(AdaptiveTimeoutPolicy())
    for _ in range(TYPICAL_SAMPLES):
        times.record_censored(2.0, 0.0)
    times.record(1.0, 0.0)
    times.refresh(1.0)
    assert times.typical == 0.0


def test_presets_of_breakers_have_their_figures():
    def figures(name):
        found = breaker_preset(name)
        return (
            found.window, found.minimum, found.failure_ratio, found.slow_threshold, found.slow_ratio,
            found.consecutive_timeouts, found.consecutive_failures, found.open_for, found.open_max, found.probes,
            found.close_after, found.ramp,
        )  # fmt: skip

    assert figures("strict") == (10.0, 10, 0.3, 2.0, 0.5, 3, 5, 5.0, 30.0, 3, 3, 5.0)
    assert figures("patient") == (60.0, 20, 0.6, 10.0, 0.8, 5, 10, 15.0, 60.0, 1, 2, 10.0)


async def test_a_kernel_closes_what_its_guards_keep():
    class Pool:
        closed = 0

        async def aclose(self):
            self.closed += 1

    kernel, pool = Kernel(), Pool()
    kernel.guard("d", PLAIN).keep("pool", lambda: pool)
    await kernel.aclose()
    assert pool.closed == 1


async def test_a_streams_first_limit_is_the_nearer_one():
    await asyncio.sleep(100.0)
    one = guard("d", replace(PLAIN, call_timeout=10.0))
    began = asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(5.0), one.stream(lambda: Source([]), first_item=None) as items:
            await hang()
            async for _ in items:
                pass
    assert asyncio.get_running_loop().time() == began + 5.0


def test_a_mappings_size_has_its_keys():
    assert rough_size({"x" * 10_000: 1}) > 10_000


def test_what_was_served_stale_is_counted():
    cache = Cache(CachePolicy(), rng=random.Random(1))
    cache.put("k", 1, 0.0)
    for _ in range(2):
        assert cache.stale("k", 100.0) is not None
    assert cache.statistics().stale_hits == 2


def test_a_deadline_has_expired_when_nothing_is_left_of_it():
    one = Deadline(10.0)
    assert [one.expired(now) for now in (9.5, 10.0, 10.5)] == [False, True, True]


async def test_a_call_is_not_given_the_time_that_was_lost_before_it():
    one = guard("d", replace(PLAIN, breaker=BreakerPolicy(slow_threshold=0.5, slow_ratio=0.5, minimum=1)))
    await one.call(asyncio.sleep, 0.0)
    one.heap.lost += 50.0  # a stall, before the call
    await one.call(asyncio.sleep, 1.0)
    assert one.breaker.statistics(0.0).slow == 1 or one.breaker.state == "open"


async def test_a_call_is_not_charged_with_the_time_that_was_lost_in_it():
    one = guard("d", replace(PLAIN, breaker=BreakerPolicy(slow_threshold=0.5, slow_ratio=0.5, minimum=1)))
    await one.call(asyncio.sleep, 0.0)

    async def stalled():
        await asyncio.sleep(1.0)
        one.heap.lost += 0.9

    await one.call(stalled)
    assert one.breaker.state == "closed"


async def test_a_callees_own_cancellation_is_the_cause_of_its_failure():
    one = guard("d", replace(PLAIN, attempt_timeout=5.0, detachable=True))

    async def gives_up():
        raise asyncio.CancelledError("mine")

    with pytest.raises(ToolFailed) as caught:
        await one.call(gives_up)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


@pytest.mark.parametrize("share", [-0.1, 1.1, 2.0])
def test_a_hedges_share_is_at_most_all(share):
    with pytest.raises(ValueError, match="share"):
        HedgePolicy(share=share)


async def test_a_call_that_comes_waits_for_nothing_only_when_nobody_does():
    one = guard("d", replace(PLAIN, bulkhead=BulkheadPolicy(permits=2, queue=4)))
    for _ in range(4):
        await one.call(asyncio.sleep, 1.0)
    now = asyncio.get_running_loop().time
    assert one.bulkhead.predicted_wait(now()) == 0.0
    running = [asyncio.create_task(one.call(asyncio.sleep, 1.0)) for _ in range(2)]
    await asyncio.sleep(0.1)
    assert one.bulkhead.predicted_wait(now()) == pytest.approx(0.5)  # all are taken, though nobody waits
    await asyncio.gather(*running)


def test_the_finest_precision_and_the_coarsest_are_accepted():
    assert AdaptiveLimitPolicy(precision=1.0).precision == 1.0


@pytest.mark.parametrize(("cut", "usual"), [(0, 0.05), (10, 0.05), (60, 0.08), (400, 0.08)])
def test_what_calls_usually_need_counts_those_that_were_cut_as_needing_more(cut, usual):
    times = AdaptiveTimeout(AdaptiveTimeoutPolicy())
    for _ in range(20):
        times.record(0.05, 0.0)
    for _ in range(cut):
        times.record_censored(0.08 if cut > 10 else 0.01, 0.0)
    times.refresh(1.0)
    assert (times.typical, times.usual) == (pytest.approx(0.05, rel=0.02), pytest.approx(usual, rel=0.02))


async def test_a_stream_cut_by_a_lent_limit_blames_nobody_and_is_known_to_have_taken_longer():
    one = guard("d", PLAIN)
    with pytest.raises(FirstItemTimeout):
        async with one.stream(lambda: Source([1]), first_item=0.2, lent=("first_item",)):
            pass
    assert (one.statistics().timed_out, one.statistics().neutral) == (0, 1)
    assert sum(one.latency.histogram.cut.values()) == 1.0


async def test_a_failed_call_is_not_given_the_time_that_was_lost_before_it():
    slow = BreakerPolicy(failure_ratio=None, slow_threshold=0.5, slow_ratio=0.5, minimum=1, consecutive_failures=None)
    one = guard("d", replace(PLAIN, breaker=slow))
    await one.call(asyncio.sleep, 0.0)
    one.heap.lost += 50.0

    async def fails():
        await asyncio.sleep(1.0)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await one.call(fails)
    assert one.breaker.state == "open"
