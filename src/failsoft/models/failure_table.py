"""The table of model failures, and the errors that it maps them to. ``docs/failures.md`` is generated from it.

Statuses: 400 is the caller's fault, 429 a limit, 502 the upstream's fault or that of our credentials there, 503 that it
cannot serve now, 504 that time ran out; 499 is for logs only, since nobody is there to read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from failsoft.base.errors import (
    BreakerOpen,
    CallTimeout,
    DeadlineExceeded,
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    EmptyResult,
    FailsoftError,
    FirstItemTimeout,
    IdleTimeout,
    MalformedResult,
    QueueFull,
    RateLimited,
    RunCancelled,
    StreamCut,
    TotalTimeout,
    Unaffordable,
)
from failsoft.kernel.classify import Counts

__all__ = [
    "ROWS",
    "ContentFiltered",
    "ContextTooLong",
    "ModelMissing",
    "Row",
    "UpstreamCredentials",
    "UpstreamFault",
    "UpstreamLimited",
    "UpstreamOverloaded",
    "UpstreamQuota",
    "UpstreamRefusal",
    "UpstreamTimeout",
    "markdown_rows",
]


class UpstreamRefusal(DownstreamRejected):
    """The upstream of a model refused the request as wrong; its own words are in the message."""

    type = "invalid_request"
    code = "upstream_refusal"
    status = 400


class ContextTooLong(UpstreamRefusal):
    """Input and answer do not fit into the model's context."""

    code = "context_length_exceeded"


class ContentFiltered(UpstreamRefusal):
    """The upstream's filter refused the content."""

    code = "content_filter"


class UpstreamFault(DownstreamUnavailable):
    """The upstream of a model cannot be reached, hung up, or failed inside."""

    code = "upstream_fault"
    status = 502


class UpstreamOverloaded(DownstreamUnavailable):
    """The upstream says that it cannot serve now."""

    code = "upstream_overloaded"


class UpstreamLimited(DownstreamUnavailable):
    """The upstream's rate limit for our credentials is used up."""

    type = "rate_limited"
    code = "upstream_limited"
    status = 429


class UpstreamTimeout(DownstreamUnavailable):
    """The upstream gave up waiting, or its connection did not stand in time."""

    type = "timeout"
    code = "upstream_timeout"
    status = 504


class UpstreamCredentials(DownstreamError):
    """The upstream refused our credentials; the caller's are not at fault."""

    code = "upstream_credentials"
    retryable = False


class UpstreamQuota(UpstreamCredentials):
    """Our balance or quota at the upstream is used up."""

    code = "upstream_quota"


class ModelMissing(DownstreamError):
    """The upstream does not have the model, or not at this address: a route is configured wrongly."""

    code = "model_missing"
    retryable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A symptom and its reading; see :class:`~failsoft.models.failures.Reading` for most fields.

    ``seen`` describes the symptom for people; ``message`` is what the client reads, unless the upstream's own words are
    to be quoted (``quote``: where they tell the caller what to change). ``waits``: a ``Retry-After`` takes the route
    out for that long.
    """

    name: str
    seen: str
    error: type[FailsoftError]
    status: int
    message: str
    counts: str = Counts.FAILED
    retry_here: bool = False
    next_route: bool = True
    take_out: float | None = None
    waits: bool = False
    alert: bool = False
    staged: bool = False
    suspicious: bool = False
    quote: bool = False


_TABLE: Final = (
    # --- no answer at all
    Row(name="refused", seen="connection refused", error=UpstreamFault, status=502,
        message="the upstream refuses connections"),
    Row(name="reset", seen="connection reset or closed before the headers", error=UpstreamFault, status=502,
        retry_here=True, message="the upstream closed the connection"),
    Row(name="dns", seen="host name not found", error=UpstreamFault, status=502, alert=True,
        message="the upstream's name cannot be resolved"),
    Row(name="tls", seen="TLS handshake or certificate failed", error=UpstreamFault, status=502, alert=True,
        message="no secure connection to the upstream"),
    Row(name="garbage", seen="not HTTP", error=UpstreamFault, status=502,
        message="the upstream does not answer in HTTP"),
    Row(name="unreachable", seen="any other failure to connect", error=UpstreamFault, status=502,
        message="the upstream cannot be reached"),
    Row(name="connect_late", seen="no connection in time", error=UpstreamTimeout, status=504, counts=Counts.TIMEOUT,
        staged=True, message="no connection to the upstream in time"),
    # --- an answer that says no
    Row(name="bad_request", seen="400, 422, other 4xx", error=UpstreamRefusal, status=400, counts=Counts.NEUTRAL,
        next_route=False, quote=True, message="the upstream refused the request as wrong"),
    Row(name="context_length", seen="400 or 413: context length, by code or text", error=ContextTooLong, status=400,
        counts=Counts.NEUTRAL, quote=True, message="the request does not fit into the model's context"),
    Row(name="content_filter", seen="400 or 403: content filter, by code or text", error=ContentFiltered, status=400,
        counts=Counts.NEUTRAL, next_route=False, quote=True, message="the upstream's content filter refused"),
    Row(name="credentials", seen="401, 403, or an invalid key by code or text", error=UpstreamCredentials, status=502,
        take_out=300.0, alert=True, message="the upstream refused our credentials"),
    Row(name="quota", seen="402, or 429 with `insufficient_quota`", error=UpstreamQuota, status=502, take_out=600.0,
        alert=True, message="our quota at the upstream is used up"),
    Row(name="model_missing", seen="404, 410: no such model", error=ModelMissing, status=502, take_out=60.0, alert=True,
        message="the upstream does not have the model"),
    Row(name="misrouted", seen="405, 421, redirects, a URL that is none", error=ModelMissing, status=502,
        take_out=60.0, alert=True, message="the route's address is wrong"),
    Row(name="upstream_timeout", seen="408, 504, 522, 524", error=UpstreamTimeout, status=504, counts=Counts.TIMEOUT,
        retry_here=True, waits=True, staged=True, message="the upstream ran out of time"),
    Row(name="conflict", seen="409", error=UpstreamFault, status=502, counts=Counts.NEUTRAL, retry_here=True,
        message="the upstream reports a conflict"),
    Row(name="rate_limited", seen="429", error=UpstreamLimited, status=429, retry_here=True, waits=True,
        message="the upstream's rate limit is used up"),
    Row(name="server_error", seen="500, other 5xx", error=UpstreamFault, status=502, retry_here=True,
        message="the upstream failed"),
    Row(name="bad_gateway", seen="502", error=UpstreamFault, status=502, retry_here=True, waits=True,
        message="what is behind the upstream failed"),
    Row(name="overloaded", seen="503, 529, or overloaded by code", error=UpstreamOverloaded, status=503,
        retry_here=True, waits=True, message="the upstream is overloaded"),
    Row(name="odd_status", seen="1xx, 3xx, no status there is", error=MalformedResult, status=502,
        message="the upstream's status makes no sense"),
    # --- an answer that says yes and is none
    Row(name="error_under_200", seen="200 with an error object that names none of the above", error=MalformedResult,
        status=502, message="the upstream reports an error under a success status"),
    Row(name="empty_body", seen="200 with nothing", error=EmptyResult, status=502, counts=Counts.NEUTRAL,
        suspicious=True, alert=True, message="the upstream's answer is empty"),
    Row(name="malformed_body", seen="200 with what is not JSON, or not an answer", error=MalformedResult, status=502,
        message="the upstream's answer cannot be read"),
    Row(name="no_choices", seen="200 with `choices: []` or without choices", error=EmptyResult, status=502,
        counts=Counts.NEUTRAL, suspicious=True, alert=True, message="the upstream's answer has no choices"),
    Row(name="no_content", seen="200 with neither content nor tool calls, ended by itself", error=EmptyResult,
        status=502, counts=Counts.NEUTRAL, suspicious=True, alert=True, message="the upstream's answer says nothing"),
    Row(name="no_finish", seen="the answer or stream ended without `finish_reason`, with or without `[DONE]`",
        error=StreamCut, status=502, message="the upstream's answer is not complete"),
    Row(name="stream_cut", seen="the body broke off", error=StreamCut, status=502,
        message="the upstream's answer broke off"),
    Row(name="bad_chunk", seen="a chunk that cannot be read", error=MalformedResult, status=502,
        message="a part of the upstream's answer cannot be read"),
    # --- time
    Row(name="first_content_late", seen="no first content in time", error=FirstItemTimeout, status=504,
        counts=Counts.TIMEOUT, staged=True, message="no first content in time"),
    Row(name="stalled", seen="silence in mid-stream", error=IdleTimeout, status=504, counts=Counts.TIMEOUT, staged=True,
        message="the upstream fell silent"),
    Row(name="too_long", seen="the total or attempt limit passed", error=TotalTimeout, status=504,
        counts=Counts.TIMEOUT, staged=True, message="the upstream took too long"),
    Row(name="call_late", seen="the call limit passed, queueing and retries included", error=CallTimeout,
        status=504, counts=Counts.TIMEOUT, staged=True, message="the call took too long"),
    Row(name="deadline", seen="the request's own deadline passed", error=DeadlineExceeded, status=504,
        counts=Counts.NEUTRAL, next_route=False, message="the request's time is up"),
    # --- refused or ended by us
    Row(name="breaker_open", seen="the route's breaker is open", error=BreakerOpen, status=503, counts=Counts.NEUTRAL,
        message="the route's breaker is open"),
    Row(name="queue_full", seen="no permit: queue full, waited too long, shed", error=QueueFull, status=503,
        counts=Counts.NEUTRAL, message="the route is fully used"),
    Row(name="unaffordable", seen="less time left than the route usually needs", error=Unaffordable, status=504,
        counts=Counts.NEUTRAL, message="not enough time is left for this route"),
    Row(name="own_limit", seen="the caller's own rate or concurrency limit", error=RateLimited, status=429,
        counts=Counts.NEUTRAL, next_route=False, message="the caller's limit is used up"),
    Row(name="own_refusal", seen="the request was refused by the gateway itself", error=UpstreamRefusal, status=400,
        counts=Counts.NEUTRAL, next_route=False, quote=True, message="the request is wrong"),
    Row(name="cancelled", seen="the client has gone, or the run was cancelled", error=RunCancelled, status=499,
        counts=Counts.NEUTRAL, next_route=False, message="the client has gone"),
    Row(name="unexpected", seen="anything else", error=UpstreamFault, status=502, alert=True,
        message="the upstream could not be asked"),
)  # fmt: skip

ROWS: Final[dict[str, Row]] = {row.name: row for row in _TABLE}
"""Every row by its name, in the order of the page."""


def markdown_rows() -> Iterator[list[str]]:
    """The cells of the documented table, the head first."""
    yield [
        "symptom",
        "seen as",
        "same route again",
        "next route",
        "breaker",
        "route out",
        "alert",
        "L1, L2",
        "HTTP",
        "code",
    ]
    for row in _TABLE:
        out = "" if row.take_out is None else f"{row.take_out:.0f} s"
        yield [
            f"`{row.name}`",
            row.seen,
            "yes" if row.retry_here else "",
            "yes" if row.next_route else "",
            row.counts,
            "`Retry-After`" if row.waits else out,
            "yes" if row.alert else "",
            "counts" if row.staged else "",
            str(row.status),
            f"`{row.error.code}`",
        ]
