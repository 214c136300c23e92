"""The adaptive limit: what it finds, what it follows, and the traps that others fell into."""

import heapq
import importlib.util
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from failsoft.base.errors import ConfigError
from failsoft.kernel.adaptive import AdaptiveLimit, AdaptiveLimitPolicy
from failsoft.kernel.bulkhead import Bulkhead, BulkheadPolicy


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "adaptive.py"
    spec = importlib.util.spec_from_file_location("bench_adaptive", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["bench_adaptive"] = module
    spec.loader.exec_module(module)
    return module


def adaptive(initial: int, **settings: Any) -> Bulkhead:
    return Bulkhead(BulkheadPolicy(permits=initial, adaptive=AdaptiveLimitPolicy(**settings)))


def limits_of(bulkhead: Bulkhead) -> AdaptiveLimit:
    assert bulkhead._adaptive is not None
    return bulkhead._adaptive


@dataclass
class Downstream:
    """Calls end after ``seconds_of(in_flight)``; ``load`` is how many callers there are at most."""

    bulkhead: Bulkhead
    now: float = 0.0
    running: list[tuple[float, int, float]] = field(default_factory=list)
    serial: int = 0

    def serve(
        self,
        seconds: float,
        seconds_of: Callable[[int], float],
        *,
        counts: Callable[[], str] = lambda: "ok",
        load: int = 10_000,
    ) -> list[int]:
        """Runs for a while and returns the limits there were."""
        limits = [self.bulkhead.limit]
        end = self.now + seconds
        while self.now < end:
            while len(self.running) < load and self.bulkhead.try_acquire(self.now):
                self.serial += 1
                heapq.heappush(self.running, (self.now + seconds_of(len(self.running) + 1), self.serial, self.now))
            self.now, _, began = heapq.heappop(self.running)
            self.bulkhead.release(self.now, latency=self.now - began, counts=counts())
            if self.bulkhead.limit != limits[-1]:
                limits.append(self.bulkhead.limit)
        return limits


def knee(slots: int, seconds: float) -> Callable[[int], float]:
    return lambda in_flight: seconds * max(1.0, in_flight / slots)


# --- finding and following -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["none", "uniform ±20 %", "lognormal 0.5"])
@pytest.mark.parametrize("initial", [2, 150])
@pytest.mark.parametrize("slots", [8, 40])
def test_it_finds_the_knee_within_20_percent(bench, noise, initial, slots):
    bulkhead = adaptive(initial)
    (track,) = bench.simulate(bulkhead, [bench.Phase(90.0, slots, 0.1)], bench.NOISES[noise], random.Random(7))
    assert bench.mean_limit(track, 45.0) == pytest.approx(slots, rel=0.2)


def test_it_finds_the_knee_under_exponential_service_times(bench):
    bulkhead = adaptive(10)
    (track,) = bench.simulate(bulkhead, [bench.Phase(150.0, 40, 0.1)], bench.NOISES["exponential"], random.Random(7))
    assert bench.mean_limit(track, 60.0) == pytest.approx(40, rel=0.2)


@pytest.mark.parametrize("scenario", ["2x slower and back", "half the slots and back", "both and back"])
def test_it_follows_a_moving_downstream(bench, scenario):
    bulkhead = adaptive(10)
    phases = bench.SCENARIOS[scenario](30, 0.1, 60.0)
    tracks = bench.simulate(bulkhead, phases, bench.NOISES["uniform ±20 %"], random.Random(3))
    for phase, track in zip(phases, tracks, strict=True):
        assert bench.mean_limit(track, 30.0) == pytest.approx(phase.slots, rel=0.2)


def test_a_slow_down_that_is_not_our_queue_becomes_the_baseline_and_costs_one_epoch():
    downstream = Downstream(adaptive(20))
    downstream.serve(60.0, knee(20, 0.1))
    limit = limits_of(downstream.bulkhead)
    assert limit.baseline == pytest.approx(0.1, rel=0.1)
    limits = downstream.serve(60.0, knee(20, 0.3))
    assert limit.baseline == pytest.approx(0.3, rel=0.1)
    assert limits[-1] == pytest.approx(20, rel=0.2)


def test_the_baseline_does_not_follow_its_own_queue_upwards():
    """The knee falls to a quarter: latency is four times as long, for good, and all of it is our own doing."""
    downstream = Downstream(adaptive(40))
    downstream.serve(60.0, knee(40, 0.1))
    downstream.serve(200.0, knee(10, 0.1))
    limit = limits_of(downstream.bulkhead)
    assert limit.baseline == pytest.approx(0.1, rel=0.1)
    assert limit.limit == pytest.approx(10, rel=0.25)


def test_an_initial_limit_far_above_the_knee_does_not_poison_the_first_baseline():
    downstream = Downstream(adaptive(200))
    downstream.serve(120.0, knee(10, 0.1))
    assert limits_of(downstream.bulkhead).baseline == pytest.approx(0.1, rel=0.1)
    assert downstream.bulkhead.limit == pytest.approx(10, rel=0.25)


# --- traps ---------------------------------------------------------------------------------------------------------


def test_trap_a_lucky_minimum_does_not_poison_the_baseline():
    rng = random.Random(1)
    downstream = Downstream(adaptive(20))
    lucky = knee(20, 0.1)
    downstream.serve(120.0, lambda in_flight: 0.001 if rng.random() < 0.02 else lucky(in_flight))
    assert limits_of(downstream.bulkhead).baseline == pytest.approx(0.1, rel=0.15)
    assert downstream.bulkhead.limit == pytest.approx(20, rel=0.25)


def test_trap_a_few_very_slow_calls_do_not_decide():
    rng = random.Random(1)
    downstream = Downstream(adaptive(20))
    usual = knee(20, 0.1)
    limits = downstream.serve(200.0, lambda in_flight: 10.0 if rng.random() < 0.005 else usual(in_flight))
    assert min(limits[len(limits) // 2 :]) >= 8


def test_trap_when_every_call_times_out_it_goes_to_its_minimum_explores_and_recovers():
    downstream = Downstream(adaptive(32, minimum=2))
    downstream.serve(30.0, knee(32, 0.1))
    healthy = downstream.bulkhead.limit
    limits = downstream.serve(1000.0, lambda in_flight: 1.0, counts=lambda: "timeout")
    assert limits[-1] in {2, 4}
    assert limits.count(4) >= 2, "now and then it explores"
    assert max(limits[6:]) == 4
    downstream.serve(30.0, knee(32, 0.1))
    assert downstream.bulkhead.limit >= healthy * 0.8


def test_a_share_of_time_outs_that_has_nothing_to_do_with_load_does_not_shrink_it():
    rng = random.Random(2)
    downstream = Downstream(adaptive(20))
    downstream.serve(60.0, knee(20, 0.1))
    downstream.serve(200.0, knee(20, 0.1), counts=lambda: "timeout" if rng.random() < 0.1 else "ok")
    assert downstream.bulkhead.limit >= 14


def test_trap_cancels_are_no_drops():
    rng = random.Random(2)
    downstream = Downstream(adaptive(20))
    downstream.serve(60.0, knee(20, 0.1))
    before = downstream.bulkhead.limit
    downstream.serve(60.0, knee(20, 0.1), counts=lambda: "neutral" if rng.random() < 0.7 else "ok")
    assert downstream.bulkhead.limit >= before * 0.8


def test_failures_alone_do_not_move_it():
    downstream = Downstream(adaptive(20))
    downstream.serve(60.0, knee(20, 0.1))
    before = downstream.bulkhead.limit
    limits = downstream.serve(5.0, lambda in_flight: 0.001, counts=lambda: "failed")
    assert max(limits) <= before * 1.5
    assert downstream.bulkhead.limit >= before * 0.6


def test_a_downstream_that_sheds_above_its_knee_is_found_by_its_failures():
    """It answers everything in the same time, and refuses what is more than 20 at once."""
    downstream = Downstream(adaptive(10))
    rng = random.Random(5)

    def counts() -> str:
        in_flight = downstream.bulkhead.in_use
        return "failed" if in_flight > 20 and rng.random() < 1 - 20 / in_flight else "ok"

    downstream.serve(200.0, lambda in_flight: 0.1, counts=counts)
    assert 15 <= downstream.bulkhead.limit <= 28


def test_an_app_limited_period_does_not_grow_it():
    downstream = Downstream(adaptive(20))
    downstream.serve(60.0, knee(1000, 0.1), load=10)
    assert downstream.bulkhead.limit == 20


def test_low_load_is_not_cut_by_experiments():
    downstream = Downstream(adaptive(64))
    limits = downstream.serve(300.0, knee(1000, 0.1), load=5)
    assert limits == [64]


def test_samples_of_an_earlier_epoch_do_not_judge_this_one():
    limit = AdaptiveLimit(AdaptiveLimitPolicy(min_samples=2), permits=4)
    now = 0.0
    while limit.purpose == "go":
        now += 0.1
        limit.record(now, 0.1, 4, "ok")
    assert (limit.purpose, limit.limit) == ("start", 2)
    for _ in range(1000):  # began before the epoch did
        limit.record(now + 0.05, 0.1, 4, "ok")
    assert limit.purpose == "start"


def test_the_first_round_of_an_epoch_is_not_counted():
    """Calls that find the downstream as the epoch before left it end first when they are fast."""
    limit = AdaptiveLimit(AdaptiveLimitPolicy(min_samples=2), permits=8)
    limit.record(0.2, 0.1, 8, "ok")
    for _ in range(7):
        limit.record(0.4, 0.1, 8, "ok")
    assert limit._samples == 0
    limit.record(0.4, 0.1, 8, "ok")
    assert limit._samples == 1


def test_it_stays_within_its_range():
    downstream = Downstream(adaptive(5, minimum=4, maximum=9))
    assert set(downstream.serve(60.0, knee(100, 0.1))) <= {4, 5, 6, 7, 8, 9}
    assert downstream.bulkhead.limit == 9
    limits = downstream.serve(60.0, knee(1, 0.1))
    assert min(limits) == 4


def test_at_the_minimum_nothing_can_be_ours_so_it_does_not_lock_in():
    downstream = Downstream(adaptive(1))
    downstream.serve(30.0, knee(1, 0.1))
    assert downstream.bulkhead.limit <= 2
    downstream.serve(120.0, knee(50, 0.4))
    assert downstream.bulkhead.limit >= 30


def test_another_range_holds_at_once_and_keeps_the_baseline():
    downstream = Downstream(adaptive(20))
    downstream.serve(60.0, knee(20, 0.1))
    limit = limits_of(downstream.bulkhead)
    before = limit.baseline
    limit.reconfigure(AdaptiveLimitPolicy(maximum=5), downstream.now)
    assert (limit.limit, limit.baseline, limit.purpose) == (5, before, "go")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"minimum": 0}, "minimum"),
        ({"minimum": 9, "maximum": 8}, "minimum"),
        ({"initial": 2000}, "initial"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": math.nan}, "tolerance"),
        ({"precision": 2.0}, "precision"),
        ({"min_samples": 1}, "min_samples"),
        ({"max_epoch": 0.0}, "adaptive"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, key):
    with pytest.raises(ConfigError) as refused:
        AdaptiveLimitPolicy(**settings)
    assert refused.value.param is not None
    assert refused.value.param.endswith(key)


def test_its_repr_says_what_it_believes():
    assert repr(AdaptiveLimit(AdaptiveLimitPolicy(), 7)) == "<AdaptiveLimit 7 baseline=unknown go>"
    downstream = Downstream(adaptive(4, maximum=4))
    downstream.serve(10.0, lambda in_flight: 0.25)
    assert "baseline=0.25 s" in repr(limits_of(downstream.bulkhead))


def test_the_bench_prints_one_json_object(bench, capsys):
    code = bench.main(
        ["--json", "--seeds", "1", "--slots", "12", "--initial", "6", "--seconds", "20", "--noise", "uniform"]
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"] == 10
    assert {"within_20_percent", "median_error", "worst", "rows"} <= printed.keys()
    assert code in {0, 1}
