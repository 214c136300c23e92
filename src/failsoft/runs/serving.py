"""The state of one task of a plan, and the coroutine that serves it: its ladder, under its own deadline, retried.

The child sets its scope and its deadline's alarm by itself, once: what ``deadline_scope`` and ``climb`` do for anybody
costs a task several times of what it takes here, where the child's context ends with it.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import CancelledError, get_running_loop
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from failsoft.base.errors import FailsoftError, TimeoutExceeded, ToolFailed
from failsoft.base.outcomes import Outcome, Provenance, RungTried
from failsoft.kernel.classify import as_error
from failsoft.kernel.deadline import NOT_FIRED, Alarm, Deadline
from failsoft.kernel.ladder import Rung, climb
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.scope import Scope, current
from failsoft.runs.plan import Step, TaskSpec
from failsoft.runs.runners import Direct, Ladder

if TYPE_CHECKING:
    from failsoft.runs.crew import Timer
    from failsoft.runs.result import TaskStatus

__all__ = ["Fan", "TaskAlarm", "TaskState", "serve"]

_new = tuple.__new__
"""Makes a named tuple at half the cost of calling its class, where that is done for every task."""
_SOUND: Final = Provenance("", "")[6:]
"""The marks of a value that is as good as asked for, from the first try."""
_BACKOFF: Final = RetryPolicy(base=0.1, spread=0.1, cap=5.0)
_ROOM: Final = 1.5
"""A task is tried again only while this many times what it took, or usually takes, is left."""


class TaskState:
    """One task, or one item of a mapped one (then with a ``parent`` and its ``place`` among the items)."""

    __slots__ = (
        "alarm",
        "arguments",
        "child",
        "dependants",
        "ended",
        "error",
        "fan",
        "index",
        "outcome",
        "parent",
        "reported",
        "started",
        "status",
        "step",
        "tail",
        "timer",
        "until",
        "usual",
        "waiting_for",
    )

    def __init__(self, step: Step, index: int, parent: TaskState | None = None) -> None:
        self.step = step
        self.index = index
        self.parent = parent
        self.status: TaskStatus = "waiting"
        self.waiting_for = 0
        self.dependants: Sequence[TaskState] = ()
        self.tail = 0.0
        self.usual: float | None = None
        self.until = 0.0
        self.arguments: dict[str, Any] | None = None
        self.child: asyncio.Task[None] | None = None
        self.alarm: TaskAlarm | None = None
        self.timer: Timer | None = None
        self.fan: Fan | None = None
        self.outcome: Outcome[Any] | None = None
        self.error: FailsoftError | None = None
        self.started: float | None = None
        self.ended: float | None = None
        self.reported = -1.0

    @property
    def spec(self) -> TaskSpec:
        """The task as it was planned."""
        return self.step.spec


class Fan:
    """A mapped task while it is under way: its items and what they have brought so far."""

    __slots__ = ("done", "items", "left_out", "next", "outcomes", "running", "width")

    def __init__(self, items: list[Any], width: int, left_out: int) -> None:
        self.items = items
        self.width = width
        self.left_out = left_out
        self.outcomes: list[Outcome[Any] | None] = [None] * len(items)
        self.next = 0
        self.running: dict[TaskState, None] = {}
        self.done = 0

    def upcoming(self) -> Iterator[int]:
        """The places of the items to start now."""
        while self.next < len(self.items) and len(self.running) < self.width:
            self.next += 1
            yield self.next - 1

    def stop(self) -> None:
        """No more items are started."""
        self.left_out += len(self.items) - self.next
        self.next = len(self.items)

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing is to come."""
        return not self.running and self.next >= len(self.items)

    def outcome(self, requested: str, remaining: float) -> Outcome[Any]:
        """The items' results as one: a list, whole or not; missing when there were items and none brought anything."""
        served = [o for o in self.outcomes if o is not None and o.provenance.served is not None]
        failed = next((o for o in self.outcomes if o is not None and o.provenance.served is None), None)
        worst = next((o.provenance for o in served if o.degraded), None)
        reason = None if failed is None else failed.provenance.reason
        if reason is None and self.left_out:
            reason = "not_started" if len(served) < len(self.items) else "too_many_items"
        if self.items and not served:
            tried = () if failed is None else failed.provenance.tried
            provenance = Provenance(
                requested, None, "skipped", reason or "not_started", None, remaining, 0 if failed is None else 1, False,
                tried,
            )  # fmt: skip
            return Outcome(None, provenance)
        ages = [o.provenance.age for o in served if o.provenance.age is not None]
        provenance = Provenance(
            requested=requested,
            served=requested,
            rung="primary" if worst is None else worst.rung,
            reason=reason if reason is not None or worst is None else worst.reason,
            age=max(ages, default=None),
            remaining=remaining,
            equivalent=worst is None or worst.equivalent,
            truncated=reason is not None,
        )
        return Outcome([None if o is None else o.value for o in self.outcomes], provenance)


def _nobody(_: TaskState) -> None:
    """Is told of nothing."""


class TaskAlarm(Alarm):
    """A task's deadline: cancels its child, and has ``fired(state)`` called to see to one that ignores it."""

    __slots__ = ("_tell", "state")

    def __init__(
        self, when: float, child: asyncio.Task[Any], state: TaskState, tell: Callable[[TaskState], None]
    ) -> None:
        self.when = when
        self.task = child
        self.fired = NOT_FIRED
        self.state: TaskState | None = state
        self._tell = tell

    def fire(self, how: int) -> None:
        """See :class:`~failsoft.kernel.deadline.Alarm`."""
        super().fire(how)
        if self.state is not None:
            self._tell(self.state)

    def forget(self) -> None:
        """It was disarmed: the heap may keep it for a while, but not all that it knows."""
        self.state = None
        self._tell = _nobody


Ended = Callable[[TaskState, "Outcome[Any] | None", "BaseException | None"], None]
"""``ended(task, outcome, error)``: one of the two is None."""


async def serve(task: TaskState, ladder: Ladder | Direct, scope: Scope, ended: Ended, rng: random.Random) -> None:
    """A child: serves a task's awaited rungs and says how that ended, at once and whatever it was.

    To be run in a context of its own. At ``scope.deadline`` the task's alarm cancels it, which becomes the limit's
    error; what arrives after it is no success. Nothing is raised but a cancellation from elsewhere.
    """
    current.set(scope)
    alarm = task.alarm
    assert alarm is not None
    try:
        if type(ladder) is Direct and not task.step.retries:
            outcome = await _direct(ladder, scope.deadline, task.started)
        else:
            outcome = await _climbed(task, ladder, scope, rng)
    except CancelledError as error:
        if not alarm.fired:
            ended(task, None, error)
            raise
        ended(task, None, Deadline(scope.deadline, scope.limit).error())
        return
    except BaseException as error:
        late = alarm.fired and isinstance(error, TimeoutExceeded)
        ended(task, None, Deadline(scope.deadline, scope.limit).error() if late else _plain(error))
        if isinstance(error, GeneratorExit):
            raise
        return
    if alarm.fired or get_running_loop().time() > scope.deadline:
        ended(task, None, Deadline(scope.deadline, scope.limit).error())
    else:
        ended(task, outcome, None)


def _plain(error: BaseException) -> BaseException:
    """What is no exception of a task, like a `KeyboardInterrupt` that it raised, as one."""
    if isinstance(error, Exception):
        return error
    failed = ToolFailed(f"{type(error).__name__} was raised by the task")
    failed.__cause__ = error
    return failed


async def _climbed(task: TaskState, ladder: Ladder | Direct, scope: Scope, rng: random.Random) -> Outcome[Any]:
    """The ladder's outcome, tried again as often as the task allows and the budget has room for."""
    loop = get_running_loop()
    number, waited = 1, 0.0
    while True:
        began = loop.time()
        if type(ladder) is Direct:
            outcome = await _direct(ladder, scope.deadline, began)
        else:
            assert isinstance(ladder, Ladder)
            outcome = await climb(ladder.rungs, requested=ladder.requested)
        if outcome.provenance.served is not None or number > task.step.retries or not ladder.repeatable:
            return outcome
        now = loop.time()
        pause = _BACKOFF.backoff(number, rng, previous=waited)
        if not _worth_it(outcome, scope.deadline - now - pause, max(now - began, task.usual or 0.0)):
            return outcome
        await asyncio.sleep(pause)
        number, waited = number + 1, pause


async def _direct(ladder: Direct, deadline: float, began: float | None) -> Outcome[Any]:
    """A ladder of one rung, climbed; see :func:`~failsoft.kernel.ladder.climb`."""
    requested = ladder.requested
    loop = get_running_loop()
    try:
        value = await ladder.serve(*ladder.args)
    except Exception as error:  # whatever the rung raises is how it failed
        failure = as_error(error)
        if failure.type == "waiting":  # it has not failed: somebody has to be asked first
            raise
        code, message, now = failure.code, failure.message, loop.time()
        del failure  # its traceback holds this frame
        tried = (RungTried(requested, code, message, 0.0 if began is None else now - began),)
        return Outcome(None, Provenance(requested, None, "skipped", code, None, deadline - now, 1, False, tried))
    if type(value) is Outcome:

        async def known() -> Any:
            return value

        return await climb((Rung(requested, known),), requested=requested)
    return Outcome(
        value, _new(Provenance, (requested, requested, "primary", None, None, deadline - loop.time(), *_SOUND))
    )


def _worth_it(outcome: Outcome[Any], left: float, takes: float) -> bool:
    """Whether another try may go better, and has the time to."""
    reason = outcome.provenance.reason
    error = FailsoftError.from_dict({"code": reason})
    return error.code == reason and error.retryable and left > _ROOM * takes
