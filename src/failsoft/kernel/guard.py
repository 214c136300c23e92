"""The guard: every policy of one downstream, in the one order.

    ladder( cache · coalesce( call limit( retry( hedge( admit( attempt limit( attempt )))))))   all under the deadline

:meth:`Guard.call` is that order from the call limit inwards, readable in one screen; :meth:`Guard.fetch` puts the cache
and coalescing around it, :func:`~failsoft.kernel.ladder.climb` the ladder. It awaits the callee in place: limits come
from the loop's :class:`~failsoft.kernel.deadline.DeadlineHeap`, decisions are synchronous functions of ``now``, and an
attempt costs no task, no timer and no lock of its own.

The module is over 600 lines because everything that is said to a guard (calls, streams, settings, views) is one
class; what a guard does apart from the usual way is in modules of its own: admission, ending, callee, hedge, stream,
fetch.
"""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import current_task, get_running_loop
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, cast

from failsoft.base.clock import Sources
from failsoft.base.errors import FailsoftError, InternalError
from failsoft.base.events import Event, EventBus
from failsoft.base.outcomes import Kind, Outcome, Priority
from failsoft.kernel.admission import Queued, admit, gate, open_error, unaffordable
from failsoft.kernel.breaker import Breaker, BreakerPolicy, BreakerState, ProbeCap, Transition
from failsoft.kernel.budget import RetryBudget
from failsoft.kernel.bulkhead import Bulkhead
from failsoft.kernel.cache import Cache, SecondLevel
from failsoft.kernel.callee import Runner, bound, detached, threaded
from failsoft.kernel.checks import check_options
from failsoft.kernel.classify import Classifier, Counts, Verdict
from failsoft.kernel.deadline import DeadlineHeap, heap_of
from failsoft.kernel.ending import ended
from failsoft.kernel.fetch import fetch
from failsoft.kernel.flights import Flights
from failsoft.kernel.hedge import hedged
from failsoft.kernel.policy import Policy, Preset, preset
from failsoft.kernel.scope import Scope, current
from failsoft.kernel.stream import GuardedStream, StreamLimits
from failsoft.kernel.threads import ThreadLane
from failsoft.kernel.ticket import Ticket
from failsoft.kernel.timeout import AdaptiveTimeout
from failsoft.kernel.views import CallEnded, GuardStatistics, Holder, Waiting, holder

__all__ = ["CallEnded", "Guard", "GuardStatistics", "Interceptor", "Kernel", "guard"]


_log = logging.getLogger(__name__)


class Closable(Protocol):
    """Something to be closed at the end."""

    async def aclose(self) -> None:
        """Closes it, within seconds at most."""
        ...


T = TypeVar("T")
Kept = TypeVar("Kept", bound=Closable)
Ts = TypeVarTuple("Ts")

Interceptor = Callable[..., Awaitable[Any]]
"""``await interceptor(fn, *args)`` runs in place of ``await fn(*args)``, inside the attempt: where faults are
injected.
"""

_new = tuple.__new__
"""Makes a named tuple at half the cost of calling its class, where that is done for every attempt."""

EXPLORE_EVERY: Final = 10.0
"""Seconds between calls let through although the estimate says that they cannot fit: no estimate locks anything out."""

_NEVER_TRIPS: Final = BreakerPolicy(
    failure_ratio=None, consecutive_timeouts=None, consecutive_failures=None, loop_stalls=None
)


class Guard:
    """Guards one downstream. Make it through :class:`Kernel` or :func:`guard`; use it from one event loop at a time.

    ``breaker``, ``bulkhead``, ``budget`` (of retries and hedges) and ``latency`` are its parts, each with statistics
    and a telling repr. What is public beyond the calls is for those parts and for the runners of
    :mod:`failsoft.kernel.callee`, :mod:`failsoft.kernel.hedge` and :mod:`failsoft.kernel.stream`.
    """

    def __init__(self, name: str, policy: Policy, kernel: Kernel) -> None:
        self.name = name
        self.heap: DeadlineHeap
        self.threads = ThreadLane(name)
        self.breaker = Breaker(
            policy.breaker or _NEVER_TRIPS,
            rng=kernel.sources.rng,
            name=name,
            on_transition=self._on_transition,
            probe_cap=kernel.probes,
        )
        self.bulkhead = Bulkhead(policy.bulkhead, name=name, gate=partial(gate, self))
        self.budget = RetryBudget(ratio=policy.retry_ratio)
        self.latency = AdaptiveTimeout(policy.adaptive_timeout, fixed=policy.attempt_timeout)
        self.cache: Cache | None = None
        self.flights = Flights(self._raised)
        self._kept: dict[str, Closable] = {}
        self._bus = kernel.bus
        self._rng = kernel.sources.rng
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interceptor: Interceptor | None = None
        self._tickets: dict[Ticket, None] = {}
        self._children: set[asyncio.Task[Any]] = set()
        self.adopt: Final = self._children.add
        """Keeps a callee's task until it is dismissed, by whoever hears of its end."""
        self.dismiss: Final = self._children.discard
        self._hedges = RetryBudget(reserve=1.0)
        self._explored = -math.inf
        self._hung_due = math.inf
        self._rejected: Counter[str] = Counter()
        self._attempts = self._retries = self._ok = self._failures = self._timeouts = self._neutral = 0
        self._apply(policy)

    def _apply(self, policy: Policy) -> None:
        self.policy = policy
        self._call_timeout = math.inf if policy.call_timeout is None else policy.call_timeout
        age = None if policy.breaker is None else policy.breaker.hung_after
        self.hung_after = math.inf if age is None else age
        if policy.cache is None:
            self.cache = None
        elif self.cache is None:
            self.cache = Cache(policy.cache, rng=self._rng)
        else:
            self.cache.reconfigure(policy.cache)
        self._runner: Runner | None = detached if policy.detachable else None
        if policy.hedge is not None:
            self._hedges.ratio = policy.hedge.share
            self.latency.tail = policy.hedge.quantile
            self._runner = hedged
        self._set_ways()

    def _set_ways(self) -> None:
        """The two usual ways to run a callee, told apart before every attempt: in place, and detached."""
        self._plain = self._interceptor is None and self._runner is None
        self._apart = self._interceptor is None and self._runner is detached

    def reconfigure(self, policy: Policy) -> None:
        """Changes the policy in place: state, statistics and waiting calls are kept; fewer permits come by draining."""
        now = self._loop.time() if self._loop is not None else 0.0
        self.breaker.reconfigure(policy.breaker or _NEVER_TRIPS, now)
        self.bulkhead.reconfigure(policy.bulkhead, now)
        self.budget.ratio = policy.retry_ratio
        self.latency.reconfigure(policy.adaptive_timeout, policy.attempt_timeout, now)
        self._apply(policy)

    @property
    def interceptor(self) -> Interceptor | None:
        """Runs in place of the callee, inside the attempt, while set."""
        return self._interceptor

    @interceptor.setter
    def interceptor(self, interceptor: Interceptor | None) -> None:
        self._interceptor = interceptor
        self._set_ways()

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
        runner: Runner | None = None,
        lent: bool = False,
    ) -> T:
        """Awaits ``fn(*args)`` under this downstream's limits, breaker, bulkhead and retries, and the current deadline.

        `kind` decides about retries, `priority` and `tenant` about the queue; they default to the policy's and the
        current scope's. `timeout` replaces the policy's call limit (seconds). `idempotency_key` is visible to the
        callee in its scope and the same in every attempt. `classify` reads results and errors (see
        :mod:`failsoft.kernel.classify`). `size` is the request's size relative to others, for learned limits.
        `runner` is for callees that run apart (:meth:`call_sync`). `lent`: the `timeout` was set by a caller's budget
        and not for this downstream; when it fires, nobody is blamed who was not slow already.

        Raises what the callee raised; :class:`~failsoft.base.errors.Rejection` when the call was refused unstarted;
        :class:`~failsoft.base.errors.TimeoutExceeded` naming the limit that fired; ``ToolFailed`` when what the callee
        raised is no ``Exception``; ``ValueError`` or ``TypeError`` at once for an option that makes no sense.
        ``CancelledError``, ``KeyboardInterrupt`` and ``SystemExit`` pass through.
        """
        loop = get_running_loop()
        if loop is not self._loop:
            self.bind()
        if kind is not None or priority is not None or tenant is not None or timeout is not None or size != 1.0:
            check_options(kind, priority, tenant, timeout, size)
        began = now = loop.time()
        inherited = current.get()
        until, limit = now + (self._call_timeout if timeout is None else timeout), "call"
        if inherited.deadline < until:
            until, limit = inherited.deadline, inherited.limit
        if priority is None:
            priority = inherited.priority
        if tenant is None:
            tenant = inherited.tenant
        latency, breaker, bulkhead = self.latency, self.breaker, self.bulkhead
        task = current_task(loop)
        assert task is not None
        self.budget.deposits += 1
        number, waited = 1, 0.0
        while True:
            # what is left must be worth starting
            if until - now <= latency.typical:
                self._afford(until, limit, now)
            # admit: breaker and bulkhead, all or nothing
            if now >= self._hung_due:
                self._count_hung(now)
            if breaker.clear and bulkhead.try_acquire(now, priority, tenant, inherited.fallback):
                admission = breaker.standing
            else:
                admission = await admit(self, task, inherited, priority, tenant, until, limit, now)
                now = loop.time()
            # attempt limit
            own = latency.current if size == 1.0 else latency.limit(size=size)
            if own is not None and now + own <= until:
                when, which, cut_short = now + own, "attempt", False
            else:
                when, which = until, limit
                cut_short = lent or own is not None or limit != "call" or now - began > (until - began) / 2
            ticket = Ticket(when, task, admission, now, which, cut_short, inherited, tenant, number)
            self._tickets[ticket] = None
            self.heap.arm(ticket)
            self._attempts += 1
            if now + self.hung_after < self._hung_due:
                self._hung_due = now + self.hung_after
            # attempt
            try:
                if self._plain and runner is None and idempotency_key is None:
                    value = await fn(*args)
                elif self._apart and runner is None and idempotency_key is None:
                    value = await detached(self, ticket, fn, args)
                else:
                    value = await self._run(ticket, fn, args, runner, idempotency_key, kind)
            except BaseException as error:  # noqa: BLE001 - every end is settled; what is not ours to keep is raised again
                failure = ended(self, ticket, None, error, classify, size)
            else:
                now = loop.time()
                if classify is None and now <= ticket.when and not ticket.fired:  # the usual end
                    self._served(ticket, now, size)
                    return value
                failure = ended(self, ticket, value, None, classify, size)
                if failure is None:
                    return value
            assert failure is not None
            # retry
            now = loop.time()
            pause = self.pause(failure.verdict, kind, number, until - now, waited, now)
            if pause is None:
                try:
                    raise failure.error
                finally:
                    del failure  # its traceback holds this frame
            self.emit("call.retrying", (number, pause, failure.verdict.error))
            del failure
            await asyncio.sleep(pause)
            number, waited, now = number + 1, pause, loop.time()

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
            runner=threaded,
        )

    def stream(
        self,
        fn: Callable[..., Any],
        *args: Any,
        first_item: float | None = None,
        idle: float | None = None,
        total: float | None = None,
        lent: Collection[str] = (),
        kind: Kind | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        timeout: float | None = None,
        classify: Classifier | None = None,
        content: Callable[[Any], bool] | None = None,
        size: float = 1.0,
    ) -> GuardedStream[Any]:
        """Guards a stream, for ``async with guard.stream(fn, *args) as items`` and ``async for item in items``.

        ``fn(*args)`` gives an asynchronous iterator, or an awaitable of one. `first_item`, `idle` and `total` are
        limits in seconds; those named in `lent` were set by a caller's budget and do not count against the downstream.
        `timeout` (the call limit) covers queueing, retries and the wait for the first content.
        `content(item)` says whether an item counts as content: what comes before is held back and does not count as
        a first item. The ticket is held to the end; nothing is retried once there was content.
        """
        check_options(kind, priority, tenant, timeout, size)
        limits = StreamLimits(first_item, idle, total, lent)
        return GuardedStream(
            self,
            fn,
            args,
            limits=limits,
            kind=kind,
            priority=priority,
            tenant=tenant,
            timeout=timeout,
            classify=classify,
            content=content,
            size=size,
        )

    async def fetch(
        self,
        key: Hashable,
        fn: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        ttl: float | None = None,
        timeout: float | None = None,
        second: SecondLevel | None = None,
        **options: Any,
    ) -> Outcome[T]:
        """:meth:`call` with the policy's cache and coalescing around it, for queries: the value with its provenance.

        `key` stands for everything that the answer depends on; the tenant is added. A fresh value is served from the
        cache; identical calls in flight share one; when the call fails, a stale value is served with its age. `ttl`
        (seconds) replaces the policy's. `second` is a cache behind this one, for stale values. `options` are `call`'s.

        The value is shared, not copied: everybody who asks for `key` gets the same object, so nobody may change it.
        """
        if options.get("kind", self.policy.kind) != "query":
            raise ValueError("only queries are cached or shared")
        priority = options.get("priority")
        check_options(None, priority, options.get("tenant"), timeout, options.get("size", 1.0))
        limit = self._call_timeout if timeout is None else timeout
        tenant = options.get("tenant") or current.get().tenant
        return await fetch(
            self.name,
            self.cache,
            self.flights if self.policy.coalesce else None,
            (tenant, key),
            lambda: self.call(fn, *args, timeout=timeout, **options),
            ttl=ttl,
            timeout=limit,
            second=second,
            priority=priority,
        )

    def _raised(self, scope: Scope) -> None:
        """A shared call has got a more important participant: where it waits, it waits as that one would."""
        for waiter in cast("list[Queued]", self.bulkhead.waiters()):
            if waiter.scope is scope:
                self.bulkhead.promote(waiter, scope.priority, self.now())

    # --- admit -------------------------------------------------------------------------------------------------

    async def enter(
        self, *, until: float, limit: str, began: float, priority: int | None, tenant: str | None, attempt: int
    ) -> Ticket:
        """Admission for a stream: a ticket whose limits the stream keeps itself, to be settled by `settle_stream`."""
        task = current_task()
        assert task is not None
        inherited = current.get()
        now = self.now()
        if attempt == 1:
            self.budget.deposits += 1
        if until - now <= self.latency.typical:
            self._afford(until, limit, now)
        if now >= self._hung_due:
            self._count_hung(now)
        priority = inherited.priority if priority is None else priority
        tenant = inherited.tenant if tenant is None else tenant
        if self.breaker.clear and self.bulkhead.try_acquire(now, priority, tenant, inherited.fallback):
            admission = self.breaker.standing
        else:
            admission = await admit(self, task, inherited, priority, tenant, until, limit, now)
        ticket = Ticket(math.inf, task, admission, self.now(), limit, False, inherited, tenant, attempt)
        ticket.lost = self.heap.lost
        self._tickets[ticket] = None
        self._attempts += 1
        return ticket

    def _afford(self, until: float, limit: str, now: float) -> None:
        """Refuses a call for which too little is left; lets an exploratory one through now and then."""
        left = until - now
        if left > 0 and now - self._explored >= EXPLORE_EVERY:
            self._explored = now
            return
        raise self.refused(unaffordable(self, left, limit))

    def refused(self, error: FailsoftError) -> FailsoftError:
        """Counts and tells a rejection; returns it to be raised."""
        self._rejected[error.code] += 1
        self.emit("call.rejected", error)
        return error

    def waited(self, scope: Scope, now: float, since: float) -> None:
        """Tells that a call has waited for a permit, with success or without."""
        if self._bus.listeners:
            told = ("call.waited", now, self.name, scope.run, scope.task, scope.tenant, 0, 0, now - since)
            self._bus.emit(_new(Event, told))

    def lease(self) -> float:
        """How long a probe may take, in seconds, before it is taken for lost: as long as an attempt may."""
        return self.latency.current or self.policy.call_timeout or 0.0

    # --- attempt -----------------------------------------------------------------------------------------------

    async def _run(
        self,
        ticket: Ticket,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        runner: Runner | None,
        idempotency_key: str | None,
        kind: Kind | None,
    ) -> Any:
        """An attempt that is more than ``await fn(*args)``: keyed, intercepted, hedged, detached or in a thread."""
        if runner is None:
            runner = self._runner
            if runner is hedged and (kind or self.policy.kind) != "query":
                runner = detached if self.policy.detachable else None
        token = None
        if idempotency_key is not None:
            token = current.set(replace(ticket.scope, idempotency_key=idempotency_key))
        try:
            go = fn if runner is None else bound(runner, self, ticket, fn)
            if self._interceptor is None:
                return await go(*args)
            if runner is hedged:  # each leg meets the fault by itself
                return await hedged(self, ticket, self._interceptor, (fn, *args))
            return await self._interceptor(go, *args)
        finally:
            if token is not None:
                current.reset(token)

    def callee_ended(self, ticket: Ticket) -> None:
        """A callee that was left behind has really ended: its permit goes back."""
        if ticket.released:  # it had ended when its ticket was settled, and only its callback comes now
            return
        self._release(ticket, Counts.NEUTRAL, None)
        self._emit("callee.ended", ticket.scope, ticket)

    def hedge_delay(self) -> float | None:
        """Seconds after which a second leg may start; None while the usual latency is unknown."""
        usual, hedge = self.latency.healthy_tail, self.policy.hedge
        return None if usual is None or hedge is None else max(hedge.minimum, usual)

    def hedge_ticket(self, first: Ticket) -> Ticket | None:
        """A ticket for the second leg of `first`, or None: it takes no place that anybody waits for."""
        now = self.now()
        bulkhead = self.bulkhead
        if not self.breaker.clear or bulkhead.waiting:
            return None
        self._hedges.deposits = self.budget.deposits
        if not self._hedges.withdraw(now):
            return None
        if not self.budget.withdraw(now):
            self._hedges.refund()
            return None
        if not bulkhead.try_acquire(now, first.scope.priority, first.tenant, first.scope.fallback):
            self._hedges.refund()
            self.budget.refund()
            return None
        second = Ticket(
            math.inf,
            first.owner,
            self.breaker.standing,
            now,
            first.limit,
            False,
            first.scope,
            first.tenant,
            first.attempt,
        )
        second.lost = self.heap.lost
        self._tickets[second] = None
        self._attempts += 1
        self._emit("call.hedged", first.scope, second)
        return second

    def settle_leg(self, ticket: Ticket, counts: str, *, cut: bool) -> None:
        """Settles the leg of a hedge that did not win."""
        self.settle(ticket, counts, self.now(), 1.0, cut=cut, code="hedge_lost")

    # --- the end of an attempt -----------------------------------------------------------------------------------

    def _served(self, ticket: Ticket, now: float, size: float) -> None:
        """The usual end: a result, in time."""
        self.heap.disarm(ticket)
        ticket.settled = ticket.released = True
        seconds = now - ticket.since
        if ticket.lost != self.heap.lost:
            seconds = self.lasted(ticket, now)
        if ticket.admission is self.breaker.standing and not ticket.hung:
            self.breaker.record_ok(seconds, now)
        else:
            self.breaker.settle(ticket.admission, Counts.OK, seconds, now, hung_counted=ticket.hung)
        self.latency.record(seconds, now, size=size)
        self._ok += 1
        del self._tickets[ticket]
        scope = ticket.scope
        self.bulkhead.release(now, latency=seconds, tenant=ticket.tenant, fallback=scope.fallback)
        if self._bus.listeners:
            data = _new(CallEnded, (seconds, Counts.OK, None, ticket.attempt, scope.deadline - now))
            self._bus.emit(
                _new(Event, ("attempt.finished", now, self.name, scope.run, scope.task, ticket.tenant, 0, 0, data))
            )

    def lasted(self, ticket: Ticket, now: float) -> float:
        """Seconds that an attempt took, less those in which the loop was away and could not have seen its end."""
        return max(0.0, now - ticket.since - (self.heap.lost - ticket.lost))

    def settle_stream(
        self, ticket: Ticket, counts: str, seconds: float, *, size: float, cut: bool, code: str | None
    ) -> None:
        """Settles and releases a stream's ticket; `seconds` is the time to its first content."""
        now = self.now()
        self.settle(ticket, counts, now, size, cut=cut, code=code, seconds=seconds)

    def abandon(self, ticket: Ticket) -> None:
        """Settles a ticket whose holder was collected, from whatever thread that happens in."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(partial(self._settle_abandoned, ticket))

    def _settle_abandoned(self, ticket: Ticket) -> None:
        if not ticket.settled:
            self.settle(ticket, Counts.NEUTRAL, self.now(), 1.0, code="abandoned")

    def settle(
        self,
        ticket: Ticket,
        counts: str,
        now: float,
        size: float,
        *,
        cut: bool = False,
        code: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Says how an attempt ended, once; its permit goes back with it, unless its callee still runs.

        `cut`: it was ended early, so its latency is a censored sample. `seconds` is its latency if not all its life.
        """
        ticket.settled = True
        if seconds is None:
            seconds = self.lasted(ticket, now)
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
        self._emit("attempt.finished", scope, CallEnded(seconds, counts, code, ticket.attempt, scope.deadline - now))
        callee = ticket.callee
        if callee is not None and not callee.done():
            self._emit("callee.orphaned", scope, ticket)
            return  # an orphan keeps its permit until it ends
        self._release(ticket, counts, self.lasted(ticket, now))

    def _release(self, ticket: Ticket, counts: str, held: float | None) -> None:
        ticket.released = True
        if ticket not in self._tickets:
            return  # of a loop that died with it: what it held is forgotten, see bind()
        del self._tickets[ticket]
        self.bulkhead.release(
            self.now(), latency=held, counts=counts, tenant=ticket.tenant, fallback=ticket.scope.fallback
        )

    # --- retry ---------------------------------------------------------------------------------------------------

    def pause(
        self, verdict: Verdict, kind: Kind | None, number: int, left: float, waited: float, now: float
    ) -> float | None:
        """Seconds until the attempt after `number`, or None when there is to be none; takes a token of the budget."""
        retry = self.policy.retry
        if not verdict.retry or number > retry.retries(kind or self.policy.kind):
            return None
        wait = retry.backoff(number, self._rng, previous=waited)
        if verdict.retry_after is not None:
            wait = max(wait, verdict.retry_after)
        attempt = self.latency.current
        if not left - wait > retry.room * (attempt if attempt is not None else self.latency.typical):
            return None
        if not self.budget.withdraw(now):
            return None
        self._retries += 1
        return wait

    # --- hung calls, transitions, events -----------------------------------------------------------------------------

    def _count_hung(self, now: float) -> None:
        """Calls older than the slow threshold count while they are still in flight; oldest first."""
        self._hung_due = math.inf
        for ticket in list(self._tickets):
            age = self.lasted(ticket, now)
            if age < self.hung_after:
                self._hung_due = ticket.since + self.hung_after + (self.heap.lost - ticket.lost)
                break
            if not ticket.hung and not ticket.settled:
                ticket.hung = True
                self.breaker.hung(ticket.admission, now)

    def _on_transition(self, change: Transition) -> None:
        if change.new == BreakerState.OPEN:
            self.bulkhead.reject_all(lambda: open_error(self, change.open_for), change.at)
        self.emit(f"breaker.{change.new}", change)

    def emit(self, kind: str, data: Any) -> None:
        """Tells the listeners something about this downstream, labelled with the current scope."""
        self._emit(kind, current.get(), data)

    def _emit(self, kind: str, scope: Scope, data: Any) -> None:
        if self._bus.listeners:
            self._bus.emit(Event(kind, self.now(), self.name, scope.run, scope.task, scope.tenant, 0, 0, data))

    def now(self) -> float:
        """The time of the loop that this guard is used from; 0 before its first use."""
        return self._loop.time() if self._loop is not None else 0.0

    def bind(self) -> None:
        """Takes to the running loop; refuses while calls of another, living loop are in flight."""
        loop = get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and (self._tickets or self.bulkhead.waiting):
            if not self._loop.is_closed():
                raise InternalError(f"the guard of {self.name} is in use by another event loop")
            self.bulkhead = Bulkhead(self.policy.bulkhead, name=self.name, gate=partial(gate, self))
            self._tickets.clear()
        self._loop = loop
        self.heap = heap_of(loop)

    # --- views and end -----------------------------------------------------------------------------------------------

    def holders(self) -> list[Holder]:
        """Who holds a permit now, oldest first, orphans included."""
        now = self.now()
        return [holder(self.name, ticket, now) for ticket in self._tickets]

    def waiters(self) -> list[Waiting]:
        """Who waits for a permit, in the order of rank, oldest first within it."""
        now = self.now()
        return [
            Waiting(
                one.scope.run,
                one.scope.task,
                one.tenant,
                Priority.NAMES[one.priority],
                now - one.enqueued_at,
                one.deadline - now,
            )
            for one in cast("list[Queued]", self.bulkhead.waiters())
        ]

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Whether a callee's code runs in that task; may be asked from another thread."""
        return any(
            ticket.callee is task or (ticket.callee is None and ticket.owner is task) for ticket in list(self._tickets)
        )

    def orphans(self) -> list[Holder]:
        """Callees that outlived their limit and still run."""
        return [one for one in self.holders() if one.orphan]

    def statistics(self) -> GuardStatistics:
        """Figures as of now."""
        return GuardStatistics(
            name=self.name,
            breaker=str(self.breaker.state),
            in_use=self.bulkhead.in_use,
            limit=self.bulkhead.limit,
            waiting=self.bulkhead.waiting,
            oldest_wait=self.bulkhead.oldest_wait(self.now()),
            orphans=sum(ticket.orphan for ticket in self._tickets),
            threads=self.threads.threads,
            calls=self.budget.deposits,
            attempts=self._attempts,
            retries=self._retries,
            hedges=self._hedges.statistics().granted,
            ok=self._ok,
            failed=self._failures,
            timed_out=self._timeouts,
            neutral=self._neutral,
            rejected=dict(self._rejected),
            typical=self.latency.typical,
            attempt_limit=self.latency.current,
        )

    def keep(self, key: str, make: Callable[[], Kept]) -> Kept:
        """What the downstream's calls share (connections, worker processes): made by the first who asks, closed with
        the guard. Its own, so that nobody else's calls can use it up.
        """
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make()
        return cast("Kept", found)

    @property
    def holds_something(self) -> bool:
        """Whether there is anything to be closed, or a call in flight."""
        return bool(self._tickets or self._kept or self._children or self.threads.threads or self.bulkhead.waiting)

    async def aclose(self) -> None:
        """Ends idle threads, closes what was kept, cancels detached callees; a running thread ends by itself."""
        self.threads.close()
        kept, self._kept = list(self._kept.values()), {}
        for one in kept:
            try:
                await one.aclose()
            except Exception:  # noqa: BLE001 - what cannot be closed must not keep the others open
                _log.exception("something of %s could not be closed", self.name)
        children = list(self._children)
        for child in children:
            child.cancel()
        if children:
            await asyncio.wait(children, timeout=1.0)

    def __repr__(self) -> str:
        bulkhead = self.bulkhead
        return (
            f"<Guard {self.name} {self.breaker.state} in_use={bulkhead.in_use}/{bulkhead.limit} "
            f"waiting={bulkhead.waiting} calls={self.budget.deposits}>"
        )


class Kernel:
    """The guards of one process: they share the event bus, the sources of chance and the cap on concurrent probes."""

    def __init__(
        self, *, bus: EventBus | None = None, sources: Sources | None = None, probes: ProbeCap | None = None
    ) -> None:
        self.bus = bus if bus is not None else EventBus()
        self.sources = sources if sources is not None else Sources()
        self.probes = probes if probes is not None else ProbeCap()
        self._guards: dict[str, Guard] = {}
        self._retired: list[Guard] = []
        """Guards that are no longer in use and still hold something."""

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

    def retire(self, name: str) -> None:
        """Forgets a downstream that no new call goes to; calls in flight end under its guard (harmless if unknown)."""
        found = self._guards.pop(name, None)
        if found is not None:
            self._retired = [one for one in (*self._retired, found) if one.holds_something]

    def whose(self, task: asyncio.Task[Any]) -> Guard | None:
        """The guard whose callee runs in that task, if that is certain; may be asked from another thread."""
        found = [one for one in list(self._guards.values()) if one.runs_in(task)]
        return found[0] if len(found) == 1 else None

    async def aclose(self) -> None:
        """Closes every guard."""
        for one in (*self._guards.values(), *self._retired):
            await one.aclose()

    def __repr__(self) -> str:
        return f"<Kernel {', '.join(map(repr, self._guards.values())) or 'no guards'}>"


def guard(name: str, policy: Policy | Preset | None = None, *, kernel: Kernel | None = None) -> Guard:
    """A guard of its own for a downstream: ``warehouse = guard("warehouse", "data"); await warehouse.call(fetch,
    url)``.

    Guards that are to share events and the probe cap are made by one :class:`Kernel`.
    """
    return (kernel or Kernel()).guard(name, policy)
