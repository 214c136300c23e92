"""Where a run's budget went, drawn with characters: planning, and for each task waiting, attempts and pauses.

Made from the same events that anybody can listen to; nothing here is estimated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from failsoft.base.events import Event

__all__ = ["Bar", "Segment", "bars_of", "drawn"]

MAX_EVENTS = 5_000
"""Events of one run that are drawn; a run with more shows its first ones."""

_LEGEND = {"wait": "waiting", "attempt": "attempt", "failed": "failed or cut", "pause": "pause before a retry"}
_MARKS = {"plan": "█", "wait": "░", "attempt": "█", "failed": "▒", "pause": "·", "build": "█"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time of one kind: plan, wait, attempt, failed, pause or build; seconds since the run's start."""

    kind: str
    start: float
    end: float


@dataclass(slots=True)
class Bar:
    """One line of the picture."""

    label: str
    start: float
    end: float
    segments: list[Segment] = field(default_factory=list)
    note: str = ""

    @property
    def seconds(self) -> float:
        """How long it took, from its start to its end."""
        return max(0.0, self.end - self.start)

    def spent(self, kind: str) -> float:
        """Seconds of one kind."""
        return sum(segment.end - segment.start for segment in self.segments if segment.kind == kind)


def bars_of(events: Iterable[Event]) -> list[Bar]:
    """The lines of one run, in the order in which things began."""
    events = list(events)[:MAX_EVENTS]
    if not events:
        return []
    origin = events[0].at
    end = max(event.at for event in events) - origin
    marks = {event.kind: event.at - origin for event in reversed(events) if event.task is None}
    bars: list[Bar] = []
    if "run.planning" in marks:
        planned = marks.get("run.dispatching", marks.get("run.aggregating", end))
        bars.append(Bar("planning", marks["run.planning"], planned, [Segment("plan", marks["run.planning"], planned)]))
    bars += _tasks(events, origin, marks.get("run.aggregating", end))
    if "run.aggregating" in marks:
        began = marks["run.aggregating"]
        bars.append(Bar("aggregation", began, end, [Segment("build", began, end)]))
    return bars


def _tasks(events: list[Event], origin: float, cut: float) -> list[Bar]:
    bars: dict[str, Bar] = {}
    cursor: dict[str, float] = {}
    for event in events:
        if event.task is None:
            continue
        at = event.at - origin
        if event.kind == "task.started":
            bars[event.task] = Bar(event.task, at, cut)
            cursor[event.task] = at
        bar = bars.get(event.task)
        if bar is None:
            continue
        if event.kind == "attempt.finished":
            began = max(at - event.data.seconds, cursor[event.task])
            if began - cursor[event.task] > 0.0005:
                bar.segments.append(Segment("pause" if event.data.attempt > 1 else "wait", cursor[event.task], began))
            bar.segments.append(Segment("attempt" if event.data.code is None else "failed", began, at))
            cursor[event.task] = at
            if event.data.code is not None:
                bar.note = event.data.code
        elif event.kind == "call.rejected":
            bar.note = getattr(event.data, "code", "")
        elif event.kind == "task.finished":
            bar.end = at
    return list(bars.values())


def drawn(bars: list[Bar], *, budget: float, elapsed: float, width: int = 80) -> list[str]:
    """The picture as lines of text, at most about `width` wide."""
    names = max((len(bar.label) for bar in bars), default=8)
    room = max(10, width - names - 14 - 20)
    scale = max((bar.end for bar in bars), default=0.0) or 1.0
    lines = []
    for bar in bars:
        cells = [" "] * room
        for segment in bar.segments:
            first = min(room - 1, int(segment.start / scale * room))
            last = min(room, max(first + 1, round(segment.end / scale * room)))
            cells[first:last] = _MARKS[segment.kind] * (last - first)
        lines.append(f"  {bar.label:<{names}} {ms(bar.seconds):>9} │{''.join(cells)}│ {bar.note}".rstrip())
    left = max(0.0, budget - elapsed)
    lines.append(f"  {'in all':<{names}} {ms(elapsed):>9}  of {ms(budget)}, {ms(left)} left")
    used = {segment.kind for bar in bars for segment in bar.segments}
    if legend := [f"{_MARKS[kind]} {text}" for kind, text in _LEGEND.items() if kind in used]:
        lines.append(f"  {'':<{names}} {'':>9}  {'   '.join(legend)}")
    return lines


def ms(seconds: float) -> str:
    """A duration for people: ``12 ms``, ``1.23 s``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s"
