"""The decayed histogram with censored samples, and the limits learned from it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.kernel.latency import LatencyHistogram
from failsoft.kernel.timeout import AdaptiveTimeout, AdaptiveTimeoutPolicy


@given(st.lists(st.floats(1e-5, 1000), min_size=30, max_size=300), st.sampled_from([0.1, 0.5, 0.9, 0.95]))
def test_quantiles_are_within_the_width_of_a_bucket(values, q):
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value, 0.0)
    exact = sorted(values)[max(0, min(len(values) - 1, -int(-q * len(values) // 1) - 1))]
    assert histogram.quantile(q) == pytest.approx(exact, rel=0.017)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-9, 1e9, float("inf")])
def test_values_beyond_the_range_land_in_the_outermost_bucket(value):
    histogram = LatencyHistogram()
    histogram.record(value, 0.0)
    assert histogram.quantile(0.5) is not None


def test_a_tenth_cut_at_one_second_is_known_to_be_slower_and_not_how_much():
    histogram = LatencyHistogram()
    for _ in range(90):
        histogram.record(0.05, 0.0)
    for _ in range(10):
        histogram.record_censored(1.0, 0.0)
    assert histogram.quantile(0.85) == pytest.approx(0.05, rel=0.02)
    assert histogram.quantile(0.95) is None
    assert histogram.quantile(0.95, censored=False) == pytest.approx(0.05, rel=0.02)
    assert histogram.longest() == pytest.approx(1.0, rel=0.02)


def test_samples_cut_early_do_not_make_the_downstream_look_fast():
    rng = random.Random(7)
    true, cut = LatencyHistogram(), LatencyHistogram()
    for _ in range(4000):
        value = rng.expovariate(1.0)
        limit = rng.uniform(0.0, 3.0)
        true.record(value, 0.0)
        if value <= limit:
            cut.record(value, 0.0)
        else:
            cut.record_censored(limit, 0.0)
    assert cut.quantile(0.5) == pytest.approx(true.quantile(0.5), rel=0.1)
    naive = cut.quantile(0.5, censored=False)
    assert naive < 0.8 * true.quantile(0.5)


def test_old_samples_fade_by_half_lives():
    histogram = LatencyHistogram(half_life=10.0)
    for _ in range(100):
        histogram.record(0.1, 0.0)
    assert histogram.count(0.0) == pytest.approx(100)
    assert histogram.count(10.0) == pytest.approx(50, rel=0.02)
    for _ in range(100):
        histogram.record(1.0, 100.0)
    assert histogram.quantile(0.1) == pytest.approx(1.0, rel=0.02)


def test_ages_of_use_do_not_overflow():
    histogram = LatencyHistogram(half_life=1.0)
    for day in range(20):
        histogram.record(0.1, day * 86_400.0)
    assert histogram.count(19 * 86_400.0) == pytest.approx(1.0)


def test_two_histograms_merge_and_survive_being_written_down():
    one, other = LatencyHistogram(), LatencyHistogram()
    for _ in range(50):
        one.record(0.1, 0.0)
        other.record(0.3, 0.0)
        other.record_censored(0.5, 0.0)
    one.merge(other, 0.0)
    assert one.count(0.0) == pytest.approx(150)
    back = LatencyHistogram.from_dict(one.to_dict(0.0), 500.0)
    assert back.quantiles([0.2, 0.5]) == one.quantiles([0.2, 0.5])
    assert back.count(500.0) == pytest.approx(one.count(0.0))
    with pytest.raises(ValueError, match="bad bucket"):
        LatencyHistogram.from_dict({"half_life": 1, "samples": 1, "ends": {"99999": 1.0}, "cut": {}}, 0.0)


def steady(latency, n=500, rng=None, now=0.0):
    for _ in range(n):
        latency.record(rng.lognormvariate(-3, 0.9) if rng else 0.05, now)


def test_the_limit_is_tight_when_steady_and_wide_under_jitter():
    quiet = AdaptiveTimeout(AdaptiveTimeoutPolicy(floor=1.0, cap=3.0))
    steady(quiet)
    assert quiet.limit() == 1.0
    restless = AdaptiveTimeout(AdaptiveTimeoutPolicy(floor=1.0, cap=3.0))
    for i in range(500):
        restless.record(0.05 if i % 20 else 1.2, 0.0)
    assert restless.limit() == 3.0


def test_the_cap_applies_while_little_is_known_and_when_everything_is_cut():
    latency = AdaptiveTimeout(AdaptiveTimeoutPolicy(floor=0.1, cap=3.0))
    assert latency.limit() == 3.0
    for _ in range(200):
        latency.record_censored(0.1, 0.0)
    latency.refresh(0.0)
    assert latency.limit() == 3.0


def test_a_limit_that_cuts_calls_does_not_talk_itself_ever_shorter():
    latency = AdaptiveTimeout(AdaptiveTimeoutPolicy(floor=0.01, cap=10.0, quantile=0.95))
    rng = random.Random(3)
    limits = []
    for _ in range(20):
        for _ in range(200):
            value = rng.expovariate(2.0)
            limit = latency.limit()
            if value <= limit:
                latency.record(value, 0.0)
            else:
                latency.record_censored(limit, 0.0)
        limits.append(latency.limit())
    assert min(limits[2:]) > 0.7 * max(limits[2:])


def test_the_usual_time_is_known_after_twenty_successes_and_forgotten_with_age():
    latency = AdaptiveTimeout(AdaptiveTimeoutPolicy(window=40.0))
    for _ in range(19):
        latency.record(0.5, 0.0)
    assert latency.typical == 0.0
    latency.record(0.5, 0.0)
    assert latency.typical == pytest.approx(0.5, rel=0.02)
    assert latency.healthy_p95 == pytest.approx(0.5, rel=0.02)
    latency.refresh(1000.0)
    assert latency.typical == 0.0


def test_a_long_request_gets_a_longer_limit_and_a_shortened_limit_does_not_lock_it_out():
    latency = AdaptiveTimeout(AdaptiveTimeoutPolicy(floor=0.1, cap=60.0, hard_cap=120.0))
    for _ in range(300):
        latency.record(1.0, 0.0, size=1.0)
    usual = latency.limit()
    assert latency.limit(size=5.0) == pytest.approx(5 * usual, rel=0.01)
    latency.shorten(1.5)
    assert latency.limit() == 1.5
    assert latency.limit(size=5.0) == pytest.approx(7.5)


def test_bad_policies_are_refused():
    for bad in ({"floor": 0.0}, {"floor": 5.0, "cap": 1.0}, {"quantile": 1.0}, {"margin": 0.5}):
        with pytest.raises(ValueError, match="need|must"):
            AdaptiveTimeoutPolicy(**bad)
