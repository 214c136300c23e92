"""L3 of the staged response: on when models fail as a whole, off when they do no longer."""

from failsoft.models.level3 import Level3, Level3Change, Level3Policy


def fed(level, share, start, seconds, *, rate=10):
    """`rate` attempts a second, the last `share` of them failing; gives the time after them."""
    for second in range(int(seconds)):
        for i in range(rate):
            level.record(i < rate - share * rate, start + second + i / rate)
    return start + seconds


def test_it_goes_on_after_a_minute_of_failures():
    told = []
    level = Level3(on_change=told.append)
    now = fed(level, 0.0, 0.0, 60)
    now = fed(level, 0.2, now, 60)
    assert not level.on(now)
    now = fed(level, 0.2, now, 40)
    assert level.on(now)
    assert [change.on for change in told] == [True]
    assert isinstance(told[0], Level3Change)
    assert told[0].share > 0.15


def test_exactly_the_limit_is_not_over_it():
    level = Level3(Level3Policy(enter=0.2))
    assert not level.on(fed(level, 0.2, 0.0, 300))


def test_it_goes_off_after_three_minutes_without():
    level = Level3()
    now = fed(level, 1.0, 0.0, 61)
    assert level.on(now)
    now = fed(level, 0.0, now, 180)
    assert level.on(now)
    now = fed(level, 0.0, now, 40)
    assert not level.on(now)


def test_a_share_between_the_two_changes_nothing():
    level = Level3()
    now = fed(level, 1.0, 0.0, 61)
    now = fed(level, 0.1, now, 600)
    assert level.on(now)
    other = Level3()
    assert not other.on(fed(other, 0.1, 0.0, 600))


def test_a_failing_minute_with_a_good_half_in_it_is_none():
    level = Level3()
    now = fed(level, 1.0, 0.0, 40)
    now = fed(level, 0.0, now, 40)
    assert not level.on(fed(level, 1.0, now, 40))


def test_a_few_failures_say_nothing():
    level = Level3()
    for second in range(0, 600, 10):
        level.record(False, float(second))
    assert not level.on(600.0)


def test_silence_is_no_failure_and_cannot_keep_it_on():
    level = Level3()
    now = fed(level, 1.0, 0.0, 61)
    assert level.on(now)
    assert level.on(now + 100)
    assert not level.on(now + 30 + 181)
    quiet = Level3()
    now = fed(quiet, 1.0, 0.0, 30)
    assert not quiet.on(fed(quiet, 1.0, now + 600, 30))
