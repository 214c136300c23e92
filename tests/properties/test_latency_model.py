"""The decayed histogram against a list of all samples, and the learned limits against their formula."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deep import depth

from failsoft.kernel.latency import LatencyHistogram
from failsoft.kernel.timeout import AdaptiveTimeout, AdaptiveTimeoutPolicy

SECONDS = st.one_of(st.floats(1e-5, 900.0), st.sampled_from([0.0, 1e-9, 0.05, 1.0, 1e6]))
SAMPLES = st.lists(
    st.tuples(SECONDS, st.booleans(), st.floats(0.0, 400.0)),  # value, cut, seconds since the one before
    min_size=1,
    max_size=60,
)


class Naive:
    """Remembers everything; weighs it when asked."""

    def __init__(self, half_life):
        self.half_life = half_life
        self.samples = []

    def weighed(self, now):
        return [(value, cut, 2.0 ** ((at - now) / self.half_life)) for value, cut, at in self.samples]

    def count(self, now, censored=True):
        return sum(weight for _, cut, weight in self.weighed(now) if censored or not cut)

    def quantile(self, q, now, censored=True):
        """Kaplan and Meier's: a cut sample leaves the risk set without having died."""
        samples = [one for one in self.weighed(now) if censored or not one[1]]
        at_risk, surviving = sum(weight for *_, weight in samples), 1.0
        for value in sorted({bucketed(value) for value, *_ in samples}):
            here = [one for one in samples if bucketed(one[0]) == value]
            died = sum(weight for _, cut, weight in here if not cut)
            if died:
                surviving *= max(0.0, 1.0 - died / at_risk)
                if surviving <= 1.0 - q + 1e-12:
                    return value
            at_risk -= sum(weight for *_, weight in here)
        return None


def bucketed(value):
    """What a histogram says a single value was."""
    one = LatencyHistogram()
    one.record(value, 0.0)
    return one.quantile(0.5)


def both(samples, half_life):
    histogram, naive, now = LatencyHistogram(half_life=half_life), Naive(half_life), 0.0
    for value, cut, later in samples:
        now += later
        (histogram.record_censored if cut else histogram.record)(value, now)
        naive.samples.append((value, cut, now))
    return histogram, naive, now


@settings(max_examples=depth(13, 100))
@given(SAMPLES, st.sampled_from([5.0, 150.0]), st.floats(0.0, 100.0), st.booleans())
def test_the_weighted_number_of_samples_is_that_of_a_list(samples, half_life, later, censored):
    histogram, naive, now = both(samples, half_life)
    now += later
    assert histogram.count(now, censored=censored) == pytest.approx(naive.count(now, censored), rel=0.02, abs=1e-12)
    assert histogram.samples == len(samples)
    longest = max(bucketed(value) for value, *_ in samples)
    assert histogram.longest() == longest


@settings(max_examples=depth(13, 100))
@given(SAMPLES, st.sampled_from([0.1, 0.5, 0.95]), st.booleans())
def test_quantiles_are_those_of_a_list_of_all_samples(samples, q, censored):
    samples = [(value, cut, 0.0) for value, cut, _ in samples]  # of one weight: no rounding decides
    histogram, naive, now = both(samples, 150.0)
    assert histogram.quantile(q, censored=censored) == naive.quantile(q, now, censored)
    assert histogram.quantiles([q, 1.0], censored=censored)[0] == histogram.quantile(q, censored=censored)


@settings(max_examples=depth(13, 100))
@given(SAMPLES, SAMPLES, st.floats(0.0, 50.0))
def test_merging_is_having_seen_both(first, second, later):
    one, naive, now = both(first, 150.0)
    other, naive_other, end = both(second, 150.0)
    now = max(now, end) + later
    one.merge(other, now)
    naive.samples += naive_other.samples
    for censored in (True, False):
        assert one.count(now, censored=censored) == pytest.approx(naive.count(now, censored), rel=0.04, abs=1e-12)
    assert one.samples == len(first) + len(second)
    assert one.longest() == max(bucketed(value) for value, *_ in first + second)


@settings(max_examples=depth(13, 100))
@given(SAMPLES, st.floats(0.0, 50.0))
def test_written_down_and_read_back_it_is_the_same(samples, later):
    one, _, now = both(samples, 150.0)
    back = LatencyHistogram.from_dict(one.to_dict(now + later), 7.0)
    for censored in (True, False):
        assert back.count(7.0, censored=censored) == pytest.approx(one.count(now + later, censored=censored))
    assert back.quantiles([0.1, 0.5, 0.9]) == one.quantiles([0.1, 0.5, 0.9])
    assert (back.samples, back.half_life) == (one.samples, one.half_life)
    assert back.to_dict(7.0).keys() == one.to_dict(now).keys()


@given(st.lists(SECONDS, max_size=40), st.floats(0.0, 1e4))
def test_many_at_once_are_as_many_one_by_one(values, now):
    one, other = LatencyHistogram(), LatencyHistogram()
    for value in values:
        one.record(value, now)
    other.record_many(values, now)
    assert one.to_dict(now) == other.to_dict(now)


def test_weights_are_rescaled_long_before_they_overflow():
    one = LatencyHistogram(half_life=1.0)
    for second in range(5000):
        one.record(0.1, float(second))
        one.record_censored(0.2, float(second))
    assert one.count(4999.0) == pytest.approx(4.0, rel=0.02)
    assert math.isfinite(one.count(0.0))
    assert one.count(4999.0 + 2000.0) == 0.0


def test_bad_data_is_refused():
    good = LatencyHistogram().to_dict(0.0)
    for bad in ({"-1": 1.0}, {"100000": 1.0}, {"5": -1.0}, {"5": math.inf}, {"5": math.nan}):
        for key in ("ends", "cut"):
            with pytest.raises(ValueError, match="bad bucket"):
                LatencyHistogram.from_dict({**good, key: bad}, 0.0)
    edge = LatencyHistogram.from_dict({**good, "ends": {"0": 1.0}, "cut": {"0": 0.0}}, 0.0)
    assert edge.count(0.0) == 1.0


# --- limits ----------------------------------------------------------------------------------------------------------


@settings(max_examples=depth(13, 100))
@given(
    st.lists(st.floats(0.01, 30.0), min_size=1, max_size=120),
    st.builds(
        AdaptiveTimeoutPolicy,
        floor=st.sampled_from([0.05, 0.5]),
        cap=st.sampled_from([1.0, 20.0]),
        quantile=st.sampled_from([0.9, 0.99]),
        margin=st.sampled_from([1.0, 2.0]),
        spread=st.sampled_from([0.0, 3.0]),
        samples=st.sampled_from([1, 20, 60]),
        slow_by_nature=st.booleans(),
        hard_cap=st.just(40.0),
    ),
)
def test_a_learned_limit_is_its_formula_between_floor_and_cap(values, policy):
    latency = AdaptiveTimeout(policy)
    for value in values:
        latency.record(value, 0.0)
    latency.refresh(0.0)
    histogram = latency.histogram
    top = policy.hard_cap if policy.slow_by_nature else policy.cap
    if len(values) < policy.samples / 2:
        assert latency.limit() == policy.cap
    else:
        median, high = histogram.quantiles([0.5, policy.quantile])
        wanted = policy.margin * high + policy.spread * (high - median)
        assert latency.limit() == min(top, max(policy.floor, wanted))
    known = len(values) >= 20
    assert latency.typical == (histogram.quantile(0.5, censored=False) if known else 0.0)
    assert latency.healthy_p95 == (histogram.quantile(0.95, censored=False) if known else None)


def test_samples_count_soon_enough():
    """They are buffered, but no longer than until a quarter more has come, or 256 of them."""
    latency = AdaptiveTimeout(AdaptiveTimeoutPolicy(floor=0.01, cap=100.0))
    counted = []
    for number in range(1, 2001):
        latency.record(1.0, 0.0)
        if latency.histogram.samples == number:
            counted.append(number)
    assert counted[0] == 20
    gaps = [later - earlier for earlier, later in pairwise(counted)]
    assert gaps == [min(256, max(8, earlier // 4)) for earlier in counted[:-1]]


def test_figures_are_looked_at_again_after_half_a_second_or_a_quarter_more_samples():
    latency = AdaptiveTimeout(AdaptiveTimeoutPolicy(floor=0.01, cap=100.0, quantile=0.9))
    for _ in range(100):
        latency.record(1.0, 0.0)
    latency.refresh(0.0)
    steady = latency.limit()
    for _ in range(24):
        latency.record_censored(50.0, 0.25)
    assert latency.limit() == steady
    latency.record_censored(50.0, 0.25)  # a quarter more
    assert latency.limit() == 100.0
    latency.refresh(0.25)
    before = latency.histogram.samples
    for _ in range(3):
        latency.record_censored(50.0, 0.74)
    assert latency.histogram.samples == before + 3
    latency.reconfigure(AdaptiveTimeoutPolicy(floor=0.01, cap=7.0, quantile=0.9), None, 0.74)
    assert latency.limit() == 7.0


def test_a_size_is_relative_to_those_seen_and_bounded():
    latency = AdaptiveTimeout(AdaptiveTimeoutPolicy(floor=0.01, cap=1000.0, hard_cap=2000.0))
    for _ in range(40):
        latency.record(1.0, 0.0)
    usual = latency.limit()
    assert latency.limit(size=2.0) == pytest.approx(2.0 * usual)
    assert latency.limit(size=1e9) == pytest.approx(20.0 * usual)
    assert latency.limit(size=1e-9) == pytest.approx(0.05 * usual)
    for size in (0.0, -1.0):
        with pytest.raises(ValueError, match="size"):
            latency.limit(size=size)
    latency.record_censored(3.0, 0.0, size=3.0)
    assert latency.limit(size=2.0) == pytest.approx(2.0 * usual)  # what was cut teaches no size
    latency.record(3.0, 0.0, size=3.0)
    assert latency.limit(size=2.0) == pytest.approx(2.0 / 1.1 * usual)  # a twentieth of the way to 3


def test_without_a_policy_a_fixed_limit_holds_for_any_size_unless_it_was_shortened():
    latency = AdaptiveTimeout(None, fixed=4.0)
    assert (latency.limit(), latency.limit(size=9.0)) == (4.0, 4.0)
    latency.shorten(1.0)
    assert (latency.limit(), latency.limit(size=3.0), latency.limit(size=0.5)) == (1.0, 3.0, 1.0)
    latency.shorten(9.0)
    assert latency.limit() == 4.0
    latency.shorten(None)
    assert latency.limit() == 4.0
    nothing = AdaptiveTimeout(None)
    assert (nothing.limit(), nothing.limit(size=3.0)) == (None, None)
    nothing.shorten(2.0)
    assert nothing.limit() == 2.0


def test_the_usual_time_needs_ten_samples_weight_of_late():
    latency = AdaptiveTimeout(None)
    for _ in range(20):
        latency.record(1.0, 0.0)
    assert latency.typical > 0
    latency.refresh(149.0)  # half-life 150 s: just above ten
    assert latency.typical > 0
    latency.refresh(160.0)
    assert (latency.typical, latency.healthy_p95) == (0.0, None)


@pytest.mark.parametrize(
    "bad",
    [
        {"floor": 0.0}, {"floor": 2.0, "cap": 1.0}, {"cap": 0.5}, {"quantile": 0.49}, {"quantile": 1.0},
        {"margin": 0.99}, {"spread": -0.1}, {"window": 0.0}, {"samples": 0},
    ],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="needs|must"):
        AdaptiveTimeoutPolicy(**bad)


def test_limits_at_the_edge_of_sense_are_accepted():
    AdaptiveTimeoutPolicy(floor=1.0, cap=1.0, quantile=0.5, margin=1.0, spread=0.0, window=0.1, samples=1, hard_cap=0.5)
