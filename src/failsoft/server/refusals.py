"""Errors of the HTTP door itself, and their shape; nothing here needs a web framework."""

from __future__ import annotations

from typing import Any

from failsoft.base.errors import FailsoftError

__all__ = ["BodyTooLarge", "RequestTimeout", "ShuttingDown", "error_body"]


class BodyTooLarge(FailsoftError):
    """The request's body is over the limit; it was not read."""

    type = "invalid_request"
    code = "body_too_large"
    status = 413


class RequestTimeout(FailsoftError):
    """The client did not send its request's body in time."""

    type = "invalid_request"
    code = "request_timeout"
    status = 408
    retryable = True


class ShuttingDown(FailsoftError):
    """The server ends, and this call's time to finish is over; another server may take it."""

    type = "rejected"
    code = "shutting_down"
    status = 503
    retryable = True


def error_body(kind: str, code: str, message: str, *, param: str | None = None) -> dict[str, Any]:
    """The body of an error that no exception of ours stands for."""
    return {
        "error": {
            "type": kind, "code": code, "message": message, "param": param, "run_id": None, "retry_after": None,
        }
    }  # fmt: skip
