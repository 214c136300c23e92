"""Server-sent events from bytes, however they were cut: the format of the HTML standard, section 9.2.6."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Final, NamedTuple

from failsoft.base.errors import MalformedResult

__all__ = ["SseEvent", "SseParser", "events"]

_MAX: Final = 4_000_000
"""Characters of one event; a peer that never ends a line must not fill the memory."""


class SseEvent(NamedTuple):
    """One event; ``event`` is ``message`` when the stream gave no name."""

    data: str
    event: str = "message"
    id: str | None = None


class SseParser:
    """Takes bytes, gives events. Characters and line ends may be split anywhere; comments are skipped. `begun`: the
    first bytes are not the stream's first.
    """

    __slots__ = ("_between", "_buffer", "_cr", "_data", "_decoder", "_event", "_id", "_size", "_start")

    def __init__(self, *, begun: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._buffer = ""
        self._data: list[str] = []
        self._size = 0
        self._event = "message"
        self._id: str | None = None
        self._start = not begun
        self._cr = False
        self._between = True
        """Whether nothing is pending: the next byte begins an event."""

    @property
    def between(self) -> bool:
        """Whether nothing is pending: the next byte begins an event."""
        return self._between

    def payloads(self, chunk: bytes) -> list[bytes] | list[str]:
        """The data of the events that this piece completes; as it came, when there is nothing to it but plain events.

        That is what model servers send, and a sixth of the work.
        """
        if self._between and chunk[:6] == b"data: " and chunk[-2:] == b"\n\n" and b"\r" not in chunk:
            found = chunk[6:-2].split(b"\n\ndata: ")
            if chunk.count(b"\n") == 2 * len(found) and _is_text(chunk):
                self._start = False
                return found
        return [event.data for event in self.feed(chunk)]

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        """The events that this piece completes. Raises :class:`MalformedResult` for an event of more than 4 MB."""
        self._between = False
        text = self._decoder.decode(chunk)
        if not text:
            return
        if self._start:
            text = text.removeprefix("\ufeff")
            self._start = False
        if self._cr:  # the line ended with the carriage return of the last piece; its line feed belongs to it
            text = text.removeprefix("\n")
            self._cr = False
        self._cr = text.endswith("\r")
        lines = (self._buffer + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._buffer = lines.pop()
        for line in lines:
            event = self._line(line)
            if event is not None:
                yield event
        # a line feed as the last byte: no character is half there, either
        self._between = not self._buffer and not self._data and self._event == "message" and chunk[-1:] == b"\n"
        if len(self._buffer) + self._size > _MAX:
            raise MalformedResult(f"an event of the stream has more than {_MAX} characters")

    def _line(self, line: str) -> SseEvent | None:
        if not line:
            if not self._data:
                self._event = "message"
                return None
            event = SseEvent("\n".join(self._data), self._event, self._id)
            self._data, self._size, self._event = [], 0, "message"
            return event
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None


def _is_text(chunk: bytes) -> bool:
    if chunk.isascii():
        return True
    try:
        chunk.decode()
    except UnicodeDecodeError:
        return False
    return True


async def events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[SseEvent, None]:
    """The events of a body as it arrives; one that the body's end cuts off is dropped, as the standard says."""
    parser = SseParser()
    try:
        async for chunk in chunks:
            for event in parser.feed(chunk):
                yield event
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
