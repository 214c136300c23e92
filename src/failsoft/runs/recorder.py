"""Writing behind: what a run says is queued in memory and written in groups, off the way of every answer.

A store that fails or hangs costs no run its answer: the loss is counted, and named in the results of the runs it
concerns.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from failsoft.base.errors import FailsoftError, StoreError
from failsoft.base.events import Event
from failsoft.kernel.classify import as_error
from failsoft.runs.crew import Crew, within
from failsoft.runs.progress import History
from failsoft.stores.protocols import (
    AppendEvents,
    CreateRun,
    Duration,
    FinishRun,
    RunStore,
    StoredEvent,
    Write,
)

__all__ = ["Recorder", "RecorderStatistics"]

_log = logging.getLogger(__name__)

_RUNS_REMEMBERED: Final = 1_000
_GROUP: Final = 200
"""Entries that are made into writes at once: making them holds up the loop."""
_GATHERED: Final = 0.01
"""Seconds that entries for which nobody waits are gathered, so that one commit does for many."""
_DURATIONS_EVERY: Final = 1.0
"""Seconds between two writes of how long things took: only the next start reads them."""
_PER_KEY: Final = 50
"""Durations of one key that are worth writing at once, the newest."""

Entry = Event | Callable[[], Write] | asyncio.Future[None]
"""An event, or a function that makes a write when it is written: making it costs the run nothing. A future is done
when all that came before it is written, or lost.
"""


@dataclass(frozen=True, slots=True)
class RecorderStatistics:
    """Entries ``waiting`` now; since the start ``written``, ``dropped`` (no room, store failed), ``conflicts``."""

    waiting: int
    written: int
    dropped: int
    conflicts: int
    errors: int
    last_error: str | None


class Recorder:
    """One writer per app. At most ``room`` entries wait; the oldest are dropped and counted beyond it."""

    def __init__(
        self,
        store: RunStore,
        crew: Crew,
        history: History,
        wall: Callable[[], float],
        *,
        room: int = 20_000,
        timeout: float = 5.0,
        on_conflict: Callable[[str, int], None] | None = None,
    ) -> None:
        self._on_conflict = on_conflict
        self._store = store
        self._crew = crew
        self._history = history
        self._wall = wall
        self._timeout = timeout
        self._room = room
        self._entries: deque[Entry] = deque()
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.Future[None] | None = None
        self._soon = self._gathering = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._durations_due = -math.inf
        self._failed: OrderedDict[str, FailsoftError] = OrderedDict()
        self._written = self._dropped = self._conflicts = self._errors = 0
        self._last_error: FailsoftError | None = None

    def put(self, entry: Entry, *, soon: bool = True) -> None:
        """Queues an entry; never blocks, never raises. What is not to be written `soon` may wait for more to come."""
        if len(self._entries) >= self._room:
            lost = self._entries.popleft()
            self._dropped += 1
            if isinstance(lost, asyncio.Future):
                _done(lost)
            elif isinstance(lost, Event) and lost.run is not None and lost.run not in self._failed:
                self.note(lost.run, StoreError("the store is too slow: not everything of this run was written"))
        self._entries.append(entry)
        self._soon = self._soon or soon
        if self._soon or not self._gathering or len(self._entries) >= _GROUP:
            self._go_on()

    def _go_on(self) -> None:
        wake = self._wake
        if wake is not None and not wake.done():
            wake.set_result(None)

    def failure(self, run: str) -> FailsoftError | None:
        """What went wrong with writes of this run, if anything did so far."""
        return self._failed.get(run)

    def note(self, run: str, error: BaseException) -> FailsoftError:
        """Remembers that the store failed a run."""
        mapped = as_error(error)
        self._errors += 1
        self._last_error = mapped
        self._failed[run] = mapped
        if len(self._failed) > _RUNS_REMEMBERED:
            self._failed.popitem(last=False)
        return mapped

    async def work(self) -> None:
        """Writes what is queued, group after group, until cancelled."""
        while True:
            if not self._entries:
                self._idle.set()
                self._wake = self._loop.create_future()
                try:
                    await self._wake
                finally:
                    self._wake = None
            self._idle.clear()
            if not self._soon and len(self._entries) < _GROUP:
                await self._gather()
            entries = deque(self._entries.popleft() for _ in range(min(_GROUP, len(self._entries))))
            self._soon = self._soon and bool(self._entries)
            await self._write(entries)

    async def _gather(self) -> None:
        """Waits a moment for more to be written at once."""
        self._wake = self._loop.create_future()
        self._gathering = True
        timer = self._loop.call_later(_GATHERED, self._go_on)
        try:
            await self._wake
        finally:
            timer.cancel()
            self._wake, self._gathering = None, False

    async def _write(self, entries: deque[Entry]) -> None:
        writes: list[Write] = []
        try:
            writes = self._grouped(entries)
            errors = await within(
                self._crew,
                self._store.write(writes),
                at=self._loop.time() + self._timeout,
                what="writing to the store",
            )
            for write, error in zip(writes, errors, strict=True):
                if error is None:
                    self._written += 1
                else:
                    self._conflicts += 1
                    self._last_error = error
                    if self._on_conflict is not None and not isinstance(write, CreateRun):
                        self._on_conflict(write.run, write.epoch)
            if self._loop.time() >= self._durations_due:
                await self._write_durations()
        except Exception as error:  # noqa: BLE001 - whatever a store raises is counted and named
            mapped = as_error(error)
            _log.warning("the store failed, %d entries are lost: %s", len(entries), mapped.message)
            self._dropped += len(entries)
            for run in {write.run for write in writes}:
                self.note(run, mapped)
        finally:
            for entry in entries:
                if isinstance(entry, asyncio.Future):
                    _done(entry)

    async def _write_durations(self) -> None:
        """What was learned since the last time, as far as it is not outdated already."""
        self._durations_due = self._loop.time() + _DURATIONS_EVERY
        newest: dict[str, deque[float]] = {}
        for key, seconds in self._history.take_pending():
            newest.setdefault(key, deque(maxlen=_PER_KEY)).append(seconds)
        if newest:
            await within(
                self._crew,
                self._store.record_durations([Duration(key, one) for key, kept in newest.items() for one in kept]),
                at=self._loop.time() + self._timeout,
                what="writing durations to the store",
            )

    def _grouped(self, entries: deque[Entry]) -> list[Write]:
        """The writes in order, with neighbouring events of a run in one."""
        offset = self._wall() - self._loop.time()
        writes: list[Write] = []
        pending: dict[tuple[str, int], list[StoredEvent]] = {}
        for entry in entries:
            if isinstance(entry, asyncio.Future):
                continue
            if isinstance(entry, Event):
                key = (entry.run or "", entry.epoch)
                stored = StoredEvent(entry.epoch, entry.seq, entry.kind, entry.at + offset, entry.task, entry.data)
                pending.setdefault(key, []).append(stored)
                continue
            try:
                write = entry()
            except Exception:  # noqa: BLE001 - one bad entry must not cost the others
                _log.exception("an entry for the store could not be made")
                self._dropped += 1
                continue
            if isinstance(write, FinishRun):
                before = [key for key in pending if key[0] == write.run]
                writes.extend(AppendEvents(*key, tuple(pending.pop(key))) for key in before)
            writes.append(write)
        writes.extend(AppendEvents(*key, tuple(events)) for key, events in pending.items())
        return writes

    async def flush(self, seconds: float) -> bool:
        """Waits until everything queued so far is written (or lost), `seconds` at most; whether it is."""
        if not self._entries and self._idle.is_set():
            return True
        mark: asyncio.Future[None] = self._loop.create_future()
        self.put(mark)
        try:
            async with asyncio.timeout(seconds):
                await mark
        except TimeoutError:
            return False
        return True

    async def drain(self) -> None:
        """Waits until everything is written (or lost)."""
        self._soon = True
        self._go_on()
        while self._entries or not self._idle.is_set():
            await self._idle.wait()
            await asyncio.sleep(0)
        try:
            await self._write_durations()
        except Exception as error:  # noqa: BLE001 - whatever a store raises: estimates start anew, and nothing else
            _log.warning("the store failed, the newest durations are lost: %s", as_error(error).message)

    def statistics(self) -> RecorderStatistics:
        """Figures as of now."""
        return RecorderStatistics(
            len(self._entries),
            self._written,
            self._dropped,
            self._conflicts,
            self._errors,
            self._last_error.message if self._last_error is not None else None,
        )

    def __repr__(self) -> str:
        return f"<Recorder waiting={len(self._entries)} written={self._written} dropped={self._dropped}>"


def _done(mark: asyncio.Future[None]) -> None:
    if not mark.done():
        mark.set_result(None)
