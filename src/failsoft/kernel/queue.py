"""Who waits for a permit: waiters, the lanes they wait in, and the queue of all lanes.

A lane holds the waiters of one priority, first-choice traffic and traffic that fell back separately. Within a lane
tenants take turns, and those that lately had more than their even part of the grants go last: with turns alone,
whoever always waits takes every second permit from those who come now and then. Within a tenant the lane's discipline
decides, first come first served or newest first. Every operation is O(1): a waiter that leaves is unlinked at once, so
nothing dead stays behind, and there is nothing to compact.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from failsoft.base.errors import FailsoftError
from failsoft.base.outcomes import Priority
from failsoft.kernel.codel import CoDel

__all__ = ["GRANTED", "LEFT", "NEW", "NOT_NOW", "REJECTED", "WAITING", "Lane", "Queue", "Waiter"]

NEW, WAITING, GRANTED, REJECTED, LEFT = range(5)
"""States of a waiter. ``GRANTED``, ``REJECTED`` and ``LEFT`` are final, but a granted waiter may still leave."""

NORMAL = 2 * Priority.NORMAL
"""The lane of NORMAL's first-choice traffic; its fallback traffic is in the one after it."""

NOT_NOW = FailsoftError("not now")
"""What a gate returns when nobody may pass for the moment: the waiter keeps its place and is asked for again."""


class Waiter:
    """A call that waits for a permit; subclass it and override :meth:`granted` and :meth:`rejected`.

    ``deadline`` is absolute (``math.inf`` for none), ``enqueued_at`` is set by the bulkhead. Exactly one of the two
    methods is called, at most once, synchronously and with the bulkhead in a consistent state; neither after
    ``leave()``. One with ``leaves`` set leaves by itself when its time is over, so the queue need not look for it.
    """

    leaves = False

    __slots__ = ("__weakref__", "deadline", "enqueued_at", "explorer", "fallback", "priority", "state", "tenant")

    def __init__(
        self,
        priority: int = Priority.NORMAL,
        tenant: str | None = None,
        fallback: bool = False,
        deadline: float = math.inf,
    ) -> None:
        self.priority = priority
        self.tenant = tenant
        self.fallback = fallback
        self.deadline = deadline
        self.enqueued_at = 0.0
        self.explorer = False
        self.state = NEW

    def granted(self) -> None:
        """A permit is this waiter's own: it must be given back, by ``release()`` or, if never used, by ``leave()``."""

    def rejected(self, error: FailsoftError) -> None:
        """It will not get one: ``Evicted``, ``Doomed``, ``QueueTimeout``, or what gate or ``reject_all`` said."""

    def __repr__(self) -> str:
        state = ("new", "waiting", "granted", "rejected", "left")[self.state]
        labels = Priority.NAMES[self.priority] + (" fallback" if self.fallback else "")
        return f"<{type(self).__name__} {state} {labels} tenant={self.tenant!r} since={self.enqueued_at:g}>"


class Lane:
    """The waiters of one rank. ``waiting`` is their number; ``codel`` tells whether the lane is overloaded."""

    LATELY = 64
    """Grants to tenants after which all that are counted count half: a while that is forgotten without a jump."""

    __slots__ = ("age", "codel", "fallback", "grants", "had", "priority", "spare", "tenants", "waiting")

    def __init__(self, priority: int, fallback: bool) -> None:
        self.priority = priority
        self.fallback = fallback
        self.codel = CoDel()
        self.waiting = 0
        self.age: OrderedDict[Waiter, None] = OrderedDict()
        """All of them, oldest first."""
        self.tenants: OrderedDict[str | None, OrderedDict[Waiter, None]] = OrderedDict()
        """The same by tenant, whose turn it is first; tenants without a waiter are not in it."""
        self.spare: OrderedDict[Waiter, None] | None = None
        """An emptied queue of a tenant: with one waiter at a time, making one would be half of the cost."""
        self.had: dict[str, int] = {}
        """Grants that tenants had lately; at most ``LATELY`` in all."""
        self.grants = 0
        """Their sum."""

    @property
    def oldest(self) -> Waiter:
        """The oldest waiter; there must be one."""
        return next(iter(self.age))

    def served(self, tenant: str) -> None:
        """A tenant had a grant: its turn is over."""
        had = self.had
        had[tenant] = had.get(tenant, 0) + 1
        self.grants += 1
        if self.grants >= self.LATELY:
            self.had = {tenant: count >> 1 for tenant, count in had.items() if count > 1}
            self.grants = sum(self.had.values())

    def next(self, held: Mapping[str, int], most: int) -> Waiter:
        """Whose turn it is. It passes over tenants that hold ``most`` permits or more, or lately had more than their
        even part of the grants, while there is one that does and had not.
        """
        tenants = self.tenants
        if len(tenants) > 1:
            had = self.had
            even = self.grants / max(len(tenants), len(had))
            # Each one passed over holds `most` permits, or had two of at most 64 grants: there are few of them.
            for _ in range(len(tenants)):
                tenant = next(iter(tenants))
                if tenant is None or (held.get(tenant, 0) < most and had.get(tenant, 0) <= even):
                    break
                tenants.move_to_end(tenant)
        own = next(iter(tenants.values()))
        # Newest first is for whoever makes the queue: a tenant with fewer than its even part of the waiters does not.
        return (
            next(reversed(own))
            if self.codel.overloaded and len(own) * len(tenants) >= self.waiting
            else next(iter(own))
        )


class Queue:
    """Everybody who waits for one bulkhead's permits: six lanes, their bounds, and when waiters expire.

    Lanes are ranked CRITICAL, CRITICAL that fell back, NORMAL, and so on. ``waiting`` and ``fallback_waiting`` are
    numbers to read. It decides by rank and share; estimates, gates and permits are the bulkhead's.
    """

    __slots__ = (
        "credit", "expiry", "fallback_waiting", "lanes", "places", "queued", "reserved", "sequence", "share",
        "tenant_places", "usual", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.lanes = tuple(Lane(rank // 2, bool(rank % 2)) for rank in range(6))
        self.usual = self.lanes[NORMAL]
        """The lane that most waiters are in; when all are, it is served next."""
        self.waiting = 0
        self.fallback_waiting = 0
        self.queued: dict[str, int] = {}
        """Waiters by tenant, over all lanes; only tenants that have some."""
        self.expiry: list[tuple[float, int, Waiter]] = []
        """A heap. Those who left stay in it until they are more than half of it."""
        self.sequence = 0
        self.credit = 0.0
        """How much of its next grant NORMAL has earned while CRITICAL was served."""
        self.configure(0, 0.0, 1.0)

    def configure(self, places: int, normal_share: float, tenant_share: float) -> None:
        """Sets the bounds; nobody who waits is thrown out by it."""
        self.places = places
        self.share = normal_share
        self.reserved = int(normal_share * places)
        self.tenant_places = max(1, int(tenant_share * places))

    def __iter__(self) -> Iterator[Waiter]:
        for lane in self.lanes:
            yield from lane.age

    def lane(self, waiter: Waiter) -> Lane:
        """The lane that a waiter belongs in."""
        return self.lanes[2 * waiter.priority + waiter.fallback]

    # --- places ----------------------------------------------------------------------------------------------------

    def crowded(self, waiter: Waiter) -> bool:
        """Whether :meth:`in_its_way` has to be asked at all; cheap."""
        return (
            self.waiting >= self.places
            or (waiter.tenant is not None and self.queued.get(waiter.tenant, 0) >= self.tenant_places)
            or (waiter.priority == Priority.CRITICAL and self.reserved > 0)
        )

    def in_its_way(self, waiter: Waiter) -> Waiter | str | None:
        """None when there is a place for the waiter, else whom to evict for it, or why nobody can be.

        The oldest of the lowest rank goes first: it has the least budget left and matters least. CRITICAL leaves NORMAL
        its share of the places, or the share of grants would be worth nothing: a flood would evict everybody who could
        get one.
        """
        lanes = self.lanes
        tenant = waiter.tenant
        rank = 2 * waiter.priority + waiter.fallback
        lower = lanes[:rank:-1]
        if tenant is not None and self.queued.get(tenant, 0) >= self.tenant_places:
            # Only a place of its own helps a tenant that has its share of them.
            for lane in lower:
                own = lane.tenants.get(tenant)
                if own:
                    return next(iter(own))
            return f"a tenant has its share of {self.tenant_places} places"
        spare_normal = False
        if waiter.priority == Priority.CRITICAL:
            if lanes[0].waiting + lanes[1].waiting >= self.places - self.reserved:
                if rank == 0 and lanes[1].waiting:
                    return lanes[1].oldest
                return f"{self.waiting} calls wait, {self.reserved} places are kept for normal priority"
            spare_normal = lanes[NORMAL].waiting + lanes[NORMAL + 1].waiting <= self.reserved
        if self.waiting < self.places:
            return None
        for lane in lower:
            if lane.waiting and not (spare_normal and lane.priority == Priority.NORMAL):
                return lane.oldest
        return f"{self.waiting} calls wait"

    # --- coming and going ------------------------------------------------------------------------------------------

    def add(self, waiter: Waiter, lane: Lane, expiry: float) -> None:
        """Puts a waiter at the end of its lane; ``expiry`` (absolute) is when it has to leave."""
        tenant = waiter.tenant
        lane.age[waiter] = None
        own = lane.tenants.get(tenant)
        if own is None:
            own = lane.spare
            if own is None:
                own = OrderedDict()
            else:
                lane.spare = None
            lane.tenants[tenant] = own
        own[waiter] = None
        lane.waiting += 1
        self.waiting += 1
        if tenant is not None:
            self.queued[tenant] = self.queued.get(tenant, 0) + 1
        if waiter.fallback:
            self.fallback_waiting += 1
        if expiry != math.inf:
            self.sequence += 1
            heappush(self.expiry, (expiry, self.sequence, waiter))

    def remove(self, waiter: Waiter) -> None:
        """Takes a waiter out, wherever it stands, whose state says already that it no longer waits."""
        lane = self.lanes[2 * waiter.priority + waiter.fallback]
        tenant = waiter.tenant
        del lane.age[waiter]
        own = lane.tenants[tenant]
        del own[waiter]
        if not own:
            del lane.tenants[tenant]
            lane.spare = own
        lane.waiting -= 1
        self.waiting -= 1
        if tenant is not None:
            queued = self.queued[tenant] - 1
            if queued:
                self.queued[tenant] = queued
            else:
                del self.queued[tenant]
        if waiter.fallback:
            self.fallback_waiting -= 1
        if self.expiry and len(self.expiry) > 2 * self.waiting + 64:
            self.expiry = [entry for entry in self.expiry if entry[2].state == WAITING]
            heapify(self.expiry)

    def next_expired(self, now: float) -> Waiter | None:
        """One who waits and should not any more, or None."""
        heap = self.expiry
        while heap and heap[0][0] <= now:
            waiter = heappop(heap)[2]
            if waiter.state == WAITING:
                return waiter
        return None

    def reschedule(self, max_wait: float) -> None:
        """Applies another bound on waiting to those who wait already."""
        self.expiry = []
        for waiter in self:
            expiry = min(waiter.deadline, waiter.enqueued_at + max_wait)
            if expiry != math.inf:
                self.sequence += 1
                self.expiry.append((expiry, self.sequence, waiter))
        heapify(self.expiry)

    # --- turns -----------------------------------------------------------------------------------------------------

    def turn(self, fallback: bool) -> tuple[Lane | None, bool]:
        """The lane that is served next, and whether CRITICAL and NORMAL contend for it.

        ``fallback`` tells whether traffic that fell back may have another permit.
        """
        lanes = self.lanes
        for lane in lanes:
            if lane.waiting and (fallback or not lane.fallback):
                break
        else:
            return None, False
        if lane.priority != Priority.CRITICAL:
            return lane, False
        normal = lanes[NORMAL]
        if not normal.waiting:
            normal = lanes[NORMAL + 1]
            if not normal.waiting or not fallback:
                return lane, False
        return (normal if self.credit + self.share >= 1.0 - 1e-9 else lane), True

    def served(self, lane: Lane, waiter: Waiter, contested: bool) -> None:
        """Takes out a waiter that gets its permit: its tenant and its priority have had their turn."""
        if contested:
            self.credit += self.share - (lane.priority == Priority.NORMAL)
        tenant = waiter.tenant
        if len(lane.tenants) > 1:
            lane.tenants.move_to_end(tenant)
        if tenant is not None:
            lane.served(tenant)
        self.remove(waiter)
