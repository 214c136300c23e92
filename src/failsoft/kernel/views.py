"""What can be seen of a guard: its figures, and who holds its permits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from failsoft.kernel.threads import Job
from failsoft.kernel.ticket import Ticket

__all__ = ["CallEnded", "GuardStatistics", "Holder", "Waiting", "holder"]


_ASYNCIO: Final = asyncio.__file__.removesuffix("__init__.py")
_DEEPEST: Final = 100
"""How many coroutines that await each other are followed."""


class CallEnded(NamedTuple):
    """Data of the event ``attempt.finished``: ``seconds`` from admission to end; ``code`` is None for a success."""

    seconds: float
    counts: str
    code: str | None
    attempt: int
    remaining: float


@dataclass(frozen=True, slots=True)
class GuardStatistics:
    """Figures of one downstream since the start. ``rejected`` counts refusals by error code; times in seconds."""

    name: str
    breaker: str
    in_use: int
    limit: int
    waiting: int
    oldest_wait: float
    orphans: int
    threads: int
    calls: int
    attempts: int
    retries: int
    hedges: int
    ok: int
    failed: int
    timed_out: int
    neutral: int
    rejected: Mapping[str, int]
    typical: float
    attempt_limit: float | None


class Holder(NamedTuple):
    """Who holds a permit: ``age`` in seconds since admission, ``where`` the innermost frame it is in, if known."""

    downstream: str
    run: str | None
    task: str | None
    tenant: str | None
    age: float
    limit: str
    orphan: bool
    where: str | None


class Waiting(NamedTuple):
    """Who waits for a permit: ``age`` in seconds since it came, ``remaining`` until it has to leave."""

    run: str | None
    task: str | None
    tenant: str | None
    priority: str
    age: float
    remaining: float


def _innermost(awaited: Any) -> str | None:
    """Where a suspended coroutine is stuck: the last frame of the chain of what it awaits that is Python and not
    asyncio's own, which would say no more than that it sleeps or waits.
    """
    where = None
    for _ in range(_DEEPEST):
        frame = None
        for prefix in ("cr", "ag", "gi"):
            if (frame := getattr(awaited, f"{prefix}_frame", None)) is not None:
                if where is None or not frame.f_code.co_filename.startswith(_ASYNCIO):
                    where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                awaited = getattr(awaited, f"{prefix}_{'yieldfrom' if prefix == 'gi' else 'await'}")
                break
        if frame is None:
            break
    return where


def holder(downstream: str, ticket: Ticket, now: float) -> Holder:
    """The view of a ticket."""
    where = None
    if isinstance(ticket.callee, Job):
        stack = ticket.callee.stack()
        where = stack[-1] if stack else ticket.callee.name
    else:
        task = ticket.callee if isinstance(ticket.callee, asyncio.Task) else ticket.owner
        where = _innermost(task.get_coro())
    scope = ticket.scope
    return Holder(
        downstream, scope.run, scope.task, ticket.tenant, now - ticket.since, ticket.limit, ticket.orphan, where
    )
