"""The ladder: the ordered ways to satisfy a task, and the outcome that says which one did.

Each rung gets the time that is left less what the rungs below it usually need, so that a slow first choice cannot use
up what the second would have answered in; the last rung gets everything left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from failsoft.base.errors import FailsoftError
from failsoft.base.outcomes import Outcome, Provenance, RungTried
from failsoft.kernel.classify import as_error
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.scope import current, scope

__all__ = ["Rung", "RungKind", "climb"]

T = TypeVar("T")

RungKind = Literal["primary", "alternate", "stale", "default", "rule", "review"]


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to satisfy a task.

    ``serve()`` gives the value, or an :class:`Outcome` whose age and marks are kept (a cache knows how old its value
    is). ``equivalent``: as good as the first choice, so not a degradation. ``reserve``: seconds it usually needs,
    kept back from the rungs above it. ``available()`` is asked before: False passes over it (its breaker is open)
    with ``reason``.
    """

    name: str
    serve: Callable[[], Awaitable[Any]]
    kind: RungKind = "primary"
    equivalent: bool = True
    reserve: float = 0.0
    available: Callable[[], bool] | None = None
    reason: str = "breaker_open"


async def climb(rungs: Sequence[Rung], *, requested: str | None = None) -> Outcome[Any]:
    """Tries the rungs in order under the current deadline and returns the first value, with its provenance.

    When none serves, the outcome's value is None, ``served`` is None and ``reason`` is the first rung's error code.
    Cancellation and an ended deadline of the caller's pass through; nothing else is raised.
    """
    if not rungs:
        raise ValueError("a ladder needs at least one rung")
    loop = asyncio.get_running_loop()
    asked = requested if requested is not None else rungs[0].name
    tried: list[RungTried] = []
    for index, rung in enumerate(rungs):
        try:
            if rung.available is not None and not rung.available():
                tried.append(RungTried(rung.name, rung.reason))
                continue
        except Exception as error:  # noqa: BLE001 - a rung that cannot say whether it is there is not there
            tried.append(_tried(rung.name, error, 0.0))
            continue
        began = loop.time()
        reserve = sum(below.reserve for below in rungs[index + 1 :])
        try:
            value = await _serve(rung, reserve, fallback=index > 0)
        except Exception as error:  # noqa: BLE001 - whatever a rung raises, the next one is tried
            tried.append(_tried(rung.name, error, loop.time() - began))
            continue
        return _outcome(value, rung, asked, tried, current.get().deadline - loop.time())
    return Outcome(
        None,
        Provenance(
            requested=asked,
            served=None,
            rung="skipped",
            reason=tried[0].code if tried else None,
            equivalent=False,
            remaining=current.get().deadline - loop.time(),
            tried=tuple(tried),
        ),
    )


def _tried(name: str, error: Exception, seconds: float) -> RungTried:
    """What is kept of an error; not the error, whose traceback holds the frame that keeps it."""
    failure: FailsoftError = as_error(error)
    return RungTried(name, failure.code, failure.message, seconds)


async def _serve(rung: Rung, reserve: float, *, fallback: bool) -> Any:
    with scope(fallback=fallback or current.get().fallback):
        if reserve > 0 and current.get().deadline < float("inf"):
            async with deadline_scope(at=current.get().deadline - reserve, limit="task"):
                return await rung.serve()
        return await rung.serve()


def _outcome(value: Any, rung: Rung, asked: str, tried: list[RungTried], left: float) -> Outcome[Any]:
    reason = tried[0].code if tried else None
    if isinstance(value, Outcome):
        inner = value.provenance
        return Outcome(
            value.value,
            Provenance(
                requested=asked,
                served=inner.served or rung.name,
                rung=rung.kind if inner.rung == "primary" else inner.rung,
                reason=reason or inner.reason,
                age=inner.age,
                remaining=left,
                attempts=inner.attempts,
                equivalent=rung.equivalent and inner.equivalent,
                tried=(*tried, *inner.tried),
                suspicious=inner.suspicious,
                truncated=inner.truncated,
            ),
        )
    return Outcome(
        value,
        Provenance(
            requested=asked,
            served=rung.name,
            rung=rung.kind,
            reason=reason,
            remaining=left,
            equivalent=rung.equivalent,
            tried=tuple(tried),
        ),
    )
