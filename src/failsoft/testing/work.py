"""What threads and processes do for a virtual-time loop, and whether that holds its time back."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from failsoft.testing.clock import VirtualTimeLoop

__all__ = ["Job", "Spot", "VirtualEvent", "Work", "detached"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_detached: contextvars.ContextVar[bool] = contextvars.ContextVar("failsoft_detached", default=False)


@contextmanager
def detached() -> Iterator[None]:
    """Jobs made in this context do not hold time back."""
    token = _detached.set(True)
    try:
        yield
    finally:
        _detached.reset(token)


def _name_of(func: object) -> str:
    if isinstance(func, functools.partial):
        by_to_thread = isinstance(getattr(func.func, "__self__", None), contextvars.Context) and func.args
        return _name_of(func.args[0] if by_to_thread else func.func)
    return getattr(func, "__qualname__", None) or repr(func)


class Job:
    """A piece of work that is tracked by itself: an executor's job or a process."""

    __slots__ = ("detached", "parked", "pool", "started", "what")

    def __init__(self, what: str, pool: ThreadPoolExecutor | None = None) -> None:
        self.what = what
        self.pool = pool
        self.detached = self.parked = _detached.get()
        self.started = False

    @classmethod
    def of(cls, func: object, executor: Executor) -> Job:
        """An executor's job that calls `func`."""
        return cls(_name_of(func), executor if isinstance(executor, ThreadPoolExecutor) else None)


class Spot:
    """A thread's place at a ``VirtualEvent``."""

    __slots__ = ("job", "outcome", "timer", "woken")

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.outcome: bool | None = None  # None: the loop was shut down
        self.job: Job | None = None
        self.timer: asyncio.TimerHandle | None = None


class Work:
    """Who works outside the loop. Every method may be called in any thread; none wakes the loop."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._counted: Counter[str] = Counter()  # threads started by hand: only their number and names are known
        self._counted_parked = 0
        self._jobs: dict[Job, None] = {}
        self._spots: dict[Spot, None] = {}
        self._here = threading.local()

    def __repr__(self) -> str:
        return f"<Work holding={self.holding()} parked={self.parked()}>"

    def begins(self, what: str) -> None:
        """A thread started by hand begins."""
        with self.lock:
            self._counted[what] += 1

    def ends(self, what: str) -> None:
        """A thread started by hand has reported."""
        with self.lock:
            if not self._counted[what]:
                raise RuntimeError(f"work_ends({what!r}) without a work_begins({what!r}) before it")
            self._counted[what] -= 1

    def add(self, job: Job) -> None:
        """A job is about to be submitted or a process to be started."""
        with self.lock:
            self._jobs[job] = None

    def remove(self, job: Job) -> None:
        """It has reported."""
        with self.lock:
            del self._jobs[job]

    def do(self, job: Job, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Do a job, in its pool's thread."""
        with self.lock:
            job.started = True
        self._here.job = job
        try:
            return func(*args)
        finally:
            self._here.job = None

    def park(self, spot: Spot) -> None:
        """This thread is going to wait at `spot`."""
        with self.lock:
            spot.job = getattr(self._here, "job", None)
            if spot.job is not None:
                spot.job.parked = True
            elif self._counted_parked < self._counted.total():
                self._counted_parked += 1
            else:
                raise RuntimeError("this thread is not counted as work: call loop.work_begins() before it is started")
            self._spots[spot] = None

    def unpark(self, spot: Spot, outcome: bool | None) -> bool:
        """Let the thread at `spot` go on, and count it again from this instant. False if it has gone on before."""
        with self.lock:
            if spot not in self._spots:
                return False
            del self._spots[spot]
            if spot.job is not None:
                spot.job.parked = spot.job.detached
            else:
                self._counted_parked -= 1
            spot.outcome = outcome
            spot.woken.set()
            return True

    def evict(self) -> None:
        """Let all parked threads go: their waits raise."""
        with self.lock:
            for spot in list(self._spots):
                self.unpark(spot, None)

    def uses(self, pool: Executor) -> bool:
        """Whether `pool` has jobs, detached ones included."""
        with self.lock:
            return any(job.pool is pool for job in self._jobs)

    def parked(self) -> int:
        """How many threads wait at a ``VirtualEvent``."""
        with self.lock:
            return len(self._spots)

    def detached(self) -> list[str]:
        """What is under way and holds nothing back, but may still report in real time, by name."""
        with self.lock:
            hanging = {spot.job for spot in self._spots}
            return [job.what for job in self._jobs if job.detached and job not in hanging]

    def holding(self) -> list[str]:
        """What holds time back, by name; empty if time may go on."""
        with self.lock:
            names = list(self._counted.elements()) if self._counted.total() > self._counted_parked else []
            if self._jobs:
                stuck = Counter(job.pool for job in self._jobs if job.started and job.parked)
                for job in self._jobs:
                    startable = job.started or job.pool is None or stuck[job.pool] < job.pool._max_workers
                    if startable and not job.parked:
                        names.append(job.what)
            return names


class VirtualEvent:
    """A ``threading.Event`` for threads that are meant to hang: one that waits here does not hold virtual time back.

    From the call of ``set()``, or from the instant at which the timeout is over, the thread counts as working again.
    When the loop shuts down, threads still waiting are let go with a ``RuntimeError``.
    """

    def __init__(self, loop: VirtualTimeLoop | None = None) -> None:
        """For threads of `loop`, or else of the running loop, which must be a ``VirtualTimeLoop``."""
        self._loop = loop or asyncio.get_running_loop()
        work = getattr(self._loop, "work", None)
        if not isinstance(work, Work):
            raise RuntimeError(f"not a virtual-time loop: {self._loop!r}")  # noqa: TRY004 - the state is wrong
        self._work = work
        self._set = False
        self._spots: dict[Spot, None] = {}  # one for each waiting thread

    def __repr__(self) -> str:
        return f"<VirtualEvent {'set' if self._set else 'unset'} waiting={len(self._spots)}>"

    def is_set(self) -> bool:
        """Whether ``set()`` has been called."""
        return self._set

    def set(self) -> None:
        """Let all waiting threads go on, and later ones not wait. May be called in any thread and on the loop."""
        with self._work.lock:
            self._set = True
            for spot in self._spots:
                if self._work.unpark(spot, outcome=True) and spot.timer is not None:
                    self._loop.call_soon_threadsafe(spot.timer.cancel)
            self._spots.clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until ``set()``, for `timeout` virtual seconds at most; whether it was set.

        The thread must be counted as work: a job of a thread pool, or one begun with ``loop.work_begins()``.

        Raises:
            RuntimeError: the thread is not counted, is the loop's own, or the loop was shut down meanwhile.
        """
        if self._loop_runs_here():
            raise RuntimeError("VirtualEvent.wait() would block the loop for ever: call it in another thread")
        spot = Spot()
        with self._work.lock:  # the loop must not see the thread parked before the timer is on its way
            if self._set:
                return True
            self._work.park(spot)
            try:
                self._loop.call_soon_threadsafe(self._arm, spot, timeout)
            except RuntimeError:  # the loop is closed
                self._work.unpark(spot, outcome=None)
            else:
                self._spots[spot] = None
        spot.woken.wait()
        if spot.outcome is None:
            raise RuntimeError("the loop was shut down while this thread was waiting")
        return spot.outcome

    def _loop_runs_here(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def _arm(self, spot: Spot, timeout: float | None) -> None:
        with self._work.lock:
            if timeout is not None and not spot.woken.is_set():
                spot.timer = self._loop.call_later(timeout, self._expire, spot)

    def _expire(self, spot: Spot) -> None:
        with self._work.lock:
            if self._work.unpark(spot, outcome=False):
                del self._spots[spot]
