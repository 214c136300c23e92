"""Guarded streams: a ticket held to the end, limits on the first item, on pauses and on the whole, and one commit.

Until the first item that counts as content, nothing has reached the consumer, so a failed attempt may be retried like
a call's. From then on the stream is committed: it is never retried, and an end other than its own is an error.

Pauses cost nothing per item: one alarm is armed for the earliest limit and, when it comes due, looks whether there was
progress since and moves on.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from asyncio import CancelledError
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast
from weakref import ref

from failsoft.base.errors import (
    CallTimeout,
    DeadlineExceeded,
    FirstItemTimeout,
    IdleTimeout,
    InternalError,
    MalformedResult,
    TaskTimeout,
    TimeoutExceeded,
    TotalTimeout,
)
from failsoft.base.outcomes import Kind
from failsoft.kernel.callee import own_cancel
from failsoft.kernel.classify import Classifier, Counts, Verdict, read
from failsoft.kernel.deadline import NOT_FIRED, Alarm, deadline_scope
from failsoft.kernel.scope import current
from failsoft.kernel.ticket import Ticket

if TYPE_CHECKING:
    from failsoft.kernel.guard import Guard

__all__ = ["GuardedStream", "StreamLimits"]

T = TypeVar("T")

_HELD_BACK: Final = 256
"""Items without content that are held back before the first content; more is not a stream that means to say anything.
"""

_CLOSE_WITHIN: Final = 1.0
"""Seconds the source gets to close after the consumer has left."""

_ERRORS: Final[dict[str, type[TimeoutExceeded]]] = {
    "first_item": FirstItemTimeout,
    "idle": IdleTimeout,
    "total": TotalTimeout,
    "call": CallTimeout,
    "task": TaskTimeout,
    "run": DeadlineExceeded,
}


class StreamLimits:
    """Limits of one stream in seconds; None for none. ``first_item`` runs from admission, ``idle`` between items.

    ``lent`` names those that a caller's budget set: when one of them fires that says nothing about the downstream.
    """

    __slots__ = ("first_item", "idle", "lent", "total")

    def __init__(
        self,
        first_item: float | None = None,
        idle: float | None = None,
        total: float | None = None,
        lent: Collection[str] = (),
    ) -> None:
        for name, value in (("first_item", first_item), ("idle", idle), ("total", total)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive or None")
        self.first_item = math.inf if first_item is None else first_item
        self.idle = math.inf if idle is None else idle
        self.total = math.inf if total is None else total
        self.lent = lent


class _Pause(Alarm):
    """The alarm of a stream: fires only while its consumer waits for an item, and only if the wait has lasted."""

    __slots__ = ("stream",)

    def __init__(self, stream: GuardedStream[Any]) -> None:
        self.when = math.inf
        self.task = None
        self.fired = NOT_FIRED
        self.lost = 0.0
        self.stream = ref(stream)
        """Weak: a stream that nobody holds any more is to be collected though its alarm is still armed."""

    def fire(self, how: int) -> None:
        stream = self.stream()
        if stream is None or not stream.waiting:
            self.task = None  # the consumer is at work: the next wait arms it again
            return
        due = stream.due()
        if due > stream.now():
            self.when = due
            stream.rearm()
            return
        super().fire(how)


class GuardedStream(Generic[T]):
    """A stream under guard: ``async with guard.stream(fn, *args) as items``, then ``async for item in items``.

    ``committed`` is True from the first content on. ``first_item_at`` and ``started_at`` are loop times; ``items``
    counts what was delivered. Leaving the block early closes the source, counts as neutral and frees the permit.
    """

    def __init__(
        self,
        guard: Guard,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        limits: StreamLimits,
        kind: Kind | None,
        priority: int | None,
        tenant: str | None,
        timeout: float | None,
        classify: Classifier | None,
        content: Callable[[T], bool] | None,
        size: float,
    ) -> None:
        self._guard = guard
        self._fn = fn
        self._args = args
        self._limits = limits
        self._kind = kind
        self._priority = priority
        self._tenant = tenant
        self._timeout = timeout
        self._reader = classify
        self._content = content
        self._size = size
        self._source: AsyncIterator[T] | None = None
        self._held: deque[T] = deque()
        self._ticket: Ticket | None = None
        self._alarm: _Pause = _Pause(self)
        self._entered = False
        self._until = math.inf
        self._until_limit = "call"
        self._mark = 0.0
        self._task: asyncio.Task[Any] | None = None
        self.waiting = False
        self.committed = False
        self.items = 0
        self.attempts = 0
        self.started_at: float | None = None
        self.first_item_at: float | None = None

    # --- limits ----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Loop time."""
        return self._guard.now()

    def due(self) -> float:
        """When the present wait is over at the latest."""
        return min(self._ends())[0]

    def _ends(self) -> list[tuple[float, int, str]]:
        limits = self._limits
        started = self.started_at if self.started_at is not None else self._mark
        ends = [(self._until, 0, self._until_limit), (started + limits.total, 2, "total")]
        if self.committed:  # of two limits that pass at once the more telling one has fired
            ends.append((self._mark + limits.idle, 1, "idle"))
        else:
            ends.append((started + limits.first_item, 1, "first_item"))
        return ends

    def rearm(self) -> None:
        """Puts the alarm back on the heap for its new time."""
        self._guard.heap.arm(self._alarm)

    def _arm(self) -> None:
        alarm = self._alarm
        if alarm.task is None and not alarm.fired:
            alarm.when = self.due()
            alarm.task = self._task
            self._guard.heap.arm(alarm)
        else:
            alarm.task = self._task

    # --- context ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> GuardedStream[T]:
        if self._entered:
            raise RuntimeError("a guarded stream is entered only once")
        self._entered = True
        guard = self._guard
        guard.bind()
        inherited = current.get()
        self._task = asyncio.current_task()
        began = now = guard.now()
        limit = guard.policy.call_timeout if self._timeout is None else self._timeout
        first_by, limit_name = inherited.deadline, inherited.limit
        if limit is not None and now + limit < first_by:
            first_by, limit_name = now + limit, "call"
        self._until, self._until_limit = first_by, limit_name
        waited = 0.0
        while True:
            self.attempts += 1
            await self._open(first_by, limit_name, began)
            try:
                await self._first()
            except BaseException as error:  # noqa: BLE001 - settled, then retried or raised again
                failure, verdict = await self._fail(error)
                now = guard.now()
                pause = guard.pause(verdict, self._kind, self.attempts, first_by - now, waited, now)
                if pause is None:
                    try:
                        raise failure from (failure.__cause__ if failure is error else error)
                    finally:
                        del failure, verdict  # their traceback holds this frame
                del failure, verdict
                await asyncio.sleep(pause)
                waited = pause
            else:
                # the call limit ends with the first content: from then on the stream's own limits hold
                self._until, self._until_limit = inherited.deadline, inherited.limit
                return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticket is not None:
            self._settle(Counts.NEUTRAL, "abandoned")
        await self._close()

    def __del__(self) -> None:
        """Entered and dropped without leaving the block: the permit goes back all the same, and it is told."""
        if self._ticket is None:
            return
        self._guard.abandon(self._ticket)  # first: a warning may be an error
        warnings.warn(f"a stream of {self._guard.name} was never left", ResourceWarning, stacklevel=1, source=self)

    # --- items -----------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if self._held:
            self.items += 1
            return self._held.popleft()
        if self._ticket is None:
            raise StopAsyncIteration
        self._task = asyncio.current_task()
        source = self._source
        assert source is not None
        try:
            # as in _next(), which every item would go through
            self._mark = self.now()
            self.waiting = True
            self._arm()
            try:
                item = await source.__anext__()
            finally:
                self.waiting = False
            if self._alarm.fired:
                raise CancelledError
        except StopAsyncIteration:
            self._settle(Counts.OK, None)
            await self._close()
            raise
        except BaseException as error:
            failure = (await self._fail(error))[0]
            if failure is error:
                del failure
                raise
            try:
                raise failure from error
            finally:
                del failure  # its traceback holds this frame
        self.items += 1
        return item

    async def _next(self) -> T:
        """One item from the source, within the limits in force."""
        source = self._source
        assert source is not None
        self._mark = self.now()
        self.waiting = True
        self._arm()
        try:
            item = await source.__anext__()
        finally:
            self.waiting = False
        if self._alarm.fired:
            raise CancelledError  # it swallowed the cancellation: late all the same
        return item

    async def _open(self, until: float, limit: str, began: float) -> None:
        guard = self._guard
        self._alarm = _Pause(self)
        self._ticket = await guard.enter(
            until=until, limit=limit, began=began, priority=self._priority, tenant=self._tenant, attempt=self.attempts
        )
        self.started_at = self._mark = guard.now()

    async def _first(self) -> None:
        """Starts the source and waits for the first content; what comes before it is held back."""
        self.waiting = True
        self._arm()
        try:
            source = await self._started()
        finally:
            self.waiting = False
        if self._alarm.fired:
            raise CancelledError
        self._source = source
        while True:
            try:
                item = await self._next()
            except StopAsyncIteration:
                self._settle(Counts.OK, None)  # an empty stream: for the consumer to judge
                return
            self._held.append(item)
            if self._content is None or self._content(item):
                break
            if len(self._held) >= _HELD_BACK:
                raise MalformedResult(f"{_HELD_BACK} items without content", downstream=self._guard.name)
        self.committed = True
        self.first_item_at = self.now()
        self._guard.heap.disarm(self._alarm)  # it stands for the first item's limit, which may be far off
        self._alarm = _Pause(self)

    async def _started(self) -> AsyncIterator[T]:
        run = self._fn if self._guard.interceptor is None else self._intercepted
        made: Any = run(*self._args)
        if not hasattr(made, "__anext__"):
            made = await cast("Awaitable[Any]", made) if hasattr(made, "__await__") else made
            made = aiter(made)
        return cast("AsyncIterator[T]", made)

    async def _intercepted(self, *args: Any) -> Any:
        async def start(*inner: Any) -> Any:
            made = self._fn(*inner)
            return await made if hasattr(made, "__await__") else made

        interceptor = self._guard.interceptor
        assert interceptor is not None
        return await interceptor(start, *args)

    # --- ends ------------------------------------------------------------------------------------------------------

    async def _fail(self, error: BaseException) -> tuple[BaseException, Verdict]:
        """Settles a failed attempt and says what to raise; cancellations from outside are raised here."""
        guard = self._guard
        ticket = self._ticket
        assert ticket is not None
        alarm, task = self._alarm, asyncio.current_task()
        assert task is not None
        self._held.clear()
        if alarm.fired:
            outside = task.uncancel() > ticket.cancelling and isinstance(error, CancelledError)
        else:
            outside = isinstance(error, CancelledError) and task.cancelling() > 0
        if outside or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            self._settle(Counts.NEUTRAL, "cancelled", cut=True)
            raise error
        if alarm.fired:
            which = min(self._ends())[2]
            made = _ERRORS[which](f"{guard.name}: the {which} limit of a stream passed", downstream=guard.name)
            own = which in ("first_item", "idle", "total") and which not in self._limits.lent and not alarm.stalled
            self._settle(Counts.TIMEOUT if own else Counts.NEUTRAL, made.code, cut=not self.committed)
            await self._close()
            return made, self._read(made)
        if not isinstance(error, Exception):
            error = own_cancel(error)
        try:
            verdict = self._read(error)
        except BaseException:
            self._settle(Counts.NEUTRAL, "cancelled")
            raise
        if isinstance(verdict.error, InternalError):
            error = verdict.error
        self._settle(verdict.counts, None if verdict.error is None else verdict.error.code)
        await self._close()
        return error, verdict

    def _read(self, error: BaseException) -> Verdict:
        """What the stream's own classifier says of an error, else the kernel's."""
        return read(self._reader, None, error)

    def _settle(self, counts: str, code: str | None, *, cut: bool = False) -> None:
        ticket, self._ticket = self._ticket, None
        assert ticket is not None
        self._guard.heap.disarm(self._alarm)
        first = self.first_item_at
        seconds = (first if first is not None else self.now()) - ticket.since
        self._guard.settle_stream(ticket, counts, seconds, size=self._size, cut=cut, code=code)

    async def _close(self) -> None:
        """Closes the source, in bounded time, whatever it raises."""
        source, self._source = self._source, None
        close = getattr(source, "aclose", None)
        if close is None:
            return
        try:
            async with deadline_scope(_CLOSE_WITHIN, detach=True, limit="task"):
                await close()
        except Exception as error:  # noqa: BLE001 - the stream's own end is what counts
            self._guard.emit("stream.close_failed", repr(error))
