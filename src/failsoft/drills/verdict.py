"""The verdict on a drill: its figures, its goals, and whether it says anything at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from failsoft.drills.faults import Strike
from failsoft.drills.load import LATE
from failsoft.drills.samples import Measured, figures, quantile, selected
from failsoft.drills.scenario import GoalSpec, Scenario

__all__ = ["FIGURES", "fault_windows", "numbers_of", "unknown_figure", "verdict"]

FIGURES: Final = ("p50_ms", "p95_ms", "p99_ms", "error_rate", "degraded_rate", "completeness", "amplification")


def numbers_of(scenario: Scenario, measured: Measured) -> dict[str, float]:
    """Every figure of an arm that a goal may name, as flat paths: ``p99_ms``, ``views.unrelated.p99_ms``, ``extra``.

    ``amplification``: calls that the downstreams saw for each call that the requests have; ``extra``: retries and
    hedges as a share of these. ``load_on_faulted``: the same for the faulted downstream alone. ``opened_after_s``:
    when a breaker first opened; ``opened``: how many times one did. ``goodput``: complete answers a second while load
    was sent. ``recovered_after_s``: from the end of the last fault to the first complete answer that needed the faulted
    downstream.
    """
    offered = max(1, sum(measured.offered.values()))
    found = figures(measured.samples)
    found["amplification"] = sum(measured.started.values()) / offered
    found["extra"] = measured.extra / offered
    found["started_late"] = measured.late_started
    found["running_late"] = measured.late_ended
    if measured.faulted is not None:
        own = measured.offered.get(measured.faulted, 0)
        found["load_on_faulted"] = measured.started.get(measured.faulted, 0) / max(1, own)
    opened = [at for at, _, new in measured.breakers if new == "open" and at >= 0]
    found["opened"] = len(opened)
    found["opened_after_s"] = opened[0] if opened else math.inf
    found["cut_in_vain_rate"] = measured.facts.get("cut_in_vain", 0.0) / max(1, len(measured.samples))
    load = (scenario.healthy or scenario.load) if measured.arm == "healthy" else scenario.load
    found["goodput"] = found["complete_rate"] * len(measured.samples) / sum(stage.lasting for stage in load.stages)
    found["recovered_after_s"] = _recovered(scenario, measured)
    found.update(measured.facts)
    for name, view in scenario.views.items():
        for key, value in figures(selected(measured.samples, view)).items():
            found[f"views.{name}.{key}"] = value
    return found


_FACTS: Final = ("added_p50_ms", "added_p99_ms", "cut", "cut_in_vain")
"""Figures that only some arms count."""


def unknown_figure(scenario: Scenario) -> str | None:
    """The first path in the scenario's goals that no arm has a figure for, and what there is; None: all are known."""
    known = {*numbers_of(scenario, Measured("failsoft")), *_FACTS}
    if scenario.faulted:
        known.add("load_on_faulted")
    for goal in scenario.goals:
        for path in (goal.value, *filter(None, (goal.minus, goal.over)), *goal.plus):
            name = path.partition(".")[2]
            if name not in known:
                near = get_close_matches(name, known, n=3) or sorted(one for one in known if "." not in one)
                return f"there is no figure {path!r} (goal {goal.name!r}); there are {', '.join(near)}"
    return None


def fault_windows(scenario: Scenario) -> list[tuple[float, float]]:
    """When each fault begins and ends, in seconds after the warm-up; ``inf`` for one that lasts to the end."""
    found = []
    for fault in scenario.faults:
        made = fault.made()
        if isinstance(made, Strike):
            found.append((made.after, made.after + made.lasting))
        else:
            found.append((0.0, math.inf))
    return found


def _recovered(scenario: Scenario, measured: Measured) -> float:
    end = max((end for _, end in fault_windows(scenario)), default=math.inf)
    if end == math.inf:
        return math.inf
    whole = (one for one in measured.samples if one.uses and one.outcome == "complete" and one.at + one.seconds >= end)
    return min((one.at + one.seconds - end for one in whole), default=math.inf)


def verdict(scenario: Scenario, seed: int, arms: Mapping[str, Measured]) -> dict[str, Any]:
    """What ``failsoft drill run --json`` prints: figures of each arm, goals with what was reached, and ``pass``."""
    numbers = {arm: numbers_of(scenario, measured) for arm, measured in arms.items()}
    goals = [_judged(goal, numbers) for goal in scenario.goals]
    goals += _void(arms.values())
    shown: dict[str, Any] = {
        arm: {name: _rounded(numbers[arm][name]) for name in FIGURES}
        for arm in ("healthy", "baseline", "failsoft")
        if arm in numbers
    }
    return {
        "id": scenario.id,
        "scale": scenario.scale,
        "seed": seed,
        **shown,
        "goals": goals,
        "pass": all(goal["pass"] for goal in goals),
    }


def _judged(goal: GoalSpec, numbers: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    value = _at(goal.value, numbers) + sum(_at(path, numbers) for path in goal.plus)
    if goal.minus is not None:
        value -= _at(goal.minus, numbers)
    if goal.over is not None:
        under = _at(goal.over, numbers)
        value = value / under if under else (math.nan if value == 0 else math.inf)
    if goal.at_most is not None:
        passed, bound = value <= goal.at_most, f"≤ {goal.at_most:g}"
    else:
        assert goal.at_least is not None
        passed, bound = value >= goal.at_least, f"≥ {goal.at_least:g}"
    return {"name": goal.name, "goal": goal.goal or bound, "value": _rounded(value), "pass": bool(passed)}


def _at(path: str, numbers: Mapping[str, Mapping[str, float]]) -> float:
    arm, _, name = path.partition(".")
    return numbers.get(arm, {}).get(name, math.nan)


def _void(arms: Sequence[Measured] | Any) -> list[dict[str, Any]]:
    """What makes a verdict void: load sent late, or not at all. No goal is reached then."""
    found = []
    for measured in arms:
        late = quantile(sorted(measured.lateness), 0.99)
        if late > LATE:
            text = f"void: {measured.arm}: load was sent late (p99, ms)"
            found.append({"name": text, "goal": f"≤ {LATE * 1000:g}", "value": _rounded(late * 1000), "pass": False})
        if measured.unsent:
            text = f"void: {measured.arm}: requests that could not be sent"
            found.append({"name": text, "goal": "≤ 0", "value": measured.unsent, "pass": False})
    return found


def _rounded(value: float) -> float | None:
    """Four figures after the point; None (JSON has no NaN and no infinity) for what could not be measured."""
    return round(value, 4) if math.isfinite(value) else None
