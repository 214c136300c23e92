"""Who watches which run, and the frames that they all get, made once.

A run's events are projected once, however many watch; each watcher only has a place among the frames. One that falls
behind what is kept is told so and cut off, and gets a snapshot when it comes back; nothing grows with slow readers.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from itertools import takewhile
from typing import Any, Final, NamedTuple

from failsoft.base.errors import FailsoftError
from failsoft.base.events import Event
from failsoft.runs.handle import RunHandle
from failsoft.runs.result import RunResult
from failsoft.server.agui import TERMINAL, Projection
from failsoft.server.sse import frame
from failsoft.server.strict import cause_of
from failsoft.server.views import live_view, result_view, stored_view
from failsoft.stores.protocols import RunRecord, StoredEvent, StoredRun

__all__ = ["Audience", "LiveFrames", "Looks", "StoredFrames"]

_FRAMES: Final = 10_000
_BYTES: Final = 8 << 20
"""Frames of a run that are kept for its watchers: how many, and how many bytes."""
_AT_ONCE: Final = 200
"""Events that are projected before others have their turn."""
_PIECE: Final = 64 * 1024
"""Bytes that are handed to one watcher at once, about."""
_POLL: Final = (0.2, 2.0)
"""Seconds between two looks at a run that another process drives: the first, doubled up to the last."""


class _Kept(NamedTuple):
    seq: int
    body: bytes


class _Broadcast:
    """The frames of one run; there while somebody watches."""

    def __init__(self, handle: RunHandle) -> None:
        self.handle = handle
        self.dropped = 0
        """The last event whose frames are no longer kept."""
        self.end: Event | None = None
        self.seen = 0
        self._projection = Projection(handle.run_id, thread_id=handle.request.session_id)
        self._kept: deque[_Kept] = deque()
        self._size = 0

    def catch_up(self) -> bool:
        """Projects some of the events that are new; False when there are none."""
        events = self.handle.since(self.seen)
        if not events:
            return False
        if events[0].seq > self.seen + 1:  # more than a run keeps have passed since the last look
            self.dropped = events[0].seq - 1
            self._kept.clear()
            self._size = 0
            running = {task.id: (task.tool, task.kind) for task in self.handle.tasks() if task.status == "running"}
            self._projection.resume(running)
        for event in events[:_AT_ONCE]:
            self.seen = event.seq
            if event.kind in TERMINAL:
                self.end = event
            elif body := self._projection.frames(event, None):
                self._kept.append(_Kept(event.seq, body))
                self._size += len(body)
        while len(self._kept) > _FRAMES or self._size > _BYTES:
            old = self._kept.popleft()
            self.dropped = old.seq
            self._size -= len(old.body)
        return True

    def after(self, seen: int) -> tuple[bytes, int]:
        """The frames after an event, as many as go at once, and the last event among them."""
        missed = list(takewhile(lambda one: one.seq > seen, reversed(self._kept)))
        found: list[bytes] = []
        size = 0
        while missed and size < _PIECE:
            one = missed.pop()
            found.append(one.body)
            seen = one.seq
            size += len(one.body)
        return b"".join(found), seen

    def last(self, *, strict: bool) -> bytes:
        """The frames of the end."""
        assert self.end is not None
        result = self.handle.result_now()
        view = None if result is None else result_view(result, self.handle)
        return self._projection.frames(self.end, view, cause_of(result) if strict and result is not None else None)

    def snapshot(self) -> bytes:
        """The run as it is now, with the id of the last event that is in it."""
        last = self.seen if self.end is None else self.seen - 1
        return self._projection.snapshot(live_view(self.handle), f"{self.handle.epoch}.{last}")


class Audience:
    """Who watches which run. One idempotency key may bring several clients to a run: the last to leave ends it.

    Only who asked for a run makes it end by leaving; who merely watches it, and runs that are kept, do not.
    """

    def __init__(self) -> None:
        self._watching: Counter[RunHandle] = Counter()  # bounded by the clients there are
        self._owned: set[RunHandle] = set()
        self._broadcasts: dict[RunHandle, _Broadcast] = {}

    def join(self, handle: RunHandle, *, owner: bool = False) -> Callable[[], None]:
        """One more client; the function is to be called when it goes."""
        self._watching[handle] += 1
        if owner:
            self._owned.add(handle)
        left = False

        def leave() -> None:
            nonlocal left
            if left:
                return
            left = True
            self._watching[handle] -= 1
            if self._watching[handle] > 0:
                return
            del self._watching[handle]
            self._broadcasts.pop(handle, None)
            if handle in self._owned:
                self._owned.discard(handle)
                if not handle.kept:
                    handle.cancel()

        return leave

    def broadcast(self, handle: RunHandle) -> _Broadcast:
        """The run's frames, for somebody who has joined."""
        found = self._broadcasts.get(handle)
        if found is None:
            found = self._broadcasts[handle] = _Broadcast(handle)
        return found

    def __repr__(self) -> str:
        return f"<Audience runs={len(self._watching)} watchers={self._watching.total()}>"


class LiveFrames:
    """The frames of a run of this process for one watcher, from the event id `after` on, or from the beginning."""

    def __init__(
        self, audience: Audience, handle: RunHandle, *, after: str | None = None, strict: bool = False
    ) -> None:
        self._broadcast = audience.broadcast(handle)
        self._handle = handle
        self._strict = strict
        self._after = after
        self._seen = -1
        self._over = False

    async def take(self, wait: float) -> bytes | None:
        """See :class:`~failsoft.server.sse.Frames`."""
        if self._over:
            return None
        shared = self._broadcast
        deadline = asyncio.get_running_loop().time() + wait
        while True:
            if shared.catch_up():
                await asyncio.sleep(0)
                if shared.handle.since(shared.seen):
                    continue  # all of it first: a snapshot is of now
            if self._seen < 0 and (first := self._begin()) != b"":
                return first
            if self._seen < shared.dropped:
                self._over = True
                return _lagging()
            body, self._seen = shared.after(self._seen)
            if body:
                return body
            if shared.end is not None:
                self._over = True
                return shared.last(strict=self._strict)
            if self._handle.left:  # whoever watches comes back, with Last-Event-ID, to where the run goes on
                self._over = True
                return None
            if self._handle.done:  # another process goes on with it: who comes back will be told by the store
                self._over = True
                return None
            try:
                async with asyncio.timeout_at(deadline):
                    await self._handle.changed()
            except TimeoutError:
                return b""

    def _begin(self) -> bytes | None:
        """Where to begin: with nothing more to say than what follows, with a snapshot, or not at all."""
        shared = self._broadcast
        known = 0 if self._after is None else self._handle.seq_of(self._after)
        if known is not None and known >= shared.dropped:
            self._seen = known
            if shared.end is not None and known >= shared.end.seq:
                self._over = True
                return None  # it has had the end
            return b""
        self._seen = shared.seen
        return shared.snapshot()


def _lagging() -> bytes:
    value = {"message": "this client read too slowly; come back with Last-Event-ID for the state as it is then"}
    return frame({"type": "CUSTOM", "name": "lagging", "value": value})


class Looks:
    """Looks at stored runs; all who watch the same one share them, one at a time and a few in a second."""

    def __init__(self, load: Callable[..., Coroutine[Any, Any, StoredRun | None]]) -> None:
        self._load = load
        self._kept: dict[str, tuple[float, asyncio.Task[StoredRun | None]]] = {}  # bounded by those who look at once

    def at(self, record: RunRecord) -> Callable[[], Awaitable[StoredRun | None]]:
        """A function that gives the run as it was at most 0.2 s ago; raises what the store raises."""

        async def look() -> StoredRun | None:
            now = asyncio.get_running_loop().time()
            kept = self._kept.get(record.run)
            if kept is None or (kept[1].done() and now - kept[0] >= _POLL[0]):
                for run in [run for run, (at, task) in self._kept.items() if task.done() and now - at >= _POLL[0]]:
                    del self._kept[run]
                task = asyncio.ensure_future(self._load(record.run, tenant=record.tenant))
                task.add_done_callback(lambda task: task.cancelled() or task.exception())  # all may have left
                kept = self._kept[record.run] = now, task
            return await asyncio.shield(kept[1])

        return look


class StoredFrames:
    """The frames of a run that only the store knows, for one watcher; looks again and again until it has ended."""

    def __init__(
        self,
        stored: StoredRun,
        load: Callable[[], Awaitable[StoredRun | None]],
        *,
        after: str | None = None,
        strict: bool = False,
    ) -> None:
        self._stored = stored
        self._load = load
        self._strict = strict
        self._projection = Projection(stored.record.run, thread_id=stored.record.session)
        self._seen = (0, 0)
        self._pause = _POLL[0]
        self._over = False
        self._ready = self._first(after)

    def _first(self, after: str | None) -> bytes:
        """Everything after an id that is known, else a snapshot."""
        found = [(event, self._frames(event)) for event in self._stored.events if event.kind not in TERMINAL]
        ids = {f"{event.epoch}.{event.seq}": index for index, (event, _) in enumerate(found)}
        if found:
            self._seen = (found[-1][0].epoch, found[-1][0].seq)
        whole = bool(found) and found[0][0].seq == 1
        if after is None and whole:
            return b"".join(body for _, body in found)
        if after is not None and after in ids:
            return b"".join(body for _, body in found[ids[after] + 1 :])
        last = None if not found else f"{self._seen[0]}.{self._seen[1]}"
        return self._projection.snapshot(stored_view(self._stored), last)

    def _frames(self, event: StoredEvent) -> bytes:
        run = self._stored.record.run
        told = Event(event.kind, event.at, None, run, event.task, None, event.seq, event.epoch, event.data)
        if event.kind not in TERMINAL:
            return self._projection.frames(told, None)
        cause = cause_of(RunResult.from_stored(self._stored, None)) if self._strict else None
        return self._projection.frames(told, stored_view(self._stored), cause)

    async def take(self, wait: float) -> bytes | None:
        """See :class:`~failsoft.server.sse.Frames`."""
        if self._over:
            return None
        ready, self._ready = self._ready, b""
        if ready:
            return ready
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            if self._stored.terminal is not None:
                self._over = True
                return self._last()
            if loop.time() + self._pause > deadline:
                await asyncio.sleep(max(0.0, deadline - loop.time()))
                return b""
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, _POLL[1])
            try:
                stored = await self._load()
            except FailsoftError:
                continue  # a store that fails is silence; it may be well again
            if stored is None:
                self._over = True
                return b""
            self._stored = stored
            new = [event for event in stored.events if (event.epoch, event.seq) > self._seen]
            if new:
                self._seen = (new[-1].epoch, new[-1].seq)
                self._pause = _POLL[0]
            if body := b"".join(self._frames(event) for event in new if event.kind not in TERMINAL):
                return body

    def _last(self) -> bytes:
        """The end, also when its event is no longer kept, or was never written."""
        stored = self._stored
        result: Mapping[str, Any] = stored.result or {}
        kind = f"run.{stored.terminal}"
        for event in reversed(stored.events):
            if event.kind == kind:
                return self._frames(event)
        data = {"answer": result.get("answer"), "error": result.get("error")}
        epoch, seq = self._seen
        return self._frames(StoredEvent(max(1, epoch), seq + 1, kind, 0.0, None, data))
