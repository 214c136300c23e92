"""The rolling window against a list of everything that was ever recorded."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.kernel.window import BUCKETS, RollingWindow, Tally

GAPS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.75, 9.0, 9.75, 10.0, 10.25, 1e6])
EXACT = st.integers(0, 640).map(lambda n: n / 64)  # sums of these are exact in any order
RECORD = st.tuples(GAPS, EXACT, st.booleans(), st.booleans(), st.booleans(), st.booleans())


def naive(records, now, seconds):
    width = seconds / BUCKETS
    live = [record for at, record in records if at // width > now // width - BUCKETS]
    return Tally(
        calls=len(live),
        failed=sum(failed for _, failed, *_ in live),
        timeouts=sum(timeout for _, _, timeout, *_ in live),
        slow=sum(slow for *_, slow, _ in live),
        over=sum(over for *_, over in live),
        latency=sum(latency for latency, failed, *_ in live if not failed),
    )


@given(st.lists(RECORD, max_size=60), st.sampled_from([10.0, 60.0, 1.0, 3.0]), st.sampled_from([0.0, 1000.25, -77.5]))
def test_a_window_holds_what_a_list_of_all_records_holds(steps, seconds, start):
    window, records, now = RollingWindow(seconds), [], start
    for gap, *record in steps:
        now += gap
        records.append((now, record))
        window.add(now, *record)
        assert window.tally(now) == naive(records, now, seconds)
    for _ in range(12):
        now += seconds / BUCKETS
        assert window.tally(now) == naive(records, now, seconds)
    assert window.tally(now) == Tally()


@given(st.floats(0.01, 1000.0), st.floats(0.0, 1e7))
def test_a_record_counts_for_at_least_nine_tenths_of_the_window_and_at_most_for_all_of_it(seconds, at):
    window = RollingWindow(seconds)
    window.add(at, 0.0)
    slack = math.ulp(at + seconds) * 4
    assert window.tally(at + seconds * 0.9 - slack).calls == 1
    assert window.tally(at + seconds + slack).calls == 0


@given(st.floats(0.01, 1000.0), st.floats(0.0, 1e7))
def test_the_edge_is_exactly_the_first_instant_of_the_next_bucket(seconds, at):
    window = RollingWindow(seconds)
    window.roll(at)
    width = seconds / BUCKETS
    assert window.edge > at
    assert window.edge // width > at // width
    assert math.nextafter(window.edge, -math.inf) // width == at // width


def test_all_records_of_a_bucket_leave_at_the_same_instant():
    window = RollingWindow(10.0)
    window.add(0.0, 0.0)
    window.add(0.999, 0.0)
    assert window.tally(math.nextafter(10.0, 0.0)).calls == 2
    assert window.tally(10.0).calls == 0


def test_an_idle_gap_of_any_length_leaves_nothing_behind():
    window = RollingWindow(10.0)
    for n in range(1000):
        window.add(n / 100, 0.1)
    window.add(1e12, 0.1)
    assert window.tally(1e12) == Tally(calls=1, latency=0.1)


def test_latencies_do_not_drift_however_long_it_runs():
    window = RollingWindow(10.0)
    for n in range(5_000):
        window.add(n / 2, 1e9 if n < 10 else 0.1)
    tally = window.tally(5_000 / 2)
    assert tally.calls == 18  # the bucket of the last look is empty
    assert tally.mean == pytest.approx(0.1, rel=1e-14)


def test_memory_does_not_grow_with_records_or_time():
    window = RollingWindow(10.0)
    for n in range(10_000):
        window.add(n / 7, 0.1)
    held = window._closed
    assert len(held) <= BUCKETS
    assert sys.getsizeof(held) < 2000


def test_a_time_before_the_current_bucket_counts_in_the_current_bucket():
    window = RollingWindow(10.0)
    window.add(25.0, 0.0)
    window.add(12.0, 0.0)
    assert window.tally(12.0).calls == 2
    assert window.tally(34.9).calls == 2
    assert window.tally(35.0).calls == 0


def test_the_latency_of_failed_calls_is_left_out_and_that_of_timeouts_is_in():
    window = RollingWindow(10.0)
    window.add(0.0, 100.0, failed=True)
    window.add(0.0, 4.0, timeout=True)
    window.add(0.0, 2.0)
    tally = window.tally(0.0)
    assert (tally.ok, tally.bad, tally.mean) == (1, 2, 3.0)
    assert Tally().mean == Tally(calls=1, failed=1).mean == 0.0


def test_clearing_forgets_closed_buckets_and_the_current_one():
    window = RollingWindow(10.0)
    for now in (0.0, 5.0):
        window.add(now, 1.0, failed=True, timeout=True, slow=True, over=True)
    window.clear()
    assert repr(window) == repr(RollingWindow(10.0)) == "<RollingWindow 10s calls=0 bad=0 slow=0>"
    assert window.tally(5.0) == Tally()


@given(st.lists(RECORD, max_size=30), st.sampled_from([5.0, 10.0, 60.0]))
def test_resizing_keeps_what_is_still_inside_to_within_a_bucket(steps, seconds):
    window, records, now = RollingWindow(10.0), [], 100.0
    for gap, *record in steps:
        now += min(gap, 20.0)
        records.append((now, record))
        window.add(now, *record)
    old = window.tally(now)
    other = window.resized(seconds, now)
    kept = other.tally(now)
    if seconds >= 10.0:
        assert kept == old
    else:
        inside = [record for at, record in records if at > now - seconds + window.width + other.width]
        assert len(inside) <= kept.calls <= old.calls
    assert other.tally(now + seconds + window.width) == Tally()
    assert (other.seconds, other.width) == (seconds, seconds / BUCKETS)


@given(st.lists(RECORD, min_size=1, max_size=30))
def test_a_resized_window_carries_every_figure(steps):
    window, now = RollingWindow(10.0), 0.0
    for _, *record in steps:
        now += 0.125
        window.add(now, *record)
    assert window.resized(30.0, now).tally(now) == window.tally(now)


def test_a_longer_window_does_not_bring_back_what_had_left_the_shorter_one():
    window = RollingWindow(10.0)
    window.add(0.0, 1.0)
    assert window.resized(60.0, 15.0).tally(15.0) == Tally()


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_window_without_a_length_is_refused(seconds):
    with pytest.raises(ValueError, match="finitely many seconds"):
        RollingWindow(seconds)


def test_a_window_shows_its_figures():
    window = RollingWindow(10.0)
    window.add(0.0, 1.0, failed=True)
    window.add(5.0, 1.0, timeout=True, slow=True)
    window.add(5.0, 1.0)
    assert repr(window) == "<RollingWindow 10s calls=3 bad=2 slow=1>"
