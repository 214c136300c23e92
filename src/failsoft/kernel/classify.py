"""Reading what happened: one function from a result or an exception to a verdict that every policy obeys.

A verdict says three separate things: did the downstream fail (breaker), may the same call be tried again (retry), and
is the value good (ladder). A caller's fault, a local rejection and a cancellation never count against a downstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from failsoft.base.errors import (
    BadInput,
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    EmptyResult,
    FailsoftError,
    Rejection,
    TimeoutExceeded,
    ToolFailed,
)

__all__ = ["Classifier", "Counts", "Verdict", "as_error", "classify"]


class Counts:
    """How a verdict counts for the breaker."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    NEUTRAL = "neutral"


class Verdict(NamedTuple):
    """What an attempt's end means.

    ``counts`` is for the breaker (:class:`Counts`), ``retry`` whether another try can help, ``good`` whether the
    value may be served as it is, ``retry_after`` seconds the downstream asked us to wait, ``error`` the mapped error
    (None when good), ``suspicious`` a success that is odd (empty): it is served or degraded, and alerted on, but
    breaks nothing.
    """

    counts: str
    retry: bool = False
    good: bool = False
    error: FailsoftError | None = None
    retry_after: float | None = None
    suspicious: bool = False


Classifier = Callable[[Any, BaseException | None], Verdict | None]
"""``classifier(result, error)`` returns a verdict, or None to leave the reading to :func:`classify`."""

OK = Verdict(Counts.OK, good=True)


def as_error(error: BaseException) -> FailsoftError:
    """Maps a foreign exception where it enters; Failsoft's own pass through. The original stays as ``__cause__``."""
    if isinstance(error, FailsoftError):
        return error
    mapped: FailsoftError
    if isinstance(error, TimeoutError):
        mapped = DownstreamUnavailable("the call timed out inside the downstream's client")
    elif isinstance(error, ConnectionError | EOFError | OSError):
        mapped = DownstreamUnavailable(f"connection failed: {type(error).__name__}")
    else:
        mapped = ToolFailed(f"{type(error).__name__} was raised", details={"exception": type(error).__qualname__})
    mapped.__cause__ = error
    return mapped


def classify(result: Any, error: BaseException | None) -> Verdict:
    """The default reading of a result or an exception.

    Any value is good. Time-outs and lost connections count and may be retried; a downstream's 4xx, bad input and
    local rejections (of a nested call) count as neither; an empty success is suspicious; an unknown exception counts
    as failed and is not retried unless a classifier says so.
    """
    if error is None:
        return OK
    if isinstance(error, asyncio.CancelledError):
        return Verdict(Counts.NEUTRAL, error=None)
    mapped = as_error(error)
    if isinstance(mapped, Rejection):
        return Verdict(Counts.NEUTRAL, retry=False, error=mapped, retry_after=mapped.retry_after)
    if isinstance(mapped, TimeoutExceeded):
        return Verdict(Counts.TIMEOUT, retry=True, error=mapped)
    if isinstance(mapped, DownstreamRejected | BadInput):
        return Verdict(Counts.NEUTRAL, error=mapped, retry_after=mapped.retry_after)
    if isinstance(mapped, EmptyResult):
        return Verdict(Counts.NEUTRAL, retry=True, error=mapped, suspicious=True)
    if isinstance(mapped, DownstreamError):
        inner_timeout = isinstance(mapped.__cause__, TimeoutError)
        return Verdict(
            Counts.TIMEOUT if inner_timeout else Counts.FAILED,
            retry=mapped.retryable,
            error=mapped,
            retry_after=mapped.retry_after,
        )
    return Verdict(Counts.FAILED, error=mapped, retry_after=mapped.retry_after)
