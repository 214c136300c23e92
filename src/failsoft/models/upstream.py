"""One exchange with an upstream: the request as it wants it, its answer as chunks, its failures as what they are.

The answer comes as lists of chunks, one list for each piece that the network gave, whether the upstream streams or not.
An end is only an end when every choice said why it ended: anything else is :class:`~failsoft.base.errors.StreamCut`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from failsoft.base.errors import EmptyResult, FailsoftError, MalformedResult, StreamCut
from failsoft.base.transport import HttpRequest, HttpResponse, Transport
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.scope import current
from failsoft.models.assembly import DONE_EVENT, replay
from failsoft.models.chunks import CONTENT_KINDS, DONE, ERROR, FINISH, Chunk, read_chunk
from failsoft.models.failures import Symptom, read_answer, read_failure
from failsoft.models.routes import Route
from failsoft.models.sse import SseParser

__all__ = ["as_chunks", "exchange", "has_content", "refused", "request_for", "streamed"]

_MAX_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of an answer that is not streamed."""

_MAX_ERROR: Final = 64 * 1024
"""Bytes of an error's body that are looked at."""


def has_content(chunks: list[Chunk]) -> bool:
    """Whether a piece of the stream says anything: a role alone does not, reasoning and tool calls do."""
    return any(chunk.kinds & CONTENT_KINDS for chunk in chunks)


def request_for(
    route: Route,
    body: bytes,
    *,
    stream: bool,
    request_id: str | None,
    total: float,
    connect: float | None = None,
    url: str | None = None,
) -> HttpRequest:
    """The upstream's request, with what is left of the budget on it (relative: clocks of two machines do not agree).

    `url` is where chat completions are asked for, unless it is given.
    """
    left = min(total, current.get().wanted_until - asyncio.get_running_loop().time())
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream" if stream else "application/json",
        **route.headers,
    }
    if left < math.inf:
        headers["X-Request-Timeout-Ms"] = str(max(1, int(left * 1000)))
        headers["X-Max-Wait"] = f"{max(0.001, left):.3f}s"
    if route.api_key is not None:
        headers["Authorization"] = f"Bearer {route.api_key}"
    if request_id is not None:
        headers["X-Request-ID"] = request_id
    return HttpRequest("POST", url or route.url, headers, body, downstream=route.downstream, connect=connect)


async def exchange(
    transport: Transport, route: Route, request: HttpRequest, *, n: int, wall: float
) -> AsyncGenerator[list[Chunk], None]:
    """Sends `request` and gives the answer piece by piece; `n` is the number of choices asked for, `wall` the
    wall-clock time in seconds, for dates in ``Retry-After``.

    Leaving early closes the connection, which stops the upstream.
    """
    async with transport.send(request) as response:
        if response.status >= 300:
            raise await refused(response, route.downstream, wall)
        if "text/event-stream" in response.headers.get("content-type", "").lower():
            async with aclosing(streamed(response, n)) as pieces:
                async for piece in pieces:
                    yield piece
        else:
            yield _whole(await response.read(_MAX_ANSWER), route.downstream)


async def refused(response: HttpResponse, downstream: str, wall: float) -> FailsoftError:
    """The error that a response stands for, whose status is not that of a success."""
    symptom = Symptom(None, response.status, response.headers, await _some(response), downstream, wall)
    return read_failure(symptom).error


async def _some(response: HttpResponse) -> bytes:
    """The beginning of an error's body, whatever it is and however it ends."""
    parts: list[bytes] = []
    size = 0
    try:
        async with deadline_scope(1.0, limit="task"), aclosing(response.chunks()) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if size >= _MAX_ERROR:
                    break
    except Exception:  # noqa: BLE001, S110 - the status says enough
        pass
    return b"".join(parts)[:_MAX_ERROR]


async def streamed(response: HttpResponse, n: int) -> AsyncGenerator[list[Chunk], None]:
    """The chunks of a streamed answer with `n` choices, a list for each piece; raises unless it is complete."""
    parser = SseParser()
    finished: set[int] = set()
    seen: set[int] = set()
    said = done = False
    reason: Any = None
    try:
        async with aclosing(response.chunks()) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                chunks: list[Chunk] = []
                for payload in parser.payloads(piece):
                    chunk = read_chunk(payload)
                    kinds = chunk.kinds
                    if kinds & ERROR:
                        assert chunk.data is not None
                        raise read_failure(Symptom(status=200, body=chunk.data)).error
                    if kinds & CONTENT_KINDS:
                        said = True
                    if n > 1 and chunk.data is not None:
                        seen.update(_indexes(chunk.data))
                    if kinds & FINISH:
                        assert chunk.data is not None
                        finished.update(_indexes(chunk.data, ended=True))
                        reason = chunk.data["choices"][-1].get("finish_reason") or reason
                    if kinds & DONE:
                        done = True
                        break
                    chunks.append(chunk)
                if chunks:
                    yield chunks
                if done:
                    break
    except StreamCut:
        if len(finished) < n or not seen <= finished:
            raise
        # every choice had said why it ended: only the last line is missing
    if not finished or not seen <= finished or (len(finished) < n and not done):
        raise StreamCut("the stream ended without saying that it was complete", details={"fault": "no_finish"})
    if not said and reason not in ("length", "content_filter"):
        raise EmptyResult("the answer has neither text nor tool calls", details={"fault": "no_content"})


def _indexes(data: dict[str, Any], *, ended: bool = False) -> list[int]:
    """The numbers of the choices in a chunk; with `ended` of those that say why they end."""
    found = [
        choice.get("index") or 0 for choice in data.get("choices") or () if not ended or choice.get("finish_reason")
    ]
    if any(type(index) is not int for index in found):
        raise MalformedResult("a choice of the stream has no proper index", details={"fault": "bad_chunk"})
    return found


def _whole(body: bytes, downstream: str) -> list[Chunk]:
    """An answer that was not streamed, checked and as chunks."""
    return as_chunks(read_answer(body, downstream=downstream), include_usage=True)


def as_chunks(answer: dict[str, Any], *, include_usage: bool) -> list[Chunk]:
    """A whole answer as the chunks of a stream."""
    events = replay(answer, include_usage=include_usage)
    return [read_chunk(event[6:].strip()) for event in events if event != DONE_EVENT]
