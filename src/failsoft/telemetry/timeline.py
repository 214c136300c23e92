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

_KINDS: Final = frozenset({"attempt.finished", "call.waited", "call.retrying", "call.rejected", "breaker.open"})

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
    """Keeps spans by run: plain data, nothing of the calls themselves stays.

    Add :meth:`hear` to the bus, for what it :meth:`hears`.
    """

    __slots__ = ("_opened", "_runs")

    def __init__(self) -> None:
        self._runs: OrderedDict[str, deque[tuple[Any, ...]]] = OrderedDict()
        """Spans as plain tuples, at which the collector of garbage looks but once: it may be a million."""
        self._opened: dict[str, str] = {}
        """Why the breaker of a downstream opened last."""

    @staticmethod
    def hears(kind: str) -> bool:
        """Whether it has use for events of that kind."""
        return kind in _KINDS

    def hear(self, event: Event) -> None:
        """Takes an event of the kernel."""
        downstream, run = event.downstream, event.run
        if downstream is None:
            return
        if event.kind == "breaker.open":
            self._opened[downstream] = event.data.reason
        if run is None or (span := self._span(event, downstream)) is None:
            return
        kept = self._runs.get(run)
        if kept is None:
            kept = self._runs[run] = deque(maxlen=_ENTRIES)
            if len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
        kept.append(span)

    def spans(self, run: str) -> list[Span]:
        """What is known of a run's calls, in the order in which they ended."""
        return [Span(*one) for one in self._runs.get(run, ())]

    def _span(self, event: Event, downstream: str) -> tuple[Any, ...] | None:
        at, data, task = event.at, event.data, event.task
        match event.kind:
            case "attempt.finished":
                code = CUT if data.counts == "neutral" or data.code == "cancelled" else data.code
                return ("attempt", task, downstream, at - data.seconds, at, code)
            case "call.waited":
                return ("queue", task, downstream, at - data, at)
            case "call.retrying":
                return ("backoff", task, downstream, at, at + data[1])
            case "call.rejected":
                opened = self._opened.get(downstream, "") if data.code == "breaker_open" else data.message
                return ("refused", task, downstream, at, at, data.code, opened)
        return None

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<Timeline runs={len(self._runs)}>"
