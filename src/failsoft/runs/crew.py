"""Tasks that must not be waited for: a group of tasks whose members can be left behind.

``asyncio.TaskGroup`` waits for its members however long they ignore their cancellation. Whoever answers within a
budget cannot; so a run hands what will not stop to the app's :class:`Crew`, which holds on to it until it ends, shows
it as an orphan, and never lets it hold up an answer or the end of the app.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from failsoft.base.errors import TaskTimeout, ToolFailed
from failsoft.kernel.deadline import Alarm, deadline_scope, heap_of

__all__ = ["PATIENCE", "Crew", "Orphan", "Timer", "within"]

T = TypeVar("T")
_log = logging.getLogger(__name__)

PATIENCE: Final = 0.05
"""Seconds a cancelled task has to end before it is left behind."""


def _nothing() -> None:
    """Does nothing."""


class Timer(Alarm):
    """An entry of the loop's deadline heap that calls a function instead of cancelling its task."""

    __slots__ = ("_call",)

    def __init__(self, when: float, task: asyncio.Task[Any], call: Callable[[], None]) -> None:
        super().__init__(when, task)
        self._call = call

    def fire(self, how: int) -> None:
        """Calls the function, once; what it raises must not reach the heap."""
        if self.task is not None:
            self.fired = how
            self.task = None
            try:
                self._call()
            except Exception:  # noqa: BLE001 - the other alarms of the loop are not to suffer
                _log.exception("a timer's function raised")

    def forget(self) -> None:
        """It was disarmed: the heap may keep it for a while, but not all that its function knows."""
        self._call = _nothing


@dataclass(frozen=True, slots=True)
class Orphan:
    """A task that was left behind and still runs: what it is, whose, and for how many seconds it has been alone."""

    what: str
    run: str | None
    age: float
    where: str


class Crew:
    """Holds running tasks until they end. One per app; a bounded wait at its end."""

    __slots__ = ("_loop", "_members", "_total")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._members: dict[asyncio.Task[Any], tuple[str, str | None, float | None]] = {}
        self._total = 0

    def start(
        self, work: Coroutine[Any, Any, T], *, name: str, run: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Runs `work` in a task that belongs to the crew."""
        task = self._loop.create_task(work, name=name, context=context)
        self._members[task] = (name, run, None)
        task.add_done_callback(self._ended)
        return task

    def adopt(self, task: asyncio.Task[Any], what: str, run: str | None = None) -> None:
        """Takes over a task that its owner cancelled and cannot wait for."""
        if task.done():
            self._read(task)
            return
        self._total += 1
        self._members[task] = (what, run, self._loop.time())
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._members.pop(task, None)
        self._read(task)

    def _read(self, task: asyncio.Task[Any]) -> None:
        """Looks at how it ended, so that nothing is reported as never retrieved."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("%s ended with %r", task.get_name(), error)

    def orphans(self) -> list[Orphan]:
        """Adopted tasks that have not ended within a short patience."""
        now = self._loop.time()
        found = []
        for task, (what, run, since) in self._members.items():
            if since is not None and now - since >= PATIENCE:
                frames = task.get_stack(limit=1)
                where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else ""
                found.append(Orphan(what, run, now - since, where))
        return found

    @property
    def adopted(self) -> int:
        """How many tasks were ever left behind, also for a moment only."""
        return self._total

    def __len__(self) -> int:
        return len(self._members)

    async def aclose(self, patience: float = 1.0) -> list[Orphan]:
        """Cancels all members and waits up to `patience` seconds; returns those that still run even then."""
        own = asyncio.current_task()
        members = [task for task in self._members if task is not own]
        for task in members:
            task.cancel()
        if members:
            await asyncio.wait(members, timeout=patience)
        for task in members:
            if not task.done():
                what, run, _ = self._members[task]
                _log.warning("%s ignores its cancellation and is left behind", what)
                self._members[task] = (what, run, self._loop.time() - patience)
        return self.orphans()

    def __repr__(self) -> str:
        return f"<Crew members={len(self._members)} orphans={len(self.orphans())}>"


async def within(
    crew: Crew,
    work: Coroutine[Any, Any, T],
    *,
    at: float,
    what: str,
    limit: str = "task",
    patience: float = PATIENCE,
    **labels: Any,
) -> T:
    """Awaits `work` in a child task until the loop time `at`, whatever it does.

    At `at` it is cancelled and the limit's error raised; if it ignores that for `patience` seconds it is left to the
    crew and the error raised all the same. When the caller is cancelled the child is, too, and is left to the crew at
    once.
    """
    loop = asyncio.get_running_loop()

    async def child() -> T:
        async with deadline_scope(at=at, limit=limit, **labels):
            try:
                value = await work
            except (Exception, asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:
                raise ToolFailed(f"{what} raised {type(error).__name__}") from error
        return value

    task = loop.create_task(child(), name=what)
    ended: asyncio.Future[None] = loop.create_future()

    def wake(*_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(wake)
    task.add_done_callback(lambda _: work.close())  # cancelled before its first step it has never begun
    timer = Timer(max(at, loop.time()) + patience, task, wake)
    heap = heap_of(loop)
    heap.arm(timer)
    try:
        await ended
        if not task.done():
            raise TaskTimeout(f"{what} took too long and did not stop when told to")
        if task.cancelled():
            raise TaskTimeout(f"{what} was cancelled from inside")
        return task.result()
    finally:
        heap.disarm(timer)
        if not task.done():
            task.cancel()
            crew.adopt(task, what, labels.get("run"))
        elif not task.cancelled():
            task.exception()  # the caller was cancelled in the same moment: looked at, so that nobody warns of it
