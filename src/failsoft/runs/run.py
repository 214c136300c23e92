"""A run: one request, one deadline, one plan, one terminal event, always.

The run is driven by one task that itself never waits for anything that could hang: planners, tools and stores run in
children that can be left behind. Ending is a compare-and-set of the state in memory; whoever makes it emits the
terminal event, so there is exactly one, also when a store, a listener, a planner or the answer function fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from failsoft.base.errors import (
    FailsoftError,
    InternalError,
    RunCancelled,
    StoreError,
)
from failsoft.base.events import Event
from failsoft.kernel.breaker import Admission
from failsoft.kernel.classify import as_error
from failsoft.runs.agents import Agent
from failsoft.runs.answer import Answer, Parts, build, shortfalls
from failsoft.runs.claim import claim
from failsoft.runs.crew import within
from failsoft.runs.limits import RunParts
from failsoft.runs.plan import Plan
from failsoft.runs.planner import PlanFailure, PlanRequest, language_of
from failsoft.runs.planning import make_plan
from failsoft.runs.result import RunRequest, RunResult, TaskResult
from failsoft.runs.runners import TaskRunner, ToolRunner
from failsoft.runs.scheduler import Scheduler
from failsoft.runs.sessions import TURNS, Turn, messages_of, turn_of
from failsoft.runs.state import RunState, StateCell
from failsoft.stores.protocols import CreateRun, FinishRun, FinishTask, RunRecord, SaveSnapshot, StoredRun, TaskRecord

__all__ = ["Run", "body_hash"]

_log = logging.getLogger(__name__)

_LOG: Final = 10_000
"""Events that a run keeps for those who watch it or come back to it; the oldest are dropped beyond."""


class Run:
    """One run; made and started by the app, seen from outside through its :class:`~failsoft.runs.handle.RunHandle`."""

    def __init__(self, run_id: str, request: RunRequest, agent: Agent, budget: float, parts: RunParts) -> None:
        self.id = run_id
        self.request = request
        self.agent = agent
        self.budget = budget
        self.epoch = 1
        self.cell = StateCell()
        self.plan: Plan | None = None
        self.planner: str | None = None
        self.refused: list[PlanFailure] = []
        self.scheduler: Scheduler | None = None
        self.result: RunResult | None = None
        self.accepted = asyncio.Event()
        self.ended = asyncio.Event()
        self.events: deque[Event] = deque(maxlen=_LOG)
        self.task: asyncio.Task[None] | None = None
        self.on_end: Callable[[Run], None] | None = None
        self.on_rename: Callable[[Run, str], None] | None = None
        self.admission: Admission | None = None
        self._parts = parts
        self._recorder = parts.recorder
        self._loop = asyncio.get_running_loop()
        self.began = self._loop.time() - request.spent_ms / 1000
        self.deadline = self.began + budget
        self.created = parts.sources.wall()
        self.cut = self.deadline - parts.grace.of(budget, parts.limits)
        self.was_cut = False
        self.kept = request.background
        self.seq = 0
        self._watchers: dict[asyncio.Future[None], None] = {}
        self._failures: list[dict[str, Any]] = []
        self._stages: dict[str, float] = {}
        self._plan_data: dict[str, Any] | None = None
        self._ask = PlanRequest(
            input=request.input,
            agent=agent.name,
            language=request.language or language_of(request.input),
            mode=request.mode,
            tenant=request.tenant,
            session_id=request.session_id,
            history=request.history,
            metadata=request.metadata,
        )

    # --- events and states ---------------------------------------------------------------------------------------

    def emit(self, kind: str, task: str | None = None, data: Any = None) -> None:
        """Emits an event of this run; never raises, and nothing follows the terminal one."""
        if self.cell.terminal:
            return
        self._emit(kind, task, data)

    def _emit(self, kind: str, task: str | None, data: Any) -> None:
        parts = self._parts
        self.seq += 1
        event = Event(kind, self._loop.time(), None, self.id, task, self.request.tenant, self.seq, self.epoch, data)
        self.events.append(event)
        if self._recorder is not None:
            self._recorder.put(event)
            if kind == "task.finished" and task is not None:
                self._record_task(task)
        if parts.bus.listeners:
            try:
                parts.bus.emit(event)
            except BaseException:  # noqa: BLE001 - a listener that raises CancelledError or SystemExit breaks no run
                parts.bus.errors += 1
        if self._watchers:
            watchers, self._watchers = self._watchers, {}
            for watcher in watchers:
                if not watcher.done():
                    watcher.set_result(None)

    def _record_task(self, task_id: str) -> None:
        scheduler, recorder = self.scheduler, self._recorder
        if scheduler is None or recorder is None:
            return
        run, epoch = self.id, self.epoch

        def make() -> FinishTask:
            done = scheduler.result(task_id)
            provenance = {} if done.outcome is None else done.outcome.provenance.to_dict()
            return FinishTask(
                run, epoch, TaskRecord(task_id, done.status, done.value, provenance, done.started, done.ended)
            )

        recorder.put(make)

    def told(self) -> None:
        """Somebody has the answer: what passed since the run was cut is to be kept back of later budgets."""
        if self.was_cut:
            self._parts.grace.learn_late(self._loop.time() - self.cut)

    def _to(self, state: RunState, data: Any = None) -> None:
        """Goes on to a state that is not terminal; raises ``CancelledError`` when the run has ended meanwhile."""
        if not self.cell.to(state):
            raise asyncio.CancelledError
        self._emit(f"run.{state}", None, data)
        self._snapshot(state)

    def _snapshot(self, state: RunState) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        run, epoch = self.id, self.epoch

        def make() -> SaveSnapshot:
            if self.plan is not None and self._plan_data is None:
                self._plan_data = self.plan.model_dump(mode="json")
            return SaveSnapshot(run, epoch, str(state), {"plan": self._plan_data, "planner": self.planner})

        recorder.put(make)

    def fail_part(self, part: str, error: BaseException | str) -> None:
        """Notes that a part of the platform failed without costing the answer."""
        if isinstance(error, str):
            self._failures.append({"part": part, "code": "internal_error", "message": error})
        else:
            mapped = as_error(error)
            self._failures.append({"part": part, "code": mapped.code, "message": mapped.message})

    # --- the way of a run ----------------------------------------------------------------------------------------

    async def drive(self) -> None:
        """Takes the run to its end. Ends itself; raises nothing but a cancellation from outside."""
        try:
            await self._accept()
            await self._remember()
            await self._make_plan()
            await self._dispatch()
            self._aggregate()
        except asyncio.CancelledError:
            self.end_cancelled()
            raise
        except FailsoftError as error:
            self._end(RunState.FAILED, error=error)
        except BaseException as error:
            _log.exception("run %s failed by a defect", self.id)
            self._end(RunState.FAILED, error=InternalError("the run failed by a defect of ours"))
            if not isinstance(error, Exception):
                raise
        finally:
            if self.scheduler is not None:
                self.scheduler.cancel()

    async def _accept(self) -> None:
        """Received; written before going on only for a background run and when there is an idempotency key."""
        parts = self._parts
        background = self.request.background
        if background and parts.store is None:
            raise StoreError("background runs need a store, and there is none", param="background")
        if (background or self.request.idempotency_key is not None) and parts.store is not None:
            claimed = await claim(self._record(), parts.store, parts, cut=self.cut, certain=background)
            if claimed.run != self.id:
                before, self.id, self.epoch = self.id, claimed.run, claimed.epoch
                if self.on_rename is not None:
                    self.on_rename(self, before)
            if claimed.ended is not None:
                self._replay(claimed.ended)
                raise asyncio.CancelledError
        self._receive()

    def _receive(self) -> None:
        """The first event. A run without a key is written behind, like everything else about it."""
        self.accepted.set()
        if self._recorder is not None and self.request.idempotency_key is None and not self.request.background:
            record = self._record()
            self._recorder.put(lambda: CreateRun(record))
        received = {"agent": self.agent.name, "budget_ms": round(self.budget * 1000, 3), "input": self.request.input}
        self._emit("run.received", None, received)

    def _record(self) -> RunRecord:
        parts = self._parts
        return RunRecord(
            run=self.id,
            agent=self.agent.name,
            request=self.request.to_dict(),
            created=self.created,
            budget=self.budget,
            node=parts.node,
            tenant=self.request.tenant,
            session=self.request.session_id,
            background=self.request.background,
            idempotency_key=self.request.idempotency_key,
            body_hash=body_hash(self.request),
        )

    async def _remember(self) -> None:
        """What was said in the session before, as far as memory and store know it in time."""
        parts, session, tenant = self._parts, self.request.session_id, self.request.tenant
        if session is None or self.request.history:
            return
        stored: Sequence[StoredRun] = ()
        if parts.store is not None:
            now = self._loop.time()
            try:
                stored = await within(
                    parts.crew,
                    parts.store.list_runs(tenant=tenant, session=session, limit=3 * TURNS),
                    at=now + max(0.0, min(parts.limits.store_wait, (self.cut - now) / 4)),
                    what="reading the session",
                    patience=parts.limits.patience,
                    run=self.id,
                )
            except Exception as error:  # noqa: BLE001 - whatever a store raises costs no run its answer
                self.fail_part("session", error)
        said = messages_of(map(turn_of, stored), parts.sessions.recent(tenant, session))
        self._ask = replace(self._ask, history=said)

    def _replay(self, stored: StoredRun) -> None:
        """Ends as the run of the same key ended elsewhere, with nothing written again."""
        self._recorder = None
        if not self.cell.replay(RunState(stored.terminal or "failed")):
            return
        plan: Plan | None = None
        try:
            plan = Plan.from_dict(stored.snapshot["plan"]) if stored.snapshot.get("plan") else None
        except FailsoftError:
            _log.warning("the stored plan of run %s cannot be read", self.id)
        self._receive()
        self.plan = plan
        self._conclude(RunResult.from_stored(stored, plan))

    async def _make_plan(self) -> None:
        """The first plan of the agent's planners that can be run."""
        self._to(RunState.PLANNING)
        start = self._loop.time()
        try:
            self.plan, self.planner = await make_plan(
                self._ask, self.agent, self._parts, run=self.id, cut=self.cut, refuse=self._refuse
            )
        finally:
            self._stages["planning"] = self._loop.time() - start
        tasks = [
            {
                "id": task.id,
                "title": task.label,
                "tool": task.tool,
                "kind": task.kind,
                "needs": list(task.needs),
                "essential": task.essential,
            }
            for task in self.plan.tasks
        ]
        made = {"planner": self.planner, "reading": self.plan.reading, "notes": list(self.plan.notes), "tasks": tasks}
        self.emit("plan.made", None, made)

    def _refuse(self, failure: PlanFailure) -> None:
        self.refused.append(failure)
        self.emit("plan.refused", None, failure.to_dict())

    async def _dispatch(self) -> None:
        """Runs the plan's tasks."""
        assert self.plan is not None
        self._to(RunState.DISPATCHING)
        parts = self._parts
        start = self._loop.time()
        runners: dict[str, TaskRunner] = {
            "tool": ToolRunner(self.agent.tools, parts.kernel, parts.stale, parts.history)
        }
        runners.update(parts.runners or {})
        self.scheduler = Scheduler(
            self.plan,
            run=self.id,
            tenant=self.request.tenant,
            runners=runners,
            history=parts.history,
            crew=parts.crew,
            emit=self.emit,
            began=self.began,
            cut=self.cut,
            width=self.agent.width,
            fast=self.request.mode == "fast",
            patience=parts.limits.patience,
            last_patience=min(parts.limits.patience, (self.deadline - self.cut) / 2),
            pace=parts.pace,
            rng=parts.sources.rng,
        )
        self.scheduler.start()
        try:
            await self.scheduler.done
        except InternalError as error:
            self.fail_part("scheduler", error)
        self._stages["dispatching"] = self._loop.time() - start

    def _aggregate(self) -> None:
        """The answer, from whatever there is."""
        assert self.plan is not None
        assert self.scheduler is not None
        self._to(RunState.AGGREGATING)
        start = self._loop.time()
        outcomes = self.scheduler.outcomes
        fell_short = shortfalls(self.plan, outcomes, self._ask.language)
        parts = Parts(self._ask, self.plan, outcomes, fell_short, max(0.0, self.deadline - start))
        answer, parts, broken = build(parts, self.agent.answer)
        took = self._loop.time() - start
        self._parts.grace.learn(took)
        self._stages["aggregating"] = took
        if broken is not None:
            self.fail_part("answer", f"the agent's answer function failed: {broken}")
        degraded = parts.degraded or any(f["part"] == "scheduler" for f in self._failures)
        self._end(RunState.DEGRADED if degraded else RunState.COMPLETED, answer=answer, parts=parts)
        self.was_cut = start >= self.cut
        self.told()

    # --- the end ---------------------------------------------------------------------------------------------------

    def end_cancelled(self) -> bool:
        """Ends the run as cancelled unless it has ended; returns whether it did."""
        return self._end(RunState.CANCELLED, error=RunCancelled("the run was cancelled", run_id=self.id))

    def _end(
        self,
        state: RunState,
        *,
        answer: Answer | None = None,
        parts: Parts | None = None,
        error: FailsoftError | None = None,
    ) -> bool:
        """The one end of a run: first the state, then the result, the event, and whoever waits."""
        if not self.cell.to(state):
            return False
        if self.seq == 0:  # cancelled before its first step: a beginning all the same
            self._receive()
        if error is not None and error.run_id is None:
            error.run_id = self.id
        recorder = self._recorder
        if recorder is not None and (lost := recorder.failure(self.id)) is not None:
            self._failures.append({"part": "store", "code": lost.code, "message": lost.message})
        elapsed = self._loop.time() - self.began
        tasks: tuple[TaskResult, ...] = ()
        try:
            tasks = self.scheduler.results() if self.scheduler is not None else ()
        except Exception:  # noqa: BLE001 - the end must not fail
            _log.exception("the tasks of run %s could not be listed", self.id)
        result = RunResult(
            run_id=self.id,
            agent=self.agent.name,
            status=state,
            answer=None if answer is None else answer.text,
            artifacts=() if answer is None else answer.artifacts,
            shortfalls=() if parts is None else parts.shortfalls,
            tasks=tasks,
            plan=self.plan,
            planner=self.planner,
            refused=tuple(self.refused),
            failures=tuple(self._failures),
            error=error,
            elapsed=elapsed,
            budget=self.budget,
            stages=dict(self._stages),
            session_id=self.request.session_id,
        )
        self._conclude(result)
        return True

    def _conclude(self, result: RunResult) -> None:
        """The result, the terminal event, and whoever waits; the state is terminal already."""
        self.result = result
        state = result.status
        self._emit(
            f"run.{state}",
            None,
            {
                "status": str(state),
                "answer": result.answer,
                "elapsed_ms": round(result.elapsed * 1000, 3),
                "budget_ms": round(result.budget * 1000, 3),
                "shortfalls": [one.to_dict() for one in result.shortfalls],
                "error": None if result.error is None else result.error.to_dict()["error"],
            },
        )
        if self._recorder is not None:
            run, epoch = self.id, self.epoch
            self._recorder.put(lambda: FinishRun(run, epoch, str(state), result.to_dict()))
        session = self.request.session_id
        if session is not None and result.answer is not None:
            turn = Turn(self.id, self.created, str(state), self.request.input, result.answer, self.agent.name)
            self._parts.sessions.add(self.request.tenant, session, turn)
        self.accepted.set()
        self.ended.set()
        if self.on_end is not None:
            self.on_end(self)

    def watch(self) -> asyncio.Future[None]:
        """A future that is done at the next event."""
        watcher: asyncio.Future[None] = self._loop.create_future()
        self._watchers[watcher] = None
        return watcher

    def unwatch(self, watcher: asyncio.Future[None]) -> None:
        """Takes a watcher back."""
        self._watchers.pop(watcher, None)


def body_hash(request: RunRequest) -> str:
    """What makes two requests under one idempotency key the same."""
    import hashlib
    import json

    body = json.dumps([request.to_dict(), request.history], sort_keys=True, default=repr, ensure_ascii=False)
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
