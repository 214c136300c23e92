"""What can be seen of a guard: events, figures, holders and reprs, to the letter."""

import asyncio
import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from failsoft.base.errors import AttemptTimeout, BreakerOpen, CallTimeout, DeadlineExceeded, QueueFull, Unaffordable
from failsoft.base.events import EventBus
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.cache import CachePolicy
from failsoft.kernel.deadline import Deadline, deadline_scope, heap_of
from failsoft.kernel.flights import Flights
from failsoft.kernel.guard import EXPLORE_EVERY, Kernel, guard
from failsoft.kernel.ladder import Rung, climb
from failsoft.kernel.policy import HedgePolicy, Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.scope import scope
from failsoft.testing.clock import VirtualEvent

PLAIN = Policy(
    call_timeout=8.0,
    attempt_timeout=2.0,
    retry=RetryPolicy(queries=1, base=0.5, spread=0.0),
    breaker=BreakerPolicy(ramp=0.0, open_jitter=0.0),
    bulkhead=BulkheadPolicy(permits=2, queue=1),
)


def heard(policy=PLAIN):
    events = []
    kernel = Kernel(bus=EventBus([events.append]))
    return kernel.guard("d", policy), events


def told(events):
    return [(event.kind, event.at, event.data) for event in events]


async def fails(seconds=0.25, error=ConnectionResetError):
    await asyncio.sleep(seconds)
    raise error


async def test_each_attempt_tells_how_it_ended_and_each_retry_why():
    one, events = heard()
    with scope(run="r", task="t", tenant="x"), pytest.raises(ConnectionResetError):
        async with deadline_scope(6.0):
            await one.call(fails)
    first, again, second = events
    assert first.data == (0.25, "failed", "downstream_unavailable", 1, 5.75)
    assert (again.kind, again.at, again.data[:2], again.data[2].code) == (
        "call.retrying",
        0.25,
        (1, 0.5),
        "downstream_unavailable",
    )
    assert second.data == (0.25, "failed", "downstream_unavailable", 2, 5.0)
    assert {(event.downstream, event.run, event.task, event.tenant) for event in events} == {("d", "r", "t", "x")}
    events.clear()
    await one.call(asyncio.sleep, 0.5)
    assert told(events) == [("attempt.finished", 1.5, (0.5, "ok", None, 1, float("inf")))]


async def test_limits_cancellations_and_orphans_are_told():
    one, events = heard(replace(PLAIN, retry=RetryPolicy(queries=0), detachable=True))

    async def deaf():
        try:
            await asyncio.sleep(9.0)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)

    with pytest.raises(AttemptTimeout, match=r"d: the attempt limit passed after 2\.000 s"):
        await one.call(deaf)
    await asyncio.sleep(2.0)
    assert [event.kind for event in events] == ["attempt.finished", "callee.orphaned", "callee.ended"]
    assert events[0].data == (2.0, "timeout", "attempt_timeout", 1, float("inf"))
    assert (events[1].at, events[2].at) == (2.0, 3.0)
    events.clear()
    task = asyncio.create_task(one.call(asyncio.sleep, 9.0))
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.wait([task])
    assert told(events)[0] == ("attempt.finished", 4.5, (0.5, "neutral", "cancelled", 1, float("inf")))


async def test_rejections_are_told_and_counted_by_their_code():
    one, events = heard(replace(PLAIN, breaker=BreakerPolicy(open_for=4.0, open_max=4.0, open_jitter=0.0)))
    calls = [asyncio.create_task(one.call(asyncio.sleep, 1.0)) for _ in range(4)]
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(ends[3], QueueFull)
    with pytest.raises(Unaffordable, match=r"^0\.000 s left of the task limit$"):
        async with deadline_scope(0.0, limit="task"):
            await one.call(asyncio.sleep, 1.0)
    one.breaker.force_open(2.0, for_=4.0)
    await asyncio.sleep(1.0)
    with pytest.raises(BreakerOpen, match="d is not tried now") as refused:
        await one.call(asyncio.sleep, 1.0)
    assert (refused.value.retry_after, refused.value.downstream) == (3.0, "d")
    assert one.statistics().rejected == {"queue_full": 1, "unaffordable": 1, "breaker_open": 1}
    told = [event.data.code for event in events if event.kind == "call.rejected"]
    assert told == ["queue_full", "unaffordable", "breaker_open"]


async def test_an_unaffordable_call_says_what_is_usually_needed_and_one_explores_every_ten_seconds():
    one = guard("d", PLAIN)
    for _ in range(20):
        await one.call(asyncio.sleep, 1.0)
    explored, refusals = [], []
    for _ in range(60):
        try:
            async with deadline_scope(0.5):
                await one.call(asyncio.sleep, 0.0)
            explored.append(asyncio.get_running_loop().time())
        except Unaffordable as refused:
            refusals.append(str(refused))
        await asyncio.sleep(0.5)
    assert [later - earlier for earlier, later in pairwise(explored)] == [EXPLORE_EVERY] * 2
    assert EXPLORE_EVERY == 10.0
    assert set(refusals) == {"0.500 s left of the run limit, 1.016 s usually needed"}


async def test_the_figures_count_everything_once():
    one = guard("d", PLAIN)
    await one.call(asyncio.sleep, 0.5)
    with pytest.raises(ConnectionResetError):
        await one.call(fails)
    with pytest.raises(AttemptTimeout):
        await one.call(asyncio.sleep, 9.0, kind="action")
    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(0.5):
            await one.call(asyncio.sleep, 9.0)
    waiting = [asyncio.create_task(one.call(asyncio.sleep, 1.0)) for _ in range(3)]
    await asyncio.sleep(0.25)
    figures = one.statistics()
    assert (figures.calls, figures.attempts, figures.retries, figures.hedges) == (7, 7, 1, 0)
    assert (figures.ok, figures.failed, figures.timed_out, figures.neutral) == (1, 2, 1, 1)
    assert (figures.in_use, figures.limit, figures.waiting, figures.oldest_wait) == (2, 2, 1, 0.25)
    assert (figures.name, figures.breaker, figures.orphans, figures.threads) == ("d", "closed", 0, 0)
    assert (figures.typical, figures.attempt_limit) == (0.0, 2.0)
    assert repr(one) == "<Guard d closed in_use=2/2 waiting=1 calls=7>"
    await asyncio.gather(*waiting)


async def test_holders_are_listed_oldest_first_with_where_they_are():
    one = guard("d", PLAIN)

    async def sleeps(seconds):
        await asyncio.sleep(seconds)

    with scope(run="r", task="t", tenant="x"):
        first = asyncio.create_task(one.call(sleeps, 1.0))
    await asyncio.sleep(0.5)
    second = asyncio.create_task(one.call(sleeps, 1.0, tenant="y", timeout=1.5))
    await asyncio.sleep(0.25)
    old, young = one.holders()
    assert old[:7] == ("d", "r", "t", "x", 0.75, "attempt", False)
    assert young[:7] == ("d", None, None, "y", 0.25, "call", False)
    assert old.where is not None
    assert one.orphans() == []
    await asyncio.gather(first, second)
    assert one.holders() == []


async def test_threads_are_counted_while_they_live():
    one = Kernel().guard("counted", PLAIN)
    go, loop = VirtualEvent(), asyncio.get_running_loop()
    loop.call_later(1.0, go.set)
    await asyncio.gather(*(one.call_sync(go.wait) for _ in range(2)))
    assert one.statistics().threads == 2
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("failsoft-counted-")]
    assert sorted(thread.name for thread in ours) == ["failsoft-counted-1", "failsoft-counted-2"]
    assert all(thread.daemon for thread in ours)

    def rest():
        """A thread counts as idle a moment after its result is there."""
        while "idle=2" not in repr(one.threads):
            pass

    await asyncio.to_thread(rest)
    assert repr(one.threads) == "<ThreadLane counted threads=2 idle=2>"
    assert await one.call_sync(threading.current_thread) in ours
    await asyncio.to_thread(rest)
    await one.aclose()
    await asyncio.to_thread(lambda: [thread.join(5.0) for thread in ours])
    assert one.statistics().threads == 0
    assert repr(one.threads) == "<ThreadLane counted threads=0 idle=0>"
    assert await one.call_sync(int) == 0  # and it serves again
    await one.aclose()


async def test_a_ladder_says_what_each_rung_cost():
    outcome = await climb(
        [
            Rung("out of reach", fails, available=lambda: False, reason="breaker_open"),
            Rung("slow", lambda: fails(1.5)),
            Rung("quick", lambda: fails(0.5, KeyError)),
            Rung("last", lambda: asyncio.sleep(0.25, "value"), kind="default", equivalent=False),
        ]
    )
    tried = [(one.rung, one.code, one.seconds) for one in outcome.provenance.tried]
    assert tried == [
        ("out of reach", "breaker_open", 0.0),
        ("slow", "downstream_unavailable", 1.5),
        ("quick", "tool_failed", 0.5),
    ]
    assert (outcome.provenance.requested, outcome.provenance.reason) == ("out of reach", "breaker_open")
    nothing = await climb([Rung("slow", lambda: fails(1.5))])
    assert [one.seconds for one in nothing.provenance.tried] == [1.5]
    async with deadline_scope(4.0):
        some = await climb([Rung("a", lambda: asyncio.sleep(1.0, "value"))])
    assert some.provenance.remaining == 3.0


async def test_a_stream_whose_source_fails_to_close_tells_so_and_keeps_its_own_end():
    one, events = heard()

    async def source():
        try:
            yield 1
            yield 2
        finally:
            raise ValueError("cannot close")

    async with one.stream(source) as items:
        async for _ in items:
            break
    assert [(event.kind, event.data) for event in events][-1] == ("stream.close_failed", "ValueError('cannot close')")
    assert one.statistics().neutral == 1


async def test_a_hedge_is_told_and_its_loser_too():
    policy = replace(PLAIN, hedge=HedgePolicy(minimum=0.25, share=1.0), bulkhead=BulkheadPolicy(permits=4))
    one, events = heard(policy)
    for _ in range(20):
        await one.call(asyncio.sleep, 0.125)
    events.clear()
    legs = iter([2.0, 0.25])
    began = asyncio.get_running_loop().time()
    await one.call(lambda: asyncio.sleep(next(legs)))
    kinds = [
        (event.kind, event.at - began, event.data[1] if event.kind == "attempt.finished" else None) for event in events
    ]
    assert kinds[0] == ("call.hedged", 0.25, None)
    assert sorted(kinds[1:], key=str)[:2] == sorted(
        [("attempt.finished", 0.5, "neutral"), ("attempt.finished", 0.5, "ok")], key=str
    )
    lost = next(event.data for event in events if event.kind == "attempt.finished" and event.data.counts == "neutral")
    assert lost == (0.5, "neutral", "hedge_lost", 1, float("inf"))
    assert one.statistics().hedges == 1


@pytest.mark.parametrize("late", [False, True])
async def test_a_flight_that_fails_at_the_instant_of_a_participants_deadline_leaves_its_books_straight(late):
    flights, task = Flights(), asyncio.current_task()
    if late:
        asyncio.get_running_loop().call_at(1.0, lambda: None)
    with pytest.raises((ConnectionResetError, DeadlineExceeded)):
        async with deadline_scope(1.0, detach=True):
            await flights.join("k", lambda: fails(1.0))
    assert task.cancelling() == 0
    child = asyncio.create_task(flights.join("k", lambda: fails(1.0), timeout=1.0))
    await asyncio.wait([child])
    assert isinstance(child.exception(), ConnectionResetError | CallTimeout)
    assert child.cancelling() == 0
    assert len(flights) == 0
    assert repr(flights) == "<Flights under_way=0 started=2 joined=0>"
    assert len(heap_of(asyncio.get_running_loop())) == 0


async def test_a_cached_value_says_how_much_time_was_left():
    one = guard("d", replace(PLAIN, cache=CachePolicy(ttl=60.0, jitter=0.0)))
    async with deadline_scope(5.0):
        first = await one.fetch("k", lambda: asyncio.sleep(1.0, "value"))
        again = await one.fetch("k", lambda: asyncio.sleep(1.0, "value"))
        assert (first.provenance.rung, first.provenance.remaining) == ("primary", 4.0)
        assert (again.provenance.rung, again.provenance.remaining) == ("cache", 4.0)
        assert Deadline.current().remaining() == 4.0
    with pytest.raises(ValueError, match="only queries"):
        await one.fetch("k", lambda: asyncio.sleep(1.0, "value"), kind="action")
