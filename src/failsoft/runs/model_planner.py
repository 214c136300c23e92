"""The model planner: any OpenAI-compatible endpoint, its reply constrained to plans that the registered tools can run.

The reply streams in, so that cancelling stops the decoding upstream. It must end by itself: a reply that was cut is
refused, never repaired into something that can be run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from failsoft.base.errors import PlanRefused
from failsoft.base.transport import Transport
from failsoft.kernel.guard import Guard
from failsoft.runs.chat_endpoint import REPLY, ChatEndpoint
from failsoft.runs.plan import Plan, PlanLimits
from failsoft.runs.planner import PlanContext, PlanRequest
from failsoft.tools.registry import ToolRegistry, ToolSpec

__all__ = ["ModelPlanner", "PlanForm", "ToolForm", "parse_json", "plan_schema", "system_prompt"]

_AGAIN: Final = 1.5
"""A reply that left something out is returned to the model once, if this many times what it took is left to plan."""
_FENCE: Final = re.compile(r"```[A-Za-z]*[ \t]*\r?\n?(.*?)```", re.DOTALL)


class PlanForm(Protocol):
    """What a model is asked to write, and the plan that it stands for.

    :class:`ToolForm` asks for the tasks themselves; an agent that knows its questions asks for less, and smaller models
    get it right.
    """

    def prompt(self, tools: ToolRegistry) -> str:
        """The system prompt; the same for the same tools, byte by byte, so that servers can reuse its prefix."""
        ...

    def schema(self, tools: ToolRegistry, limits: PlanLimits) -> dict[str, Any]:
        """The JSON schema that the reply is held to."""
        ...

    def plan(self, data: Mapping[str, Any], request: PlanRequest) -> Plan:
        """The plan of a reply; raises :class:`PlanRefused` when it is none."""
        ...


class ToolForm:
    """The tasks of the plan, written out: any tools, any arguments. ``instructions`` are added to the prompt."""

    def __init__(self, instructions: str = "") -> None:
        self._instructions = instructions

    def prompt(self, tools: ToolRegistry) -> str:
        """See :class:`PlanForm`."""
        return system_prompt(tools, self._instructions)

    def schema(self, tools: ToolRegistry, limits: PlanLimits) -> dict[str, Any]:
        """See :class:`PlanForm`."""
        return plan_schema(tools, limits)

    def plan(self, data: Mapping[str, Any], request: PlanRequest) -> Plan:
        """See :class:`PlanForm`."""
        return Plan.from_dict(dict(data))

    def __repr__(self) -> str:
        return "<ToolForm>"


class ModelPlanner:
    """Asks a model for the plan.

    ``base_url`` (up to and with ``/v1``) and ``api_key`` default to ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``;
    without a ``model`` the endpoint's first one is used. Calls go through the guard of ``downstream``;
    ``first_token``, ``idle`` and ``total`` are limits in seconds. ``form`` is what the model has to write: by default
    the plan's tasks, where ``instructions`` are added to the system prompt: what the tools' data is about.
    """

    name = "model"

    def __init__(
        self,
        transport: Transport,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        downstream: str = "model",
        instructions: str = "",
        form: PlanForm | None = None,
        max_tokens: int = 1_000,
        first_token: float = 10.0,
        idle: float = 10.0,
        total: float = 60.0,
    ) -> None:
        self.endpoint = ChatEndpoint(transport, base_url=base_url, api_key=api_key, model=model, downstream=downstream)
        self._form = form or ToolForm(instructions)
        self._max_tokens = max_tokens
        self._limits = (first_token, idle, total)

    @classmethod
    def from_environment(cls, transport: Transport, **options: Any) -> ModelPlanner | None:
        """A planner for the endpoint that the environment names, None when it names none."""
        return cls(transport, **options) if os.environ.get("OPENAI_BASE_URL") else None

    async def plan(self, request: PlanRequest, tools: ToolRegistry, context: PlanContext) -> Plan:
        """See :class:`~failsoft.runs.planner.Planner`."""
        if len(tools) == 0:
            raise PlanRefused("no tool is available now", details={"reason": "no_tool"})
        endpoint = self.endpoint
        guard = context.kernel.guard(endpoint.downstream)
        if endpoint.model is None:
            endpoint.model = await guard.call(endpoint.first_model, kind="query")
        messages = [
            {"role": "system", "content": self._form.prompt(tools)},
            *(message.to_openai() for message in request.history[-10:]),
            {"role": "user", "content": _question(request, context)},
        ]
        schema = self._form.schema(tools, context.limits)
        body = endpoint.body(
            messages,
            self._max_tokens,
            response_format={"type": "json_schema", "json_schema": {"name": "plan", "schema": schema}},
        )
        clock = asyncio.get_running_loop().time
        began = clock()
        reply = await self._reply(guard, body)
        try:
            return self._read(reply, request)
        except PlanRefused as refused:
            if refused.details.get("reason") != "left_out" or context.remaining() < _AGAIN * (clock() - began):
                raise
            messages += [
                {"role": "assistant", "content": reply},
                {"role": "user", "content": f"That is wrong: {refused.message}. Write the whole JSON object again."},
            ]
        return self._read(await self._reply(guard, body), request)

    async def _reply(self, guard: Guard, body: Mapping[str, Any]) -> str:
        first, idle, total = self._limits
        async with guard.stream(self.endpoint.deltas, body, first_item=first, idle=idle, total=total) as stream:
            return "".join([piece async for piece in stream])

    def _read(self, reply: str, request: PlanRequest) -> Plan:
        data = parse_json(reply)
        if not isinstance(data, dict):
            raise PlanRefused("the model's reply is no plan", details={"reason": "schema"})
        return self._form.plan(data, request)

    def __repr__(self) -> str:
        return f"<ModelPlanner {self.endpoint!r}>"


# --- the prompt and the schema -------------------------------------------------------------------------------------


def system_prompt(tools: ToolRegistry, instructions: str = "") -> str:
    """The same for the same tools, byte by byte, so that servers can reuse its prefix."""
    lines = [
        "You turn a question into a plan: a JSON object with `tasks`, each of them one call of a tool.",
        "Each task has an `id`, a `tool`, its `arguments`, and `needs`: the ids of the tasks whose results it uses.",
        'To use the result of another task as an argument write {"$from": "its id"}.',
        "Use as few tasks as possible. `reading` says briefly, in the question's language, what you understood.",
        "Tools:",
    ]
    for spec in tools.specs:
        properties = spec.parameters.get("properties", {})
        hints = [f"usually {spec.usual:g} s"] if spec.usual is not None else []
        hints += [f"costs {spec.cost:g}"] if spec.cost is not None else []
        known = f" ({', '.join(hints)})" if hints else ""
        lines.append(f"- {spec.name}({', '.join(properties)}): {spec.description}{known}")
    if instructions:
        lines.append(instructions)
    return "\n".join(lines)


def _question(request: PlanRequest, context: PlanContext) -> str:
    text = request.input
    if context.unavailable:
        text += f"\n\n(Unavailable now: {', '.join(context.unavailable)}.)"
    return text


def plan_schema(tools: ToolRegistry, limits: PlanLimits) -> dict[str, Any]:
    """The JSON schema of plans over these tools: each task calls one, with arguments or references in their place."""
    definitions: dict[str, Any] = {
        "reference": {
            "type": "object",
            "properties": {"$from": {"type": "string"}, "path": {"type": "string"}},
            "required": ["$from"],
            "additionalProperties": False,
        }
    }
    options = [_task_schema(spec, definitions) for spec in tools.specs]
    return {
        "type": "object",
        "properties": {
            "reading": {"type": "string"},
            "tasks": {
                "type": "array",
                "minItems": 1,
                "maxItems": min(20, limits.max_tasks),
                "items": {"anyOf": options} if len(options) > 1 else options[0],
            },
        },
        "required": ["reading", "tasks"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _task_schema(spec: ToolSpec, definitions: dict[str, Any]) -> dict[str, Any]:
    prefix = f"{spec.name}."
    for name, schema in spec.parameters.get("$defs", {}).items():
        definitions[prefix + name] = _moved(schema, prefix)
    properties = {
        name: {"anyOf": [_moved(schema, prefix), {"$ref": "#/$defs/reference"}]}
        for name, schema in spec.parameters.get("properties", {}).items()
    }
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,30}$"},
            "tool": {"const": spec.name},
            "arguments": {
                "type": "object",
                "properties": properties,
                "required": list(spec.parameters.get("required", [])),
                "additionalProperties": False,
            },
            "needs": {"type": "array", "items": {"type": "string"}, "maxItems": 20},
            "title": {"type": "string", "maxLength": 200},
        },
        "required": ["id", "tool", "arguments", "needs"],
        "additionalProperties": False,
    }


def _moved(schema: Any, prefix: str) -> Any:
    """A tool's schema with its references pointing at where its definitions are now."""
    if isinstance(schema, dict):
        return {
            key: f"#/$defs/{prefix}{value.removeprefix('#/$defs/')}"
            if key == "$ref" and isinstance(value, str)
            else _moved(value, prefix)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_moved(item, prefix) for item in schema]
    return schema


def parse_json(text: str) -> Any:
    """The JSON in a model's reply: all of it, else what is in its code fence, else the first object in the prose.

    Nothing is completed: a reply that ends in the middle raises :class:`PlanRefused`.
    """
    if len(text) > REPLY:
        raise PlanRefused("the model's reply is too long for a plan", details={"reason": "too_large"})
    text = text.strip().removeprefix("\ufeff")
    fenced = _FENCE.search(text)
    for candidate in (text, fenced[1] if fenced else None):
        if candidate is not None:
            try:
                return json.loads(candidate)
            except ValueError:
                continue
            except RecursionError:
                raise PlanRefused("the model's reply is nested too deeply", details={"reason": "too_deep"}) from None
    start = text.find("{")
    if start >= 0:
        try:
            return json.JSONDecoder().raw_decode(text, start)[0]
        except (ValueError, RecursionError):
            pass
    raise PlanRefused("the model's reply has no complete JSON in it", details={"reason": "no_json"})
