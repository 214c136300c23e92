"""How well the adaptive limit finds a downstream's knee: pure simulation in virtual time, on the real bulkhead.

The downstream has `c` parallel slots and a first-come-first-served queue before them, so its best limit is `c`: fewer
calls waste slots, more only wait inside it. There is always more work than permits. Three changes are followed: the
downstream gets twice as slow and recovers; half of its slots go and come back; both at once.

    python bench/adaptive.py [--seeds 5] [--json]
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from failsoft.kernel.adaptive import AdaptiveLimitPolicy
from failsoft.kernel.bulkhead import Bulkhead, BulkheadPolicy

Noise = Callable[[random.Random], float]

NOISES: dict[str, Noise] = {
    "none": lambda rng: 1.0,
    "uniform ±20 %": lambda rng: rng.uniform(0.8, 1.2),
    "lognormal 0.5": lambda rng: rng.lognormvariate(-0.125, 0.5),
    "exponential": lambda rng: rng.expovariate(1.0),
}


@dataclass(frozen=True)
class Phase:
    """Until when (virtual seconds), with how many slots, and how slow."""

    until: float
    slots: int
    seconds: float


def simulate(
    bulkhead: Bulkhead, phases: list[Phase], noise: Noise, rng: random.Random
) -> list[list[tuple[float, int]]]:
    """Runs the phases; for each, the (time, limit) steps in it."""
    now, serial, busy = 0.0, 0, 0
    events: list[tuple[float, int, float]] = []  # end of service, serial, when the call began
    queue: list[float] = []
    head = 0
    steps: list[list[tuple[float, int]]] = []
    for phase in phases:
        track = [(now, bulkhead.limit)]
        while now < phase.until:
            while bulkhead.try_acquire(now):
                queue.append(now)
            while busy < phase.slots and head < len(queue):
                serial += 1
                heapq.heappush(events, (now + phase.seconds * noise(rng), serial, queue[head]))
                head += 1
                busy += 1
            if head > 10_000:
                del queue[:head]
                head = 0
            now, _, began = heapq.heappop(events)
            busy -= 1
            bulkhead.release(now, latency=now - began)
            if bulkhead.limit != track[-1][1]:
                track.append((now, bulkhead.limit))
        track.append((now, bulkhead.limit))
        steps.append(track)
    return steps


def mean_limit(track: list[tuple[float, int]], skip: float) -> float:
    """The limit's mean over time after the first `skip` seconds of a phase."""
    begin = track[0][0] + skip
    total = spent = 0.0
    for (at, limit), (until, _) in pairwise(track):
        seconds = until - max(at, begin)
        if seconds > 0:
            total += seconds * limit
            spent += seconds
    return total / spent


def settled_after(track: list[tuple[float, int]], best: int) -> float:
    """Seconds until the limit was within 20 % (or one call) of the best for the first time."""
    allowed = max(1.0, 0.2 * best)
    return next((at - track[0][0] for at, limit in track if abs(limit - best) <= allowed), math.inf)


SCENARIOS: dict[str, Callable[[int, float, float], list[Phase]]] = {
    "steady": lambda c, s, t: [Phase(t, c, s)],
    "2x slower and back": lambda c, s, t: [Phase(t, c, s), Phase(2 * t, c, 2 * s), Phase(3 * t, c, s)],
    "half the slots and back": lambda c, s, t: [Phase(t, c, s), Phase(2 * t, c // 2, s), Phase(3 * t, c, s)],
    "both and back": lambda c, s, t: [Phase(t, c, s), Phase(2 * t, c // 2, 2 * s), Phase(3 * t, c, s)],
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--slots", type=int, nargs="*", default=[8, 20, 60])
    parser.add_argument("--initial", type=int, nargs="*", default=[4, 200])
    parser.add_argument("--seconds", type=float, default=120.0, help="length of a phase, virtual")
    parser.add_argument("--noise", default="", help="only noises whose name contains this")
    parser.add_argument("--json", action="store_true", help="print one JSON object with all rows")
    options = parser.parse_args(argv)
    noises = {name: noise for name, noise in NOISES.items() if options.noise in name}
    rows = []
    for scenario, phases_of in SCENARIOS.items():
        for noise_name, noise in noises.items():
            for slots in options.slots:
                for initial in options.initial:
                    for seed in range(options.seed, options.seed + options.seeds):
                        bulkhead = Bulkhead(BulkheadPolicy(permits=initial, adaptive=AdaptiveLimitPolicy()))
                        phases = phases_of(slots, 0.1, options.seconds)
                        tracks = simulate(bulkhead, phases, noise, random.Random(seed))
                        for number, (phase, track) in enumerate(zip(phases, tracks, strict=True)):
                            found = mean_limit(track, options.seconds / 2)
                            rows.append(
                                {
                                    "scenario": scenario,
                                    "noise": noise_name,
                                    "initial": initial,
                                    "seed": seed,
                                    "phase": number,
                                    "best": phase.slots,
                                    "found": round(found, 2),
                                    "error": round(found / phase.slots - 1.0, 3),
                                    "settled_s": round(settled_after(track, phase.slots), 1),
                                }
                            )
    right = [row for row in rows if abs(row["found"] - row["best"]) <= max(0.2 * row["best"], 0.5)]
    errors = [abs(row["error"]) for row in rows]
    worst = max(rows, key=lambda row: abs(row["error"]))
    summary = {
        "runs": len(rows),
        "within_20_percent": len(right),
        "within_by_noise": {
            name: f"{sum(row['noise'] == name for row in right)}/{sum(row['noise'] == name for row in rows)}"
            for name in noises
        },
        "median_error": round(statistics.median(errors), 3),
        "p95_error": round(statistics.quantiles(errors, n=20)[-1], 3),
        "worst": worst,
        "median_settled_s": statistics.median(row["settled_s"] for row in rows),
    }
    if options.json:
        print(json.dumps({**summary, "rows": rows}))
    else:
        for scenario in SCENARIOS:
            for noise_name in noises:
                some = [row for row in rows if row["scenario"] == scenario and row["noise"] == noise_name]
                for phase in sorted({row["phase"] for row in some}):
                    mine = [row for row in some if row["phase"] == phase]
                    e = [row["error"] for row in mine]
                    settled = [row["settled_s"] for row in mine]
                    print(
                        f"{scenario:24} {noise_name:14} phase {phase}: error {min(e):+.0%} … {max(e):+.0%}, "
                        f"mean {statistics.mean(e):+.0%}, settled after {statistics.median(settled):.0f} s "
                        f"(most {max(settled):.0f})"
                    )
        print(json.dumps(summary, ensure_ascii=False))
    return 0 if len(right) >= 0.95 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
