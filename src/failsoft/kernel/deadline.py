"""Deadlines: one heap per loop, one timer per heap, and scopes that cancel at them.

``asyncio.timeout`` costs a timer handle per use; here an entry is pushed on a heap that arms a single ``call_at`` for
the earliest one. Entries are dropped lazily and the heap is compacted when most of it is dead.

A timer that fires more than :data:`STALL` seconds late means that the loop was blocked or the process stopped.
Results may have arrived meanwhile, so what is due then, and until the loop has caught up, gets a few passes of the loop
before it fires, and fires as *stalled*, which the guard counts as neutral: a stall never opens a breaker. The time that
was lost is added up in :attr:`DeadlineHeap.lost`, to be taken off what a call in flight seems to have taken.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextvars import Token
from heapq import heapify, heappop, heappush
from types import TracebackType
from typing import Any, Final
from weakref import WeakKeyDictionary

from failsoft.base.errors import DeadlineExceeded, TaskTimeout, TimeoutExceeded
from failsoft.kernel.scope import Scope, current, within

__all__ = ["STALL", "Alarm", "Deadline", "DeadlineHeap", "deadline_scope", "remaining"]

STALL: Final = 0.1
"""Seconds by which a timer must be late to be blamed on a stall."""

_PASSES: Final = 8
"""Loop passes given to late entries: poll and read, wake the reader, wake who waits for the reader, and whoever stands
between that one and the guard: the legs of a hedge, a flight, a tool of its own; a long answer is read in several."""

_BUSY: Final = 0.01
"""Seconds from which a pass of the loop after a stall tells that it has not caught up."""

_LIMIT_ERRORS: Final[dict[str, type[TimeoutExceeded]]] = {"run": DeadlineExceeded, "task": TaskTimeout}


NOT_FIRED: Final = 0
FIRED: Final = 1
FIRED_STALLED: Final = 2


class Alarm:
    """An entry of the heap: cancels ``task`` when it fires.

    The owner calls :meth:`DeadlineHeap.disarm` when it no longer needs it, and, when ``fired`` is not 0, accounts for
    exactly one ``task.cancel()`` by ``task.uncancel()``.
    """

    __slots__ = ("fired", "lost", "task", "when")

    def __init__(self, when: float, task: asyncio.Task[Any]) -> None:
        self.when = when
        self.task: asyncio.Task[Any] | None = task
        self.fired = NOT_FIRED
        self.lost = 0.0
        """What the heap had lost when this was armed."""

    @property
    def stalled(self) -> bool:
        """Fired, but only after the loop was blocked past its time: nobody else is to blame."""
        return self.fired == FIRED_STALLED

    def fire(self, how: int) -> None:
        """Asks the task to stop; the owner turns the cancellation into the error of the limit that this alarm stands
        for.
        """
        task = self.task
        if task is not None:
            self.fired = how
            self.task = None
            task.cancel()


class DeadlineHeap:
    """The alarms of one event loop, ordered by time; only the earliest has a timer.

    ``lost`` is a sum of seconds that only grows: how long the loop was away, as far as timers that came late can tell,
    and how long it took each time to catch up.
    """

    __slots__ = (
        "_armed_at", "_catching_up", "_dead", "_heap", "_late", "_loop", "_pass", "_seen", "_seq", "_timer", "_until",
        "lost",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Alarm]] = []
        self._seq = 0
        self._dead = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = math.inf
        self._late: deque[tuple[int, Alarm]] = deque()
        """What was due in a stall, and the pass in which it fires: at most the armed alarms."""
        self.lost = 0.0
        self._catching_up = False
        self._until = -math.inf
        """When the loop counts as caught up at the latest: a stall is given its own length for that."""
        self._seen = 0.0
        self._pass = 0

    def arm(self, alarm: Alarm) -> None:
        """Adds an alarm. An alarm in the past fires at the loop's next pass; one that is never due is not kept."""
        alarm.lost = self.lost
        when = alarm.when
        if when == math.inf:
            alarm.task = None
            return
        self._seq = seq = self._seq + 1
        heappush(self._heap, (when, seq, alarm))
        if when < self._armed_at:
            self._set_timer(when)

    def disarm(self, alarm: Alarm) -> None:
        """Takes an alarm out (harmless when it has fired)."""
        if alarm.task is None:
            return
        alarm.task = None
        self._dead = dead = self._dead + 1
        if dead > 64 and dead > len(self._heap) >> 1:
            self._compact()

    def _compact(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].task is not None]
        heapify(self._heap)
        self._dead = 0

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = when
        self._timer = self._loop.call_at(when, self._due)

    def _due(self) -> None:
        heap = self._heap
        now = self._loop.time()
        away = now - self._armed_at
        self._timer = None
        self._armed_at = math.inf
        if away > STALL and not self._catching_up:
            self._catching_up = True
            self.lost += away
            self._seen, self._until = now, now + away
            self._loop.call_soon(self._catch_up)
        while heap and heap[0][0] <= now:
            alarm = heappop(heap)[2]
            if alarm.task is None:
                self._dead -= 1
            elif self._catching_up:
                self._late.append((self._pass + 1 + _PASSES, alarm))
            else:
                alarm.fire(FIRED)
        while heap and heap[0][2].task is None:
            heappop(heap)
            self._dead -= 1
        if heap:
            self._set_timer(heap[0][0])

    def _catch_up(self) -> None:
        """Once in each pass of the loop after a stall, until nothing late is left and a pass was short."""
        now = self._loop.time()
        busy = now - self._seen
        self._seen = now
        self.lost += busy
        self._pass += 1
        late = self._late
        while late and late[0][0] <= self._pass:
            alarm = late.popleft()[1]
            if alarm.task is not None:
                alarm.fire(FIRED_STALLED)
        if late or (busy > _BUSY and now < self._until):
            self._loop.call_soon(self._catch_up)
        else:
            self._catching_up = False

    def __len__(self) -> int:
        """How many alarms are armed."""
        return sum(1 for entry in self._heap if entry[2].task is not None) + sum(
            1 for _, alarm in self._late if alarm.task is not None
        )

    def __repr__(self) -> str:
        return f"<DeadlineHeap armed={len(self)} dead={self._dead}>"


_heaps: WeakKeyDictionary[asyncio.AbstractEventLoop, DeadlineHeap] = WeakKeyDictionary()


def heap_of(loop: asyncio.AbstractEventLoop) -> DeadlineHeap:
    """The heap of a loop, made on first use."""
    heap = _heaps.get(loop)
    if heap is None:
        heap = _heaps[loop] = DeadlineHeap(loop)
    return heap


class Deadline:
    """A point in the running loop's time, in seconds, and whose limit it is."""

    __slots__ = ("limit", "when")

    def __init__(self, when: float, limit: str = "run") -> None:
        self.when = when
        self.limit = limit

    @classmethod
    def after(cls, seconds: float, *, limit: str = "run") -> Deadline:
        """The deadline `seconds` from now."""
        return cls(asyncio.get_running_loop().time() + seconds, limit)

    @classmethod
    def current(cls) -> Deadline:
        """The deadline of the running task's scope; infinitely far away when none was set."""
        inherited = current.get()
        return cls(inherited.deadline, inherited.limit)

    def remaining(self, now: float | None = None) -> float:
        """Seconds left, never negative; ``inf`` without a deadline."""
        if now is None:
            now = asyncio.get_running_loop().time()
        return max(0.0, self.when - now)

    def expired(self, now: float | None = None) -> bool:
        """Whether nothing is left."""
        return self.remaining(now) <= 0.0

    def error(self) -> TimeoutExceeded:
        """The error that says that this deadline passed."""
        return _LIMIT_ERRORS.get(self.limit, DeadlineExceeded)(f"the {self.limit}'s deadline passed")

    def __repr__(self) -> str:
        return f"Deadline({self.when!r}, {self.limit!r})"


def remaining() -> float:
    """Seconds left in the running task's scope; ``inf`` without a deadline."""
    return Deadline.current().remaining()


class deadline_scope:  # noqa: N801 - reads as a statement, like asyncio.timeout
    """Gives what runs inside a deadline, and cancels it there.

    ::

        async with deadline_scope(8.0):
            await anything()

    The deadline is the earlier of the enclosing one and `seconds` from now, so a scope can only tighten, unless
    ``detach=True``: background work that must outlive the request takes a bounded scope of its own.
    At the deadline the body is cancelled and :class:`~failsoft.base.errors.DeadlineExceeded` (or ``TaskTimeout`` for
    ``limit="task"``) is raised; a cancellation from elsewhere passes through unchanged. A body that swallows its
    cancellation and ends late raises the error all the same: what arrives after the deadline is not a success.
    """

    __slots__ = (
        "_alarm", "_cancelling", "_detach", "_heap", "_limit", "_loop", "_task", "_token", "labels", "scope", "seconds",
        "when",
    )  # fmt: skip

    def __init__(
        self,
        seconds: float | None = None,
        *,
        at: float | None = None,
        limit: str = "run",
        detach: bool = False,
        **labels: Any,
    ) -> None:
        if seconds is not None and at is not None:
            raise TypeError("give seconds or at, not both")
        for name, value in (("seconds", seconds), ("at", at)):
            if value is not None and math.isnan(value):
                raise ValueError(f"{name} must be a number")
        self.seconds = seconds
        self.when = at
        self._limit = limit
        self._detach = detach
        self.labels = labels
        self.scope: Scope | None = None
        self._token: Token[Scope] | None = None
        self._alarm: Alarm | None = None

    async def __aenter__(self) -> Deadline:
        if self._token is not None:
            raise RuntimeError("a deadline_scope is entered only once")
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("deadline_scope needs a running task")
        when = self.when if self.when is not None else math.inf
        if self.seconds is not None:
            when = loop.time() + self.seconds
        outer = current.get()
        own = self._detach or when < outer.deadline
        if own:
            inner = within(outer, when, self._limit, self.labels)
        else:
            inner = within(outer, outer.deadline, outer.limit, self.labels)
        self.scope = inner
        self._loop = loop
        self._heap = heap_of(loop)
        self._task = task
        self._cancelling = task.cancelling()
        self._token = current.set(inner)
        if own:
            self._alarm = Alarm(when, task)
            self._heap.arm(self._alarm)
        return Deadline(inner.deadline, inner.limit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        assert self.scope is not None
        current.reset(self._token)
        alarm = self._alarm
        if alarm is None:
            return
        self._heap.disarm(alarm)
        if not alarm.fired:
            # The body ended by itself. If the loop was blocked past the deadline, what it has came too late.
            if error is None and self._loop.time() > alarm.when:
                raise Deadline(alarm.when, self.scope.limit).error()
            return
        if self._task.uncancel() > self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            return  # somebody else cancelled too: theirs goes on
        if kind is None or issubclass(kind, asyncio.CancelledError | TimeoutExceeded):
            raise Deadline(alarm.when, self.scope.limit).error() from error
