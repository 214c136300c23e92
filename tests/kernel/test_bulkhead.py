"""The bulkhead's behaviour, one sentence each; ``test_bulkhead_machine`` proves the rest."""

import gc
import itertools
import math
import timeit
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from failsoft.base.errors import BreakerOpen, ConfigError, Doomed, Evicted, FailsoftError, QueueFull, QueueTimeout
from failsoft.kernel.adaptive import AdaptiveLimitPolicy
from failsoft.kernel.bulkhead import NOT_NOW, Bulkhead, BulkheadPolicy, Waiter
from failsoft.kernel.codel import CoDel

CRITICAL, NORMAL, OPTIONAL = 0, 1, 2


class Call(Waiter):
    """A waiter that keeps what it was told."""

    __slots__ = ("name", "told", "when_granted", "when_rejected")

    def __init__(
        self,
        priority: int = NORMAL,
        tenant: str | None = None,
        *,
        fallback: bool = False,
        deadline: float = math.inf,
        name: str = "",
    ) -> None:
        super().__init__(priority, tenant, fallback, deadline)
        self.name = name
        self.told: list[str | FailsoftError] = []
        self.when_granted: Callable[[], None] = lambda: None
        self.when_rejected: Callable[[], None] = lambda: None

    def granted(self) -> None:
        self.told.append("granted")
        self.when_granted()

    def rejected(self, error: FailsoftError) -> None:
        self.told.append(error)
        self.when_rejected()

    @property
    def has_permit(self) -> bool:
        return self.told == ["granted"]

    @property
    def error(self) -> FailsoftError | None:
        return next((told for told in self.told if isinstance(told, FailsoftError)), None)


def full(gate: Callable[[Waiter, float], FailsoftError | None] | None = None, **settings: object) -> Bulkhead:
    """A bulkhead whose permits (one, unless it says otherwise) are all taken."""
    policy = replace(BulkheadPolicy(permits=1), **settings)  # type: ignore[arg-type]  # checked by the policy itself
    bulkhead = Bulkhead(policy, name="warehouse", gate=gate)
    while bulkhead.try_acquire(0.0):
        pass
    return bulkhead


def queued(bulkhead: Bulkhead, *calls: Call, now: float = 0.0) -> list[Call]:
    for call in calls:
        bulkhead.enqueue(call, now)
    return list(calls)


def serve(bulkhead: Bulkhead, calls: list[Call], now: float = 0.0) -> list[Call]:
    """Releases, once per call, and returns the calls in the order in which they got their permits."""
    order: list[Call] = []
    tenant: str | None = None
    fallback = False
    while len(order) < len(calls) and bulkhead.in_use:
        bulkhead.release(now, tenant=tenant, fallback=fallback)
        fresh = [call for call in calls if call.has_permit and call not in order]
        if not fresh:
            break
        (call,) = fresh
        order.append(call)
        tenant, fallback = call.tenant, call.fallback
    return order


def serve_from(bulkhead: Bulkhead, calls: list[Call], most: int | None = None) -> list[str]:
    """The names in the order of their permits, where one of the calls has the permit by now."""
    (first,) = [call for call in calls if call.has_permit]
    waiting = [call for call in calls if call is not first]
    order = [first.name]
    bulkhead.release(0.0, tenant=first.tenant)
    while len(order) < (len(calls) if most is None else most):
        (call,) = [call for call in waiting if call.has_permit]
        waiting.remove(call)
        order.append(call.name)
        bulkhead.release(0.0, tenant=call.tenant)
    return order


def learn(bulkhead: Bulkhead, seconds: float, now: float = 0.0, times: int = 64) -> None:
    """Teaches a bulkhead with all permits taken how long calls hold them."""
    for _ in range(times):
        bulkhead.release(now, latency=seconds)
        assert bulkhead.try_acquire(now)


# --- permits -------------------------------------------------------------------------------------------------------


def test_as_many_calls_as_permits_run_at_once():
    bulkhead = Bulkhead(BulkheadPolicy(permits=3))
    assert [bulkhead.try_acquire(0.0) for _ in range(5)] == [True, True, True, False, False]
    bulkhead.release(1.0)
    assert bulkhead.in_use == 2
    assert bulkhead.try_acquire(1.0)


def test_a_newcomer_does_not_overtake_those_who_wait():
    bulkhead = full(gate=lambda waiter, now: NOT_NOW)
    queued(bulkhead, Call())
    bulkhead.release(1.0)
    assert (bulkhead.in_use, bulkhead.waiting) == (0, 1)
    assert not bulkhead.try_acquire(1.0)


def test_trap_two_step_acquire_loses_none_on_cancel():
    bulkhead = full()
    first, second = queued(bulkhead, Call(), Call())
    bulkhead.release(1.0)
    assert first.has_permit
    bulkhead.leave(first, 1.0)  # cancelled between the grant and running again
    assert second.has_permit
    assert bulkhead.in_use == 1
    bulkhead.release(2.0)
    assert bulkhead.in_use == 0


def test_trap_grant_then_cancel_loses_no_wake_up():
    bulkhead = full(permits=2)
    calls = queued(bulkhead, *(Call() for _ in range(6)))
    bulkhead.release(1.0)
    bulkhead.release(1.0)
    for call in calls[:4]:  # each permit goes on to the next one in line
        assert call.has_permit
        bulkhead.leave(call, 1.0)
    assert [call.has_permit for call in calls] == [True] * 6
    assert (bulkhead.in_use, bulkhead.waiting) == (2, 0)


def test_trap_double_release_raises_and_changes_nothing():
    bulkhead = Bulkhead(BulkheadPolicy(permits=1), name="warehouse")
    assert bulkhead.try_acquire(0.0)
    bulkhead.release(0.0)
    with pytest.raises(RuntimeError, match="warehouse"):
        bulkhead.release(0.0)
    assert bulkhead.in_use == 0
    assert [bulkhead.try_acquire(0.0) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("tenant", "fallback"), [("b", False), (None, True)])
def test_releasing_with_labels_that_nobody_holds_raises_and_changes_nothing(tenant, fallback):
    bulkhead = full()
    with pytest.raises(RuntimeError):
        bulkhead.release(0.0, tenant=tenant, fallback=fallback)
    assert bulkhead.in_use == 1


def test_trap_a_full_queue_leaks_no_permit():
    bulkhead = full(queue=1)
    (waiting,) = queued(bulkhead, Call())
    for _ in range(10):
        with pytest.raises(QueueFull):
            bulkhead.enqueue(Call(), 0.0)
    bulkhead.release(1.0)
    assert waiting.has_permit
    bulkhead.release(2.0)
    assert (bulkhead.in_use, bulkhead.waiting) == (0, 0)


def test_trap_timed_out_queued_work_never_runs():
    bulkhead = full(max_wait=1.0)
    late, later = queued(bulkhead, Call(), Call(deadline=0.5))
    (fresh,) = queued(bulkhead, Call(), now=0.9)
    bulkhead.release(1.0)
    assert isinstance(late.error, QueueTimeout)
    assert isinstance(later.error, Doomed)
    assert late.error.downstream == later.error.downstream == "warehouse"
    assert fresh.has_permit


def test_leaving_is_idempotent():
    bulkhead = full()
    waiting, other = queued(bulkhead, Call(), Call())
    for _ in range(3):
        bulkhead.leave(waiting, 1.0)
    assert bulkhead.waiting == 1
    bulkhead.release(1.0)
    assert other.has_permit
    for _ in range(3):
        bulkhead.leave(other, 1.0)
    assert (bulkhead.in_use, bulkhead.waiting) == (0, 0)
    bulkhead.leave(Call(), 1.0)  # one that never came
    assert bulkhead.in_use == 0


def test_a_waiter_is_enqueued_once_only():
    bulkhead = full()
    (call,) = queued(bulkhead, Call())
    with pytest.raises(RuntimeError):
        bulkhead.enqueue(call, 0.0)
    assert bulkhead.waiting == 1


def test_a_free_permit_is_granted_at_enqueue():
    bulkhead = Bulkhead(BulkheadPolicy(permits=1))
    first, second = queued(bulkhead, Call(), Call())
    assert first.has_permit
    assert second.told == []


def test_callbacks_may_call_back():
    bulkhead = full(queue=3)
    first, second, third = (Call(name=name) for name in "abc")
    first.when_granted = lambda: bulkhead.release(1.0)  # done at once
    second.when_granted = lambda: bulkhead.leave(third, 1.0)
    queued(bulkhead, first, second, third)
    bulkhead.release(1.0)
    assert (first.has_permit, second.has_permit, third.told) == (True, True, [])
    assert (bulkhead.in_use, bulkhead.waiting) == (1, 0)


def test_a_long_chain_of_calls_that_end_at_once_is_no_recursion():
    bulkhead = full(queue=5000)
    calls = [Call() for _ in range(5000)]
    for call in calls:
        call.when_granted = lambda: bulkhead.release(1.0)
    queued(bulkhead, *calls)
    bulkhead.release(1.0)
    assert all(call.has_permit for call in calls)
    assert bulkhead.in_use == 0


def test_a_waiter_that_cannot_take_its_permit_does_not_take_it_from_the_others():
    bulkhead = full()
    broken, fine = Call(), Call()

    def fail() -> None:
        raise OSError

    broken.when_granted = fail
    queued(bulkhead, broken, fine)
    with pytest.raises(OSError):  # noqa: PT011 - nothing but the type is its own
        bulkhead.release(1.0)
    assert fine.has_permit
    assert (bulkhead.in_use, bulkhead.waiting) == (1, 0)


def test_every_interleaving_of_three_calls_returns_every_permit():
    """Each of three calls comes, then ends or is cancelled; all orders of these six steps, with one permit and two."""
    steps = [(call, step) for call in range(3) for step in ("come", "go")]
    orders = [
        order
        for order in itertools.permutations(steps)
        if all(order.index((call, "come")) < order.index((call, "go")) for call in range(3))
    ]
    assert len(orders) == 90
    for order, permits, cancelled in itertools.product(orders, (1, 2), range(8)):
        bulkhead = Bulkhead(BulkheadPolicy(permits=permits, queue=1))
        calls: dict[int, Call | None] = {}
        for now, (number, step) in enumerate(order):
            if step == "come":
                calls[number] = Call()
                if bulkhead.try_acquire(now):
                    calls[number] = None
                else:
                    try:
                        bulkhead.enqueue(calls[number], now)
                    except QueueFull:
                        del calls[number]
            elif number in calls:
                call = calls.pop(number)
                if call is None or (call.has_permit and not cancelled >> number & 1):
                    bulkhead.release(now)
                else:
                    bulkhead.leave(call, now)
            running = sum(call is None or call.has_permit for call in calls.values())
            assert bulkhead.in_use == running <= permits
            assert bulkhead.waiting == len(calls) - running
            assert not bulkhead.waiting or bulkhead.in_use == permits
        assert (bulkhead.in_use, bulkhead.waiting) == (0, 0)


# --- order ---------------------------------------------------------------------------------------------------------


def test_first_come_first_served():
    bulkhead = full()
    calls = queued(bulkhead, *(Call() for _ in range(5)))
    assert serve(bulkhead, calls) == calls


def test_priorities_come_first_and_fallen_back_traffic_ranks_below_first_choice():
    bulkhead = full(fallback_share=1.0, normal_share=0.0)
    ranked = [
        Call(CRITICAL),
        Call(CRITICAL, fallback=True),
        Call(NORMAL),
        Call(NORMAL, fallback=True),
        Call(OPTIONAL),
        Call(OPTIONAL, fallback=True),
    ]
    queued(bulkhead, *reversed(ranked))
    assert serve(bulkhead, ranked) == ranked


@pytest.mark.parametrize(("share", "every"), [(0.1, 10), (0.25, 4), (0.5, 2)])
def test_normal_keeps_its_share_of_grants_while_critical_floods(share, every):
    bulkhead = full(normal_share=share, queue=1000)
    calls = queued(bulkhead, *(Call(priority) for _ in range(100) for priority in (CRITICAL, NORMAL)))
    order = serve(bulkhead, calls)[:100]
    normal = [index for index, call in enumerate(order) if call.priority == NORMAL]
    assert normal == list(range(every - 1, 100, every))


def test_without_a_share_normal_waits_for_all_of_critical():
    bulkhead = full(normal_share=0.0)
    normal, *critical = queued(bulkhead, Call(NORMAL), *(Call(CRITICAL) for _ in range(50)))
    assert serve(bulkhead, [*critical, normal])[-1] is normal


def test_a_flood_of_critical_calls_leaves_normal_its_places():
    """Or its share of the grants would be worth nothing: it would be evicted before its turn."""
    bulkhead = full(queue=20, normal_share=0.1)
    normal = queued(bulkhead, *(Call(NORMAL) for _ in range(20)))
    critical = queued(bulkhead, *(Call(CRITICAL) for _ in range(18)))
    assert [call.error is not None for call in normal] == [True] * 18 + [False] * 2
    with pytest.raises(QueueFull):
        bulkhead.enqueue(Call(CRITICAL), 0.0)
    assert not any(call.told for call in critical)
    served = serve(bulkhead, [*critical, *normal[18:]])
    assert [call.priority for call in served[:10]].count(NORMAL) == 1


def test_critical_calls_do_not_fill_the_places_kept_for_normal():
    bulkhead = full(queue=20, normal_share=0.1)
    queued(bulkhead, *(Call(CRITICAL) for _ in range(18)))
    with pytest.raises(QueueFull):
        bulkhead.enqueue(Call(CRITICAL), 0.0)
    queued(bulkhead, Call(NORMAL), Call(OPTIONAL))
    assert bulkhead.waiting == 20


def test_normal_traffic_that_fell_back_has_the_share_of_normal_while_it_may_have_a_permit():
    bulkhead = full(permits=2, normal_share=0.5, fallback_share=0.5)
    fallen = queued(bulkhead, *(Call(NORMAL, fallback=True) for _ in range(3)))
    critical = queued(bulkhead, *(Call(CRITICAL) for _ in range(4)))
    for _ in range(2):
        bulkhead.release(0.0)
    assert [call.has_permit for call in (critical[0], fallen[0])] == [True, True]
    for _ in range(2):  # it holds its one permit, so the rest is CRITICAL's
        bulkhead.release(0.0)
        assert bulkhead.try_acquire(0.0) is False
    assert [call.has_permit for call in fallen] == [True, False, False]


def test_a_share_that_normal_does_not_need_is_not_saved_up():
    bulkhead = full(normal_share=0.5, queue=100)
    critical = queued(bulkhead, *(Call(CRITICAL) for _ in range(20)))
    serve(bulkhead, critical[:20])
    more = queued(bulkhead, *(Call(CRITICAL) for _ in range(6)), *(Call(NORMAL) for _ in range(6)))
    assert sum(call.priority == NORMAL for call in serve(bulkhead, more)[:4]) == 2


def test_tenants_take_turns():
    bulkhead = full(tenant_share=1.0)
    flood = queued(bulkhead, *(Call(tenant="flood", name="flood") for _ in range(6)))
    others = queued(bulkhead, Call(tenant="b", name="b"), Call(tenant="c", name="c"), Call(tenant="b", name="b"))
    order = serve(bulkhead, flood + others)
    assert [call.name for call in order] == ["flood", "b", "c", "flood", "b", "flood", "flood", "flood", "flood"]


def test_a_tenant_that_always_waits_goes_after_those_that_come_now_and_then():
    bulkhead = full()
    flood = queued(bulkhead, *(Call(tenant="flood", name="flood") for _ in range(40)))
    served = serve(bulkhead, flood[:30])
    assert len(served) == 30
    others = queued(bulkhead, *(Call(tenant=name, name=name) for name in "bcbcb"))
    bulkhead.release(0.0, tenant="flood")
    order = serve_from(bulkhead, others)
    assert order == ["b", "c", "b", "c", "b"], "the flood had more than its part: none of its ten comes between"


def test_a_tenant_goes_before_a_flood_only_until_it_had_its_even_part():
    bulkhead = full(tenant_share=1.0)
    calls = queued(bulkhead, *(Call(tenant="flood", name="flood") for _ in range(140)))
    serve(bulkhead, calls[:64])
    late = queued(bulkhead, *(Call(tenant="late", name="late") for _ in range(76)))
    bulkhead.release(0.0, tenant="flood")
    order = serve_from(bulkhead, [*calls[64:], *late], 70)
    assert order[:32] == ["late"] * 32, "half of the last 64 are forgotten"
    assert order[33:69] == ["late", "flood"] * 18 or order[33:69] == ["flood", "late"] * 18, "and then by turns"


def test_a_tenant_holds_at_most_its_share_of_the_queue():
    bulkhead = full(queue=8, tenant_share=0.5)
    queued(bulkhead, *(Call(tenant="a") for _ in range(4)))
    with pytest.raises(QueueFull) as refused:
        bulkhead.enqueue(Call(tenant="a"), 0.0)
    assert "tenant" in refused.value.message
    queued(bulkhead, *(Call(tenant="b") for _ in range(4)))
    assert bulkhead.waiting == 8


def test_a_tenant_with_a_full_share_evicts_only_its_own():
    bulkhead = full(queue=8, tenant_share=0.5)
    own, *_ = queued(bulkhead, *(Call(OPTIONAL, tenant="a") for _ in range(4)))
    (other,) = queued(bulkhead, Call(OPTIONAL, tenant="b"))
    queued(bulkhead, Call(NORMAL, tenant="a"))
    assert isinstance(own.error, Evicted)
    assert other.told == []


def test_traffic_without_a_tenant_is_not_bound_by_a_tenants_share():
    bulkhead = full(queue=8)
    queued(bulkhead, *(Call() for _ in range(8)))
    assert bulkhead.waiting == 8


def test_a_tenant_over_its_share_of_permits_loses_its_turn_while_others_wait():
    bulkhead = Bulkhead(BulkheadPolicy(permits=4, tenant_share=0.5))
    assert all(bulkhead.try_acquire(0.0, tenant="a") for _ in range(4))  # nobody waits: all of them
    more, other = queued(bulkhead, Call(tenant="a"), Call(tenant="b"))
    bulkhead.release(0.0, tenant="a")
    assert other.has_permit  # "a" came first, but has three
    assert more.told == []
    bulkhead.release(0.0, tenant="a")
    assert more.has_permit  # nobody else waits


def test_fallen_back_traffic_gets_at_most_its_share_of_permits_even_when_there_are_free_ones():
    bulkhead = Bulkhead(BulkheadPolicy(permits=4, fallback_share=0.5))
    assert [bulkhead.try_acquire(0.0, fallback=True) for _ in range(3)] == [True, True, False]
    (waiting,) = queued(bulkhead, Call(fallback=True))
    assert waiting.told == []
    assert bulkhead.try_acquire(0.0)  # first-choice traffic passes by those who may not have it
    assert not bulkhead.try_acquire(0.0, fallback=True)
    bulkhead.release(0.0, fallback=True)
    assert waiting.has_permit


def test_a_fallback_share_of_nothing_never_serves_it():
    bulkhead = Bulkhead(BulkheadPolicy(permits=4, fallback_share=0.0))
    assert not bulkhead.try_acquire(0.0, fallback=True)
    (waiting,) = queued(bulkhead, Call(fallback=True))
    assert waiting.told == []


# --- places --------------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_with_the_usual_time_until_a_place_is_free():
    bulkhead = full(permits=2, queue=1)
    learn(bulkhead, 3.0)
    queued(bulkhead, Call())
    with pytest.raises(QueueFull) as refused:
        bulkhead.enqueue(Call(), 0.0)
    assert refused.value.retry_after == 1.5  # two permits, three seconds each
    assert refused.value.downstream == "warehouse"


def test_retry_after_is_given_before_anything_is_known():
    bulkhead = full(queue=0)
    with pytest.raises(QueueFull) as refused:
        bulkhead.enqueue(Call(), 0.0)
    assert refused.value.retry_after == 1.0


def test_a_full_queue_evicts_the_oldest_of_the_lowest_priority():
    bulkhead = full(queue=4, normal_share=0.0)
    normal, first, second, fallen = queued(
        bulkhead, Call(NORMAL), Call(OPTIONAL), Call(OPTIONAL), Call(OPTIONAL, fallback=True)
    )
    queued(bulkhead, Call(NORMAL))
    assert isinstance(fallen.error, Evicted)
    queued(bulkhead, Call(CRITICAL))
    assert isinstance(first.error, Evicted)
    queued(bulkhead, Call(CRITICAL))
    assert isinstance(second.error, Evicted)
    queued(bulkhead, Call(CRITICAL))
    assert isinstance(normal.error, Evicted)
    with pytest.raises(QueueFull):
        bulkhead.enqueue(Call(NORMAL), 0.0)
    assert bulkhead.waiting == 4


def test_the_dead_make_room_before_anybody_is_evicted_or_refused():
    bulkhead = full(queue=2)
    dead, alive = queued(bulkhead, Call(deadline=1.0), Call(OPTIONAL))
    (new,) = queued(bulkhead, Call(), now=1.0)
    assert isinstance(dead.error, Doomed)
    assert alive.told == new.told == []


def test_waiters_expire_by_deadline_or_bound_whichever_is_first():
    bulkhead = full(max_wait=2.0)
    soon, later, never = queued(bulkhead, Call(deadline=1.0), Call(deadline=5.0), Call())
    bulkhead.expire(0.999)
    assert bulkhead.waiting == 3
    bulkhead.expire(1.0)
    assert isinstance(soon.error, Doomed)
    bulkhead.expire(2.0)
    assert isinstance(later.error, QueueTimeout)
    assert isinstance(never.error, QueueTimeout)
    assert never.error.retry_after is not None
    assert bulkhead.waiting == 0


def test_those_who_expire_together_leave_in_the_order_in_which_they_came():
    bulkhead = full(max_wait=1.0)
    left: list[str] = []
    for name in "abc":
        call = Call(name=name)
        call.when_rejected = lambda name=name: left.append(name)
        queued(bulkhead, call)
    bulkhead.expire(1.0)
    assert left == ["a", "b", "c"]


def test_an_opening_breaker_rejects_everybody_with_an_error_of_their_own():
    bulkhead = full()
    calls = queued(bulkhead, *(Call(priority, tenant=tenant) for priority in range(3) for tenant in (None, "a")))
    assert bulkhead.reject_all(lambda: BreakerOpen(retry_after=5.0), 1.0) == 6
    assert len({id(call.error) for call in calls}) == 6
    assert bulkhead.waiting == 0
    bulkhead.release(1.0)
    assert not any(call.has_permit for call in calls)


# --- the gate ------------------------------------------------------------------------------------------------------


def test_the_gate_is_asked_at_dequeue_and_an_error_refuses_that_waiter():
    asked: list[Waiter] = []

    def gate(waiter: Waiter, now: float) -> FailsoftError | None:
        asked.append(waiter)
        return BreakerOpen() if len(asked) == 1 else None

    bulkhead = full(gate=gate)
    first, second = queued(bulkhead, Call(), Call())
    assert asked == []
    bulkhead.release(1.0)
    assert isinstance(first.error, BreakerOpen)
    assert second.has_permit
    assert asked == [first, second]


def test_a_gate_that_says_not_now_keeps_everybody_in_place_until_it_is_asked_again():
    answers = [NOT_NOW, None]
    bulkhead = full(gate=lambda waiter, now: answers.pop(0))
    first, second = queued(bulkhead, Call(), Call())
    bulkhead.release(1.0)
    assert (bulkhead.in_use, first.told, second.told) == (0, [], [])
    assert bulkhead.grant(2.0) == 1
    assert first.has_permit


def test_a_gate_that_rejects_everybody_while_it_is_asked_grants_nobody():
    def gate(waiter: Waiter, now: float) -> FailsoftError | None:
        bulkhead.reject_all(BreakerOpen, now)
        return None

    bulkhead = full(gate=gate)
    calls = queued(bulkhead, Call(), Call())
    bulkhead.release(1.0)
    assert [type(call.error) for call in calls] == [BreakerOpen] * 2
    assert (bulkhead.in_use, bulkhead.waiting) == (0, 0)


# --- doomed --------------------------------------------------------------------------------------------------------


def test_a_call_that_cannot_make_it_is_refused_at_enqueue():
    bulkhead = full(explore_interval=math.inf)
    learn(bulkhead, 1.0)
    queued(bulkhead, Call(), Call())
    assert bulkhead.predicted_wait(0.0) == 3.0
    with pytest.raises(Doomed) as refused:
        bulkhead.enqueue(Call(deadline=3.9), 0.0)
    assert refused.value.details == {"expected_s": 4.0, "remaining_s": 3.9}
    queued(bulkhead, Call(deadline=4.1))


def test_a_call_without_any_budget_is_refused_even_when_nothing_is_known():
    bulkhead = full()
    with pytest.raises(Doomed):
        bulkhead.enqueue(Call(deadline=0.0), 0.0)


def test_nobody_is_doomed_by_few_samples():
    bulkhead = full(explore_interval=math.inf)
    learn(bulkhead, 1.0, times=19)
    (call,) = queued(bulkhead, Call(deadline=0.5))
    bulkhead.release(0.1, latency=None)
    assert call.has_permit


def test_a_call_that_has_become_doomed_is_refused_at_dequeue():
    bulkhead = full(explore_interval=math.inf)
    learn(bulkhead, 1.0)
    late, fine = queued(bulkhead, Call(deadline=2.5), Call(deadline=9.0))
    bulkhead.release(1.6, latency=1.0)
    assert isinstance(late.error, Doomed)
    assert fine.has_permit


def test_one_exploratory_call_per_interval_keeps_a_wrong_estimate_from_locking_out():
    bulkhead = full(explore_interval=1.0)
    learn(bulkhead, 60.0)  # it was hung, and is fine by now
    let_in = 0
    for tenth in range(600):
        now = tenth / 10
        call = Call(deadline=now + 1.0)
        try:
            bulkhead.enqueue(call, now)
        except Doomed:
            continue
        let_in += 1
        bulkhead.release(now, latency=0.01)
        assert call.has_permit
    assert let_in > 500
    assert bulkhead.service_time == 0.01


def test_estimates_age():
    bulkhead = full(explore_interval=math.inf)
    learn(bulkhead, 2.0)
    with pytest.raises(Doomed):
        bulkhead.enqueue(Call(deadline=21.0), 20.0)
    queued(bulkhead, Call(deadline=32.0), now=31.0)
    assert bulkhead.service_time is None


def test_cancelled_calls_are_no_samples_but_timed_out_ones_are():
    bulkhead = full()
    learn(bulkhead, 1.0)
    for _ in range(100):
        bulkhead.release(0.0, latency=0.001, counts="neutral")
        bulkhead.try_acquire(0.0)
    assert bulkhead.service_time == 1.0
    for _ in range(64):
        bulkhead.release(0.0, latency=5.0, counts="timeout")
        bulkhead.try_acquire(0.0)
    assert bulkhead.service_time == 5.0


def test_a_few_hung_calls_do_not_doom_the_others():
    bulkhead = full(permits=8, explore_interval=math.inf)
    for index in range(64):
        bulkhead.release(0.0, latency=30.0 if index % 16 == 0 else 0.05)
        bulkhead.try_acquire(0.0)
    assert bulkhead.service_time == 0.05
    queued(bulkhead, Call(deadline=1.0))


def test_predicted_wait_counts_those_ahead_by_priority():
    bulkhead = full(permits=2, normal_share=0.0)
    learn(bulkhead, 1.0)
    queued(bulkhead, Call(CRITICAL), Call(CRITICAL), Call(NORMAL), Call(OPTIONAL))
    assert [bulkhead.predicted_wait(0.0, priority) for priority in range(3)] == [1.5, 2.0, 2.5]
    assert Bulkhead(BulkheadPolicy()).predicted_wait(0.0) == 0.0


def test_predicted_wait_of_normal_is_bounded_by_its_share():
    bulkhead = full(normal_share=0.25, queue=1000)
    learn(bulkhead, 1.0)
    queued(bulkhead, *(Call(CRITICAL) for _ in range(100)))
    assert bulkhead.predicted_wait(0.0, NORMAL) == 4.0
    assert bulkhead.predicted_wait(0.0, CRITICAL) == 101.0
    assert bulkhead.predicted_wait(0.0, OPTIONAL) == 101.0


def test_an_exploratory_call_is_not_refused_while_the_gate_makes_it_wait():
    answers = [NOT_NOW, NOT_NOW, None]
    bulkhead = full(gate=lambda waiter, now: answers.pop(0), explore_interval=1.0)
    learn(bulkhead, 1.0)
    (call,) = queued(bulkhead, Call(deadline=9.0))
    bulkhead.release(8.5, latency=1.0)
    bulkhead.grant(8.6)
    assert call.told == []
    bulkhead.grant(8.7)
    assert call.has_permit


# --- overload ------------------------------------------------------------------------------------------------------


def flooded(seconds: float = 10.0) -> tuple[Bulkhead, list[Call], list[Call], float]:
    """Two calls come for each that can be served, until the queue has stood long enough."""
    bulkhead = full(queue=1000, codel_target=0.1, codel_interval=1.0)
    calls: list[Call] = []
    order: list[Call] = []
    now = 0.0
    for tick in range(int(seconds * 20)):
        now = tick / 20
        calls += queued(bulkhead, Call(), now=now)
        if tick % 2:
            before = {id(call) for call in calls if call.has_permit}
            bulkhead.release(now, latency=0.1)
            order += [call for call in calls if call.has_permit and id(call) not in before]
    return bulkhead, calls, order, now


def test_a_short_burst_is_served_first_come_first_served():
    bulkhead = full(queue=1000, codel_target=0.1, codel_interval=1.0)
    calls = queued(bulkhead, *(Call() for _ in range(9)))
    order = []
    for tenth in range(1, 10):
        bulkhead.release(tenth / 10, latency=0.1)
        order += [call for call in calls if call.has_permit and call not in order]
    assert order == calls
    assert bulkhead.statistics(1.0).shed == 0


def test_newest_first_is_for_the_tenant_that_floods_not_for_the_others():
    bulkhead = full(queue=1000, codel_target=0.1, codel_interval=1.0)
    floods: list[Call] = []
    now = 0.0
    for tick in range(100):
        now = tick / 20
        floods += queued(bulkhead, Call(tenant="flood"), now=now)
        if tick % 2:
            bulkhead.release(now, latency=0.1, tenant=None if tick == 1 else "flood")
    assert bulkhead.statistics(now).overloaded
    small = queued(bulkhead, Call(tenant="small"), Call(tenant="small"), now=now)
    bulkhead.release(now, tenant="flood")
    assert [call.has_permit for call in small] == [True, False], "in its own order"
    bulkhead.release(now, tenant="small")
    assert small[1].has_permit


def test_a_standing_queue_is_served_newest_first_and_sheds_its_oldest():
    bulkhead, calls, order, now = flooded()
    statistics = bulkhead.statistics(now)
    assert statistics.overloaded
    assert "overloaded" in repr(bulkhead)
    assert now - order[-1].enqueued_at < 0.1, "the last one served had only just come"
    assert order[0] is calls[0]
    shed = [call for call in calls if isinstance(call.error, Evicted)]
    assert len(shed) == statistics.shed > 10
    waiting = [call for call in calls if not call.told]
    assert max(call.enqueued_at for call in shed) <= min(call.enqueued_at for call in waiting)


def test_shedding_starts_slowly_and_at_most_one_per_served_call():
    _, calls, order, _ = flooded(seconds=3.0)
    assert 1 <= sum(call.error is not None for call in calls) <= 4
    _, calls, order, _ = flooded(seconds=60.0)
    assert sum(call.error is not None for call in calls) <= len(order)


def test_the_last_waiter_is_never_shed():
    bulkhead = full(codel_target=0.1, codel_interval=0.1)
    for second in range(1, 20):
        (call,) = queued(bulkhead, Call(), now=float(second))
        bulkhead.release(second + 0.9, latency=0.1)
        assert call.has_permit


def test_an_overload_that_returns_soon_is_shed_at_the_rate_it_had():
    codel = CoDel()
    for tenth in range(100):
        codel.observe(tenth / 10, 1.0, 0.1, 1.0)
    count = codel.count
    assert count > 10
    assert not codel.observe(10.0, 0.0, 0.1, 1.0)
    shed = [codel.observe(10.1 + tenth / 10, 1.0, 0.1, 1.0) for tenth in range(12)]
    assert shed.index(True) == 10  # after an interval above target
    assert codel.count == count - 2
    codel.calm(12.0, 1.0)
    for tenth in range(12):
        codel.observe(100.0 + tenth / 10, 1.0, 0.1, 1.0)
    assert codel.count == 1, "long after, it starts over"


def test_overload_ends_when_the_queue_has_drained():
    bulkhead, *_, now = flooded()
    while bulkhead.waiting:
        now += 0.1
        bulkhead.release(now, latency=0.1)
    first, second = queued(bulkhead, Call(), Call(), now=now)
    assert not bulkhead.statistics(now).overloaded
    bulkhead.release(now + 0.1, latency=0.1)
    assert first.has_permit
    assert second.told == []


def test_newest_first_keeps_goodput_where_first_come_first_served_loses_it():
    def goodput(target: float) -> float:
        bulkhead = full(queue=1000, codel_target=target, codel_interval=1.0, explore_interval=math.inf)
        calls: list[Call] = []
        served = 0
        for tick in range(2000):  # a call takes 0.1 s, comes each 0.05 s and is worth nothing after 2 s
            now = tick / 20
            call = Call()
            calls.append(call)
            bulkhead.enqueue(call, now) if bulkhead.waiting < 1000 else None
            if tick % 2:
                before = {id(one) for one in calls if one.has_permit}
                bulkhead.release(now, latency=None)
                served += sum(one.has_permit and id(one) not in before and now - one.enqueued_at < 1.9 for one in calls)
                calls = [one for one in calls if not one.told]
        return served / 1000

    assert goodput(target=1e9) < 0.1
    assert goodput(target=0.1) > 0.9


def test_under_newest_first_a_call_is_doomed_by_its_service_alone():
    bulkhead, *_, now = flooded()
    learn_at = now
    for _ in range(64):
        bulkhead.release(learn_at, latency=0.1)
    assert bulkhead.predicted_wait(now) == pytest.approx(0.1)
    (call,) = queued(bulkhead, Call(deadline=now + 0.5), now=now)
    bulkhead.release(now + 0.05, latency=0.1)
    assert call.has_permit


def test_target_and_interval_scale_with_service_time():
    bulkhead = full(queue=1000)
    learn(bulkhead, 2.0)
    calls = queued(bulkhead, *(Call() for _ in range(10)))
    for second in range(2, 20, 2):  # ten calls of two seconds on one permit: nothing that a burst would not do
        bulkhead.release(float(second), latency=2.0)
    assert [call.has_permit for call in calls] == [True] * 9 + [False]
    assert not bulkhead.statistics(20.0).overloaded


# --- settings, looking -----------------------------------------------------------------------------------------------


def test_fewer_permits_come_by_draining_and_more_are_granted_at_once():
    bulkhead = full(permits=4)
    calls = queued(bulkhead, *(Call() for _ in range(4)))
    bulkhead.reconfigure(BulkheadPolicy(permits=2), 0.0)
    assert (bulkhead.in_use, bulkhead.limit) == (4, 2)
    bulkhead.release(1.0)
    bulkhead.release(1.0)
    assert (bulkhead.in_use, bulkhead.waiting) == (2, 4)
    bulkhead.release(1.0)
    assert [call.has_permit for call in calls] == [True, False, False, False]
    bulkhead.reconfigure(BulkheadPolicy(permits=5), 2.0)
    assert [call.has_permit for call in calls] == [True] * 4


def test_a_smaller_queue_throws_nobody_out_and_admits_nobody_until_it_has_shrunk():
    bulkhead = full(queue=4)
    calls = queued(bulkhead, *(Call() for _ in range(4)))
    bulkhead.reconfigure(BulkheadPolicy(permits=1, queue=2), 0.0)
    assert bulkhead.waiting == 4
    with pytest.raises(QueueFull):
        bulkhead.enqueue(Call(), 0.0)
    for _ in range(3):
        bulkhead.release(0.0)
    queued(bulkhead, Call())
    assert calls[2].has_permit


def test_a_new_bound_on_waiting_holds_for_those_who_wait():
    bulkhead = full()
    (call,) = queued(bulkhead, Call())
    bulkhead.reconfigure(BulkheadPolicy(permits=1, max_wait=5.0), 1.0)
    bulkhead.expire(4.9)
    assert call.told == []
    bulkhead.expire(5.0)
    assert isinstance(call.error, QueueTimeout)
    (late,) = queued(bulkhead, Call(), now=6.0)
    bulkhead.reconfigure(BulkheadPolicy(permits=1, max_wait=0.5), 7.0)
    assert isinstance(late.error, QueueTimeout)
    (patient,) = queued(bulkhead, Call(), now=10.0)
    bulkhead.reconfigure(BulkheadPolicy(permits=1), 11.0)
    bulkhead.expire(1e9)
    assert patient.told == []


def test_an_adaptive_limit_is_kept_through_a_reconfiguration_and_given_up_for_a_fixed_one():
    policy = BulkheadPolicy(permits=8, adaptive=AdaptiveLimitPolicy(minimum=2, maximum=20))
    bulkhead = Bulkhead(policy)
    assert bulkhead.limit == 8
    assert "adaptive" in repr(bulkhead)
    bulkhead.reconfigure(replace(policy, permits=12, adaptive=AdaptiveLimitPolicy(minimum=2, maximum=6)), 0.0)
    assert bulkhead.limit == 6
    bulkhead.reconfigure(BulkheadPolicy(permits=12), 0.0)
    assert bulkhead.limit == 12


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"permits": 0}, "permits"),
        ({"queue": -1}, "queue"),
        ({"normal_share": 1.5}, "normal_share"),
        ({"normal_share": 0.95}, "normal_share"),
        ({"tenant_share": -0.1}, "tenant_share"),
        ({"fallback_share": math.nan}, "fallback_share"),
        ({"max_wait": -1.0}, "max_wait"),
        ({"codel_interval": math.nan}, "codel_interval"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, key):
    with pytest.raises(ConfigError) as refused:
        BulkheadPolicy(**settings)
    assert refused.value.param == key


def test_statistics_and_repr_say_its_state():
    bulkhead = full(permits=2, queue=3)
    queued(bulkhead, Call(CRITICAL), Call(NORMAL, fallback=True), now=1.0)
    statistics = bulkhead.statistics(4.0)
    assert (statistics.in_use, statistics.limit, statistics.waiting) == (2, 2, 2)
    assert statistics.waiting_by_priority == (1, 1, 0)
    assert statistics.oldest_wait == 3.0
    assert statistics.fallback_waiting == 1
    assert statistics.service_time is None
    assert repr(bulkhead) == "<Bulkhead 'warehouse' 2/2 waiting=2>"
    assert repr(Call(tenant="a", fallback=True)) == "<Call new normal fallback tenant='a' since=0>"


def test_statistics_count_how_waiters_ended():
    answers: list[FailsoftError | None] = [BreakerOpen(), None]
    bulkhead = full(gate=lambda waiter, now: answers.pop(0), queue=6, max_wait=5.0, explore_interval=math.inf)
    learn(bulkhead, 1.0)
    queued(bulkhead, Call(OPTIONAL), *(Call() for _ in range(5)))
    evictor, doomed = Call(), Call(deadline=0.5)
    queued(bulkhead, evictor)
    for call, error in ((doomed, Doomed), (Call(), QueueFull)):
        with pytest.raises(error):
            bulkhead.enqueue(call, 0.0)
    bulkhead.leave(evictor, 0.0)
    bulkhead.release(1.0)
    (short,) = queued(bulkhead, Call(deadline=6.0), now=1.0)
    bulkhead.expire(5.0)
    bulkhead.expire(6.0)
    assert isinstance(short.error, Doomed)
    statistics = bulkhead.statistics(6.0)
    assert statistics.waiting == 0
    assert statistics.evicted == 1
    assert statistics.queue_full == 1
    assert statistics.left == 1
    assert statistics.refused == 1
    assert statistics.granted == 1
    assert statistics.timed_out == 3
    assert statistics.doomed == 2
    assert statistics.shed == 0


# --- scale ---------------------------------------------------------------------------------------------------------


def crowd(waiting: int) -> Bulkhead:
    bulkhead = full(permits=8, queue=1_000_000)
    for index in range(waiting):
        bulkhead.enqueue(Waiter(deadline=1e6 + index, tenant=f"t{index % 100}"), 0.0)
    return bulkhead


def test_a_hundred_thousand_waiters_do_not_slow_the_next_operation():
    """Counted, not timed: no operation looks at more than a handful of waiters. ``bench`` has the times."""
    bulkhead = crowd(20_000)
    looked_at = 0

    class Counted(Waiter):
        def __getattribute__(self, name: str) -> object:
            nonlocal looked_at
            looked_at += name == "enqueued_at"
            return super().__getattribute__(name)

    for _ in range(100):
        waiter = Counted(deadline=1e7)
        bulkhead.enqueue(waiter, 0.0)
        bulkhead.predicted_wait(0.0)
        bulkhead.oldest_wait(0.0)
        bulkhead.leave(waiter, 0.0)
        bulkhead.release(0.0, latency=None)
        assert not bulkhead.try_acquire(0.0)
    assert looked_at < 1000

    def once() -> None:
        waiter = Waiter(deadline=1e7)
        bulkhead.enqueue(waiter, 0.0)
        bulkhead.leave(waiter, 0.0)

    assert min(timeit.repeat(once, number=200, repeat=5)) / 200 < 0.001  # a scan of 20 000 would take longer


def test_a_waiter_takes_little_memory():
    gc.collect()
    tracemalloc.start()
    bulkhead = crowd(5_000)
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert bulkhead.waiting == 5_000
    assert current / 5_000 < 800


def test_waiters_that_come_and_go_leave_nothing_behind():
    bulkhead = full()
    for index in range(2_000):
        call = Call(index % 3, tenant=f"tenant {index}", deadline=1e6)
        bulkhead.enqueue(call, 0.0)
        bulkhead.leave(call, 0.0)
    assert bulkhead.waiting == 0
    gc.collect()
    assert sum(type(thing) is Call for thing in gc.get_objects()) < 200
