"""Back-off, ``Retry-After`` and the retry budget."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.kernel.budget import RetryBudget
from failsoft.kernel.retry import RetryPolicy, parse_retry_after

WALL = 1_764_500_000.0  # 2025-11-30 10:53:20 UTC


def test_an_action_never_repeats_by_itself_and_an_external_call_goes_elsewhere():
    policy = RetryPolicy()
    assert [policy.retries(kind) for kind in ("query", "action", "external")] == [1, 0, 0]


def test_additive_backoff_is_report_bs():
    policy = RetryPolicy(base=0.2, spread=0.1)
    rng = random.Random(1)
    for _ in range(100):
        assert 0.2 <= policy.backoff(1, rng) <= 0.3
        assert 0.4 <= policy.backoff(2, rng) <= 0.6


@given(
    retry=st.integers(1, 10**9),
    jitter=st.sampled_from(["additive", "full", "decorrelated"]),
    seed=st.integers(0, 1000),
    previous=st.floats(0, 1e300),
)
def test_backoff_never_overflows_nor_exceeds_its_cap(retry, jitter, seed, previous):
    wait = RetryPolicy(jitter=jitter, cap=30.0).backoff(retry, random.Random(seed), previous=previous)
    assert 0.0 <= wait <= 30.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("47", 47.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        (3, 3.0),
        ("Sun, 30 Nov 2025 10:54:20 GMT", 60.0),
        ("Sunday, 30-Nov-25 10:54:20 GMT", 60.0),
        ("Sun, 30 Nov 2025 10:00:00 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        (None, None),
        (True, None),
        (float("nan"), None),
        (float("inf"), None),
        ("١٢", None),
        ("9" * 400, None),
        ("Sun, 99 Nov 2025 10:54:20 GMT", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date_and_garbage_is_nothing(value, seconds):
    assert parse_retry_after(value, wall=WALL) == seconds


@given(st.text(max_size=80))
def test_no_retry_after_raises(text):
    seconds = parse_retry_after(text, wall=WALL)
    assert seconds is None or seconds >= 0


def test_bad_policies_are_refused():
    for bad in ({"queries": 11}, {"base": 3.0, "cap": 1.0}, {"spread": -1.0}):
        with pytest.raises(ValueError, match="must|needs"):
            RetryPolicy(**bad)


def test_retries_and_hedges_add_a_tenth_at_most():
    budget = RetryBudget(ratio=0.1, reserve=0.0, ceiling=100.0)
    granted = 0
    for _ in range(1000):
        budget.deposits += 1
        granted += budget.withdraw(0.0)
    assert 98 <= granted <= 100


def test_a_rarely_used_downstream_may_retry_from_the_reserve_which_refills_slowly():
    budget = RetryBudget(reserve=3.0, trickle=0.1)
    assert [budget.withdraw(0.0) for _ in range(4)] == [True, True, True, False]
    assert not budget.withdraw(5.0)
    assert budget.withdraw(10.1)
    budget.refund()
    assert budget.statistics().granted == 3
    assert repr(budget) == "<RetryBudget tokens=1.0 granted=3 refused=2>"


@given(
    st.lists(st.sampled_from(["deposit", "withdraw", "wait", "refund"]), max_size=200),
    st.floats(0, 1),
    st.floats(0, 5),
)
def test_the_budget_is_never_negative_and_keeps_its_promise(steps, ratio, reserve):
    budget = RetryBudget(ratio=ratio, reserve=reserve, ceiling=10.0, trickle=0.5)
    now, out = 0.0, 0
    for step in steps:
        if step == "deposit":
            budget.deposits += 1
        elif step == "withdraw":
            out += budget.withdraw(now)
        elif step == "wait":
            now += 0.7
        elif out:
            budget.refund()
            out -= 1
        figures = budget.statistics()
        assert 0 <= figures.tokens <= 10.0
        assert figures.granted <= figures.deposits * ratio + reserve + now * 0.5 + 1e-6
