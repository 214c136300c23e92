"""A call with the cache and coalescing around it: fresh, else one shared call, else stale with its age.

``cache · coalesce( call limit( … ))`` of the order of policies. Freshness yields to completion: when the downstream
fails, refuses or is late, a stale value is served, marked as such, and never stored as a fresh one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any

from failsoft.base.errors import FailsoftError
from failsoft.base.outcomes import Outcome, Provenance, RungTried
from failsoft.kernel.cache import Cache
from failsoft.kernel.classify import as_error
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.flights import Flights
from failsoft.kernel.scope import current

if TYPE_CHECKING:
    from failsoft.kernel.cache import SecondLevel

__all__ = ["fetch"]

SECOND_LEVEL_WITHIN = 0.25
"""Seconds that the second level may take at most: it is there to save time."""


async def fetch(
    name: str,
    cache: Cache | None,
    flights: Flights | None,
    key: Hashable,
    call: Callable[[], Awaitable[Any]],
    *,
    ttl: float | None = None,
    timeout: float = math.inf,
    second: SecondLevel | None = None,
    priority: int | None = None,
) -> Outcome[Any]:
    """The value of `key`, from wherever it can be had; raises what the call raised when there is nothing to serve.

    `priority` is how much it matters to a shared call; the scope's when None.
    """
    loop = asyncio.get_running_loop()
    if cache is not None and (entry := cache.fresh(key, loop.time())) is not None:
        return Outcome(entry.value, Provenance(requested=name, served=name, rung="cache", remaining=_left()))
    try:
        value = await (call() if flights is None else flights.join(key, call, timeout=timeout, priority=priority))
    except Exception as error:
        stale = cache.stale(key, loop.time()) if cache is not None else None
        failure = as_error(error)
        if stale is not None:
            return _stale(name, stale.value, loop.time() - stale.stored, failure)
        if second is not None and (found := await _from_second(second, key)) is not None:
            return _stale(name, found[0], found[1], failure)
        raise
    outcome = value if isinstance(value, Outcome) else None
    if cache is not None and (outcome is None or not outcome.degraded):
        plain = value if outcome is None else outcome.value
        if cache.put(key, plain, loop.time(), ttl=ttl) and second is not None:
            await _to_second(second, key, plain, (cache.policy.ttl if ttl is None else ttl) + cache.policy.stale_for)
    if outcome is not None:
        return outcome
    return Outcome(value, Provenance(requested=name, served=name, remaining=_left()))


def _left() -> float:
    return current.get().deadline - asyncio.get_running_loop().time()


def _stale(name: str, value: Any, age: float, error: FailsoftError) -> Outcome[Any]:
    return Outcome(
        value,
        Provenance(
            requested=name,
            served=name,
            rung="stale",
            reason=error.code,
            age=age,
            remaining=_left(),
            equivalent=False,
            tried=(RungTried(name, error.code, error.message),),
        ),
    )


async def _from_second(second: SecondLevel, key: Hashable) -> tuple[Any, float] | None:
    try:
        async with deadline_scope(SECOND_LEVEL_WITHIN, limit="task"):
            return await second.get(str(key))
    except Exception:  # noqa: BLE001 - a cache that fails is a miss
        return None


async def _to_second(second: SecondLevel, key: Hashable, value: Any, ttl: float) -> None:
    try:
        async with deadline_scope(SECOND_LEVEL_WITHIN, limit="task"):
            await second.put(str(key), value, ttl=ttl)
    except Exception:  # noqa: BLE001 - the value is served all the same
        return
