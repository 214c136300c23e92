"""What the engine has done for it: this node's lease, and runs of nodes that are gone, taken over or ended.

A background run goes on from the store at a new epoch, so that whoever drove it before can write nothing more. An
interactive one has lost its client with its node and ends as ``failed`` with ``node_lost``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from failsoft.base.errors import FailsoftError, NodeLost, NotFound, StoreConflict, StoreError, UnknownAgent
from failsoft.kernel.classify import as_error
from failsoft.runs.agents import Agent
from failsoft.runs.crew import within
from failsoft.runs.limits import RunParts
from failsoft.runs.result import RunResult
from failsoft.runs.resume import Resumed, lost_result
from failsoft.runs.run import Run
from failsoft.runs.state import RunState
from failsoft.stores.leases import LostRun
from failsoft.stores.protocols import AppendEvents, FinishRun, RunStore, StoredEvent, StoredRun, Write

__all__ = ["Takeover"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_RECONCILE: Final = 5
"""Rounds between two looks for runs that are held here and not driven."""
_LOOKS: Final = 50
"""Waiting runs whose approvals are looked at in one round."""


class Takeover:
    """The engine's work over a store. ``adopt`` drives a resumed run, ``active`` lists those that are driven here."""

    def __init__(
        self,
        store: RunStore,
        parts: RunParts,
        *,
        agent: Callable[[str], Agent],
        adopt: Callable[[Resumed, Agent], None],
        active: Callable[[], Iterable[Run]],
        let_go: Callable[[Run], None],
        ended: Callable[[str], Run | None],
        wait: float = 4.0,
    ) -> None:
        self._store = store
        self._parts = parts
        self._agent = agent
        self._adopt = adopt
        self._active = active
        self._let_go = let_go
        self._ended = ended
        self._wait = wait
        self._held: dict[str, int] = {}  # acquired and not driven yet: at most a round's, and each is tried again
        self._suspended: list[tuple[str, int]] = []  # at most the runs that were driven
        self._looked = 0
        self._rounds = 0
        self._missing: set[str] = set()  # held here and not driven, at the last look: at most as many as one look finds

    async def _do(self, work: Coroutine[Any, Any, T], what: str) -> T:
        at = asyncio.get_running_loop().time() + self._wait
        try:
            return await within(self._parts.crew, work, at=at, what=what)
        except FailsoftError:
            raise
        except Exception as error:
            raise StoreError(f"{what} failed: {as_error(error).message}") from error

    async def renew(self, until: float) -> None:
        """See :class:`~failsoft.engines.local.Work`."""
        await self._do(self._store.renew_lease(self._parts.node, until), "renewing the lease")

    async def drop(self) -> None:
        """See :class:`~failsoft.engines.local.Work`."""
        await self._do(self._store.drop_lease(self._parts.node), "giving the lease back")

    async def lost(self, now: float, limit: int) -> Sequence[LostRun]:
        """See :class:`~failsoft.engines.local.Work`."""
        for run, epoch in list(self._held.items()):
            await self._drive(run, epoch)
        return await self._do(self._store.lost_runs(now, limit=limit), "looking for lost runs")

    def room(self) -> int:
        """See :class:`~failsoft.engines.local.Work`."""
        lane = self._parts.lane
        return 0 if lane is None else max(0, lane.queue - lane.waiting)

    async def take(self, lost: LostRun) -> None:
        """See :class:`~failsoft.engines.local.Work`."""
        died = lost.node not in ("", self._parts.node)
        try:
            epoch = await self._do(
                self._store.acquire(lost.run, self._parts.node, expected=lost.epoch, died=died), "taking a run over"
            )
        except (StoreConflict, NotFound):
            return  # somebody else was faster, or it has ended
        if not lost.background:
            await self._end(lost.run, epoch, None)
            return
        if lost.deaths + died > self._parts.limits.deaths:
            error = NodeLost(f"{lost.deaths + died} processes died while they drove this run", run_id=lost.run)
            await self._end(lost.run, epoch, error)
            return
        self._held[lost.run] = epoch
        await self._drive(lost.run, epoch)

    async def _drive(self, run: str, epoch: int) -> None:
        """Loads a run that is held and drives it; what fails is tried again in the next round."""
        stored = await self._do(self._store.load_run(run), "reading a run")
        if stored is None or stored.terminal is not None or stored.epoch != epoch:
            self._held.pop(run, None)
            return
        approvals = await self._do(self._store.list_approvals(run=run, limit=1000), "reading approvals")
        intents = await self._do(self._store.load_actions(run), "reading intents")
        try:
            agent = self._agent(stored.record.agent)
        except UnknownAgent as error:
            await self._end(run, epoch, error)
            return
        self._held.pop(run, None)
        self._adopt(Resumed(stored, epoch, approvals.approvals, tuple(intents)), agent)

    async def _end(self, run: str, epoch: int, error: FailsoftError | None) -> None:
        """Ends a run that nobody can go on with."""
        stored = await self._do(self._store.load_run(run), "reading a run")
        self._held.pop(run, None)
        if stored is None or stored.terminal is not None:
            return
        now = self._parts.sources.wall()
        result = lost_result(stored, error, elapsed=_age(stored, now))
        data: dict[str, Any] = {
            "status": str(RunState.FAILED),
            "answer": None,
            "elapsed_ms": round(result.elapsed * 1000, 3),
            "budget_ms": round(result.budget * 1000, 3),
            "shortfalls": [],
            "error": None if result.error is None else result.error.to_dict()["error"],
        }
        event = StoredEvent(epoch, 1, f"run.{RunState.FAILED}", now, None, data)
        writes: list[Write] = [
            AppendEvents(run, epoch, (event,)),
            FinishRun(run, epoch, str(RunState.FAILED), result.to_dict(), now),
        ]
        await self._do(self._store.write(writes), "ending a lost run")
        _log.warning("run %s ended as failed: %s", run, result.error.message if result.error is not None else "")

    # --- runs that are driven here -----------------------------------------------------------------------------------

    async def look(self) -> None:
        """See :class:`~failsoft.engines.local.Work`."""
        self._rounds += 1
        if self._rounds % _RECONCILE == 0:
            await self._reconcile()
        await self._look_at_approvals()

    async def _reconcile(self) -> None:
        """Runs that the store says are driven here and are not: their end was lost when the store failed.

        It is written now if it is remembered; else the run goes on, or ends as lost.
        """
        driven = {run.id for run in self._active()} | self._held.keys() | {run for run, _ in self._suspended}
        held = await self._do(self._store.held_runs(self._parts.node), "looking for runs without a driver")
        missing = {one.run: one for one in held if one.run not in driven}
        for run in missing.keys() & self._missing:  # twice in a row: it is not just on its way to the store
            one, known = missing[run], self._ended(run)
            if known is not None and known.result is not None and known.epoch == one.epoch:
                await self._write_end(known, known.result)
            else:
                await self.take(one)
        self._missing = set(missing)

    async def _write_end(self, run: Run, result: RunResult) -> None:
        """The end of a run that was told and could not be written then."""
        now = self._parts.sources.wall()
        last = run.log.since(run.log.seq - 1)[0]
        at = now - (asyncio.get_running_loop().time() - last.at)
        event = StoredEvent(last.epoch, last.seq, last.kind, at, last.task, last.data)
        writes: list[Write] = [
            AppendEvents(run.id, run.epoch, (event,)),
            FinishRun(run.id, run.epoch, str(result.status), result.to_stored(), at),
        ]
        await self._do(self._store.write(writes), "writing a run's end")

    async def _look_at_approvals(self) -> None:
        """Approvals may have been resolved by another process."""
        waiting = [run for run in self._active() if run.cell.value is RunState.WAITING_APPROVAL]
        if not waiting:
            return
        first = self._looked % len(waiting)
        self._looked += _LOOKS
        for run in (waiting[first:] + waiting[:first])[:_LOOKS]:
            page = await self._do(self._store.list_approvals(run=run.id, limit=1000), "reading approvals")
            for record in page.approvals:
                run.learn(record)

    def suspend(self) -> None:
        """See :class:`~failsoft.engines.local.Work`."""
        for run in [run for run in self._active() if run.background]:
            if run.leave():
                self._suspended.append((run.id, run.epoch))
                self._let_go(run)

    async def reclaim(self) -> None:
        """See :class:`~failsoft.engines.local.Work`."""
        while self._suspended:
            run, epoch = self._suspended[-1]
            await self.take(LostRun(run, epoch, self._parts.node, background=True, state=""))
            self._suspended.pop()

    async def hand_back(self, runs: Iterable[Run]) -> None:
        """Nobody holds these runs any more: at the end of this process others go on with them at once."""
        for run in runs:
            try:
                await self._do(self._store.release_run(run.id, run.epoch), "handing a run back")
            except StoreConflict:
                continue
            except FailsoftError as error:
                _log.warning("run %s was not handed back, its lease has to end: %s", run.id, error.message)

    def __repr__(self) -> str:
        return f"<Takeover held={len(self._held)} suspended={len(self._suspended)}>"


def _age(stored: StoredRun, now: float) -> float:
    return max(0.0, now - stored.record.created)
