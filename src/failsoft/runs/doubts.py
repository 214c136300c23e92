"""Tools that keep falling short: after so many degradations in a row a person is asked, not another answer degraded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from failsoft.runs.result import TaskResult

__all__ = ["Doubts"]

_TOOLS: Final = 1_000
_NOT_ITS_FAULT: Final = frozenset({"mode_fast", "condition_false", "run_cancelled", "not_started", "dependency_failed"})


class Doubts:
    """Counts degradations in a row by tool; ``after`` so many of them a task of the tool is doubtful, 0 for never."""

    __slots__ = ("_streaks", "after")

    def __init__(self, after: int = 0) -> None:
        self.after = after
        self._streaks: dict[str, int] = {}  # at most _TOOLS

    def after_a_run(self, results: Iterable[TaskResult]) -> list[TaskResult]:
        """Counts what the tasks came to, and gives those a person should look at; their tools begin anew."""
        doubtful = []
        for one in results:
            outcome = one.outcome
            if outcome is None or outcome.provenance.reason in _NOT_ITS_FAULT:
                continue
            if one.status == "completed":
                self._streaks.pop(one.tool, None)
                continue
            streak = self._streaks.get(one.tool, 0) + 1
            if streak >= self.after:
                doubtful.append(one)
                streak = 0
            if one.tool in self._streaks or len(self._streaks) < _TOOLS:
                self._streaks[one.tool] = streak
        return doubtful

    def __repr__(self) -> str:
        return f"<Doubts after={self.after} {self._streaks}>"
