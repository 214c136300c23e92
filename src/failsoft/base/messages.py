"""Messages of a conversation, in the shape every model API understands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Message", "ToolCall", "Usage"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool; ``arguments`` is the raw JSON text, not yet parsed or trusted."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. ``content`` is None for an assistant turn that only calls tools; ``tool_call_id`` is set for tool
    results.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    def to_openai(self) -> dict[str, Any]:
        """The OpenAI wire format."""
        body: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            body["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.tool_calls
            ]
        if self.tool_call_id is not None:
            body["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            body["name"] = self.name
        return body


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the upstream reported them; None where it did not."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
