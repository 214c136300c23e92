"""Chunks of a streamed answer: read once, marked with what is in them, passed on as they came."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from failsoft.base.errors import MalformedResult

__all__ = [
    "CONTENT",
    "CONTENT_KINDS",
    "DONE",
    "EMPTY",
    "ERROR",
    "FINISH",
    "REASONING",
    "ROLE",
    "TOOL",
    "USAGE",
    "Chunk",
    "read_chunk",
]

ROLE: Final = 1
"""A delta that names the role: the stream has begun, but nothing was said yet."""
CONTENT: Final = 2
"""Text of the answer, or of a refusal, or audio."""
REASONING: Final = 4
"""Text of the reasoning, under any of the names in use."""
TOOL: Final = 8
"""A part of a tool call."""
FINISH: Final = 16
"""A choice's ``finish_reason``."""
USAGE: Final = 32
"""Token counts."""
ERROR: Final = 64
"""An error object in place of, or beside, the choices."""
EMPTY: Final = 128
"""``choices: []`` (or no choices) and neither usage nor error; also an empty payload."""
DONE: Final = 256
"""The ``[DONE]`` at the end."""
CONTENT_KINDS: Final = CONTENT | REASONING | TOOL
"""What counts as first content: ``chunk.kinds & CONTENT_KINDS``."""

_decode = msgspec.json.Decoder().decode


class Chunk(NamedTuple):
    """One event of an upstream's stream: ``raw`` the payload as received, ``data`` decoded (None for ``[DONE]`` and
    empty payloads), ``kinds`` a mask of ROLE, CONTENT, REASONING, TOOL, FINISH, USAGE, ERROR, EMPTY, DONE.
    """

    raw: bytes
    data: dict[str, Any] | None
    kinds: int


_DONE_CHUNK: Final = Chunk(b"[DONE]", None, DONE)
_NOTHING: Final = Chunk(b"", None, EMPTY)


def read_chunk(payload: str | bytes) -> Chunk:
    """Reads the payload of one ``data:`` event.

    Raises :class:`~failsoft.base.errors.MalformedResult` (``details["fault"] == "bad_chunk"``) when it is neither
    ``[DONE]`` nor a JSON object with sound choices. An error object is not raised but marked: ``kinds & ERROR``.
    """
    raw = payload if payload.__class__ is bytes else payload.encode("utf-8", "replace")  # type: ignore[union-attr]
    try:
        data = _decode(raw)
        choices = data.get("choices")
        kinds = 0
        if choices:
            for choice in choices:
                delta = choice.get("delta")
                if delta:
                    if delta.get("content"):
                        kinds |= CONTENT
                        if len(delta) > 1:
                            kinds |= _rarer(delta)
                    else:
                        kinds |= _rarer(delta)
                if choice.get("finish_reason"):
                    kinds |= FINISH
        usage = data.get("usage")
        if usage and usage.__class__ is dict:
            kinds |= USAGE
        if "error" in data and data["error"]:  # noqa: RUF019 - cheaper than get, and it is not there
            kinds |= ERROR
        if not kinds and not choices:
            kinds = EMPTY
    except (msgspec.MsgspecError, ValueError, AttributeError, TypeError, RecursionError):
        return _odd_chunk(raw)
    return _new(Chunk, (raw, data, kinds))


_new = tuple.__new__

_RARE: Final = (
    ("role", ROLE),
    ("tool_calls", TOOL),
    ("reasoning_content", REASONING),
    ("reasoning", REASONING),
    ("reasoning_details", REASONING),
    ("thinking", REASONING),
    ("refusal", CONTENT),
    ("audio", CONTENT),
    ("function_call", TOOL),
)


def _rarer(delta: dict[str, Any]) -> int:
    kinds = 0
    for name, kind in _RARE:
        if delta.get(name):
            kinds |= kind
    return kinds


def _odd_chunk(raw: bytes) -> Chunk:
    text = raw.strip()
    if text == b"[DONE]":
        return _DONE_CHUNK
    if not text:
        return _NOTHING
    raise MalformedResult(
        "a chunk of the stream cannot be read",
        details={"fault": "bad_chunk", "start": text[:80].decode("utf-8", "replace")},
    )
