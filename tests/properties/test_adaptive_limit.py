"""Whatever it is told, the adaptive limit stays in its range and sane."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deep import depth

from failsoft.kernel.adaptive import AdaptiveLimit, AdaptiveLimitPolicy

RANGES = st.tuples(st.integers(1, 50), st.integers(0, 200)).map(lambda pair: (pair[0], pair[0] + pair[1]))
CALLS = st.tuples(
    st.floats(0.0, 5.0),  # seconds since the last one
    st.one_of(st.sampled_from([0.0, 0.1, 0.2]), st.floats(0.0, 1e12)),  # latency
    st.integers(1, 300),  # in use
    st.sampled_from(["ok", "ok", "ok", "failed", "timeout"]),
    st.integers(1, 30),  # repetitions
)


@settings(deadline=None, max_examples=depth(33, 100))
@given(bounds=RANGES, permits=st.integers(1, 1000), calls=st.lists(CALLS, max_size=60), seed=st.integers(0, 3))
def test_any_sequence_of_calls_keeps_it_in_range(bounds, permits, calls, seed):
    minimum, maximum = bounds
    policy = AdaptiveLimitPolicy(minimum=minimum, maximum=maximum, min_samples=2 + seed, max_epoch=2.0, probe_every=3)
    limit = AdaptiveLimit(policy, permits)
    now = 0.0
    for seconds, latency, in_use, counts, times in calls:
        for _ in range(times):
            now += seconds
            before = limit.limit
            after = limit.record(now, latency, in_use, counts)
            assert after == limit.limit
            assert isinstance(after, int)
            assert minimum <= after <= maximum
            assert (
                after <= max(before * 1.5, limit._healthy / 2, 2 * minimum, limit._clamp(before + 1)) or before < after
            )
        baseline = limit.baseline
        assert baseline is None or (baseline > 0.0 and math.isfinite(baseline))
    assert repr(limit)


@settings(deadline=None, max_examples=depth(16, 100))
@given(
    slots=st.integers(2, 60),
    seconds=st.sampled_from([0.002, 0.1, 3.0]),
    initial=st.integers(1, 120),
)
def test_any_noiseless_knee_is_found(slots, seconds, initial):
    """Calls of a round all take what the limit makes of them; after enough rounds it is near the knee, and stays."""
    limit = AdaptiveLimit(AdaptiveLimitPolicy(), initial)
    now = 0.0
    tail: list[int] = []
    for round_ in range(300):
        in_use = limit.limit
        latency = seconds * max(1.0, in_use / slots)
        now += latency
        for index in range(in_use):
            limit.record(now + index * 1e-9, latency, in_use, "ok")
        if round_ >= 200:
            tail.append(in_use)
    mean = sum(tail) / len(tail)
    assert abs(mean - slots) <= max(1.0, 0.2 * slots)


@settings(deadline=None, max_examples=depth(16, 100))
@given(initial=st.integers(1, 200), minimum=st.integers(1, 4), timeout=st.sampled_from([0.5, 30.0]))
def test_when_all_time_out_it_is_at_its_minimum_soon_and_never_above_twice_that(initial, minimum, timeout):
    limit = AdaptiveLimit(AdaptiveLimitPolicy(minimum=minimum), max(initial, minimum))
    now = 0.0
    seen: list[int] = []
    for _ in range(400):
        in_use = limit.limit
        now += timeout
        for index in range(in_use):
            limit.record(now + index * 1e-6, timeout, in_use, "timeout")
        seen.append(limit.limit)
    assert seen[-1] <= 2 * minimum
    assert set(seen[200:]) == {minimum, 2 * minimum}
