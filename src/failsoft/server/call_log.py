"""One JSON line for each gateway call: who, what, which routes, which limit, where the time went; never what was said.

Lines are gathered and handed to a thread of their own in batches, so that a full pipe or a slow disk holds up neither
the loop nor a call; what it cannot take is dropped and counted.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from typing import Final, Literal

import msgspec

__all__ = ["CallLine", "CallLog"]

_EVERY: Final = 0.1
"""Seconds for which lines are gathered."""
_BATCHES: Final = 64
"""Batches that may wait for the thread."""
_BATCH_BYTES: Final = 256 * 1024
"""A batch of this size goes at once."""

_encode = msgspec.json.Encoder().encode


class CallLine(msgspec.Struct, omit_defaults=True):
    """A line's fields; times in milliseconds (``own_us``, our own part, in microseconds), ``ts`` in seconds since the
    epoch. What is not known is left out.

    ``fired`` names the limit that ended an attempt or the call, ``limits`` what set those for first content, idle and
    total.
    """

    ts: float
    request_id: str
    operation: str
    status: int
    ms: int
    key: str | None = None
    tenant: str | None = None
    alias: str | None = None
    route: str | None = None
    model: str | None = None
    stream: bool = False
    attempts: int = 0
    fallbacks: list[str] = []
    code: str | None = None
    fired: str | None = None
    limits: tuple[str, str, str] | None = None
    budget_ms: int | None = None
    remaining_ms: int | None = None
    queue_ms: int = 0
    first_ms: int | None = None
    decode_ms: int | None = None
    own_us: int | None = None
    cache: str = "off"
    degraded: bool = False
    seam: bool = False
    finish: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class CallLog:
    """Writes lines to a file descriptor; `fd` None: nowhere. Use it from one event loop, and close it."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._lines: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._batches: queue.Queue[bytes | None] = queue.Queue(_BATCHES)
        self._thread: threading.Thread | None = None
        self.dropped = 0

    @classmethod
    def named(cls, where: Literal["stderr", "stdout", "off"]) -> CallLog:
        """The log that the settings name."""
        return cls({"stderr": 2, "stdout": 1, "off": None}[where])

    @property
    def on(self) -> bool:
        """Whether lines go anywhere."""
        return self._fd is not None

    def write(self, line: msgspec.Struct) -> None:
        """Takes a line; never waits."""
        if self._fd is None:
            return
        encoded = _encode(line)
        self._lines.append(encoded)
        self._size += len(encoded)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._flush)
        elif self._size > _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines, self._size = self._lines, [], 0
        if not lines:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="call-log", daemon=True)
            self._thread.start()
        try:
            self._batches.put_nowait(b"\n".join(lines) + b"\n")
        except queue.Full:
            self.dropped += len(lines)

    def _work(self) -> None:
        assert self._fd is not None
        while (batch := self._batches.get()) is not None:
            view = memoryview(batch)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:  # nobody reads any more
                self.dropped += batch.count(b"\n")

    def close(self, wait: float = 1.0) -> None:
        """Writes what is left, for at most `wait` seconds."""
        self._flush()
        if self._thread is not None:
            try:
                self._batches.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(wait)
            self._thread = None

    def __repr__(self) -> str:
        return f"<CallLog fd={self._fd} dropped={self.dropped}>"
