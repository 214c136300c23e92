"""One worker process as its parent sees it: started, spoken to, listened to, and ended with all that it has started.

Everything that may block or take long happens in a daemon thread of its own: starting the process, both ends of the
pipes, unpickling results, looking for descendants, waiting for the end. The loop only hands over bytes and a wake-up,
and hears of the end by one callback. So a hostile worker costs its caller's time and nobody else's.

A worker serves one call at a time. What it prints is kept, the last 64 KB of the current call, and never blocks it.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from failsoft.base.errors import DownstreamError, DownstreamUnavailable, MalformedResult, ToolFailed
from failsoft.kernel.child import OUTPUT, Child, Lost, WorkerSettings
from failsoft.kernel.worker import HEADER, MAGIC, frame

__all__ = ["Keeper", "ProcessCall"]

_HEAD: Final = 65_536
"""Bytes that the JSON object of an honest reply never reaches."""


class ProcessCall:
    """A call on its way to a worker, in it, or at its end: the callee of a ticket.

    ``ended(value, error)`` is called on the loop, exactly once, unless the loop is gone; the call is done from then on.
    When the worker had to be killed, that is after it and its descendants are really gone.
    """

    __slots__ = ("_done", "ended", "loop", "name", "output", "pid", "request")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        request: bytes,
        ended: Callable[[Any, BaseException | None], None],
    ) -> None:
        self.loop = loop
        self.name = name
        self.request = request
        self.ended = ended
        self.pid: int | None = None
        self.output = ""
        self._done = False

    def done(self) -> bool:
        """Whether it has ended, with its process if that had to end, and the loop knows."""
        return self._done

    def report(self, value: Any, error: BaseException | None) -> None:
        """The end, on the loop."""
        self._done = True
        self.request = b""
        work_ends = getattr(self.loop, "work_ends", None)
        if work_ends is not None:
            work_ends(repr(self.name))
        self.ended(value, error)

    def __repr__(self) -> str:
        return f"<ProcessCall {self.name} pid={self.pid} {'done' if self._done else 'running'}>"


class Keeper:
    """Keeps one worker process. ``changed(keeper)`` is called on the loop when it is free again, or gone.

    ``run``, ``kill`` and ``close`` are for the loop's thread.
    """

    def __init__(self, settings: WorkerSettings, changed: Callable[[Keeper], None]) -> None:
        self.settings = settings
        self.changed = changed
        self.calls = 0
        self.pid: int | None = None
        self.gone = False
        """Whether the process is reaped and nothing of it is left."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._call: ProcessCall | None = None
        self._next: ProcessCall | None = None
        self._killed: ProcessCall | None = None
        self._closing: DownstreamError | None = None
        self._over = False
        self._started = False
        self._wake = -1
        self._tail = bytearray()
        self._incoming = bytearray()
        self._mark = f"{os.getpid()}.{id(self)}.{time.monotonic_ns()}"

    # --- from the loop -----------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether it has a call."""
        return self._call is not None

    @property
    def retiring(self) -> bool:
        """Whether it takes no more calls: ended, about to be, or used up."""
        return self._over or self._closing is not None or self.calls >= self.settings.max_calls

    def run(self, call: ProcessCall) -> bool:
        """Gives the worker a call; False, and nothing happens, if it has ended meanwhile."""
        with self._lock:
            if self.retiring or self._call is not None:
                return False
            if not self._started and not self._start():
                call.loop.call_soon(self.changed, self)
                raise DownstreamUnavailable("no thread can be started for a worker")
            self._loop = call.loop
            self._call = self._next = call
            self.calls += 1
            call.pid = self.pid
            self._poke()
        work_begins = getattr(call.loop, "work_begins", None)
        if work_begins is not None:
            work_begins(repr(call.name))
        return True

    def kill(self, call: ProcessCall) -> None:
        """Ends the process, now, if `call` is still its call."""
        with self._lock:
            if self._call is call:
                self._killed = call
                self._poke()

    def close(self, why: str = "the pool was closed", loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Ends the process, now; a call in it fails as unavailable because of `why`."""
        with self._lock:
            self._loop = loop or self._loop
            if self._closing is None:
                self._closing = DownstreamUnavailable(why)
            if not self._started:
                self._over = self.gone = True
            if not self.gone:
                self._poke()
                return
        self.changed(self)  # again, if need be: a loop that was closed may not have heard of it

    def _start(self) -> bool:
        self._started = True
        try:
            threading.Thread(target=self._work, name=f"failsoft-worker-{self._mark}", daemon=True).start()
        except RuntimeError:  # too many
            self._over = self.gone = True
        return not self.gone

    def _poke(self) -> None:
        if self._wake >= 0:
            with suppress(BlockingIOError):  # full of wake-ups
                os.write(self._wake, b"!")

    # --- the thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        process = None
        try:
            process = Child(self.settings, self._mark)
            with self._lock:
                self.pid = process.pid
                self._wake = process.wake
                if self._call is not None:
                    self._call.pid = self.pid
            process.send(frame({"path": sys.path, "memory": self.settings.memory_limit}))
            self._serve(process)
        except Lost as lost:
            self._end(process, lost)
        except OSError as error:
            self._end(process, Lost(DownstreamUnavailable(f"no worker could be started: {type(error).__name__}")))
        except BaseException as error:  # noqa: BLE001 - a defect here must not leave a caller waiting or a process alive
            failed = DownstreamUnavailable("the worker's keeper failed", details={"exception": repr(error)})
            self._end(process, Lost(failed))

    def _serve(self, process: Child) -> None:
        """Passes calls to the process and replies to the loop; ends by raising ``Lost``."""
        while True:
            self._take_next(process)
            ready = process.wait()
            if process.output in ready:
                self._hear(process)
            if process.replies in ready:
                self._read_reply(process)
            if process.requests in ready:
                process.flush()
            if process.died(ready):
                while process.readable(process.replies):  # it may have replied before it ended
                    self._read_reply(process)
                raise Lost(died=True)

    def _take_next(self, process: Child) -> None:
        with self._lock:
            if self._closing is not None:
                raise Lost(self._closing)
            killed, self._killed = self._killed, None
            if killed is not None and killed is self._call:
                raise Lost(DownstreamUnavailable("the worker was killed at its caller's end"))
            call, self._next = self._next, None
        if call is None:
            return
        if self._incoming:
            raise Lost(MalformedResult("the worker wrote out of turn"))
        process.hear_out()  # what an earlier call printed is none of this one's business
        self._tail.clear()
        process.send(call.request)

    def _hear(self, process: Child) -> None:
        self._tail += process.hear()
        if len(self._tail) > 2 * OUTPUT:
            del self._tail[:-OUTPUT]

    def _read_reply(self, process: Child) -> None:
        limit = self.settings.max_result_bytes
        incoming = self._incoming
        chunk = process.read_reply()
        if not chunk:
            raise Lost(DownstreamUnavailable("the worker closed its pipe"), died=process.dies())
        incoming += chunk
        if len(incoming) < HEADER.size:
            return
        magic, head_size, body_size = HEADER.unpack_from(incoming)
        if magic != MAGIC or head_size > _HEAD:
            raise Lost(MalformedResult("the worker wrote something that is no reply"))
        if body_size > limit:
            raise Lost(
                MalformedResult(
                    f"the result has {body_size} bytes; at most {limit} are taken",
                    details={"bytes": body_size, "limit": limit},
                )
            )
        head_end = HEADER.size + head_size
        if len(incoming) < head_end + body_size:
            return
        self._incoming = bytearray()
        self._take_reply(process, memoryview(incoming), head_end, len(incoming) > head_end + body_size)

    def _take_reply(self, process: Child, reply: memoryview, head_end: int, surplus: bool) -> None:
        """A reply is complete."""
        try:
            head = json.loads(bytes(reply[HEADER.size : head_end]))
            end, left, stage = head["end"], head["left"], head.get("stage")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Lost(MalformedResult("the worker wrote something that is no reply")) from None
        if stage == "setup":
            raise Lost(_told(head))
        if surplus or self._call is None or process.unsent:
            raise Lost(MalformedResult("the worker wrote out of turn"))
        value: Any = None
        error: DownstreamError | None = None
        if end == "value":
            try:
                value = pickle.loads(reply[head_end:])  # noqa: S301 - a worker runs our code; see ProcessPool on trust
            except BaseException as raised:  # noqa: BLE001 - whatever a result does while it is read
                error = MalformedResult(
                    "the result cannot be unpickled", details={"exception": type(raised).__qualname__}
                )
        else:
            error = _told(head)
        if left:  # the call is over when what it has left behind is over, too
            raise Lost(error, value=value, served=error is None)
        self._deliver(process, value, error)

    def _deliver(self, process: Child, value: Any, error: DownstreamError | None) -> None:
        """A call ends, and the process lives."""
        if error is not None:
            self._tail += process.hear_out()
        with self._lock:
            call, self._call = self._call, None
            used_up = self.calls >= self.settings.max_calls  # seen now: soon it may have its last call
        assert call is not None
        call.output = self._said()
        if error is not None:
            error.details = {**error.details, "pid": process.pid, "output": call.output}
        self._tell(call, value, error, gone=False)
        if used_up:
            raise Lost

    def _end(self, process: Child | None, lost: Lost) -> None:
        """Ends the process with its descendants, then the call that was in it, then this keeper."""
        with self._lock:
            self._over = True
            self._wake = -1
        details: dict[str, Any] = {}
        error = lost.error
        if process is not None:
            process.stop(self._mark)
            self._tail += process.hear_out()  # its last words
            status = process.reap()
            details = {"pid": process.pid, "output": self._said()}
            if lost.died:
                how = _how_it_ended(status)
                error = DownstreamUnavailable(f"the worker {how.pop('how')}")
                details.update(how)
        with self._lock:
            call, self._call = self._call, None
        if call is not None:
            call.output = self._said()
            if not lost.served:
                error = error or DownstreamUnavailable("the worker has ended")
                error.details = {**error.details, **details}
        self._tell(call, lost.value, error, gone=True)

    def _said(self) -> str:
        return bytes(self._tail[-OUTPUT:]).decode(errors="replace")

    def _tell(self, call: ProcessCall | None, value: Any, error: BaseException | None, *, gone: bool) -> None:
        with self._lock:
            self.gone = gone
            loop = self._loop
        if call is not None:
            with suppress(RuntimeError):
                call.loop.call_soon_threadsafe(self._on_loop, call, value, error)
                return
        if loop is not None:  # there is no call to end, or its loop is closed
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_loop, None, None, None)

    def _on_loop(self, call: ProcessCall | None, value: Any, error: BaseException | None) -> None:
        try:
            if call is not None:
                call.report(value, error)
        finally:
            self.changed(self)

    def __repr__(self) -> str:
        state = "gone" if self.gone else "busy" if self.busy else "idle"
        return f"<Keeper {state} pid={self.pid} calls={self.calls}>"


def _how_it_ended(status: int) -> dict[str, Any]:
    if status >= 0:
        return {"how": f"ended with exit code {status}", "exit_code": status}
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    return {"how": f"was killed by {name}", "signal": name}


def _told(head: dict[str, Any]) -> DownstreamError:
    """The error that a worker's reply describes."""
    kind, stage = str(head.get("type")), head.get("stage")
    details = {"exception": kind, "message": head.get("message"), "traceback": head.get("traceback")}
    if stage == "result":
        return MalformedResult(f"the result cannot be pickled: {kind}", details=details)
    if stage == "setup":
        return DownstreamUnavailable(f"the worker could not be set up: {kind}", details=details)
    where = {"function": " while the function was looked up", "arguments": " while the arguments were read"}
    return ToolFailed(f"{kind} was raised in the worker{where.get(str(stage), '')}", details=details)
