"""The bulkhead against a naive model that keeps one plain list, and its invariants under everything at once."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.deep import depth

from failsoft.base.errors import BreakerOpen, Doomed, Evicted, FailsoftError, QueueFull, QueueTimeout
from failsoft.kernel.adaptive import AdaptiveLimitPolicy
from failsoft.kernel.bulkhead import NOT_NOW, Bulkhead, BulkheadPolicy, Waiter

TENANTS = (None, "a", "b", "c")


class Call(Waiter):
    """A waiter that keeps what it was told."""

    __slots__ = ("machine", "told")

    def __init__(self, machine: Any, priority: int, tenant: str | None, fallback: bool, deadline: float) -> None:
        super().__init__(priority, tenant, fallback, deadline)
        self.told: list[str | FailsoftError] = []
        self.machine = machine

    def granted(self) -> None:
        self.told.append("granted")
        self.machine.on_granted(self)

    def rejected(self, error: FailsoftError) -> None:
        self.told.append(error)
        self.machine.on_rejected(self, error)


class Everything(RuleBasedStateMachine):
    """What holds whatever happens: estimates, CoDel, doomed waiters, adaptive limits, gates, reconfiguration."""

    policies = st.builds(
        BulkheadPolicy,
        permits=st.integers(1, 4),
        queue=st.integers(0, 12),
        max_wait=st.sampled_from([None, 0.5, 3.0]),
        normal_share=st.sampled_from([0.0, 0.1, 0.5]),
        tenant_share=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        fallback_share=st.sampled_from([0.0, 0.5, 1.0]),
        codel_target=st.sampled_from([None, 0.1]),
        codel_interval=st.sampled_from([None, 0.2]),
        adaptive=st.sampled_from([None, AdaptiveLimitPolicy(maximum=6, initial=2, min_samples=2, max_epoch=0.5)]),
    )

    @initialize(policy=policies)
    def begin(self, policy: BulkheadPolicy) -> None:
        self.now = 100.0
        self.gate_says: str = "pass"
        self.asked = 0
        self.held: list[tuple[str | None, bool, Call | None]] = []
        self.waiting: list[Call] = []
        self.ended: list[Call] = []
        self.most_limit = policy.permits
        self.bulkhead = Bulkhead(policy, name="warehouse", gate=self.gate)

    # --- what the bulkhead calls

    def gate(self, waiter: Waiter, now: float) -> FailsoftError | None:
        assert now == self.now
        assert waiter in self.waiting, "the gate is asked for one who does not wait"
        self.asked += 1
        if self.gate_says == "not now":
            return NOT_NOW
        if self.gate_says == "refuse" or (self.gate_says == "every other" and self.asked % 2):
            return BreakerOpen(retry_after=1.0)
        return None

    def on_granted(self, call: Call) -> None:
        assert call in self.waiting, "granted to one who does not wait"
        assert call.deadline > self.now, "granted to one whose deadline has passed"
        max_wait = self.bulkhead.policy.max_wait
        assert max_wait is None or self.now - call.enqueued_at < max_wait
        self.waiting.remove(call)
        self.held.append((call.tenant, call.fallback, call))

    def on_rejected(self, call: Call, error: FailsoftError) -> None:
        assert call in self.waiting, "rejected one who does not wait"
        assert isinstance(error, Evicted | Doomed | QueueTimeout | BreakerOpen)
        self.waiting.remove(call)
        self.ended.append(call)

    # --- what may happen

    @rule(
        priority=st.integers(0, 2),
        tenant=st.sampled_from(TENANTS),
        fallback=st.booleans(),
        budget=st.sampled_from([math.inf, math.inf, 0.0, 0.3, 2.0, 30.0]),
    )
    def call(self, priority: int, tenant: str | None, fallback: bool, budget: float) -> None:
        if self.bulkhead.try_acquire(self.now, priority, tenant, fallback):
            self.held.append((tenant, fallback, None))
            return
        call = Call(self, priority, tenant, fallback, self.now + budget)
        self.waiting.append(call)
        try:
            self.bulkhead.enqueue(call, self.now)
        except (QueueFull, Doomed) as error:
            self.waiting.remove(call)
            self.refused(call, error)
        else:
            self.enqueued(call)

    def refused(self, call: Call, error: FailsoftError) -> None:
        assert call.told == []
        assert isinstance(error, Doomed) or (error.retry_after is not None and error.retry_after > 0)

    def enqueued(self, call: Call) -> None:
        """For the model."""

    @precondition(lambda self: self.held)
    @rule(
        index=st.integers(0, 100),
        latency=st.sampled_from([None, 0.001, 0.1, 0.5, 2.0]),
        counts=st.sampled_from(["ok", "ok", "failed", "timeout", "neutral"]),
    )
    def release(self, index: int, latency: float | None, counts: str) -> None:
        tenant, fallback, _ = self.held.pop(index % len(self.held))
        self.bulkhead.release(self.now, latency=latency, counts=counts, tenant=tenant, fallback=fallback)

    @precondition(lambda self: self.waiting)
    @rule(index=st.integers(0, 100))
    def cancel_a_waiting_one(self, index: int) -> None:
        call = self.waiting.pop(index % len(self.waiting))
        self.ended.append(call)
        self.bulkhead.leave(call, self.now)

    @precondition(lambda self: self.waiting)
    @rule(index=st.integers(0, 100), priority=st.integers(0, 2))
    def promote(self, index: int, priority: int) -> None:
        call = self.waiting[index % len(self.waiting)]
        if priority < call.priority:  # as if it came now
            self.waiting.remove(call)
            self.waiting.append(call)
            self.promoted(call)
        self.bulkhead.promote(call, priority, self.now)

    def promoted(self, call: Call) -> None:
        """For the model."""

    @precondition(lambda self: any(call for _, _, call in self.held))
    @rule(index=st.integers(0, 100))
    def cancel_a_granted_one(self, index: int) -> None:
        granted = [entry for entry in self.held if entry[2]]
        entry = granted[index % len(granted)]
        self.held.remove(entry)
        assert entry[2] is not None
        self.ended.append(entry[2])
        self.bulkhead.leave(entry[2], self.now)

    @precondition(lambda self: self.ended)
    @rule(index=st.integers(0, 100))
    def leave_again(self, index: int) -> None:
        call = self.ended[index % len(self.ended)]
        before = repr(self.bulkhead), list(call.told)
        self.bulkhead.leave(call, self.now)
        assert (repr(self.bulkhead), call.told) == before

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.25, 1.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        self.bulkhead.expire(self.now)
        assert all(call.deadline > self.now for call in self.waiting)

    @rule(says=st.sampled_from(["pass", "pass", "not now", "refuse", "every other"]))
    def the_gate_changes_its_mind(self, says: str) -> None:
        self.gate_says = says
        self.bulkhead.grant(self.now)

    @rule()
    def the_breaker_opens(self) -> None:
        before = len(self.waiting)
        assert self.bulkhead.reject_all(lambda: BreakerOpen(retry_after=5.0), self.now) == before
        assert not self.waiting

    @rule(policy=policies)
    def reconfigure(self, policy: BulkheadPolicy) -> None:
        held, waiting = len(self.held), list(self.waiting)
        self.bulkhead.reconfigure(policy, self.now)
        assert len(self.held) >= held
        for call in waiting:  # nobody is thrown out but by the new bound on waiting
            assert call in self.waiting or call.told

    # --- what always holds

    @invariant()
    def counts_are_true(self) -> None:
        bulkhead = self.bulkhead
        assert bulkhead.in_use == len(self.held)
        assert bulkhead.waiting == len(self.waiting)
        statistics = bulkhead.statistics(self.now)
        assert statistics.waiting_by_priority == tuple(
            sum(call.priority == priority for call in self.waiting) for priority in range(3)
        )
        assert statistics.fallback_in_use == sum(fallback for _, fallback, _ in self.held)
        assert statistics.fallback_waiting == sum(call.fallback for call in self.waiting)
        assert statistics.oldest_wait == max((self.now - call.enqueued_at for call in self.waiting), default=0.0)
        queue = bulkhead._queue
        assert len(queue.expiry) <= 2 * len(self.waiting) + 64
        for tenant in ("a", "b", "c"):
            assert queue.queued.get(tenant, 0) == sum(call.tenant == tenant for call in self.waiting)
            assert bulkhead._held.get(tenant, 0) == sum(entry[0] == tenant for entry in self.held)
        assert all(bulkhead._held.values())
        assert all(queue.queued.values())

    @invariant()
    def everybody_is_told_at_most_once(self) -> None:
        for call in self.waiting:
            assert call.told == []
        for call in self.ended:
            assert len(call.told) <= 1

    @invariant()
    def nobody_waits_for_a_free_permit(self) -> None:
        if self.gate_says == "not now":
            return
        bulkhead = self.bulkhead
        statistics = bulkhead.statistics(self.now)
        if bulkhead.in_use < bulkhead.limit and self.waiting:
            # Only traffic that fell back and has its share may wait then.
            assert all(call.fallback for call in self.waiting)
            assert statistics.fallback_in_use >= int(bulkhead.policy.fallback_share * bulkhead.limit)

    def teardown(self) -> None:
        if not hasattr(self, "bulkhead"):
            return
        self.gate_says = "pass"
        while self.waiting or self.held:
            if self.held:
                tenant, fallback, _ = self.held.pop()
                self.bulkhead.release(self.now, tenant=tenant, fallback=fallback)
            else:
                self.bulkhead.leave(self.waiting.pop(), self.now)
            self.counts_are_true()
        assert (self.bulkhead.in_use, self.bulkhead.waiting) == (0, 0)
        queue = self.bulkhead._queue
        assert not queue.queued
        assert not self.bulkhead._held
        assert all(not lane.age and not lane.tenants for lane in queue.lanes)
        with pytest.raises(RuntimeError):
            self.bulkhead.release(self.now)


class Model(Everything):
    """Without estimates and overload, who gets a permit, a place or a refusal is exactly what a plain list says."""

    policies = st.builds(
        BulkheadPolicy,
        permits=st.integers(1, 4),
        queue=st.integers(0, 12),
        normal_share=st.sampled_from([0.0, 0.25, 0.5]),
        tenant_share=st.sampled_from([0.25, 0.5]),
        fallback_share=st.sampled_from([0.0, 0.5, 1.0]),
        codel_target=st.just(1e9),
    )

    @initialize(policy=policies)
    def begin(self, policy: BulkheadPolicy) -> None:
        super().begin(policy)
        self.turns: list[list[str | None]] = [[] for _ in range(6)]
        self.had: list[Counter[str]] = [Counter() for _ in range(6)]
        self.credit = 0.0

    def rank(self, call: Call) -> int:
        return 2 * call.priority + call.fallback

    def in_lane(self, rank: int, but: Call | None = None) -> list[Call]:
        return [call for call in self.waiting if self.rank(call) == rank and call is not but]

    def tidy(self, but: Call | None = None) -> None:
        for rank, turns in enumerate(self.turns):
            tenants = [call.tenant for call in self.in_lane(rank, but)]
            turns[:] = [tenant for tenant in turns if tenant in tenants]
            turns.extend(tenant for tenant in dict.fromkeys(tenants) if tenant not in turns)

    def expected_next(self) -> Call:
        policy, limit = self.bulkhead.policy, self.bulkhead.limit
        most_fallback = max(1, int(policy.fallback_share * limit)) if policy.fallback_share else 0
        may_fall_back = sum(fallback for _, fallback, _ in self.held) < most_fallback
        ranks = [rank for rank in range(6) if self.in_lane(rank) and (may_fall_back or rank % 2 == 0)]
        rank = ranks[0]
        normals = [rank for rank in ranks if rank in (2, 3)]
        self.contested = rank < 2 and bool(normals)
        if self.contested and self.credit + policy.normal_share >= 1 - 1e-9:
            rank = normals[0]
        turns = self.turns[rank]
        most = max(1, int(policy.tenant_share * limit))
        held = [tenant for tenant, _, _ in self.held]
        had = self.had[rank]
        even = had.total() / max(len(turns), len(had))
        allowed = [tenant for tenant in turns if tenant is None or (held.count(tenant) < most and had[tenant] <= even)]
        if len(turns) > 1 and allowed:
            while turns[0] != allowed[0]:
                turns.append(turns.pop(0))
        return next(call for call in self.in_lane(rank) if call.tenant == turns[0])

    def gate(self, waiter: Waiter, now: float) -> FailsoftError | None:
        # Called with the bulkhead's choice, before it is removed.
        self.tidy()
        # Expired ones are rejected before the gate is asked.
        assert waiter is self.expected_next()
        return super().gate(waiter, now)

    def on_granted(self, call: Call) -> None:
        super().on_granted(call)
        rank = self.rank(call)
        if self.contested:
            self.credit += self.bulkhead.policy.normal_share - (call.priority == 1)
        self.turns[rank].append(self.turns[rank].pop(self.turns[rank].index(call.tenant)))
        if call.tenant is not None:
            self.had[rank][call.tenant] += 1
            if self.had[rank].total() == 64:
                self.had[rank] = +Counter({tenant: count // 2 for tenant, count in self.had[rank].items()})
        self.tidy()
        policy = self.bulkhead.policy
        fallbacks = sum(fallback for _, fallback, _ in self.held)
        if call.fallback:
            assert fallbacks <= max(1, policy.fallback_share * self.bulkhead.limit)

    def on_rejected(self, call: Call, error: FailsoftError) -> None:
        if isinstance(error, Evicted):
            newcomer = self.waiting[-1]
            assert newcomer is not call
            lower = [other for other in self.waiting[:-1] if self.rank(other) > self.rank(newcomer)]
            assert call in lower
            own = [other for other in lower if other.tenant == newcomer.tenant]
            places = max(1, int(self.bulkhead.policy.tenant_share * self.bulkhead.policy.queue))
            mine = sum(other.tenant == newcomer.tenant for other in self.waiting[:-1])
            policy = self.bulkhead.policy
            critical = sum(other.priority == 0 for other in self.waiting[:-1])
            if newcomer.tenant is not None and mine >= places:
                lower = own
            elif newcomer.priority == 0 and critical >= policy.queue - int(policy.normal_share * policy.queue):
                lower = [other for other in lower if other.priority == 0]  # its places are taken: by its own
            lowest = max(self.rank(other) for other in lower)
            oldest = next(other for other in lower if self.rank(other) == lowest)
            assert call is oldest or (lowest in (2, 3) and newcomer.priority == 0)
        super().on_rejected(call, error)
        newcomer_waits = bool(self.waiting) and self.waiting[-1].state == 0
        self.tidy(but=self.waiting[-1] if newcomer_waits else None)

    def refused(self, call: Call, error: FailsoftError) -> None:
        super().refused(call, error)
        self.tidy()
        if isinstance(error, Doomed):
            assert call.deadline <= self.now, "there is no estimate to doom it by"
            return
        policy = self.bulkhead.policy
        reserved = int(policy.normal_share * policy.queue)
        critical = sum(other.priority == 0 for other in self.waiting)
        mine = sum(other.tenant == call.tenant for other in self.waiting)
        assert (
            len(self.waiting) >= policy.queue
            or (call.tenant is not None and mine >= max(1, int(policy.tenant_share * policy.queue)))
            or (call.priority == 0 and critical >= policy.queue - reserved)
        ), "refused although there is a place"

    def enqueued(self, call: Call) -> None:
        self.tidy()
        policy = self.bulkhead.policy
        assert len(self.waiting) <= max(policy.queue, self.most_waiting)
        self.most_waiting = len(self.waiting)

    most_waiting = 0

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 100))
    def release(self, index: int) -> None:  # without latencies there are no estimates
        tenant, fallback, _ = self.held.pop(index % len(self.held))
        self.bulkhead.release(self.now, tenant=tenant, fallback=fallback)

    @rule(permits=st.integers(1, 4))
    def reconfigure(self, permits: int) -> None:
        self.tidy()
        self.bulkhead.reconfigure(replace(self.bulkhead.policy, permits=permits), self.now)


SETTINGS = settings(
    max_examples=depth(15, 100), stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEverything = Everything.TestCase
TestEverything.settings = SETTINGS
TestModel = Model.TestCase
TestModel.settings = SETTINGS
