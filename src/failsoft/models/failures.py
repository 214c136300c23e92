"""Reading a model's failure for what it is: one table, and one function from any symptom to its row.

A row says what to do about a symptom: try the same route again, try the next one, count it against the breaker, take
the route out, count it for the staged response, and what the client is told. ``docs/failures.md`` shows the table.

Whatever is read gets an error that remembers its row, so that reading it again, behind a guard, gives the same.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, TypeGuard

import msgspec

from failsoft.base.errors import (
    AttemptTimeout,
    BadInput,
    BreakerOpen,
    CallTimeout,
    DeadlineExceeded,
    Doomed,
    DownstreamRejected,
    DownstreamUnavailable,
    EmptyResult,
    Evicted,
    FailsoftError,
    FirstItemTimeout,
    Forbidden,
    IdempotencyConflict,
    IdleTimeout,
    MalformedResult,
    NotFound,
    QueueFull,
    QueueTimeout,
    RateLimited,
    Rejection,
    RunCancelled,
    StreamCut,
    TaskTimeout,
    TimeoutExceeded,
    TotalTimeout,
    Unaffordable,
    Unauthorized,
)
from failsoft.kernel.classify import Classifier, Verdict, as_error
from failsoft.kernel.retry import parse_retry_after
from failsoft.models.assembly import Assembler
from failsoft.models.failure_table import ROWS, Row

__all__ = [
    "ROWS",
    "Reading",
    "Row",
    "Symptom",
    "check_answer",
    "check_end",
    "classifier",
    "classifier_for",
    "read_answer",
    "read_failure",
]

_LONGEST_OUT: Final = 3600.0
"""Seconds that a ``Retry-After`` may take a route out at most."""
_WORTH_WAITING: Final = 0.5
"""Seconds of a ``Retry-After`` that are waited for at a route although another one is there."""
_READ: Final = 64 * 1024
"""Bytes of an error body that are looked at."""
_QUOTED: Final = 500
"""Characters of an upstream's message that the caller gets to see."""

_decode = msgspec.json.Decoder().decode


class Symptom(NamedTuple):
    """What was seen: an exception, or a response (``status`` with ``headers``, names in lower case, and ``body``, raw
    or decoded). ``downstream`` names the route for the error; ``wall`` (seconds since the epoch) is for a
    ``Retry-After`` with a date, unless the response tells its own.
    """

    error: BaseException | None = None
    status: int | None = None
    headers: Mapping[str, str] = {}
    body: bytes | str | Mapping[str, Any] | None = None
    downstream: str | None = None
    wall: float | None = None


class Reading(NamedTuple):
    """What a symptom means.

    ``retry_here``: another try at the same route may help. ``next_route``: another route may do better. Both hold only
    until content has reached the client. ``counts`` is for the breaker (:class:`~failsoft.kernel.classify.Counts`);
    ``take_out`` seconds for which the route is left alone (None: not), ``alert`` whether people should know;
    ``staged`` whether it counts for L1 and L2. ``status`` and ``code`` are for the client, ``error`` the mapped error,
    ``retry_after`` seconds the upstream asked us to wait.
    """

    name: str
    retry_here: bool
    next_route: bool
    counts: str
    take_out: float | None
    alert: bool
    staged: bool
    suspicious: bool
    status: int
    code: str
    error: FailsoftError
    retry_after: float | None

    def verdict(self) -> Verdict:
        """The same for the guard's policies."""
        return Verdict(
            self.counts,
            retry=self.retry_here,
            error=self.error,
            retry_after=self.retry_after,
            suspicious=self.suspicious,
        )


def read_failure(symptom: Symptom | BaseException) -> Reading:
    """What a symptom means and what to do. Total: whatever it is given, there is a row; it never raises.

    A response that is in fact a good answer (see :func:`check_answer`) must not be asked about: it is read as
    ``unexpected``.
    """
    seen = Symptom(error=symptom) if isinstance(symptom, BaseException) else symptom
    if seen.error is not None:
        return _of_error(seen.error, seen.downstream)
    headers = seen.headers
    name, upstream = _of_response(seen.status, seen.body, bool(headers.get("retry-after")))
    return _reading(name, None, _retry_after(headers, seen.wall), seen.downstream, upstream, seen.status)


def classifier(result: Any, error: BaseException | None) -> Verdict | None:
    """The reading as a guard's classifier: for ``guard.call(…, classify=classifier)``."""
    if error is None or isinstance(error, asyncio.CancelledError):
        return None
    return read_failure(error).verdict()


def classifier_for(spare: bool) -> Classifier:
    """The classifier of a call that has another model to go on to (`spare`), or has not.

    With one nobody waits for a route that asks to be left alone for longer than :data:`_WORTH_WAITING`.
    """
    return _impatient if spare else classifier


def _impatient(result: Any, error: BaseException | None) -> Verdict | None:
    verdict = classifier(result, error)
    if verdict is not None and verdict.retry and (verdict.retry_after or 0.0) > _WORTH_WAITING:
        return verdict._replace(retry=False)
    return verdict


# --- exceptions ----------------------------------------------------------------------------------------------------

_BY_CLASS: Final[tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...]] = (
    (FirstItemTimeout, "first_content_late"),
    (IdleTimeout, "stalled"),
    ((TotalTimeout, AttemptTimeout), "too_long"),
    (CallTimeout, "call_late"),
    ((DeadlineExceeded, TaskTimeout), "deadline"),
    (TimeoutExceeded, "too_long"),
    (BreakerOpen, "breaker_open"),
    ((QueueFull, QueueTimeout, Evicted), "queue_full"),
    ((Unaffordable, Doomed), "unaffordable"),
    (RateLimited, "own_limit"),
    (Rejection, "queue_full"),
    ((asyncio.CancelledError, RunCancelled, GeneratorExit), "cancelled"),
    (StreamCut, "stream_cut"),
    (EmptyResult, "empty_body"),
    (MalformedResult, "malformed_body"),
    (DownstreamRejected, "bad_request"),
    ((BadInput, Unauthorized, Forbidden, NotFound, IdempotencyConflict), "own_refusal"),
)

_FAULTS: Final = {
    "refused": "refused",
    "reset": "reset",
    "dns": "dns",
    "tls": "tls",
    "garbage": "garbage",
    "unreachable": "unreachable",
    "timeout": "connect_late",
    "url": "misrouted",
    "redirects": "misrouted",
    "bad_chunk": "bad_chunk",
    "no_finish": "no_finish",
    "no_choices": "no_choices",
    "no_content": "no_content",
}
"""``details["fault"]`` of our own errors, to rows."""


def _of_error(error: BaseException, downstream: str | None) -> Reading:
    if not isinstance(error, FailsoftError):
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            return _reading("cancelled", None, None, downstream, None, None)
        mapped = as_error(error)
        name = _by_exception(error)
    else:
        mapped = error
        known = error.details.get("symptom")
        if isinstance(known, str) and known in ROWS:
            return _reading(known, error, error.retry_after, downstream, None, None)
        name = _FAULTS.get(str(error.details.get("fault")), "")
    if not name:
        name = next((row for kinds, row in _BY_CLASS if isinstance(mapped, kinds)), "")
    if not name:
        name = "unexpected"
        if isinstance(mapped, DownstreamUnavailable):
            name = _by_exception(mapped.__cause__) or "unreachable"
    return _reading(name, mapped, mapped.retry_after, downstream, None, None)


def _by_exception(error: BaseException | None) -> str:
    """The row of a foreign exception, for transports that do not say more; empty when it is none of a connection's."""
    seen = 0
    while error is not None and seen < 8:
        if isinstance(error, ConnectionRefusedError):
            return "refused"
        if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError | EOFError):
            return "reset"
        if isinstance(error, ssl.SSLError):
            return "tls"
        if isinstance(error, OSError) and type(error).__name__ in {"gaierror", "herror"}:
            return "dns"
        if isinstance(error, TimeoutError):
            return "connect_late"
        if isinstance(error, OSError) and error.__cause__ is None:
            return "unreachable"
        error = error.__cause__
        seen += 1
    return ""


# --- responses -----------------------------------------------------------------------------------------------------

_BY_STATUS: Final = {
    400: "bad_request",
    401: "credentials",
    402: "quota",
    403: "credentials",
    404: "model_missing",
    405: "misrouted",
    408: "upstream_timeout",
    409: "conflict",
    410: "model_missing",
    413: "context_length",
    421: "misrouted",
    422: "bad_request",
    429: "rate_limited",
    500: "server_error",
    502: "bad_gateway",
    503: "overloaded",
    504: "upstream_timeout",
    522: "upstream_timeout",
    524: "upstream_timeout",
    529: "overloaded",
}

_CODES: Final = {
    "context_length_exceeded": "context_length",
    "exceed_context_size_error": "context_length",
    "context_window_exceeded": "context_length",
    "request_too_large": "context_length",
    "content_filter": "content_filter",
    "content_policy_violation": "content_filter",
    "responsibleaipolicyviolation": "content_filter",
    "data_inspection_failed": "content_filter",
    "insufficient_quota": "quota",
    "insufficient_balance": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_not_active": "quota",
    "billing_error": "quota",
    "arrearage": "quota",
    "invalid_api_key": "credentials",
    "authentication_error": "credentials",
    "permission_error": "credentials",
    "permission_denied": "credentials",
    "account_deactivated": "credentials",
    "unauthorized": "credentials",
    "model_not_found": "model_missing",
    "unknown_model": "model_missing",
    "rate_limit_exceeded": "rate_limited",
    "rate_limit_error": "rate_limited",
    "too_many_requests": "rate_limited",
    "overloaded_error": "overloaded",
    "overloaded": "overloaded",
    "engine_overloaded": "overloaded",
    "server_overloaded": "overloaded",
    "unavailable_error": "overloaded",
    "timeout_error": "upstream_timeout",
    "request_timeout": "upstream_timeout",
    "server_error": "server_error",
    "internal_server_error": "server_error",
    "api_error": "server_error",
}
"""``code`` or ``type`` of an error object, in lower case, to rows."""

_PHRASES: Final = (
    ("context_length", ("context length", "context size", "context window", "prompt is too long", "input is too long")),
    ("content_filter", ("content management policy", "content policy", "content filter", "flagged by", "moderation")),
    (
        "quota",
        ("exceeded your current quota", "insufficient balance", "credit balance is too low", "insufficient credit"),
    ),
    ("credentials", ("api key not valid", "invalid api key", "incorrect api key", "invalid x-api-key")),
)
"""Phrases in the message of an error object, in lower case, to rows."""

_BODY_DECIDES: Final = frozenset({400, 402, 403, 404, 413, 422, 429, 500})
"""Statuses whose body may say something more exact."""


def _of_response(status: int | None, body: Any, told_when: bool) -> tuple[str, Mapping[str, Any]]:
    data = _data(body)
    upstream = _error_object(data)
    if status is None or 200 <= status < 300:
        if upstream is not None:
            inner = upstream.get("code", upstream.get("status"))
            status = _as_status(inner)
            if status is not None:
                return _of_response(status, data, told_when)
            return _by_body(upstream, None, told_when) or "error_under_200", upstream
        return _bad_answer(body, data) or "unexpected", {}
    upstream = upstream or {}
    if status in _BODY_DECIDES:
        name = _by_body(upstream, status, told_when)
        if name is not None:
            return name, upstream
    name = _BY_STATUS.get(status)
    if name is None:
        if status >= 500:
            name = "server_error"
        else:
            name = "bad_request" if 400 <= status < 500 else "odd_status"
    return name, upstream


def _as_status(code: Any) -> int | None:
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit():
        code = int(code)
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def _data(body: Any) -> Any:
    """A body as plain data; None when it is not JSON."""
    if not isinstance(body, bytes | bytearray | str):
        return body
    if len(body) > _READ:
        return None
    try:
        return _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _error_object(data: Any) -> Mapping[str, Any] | None:
    """The error in a body, under the shapes in use: ``{"error": {…}}``, ``{"error": "…"}``, ``[{"error": …}]``, and
    vLLM's ``{"object": "error", …}``.
    """
    if isinstance(data, list) and data:
        data = data[0]
    if not _is_object(data):
        return None
    error = data.get("error")
    if error is not None and isinstance(error, Mapping):
        return error
    if isinstance(error, str) and error:
        return {"message": error}
    if data.get("object") == "error" or (data.get("type") == "error" and "choices" not in data):
        return data
    if "choices" not in data and isinstance(data.get("detail"), str):  # FastAPI's shape
        return {"message": data["detail"]}
    return None


def _is_object(data: Any) -> TypeGuard[Mapping[str, Any]]:
    return type(data) is dict or isinstance(data, Mapping)  # the second costs ten times the first


def _by_body(upstream: Mapping[str, Any], status: int | None, told_when: bool) -> str | None:
    """The row that an error object names; None when it names none, or only what the status says anyway."""
    for key in ("code", "type"):
        code = upstream.get(key)
        if isinstance(code, str):
            name = _CODES.get(code.lower())
            if name is not None and (status is None or name in _MORE_EXACT):
                return name
    message = upstream.get("message")
    if isinstance(message, str):
        message = message[:4000].lower()
        for name, phrases in _PHRASES:
            if name == "quota" and told_when:  # "exceeded your current quota, retry in 7 s": a rate, not a balance
                continue
            if status == 429 and name != "quota":
                continue
            if any(phrase in message for phrase in phrases):
                return name
    return None


_MORE_EXACT: Final = frozenset({"context_length", "content_filter", "quota", "credentials", "model_missing"})


def _retry_after(headers: Mapping[str, str], wall: float | None) -> float | None:
    in_ms = parse_retry_after(headers.get("retry-after-ms"), wall=0.0)
    if in_ms is not None:
        return in_ms / 1000
    value = headers.get("retry-after")
    if not value:
        return None
    own = headers.get("date")  # the upstream's own clock, if it tells: its date is meant by that
    if own:
        try:
            wall = parsedate_to_datetime(own).timestamp()
        except (TypeError, ValueError, IndexError, OverflowError, OSError):
            pass
    if wall is None:
        return parse_retry_after(value, wall=0.0) if value.strip().replace(".", "", 1).isdigit() else None
    return parse_retry_after(value, wall=wall)


# --- answers -------------------------------------------------------------------------------------------------------


def read_answer(body: bytes, downstream: str | None = None) -> dict[str, Any]:
    """The ``chat.completion`` of a response with status 200; raises the mapped error when it is none, or a bad one."""
    try:
        data = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        data = None
    if type(data) is not dict:
        raise read_failure(Symptom(status=200, body=body[:_READ], downstream=downstream)).error
    if not _is_usual(data):
        check_answer(data, downstream=downstream)
    return data


def _is_usual(data: dict[str, Any]) -> bool:
    """Whether an answer is plainly a good one: no error, each choice with text and a reason for its end."""
    choices = data.get("choices")
    if type(choices) is not list or not choices or data.get("error") or data.get("object") == "error":
        return False
    for choice in choices:
        if type(choice) is not dict or not choice.get("finish_reason"):
            return False
        message = choice.get("message")
        if type(message) is not dict or not message.get("content"):
            return False
    return True


def check_answer(result: dict[str, Any], *, downstream: str | None = None) -> None:
    """Raises the mapped error when an answer, received or assembled, is a failure in disguise: an error object, no
    choices, nothing in any of them, or no reason given for its end.
    """
    if _error_object(result) is not None:
        raise read_failure(Symptom(status=200, body=result, downstream=downstream)).error
    name = _bad_answer(result, result)
    if name is not None:
        raise _reading(name, None, None, downstream, None, 200).error


def check_end(assembler: Assembler, *, downstream: str | None = None) -> None:
    """Raises the mapped error when a stream that has ended is not a complete answer. A missing ``[DONE]`` alone is
    forgiven: every choice has said why it ended.
    """
    if not assembler.finished:
        name = "no_finish" if assembler.has_choices else "no_choices"
        raise _reading(name, None, None, downstream, None, 200).error
    if not assembler.started:
        check_answer(assembler.result(), downstream=downstream)


def _bad_answer(body: Any, data: Any) -> str | None:
    if data is None or data == "":
        return "empty_body" if not body or (isinstance(body, bytes | str) and not body.strip()) else "malformed_body"
    if not _is_object(data):
        return "malformed_body"
    choices = data.get("choices")
    if choices is None or choices == []:
        return "no_choices" if data else "empty_body"
    if not isinstance(choices, list):
        return "malformed_body"
    empty = 0
    for choice in choices:
        if not _is_object(choice) or not _is_object(choice.get("message")):
            return "malformed_body"
        finish = choice.get("finish_reason")
        if not finish:
            return "no_finish"
        if finish in ("length", "content_filter"):
            continue  # an end that explains why there may be nothing
        message = choice["message"]
        if not any(message.get(part) for part in _SAID):
            empty += 1
    return "no_content" if empty == len(choices) else None


_SAID: Final = ("content", "tool_calls", "function_call", "refusal", "audio")


# --- readings ------------------------------------------------------------------------------------------------------


def _reading(
    name: str,
    error: FailsoftError | None,
    retry_after: float | None,
    downstream: str | None,
    upstream: Mapping[str, Any] | None,
    status: int | None,
) -> Reading:
    row = ROWS[name]
    made = _error(row, error, retry_after, downstream, upstream, status)
    take_out = row.take_out
    if row.waits and retry_after is not None and retry_after > 0:
        take_out = min(_LONGEST_OUT, retry_after)
    return Reading(
        name,
        row.retry_here,
        row.next_route,
        row.counts,
        take_out,
        row.alert,
        row.staged,
        row.suspicious,
        row.status,
        made.code,
        made,
        retry_after,
    )


def _error(
    row: Row,
    error: FailsoftError | None,
    retry_after: float | None,
    downstream: str | None,
    upstream: Mapping[str, Any] | None,
    status: int | None,
) -> FailsoftError:
    """The error of a row: the one that was seen, if its status is right already, else one made of it."""
    known = error is not None and (row.name != "unexpected" or error.details.get("symptom") == row.name)
    if error is not None and known and error.status == row.status:  # the text of an unknown error stays here
        return error
    message, param = row.message, None
    details: dict[str, Any] = {"symptom": row.name}
    if status is not None:
        details["upstream_status"] = status
    if error is not None:
        details = {**error.details, **details}
        param = error.param
        message = error.message if row.quote else row.message
        downstream = error.downstream or downstream
    elif upstream:
        code = upstream.get("code") or upstream.get("type")
        if isinstance(code, str | int):
            details["upstream_code"] = str(code)[:80]
        if row.quote:
            text = upstream.get("message")
            if isinstance(text, str) and text:
                message = text[:_QUOTED]
            if isinstance(upstream.get("param"), str):
                param = upstream["param"][:_QUOTED]
    made = row.error(message, param=param, downstream=downstream, retry_after=retry_after, details=details)
    made.__cause__ = error if error is None else (error.__cause__ or error)
    return made
