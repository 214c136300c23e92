"""A run: one request, one deadline, one plan, one terminal event, always.

The run is driven by one task that itself never waits for anything that could hang: planners, tools and stores run in
children that can be left behind. Ending is a compare-and-set of the state in memory; whoever makes it emits the
terminal event, so there is exactly one, also when a store, a listener, a planner or the answer function fails.

Over 600 lines because a run's way from its acceptance to its one end is to be read in one place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from failsoft.base.errors import (
    ApprovalExpired,
    FailsoftError,
    InternalError,
    RunCancelled,
    StoreError,
)
from failsoft.base.events import Event
from failsoft.base.outcomes import Outcome
from failsoft.kernel.breaker import Admission
from failsoft.kernel.classify import as_error
from failsoft.runs.agents import Agent
from failsoft.runs.answer import Answer, Parts, build, forgotten, prepared, shortfalls
from failsoft.runs.claim import claim
from failsoft.runs.crew import within
from failsoft.runs.event_log import EventLog
from failsoft.runs.gate import ApprovalNeeded, Gate
from failsoft.runs.gated import GatedRunner, needs_gate
from failsoft.runs.limits import RunParts
from failsoft.runs.loops import agent_runner, hands_on
from failsoft.runs.pause import ask_people, pause
from failsoft.runs.plan import Plan
from failsoft.runs.planner import PlanFailure, PlanRequest, language_of
from failsoft.runs.planning import make_plan
from failsoft.runs.result import RunRequest, RunResult, TaskResult
from failsoft.runs.resume import Resumed, messages_to
from failsoft.runs.runners import TaskRunner, ToolRunner
from failsoft.runs.scheduler import Scheduler
from failsoft.runs.sessions import TURNS, Turn, messages_of, turn_of
from failsoft.runs.state import RunState, StateCell
from failsoft.stores.approvals import ApprovalRecord
from failsoft.stores.protocols import CreateRun, FinishRun, FinishTask, RunRecord, SaveSnapshot, StoredRun, TaskRecord

__all__ = ["Run", "body_hash"]

_log = logging.getLogger(__name__)

_LEASE_LOOK: Final = 0.25
"""Seconds between two looks whether this process has its lease, without which a background run begins nothing."""


class Run:
    """One run; made and started by the app, seen from outside through its :class:`~failsoft.runs.handle.RunHandle`."""

    def __init__(
        self,
        run_id: str,
        request: RunRequest,
        agent: Agent,
        budget: float,
        parts: RunParts,
        *,
        resumed: Resumed | None = None,
    ) -> None:
        self.id = run_id
        self.request = request
        self.agent = agent
        self.budget = budget
        self.log = EventLog(run_id, request.tenant, parts.bus, parts.recorder, soon=request.background)
        self.emit = self.log.emit
        """Emits an event of this run; never raises, and nothing follows the terminal one."""
        self.cell = StateCell()
        self.plan: Plan | None = None
        self.planner: str | None = None
        self.refused: list[PlanFailure] = []
        self.scheduler: Scheduler | None = None
        self.result: RunResult | None = None
        self.accepted = asyncio.Event()
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.on_end: Callable[[Run], None] | None = None
        self.on_rename: Callable[[Run, str], None] | None = None
        self.admission: Admission | None = None
        self.background = request.background
        self.left = False
        """Whether another process goes on with it."""
        self.wake = asyncio.Event()
        """Set when something that it waits for was resolved."""
        self.parts = parts
        self._resumed = resumed
        self._before: dict[str, TaskResult] = {}
        self._tried: set[str] = set()
        self._in_lane = False
        self._agents: TaskRunner | None = None
        self._forgot = False
        self.gate: Gate | None = None
        if self.background or needs_gate(agent.tools) or hands_on(agent) or parts.doubts.after:
            self.gate = Gate(
                run_id,
                parts.store,
                parts.crew,
                parts.sources.wall,
                epoch=lambda: self.epoch,
                wait=parts.limits.store_wait,
                may_call=parts.may_call if self.background else None,
                note=partial(self.fail_part, "store"),
            )
        self._parts = parts
        self._recorder = parts.recorder
        self._loop = asyncio.get_running_loop()
        self.began = self._loop.time() - request.spent_ms / 1000
        self.deadline = self.began + budget
        self.created = parts.sources.wall()
        self.cut = self.deadline - parts.grace.of(budget, parts.limits)
        self.was_cut = False
        self.kept = request.background
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

    @property
    def epoch(self) -> int:
        """Which driver of the run this is."""
        return self.log.epoch

    @property
    def events(self) -> list[Event]:
        """What it has said, as far as it is kept."""
        return self.log.since(0)

    def _emit_recorded(self, kind: str, task: str | None, data: Any) -> None:
        """The scheduler's events, where there is a store: with the end of a task its result goes there, too."""
        self.emit(kind, task, data)
        if kind == "task.finished" and task is not None and not self.log.closed:
            self._record_task(task)

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

        recorder.put(make, soon=self.background)

    def _keep_call(self, name: str, outcome: Outcome[Any]) -> None:
        """An action that a loop has made, on its way to the store."""
        now = self._loop.time() - self.began
        status = "degraded" if outcome.degraded else "completed"
        record = TaskRecord(name, status, outcome.value, outcome.provenance.to_dict(), None, now)
        if self._recorder is not None:
            self._recorder.put(lambda: FinishTask(self.id, self.epoch, record), soon=self.background)

    def told(self) -> None:
        """Somebody has the answer: what passed since the run was cut is to be kept back of later budgets."""
        if self.was_cut:
            self._parts.grace.learn_late(self._loop.time() - self.cut)

    def _to(self, state: RunState, data: Any = None) -> None:
        """Goes on to a state that is not terminal; raises ``CancelledError`` when the run has ended meanwhile."""
        if not self.cell.to(state):
            raise asyncio.CancelledError
        self.emit(f"run.{state}", None, data)
        if state is not RunState.AGGREGATING:  # the end is written within milliseconds, and the plan is there already
            self.snapshot(state)

    def snapshot(self, state: RunState) -> None:
        """The run's state and plan, on their way to the store."""
        recorder = self._recorder
        if recorder is None:
            return
        run, epoch = self.id, self.epoch

        def make() -> SaveSnapshot:
            if self.plan is not None and self._plan_data is None:
                self._plan_data = self.plan.model_dump(mode="json")
            return SaveSnapshot(run, epoch, str(state), {"plan": self._plan_data, "planner": self.planner})

        recorder.put(make, soon=self.background)

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
            if self._resumed is None:
                await self._accept()
            else:
                self._restore(self._resumed)
            if self.background:
                await self.turn()
            if self.plan is None:
                await self._remember()
                if await self._serve_prepared():
                    return
                await self._make_plan()
            ending = await self._run_plan()
            await self._aggregate(ending)
        except asyncio.CancelledError:
            if not self.left:
                self.end_cancelled()
            raise
        except FailsoftError as error:
            await self._end_written(RunState.FAILED, error=error)
        except BaseException as error:
            _log.exception("run %s failed by a defect", self.id)
            self._end(RunState.FAILED, error=InternalError("the run failed by a defect of ours"))
            if not isinstance(error, Exception):
                raise
        finally:
            if self.scheduler is not None:
                self.scheduler.cancel()
            if self.result is not None:  # all there is to know; what made it is four kilobytes for each task
                self.scheduler = self.gate = None
            self.leave_lane()

    async def _accept(self) -> None:
        """Received; written before going on only for a background run and when there is an idempotency key."""
        parts = self._parts
        background = self.request.background
        if background and parts.store is None:
            raise StoreError("background runs need a store, and there is none", param="background")
        if (background or self.request.idempotency_key is not None) and parts.store is not None:
            claimed = await claim(self._record(), parts.store, parts, cut=self.cut, certain=background)
            if claimed.run != self.id:
                before, self.id = self.id, claimed.run
                self.log.run, self.log.epoch = claimed.run, claimed.epoch
                if self.gate is not None:
                    self.gate.run = self.id
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
            self._recorder.put(lambda: CreateRun(record))  # soon: an action's intent, written before it, needs the run
        received = {"agent": self.agent.name, "budget_ms": round(self.budget * 1000, 3), "input": self.request.input}
        self.emit("run.received", None, received)

    def _restore(self, resumed: Resumed) -> None:
        """Goes on from the store, at a new epoch: the plan is kept, tasks that had finished stay finished."""
        self.log.epoch = resumed.epoch
        self.created = resumed.stored.record.created
        self.plan, self.planner = resumed.plan, resumed.planner
        if self.plan is not None:
            self._before = resumed.finished(self.plan)
            self.cell = StateCell(RunState.PLANNING)
        if self.gate is not None:
            self.gate.load(resumed.approvals, resumed.intents)
        self.accepted.set()
        again = {
            "agent": self.agent.name,
            "budget_ms": round(self.budget * 1000, 3),
            "input": self.request.input,
            "resumed": True,
            "finished": list(self._before),
        }
        self.emit("run.received", None, again)

    # --- its turn ------------------------------------------------------------------------------------------------

    async def turn(self) -> None:
        """Waits for a place in the background lane; only then does its time begin."""
        lane = self._parts.lane
        if lane is not None and not self._in_lane:
            await lane.enter()
            self._in_lane = True
        may_call = self._parts.may_call
        while may_call is not None and not may_call():  # noqa: ASYNC110 - the lease has no event, and this is rare
            await asyncio.sleep(_LEASE_LOOK)
        self.set_clock(self.budget)

    def leave_lane(self) -> None:
        """Gives its place in the background lane back, if it has one."""
        if self._in_lane and self._parts.lane is not None:
            self._in_lane = False
            self._parts.lane.leave()

    def set_clock(self, budget: float, *, spent: float = 0.0) -> None:
        """`budget` seconds from now; ``spent`` is what the run has used before."""
        now = self._loop.time()
        self.began = now - spent
        self.deadline = now + budget
        self.cut = self.deadline - self._parts.grace.of(budget, self._parts.limits)

    async def flush(self, seconds: float = 5.0) -> None:
        """Waits until what the run has said is in the store, or `seconds`; a store that fails holds nothing up."""
        if self._recorder is not None:
            await self._recorder.flush(seconds)

    def _record(self) -> RunRecord:
        parts = self._parts
        request = self.request.to_dict()
        if self.background and self.request.history:
            request["history"] = messages_to(self.request.history)
        return RunRecord(
            run=self.id,
            agent=self.agent.name,
            request=request,
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
                self._forgot = not parts.sessions.recent(tenant, session)
        said = messages_of(map(turn_of, stored), parts.sessions.recent(tenant, session))
        self._ask = replace(self._ask, history=said)

    def _replay(self, stored: StoredRun) -> None:
        """Ends as the run of the same key ended elsewhere, with nothing written again."""
        self._recorder = self.log.recorder = None
        if not self.cell.replay(RunState(stored.terminal or "failed")):
            return
        plan: Plan | None = None
        try:
            plan = Plan.from_dict(stored.snapshot["plan"]) if stored.snapshot.get("plan") else None
        except FailsoftError:
            _log.warning("the stored plan of run %s cannot be read", self.id)
        self._receive()
        self.plan = plan
        self._tell_end(self._conclude(RunResult.from_stored(stored, plan)))

    async def _serve_prepared(self) -> bool:
        """Ends with a prepared answer, if there is one and models fail as a whole; whether it did."""
        parts, ask = self._parts, self._ask
        if parts.golden is None or not parts.models_failing():
            return False
        found = parts.golden.find(ask.input, now=parts.sources.wall(), agent=self.agent.name, tenant=ask.tenant)
        if found is None:
            return False
        self.planner = "golden"
        self.plan = Plan(tasks=())
        for state in (RunState.PLANNING, RunState.DISPATCHING, RunState.AGGREGATING):
            self._to(state)
        fell_short = prepared(found.age, ask.language, now=parts.sources.wall())
        answer, shown, _ = build(
            Parts(ask, self.plan, {}, (fell_short,), max(0.0, self.deadline - self._loop.time())),
            lambda _: Answer(found.text),
        )
        await self._end_written(RunState.DEGRADED, answer=answer, parts=shown)
        self.told()
        return True

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
        plan = self.plan
        made = {
            "planner": self.planner, "reading": plan.reading, "notes": list(plan.notes), "tasks": plan.outline,
        }  # fmt: skip
        self.emit("plan.made", None, made)

    def _refuse(self, failure: PlanFailure) -> None:
        self.refused.append(failure)
        self.emit("plan.refused", None, failure.to_dict())

    async def _run_plan(self) -> RunState | None:
        """Runs the plan, with pauses for people; EXPIRED when nobody said anything in time."""
        self._try_again()
        while True:
            await self._dispatch()
            needs = self._needs()
            if not needs:
                return None
            await self.flush()
            asked = await ask_people(self, needs)
            self._keep_finished()
            if asked and not await pause(self, asked):
                return RunState.EXPIRED
            self._try_again()

    def _needs(self) -> list[ApprovalNeeded]:
        """What people have to be asked before the plan can go on."""
        scheduler, gate = self.scheduler, self.gate
        assert scheduler is not None
        assert self.plan is not None
        needs = [need for asked in scheduler.parked.values() for need in asked]
        if gate is None:
            return needs
        needs += [
            ApprovalNeeded(record.task, record.tool, record.arguments, record.reason)
            for record in gate.pending  # asked before a restart
            if record.reason == "repeated_degradation"
        ]
        if self._parts.doubts.after:
            new = [one for one in scheduler.results() if one.id not in self._before]
            for one in self._parts.doubts.after_a_run(new):
                need = ApprovalNeeded(
                    one.id, one.tool, self.plan.task(one.id).arguments, "repeated_degradation", title=one.title
                )
                if need.key not in gate.approvals and need.key not in gate.refused:
                    needs.append(need)
        return needs

    def _keep_finished(self) -> None:
        for done in self.task_results():
            if done.outcome is not None:
                self._before[done.id] = done

    def _try_again(self) -> None:
        """Tasks whose degradation a person did not accept are tried once more, with all that came of them."""
        gate, plan = self.gate, self.plan
        if gate is None or plan is None:
            return
        again: set[str] = set()
        for record in gate.approvals.values():
            if record.reason == "repeated_degradation" and record.status == "approved" and record.id not in self._tried:
                self._tried.add(record.id)
                again.add(record.task)
        for i in plan.shape.order:
            spec = plan.tasks[i]
            before = self._before.get(spec.id)
            fell_short = spec.id in again and before is not None and before.status != "completed"
            if fell_short or not again.isdisjoint(spec.needs):
                again.add(spec.id)
                self._before.pop(spec.id, None)

    def spent(self, stage: str, seconds: float) -> None:
        """A stage took `seconds`, once more perhaps."""
        self._stages[stage] = self._stages.get(stage, 0.0) + seconds

    def learn(self, record: ApprovalRecord) -> None:
        """An approval of this run was resolved, by whomever."""
        if self.gate is None:
            return
        known = self.gate.approvals.get((record.task, record.arguments_hash, record.reason))
        if known is not None and known.id == record.id and known.status == "pending" != record.status:
            self.gate.know(record)
            self.emit("approval.resolved", record.task, record.to_dict())
            self.wake.set()

    def essential(self, task: str) -> bool:
        """Whether a task of the plan is essential; the items of a list are as the whole of it is."""
        task = task.partition("[")[0]
        return self.plan is None or any(spec.id == task and spec.essential for spec in self.plan.tasks)

    def task_results(self) -> tuple[TaskResult, ...]:
        """Every task as it stands, those that finished before a pause or a restart as they were then."""
        if self.scheduler is None:
            return tuple(self._before.values())
        return tuple(self._before.get(one.id, one) for one in self.scheduler.results())

    async def _dispatch(self) -> None:
        """Runs the plan's tasks that have not finished yet."""
        assert self.plan is not None
        if self.cell.value is not RunState.DISPATCHING:
            self._to(RunState.DISPATCHING)
        parts = self._parts
        start = self._loop.time()
        runners: dict[str, TaskRunner] = {"tool": self._tool_runner(self.agent)}
        if any(task.kind == "agent" for task in self.plan.tasks) and parts.agents is not None:
            if self._agents is None:  # one for the whole run: it knows where its loops were
                self._agents = agent_runner(
                    parts,
                    self.agent,
                    self.plan,
                    self._ask,
                    self.emit,
                    self._tool_runner,
                    done={} if self._resumed is None else self._resumed.calls(self.plan),
                    keep=None if self._recorder is None else self._keep_call,
                )
            runners["agent"] = self._agents
        runners.update(parts.runners or {})
        self.scheduler = Scheduler(
            self.plan,
            run=self.id,
            tenant=self.request.tenant,
            runners=runners,
            history=parts.history,
            crew=parts.crew,
            emit=self.emit if self._recorder is None else self._emit_recorded,
            began=self.began,
            cut=self.cut,
            width=self.agent.width if not self.background else min(self.agent.width, parts.limits.background_width),
            finished={name: done.outcome for name, done in self._before.items() if done.outcome is not None},
            background=self.background,
            fast=self.request.mode == "fast",
            patience=parts.limits.patience,
            last_patience=min(parts.limits.patience, (self.deadline - self.cut) / 2),
            pace=parts.pace,
            task_timeout=parts.limits.task_timeout,
            max_calls=parts.limits.max_calls,
            rng=parts.sources.rng,
        )
        self.scheduler.start()
        try:
            await self.scheduler.done
        except InternalError as error:
            self.fail_part("scheduler", error)
        self.spent("dispatching", self._loop.time() - start)

    def _tool_runner(self, agent: Agent) -> TaskRunner:
        """Who serves an agent's tools in this run."""
        parts = self._parts
        tools = ToolRunner(agent.tools, parts.kernel, parts.stale, parts.history)
        return tools if self.gate is None else GatedRunner(tools, agent.tools, self.gate)

    async def _aggregate(self, ending: RunState | None = None) -> None:
        """The answer, from whatever there is; of a run that has expired, too."""
        assert self.plan is not None
        assert self.scheduler is not None
        if ending is None:
            self._to(RunState.AGGREGATING)
        else:
            self.scheduler.cut_short("approval_expired")
        undecided = None if self.gate is None else self.gate.undecided(self.essential)
        if undecided is not None:  # whatever else became of it: what it was to do, nobody has decided
            ending = RunState.EXPIRED
        start = self._loop.time()
        outcomes = self.scheduler.outcomes
        fell_short = shortfalls(self.plan, outcomes, self._ask.language, now=self._parts.sources.wall())
        if self._forgot:
            fell_short = (*fell_short, forgotten(self._ask.language))
        parts = Parts(self._ask, self.plan, outcomes, fell_short, max(0.0, self.deadline - start))
        answer, parts, broken = build(parts, self.agent.answer)
        took = self._loop.time() - start
        self._parts.grace.learn(took)
        self._stages["aggregating"] = took
        if broken is not None:
            self.fail_part("answer", f"the agent's answer function failed: {broken}")
        degraded = parts.degraded or any(f["part"] == "scheduler" for f in self._failures)
        state = ending or (RunState.DEGRADED if degraded else RunState.COMPLETED)
        error = None
        if ending is not None:
            what = "the run may go on" if undecided is None else f"{undecided.tool!r} may do what it was about to do"
            error = ApprovalExpired(f"nobody said in time whether {what}")
        await self._end_written(state, answer=answer, parts=parts, error=error)
        self.was_cut = start >= self.cut and not self.background
        self.told()

    # --- the end ---------------------------------------------------------------------------------------------------

    def end_cancelled(self) -> bool:
        """Ends the run as cancelled unless it has ended; returns whether it did.

        Its tasks end first: none is shown as running for ever.
        """
        if self.cell.terminal or self.left:
            return False
        try:
            if self.scheduler is not None:
                self.scheduler.cancel()
        except Exception:  # noqa: BLE001 - the end must not fail
            _log.exception("the tasks of run %s could not be cancelled", self.id)
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
        result = self._result(state, answer, parts, error)
        if result is None:
            return False
        self._tell_end(self._conclude(result))
        return True

    async def _end_written(
        self,
        state: RunState,
        *,
        answer: Answer | None = None,
        parts: Parts | None = None,
        error: FailsoftError | None = None,
    ) -> None:
        """The same, for a background run told only when it has been written: nobody is to hear of it twice."""
        if self.left:
            return
        result = self._result(state, answer, parts, error)
        if result is None:
            return
        event = self._conclude(result)
        try:
            if self.background:
                await self.flush()
        finally:
            self._tell_end(event)

    def _result(
        self, state: RunState, answer: Answer | None, parts: Parts | None, error: FailsoftError | None
    ) -> RunResult | None:
        """The result, if this is the end; None when it has ended before."""
        if self.left or not self.cell.to(state):
            return None
        if self.log.seq == 0:  # cancelled before its first step: a beginning all the same
            self._receive()
        if error is not None and error.run_id is None:
            error.run_id = self.id
        recorder = self._recorder
        if recorder is not None and (lost := recorder.failure(self.id)) is not None:
            self._failures.append({"part": "store", "code": lost.code, "message": lost.message})
        elapsed = self._loop.time() - self.began
        tasks: tuple[TaskResult, ...] = ()
        try:
            tasks = self.task_results()
        except Exception:  # noqa: BLE001 - the end must not fail
            _log.exception("the tasks of run %s could not be listed", self.id)
        return RunResult(
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

    def _conclude(self, result: RunResult) -> Event:
        """The result and the terminal event, on their way to the store; the state is terminal already."""
        self.result = result
        state = result.status
        event = self.log.note(
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
        self.log.closed = True
        if self._recorder is not None:
            run, epoch, at = self.id, self.epoch, self._parts.sources.wall()
            self._recorder.put(lambda: FinishRun(run, epoch, str(state), result.to_stored(), at), soon=self.background)
        reviews = self._parts.reviews
        if self.gate is not None and self.gate.pending and reviews is not None:
            _ = self._parts.crew.start(reviews.withdraw(self.gate.pending), name=f"withdraw approvals of {self.id}")
        return event

    def _tell_end(self, event: Event) -> None:
        """Tells whoever waits."""
        self.log.tell(event)
        result, session = self.result, self.request.session_id
        if session is not None and result is not None and result.answer is not None:
            turn = Turn(self.id, self.created, str(result.status), self.request.input, result.answer, self.agent.name)
            self._parts.sessions.add(self.request.tenant, session, turn)
        self.accepted.set()
        self.ended.set()
        if self.on_end is not None:
            self.on_end(self)

    def leave(self) -> bool:
        """Lets go of the run without ending it: another process goes on. False when it has ended."""
        if self.cell.terminal or self.left:
            return False
        self.left = self.log.closed = True
        self.accepted.set()
        self.ended.set()
        self.log.tell(None)
        if self.task is not None:
            self.task.cancel()
        return True


def body_hash(request: RunRequest) -> str:
    """What makes two requests under one idempotency key the same."""
    import hashlib
    import json

    body = json.dumps([request.to_dict(), request.history], sort_keys=True, default=repr, ensure_ascii=False)
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
