"""The guard: every policy of one downstream, in the one order.

    ladder( cache · coalesce( call limit( retry( hedge( admit( attempt limit( attempt )))))))      all under the
    deadline

:meth:`Guard.call` is that order from the call limit inwards, readable in one screen. It awaits the callee in place:
limits come from the loop's :class:`~failsoft.kernel.deadline.DeadlineHeap`, decisions are synchronous functions of
``now``, and an attempt costs no task, no timer and no lock of its own.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import CancelledError, get_running_loop
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple, cast

from failsoft.base.clock import Sources
from failsoft.base.errors import (
    AttemptTimeout,
    BreakerOpen,
    CallTimeout,
    DeadlineExceeded,
    FailsoftError,
    InternalError,
    QueueTimeout,
    TaskTimeout,
    TimeoutExceeded,
    ToolFailed,
    Unaffordable,
)
from failsoft.base.events import Event, EventBus
from failsoft.base.outcomes import Kind
from failsoft.kernel.breaker import Admission, Breaker, BreakerPolicy, BreakerState, ProbeCap, Transition
from failsoft.kernel.budget import RetryBudget
from failsoft.kernel.bulkhead import Bulkhead, Waiter
from failsoft.kernel.classify import Classifier, Counts, Verdict, classify
from failsoft.kernel.deadline import Alarm, DeadlineHeap, heap_of
from failsoft.kernel.policy import Policy, Preset, preset
from failsoft.kernel.scope import Scope, current
from failsoft.kernel.threads import Job, ThreadLane
from failsoft.kernel.ticket import Holder, Ticket
from failsoft.kernel.timeout import AdaptiveTimeout

__all__ = ["CallEnded", "Guard", "GuardStatistics", "Interceptor", "Kernel", "guard"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Interceptor = Callable[..., Awaitable[Any]]
"""``await interceptor(fn, *args)`` runs in place of ``await fn(*args)``, inside the attempt: where faults are
injected.
"""

EXPLORE_EVERY: Final = 10.0
"""Seconds between calls let through although the estimate says that they cannot fit: no estimate locks anything out."""

_LIMITS: Final[dict[str, type[TimeoutExceeded]]] = {
    "attempt": AttemptTimeout,
    "call": CallTimeout,
    "task": TaskTimeout,
    "run": DeadlineExceeded,
}

_NEVER_TRIPS: Final = BreakerPolicy(
    failure_ratio=None, consecutive_timeouts=None, consecutive_failures=None, failures=None
)


class CallEnded(NamedTuple):
    """Data of the event ``attempt.finished``: ``seconds`` from admission to end; ``code`` is None for a success."""

    seconds: float
    counts: str
    code: str | None
    attempt: int
    remaining: float


@dataclass(frozen=True, slots=True)
class GuardStatistics:
    """Figures of one downstream since the start. ``rejected`` counts refusals by error code."""

    name: str
    breaker: str
    in_use: int
    limit: int
    waiting: int
    oldest_wait: float
    orphans: int
    threads: int
    calls: int
    attempts: int
    retries: int
    ok: int
    failed: int
    timed_out: int
    neutral: int
    rejected: Mapping[str, int]
    typical: float
    attempt_limit: float | None


class _Queued(Waiter):
    """A call waiting for a permit: wakes its coroutine when the bulkhead grants or refuses."""

    __slots__ = ("admission", "future")

    def __init__(
        self, future: asyncio.Future[None], priority: int, tenant: str | None, fallback: bool, deadline: float
    ) -> None:
        super().__init__(priority=priority, tenant=tenant, fallback=fallback, deadline=deadline)
        self.future = future
        self.admission: Admission | None = None

    def granted(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def rejected(self, error: FailsoftError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Guard:
    """Guards one downstream. Make it through :class:`Kernel` or :func:`guard`; use it from one event loop at a time."""

    def __init__(self, name: str, policy: Policy, kernel: Kernel) -> None:
        self.name = name
        self.policy = policy
        self.interceptor: Interceptor | None = None
        self._kernel = kernel
        self._bus = kernel.bus
        self._rng = kernel.sources.rng
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heap: DeadlineHeap
        self.breaker = Breaker(
            policy.breaker or _NEVER_TRIPS,
            rng=self._rng,
            name=name,
            on_transition=self._on_transition,
            probe_cap=kernel.probes,
        )
        self.bulkhead = Bulkhead(policy.bulkhead, name=name, gate=self._gate)
        self.budget = RetryBudget(ratio=policy.retry_ratio)
        self.latency = AdaptiveTimeout(policy.adaptive_timeout)
        self._tickets: dict[Ticket, None] = {}
        self._threads = ThreadLane(name)
        self._children: set[asyncio.Task[Any]] = set()
        self._explored = -math.inf
        self._hung_due = math.inf
        self._rejected: Counter[str] = Counter()
        self._calls = self._attempts = self._retries = 0
        self._ok = self._failures = self._timeouts = self._neutral = 0
        self._apply(policy)

    def _apply(self, policy: Policy) -> None:
        self.policy = policy
        self._call_timeout = math.inf if policy.call_timeout is None else policy.call_timeout
        age = None if policy.breaker is None else policy.breaker.hung_after
        self._hung_after = math.inf if age is None else age

    def reconfigure(self, policy: Policy) -> None:
        """Changes the policy in place: state, statistics and waiting calls are kept; fewer permits come by draining."""
        now = self._loop.time() if self._loop is not None else 0.0
        self.breaker.reconfigure(policy.breaker or _NEVER_TRIPS, now)
        self.bulkhead.reconfigure(policy.bulkhead, now)
        self.budget.ratio = policy.retry_ratio
        self.latency.policy = policy.adaptive_timeout
        self.latency.refresh(now)
        self._apply(policy)

    # --- the order ---------------------------------------------------------------------------------------------

    async def call(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        kind: Kind | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        classify: Classifier | None = None,
        size: float = 1.0,
        _runner: _Runner | None = None,
    ) -> T:
        """Awaits ``fn(*args)`` under this downstream's limits, breaker, bulkhead and retries, and the current deadline.

        `kind` decides about retries, `priority` and `tenant` about the queue; they default to the policy's and the
        current scope's. `timeout` replaces the policy's call limit (seconds). `idempotency_key` is visible to the
        callee in its scope and the same in every attempt. `classify` reads results and errors (see
        :mod:`failsoft.kernel.classify`). `size` is the request's size relative to others, for learned limits.

        Raises what the callee raised; :class:`~failsoft.base.errors.Rejection` when the call was refused unstarted;
        :class:`~failsoft.base.errors.TimeoutExceeded` naming the limit that fired. ``CancelledError`` passes through.
        """
        loop = get_running_loop()
        if loop is not self._loop:
            self._bind(loop)
        began = now = loop.time()
        inherited = current.get()
        until, limit = now + (self._call_timeout if timeout is None else timeout), "call"
        if inherited.deadline < until:
            until, limit = inherited.deadline, inherited.limit
        if priority is None:
            priority = inherited.priority
        if tenant is None:
            tenant = inherited.tenant
        task = asyncio.current_task(loop)
        assert task is not None
        self._calls += 1
        self.budget.deposit()
        number, waited = 1, 0.0
        while True:
            if until - now <= self.latency.typical:
                self._afford(until, limit, now)
            # admit: breaker and bulkhead, all or nothing
            if now >= self._hung_due:
                self._count_hung(now)
            if self.breaker.clear and self.bulkhead.try_acquire(now, priority, tenant, inherited.fallback):
                admission = self.breaker.standing
            else:
                admission = await self._admit(task, inherited, priority, tenant, until, limit, now)
                now = loop.time()
            # attempt limit
            own = self.latency.limit(size=size) if self.latency.policy else self.policy.attempt_timeout
            when = until if own is None else now + own
            if when < until:
                which, cut_short = "attempt", False
            else:
                when, which = until, limit
                cut_short = own is not None or limit != "call" or now - began > (until - began) / 2
            ticket = Ticket(when, task, admission, now, which, cut_short, inherited, tenant, inherited.fallback, number)
            self._tickets[ticket] = None
            self._heap.arm(ticket)
            self._attempts += 1
            self._hung_due = min(self._hung_due, now + self._hung_after)
            # attempt
            try:
                if self._plain and _runner is None and idempotency_key is None:
                    value = await fn(*args)
                else:
                    value = await self._run(ticket, fn, args, _runner, idempotency_key)
            except BaseException as error:  # noqa: BLE001 - every end is settled; what is not ours to keep is raised again
                failure = self._ended(ticket, None, error, classify, size)
            else:
                now = loop.time()
                if classify is None and now <= ticket.when and not ticket.fired:
                    self._served(ticket, now, size)
                    return value
                failure = self._ended(ticket, value, None, classify, size)
                if failure is None:
                    return value
            assert failure is not None
            # retry
            now = loop.time()
            pause = self._pause(failure.verdict, kind or self.policy.kind, number, until - now, waited, now)
            if pause is None:
                try:
                    raise failure.error
                finally:
                    del failure  # its traceback holds this frame
            self._emit("call.retrying", now, inherited, (number, pause, failure.verdict.error))
            del failure
            await asyncio.sleep(pause)
            number, waited, now = number + 1, pause, loop.time()

    # --- admit -------------------------------------------------------------------------------------------------

    def _afford(self, until: float, limit: str, now: float) -> None:
        """Refuses a call for which too little is left; lets an exploratory one through now and then."""
        left = until - now
        if left > 0 and now - self._explored >= EXPLORE_EVERY:
            self._explored = now
            return
        typical = self.latency.typical
        text = f"{max(left, 0.0):.3f} s left of the {limit} limit" + (
            f", {typical:.3f} s usually needed" if typical else ""
        )
        raise self._refused(Unaffordable(text, downstream=self.name), now)

    async def _admit(
        self,
        task: asyncio.Task[Any],
        scope: Scope,
        priority: int,
        tenant: str | None,
        until: float,
        limit: str,
        now: float,
    ) -> Admission:
        """The way in when the breaker is not clear or no permit is free: refuse at once, or wait in the queue."""
        retry_in = self.breaker.retry_in(now)
        if retry_in is not None:
            raise self._refused(self._open_error(retry_in), now)
        if self.bulkhead.try_acquire(now, priority, tenant, scope.fallback):
            admission = self.breaker.admit(now, lease=self._lease())
            if admission is not None:
                return admission
            self.bulkhead.release(now, counts=Counts.NEUTRAL, tenant=tenant, fallback=scope.fallback)
            raise self._refused(self._open_error(self.breaker.retry_after(now)), now)
        assert self._loop is not None
        max_wait = self.policy.bulkhead.max_wait
        by = until if max_wait is None else min(until, now + max_wait)
        waiter = _Queued(self._loop.create_future(), priority, tenant, scope.fallback, until)
        cancelling = task.cancelling()
        try:
            self.bulkhead.enqueue(waiter, now)
        except FailsoftError as error:
            raise self._refused(error, now) from None
        alarm = Alarm(by, task)
        self._heap.arm(alarm)
        try:
            await waiter.future
        except BaseException as error:
            self._heap.disarm(alarm)
            now = self._loop.time()
            self._leave(waiter, now)
            if isinstance(error, FailsoftError):
                raise self._refused(error, now) from None
            if alarm.fired and task.uncancel() <= cancelling and isinstance(error, CancelledError):
                raise self._refused(self._waited_out(by, until, limit), now) from None
            raise
        self._heap.disarm(alarm)
        if (
            alarm.fired
        ):  # granted and timed out in one pass of the loop: the time-out's cancellation is still on its way
            now = self._loop.time()
            self._leave(waiter, now)
            raise self._refused(self._waited_out(by, until, limit), now)
        assert waiter.admission is not None
        return waiter.admission

    def _leave(self, waiter: _Queued, now: float) -> None:
        """Gives back whatever a waiter has got by now: nothing, a permit, a probe lease; or the error it will not
        hear.
        """
        self.bulkhead.leave(waiter, now)
        if waiter.admission is not None:
            self.breaker.settle(waiter.admission, Counts.NEUTRAL, 0.0, now)
        if waiter.future.done() and not waiter.future.cancelled():
            waiter.future.exception()

    def _gate(self, waiter: Waiter, now: float) -> FailsoftError | None:
        """Asked by the bulkhead at dequeue: the probe lease and the ramp are taken here."""
        admission = self.breaker.admit(now, lease=self._lease())
        if admission is None:
            return self._open_error(self.breaker.retry_after(now))
        cast("_Queued", waiter).admission = admission
        return None

    def _lease(self) -> float:
        """How long a probe may take before it is taken for lost: as long as an attempt may."""
        own = self.latency.limit() if self.latency.policy else self.policy.attempt_timeout
        return own or self.policy.call_timeout or 0.0

    def _waited_out(self, by: float, until: float, limit: str) -> FailsoftError:
        if by < until:
            return QueueTimeout(
                "no permit was free in time", downstream=self.name, retry_after=self.bulkhead.service_time
            )
        return _LIMITS[limit](f"the {limit} limit passed while waiting for a permit", downstream=self.name)

    def _open_error(self, retry_in: float | None) -> BreakerOpen:
        return BreakerOpen(f"{self.name} is not tried now", downstream=self.name, retry_after=retry_in)

    def _refused(self, error: FailsoftError, now: float) -> FailsoftError:
        self._rejected[error.code] += 1
        self._emit("call.rejected", now, current.get(), error)
        return error

    # --- attempt -----------------------------------------------------------------------------------------------

    @property
    def _plain(self) -> bool:
        return self.interceptor is None and not self.policy.detachable

    async def _run(
        self,
        ticket: Ticket,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        runner: _Runner | None,
        idempotency_key: str | None,
    ) -> Any:
        """An attempt that is more than ``await fn(*args)``: keyed, intercepted, detached or in a thread."""
        token = None
        if idempotency_key is not None:
            token = current.set(replace(ticket.scope, idempotency_key=idempotency_key))
        try:
            if runner is None and self.policy.detachable:
                runner = Guard._detached
            go: Callable[..., Awaitable[Any]]
            if runner is None:
                go = fn
            else:
                bound = runner

                async def go(*inner: Any) -> Any:
                    return await bound(self, ticket, fn, inner)

            if self.interceptor is not None:
                return await self.interceptor(go, *args)
            return await go(*args)
        finally:
            if token is not None:
                current.reset(token)

    async def _detached(self, ticket: Ticket, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Runs the callee in a task of its own, which the caller can leave behind at its limit."""
        assert self._loop is not None
        answer: asyncio.Future[Any] = self._loop.create_future()
        child = self._loop.create_task(fn(*args))
        self._children.add(child)
        ticket.callee = child

        def ended(task: asyncio.Task[Any]) -> None:
            self._children.discard(task)
            if task.cancelled():
                self._callee_ended(ticket, answer, None, CancelledError())
            else:
                error = task.exception()
                self._callee_ended(ticket, answer, None if error else task.result(), error)

        child.add_done_callback(ended)
        try:
            return await answer
        except CancelledError:
            child.cancel()
            raise

    async def _threaded(self, ticket: Ticket, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Runs a plain function in a daemon thread of this downstream."""
        assert self._loop is not None
        answer: asyncio.Future[Any] = self._loop.create_future()
        ticket.callee = self._threads.start(self._loop, fn, args, partial(self._callee_ended, ticket, answer))
        return await answer

    def _callee_ended(
        self, ticket: Ticket, answer: asyncio.Future[Any], value: Any, error: BaseException | None
    ) -> None:
        """The callee has really ended: wake its caller, or let the orphan's permit go."""
        if ticket.settled:
            self._release(ticket, Counts.NEUTRAL, None)
            self._emit("callee.ended", self._now(), ticket.scope, ticket)
        elif not answer.done():
            if error is None:
                answer.set_result(value)
            elif isinstance(error, CancelledError | StopIteration | KeyboardInterrupt | SystemExit | GeneratorExit):
                answer.set_exception(_own_cancel(error))
            else:
                answer.set_exception(error)

    # --- the end of an attempt -----------------------------------------------------------------------------------

    def _served(self, ticket: Ticket, now: float, size: float) -> None:
        """The usual end: a result, in time."""
        self._heap.disarm(ticket)
        ticket.settled = ticket.released = True
        seconds = now - ticket.since
        if ticket.admission is self.breaker.standing and not ticket.hung:
            self.breaker.record_ok(seconds, now)
        else:
            self.breaker.settle(ticket.admission, Counts.OK, seconds, now, hung_counted=ticket.hung)
        self.latency.record(seconds, now, size=size)
        self._ok += 1
        del self._tickets[ticket]
        self.bulkhead.release(now, latency=seconds, counts=Counts.OK, tenant=ticket.tenant, fallback=ticket.fallback)
        if self._bus.listeners:
            scope = ticket.scope
            self._bus.emit(
                Event(
                    "attempt.finished",
                    now,
                    self.name,
                    scope.run,
                    scope.task,
                    ticket.tenant,
                    0,
                    0,
                    CallEnded(seconds, Counts.OK, None, ticket.attempt, scope.deadline - now),
                )
            )

    def _ended(
        self, ticket: Ticket, value: Any, error: BaseException | None, reader: Classifier | None, size: float
    ) -> _Failure | None:
        """Any other end. Settles the ticket; returns None for a good value, the failure otherwise; re-raises
        cancellations.
        """
        now = self._now()
        self._heap.disarm(ticket)
        task = ticket.owner
        outside = False
        if ticket.fired:
            outside = task.uncancel() > ticket.cancelling and isinstance(error, CancelledError)
        elif isinstance(error, CancelledError):
            if task.cancelling() > 0:
                outside = True
            else:
                error = _own_cancel(error)
        if outside or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            self._settle(ticket, Counts.NEUTRAL, now, size, cut=not ticket.stalled, code="cancelled")
            assert error is not None
            raise error
        if ticket.fired or (error is None and now > ticket.when):
            late = self._limit_passed(ticket, now, size)
            if late is not None:
                if error is not None:
                    late.error.__cause__ = error
                return late
        verdict = (reader(value, error) if reader is not None else None) or classify(value, error)
        slept = now > ticket.when  # the loop was blocked: what came is accepted, what it says about latency is not
        self._settle(
            ticket,
            Counts.NEUTRAL if slept else verdict.counts,
            now,
            size,
            code=None if verdict.error is None else verdict.error.code,
        )
        if error is None and verdict.good:
            return None
        raised = error if error is not None else verdict.error
        if raised is None:
            raised = InternalError("a classifier called a result bad without an error")
        return _Failure(raised, verdict)

    def _limit_passed(self, ticket: Ticket, now: float, size: float) -> _Failure | None:
        """The attempt's limit fired, or its result came after it. None: only the loop was late, and the value may be
        used.
        """
        if not ticket.fired and ticket.scope.deadline > now:
            return None
        seconds = now - ticket.since
        which = ticket.limit
        if not ticket.fired:
            which = ticket.scope.limit
        error = _LIMITS[which](f"{self.name}: the {which} limit passed after {seconds:.3f} s", downstream=self.name)
        blamed = ticket.fired and not ticket.stalled and (not ticket.cut_short or seconds >= self._hung_after)
        counts = Counts.TIMEOUT if blamed else Counts.NEUTRAL
        self._settle(ticket, counts, now, size, cut=ticket.fired and not ticket.stalled, code=error.code)
        return _Failure(error, Verdict(counts, retry=which == "attempt", error=error))

    def _settle(
        self, ticket: Ticket, counts: str, now: float, size: float, *, cut: bool = False, code: str | None = None
    ) -> None:
        ticket.settled = True
        seconds = now - ticket.since
        self.breaker.settle(ticket.admission, counts, seconds, now, hung_counted=ticket.hung)
        if counts == Counts.OK:
            self._ok += 1
            self.latency.record(seconds, now, size=size)
        elif counts == Counts.FAILED:
            self._failures += 1
        elif counts == Counts.TIMEOUT:
            self._timeouts += 1
        else:
            self._neutral += 1
        if cut and seconds > 0:
            self.latency.record_censored(seconds, now, size=size)
        scope = ticket.scope
        self._emit(
            "attempt.finished", now, scope, CallEnded(seconds, counts, code, ticket.attempt, scope.deadline - now)
        )
        callee = ticket.callee
        if callee is not None and not callee.done():
            self._emit("callee.orphaned", now, scope, ticket)
            return  # an orphan keeps its permit until it ends
        self._release(ticket, counts, seconds)

    def _release(self, ticket: Ticket, counts: str, seconds: float | None) -> None:
        ticket.released = True
        del self._tickets[ticket]
        self.bulkhead.release(
            self._now(), latency=seconds, counts=counts, tenant=ticket.tenant, fallback=ticket.fallback
        )

    # --- retry ---------------------------------------------------------------------------------------------------

    def _pause(self, verdict: Verdict, kind: Kind, number: int, left: float, waited: float, now: float) -> float | None:
        """Seconds until the next attempt, or None when there is to be none."""
        retry = self.policy.retry
        if not verdict.retry or number > retry.retries(kind):
            return None
        pause = retry.backoff(number, self._rng, previous=waited)
        if verdict.retry_after is not None:
            pause = max(pause, verdict.retry_after)
        attempt = self.latency.limit() if self.latency.policy else self.policy.attempt_timeout
        needed = retry.room * (attempt if attempt is not None else self.latency.typical)
        if not left - pause > needed:
            return None
        if not self.budget.withdraw(now):
            return None
        self._retries += 1
        return pause

    # --- hung calls, transitions, events -----------------------------------------------------------------------------

    def _count_hung(self, now: float) -> None:
        """Calls older than the slow threshold count while they are still in flight; oldest first."""
        self._hung_due = math.inf
        for ticket in self._tickets:
            age = now - ticket.since
            if age < self._hung_after:
                self._hung_due = ticket.since + self._hung_after
                break
            if not ticket.hung:
                ticket.hung = True
                self.breaker.hung(ticket.admission, now)

    def _on_transition(self, change: Transition) -> None:
        if change.new == BreakerState.OPEN:
            self.bulkhead.reject_all(lambda: self._open_error(change.open_for), change.at)
        self._emit(f"breaker.{change.new}", change.at, current.get(), change)

    def _emit(self, kind: str, now: float, scope: Scope, data: Any) -> None:
        if self._bus.listeners:
            self._bus.emit(Event(kind, now, self.name, scope.run, scope.task, scope.tenant, 0, 0, data))

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Takes to the running loop. State that belongs to another loop that is gone is dropped; one still in use is
        an error.
        """
        if self._loop is not None and not self._loop.is_closed() and (self._tickets or self.bulkhead.waiting):
            raise InternalError(f"the guard of {self.name} is in use by another event loop")
        if self._loop is not None and (self._tickets or self.bulkhead.waiting):
            self.bulkhead = Bulkhead(self.policy.bulkhead, name=self.name, gate=self._gate)
            self._tickets.clear()
        self._loop = loop
        self._heap = heap_of(loop)

    # --- plain functions, views, end ---------------------------------------------------------------------------------

    async def call_sync(
        self,
        fn: Callable[[*Ts], T],
        *args: *Ts,
        kind: Kind | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        classify: Classifier | None = None,
        size: float = 1.0,
    ) -> T:
        """Like :meth:`call` for a plain function, in a daemon thread with the caller's context variables.

        At its limit the caller gets the error at once; the thread is an orphan that holds its permit until it ends.
        """
        return await self.call(
            cast("Callable[[*Ts], Awaitable[T]]", fn),
            *args,
            kind=kind,
            priority=priority,
            tenant=tenant,
            idempotency_key=idempotency_key,
            timeout=timeout,
            classify=classify,
            size=size,
            _runner=Guard._threaded,
        )

    def holders(self) -> list[Holder]:
        """Who holds a permit now, oldest first, orphans included."""
        now = self._loop.time() if self._loop is not None else 0.0
        return [self._holder(ticket, now) for ticket in self._tickets]

    def orphans(self) -> list[Holder]:
        """Callees that outlived their limit and still run."""
        return [holder for holder in self.holders() if holder.orphan]

    def _holder(self, ticket: Ticket, now: float) -> Holder:
        where = None
        if isinstance(ticket.callee, Job):
            stack = ticket.callee.stack()
            where = stack[-1] if stack else ticket.callee.name
        else:
            task = ticket.callee if isinstance(ticket.callee, asyncio.Task) else ticket.owner
            frames = task.get_stack(limit=1)
            if frames:
                where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno} {frames[-1].f_code.co_name}"
        scope = ticket.scope
        return Holder(
            self.name, scope.run, scope.task, ticket.tenant, now - ticket.since, ticket.limit, ticket.orphan, where
        )

    def statistics(self) -> GuardStatistics:
        """Figures as of now."""
        now = self._loop.time() if self._loop is not None else 0.0
        return GuardStatistics(
            name=self.name,
            breaker=str(self.breaker.state),
            in_use=self.bulkhead.in_use,
            limit=self.bulkhead.limit,
            waiting=self.bulkhead.waiting,
            oldest_wait=self.bulkhead.oldest_wait(now),
            orphans=sum(ticket.orphan for ticket in self._tickets),
            threads=self._threads.threads,
            calls=self._calls,
            attempts=self._attempts,
            retries=self._retries,
            ok=self._ok,
            failed=self._failures,
            timed_out=self._timeouts,
            neutral=self._neutral,
            rejected=dict(self._rejected),
            typical=self.latency.typical,
            attempt_limit=self.latency.limit() if self.latency.policy else self.policy.attempt_timeout,
        )

    async def aclose(self) -> None:
        """Ends idle threads and cancels detached callees; a running thread is left to end by itself."""
        self._threads.close()
        children = list(self._children)
        for child in children:
            child.cancel()
        if children:
            await asyncio.wait(children, timeout=1.0)

    def __repr__(self) -> str:
        bulkhead = self.bulkhead
        return (
            f"<Guard {self.name} {self.breaker.state} in_use={bulkhead.in_use}/{bulkhead.limit} "
            f"waiting={bulkhead.waiting} calls={self._calls}>"
        )


_Runner = Callable[[Guard, Ticket, Callable[..., Any], tuple[Any, ...]], Awaitable[Any]]


class _Failure(NamedTuple):
    error: BaseException
    verdict: Verdict


def _own_cancel(error: BaseException) -> ToolFailed:
    """A callee that raises these by itself has failed; nobody asked its caller to stop."""
    failed = ToolFailed(
        f"{type(error).__name__} was raised by the callee", details={"exception": type(error).__qualname__}
    )
    failed.__cause__ = error
    return failed


class Kernel:
    """The guards of one process: they share the event bus, the sources of chance and the cap on concurrent probes."""

    def __init__(
        self, *, bus: EventBus | None = None, sources: Sources | None = None, probes: ProbeCap | None = None
    ) -> None:
        self.bus = bus if bus is not None else EventBus()
        self.sources = sources if sources is not None else Sources()
        self.probes = probes if probes is not None else ProbeCap()
        self._guards: dict[str, Guard] = {}

    @property
    def guards(self) -> Mapping[str, Guard]:
        """The guards by downstream name."""
        return self._guards

    def guard(self, name: str, policy: Policy | Preset | None = None) -> Guard:
        """The guard of a downstream, made on first use; a policy given later is applied by ``reconfigure``."""
        chosen = preset(policy) if isinstance(policy, str) else policy
        found = self._guards.get(name)
        if found is None:
            found = self._guards[name] = Guard(name, chosen or Policy(), self)
        elif chosen is not None and chosen != found.policy:
            found.reconfigure(chosen)
        return found

    async def aclose(self) -> None:
        """Closes every guard."""
        for one in self._guards.values():
            await one.aclose()

    def __repr__(self) -> str:
        return f"<Kernel {', '.join(map(repr, self._guards.values())) or 'no guards'}>"


def guard(name: str, policy: Policy | Preset | None = None, *, kernel: Kernel | None = None) -> Guard:
    """A guard of its own for a downstream: ``warehouse = guard("warehouse", "data"); await warehouse.call(fetch,
    url)``.

    Guards that are to share events and the probe cap are made by one :class:`Kernel`.
    """
    return (kernel or Kernel()).guard(name, policy)
