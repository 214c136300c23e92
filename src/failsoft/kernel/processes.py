"""``isolation="process"``: plain functions in child processes, which unlike threads can be killed.

::

    async with ProcessPool(workers=4) as pool:
        frame = await call_process(warehouse, pool, crunch, path, kind="query", timeout=3)

At the limit, on cancellation and when the pool is closed, the worker is killed with everything that it has started.
A worker that has ended a call well is used again, at once (a warm call costs a fraction of a millisecond); one that
had to be killed, or has left child processes behind, is replaced by the next call.

Functions travel by module and qualified name, arguments and results by pickle, exceptions as text. See
:mod:`failsoft.kernel.keeper` for the parent's side of a worker, :mod:`failsoft.kernel.worker` for the child's.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import sys
from asyncio import CancelledError
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, cast

from failsoft.base.errors import BadInput, DownstreamUnavailable, FailsoftError, InternalError, QueueFull
from failsoft.base.futures import heard
from failsoft.kernel.callee import deliver
from failsoft.kernel.child import WorkerSettings
from failsoft.kernel.keeper import Keeper, ProcessCall
from failsoft.kernel.ticket import Ticket
from failsoft.kernel.worker import frame, resolve

if TYPE_CHECKING:
    from failsoft.kernel.callee import Runner
    from failsoft.kernel.guard import Guard

__all__ = ["PoolStatistics", "ProcessPool", "call_process", "in_process_of"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_WRAPPERS: Final = 16
"""How many decorators (``__wrapped__``) are looked through to find a function under its name."""

_CLOSE: Final = 5.0
"""Seconds that closing waits for killed workers to be gone; one in an uninterruptible system call may take longer."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Figures of a pool: workers as of now (those being ended count as busy), the others since the start."""

    workers: int
    idle: int
    busy: int
    waiting: int
    started: int
    killed: int
    calls: int


class ProcessPool:
    """Worker processes, `workers` of them at most, started when they are needed and kept warm.

    Give a guard as many permits as there are workers; when more calls come, up to `queue` wait for a worker, which
    counts against nobody's breaker, and the next is refused with :class:`~failsoft.base.errors.QueueFull`.

    Args:
        workers: the most processes at a time; one that is being killed counts until it is gone.
        queue: the most calls that wait for a worker.
        max_calls: calls after which a worker is replaced, against what leaks.
        max_result_bytes: a result whose pickle is longer is ``MalformedResult``, and the worker is killed unread.
        max_argument_bytes: arguments whose pickle is longer are ``BadInput``.
        memory_limit: bytes of address space per worker (``RLIMIT_AS``); beyond it allocations fail in the worker.
        allow_env: names of environment variables that workers get although they look like secrets; see
            :mod:`failsoft.kernel.environment` for what does.
        env: variables that workers get in addition.

    Errors of a call: ``ToolFailed`` when the function raised (``details``: ``exception``, ``message``, ``traceback``,
    ``output``, the last 64 KB that the call printed, ``pid``); ``DownstreamUnavailable`` at once when the worker
    died (``exit_code`` or ``signal``), closed its pipe or could not start; ``MalformedResult`` for a result that is too
    long or cannot be pickled or unpickled; ``BadInput`` for a function or arguments that cannot travel. ``details``
    hold what the function said, which may be anything: for logs, not for clients.

    On trust: this holds off functions that hang, crash, flood, leak or fork, not an attacker. A worker runs as the same
    user, and what it returns is unpickled here. Module-level state of a function's module is that of the worker, and
    lives from call to call. Use a pool from one event loop at a time.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        queue: int = 64,
        max_calls: int = 1000,
        max_result_bytes: int = 10_000_000,
        max_argument_bytes: int = 10_000_000,
        memory_limit: int | None = None,
        allow_env: Collection[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        if min(workers, max_calls, max_result_bytes, max_argument_bytes) < 1 or queue < 0:
            raise ValueError("workers, max_calls and the sizes must be positive")
        self.workers = workers
        self.queue = queue
        self.max_argument_bytes = max_argument_bytes
        self.settings = WorkerSettings(max_result_bytes, memory_limit, max_calls, frozenset(allow_env), dict(env or {}))
        self._keepers: set[Keeper] = set()
        self._idle: list[Keeper] = []
        self._waiters: deque[asyncio.Future[Keeper]] = deque()
        self._leaving: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._started = self._killed = self._calls = 0

    # --- a call ------------------------------------------------------------------------------------------------

    async def runner(self, guard: Guard, ticket: Ticket, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Runs ``fn(*args)`` in a worker: ``await guard.call(fn, *args, runner=pool.runner)``."""
        name, request = self._request(fn, args)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def ended(value: Any, error: BaseException | None) -> None:
            if isinstance(error, FailsoftError) and error.downstream is None:
                error.downstream = guard.name
            if ticket.settled:
                guard.callee_ended(ticket)
            else:
                deliver(answer, value, error)

        call = ProcessCall(loop, name, request, ended)
        del request
        keeper = await self._take(ticket)
        while not keeper.run(call):  # it has died while it was idle
            keeper = await self._take(ticket)
        ticket.callee = call
        self._calls += 1
        try:
            return await answer
        finally:
            heard(answer)
            if not call.done():
                self._killed += 1
                keeper.kill(call)

    def _request(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, bytes]:
        kwargs: dict[str, Any] = {}
        while isinstance(fn, partial):
            args, kwargs, fn = (*fn.args, *args), {**fn.keywords, **kwargs}, fn.func
        head = _name_of(fn)
        try:
            body = pickle.dumps((args, kwargs), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise BadInput(
                f"the arguments of {head['name']} cannot be pickled: {type(error).__name__}", param="arguments"
            ) from error
        if len(body) > self.max_argument_bytes:
            raise BadInput(
                f"the arguments of {head['name']} have {len(body)} bytes; at most {self.max_argument_bytes} are sent",
                param="arguments",
            )
        return f"{head['module']}.{head['name']}", frame(head, body)

    # --- workers -----------------------------------------------------------------------------------------------

    async def _take(self, ticket: Ticket) -> Keeper:
        """A free worker. While waiting for one, the ticket's limit is not blamed on its downstream."""
        self._bind()
        keeper = None if self._waiters else self._free()
        if keeper is not None:
            return keeper
        if len(self._waiters) >= self.queue:
            raise QueueFull(f"all {self.workers} workers are busy and {len(self._waiters)} calls wait for one")
        waiter: asyncio.Future[Keeper] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        cut_short, ticket.cut_short = ticket.cut_short, True
        try:
            keeper = await waiter
        except CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())  # it was given one in the instant of its cancellation
            else:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
            raise
        ticket.cut_short = cut_short
        return keeper

    def _free(self) -> Keeper | None:
        while self._idle:
            keeper = self._idle.pop()  # the one used last: its memory is warm
            if not keeper.retiring:
                return keeper
        if len(self._keepers) < self.workers:
            keeper = Keeper(self.settings, self._changed)
            self._keepers.add(keeper)
            self._started += 1
            return keeper
        return None

    def _offer(self, keeper: Keeper) -> None:
        """A free worker goes to who has waited longest, or to the idle ones."""
        while self._waiters:
            if not (waiter := self._waiters.popleft()).done():
                waiter.set_result(keeper)
                return
        if self._closed:
            keeper.close()
        else:
            self._idle.append(keeper)

    def _changed(self, keeper: Keeper) -> None:
        """A worker is free again, or gone."""
        if keeper.gone:
            self._keepers.discard(keeper)
            with suppress(ValueError):
                self._idle.remove(keeper)
            while self._waiters and self._waiters[0].done():
                del self._waiters[0]
            if self._waiters and not self._closed:
                spare = self._free()
                if spare is not None:
                    self._offer(spare)
            if not self._keepers and self._leaving is not None and not self._leaving.done():
                self._leaving.set_result(None)
        elif keeper in self._keepers and not keeper.retiring:
            self._offer(keeper)

    def _bind(self) -> None:
        """Takes to the running loop; refuses while calls of another, living loop are in flight."""
        if self._closed:
            raise DownstreamUnavailable("the pool of processes is closed")
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed() and (self._waiters or any(one.busy for one in self._keepers)):
                raise InternalError("the pool of processes is in use by another event loop")
            self._waiters.clear()
            for keeper in list(self._keepers):
                if keeper.gone:
                    self._keepers.discard(keeper)
                elif keeper.busy or keeper.retiring:
                    keeper.close("its event loop is closed", loop)
                elif keeper not in self._idle:
                    self._idle.append(keeper)
        self._loop = loop

    # --- views and end -----------------------------------------------------------------------------------------

    def statistics(self) -> PoolStatistics:
        """Figures as of now."""
        idle = len(self._idle)
        return PoolStatistics(
            workers=len(self._keepers),
            idle=idle,
            busy=len(self._keepers) - idle,
            waiting=sum(not waiter.done() for waiter in self._waiters),
            started=self._started,
            killed=self._killed,
            calls=self._calls,
        )

    def pids(self) -> list[int]:
        """The process numbers of the workers there are."""
        return sorted(keeper.pid for keeper in self._keepers if keeper.pid is not None)

    async def aclose(self) -> None:
        """Kills all workers and waits until they are gone; calls in them, and those that wait, fail as unavailable."""
        self._closed = True
        loop = asyncio.get_running_loop()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(DownstreamUnavailable("the pool of processes was closed"))
        for keeper in list(self._keepers):
            keeper.close(loop=loop)
        if not self._keepers:
            return
        if self._leaving is None:
            self._leaving = loop.create_future()
        work_begins = getattr(loop, "work_begins", None)
        if work_begins is not None:  # a virtual-time loop, which has to know that something is under way
            work_begins("closing a pool of processes")
            work_ends = loop.work_ends  # type: ignore[attr-defined]  # as above
            self._leaving.add_done_callback(lambda _: work_ends("closing a pool of processes"))
        await asyncio.wait([self._leaving], timeout=_CLOSE)

    async def __aenter__(self) -> ProcessPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        figures = self.statistics()
        return (
            f"<ProcessPool {'closed ' if self._closed else ''}busy={figures.busy} idle={figures.idle}"
            f" of={self.workers} waiting={figures.waiting}>"
        )


def in_process_of(pool: ProcessPool) -> Runner:
    """The runner of a pool, for ``guard.call(fn, *args, runner=in_process_of(pool))``."""
    return pool.runner


async def call_process(guard: Guard, pool: ProcessPool, fn: Callable[[*Ts], T], *args: *Ts, **options: Any) -> T:
    """``guard.call`` for a plain function in a worker process; `options` are those of ``guard.call``.

    Keyword arguments of the function are bound by ``functools.partial``. The caller's context variables stay here.
    """
    awaited = cast("Callable[[*Ts], Awaitable[T]]", fn)  # by way of the runner
    return await guard.call(awaited, *args, runner=pool.runner, **options)


def _name_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """Under which name a worker finds `fn`; ``BadInput`` if under none."""
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    shown = qualname or type(fn).__qualname__
    if inspect.iscoroutinefunction(fn):
        raise _cannot_travel(shown, "it is a coroutine function; a worker runs plain ones")
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise _cannot_travel(shown, "it has no module and qualified name; pass a function of a module")
    if "<" in qualname:
        raise _cannot_travel(shown, "it is a lambda or defined in a function; define it at the top of a module")
    if module == "__main__":
        raise _cannot_travel(shown, "it is defined in the main program; define it in a module that can be imported")
    try:
        found: Any = resolve(module, qualname, 0) if module in sys.modules else None
        for depth in range(_WRAPPERS):
            if found == fn:
                return {"module": module, "name": qualname, "depth": depth}
            found = found.__wrapped__
    except (ImportError, AttributeError):
        pass
    raise _cannot_travel(shown, f"{module} has something else under that name, or nothing")


def _cannot_travel(shown: str, why: str) -> BadInput:
    return BadInput(f"{shown} cannot run in a process: {why}", param="function")
