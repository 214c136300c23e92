"""Leases of probes: how many calls may test a downstream at once, per breaker and over all breakers of a process.

A lease ends when it is given back or when its time is over, so that a probe that is lost does not hold its place for
ever (half-open breakers stuck by one lost call: resilience4j issue 903).
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["ProbeCap", "ProbeLeases"]

_REMEMBERED: Final = 64
"""Expired leases whose result may still come: more are forgotten, oldest first."""


class ProbeCap:
    """The global cap of concurrent probes over all breakers of a process.

    When a network comes back, many breakers want to probe at the same time; together they get `limit` places.
    """

    __slots__ = ("_ends", "_last", "limit")

    def __init__(self, limit: int = 8) -> None:
        if limit < 1:
            raise ValueError(f"a cap lets at least 1 probe through, not {limit!r}")
        self.limit = limit
        self._ends: dict[int, float] = {}
        self._last = 0

    def take(self, now: float, lease: float) -> int | None:
        """A place for at most `lease` seconds, as an id to give back; None when all are taken."""
        ends = self._ends
        if len(ends) >= self.limit:
            for place in [place for place, end in ends.items() if end <= now]:
                del ends[place]
            if len(ends) >= self.limit:
                return None
        self._last = place = self._last + 1
        ends[place] = now + lease
        return place

    def give(self, place: int) -> None:
        """Gives a place back; harmless when its lease has expired or it was given back before."""
        self._ends.pop(place, None)

    def in_use(self, now: float) -> int:
        """Places whose lease runs."""
        return sum(1 for end in self._ends.values() if end > now)

    def retry_in(self, now: float) -> float | None:
        """None when a place is free; else seconds until one is free at the latest."""
        running = sorted(end for end in self._ends.values() if end > now)
        return running[len(running) - self.limit] - now if len(running) >= self.limit else None

    def __repr__(self) -> str:
        return f"<ProbeCap {len(self._ends)}/{self.limit}>"


class _Lease(NamedTuple):
    end: float
    place: int | None


class ProbeLeases:
    """The probes of one breaker.

    They outlive its state: a probe of an earlier round that still runs still holds its place.
    """

    __slots__ = ("_cap", "_expired", "_last", "_running")

    def __init__(self, cap: ProbeCap | None) -> None:
        self._cap = cap
        self._running: dict[int, _Lease] = {}
        self._expired: dict[int, None] = {}
        self._last = 0

    def take(self, now: float, lease: float, limit: int) -> int | None:
        """A lease id if fewer than `limit` probes run and the global cap has a place; else None, holding nothing."""
        running, cap = self._running, self._cap
        for old in [old for old, held in running.items() if held.end <= now]:
            self._free(old)
            self._expired[old] = None
            if len(self._expired) > _REMEMBERED:
                del self._expired[next(iter(self._expired))]
        if len(running) >= limit:
            return None
        place = None
        if cap is not None:
            place = cap.take(now, lease)
            if place is None:
                return None
        self._last = new = self._last + 1
        running[new] = _Lease(now + lease, place)
        return new

    def _free(self, lease: int) -> bool:
        held = self._running.pop(lease, None)
        if held is None:
            return False
        if held.place is not None and self._cap is not None:
            self._cap.give(held.place)
        return True

    def give(self, lease: int) -> bool:
        """Ends a lease. True the first time, also when it had expired; False ever after."""
        if self._free(lease):
            return True
        if lease in self._expired:
            del self._expired[lease]
            return True
        return False

    def holds(self, lease: int) -> bool:
        """Whether the lease was taken and not yet given back (it may have expired)."""
        return lease in self._running or lease in self._expired

    def in_use(self, now: float) -> int:
        """Leases that run."""
        return sum(1 for held in self._running.values() if held.end > now)

    def retry_in(self, now: float, limit: int) -> float | None:
        """None when :meth:`take` would succeed; else seconds until it would at the latest, if no other is faster."""
        ends = sorted(held.end for held in self._running.values() if held.end > now)
        own = ends[len(ends) - limit] - now if len(ends) >= limit else None
        shared = self._cap.retry_in(now) if self._cap is not None else None
        if own is None or shared is None:
            return own if shared is None else shared
        return max(own, shared)

    def __repr__(self) -> str:
        return f"<ProbeLeases {len(self._running)}>"
