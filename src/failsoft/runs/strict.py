"""A run's end as one number, for callers that want codes: a pure function from the result to an HTTP status.

By default an answer is 200, complete or degraded, and says itself what it lacks. A *strict* caller takes nothing less
than what was asked for: what fell short gives a code, 504 when time ran out, 503 when we refused or a dependency is
out. The cause goes into the body in either case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from failsoft.base.errors import FailsoftError
from failsoft.runs.answer import Shortfall
from failsoft.runs.reasons import reason_text
from failsoft.runs.result import RunResult
from failsoft.runs.state import RunState

__all__ = ["StrictStatus", "http_status"]

_TIME = frozenset({"not_started", "deadline_exceeded"})
"""Reasons for time that are no error's code of status 504."""


class StrictStatus(NamedTuple):
    """The ``status`` to answer with; and the cause when it is not 200: an error's ``code``, which task, in words."""

    status: int
    code: str | None = None
    task: str | None = None
    message: str | None = None
    retry_after: float | None = None

    def to_dict(self) -> dict[str, Any] | None:
        """The cause as plain JSON data; None when there is none."""
        if self.code is None:
            return None
        return {"code": self.code, "task": self.task, "message": self.message, "retry_after": self.retry_after}


def http_status(result: RunResult, *, strict: bool = False) -> StrictStatus:
    """What an HTTP client is told of a run that has ended.

    A run without an answer gives its error's status either way; for strict callers a dependency that failed (502) is
    503 there, too, so that 5xx means just "refused or out" (503), "too late" (504) or "a defect of ours" (500).
    """
    error = result.error
    if result.status in {RunState.COMPLETED, RunState.DEGRADED}:
        if not strict or result.status is RunState.COMPLETED:
            return StrictStatus(200)
        return _of_shortfalls(result)
    if error is None:
        return (
            StrictStatus(504, "expired") if result.status is RunState.EXPIRED else StrictStatus(500, "internal_error")
        )
    status = 503 if strict and error.status == 502 else error.status
    return StrictStatus(status, error.code, None, error.message, error.retry_after)


def _of_shortfalls(result: RunResult) -> StrictStatus:
    """The first thing that went wrong by itself decides: essential tasks before optional ones."""
    found = [one for one in result.shortfalls if one.reason != "dependency_failed"] or list(result.shortfalls)
    if not found:  # a part of the platform failed, the answer is whole
        return StrictStatus(503, "internal_error", None, reason_text("internal_error", "en"))
    cause = next((one for one in found if one.essential), found[0])
    return StrictStatus(_status_of(cause), cause.reason, cause.task or None, cause.text)


def _status_of(shortfall: Shortfall) -> int:
    reason = shortfall.reason
    if reason == "not_understood":  # asking the same again helps nobody
        return 422
    if reason in _TIME:
        return 504
    known = FailsoftError.from_dict({"code": reason})
    return 504 if known.code == reason and known.status == 504 else 503
