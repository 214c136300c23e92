"""W3C trace context: which trace a request belongs to, in and out.

Identities of spans are derived from the ids of run and task, so that what is sent out can name its parent before any
span is made. Source: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from hashlib import blake2b
from typing import Final, NamedTuple

__all__ = ["TraceContext", "current_trace", "own_trace", "parse_traceparent", "span_id", "trace_id", "traceparent"]

_FORMAT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class TraceContext(NamedTuple):
    """What a caller said of its trace: the trace, its own span (0: it has none), and whether it samples."""

    trace: int
    parent: int
    sampled: bool


current_trace: ContextVar[TraceContext | None] = ContextVar("failsoft_trace", default=None)
"""The caller's trace, if it named one; else that of the run, once it was decided whether it is sampled."""


def parse_traceparent(text: str | None) -> TraceContext | None:
    """The context in a ``traceparent`` header; None when there is none or it is not sound, as the standard wants."""
    match = _FORMAT.fullmatch(text.strip()) if text is not None and len(text) < 200 else None
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace, parent = int(match[2], 16), int(match[3], 16)
    if not trace or not parent:
        return None
    return TraceContext(trace, parent, bool(int(match[4], 16) & 1))


def trace_id(run: str) -> int:
    """The trace of a run whose caller named none."""
    return int.from_bytes(blake2b(run.encode(), digest_size=16).digest()) or 1


def own_trace(run: str, share: float) -> TraceContext:
    """The trace of a run whose caller named none, sampled or not: by its id, `share` (0 to 1) of all are."""
    trace = trace_id(run)
    return TraceContext(trace, 0, (trace & (1 << 56) - 1) < share * (1 << 56))


def span_id(run: str, *what: str) -> int:
    """The span of a run, or of a part of it."""
    return int.from_bytes(blake2b("\0".join((run, *what)).encode(), digest_size=8).digest()) or 1


def traceparent(run: str | None, task: str | None) -> str | None:
    """The header for a request that is sent on behalf of a run's task; the caller's context passed on without a run."""
    context = current_trace.get()
    if run is None:
        if context is None or not context.parent:
            return None
        return f"00-{context.trace:032x}-{context.parent:016x}-{int(context.sampled):02x}"
    trace = trace_id(run) if context is None else context.trace
    sampled = context is not None and context.sampled
    own = span_id(run) if task is None else span_id(run, "task", task)
    return f"00-{trace:032x}-{own:016x}-{int(sampled):02x}"
