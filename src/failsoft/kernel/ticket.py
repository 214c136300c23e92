"""The ticket: what admission hands an attempt, and the two moments at which it is handed back.

``settle`` says how the attempt ended, once, when the caller gets its answer. ``release`` gives the permit back, once,
when the callee has really ended. For a coroutine awaited in place both come together; a thread that outlives its
limit is settled at the limit and released when it ends, and is an orphan in between.

A ticket is also the alarm of its attempt limit: one object, one heap entry per attempt.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from failsoft.kernel.deadline import NOT_FIRED, Alarm
from failsoft.kernel.scope import Scope

if TYPE_CHECKING:
    from failsoft.kernel.breaker import Admission

__all__ = ["Callee", "Ticket"]


class Callee(Protocol):
    """What runs on behalf of a ticket apart from the caller's task: a child task or a thread."""

    def done(self) -> bool:
        """Whether it has really ended."""
        ...


class Ticket(Alarm):
    """One attempt's hold on a downstream."""

    __slots__ = (
        "admission",
        "attempt",
        "callee",
        "cancelling",
        "cut_short",
        "hung",
        "limit",
        "owner",
        "released",
        "scope",
        "settled",
        "since",
        "tenant",
    )

    def __init__(
        self,
        when: float,
        task: asyncio.Task[Any],
        admission: Admission,
        since: float,
        limit: str,
        cut_short: bool,
        scope: Scope,
        tenant: str | None,
        attempt: int,
    ) -> None:
        self.when = when
        self.task = task
        self.owner = task
        self.fired = NOT_FIRED
        self.lost = 0.0
        self.admission = admission
        self.since = since
        self.limit = limit
        self.cut_short = cut_short
        self.scope = scope
        self.tenant = tenant
        self.attempt = attempt
        self.cancelling = task.cancelling()
        self.callee: Callee | None = None
        self.hung = False
        self.settled = False
        self.released = False

    @property
    def orphan(self) -> bool:
        """Settled, but its callee still runs and holds the permit."""
        return self.settled and not self.released

    def __repr__(self) -> str:
        state = "orphan" if self.orphan else "released" if self.released else "running"
        return f"<Ticket {state} since={self.since:.3f} limit={self.limit} run={self.scope.run} task={self.scope.task}>"
