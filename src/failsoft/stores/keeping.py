"""The part of the store port about what is kept, for how long, and how much of it there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = [
    "KeepingStore",
    "Pruned",
    "Retention",
    "StoreStatistics",
]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept, in seconds after their end.

    ``runs``: ended runs with their tasks, events and approvals; ``keyed``: those that an idempotency key may ask for
    again; ``sessions``: those that are turns of a session, which outlives its requests; ``details``: the tasks and
    events of ended runs, which may go earlier; ``leases``: of nodes that are gone.
    """

    runs: float = 900.0
    keyed: float = 86_400.0
    details: float = 900.0
    sessions: float = 30 * 86_400.0
    leases: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one batch removed: whole runs, the details of runs, leases; ``more`` when there may be more to remove."""

    runs: int = 0
    details: int = 0
    leases: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Figures of a store: runs by state, rows by table, the oldest run's time (UTC), bytes on disk, the schema."""

    runs: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    oldest: float | None = None
    size: int = 0
    revision: str = ""


class KeepingStore(Protocol):
    """Pruning and figures."""

    async def prune(self, retention: Retention, *, now: float, batch: int = 500) -> Pruned:
        """Removes what was kept long enough at the UTC time `now`: at most about `batch` runs and as many other rows.

        Runs that have not ended are never removed, nor what belongs to them.
        """
        ...

    async def statistics(self) -> StoreStatistics:
        """Figures as of now."""
        ...
