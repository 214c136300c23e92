"""The background lane: a bounded number of places, apart from whatever is interactive, and a bounded wait for one."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Lane"]


class Lane:
    """``width`` places, given in the order in which they are asked for; ``queue`` bounds who may wait."""

    __slots__ = ("_in_use", "_waiting", "queue", "width")

    def __init__(self, width: int = 8, queue: int = 10_000) -> None:
        self.width = width
        self.queue = queue
        self._in_use = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        """Whether nobody else may wait."""
        return len(self._waiting) >= self.queue

    @property
    def in_use(self) -> int:
        """Places that are taken."""
        return self._in_use

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def enter(self) -> None:
        """Waits for a place. Whoever got one calls :meth:`leave`, once."""
        if self._in_use < self.width and not self._waiting:
            self._in_use += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()  # it had been given, and is passed on
            elif place in self._waiting:
                self._waiting.remove(place)
            raise

    def leave(self) -> None:
        """Gives a place back, to the next who waits."""
        self._in_use -= 1
        while self._waiting and self._in_use < self.width:
            place = self._waiting.popleft()
            if not place.done():
                self._in_use += 1
                place.set_result(None)

    def __repr__(self) -> str:
        return f"<Lane {self._in_use}/{self.width} waiting={len(self._waiting)}>"
