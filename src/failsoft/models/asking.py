"""What a route is asked, and what one without a model answers."""

from __future__ import annotations

from typing import Any, Final

from failsoft.base.clock import Sources
from failsoft.models.chat_request import ChatRequest
from failsoft.models.hygiene import cut_input, limit_note
from failsoft.models.pieces import Piece
from failsoft.models.routes import Route
from failsoft.models.tokens import TokenEstimate
from failsoft.models.upstream import as_piece

__all__ = ["body_for", "continued", "least", "streams", "text_answer"]

_SYSTEM: Final = frozenset({"system", "developer"})


def streams(route: Route, *, stream: bool) -> bool:
    """Whether the route's upstream is asked to stream; `stream`: whether the client wants it."""
    return route.upstream_stream == "always" or (stream and route.upstream_stream == "auto")


def body_for(route: Route, request: ChatRequest, tokens: TokenEstimate, *, stream: bool) -> bytes:
    """The request as this route wants it: its model, its caps, its template, an input that fits."""
    overrides: dict[str, Any] = {}
    messages = request.messages
    if route.max_input_tokens is not None:
        messages = cut_input(messages, route.max_input_tokens, lambda text: tokens.count(text, route.model))
    if route.system is not None:
        messages = [{"role": "system", "content": route.system}, *messages]
    if route.output_note and (most := least(request.max_tokens, route.max_tokens)) is not None:
        # behind the system prompt: in front of a tool's result it would part it from its call
        head = next((i for i, one in enumerate(messages) if one.get("role") not in _SYSTEM), len(messages))
        messages = [*messages[:head], {"role": "system", "content": limit_note(most)}, *messages[head:]]
    if messages is not request.messages:
        overrides["messages"] = messages
    if route.max_tokens is not None:
        name = "max_completion_tokens" if "max_completion_tokens" in request.data else "max_tokens"
        overrides[name] = least(request.max_tokens, route.max_tokens)
    return request.encode_for(route.model or request.model, stream=streams(route, stream=stream), overrides=overrides)


def least(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits, None being none."""
    return other if one is None else one if other is None else min(one, other)


def continued(request: ChatRequest, said: str) -> ChatRequest:
    """The request to the next route after a cut: with what was said so far as the beginning of its answer."""
    messages = [*request.messages, {"role": "assistant", "content": said}]
    return ChatRequest({**request.data, "messages": messages}, request.size)


def text_answer(route: Route, request: ChatRequest, sources: Sources) -> Piece:
    """The answer of a route without a model: its text, as a piece of a stream."""
    question = ""
    for message in reversed(request.messages):
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            question = message["content"]
            break
    text = (route.text or "").replace("{question}", question[:2000])
    answer = {
        "id": sources.new_id("chatcmpl"),
        "object": "chat.completion",
        "created": int(sources.wall()),
        "model": route.name,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
    }
    return as_piece(answer, include_usage=False)
