"""The presets of the incident reports with exactly their figures, and what a policy refuses."""

import dataclasses
import math
import random

import pytest

from failsoft.kernel.breaker import Breaker, BreakerPolicy, BreakerState, breaker_preset

CLOSED, OPEN = BreakerState.CLOSED, BreakerState.OPEN
LETTERS = {"o": "ok", "f": "failed", "t": "timeout"}


def state_after(name, *steps):
    """Feeds (ends, latency, now) and gives the state."""
    breaker = Breaker(breaker_preset(name), rng=random.Random(3))
    for ends, latency, now in steps:
        for end in ends:
            breaker.settle(breaker.standing, LETTERS[end], latency, now)
    return breaker.state


RULES = (
    "failures",
    "failure_ratio",
    "slow_ratio",
    "slow_threshold",
    "mean",
    "p99",
    "consecutive_timeouts",
    "inflight_age",
)


@pytest.mark.parametrize(
    ("name", "figures", "rules"),
    [
        ("A", {"window": 10.0, "open_for": 5.0}, {"failures": 5}),
        ("B", {"window": 10.0, "open_for": 30.0}, {"failure_ratio": 0.2, "mean": 2.0}),
        ("C", {"minimum": 20, "open_for": 60.0, "probes": 10}, {"failure_ratio": 0.5}),
        ("D", {"window": 60.0}, {"slow_ratio": 0.3, "slow_threshold": 10.0}),
        ("E", {"window": 60.0, "minimum": 10, "open_for": 30.0, "probes": 3}, {"failure_ratio": 0.5, "p99": 5.0}),
    ],
)
def test_a_preset_has_the_figures_of_its_report_and_no_other_rule(name, figures, rules):
    policy = breaker_preset(name)
    for field, value in figures.items():
        assert getattr(policy, field) == value
    assert {rule: getattr(policy, rule) for rule in RULES if getattr(policy, rule) is not None} == rules
    assert policy.consecutive_failures is not None  # for low traffic only: never below the report's volume
    assert policy.consecutive_failures >= (10 if policy.failures else policy.minimum)


def test_a_opens_at_five_failures_in_ten_seconds():
    assert state_after("A", ("ffff", 0.1, 0.0), ("oooo", 0.1, 5.0)) is CLOSED
    assert state_after("A", ("ffff", 0.1, 0.0), ("oooof", 0.1, 9.0)) is OPEN
    assert state_after("A", ("ffff", 0.1, 0.0), ("f", 0.1, 11.0)) is CLOSED


def test_b_opens_at_a_fifth_failing_or_a_mean_above_two_seconds():
    assert state_after("B", ("o" * 20 + "ffff", 0.1, 0.0)) is CLOSED
    assert state_after("B", ("o" * 16 + "ffff", 0.1, 0.0)) is OPEN
    assert state_after("B", ("o" * 30, 2.0, 0.0)) is CLOSED
    assert state_after("B", ("o" * 20, 2.1, 0.0)) is OPEN


def test_c_opens_at_half_of_at_least_twenty():
    assert state_after("C", ("f" * 10 + "o" * 9, 0.1, 0.0)) is CLOSED
    assert state_after("C", ("f" * 10 + "o" * 10, 0.1, 0.0)) is OPEN
    assert state_after("C", ("f" * 19, 0.1, 0.0)) is CLOSED


def test_d_opens_at_thirty_per_cent_slow_in_a_minute():
    assert state_after("D", ("o" * 15, 0.1, 0.0), ("o" * 6, 10.5, 50.0)) is CLOSED
    assert state_after("D", ("o" * 14, 0.1, 0.0), ("o" * 6, 10.5, 50.0)) is OPEN


def test_e_opens_from_ten_calls_in_a_minute_at_half_failing_or_one_per_cent_over_five_seconds():
    assert state_after("E", ("f" * 9, 0.1, 0.0)) is CLOSED
    assert state_after("E", ("f" * 5 + "o" * 5, 0.1, 0.0)) is OPEN
    assert state_after("E", ("o" * 9, 0.1, 0.0)) is CLOSED
    assert state_after("E", ("o" * 99, 0.1, 0.0), ("o", 5.1, 30.0)) is CLOSED
    assert state_after("E", ("o" * 99, 0.1, 0.0), ("oo", 5.1, 30.0)) is OPEN


def test_strict_opens_before_patient_does_and_probes_sooner():
    strict, patient = breaker_preset("strict"), breaker_preset("patient")
    rng = random.Random(1)
    assert max(strict.open_time(0, rng) for _ in range(50)) < min(patient.open_time(0, rng) for _ in range(50))
    for steps in (
        [("f" * 5, 0.1, 0.0)],
        [("t" * 3, 0.1, 0.0)],
        [("o" * 7 + "f" * 3, 0.1, 0.0)],
        [("o" * 10, 2.5, 0.0)],
    ):
        assert state_after("strict", *steps) is OPEN
        assert state_after("patient", *steps) is CLOSED
    assert state_after("patient", ("f" * 10, 0.1, 0.0)) is OPEN
    assert state_after("patient", ("t" * 5, 0.1, 0.0)) is OPEN
    assert state_after("patient", ("o" * 16, 0.1, 0.0), ("f" * 4, 0.1, 50.0)) is CLOSED
    assert patient.probes == 1


def test_the_open_time_doubles_each_time():
    policy = BreakerPolicy(open_for=1.0, open_max=1000.0, open_jitter=0.0)
    assert [policy.open_time(rounds, random.Random(1)) for rounds in range(6)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_the_default_figures_are_those_documented():
    assert dataclasses.astuple(BreakerPolicy()) == (
        *(10.0, 20, None, 0.5, None, None, None, None, 5, 10, 3, None),
        *(5.0, 60.0, 0.5, 3, 3, 30.0, 5.0),
    )


@pytest.mark.parametrize("name", ["A", "B", "C", "D", "E", "strict", "patient"])
def test_every_preset_staggers_its_opening(name):
    policy, rng = breaker_preset(name), random.Random(1)
    for rounds in (0, 1, 20):
        times = [policy.open_time(rounds, rng) for _ in range(20)]
        assert len(set(times)) == 20
        assert policy.open_for <= min(times) <= max(times) <= policy.open_max
        assert max(times) > 1.15 * min(times)


def test_single_figures_of_a_preset_can_be_overridden():
    policy = breaker_preset("E", p99=None, open_for=10.0)
    assert policy == dataclasses.replace(breaker_preset("E"), p99=None, open_for=10.0)
    assert breaker_preset("E") is breaker_preset("E")


def test_an_unknown_preset_names_those_there_are():
    with pytest.raises(ValueError, match="unknown breaker preset 'F'; there are A, B, C, D, E, strict, patient"):
        breaker_preset("F")


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"window": 0.0}, "window must be above 0 seconds, not 0.0"),
        ({"window": math.inf}, "window must be finite, not inf"),
        ({"window": None}, "window must not be None"),
        ({"minimum": 0}, "minimum must be a whole number of at least 1, not 0"),
        ({"minimum": 2.5}, "minimum must be a whole number of at least 1, not 2.5"),
        ({"minimum": None}, "minimum must not be None"),
        ({"failures": 0}, "failures must be a whole number"),
        ({"failure_ratio": 0.0}, "failure_ratio must be above 0 and at most 1, not 0.0"),
        ({"failure_ratio": 50}, "failure_ratio must be above 0 and at most 1, not 50"),
        ({"failure_ratio": math.nan}, "failure_ratio must be finite"),
        ({"slow_threshold": 1.0, "slow_ratio": 1.1}, "slow_ratio must be above 0"),
        ({"slow_ratio": 0.5}, "slow_ratio needs slow_threshold"),
        ({"slow_threshold": -1.0}, "slow_threshold must be above 0 seconds"),
        ({"mean": 0.0}, "mean must be above 0 seconds"),
        ({"p99": 0.0}, "p99 must be above 0 seconds"),
        ({"inflight_age": 0.0}, "inflight_age must be above 0 seconds"),
        ({"consecutive_timeouts": 0}, "consecutive_timeouts must be a whole number"),
        ({"consecutive_failures": -1}, "consecutive_failures must be a whole number"),
        ({"open_for": 0.0}, "open_for must be above 0 seconds"),
        ({"open_for": 10.0, "open_max": 9.0}, "open_max .9.0. must not be below open_for .10.0."),
        ({"open_jitter": -0.1}, "open_jitter must be between 0 and 1"),
        ({"open_jitter": 1.1}, "open_jitter must be between 0 and 1"),
        ({"open_jitter": None}, "open_jitter must not be None"),
        ({"probes": 0}, "probes must be a whole number"),
        ({"close_after": 0}, "close_after must be a whole number"),
        ({"probe_lease": 0.0}, "probe_lease must be above 0 seconds"),
        ({"ramp": -1.0}, "ramp must not be negative"),
        ({"ramp": math.nan}, "ramp must be finite"),
    ],
)
def test_a_figure_that_makes_no_sense_is_refused_by_name(figures, message):
    with pytest.raises(ValueError, match=message):
        BreakerPolicy(**figures)


def test_figures_at_the_edge_of_sense_are_accepted():
    BreakerPolicy(minimum=1, failures=1, failure_ratio=1.0, slow_ratio=1, slow_threshold=0.001, probes=1, close_after=1)
    BreakerPolicy(open_jitter=0, ramp=0, open_for=5, open_max=5, window=1)
    BreakerPolicy(open_jitter=1)


@pytest.mark.parametrize(
    ("figures", "hung_after", "good_probe"),
    [
        ({}, None, math.inf),
        ({"slow_threshold": 2.0}, 2.0, math.inf),
        ({"slow_threshold": 2.0, "slow_ratio": 0.5}, 2.0, 2.0),
        ({"slow_threshold": 2.0, "slow_ratio": 0.5, "inflight_age": 9.0}, 9.0, 2.0),
        ({"slow_threshold": 2.0, "slow_ratio": 0.5, "mean": 1.0, "p99": 5.0}, 2.0, 1.0),
        ({"mean": 1.0, "p99": 5.0}, 5.0, 1.0),
        ({"mean": 1.0}, None, 1.0),
    ],
)
def test_the_age_of_a_hung_call_and_the_latency_of_a_good_probe_follow_from_the_rules(figures, hung_after, good_probe):
    policy = BreakerPolicy(**figures)
    assert (policy.hung_after, policy.good_probe) == (hung_after, good_probe)
