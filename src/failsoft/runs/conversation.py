"""A loop's conversation with its model, such that every model accepts it at any moment it may be broken off.

Each call that a model asked for is answered, by its result or by why there is none, in the calls' order and before
anything else is said; what answers no call is not kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from failsoft.base.messages import Message, ToolCall
from failsoft.memory.history import NOT_DONE, Wire, sound

__all__ = ["Conversation", "error_text"]


class Conversation:
    """Messages in the OpenAI format, growing. Bounded by its loop's turns and by the window that is asked for."""

    __slots__ = ("_open", "messages", "question")

    def __init__(self, system: str, history: Iterable[Message], question: str) -> None:
        self.messages: list[Wire] = [{"role": "system", "content": system}] if system else []
        self.messages.extend(sound([message.to_openai() for message in history]))
        self.question = len(self.messages)
        """Where the question is."""
        self.messages.append({"role": "user", "content": question})
        self._open: list[str] = []

    def said(self, text: str, calls: Sequence[ToolCall] = ()) -> None:
        """The model's reply, with the calls it asks for."""
        self.close()
        self.messages.append(Message("assistant", text or None if calls else text, tuple(calls)).to_openai())
        self._open = [call.id for call in calls]

    def result(self, call: str, text: str) -> None:
        """The result of a call that is open."""
        if call in self._open:
            self._open.remove(call)
            self.messages.append({"role": "tool", "tool_call_id": call, "content": text})

    def note(self, text: str) -> None:
        """Something that the platform tells the model."""
        self.close()
        self.messages.append({"role": "user", "content": text})

    @property
    def open(self) -> tuple[str, ...]:
        """Calls without a result."""
        return tuple(self._open)

    def close(self, text: str = NOT_DONE) -> None:
        """Answers what is open, so that the next turn is accepted."""
        for call in self.open:
            self.result(call, text)

    def __repr__(self) -> str:
        return f"<Conversation messages={len(self.messages)} open={len(self._open)}>"


def error_text(code: str, message: str, **more: Any) -> str:
    """An error as a model is told of it."""
    return json.dumps({"error": {"code": code, "message": message, **more}}, ensure_ascii=False)
