"""Codes instead of a degraded 200, for callers that ask for them: 503 when something refused or is out, 504 when time
ran out. The cause is in the body, and so is what there is of an answer.
"""

from __future__ import annotations

from typing import Any, Final

from failsoft.base.errors import FailsoftError, InternalError
from failsoft.runs.result import RunResult

__all__ = ["cause_of", "strict_body", "strict_status"]

_TIME: Final = frozenset({"not_started", "abandoned", "unaffordable", "doomed"})
"""Reasons of our own that mean that there was too little time."""


def strict_status(result: RunResult) -> int:
    """504 when time ran out for anything that is missing, else 503."""
    return 504 if any(_timed_out(one.reason) for one in result.shortfalls) else 503


def _timed_out(reason: str) -> bool:
    return reason in _TIME or FailsoftError.from_dict({"code": reason}).type == "timeout"


def cause_of(result: RunResult) -> dict[str, Any]:
    """The error that a degraded result is, to a strict caller: what weighs most, and all else in its details."""
    late = strict_status(result) == 504
    told = [one for one in result.shortfalls if _timed_out(one.reason) == late]
    first = next((one for one in told if one.essential), told[0] if told else None)
    code = "degraded" if first is None else first.reason
    known = FailsoftError.from_dict({"code": code})
    kind = "timeout" if late else "degraded" if isinstance(known, InternalError) else known.type
    return {
        "type": kind,
        "code": code,
        "message": "the answer is degraded" if first is None else first.text,
        "param": None,
        "run_id": result.run_id,
        "retry_after": None,
        "details": {"shortfalls": [one.to_dict() for one in result.shortfalls]},
    }


def strict_body(result: RunResult, view: dict[str, Any]) -> dict[str, Any]:
    """The response: the error, and the run with its degraded answer."""
    return {"error": cause_of(result), "run": view}
