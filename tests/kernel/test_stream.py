"""Guarded streams: limits on the first content, on pauses and on the whole; one commit; a ticket to the end."""

import asyncio
import contextlib
import gc
import weakref
from dataclasses import replace

import pytest

from failsoft.base.errors import (
    BreakerOpen,
    CallTimeout,
    DeadlineExceeded,
    FirstItemTimeout,
    IdleTimeout,
    MalformedResult,
    StreamCut,
    ToolFailed,
    TotalTimeout,
)
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.classify import Counts, Verdict
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Guard, guard
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.testing.cancellation import cancel_at_every_await

POLICY = Policy(
    call_timeout=20.0,
    retry=RetryPolicy(queries=1, base=0.5, spread=0.0),
    bulkhead=BulkheadPolicy(permits=2, queue=2),
    breaker=BreakerPolicy(ramp=0.0),
)


class Source:
    """A stream with a pause before each item; says whether it was closed."""

    def __init__(self, *pauses, then=None):
        self.pauses, self.then = pauses, then
        self.opened = self.closed = 0

    async def __call__(self):
        self.opened += 1
        try:
            for number, pause in enumerate(self.pauses):
                await asyncio.sleep(pause)
                yield number
            if self.then is not None:
                raise self.then
        finally:
            self.closed += 1


def held(g: Guard):
    figures = g.statistics()
    return figures.in_use, figures.waiting, len(g.holders())


async def test_items_come_through_and_the_ticket_is_held_to_the_end():
    g = guard("d", POLICY)
    source = Source(1.0, 1.0, 1.0)
    seen = []
    async with g.stream(source, first_item=5.0, idle=2.0, total=10.0) as items:
        assert items.committed
        async for item in items:
            seen.append(item)
            assert held(g)[0] == 1
    assert seen == [0, 1, 2]
    assert items.items == 3
    assert held(g) == (0, 0, 0)
    assert g.statistics().ok == 1
    assert source.closed == 1


async def test_a_first_item_that_does_not_come_is_retried_before_anything_was_delivered():
    g = guard("d", POLICY)
    tries = []

    async def slow_once():
        tries.append(asyncio.get_running_loop().time())
        await asyncio.sleep(60 if len(tries) == 1 else 0.1)
        yield "hello"

    async with g.stream(slow_once, first_item=2.0) as items:
        assert [item async for item in items] == ["hello"]
    assert tries == [0.0, 2.5]
    assert g.statistics().timed_out == 1
    assert held(g) == (0, 0, 0)


async def test_its_own_classifier_reads_its_limits_too():
    g = guard("d", POLICY)
    source = Source(60.0)

    def elsewhere(value, error):
        return Verdict(Counts.TIMEOUT, retry=False, error=error) if isinstance(error, FirstItemTimeout) else None

    began = asyncio.get_running_loop().time()
    with pytest.raises(FirstItemTimeout):
        async with g.stream(source, first_item=2.0, classify=elsewhere):
            pass
    assert (source.opened, asyncio.get_running_loop().time() - began) == (1, 2.0)
    assert held(g) == (0, 0, 0)


async def test_a_stream_that_failed_is_freed_without_the_collector():
    g = guard("d", replace(POLICY, retry=RetryPolicy(queries=0)))

    async def failed():
        payload = Payload()
        alive.add(payload)

        async def source():
            yield payload
            raise StreamCut("cut")

        with contextlib.suppress(StreamCut):
            async with g.stream(source) as items:
                async for _ in items:
                    pass

    alive = weakref.WeakSet()
    gc.collect()
    gc.disable()
    try:
        await failed()
        assert len(alive) == 0
    finally:
        gc.enable()


class Payload:
    """Something that can be watched."""


async def test_a_role_only_chunk_is_no_first_content():
    g = guard("d", replace(POLICY, retry=RetryPolicy(queries=0)))

    async def role_then_silence():
        yield "role"
        await asyncio.sleep(85)
        yield "text"

    with pytest.raises(FirstItemTimeout):
        async with g.stream(role_then_silence, first_item=5.0, idle=2.0, content=lambda item: item != "role"):
            pass
    assert asyncio.get_running_loop().time() == 5.0


async def test_what_came_before_the_first_content_is_delivered_with_it():
    g = guard("d", POLICY)

    async def source():
        yield "role"
        await asyncio.sleep(1.0)
        yield "text"

    async with g.stream(source, first_item=5.0, content=lambda item: item != "role") as items:
        assert [item async for item in items] == ["role", "text"]


async def test_a_pause_is_the_idle_limits_and_is_never_retried():
    g = guard("d", POLICY)
    source = Source(0.5, 0.5, 60)
    seen = []
    with pytest.raises(IdleTimeout):
        async with g.stream(source, first_item=5.0, idle=3.0, total=50.0) as items:
            async for item in items:
                seen.append(item)  # noqa: PERF401 - what came before the error is kept
    assert seen == [0, 1]
    assert asyncio.get_running_loop().time() == 4.0
    assert source.opened == source.closed == 1
    assert held(g) == (0, 0, 0)


async def test_many_short_pauses_end_at_the_total_limit():
    g = guard("d", POLICY)
    with pytest.raises(TotalTimeout):
        async with g.stream(Source(*[0.5] * 100), first_item=5.0, idle=3.0, total=10.0) as items:
            async for _ in items:
                pass
    assert asyncio.get_running_loop().time() == 10.0


async def test_a_slow_consumer_is_not_the_streams_pause():
    g = guard("d", POLICY)
    async with g.stream(Source(0.1, 0.1, 0.1), idle=1.0) as items:
        async for _ in items:
            await asyncio.sleep(30.0)
    assert g.statistics().ok == 1


async def test_a_cut_after_the_first_content_is_an_error_and_not_retried():
    g = guard("d", POLICY)
    source = Source(0.1, then=StreamCut("no end"))
    with pytest.raises(StreamCut):
        async with g.stream(source) as items:
            async for _ in items:
                pass
    assert source.opened == 1
    assert g.statistics().failed == 1


async def test_a_consumer_that_leaves_closes_the_source_and_counts_as_neutral():
    g = guard("d", POLICY)
    source = Source(0.1, 0.1, 0.1)
    async with g.stream(source) as items:
        async for _ in items:
            break
    assert source.closed == 1
    assert g.statistics().neutral == 1
    assert held(g) == (0, 0, 0)


async def test_the_runs_deadline_ends_a_stream_and_blames_nobody():
    g = guard("d", POLICY)
    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(2.0), g.stream(Source(0.5, 60), idle=10.0) as items:
            async for _ in items:
                pass
    assert asyncio.get_running_loop().time() == 2.0
    assert g.statistics().neutral == 1
    assert held(g) == (0, 0, 0)


@pytest.mark.parametrize("lent", [(), ("first_item",), ("total",)])
async def test_a_limit_that_a_callers_budget_set_ends_a_stream_and_blames_nobody(lent):
    g = guard("d", replace(POLICY, retry=RetryPolicy(queries=0)))
    with pytest.raises(FirstItemTimeout):
        async with g.stream(Source(9.0), first_item=1.0, total=1.0, lent=lent):
            pass
    blamed = "first_item" not in lent
    assert (g.statistics().timed_out, g.statistics().neutral) == (blamed, not blamed)


async def test_a_child_task_meets_the_runs_deadline_too():
    g = guard("d", POLICY)

    async def child():
        async with g.stream(Source(0.5, 60), idle=10.0) as items:
            async for _ in items:
                pass

    async with asyncio.timeout(10.0):
        async with asyncio.TaskGroup() as group, deadline_scope(2.0):
            task = group.create_task(expect(DeadlineExceeded, child()))
    assert task.result() == 2.0


async def expect(error, coroutine):
    with pytest.raises(error):
        await coroutine
    return asyncio.get_running_loop().time()


async def test_a_source_that_hangs_while_closing_is_left_in_bounded_time():
    g = guard("d", POLICY)

    async def clingy():
        try:
            yield 1
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(600)

    async with g.stream(clingy) as items:
        async for _ in items:
            break
    assert asyncio.get_running_loop().time() == 1.0
    assert held(g) == (0, 0, 0)


async def test_the_call_limit_covers_the_wait_for_a_permit():
    g = guard("d", replace(POLICY, call_timeout=1.0, bulkhead=BulkheadPolicy(permits=1, queue=1)))
    async with g.stream(Source(0.1, 0.1)) as items:
        with pytest.raises(CallTimeout):
            async with g.stream(Source(0.1)):
                pass
        assert [item async for item in items] == [0, 1]
    assert held(g) == (0, 0, 0)


async def test_an_open_breaker_refuses_a_stream():
    g = guard("d", POLICY)
    g.bind()
    g.breaker.force_open(0.0, for_=60.0)
    with pytest.raises(BreakerOpen):
        async with g.stream(Source(0.1)):
            pass


async def test_an_empty_stream_ends_at_once_and_a_stream_of_nothing_but_empty_items_is_malformed():
    g = guard("d", replace(POLICY, retry=RetryPolicy(queries=0)))
    async with g.stream(Source()) as items:
        assert [item async for item in items] == []
    assert not items.committed
    with pytest.raises(MalformedResult):
        async with g.stream(Source(*[0.0] * 300), content=lambda item: False):
            pass
    assert held(g) == (0, 0, 0)


async def test_a_source_given_by_a_coroutine_is_awaited_and_its_own_cancel_is_a_failure():
    g = guard("d", replace(POLICY, retry=RetryPolicy(queries=0)))

    async def connect():
        await asyncio.sleep(0.5)
        return Source(0.1)()

    async with g.stream(connect) as items:
        assert [item async for item in items] == [0]

    async def selfish():
        yield 1
        raise asyncio.CancelledError

    with pytest.raises(ToolFailed):
        async with g.stream(selfish) as items:
            async for _ in items:
                pass
    assert asyncio.current_task().cancelling() == 0
    assert held(g) == (0, 0, 0)


@pytest.mark.parametrize("name", ["first_item", "idle", "total"])
def test_limits_must_be_positive(name):
    with pytest.raises(ValueError, match=name):
        guard("d").stream(Source(), **{name: 0})


def test_cancelled_at_every_await_nothing_is_held():
    made = []

    async def make():
        g = guard("d", POLICY)
        made.append(g)
        async with g.stream(Source(0.5, 0.5, 0.5), first_item=5.0, idle=2.0, total=10.0) as items:
            async for _ in items:
                await asyncio.sleep(0.1)

    async def check():
        await asyncio.sleep(30.0)
        assert held(made[-1]) == (0, 0, 0)

    assert cancel_at_every_await(make, check) == 6
