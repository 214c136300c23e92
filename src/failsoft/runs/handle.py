"""A run seen from outside: what it is, how far it is, its events, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from failsoft.base.errors import NodeLost
from failsoft.base.events import Event
from failsoft.runs.plan import Plan
from failsoft.runs.progress import ProgressReport
from failsoft.runs.result import RunRequest, RunResult, TaskResult
from failsoft.runs.state import RunState

if TYPE_CHECKING:
    from failsoft.runs.run import Run

__all__ = ["RunHandle"]


class RunHandle:
    """A run seen from outside: watch it, wait for it, cancel it. Stays valid after the run has ended."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._run.id

    @property
    def tenant(self) -> str | None:
        """Whose run it is."""
        return self._run.request.tenant

    @property
    def request(self) -> RunRequest:
        """What was asked."""
        return self._run.request

    @property
    def created(self) -> float:
        """When it was accepted, in UTC seconds since the epoch."""
        return self._run.created

    @property
    def agent(self) -> str:
        """Who answers."""
        return self._run.agent.name

    @property
    def epoch(self) -> int:
        """Which driver of the run this is; grows when another process takes the run over."""
        return self._run.epoch

    @property
    def state(self) -> RunState:
        """Where the run is now."""
        return self._run.cell.value

    @property
    def done(self) -> bool:
        """Whether it has ended, or another process goes on with it."""
        return self._run.cell.terminal or self._run.left

    @property
    def plan(self) -> Plan | None:
        """The plan, once there is one."""
        return self._run.plan

    @property
    def budget(self) -> float:
        """The run's whole budget in seconds."""
        return self._run.budget

    @property
    def began(self) -> float:
        """Loop time at which its budget began."""
        return self._run.began

    def remaining(self) -> float:
        """Seconds until the run's deadline, never negative."""
        return max(0.0, self._run.deadline - asyncio.get_running_loop().time())

    def elapsed(self) -> float:
        """Seconds since it began, for its client; its whole time when it has ended."""
        run = self._run
        return asyncio.get_running_loop().time() - run.began if run.result is None else run.result.elapsed

    def tasks(self) -> tuple[TaskResult, ...]:
        """Every task of the plan as it stands now."""
        run = self._run
        return run.result.tasks if run.result is not None else run.task_results()

    def progress(self) -> ProgressReport | None:
        """How far the run is; None while there is no plan."""
        run = self._run
        now = asyncio.get_running_loop().time()
        if run.result is not None and run.plan is not None:
            count = len(run.result.tasks)
            return ProgressReport(1.0, 0.0, count, (), count, max(0.0, run.cut - now))
        if run.scheduler is None:
            return None
        return run.scheduler.progress.report(now, left=max(0.0, run.cut - now))

    def result_now(self) -> RunResult | None:
        """The result when it has ended, else None."""
        return self._run.result

    async def accepted(self) -> None:
        """Waits until it is certain which run this is: an idempotency key may belong to one of another process."""
        await self._run.accepted.wait()

    async def result(self) -> RunResult:
        """Waits for the end. A cancelled or failed run gives its result, too.

        Raises :class:`~failsoft.base.errors.NodeLost` when this process ends before a background run does, which then
        goes on elsewhere.
        """
        await self._run.ended.wait()
        if self._run.result is None:
            raise NodeLost("this process ends; the run goes on in another one", run_id=self.run_id)
        return self._run.result

    @property
    def left(self) -> bool:
        """Whether another process goes on with it: nothing more is told here, and it has not ended."""
        return self._run.left

    async def written(self) -> None:
        """Waits until what the run has said so far is in the store; for a bounded time, whatever the store does."""
        await self._run.flush()

    async def settled(self) -> RunResult | None:
        """Waits until the run has ended or waits for an approval: its result, or None in the second case.

        None, too, when another process goes on with it.
        """
        run = self._run
        while not run.ended.is_set() and run.cell.value is not RunState.WAITING_APPROVAL:
            watcher = run.log.watch()
            try:
                await watcher
            finally:
                run.log.unwatch(watcher)
        return run.result

    async def events(self, *, after: str | None = None) -> AsyncIterator[Event]:
        """The run's events from its start, or after the event id ``after``, to its terminal one, live.

        Any number may watch, each at its own pace; a run keeps its newest 10 000 events. An unknown ``after`` starts
        anew.
        """
        seen = self.seq_of(after) or 0
        while True:
            batch = self.since(seen)
            for event in batch:
                yield event
                seen = event.seq
            if not batch:
                if self.done:
                    return
                await self.changed()

    def seq_of(self, event_id: str | None) -> int | None:
        """The place of an event id among the run's events; None when it is none of this run, as it is driven now."""
        epoch, _, seq = (event_id or "").partition(".")
        sound = seq.isdecimal() and len(seq) < 10 and epoch == str(self._run.epoch)
        return int(seq) if sound and int(seq) <= self._run.log.seq else None

    @property
    def last(self) -> int:
        """The place of its newest event; 0 while there is none."""
        return self._run.log.seq

    def since(self, seen: int) -> list[Event]:
        """The kept events after the `seen`-th; the first of them is not the next one when that is no longer kept."""
        return self._run.log.since(seen)

    async def changed(self) -> None:
        """Waits for the next event."""
        watcher = self._run.log.watch()
        try:
            await watcher
        finally:
            self._run.log.unwatch(watcher)

    def keep(self) -> None:
        """The run is to go on also when nobody watches it any more."""
        self._run.kept = True

    @property
    def kept(self) -> bool:
        """Whether it goes on when nobody watches it."""
        return self._run.kept

    def told(self) -> None:
        """Says that the client has its answer now; how late that is decides when later runs are cut."""
        self._run.told()

    def wrap_up(self, reason: str) -> bool:
        """Ends the run in moments with what it has, degraded for `reason`; cancels one that has no plan yet.

        False when it had ended before, and for a background run: that goes on in another process.
        """
        run = self._run
        if run.cell.terminal or run.background:
            return False
        if run.scheduler is None:
            return self.cancel()
        run.scheduler.cut_short(reason)
        return True

    def cancel(self) -> bool:
        """Ends the run as ``cancelled`` at once and stops what it runs. False when it had ended before."""
        run = self._run
        if not run.end_cancelled():
            return False
        if run.task is not None:
            run.task.cancel()
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunHandle) and other._run is self._run

    def __hash__(self) -> int:
        return id(self._run)

    def __repr__(self) -> str:
        return f"<RunHandle {self.run_id} {self.state}>"
