"""Faults as leases: each has an end, and somebody has to ask for more if it is to last longer.

Whoever drills renews its leases while it lives. When it ends, crashes or is killed, nobody does, and the faults end by
themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from failsoft.base.errors import BadInput, NotFound
from failsoft.drills.faults import Strike, ends_after
from failsoft.drills.toxics import Term, Toxic

__all__ = ["FaultLease", "LeaseBook"]

_MOST: Final = 64
"""Faults at one proxy at once."""
LONGEST: Final = 3600.0
"""Seconds of one lease at most; renewed, a fault may last longer."""


class FaultLease:
    """A fault at a proxy until ``ends`` (loop time); ``struck`` counts the exchanges it harmed."""

    def __init__(self, number: int, toxic: Toxic, term: Term, ends: float) -> None:
        self.id = f"toxic-{number}"
        self.toxic = toxic
        self.term = term
        self.ends = ends
        self.seen = 0
        self.struck = 0
        self.timer: asyncio.TimerHandle | None = None

    def toxic_now(self, now: float) -> Toxic | None:
        """The toxic for an exchange that begins now, None when it is spared; counts."""
        self.seen += 1
        toxic = self.toxic
        if isinstance(toxic, Strike):
            if not toxic.strikes(now - self.term.began, self.term.rng.random()):
                return None
            toxic = toxic.toxic
        self.struck += 1
        return toxic

    def to_dict(self, now: float) -> dict[str, Any]:
        """Plain JSON data."""
        left = None if self.ends == math.inf else round(max(0.0, self.ends - now), 3)
        return {
            "id": self.id,
            "toxic": str(self.toxic),
            "lease_s": left,
            "age_s": round(now - self.term.began, 3),
            "seen": self.seen,
            "struck": self.struck,
        }


class LeaseBook:
    """The faults that are active at one proxy. Use it on one loop."""

    def __init__(self, *, seed: int | None = None, tcp: bool = False) -> None:
        self._leases: dict[str, FaultLease] = {}
        self._numbers = itertools.count(1)
        self._rng = Random(seed)
        self._tcp = tcp

    def __iter__(self) -> Iterator[FaultLease]:
        return iter(list(self._leases.values()))

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, toxic: Toxic, *, seconds: float = math.inf) -> FaultLease:
        """A fault for `seconds`. Raises :class:`~failsoft.base.errors.BadInput` for what does not go here."""
        inner = toxic.toxic if isinstance(toxic, Strike) else toxic
        if self._tcp and inner.http_only:
            raise BadInput(f"{inner.kind} is for HTTP; this proxy passes bytes (--tcp)", param="toxic")
        if not seconds > 0 or (seconds > LONGEST and seconds != math.inf):
            raise BadInput(f"a lease is more than 0 and at most {LONGEST:g} s; renew it to go on", param="lease")
        if len(self._leases) >= _MOST:
            raise BadInput(f"there are {_MOST} faults already", param="toxic")
        now = asyncio.get_running_loop().time()
        seconds = min(seconds, ends_after(toxic))
        made = FaultLease(next(self._numbers), toxic, Term(Random(self._rng.getrandbits(64)), now), now + seconds)
        self._leases[made.id] = made
        self._set_timer(made, seconds)
        return made

    def _set_timer(self, lease: FaultLease, seconds: float) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
            lease.timer = None
        if seconds < math.inf:
            lease.timer = asyncio.get_running_loop().call_later(seconds, self._drop, lease.id)

    def get(self, lease_id: str) -> FaultLease:
        """The fault of that id; raises :class:`~failsoft.base.errors.NotFound`."""
        found = self._leases.get(lease_id)
        if found is None:
            raise NotFound(f"there is no fault {lease_id[:80]!r} (any more)", param="id")
        return found

    def renew(self, lease_id: str, seconds: float) -> FaultLease:
        """Another `seconds` from now."""
        if not 0 < seconds <= LONGEST:
            raise BadInput(f"a lease is more than 0 and at most {LONGEST:g} s", param="lease")
        found = self.get(lease_id)
        found.ends = asyncio.get_running_loop().time() + seconds
        self._set_timer(found, seconds)
        return found

    def remove(self, lease_id: str) -> None:
        """Ends a fault; what hangs in it goes on."""
        self.get(lease_id)
        self._drop(lease_id)

    def _drop(self, lease_id: str) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            if lease.timer is not None:
                lease.timer.cancel()
            lease.term.set()

    def close(self) -> None:
        """Ends them all."""
        for lease_id in list(self._leases):
            self._drop(lease_id)
