"""One exchange with an upstream: the request as it wants it, its answer piece by piece, its failures as what they are.

The answer comes as pieces, one for each read of the network, whether the upstream streams or not.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Final

from failsoft.base.errors import FailsoftError, StreamCut
from failsoft.base.tracing import traceparent
from failsoft.base.transport import HttpRequest, HttpResponse, Transport
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.scope import current
from failsoft.models.assembly import DONE_EVENT, Assembler, replay
from failsoft.models.chunks import CONTENT_KINDS, read_chunk
from failsoft.models.failures import Symptom, read_answer, read_failure
from failsoft.models.limits import RequestLimits
from failsoft.models.pieces import Piece
from failsoft.models.reading import AnswerReader
from failsoft.models.states import RouteState

__all__ = ["Exchange", "as_piece", "assembled", "has_content", "refused", "request_for"]

_MAX_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of an answer that is not streamed."""

_MAX_ERROR: Final = 64 * 1024
"""Bytes of an error's body that are looked at."""


def has_content(piece: Piece) -> bool:
    """Whether a piece of the stream says anything: a role alone does not, reasoning and tool calls do."""
    return bool(piece.kinds & CONTENT_KINDS)


def request_for(
    chosen: RouteState,
    body: bytes,
    limits: RequestLimits,
    *,
    stream: bool,
    request_id: str | None,
    now: float,
    url: str | None = None,
) -> HttpRequest:
    """The upstream's request, with what is left of the budget on it (relative: clocks of two machines do not agree).

    `url` is where chat completions are asked for, unless it is given.
    """
    headers = chosen.headers.copy()
    headers.setdefault("Accept", "text/event-stream" if stream else "application/json")
    scope = current.get()
    left = scope.wanted_until - now
    if limits.total < left:
        left = limits.total
    if left < math.inf:
        headers["X-Request-Timeout-Ms"] = str(max(1, int(left * 1000)))
        headers["X-Max-Wait"] = f"{max(0.001, left):.3f}s"
    if request_id is not None:
        headers["X-Request-ID"] = request_id
    if (parent := traceparent(scope.run, scope.task)) is not None:
        headers["traceparent"] = parent
    route = chosen.route
    return HttpRequest("POST", url or chosen.url, headers, body, route.downstream, 0, route.limits.connect)


class Exchange:
    """The answer to `request`, piece by piece; `n` is the number of choices asked for, `wall` the wall-clock time in
    seconds, for dates in ``Retry-After``.

    The request is sent when the first piece is asked for. ``aclose`` closes the connection, which stops the
    upstream; so does any failure.
    """

    __slots__ = ("_body", "_reader", "_request", "_sending", "_transport", "_wall")

    def __init__(self, transport: Transport, request: HttpRequest, *, n: int, wall: float) -> None:
        self._transport = transport
        self._request = request
        self._wall = wall
        self._reader: AnswerReader | None = AnswerReader(n)
        self._sending: AbstractAsyncContextManager[HttpResponse] | None = None
        self._body: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> Exchange:
        return self

    async def __anext__(self) -> Piece:
        reader = self._reader
        if reader is None:
            raise StopAsyncIteration
        try:
            body = self._body
            if body is None:
                self._sending = sending = self._transport.send(self._request)
                response = await sending.__aenter__()
                if response.status >= 300:
                    raise await refused(response, self._request.downstream, self._wall)
                if "text/event-stream" not in response.headers.get("content-type", "").lower():
                    self._reader = None
                    answer = read_answer(await response.read(_MAX_ANSWER), downstream=self._request.downstream)
                    return as_piece(answer, include_usage=True)
                self._body = body = response.chunks()
            try:
                while not reader.done:
                    piece = reader.read(await body.__anext__())
                    if piece is not None:
                        return piece
            except StopAsyncIteration:
                pass
            except StreamCut:
                if not reader.complete:
                    raise
            reader.check_end()
        except BaseException:
            await self._close()
            raise
        await self._close()
        raise StopAsyncIteration

    @property
    def aclose(self) -> Callable[[], Awaitable[None]] | None:
        """Ends it, complete or not; None when it has ended, so that nobody waits for nothing within limits."""
        return None if self._sending is None else self._close

    async def _close(self) -> None:
        self._reader = None
        body, self._body = self._body, None
        sending, self._sending = self._sending, None
        close = getattr(body, "aclose", None)
        try:
            if close is not None:
                await close()
        finally:
            if sending is not None:
                await sending.__aexit__(None, None, None)

    def __repr__(self) -> str:
        return f"<Exchange {self._request.downstream} {'ended' if self._reader is None else self._reader}>"


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


async def assembled(response: HttpResponse, n: int) -> dict[str, Any]:
    """The whole answer of an upstream that streams; raises unless it is complete."""
    reader, assembler = AnswerReader(n), Assembler(n)
    try:
        async with aclosing(response.chunks()) as body:  # type: ignore[type-var]
            async for data in body:
                piece = reader.read(data)
                if piece is not None:
                    assembler.take(piece)
                if reader.done:
                    break
    except StreamCut:
        if not reader.complete:
            raise
    reader.check_end()
    return assembler.result()


def as_piece(answer: dict[str, Any], *, include_usage: bool) -> Piece:
    """A whole answer as the chunks of a stream."""
    events = replay(answer, include_usage=include_usage)
    return Piece.of([read_chunk(event[6:].strip()) for event in events if event != DONE_EVENT])
