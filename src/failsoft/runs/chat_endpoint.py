"""An OpenAI-compatible endpoint that is asked for one text at a time, streamed, so that cancelling stops it there."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from failsoft.base.errors import (
    BadInput,
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    EmptyResult,
    FailsoftError,
    MalformedResult,
    StreamCut,
)
from failsoft.base.transport import HttpRequest, HttpResponse, Transport
from failsoft.models.sse import events

__all__ = ["REPLY", "ChatEndpoint"]

_ERROR_BODY: Final = 64_000
REPLY: Final = 256_000
"""Characters of a reply; more is an error."""


class ChatEndpoint:
    """Where a model is. ``base_url`` (up to and with ``/v1``) and ``api_key`` default to ``OPENAI_BASE_URL`` and
    ``OPENAI_API_KEY``; without a ``model`` the endpoint's first one is used. Nothing here is guarded: callers are.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        downstream: str = "model",
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
        self.downstream = downstream
        self.model = model
        """The model that is asked; None until it is known."""

    def body(self, messages: Sequence[Mapping[str, Any]], max_tokens: int, **more: Any) -> dict[str, Any]:
        """A request for one text, always the same for the same messages."""
        return {
            "model": self.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
            **more,
        }

    def _request(self, method: str, path: str, body: Any = None) -> HttpRequest:
        headers = {"accept": "text/event-stream, application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        return HttpRequest(method, f"{self._base}{path}", headers, data, downstream=self.downstream)

    async def first_model(self) -> str:
        """The first model that the endpoint lists."""
        async with self._transport.send(self._request("GET", "/models")) as response:
            body = await response.read(1_000_000)
            if response.status != 200:
                raise _refusal(response, body)
        try:
            return str(json.loads(body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise MalformedResult("the endpoint lists no model; name one", downstream=self.downstream) from None

    async def deltas(self, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        """The reply's text as it arrives; raises unless it ended by itself."""
        size = 0
        finish: str | None = None
        async with self._transport.send(self._request("POST", "/chat/completions", body)) as response:
            if response.status != 200:
                raise _refusal(response, await response.read(_ERROR_BODY))
            if "text/event-stream" not in response.headers.get("content-type", ""):
                text, finish = _whole(await response.read(REPLY * 4))
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
                            if size > REPLY:
                                raise MalformedResult("the model's reply is too long")
                            yield text
        if finish is None:
            raise StreamCut("the model's reply broke off", downstream=self.downstream)
        if finish == "length":
            raise StreamCut("the model's reply was cut at its token limit", downstream=self.downstream)
        if size == 0:
            raise EmptyResult("the model's reply is empty", downstream=self.downstream)

    def __repr__(self) -> str:
        return f"{self.model or 'first model'} at {self._base}"


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
