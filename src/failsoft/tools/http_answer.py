"""Reading what an HTTP tool's far side answered: the value, or the error that its status or body means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from failsoft.base.errors import (
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    EmptyResult,
    MalformedResult,
)
from failsoft.base.transport import HttpResponse
from failsoft.kernel.retry import parse_retry_after
from failsoft.tools.registry import ResultTooLarge, ToolSpec

__all__ = ["Reads", "read_answer", "status_error"]

Reads = Literal["auto", "json", "text"]
"""How a body is read: by its content type, as JSON or as text whatever it says."""

_ENCODINGS: Final = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
_EXCERPT: Final = 300
"""Characters of an error's body that are told on."""
_ERROR_BODY: Final = 4_096
"""Bytes of an error's body that are read."""
_JSON: Final = re.compile(r"application/(?:[\w.+-]+\+)?json|text/json")
_TEXT: Final = re.compile(r"text/|application/(?:xml|[\w.+-]+\+xml|x-ndjson|jsonl|yaml|x-yaml|javascript|csv)")

_UNAVAILABLE: Final = frozenset({408, 425, 429, 502, 503, 504, 509, 522, 524})
_REJECTED: Final = frozenset({501, 505, 511})


async def read_answer(response: HttpResponse, spec: ToolSpec, limit: int, reads: Reads) -> Any:
    """The value of a success: data for JSON, text for text, None for nothing.

    Raises :class:`ResultTooLarge`, :class:`MalformedResult` for what cannot be read, :class:`EmptyResult` for a query
    whose success has nothing in it.
    """
    headers = response.headers
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise MalformedResult(f"tool {spec.name!r} was answered in the encoding {encoding[:40]!r}, not asked for")
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) < 20 and int(length) > limit:
        raise _too_large(spec, limit)
    try:
        body = await response.read(limit)
    except MalformedResult:
        raise _too_large(spec, limit) from None
    if response.status in (204, 205):
        return None
    if not body.strip():
        if spec.kind == "action":
            return None
        raise EmptyResult(f"tool {spec.name!r} was answered {response.status} with nothing in it")
    kind, _, parameters = headers.get("content-type", "").lower().partition(";")
    kind = kind.strip()
    if reads == "json" or (reads == "auto" and (_JSON.fullmatch(kind) or (not kind and body.lstrip()[:1] in b"{["))):
        return _json(body, spec)
    if reads == "text" or not kind or _TEXT.match(kind):
        return _text(body, parameters)
    raise MalformedResult(f"tool {spec.name!r} was answered with {kind[:60]!r}, which is neither JSON nor text")


def _too_large(spec: ToolSpec, limit: int) -> ResultTooLarge:
    return ResultTooLarge(f"tool {spec.name!r} was answered with more than {limit} bytes", details={"limit": limit})


def _json(body: bytes, spec: ToolSpec) -> Any:
    try:
        return msgspec.json.decode(body.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedResult(f"tool {spec.name!r} was answered with what is no JSON: {str(error)[:120]}") from None


def _text(body: bytes, parameters: str) -> str:
    found = re.search(r"charset=\"?([\w.:-]{1,40})", parameters)
    try:
        return body.decode(found[1] if found else "utf-8-sig", errors="replace")
    except (LookupError, ValueError):
        return body.decode("utf-8-sig", errors="replace")


async def status_error(response: HttpResponse, spec: ToolSpec, wall: float, scrub: Callable[[str], str]) -> Exception:
    """The error that a status other than success means, with the beginning of what the far side said of it.

    4xx is the caller's fault and counts against nobody, but for those that ask for patience: 408, 425, 429, and with
    them 502, 503, 504; a ``Retry-After`` is kept. Other 5xx are the far side's failure.
    """
    status = response.status
    said = scrub(await _excerpt(response))
    text = f"tool {spec.name!r} was answered {status}" + (f": {said}" if said else "")
    details: Mapping[str, Any] = {"status": status}
    wait = parse_retry_after(response.headers.get("retry-after", ""), wall=wall) if status in _UNAVAILABLE else None
    if status in _UNAVAILABLE:
        return DownstreamUnavailable(text, details=details, retry_after=wait)
    if status in _REJECTED or 300 <= status < 500:
        return DownstreamRejected(text, details=details)
    if status >= 500:
        return DownstreamError(text, details=details)
    return MalformedResult(text, details=details)


async def _excerpt(response: HttpResponse) -> str:
    kind = response.headers.get("content-type", "").lower()
    if not (_JSON.match(kind) or _TEXT.match(kind)) or "html" in kind:
        return ""
    parts = bytearray()
    try:
        async for chunk in response.chunks():
            parts += chunk
            if len(parts) >= _ERROR_BODY:
                break
    except DownstreamError:
        pass
    text = bytes(parts[:_ERROR_BODY]).decode("utf-8", errors="replace")
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())[:_EXCERPT]
