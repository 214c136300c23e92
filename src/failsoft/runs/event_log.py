"""What one run says: numbered, kept for those who watch it or come back to it, told to listeners, on its way to the
store.

Ended runs keep many events, so they are kept as what the collector of garbage looks at but once: plain tuples of text
and numbers, and their data apart.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from failsoft.base.events import Event, EventBus

if TYPE_CHECKING:
    from failsoft.runs.recorder import Recorder

__all__ = ["Emit", "EventLog"]

Emit = Callable[[str, str | None, Any], None]
"""``emit(kind, task, data)``."""

_new = tuple.__new__
"""Makes an event at half the cost of calling its class."""

_KEPT: Final = 10_000
"""Events that are kept; the oldest are dropped beyond."""


class EventLog:
    """The events of one run, which is known as ``run`` at an ``epoch``. Once ``closed``, nothing is added any more.

    ``recorder`` is how they get to the store, None when there is none or they are there already; ``soon`` when another
    process may have to go on from them.
    """

    __slots__ = (
        "_bus",
        "_data",
        "_kept",
        "_loop",
        "_watchers",
        "closed",
        "epoch",
        "recorder",
        "run",
        "seq",
        "soon",
        "tenant",
    )

    def __init__(
        self, run: str, tenant: str | None, bus: EventBus, recorder: Recorder | None, *, soon: bool = True
    ) -> None:
        self.run = run
        self.soon = soon
        self.tenant = tenant
        self.epoch = 1
        self.seq = 0
        self.closed = False
        self.recorder = recorder
        self._bus = bus
        self._loop = asyncio.get_running_loop()
        self._kept: deque[tuple[str, float, str | None]] = deque(maxlen=_KEPT)
        self._data: deque[Any] = deque(maxlen=_KEPT)
        self._watchers: dict[asyncio.Future[None], None] = {}

    def emit(self, kind: str, task: str | None = None, data: Any = None) -> None:
        """Says something, unless the log is closed; never raises."""
        if not self.closed:
            self.tell(self.note(kind, task, data))

    def note(self, kind: str, task: str | None, data: Any) -> Event:
        """Keeps a new event and sends it to the store; who listens is still to be told."""
        self.seq = seq = self.seq + 1
        now = self._loop.time()
        self._kept.append((kind, now, task))
        self._data.append(data)
        event = _new(Event, (kind, now, None, self.run, task, self.tenant, seq, self.epoch, data))
        if self.recorder is not None:
            self.recorder.put(event, soon=self.soon)
        return event

    def tell(self, event: Event | None) -> None:
        """Tells whoever listens or watches; of None only that something has changed."""
        bus = self._bus
        if event is not None and bus.listeners:
            try:
                bus.emit(event)
            except BaseException:  # noqa: BLE001 - a listener that raises CancelledError or SystemExit breaks no run
                bus.errors += 1
        if self._watchers:
            watchers, self._watchers = self._watchers, {}
            for watcher in watchers:
                if not watcher.done():
                    watcher.set_result(None)

    # --- reading ---------------------------------------------------------------------------------------------------

    def since(self, seen: int) -> list[Event]:
        """The kept events after the `seen`-th; the first of them is not the next one when that is no longer kept."""
        run, tenant, epoch = self.run, self.tenant, self.epoch
        missed = max(0, min(self.seq - seen, len(self._kept)))
        newest = zip(range(self.seq, self.seq - missed, -1), reversed(self._kept), reversed(self._data), strict=False)
        found = [
            _new(Event, (kind, at, None, run, task, tenant, number, epoch, data))
            for number, (kind, at, task), data in newest
        ]
        found.reverse()
        return found

    def last(self, kind: str, *, of: int) -> list[tuple[float, Any]]:
        """When something of a kind was said, and what, among the newest `of` events, newest first."""
        kept = zip(range(of), reversed(self._kept), reversed(self._data), strict=False)
        return [(at, data) for _, (one, at, _), data in kept if one == kind]

    def watch(self) -> asyncio.Future[None]:
        """A future that is done at the next event."""
        watcher: asyncio.Future[None] = self._loop.create_future()
        self._watchers[watcher] = None
        return watcher

    def unwatch(self, watcher: asyncio.Future[None]) -> None:
        """Takes a watcher back."""
        self._watchers.pop(watcher, None)

    def __repr__(self) -> str:
        return f"<EventLog {self.run} {self.epoch}.{self.seq}>"
