"""The local engine: this process says that it lives, and takes over the background runs of processes that do not.

It decides only who drives a run. A lease is renewed at a third of its length; whoever could not renew it in time
starts no calls and lets go of its background runs, for others may drive them by then. All of it is bounded in time,
and none of it holds up a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

__all__ = ["LocalEngine", "Work"]

L = TypeVar("L")

_log = logging.getLogger(__name__)

_MARGIN: Final = 0.1
"""The share of a lease that is not used: a timer may fire late."""
_BATCH: Final = 50
"""Runs that are taken over between two renewals at most, before the lease is looked at again."""


class Work(Protocol[L]):
    """What the engine needs to have done; every method may raise, and is bounded in time by whoever implements it."""

    async def renew(self, until: float) -> None:
        """Writes that this node lives until the UTC time `until`."""
        ...

    async def drop(self) -> None:
        """Writes that this node ends."""
        ...

    async def lost(self, now: float, limit: int) -> Sequence[L]:
        """Runs whose node was gone at the UTC time `now`."""
        ...

    async def take(self, lost: L) -> None:
        """Takes a run over and drives it, or ends it if nobody can; does nothing when somebody was faster."""
        ...

    async def look(self) -> None:
        """Looks after the runs that are driven here: approvals that were resolved elsewhere, for example."""
        ...

    def room(self) -> int:
        """How many more runs may be taken over now."""
        ...

    def suspend(self) -> None:
        """Lets go at once of the background runs that are driven here, without a word to the store."""
        ...

    async def reclaim(self) -> None:
        """Takes the runs that were let go of over again, as far as nobody else has."""
        ...


class LocalEngine:
    """Keeps the lease and watches for lost runs, from :meth:`begin` until it is cancelled.

    ``lease`` is in seconds, ``skew`` how far the clocks of two nodes may differ, ``every`` how often it looks for
    lost runs and resolved approvals.
    """

    def __init__(
        self,
        work: Work[Any],
        *,
        wall: Callable[[], float],
        lease: float = 15.0,
        skew: float = 2.0,
        every: float = 2.0,
    ) -> None:
        self._work = work
        self._wall = wall
        self._lease = lease
        self._skew = skew
        self._every = min(every, lease / 3)
        self._loop = asyncio.get_running_loop()
        self._valid_until = float("-inf")
        self._suspended = False
        self._alarm: asyncio.TimerHandle | None = None
        self.taken = 0
        self.suspensions = 0

    def may_call(self) -> bool:
        """Whether this node holds its lease, so may start calls for runs that others could take over."""
        return self._loop.time() < self._valid_until

    async def begin(self) -> None:
        """The first lease; may be cancelled, :meth:`work` tries again."""
        await self._renew()

    async def work(self) -> None:
        """Renews, looks and takes over, until cancelled."""
        renewed = self._loop.time()
        try:
            await self._take_lost()
            while True:
                await asyncio.sleep(self._every)
                if self._loop.time() - renewed >= self._lease / 3 - self._every / 2 or not self.may_call():
                    renewed = self._loop.time()
                    await self._renew()
                await self._quietly(self._work.look(), "looking for resolved approvals")
                await self._take_lost()
        finally:
            if self._alarm is not None:
                self._alarm.cancel()

    async def _renew(self) -> None:
        began = self._loop.time()
        if not await self._quietly(self._work.renew(self._wall() + self._lease), "renewing the lease"):
            return
        self._valid_until = began + self._lease * (1 - _MARGIN)
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(self._valid_until, self._lose)
        if self._suspended:
            self._suspended = False
            await self._quietly(self._work.reclaim(), "going on with the runs of before")

    def _lose(self) -> None:
        """The lease was not renewed in time."""
        self._suspended = True
        self.suspensions += 1
        _log.error("the lease of this node could not be renewed: its background runs are left to others")
        self._work.suspend()

    async def _take_lost(self) -> None:
        room = min(_BATCH, self._work.room())
        if not self.may_call() or room <= 0:
            return
        found: list[Any] = []

        async def look() -> None:
            found.extend(await self._work.lost(self._wall() - self._skew, room))

        await self._quietly(look(), "looking for lost runs")
        for one in found:
            if not self.may_call():
                return
            if await self._quietly(self._work.take(one), "taking a run over"):
                self.taken += 1

    async def _quietly(self, work: Awaitable[None], what: str) -> bool:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - it is tried again soon
            _log.warning("%s failed: %s", what, error)
            return False
        return True

    async def aclose(self) -> None:
        """Gives the lease back: what this node still holds may be taken over at once."""
        self._valid_until = float("-inf")
        if self._alarm is not None:
            self._alarm.cancel()
        await self._quietly(self._work.drop(), "giving the lease back")

    def __repr__(self) -> str:
        return f"<LocalEngine {'holds its lease' if self.may_call() else 'without lease'} taken={self.taken}>"
