"""An asyncio event loop in virtual time: an hour takes milliseconds, and every instant is exact.

The rules, in the order in which the loop applies them:

1. While a callback is ready, or I/O is, time stands still.
2. While a thread or a process that the loop's code started is working, time stands still as well, and the loop waits
   for it in real time, for ``patience`` seconds at most. Counted by themselves: ``run_in_executor``,
   ``asyncio.to_thread`` and asyncio's subprocesses. Threads started by hand are counted from ``work_begins()`` to
   ``work_ends()``. Not holding time back: a counted thread that waits at a ``VirtualEvent``, a job whose pool has only
   such threads, and whatever was started inside ``detached()``.
3. With sockets or pipes registered, the loop polls them for ``io_grace`` real seconds, and goes on if nothing came.
4. Time jumps to the next timer: ``loop.time()`` is then exactly its ``when``. Timers for one instant fire in the order
   in which they were set.
5. Without a timer, the loop waits in real time, as in rule 2, for registered descriptors and detached work. Without
   those too, nothing can ever happen: ``Deadlock``.

The same program makes the same callbacks in the same order: no wall clock takes part, and sets of tasks (in
``TaskGroup``, for instance) iterate in the same order in every process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import math
import selectors
from collections import Counter
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

from failsoft.testing.work import Job, VirtualEvent, Work, detached

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from concurrent.futures import Future as PoolFuture

    Events = list[tuple[selectors.SelectorKey, int]]

__all__ = [
    "Deadlock",
    "LeftBehind",
    "OutOfPatience",
    "VirtualEvent",
    "VirtualTimeLoop",
    "run",
    "virtual_loop",
    "where_it_waits",
]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(RuntimeError):
    """Nothing is ready, due, registered or under way: the pending tasks would wait for ever. The message lists them."""


class OutOfPatience(RuntimeError):
    """Real work took longer than the loop's ``patience`` (real seconds). The message says what was waited for."""


class LeftBehind(RuntimeError):
    """The main coroutine ended and left tasks running. The message lists them."""


def where_it_waits(task: asyncio.Task[Any]) -> str:
    """The task's name and the functions it is suspended in, outermost first, with file and line."""
    places = []
    step: object = task.get_coro()
    while step is not None:
        frame = getattr(step, "cr_frame", None) or getattr(step, "gi_frame", None)
        if frame is not None:
            places.append(f"{frame.f_code.co_qualname} ({PurePath(frame.f_code.co_filename).name}:{frame.f_lineno})")
        step = getattr(step, "cr_await", None) or getattr(step, "gi_yieldfrom", None)
    return f"{task.get_name()}: {' > '.join(places) or 'unknown'}"


def _listed(tasks: set[asyncio.Task[Any]]) -> str:
    return "".join(f"\n  {where_it_waits(task)}" for task in sorted(tasks, key=hash))


class _Selector(selectors.DefaultSelector):
    """Asks the loop what to do where another selector would block."""

    def __init__(self, idle: Callable[[], Events]) -> None:
        super().__init__()
        self._idle = idle

    def select(self, timeout: float | None = None) -> Events:
        return self.poll(0) if timeout is not None and timeout <= 0 else self._idle()

    def poll(self, seconds: float) -> Events:
        return super().select(seconds)


class _Submitting(Executor):
    """Hands one job to `executor` and keeps the pool's own future, which asyncio would hide."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.future: PoolFuture[Any] | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> PoolFuture[T]:
        future = self._executor.submit(fn, *args, **kwargs)
        self.future = future
        return future


class _Timer(asyncio.TimerHandle):
    """Timers for one instant fire in the order of their making; asyncio's heap alone would shuffle them."""

    __slots__ = ("order",)
    order: int
    if TYPE_CHECKING:
        _scheduled: bool

    def __lt__(self, other: Any) -> bool:
        return (self.when(), self.order) < (other.when(), other.order)


class _Task(asyncio.Task[Any]):
    """Hashed by the order of creation and not by address, which differs from process to process."""

    def __init__(self, coro: Any, *, order: int, **kwargs: Any) -> None:
        self._order = order
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._order


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose ``time()`` is virtual; see the module's rules.

    Args:
        start: the first ``time()``, in virtual seconds.
        patience: how long to wait for one report of real work or I/O, in real seconds, before ``OutOfPatience``.
        io_grace: how long to poll registered descriptors before each jump of time, in real seconds.
            Between peers on this loop 0 is nearly always enough; a peer in another process may need more.
    """

    if TYPE_CHECKING:  # what asyncio's base classes have and their stubs leave out
        _clock_resolution: float
        _default_executor: Executor | None
        _scheduled: list[asyncio.TimerHandle]
        _selector: _Selector
        _thread_id: int | None

        def _check_callback(self, callback: object, method: str) -> None: ...
        def _check_closed(self) -> None: ...
        def _check_default_executor(self) -> None: ...
        def _check_thread(self) -> None: ...
        def _write_to_self(self) -> None: ...

    def __init__(self, *, start: float = 0.0, patience: float = 10.0, io_grace: float = 0.005) -> None:
        super().__init__(_Selector(self._idle))
        self._patience = patience
        self._io_grace = io_grace
        self.work = Work()
        self._processes: dict[asyncio.SubprocessTransport, Job] = {}
        self._order = itertools.count()
        if not math.isfinite(start):
            super().close()
            raise ValueError(f"start must be a finite time in seconds, not {start}")
        self._move(start)
        self.set_task_factory(self._make_task)

    def __repr__(self) -> str:
        return f"<VirtualTimeLoop time={self._now} timers={len(self._scheduled)} holding={self.work.holding()}>"

    # --- time ----------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def stall(self, seconds: float) -> None:
        """Let time jump by `seconds` at once, as if this callback had blocked the loop or the process been stopped.

        Timers that were due in between fire late and together, after the I/O and results that have arrived.
        """
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._move(self._now + seconds)

    def _move(self, now: float) -> None:
        self._now = now
        # asyncio fires what is due before time() + resolution. With the next float after now that is `when <= now`.
        self._clock_resolution = math.nextafter(now, math.inf) - now

    def _idle(self) -> Events:
        if holding := self.work.holding():
            return self._wait_really(holding)
        # Polled after the look at the work: a thread reports first and ends its work then, so no report is missed.
        descriptors = len(self._selector.get_map()) - 1  # less the loop's own, through which threads wake it
        if events := self._selector.poll(self._io_grace if descriptors else 0):
            return events
        if self._scheduled and self._scheduled[0].when() < math.inf:
            self._move(self._scheduled[0].when())
            return []
        if whats := ["registered descriptor"] * descriptors + self.work.detached():
            return self._wait_really(whats)
        parked = self.work.parked()
        threads = f"\n  threads waiting at a VirtualEvent: {parked}" if parked else ""
        raise Deadlock(f"nothing can ever happen, but these tasks wait:{_listed(asyncio.all_tasks(self))}{threads}")

    def _wait_really(self, whats: list[str]) -> Events:
        if events := self._selector.poll(self._patience):
            return events
        waited, self._patience = self._patience, 0.0  # spent: cleaning up after the error does not wait again
        what = ", ".join(f"{n} x {what}" for what, n in Counter(whats).items())
        raise OutOfPatience(f"waited {waited:g} s of real time for {what}; pending:{_listed(asyncio.all_tasks(self))}")

    # --- order ---------------------------------------------------------------------------------------------

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As in asyncio; timers for the same instant fire in the order of these calls."""
        self._check_closed()
        if self.get_debug():
            self._check_thread()
            self._check_callback(callback, "call_at")
        timer = _Timer(when, callback, args, self, context)
        timer.order = next(self._order)
        timer._scheduled = True
        heapq.heappush(self._scheduled, timer)
        return timer

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        return _Task(coro, loop=loop, order=next(self._order), **kwargs)

    # --- work outside the loop -----------------------------------------------------------------------------

    def work_begins(self, what: str = "work") -> None:
        """Hold time back from now on until ``work_ends(what)``. Call it before the thread is started; thread-safe."""
        self.work.begins(what)

    def work_ends(self, what: str = "work") -> None:
        """One ``work_begins(what)`` is over. Call it after ``call_soon_threadsafe`` has taken the result; thread-safe.

        Raises:
            RuntimeError: nothing of that name is under way.
        """
        self.work.ends(what)
        self._write_to_self()

    @contextlib.contextmanager
    def detached(self) -> Iterator[None]:
        """Executor jobs and processes started in this context do not hold time back, however long they take.

        When they report is a matter of real time, so keep exact instants out of what depends on it; for a thread that
        is meant to hang for an exact time, prefer ``VirtualEvent``. No effect on ``work_begins()``.
        """
        with detached():
            yield

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As in asyncio; holds time back until the job has ended, also when the returned future was cancelled."""
        if executor is None:
            self._check_default_executor()
            if self._default_executor is None:
                self._default_executor = ThreadPoolExecutor(thread_name_prefix="asyncio")
            executor = self._default_executor
        submitting = _Submitting(executor)
        job = Job.of(func, executor)
        self.work.add(job)
        try:
            if job.pool is None:  # perhaps a pool of processes, to which `func` has to be sent as it is
                future = super().run_in_executor(submitting, func, *args)
            else:
                future = super().run_in_executor(submitting, self.work.do, job, func, *args)
        except BaseException:
            self.work.remove(job)
            raise
        # Added after asyncio's own callback, so the result is on its way to the loop when the work ends.
        assert submitting.future is not None
        submitting.future.add_done_callback(lambda _: self._job_ends(job))
        return future

    def _job_ends(self, job: Job) -> None:
        self.work.remove(job)
        self._write_to_self()

    async def _make_subprocess_transport(
        self, protocol: Any, args: str | Sequence[str], *options: Any, **kwargs: Any
    ) -> asyncio.SubprocessTransport:
        job = Job(f"process {args!r}")
        self.work.add(job)
        try:
            transport: asyncio.SubprocessTransport = await super()._make_subprocess_transport(  # type: ignore[misc]  # not in the stubs
                protocol, args, *options, **kwargs
            )
        except BaseException:
            self.work.remove(job)
            raise
        if transport.get_returncode() is None:
            self._processes[transport] = job
        else:
            self.work.remove(job)
        return transport

    def _child_watcher_callback(self, pid: int, returncode: int, transport: asyncio.SubprocessTransport) -> None:
        super()._child_watcher_callback(pid, returncode, transport)  # type: ignore[misc]  # not in the stubs
        # One iteration later, as 3.11 does with its own callback: the exit must be known before the work ends.
        self.call_soon_threadsafe(self.call_soon, self._process_ended, transport)

    def _process_ended(self, transport: asyncio.SubprocessTransport) -> None:
        if job := self._processes.pop(transport, None):
            self.work.remove(job)

    # --- the end -------------------------------------------------------------------------------------------

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Let go of threads parked at a ``VirtualEvent`` and wait for all counted work, within ``patience``.

        `timeout` has no effect: while work is under way, no virtual time passes. Detached jobs are not waited for.
        """
        self.work.evict()
        if self.work.holding():
            drained = self.create_future()  # time moves, by the smallest step, as soon as nothing holds it back
            self.call_at(math.nextafter(self._now, math.inf), drained.set_result, None)
            await drained
        if self._default_executor is not None and not self.work.uses(self._default_executor):
            self.work_begins("the default executor's shutdown")
            try:
                await super().shutdown_default_executor()
            finally:
                self.work_ends("the default executor's shutdown")

    def close(self) -> None:
        """As in asyncio; threads parked at a ``VirtualEvent`` are let go."""
        self.work.evict()
        super().close()


def virtual_loop() -> VirtualTimeLoop:
    """The running loop.

    Raises:
        RuntimeError: no loop is running, or another kind of loop.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError(f"not a virtual-time loop: {loop!r}")  # noqa: TRY004 - it is the state that is wrong
    return loop


def run(
    main: Coroutine[Any, Any, T],
    *,
    start: float = 0.0,
    patience: float = 10.0,
    io_grace: float = 0.005,
    debug: bool = False,
    strict: bool = True,
) -> T:
    """Like ``asyncio.run``, on a fresh ``VirtualTimeLoop`` with these settings.

    Raises:
        LeftBehind: `main` returned and left tasks running (only if `strict`); they are cancelled all the same.
        Deadlock: see there.
        OutOfPatience: see there.
    """
    runner = asyncio.Runner(
        debug=debug, loop_factory=lambda: VirtualTimeLoop(start=start, patience=patience, io_grace=io_grace)
    )
    try:
        result = runner.run(main)
        if strict and (left := asyncio.all_tasks(runner.get_loop())):
            raise LeftBehind(f"the main coroutine left tasks behind:{_listed(left)}")
    except BaseException:
        with contextlib.suppress(Deadlock, OutOfPatience):  # the first error says more than those of cleaning up
            runner.close()
        raise
    runner.close()
    return result
