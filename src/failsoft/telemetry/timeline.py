"""What the calls of each run did and when: a listener that keeps the kernel's events by run, for the diagnosis.

It costs a dictionary look-up and an append for an event, and is bounded in runs and in entries of each.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Final, Literal, NamedTuple

from failsoft.base.events import Event

__all__ = ["CUT", "Span", "Timeline"]

_RUNS: Final = 2_000
"""Runs whose calls are kept; the ones that began first are forgotten."""
_ENTRIES: Final = 500
"""Entries that are kept of one run; the oldest are forgotten."""

CUT: Final = "cut"
"""The code of an attempt that was ended before its downstream had had its time: nobody's failure."""

What = Literal["queue", "attempt", "backoff", "refused"]


class Span(NamedTuple):
    """A stretch of a call's time, from ``start`` to ``end`` in loop time. ``code`` is the error's that ended it."""

    what: What
    task: str | None
    downstream: str
    start: float
    end: float
    code: str | None = None
    why: str = ""


class Timeline:
    """Keeps spans by run. Add :meth:`hear` to the bus."""

    __slots__ = ("_opened", "_runs")

    def __init__(self) -> None:
        self._runs: OrderedDict[str, deque[Event]] = OrderedDict()
        self._opened: dict[str, str] = {}

    def hear(self, event: Event) -> None:
        """Takes an event of the kernel."""
        run = event.run
        if event.downstream is None:
            return
        if event.kind == "breaker.open":
            self._opened[event.downstream] = event.data.reason
        if run is None:
            return
        kept = self._runs.get(run)
        if kept is None:
            kept = self._runs[run] = deque(maxlen=_ENTRIES)
            if len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
        kept.append(event)

    def opened(self, downstream: str) -> str | None:
        """Why the downstream's breaker opened last; None when it never did."""
        return self._opened.get(downstream)

    def spans(self, run: str) -> list[Span]:
        """What is known of a run's calls, in the order in which they ended."""
        return [span for event in self._runs.get(run, ()) if (span := self._span(event)) is not None]

    def _span(self, event: Event) -> Span | None:
        at, data = event.at, event.data
        downstream = event.downstream or ""
        match event.kind:
            case "attempt.finished":
                code = CUT if data.counts == "neutral" or data.code == "cancelled" else data.code
                return Span("attempt", event.task, downstream, at - data.seconds, at, code)
            case "call.waited":
                return Span("queue", event.task, downstream, at - data, at)
            case "call.retrying":
                return Span("backoff", event.task, downstream, at, at + data[1])
            case "call.rejected":
                return Span("refused", event.task, downstream, at, at, data.code, self._reason(downstream, data))
        return None

    def _reason(self, downstream: str, error: Any) -> str:
        return self._opened.get(downstream, "") if error.code == "breaker_open" else str(error.message)

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<Timeline runs={len(self._runs)}>"
