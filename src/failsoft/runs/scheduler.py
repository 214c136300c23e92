"""The scheduler: runs a plan's tasks under one deadline, so that each ends with exactly one outcome, whatever happens.

It is driven by the ends of tasks and by timers, all synchronous functions on the loop; nobody waits in it but the
run, for ``done``. A failing task cancels nothing: its dependants are skipped and say why, all else goes on. At
``cut`` nothing more is started, and what runs ends by its own deadline or is left behind.

The module is over 600 lines because it is one state machine: each task's start and end touch the same few counters,
and a part taken out would have to be told all of them. What does not is elsewhere: the plan's shape, the budget's split
(:mod:`~failsoft.runs.split`), the pace, the child's own work (:mod:`~failsoft.runs.serving`).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import random
from collections.abc import Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

from failsoft.base.errors import (
    BadInput,
    FailsoftError,
    InternalError,
    TaskTimeout,
    ToolFailed,
)
from failsoft.base.outcomes import Outcome, Priority, Provenance, RungTried
from failsoft.kernel.classify import as_error
from failsoft.kernel.deadline import Deadline, heap_of
from failsoft.kernel.scope import Scope, current
from failsoft.runs.conditions import holds
from failsoft.runs.crew import PATIENCE, Crew, Timer
from failsoft.runs.event_log import Emit
from failsoft.runs.gate import ApprovalNeeded
from failsoft.runs.pace import Pace
from failsoft.runs.plan import Plan, Step, TaskSpec, resolve
from failsoft.runs.progress import History, Progress
from failsoft.runs.references import ITEM, reference_of, resolve_one
from failsoft.runs.result import TaskResult, TaskStatus, why_missing
from failsoft.runs.runners import AsksPeople, TaskFrame, TaskRunner
from failsoft.runs.serving import Fan, TaskAlarm, TaskState, serve
from failsoft.runs.split import allowance, fits, tails

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)

_ETA_EVERY: Final = 0.25
"""Seconds between two estimates at least, however fast tasks end."""
_REPORT_EVERY: Final = 0.1
"""Seconds between two progress events of one task at least."""
_LOOK_EVERY: Final = 1.0
"""Seconds between two looks at whether tasks that are held back by the pace may start."""
_TOO_SLOW: Final = frozenset(
    {"attempt_timeout", "call_timeout", "first_item_timeout", "idle_timeout", "total_timeout", "timeout"}
)
"""Limits of a tool's own: that one fired says that the tool was too slow."""
_CUT: Final = frozenset({"deadline_exceeded", "task_timeout"})
"""The run's limits: that one fired says so only when the tool had had more than it usually needs."""
_LEFT_OUT: Final = frozenset({"mode_fast", "condition_false"})
"""Reasons for which nothing is missing: nobody wanted it."""


class Scheduler:
    """Runs one plan. ``start()`` it in the context whose labels the tasks are to inherit, then await ``done``.

    ``finished`` are outcomes by task id of tasks that ended before (a run that goes on after a restart): they are not
    run again and no event tells of them. ``pace`` is the app's knowledge of which tools time out. A ``background``
    run's calls rank below those of interactive ones.
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
        pace: Pace | None = None,
        rng: random.Random | None = None,
        task_timeout: float | None = None,
        max_calls: int | None = None,
        background: bool = False,
    ) -> None:
        self.plan = plan
        self.parked: dict[str, tuple[ApprovalNeeded, ...]] = {}
        """Tasks that wait for a person, by id, and what is asked (a list's items ask together): when nothing else is
        left to do, ``done`` is, with them open.
        """
        self._background = background
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
        self._task_timeout = task_timeout
        self._calls_left = math.inf if max_calls is None else max_calls
        self._patience = patience
        self._last_patience = last_patience
        self._pace = pace if pace is not None else Pace()
        self._rng = rng if rng is not None else random.SystemRandom()
        self._loop = asyncio.get_running_loop()
        self._heap = heap_of(self._loop)
        self._tasks = {step.id: TaskState(step, i) for i, step in enumerate(plan.steps)}
        self._ready: list[tuple[int, int, float, int, int, TaskState]] = []
        self._held: dict[str, list[TaskState]] = {}
        self._live: dict[TaskState, None] = {}
        self._open = len(self._tasks)
        self._settled: list[TaskState] = []
        self._settling = False
        self._stopped: str | None = None
        self._values: dict[str, Any] = {}
        self._nothing: set[str] = set()
        self._owner: asyncio.Task[Any]
        self._timers: list[Timer] = []
        self._look: Timer | None = None
        self._next_eta = began
        self._context: contextvars.Context
        self._scope: Scope
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._link()

    def _link(self) -> None:
        states = list(self._tasks.values())
        shape = self.plan.shape
        usual: dict[str, float | None] = {}
        known = False
        for task, needs, dependants in zip(states, shape.needs, shape.dependants, strict=True):
            task.waiting_for = len(needs)
            if dependants:
                task.dependants = [states[j] for j in dependants]
            key = task.step.key
            if key not in usual:
                usual[key] = self._history.usual_of(key, task.step.kind)
                known = known or usual[key] is not None
            task.usual = usual[key]
        if known:
            essential = [task.step.essential for task in states]
            for task, tail in zip(states, tails(shape, [task.usual for task in states], essential), strict=True):
                task.tail = tail

    # --- start ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts what can be started now."""
        self._context = contextvars.copy_context()
        self._scope = current.get()
        owner = asyncio.current_task()
        assert owner is not None
        self._owner = owner
        now = self._loop.time()
        self._arm(Timer(max(self._cut, now), owner, self._at_cut))
        finished = self._finished
        for task in self._tasks.values():
            if finished and (before := finished.get(task.spec.id)) is not None:
                self._take_over(task, before)
            elif task.waiting_for == 0:
                self._push(task)
        self._pump()

    def _take_over(self, task: TaskState, outcome: Outcome[Any]) -> None:
        """A task that ended before a restart: its outcome stands, and nothing is told of it again."""
        served = outcome.provenance.served is not None
        if served:
            task.status = "degraded" if outcome.degraded else "completed"
        else:
            task.status = "failed" if outcome.provenance.attempts else "skipped"
        self._note(task, outcome)

    def _note(self, task: TaskState, outcome: Outcome[Any]) -> None:
        """A task has its outcome; its dependants are looked at by the pump."""
        task.outcome = outcome
        self._open -= 1
        self.progress.ended(task.step.id)
        if outcome.provenance.served is None:
            self._nothing.add(task.step.id)
        else:
            self._values[task.step.id] = outcome.value
        if task.dependants:
            self._settled.append(task)

    def _arm(self, timer: Timer) -> None:
        self._timers.append(timer)
        self._heap.arm(timer)

    def _push(self, task: TaskState) -> None:
        """Into the ready set: by priority, essential ones first, then by slack (least on the longest way)."""
        step = task.step
        first = task.parent or task
        heappush(self._ready, (step.rank, not step.essential, -task.tail, first.index, task.index, task))

    def _pump(self) -> None:
        """Starts ready tasks while there is room, and settles what has ended; never called within itself."""
        if self._settling:
            return
        self._settling = True
        try:
            if self._held:
                self._let_go()
            while True:
                if self._settled:
                    self._release(self._settled.pop())
                elif self._ready and len(self._live) < self._width and self._stopped is None:
                    self._begin(heappop(self._ready)[5])
                else:
                    break
        except BaseException as error:  # noqa: BLE001 - a defect here must end the run, not hang it
            _log.exception("scheduling failed")
            if not self.done.done():
                self.done.set_exception(InternalError(f"scheduling failed: {type(error).__name__}"))
            return
        finally:
            self._settling = False
        if self._open == 0 or (self.parked and not (self._live or self._ready or self._held)):
            self._finish()

    def _begin(self, task: TaskState) -> None:
        now = self._loop.time()
        step = task.step
        if now >= self._cut:
            self._skip(task, "not_started")
            return
        parent = task.parent
        if parent is None and not self._wanted(task, now):
            return
        if self._pace.narrow and not self._has_place(task, now):
            self._hold(task)
            return
        if step.map is not None and parent is None:
            self._fan_out(task, now)
            return
        if self._calls_left <= 0:
            self._skip(task, "too_many_calls")
            return
        self._calls_left -= 1
        until = task.until = self._until(task, now)
        task.started = now
        try:
            task.arguments = arguments = self._arguments(task)
            frame = TaskFrame(self._run, self._tenant, step.id, until, partial(self._on_report, task))
            ladder = self._runners[step.kind].ladder(step.spec, arguments, frame)
        except ApprovalNeeded as need:
            if parent is not None:
                self._failed(task, need)  # what was asked before its list began has been answered for other arguments
                return
            task.started = None
            self.parked[step.id] = (need,)
            return
        except Exception as error:  # noqa: BLE001 - arguments that do not fit, or a runner that fails, fail the task
            self._failed(task, as_error(error))
            return
        task.status = "running"
        self._live[task] = None
        if parent is None:
            self._tell_start(task, now)
        outer = self._scope
        rank = min(step.rank + self._background, Priority.OPTIONAL)
        limit = "task" if until < self._cut else "run"
        if outer.deadline < until:
            until, limit = outer.deadline, outer.limit
        scope = Scope(
            until, outer.patience, limit, self._run, step.id, self._tenant, rank, outer.fallback,
            outer.idempotency_key,
        )  # fmt: skip
        child = task.child = self._loop.create_task(
            serve(task, ladder, scope, self._on_end, self._rng), context=self._context.copy()
        )
        task.alarm = TaskAlarm(until, child, task, self._on_alarm)
        self._heap.arm(task.alarm)

    def _tell_start(self, task: TaskState, now: float) -> None:
        step = task.step
        self.progress.started(step.id, now)
        may = round((task.until - now) * 1000, 3)
        said = {"title": step.label, "tool": step.tool, "kind": step.kind, "budget_ms": may}
        self._emit("task.started", step.id, said)

    def _wanted(self, task: TaskState, now: float) -> bool:
        """Whether a task is to be done at all; else it is settled."""
        step = task.step
        if not step.essential:
            if self._fast and step.rank == Priority.OPTIONAL:
                self._skip(task, "mode_fast")
                return False
            usual, left = self._history.usual_of(step.key, step.kind), self._cut - now
            after = max(0.0, task.tail - (task.usual or 0.0))
            if not fits(left, usual, after):
                self._skip(task, "unaffordable", f"usually needs {usual:.3f} s, {left:.3f} s are left")
                return False
        if step.when is None:
            return True
        try:
            if holds(step.when, self._values, self._nothing):
                return True
        except FailsoftError as error:
            self._failed(task, error)
            return False
        self._skip(task, "condition_false")
        return False

    def _arguments(self, task: TaskState) -> dict[str, Any]:
        step, parent = task.step, task.parent
        if parent is not None:
            assert parent.fan is not None
            return resolve(step.arguments, {**self._values, ITEM: parent.fan.items[task.index]}, self._nothing)
        if not step.needs:
            return step.arguments
        return resolve(step.arguments, self._values, self._nothing)

    def _until(self, task: TaskState, now: float) -> float:
        """Until when a task may run: what it may spend of the budget, so that what comes after it still fits."""
        until = self._cut
        if task.usual is not None and (after := task.tail - task.usual) > 0:
            until = min(until, now + allowance(until - now, task.usual, after))
        if task.parent is not None:
            until = min(until, task.parent.until)
        limit = task.step.timeout if task.step.timeout is not None else self._task_timeout
        if limit is not None and task.parent is None:
            until = min(until, now + limit)
        return until

    # --- the pace ------------------------------------------------------------------------------------------------

    def _has_place(self, task: TaskState, now: float) -> bool:
        """Whether the pace of its tool lets one more start."""
        tool = task.step.tool
        width = self._pace.width(tool, self._width, now)
        return width >= self._width or sum(1 for one in self._live if one.step.tool == tool) < width

    def _hold(self, task: TaskState) -> None:
        self._held.setdefault(task.step.tool, []).append(task)
        if self._look is None:
            self._look = Timer(self._loop.time() + _LOOK_EVERY, self._owner, self._look_again)
            self._heap.arm(self._look)

    def _let_go(self) -> None:
        held, self._held = self._held, {}
        for tasks in held.values():
            for task in tasks:
                if task.outcome is None:
                    self._push(task)

    def _look_again(self) -> None:
        self._look = None
        self._pump()

    # --- a list's items --------------------------------------------------------------------------------------------

    def _fan_out(self, task: TaskState, now: float) -> None:
        """A mapped task: each item is a task of its own, in everything but name."""
        spec = task.spec
        assert spec.map is not None
        task.until = self._until(task, now)
        task.started = now
        try:
            over: Any = spec.map.over
            if isinstance(over, dict):
                over = resolve_one(reference_of(over, "map.over"), self._values, self._nothing)
            if not isinstance(over, list | tuple):
                raise BadInput(f"there is no list to map over but {type(over).__name__}", param="map.over")
        except Exception as error:  # noqa: BLE001 - whatever it is, this task fails and no other
            self._failed(task, as_error(error))
            return
        limit = spec.map.limit
        items = list(over[:limit])
        if needs := self._asked_first(task, items):
            task.started = None
            self.parked[spec.id] = needs
            return
        task.fan = Fan(items, spec.map.width, max(0, len(over) - limit))
        task.status = "running"
        self._tell_start(task, now)
        self._more_items(task)

    def _asked_first(self, task: TaskState, items: Sequence[Any]) -> tuple[ApprovalNeeded, ...]:
        """What people have to be asked about the items. Nothing of the list begins before all of it was answered: it
        would begin anew with every answer.
        """
        step, runner = task.step, self._runners[task.step.kind]
        if not isinstance(runner, AsksPeople):
            return ()
        found = []
        for place, item in enumerate(items):
            try:
                arguments = resolve(step.arguments, {**self._values, ITEM: item}, self._nothing)
                runner.ask(step.spec, arguments, TaskFrame(self._run, self._tenant, _item(task, place), task.until))
            except ApprovalNeeded as need:
                found.append(need)
            except Exception:  # noqa: BLE001, S112 - the item fails of it when its turn comes
                continue
        return tuple(found)

    def _more_items(self, task: TaskState) -> None:
        fan = task.fan
        assert fan is not None
        for place in fan.upcoming():
            # an item's own timeout is the tool's; the whole map's is in `until` already
            changed = {"id": _item(task, place), "map": None, "fallback": None, "when": None, "timeout": None}
            item = TaskState(Step(task.spec.model_copy(update=changed)), place, task)
            item.usual, item.tail = task.usual, task.tail
            fan.running[item] = None
            self._push(item)
        if fan.over and task.outcome is None:
            now = self._loop.time()
            outcome = fan.outcome(self._requested(task.spec), self._cut - now)
            if outcome.provenance.served is None:
                tried = outcome.provenance.tried
                self._missing(task, outcome.provenance.reason or "not_started", tried)
            else:
                self._settle(task, "degraded" if outcome.degraded else "completed", outcome, now)

    def _item_ended(self, item: TaskState, parent: TaskState) -> None:
        fan = parent.fan
        assert fan is not None
        fan.outcomes[item.index] = item.outcome
        fan.running.pop(item, None)
        fan.done += 1
        self._report(parent, fan.done / len(fan.items), "")
        self._settled.append(item)  # what follows is the pump's

    # --- end -----------------------------------------------------------------------------------------------------

    def _on_end(self, task: TaskState, outcome: Outcome[Any] | None, error: BaseException | None) -> None:
        """A child says how it has ended; it may have been abandoned before."""
        if task.outcome is not None:
            return
        now = self._loop.time()
        self._take_out(task)
        if outcome is not None:
            self._served(task, outcome, now)
        elif isinstance(error, asyncio.CancelledError):
            if self._stopped is not None:
                self._failed(task, TaskTimeout("the task was stopped"))
            else:
                self._failed(task, ToolFailed("the task was cancelled from inside"))
        elif (
            isinstance(error, ApprovalNeeded) and task.parent is None
        ):  # an agent is about to do what a person is asked
            task.started, task.status = None, "waiting"
            self.parked[task.spec.id] = (error,)
        else:
            self._failed(task, as_error(error or InternalError("a task ended without an outcome")))
        self._pump()

    def _on_alarm(self, task: TaskState) -> None:
        """A task's limit has passed and its child is told to stop; before the cut it has to be seen whether it does."""
        child = task.child
        if task.outcome is None and child is not None and task.until < self._cut:
            task.timer = Timer(self._loop.time() + self._patience, child, partial(self._abandon, task))
            self._heap.arm(task.timer)

    def _take_out(self, task: TaskState) -> None:
        """It runs no more, as far as the plan goes; nothing of its running is kept."""
        self._live.pop(task, None)
        task.child = None
        if task.timer is not None:
            self._disarm(task.timer)
            task.timer = None
        if task.alarm is not None:
            self._disarm(task.alarm)
            task.alarm = None

    def _disarm(self, alarm: Timer | TaskAlarm) -> None:
        """Takes it out of the heap, which may keep it for a while: nothing here is to stay for that long."""
        self._heap.disarm(alarm)
        alarm.forget()

    def _served(self, task: TaskState, outcome: Outcome[Any], now: float) -> None:
        provenance = outcome.provenance
        if provenance.served is None:
            tried = provenance.tried
            self._missing(task, provenance.reason or "tool_failed", tried, message=tried[0].message if tried else "")
            return
        if task.started is not None:
            seconds = now - task.started
            if provenance.rung == "primary":
                self._history.add_to(task.step.key, task.step.kind, seconds)
            if provenance.reason is None:
                self._pace.record(task.step.tool, now)
            else:
                self._paced(task, provenance.reason, seconds)
        self._settle(task, "degraded" if provenance.degraded else "completed", outcome, now)

    def _paced(self, task: TaskState, reason: str, seconds: float) -> None:
        """The app's pace learns how the first choice of a task failed."""
        slow = reason in _TOO_SLOW or (reason in _CUT and task.usual is not None and seconds > 2 * task.usual)
        if slow or reason not in _CUT:  # what a small budget cut says nothing
            self._pace.record(task.spec.tool, self._loop.time(), timed_out=slow, seconds=seconds)

    def _failed(self, task: TaskState, error: FailsoftError) -> None:
        task.error = error
        now = self._loop.time()
        requested = self._requested(task.spec)
        seconds = now - task.started if task.started is not None else 0.0
        tried = (RungTried(requested, error.code, error.message, seconds),)
        self._missing(task, self._stopped if self._stopped == "run_cancelled" else error.code, tried)

    def _skip(self, task: TaskState, reason: str, message: str = "") -> None:
        self._missing(task, reason, (), status="skipped", message=message)

    def _missing(
        self,
        task: TaskState,
        reason: str,
        tried: tuple[RungTried, ...],
        *,
        status: TaskStatus = "failed",
        message: str = "",
    ) -> None:
        """Nothing that takes time could serve: the last resort, else the outcome says that it is missing."""
        now = self._loop.time()
        spec = task.spec
        if task.started is not None and tried and reason != "run_cancelled":
            self._paced(task, reason, now - task.started)
        if reason == "run_cancelled":
            status = "cancelled"
        elif reason not in _LEFT_OUT:
            outcome = self._last_resort(task, reason, tried, self._cut - now)
            if outcome is not None:
                self._settle(task, "degraded" if outcome.degraded else "completed", outcome, now)
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
        self._settle(task, status, Outcome(None, provenance), now)

    def _last_resort(
        self, task: TaskState, reason: str, tried: tuple[RungTried, ...], remaining: float
    ) -> Outcome[Any] | None:
        spec = task.spec
        frame = TaskFrame(self._run, self._tenant, spec.id, self._cut)
        arguments = task.arguments if task.arguments is not None or spec.needs else spec.arguments
        if task.fan is not None or (spec.map is not None and task.parent is None):
            arguments = None  # there is no one call whose arguments they would be
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
                    marks = outcome.provenance._replace(reason=reason, tried=tried, remaining=remaining)
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

    def _settle(self, task: TaskState, status: TaskStatus, outcome: Outcome[Any], now: float) -> None:
        """The one outcome of a task, told."""
        task.status = status
        task.ended = now
        if task.parent is not None:
            task.outcome = outcome
            self._item_ended(task, task.parent)
            return
        self._note(task, outcome)
        provenance = outcome.provenance
        self._emit(
            "task.finished",
            task.step.id,
            {
                "title": task.step.label,
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

    def _release(self, task: TaskState) -> None:
        """Dependants of a settled task: ready, or skipped because they cannot do without it."""
        if task.parent is not None:
            self._more_items(task.parent)
            return
        outcome = task.outcome
        assert outcome is not None
        nothing = outcome.provenance.served is None
        for dependant in task.dependants:
            dependant.waiting_for -= 1
            if dependant.outcome is not None or dependant.status != "waiting":
                continue
            spec = dependant.spec
            if spec.join == "any":
                ready = not nothing or (spec.tolerates_missing and dependant.waiting_for == 0)
                if ready and dependant.waiting_for >= 0:
                    dependant.waiting_for = -len(spec.needs)  # once
                    self._ready_or_skipped(dependant)
                elif nothing and dependant.waiting_for == 0:
                    self._skip_for(dependant, task)
            elif nothing and not spec.tolerates_missing:
                self._skip_for(dependant, task)
            elif dependant.waiting_for == 0:
                self._ready_or_skipped(dependant)

    def _ready_or_skipped(self, task: TaskState) -> None:
        if self._stopped is not None:
            self._skip(task, self._stopped)
        else:
            self._push(task)

    def _skip_for(self, task: TaskState, missing: TaskState) -> None:
        """A task cannot do without one that brought nothing; nobody wants it when nobody wanted that."""
        assert missing.outcome is not None
        reason = missing.outcome.provenance.reason
        if self._stopped == "run_cancelled":
            self._skip(task, self._stopped)
        elif reason in _LEFT_OUT:
            self._skip(task, reason)
        else:
            self._skip(task, "dependency_failed", f"needs {missing.spec.label!r}, which is missing ({reason})")

    # --- stop ----------------------------------------------------------------------------------------------------

    def _at_cut(self) -> None:
        """The budget less the grace is used up: nothing more starts; what runs has its own alarm for now.

        While somebody has to be asked, what has not started waits with it: there will be another budget.
        """
        if self.parked:
            self._stopped = "not_started"
            self._ready.clear()
            self._held.clear()
            self._pump()
        else:
            self._stop("not_started")
        if self._open:
            self._arm(Timer(self._cut + self._last_patience, self._owner, self._abandon_all))

    def _stop(self, reason: str) -> None:
        self._stopped = reason
        self._ready.clear()
        self._held.clear()
        for task in self._tasks.values():
            if task.outcome is not None:
                continue
            if task.status == "waiting":
                self._skip(task, reason)
            elif (fan := task.fan) is not None:
                fan.stop()
                for item in list(fan.running):
                    if item.status == "waiting":
                        self._skip(item, reason)
        self._pump()

    def _abandon_all(self) -> None:
        for task in list(self._live):
            self._abandon(task)

    def _abandon(self, task: TaskState) -> None:
        """A task ignores its cancellation: it is settled without it and left behind."""
        child = task.child
        if task.outcome is not None or child is None:
            return
        if child.done():  # cancelled before its first step: nobody was told
            self._on_end(task, None, self._late(task))
            return
        self._leave(task, child)
        self._emit("task.orphaned", task.spec.id, {"title": task.spec.label, "tool": task.spec.tool})
        self._failed(task, TaskTimeout("did not stop at its limit and was left behind", details={"orphan": True}))
        self._pump()

    def _late(self, task: TaskState) -> FailsoftError:
        return Deadline(task.until, "task" if task.until < self._cut else "run").error()

    def _leave(self, task: TaskState, child: asyncio.Task[None]) -> None:
        """Hands a child to the crew."""
        child.cancel()
        self._crew.adopt(child, f"task {task.spec.id} ({task.spec.tool})", self._run)
        self._take_out(task)

    def cancel(self) -> None:
        """Ends everything at once: waiting tasks are dropped, running ones cancelled and left to end by themselves."""
        self.cut_short("run_cancelled")

    def cut_short(self, reason: str) -> None:
        """Like :meth:`cancel`, for a reason that leaves the answer to be made: last resorts serve what they can."""
        if self._open == 0:
            return
        self._stop(reason)
        for task in list(self._live):
            if task.outcome is None and task.child is not None:
                self._leave(task, task.child)
                self._missing(task, reason, ())
        self._pump()

    def _finish(self) -> None:
        for timer in self._timers:
            self._disarm(timer)
        if self._look is not None:
            self._disarm(self._look)
        if not self.done.done():
            self.done.set_result(None)

    # --- views ---------------------------------------------------------------------------------------------------

    def _on_report(self, task: TaskState, fraction: float | None, text: str) -> None:
        """A tool says how far it is, from whatever thread."""
        if asyncio._get_running_loop() is self._loop:
            self._report(task, fraction, text)
        else:
            try:
                self._loop.call_soon_threadsafe(self._report, task, fraction, text)
            except RuntimeError:  # the loop is gone
                return

    def _report(self, task: TaskState, fraction: float | None, text: str) -> None:
        now = self._loop.time()
        if task.outcome is not None or task.parent is not None:
            return
        if fraction is not None and math.isfinite(fraction):
            self.progress.fraction(task.spec.id, fraction, now)
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
        return self._result(self._tasks[task_id])

    def _result(self, task: TaskState) -> TaskResult:
        step, began = task.step, self._began
        return TaskResult(
            step.id,
            step.label,
            step.kind,
            step.tool,
            task.status,
            task.outcome,
            step.needs,
            step.essential,
            None if task.started is None else task.started - began,
            None if task.ended is None else task.ended - began,
            task.error or why_missing(task.outcome),
        )

    def results(self) -> tuple[TaskResult, ...]:
        """Every task as it stands."""
        return tuple(map(self._result, self._tasks.values()))

    def __repr__(self) -> str:
        return f"<Scheduler open={self._open} running={len(self._live)} ready={len(self._ready)}>"


def _item(task: TaskState, place: int) -> str:
    """What an item of a list is called."""
    return f"{task.spec.id}[{place}]"
