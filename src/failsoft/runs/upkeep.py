"""Upkeep of the store: what was kept long enough is removed, in small batches with pauses, off every answer's path."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from failsoft.runs.crew import Crew, within
from failsoft.stores.keeping import Pruned, Retention
from failsoft.stores.protocols import RunStore

__all__ = ["Upkeep", "prune_all"]

_log = logging.getLogger(__name__)

_BATCH: Final = 100
_PAUSE: Final = 0.05
"""Seconds between two batches, in which others get their turn with the store."""
_BATCHES: Final = 100
"""Batches in one round at most."""


class Upkeep:
    """Prunes a store from time to time, until cancelled."""

    def __init__(
        self, store: RunStore, crew: Crew, wall: Callable[[], float], retention: Retention, *, every: float
    ) -> None:
        self._store = store
        self._crew = crew
        self._wall = wall
        self._retention = retention
        self._every = every
        self.removed = 0
        """Runs that were removed."""

    async def work(self) -> None:
        """Prunes every so often; what fails is tried again the next time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._every)
            try:
                for _ in range(_BATCHES):
                    pruned = await within(
                        self._crew,
                        self._store.prune(self._retention, now=self._wall(), batch=_BATCH),
                        at=loop.time() + 10.0,
                        what="pruning the store",
                    )
                    self.removed += pruned.runs
                    if not pruned.more:
                        break
                    await asyncio.sleep(_PAUSE)
            except Exception as error:  # noqa: BLE001 - whatever a store raises
                _log.warning("the store could not be pruned: %s", error)

    def __repr__(self) -> str:
        return f"<Upkeep removed={self.removed}>"


async def prune_all(store: RunStore, retention: Retention, *, now: float) -> Pruned:
    """Removes all that was kept long enough, batch after batch; gives the sums."""
    runs = details = leases = 0
    while True:
        one = await store.prune(retention, now=now, batch=_BATCH)
        runs, details, leases = runs + one.runs, details + one.details, leases + one.leases
        if not one.more:
            return Pruned(runs, details, leases)
