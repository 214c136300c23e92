"""Every trap that other breakers fell into, by name, and what half-open, hung and ramping calls may do."""

import ast
import asyncio
import random
from itertools import pairwise
from pathlib import Path

import pytest

from failsoft.kernel import breaker as breaker_module
from failsoft.kernel import breaker_policy, probes, window
from failsoft.kernel.breaker import Breaker, BreakerPolicy, BreakerState, ProbeCap

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
QUIET = {"failure_ratio": None, "consecutive_timeouts": None, "consecutive_failures": None, "open_jitter": 0.0}


def breaker_with(*, on_transition=None, probe_cap=None, name="db", **figures):
    policy = BreakerPolicy(**{**QUIET, **figures})
    return Breaker(policy, rng=random.Random(7), name=name, on_transition=on_transition, probe_cap=probe_cap)


def fail(breaker, now, times=1, counts="failed"):
    for _ in range(times):
        breaker.settle(breaker.standing, counts, 0.01, now)
    return breaker.state


def opened(now=0.0, **figures):
    breaker = breaker_with(**{"failures": 1, **figures})
    assert fail(breaker, now) is OPEN
    return breaker


def closed_again(now=5.0, **figures):
    breaker = opened(**{"close_after": 1, **figures})
    breaker.settle(breaker.admit(now), "ok", 0.01, now)
    assert breaker.state is CLOSED
    return breaker


def taken(breaker, now, times):
    return [admission for _ in range(times) if (admission := breaker.admit(now)) is not None]


# --- half-open admits everybody -------------------------------------------------------------------------------------


def test_trap_half_open_admits_everybody():
    breaker = opened(probes=3)
    admitted = taken(breaker, 5.0, 1000)
    assert len(admitted) == 3
    assert all(each.probe for each in admitted)
    assert len({each.lease for each in admitted}) == 3


def test_a_probe_left_over_from_an_earlier_round_still_holds_its_place():
    breaker = opened(probes=2, probe_lease=100.0)
    first, second = taken(breaker, 5.0, 2)
    breaker.settle(first, "failed", 0.1, 5.0)
    assert breaker.state is OPEN
    assert len(taken(breaker, 50.0, 10)) == 1
    breaker.settle(second, "ok", 45.0, 50.0)
    assert len(taken(breaker, 50.0, 10)) == 1


def test_probes_left_over_when_it_closes_count_against_the_next_round():
    breaker = opened(probes=2, close_after=1, ramp=0.0, probe_lease=100.0)
    first, _ = taken(breaker, 5.0, 2)
    breaker.settle(first, "ok", 0.1, 5.0)
    assert breaker.state is CLOSED
    fail(breaker, 5.0)
    assert len(taken(breaker, 60.0, 10)) == 1


# --- a lost or cancelled probe sticks or decides --------------------------------------------------------------------


def test_trap_a_lost_probe_sticks():
    breaker = opened(probes=1, probe_lease=30.0)
    assert len(taken(breaker, 5.0, 1)) == 1
    assert breaker.admit(34.99) is None
    assert breaker.state is HALF_OPEN
    assert breaker.admit(35.0) is not None
    assert breaker.state is HALF_OPEN  # losing it decided nothing


def test_trap_a_cancelled_probe_decides():
    breaker = opened(probes=1, close_after=1)
    probe = breaker.admit(5.0)
    breaker.settle(probe, "neutral", 0.1, 6.0)
    assert breaker.state is HALF_OPEN
    assert breaker.statistics(6.0).good_probes == 0
    again = breaker.admit(6.0)  # its place is free at once
    breaker.settle(again, "ok", 0.1, 6.0)
    assert breaker.state is CLOSED


def test_a_probe_slower_than_its_lease_still_tells_its_result():
    breaker = opened(probes=1, close_after=1, probe_lease=30.0)
    slow = breaker.admit(5.0)
    other = breaker.admit(35.0)
    assert other is not None
    breaker.settle(slow, "ok", 40.0, 45.0)
    assert breaker.state is CLOSED


def test_a_late_probe_of_an_earlier_round_tells_nothing():
    breaker = opened(probes=1, close_after=1, probe_lease=30.0)
    slow = breaker.admit(5.0)
    breaker.settle(breaker.admit(35.0), "failed", 0.1, 36.0)
    breaker.admit(60.0)
    assert breaker.state is HALF_OPEN
    for counts in ("ok", "failed"):
        breaker.settle(slow, counts, 60.0, 65.0)
        assert breaker.state is HALF_OPEN


def test_the_caller_may_ask_for_a_longer_lease_but_not_for_a_shorter_one():
    breaker = opened(probes=1, probe_lease=30.0)
    breaker.admit(5.0, lease=120.0)
    assert breaker.admit(124.0) is None
    assert breaker.admit(125.0, lease=1.0) is not None
    assert breaker.admit(154.0) is None


def test_a_second_settling_of_a_probe_is_ignored():
    breaker = opened(probes=3, close_after=2)
    probe = breaker.admit(5.0)
    for _ in range(5):
        breaker.settle(probe, "ok", 0.1, 5.0)
    breaker.settle(probe, "failed", 0.1, 5.0)
    assert breaker.state is HALF_OPEN
    assert breaker.statistics(5.0).good_probes == 1
    assert len(taken(breaker, 5.0, 10)) == 3


def test_an_expired_probe_tells_its_result_once():
    breaker = opened(probes=1, close_after=2, probe_lease=30.0)
    slow = breaker.admit(5.0)
    breaker.admit(35.0)
    for _ in range(3):
        breaker.settle(slow, "ok", 40.0, 45.0)
    assert breaker.state is HALF_OPEN
    assert breaker.statistics(45.0).good_probes == 1


def test_an_expired_probe_that_hangs_is_still_a_bad_one():
    breaker = opened(probes=1, probe_lease=2.0, inflight_age=3.0)
    slow = breaker.admit(5.0)
    breaker.admit(7.0)
    breaker.hung(slow, 8.0)
    assert breaker.state is OPEN


def test_a_lease_is_over_at_its_very_end():
    cap = ProbeCap()
    assert cap.limit == 8
    breaker = opened(probe_cap=cap, probe_lease=2.0)
    breaker.admit(5.0)
    assert (cap.in_use(6.9), breaker.statistics(6.9).probes) == (1, 1)
    assert (cap.in_use(7.0), breaker.statistics(7.0).probes) == (0, 0)


def test_expired_leases_are_remembered_in_bounds():
    breaker = opened(probes=1, probe_lease=1.0, close_after=1)
    probes_taken = [breaker.admit(5.0 + n) for n in range(200)]
    assert len(breaker._probes._expired) == 64
    breaker.settle(probes_taken[0], "failed", 1.0, 300.0)  # forgotten
    assert breaker.state is HALF_OPEN
    breaker.settle(probes_taken[150], "failed", 1.0, 300.0)
    assert breaker.state is OPEN


# --- cancellation, earlier states -----------------------------------------------------------------------------------


def test_trap_cancellation_counted_either_way():
    breaker = breaker_with(failures=3, failure_ratio=0.5, minimum=4, consecutive_failures=3, consecutive_timeouts=3)
    fail(breaker, 0.0, 2)
    before = breaker.statistics(0.0)
    for _ in range(100):
        breaker.settle(breaker.standing, "neutral", 99.0, 0.0)
    assert breaker.statistics(0.0) == before
    assert fail(breaker, 0.0) is OPEN


def test_trap_results_of_an_earlier_state_counted_in_this_one():
    breaker = breaker_with(failures=2, close_after=1, ramp=0.0)
    old = breaker.standing
    fail(breaker, 0.0, 2)
    breaker.settle(breaker.admit(5.0), "ok", 0.1, 5.0)
    assert breaker.state is CLOSED
    assert breaker.standing is not old
    for counts in ("failed", "timeout", "ok"):
        breaker.settle(old, counts, 9.0, 5.0)
        breaker.hung(old, 5.0)
        breaker.settle(old, counts, 9.0, 5.0, hung_counted=True)
    assert breaker.state is CLOSED
    assert breaker.statistics(5.0).calls == 0
    assert fail(breaker, 5.0) is CLOSED  # and what opened it is forgotten, too
    assert fail(breaker, 5.0) is OPEN


def test_results_of_the_closed_state_do_not_decide_half_open():
    breaker = opened(close_after=1)
    old = breaker.standing._replace(generation=0)
    breaker.admit(5.0)
    for counts in ("ok", "failed", "timeout"):
        breaker.settle(old, counts, 0.1, 5.0)
    assert breaker.state is HALF_OPEN
    assert breaker.statistics(5.0).good_probes == 0


def test_the_row_of_an_earlier_state_does_not_count_in_this_one():
    breaker = breaker_with(consecutive_timeouts=2, consecutive_failures=3, close_after=1, ramp=0.0)
    fail(breaker, 0.0, 2, "timeout")
    breaker.settle(breaker.admit(5.0), "ok", 0.1, 5.0)
    assert fail(breaker, 5.0, 1, "timeout") is CLOSED
    assert fail(breaker, 5.0, 1, "timeout") is OPEN


def test_good_probes_of_an_earlier_round_do_not_count_in_this_one():
    breaker = opened(close_after=2, probes=2)
    first, second = taken(breaker, 5.0, 2)
    breaker.settle(first, "ok", 0.1, 5.0)
    breaker.settle(second, "failed", 0.1, 5.0)
    breaker.settle(breaker.admit(20.0), "ok", 0.1, 20.0)
    assert breaker.state is HALF_OPEN


# --- hung calls -----------------------------------------------------------------------------------------------------


def test_trap_hung_calls_invisible_until_they_end():
    breaker = breaker_with(slow_ratio=0.5, slow_threshold=2.0, minimum=10)
    assert breaker.policy.hung_after == 2.0
    for n in range(10):
        assert breaker.state is CLOSED, n
        breaker.hung(breaker.standing, 2.0)
    assert breaker.state is OPEN
    assert breaker.statistics(2.0).reason == "slow ratio 1 of 10 calls in 10 s (limit 0.5)"


def test_a_good_call_that_fills_the_minimum_volume_is_judged_with_the_calls_that_hang():
    breaker = breaker_with(slow_ratio=0.5, slow_threshold=2.0, minimum=20)
    for _ in range(9):
        breaker.record_ok(0.1, 2.0)
    for _ in range(10):
        breaker.hung(breaker.standing, 2.0)
    assert breaker.state is CLOSED
    breaker.record_ok(0.1, 2.0)
    assert breaker.state is OPEN


def test_a_hung_call_is_not_judged_together_with_what_has_left_the_window():
    breaker = breaker_with(failures=2, inflight_age=1.0)
    fail(breaker, 0.0)
    breaker.hung(breaker.standing, 10.0)
    assert breaker.state is CLOSED


def test_a_call_that_hung_stays_in_the_figures_for_a_window_from_its_end():
    breaker = breaker_with(slow_ratio=0.5, slow_threshold=2.0, minimum=2)
    breaker.hung(breaker.standing, 2.0)
    breaker.settle(breaker.standing, "neutral", 2.0, 11.5, hung_counted=True)
    breaker.record_ok(0.1, 13.0)
    assert breaker.state is OPEN


def test_hung_calls_count_for_as_long_as_they_hang_and_not_just_for_a_window():
    breaker = breaker_with(slow_ratio=0.5, slow_threshold=2.0, minimum=10)
    for _ in range(9):
        breaker.hung(breaker.standing, 2.0)
    assert breaker.statistics(500.0).hung == 9
    breaker.hung(breaker.standing, 500.0)
    assert breaker.state is OPEN


@pytest.mark.parametrize("counts", ["ok", "failed", "timeout", "neutral"])
@pytest.mark.parametrize("age", [None, 3.0])
def test_a_hung_call_counts_once_now_and_not_again_at_its_end(counts, age):
    breaker = breaker_with(slow_threshold=2.0, inflight_age=age, failure_ratio=0.9, slow_ratio=0.9, minimum=20)
    breaker.hung(breaker.standing, 5.0)
    shown = breaker.statistics(5.0)
    assert (shown.calls, shown.slow_ratio, shown.hung) == (1, 1.0, 1)
    assert shown.failure_ratio == (0.0 if age is None else 1.0)
    breaker.settle(breaker.standing, counts, 8.0, 8.0, hung_counted=True)
    shown = breaker.statistics(8.0)
    assert (shown.calls, shown.slow, shown.slow_ratio, shown.hung) == (1, 1, 1.0, 0)
    bad = {"ok": (0, 0), "failed": (1, 0), "timeout": (0, 1), "neutral": (0, 0)}[counts] if age is None else (0, 1)
    assert (shown.failed, shown.timeouts) == bad


def test_with_an_age_limit_hung_calls_are_timeouts_in_a_row_at_once_and_once():
    breaker = breaker_with(inflight_age=3.0, consecutive_timeouts=3)
    breaker.hung(breaker.standing, 3.0)
    breaker.settle(breaker.standing, "timeout", 5.0, 5.0, hung_counted=True)
    assert breaker.statistics(5.0).timeouts_in_row == 1
    breaker.hung(breaker.standing, 6.0)
    assert breaker.state is CLOSED
    breaker.hung(breaker.standing, 6.0)
    assert breaker.state is OPEN


def test_with_an_age_limit_hung_calls_count_as_failures_while_in_flight():
    breaker = breaker_with(inflight_age=3.0, failures=3)
    fail(breaker, 3.0)
    breaker.hung(breaker.standing, 3.0)
    assert breaker.state is CLOSED
    breaker.hung(breaker.standing, 3.0)
    assert breaker.state is OPEN
    breaker = breaker_with(inflight_age=3.0, failure_ratio=0.5, minimum=4)
    for _ in range(2):
        breaker.record_ok(0.1, 3.0)
    breaker.hung(breaker.standing, 3.0)
    breaker.hung(breaker.standing, 3.0)
    assert breaker.state is OPEN


def test_without_an_age_limit_a_call_in_flight_is_slow_but_has_not_failed():
    breaker = breaker_with(slow_threshold=2.0, failures=1, failure_ratio=0.1, minimum=2)
    for _ in range(10):
        breaker.hung(breaker.standing, 2.0)
    assert breaker.state is CLOSED


def test_without_an_age_limit_a_slow_call_joins_the_row_by_its_end():
    breaker = breaker_with(slow_threshold=2.0, consecutive_timeouts=2, consecutive_failures=2)
    breaker.hung(breaker.standing, 2.0)
    assert breaker.statistics(2.0).timeouts_in_row == 0
    breaker.settle(breaker.standing, "timeout", 5.0, 5.0, hung_counted=True)
    breaker.hung(breaker.standing, 5.0)
    breaker.settle(breaker.standing, "neutral", 5.0, 5.0, hung_counted=True)
    assert breaker.statistics(5.0).timeouts_in_row == 1
    breaker.hung(breaker.standing, 6.0)
    breaker.settle(breaker.standing, "timeout", 5.0, 6.0, hung_counted=True)
    assert breaker.state is OPEN


def test_a_hung_call_older_than_the_p99_limit_is_over_it_in_flight_and_afterwards():
    breaker = breaker_with(p99=5.0, minimum=4)
    assert breaker.policy.hung_after == 5.0
    for _ in range(3):
        breaker.record_ok(0.1, 5.0)
    breaker.hung(breaker.standing, 5.0)
    assert breaker.state is OPEN
    breaker = breaker_with(p99=5.0, minimum=10)
    breaker.hung(breaker.standing, 5.0)
    breaker.settle(breaker.standing, "ok", 5.0, 5.0, hung_counted=True)  # its clock may read a hair less than ours
    for _ in range(9):
        breaker.record_ok(0.1, 6.0)
    assert breaker.state is OPEN


def test_a_hung_call_younger_than_the_p99_limit_is_not_over_it_yet():
    breaker = breaker_with(p99=5.0, slow_threshold=2.0, minimum=4)
    for _ in range(10):
        breaker.hung(breaker.standing, 2.0)
    assert breaker.state is CLOSED
    for _ in range(9):
        breaker.settle(breaker.standing, "ok", 3.0, 3.0, hung_counted=True)
    assert breaker.state is CLOSED
    breaker.settle(breaker.standing, "ok", 5.5, 5.5, hung_counted=True)
    assert breaker.state is OPEN


def test_a_hung_probe_opens_again_at_once_and_holds_its_place_until_it_ends():
    for figures in ({"inflight_age": 3.0}, {"slow_threshold": 3.0, "slow_ratio": 0.5}, {"p99": 3.0}):
        breaker = opened(probes=1, probe_lease=100.0, **figures)
        probe = breaker.admit(5.0)
        breaker.hung(probe, 8.0)
        assert breaker.state is OPEN
        assert breaker.statistics(8.0).reason == "a probe is in flight for more than 3 s"
        assert breaker.retry_in(8.0) == 10.0
        assert breaker.admit(60.0) is None
        assert breaker.state is OPEN
        breaker.settle(probe, "timeout", 55.0, 60.0, hung_counted=True)
        assert breaker.state is OPEN
        assert breaker.admit(60.0) is not None


def test_a_settled_probe_cannot_hang():
    breaker = opened(probes=1, inflight_age=3.0)
    probe = breaker.admit(5.0)
    breaker.settle(probe, "neutral", 0.1, 5.0)
    breaker.hung(probe, 8.0)
    assert breaker.state is HALF_OPEN


def test_a_probe_is_not_spoilt_by_slowness_that_no_rule_asks_about():
    breaker = opened(probes=1, slow_threshold=2.0)
    breaker.hung(breaker.admit(5.0), 7.0)
    assert breaker.state is HALF_OPEN


def test_settling_more_hung_calls_than_hung_does_not_make_the_gauge_negative():
    breaker = breaker_with(slow_threshold=2.0)
    breaker.settle(breaker.standing, "ok", 3.0, 3.0, hung_counted=True)
    assert breaker.statistics(3.0).hung == 0


# --- comparisons, volume, clocks ------------------------------------------------------------------------------------


def test_trap_ratio_compared_with_greater_than_so_that_1_never_trips():
    breaker = breaker_with(failure_ratio=1.0, minimum=5)
    assert fail(breaker, 0.0, 5) is OPEN
    breaker = breaker_with(slow_ratio=1.0, slow_threshold=1.0, minimum=5)
    for _ in range(5):
        breaker.record_ok(2.0, 0.0)
    assert breaker.state is OPEN


def test_trap_low_traffic_never_reaches_the_minimum_volume():
    breaker = Breaker(BreakerPolicy(), rng=random.Random(1))
    for n in range(9):
        assert fail(breaker, n * 600.0) is CLOSED
    assert fail(breaker, 5400.0) is OPEN
    breaker = Breaker(BreakerPolicy(), rng=random.Random(1))
    for n in range(4):
        assert fail(breaker, n * 600.0, counts="timeout") is CLOSED
    assert fail(breaker, 2400.0, counts="timeout") is OPEN


def test_trap_any_single_success_resets_a_consecutive_count_that_should_roll():
    breaker = breaker_with(consecutive_failures=10)
    for n in range(40):  # four of five fail, once a minute
        breaker.settle(breaker.standing, "ok" if n % 5 == 4 else "failed", 0.1, n * 60.0)
        if breaker.state is OPEN:
            break
        if n % 5 == 4:
            fail(breaker, n * 60.0 + 1.0)
    assert breaker.state is OPEN


def test_half_failing_low_traffic_does_not_pass_for_a_row():
    breaker = breaker_with(consecutive_failures=10, consecutive_timeouts=5)
    for n in range(200):
        breaker.settle(breaker.standing, "ok" if n % 2 else "timeout", 0.1, n * 1.0)
    assert breaker.state is CLOSED


@pytest.mark.parametrize("module", [breaker_module, breaker_policy, probes, window])
def test_trap_wall_clock_and_global_chance(module):
    tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"time", "datetime", "asyncio", "threading", "secrets"}
    drawn = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
    }
    assert drawn <= {"Random"}  # the class, as a type; never the global generator


def test_the_same_seed_gives_the_same_story():
    def story():
        seen = []
        breaker = Breaker(BreakerPolicy(failures=1, ramp=0.0), rng=random.Random(5), on_transition=seen.append)
        now = 0.0
        for _ in range(6):
            fail(breaker, now)
            now += 60.0
            breaker.settle(breaker.admit(now), "failed", 0.1, now)
            now += 60.0
        return seen

    assert story() == story()


# --- load after closing ---------------------------------------------------------------------------------------------


def test_trap_full_load_at_the_instant_of_closing():
    breaker = closed_again(ramp=5.0)
    assert not breaker.clear
    assert len(taken(breaker, 5.0, 100)) <= 11
    assert breaker.statistics(5.0).refused >= 89


def test_load_grows_evenly_with_the_time_since_closing():
    breaker = closed_again(now=5.0, ramp=10.0)
    let_through = [sum(breaker.admit(5.0 + second + n / 1000) is not None for n in range(1000)) for second in range(10)]
    assert let_through == sorted(let_through)
    for second, count in enumerate(let_through):
        expected = 1000 * max(0.1, (second + 0.5) / 10)
        assert count == pytest.approx(expected, rel=0.06)
    assert breaker.admit(15.0) is breaker.standing
    assert breaker.clear


def test_admissions_while_ramping_come_evenly_and_not_in_bursts():
    breaker = closed_again(now=5.0, ramp=100.0)
    passed = [n for n in range(200) if breaker.admit(5.0 + n / 1e6) is not None]
    assert len(passed) in (20, 21)
    assert {later - earlier for earlier, later in pairwise(passed)} <= {9, 10, 11}


def test_low_traffic_is_not_held_up_by_the_ramp():
    breaker = closed_again(now=5.0, ramp=5.0)
    assert all(breaker.admit(5.0 + n * 0.5) is breaker.standing for n in range(10))


@pytest.mark.parametrize("spacing", [0.01, 0.07, 0.3])
def test_at_least_one_call_passes_per_interval_whatever_the_rate(spacing):
    breaker = closed_again(now=5.0, ramp=5.0)
    last, now = 5.0, 5.0
    while now < 10.0:
        if breaker.admit(now) is not None:
            assert now - last <= 0.5 + spacing
            last = now
        now += spacing
    assert last > 9.0


def test_a_pass_by_interval_takes_the_credit_with_it():
    breaker = closed_again(now=0.0 + 5.0, ramp=1000.0)
    assert breaker.admit(5.0) is not None
    assert sum(breaker.admit(50.0) is not None for _ in range(8)) == 0
    assert breaker.admit(105.0) is not None  # by interval, with 0.9 saved up
    assert sum(breaker.admit(105.0) is not None for _ in range(8)) == 0


def test_the_share_is_shown_while_ramping():
    breaker = closed_again(now=5.0, ramp=10.0)
    assert [breaker.statistics(now).share for now in (5.0, 6.0, 7.5, 15.0, 99.0)] == [0.1, 0.1, 0.25, 1.0, 1.0]
    assert not breaker.clear  # looking at it does not end it


def test_a_ramp_starts_afresh_each_time():
    breaker = closed_again(now=5.0, ramp=10.0, probes=1)
    taken(breaker, 5.0, 5)
    breaker.force_open(6.0)
    breaker.force_close(6.0)
    assert breaker.admit(6.0) is not None
    assert len(taken(breaker, 6.0, 9)) == 0
    assert breaker.statistics(6.0).share == 0.1


def test_without_a_ramp_it_is_clear_at_once():
    assert closed_again(ramp=0.0).clear


# --- listeners ------------------------------------------------------------------------------------------------------


def test_trap_awaiting_a_listener_in_mid_transition():
    async def listener(transition):
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match="must be a plain function"):
        breaker_with(on_transition=listener)


def test_a_listener_sees_a_consistent_state_and_may_call_back():
    seen = []

    def listener(change):
        seen.append((change.new, breaker.state, breaker.generation, breaker.clear, breaker.retry_in(change.at)))
        if change.new is OPEN:
            assert breaker.admit(change.at) is None
            breaker.settle(old, "failed", 0.1, change.at)
            breaker.record_ok(0.1, change.at)
        assert breaker.statistics(change.at).calls == 0

    breaker = breaker_with(failures=1, close_after=1, ramp=0.0, on_transition=listener)
    old = breaker.standing
    fail(breaker, 0.0)
    breaker.settle(breaker.admit(5.0), "ok", 0.1, 5.0)
    assert seen == [
        (OPEN, OPEN, 1, False, 5.0),
        (HALF_OPEN, HALF_OPEN, 2, False, None),
        (CLOSED, CLOSED, 3, True, None),
    ]
    assert breaker.statistics(5.0).listener_errors == 0


def test_a_listener_that_closes_by_hand_in_the_middle_of_an_admission_makes_that_probe_stale():
    def listener(change):
        if change.new is HALF_OPEN:
            breaker.force_close(change.at)

    breaker = opened(on_transition=listener, close_after=1)
    probe = breaker.admit(5.0)
    assert probe is not None
    assert breaker.state is CLOSED
    breaker.settle(probe, "failed", 0.1, 5.0)
    assert breaker.state is CLOSED
    assert breaker.statistics(5.0).probes == 0


def test_what_a_listener_raises_is_counted_and_dropped():
    def listener(change):
        raise RuntimeError("no")

    breaker = opened(on_transition=listener)
    assert breaker.state is OPEN
    assert breaker.admit(5.0) is not None
    assert breaker.statistics(5.0).listener_errors == 2


# --- the global cap -------------------------------------------------------------------------------------------------


def test_many_breakers_do_not_re_open_the_flood_together():
    cap = ProbeCap(8)
    breakers = [opened(probe_cap=cap, name=str(n)) for n in range(20)]
    probes_taken = [(each, probe) for each in breakers for probe in taken(each, 5.0, 5)]
    assert len(probes_taken) == 8
    assert cap.in_use(5.0) == 8
    assert [each.state for each in breakers].count(HALF_OPEN) == 3
    assert breakers[-1].state is OPEN  # refused by the cap: its round has not begun
    for each, probe in probes_taken:
        each.settle(probe, "neutral", 0.1, 6.0)
    assert cap.in_use(6.0) == 0
    assert breakers[-1].admit(6.0) is not None


def test_trap_multi_gate_admission_leaks_the_first_gate_when_the_second_refuses():
    cap = ProbeCap(1)
    first, second = opened(probe_cap=cap), opened(probe_cap=cap, probes=1)
    probe = first.admit(5.0)
    for _ in range(10):
        assert second.admit(5.0) is None
    assert second.statistics(5.0).probes == 0
    first.settle(probe, "neutral", 0.1, 5.0)
    assert second.admit(5.0) is not None  # its own place was never taken in vain
    assert first.admit(5.0) is None
    assert cap.in_use(5.0) == 1


def test_a_breaker_that_is_full_does_not_touch_the_cap():
    cap = ProbeCap(8)
    breaker = opened(probe_cap=cap, probes=2)
    taken(breaker, 5.0, 50)
    assert cap.in_use(5.0) == 2


def test_a_lost_probe_gives_its_global_place_back():
    cap = ProbeCap(1)
    lost, other = opened(probe_cap=cap, probe_lease=30.0), opened(probe_cap=cap)
    lost.admit(5.0)
    assert other.retry_in(5.0) == 5.0
    assert other.retry_in(34.0) == 1.0
    assert other.admit(34.9) is None
    assert other.retry_in(35.0) is None
    assert other.admit(35.0) is not None
    assert cap.in_use(35.0) == 1


def test_a_place_taken_by_another_is_not_given_back_by_a_late_settling():
    cap = ProbeCap(1)
    late, other, third = (opened(probe_cap=cap, probe_lease=30.0) for _ in range(3))
    probe = late.admit(5.0)
    assert other.admit(35.0) is not None
    late.settle(probe, "neutral", 31.0, 36.0)
    assert third.admit(36.0) is None


def test_the_wait_is_the_longer_of_the_own_and_the_global_one():
    cap = ProbeCap(1)
    breaker = opened(probe_cap=cap, probes=1, probe_lease=3.0)
    breaker.admit(5.0)
    assert cap.take(8.0, 4.0) is not None
    assert breaker.retry_in(7.0) == 5.0  # its own place is free before
    cap = ProbeCap(2)
    breaker = opened(probe_cap=cap, probes=1, probe_lease=3.0, open_for=5.0)
    other = opened(probe_cap=cap, probe_lease=4.0)
    breaker.admit(5.0)
    assert breaker.retry_in(5.0) == 3.0
    assert other.retry_in(5.0) is None
    other.admit(5.0)
    assert breaker.retry_in(5.0) == 3.0
    assert other.retry_in(5.0) == 3.0  # the first of the two places


def test_a_cap_counts_its_places_and_frees_the_earliest_first():
    cap = ProbeCap(2)
    first, second = cap.take(0.0, 10.0), cap.take(1.0, 5.0)
    assert None not in (first, second)
    assert first != second
    assert cap.take(1.0, 5.0) is None
    assert cap.retry_in(1.0) == 5.0
    assert repr(cap) == "<ProbeCap 2/2>"
    third = cap.take(6.0, 100.0)
    assert third is not None
    cap.give(second)  # long expired
    assert cap.take(6.0, 1.0) is None
    cap.give(third)
    cap.give(third)
    assert cap.in_use(6.0) == 1
    assert cap.retry_in(6.0) is None
    cap.limit = 1
    assert cap.retry_in(6.0) == 4.0


def test_a_cap_lets_at_least_one_through():
    assert ProbeCap(1).take(0.0, 1.0) is not None
    with pytest.raises(ValueError, match="at least 1"):
        ProbeCap(0)


# --- who blocks the loop -------------------------------------------------------------------------------------------


def test_three_stalls_within_two_minutes_open_and_a_probe_that_stalls_opens_again_for_longer():
    breaker = breaker_with(close_after=1, open_for=5.0, ramp=0.0)
    for now in (0.0, 130.0, 131.0):
        breaker.stalled(now)
        assert breaker.state is CLOSED
    breaker.stalled(132.0)
    assert (breaker.state, breaker.retry_in(132.0)) == (OPEN, 5.0)
    assert "blocked the event loop 3 times in 2 s" in breaker.statistics(132.0).reason
    breaker.stalled(132.5)  # a call that had been let in before
    assert breaker.retry_in(132.5) == 4.5
    probe = breaker.admit(140.0)
    breaker.settle(probe, "ok", 0.2, 140.2)  # its answer is right, and is known before the stall is
    breaker.stalled(140.3)
    assert (breaker.state, breaker.retry_in(140.3)) == (OPEN, 5.0 if breaker.policy.ramp == 0 else 10.0)


def test_stalls_open_nothing_where_the_rule_is_off():
    breaker = breaker_with(loop_stalls=None)
    for now in range(10):
        breaker.stalled(float(now))
    assert breaker.state is CLOSED
