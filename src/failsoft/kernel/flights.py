"""Coalescing: identical calls in flight share one attempt at the downstream (singleflight).

A flight belongs to no caller: it runs in a task of its own, without any caller's deadline, and ends when it has an
answer or when its last participant has left. Each participant waits under its own deadline, so the flight lives as
long as the latest of them. Its priority is the highest among them, too: one who joins raises it, for what is still to
be asked for, and, where ``raised`` is given, for what waits in a queue already.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Hashable
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from failsoft.base.errors import CallTimeout, DeadlineExceeded, FailsoftError, TaskTimeout
from failsoft.base.futures import heard
from failsoft.kernel.callee import deliver
from failsoft.kernel.deadline import Alarm, heap_of
from failsoft.kernel.scope import Scope, current

__all__ = ["Flights"]


class _Flight:
    __slots__ = ("answers", "scope", "task")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.task: asyncio.Task[Any] | None = None
        self.answers: dict[asyncio.Future[Any], float] = {}
        """Who waits, and until when."""


class Flights:
    """The flights of one downstream, by key. Bounded by what the bulkhead lets wait and run."""

    __slots__ = ("_flights", "_raised", "joined", "started")

    def __init__(self, raised: Callable[[Scope], None] | None = None) -> None:
        self._raised = raised
        self._flights: dict[Hashable, _Flight] = {}
        self.started = 0
        self.joined = 0

    async def join(
        self,
        key: Hashable,
        fly: Callable[[], Awaitable[Any]],
        *,
        timeout: float = math.inf,
        priority: int | None = None,
    ) -> Any:
        """The result of ``fly()``, shared with everybody who asks for `key` while it is under way.

        Waits until the caller's deadline, `timeout` seconds at most. The last to leave cancels the flight. `priority`
        is the caller's; its scope's when None.
        """
        loop = asyncio.get_running_loop()
        inherited = current.get()
        if priority is None:
            priority = inherited.priority
        by, limit = loop.time() + timeout, "call"
        if inherited.deadline < by:
            by, limit = inherited.deadline, inherited.limit
        if by <= loop.time():
            raise _limit_error(limit)  # it could not wait for the answer, so it starts nothing
        flight = self._flights.get(key)
        if flight is None:
            own = replace(inherited, deadline=math.inf, patience=inherited.wanted_until, priority=priority)
            flight = self._flights[key] = _Flight(own)
            self.started += 1
            context = copy_context()
            context.run(current.set, own)
            flight.task = loop.create_task(self._fly(key, flight, fly), context=context)
        else:
            self.joined += 1
            # two things about a flight's scope change, and are read anew by whoever asks a downstream for something
            if inherited.wanted_until > flight.scope.patience:
                object.__setattr__(flight.scope, "patience", inherited.wanted_until)
            if priority < flight.scope.priority:
                object.__setattr__(flight.scope, "priority", priority)
                if self._raised is not None:
                    self._raised(flight.scope)
        answer: asyncio.Future[Any] = loop.create_future()
        flight.answers[answer] = by
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        alarm = Alarm(by, task)
        heap = heap_of(loop)
        heap.arm(alarm)
        try:
            value = await answer
        except CancelledError:
            heap.disarm(alarm)
            self._leave(key, flight, answer)
            if alarm.fired and task.uncancel() <= cancelling:
                raise _limit_error(limit) from None
            raise
        except BaseException:
            heap.disarm(alarm)
            if alarm.fired:
                task.uncancel()
            raise
        heap.disarm(alarm)
        if alarm.fired:
            task.uncancel()
            raise _limit_error(limit)
        return value

    async def _fly(self, key: Hashable, flight: _Flight, fly: Callable[[], Awaitable[Any]]) -> None:
        value, error = None, None
        try:
            if asyncio.get_running_loop().time() >= max(flight.answers.values(), default=math.inf):
                raise _limit_error("call")  # the loop was blocked before the first step: nobody can wait for it
            value = await fly()
        except BaseException as raised:  # noqa: BLE001 - told to everybody who waits, and raised again if it is a cancel
            error = raised
        if self._flights.get(key) is flight:
            del self._flights[key]
        for answer in flight.answers:
            deliver(answer, value, error)
        flight.answers.clear()
        if isinstance(error, CancelledError):
            raise error

    def _leave(self, key: Hashable, flight: _Flight, answer: asyncio.Future[Any]) -> None:
        flight.answers.pop(answer, None)
        heard(answer)
        if not flight.answers and flight.task is not None and not flight.task.done():
            if self._flights.get(key) is flight:
                del self._flights[key]
            flight.task.cancel()

    def __len__(self) -> int:
        return len(self._flights)

    def __repr__(self) -> str:
        return f"<Flights under_way={len(self._flights)} started={self.started} joined={self.joined}>"


def _limit_error(limit: str) -> FailsoftError:
    errors: dict[str, type[FailsoftError]] = {"call": CallTimeout, "task": TaskTimeout}
    return errors.get(limit, DeadlineExceeded)(f"the {limit} limit passed while a shared call was under way")
