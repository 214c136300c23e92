"""The calls that a model asks for: read, checked, and told about, before and after they are made.

What is wrong with a call is the model's business and no failure of anything: it is told what and how to do it right.
Arguments that were cut off are never completed.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from failsoft.base.errors import BadInput, FailsoftError, MalformedResult
from failsoft.base.messages import ToolCall
from failsoft.base.outcomes import Outcome
from failsoft.models.loose_json import clean_json
from failsoft.runs.conversation import error_text
from failsoft.runs.turns import Chosen
from failsoft.tools.registry import ToolRegistry

__all__ = ["Prepared", "delegate_tool", "prepare", "result_text", "shown"]

_ARGUMENTS: Final = 256 * 1024
"""Characters that the arguments of one call may have."""
_encode: Final = msgspec.json.Encoder(order="deterministic", enc_hook=repr).encode


class Prepared(NamedTuple):
    """A call that was read: either its ``arguments`` fit, or ``error`` is what the model is told."""

    call: ToolCall
    chosen: Chosen
    arguments: dict[str, Any]
    error: str | None = None


def prepare(call: ToolCall, tools: ToolRegistry, delegates: tuple[str, ...], *, cut: bool) -> Prepared:
    """Reads one call; `cut`: the reply it stands in was cut off, so it is not made, whatever it looks like."""
    name = call.name[:200]
    known = call.name in tools or call.name in delegates
    if not known:
        names = ", ".join((*tools.names, *delegates)) or "none"
        text = error_text("unknown_tool", f"there is no tool {name[:80]!r}; there are: {names}")
        return Prepared(_plain(call), Chosen(f"{name}({call.arguments[:1000]})", known=False), {}, text)
    try:
        if cut:
            raise MalformedResult("the reply was cut off at its length limit, so the call was not made; say less")
        if len(call.arguments) > _ARGUMENTS:
            raise BadInput(f"the arguments have {len(call.arguments)} characters; at most {_ARGUMENTS} are read")
        arguments, _ = clean_json(call.arguments) if call.arguments.strip() else ({}, [])
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise BadInput("the arguments must be a JSON object")
        if call.name in delegates:
            _check_delegate(arguments)
        else:
            tools.get(call.name).check(arguments)
    except FailsoftError as error:
        code = "malformed_arguments" if isinstance(error, MalformedResult) else error.code
        more = {"param": error.param} if error.param else {}
        key = f"{name}({call.arguments[:1000]})"
        return Prepared(_plain(call), Chosen(key, sound=False), {}, error_text(code, error.message, **more))
    key = f"{name}({_encode(arguments).decode()})"
    return Prepared(_plain(call, arguments), Chosen(key), arguments)


def _plain(call: ToolCall, arguments: dict[str, Any] | None = None) -> ToolCall:
    """The call as it is kept in the conversation: with arguments that any server can read."""
    text = "{}" if arguments is None else _encode(arguments).decode()
    return ToolCall(call.id, call.name[:200] or "none", text)


def _check_delegate(arguments: dict[str, Any]) -> None:
    extra = next((name for name in arguments if name != "input"), None)
    if extra is not None:
        raise BadInput(f"an agent takes no argument {extra[:80]!r}; it takes: input", param=extra[:80])
    if not isinstance(arguments.get("input"), str) or not arguments["input"].strip():
        raise BadInput("input must be text: what the agent is to do", param="input")


def delegate_tool(name: str, description: str) -> dict[str, Any]:
    """An agent as a tool, in the OpenAI format."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Another agent that does a part of the work. {description}".strip(),
            "parameters": {
                "type": "object",
                "properties": {"input": {"type": "string", "description": "What it is to do, in full."}},
                "required": ["input"],
                "additionalProperties": False,
            },
        },
    }


def result_text(outcome: Outcome[Any], limit: int) -> str:
    """A tool's result as the model is given it: its JSON, its text as it is, with what is odd about it in front."""
    value = outcome.value
    text = value if isinstance(value, str) else _encode(value).decode("utf-8", "replace")
    if len(text) > limit:
        text = f"{text[:limit]}… (cut: {len(text) - limit} more characters)"
    marks = outcome.provenance
    if marks.age is not None:
        return f"(This is from {marks.age:.0f} s ago, because {marks.reason}; say that it may be out of date.) {text}"
    if outcome.degraded:
        return f"(This comes from a substitute, because {marks.reason}; say so.) {text}"
    return text


def shown(value: Any, limit: int = 400) -> str:
    """A result in short, for an answer that no model writes."""
    text = value if isinstance(value, str) else _encode(value).decode("utf-8", "replace")
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
