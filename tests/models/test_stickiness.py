"""Which route an alias uses: sticky, with single probes back, never stuck."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.models.stickiness import Stickiness, StickinessPolicy


def sticky(number=3, **policy):
    return Stickiness(StickinessPolicy(**policy), number, rng=random.Random(1))


def test_a_healthy_alias_stays_on_its_main_route_with_the_others_behind():
    s = sticky()
    for _ in range(10):
        assert s.order(0.0) == [0, 1, 2]
        s.served(0, 0.0)


@pytest.mark.parametrize(("timeout", "times"), [(True, 5), (False, 3)])
def test_it_moves_on_after_five_timeouts_or_three_errors_in_a_row(timeout, times):
    s = sticky()
    assert [s.failed(0, 0.0, timeout=timeout) for _ in range(times)] == [False] * (times - 1) + [True]
    assert s.order(0.0) == [1, 2]


def test_a_success_between_breaks_the_row():
    s = sticky()
    for _ in range(10):
        s.failed(0, 0.0, timeout=False)
        s.served(0, 0.0)
    assert s.current == 0


def test_one_request_probes_the_better_route_after_four_to_eight_minutes():
    s = sticky()
    s.breaker_opened(0, 0.0)
    assert s.order(239.9) == [1, 2]
    assert s.order(480.0) == [0, 1, 2]
    assert s.order(480.0) == [1, 2]  # the others stay where they are until it is known
    s.served(0, 481.0)
    assert s.order(481.0) == [0, 1, 2]
    assert s.switches == 2


def test_a_failed_probe_waits_again_and_a_cancelled_one_decides_nothing():
    s = sticky()
    s.breaker_opened(0, 0.0)
    s.order(480.0)
    s.failed(0, 480.0, timeout=True)
    assert s.order(480.0 + 239.9) == [1, 2]
    assert s.order(960.0)[0] == 0
    s.unused(0)
    assert s.order(960.0)[0] == 0


def test_a_route_whose_key_is_refused_is_out_at_once_and_comes_back_later():
    s = sticky(2)
    assert s.take_out(0, 0.0, 600.0)
    assert s.order(500.0) == [1]
    s.take_out(1, 0.0, 60.0)
    assert s.order(10.0) == []
    assert s.next_chance(10.0) == 50.0
    assert s.order(60.0) == [1]


def test_the_last_route_is_kept_even_when_it_fails():
    s = sticky(1)
    for _ in range(20):
        s.failed(0, 0.0, timeout=False)
    assert s.order(0.0) == [0]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["served", "timeout", "error", "unused", "opened", "out"]),
            st.integers(0, 2),
            st.floats(0, 300),
        ),
        max_size=100,
    )
)
def test_there_is_always_a_way_and_never_a_route_twice(steps):
    s, now = sticky(), 0.0
    for what, pick, wait in steps:
        now += wait
        order = s.order(now)
        assert len(set(order)) == len(order)
        assert order or s.next_chance(now) > 0
        if not order:
            now += s.next_chance(now)
            order = s.order(now)
            assert order
        index = order[pick % len(order)]
        for other in order:
            if other != index:
                s.unused(other)
        if what == "served":
            s.served(index, now)
            assert s.current <= index
        elif what in ("timeout", "error"):
            s.failed(index, now, timeout=what == "timeout")
        elif what == "unused":
            s.unused(index)
        elif what == "opened":
            s.breaker_opened(index, now)
        else:
            s.take_out(index, now, 100.0)
