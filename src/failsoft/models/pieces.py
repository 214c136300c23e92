"""A streamed answer piece by piece: what one read of the network gave, known well enough to be passed on as it came.

A model's stream is hundreds of events that differ in a few characters of text. So the first plain ones are decoded and
become a :class:`Template`: the bytes around the text. An event of the same bytes around another JSON string is sound
and means the same, so nothing but its text is decoded; a run of such events is one search for the seam between two.
All other events are read one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from failsoft.models.chunks import CONTENT, REASONING, ROLE, Chunk, read_chunk

__all__ = ["Piece", "Run", "Template", "framed", "template_of"]

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)

_decode_text = msgspec.json.Decoder(str).decode
_new = tuple.__new__


class Template:
    """The bytes around the text of a stream's plain events; ``name`` is the text's place in the delta."""

    __slots__ = ("head", "index", "joint", "kind", "name", "size", "tail")

    def __init__(self, name: str, index: int, kind: int, before: bytes, after: bytes) -> None:
        self.name = name
        self.index = index
        self.kind = kind
        self.head = b"data: " + before
        self.tail = after + b"\n\n"
        self.joint = self.tail + self.head
        self.size = len(self.head) + len(self.tail)

    def text_of(self, event: bytes) -> str | None:
        """The text of `event`, framed, if it is of this template."""
        head, tail = self.head, self.tail
        if len(event) >= self.size and event.startswith(head) and event.endswith(tail):
            return _text(event[len(head) - 1 : 1 - len(tail)])
        return None

    def run(self, data: bytes, at: int) -> tuple[Run | None, int]:
        """All events from `at` to the last one of this template, and where they end; None if not all are of it."""
        head, tail = self.head, self.tail
        last = data.rfind(tail, at + len(head))
        if last < 0:
            return None, at + 1
        end = last + len(tail)
        quoted = b"".join(data[at + len(head) - 1 : last + 1].rsplit(self.joint))  # rsplit: twice as fast as split
        # an escape might begin in one event and end in the next, which makes both of them unsound
        text = None if b"\\" in quoted else _text(quoted)
        return None if text is None else _new(Run, (data[at:end], self, text)), end


class Run(NamedTuple):
    """Events of one template, one after the other: as they came, with their ``text`` put together."""

    raw: bytes
    template: Template
    text: str

    def chunks(self) -> Iterator[Chunk]:
        """The same, event by event."""
        for event in self.raw[6:-2].split(b"\n\ndata: "):
            yield read_chunk(event)


class Piece:
    """Events that came together. ``raw`` is how they go out, ``kinds`` a mask of all that is in them.

    Iterating gives the chunks, decoding what was not.
    """

    __slots__ = ("items", "kinds", "raw")

    def __init__(self, raw: bytes, items: list[Chunk | Run], kinds: int) -> None:
        self.raw = raw
        self.items = items
        self.kinds = kinds

    @classmethod
    def of(cls, chunks: list[Chunk]) -> Piece:
        """A piece of chunks."""
        kinds = 0
        for chunk in chunks:
            kinds |= chunk.kinds
        return cls(framed(chunks), list(chunks), kinds)

    def keep(self, items: list[Chunk | Run]) -> None:
        """Leaves only `items` of it; they may be others than those that were there."""
        self.items = items
        self.raw = framed(items)

    def __iter__(self) -> Iterator[Chunk]:
        for item in self.items:
            if isinstance(item, Run):
                yield from item.chunks()
            else:
                yield item

    def __repr__(self) -> str:
        return f"<Piece items={len(self.items)} kinds={self.kinds} bytes={len(self.raw)}>"


def framed(items: list[Chunk] | list[Chunk | Run]) -> bytes:
    """Items as server-sent events."""
    parts = []
    for item in items:
        raw = item.raw
        if item.__class__ is Chunk:
            if b"\n" in raw:
                raw = raw.replace(b"\n", b"\ndata: ")
            raw = b"data: %b\n\n" % raw
        parts.append(raw)
    return b"".join(parts)


def _text(quoted: bytes) -> str | None:
    """The text of a JSON string; None when it is none."""
    try:
        return _decode_text(quoted)
    except (msgspec.MsgspecError, ValueError):
        return None


_TEXTS: Final = {"content": CONTENT, "reasoning_content": REASONING, "reasoning": REASONING}


def template_of(chunk: Chunk) -> Template | None:
    """What a chunk that says one text of one choice has around it."""
    data, raw = chunk.data, chunk.raw
    if data is None or chunk.kinds & ~(CONTENT | REASONING | ROLE) or len(data["choices"]) != 1:
        return None
    choice = data["choices"][0]
    said = {name: value for name, value in choice["delta"].items() if value and name != "role"}
    index = choice.get("index") or 0
    if len(said) != 1 or choice.get("logprobs") or type(index) is not int:
        return None
    ((name, value),) = said.items()
    kind = _TEXTS.get(name)
    if kind is None or type(value) is not str:
        return None
    key = b'"%b"' % name.encode()
    if raw.count(key) != 1:  # whose text it is would be a guess
        return None
    start = raw.index(key) + len(key)
    start += 2 if raw[start : start + 2] == b": " else 1
    quoted = _STRING.match(raw, start)
    if quoted is None or _text(quoted[0]) != value:
        return None
    return Template(name, index, kind, raw[: start + 1], raw[quoted.end() - 1 :])
