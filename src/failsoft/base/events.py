"""The one stream of events: a cheap immutable envelope, and a fan-out that neither blocks nor breaks a call.

An :class:`Event` is a named tuple (0.3 µs to make; a frozen dataclass of as many fields takes 1 µs). Listeners are
plain synchronous functions run in the emitter's thread after its state is consistent: they cannot await, and what
they raise is counted, never propagated. A listener that needs time takes a :class:`Subscription`, a bounded buffer
that drops its oldest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, NamedTuple

__all__ = ["Event", "EventBus", "Listener", "Subscription"]


class Event(NamedTuple):
    """Something that happened.

    ``at`` is the emitting loop's monotonic time in seconds; wall-clock time is added only where events are stored.
    ``seq`` counts within one ``(run, epoch)`` for run events, so ``f"{epoch}.{seq}"`` is a resumable id; 0 for kernel
    events. ``data`` is plain data, specific to ``kind``; kinds are dotted, subject first: ``call.finished``,
    ``breaker.opened``.
    """

    kind: str
    at: float
    downstream: str | None = None
    run: str | None = None
    task: str | None = None
    tenant: str | None = None
    seq: int = 0
    epoch: int = 0
    data: Any = None

    @property
    def id(self) -> str:
        """``epoch.seq``, unique and ordered within a run."""
        return f"{self.epoch}.{self.seq}"


Listener = Callable[[Event], None]
Hears = Callable[[str], bool]

_KINDS: Final = 1_000
"""Kinds of events whose listeners are remembered."""


class EventBus:
    """Fans events out to listeners, in the order they were added; each may say of which kinds it wants to hear.

    ``emit`` never raises (an exception of a listener is counted in ``errors``) and never blocks. With no listeners,
    ``bus.listeners`` is an empty tuple: hot paths test it before they build an event.
    """

    __slots__ = ("_by_kind", "_only", "errors", "last_error", "listeners")

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self.listeners: tuple[Listener, ...] = tuple(listeners)
        self._only: tuple[Hears | None, ...] = (None,) * len(self.listeners)
        self._by_kind: dict[str, tuple[Listener, ...]] = {}
        self.errors = 0
        self.last_error: BaseException | None = None

    def add(self, listener: Listener, *, only: Hears | None = None) -> Callable[[], None]:
        """Adds a listener; returns a function that removes it again (harmless when called twice).

        ``only(kind)`` says whether it hears of events of that kind; it is asked once for each kind, and must
        not raise.
        """
        self._set((*zip(self.listeners, self._only, strict=True), (listener, only)))

        def remove() -> None:
            self._set(pair for pair in zip(self.listeners, self._only, strict=True) if pair[0] is not listener)

        return remove

    def _set(self, pairs: Iterable[tuple[Listener, Hears | None]]) -> None:
        kept = tuple(pairs)
        self.listeners, self._only = tuple(one for one, _ in kept), tuple(only for _, only in kept)
        self._by_kind = {}

    def _who(self, kind: str) -> tuple[Listener, ...]:
        """The listeners that hear of a kind."""
        if len(self._by_kind) >= _KINDS:
            self._by_kind = {}
        pairs = zip(self.listeners, self._only, strict=True)
        who = self._by_kind[kind] = tuple(one for one, only in pairs if only is None or only(kind))
        return who

    def emit(self, event: Event) -> None:
        """Hands `event` to every listener that hears of its kind."""
        who = self._by_kind.get(event.kind)
        for listener in self._who(event.kind) if who is None else who:
            try:
                listener(event)
            except KeyboardInterrupt:
                raise  # the user's, wherever it happened to arrive
            except BaseException as error:  # noqa: BLE001 - a listener must never break a call, nor cancel it
                self.errors += 1
                self.last_error = error

    def subscribe(self, *, size: int = 1000, only: Callable[[Event], bool] | None = None) -> Subscription:
        """A bounded buffer of events that one coroutine iterates over; close it (or leave its ``with``) when done."""
        return Subscription(self, size=size, only=only)

    def __repr__(self) -> str:
        return f"<EventBus listeners={len(self.listeners)} errors={self.errors}>"


class Subscription:
    """An asynchronous iterator over events with room for `size` of them; when full, the oldest is dropped and
    counted.
    """

    def __init__(self, bus: EventBus, *, size: int = 1000, only: Callable[[Event], bool] | None = None) -> None:
        self._events: deque[Event] = deque(maxlen=size)
        self._only = only
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self.dropped = 0
        self._remove = bus.add(self._receive)

    def _receive(self, event: Event) -> None:
        if self._only is not None and not self._only(event):
            return
        if len(self._events) == self._events.maxlen:
            self.dropped += 1
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def close(self) -> None:
        """Stops receiving; the iterator ends after what is buffered."""
        self._closed = True
        self._remove()
        self._wake()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._events.popleft()
