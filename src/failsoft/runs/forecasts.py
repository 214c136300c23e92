"""How long a run will still take, told now and then while nothing ends by itself, and how wrong it was.

Whatever ends or reports progress gives an estimate at once. Beside that every run is estimated after one second and
then at growing pauses, never more than 25 s apart, from its planning on: a person who waits is told something in time,
also inside one long call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from failsoft.runs.progress import History, ProgressReport
from failsoft.runs.state import RunState

if TYPE_CHECKING:
    from failsoft.runs.run import Run

__all__ = ["ForecastStatistics", "Forecasts"]

_FIRST: Final = 1.0
_LONGEST: Final = 25.0
"""Seconds until the first estimate, and between two at most; pauses double."""
_KEPT: Final = 1_000
_EVENTS: Final = 2_000
"""Events of a run that are looked through for its estimates, the newest."""


@dataclass(frozen=True, slots=True)
class ForecastStatistics:
    """How wrong estimates of ended runs were: the mean distance between the end that was foretold and the real one.

    ``median`` and ``p90`` are shares of the run's whole time, ``median_s`` seconds; None while there are none.
    ``runs`` had at least one estimate; the newest 1 000 count.
    """

    runs: int
    median: float | None
    p90: float | None
    median_s: float | None


class Forecasts:
    """The estimates of an app's runs."""

    __slots__ = ("_errors", "_history", "_loop", "_seconds", "_timers", "_total")

    def __init__(self, history: History, loop: asyncio.AbstractEventLoop) -> None:
        self._history = history
        self._loop = loop
        self._timers: dict[Run, asyncio.TimerHandle] = {}
        self._errors: deque[float] = deque(maxlen=_KEPT)
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        self._total = 0

    def begun(self, run: Run) -> None:
        """A run has begun."""
        self._timers[run] = self._loop.call_later(_FIRST, self._tell, run, _FIRST)

    def _tell(self, run: Run, pause: float) -> None:
        if run.cell.terminal:
            self._timers.pop(run, None)
            return
        # before it is accepted it may turn out to be another; while it waits for a person its time stands still
        if run.accepted.is_set() and run.cell.value is not RunState.WAITING_APPROVAL:
            run.emit("run.eta", None, self._report(run).to_dict())
        pause = min(2 * pause, _LONGEST)
        self._timers[run] = self._loop.call_later(pause, self._tell, run, pause)

    def _report(self, run: Run) -> ProgressReport:
        now = self._loop.time()
        left = max(0.0, run.cut - now)
        if run.scheduler is not None:
            return run.scheduler.progress.report(now, left=left)
        elapsed = max(0.0, now - run.began)
        usual = self._history.median(f"run:{run.agent.name}")
        if usual is None:
            return ProgressReport(0.0, None, 0, (), 0, left)
        eta = min(left, max(usual - elapsed, 0.1 * max(usual, elapsed)))
        return ProgressReport(elapsed / (elapsed + eta) if eta else 0.0, eta, 0, (), 0, left)

    def ended(self, run: Run) -> None:
        """A run has ended: nothing more is told of it, and its estimates are compared with the truth."""
        timer = self._timers.pop(run, None)
        if timer is not None:
            timer.cancel()
        result = run.result
        if result is None or result.status not in (RunState.COMPLETED, RunState.DEGRADED):
            return
        if result.status is RunState.COMPLETED:
            self._history.note(f"run:{run.agent.name}", result.elapsed)
        end = run.began + result.elapsed
        errors = []
        for at, data in run.log.last("run.eta", of=_EVENTS):
            eta: Any = data.get("eta_s")
            if eta is not None and at < end:
                errors.append(abs(at + eta - end))
        if errors and result.elapsed > 0:
            mean = sum(errors) / len(errors)
            self._total += 1
            self._seconds.append(mean)
            self._errors.append(mean / result.elapsed)

    def errors(self) -> tuple[float, ...]:
        """The newest errors, as shares of their runs' time."""
        return tuple(self._errors)

    def statistics(self) -> ForecastStatistics:
        """Figures as of now."""
        errors, seconds = sorted(self._errors), sorted(self._seconds)
        if not errors:
            return ForecastStatistics(self._total, None, None, None)
        middle = len(errors) // 2
        return ForecastStatistics(self._total, errors[middle], errors[int(0.9 * (len(errors) - 1))], seconds[middle])

    def close(self) -> None:
        """Tells nothing more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def __repr__(self) -> str:
        return f"<Forecasts running={len(self._timers)} compared={self._total}>"
