"""The guard: limits, admission, retries and their ends, in the one order."""

import asyncio
from dataclasses import replace

import pytest

from failsoft.base.errors import (
    AttemptTimeout,
    BadInput,
    BreakerOpen,
    CallTimeout,
    DeadlineExceeded,
    DownstreamUnavailable,
    EmptyResult,
    FailsoftError,
    QueueFull,
    QueueTimeout,
    ToolFailed,
    Unaffordable,
)
from failsoft.base.events import EventBus
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.classify import Counts, Verdict
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Kernel, guard
from failsoft.kernel.policy import Policy, preset
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.scope import current_scope, scope
from failsoft.kernel.timeout import AdaptiveTimeoutPolicy

PLAIN = Policy(
    retry=RetryPolicy(queries=0),
    breaker=BreakerPolicy(ramp=0.0, open_jitter=0.0),
    bulkhead=BulkheadPolicy(permits=2, queue=2),
)


async def echo(value):
    return value


async def hang():
    await asyncio.sleep(10_000)


def idle(one):
    """Nothing is held: what every test ends with."""
    figures = one.statistics()
    return (
        figures.in_use,
        figures.waiting,
        figures.orphans,
        len(one.holders()),
        asyncio.current_task().cancelling(),
    ) == (
        0,
        0,
        0,
        0,
        0,
    )


async def test_a_call_returns_what_the_callee_returns():
    g = guard("d", PLAIN)
    assert await g.call(echo, 42) == 42
    assert g.statistics().ok == 1
    assert idle(g)


async def test_what_the_callee_raises_is_raised_unchanged():
    g = guard("d", PLAIN)

    async def broken():
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        await g.call(broken)
    assert g.statistics().failed == 1
    assert idle(g)


async def test_a_callee_that_cannot_even_be_called_gives_its_permit_back():
    g = guard("d", PLAIN)
    with pytest.raises(TypeError):
        await g.call(echo)
    assert idle(g)


async def test_the_attempt_limit_cancels_the_callee_and_counts_as_a_timeout():
    g = guard("d", replace(PLAIN, attempt_timeout=2.0, call_timeout=8.0))
    ended = []

    async def slow():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(asyncio.get_running_loop().time())

    with pytest.raises(AttemptTimeout) as caught:
        await g.call(slow)
    assert ended == [2.0]
    assert caught.value.downstream == "d"
    assert g.statistics().timed_out == 1
    assert idle(g)


async def test_without_an_attempt_limit_the_call_limit_is_named_and_counts():
    g = guard("d", replace(PLAIN, call_timeout=3.0))
    with pytest.raises(CallTimeout):
        await g.call(hang)
    assert asyncio.get_running_loop().time() == 3.0
    assert g.statistics().timed_out == 1
    with pytest.raises(CallTimeout):
        await g.call(hang, timeout=1.0)
    assert asyncio.get_running_loop().time() == 4.0


async def test_an_attempt_that_the_budget_cut_short_is_neutral():
    g = guard("d", replace(PLAIN, attempt_timeout=5.0))

    async def child():
        with pytest.raises(DeadlineExceeded):
            await g.call(hang)

    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(1.0):
            await g.call(hang)
    assert g.statistics().neutral == 1
    # the same in a child task, which the scope's own alarm does not reach
    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(1.0), asyncio.TaskGroup() as group:
            group.create_task(child())
    assert g.statistics().neutral == 2
    assert g.statistics().timed_out == 0
    assert idle(g)


async def test_no_call_starts_without_budget():
    g = guard("d", PLAIN)
    started = []

    async def callee():
        started.append(1)

    with pytest.raises((Unaffordable, DeadlineExceeded)):
        async with deadline_scope(0.0):
            await g.call(callee)
    assert not started
    assert g.statistics().rejected == {"unaffordable": 1}


async def test_a_call_that_usually_needs_more_is_unaffordable_but_one_may_explore():
    g = guard("d", PLAIN)
    for _ in range(20):
        await g.call(asyncio.sleep, 2.0)
    assert g.latency.typical == pytest.approx(2.0, rel=0.02)
    outcomes = []
    for _ in range(3):
        try:
            async with deadline_scope(1.0):
                await g.call(asyncio.sleep, 0.5)
            outcomes.append("served")
        except Unaffordable:
            outcomes.append("unaffordable")
    assert outcomes == ["served", "unaffordable", "unaffordable"]
    await asyncio.sleep(10.0)
    async with deadline_scope(1.0):
        await g.call(asyncio.sleep, 0.5)


async def test_calls_beyond_the_permits_wait_and_beyond_the_queue_are_refused():
    g = guard("d", PLAIN)
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(g.call(asyncio.sleep, 1.0))
        await asyncio.sleep(0)
        assert (g.statistics().in_use, g.statistics().waiting) == (2, 2)
        with pytest.raises(QueueFull):
            await g.call(echo, 1)
    assert asyncio.get_running_loop().time() == 2.0
    assert idle(g)


async def test_the_wait_for_a_permit_is_bounded():
    g = guard("d", replace(PLAIN, bulkhead=BulkheadPolicy(permits=1, queue=5, max_wait=0.5)))
    async with asyncio.TaskGroup() as group:
        group.create_task(g.call(asyncio.sleep, 2.0))
        await asyncio.sleep(0)
        with pytest.raises(QueueTimeout):
            await g.call(echo, 1)
        assert asyncio.get_running_loop().time() == 0.5
        with pytest.raises(CallTimeout):
            await g.call(echo, 1, timeout=0.25)
    assert idle(g)


async def test_a_deadline_in_the_queue_names_the_run():
    g = guard("d", replace(PLAIN, bulkhead=BulkheadPolicy(permits=1, queue=5)))
    async with asyncio.TaskGroup() as group:
        group.create_task(g.call(asyncio.sleep, 2.0))
        await asyncio.sleep(0)
        started = []

        async def callee():
            started.append(1)

        with pytest.raises(DeadlineExceeded):
            async with deadline_scope(1.0):
                await g.call(callee)
        assert g.statistics().waiting == 0
    await asyncio.sleep(5.0)
    assert not started  # timed-out queued work never runs
    assert idle(g)


async def test_a_query_is_retried_after_its_backoff_and_an_action_is_not():
    g = guard("d", replace(PLAIN, retry=RetryPolicy(queries=2, base=1.0, spread=0.0)))
    tries = []

    async def flaky():
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 3:
            raise ConnectionResetError
        return "third"

    assert await g.call(flaky) == "third"
    assert tries == [0.0, 1.0, 3.0]
    tries.clear()
    with pytest.raises(ConnectionResetError):
        await g.call(flaky, kind="action")
    assert len(tries) == 1


async def test_no_retry_starts_when_less_than_one_and_a_half_attempts_are_left():
    g = guard(
        "d", replace(PLAIN, attempt_timeout=2.0, call_timeout=5.0, retry=RetryPolicy(queries=3, base=0.5, spread=0.0))
    )
    tries = []

    async def slow():
        tries.append(asyncio.get_running_loop().time())
        await asyncio.sleep(60)

    with pytest.raises(AttemptTimeout):
        await g.call(slow)
    assert tries == [0.0]  # 3.0 left, less the pause of 0.5: below 1.5 x 2.0


async def test_retry_after_is_honoured_up_to_the_budget_and_never_slept_past_it():
    g = guard("d", replace(PLAIN, retry=RetryPolicy(queries=1, base=0.1, spread=0.0)))
    tries = []

    async def busy():
        tries.append(asyncio.get_running_loop().time())
        if len(tries) == 1:
            raise DownstreamUnavailable("later", retry_after=4.0)
        return "ok"

    assert await g.call(busy) == "ok"
    assert tries == [0.0, 4.0]
    tries.clear()
    began = asyncio.get_running_loop().time()
    with pytest.raises(DownstreamUnavailable):
        async with deadline_scope(3.0):
            await g.call(busy)
    assert asyncio.get_running_loop().time() == began


async def test_retries_add_a_tenth_of_the_load_at_most():
    g = guard("d", replace(PLAIN, breaker=None, retry=RetryPolicy(queries=3, base=0.01, spread=0.0)))
    tries = 0

    async def dead():
        nonlocal tries
        tries += 1
        raise ConnectionRefusedError

    for _ in range(200):
        with pytest.raises(ConnectionRefusedError):
            await g.call(dead)
    assert tries <= 200 * 1.1 + 4


@pytest.mark.parametrize("error", [BadInput("x"), ValueError("x")])
async def test_what_cannot_get_better_is_not_retried(error):
    g = guard("d", replace(PLAIN, retry=RetryPolicy(queries=3)))
    tries = []

    async def wrong():
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        await g.call(wrong)
    assert len(tries) == 1


async def test_the_callers_faults_and_rejections_do_not_open_the_breaker():
    g = guard("d", replace(PLAIN, breaker=BreakerPolicy(minimum=5, consecutive_failures=5)))

    async def wrong():
        raise BadInput("bad prompt")

    for _ in range(50):
        with pytest.raises(BadInput):
            await g.call(wrong)
    assert str(g.breaker.state) == "closed"
    assert g.statistics().neutral == 50


async def test_an_open_breaker_refuses_at_once_and_closes_again_by_a_probe():
    policy = replace(
        PLAIN, breaker=BreakerPolicy(consecutive_failures=3, open_for=5.0, open_jitter=0.0, close_after=1, ramp=0.0)
    )
    g = guard("d", policy)
    healthy = False
    tries = 0

    async def flaky():
        nonlocal tries
        tries += 1
        if not healthy:
            raise ConnectionRefusedError
        return "ok"

    refused = 0
    for _ in range(20):
        with pytest.raises((ConnectionRefusedError, BreakerOpen)) as caught:
            await g.call(flaky)
        refused += isinstance(caught.value, BreakerOpen)
    assert refused > 10
    assert tries + refused == 20
    assert 0 < caught.value.retry_after <= 5.0
    await asyncio.sleep(5.0)
    healthy = True
    assert await g.call(flaky) == "ok"
    assert str(g.breaker.state) == "closed"
    assert idle(g)


async def test_an_opening_breaker_rejects_those_who_wait():
    policy = replace(PLAIN, breaker=BreakerPolicy(consecutive_failures=1), bulkhead=BulkheadPolicy(permits=1, queue=5))
    g = guard("d", policy)

    async def dies():
        await asyncio.sleep(1.0)
        raise ConnectionRefusedError

    results = await asyncio.gather(*(g.call(dies) for _ in range(4)), return_exceptions=True)
    assert [type(r) for r in results] == [ConnectionRefusedError, BreakerOpen, BreakerOpen, BreakerOpen]
    assert asyncio.get_running_loop().time() == 1.0
    assert idle(g)


async def test_hung_calls_count_while_they_are_in_flight():
    policy = replace(
        PLAIN,
        breaker=BreakerPolicy(minimum=3, failure_ratio=0.5, inflight_age=1.0, ramp=0.0),
        bulkhead=BulkheadPolicy(permits=10, queue=0),
    )
    g = guard("d", policy)
    async with asyncio.TaskGroup() as group:
        hanging = [group.create_task(g.call(hang)) for _ in range(4)]
        await asyncio.sleep(1.5)
        with pytest.raises(BreakerOpen):
            await g.call(echo, 1)
            await g.call(echo, 1)
        for task in hanging:
            task.cancel()
    assert idle(g)


async def test_a_callee_that_cancels_itself_has_failed_and_nobody_else_is_cancelled():
    g = guard("d", PLAIN)

    async def selfish():
        raise asyncio.CancelledError

    with pytest.raises(ToolFailed, match="by the callee"):
        await g.call(selfish)
    assert g.statistics().failed == 1
    assert idle(g)


async def test_a_cancelled_call_is_neither_success_nor_failure():
    g = guard("d", PLAIN)
    task = asyncio.create_task(g.call(hang))
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    figures = g.statistics()
    assert (figures.ok, figures.failed, figures.timed_out, figures.neutral) == (0, 0, 0, 1)
    assert idle(g)


async def test_a_callee_that_swallows_its_timeout_and_answers_late_is_not_a_success():
    g = guard("d", replace(PLAIN, attempt_timeout=1.0))

    async def stubborn():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "late"

    with pytest.raises(AttemptTimeout):
        await g.call(stubborn)
    assert idle(g)


async def test_a_detachable_callee_is_left_behind_at_its_limit_and_keeps_its_permit_until_it_ends():
    g = guard("d", replace(PLAIN, attempt_timeout=1.0, detachable=True))

    async def deaf():
        for _ in range(5):
            try:
                await asyncio.sleep(1.0)
            except asyncio.CancelledError:
                continue

    with pytest.raises(AttemptTimeout):
        await g.call(deaf)
    assert asyncio.get_running_loop().time() == 1.0
    assert [h.orphan for h in g.holders()] == [True]
    assert g.statistics().orphans == 1
    assert g.statistics().in_use == 1
    await asyncio.sleep(10.0)
    assert idle(g)


async def test_a_classifier_can_call_a_value_bad_and_have_it_retried():
    g = guard("d", replace(PLAIN, retry=RetryPolicy(queries=1, base=0.1, spread=0.0)))
    answers = iter(["", "full"])

    async def fetch():
        return next(answers)

    def empty_is_suspicious(result, error):
        if error is None and result == "":
            return Verdict(Counts.NEUTRAL, retry=True, error=EmptyResult("nothing in it"), suspicious=True)
        return None

    assert await g.call(fetch, classify=empty_is_suspicious) == "full"
    answers = iter([""] * 3)
    with pytest.raises(EmptyResult):
        await g.call(fetch, classify=empty_is_suspicious, kind="action")
    assert str(g.breaker.state) == "closed"


async def test_the_idempotency_key_is_the_same_in_every_attempt():
    g = guard("d", replace(PLAIN, retry=RetryPolicy(queries=1, base=0.1, spread=0.0)))
    keys = []

    async def act():
        keys.append(current_scope().idempotency_key)
        if len(keys) < 2:
            raise ConnectionResetError

    await g.call(act, idempotency_key="k1")
    assert keys == ["k1", "k1"]
    assert current_scope().idempotency_key is None


async def test_a_stopped_process_opens_no_breaker():
    g = guard(
        "d",
        replace(
            PLAIN,
            attempt_timeout=1.0,
            breaker=BreakerPolicy(consecutive_timeouts=1),
            bulkhead=BulkheadPolicy(permits=50),
        ),
    )
    loop = asyncio.get_running_loop()
    loop.call_at(0.5, loop.stall, 5.0)
    results = await asyncio.gather(*(g.call(hang) for _ in range(20)), return_exceptions=True)
    assert {type(r) for r in results} == {AttemptTimeout}
    assert str(g.breaker.state) == "closed"
    assert g.statistics().timed_out == 0
    assert idle(g)


async def test_a_result_that_had_arrived_during_a_stall_is_taken():
    g = guard("d", replace(PLAIN, attempt_timeout=1.0))
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    loop.call_at(0.9, arrived.set_result, "answer")
    loop.call_at(0.5, loop.stall, 5.0)

    async def read():
        return await arrived

    assert await g.call(read) == "answer"
    assert idle(g)


async def test_a_callee_that_blocks_the_loop_past_the_runs_deadline_is_late():
    g = guard("d", PLAIN)
    loop = asyncio.get_running_loop()

    async def blocks():
        loop.stall(3.0)
        return "late"

    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(1.0):
            await g.call(blocks)
    assert g.statistics().timed_out == 0
    assert idle(g)


async def test_an_interceptor_runs_in_place_of_the_callee_inside_the_attempt():
    g = guard("d", replace(PLAIN, attempt_timeout=1.0))

    async def hanging(fn, *args):
        await asyncio.sleep(60)

    async def doubling(fn, *args):
        return 2 * await fn(*args)

    g.interceptor = hanging
    with pytest.raises(AttemptTimeout):
        await g.call(echo, 1)
    g.interceptor = doubling
    assert await g.call(echo, 21) == 42
    assert await g.call_sync(lambda: 21) == 42


async def test_events_tell_each_attempt_and_a_listener_that_raises_breaks_nothing():
    seen = []
    bus = EventBus()

    def broken(event):
        raise RuntimeError

    bus.add(broken)
    bus.add(seen.append)
    g = Kernel(bus=bus).guard("d", replace(PLAIN, breaker=BreakerPolicy(consecutive_failures=1)))
    with scope(run="r1", task="t1", tenant="acme"):
        await g.call(echo, 1)
        with pytest.raises(ConnectionError):
            await g.call(fail_to_connect)
        with pytest.raises(BreakerOpen):
            await g.call(echo, 1)
    assert [e.kind for e in seen] == ["attempt.finished", "breaker.open", "attempt.finished", "call.rejected"]
    assert {(e.downstream, e.run, e.task, e.tenant) for e in seen} == {("d", "r1", "t1", "acme")}
    assert bus.errors == 4


async def fail_to_connect():
    raise ConnectionRefusedError


async def test_reconfiguring_keeps_the_state_and_shrinks_by_draining():
    g = guard("d", PLAIN)
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(g.call(asyncio.sleep, 1.0))
        await asyncio.sleep(0)
        g.reconfigure(replace(PLAIN, bulkhead=BulkheadPolicy(permits=1, queue=5)))
        assert (g.statistics().in_use, g.statistics().limit) == (2, 1)
        group.create_task(g.call(echo, 1))
    assert g.statistics().ok == 3
    assert idle(g)


async def test_a_kernel_hands_out_one_guard_for_each_name():
    kernel = Kernel()
    assert kernel.guard("a", "data") is kernel.guard("a")
    assert kernel.guard("a").policy == preset("data")
    kernel.guard("a", "core")
    assert kernel.guard("a").policy == preset("core")
    assert list(kernel.guards) == ["a"]
    assert repr(kernel.guard("a")) == "<Guard a closed in_use=0/64 waiting=0 calls=0>"
    with pytest.raises(ValueError, match="there are core, data"):
        preset("nope")
    await kernel.aclose()


async def test_a_learned_limit_takes_the_place_of_the_fixed_one():
    g = guard("d", replace(PLAIN, adaptive_timeout=AdaptiveTimeoutPolicy(floor=1.0, cap=3.0)))
    for _ in range(50):
        await g.call(asyncio.sleep, 0.05)
    began = asyncio.get_running_loop().time()
    with pytest.raises(AttemptTimeout):
        await g.call(hang)
    assert asyncio.get_running_loop().time() - began == pytest.approx(1.0)


async def test_all_errors_are_failsofts_own_where_we_made_them():
    for one in (AttemptTimeout, CallTimeout, DeadlineExceeded):
        assert issubclass(one, FailsoftError)
        assert issubclass(one, TimeoutError)


def test_a_guard_moves_to_a_new_loop_and_refuses_two_at_once():
    g = guard("d", PLAIN)
    assert asyncio.run(g.call(echo, 1)) == 1
    assert asyncio.run(g.call(echo, 2)) == 2
