"""Plain functions in daemon threads: bounded per downstream, abandoned at their limit, never in the way of exit.

A thread cannot be stopped. At its limit the caller gets the error at once, the thread becomes an orphan that keeps
its permit until it ends (so its downstream is not flooded with more), is listed with its age and stack, and never
blocks the process's exit. The bound is the bulkhead's: no thread runs without a permit. Idle threads are kept a few
seconds for reuse.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["Job", "ThreadLane"]

_IDLE = 5.0
"""Seconds an idle thread waits for more work before it ends."""


class Job:
    """A function running in a thread. ``ended(value, error)`` is called on the loop, exactly once, unless the loop is
    gone.
    """

    __slots__ = ("_args", "_context", "_done", "_ended", "_fn", "_loop", "ident", "name")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        ended: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._loop = loop
        self._fn = fn
        self._args = args
        self._ended = ended
        self._context = contextvars.copy_context()
        self._done = False
        self.ident: int | None = None
        self.name = getattr(fn, "__qualname__", type(fn).__name__)

    def done(self) -> bool:
        """Whether the function has ended and the loop knows."""
        return self._done

    def run(self) -> Callable[[], None]:
        """The thread's part: nothing that the function raises gets past here, not even ``SystemExit``.

        What it gives is to be called next, and tells the loop.
        """
        self.ident = threading.get_ident()
        value, error = None, None
        try:
            value = self._context.run(self._fn, *self._args)
        except BaseException as raised:  # noqa: BLE001 - a tool's SystemExit is a failed task, not the end of a thread
            error = raised
        self.ident = None
        try:
            return partial(self._tell, value, error)
        finally:
            del error  # its traceback holds this frame

    def _tell(self, value: Any, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._report, value, error)
        except RuntimeError:
            self._done = True  # the loop is closed: nobody is left to tell

    def _report(self, value: Any, error: BaseException | None) -> None:
        self._done = True
        work_ends = getattr(self._loop, "work_ends", None)
        if work_ends is not None:
            work_ends(repr(self.name))
        ended, self._ended = self._ended, _nobody
        ended(value, error)

    def stack(self, depth: int = 5) -> list[str]:
        """Where the thread is now, innermost frame last; empty when it is not running."""
        frame = sys._current_frames().get(self.ident) if self.ident is not None else None
        if frame is None:
            return []
        return [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_stack(frame)[-depth:]]

    def __repr__(self) -> str:
        return f"<Job {self.name} {'done' if self._done else 'running'}>"


def _nobody(value: Any, error: BaseException | None) -> None:
    """Who is told a second time."""


class ThreadLane:
    """The daemon threads of one downstream."""

    __slots__ = ("_count", "_idle", "_jobs", "_lock", "_serial", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = 0
        self._count = 0
        self._serial = 0

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        ended: Callable[[Any, BaseException | None], None],
    ) -> Job:
        """Runs ``fn(*args)`` in an idle or new thread, with the caller's context variables."""
        job = Job(loop, fn, args, ended)
        work_begins = getattr(loop, "work_begins", None)
        if work_begins is not None:
            work_begins(repr(job.name))
        self._jobs.put(job)
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                return job
            self._serial += 1
            self._count += 1
            serial = self._serial
        threading.Thread(target=self._work, name=f"failsoft-{self.name}-{serial}", daemon=True).start()
        return job

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE)
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._idle -= 1
                        self._count -= 1
                        return
                continue
            if job is None:
                with self._lock:
                    self._count -= 1
                return
            tell = job.run()
            with self._lock:
                self._idle += 1  # before the loop hears of it, or its next call would start another thread
            tell()
            del job, tell

    @property
    def threads(self) -> int:
        """Threads alive, busy or idle."""
        return self._count

    def close(self) -> None:
        """Lets idle threads end; busy ones end with their work and hold up nobody."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._jobs.put(None)

    def __repr__(self) -> str:
        return f"<ThreadLane {self.name} threads={self._count} idle={self._idle}>"
