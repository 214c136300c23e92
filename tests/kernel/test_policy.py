"""Every figure that a policy has when nobody says otherwise, and which ones make no sense."""

from dataclasses import asdict

import pytest

from failsoft.kernel.adaptive import AdaptiveLimitPolicy
from failsoft.kernel.breaker import breaker_preset
from failsoft.kernel.budget import RetryBudget
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.cache import CachePolicy
from failsoft.kernel.policy import HedgePolicy, Policy, preset
from failsoft.kernel.probes import ProbeCap
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.timeout import AdaptiveTimeoutPolicy


def test_the_figures_of_a_policy():
    policy = Policy()
    assert (policy.kind, policy.call_timeout, policy.attempt_timeout, policy.retry_ratio) == ("query", 30.0, None, 0.1)
    assert (policy.coalesce, policy.detachable, policy.hedge, policy.cache) == (True, False, None, None)
    assert policy.adaptive_timeout is None
    assert policy.breaker is not None


@pytest.mark.parametrize(
    ("policy", "figures"),
    [
        (RetryPolicy(), {
            "queries": 1, "actions": 0, "externals": 0, "base": 0.2, "spread": 0.1, "cap": 30.0, "jitter": "additive",
            "room": 1.5,
        }),
        (HedgePolicy(), {"quantile": 0.95, "minimum": 0.01, "share": 0.05}),
        (CachePolicy(), {"ttl": 60.0, "stale_for": 3600.0, "entries": 1000, "max_bytes": 1 << 26, "jitter": 0.1}),
        (AdaptiveTimeoutPolicy(), {
            "floor": 1.0, "cap": 3.0, "quantile": 0.99, "margin": 2.0, "spread": 3.0, "window": 600.0, "samples": 20,
            "slow_by_nature": False, "hard_cap": 120.0,
        }),
        (BulkheadPolicy(), {
            "permits": 64, "queue": 256, "max_wait": None, "normal_share": 0.1, "tenant_share": 0.5,
            "fallback_share": 0.5, "codel_target": None, "codel_interval": None, "explore_interval": 1.0,
            "adaptive": None,
        }),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_the_figures_of_its_parts(policy, figures):
    assert asdict(policy) == figures


@pytest.mark.parametrize(
    ("name", "call", "attempt", "permits", "queue", "most", "breaker", "queries", "base", "spread"),
    [
        ("core", 5.0, None, 64, 256, 128, "strict", 1, 0.2, 0.1),
        ("data", 8.0, 3.0, 32, 128, 64, "B", 2, 0.2, 0.1),
        ("auxiliary", 3.0, None, 8, 64, 16, "strict", 0, 0.2, 0.1),
        ("external", 8.0, None, 8, 32, None, "patient", 1, 0.2, 0.1),
        ("model", 30.0, None, 20, 64, None, None, 1, 0.5, 0.5),
    ],
)
def test_the_figures_of_a_preset(name, call, attempt, permits, queue, most, breaker, queries, base, spread):
    policy = preset(name)
    assert (policy.call_timeout, policy.attempt_timeout) == (call, attempt)
    assert (policy.bulkhead.permits, policy.bulkhead.queue) == (permits, queue)
    adaptive = None if most is None else AdaptiveLimitPolicy(minimum=permits, maximum=most)
    assert policy.bulkhead.adaptive == adaptive
    assert policy.breaker == (breaker_preset(breaker) if breaker else breaker_preset("E", p99=None))
    assert (policy.retry.queries, policy.retry.base, policy.retry.spread) == (queries, base, spread)
    assert policy.kind == ("external" if name == "external" else "query")
    assert policy.adaptive_timeout == (AdaptiveTimeoutPolicy(floor=1.0, cap=3.0) if name == "data" else None)


@pytest.mark.parametrize(
    "bad",
    [
        {"call_timeout": 0.0}, {"call_timeout": -1.0}, {"attempt_timeout": 0.0},
        {"attempt_timeout": 2.0, "call_timeout": 1.0}, {"retry_ratio": -0.1}, {"retry_ratio": 1.1},
    ],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(bad):
    with pytest.raises(ValueError, match="must"):
        Policy(**bad)


def test_a_policy_at_the_edge_of_sense_is_accepted():
    Policy(call_timeout=1.0, attempt_timeout=1.0, retry_ratio=0.0)
    Policy(call_timeout=None, attempt_timeout=1.0, retry_ratio=1.0)
    Policy(call_timeout=0.001)


@pytest.mark.parametrize(
    "bad",
    [
        {"queries": -1}, {"queries": 11}, {"actions": -1}, {"actions": 11}, {"externals": 11}, {"base": -0.1},
        {"base": 31.0}, {"spread": -0.1}, {"room": -0.1},
    ],
)  # fmt: skip
def test_retries_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="must|needs"):
        RetryPolicy(**bad)


def test_retries_at_the_edge_of_sense_are_accepted():
    RetryPolicy(queries=10, actions=10, externals=10, base=30.0, spread=0.0, room=0.0)
    RetryPolicy(queries=0, base=0.0, cap=0.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"ttl": 0.0}, {"ttl": float("inf")}, {"stale_for": -1.0}, {"entries": 0}, {"max_bytes": 0}, {"jitter": -0.1},
        {"jitter": 1.0},
    ],
)  # fmt: skip
def test_a_cache_that_makes_no_sense_is_refused(bad):
    with pytest.raises(ValueError, match="needs|must"):
        CachePolicy(**bad)


def test_a_cache_at_the_edge_of_sense_is_accepted():
    CachePolicy(ttl=0.001, stale_for=0.0, entries=1, max_bytes=1, jitter=0.0)


@pytest.mark.parametrize(
    "bad",
    [{"ratio": -0.1}, {"ratio": 1.1}, {"reserve": -1.0}, {"reserve": 2.0, "ceiling": 1.0}, {"trickle": -0.1}],
)
def test_a_budget_that_makes_no_sense_is_refused(bad):
    with pytest.raises(ValueError, match="needs"):
        RetryBudget(**bad)


def test_a_budget_at_the_edge_of_sense_is_accepted_and_its_figures():
    RetryBudget(ratio=0.0, reserve=0.0, ceiling=0.0, trickle=0.0)
    RetryBudget(ratio=1.0, reserve=2.0, ceiling=2.0)
    budget = RetryBudget()
    assert (budget.ratio, budget.ceiling, budget.reserve, budget.trickle) == (0.1, 20.0, 3.0, 0.1)
    assert ProbeCap().limit == 8


def test_a_budget_saves_up_to_its_ceiling_refills_to_its_reserve_and_refunds():
    budget = RetryBudget(ratio=0.5, ceiling=4.0, reserve=2.0, trickle=0.25)
    assert [budget.withdraw(0.0) for _ in range(3)] == [True, True, False]
    assert (budget.statistics().granted, budget.statistics().refused) == (2, 1)
    assert budget.withdraw(3.0) is False  # three quarters of a token
    assert budget.withdraw(4.0) is True
    assert budget.withdraw(100.0) is True
    assert budget.statistics().tokens == 1.0  # no more than the reserve came back by itself
    budget.refund()
    assert (budget.statistics().tokens, budget.statistics().granted) == (2.0, 3)
    budget.deposits += 100
    assert budget.statistics().tokens == 4.0
    budget.refund()
    assert budget.statistics().tokens == 4.0
    assert budget.withdraw(100.0) is True
    budget.deposits += 1
    assert budget.statistics().tokens == 3.5
    assert budget.withdraw(1000.0) is True
    assert budget.statistics().tokens == 2.5  # above the reserve nothing trickles
    assert budget.statistics().deposits == 101
