"""The model planner: any OpenAI-compatible endpoint, its reply constrained to plans that the registered tools can run.

The reply streams in, so that cancelling stops the decoding upstream. It must end by itself: a reply that was cut is
refused, never repaired into something that can be run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

from failsoft.base.errors import (
    BadInput,
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    EmptyResult,
    FailsoftError,
    MalformedResult,
    PlanRefused,
    StreamCut,
)
from failsoft.base.transport import HttpRequest, HttpResponse, Transport
from failsoft.kernel.guard import Guard
from failsoft.models.sse import events
from failsoft.runs.plan import Plan, PlanLimits
from failsoft.runs.planner import PlanContext, PlanRequest
from failsoft.tools.registry import ToolRegistry, ToolSpec

__all__ = ["ModelPlanner", "PlanForm", "ToolForm", "parse_json", "plan_schema", "system_prompt"]

_AGAIN: Final = 1.5
"""A reply that left something out is returned to the model once, if this many times what it took is left to plan."""
_ERROR_BODY: Final = 64_000
_REPLY: Final = 256_000
"""Characters of a reply; more is no plan."""
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
        base = base_url or os.environ.get("OPENAI_BASE_URL")
        if not base or not base.startswith(("http://", "https://")):
            raise BadInput(
                "the model planner needs an endpoint: set OPENAI_BASE_URL to a URL like http://127.0.0.1:8000/v1",
                param="model.base_url",
            )
        self._transport = transport
        self._base = base.rstrip("/")
        self._key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY")
        self._model = model
        self._downstream = downstream
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
        guard = context.kernel.guard(self._downstream)
        model = self._model
        if model is None:
            model = self._model = await guard.call(self._first_model, kind="query")
        messages = [
            {"role": "system", "content": self._form.prompt(tools)},
            *(message.to_openai() for message in request.history[-10:]),
            {"role": "user", "content": _question(request, context)},
        ]
        body = {
            "model": model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self._max_tokens,
            "stream": True,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "plan", "schema": self._form.schema(tools, context.limits)},
            },
        }
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
        async with guard.stream(self._deltas, body, first_item=first, idle=idle, total=total) as stream:
            return "".join([piece async for piece in stream])

    def _read(self, reply: str, request: PlanRequest) -> Plan:
        data = parse_json(reply)
        if not isinstance(data, dict):
            raise PlanRefused("the model's reply is no plan", details={"reason": "schema"})
        return self._form.plan(data, request)

    # --- the endpoint --------------------------------------------------------------------------------------------

    def _request(self, method: str, path: str, body: Any = None) -> HttpRequest:
        headers = {"accept": "text/event-stream, application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        return HttpRequest(method, f"{self._base}{path}", headers, data, downstream=self._downstream)

    async def _first_model(self) -> str:
        async with self._transport.send(self._request("GET", "/models")) as response:
            body = await response.read(1_000_000)
            if response.status != 200:
                raise _refusal(response, body)
        try:
            return str(json.loads(body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise MalformedResult("the endpoint lists no model; name one", downstream=self._downstream) from None

    async def _deltas(self, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        """The reply's text as it arrives; raises unless it ended by itself."""
        size = 0
        finish: str | None = None
        async with self._transport.send(self._request("POST", "/chat/completions", body)) as response:
            if response.status != 200:
                raise _refusal(response, await response.read(_ERROR_BODY))
            if "text/event-stream" not in response.headers.get("content-type", ""):
                text, finish = _whole(await response.read(_REPLY * 4))
                yield text
                size = len(text)
            else:
                async with aclosing(events(response.chunks())) as stream:
                    async for event in stream:
                        if event.data == "[DONE]":
                            break
                        text, reason = _delta(event.data)
                        finish = reason or finish
                        if text:
                            size += len(text)
                            if size > _REPLY:
                                raise MalformedResult("the model's reply is too long for a plan")
                            yield text
        if finish is None:
            raise StreamCut("the model's reply broke off", downstream=self._downstream)
        if finish == "length":
            raise StreamCut("the model's reply was cut at its token limit", downstream=self._downstream)
        if size == 0:
            raise EmptyResult("the model's reply is empty", downstream=self._downstream)

    def __repr__(self) -> str:
        return f"<ModelPlanner {self._model or 'first model'} at {self._base}>"


def _load(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedResult("the endpoint sent something that is no JSON") from None


def _checked(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise MalformedResult("the endpoint sent something that is no completion")
    error = data.get("error")
    if error:
        text = error.get("message") if isinstance(error, dict) else error
        raise DownstreamError(f"the endpoint reported an error: {str(text)[:200]}")
    return data


def _delta(text: str) -> tuple[str, str | None]:
    """The text and finish reason of one chunk; the usage chunk has neither."""
    choices = _checked(_load(text)).get("choices")
    if not choices:
        return "", None
    try:
        choice = choices[0]
        return (choice.get("delta") or {}).get("content") or "", choice.get("finish_reason")
    except (LookupError, AttributeError, TypeError):
        raise MalformedResult("the endpoint sent a chunk that cannot be read") from None


def _whole(body: bytes) -> tuple[str, str | None]:
    """The same from an endpoint that does not stream though asked to."""
    try:
        choice = _checked(_load(body))["choices"][0]
        return choice["message"].get("content") or "", choice.get("finish_reason")
    except (LookupError, AttributeError, TypeError):
        raise EmptyResult("the endpoint sent no choice") from None


def _refusal(response: HttpResponse, body: bytes) -> FailsoftError:
    try:
        found = json.loads(body)["error"]
        text = str(found["message"] if isinstance(found, dict) else found)[:200]
    except (ValueError, LookupError, TypeError, RecursionError):
        text = ""
    message = f"the endpoint answered {response.status}" + (f": {text}" if text else "")
    if response.status == 429 or response.status >= 500:
        return DownstreamUnavailable(message, retry_after=_retry_after(response))
    return DownstreamRejected(message)


def _retry_after(response: HttpResponse) -> float | None:
    try:
        value = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return value if 0 <= value < 86_400 else None


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
        lines.append(f"- {spec.name}({', '.join(properties)}): {spec.description}")
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
    if len(text) > _REPLY:
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
