"""Bounded concurrency of one downstream: permits, a bounded queue for them, and who gets the next one.

Pure: synchronous decisions of ``now`` (monotonic seconds), no clock, no loop. The guard subclasses :class:`Waiter` to
wake its task. The order in which waiters are served:

1. strictly by priority, but NORMAL keeps ``normal_share`` of the grants while CRITICAL floods;
2. within a priority, first-choice traffic before traffic that fell back here, which gets at most ``fallback_share`` of
   the permits, so that one downstream's failure does not become the next one's (no fallback storm);
3. within that, tenants take turns, and those that hold ``tenant_share`` of the permits, or lately had more than
   their even part of the grants, lose theirs to those that do and had not;
4. within a tenant, first come first served, or newest first while the lane is overloaded (see
   :mod:`failsoft.kernel.codel`): under overload the oldest have the least budget left, and serving them first makes
   everybody late.

A waiter that cannot make it (predicted wait + typical service > what is left) is refused at once, at enqueue and again
at dequeue; once per ``explore_interval`` one is let through all the same, so that a wrong estimate cannot lock out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from failsoft.base.errors import Doomed, Evicted, FailsoftError, QueueFull, QueueTimeout, Rejection
from failsoft.base.outcomes import Priority
from failsoft.kernel.adaptive import AdaptiveLimit
from failsoft.kernel.bulkhead_policy import BulkheadPolicy, BulkheadStatistics
from failsoft.kernel.codel import HoldTimes
from failsoft.kernel.queue import GRANTED, LEFT, NEW, NOT_NOW, REJECTED, WAITING, Lane, Queue, Waiter

__all__ = ["NOT_NOW", "Bulkhead", "BulkheadPolicy", "BulkheadStatistics", "Gate", "Waiter"]

Gate = Callable[[Waiter, float], FailsoftError | None]
"""``gate(waiter, now)``, asked when it is a waiter's turn: None lets it pass (and has taken what it needs, e.g. a probe
lease), an error refuses this waiter, :data:`NOT_NOW` keeps it and everybody behind it waiting."""


class Bulkhead:
    """The permits of one downstream and the queue for them.

    ``in_use`` and ``limit`` are plain numbers to read. ``in_use`` exceeds ``limit`` only while a lowered
    limit drains. ``gate`` is asked at dequeue (see :data:`Gate`); ``name`` is for messages and the repr.
    """

    __slots__ = (
        "_adaptive", "_explored_at", "_fallback_in_use", "_fallback_most", "_gate", "_granting", "_held", "_holds",
        "_queue", "_tenant_most", "count_doomed", "count_evicted", "count_full", "count_granted", "count_left",
        "count_refused", "count_shed", "count_timed_out", "in_use", "limit", "name", "policy",
    )  # fmt: skip

    def __init__(self, policy: BulkheadPolicy, *, name: str = "", gate: Gate | None = None) -> None:
        self.name = name
        self.policy = policy
        self.in_use = 0
        self.limit = policy.permits
        self._gate = gate
        self._adaptive: AdaptiveLimit | None = None
        self._holds = HoldTimes()
        self._queue = Queue()
        self._held: dict[str, int] = {}
        """Permits by tenant; only tenants that hold some."""
        self._fallback_in_use = 0
        self._explored_at = -math.inf
        self._granting = False
        self.count_granted = self.count_left = self.count_full = self.count_evicted = 0
        self.count_shed = self.count_doomed = self.count_timed_out = self.count_refused = 0
        self._configure(policy, -math.inf)

    def _configure(self, policy: BulkheadPolicy, now: float) -> None:
        self.policy = policy
        if policy.adaptive is None:
            self._adaptive = None
        elif self._adaptive is None:
            self._adaptive = AdaptiveLimit(policy.adaptive, policy.permits)
        else:
            self._adaptive.reconfigure(policy.adaptive, now)
        self._holds.configure(policy.codel_target, policy.codel_interval)
        self._queue.configure(policy.queue, policy.normal_share, policy.tenant_share)
        self._set_limit(policy.permits if self._adaptive is None else self._adaptive.limit)

    def _set_limit(self, limit: int) -> None:
        self.limit = limit
        self._tenant_most = max(1, int(self.policy.tenant_share * limit))
        share = self.policy.fallback_share
        self._fallback_most = max(1, int(share * limit)) if share > 0.0 else 0

    # --- taking and giving back ------------------------------------------------------------------------------------

    def try_acquire(
        self, now: float, priority: int = Priority.NORMAL, tenant: str | None = None, fallback: bool = False
    ) -> bool:
        """Takes a permit if one is free and nobody who could use it waits; never waits itself."""
        if self.in_use >= self.limit:
            return False
        if self._queue.waiting and (fallback or self._somebody_could_use_it()):
            return False
        if fallback and self._fallback_in_use >= self._fallback_most:
            return False
        if tenant is not None:
            self._held[tenant] = self._held.get(tenant, 0) + 1
        self._fallback_in_use += fallback
        self.in_use += 1
        return True

    def _somebody_could_use_it(self) -> bool:
        return self._queue.waiting > self._queue.fallback_waiting or self._fallback_in_use < self._fallback_most

    def release(
        self,
        now: float,
        *,
        latency: float | None = None,
        counts: str = "ok",
        tenant: str | None = None,
        fallback: bool = False,
    ) -> None:
        """Gives a permit back, with the labels it was taken with, and grants it on.

        ``latency`` (seconds it was held) feeds the estimates and the adaptive limit unless ``counts`` is ``neutral``;
        ``timeout`` makes it a censored sample. A release without a permit raises: a double release would let one call
        too many through for ever.
        """
        if self.in_use <= 0:
            raise RuntimeError(f"bulkhead {self.name!r}: released a permit that nobody holds")
        if tenant is not None or fallback:
            self._unlabel(tenant, fallback)
        if latency is not None and counts != "neutral":
            holds = self._holds
            holds.add(latency)
            holds.last = now
            holds.stale += 1
            if self._adaptive is not None:
                limit = self._adaptive.record(now, latency, self.in_use, counts)
                if limit != self.limit:
                    self._set_limit(limit)
        self.in_use -= 1
        if self._queue.waiting:
            self.grant(now)

    def _unlabel(self, tenant: str | None, fallback: bool) -> None:
        if fallback and self._fallback_in_use <= 0:
            raise RuntimeError(f"bulkhead {self.name!r}: released a fallback permit that nobody holds")
        if tenant is not None:
            held = self._held.get(tenant, 0) - 1
            if held < 0:
                raise RuntimeError(f"bulkhead {self.name!r}: released a permit of a tenant that holds none")
            if held:
                self._held[tenant] = held
            else:
                del self._held[tenant]
        if fallback:
            self._fallback_in_use -= 1

    # --- waiting ---------------------------------------------------------------------------------------------------

    def enqueue(self, waiter: Waiter, now: float) -> None:
        """Puts a waiter into the queue; it is granted before this returns when a permit is free for it.

        Raises :class:`Doomed` when it cannot make it, and :class:`QueueFull` with ``retry_after`` when there is no
        place and nobody of a lower rank to evict.
        """
        if waiter.state != NEW:
            raise RuntimeError(f"bulkhead {self.name!r}: {waiter!r} was enqueued before")
        queue, holds = self._queue, self._holds
        lane = queue.lane(waiter)
        deadline = waiter.deadline
        if deadline != math.inf:
            self._refuse_doomed(waiter, lane, now)
        if queue.expiry and queue.expiry[0][0] <= now:
            self.expire(now)
        if queue.crowded(waiter):
            victim = queue.in_its_way(waiter)
            if isinstance(victim, str):
                self.count_full += 1
                raise QueueFull(f"queue full: {victim}", downstream=self.name or None, retry_after=self._retry_after())
            if victim is not None:
                self.count_evicted += 1
                self._reject(victim, self._evicted("made room for a more important call"))
        if not lane.waiting and lane.codel.first_above != math.inf:
            lane.codel.calm(now, holds.interval)
        waiter.enqueued_at = now
        waiter.state = WAITING
        max_wait = self.policy.max_wait
        if waiter.leaves:
            queue.add(waiter, lane, math.inf)
        else:
            queue.add(waiter, lane, deadline if max_wait is None else min(deadline, now + max_wait))
        if self.in_use < self.limit:
            self.grant(now)

    def _refuse_doomed(self, waiter: Waiter, lane: Lane, now: float) -> None:
        remaining = waiter.deadline - now
        if remaining <= 0.0:
            self.count_doomed += 1
            raise Doomed(f"no budget left for {self.name or 'this downstream'}", downstream=self.name or None)
        holds = self._holds
        if not holds.refresh(now) or not holds.trusted:
            return
        need = holds.typical
        if need + (self._queue.waiting + 1) * holds.mean / self.limit <= remaining:
            return  # even behind everybody
        if not lane.codel.overloaded:
            need += self.predicted_wait(now, waiter.priority)
        if need <= remaining:
            return
        if self._explore(now):
            waiter.explorer = True
            return
        self.count_doomed += 1
        raise self._doomed(need, remaining)

    def _doomed(self, need: float, remaining: float) -> Doomed:
        return Doomed(
            f"waiting and service would take about {need:.3g} s, {remaining:.3g} s are left",
            downstream=self.name or None,
            retry_after=self._retry_after(),
            details={"expected_s": need, "remaining_s": remaining},
        )

    def _explore(self, now: float) -> bool:
        interval = self.policy.explore_interval
        if interval == math.inf or now - self._explored_at < interval:
            return False
        self._explored_at = now
        self._holds.doubt()
        return True

    def _evicted(self, why: str) -> Evicted:
        return Evicted(why, downstream=self.name or None, retry_after=self._retry_after())

    def _retry_after(self) -> float:
        """The usual time until a permit, and so a place, becomes free; a second when nothing is known."""
        holds = self._holds
        return holds.mean / self.limit if holds.refresh(holds.last) and holds.mean > 0.0 else 1.0

    def leave(self, waiter: Waiter, now: float) -> None:
        """Its caller was cancelled or timed out. A permit that was just granted to it goes to the next. Idempotent.

        For a granted waiter call this instead of :meth:`release`, never both.
        """
        if waiter.state == WAITING:
            waiter.state = LEFT
            self._queue.remove(waiter)
            self.count_left += 1
        elif waiter.state == GRANTED:
            waiter.state = LEFT
            if waiter.tenant is not None or waiter.fallback:
                self._unlabel(waiter.tenant, waiter.fallback)
            self.in_use -= 1
            self.count_left += 1
        else:
            return
        if self._queue.waiting and self.in_use < self.limit:
            self.grant(now)

    def promote(self, waiter: Waiter, priority: int, now: float) -> None:
        """Somebody more important waits for the same: it waits in that rank as if it came now, if it still waits."""
        if waiter.state != WAITING or waiter.priority <= priority:
            return
        queue = self._queue
        queue.remove(waiter)
        waiter.priority, waiter.enqueued_at = priority, now
        queue.add(waiter, queue.lane(waiter), math.inf)  # when it expires is known already
        if self.in_use < self.limit:
            self.grant(now)

    def reject_all(self, error_factory: Callable[[], FailsoftError], now: float) -> int:
        """Rejects everybody who waits, each with an error of its own, and returns how many (the breaker opened)."""
        waiters = list(self._queue)
        for waiter in waiters:
            waiter.state = REJECTED
            self._queue.remove(waiter)
        for waiter in waiters:
            self.count_refused += 1
            waiter.rejected(error_factory())
        return len(waiters)

    def expire(self, now: float) -> None:
        """Waiters past their deadline or ``max_wait`` leave."""
        while (waiter := self._queue.next_expired(now)) is not None:
            self._reject_late(waiter, now)

    # --- who is next -----------------------------------------------------------------------------------------------

    def grant(self, now: float) -> int:
        """Hands free permits to those whose turn it is, and returns how many it granted.

        Called by ``release``, ``leave`` and ``enqueue``; call it yourself when a gate that said :data:`NOT_NOW` may
        have changed its mind.
        """
        if self._granting:  # from a waiter's own callback: the loop below goes on anyway
            return 0
        self._granting = True
        granted = 0
        gate = self._gate
        queue = self._queue
        lane: Lane | None
        try:
            while queue.waiting and self.in_use < self.limit:
                lane, contested = queue.usual, False
                if lane.waiting != queue.waiting:  # others wait, too
                    lane, contested = queue.turn(self._fallback_in_use < self._fallback_most)
                    if lane is None:
                        break
                waiter = self._candidate(lane, now)
                if waiter is None:
                    continue
                if gate is not None:
                    error = gate(waiter, now)
                    if error is NOT_NOW:
                        break
                    if waiter.state != WAITING:  # the gate itself rejected everybody
                        continue
                    if error is not None:
                        self.count_refused += 1
                        self._reject(waiter, error)
                        continue
                waiter.state = GRANTED
                queue.served(lane, waiter, contested)
                self.in_use += 1
                if waiter.fallback:
                    self._fallback_in_use += 1
                if waiter.tenant is not None:
                    self._held[waiter.tenant] = self._held.get(waiter.tenant, 0) + 1
                self.count_granted += 1
                granted += 1
                try:
                    waiter.granted()
                except BaseException:
                    self._granting = False
                    self.leave(waiter, now)  # or the permit, and everybody behind, would be lost with the error
                    raise
        finally:
            self._granting = False
        return granted

    def _candidate(self, lane: Lane, now: float) -> Waiter | None:
        """Whose turn it is in a lane; None when that one was rejected instead, or one was shed."""
        holds, codel = self._holds, lane.codel
        known = holds.refresh(now)
        oldest = next(iter(lane.age))
        wait = now - oldest.enqueued_at
        if wait < holds.target and codel.first_above == math.inf:
            pass  # neither overloaded nor on the way there
        elif codel.observe(now, wait, holds.target, holds.interval) and lane.waiting > 1:
            self.count_shed += 1
            self._reject(oldest, self._evicted("shed under sustained overload"))
            return None
        if len(lane.tenants) == 1 and not codel.overloaded:
            waiter = oldest
        else:
            waiter = lane.next(self._held, self._tenant_most)
        max_wait = self.policy.max_wait
        if waiter.deadline <= now or (max_wait is not None and now - waiter.enqueued_at >= max_wait):
            self._reject_late(waiter, now)
            return None
        if known and holds.trusted and not waiter.explorer and holds.typical > waiter.deadline - now:
            if self._explore(now):
                waiter.explorer = True  # the gate may make it wait still
                return waiter
            self.count_doomed += 1
            self._reject(waiter, self._doomed(holds.typical, waiter.deadline - now))
            return None
        return waiter

    def _reject(self, waiter: Waiter, error: FailsoftError) -> None:
        waiter.state = REJECTED
        self._queue.remove(waiter)
        waiter.rejected(error)

    def _reject_late(self, waiter: Waiter, now: float) -> None:
        error: Rejection
        waited = now - waiter.enqueued_at
        if waiter.deadline <= now:
            self.count_doomed += 1
            error = Doomed(f"the budget ended after {waited:.3g} s in the queue", downstream=self.name or None)
        else:
            self.count_timed_out += 1
            error = QueueTimeout(
                f"no permit within {waited:.3g} s", downstream=self.name or None, retry_after=self._retry_after()
            )
        self._reject(waiter, error)

    # --- looking ---------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._queue.waiting

    def waiters(self) -> list[Waiter]:
        """Who waits, the most important first, and within a rank the oldest first."""
        return list(self._queue)

    @property
    def service_time(self) -> float | None:
        """Median of the recent times that calls held a permit, in seconds; None before there is any."""
        holds = self._holds
        if not holds.samples:
            return None
        holds.refresh(holds.last)
        return holds.typical

    def predicted_wait(self, now: float, priority: int = Priority.NORMAL) -> float:
        """Seconds that a call of this priority would wait if it came now; 0 when nothing is known."""
        lanes = self._queue.lanes
        if self.in_use < self.limit and not self._queue.waiting:
            return 0.0
        holds = self._holds
        if not holds.refresh(now):
            return 0.0
        own = lanes[2 * priority]
        mine = 1 if own.codel.overloaded else own.waiting + 1
        ahead = sum(lane.waiting for lane in lanes[: 2 * priority]) + mine
        share = self.policy.normal_share
        if priority == Priority.NORMAL and share > 0.0:
            ahead = min(ahead, math.ceil(mine / share))
        return ahead * holds.mean / self.limit

    def oldest_wait(self, now: float) -> float:
        """How long the oldest waiter has waited, in seconds; 0 when nobody waits."""
        return max((now - lane.oldest.enqueued_at for lane in self._queue.lanes if lane.waiting), default=0.0)

    def reconfigure(self, policy: BulkheadPolicy, now: float) -> None:
        """Takes a new policy in place, throwing out nobody: a lower limit drains, a higher one grants.

        A smaller queue admits nobody until it has shrunk; a changed ``max_wait`` holds for those who wait, too.
        """
        rebuild = policy.max_wait != self.policy.max_wait
        self._configure(policy, now)
        if rebuild:
            self._queue.reschedule(math.inf if policy.max_wait is None else policy.max_wait)
            self.expire(now)
        if self._queue.waiting:
            self.grant(now)

    def statistics(self, now: float) -> BulkheadStatistics:
        """A snapshot."""
        lanes = self._queue.lanes
        return BulkheadStatistics(
            name=self.name,
            limit=self.limit,
            in_use=self.in_use,
            waiting=self._queue.waiting,
            waiting_by_priority=(
                lanes[0].waiting + lanes[1].waiting,
                lanes[2].waiting + lanes[3].waiting,
                lanes[4].waiting + lanes[5].waiting,
            ),
            fallback_in_use=self._fallback_in_use,
            fallback_waiting=self._queue.fallback_waiting,
            oldest_wait=self.oldest_wait(now),
            service_time=self.service_time,
            overloaded=any(lane.codel.overloaded for lane in lanes if lane.waiting),
            granted=self.count_granted,
            left=self.count_left,
            queue_full=self.count_full,
            evicted=self.count_evicted,
            shed=self.count_shed,
            doomed=self.count_doomed,
            timed_out=self.count_timed_out,
            refused=self.count_refused,
        )

    def __repr__(self) -> str:
        overloaded = " overloaded" if any(lane.codel.overloaded for lane in self._queue.lanes if lane.waiting) else ""
        adaptive = " adaptive" if self._adaptive is not None else ""
        return f"<Bulkhead {self.name!r} {self.in_use}/{self.limit}{adaptive} waiting={self.waiting}{overloaded}>"
