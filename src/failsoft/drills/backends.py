"""Fake downstreams with known data: latency, capacity, faults, and a count of what was asked of them.

What a call takes and whether a fault strikes it depends on the seed, the downstream, the key and how often that key
was asked before, and on nothing else: two systems that ask the same questions meet the same luck.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from statistics import NormalDist
from typing import Any, Final

from failsoft.drills.faults import Strike, ends_after
from failsoft.drills.scenario import BackendSpec
from failsoft.drills.toxics import Term, Toxic

__all__ = ["Backend", "known_value"]

_NORMAL: Final = NormalDist()
_LATE: Final = 0.05
"""Seconds after its client's deadline from which a call counts as running late."""
_BACKLOG: Final = 20_000
"""Calls that may wait inside a downstream; more are refused."""


def known_value(name: str, key: int) -> dict[str, Any]:
    """What the downstream called `name` holds under `key`: the data that answers are checked against."""
    return {"of": name, "key": key, "value": (key * 2654435761 + len(name) * 40503) % 1_000_003}


class Backend:
    """One downstream. ``ledger`` maps keys to their clients' deadlines (loop time), for calls that outlive them."""

    def __init__(self, name: str, spec: BackendSpec, seed: int, ledger: Mapping[int, float]) -> None:
        self.name = name
        self.spec = spec
        self.started = self.ended = self.in_flight = 0
        self.late_started = self.late_ended = 0
        self.cut = self.cut_in_vain = 0
        """Calls whose caller left while they were worked at; those that would have been in time for their client."""
        self.kept_back = 0.0
        """Seconds before a client's deadline within which an answer would have come too late to be passed on."""
        self.measuring = False
        self.calls: Counter[int] = Counter()
        """Calls by tenth of a second since measuring began."""
        self._seed = seed
        self._ledger = ledger
        self._asked: Counter[int] = Counter()
        self._busy = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._faults: list[tuple[Toxic, Term]] = []
        self._kept: set[asyncio.Task[Any]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._zero = 0.0

    # --- faults --------------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """From now on calls are counted; what is in flight is not."""
        self.measuring = True
        self.started = self.ended = self.late_started = self.late_ended = self.cut = self.cut_in_vain = 0
        self._zero = asyncio.get_running_loop().time()

    def inject(self, toxic: Toxic, rng: Random) -> Term:
        """Puts a fault in front of it; ends when the term is set."""
        loop = asyncio.get_running_loop()
        term = Term(rng, loop.time())
        if (end := ends_after(toxic)) < math.inf:
            self._timers.append(loop.call_later(end, term.set))
        self._faults.append((toxic, term))
        return term

    def heal(self) -> None:
        """Ends every fault."""
        for _, term in self._faults:
            term.set()
        self._faults.clear()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    # --- calls ---------------------------------------------------------------------------------------------------

    def draws(self, key: int) -> tuple[float, float]:
        """Two numbers from (0, 1) for the next call with this key: for its latency, for the faults."""
        nth = self._asked[key]
        self._asked[key] = nth + 1
        digest = hashlib.blake2b(f"{self._seed}/{self.name}/{key}/{nth}".encode(), digest_size=16).digest()
        first, second = int.from_bytes(digest[:8]), int.from_bytes(digest[8:])
        return (first + 0.5) / 2**64, (second + 0.5) / 2**64

    def seconds_of(self, key: int, drawn: float) -> float:
        """How long it works at `key`, by a number from (0, 1)."""
        return self.spec.median * math.exp(self.spec.sigma * _NORMAL.inv_cdf(drawn))

    async def query(self, key: int) -> dict[str, Any]:
        """Asks for the value of `key`."""
        now = asyncio.get_running_loop().time()
        self.started += 1
        self.calls[int((now - self._zero) * 10)] += self.measuring
        if now > self._ledger.get(key, math.inf):
            self.late_started += 1
        self.in_flight += 1
        try:
            if self.spec.heeds:
                return await self._served(key)
            task = asyncio.ensure_future(self._served(key))
            self._kept.add(task)
            task.add_done_callback(self._forget)
            found: dict[str, Any] = await asyncio.shield(task)
            return found
        finally:
            self.in_flight -= 1
            self.ended += 1
            if asyncio.get_running_loop().time() > self._ledger.get(key, math.inf) + _LATE:
                self.late_ended += 1

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._kept.discard(task)
        if not task.cancelled():
            task.exception()

    async def _served(self, key: int) -> dict[str, Any]:
        latency, luck = self.draws(key)
        seconds = self.seconds_of(key, latency)

        async def work() -> dict[str, Any]:
            ends = asyncio.get_running_loop().time() + seconds
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.cut += 1
                self.cut_in_vain += ends <= self._ledger.get(key, -math.inf) - self.kept_back
                raise
            return known_value(self.name, key)

        await self._place()
        try:
            return await self._under_faults(work, luck)
        finally:
            self._leave()

    async def _under_faults(self, work: Callable[[], Awaitable[Any]], luck: float) -> dict[str, Any]:
        now = asyncio.get_running_loop().time()
        call = work
        for toxic, term in self._faults:
            inner = toxic
            if isinstance(toxic, Strike):
                if not toxic.strikes(now - term.began, luck):
                    continue
                inner = toxic.toxic
            call = _bound(inner, call, term)
        found: dict[str, Any] = await call()
        return found

    async def _place(self) -> None:
        capacity = self.spec.capacity
        if capacity is None or self._busy < capacity:
            self._busy += 1
            return
        if len(self._queue) >= _BACKLOG:
            raise ConnectionRefusedError(f"{self.name} takes no more connections")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy -= 1

    @property
    def queued(self) -> int:
        """Calls that wait inside it."""
        return sum(not turn.done() for turn in self._queue)

    async def aclose(self) -> None:
        """Ends what it still works at."""
        self.heal()
        for task in list(self._kept):
            task.cancel()
        if self._kept:
            await asyncio.wait(self._kept)

    def __repr__(self) -> str:
        return f"<Backend {self.name} in_flight={self.in_flight} queued={self.queued} started={self.started}>"


def _bound(toxic: Toxic, call: Callable[[], Awaitable[Any]], term: Term) -> Callable[[], Awaitable[Any]]:
    return lambda: toxic.apply(call, term)
