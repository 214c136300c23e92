"""Found by bench/interleavings.py: ways for an attempt to start at or after its limit, or to be complained about."""

import asyncio
import gc
from dataclasses import replace

import pytest

from failsoft.base.errors import CallTimeout, DeadlineExceeded, FailsoftError, TimeoutExceeded
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.deadline import Alarm, deadline_scope
from failsoft.kernel.flights import Flights
from failsoft.kernel.guard import Guard, guard
from failsoft.kernel.policy import HedgePolicy, Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.testing.clock import virtual_loop

PLAIN = Policy(retry=RetryPolicy(queries=0), bulkhead=BulkheadPolicy(permits=1, queue=4))
HEDGED = replace(PLAIN, hedge=HedgePolicy(minimum=0.25, share=1.0), retry_ratio=1.0, bulkhead=BulkheadPolicy(permits=4))


class Callee:
    """Notes when it starts; then sleeps, and ends as told."""

    def __init__(self, seconds=1.0, error=None, deaf=False):
        self.seconds, self.error, self.deaf = seconds, error, deaf
        self.started = []

    async def __call__(self):
        self.started.append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            if not self.deaf:
                raise
        if self.error is not None:
            raise self.error
        return "value"


async def warmed(policy) -> Guard:
    one = guard("d", policy)
    for _ in range(40):
        await one.call(asyncio.sleep, 0.125)
    return one


async def test_a_hedge_that_is_due_at_the_attempts_end_does_not_start():
    one = await warmed(HEDGED)
    callee, loop = Callee(), asyncio.get_running_loop()
    earlier = Alarm(loop.time() + 0.125, asyncio.current_task())
    one.heap.arm(earlier)  # so that the heap's timer is set anew on the way, after the hedge's
    one.heap.disarm(earlier)
    with pytest.raises(CallTimeout):
        await one.call(callee, timeout=0.25)
    assert len(callee.started) == 1
    assert one.statistics().hedges == 0


async def test_what_the_loser_of_a_race_raises_at_its_end_is_nobodys_concern():
    heard = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["message"]))
    one = await warmed(HEDGED)
    legs = iter([Callee(0.5, error=ConnectionResetError(), deaf=True), Callee(0.125)])

    async def race():
        return await next(legs)()

    assert await one.call(race) == "value"
    await asyncio.sleep(1.0)
    gc.collect()
    assert not heard
    assert one.statistics().in_use == 0


@pytest.mark.parametrize("policy", [replace(PLAIN, detachable=True), HEDGED], ids=["detachable", "hedged"])
async def test_a_callees_own_task_does_not_begin_when_the_loop_was_blocked_past_its_limit(policy):
    one = guard("d", policy)
    callee = Callee()
    call = asyncio.create_task(one.call(callee, timeout=0.5))
    asyncio.get_running_loop().call_soon(virtual_loop().stall, 1.0)  # after the call's step, before its callee's
    with pytest.raises(FailsoftError) as caught:
        await call
    assert caught.value.code in {"call_timeout", "attempt_timeout"}
    assert not callee.started
    assert one.statistics().timed_out == 0
    assert one.statistics().in_use == 0


async def test_a_permit_granted_in_time_is_given_on_when_the_loop_was_blocked_past_the_deadline():
    one = guard("d", PLAIN)
    loop = virtual_loop()
    late, next_one = Callee(), Callee(0.0)
    assert one.bulkhead.try_acquire(loop.time())

    async def waits(callee, seconds):
        async with deadline_scope(seconds):
            return await one.call(callee)

    first, second = (asyncio.create_task(waits(*how)) for how in ((late, 1.0), (next_one, 9.0)))
    await asyncio.sleep(0.5)
    one.bulkhead.release(loop.time())  # grants it to the first, whose task runs in the next pass
    loop.stall(1.0)
    with pytest.raises(DeadlineExceeded):
        await first
    assert await second == "value"
    assert not late.started
    assert asyncio.current_task().cancelling() == first.cancelling() == 0
    assert one.statistics().in_use == 0


async def test_a_caller_without_budget_starts_no_flight():
    flights, callee = Flights(), Callee()
    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(0.0):
            await flights.join("k", callee)
    assert flights.started == 0
    await asyncio.sleep(5.0)
    assert not callee.started


async def test_a_flight_does_not_begin_when_the_loop_was_blocked_past_all_its_participants_deadlines():
    flights, callee = Flights(), Callee()

    async def joins(seconds):
        async with deadline_scope(seconds):
            await flights.join("k", callee)

    both = [asyncio.create_task(joins(seconds)) for seconds in (1.0, 2.0)]
    asyncio.get_running_loop().call_soon(virtual_loop().stall, 3.0)  # after their steps, before the flight's
    ends = await asyncio.gather(*both, return_exceptions=True)
    assert all(isinstance(end, TimeoutExceeded) for end in ends)
    assert not callee.started
    assert len(flights) == 0
