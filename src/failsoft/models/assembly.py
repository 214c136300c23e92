"""Whole answers from streams, and streams from whole answers.

``Assembler`` makes a ``chat.completion`` of the chunks of one stream; :func:`replay` makes a faithful stream of a
stored one: whoever assembles it again gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from failsoft.base.errors import MalformedResult
from failsoft.models.chunks import Chunk
from failsoft.models.pieces import Piece, Run

__all__ = ["DONE_EVENT", "Assembler", "replay", "sse"]

DONE_EVENT: Final = b"data: [DONE]\n\n"
"""The end of a complete stream; never sent after an error."""

_MOST: Final = 1024
"""Choices of a stream, or tool calls of a choice; more is not an answer."""

_PIECE: Final = 512
"""Characters of one replayed chunk."""

_LINES: Final = ("content", "refusal", "reasoning_content", "reasoning", "thinking")
"""Parts of a delta that are pieces of text to be joined."""
_LISTS: Final = ("reasoning_details", "annotations")
"""Parts of a delta that are lists to be joined."""
_HEAD: Final = frozenset({"object", "choices", "usage", "error"})

_encode = msgspec.json.Encoder().encode


def sse(payload: bytes) -> bytes:
    """A payload of one line as a server-sent event."""
    return b"data: " + payload + b"\n\n"


# --- assembling ----------------------------------------------------------------------------------------------------


class _Call:
    """A tool call as it grows."""

    __slots__ = ("arguments", "data", "name")

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.name = ""
        self.arguments: list[str] = []


class _Choice:
    """A choice as it grows."""

    __slots__ = ("audio", "calls", "extra", "finish", "function", "lists", "logprobs", "other", "role", "texts")

    def __init__(self) -> None:
        self.role = "assistant"
        self.texts: dict[str, list[str]] = {}
        self.lists: dict[str, list[Any]] = {}
        self.calls: dict[int, _Call] = {}
        self.function: _Call | None = None
        self.audio: dict[str, Any] | None = None
        self.extra: dict[str, Any] = {}
        self.other: dict[str, Any] = {}
        self.logprobs: dict[str, Any] | None = None
        self.finish: str | None = None


class Assembler:
    """Takes the chunks of one stream in order; `n` is the number of choices asked for.

    Tool calls are kept apart by their index, however their parts interleave. Memory is that of the answer.
    """

    __slots__ = ("_choices", "_head", "_n", "done", "usage")

    def __init__(self, n: int = 1) -> None:
        self._n = n
        self._choices: dict[int, _Choice] = {}
        self._head: dict[str, Any] = {}
        self.usage: dict[str, Any] | None = None
        """Token counts, once they were reported."""
        self.done = False
        """Whether ``[DONE]`` was seen."""

    def feed(self, chunk: Chunk) -> None:
        """Takes one chunk in; raises :class:`~failsoft.base.errors.MalformedResult` when its parts are not what they
        should be (``details["fault"] == "bad_chunk"``).
        """
        try:
            self._feed(chunk)
        except (AttributeError, TypeError, ValueError):
            raise MalformedResult("a chunk of the stream is not sound", details={"fault": "bad_chunk"}) from None

    def take(self, piece: Piece) -> None:
        """Takes a piece of the stream in; raises as :meth:`feed` does."""
        for item in piece.items:
            if isinstance(item, Run):
                template = item.template  # which was learned of a chunk that has been here
                self._choices[template.index].texts[template.name].append(item.text)
            else:
                self.feed(item)

    def _feed(self, chunk: Chunk) -> None:
        data = chunk.data
        if data is None:
            if chunk.raw:
                self.done = True
            return
        head = self._head
        if not head or len(data) > len(head) + 2:
            for name, value in data.items():
                if name not in _HEAD and (value is not None or name not in head):
                    head[name] = value
        usage = data.get("usage")
        if usage and type(usage) is dict:
            self.usage = usage
        for part in data.get("choices") or ():
            index = part.get("index") or 0
            choice = self._choices.get(index)
            if choice is None:
                if type(index) is not int or len(self._choices) >= _MOST:
                    raise TypeError("index")
                choice = self._choices[index] = _Choice()
            delta = part.get("delta")
            if delta:
                _grow(choice, delta)
            finish = part.get("finish_reason")
            if finish:
                choice.finish = finish
            logprobs = part.get("logprobs")
            if logprobs:
                _grow_logprobs(choice, logprobs)
            if len(part) > 4:
                for name, value in part.items():
                    if name not in {"index", "delta", "finish_reason", "logprobs"}:
                        choice.other[name] = value

    @property
    def finished(self) -> bool:
        """Whether every choice has said why it ended; without it an answer is not complete. An upstream that gives
        fewer choices than it was asked for must at least have sent ``[DONE]``.
        """
        choices = self._choices
        if not choices or (len(choices) < self._n and not self.done):
            return False
        return all(choice.finish for choice in choices.values())

    @property
    def has_choices(self) -> bool:
        """Whether any choice has come, if only its role."""
        return bool(self._choices)

    @property
    def started(self) -> bool:
        """Whether anything of an answer has come: text, reasoning, a tool call."""
        return any(
            choice.calls or choice.function or choice.audio or any(map(any, choice.texts.values()))
            for choice in self._choices.values()
        )

    @property
    def only_text(self) -> bool:
        """Whether what has come is text of one unfinished choice, and nothing besides."""
        if len(self._choices) != 1:
            return False
        (choice,) = self._choices.values()
        other = choice.calls or choice.function or choice.audio or choice.finish or choice.texts.get("refusal")
        return bool(self.partial_text) and not other

    @property
    def partial_text(self) -> str:
        """The text of the first choice so far."""
        if not self._choices:
            return ""
        return "".join(self._choices[min(self._choices)].texts.get("content", ()))

    def result(self) -> dict[str, Any]:
        """The ``chat.completion`` as far as it has come; ``finish_reason`` is None where a choice has not ended."""
        result: dict[str, Any] = {"id": self._head.get("id"), "object": "chat.completion"}
        result.update(self._head)
        result["choices"] = [_whole(index, self._choices[index]) for index in sorted(self._choices)]
        if self.usage is not None:
            result["usage"] = self.usage
        return result

    def __repr__(self) -> str:
        return f"<Assembler choices={len(self._choices)} finished={self.finished} done={self.done}>"


def _grow(choice: _Choice, delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name in _LINES:
            if type(value) is str:
                found = choice.texts.get(name)
                if found is None:
                    choice.texts[name] = [value]
                else:
                    found.append(value)
            elif type(value) is list:  # some servers send content as parts
                choice.texts.setdefault(name, []).extend(p["text"] for p in value if p.get("type") == "text")
            elif value is None:
                choice.extra.setdefault(name, None)
        elif name == "tool_calls":
            for position, part in enumerate(value or ()):
                _grow_call(choice, position, part)
        elif name == "role":
            choice.role = value or choice.role
        elif name in _LISTS:
            if type(value) is list:
                choice.lists.setdefault(name, []).extend(value)
        elif name == "function_call":
            if type(value) is dict:
                call = choice.function = choice.function or _Call()
                _grow_function(call, value)
        elif name == "audio":
            if type(value) is dict:
                _grow_audio(choice, value)
        elif value is not None or name not in choice.extra:
            choice.extra[name] = value


def _grow_call(choice: _Choice, position: int, part: dict[str, Any]) -> None:
    index = part.get("index")
    if index is None:  # some servers leave it out and send whole calls
        index = len(choice.calls) if part.get("id") or not choice.calls else max(choice.calls)
    call = choice.calls.get(index)
    if call is None:
        if type(index) is not int or len(choice.calls) >= _MOST:
            raise TypeError("index")
        call = choice.calls[index] = _Call()
    for name, value in part.items():
        if name == "function":
            _grow_function(call, value or {})
        elif name != "index" and value is not None and (value != "" or name not in call.data):
            call.data[name] = value


def _grow_function(call: _Call, function: dict[str, Any]) -> None:
    name = function.get("name")
    if name and name != call.name:  # some servers repeat the whole name in every part, others split it
        call.name += name
    arguments = function.get("arguments")
    if arguments:
        call.arguments.append(arguments if type(arguments) is str else _encode(arguments).decode())


def _grow_audio(choice: _Choice, part: dict[str, Any]) -> None:
    audio = choice.audio = {} if choice.audio is None else choice.audio
    for name, value in part.items():
        if name in {"data", "transcript"} and type(value) is str:
            audio[name] = audio.get(name, "") + value
        elif value is not None:
            audio[name] = value


def _grow_logprobs(choice: _Choice, part: dict[str, Any]) -> None:
    known = choice.logprobs = {} if choice.logprobs is None else choice.logprobs
    for name, value in part.items():
        before = known.get(name)
        if type(before) is list and type(value) is list:
            before.extend(value)
        elif before is None:
            known[name] = list(value) if type(value) is list else value


def _whole(index: int, choice: _Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": choice.role, "content": None, **choice.extra}
    for name, pieces in choice.texts.items():
        message[name] = "".join(pieces)
    for name, items in choice.lists.items():
        message[name] = list(items)
    if choice.calls:
        message["tool_calls"] = [
            {"type": "function", **call.data, "function": {"name": call.name, "arguments": "".join(call.arguments)}}
            for _, call in sorted(choice.calls.items())
        ]
    if choice.function is not None:
        message["function_call"] = {"name": choice.function.name, "arguments": "".join(choice.function.arguments)}
    if message["content"] == "" and (choice.calls or choice.function):
        message["content"] = None  # as servers answer without a stream
    if choice.audio is not None:
        message["audio"] = dict(choice.audio)
    return {
        "index": index,
        "message": message,
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish,
        **choice.other,
    }


# --- replaying -----------------------------------------------------------------------------------------------------


def replay(result: Mapping[str, Any], *, include_usage: bool) -> Iterator[bytes]:
    """The server-sent events, framed and ready to send, of a stored ``chat.completion``: role, reasoning, text in
    pieces, tool calls, reasons for ending, the usage chunk if it is wanted and known, ``[DONE]``.
    """
    head = {name: value for name, value in result.items() if name not in _HEAD}
    head["object"] = "chat.completion.chunk"

    def event(index: int, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
        return sse(_encode({**head, "choices": [choice]}))

    for position, choice in enumerate(result.get("choices") or ()):
        index = choice.get("index", position)
        message = choice.get("message") or {}
        yield event(index, _opening(message))
        for name in ("reasoning_content", "reasoning", "thinking", "content", "refusal"):
            text = message.get(name)
            if text:
                for start in range(0, len(text), _PIECE):
                    yield event(index, {name: text[start : start + _PIECE]})
        for number, call in enumerate(message.get("tool_calls") or ()):
            function = call.get("function") or {}
            yield event(
                index,
                {
                    "tool_calls": [
                        {"index": number, **call, "function": {"name": function.get("name", ""), "arguments": ""}}
                    ]
                },
            )
            arguments = function.get("arguments") or ""
            for start in range(0, len(arguments), _PIECE):
                piece = {"index": number, "function": {"arguments": arguments[start : start + _PIECE]}}
                yield event(index, {"tool_calls": [piece]})
        more = {k: v for k, v in choice.items() if k not in {"index", "message", "finish_reason"}}
        yield event(index, {}, choice.get("finish_reason"), **more)
    if include_usage and result.get("usage"):
        yield sse(_encode({**head, "choices": [], "usage": result["usage"]}))
    yield DONE_EVENT


def _opening(message: Mapping[str, Any]) -> dict[str, Any]:
    """The first delta: the role, and all that does not come in pieces."""
    delta: dict[str, Any] = {"role": message.get("role", "assistant")}
    for name, value in message.items():
        if name in _LINES:
            delta[name] = None if value is None else ""
        elif name not in {"role", "tool_calls"}:
            delta[name] = value
    return delta
