"""Admission: breaker and bulkhead, all or nothing, at once or after a wait in the queue.

The fast way in (breaker clear, permit free) stands in :meth:`Guard.call <failsoft.kernel.guard.Guard.call>`; here is
every other. Nothing is held when anything here raises: a permit granted to a caller that has gone goes to the next, a
probe lease taken for it is given back, undecided.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, get_running_loop
from typing import TYPE_CHECKING, Any, Final

from failsoft.base.errors import (
    AttemptTimeout,
    BreakerOpen,
    CallTimeout,
    DeadlineExceeded,
    FailsoftError,
    QueueTimeout,
    TaskTimeout,
    TimeoutExceeded,
    Unaffordable,
)
from failsoft.kernel.breaker import Admission
from failsoft.kernel.bulkhead import Waiter
from failsoft.kernel.classify import Counts
from failsoft.kernel.deadline import Alarm
from failsoft.kernel.queue import NEW
from failsoft.kernel.scope import Scope

if TYPE_CHECKING:
    from failsoft.kernel.guard import Guard

__all__ = ["LIMIT_ERRORS", "Queued", "admit", "gate", "open_error", "unaffordable"]

LIMIT_ERRORS: Final[dict[str, type[TimeoutExceeded]]] = {
    "attempt": AttemptTimeout,
    "call": CallTimeout,
    "task": TaskTimeout,
    "run": DeadlineExceeded,
}


class Queued(Waiter):
    """A call waiting for a permit: wakes its coroutine when the bulkhead grants or refuses."""

    leaves = True
    __slots__ = ("admission", "future", "scope")

    def __init__(
        self, future: asyncio.Future[None], priority: int, tenant: str | None, scope: Scope, deadline: float
    ) -> None:
        self.priority = priority
        self.tenant = tenant
        self.fallback = scope.fallback
        self.deadline = deadline
        self.enqueued_at = 0.0
        self.explorer = False
        self.state = NEW  # as in the base class, at half the cost
        self.future = future
        self.scope = scope
        self.admission: Admission | None = None

    def granted(self) -> None:
        """The permit is ours."""
        if not self.future.done():
            self.future.set_result(None)

    def rejected(self, error: FailsoftError) -> None:
        """There will be none."""
        if not self.future.done():
            self.future.set_exception(error)


async def admit(
    guard: Guard,
    task: asyncio.Task[Any],
    scope: Scope,
    priority: int,
    tenant: str | None,
    until: float,
    limit: str,
    now: float,
) -> Admission:
    """The way in when the breaker is not clear or no permit was free just now: refuses at once, or waits in the queue.

    Waits until `until` (loop time) at most, which is the end of `limit`; raises a rejection or that limit's error.
    """
    breaker, bulkhead = guard.breaker, guard.bulkhead
    if not breaker.clear:
        retry_in = breaker.retry_in(now)
        if retry_in is not None:
            raise guard.refused(open_error(guard, retry_in))
        if bulkhead.try_acquire(now, priority, tenant, scope.fallback):
            admission = breaker.admit(now, lease=guard.lease())
            if admission is not None:
                return admission
            bulkhead.release(now, counts=Counts.NEUTRAL, tenant=tenant, fallback=scope.fallback)
            raise guard.refused(open_error(guard, breaker.retry_after(now)))
    loop = get_running_loop()
    max_wait = guard.policy.bulkhead.max_wait
    by = until if max_wait is None else min(until, now + max_wait)
    waiter = Queued(loop.create_future(), priority, tenant, scope, until)
    cancelling = task.cancelling()
    try:
        bulkhead.enqueue(waiter, now)
    except FailsoftError as error:
        raise guard.refused(error) from None
    alarm = Alarm(by, task)
    guard.heap.arm(alarm)
    try:
        await waiter.future
    except BaseException as error:
        guard.heap.disarm(alarm)
        _leave(guard, waiter, loop.time())
        guard.waited(scope, loop.time(), now)
        if isinstance(error, FailsoftError):
            if alarm.fired:
                task.uncancel()
            raise guard.refused(error) from None
        if alarm.fired and task.uncancel() <= cancelling and isinstance(error, CancelledError):
            raise guard.refused(_waited_out(guard, by, until, limit)) from None
        raise
    guard.heap.disarm(alarm)
    began, now = now, loop.time()
    guard.waited(scope, now, began)
    if alarm.fired or now >= until:  # granted and out of time in one pass of the loop, or the loop was blocked since
        _leave(guard, waiter, now)
        if alarm.fired:
            task.uncancel()
        raise guard.refused(_waited_out(guard, by if now < until else until, until, limit))
    assert waiter.admission is not None
    return waiter.admission


def _leave(guard: Guard, waiter: Queued, now: float) -> None:
    """Gives back what a waiter has got by now: nothing, a permit, a probe lease; or an error it will not hear."""
    guard.bulkhead.leave(waiter, now)
    if waiter.admission is not None:
        guard.breaker.settle(waiter.admission, Counts.NEUTRAL, 0.0, now)
    if waiter.future.done() and not waiter.future.cancelled():
        waiter.future.exception()


def gate(guard: Guard, waiter: Waiter, now: float) -> FailsoftError | None:
    """Asked by the bulkhead at dequeue: the probe lease and the ramp are taken here."""
    breaker = guard.breaker
    admission = breaker.standing if breaker.clear else breaker.admit(now, lease=guard.lease())
    if admission is None:
        return open_error(guard, breaker.retry_after(now))
    waiter.admission = admission  # type: ignore[attr-defined]  # all that wait here are Queued
    return None


def open_error(guard: Guard, retry_in: float | None) -> BreakerOpen:
    """The breaker refuses; it may be worth coming back in `retry_in` seconds."""
    return BreakerOpen(f"{guard.name} is not tried now", downstream=guard.name, retry_after=retry_in)


def unaffordable(guard: Guard, left: float, limit: str) -> Unaffordable:
    """Too little is left of `limit` for what the call usually needs."""
    typical = guard.latency.typical
    usual = f", {typical:.3f} s usually needed" if typical else ""
    return Unaffordable(f"{max(left, 0.0):.3f} s left of the {limit} limit{usual}", downstream=guard.name)


def _waited_out(guard: Guard, by: float, until: float, limit: str) -> FailsoftError:
    if by < until:
        after = guard.bulkhead.service_time
        return QueueTimeout("no permit was free in time", downstream=guard.name, retry_after=after)
    return LIMIT_ERRORS[limit](f"the {limit} limit passed while waiting for a permit", downstream=guard.name)
