"""Reading a streamed answer from the bytes of its body, and knowing whether it is complete."""

from __future__ import annotations

from typing import Any, Final

from failsoft.base.errors import EmptyResult, MalformedResult, StreamCut
from failsoft.models.chunks import CONTENT_KINDS, DONE, ERROR, FINISH, ROLE, Chunk, read_chunk
from failsoft.models.failures import Symptom, read_failure
from failsoft.models.pieces import Piece, Run, Template, framed, template_of
from failsoft.models.sse import SseParser

__all__ = ["AnswerReader"]

_MAX: Final = 4_000_000
"""Bytes of one event; a peer that never ends one must not fill the memory."""

_TRIES: Final = 8
"""Templates that are tried in vain before a stream is taken for one whose events always differ."""

_new = tuple.__new__


class AnswerReader:
    """Reads the body of a streamed answer with `n` choices, and knows whether it is complete.

    An end is only an end when every choice said why it ended: :meth:`check_end` raises for anything else.
    """

    __slots__ = (
        "_begun",
        "_finished",
        "_n",
        "_parser",
        "_reason",
        "_rest",
        "_said",
        "_seen",
        "_template",
        "_tries",
        "done",
    )

    def __init__(self, n: int = 1) -> None:
        self._n = n
        self._begun = False
        self._parser: SseParser | None = None
        self._rest = b""
        self._template: Template | None = None
        self._tries = _TRIES
        self._finished: set[int] = set()
        self._seen: set[int] = set()
        self._said = False
        self._reason: Any = None
        self.done = False
        """Whether ``[DONE]`` was seen: nothing that follows is read."""

    def read(self, data: bytes) -> Piece | None:
        """The events that these bytes complete, None when there are none.

        Raises the mapped error of what cannot be read, or is an error.
        """
        parser = self._parser
        if parser is not None:
            return self._parsed(parser, data)
        template = self._template
        if self._rest:
            data = self._rest + data
            self._rest = b""
        elif template is not None:
            text = template.text_of(data)
            if text is not None:  # one plain event, as models write them
                if text:
                    self._said = True
                    return Piece(data, [_new(Run, (data, template, text))], template.kind)
                return Piece(data, [_new(Run, (data, template, text))], 0)
        return self._split(data)

    def _split(self, data: bytes) -> Piece | None:
        items: list[Chunk | Run] = []
        at, size, singly, kinds, as_came = 0, len(data), 0, 0, True
        while at < size:
            template = self._template
            if template is not None and data.startswith(template.head, at):
                if at >= singly:
                    run, end = template.run(data, at)
                    if run is None:
                        singly = end
                        continue
                else:
                    end = data.find(b"\n\n", at) + 2
                    text = template.text_of(data[at:end]) if end > 1 else None
                    run = None if text is None else _new(Run, (data[at:end], template, text))
                if run is not None:
                    items.append(run)
                    if run.text:
                        self._said = True
                        kinds |= template.kind
                    self._tries = _TRIES
                    at = end
                    continue
            end = data.find(b"\n\n", at)
            if end < 0:
                event = data[at:]
                usual = b"\r" not in event and event.startswith(b"data: "[: len(event)])
            else:
                event = data[at:end]
                usual = event.startswith(b"data: ") and _is_one_line(event)
            if not usual:  # comments, names, other line ends: read by the book until an event ends a piece
                self._parser = SseParser(begun=self._begun or at > 0)
                rest = self._parsed(self._parser, data[at:])
                if rest is not None:
                    items.extend(rest.items)
                    kinds |= rest.kinds
                as_came = False
                break
            if end < 0:
                if len(event) > _MAX:
                    raise MalformedResult(f"an event of the stream has more than {_MAX} bytes")
                self._rest = event
                data = data[:at]
                break
            at = end + 2
            chunk = read_chunk(event[6:])
            kinds |= self._note(chunk)
            if self.done:
                data = data[: at - len(event) - 2]
                break
            items.append(chunk)
        self._begun = True
        if not items:
            return None
        return Piece(data if as_came else framed(items), items, kinds)

    def _parsed(self, parser: SseParser, data: bytes) -> Piece | None:
        """The same for streams that are not written as most are."""
        chunks: list[Chunk] = []
        for payload in parser.payloads(data):
            chunk = read_chunk(payload)
            self._note(chunk)
            if self.done:
                break
            chunks.append(chunk)
        if parser.between:
            self._parser = None
        return Piece.of(chunks) if chunks else None

    def _note(self, chunk: Chunk) -> int:
        """Takes account of a chunk; gives its kinds."""
        kinds, data = chunk.kinds, chunk.data
        if kinds & ERROR:
            raise read_failure(Symptom(status=200, body=data)).error
        if kinds & DONE:
            self.done = True
            return kinds
        if kinds & CONTENT_KINDS:
            first, self._said = not self._said, True
            if first and kinds & ROLE:
                pass  # the first one often has a role, and the others have none
            elif self._tries and (template := template_of(chunk)) is not None:
                self._template = template
                self._tries -= 1
        if self._n > 1 and data is not None:
            self._seen.update(_indexes(data))
        if kinds & FINISH:
            assert data is not None
            self._finished.update(_indexes(data, ended=True))
            self._reason = data["choices"][-1].get("finish_reason") or self._reason
        return kinds

    @property
    def complete(self) -> bool:
        """Whether every choice has said why it ended: only the last line may be missing."""
        return len(self._finished) >= self._n and self._seen <= self._finished

    def check_end(self) -> None:
        """The body has ended; raises the error of an answer that is not complete, or says nothing."""
        finished = self._finished
        if not finished or not self._seen <= finished or (len(finished) < self._n and not self.done):
            raise StreamCut("the stream ended without saying that it was complete", details={"fault": "no_finish"})
        if not self._said and self._reason not in ("length", "content_filter"):
            raise EmptyResult("the answer has neither text nor tool calls", details={"fault": "no_content"})

    def __repr__(self) -> str:
        return f"<AnswerReader finished={sorted(self._finished)} done={self.done}>"


def _is_one_line(event: bytes) -> bool:
    if b"\n" in event or b"\r" in event:
        return False
    if event.isascii():
        return True
    try:
        event.decode()
    except UnicodeDecodeError:
        return False
    return True


def _indexes(data: dict[str, Any], *, ended: bool = False) -> list[int]:
    """The numbers of the choices in a chunk; with `ended` of those that say why they end."""
    found = [
        choice.get("index") or 0 for choice in data.get("choices") or () if not ended or choice.get("finish_reason")
    ]
    if any(type(index) is not int for index in found):
        raise MalformedResult("a choice of the stream has no proper index", details={"fault": "bad_chunk"})
    return found
