"""Chat requests in the OpenAI format: checked where the gateway relies on them, passed through where it does not.

A request keeps its whole body as plain data, so that parameters nobody here knows reach the upstream. Each refusal
names the path of the part at fault (``messages[2].content``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from failsoft.base.errors import BadInput

__all__ = ["MAX_BODY", "MAX_DEPTH", "ChatRequest", "decode_request"]

MAX_DEPTH: Final = 64
"""Levels of nesting that a request may have."""
MAX_BODY: Final = 8 * 1024 * 1024
"""Bytes of a request body, unless the caller says otherwise."""

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_PLAIN: Final = ("user", "assistant", "system", "developer")
"""Roles whose messages are often a role and a text and nothing else: they pass without a call."""
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class ChatRequest:
    """A chat request that passed the checks. ``data`` is the whole body as plain data; do not change it in place."""

    __slots__ = ("data", "size")

    def __init__(self, data: dict[str, Any], size: int = 0) -> None:
        self.data = data
        self.size = size

    @property
    def model(self) -> str:
        """The model or alias asked for."""
        return self.data["model"]  # type: ignore[no-any-return] # checked when it was decoded

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation, never empty."""
        return self.data["messages"]  # type: ignore[no-any-return] # checked when it was decoded

    @property
    def stream(self) -> bool:
        """Whether the client wants a stream."""
        return bool(self.data.get("stream"))

    @property
    def n(self) -> int:
        """How many choices are wanted."""
        return self.data.get("n") or 1

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools offered to the model; empty when there are none."""
        return self.data.get("tools") or []

    @property
    def max_tokens(self) -> int | None:
        """The limit of the answer's length in tokens, under either of its names."""
        found = self.data.get("max_completion_tokens")
        return self.data.get("max_tokens") if found is None else found

    @property
    def temperature(self) -> float | None:
        """The sampling temperature; None when it is left to the model."""
        return self.data.get("temperature")

    @property
    def stream_options(self) -> dict[str, Any]:
        """Options of the stream; empty when there are none."""
        return self.data.get("stream_options") or {}

    @property
    def include_usage(self) -> bool:
        """Whether a streaming client asked for the usage chunk."""
        return bool(self.stream_options.get("include_usage"))

    def encode_for(self, upstream_model: str, *, stream: bool, overrides: Mapping[str, Any] | None = None) -> bytes:
        """The body to send to an upstream: another model name, `overrides` on top (None removes a parameter).

        With `stream` the usage chunk is always asked for; whoever passes the stream on drops it when the client did
        not want it.
        """
        data = self.data.copy()
        data["model"] = upstream_model
        if overrides:
            for name, value in overrides.items():
                if value is None:
                    data.pop(name, None)
                else:
                    data[name] = value
        if stream:
            data["stream"] = True
            options = data.get("stream_options")
            data["stream_options"] = {**options, "include_usage": True} if options else {"include_usage": True}
        else:
            data.pop("stream", None)
            data.pop("stream_options", None)
        return _encode(data)

    def __repr__(self) -> str:
        return f"<ChatRequest model={self.model!r} messages={len(self.messages)} stream={self.stream}>"


def decode_request(body: bytes, *, limit: int = MAX_BODY) -> ChatRequest:
    """Reads and checks a request body of at most `limit` bytes.

    Raises :class:`~failsoft.base.errors.BadInput` with ``param`` set where a part of the request is at fault, and
    nothing else, whatever the bytes are.
    """
    size = len(body)
    if size > limit:
        raise BadInput(f"the request body has {size} bytes; {limit} are allowed", details={"limit": limit})
    try:
        data = _decode(body)
    except RecursionError:
        raise BadInput(f"the request is nested more than {MAX_DEPTH} levels deep") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadInput(f"the request body is not valid JSON: {error}") from None
    if type(data) is not dict:
        raise BadInput("the request body must be a JSON object")
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        _check_depth(data)
    model = data.get("model")
    if type(model) is not str or not model:
        raise BadInput("model must be a non-empty string", param="model")
    if len(model) > 256:
        raise BadInput("model must have at most 256 characters", param="model")
    messages = data.get("messages")
    if type(messages) is not list or not messages:
        raise BadInput("messages must be a non-empty list", param="messages")
    for index, message in enumerate(messages):
        if (
            type(message) is not dict
            or len(message) != 2
            or type(message.get("content")) is not str
            or message.get("role") not in _PLAIN
        ):
            _check_message(message, f"messages[{index}]")
    for name, value in data.items():
        if name in _CHECKS and value is not None:
            _CHECKS[name](name, value)
    return ChatRequest(data, size)


def _check_depth(data: Any) -> None:
    stack = [(data, 1)]
    while stack:
        one, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise BadInput(f"the request is nested more than {MAX_DEPTH} levels deep")
        inner = one.values() if type(one) is dict else one
        stack.extend((part, depth + 1) for part in inner if type(part) is dict or type(part) is list)


def _check_message(message: Any, path: str) -> None:
    if type(message) is not dict:
        raise BadInput(f"{path} must be an object", param=path)
    role = message.get("role")
    if type(role) is not str or role not in _ROLES:
        raise BadInput(f"{path}.role must be one of {', '.join(sorted(_ROLES))}", param=f"{path}.role")
    content = message.get("content")
    if type(content) is list:
        _check_parts(content, f"{path}.content")
    elif content is None:
        if role not in {"assistant", "function"}:
            raise BadInput(f"{path}.content is missing", param=f"{path}.content")
    elif type(content) is not str:
        raise BadInput(f"{path}.content must be a string or a list of parts", param=f"{path}.content")
    if role == "tool" and type(message.get("tool_call_id")) is not str:
        raise BadInput(f"{path}.tool_call_id must be a string", param=f"{path}.tool_call_id")
    calls = message.get("tool_calls")
    if calls is not None:
        _check_calls(calls, f"{path}.tool_calls")


def _check_parts(parts: list[Any], path: str) -> None:
    for index, part in enumerate(parts):
        if type(part) is not dict or type(part.get("type")) is not str:
            raise BadInput(f"{path}[{index}] must be an object with a type", param=f"{path}[{index}]")
        if part["type"] == "text" and type(part.get("text")) is not str:
            raise BadInput(f"{path}[{index}].text must be a string", param=f"{path}[{index}].text")


def _check_calls(calls: Any, path: str) -> None:
    if type(calls) is not list:
        raise BadInput(f"{path} must be a list", param=path)
    for index, call in enumerate(calls):
        where = f"{path}[{index}]"
        if type(call) is not dict:
            raise BadInput(f"{where} must be an object", param=where)
        function = call.get("function")
        if function is None and call.get("type", "function") != "function":
            continue
        if type(function) is not dict or type(function.get("name")) is not str:
            raise BadInput(f"{where}.function.name must be a string", param=f"{where}.function.name")
        if type(function.get("arguments", "")) is not str:
            raise BadInput(f"{where}.function.arguments must be a string", param=f"{where}.function.arguments")


def _bool(name: str, value: Any) -> None:
    if type(value) is not bool:
        raise BadInput(f"{name} must be true or false", param=name)


def _object(name: str, value: Any) -> None:
    if type(value) is not dict:
        raise BadInput(f"{name} must be an object", param=name)


def _choices(name: str, value: Any) -> None:
    if type(value) is not int or not 1 <= value <= 128:
        raise BadInput(f"{name} must be an integer between 1 and 128", param=name)


def _positive(name: str, value: Any) -> None:
    if type(value) is not int or not 1 <= value <= 100_000_000:
        raise BadInput(f"{name} must be an integer of at least 1", param=name)


def _temperature(name: str, value: Any) -> None:
    if not (type(value) is float or type(value) is int) or not 0 <= value <= 2:
        raise BadInput(f"{name} must be a number between 0 and 2", param=name)


def _share(name: str, value: Any) -> None:
    if not (type(value) is float or type(value) is int) or not 0 <= value <= 1:
        raise BadInput(f"{name} must be a number between 0 and 1", param=name)


def _tools(name: str, value: Any) -> None:
    if type(value) is not list:
        raise BadInput(f"{name} must be a list", param=name)
    for index, one in enumerate(value):
        if type(one) is not dict or type(one.get("type")) is not str:
            raise BadInput(f"{name}[{index}] must be an object with a type", param=f"{name}[{index}]")
        function = one.get("function")
        if one["type"] == "function" and (type(function) is not dict or type(function.get("name")) is not str):
            raise BadInput(f"{name}[{index}].function.name must be a string", param=f"{name}[{index}].function.name")


_CHECKS: Final[dict[str, Callable[[str, Any], None]]] = {
    "stream": _bool,
    "n": _choices,
    "temperature": _temperature,
    "top_p": _share,
    "max_tokens": _positive,
    "max_completion_tokens": _positive,
    "tools": _tools,
    "stream_options": _object,
    "response_format": _object,
}
