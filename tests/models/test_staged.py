"""L1 and L2 of the staged response."""

from failsoft.models.staged import Staged, StagedPolicy


def staged():
    changes = []
    return Staged(StagedPolicy(), changes.append), changes


def test_three_timeouts_in_a_row_shorten_the_limit_until_five_successes_in_a_row():
    s, changes = staged()
    s.timeout(30.0, 0.0)
    s.timeout(30.0, 1.0)
    s.success(1.0, 2.0)
    s.timeout(30.0, 3.0)
    s.timeout(30.0, 4.0)
    assert s.limit is None
    s.timeout(30.0, 5.0)
    assert s.limit == 15.0
    for number in range(4):
        s.success(1.0, 6.0 + number)
    s.timeout(15.0, 10.0)
    for number in range(5):
        assert s.l1
        s.success(1.0, 11.0 + number)
    assert not s.l1
    assert [(c.level, c.entered) for c in changes] == [("L1", True), ("L1", False)]


def feed(s, start, seconds, latency):
    for tick in range(int(seconds)):
        s.success(latency, start + tick)
    return start + seconds


def test_a_p99_of_twice_its_baseline_for_two_minutes_asks_for_more_and_gives_back_when_recovered():
    s, changes = staged()
    now = feed(s, 0.0, 600, 1.0)
    assert changes == []
    slow_from = now
    now = feed(s, now, 400, 3.0)
    (change,) = changes
    assert (change.level, change.entered, change.instances) == ("L2", True, 2)
    assert 120.0 <= change.at - slow_from < 260.0
    now = feed(s, now, 900, 1.0)
    assert [c.entered for c in changes] == [True, False]


def test_a_short_peak_asks_for_nothing():
    s, changes = staged()
    now = feed(s, 0.0, 600, 1.0)
    now = feed(s, now, 60, 3.0)
    feed(s, now, 600, 1.0)
    assert changes == []


def test_a_lasting_slowdown_does_not_become_the_baseline():
    s, changes = staged()
    now = feed(s, 0.0, 600, 1.0)
    feed(s, now, 3600, 3.0)
    assert s.l2
    assert s.baseline < 1.1
    assert len(changes) == 1
