"""Limits of a model call: configured, computed, learned, and what the budget leaves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.models.limits import InFlightLoad, ModelLimits, cold_limit, limits_for

DEFAULT = ModelLimits()
OPEN = ModelLimits(first_content=500, idle=500, total=500)


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "load", "seconds"),
    [
        (0, 0, 0.5, 8.5 + 1),
        (100, 0, 0.5, 8.5 * 1.25 + 1),
        (200, 200, 0.5, 8.5 * 2 + 1),
        (0, None, 0.5, 8.5 * (1 + 5.12 * 0.25) + 1),  # 512 are expected when there is no limit
        (0, 0, 0.8, 8.5 + 1),
        (0, 0, 0.9, 8.5 * 1.5 + 1),
        (0, 0, 1.0, 8.5 * 2 + 1),
        (0, 0, None, 8.5 + 1),  # 65 % when nobody says
        (0, 0, math.nan, 8.5 + 1),
        (10**9, 0, 0.5, 120.0),
        (0, 0, math.inf, 120.0),
        (-5, -5, -1.0, 8.5 + 1),
    ],
)
def test_the_cold_formula(tokens, max_tokens, load, seconds):
    """T7."""
    assert cold_limit(DEFAULT, tokens, max_tokens, load) == pytest.approx(seconds)


def test_the_cold_limit_is_never_below_five_seconds():
    assert cold_limit(ModelLimits(base=0.5, margin=0), 0, 0, 0.5) == 5.0


def test_without_a_budget_the_smaller_of_configured_and_computed_holds():
    small = limits_for(DEFAULT, 20, 10, 0.5)
    assert small.total == cold_limit(DEFAULT, 20, 10, 0.5) < 30
    assert (small.connect, small.first, small.idle) == (3.0, 5.0, small.total)
    assert small.which == ("configured", "computed", "computed")
    large = limits_for(DEFAULT, 3000, 3000, 0.5)
    assert large[:5] == (3.0, 5.0, 15.0, 30.0, ("configured", "configured", "configured"))


def test_the_budget_leaves_what_later_routes_usually_need():
    limits = limits_for(DEFAULT, 3000, 3000, 0.5, remaining=10.0, reserve=4.0)
    assert (limits.first, limits.idle, limits.total) == (5.0, 6.0, 6.0)
    assert limits.which == ("configured", "budget", "budget")
    tight = limits_for(DEFAULT, 3000, 3000, 0.5, remaining=6.0, reserve=4.0)
    assert (tight.connect, tight.first, tight.total) == (2.0, 2.0, 2.0)
    assert tight.which == ("budget", "budget", "budget")


def test_the_last_route_gets_everything_left():
    limits = limits_for(DEFAULT, 10, 10, 0.5, remaining=20.0, reserve=4.0, last=True)
    assert (limits.first, limits.idle, limits.total) == (20.0, 15.0, 20.0)
    assert limits.which == ("budget", "configured", "budget")
    ample = limits_for(DEFAULT, 10, 10, 0.5, remaining=100.0, last=True)
    assert ample.total == 30.0  # what is configured for the whole holds for everybody
    endless = limits_for(DEFAULT, 10, 10, 0.5, last=True)
    assert endless.first == 5.0


def test_a_used_up_budget_gives_limits_that_fire_at_once():
    for remaining in (0.0, -5.0, 1.0):
        limits = limits_for(DEFAULT, 10, 10, remaining=remaining, reserve=2.0)
        assert 0 < limits.total <= 0.001


class Learned:
    def __init__(self, first, total):
        self.found = (first, total)

    def limits(self, tokens, max_tokens, load):
        assert load == 0.65
        return self.found


def test_a_learned_model_takes_the_formulas_place_once_it_knows():
    limits = limits_for(OPEN, 10, 10, learned=Learned(2.5, 40.0))
    assert (limits.first, limits.total) == (2.5, 40.0)
    assert limits.which == ("learned", "learned", "learned")
    assert limits_for(OPEN, 10, 10, learned=Learned(None, None)).which[2] == "computed"
    assert limits_for(OPEN, 10, 10, learned=Learned(None, 1e9)).total == 120.0
    assert limits_for(DEFAULT, 10, 10, learned=Learned(9.0, 10.0)).first == 5.0


@given(
    st.integers(-10, 10**6), st.none() | st.integers(-10, 10**6), st.none() | st.floats(), st.floats(-10, 200),
    st.floats(-10, 50), st.booleans(),
)  # fmt: skip
def test_limits_are_positive_ordered_and_inside_the_budget(tokens, max_tokens, load, remaining, reserve, last):
    limits = limits_for(DEFAULT, tokens, max_tokens, load, remaining, reserve, last=last)
    assert 0 < limits.first <= limits.total <= 30.0
    assert 0 < limits.idle <= limits.total
    assert 0 < limits.connect <= limits.total
    assert limits.total <= max(0.001, remaining)


def test_the_load_by_our_own_count():
    load = InFlightLoad(4)
    assert load.load() == 0.0
    for _ in range(5):
        load.started()
    assert load.load() == 1.25
    for _ in range(7):
        load.ended()
    assert load.load() == 0.0
    assert repr(load) == "<InFlightLoad 0/4>"
    with pytest.raises(ValueError, match="capacity"):
        InFlightLoad(0)


@pytest.mark.parametrize(
    "wrong", [{"total": 0}, {"k": -1}, {"least": 9, "most": 8}, {"most": math.inf}, {"base": math.nan}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must|needs"):
        ModelLimits(**wrong)
