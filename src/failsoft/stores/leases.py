"""The part of the store port about who drives what: leases of nodes, and the runs of nodes that are gone.

A node holds one lease, renewed well before it ends. Leases are UTC times of the node that wrote them; whoever judges
them adds a bound on how far clocks may differ. A node that cannot renew its lease starts no calls for runs that others
may take over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["LeaseStore", "LostRun"]


@dataclass(frozen=True, slots=True)
class LostRun:
    """An unfinished run whose node is gone, or that nobody holds. ``deaths`` is how many nodes died while holding it.

    ``background`` runs, and those that wait for an approval, are taken over; the others have lost who waits for them.
    """

    run: str
    epoch: int
    node: str
    background: bool
    state: str
    deaths: int = 0


class LeaseStore(Protocol):
    """Where the leases of nodes are kept."""

    @property
    def durable(self) -> bool:
        """Whether what is written outlives the process, so that another one may take its runs over."""
        ...

    async def renew_lease(self, node: str, until: float) -> None:
        """`node` lives until the UTC time `until` at least."""
        ...

    async def drop_lease(self, node: str) -> None:
        """`node` ends by itself; runs that it still holds are lost at once."""
        ...

    async def leases(self) -> Mapping[str, float]:
        """Until when each node lives, as they said themselves."""
        ...

    async def lost_runs(self, now: float, *, limit: int = 100) -> Sequence[LostRun]:
        """Unfinished runs without a living node, oldest first: released, or their node's lease ended before `now`.

        A store may know better than the lease that a node is gone, never that it lives.
        """
        ...

    async def held_runs(self, node: str, *, limit: int = 1000) -> Sequence[LostRun]:
        """Unfinished runs that `node` holds, oldest first: what it does not drive any more has lost its end."""
        ...

    async def release_run(self, run: str, epoch: int) -> None:
        """Hands a run back: nobody holds it, whoever looks for lost runs may take it. Conditional like every write."""
        ...

    async def detach_run(self, run: str, epoch: int) -> None:
        """From now on nobody waits for the run at the door: it is a background run. Conditional like every write."""
        ...
