"""Who is calling, and until when: the one context variable that reaches everything.

A :class:`Scope` is immutable and is inherited by child tasks and threads started with the context. Its deadline is an
absolute time of the running loop, in seconds; ``math.inf`` means that nobody set one.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from failsoft.base.outcomes import Priority

__all__ = ["ROOT", "Scope", "current_scope", "scope", "within"]


@dataclass(frozen=True, slots=True)
class Scope:
    """What a call inherits from the run and task it serves.

    ``deadline`` is loop time and enforced; ``patience`` is not: work that is shared has no one's deadline, but will
    not be waited for beyond the latest of its participants' (see :mod:`~failsoft.kernel.flights`). ``limit`` names
    whose deadline it is (``run`` or ``task``). ``fallback`` marks traffic that fell back from another downstream: it
    ranks below first-choice traffic. ``idempotency_key`` is set around each attempt of a call that was given one.
    """

    deadline: float = math.inf
    patience: float = math.inf
    limit: str = "run"
    run: str | None = None
    task: str | None = None
    tenant: str | None = None
    priority: int = Priority.NORMAL
    fallback: bool = False
    idempotency_key: str | None = None

    @property
    def wanted_until(self) -> float:
        """Loop time after which nobody wants the result: what is told to downstreams as the budget's end."""
        return min(self.deadline, self.patience)


ROOT = Scope()

current: contextvars.ContextVar[Scope] = contextvars.ContextVar("failsoft_scope", default=ROOT)


_LABELS: Final = frozenset(Scope.__dataclass_fields__) - {"deadline", "limit"}


def within(outer: Scope, deadline: float, limit: str, labels: Mapping[str, Any]) -> Scope:
    """`outer` with another deadline, and `labels` over its own. A third of what ``dataclasses.replace`` costs."""
    if not labels:
        return Scope(
            deadline,
            outer.patience,
            limit,
            outer.run,
            outer.task,
            outer.tenant,
            outer.priority,
            outer.fallback,
            outer.idempotency_key,
        )
    if not labels.keys() <= _LABELS:
        raise TypeError(f"a scope has no {', '.join(sorted(labels.keys() - _LABELS))}")
    get = labels.get
    return Scope(
        deadline,
        get("patience", outer.patience),
        limit,
        get("run", outer.run),
        get("task", outer.task),
        get("tenant", outer.tenant),
        get("priority", outer.priority),
        get("fallback", outer.fallback),
        get("idempotency_key", outer.idempotency_key),
    )


def current_scope() -> Scope:
    """The scope of the running task; :data:`ROOT` when none was entered."""
    return current.get()


@contextmanager
def scope(**changes: Any) -> Iterator[Scope]:
    """Labels what runs inside with a run, task, tenant or priority; deadlines are set by ``deadline_scope`` only."""
    if "deadline" in changes:
        raise TypeError("use deadline_scope() to set a deadline")
    token = current.set(replace(current.get(), **changes))
    try:
        yield current.get()
    finally:
        current.reset(token)
