"""A watchdog outside the loop: who blocked it, seen while it was blocked.

A coroutine that blocks (a driver without await, a long computation, a C call) stops every clock of its loop: no
deadline fires, no heartbeat is sent. So a daemon thread looks at the loop some 12 times a second. It asks a loop that
is busy for a sign of life (``call_soon_threadsafe``), and while the answer is due it notes the stack of the loop's
thread. The answer runs on the loop when it is back; if that took longer than the threshold, the event
``loop.stalled`` is emitted there.

Details of CPython that are used, each with a way to do without:

* ``sys._current_frames()``: the stack. The thread needs the interpreter's lock for it; against a C call that keeps the
  lock it gets it at the call's end, when the calling function is, as a rule, still there to be seen.
* ``BaseEventLoop._run_once``: called from there, ``select`` means that the loop is idle and need not be asked, and the
  local variable ``end_time`` is when the running pass began, which makes the duration exact. Other loops (uvloop)
  are asked every time, and their durations are right to within two fifths of the threshold, or, when no task ran,
  up to four fifths too short.
* ``asyncio.current_task(loop)`` from another thread: the task. Its context, and in it our scope, by
  ``Task.get_context()``, before Python 3.12 by ``gc.get_referents(task)``.
* ``RUSAGE_THREAD`` (Linux): a thread that waits for the interpreter's lock wakes every 5 ms and is counted as switching
  voluntarily; one that was stopped is not. So a process that did not run at all (SIGSTOP, a debugger, a machine
  without time for it) is told from a blocked loop, and is reported as ``loop.suspended``. Elsewhere the processor time
  used has to do.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import resource
import sys
import threading
import time
from asyncio.base_events import BaseEventLoop
from asyncio.events import Handle
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from failsoft.base.events import Event, EventBus
from failsoft.kernel.scope import ROOT, Scope, current

if TYPE_CHECKING:
    from failsoft.kernel.guard import Kernel

__all__ = ["LoopWatchdog", "Stall", "Suspension"]

_LOOK: Final = 0.8
"""Share of the threshold between two looks: a stall above it is seen at least once while it lasts."""

_RUN_ONCE: Final[CodeType | None] = getattr(getattr(BaseEventLoop, "_run_once", None), "__code__", None)
_RUN_HANDLE: Final[CodeType | None] = getattr(getattr(Handle, "_run", None), "__code__", None)


class Stall(NamedTuple):
    """Data of ``loop.stalled``, and what ``on_stall`` is given.

    ``seconds`` that the loop has not run; ``stack``, what it was in as ``file:line function``, innermost last, empty if
    it could not be seen; ``asyncio_task``, the name of the task that ran; ``downstream``, whose call it made. The
    event's ``run``, ``task`` and ``tenant`` are those of that task's scope.
    """

    seconds: float
    stack: tuple[str, ...]
    asyncio_task: str | None
    scope: Scope = ROOT
    downstream: str | None = None


class Suspension(NamedTuple):
    """Data of ``loop.suspended``: for that many seconds the whole process did not run."""

    seconds: float


class _Watch:
    """What is known of one loop. The thread writes all but ``answered``, which the loop writes."""

    __slots__ = ("answered", "asked", "loop", "seen", "sight", "since", "sure", "task", "thread", "told")

    def __init__(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self.asked = 0
        self.answered: tuple[int, float] | None = None
        self.since = now
        self.seen = now
        self.sight: Stall | None = None
        self.task: asyncio.Task[Any] | None = None
        """The task that ran at the last look."""
        self.sure = False
        """Whether it blocks the loop: it ran at two looks at the same pass, or kept even this thread from looking.
        Of a crowd of tasks, none of which does, one runs at each look, too."""
        self.told = False

    @property
    def waiting(self) -> bool:
        """Whether an answer is due."""
        return self.sight is not None

    def forget(self) -> None:
        """What was asked is no longer of interest."""
        self.asked += 1
        self.answered = None
        self.sight = self.task = None
        self.sure = self.told = False

    def stall(self, seconds: float) -> Stall:
        """The stall as far as it was seen; a downstream is blamed only when it is certain."""
        assert self.sight is not None
        return self.sight._replace(seconds=seconds, downstream=self.sight.downstream if self.sure else None)


class LoopWatchdog:
    """Watches event loops from a daemon thread; one watchdog may watch several.

    ::

        watchdog = LoopWatchdog(kernel.bus)
        watchdog.start()  # on the loop

    Args:
        bus: where ``loop.stalled`` and ``loop.suspended`` go, from the loop when it is back.
        threshold: seconds that a loop may be away.
        on_stall: called from the watchdog's thread at once when the threshold is passed, once per stall.
        kernel: whose guards are asked which downstream's call it was; its breaker is told (``loop_stalls``).
        depth: the most frames of a stack that are kept, the innermost.

    ``start`` and ``stop`` are for the loop's thread and may be called again. A closed loop is forgotten. On a
    virtual-time loop, where blocking takes no time, nothing is watched. The thread ends with the last loop. A look at
    an idle loop is 5 µs of work, so 0.006 % of a processor at the threshold of 0.1 s; being woken for it costs more:
    measured on two processors with a load of 8, 0.18 % in all, where a thread that only wakes takes 0.11 %.
    """

    def __init__(
        self,
        bus: EventBus,
        *,
        threshold: float = 0.1,
        kernel: Kernel | None = None,
        on_stall: Callable[[Stall], object] | None = None,
        depth: int = 20,
    ) -> None:
        if not threshold > 0 or depth < 1:
            raise ValueError("threshold and depth must be positive")
        self.threshold = threshold
        self.depth = depth
        self._pause = threshold * _LOOK
        self.errors = 0
        """How often ``on_stall`` raised."""
        self._bus = bus
        self._kernel = kernel
        self._on_stall = on_stall
        self._lock = threading.Lock()
        self._watches: dict[asyncio.AbstractEventLoop, _Watch] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Lock()  # held by the thread; cheaper to wait for than an Event
        self._wake.acquire()

    # --- on the loop -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Watches the running loop from now on."""
        loop = asyncio.get_running_loop()
        if hasattr(loop, "work_begins"):
            return  # virtual time
        with self._lock:
            if loop in self._watches:
                return
            self._watches[loop] = _Watch(loop, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="failsoft-watchdog", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Watches the running loop no longer. A stall that is just over is still reported."""
        loop = asyncio.get_running_loop()
        with self._lock:
            watch = self._watches.pop(loop, None)
            self._rouse()
        if watch is not None and watch.sight is not None:
            end = watch.answered[1] if watch.answered is not None else time.monotonic()
            self._report(watch, watch.stall(end - watch.since))

    def _answer(self, watch: _Watch, asked: int) -> None:
        now = time.monotonic()
        watch.thread = threading.get_ident()
        watch.answered = asked, now
        if now - watch.since > self.threshold:
            self._rouse()  # whether this was a stall is for the thread to say: it knows if it was stopped, too

    def _rouse(self) -> None:
        with suppress(RuntimeError):  # it is awake, or about to be
            self._wake.release()

    def _report(self, watch: _Watch, what: Stall | Suspension) -> None:
        if what.seconds <= self.threshold:
            return
        at = watch.loop.time()
        if isinstance(what, Stall):
            scope = what.scope
            if self._kernel is not None and what.downstream is not None:
                self._kernel.guards[what.downstream].breaker.stalled(at)
            self._bus.emit(Event("loop.stalled", at, what.downstream, scope.run, scope.task, scope.tenant, 0, 0, what))
        else:
            self._bus.emit(Event("loop.suspended", at, data=what))

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = self._pause
        rested = _Rest()
        while True:
            rested.begin(pause)
            self._wake.acquire(timeout=pause)  # held again, whether it was released or not
            late = rested.late(self.threshold)
            with self._lock:
                watches = list(self._watches.values())
                if not watches:
                    self._thread = None
                    return
            frames = sys._current_frames()
            now = time.monotonic()
            pause = self._pause
            for watch in watches:
                try:
                    self._look(watch, frames.get(watch.thread), now, late)
                except RuntimeError:  # its loop is closed
                    with self._lock:
                        self._watches.pop(watch.loop, None)
                    continue
                if watch.waiting and not watch.told:  # be there when the threshold is passed
                    pause = min(pause, max(0.001, watch.since + self.threshold - now))
            del frames, watches

    def _look(self, watch: _Watch, frame: FrameType | None, now: float, late: _Late) -> None:
        """One look at one loop."""
        loop = watch.loop
        if late.suspended:
            watch.since += late.suspended
            watch.seen += late.suspended
            loop.call_soon_threadsafe(self._report, watch, Suspension(late.suspended))
        sight = watch.sight
        if sight is not None and watch.answered is not None and watch.answered[0] == watch.asked:
            seconds = watch.answered[1] - watch.since
            watch.seen = watch.answered[1]
            stall = watch.stall(seconds)
            watch.forget()
            if seconds > self.threshold:
                loop.call_soon_threadsafe(self._report, watch, stall)
            sight = None
        if not loop.is_running():  # between two runs: nobody blocks it
            if loop.is_closed():
                raise RuntimeError("the loop is closed")
            watch.forget()
            watch.seen = now
            return
        if sight is None:
            began = _pass_began(loop, frame, now)
            if began is not None and began >= now:
                watch.seen = now
                return
            watch.forget()
            watch.task = _task_of(loop)
            watch.sight = sight = self._sight(watch.task, frame)
            watch.sure = late.locked_out > self.threshold / 2
            if began is None:  # Some time between the last look and this one, or when that should have been; but
                began = now - late.locked_out  # without a task it may be idle, and accused only of what is certain.
                if sight.asyncio_task is not None:
                    began = watch.seen + min(now - watch.seen, self._pause) / 2
            watch.since = began
            watch.seen = now
            loop.call_soon_threadsafe(self._answer, watch, watch.asked)
        elif not (watch.told and watch.sure):
            task = _task_of(loop)
            same = task is not None and task is watch.task
            if same or not watch.told:
                watch.sure = same
                watch.task = task
            if not watch.told:
                watch.sight = sight = self._sight(task, frame)
        away = now - watch.since
        if away > self.threshold and not watch.told:
            watch.told = True
            if self._on_stall is not None:
                try:
                    self._on_stall(watch.stall(away))
                except Exception:  # noqa: BLE001 - a listener must not end the watch
                    self.errors += 1

    def _sight(self, task: asyncio.Task[Any] | None, frame: FrameType | None) -> Stall:
        """What the loop's thread is doing, in that task."""
        stack: list[str] = []
        while frame is not None and len(stack) < self.depth and frame.f_code not in {_RUN_HANDLE, _RUN_ONCE}:
            stack.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
            frame = frame.f_back
        if task is None:
            return Stall(0.0, tuple(reversed(stack)), None)
        guard = None if self._kernel is None else self._kernel.whose(task)
        return Stall(
            0.0, tuple(reversed(stack)), task.get_name(), _scope_of(task), None if guard is None else guard.name
        )

    def __repr__(self) -> str:
        return f"<LoopWatchdog loops={len(self._watches)} threshold={self.threshold}>"


class _Late(NamedTuple):
    """Seconds by which the thread woke too late: because the process did not run, or for want of the lock."""

    suspended: float = 0.0
    locked_out: float = 0.0


class _Rest:
    """Whether the thread woke when it wanted to, and if not, why."""

    def __init__(self) -> None:
        self.until = 0.0
        self.used = 0.0
        self.switches = 0

    def begin(self, pause: float) -> None:
        """The thread is going to wait for so many seconds."""
        self.used = time.process_time()
        self.switches = _switches()
        self.until = time.monotonic() + pause

    def late(self, threshold: float) -> _Late:
        """How late it is, if by more than `threshold`, and why, if that can be known."""
        late = time.monotonic() - self.until
        if late <= threshold:
            return _Late()
        # Waiting for the interpreter's lock is done in turns of the switch interval, and each is counted.
        turns = late / sys.getswitchinterval()
        if turns >= 8 and _switches() - self.switches > turns / 4:
            return _Late(locked_out=late)
        if time.process_time() - self.used > late / 2:
            return _Late()
        return _Late(suspended=late)


def _switches() -> int:
    """How often this thread has gone to sleep of its own accord; 0 where that is not known."""
    which: int | None = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if which is None else resource.getrusage(which).ru_nvcsw


def _task_of(loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
    """The task that the loop is running."""
    with suppress(RuntimeError):
        return asyncio.current_task(loop)
    return None


def _pass_began(loop: asyncio.AbstractEventLoop, frame: FrameType | None, now: float) -> float | None:
    """When the loop's running pass began; `now` if it is idle, None if that cannot be known."""
    if frame is None:
        return None
    caller = frame.f_back
    if frame.f_code.co_name == "select" and caller is not None and caller.f_code is _RUN_ONCE:
        return now
    found: FrameType | None = frame
    while found is not None and found.f_code is not _RUN_ONCE:
        found = found.f_back
    if found is None:
        return None
    end_time: Any = found.f_locals.get("end_time")  # loop.time() plus the clock's resolution, just after select
    if not isinstance(end_time, float):
        return now  # just before or after it
    return min(now, now - (loop.time() - end_time))


def _scope_of(task: asyncio.Task[Any]) -> Scope:
    """The scope that a task of another thread runs in."""
    if sys.version_info >= (3, 12):
        return task.get_context().get(current, ROOT)
    for found in gc.get_referents(task):
        if isinstance(found, contextvars.Context):
            return found.get(current, ROOT)
    return ROOT
