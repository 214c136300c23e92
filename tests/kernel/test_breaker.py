"""What opens a breaker, how long it stays open, how it closes, and what may be done by hand."""

import dataclasses
import math
import random

import pytest

from failsoft.kernel.breaker import Admission, Breaker, BreakerPolicy, BreakerState, ProbeCap, Transition

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
QUIET = {"failure_ratio": None, "consecutive_timeouts": None, "consecutive_failures": None, "open_jitter": 0.0}


def breaker_with(*, on_transition=None, probe_cap=None, seed=7, **figures):
    """A breaker with the named rules and no others."""
    policy = BreakerPolicy(**{**QUIET, **figures})
    return Breaker(policy, rng=random.Random(seed), name="db", on_transition=on_transition, probe_cap=probe_cap)


def feed(breaker, ends, now=0.0, latency=0.01):
    """Admits and settles one call per letter: o(k), f(ailed), t(imeout), n(eutral)."""
    names = {"o": "ok", "f": "failed", "t": "timeout", "n": "neutral"}
    for end in ends:
        admission = breaker.admit(now)
        assert admission is not None
        breaker.settle(admission, names[end], latency, now)
    return breaker.state


def opened(now=0.0, **figures):
    """A breaker that was just opened by one failure."""
    breaker = breaker_with(**{"failures": 1, **figures})
    assert feed(breaker, "f", now) is OPEN
    return breaker


def half_open(now=5.0, **figures):
    """A half-open breaker and its first probe."""
    breaker = opened(**figures)
    probe = breaker.admit(now)
    assert probe is not None
    assert breaker.state is HALF_OPEN
    return breaker, probe


def closed_again(now=5.0, **figures):
    """A breaker that has closed at `now` after being open."""
    breaker, probe = half_open(now, **{"close_after": 1, **figures})
    breaker.settle(probe, "ok", 0.01, now)
    assert breaker.state is CLOSED
    return breaker


# --- the rules ------------------------------------------------------------------------------------------------------


def test_it_opens_at_the_count_of_failures_in_the_window():
    breaker = breaker_with(failures=5)
    assert feed(breaker, "ftoft") is CLOSED
    assert feed(breaker, "f") is OPEN


def test_failures_that_left_the_window_do_not_count():
    breaker = breaker_with(failures=5)
    feed(breaker, "ffff", now=0.0)
    assert feed(breaker, "ffff", now=10.0) is CLOSED
    assert feed(breaker, "f", now=19.0) is OPEN


def test_a_share_of_failures_opens_only_from_the_minimum_volume_on():
    breaker = breaker_with(failure_ratio=0.5, minimum=20)
    assert feed(breaker, "f" * 19) is CLOSED
    assert feed(breaker, "f") is OPEN


def test_the_call_that_fills_the_minimum_volume_may_open_it_even_if_it_was_good():
    breaker = breaker_with(failure_ratio=0.5, minimum=20)
    assert feed(breaker, "f" * 15 + "o" * 4) is CLOSED
    assert feed(breaker, "o") is OPEN


def test_good_calls_that_leave_the_window_may_open_it():
    breaker = breaker_with(failure_ratio=0.5, minimum=10)
    feed(breaker, "o" * 20, now=0.0)
    assert feed(breaker, "f" * 12, now=5.0) is CLOSED
    assert feed(breaker, "o", now=10.0) is OPEN


@pytest.mark.parametrize(
    ("ratio", "bad", "good"), [(0.55, 11, 9), (0.2, 4, 16), (0.3, 30, 70), (0.07, 7, 93), (1.0, 20, 0)]
)
def test_a_share_is_reached_at_equality_exactly(ratio, bad, good):
    breaker = breaker_with(failure_ratio=ratio, minimum=bad + good)
    assert feed(breaker, "o" * good + "f" * (bad - 1)) is CLOSED
    assert feed(breaker, "f") is OPEN


def test_one_failure_less_than_the_share_does_not_open():
    breaker = breaker_with(failure_ratio=0.55, minimum=20)
    assert feed(breaker, "o" * 10 + "f" * 10) is CLOSED


def test_slow_calls_open_by_their_share_whatever_their_end_was():
    for end in "oft":
        breaker = breaker_with(slow_ratio=0.3, slow_threshold=2.0, minimum=10)
        feed(breaker, "o" * 7)
        assert feed(breaker, end * 2, latency=2.1) is CLOSED
        assert feed(breaker, end, latency=2.1) is OPEN


def test_a_call_exactly_at_the_slow_threshold_is_not_slow():
    breaker = breaker_with(slow_ratio=0.3, slow_threshold=2.0, minimum=1)
    assert feed(breaker, "o" * 30, latency=2.0) is CLOSED
    assert breaker.statistics(0.0).slow == 0


def test_the_mean_opens_when_it_exceeds_its_limit():
    breaker = breaker_with(mean=2.0, minimum=4)
    feed(breaker, "oo", latency=1.0)
    assert feed(breaker, "oo", latency=3.0) is CLOSED  # exactly 2.0
    assert feed(breaker, "o", latency=2.0 + 1 / 64) is OPEN


def test_fast_refusals_do_not_flatter_the_mean():
    breaker = breaker_with(mean=2.0, minimum=10)
    feed(breaker, "f" * 8, latency=0.001)
    feed(breaker, "o", latency=2.5)
    assert feed(breaker, "t", latency=2.5) is OPEN


def test_a_mean_of_nothing_but_failures_is_no_mean():
    breaker = breaker_with(mean=2.0, minimum=4)
    assert feed(breaker, "f" * 10, latency=9.0) is CLOSED


def test_the_p99_opens_when_more_than_one_per_cent_are_slower():
    breaker = breaker_with(p99=5.0, minimum=100)
    feed(breaker, "o" * 99)
    assert feed(breaker, "o", latency=5.1) is CLOSED  # exactly 1 %
    assert feed(breaker, "o", latency=5.1) is OPEN


def test_a_call_exactly_at_the_p99_limit_is_not_over_it():
    breaker = breaker_with(p99=5.0, minimum=1)
    assert feed(breaker, "o" * 10, latency=5.0) is CLOSED


def test_timeouts_in_a_row_open_at_any_volume_and_over_any_time():
    breaker = breaker_with(consecutive_timeouts=3)
    for hour in range(2):
        assert feed(breaker, "t", now=hour * 3600.0) is CLOSED
    assert feed(breaker, "t", now=7200.0) is OPEN


def test_other_failures_are_not_timeouts_in_a_row():
    breaker = breaker_with(consecutive_timeouts=3)
    assert feed(breaker, "f" * 50) is CLOSED


def test_failures_in_a_row_count_timeouts_too():
    breaker = breaker_with(consecutive_failures=4)
    assert feed(breaker, "ftf") is CLOSED
    assert feed(breaker, "t") is OPEN


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        ("tttottt"[:6], OPEN),  # 5 of the last 6
        ("tttoott", CLOSED),
        ("ottttt", OPEN),
        ("totototototo", CLOSED),
    ],
)
def test_in_a_row_means_three_quarters_of_the_last_results(ends, state):
    assert feed(breaker_with(consecutive_timeouts=5), ends) is state


def test_a_row_of_ten_is_ten_of_the_last_thirteen():
    assert feed(breaker_with(consecutive_failures=10), "fffofffofff" + "o") is CLOSED
    assert feed(breaker_with(consecutive_failures=10), "fffofffofff" + "of") is OPEN
    assert feed(breaker_with(consecutive_failures=10), "fffofffoofff" + "f") is OPEN
    assert feed(breaker_with(consecutive_failures=10), "fffofffoooff" + "ff") is CLOSED


def test_a_row_is_forgotten_once_a_success_stood_as_the_last_word_for_a_window():
    breaker = breaker_with(consecutive_failures=3, window=10.0)
    feed(breaker, "ffo", now=0.0)
    assert feed(breaker, "ff", now=10.0) is CLOSED
    assert breaker.statistics(10.0).failures_in_row == 2
    breaker = breaker_with(consecutive_failures=3, window=10.0)
    feed(breaker, "ffo", now=0.0)
    assert feed(breaker, "f", now=9.0) is OPEN


def test_a_row_of_failures_is_not_forgotten_by_waiting():
    breaker = breaker_with(consecutive_failures=3)
    feed(breaker, "off", now=0.0)
    assert feed(breaker, "f", now=1e6) is OPEN


def test_no_rule_in_force_means_never_open():
    assert feed(breaker_with(), "ft" * 500, latency=100.0) is CLOSED


@pytest.mark.parametrize(
    ("figures", "ends", "latency", "reason"),
    [
        ({"failures": 2}, "ff", 0.1, "2 failures in 10 s (limit 2)"),
        ({"failure_ratio": 0.5, "minimum": 4}, "ooff", 0.1, "failure ratio 0.5 of 4 calls in 10 s (limit 0.5)"),
        (
            {"slow_ratio": 0.5, "slow_threshold": 1.0, "minimum": 2},
            "oo",
            3.0,
            "slow ratio 1 of 2 calls in 10 s (limit 0.5)",
        ),
        ({"mean": 2.0, "minimum": 2}, "oo", 3.0, "mean latency 3 s of 2 calls in 10 s (limit 2 s)"),
        ({"p99": 2.0, "minimum": 2}, "oo", 3.0, "p99 latency above 2 s: 2 of 2 calls in 10 s"),
        ({"consecutive_timeouts": 2}, "tt", 0.1, "2 timeouts in a row (limit 2)"),
        ({"consecutive_failures": 2}, "ft", 0.1, "2 failures in a row (limit 2)"),
    ],
)
def test_the_reason_names_the_rule_with_its_figures(figures, ends, latency, reason):
    seen = []
    breaker = breaker_with(on_transition=seen.append, **figures)
    assert feed(breaker, ends, now=3.0, latency=latency) is OPEN
    assert seen == [Transition("db", CLOSED, OPEN, reason, 3.0, 5.0)]


# --- counting -------------------------------------------------------------------------------------------------------


def test_the_fast_path_and_the_full_one_count_alike():
    fast, full = breaker_with(failure_ratio=0.9, minimum=5), breaker_with(failure_ratio=0.9, minimum=5)
    for n in range(200):
        now = n * 0.37
        for breaker in (fast, full):
            breaker.settle(breaker.standing, "failed" if n % 7 == 0 else "neutral", 0.5, now)
        fast.record_ok(0.25, now)
        full.settle(full.standing, "ok", 0.25, now)
        assert fast.statistics(now) == full.statistics(now)
    assert fast.statistics(74.0).calls == full.statistics(74.0).calls > 25


def test_a_success_recorded_after_it_opened_is_dropped():
    breaker = opened()
    breaker.record_ok(0.1, 0.0)
    assert breaker.statistics(0.0).calls == 0


def test_an_unknown_end_is_refused_before_anything_changes():
    breaker, probe = half_open()
    with pytest.raises(ValueError, match="counts must be one of failed, neutral, ok, timeout, not 'slow'"):
        breaker.settle(probe, "slow", 0.1, 5.0)
    assert breaker.statistics(5.0).probes == 1


# --- open -----------------------------------------------------------------------------------------------------------


def test_open_refuses_and_says_for_how_long():
    breaker = opened(now=100.0)
    assert not breaker.clear
    assert breaker.retry_in(100.0) == 5.0
    assert breaker.retry_in(104.0) == 1.0
    assert breaker.admit(104.99) is None
    assert breaker.statistics(104.0).refused == 1
    assert breaker.retry_in(105.0) is None
    assert breaker.state is OPEN  # asking changes nothing
    assert breaker.admit(105.0) is not None


def test_the_open_time_doubles_with_each_failed_round_up_to_its_cap_and_starts_afresh_after_recovery():
    seen, now = [], 0.0
    breaker = breaker_with(failures=1, open_max=30.0, ramp=0.0, close_after=1, on_transition=seen.append)
    feed(breaker, "f")
    for _ in range(5):
        now += 30.0
        feed(breaker, "f", now)
    now += 30.0
    feed(breaker, "o", now)
    assert breaker.state is CLOSED
    feed(breaker, "f", now)
    assert [each.open_for for each in seen if each.new is OPEN] == [5.0, 10.0, 20.0, 30.0, 30.0, 30.0, 5.0]


def test_opening_again_while_ramping_is_one_more_failed_round():
    breaker = closed_again(ramp=5.0)
    feed(breaker, "f", now=6.0)
    assert breaker.retry_in(6.0) == 10.0
    breaker = closed_again(ramp=5.0)
    feed(breaker, "of", now=10.0)
    assert breaker.retry_in(10.0) == 5.0


def test_breakers_that_opened_together_probe_at_different_times_also_at_the_cap():
    policy = BreakerPolicy()
    rng = random.Random(1)
    for rounds in (0, 1, 3, 4, 50, 5000):
        times = {policy.open_time(rounds, rng) for _ in range(100)}
        assert len(times) == 100
        assert min(times) >= 5.0
        assert max(times) <= 60.0
        assert max(times) - min(times) >= 0.4 * min(times)
    assert 5.0 <= min(policy.open_time(0, rng) for _ in range(100)) < 5.5
    assert 7.0 < max(policy.open_time(0, rng) for _ in range(100)) <= 7.5
    assert 10.0 <= policy.open_time(1, rng) <= 15.0
    assert 40.0 <= policy.open_time(9, rng) <= 60.0


def test_jitter_never_shortens_the_open_time_or_exceeds_the_cap():
    policy = BreakerPolicy(open_for=60.0, open_max=60.0)
    assert policy.open_time(0, random.Random(1)) == 60.0
    policy = BreakerPolicy(open_for=50.0, open_max=60.0, open_jitter=1.0)
    assert all(50.0 <= policy.open_time(n, random.Random(n)) <= 60.0 for n in range(50))


# --- half-open ------------------------------------------------------------------------------------------------------


def test_enough_good_probes_close():
    seen = []
    breaker, probe = half_open(close_after=3, on_transition=seen.append)
    breaker.settle(probe, "ok", 0.1, 5.0)
    assert feed(breaker, "o", now=5.5) is HALF_OPEN
    assert feed(breaker, "o", now=6.0) is CLOSED
    assert [each[1:5] for each in seen[1:]] == [
        (OPEN, HALF_OPEN, "open time is over", 5.0),
        (HALF_OPEN, CLOSED, "3 good probes", 6.0),
    ]
    assert [each.open_for for each in seen] == [5.0, None, None]


@pytest.mark.parametrize("counts", ["failed", "timeout"])
def test_one_bad_probe_opens_again(counts):
    seen = []
    breaker, probe = half_open(on_transition=seen.append)
    breaker.settle(probe, counts, 0.25, 6.0)
    assert seen[-1] == Transition("db", HALF_OPEN, OPEN, f"a probe ended as {counts} after 0.25 s", 6.0, 10.0)
    assert breaker.retry_in(6.0) == 10.0


@pytest.mark.parametrize("rule", [{"slow_ratio": 0.5, "slow_threshold": 2.0}, {"mean": 2.0}, {"p99": 2.0}])
def test_a_probe_that_a_rule_would_call_slow_is_a_bad_one(rule):
    breaker, probe = half_open(close_after=1, **rule)
    breaker.settle(probe, "ok", 2.1, 8.0)
    assert breaker.state is OPEN
    assert breaker.statistics(8.0).reason == "a probe took 2.1 s, more than 2 s"
    breaker, probe = half_open(close_after=1, **rule)
    breaker.settle(probe, "ok", 2.0, 8.0)
    assert breaker.state is CLOSED


def test_slowness_that_no_rule_asks_about_does_not_spoil_a_probe():
    breaker, probe = half_open(close_after=1, slow_threshold=2.0)
    breaker.settle(probe, "ok", 100.0, 8.0)
    assert breaker.state is CLOSED


def test_with_all_probes_taken_it_says_when_a_place_is_free_at_the_latest():
    breaker, _ = half_open(now=5.0, probes=1, probe_lease=3.0)
    assert breaker.admit(6.0) is None
    assert breaker.retry_in(6.0) == 2.0
    breaker, _ = half_open(now=5.0, probes=1, probe_lease=30.0)
    assert breaker.retry_in(6.0) == 5.0  # probably sooner: not more than the open time
    assert breaker.retry_in(34.0) == 1.0
    assert breaker.retry_in(35.0) is None


def test_a_caller_refused_by_the_ramp_is_told_the_ramps_interval():
    breaker = closed_again(ramp=5.0)
    assert breaker.retry_in(5.0) is None
    assert breaker.retry_after(5.0) == 0.5
    assert opened().retry_after(1.0) == 4.0


# --- by hand --------------------------------------------------------------------------------------------------------


def test_opened_by_hand_it_stays_open_until_it_is_closed_by_hand():
    seen = []
    breaker = breaker_with(on_transition=seen.append)
    breaker.force_open(1.0)
    assert seen == [Transition("db", CLOSED, OPEN, "by hand", 1.0, None)]
    assert breaker.admit(1e9) is None
    assert breaker.retry_in(1e9) == breaker.policy.open_max
    assert breaker.statistics(2.0).by_hand
    breaker.force_close(1e9)
    assert seen[-1] == Transition("db", OPEN, CLOSED, "by hand", 1e9, None)
    assert not breaker.statistics(1e9).by_hand
    assert breaker.admit(1e9) == breaker.standing


def test_opened_by_hand_for_a_while_it_is_probed_afterwards():
    breaker = breaker_with()
    breaker.force_open(0.0, for_=20.0, reason="maintenance")
    assert breaker.statistics(0.0).reason == "maintenance"
    assert breaker.retry_in(0.0) == 20.0
    probe = breaker.admit(20.0)
    assert probe is not None
    assert probe.probe
    assert not breaker.statistics(20.0).by_hand
    breaker.settle(probe, "failed", 0.1, 20.0)
    assert breaker.retry_in(20.0) == 5.0  # by hand is no failed round


def test_opening_by_hand_what_is_open_changes_only_its_end():
    seen = []
    breaker = opened(on_transition=seen.append)
    generation = breaker.generation
    breaker.force_open(1.0, for_=100.0, reason="wait")
    assert breaker.retry_in(1.0) == 100.0
    assert breaker.generation == generation
    assert len(seen) == 1
    assert breaker.statistics(1.0).reason == "wait"
    assert breaker.statistics(1.0).by_hand
    breaker.force_open(2.0, for_=0.0)
    assert breaker.retry_in(2.0) is None


def test_opened_by_hand_while_half_open_the_running_probe_decides_nothing():
    breaker, probe = half_open(close_after=1)
    breaker.force_open(5.0)
    breaker.settle(probe, "ok", 0.1, 5.0)
    assert breaker.state is OPEN


def test_closing_by_hand_ramps_and_forgets_the_failed_rounds():
    breaker = opened(ramp=5.0)
    breaker.force_close(1.0, reason="fixed")
    assert breaker.state is CLOSED
    assert not breaker.clear
    assert breaker.statistics(1.0).reason == "fixed"
    feed(breaker, "f", now=1.0)
    assert breaker.retry_in(1.0) == 5.0


def test_closing_by_hand_what_is_closed_changes_nothing():
    seen = []
    breaker = breaker_with(failures=5, on_transition=seen.append)
    feed(breaker, "ffff")
    breaker.force_close(0.0)
    assert seen == []
    assert breaker.clear
    assert breaker.generation == 0
    assert feed(breaker, "f") is OPEN


def test_a_negative_time_to_stay_open_is_refused():
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="for_ must not be negative"):
            breaker_with().force_open(0.0, for_=bad)


def test_a_rule_that_opens_after_a_hand_did_is_not_by_hand():
    breaker = breaker_with(failures=1, ramp=0.0)
    breaker.force_open(0.0)
    breaker.force_close(1.0)
    feed(breaker, "f", now=1.0)
    assert not breaker.statistics(1.0).by_hand


# --- new settings ---------------------------------------------------------------------------------------------------


def test_new_limits_apply_to_what_is_counted_from_the_next_result_on():
    breaker = breaker_with(failures=10)
    feed(breaker, "ffff")
    breaker.reconfigure(dataclasses.replace(breaker.policy, failures=4), 0.0)
    assert breaker.state is CLOSED
    assert breaker.generation == 0
    assert feed(breaker, "o") is OPEN


def test_new_limits_apply_also_to_what_was_good_before():
    breaker = breaker_with(mean=2.0, minimum=4)
    feed(breaker, "o" * 20, latency=1.0)
    breaker.reconfigure(dataclasses.replace(breaker.policy, mean=0.5), 0.0)
    assert feed(breaker, "o", latency=0.1) is OPEN


def test_a_new_window_keeps_the_counts_and_forgets_by_its_own_length():
    breaker = breaker_with(failures=4)
    feed(breaker, "fff", now=9.0)
    breaker.reconfigure(dataclasses.replace(breaker.policy, window=60.0), 9.5)
    assert feed(breaker, "f", now=59.0) is OPEN


def test_new_settings_keep_an_open_breaker_open_and_cut_a_longer_wait_to_the_new_cap():
    breaker = opened(open_for=50.0)
    breaker.reconfigure(BreakerPolicy(open_for=5.0, open_max=20.0), 1.0)
    assert breaker.state is OPEN
    assert breaker.retry_in(1.0) == 20.0
    breaker.reconfigure(BreakerPolicy(open_for=5.0, open_max=60.0), 2.0)
    assert breaker.retry_in(2.0) == 19.0


def test_new_settings_do_not_shorten_what_was_opened_by_hand():
    breaker = breaker_with()
    breaker.force_open(0.0, for_=500.0)
    breaker.reconfigure(BreakerPolicy(), 0.0)
    assert breaker.retry_in(0.0) == 500.0


def test_fewer_probes_drain():
    breaker, first = half_open(probes=3)
    second = breaker.admit(5.0)
    assert second is not None
    breaker.reconfigure(dataclasses.replace(breaker.policy, probes=1), 5.0)
    assert breaker.admit(5.0) is None
    breaker.settle(first, "neutral", 0.0, 5.0)
    assert breaker.admit(5.0) is None
    breaker.settle(second, "neutral", 0.0, 5.0)
    assert breaker.admit(5.0) is not None


def test_a_shorter_row_keeps_the_latest_results_and_a_removed_one_none():
    breaker = breaker_with(consecutive_failures=10, consecutive_timeouts=10)
    feed(breaker, "ttttooo")
    breaker.reconfigure(dataclasses.replace(breaker.policy, consecutive_failures=3, consecutive_timeouts=None), 0.0)
    assert breaker.statistics(0.0).failures_in_row == 1
    assert breaker.statistics(0.0).timeouts_in_row == 0


def test_new_latency_limits_are_in_force_at_once():
    breaker = breaker_with(slow_ratio=0.5, slow_threshold=5.0, minimum=2)
    feed(breaker, "oooo", latency=1.0)
    breaker.reconfigure(dataclasses.replace(breaker.policy, slow_threshold=0.5), 0.0)
    assert feed(breaker, "ooo", latency=1.0) is CLOSED
    assert feed(breaker, "o", latency=1.0) is OPEN


def test_a_ramp_that_is_switched_off_ends():
    breaker = closed_again(now=5.0, ramp=100.0)
    breaker.reconfigure(dataclasses.replace(breaker.policy, ramp=0.0), 5.0)
    assert breaker.admit(4.99) == breaker.standing
    assert breaker.clear


# --- seeing ---------------------------------------------------------------------------------------------------------


def test_statistics_say_everything():
    breaker = breaker_with(
        failure_ratio=0.9, slow_ratio=0.9, slow_threshold=1.0, consecutive_timeouts=9, consecutive_failures=9
    )
    feed(breaker, "ooooof", now=1.0, latency=0.5)
    feed(breaker, "tt", now=1.0, latency=1.5)
    breaker.hung(breaker.standing, 1.0)
    shown = dataclasses.asdict(breaker.statistics(2.0))
    assert shown == {
        "name": "db",
        "state": CLOSED,
        "generation": 0,
        "since": None,
        "reason": "new",
        "retry_in": None,
        "by_hand": False,
        "calls": 9,
        "failed": 1,
        "timeouts": 2,
        "slow": 3,
        "failure_ratio": 3 / 9,
        "slow_ratio": 3 / 9,
        "mean": (5 * 0.5 + 2 * 1.5) / 7,
        "hung": 1,
        "timeouts_in_row": 2,
        "failures_in_row": 3,
        "probes": 0,
        "good_probes": 0,
        "failed_rounds": 0,
        "share": 1.0,
        "refused": 0,
        "opened": 0,
        "listener_errors": 0,
    }


def test_statistics_of_an_open_a_half_open_and_a_new_breaker():
    breaker, probe = half_open(now=5.0)
    assert breaker.admit(5.0) is not None
    breaker.settle(probe, "ok", 0.1, 5.5)
    shown = breaker.statistics(5.5)
    assert (shown.state, shown.since, shown.probes, shown.good_probes, shown.share) == (HALF_OPEN, 5.0, 1, 1, 0.0)
    assert (shown.opened, shown.failed_rounds) == (1, 1)
    breaker.settle(breaker.admit(6.0), "failed", 0.1, 6.0)
    assert breaker.statistics(6.0).opened == 2
    shown = opened(now=3.0).statistics(4.0)
    assert (shown.state, shown.since, shown.retry_in, shown.share, shown.calls) == (OPEN, 3.0, 4.0, 0.0, 0)
    shown = breaker_with().statistics(0.0)
    assert (shown.failure_ratio, shown.slow_ratio, shown.mean) == (0.0, 0.0, 0.0)


def test_the_repr_says_the_state_and_the_figures():
    breaker = breaker_with(failures=2, close_after=1)
    feed(breaker, "of")
    assert repr(breaker) == "<Breaker 'db' closed generation=0 <RollingWindow 10s calls=2 bad=1 slow=0> hung=0>"
    feed(breaker, "f")
    assert repr(breaker) == "<Breaker 'db' open generation=1 until=5.000 (2 failures in 10 s (limit 2))>"
    probe = breaker.admit(5.0)
    assert repr(breaker) == "<Breaker 'db' half_open generation=2 <ProbeLeases 1> good=0/1>"
    assert probe is not None
    breaker.settle(probe, "ok", 0.1, 5.0)
    assert repr(breaker).endswith("hung=0 ramping>")
    assert repr(ProbeCap(3)) == "<ProbeCap 0/3>"


def test_admissions_of_one_generation_are_one_shared_constant():
    breaker = breaker_with(failures=1, ramp=0.0, close_after=1)
    assert breaker.admit(0.0) is breaker.admit(1.0) is breaker.standing
    assert breaker.standing == Admission(0, probe=False, lease=0)
    feed(breaker, "f")
    feed(breaker, "o", now=5.0)
    assert breaker.clear
    assert breaker.admit(5.0) is breaker.standing
    assert breaker.standing == Admission(3)
