"""What makes runs outlive requests and processes, put together: lane, approvals, engine, upkeep of the store."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from failsoft.base.clock import Sources
from failsoft.base.errors import FailsoftError
from failsoft.engines.lane import Lane
from failsoft.engines.local import LocalEngine
from failsoft.runs.agents import Agent
from failsoft.runs.crew import Crew, within
from failsoft.runs.limits import RunParts
from failsoft.runs.resume import Resumed
from failsoft.runs.review import Reviews
from failsoft.runs.run import Run
from failsoft.runs.takeover import Takeover
from failsoft.runs.upkeep import Upkeep
from failsoft.stores.approvals import ApprovalRecord
from failsoft.stores.keeping import Retention
from failsoft.stores.protocols import RunStore

__all__ = ["Durable", "DurableLimits"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DurableLimits:
    """``width`` background runs at once, ``queue`` that wait; the rest in seconds.

    ``lease`` is how long this process is believed to live without a word, ``skew`` how far the clocks of processes may
    differ, ``look_every`` how often lost runs and resolved approvals are looked for, ``approval_expires`` how long a
    person has. ``retention`` says how long what has ended is kept, ``prune_every`` how often the rest is removed.
    """

    width: int = 8
    queue: int = 10_000
    lease: float = 15.0
    skew: float = 2.0
    look_every: float = 2.0
    approval_expires: float = 86_400.0
    retention: Retention = field(default_factory=Retention)
    prune_every: float = 60.0


class Durable:
    """The durable side of an app. ``active`` lists the runs that are driven here."""

    def __init__(
        self,
        store: RunStore | None,
        crew: Crew,
        sources: Sources,
        limits: DurableLimits,
        *,
        active: Callable[[], Iterable[Run]],
    ) -> None:
        self._store = store
        self._crew = crew
        self._sources = sources
        self._limits = limits
        self._active = active
        self._loop = asyncio.get_running_loop()
        self.lane = Lane(limits.width, limits.queue)
        self.reviews = Reviews(store, crew, sources, expires=limits.approval_expires)
        self.reviews.on_resolved = self._resolved
        self.engine: LocalEngine | None = None
        self.takeover: Takeover | None = None
        self.upkeep: Upkeep | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def durable(self) -> bool:
        """Whether background runs outlive this process."""
        return self._store is not None and self._store.durable

    def may_call(self) -> bool:
        """Whether this process may start calls for runs that others could take over."""
        return not self.durable or (self.engine is not None and self.engine.may_call())

    def _resolved(self, record: ApprovalRecord) -> None:
        for run in self._active():
            if run.id == record.run:
                run.learn(record)

    async def start(
        self,
        parts: RunParts,
        *,
        agent: Callable[[str], Agent],
        adopt: Callable[[Resumed, Agent], None],
        let_go: Callable[[Run], None],
        ended: Callable[[str], Run | None],
    ) -> None:
        """Takes the first lease, within the time that the store has, and begins to look for lost runs."""
        store = self._store
        if store is None or not store.durable:
            return
        limits = self._limits
        self.takeover = Takeover(
            store, parts, agent=agent, adopt=adopt, active=self._active, let_go=let_go, ended=ended
        )
        self.engine = engine = LocalEngine(
            self.takeover,
            wall=self._sources.wall,
            lease=limits.lease,
            skew=limits.skew,
            every=limits.look_every,
        )
        self.upkeep = Upkeep(store, self._crew, self._sources.wall, limits.retention, every=limits.prune_every)
        at = self._loop.time() + 4 * parts.limits.store_wait
        try:
            await within(self._crew, engine.begin(), at=at, what="taking the first lease")
        except FailsoftError as error:
            _log.warning("no lease yet: %s", error.message)
        for work, name in ((engine.work(), "engine"), (self.upkeep.work(), "upkeep")):
            self._tasks.append(self._crew.start(work, name=name, context=contextvars.Context()))

    def let_go(self) -> list[Run]:
        """Lets go of the runs that another process can go on with; gives them."""
        if not self.durable:
            return []
        return [run for run in list(self._active()) if run.background and run.leave()]

    async def aclose(self, left: Iterable[Run]) -> None:
        """Hands runs back and gives the lease back; bounded in time."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        if self.takeover is None or self.engine is None:
            return
        try:
            at = self._loop.time() + 5.0
            await within(self._crew, self.takeover.hand_back(left), at=at, what="handing runs back")
        except FailsoftError as error:
            _log.warning("not all runs were handed back: %s", error.message)
        await self.engine.aclose()

    def __repr__(self) -> str:
        return f"<Durable {self.lane!r} {self.engine!r}>"
