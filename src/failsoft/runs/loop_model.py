"""The model of a loop: it is given a conversation and tools, and says something or asks for calls.

:class:`GatewayModel` asks an alias of the model gateway, in this process: by native tool calling, or, for models that
cannot, by replies constrained to a JSON schema of choices. Routes, limits, fallbacks and breakers are the gateway's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from failsoft.base.errors import FailsoftError, MalformedResult
from failsoft.base.messages import ToolCall
from failsoft.models.assembly import Assembler
from failsoft.models.chat_request import ChatRequest
from failsoft.models.chunks import CONTENT, REASONING, TOOL, Chunk
from failsoft.models.loose_json import clean_json

if TYPE_CHECKING:
    from failsoft.models.gateway import Gateway

__all__ = ["Calling", "GatewayModel", "LoopModel", "Reply", "TurnRequest", "choice_schema"]

Calling = Literal["native", "choices"]
"""How a model asks for calls: by the API's own tool calls, or by JSON replies held to a schema."""

_MOST_CALLS: Final = 128
_NAMES: Final = ("reasoning_content", "reasoning", "thinking")


class TurnRequest(NamedTuple):
    """One turn: ``tools`` in the OpenAI format; with ``answer_only`` none may be called. ``said`` and ``thought`` are
    told of text as it comes; ``called`` once a call has begun.
    """

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    answer_only: bool
    said: Callable[[str], None]
    thought: Callable[[str], None]
    called: Callable[[], None]
    max_tokens: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said. ``error``: why it broke off, with what it had said until then; its calls are then not whole.

    ``finish`` is the API's finish reason; ``degraded`` that a lesser route answered, ``served`` which.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str | None = "stop"
    error: FailsoftError | None = None
    degraded: bool = False
    served: str | None = None
    stale: bool = False


@runtime_checkable
class LoopModel(Protocol):
    """Whoever replies in a loop; under the current deadline."""

    @property
    def name(self) -> str:
        """How it is called in provenance, and in the history of durations."""
        ...

    async def reply(self, request: TurnRequest) -> Reply:
        """The model's reply; raises a typed error when there is nothing at all."""
        ...


class GatewayModel:
    """An alias of the gateway."""

    __slots__ = ("_calling", "_gateway", "_steps", "name")

    def __init__(self, gateway: Gateway, alias: str, calling: Calling = "native") -> None:
        gateway.alias(alias)
        self._gateway = gateway
        self._calling = calling
        self._steps = 0
        self.name = alias

    async def reply(self, request: TurnRequest) -> Reply:
        """See :class:`LoopModel`."""
        choices = self._calling == "choices"
        body: dict[str, Any] = {"model": self.name, "messages": list(request.messages), "stream": True}
        if request.max_tokens is not None:
            body["max_tokens"] = request.max_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if choices:
            body["messages"] = _as_text(request)
            if request.tools and not request.answer_only:
                schema = choice_schema(request.tools)
                body["response_format"] = {
                    "type": "json_schema",
                    "json_schema": {"name": "step", "schema": schema},
                }
        elif request.tools:
            body["tools"] = list(request.tools)
            body["tool_choice"] = "none" if request.answer_only else "auto"
        asked = ChatRequest(body)
        record = self._gateway.record(asked)
        assembler = Assembler()
        error: FailsoftError | None = None
        plain = not choices or request.answer_only or not request.tools
        try:
            async with aclosing(self._gateway.stream(asked, record)) as pieces:
                async for piece in pieces:
                    for chunk in piece:
                        assembler.feed(chunk)
                        _tell(chunk, request, plain=plain)
        except FailsoftError as broken:
            if not assembler.started:
                raise
            error = broken
        message = assembler.result()["choices"][0]
        reply = _read(message, error, record.degraded, record.route, stale=record.cache == "stale")
        self._steps += 1
        return reply if plain else _choice(reply, request, self._steps)

    def __repr__(self) -> str:
        return f"<GatewayModel {self.name} {self._calling}>"


def _tell(chunk: Chunk, request: TurnRequest, *, plain: bool) -> None:
    """Tells of what a chunk brings."""
    kinds = chunk.kinds
    if not kinds & (CONTENT | REASONING | TOOL) or chunk.data is None:
        return
    for choice in chunk.data.get("choices") or ():
        delta = choice.get("delta") or {}
        if kinds & TOOL and delta.get("tool_calls"):
            request.called()
        text = delta.get("content")
        if plain and isinstance(text, str) and text:
            request.said(text)
        if kinds & REASONING:
            thought = next((delta[name] for name in _NAMES if isinstance(delta.get(name), str)), None)
            if thought:
                request.thought(thought)


def _read(
    choice: Mapping[str, Any], error: FailsoftError | None, degraded: bool, served: str | None, *, stale: bool
) -> Reply:
    message = choice["message"]
    calls = []
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        calls.append(ToolCall(call.get("id") or f"call_{index}", function["name"], function["arguments"]))
    ids = {call.id for call in calls}
    if len(ids) < len(calls):  # some servers give all of them one id
        calls = [ToolCall(f"{call.id}_{i}", call.name, call.arguments) for i, call in enumerate(calls)]
    text = message.get("content") or message.get("refusal") or ""
    return Reply(text, tuple(calls[:_MOST_CALLS]), choice.get("finish_reason"), error, degraded or stale, served, stale)


# --- choices: tool calling for models without it -----------------------------------------------------------------


def choice_schema(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON schema of a step: a thought, and calls of these tools or an answer."""
    definitions: dict[str, Any] = {}
    options = []
    for one in tools:
        function = one["function"]
        parameters = dict(function["parameters"])
        for name, part in (parameters.pop("$defs", None) or {}).items():
            definitions[f"{function['name']}.{name}"] = _moved(part, function["name"])
        options.append(
            {
                "type": "object",
                "properties": {"tool": {"const": function["name"]}, "arguments": _moved(parameters, function["name"])},
                "required": ["tool", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "thought": {"type": "string", "maxLength": 500},
            "calls": {
                "type": "array",
                "maxItems": 8,
                "items": options[0] if len(options) == 1 else {"anyOf": options},
            },
            "answer": {"type": "string"},
        },
        "required": ["thought", "calls", "answer"],
        "additionalProperties": False,
    }
    if definitions:
        schema["$defs"] = definitions
    return schema


def _moved(schema: Any, prefix: str) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: f"#/$defs/{prefix}.{value.removeprefix('#/$defs/')}"
            if key == "$ref" and isinstance(value, str)
            else _moved(value, prefix)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_moved(item, prefix) for item in schema]
    return schema


_HOW: Final = """Reply with one JSON object and nothing else:
{"thought": "what you do next and why, in a sentence", "calls": [{"tool": "name", "arguments": {...}}], "answer": ""}
To use tools fill "calls" and leave "answer" empty; several calls at once are made in parallel. When you know enough
leave "calls" empty and put the whole answer in "answer". Tools:"""


def _as_text(request: TurnRequest) -> list[dict[str, Any]]:
    """The conversation without tool messages: calls as the JSON that asked for them, results as the user's."""
    names: dict[str, str] = {}
    made: list[dict[str, Any]] = []
    for message in request.messages:
        role = message["role"]
        if role == "tool":
            name = names.get(message["tool_call_id"], "?")
            content = f"Result of {name}: {message['content']}"
            if made and made[-1]["role"] == "user":  # templates want the roles to take turns
                made[-1] = {"role": "user", "content": f"{made[-1]['content']}\n{content}"}
            else:
                made.append({"role": "user", "content": content})
        elif message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                function = call["function"]
                names[call["id"]] = function["name"]
                calls.append({"tool": function["name"], "arguments": json.loads(function["arguments"] or "{}")})
            text = {"thought": message.get("content") or "", "calls": calls, "answer": ""}
            made.append({"role": "assistant", "content": json.dumps(text, ensure_ascii=False)})
        elif role == "user" and made and made[-1]["role"] == "user":
            made[-1] = {"role": "user", "content": f"{made[-1]['content']}\n\n{message['content']}"}
        else:
            made.append(dict(message))
    if request.tools and not request.answer_only:
        lines = [_HOW]
        for one in request.tools:
            function = one["function"]
            properties = json.dumps(function["parameters"].get("properties", {}), ensure_ascii=False)
            lines.append(f"- {function['name']}: {function['description']} Arguments: {properties}")
        how = "\n".join(lines)
        if made and made[0]["role"] == "system":
            made[0] = {"role": "system", "content": f"{made[0]['content']}\n\n{how}"}
        else:
            made.insert(0, {"role": "system", "content": how})
    return made


def _choice(reply: Reply, request: TurnRequest, step: int) -> Reply:
    """The step in a reply that was held to the schema. What is no JSON at all is taken for an answer in plain words."""
    cut = reply.finish == "length" or reply.error is not None
    try:
        data, _ = clean_json(reply.text, truncated=cut)
    except MalformedResult:
        if cut and reply.text.lstrip()[:1] in "{[":  # half a step is none: neither its calls nor its answer
            return Reply("", (), reply.finish, reply.error, reply.degraded, reply.served, reply.stale)
        request.said(reply.text)
        return reply
    if not isinstance(data, dict):
        request.said(reply.text)
        return reply
    thought = data.get("thought")
    if isinstance(thought, str) and thought:
        request.thought(thought)
    calls = []
    for index, call in enumerate(data.get("calls") or ()):
        if isinstance(call, dict):
            name, arguments = str(call.get("tool", "")), call.get("arguments")
            text = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
            calls.append(ToolCall(f"step{step}_{index}", name, text))
    answer = data.get("answer")
    text = answer if isinstance(answer, str) and not calls else ""
    if text:
        request.said(text)
    if calls:
        request.called()
    return Reply(text, tuple(calls[:_MOST_CALLS]), reply.finish, reply.error, reply.degraded, reply.served, reply.stale)
