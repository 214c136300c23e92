"""HTTP/1.1 as a faulty proxy needs it: heads passed on as they are, bodies taken apart and put together again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

__all__ = ["BadMessage", "Head", "body_of", "chunk", "read_head"]

_HEAD: Final = 65_536
"""Bytes of a head at most."""
PIECE: Final = 65_536
"""Bytes of a body that are passed on at once."""


class BadMessage(Exception):
    """Not HTTP/1.x, or more than we take."""


@dataclass
class Head:
    """A request's or response's first line and its headers, in order, as they came."""

    first: str
    fields: list[tuple[str, str]]

    def get(self, name: str) -> str | None:
        """The header's first value, or None."""
        return next((value for own, value in self.fields if own.lower() == name), None)

    def without(self, *names: str) -> Head:
        """The same without these headers (names in lower case)."""
        return Head(self.first, [(own, value) for own, value in self.fields if own.lower() not in names])

    def with_(self, name: str, value: str) -> Head:
        """The same with one more."""
        return Head(self.first, [*self.fields, (name, value)])

    @property
    def status(self) -> int:
        """A response's status."""
        try:
            return int(self.first.split(" ", 2)[1])
        except (IndexError, ValueError):
            raise BadMessage(f"no status line: {self.first[:80]!r}") from None

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return "chunked" in (self.get("transfer-encoding") or "").lower()

    @property
    def length(self) -> int | None:
        """The declared length of the body; None when there is none."""
        text = self.get("content-length")
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            raise BadMessage("no length")
        return int(text)

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this message."""
        said = (self.get("connection") or "").lower()
        return "close" in said or (self.first.endswith("HTTP/1.0") and "keep-alive" not in said)

    def encode(self) -> bytes:
        """As it goes over the wire."""
        lines = [self.first, *(f"{name}: {value}" for name, value in self.fields)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_head(reader: asyncio.StreamReader, *, already: bytes = b"") -> Head | None:
    """The next head; None when the connection ended before one began."""
    try:
        raw = already + await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not (already + error.partial).strip():
            return None
        raise BadMessage("the connection ended in the middle of a head") from None
    except asyncio.LimitOverrunError:
        raise BadMessage(f"a head of more than {_HEAD} bytes") from None
    lines = raw.decode("latin-1").lstrip("\r\n").rstrip("\r\n").split("\r\n")
    if "HTTP/1." not in lines[0]:
        raise BadMessage(f"not HTTP/1.x: {lines[0][:80]!r}")
    fields = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadMessage(f"no header: {line[:80]!r}")
        fields.append((name.strip(), value.strip()))
    return Head(lines[0], fields)


async def body_of(reader: asyncio.StreamReader, head: Head, *, to_end: bool) -> AsyncIterator[bytes]:
    """The body's bytes as they come, without their framing. `to_end`: without a length it lasts to the end."""
    if head.chunked:
        while True:
            line = await reader.readline()
            try:
                size = int(line.split(b";")[0].strip() or b"x", 16)
            except ValueError:
                raise BadMessage("no chunk size") from None
            if size == 0:
                while (await reader.readline()).strip():
                    pass
                return
            async for piece in _exactly(reader, size):
                yield piece
            await reader.readexactly(2)
    elif (length := head.length) is not None:
        async for piece in _exactly(reader, length):
            yield piece
    elif to_end:
        while piece := await reader.read(PIECE):
            yield piece


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size > 0:
        piece = await reader.read(min(size, PIECE))
        if not piece:
            raise BadMessage("the body broke off")
        size -= len(piece)
        yield piece


def chunk(data: bytes) -> bytes:
    """A piece of a body as a chunk; an empty one ends the body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
