"""The plots of a drill, as SVG: percentiles over time, outcomes by rung, queues, breakers; baseline beside Failsoft."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any, Final

from failsoft.base.errors import BadInput
from failsoft.drills.running import Drilled
from failsoft.drills.samples import Measured, quantile
from failsoft.drills.verdict import fault_windows

__all__ = ["drawn"]

_COLOURS: Final = {"healthy": "#2a9d8f", "baseline": "#9b2226", "failsoft": "#1d4ed8"}
_OUTCOMES: Final = {"complete": "#2a9d8f", "degraded": "#e9a53b", "error": "#9b2226"}


def drawn(drilled: Drilled) -> str:
    """One SVG with everything a person has to see, in about a minute."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise BadInput("plots need matplotlib: pip install 'failsoft[analyst]'", param="report") from None

    mpl.use("svg", force=True)
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "failsoft", "font.size": 9, "axes.spines.top": False, "svg.fonttype": "none"}):
        figure, axes = plt.subplots(4, 2, figsize=(11, 10), layout="constrained", height_ratios=[1.3, 1.1, 1, 0.7])
        figure.suptitle(f"{drilled.scenario.id}: {drilled.scenario.title}", fontsize=12)
        try:
            for column, arm in enumerate(("baseline", "failsoft")):
                measured = drilled.arms.get(arm)
                if measured is not None:
                    _column(axes[:, column], arm, measured, drilled)
            out = io.StringIO()
            figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        finally:
            plt.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _column(axes: Any, arm: str, measured: Measured, drilled: Drilled) -> None:
    end = max((one.at for one in measured.samples), default=1.0)
    width = max(0.5, end / 40)
    healthy = drilled.arms.get("healthy")
    top, rungs, queue, breakers = axes
    if healthy is not None:
        top.plot(*_over_time(healthy, width, 0.99), color=_COLOURS["healthy"], lw=1, label="healthy p99")
    top.plot(*_over_time(measured, width, 0.5), color=_COLOURS[arm], lw=1, ls=":", label=f"{arm} p50")
    top.plot(*_over_time(measured, width, 0.99), color=_COLOURS[arm], lw=1.6, label=f"{arm} p99")
    top.set(yscale="log", ylabel="ms", title=arm)
    top.legend(loc="upper right", fontsize=7, frameon=False)
    _outcomes(rungs, measured, width)
    for name in sorted({name for moment in measured.moments for name in moment.waiting}):
        times = [moment.at for moment in measured.moments]
        waiting = [moment.waiting.get(name, 0) for moment in measured.moments]
        if any(waiting):
            queue.plot(times, waiting, lw=1, label=f"{name} waiting")
        queue.plot(times, [m.in_use.get(name, 0) for m in measured.moments], lw=0.8, ls=":", label=f"{name} in use")
    queue.set(ylabel="calls")
    if queue.get_legend_handles_labels()[0]:
        queue.legend(loc="upper left", fontsize=6, frameon=False, ncols=2)
    _breakers(breakers, measured, end)
    for one in axes:
        one.set_xlim(0, end)
        for start, stop in fault_windows(drilled.scenario):
            one.axvspan(start, min(stop, end), color="#e9c46a", alpha=0.18, lw=0)
    breakers.set_xlabel("seconds (shaded: the fault)")


def _over_time(measured: Measured, width: float, share: float) -> tuple[list[float], list[float]]:
    bins: dict[int, list[float]] = {}
    for one in measured.samples:
        bins.setdefault(int(one.at / width), []).append(one.seconds * 1000)
    return (
        [(index + 0.5) * width for index in sorted(bins)],
        [quantile(sorted(bins[index]), share) for index in sorted(bins)],
    )


def _outcomes(axis: Any, measured: Measured, width: float) -> None:
    """Requests a second, stacked: complete, degraded by why, errors."""
    bins = Counter((int(one.at / width), one.outcome) for one in measured.samples)
    count = max((index for index, _ in bins), default=0) + 1
    times = [(index + 0.5) * width for index in range(count)]
    layers = [[bins[index, outcome] / width for index in range(count)] for outcome in _OUTCOMES]
    axis.stackplot(times, *layers, colors=list(_OUTCOMES.values()), labels=list(_OUTCOMES), alpha=0.85)
    reasons = Counter(
        mark for one in measured.samples if one.outcome != "complete" for mark in (one.rungs or one.code).split(",")
        if mark not in ("", "primary")
    )  # fmt: skip
    why = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common(4))
    axis.set_ylabel("requests/s")
    if why:
        axis.set_title(f"not complete: {why}", fontsize=7, loc="left", color="#555555")
    axis.legend(loc="lower left", fontsize=6, frameon=False, ncols=3)


def _breakers(axis: Any, measured: Measured, end: float) -> None:
    names = sorted({name for _, name, _ in measured.breakers})
    colours = {"open": "#9b2226", "half_open": "#e9a53b"}
    for row, name in enumerate(names):
        state, since = "closed", 0.0
        for at, _, new in [*(one for one in measured.breakers if one[1] == name), (end, name, "")]:
            if state in colours and at > since:
                axis.barh(row, at - since, left=since, height=0.6, color=colours[state])
            state, since = new, max(0.0, at)
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set_ylabel("breakers")
    if not names:
        axis.text(0.02, 0.5, "no breaker opened" if measured.arm != "baseline" else "has none", fontsize=7,
                  transform=axis.transAxes, color="#555555")  # fmt: skip
