"""Reading what happened: one function from a result or an exception to a verdict that every policy obeys.

A verdict says three separate things: did the downstream fail (breaker), may the same call be tried again (retry), and
is the value good (ladder). A caller's fault, a local rejection and a cancellation never count against a downstream.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from failsoft.base.errors import (
    BadInput,
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    EmptyResult,
    FailsoftError,
    InternalError,
    Rejection,
    TimeoutExceeded,
    ToolFailed,
)

__all__ = ["Classifier", "Counts", "Verdict", "as_error", "classify", "read"]


class Counts:
    """How a verdict counts for the breaker."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    NEUTRAL = "neutral"


_COUNTS: Final = frozenset({Counts.OK, Counts.FAILED, Counts.TIMEOUT, Counts.NEUTRAL})


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


def read(reader: Classifier | None, result: Any, error: BaseException | None) -> Verdict:
    """What `reader` says of a result or an exception, else :func:`classify`.

    A reader that raises, or returns what is no verdict, is a fault of ours: the call fails with an ``InternalError``
    that says so (the cause is kept), and nothing is held against the downstream.
    """
    if reader is None:
        return classify(result, error)
    try:
        verdict = reader(result, error)
    except Exception as raised:  # noqa: BLE001 - its own error, told as such
        return _misread(f"the classifier raised {type(raised).__name__}", raised)
    if verdict is None:
        return classify(result, error)
    wrong = _wrong_with(verdict)
    return verdict if wrong is None else _misread(f"the classifier returned {wrong}", error)


def _misread(why: str, cause: BaseException | None) -> Verdict:
    failed = InternalError(why)
    failed.__cause__ = cause
    return Verdict(Counts.NEUTRAL, error=failed)


def _wrong_with(verdict: Any) -> str | None:
    if not isinstance(verdict, Verdict):
        return f"a {type(verdict).__name__}, not a Verdict or None"
    if verdict.counts not in _COUNTS:
        return f"a verdict with counts={verdict.counts!r}"
    error: Any = verdict.error
    if error is not None and not isinstance(error, FailsoftError):
        return f"a verdict with a {type(error).__name__} as its error, not a FailsoftError"
    after: Any = verdict.retry_after
    if after is not None and not (isinstance(after, int | float) and 0 <= after < math.inf):
        return f"a verdict with retry_after={after!r}"
    return None
