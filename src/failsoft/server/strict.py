"""Codes instead of a degraded 200, for callers that ask for them: the cause as an error, with what there is.

Which code it is says :mod:`failsoft.runs.strict`.
"""

from __future__ import annotations

from typing import Any

from failsoft.base.errors import FailsoftError, InternalError
from failsoft.runs.result import RunResult
from failsoft.runs.strict import http_status

__all__ = ["cause_of", "strict_body"]


def cause_of(result: RunResult) -> dict[str, Any] | None:
    """The error that a degraded result is, to a strict caller; None when the result is whole."""
    told = http_status(result, strict=True)
    if told.code is None:
        return None
    known = FailsoftError.from_dict({"code": told.code})
    other = isinstance(known, InternalError) and told.code != known.code
    return {
        "type": "timeout" if told.status == 504 else "degraded" if other else known.type,
        "code": told.code,
        "message": told.message or told.code,
        "param": None,
        "run_id": result.run_id,
        "retry_after": told.retry_after,
        "details": {"shortfalls": [one.to_dict() for one in result.shortfalls]},
    }


def strict_body(result: RunResult, view: dict[str, Any]) -> dict[str, Any]:
    """The response: the error, and the run with its degraded answer."""
    return {"error": cause_of(result), "run": view}
