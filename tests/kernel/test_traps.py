"""Every trap of the kernel that docs/architecture.md lists has a test that is named for it: here, or where the table
says. A trap without a test fails, and so does a test that is gone.
"""

import ast
import asyncio
import functools
import re
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from failsoft.base.errors import (
    AttemptTimeout,
    BreakerOpen,
    CallTimeout,
    DeadlineExceeded,
    QueueFull,
    QueueTimeout,
    ToolFailed,
)
from failsoft.kernel.breaker import BreakerPolicy, ProbeCap
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Kernel, guard
from failsoft.kernel.policy import HedgePolicy, Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.timeout import AdaptiveTimeoutPolicy
from failsoft.testing.clock import VirtualEvent

ROOT = Path(__file__).parents[2]

BREAKER = "tests/kernel/test_breaker_traps.py::test_trap_"
BULKHEAD = "tests/kernel/test_bulkhead.py::test_trap_"
GUARD = "tests/kernel/test_guard.py::test_"
HEDGE = "tests/kernel/test_hedge.py::test_"
HERE = "tests/kernel/test_traps.py::test_trap_"
CANCELLED = "tests/cancellation/test_guarded_call.py::test_"

TRAPS = {
    "Breaker": {
        "Half-open admits everybody": [BREAKER + "half_open_admits_everybody"],
        "A lost or cancelled probe sticks, or decides": [
            BREAKER + "a_lost_probe_sticks",
            BREAKER + "a_cancelled_probe_decides",
            CANCELLED + "a_probe_of_a_half_open_breaker",
        ],
        "Multi-gate admission leaks the first gate when the second refuses": [
            BREAKER + "multi_gate_admission_leaks_the_first_gate_when_the_second_refuses",
            HERE + "a_permit_leaks_when_the_breaker_refuses_after_it",
        ],
        "Cancellation is counted, either way": [
            BREAKER + "cancellation_counted_either_way",
            GUARD + "a_cancelled_call_is_neither_success_nor_failure",
        ],
        "Results of an earlier state are counted in this one": [
            BREAKER + "results_of_an_earlier_state_counted_in_this_one",
            HERE + "a_late_result_of_an_earlier_state_decides",
        ],
        "Hung calls are invisible until they end": [
            BREAKER + "hung_calls_invisible_until_they_end",
            GUARD + "hung_calls_count_while_they_are_in_flight",
        ],
        "The ratio is compared with `>`, so 1.0 never trips": [
            BREAKER + "ratio_compared_with_greater_than_so_that_1_never_trips"
        ],
        "Low traffic never reaches the minimum volume": [BREAKER + "low_traffic_never_reaches_the_minimum_volume"],
        "The wall clock is used": [BREAKER + "wall_clock_and_global_chance", HERE + "the_wall_clock_is_used"],
        "Full load arrives at the instant of closing": [BREAKER + "full_load_at_the_instant_of_closing"],
        "A listener is awaited in mid-transition": [BREAKER + "awaiting_a_listener_in_mid_transition"],
        "Any single success resets a consecutive count that should roll": [
            BREAKER + "any_single_success_resets_a_consecutive_count_that_should_roll"
        ],
    },
    "Permits": {
        "A two-step acquire loses one on cancel": [
            BULKHEAD + "two_step_acquire_loses_none_on_cancel",
            CANCELLED + "waiting_for_a_permit",
        ],
        "Grant-then-cancel loses a wake-up": [
            BULKHEAD + "grant_then_cancel_loses_no_wake_up",
            HERE + "grant_then_cancel_loses_a_wake_up",
        ],
        "A shielded acquire succeeds for a dead caller": [HERE + "a_shielded_acquire_succeeds_for_a_dead_caller"],
        "`except Exception` misses cancellation": [
            HERE + "except_exception_misses_cancellation",
            CANCELLED + "a_plain_call",
        ],
        "A permit is released twice": [
            BULKHEAD + "double_release_raises_and_changes_nothing",
            HERE + "a_permit_is_released_twice",
        ],
        "Queue-full leaks": [BULKHEAD + "a_full_queue_leaks_no_permit", HERE + "queue_full_leaks"],
        "Timed-out queued work still runs": [
            BULKHEAD + "timed_out_queued_work_never_runs",
            GUARD + "a_deadline_in_the_queue_names_the_run",
        ],
        "An HTTP pool slot is kept after cancel": [HERE + "an_http_pool_slot_is_kept_after_cancel"],
        "`cancelling()` is left non-zero": [HERE + "cancelling_is_left_non_zero"],
        "Primitives are bound to the wrong loop": [GUARD + "a_guard_moves_to_a_new_loop_and_refuses_two_at_once"],
    },
    "Retry and deadline": {
        "Sleeping past the deadline": [HERE + "sleeping_past_the_deadline"],
        "Layers of retries that multiply": [HERE + "layers_of_retries_multiply"],
        "Back-offs not counted against the budget": [HERE + "backoffs_not_counted_against_the_budget"],
        "`Retry-After` obeyed beyond the deadline": [
            GUARD + "retry_after_is_honoured_up_to_the_budget_and_never_slept_past_it"
        ],
        "Overflow of exponential back-off": [
            "tests/kernel/test_retry.py::test_backoff_never_overflows_nor_exceeds_its_cap"
        ],
        "Detached work that inherits a dead deadline": [
            "tests/kernel/test_deadline.py::test_detached_work_does_not_inherit_a_dead_deadline",
            "tests/kernel/test_cache.py::test_a_flight_has_no_callers_deadline",
        ],
    },
    "Adaptive limits": {
        "Samples of cancelled losers and timeouts dropped or truncated": [
            HERE + "samples_of_cancelled_losers_and_timeouts_dropped_or_truncated",
            "tests/kernel/test_latency.py::test_samples_cut_early_do_not_make_the_downstream_look_fast",
            "tests/kernel/test_latency.py::test_a_limit_that_cuts_calls_does_not_talk_itself_ever_shorter",
        ],
        "A lucky minimum poisons the baseline": [
            "tests/kernel/test_adaptive.py::test_trap_a_lucky_minimum_does_not_poison_the_baseline"
        ],
        "The slow baseline adapts, so the breaker never trips": [
            HERE + "the_slow_baseline_adapts_so_the_breaker_never_trips"
        ],
        "Everything is hedged in a global slowdown": [
            HEDGE + "in_a_global_slowdown_hedges_keep_to_their_share_and_primaries_are_unharmed"
        ],
        "An exhausted hedge budget fails the primary": [HERE + "an_exhausted_hedge_budget_fails_the_primary"],
    },
    "Threads": {
        "They outlive their timeouts, exhaust the pool, and hold permits that nobody sees": [
            HERE + "threads_outlive_their_timeouts_exhaust_the_pool_and_hold_permits_nobody_sees",
            "tests/kernel/test_threads.py::test_a_thread_that_hangs_is_an_orphan_that_holds_its_permit_until_it_ends",
            "tests/kernel/test_threads.py::test_an_orphan_never_blocks_the_exit_of_a_process",
        ]
    },
}


@functools.cache
def names_in(file):
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}


def listed():
    """Section and trap, as docs/architecture.md lists them."""
    text = (ROOT / "docs/architecture.md").read_text().split("\n## Traps\n")[1].split("\n## ")[0]
    for paragraph in text.split("\n\n"):
        if match := re.match(r"\*\*(.+?)\.\*\* (.+)", " ".join(paragraph.split())):
            for trap in re.split(r"\. (?=[A-Z`])", match[2].removesuffix(".")):
                yield match[1], trap


def test_every_trap_of_the_kernel_is_in_the_table():
    ours = {(section, trap) for section, trap in listed() if section in TRAPS}
    assert ours == {(section, trap) for section, traps in TRAPS.items() for trap in traps}


@pytest.mark.parametrize(
    ("trap", "nodes"),
    [pytest.param(trap, nodes, id=trap) for traps in TRAPS.values() for trap, nodes in traps.items()],
)
def test_the_trap_has_its_tests(trap, nodes):
    assert nodes
    for node in nodes:
        file, _, name = node.partition("::")
        assert name in names_in(file), node


# --- those that are about the whole ------------------------------------------------------------------------------

PLAIN = Policy(
    call_timeout=None,
    retry=RetryPolicy(queries=0),
    breaker=BreakerPolicy(ramp=0.0, open_jitter=0.0),
    bulkhead=BulkheadPolicy(permits=1, queue=2),
)
RETRY = RetryPolicy(queries=3, base=0.5, spread=0.0, room=0.0)


async def answer(value="ok"):
    return value


async def hang():
    await asyncio.sleep(10_000)


async def lost():
    raise ConnectionResetError


def held(one):
    figures = one.statistics()
    return figures.in_use, figures.waiting, figures.orphans, len(one.holders())


NOTHING = (0, 0, 0, 0)


async def test_trap_a_permit_leaks_when_the_breaker_refuses_after_it():
    kernel = Kernel(probes=ProbeCap(1))
    a, b = (kernel.guard(name, replace(PLAIN, bulkhead=BulkheadPolicy(permits=2, queue=2))) for name in "ab")
    for one in (a, b):
        one.bind()
        one.breaker.force_open(0.0, for_=0.0)
    probe = asyncio.create_task(a.call(asyncio.sleep, 1.0))
    await asyncio.sleep(0.5)
    with pytest.raises(BreakerOpen):
        await b.call(answer)
    ramping = guard("c", replace(PLAIN, breaker=BreakerPolicy(ramp=100.0)))
    ramping.bind()
    ramping.breaker.force_open(0.0)
    ramping.breaker.force_close(0.5)
    ends = await asyncio.gather(*(ramping.call(answer) for _ in range(8)), return_exceptions=True)
    assert any(isinstance(end, BreakerOpen) for end in ends)  # the ramp says so only after the permit was taken
    await probe
    assert held(a) == held(b) == held(ramping) == NOTHING


async def test_trap_a_late_result_of_an_earlier_state_decides():
    policy = replace(PLAIN, bulkhead=BulkheadPolicy(permits=4), breaker=replace(PLAIN.breaker, consecutive_failures=1))
    one = guard("d", replace(policy, breaker=replace(policy.breaker, open_for=1.0, open_max=1.0)))
    loop = asyncio.get_running_loop()
    early = [asyncio.create_task(one.call(asyncio.sleep, seconds)) for seconds in (1.5, 2.5)]
    await asyncio.sleep(0)
    with pytest.raises(ConnectionResetError):
        await one.call(lost)
    await asyncio.sleep(1.25)
    probe = asyncio.create_task(one.call(asyncio.sleep, 9.0))
    await asyncio.gather(*early)
    assert (str(one.breaker.state), loop.time()) == ("half_open", 2.5)  # two good ones of the closed state: no matter
    probe.cancel()
    await asyncio.wait([probe])
    assert str(one.breaker.state) == "half_open"


def test_trap_the_wall_clock_is_used():
    clocks = {"time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "now", "utcnow", "today"}
    allowed = {
        # Outside of the loop's thread there is no loop whose time could be asked for.
        "watchdog.py", "processes.py", "worker.py", "child.py", "descendants.py", "keeper.py",
    }  # fmt: skip
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted((ROOT / "src/failsoft/kernel").glob("*.py"))
        if path.name not in allowed
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in clocks
        if isinstance(node.value, ast.Name) and node.value.id in {"time", "datetime", "date"}
    ]
    assert not found


async def test_trap_grant_then_cancel_loses_a_wake_up():
    one = guard("d", PLAIN)
    loop = asyncio.get_running_loop()
    assert one.bulkhead.try_acquire(loop.time())
    first, second = (asyncio.create_task(one.call(answer)) for _ in range(2))
    await asyncio.sleep(0)
    one.bulkhead.release(loop.time())  # granted to the first,
    first.cancel()  # which is gone before it knows
    assert await second == "ok"
    assert first.cancelled()
    assert held(one) == NOTHING


async def test_trap_a_shielded_acquire_succeeds_for_a_dead_caller():
    one = guard("d", PLAIN)
    holder = asyncio.create_task(one.call(asyncio.sleep, 1.0))
    await asyncio.sleep(0)
    started = []

    async def callee():
        started.append(1)

    waiting = asyncio.create_task(one.call(callee))
    await asyncio.sleep(0.5)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert held(one)[1] == 0
    await holder
    await asyncio.sleep(5.0)
    assert not started
    assert held(one) == NOTHING


async def test_trap_except_exception_misses_cancellation():
    class Odd(BaseException):
        pass

    async def raises(error):
        raise error

    one = guard("d", PLAIN)
    for error in (asyncio.CancelledError(), Odd(), GeneratorExit(), SystemExit(), KeyboardInterrupt()):
        with pytest.raises((type(error), ToolFailed)):
            await one.call(raises, error)
        assert held(one) == NOTHING
    assert one.statistics().attempts == 5


async def test_trap_a_permit_is_released_twice():
    one = guard("d", replace(PLAIN, detachable=True, attempt_timeout=1.0, bulkhead=BulkheadPolicy(permits=2)))

    async def deaf():
        try:
            await asyncio.sleep(5.0)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)

    holder = asyncio.create_task(one.call(asyncio.sleep, 0.75))
    with pytest.raises(AttemptTimeout):
        await one.call(deaf)
    await holder
    second = asyncio.create_task(one.call(asyncio.sleep, 0.9))
    await asyncio.sleep(0.5)
    assert one.statistics().in_use == 2  # the orphan's, and the second's
    await second
    await asyncio.sleep(2.0)
    assert held(one) == NOTHING


async def test_trap_queue_full_leaks():
    one = guard("d", replace(PLAIN, bulkhead=BulkheadPolicy(permits=1, queue=1)))
    calls = [asyncio.create_task(one.call(asyncio.sleep, 1.0)) for _ in range(5)]
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends[2:]] == [QueueFull] * 3
    assert held(one) == NOTHING
    assert await one.call(answer) == "ok"


@pytest.mark.realtime
async def test_trap_an_http_pool_slot_is_kept_after_cancel():
    over = asyncio.Event()

    async def handler(request):
        if request.path == "/hang":
            await over.wait()
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/{path}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    one = guard("d", replace(PLAIN, attempt_timeout=0.2))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:

        async def get(path):
            async with session.get(base + path) as response:
                return await response.text()

        for _ in range(2):
            with pytest.raises(AttemptTimeout):
                await one.call(get, "/hang")
        one.reconfigure(replace(PLAIN, attempt_timeout=5.0))
        assert await one.call(get, "/quick") == "ok"
        assert not session.connector._acquired
    over.set()
    await runner.cleanup()


async def test_trap_cancelling_is_left_non_zero():
    task = asyncio.current_task()
    one = guard("d", replace(PLAIN, attempt_timeout=1.0, breaker=None, retry=replace(RETRY, queries=1)))

    async def swallows():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "late"

    async def replaces():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise KeyError from None

    for callee in (hang, swallows, replaces):
        with pytest.raises(AttemptTimeout):
            await one.call(callee)
        assert task.cancelling() == 0
        with pytest.raises(CallTimeout):
            await one.call(callee, timeout=0.5)
        assert task.cancelling() == 0
        with pytest.raises(DeadlineExceeded):
            async with deadline_scope(0.5):
                await one.call(callee)
        assert task.cancelling() == 0
    one.reconfigure(replace(PLAIN, bulkhead=BulkheadPolicy(permits=1, queue=1, max_wait=0.5)))
    holder = asyncio.create_task(one.call(asyncio.sleep, 5.0))
    await asyncio.sleep(0)
    with pytest.raises(QueueTimeout):
        await one.call(answer)
    with pytest.raises(CallTimeout):
        await one.call(answer, timeout=0.25)
    assert task.cancelling() == 0
    await holder
    assert held(one) == NOTHING


async def test_trap_sleeping_past_the_deadline():
    one = guard("d", replace(PLAIN, retry=RETRY))
    loop = asyncio.get_running_loop()
    with pytest.raises(ConnectionResetError):
        async with deadline_scope(0.5):  # exactly the pause: nothing would be left
            await one.call(lost)
    assert loop.time() == 0.0
    with pytest.raises(ConnectionResetError):
        async with deadline_scope(0.75):
            await one.call(lost)
    assert loop.time() == 0.5


async def test_trap_layers_of_retries_multiply():
    policy = replace(PLAIN, breaker=None, retry=replace(RETRY, base=0.0), bulkhead=BulkheadPolicy(permits=8))
    outer, middle, inner = (guard(name, policy) for name in "omi")
    tries = 0

    async def dead():
        nonlocal tries
        tries += 1
        raise ConnectionRefusedError

    for _ in range(300):
        with pytest.raises(ConnectionRefusedError):
            await outer.call(middle.call, inner.call, dead)
    assert tries <= 300 * 1.1**3 + 3 * 4 * 1.1**2  # and not 300 * 4**3
    assert held(outer) == held(inner) == NOTHING


async def test_trap_backoffs_not_counted_against_the_budget():
    one = guard("d", replace(PLAIN, call_timeout=2.0, retry=RETRY))
    loop, tries = asyncio.get_running_loop(), []

    async def busy():
        tries.append(loop.time())
        await asyncio.sleep(0.25)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await one.call(busy)
    # 0.25, pause 0.5, 0.25, pause 1.0: that pause would end at 2.0
    assert (tries, loop.time()) == ([0.0, 0.75], 1.0)


async def test_trap_samples_of_cancelled_losers_and_timeouts_dropped_or_truncated():
    policy = replace(
        PLAIN,
        bulkhead=BulkheadPolicy(permits=4),
        hedge=HedgePolicy(minimum=0.25, share=1.0),
        retry_ratio=1.0,
        adaptive_timeout=AdaptiveTimeoutPolicy(floor=1.0, cap=4.0, window=1e6),
    )
    one = guard("d", policy)
    loop = asyncio.get_running_loop()
    for _ in range(40):
        await one.call(asyncio.sleep, 0.125)
    histogram = one.latency.histogram

    def figures():
        one.latency.refresh(loop.time())
        return histogram.count(loop.time()), histogram.count(loop.time(), censored=False)

    legs = iter([5.0, 0.125] * 10)

    async def race():
        await asyncio.sleep(next(legs))

    every, whole = figures()
    for _ in range(10):
        await one.call(race)
    after = figures()
    assert after[0] - every == pytest.approx(20, abs=0.5)  # ten winners, and ten losers that took longer than they had
    assert after[1] - whole == pytest.approx(10, abs=0.5)
    every, whole = after
    limit = one.latency.current
    with pytest.raises(AttemptTimeout):
        await one.call(hang, kind="action")
    after = figures()
    assert after[0] - every == pytest.approx(1, abs=0.5)
    assert after[1] - whole == pytest.approx(0, abs=0.5)
    assert one.latency.current >= limit


async def test_trap_the_slow_baseline_adapts_so_the_breaker_never_trips():
    policy = replace(
        PLAIN,
        adaptive_timeout=AdaptiveTimeoutPolicy(floor=0.25, cap=10.0, window=20.0),
        breaker=BreakerPolicy(
            window=60.0, minimum=10, slow_threshold=2.0, slow_ratio=0.5, failure_ratio=None, ramp=0.0
        ),
    )
    one = guard("d", policy)
    seconds = 0.125
    while str(one.breaker.state) == "closed" and seconds < 9.0:
        try:
            await one.call(asyncio.sleep, seconds)
        except BreakerOpen:
            break
        seconds *= 1.02  # so slowly that every learned limit follows
    assert str(one.breaker.state) == "open"
    assert 2.0 < seconds < 3.0


async def test_trap_an_exhausted_hedge_budget_fails_the_primary():
    one = guard("d", replace(PLAIN, hedge=HedgePolicy(share=0.0), bulkhead=BulkheadPolicy(permits=4)))
    for _ in range(40):
        await one.call(asyncio.sleep, 0.125)
    for _ in range(5):
        assert await one.call(asyncio.sleep, 1.0, "late but whole") == "late but whole"
    assert one.statistics().hedges == 1  # the reserve, and no more


async def test_trap_threads_outlive_their_timeouts_exhaust_the_pool_and_hold_permits_nobody_sees():
    kernel = Kernel()
    policy = replace(PLAIN, attempt_timeout=1.0, bulkhead=BulkheadPolicy(permits=3, queue=0))
    hanging, other = (kernel.guard(name, policy) for name in ("hanging", "other"))
    go, loop = VirtualEvent(), asyncio.get_running_loop()
    ends = await asyncio.gather(*(hanging.call_sync(go.wait) for _ in range(3)), return_exceptions=True)
    assert [type(end) for end in ends] == [AttemptTimeout] * 3
    assert loop.time() == 1.0
    assert [(holder.orphan, holder.age) for holder in hanging.orphans()] == [(True, 1.0)] * 3  # seen,
    assert all(holder.where for holder in hanging.orphans())
    with pytest.raises(QueueFull):  # bounded,
        await hanging.call_sync(int)
    assert [await other.call_sync(int) for _ in range(5)] == [0] * 5  # and nobody else's
    go.set()
    await asyncio.sleep(1.0)
    assert held(hanging) == held(other) == NOTHING
    await kernel.aclose()
