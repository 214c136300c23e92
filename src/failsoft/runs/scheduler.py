"""The scheduler: runs a plan's tasks under one deadline, so that each ends with exactly one outcome, whatever happens.

It is driven by the ends of tasks and by timers, all synchronous functions on the loop; nobody waits in it but the
run, for ``done``. A failing task cancels nothing: its dependants are skipped and say why, all else goes on. At
``cut`` nothing more is started, and what runs ends by its own deadline or is left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Final

from failsoft.base.errors import (
    FailsoftError,
    InternalError,
    TaskTimeout,
    ToolFailed,
)
from failsoft.base.outcomes import Outcome, Provenance, RungTried
from failsoft.kernel.classify import as_error
from failsoft.kernel.deadline import deadline_scope, heap_of
from failsoft.kernel.ladder import climb
from failsoft.runs.crew import PATIENCE, Crew, Timer
from failsoft.runs.plan import Plan, TaskSpec, resolve
from failsoft.runs.progress import History, Progress
from failsoft.runs.result import TaskResult, TaskStatus
from failsoft.runs.runners import TaskFrame, TaskRunner

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)

_ETA_EVERY: Final = 0.25
"""Seconds between two estimates at least, however fast tasks end."""
_MARGIN: Final = 1.25
"""How much more than usual is kept for what comes after a task."""
_REPORT_EVERY: Final = 0.1
"""Seconds between two progress events of one task at least."""

Emit = Callable[[str, str | None, Any], None]
"""``emit(kind, task, data)``."""


class _Task:
    """The state of one task."""

    __slots__ = (
        "arguments",
        "child",
        "dependants",
        "ended",
        "error",
        "index",
        "outcome",
        "reported",
        "spec",
        "started",
        "status",
        "tail",
        "timer",
        "waiting_for",
    )

    def __init__(self, spec: TaskSpec, index: int) -> None:
        self.spec = spec
        self.index = index
        self.status: TaskStatus = "waiting"
        self.waiting_for = 0
        self.dependants: list[_Task] = []
        self.tail = 0.0
        self.arguments: dict[str, Any] | None = None
        self.child: asyncio.Task[Outcome[Any]] | None = None
        self.timer: Timer | None = None
        self.outcome: Outcome[Any] | None = None
        self.error: FailsoftError | None = None
        self.started: float | None = None
        self.ended: float | None = None
        self.reported = -1.0


class Scheduler:
    """Runs one plan. ``start()`` it in the context whose labels the tasks are to inherit, then await ``done``.

    ``finished`` are outcomes by task id of tasks that ended before (a run that goes on after a restart): they are not
    run again and no event tells of them.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        run: str,
        tenant: str | None,
        runners: Mapping[str, TaskRunner],
        history: History,
        crew: Crew,
        emit: Emit,
        began: float,
        cut: float,
        width: int = 16,
        fast: bool = False,
        patience: float = PATIENCE,
        last_patience: float = PATIENCE,
        finished: Mapping[str, Outcome[Any]] | None = None,
    ) -> None:
        self.plan = plan
        self._finished = finished or {}
        self.progress = Progress(plan, history)
        self._run = run
        self._tenant = tenant
        self._runners = runners
        self._history = history
        self._crew = crew
        self._emit = emit
        self._began = began
        self._cut = cut
        self._width = width
        self._fast = fast
        self._patience = patience
        self._last_patience = last_patience
        self._loop = asyncio.get_running_loop()
        self._heap = heap_of(self._loop)
        self._tasks = {spec.id: _Task(spec, i) for i, spec in enumerate(plan.tasks)}
        self._ready: list[tuple[int, int, float, int, _Task]] = []
        self._running = 0
        self._open = len(self._tasks)
        self._settled: list[_Task] = []
        self._settling = False
        self._stopped: str | None = None
        self._values: dict[str, Any] = {}
        self._nothing: set[str] = set()
        self._owner: asyncio.Task[Any]
        self._timers: list[Timer] = []
        self._next_eta = began
        self._context: contextvars.Context
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._link()

    def _link(self) -> None:
        for task in self._tasks.values():
            needs = set(task.spec.needs)
            task.waiting_for = len(needs)
            for need in needs:
                self._tasks[need].dependants.append(task)
        # The usual time of the longest way from a task to the end of the plan, itself included; optional ways do not
        # count.
        for spec in reversed(self.progress.order):
            task = self._tasks[spec.id]
            below = max((d.tail for d in task.dependants if d.spec.essential), default=0.0)
            task.tail = below + (self._history.usual(spec) or 0.0)

    # --- start ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts what can be started now."""
        self._context = contextvars.copy_context()
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        now = self._loop.time()
        self._arm(Timer(max(self._cut, now), owner, self._at_cut))
        for task in self._tasks.values():
            if (before := self._finished.get(task.spec.id)) is not None:
                self._take_over(task, before)
            elif task.waiting_for == 0:
                self._push(task)
        self._pump()

    def _take_over(self, task: _Task, outcome: Outcome[Any]) -> None:
        """A task that ended before a restart: its outcome stands, and nothing is told of it again."""
        served = outcome.provenance.served is not None
        if served:
            task.status = "degraded" if outcome.degraded else "completed"
        else:
            task.status = "failed" if outcome.provenance.attempts else "skipped"
        self._note(task, outcome)

    def _note(self, task: _Task, outcome: Outcome[Any]) -> None:
        """A task has its outcome; its dependants are looked at by the pump."""
        task.outcome = outcome
        self._open -= 1
        self.progress.ended(task.spec.id)
        if outcome.provenance.served is None:
            self._nothing.add(task.spec.id)
        else:
            self._values[task.spec.id] = outcome.value
        if task.dependants:
            self._settled.append(task)

    def _arm(self, timer: Timer) -> None:
        self._timers.append(timer)
        self._heap.arm(timer)

    def _push(self, task: _Task) -> None:
        """Into the ready set: by priority, essential ones first, then by slack (least on the longest way)."""
        spec = task.spec
        heappush(self._ready, (spec.rank, not spec.essential, -task.tail, task.index, task))

    def _pump(self) -> None:
        """Starts ready tasks while there is room, and settles what has ended; never called within itself."""
        if self._settling:
            return
        self._settling = True
        try:
            while True:
                if self._settled:
                    self._release(self._settled.pop())
                elif self._ready and self._running < self._width and self._stopped is None:
                    self._begin(heappop(self._ready)[4])
                else:
                    break
        except BaseException as error:  # noqa: BLE001 - a defect here must end the run, not hang it
            _log.exception("scheduling failed")
            if not self.done.done():
                self.done.set_exception(InternalError(f"scheduling failed: {type(error).__name__}"))
            return
        finally:
            self._settling = False
        if self._open == 0:
            self._finish()

    def _begin(self, task: _Task) -> None:
        now = self._loop.time()
        spec = task.spec
        if not spec.essential:
            if self._fast and spec.priority == "optional":
                self._skip(task, "mode_fast")
                return
            usual = self._history.usual(spec)
            if usual is not None and usual > self._cut - now:
                self._skip(
                    task, "unaffordable", f"usually needs {usual:.3f} s, {max(0.0, self._cut - now):.3f} s are left"
                )
                return
        if now >= self._cut:
            self._skip(task, "not_started")
            return
        deadline = self._deadline(task, now)
        frame = TaskFrame(self._run, self._tenant, spec.id, deadline, lambda f, text: self._on_report(task, f, text))
        task.started = now
        try:
            task.arguments = self._arguments(spec)
            ladder = self._runners[spec.kind].ladder(spec, task.arguments, frame)
        except Exception as error:  # noqa: BLE001 - arguments that do not fit, or a runner that fails, fail the task
            self._failed(task, as_error(error))
            return
        task.status = "running"
        self._running += 1
        self.progress.started(spec.id, now)
        self._emit("task.started", spec.id, {"title": spec.label, "tool": spec.tool, "kind": spec.kind})
        limit = "run" if deadline >= self._cut else "task"

        async def serve() -> Outcome[Any]:
            async with deadline_scope(
                at=deadline, limit=limit, run=self._run, tenant=self._tenant, task=spec.id, priority=spec.rank
            ):
                try:
                    outcome = await climb(ladder.rungs, requested=ladder.requested)
                except (Exception, asyncio.CancelledError, GeneratorExit):
                    raise
                except BaseException as error:
                    raise ToolFailed(f"{type(error).__name__} was raised by the task") from error
            return outcome

        child = task.child = self._loop.create_task(serve(), name=f"task {spec.id}", context=self._context.copy())
        if deadline < self._cut:
            task.timer = Timer(deadline + self._patience, child, lambda: self._abandon(task))
            self._heap.arm(task.timer)
        child.add_done_callback(lambda child: self._on_end(task, child))

    def _arguments(self, spec: TaskSpec) -> dict[str, Any]:
        if not spec.needs:
            return spec.arguments
        return resolve(spec.arguments, self._values, self._nothing)

    def _deadline(self, task: _Task, now: float) -> float:
        """Until when a task may run: its own limit, less what comes after it, but twice its usual time."""
        deadline = self._cut
        usual = self._history.usual(task.spec)
        if usual is not None:
            after = task.tail - usual
            if after > 0:
                deadline = max(deadline - _MARGIN * after, min(deadline, now + 2 * usual))
        if task.spec.timeout is not None:
            deadline = min(deadline, now + task.spec.timeout)
        return deadline

    # --- end -----------------------------------------------------------------------------------------------------

    def _on_end(self, task: _Task, child: asyncio.Task[Outcome[Any]]) -> None:
        """A child has ended; it may have been abandoned before."""
        error: BaseException | None = None
        if child.cancelled():
            error = ToolFailed("the task was cancelled from inside")
            if self._stopped is not None:
                error = TaskTimeout("the task was stopped")
        else:
            error = child.exception()
        if task.outcome is not None:
            return
        self._running -= 1
        if task.timer is not None:
            self._heap.disarm(task.timer)
        if error is not None:
            self._failed(task, as_error(error))
        else:
            self._served(task, child.result())
        self._pump()

    def _served(self, task: _Task, outcome: Outcome[Any]) -> None:
        provenance = outcome.provenance
        if provenance.served is None:
            tried = provenance.tried
            self._missing(task, provenance.reason or "tool_failed", tried, message=tried[0].message if tried else "")
            return
        if provenance.rung == "primary" and task.started is not None:
            self._history.add(task.spec, self._loop.time() - task.started)
        self._settle(task, "degraded" if outcome.degraded else "completed", outcome)

    def _failed(self, task: _Task, error: FailsoftError) -> None:
        task.error = error
        now = self._loop.time()
        requested = self._requested(task.spec)
        seconds = now - task.started if task.started is not None else 0.0
        tried = (RungTried(requested, error.code, error.message, seconds),)
        self._missing(task, self._stopped if self._stopped == "run_cancelled" else error.code, tried)

    def _skip(self, task: _Task, reason: str, message: str = "") -> None:
        self._missing(task, reason, (), status="skipped", message=message)

    def _missing(
        self,
        task: _Task,
        reason: str,
        tried: tuple[RungTried, ...],
        *,
        status: TaskStatus = "failed",
        message: str = "",
    ) -> None:
        """Nothing that takes time could serve: the last resort, else the outcome says that it is missing."""
        now = self._loop.time()
        spec = task.spec
        if reason == "run_cancelled":
            status = "cancelled"
        elif reason != "mode_fast":
            outcome = self._last_resort(task, reason, tried, self._cut - now)
            if outcome is not None:
                self._settle(task, "degraded" if outcome.degraded else "completed", outcome)
                return
        if message and not tried:
            tried = (RungTried(self._requested(spec), reason, message),)
        provenance = Provenance(
            requested=self._requested(spec),
            served=None,
            rung="skipped",
            reason=reason,
            remaining=self._cut - now,
            equivalent=False,
            tried=tried,
            attempts=0 if status == "skipped" else 1,
        )
        self._settle(task, status, Outcome(None, provenance))

    def _last_resort(
        self, task: _Task, reason: str, tried: tuple[RungTried, ...], remaining: float
    ) -> Outcome[Any] | None:
        spec = task.spec
        frame = TaskFrame(self._run, self._tenant, spec.id, self._cut)
        arguments = task.arguments if task.arguments is not None or spec.needs else spec.arguments
        rungs = self._runners[spec.kind].last_resort(spec, arguments, frame)
        try:
            for rung in rungs:
                try:
                    outcome = rung.serve()
                except Exception as error:  # noqa: BLE001 - a broken default is one more rung that did not serve
                    failure = as_error(error)
                    tried = (*tried, RungTried(rung.name, failure.code, failure.message))
                    continue
                if outcome is not None:
                    marks = replace(outcome.provenance, reason=reason, tried=tried, remaining=remaining)
                    return Outcome(outcome.value, marks)
        except Exception:  # noqa: BLE001 - the plan's own fallback is still there
            _log.exception("the last resort of task %s failed", spec.id)
        if spec.fallback is not None:
            return Outcome(
                spec.fallback.value,
                Provenance(
                    requested=self._requested(spec),
                    served="fallback",
                    rung="default",
                    reason=reason,
                    remaining=remaining,
                    equivalent=spec.fallback.equivalent,
                    tried=tried,
                ),
            )
        return None

    def _requested(self, spec: TaskSpec) -> str:
        try:
            return self._runners[spec.kind].requested(spec)
        except Exception:  # noqa: BLE001 - only a name
            return spec.tool

    def _settle(self, task: _Task, status: TaskStatus, outcome: Outcome[Any]) -> None:
        """The one outcome of a task, told."""
        now = self._loop.time()
        task.status = status
        task.ended = now
        self._note(task, outcome)
        provenance = outcome.provenance
        self._emit(
            "task.finished",
            task.spec.id,
            {
                "title": task.spec.label,
                "status": status,
                "rung": provenance.rung,
                "served": provenance.served,
                "reason": provenance.reason,
                "age_s": provenance.age,
                "elapsed_ms": None if task.started is None else round((now - task.started) * 1000, 3),
            },
        )
        if now >= self._next_eta or self._open == 0:
            self._estimate(now)

    def _release(self, task: _Task) -> None:
        """Dependants of a settled task: ready, or skipped because they cannot do without it."""
        assert task.outcome is not None
        nothing = task.outcome.provenance.served is None
        for dependant in task.dependants:
            dependant.waiting_for -= 1
            if dependant.outcome is not None:
                continue
            if nothing and not dependant.spec.tolerates_missing:
                label = task.spec.label
                why = self._stopped if self._stopped == "run_cancelled" else "dependency_failed"
                self._skip(dependant, why, f"needs {label!r}, which is missing ({task.outcome.provenance.reason})")
            elif dependant.waiting_for == 0:
                if self._stopped is not None:
                    self._skip(dependant, self._stopped)
                else:
                    self._push(dependant)

    # --- stop ----------------------------------------------------------------------------------------------------

    def _at_cut(self) -> None:
        """The budget less the grace is used up: nothing more starts; what runs has its own alarm for now."""
        self._stop("not_started")
        if self._open:
            self._arm(Timer(self._cut + self._last_patience, self._owner, self._abandon_all))

    def _stop(self, reason: str) -> None:
        self._stopped = reason
        self._ready.clear()
        for task in self._tasks.values():
            if task.outcome is None and task.status == "waiting":
                self._skip(task, reason)
        self._pump()

    def _abandon_all(self) -> None:
        for task in self._tasks.values():
            if task.outcome is None:
                self._abandon(task)

    def _abandon(self, task: _Task) -> None:
        """A task ignores its cancellation: it is settled without it and left behind."""
        child = task.child
        if task.outcome is not None or child is None:
            return
        if child.done():  # its end is on its way
            return
        child.cancel()
        self._crew.adopt(child, f"task {task.spec.id} ({task.spec.tool})", self._run)
        self._running -= 1
        self._emit("task.orphaned", task.spec.id, {"title": task.spec.label, "tool": task.spec.tool})
        self._failed(task, TaskTimeout("did not stop at its limit and was left behind", details={"orphan": True}))
        self._pump()

    def cancel(self) -> None:
        """Ends everything at once: waiting tasks are dropped, running ones cancelled and left to end by themselves."""
        self.cut_short("run_cancelled")

    def cut_short(self, reason: str) -> None:
        """Like :meth:`cancel`, for a reason that leaves the answer to be made: last resorts serve what they can."""
        if self._open == 0:
            return
        self._stop(reason)
        for task in self._tasks.values():
            if task.outcome is None and task.child is not None:
                task.child.cancel()
                self._crew.adopt(task.child, f"task {task.spec.id} ({task.spec.tool})", self._run)
                self._running -= 1
                if task.timer is not None:
                    self._heap.disarm(task.timer)
                self._missing(task, reason, ())
        self._pump()

    def _finish(self) -> None:
        for timer in self._timers:
            self._heap.disarm(timer)
        if not self.done.done():
            self.done.set_result(None)

    # --- views ---------------------------------------------------------------------------------------------------

    def _on_report(self, task: _Task, fraction: float | None, text: str) -> None:
        """A tool says how far it is, from whatever thread."""
        if asyncio._get_running_loop() is self._loop:
            self._report(task, fraction, text)
        else:
            try:
                self._loop.call_soon_threadsafe(self._report, task, fraction, text)
            except RuntimeError:  # the loop is gone
                return

    def _report(self, task: _Task, fraction: float | None, text: str) -> None:
        now = self._loop.time()
        if task.outcome is not None:
            return
        if fraction is not None and math.isfinite(fraction):
            self.progress.fraction(task.spec.id, fraction)
        if now - task.reported < _REPORT_EVERY and task.reported >= 0:
            return
        task.reported = now
        self._emit("task.progress", task.spec.id, {"fraction": fraction, "text": text[:500]})
        if now >= self._next_eta:
            self._estimate(now)

    def _estimate(self, now: float) -> None:
        self._next_eta = now + _ETA_EVERY
        self._emit("run.eta", None, self.progress.report(now, left=max(0.0, self._cut - now)).to_dict())

    @property
    def outcomes(self) -> dict[str, Outcome[Any]]:
        """The outcomes there are, in the plan's order."""
        return {task.spec.id: task.outcome for task in self._tasks.values() if task.outcome is not None}

    def result(self, task_id: str) -> TaskResult:
        """One task as it stands."""
        task = self._tasks[task_id]
        spec = task.spec
        return TaskResult(
            spec.id,
            spec.label,
            spec.kind,
            spec.tool,
            task.status,
            task.outcome,
            spec.needs,
            spec.essential,
            None if task.started is None else task.started - self._began,
            None if task.ended is None else task.ended - self._began,
            task.error,
        )

    def results(self) -> tuple[TaskResult, ...]:
        """Every task as it stands."""
        return tuple(self.result(task_id) for task_id in self._tasks)

    def __repr__(self) -> str:
        return f"<Scheduler open={self._open} running={self._running} ready={len(self._ready)}>"
