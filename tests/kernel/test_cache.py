"""The cache, coalescing, and a call with both around it."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.base.errors import BreakerOpen, CallTimeout, DeadlineExceeded, DownstreamUnavailable
from failsoft.base.outcomes import Outcome, Priority, Provenance
from failsoft.kernel.bulkhead import Bulkhead, BulkheadPolicy, Waiter
from failsoft.kernel.cache import Cache, CachePolicy, rough_size
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.flights import Flights
from failsoft.kernel.guard import guard
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.scope import current_scope, scope
from failsoft.testing.cancellation import cancel_at_every_await

EXACT = CachePolicy(ttl=10.0, stale_for=100.0, jitter=0.0)
POLICY = Policy(cache=EXACT, retry=RetryPolicy(queries=0), call_timeout=20.0)


def cache(**changes):
    return Cache(replace(EXACT, **changes), rng=random.Random(1))


def test_a_value_is_fresh_then_stale_then_gone():
    c = cache()
    c.put("k", 1, 0.0)
    assert c.fresh("k", 9.99).value == 1
    assert c.fresh("k", 10.0) is None
    assert c.stale("k", 109.9).value == 1
    assert c.stale("k", 110.0) is None
    assert len(c) == 0
    assert repr(c) == "<Cache entries=0 bytes=0 hits=1 misses=1>"


def test_values_stored_together_do_not_expire_together():
    c = cache(jitter=0.1)
    for key in range(200):
        c.put(key, key, 0.0)
    ends = [c.stale(key, 0.0).fresh_until for key in range(200)]
    assert 9.0 <= min(ends) < 9.2
    assert 10.8 < max(ends) <= 11.0


def test_the_least_recently_used_goes_first_when_entries_or_bytes_run_out():
    c = cache(entries=3)
    for key in "abc":
        c.put(key, key, 0.0)
    c.fresh("a", 1.0)
    c.put("d", "d", 1.0)
    assert [c.fresh(key, 1.0) is not None for key in "abcd"] == [True, False, True, True]
    c = cache(max_bytes=1000)
    for key in range(20):
        c.put(key, "x", 0.0, size=90)
    assert c.statistics().bytes <= 1000
    assert len(c) == 11


def test_a_value_too_large_is_not_kept_and_its_older_one_goes():
    c = cache(max_bytes=1000)
    c.put("k", "small", 0.0, size=50)
    assert not c.put("k", "large", 0.0, size=500)
    assert c.fresh("k", 0.0) is None
    assert c.statistics().refused == 1


def test_sizes_are_estimated_in_bounded_time():
    assert rough_size({"a": ["x" * 1000]}) > 1000
    assert rough_size([[0] * 1000] * 1000) > 100_000
    endless = []
    endless.append(endless)
    assert rough_size(endless) > 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "fresh", "stale", "drop"]), st.integers(0, 6), st.floats(0, 30)), max_size=80
    )
)
def test_the_cache_is_a_dictionary_with_ends(steps):
    c, model, now = cache(entries=100), {}, 0.0
    for what, key, wait in steps:
        now += wait
        if what == "put":
            c.put(key, (key, now), now)
            model[key] = now
        elif what == "drop":
            c.drop(key)
            model.pop(key, None)
        elif what == "fresh":
            entry = c.fresh(key, now)
            assert (entry is not None) == (key in model and now < model[key] + 10.0)
        else:
            entry = c.stale(key, now)
            assert (entry is not None) == (key in model and now < model[key] + 110.0)
            if entry is None:
                model.pop(key, None)
            else:
                assert entry.value == (key, model[key])
    assert c.statistics().bytes == sum(e.size for e in c._entries.values())


class Source:
    def __init__(self, takes=1.0):
        self.takes, self.calls, self.cancelled, self.fails = takes, 0, 0, False

    async def __call__(self):
        self.calls += 1
        number = self.calls
        try:
            await asyncio.sleep(self.takes)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails:
            raise DownstreamUnavailable("down")
        return number


async def test_a_hot_key_that_expires_under_load_makes_one_call():
    g = guard("d", replace(POLICY, bulkhead=BulkheadPolicy(permits=4, queue=0)))
    source = Source()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(g.fetch("hot", source)) for _ in range(200)]
    assert source.calls == 1
    assert {task.result().value for task in tasks} == {1}
    assert (await g.fetch("hot", source)).provenance.rung == "cache"
    assert not (await g.fetch("hot", source)).degraded
    assert len(g.flights) == 0


async def test_stale_if_error_carries_its_age_and_reason_and_is_not_stored_as_fresh():
    g = guard("d", POLICY)
    source = Source(takes=0.0)
    await g.fetch("k", source)
    source.fails = True
    await asyncio.sleep(60.0)
    outcome = await g.fetch("k", source)
    assert (outcome.value, outcome.degraded) == (1, True)
    assert outcome.provenance.age == 60.0
    assert outcome.provenance.reason == "downstream_unavailable"
    await g.fetch("k", source)
    assert source.calls == 3
    await asyncio.sleep(60.0)
    with pytest.raises(DownstreamUnavailable):
        await g.fetch("k", source)


async def test_an_open_breaker_is_answered_from_what_is_stale():
    g = guard("d", POLICY)
    await g.fetch("k", Source(takes=0.0))
    await asyncio.sleep(20.0)
    g.breaker.force_open(20.0, for_=60.0)
    assert (await g.fetch("k", Source())).provenance.reason == "breaker_open"
    with pytest.raises(BreakerOpen):
        await g.fetch("other", Source())


async def test_a_degraded_value_is_never_stored():
    g = guard("d", POLICY)
    calls = []

    async def degraded():
        calls.append(1)
        return Outcome("half", Provenance(requested="d", served="d", truncated=True))

    for _ in range(2):
        assert (await g.fetch("k", degraded)).value == "half"
    assert len(calls) == 2


async def test_tenants_never_see_each_others_values():
    g = guard("d", POLICY)
    source = Source(takes=0.0)
    seen = []
    for tenant in ("a", "b", "a"):
        with scope(tenant=tenant):
            seen.append((await g.fetch("k", source)).value)
    assert seen == [1, 2, 1]


async def test_an_action_is_neither_cached_nor_shared():
    with pytest.raises(ValueError, match="queries"):
        await guard("d", POLICY).fetch("k", Source(), kind="action")


async def test_each_waits_under_its_own_deadline_and_the_flight_lives_as_long_as_the_latest():
    flights, source = Flights(), Source(takes=5.0)
    seen = []

    async def caller(seconds):
        try:
            async with deadline_scope(seconds):
                seen.append(await flights.join("k", source))
        except DeadlineExceeded:
            seen.append("late")

    async with asyncio.TaskGroup() as group:
        group.create_task(caller(2.0))
        group.create_task(caller(10.0))
    assert seen == ["late", 1]
    assert source.cancelled == 0
    assert asyncio.get_running_loop().time() == 5.0


async def test_the_last_to_leave_cancels_the_flight():
    flights, source = Flights(), Source(takes=50.0)
    tasks = [asyncio.create_task(flights.join("k", source)) for _ in range(3)]
    await asyncio.sleep(1.0)
    for task in tasks[:2]:
        task.cancel()
    await asyncio.sleep(1.0)
    assert source.cancelled == 0
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert source.cancelled == 1
    assert len(flights) == 0
    assert (source.calls, flights.started, flights.joined) == (1, 1, 2)


async def test_after_the_last_left_a_new_caller_starts_a_new_flight():
    flights, source = Flights(), Source(takes=5.0)
    first = asyncio.create_task(flights.join("k", source))
    await asyncio.sleep(1.0)
    first.cancel()
    await asyncio.sleep(0.1)
    assert await flights.join("k", source) == 2
    assert first.cancelled()


async def test_a_flights_error_reaches_everybody_and_its_own_cancel_is_a_failure_of_the_callee():
    flights, source = Flights(), Source()
    source.fails = True
    results = await asyncio.gather(*(flights.join("k", source) for _ in range(3)), return_exceptions=True)
    assert [type(r) for r in results] == [DownstreamUnavailable] * 3
    with pytest.raises(CallTimeout):
        await flights.join("k", Source(takes=9.0), timeout=1.0)


async def test_a_flight_has_no_callers_deadline():
    flights = Flights()
    seen = []

    async def look():
        await asyncio.sleep(0.5)
        seen.append((current_scope().deadline, current_scope().wanted_until))

    async def caller(seconds):
        async with deadline_scope(seconds, run="r1"):
            await flights.join("k", look)

    await asyncio.gather(caller(1.0), caller(9.0), caller(5.0))
    assert seen == [(float("inf"), 9.0)]


class Second:
    def __init__(self):
        self.values, self.broken = {}, False

    async def get(self, key):
        if self.broken:
            await asyncio.sleep(60)
        return self.values.get(key)

    async def put(self, key, value, *, ttl):
        if self.broken:
            raise ConnectionError
        self.values[key] = (value, 33.0)


async def test_a_second_level_serves_what_the_first_has_lost_and_never_holds_anything_up():
    second, source = Second(), Source(takes=0.0)
    await guard("d", POLICY).fetch("k", source, second=second)
    fresh_process = guard("d", POLICY)
    source.fails = True
    outcome = await fresh_process.fetch("k", source, second=second)
    assert (outcome.value, outcome.provenance.age) == (1, 33.0)
    second.broken = True
    with pytest.raises(DownstreamUnavailable):
        await fresh_process.fetch("k", source, second=second)
    assert asyncio.get_running_loop().time() == 0.25
    source.fails = False
    assert (await fresh_process.fetch("k", source, second=second)).value == 4


def test_cancelled_at_every_await_nothing_is_left():
    made = []

    async def make():
        g = guard("d", POLICY)
        made.append(g)
        await g.fetch("k", Source())

    async def check():
        await asyncio.sleep(30.0)
        assert (made[-1].statistics().in_use, len(made[-1].flights)) == (0, 0)

    assert cancel_at_every_await(make, check) == 1


async def test_a_flight_is_as_important_as_the_most_important_who_waits_for_it():
    g = guard("d", replace(POLICY, cache=None, bulkhead=BulkheadPolicy(permits=1, queue=8)))
    done = []

    async def work(name):
        await asyncio.sleep(1.0)
        done.append((name, current_scope().priority))
        return name

    async def asked(name, priority, *, shared=False):
        with scope(priority=priority):
            return (await g.fetch("k", work, name)).value if shared else await g.call(work, name)

    async with asyncio.TaskGroup() as group:
        group.create_task(asked("holds", Priority.NORMAL))
        await asyncio.sleep(0.1)
        first = group.create_task(asked("shared", Priority.OPTIONAL, shared=True))
        group.create_task(asked("normal", Priority.NORMAL))
        await asyncio.sleep(0.1)
        second = group.create_task(asked("never", Priority.CRITICAL, shared=True))
        group.create_task(asked("late", Priority.NORMAL))
        await asyncio.sleep(0.1)
        assert [one.priority for one in g.waiters()] == ["critical", "normal", "normal"]
    assert done == [("holds", 1), ("shared", 0), ("normal", 1), ("late", 1)]
    assert (first.result(), second.result()) == ("shared", "shared")
    assert g.flights.joined == 1


async def test_a_priority_that_is_given_counts_as_one_of_the_scope():
    g = guard("d", replace(POLICY, cache=None, bulkhead=BulkheadPolicy(permits=1, queue=8)))
    done = []

    async def work(name):
        await asyncio.sleep(1.0)
        done.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(g.call(work, "holds"))
        await asyncio.sleep(0.1)
        group.create_task(g.fetch("k", work, "shared", priority=Priority.OPTIONAL))
        group.create_task(g.call(work, "normal"))
        await asyncio.sleep(0.1)
        group.create_task(g.fetch("k", work, "never", priority=Priority.CRITICAL))
    assert done == ["holds", "shared", "normal"]


def test_a_promotion_grants_what_is_free_and_moves_nobody_down():
    bulkhead = Bulkhead(BulkheadPolicy(permits=1, queue=8), name="d")
    assert bulkhead.try_acquire(0.0)
    low, high = Waiter(Priority.OPTIONAL), Waiter(Priority.CRITICAL)
    bulkhead.enqueue(high, 0.0)
    bulkhead.enqueue(low, 0.0)
    bulkhead.promote(high, Priority.OPTIONAL, 1.0)
    bulkhead.promote(low, Priority.NORMAL, 1.0)
    assert [(one.priority, one.enqueued_at) for one in bulkhead.waiters()] == [(0, 0.0), (1, 1.0)]
    bulkhead.release(2.0)
    bulkhead.release(3.0)
    bulkhead.promote(low, Priority.CRITICAL, 4.0)  # it has its permit: nothing moves
    assert (bulkhead.in_use, bulkhead.waiting, low.priority) == (1, 0, Priority.NORMAL)
    bulkhead.release(5.0)
    assert bulkhead.in_use == 0
