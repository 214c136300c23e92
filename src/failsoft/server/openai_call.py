"""One call of the OpenAI routes, from its first byte to its line in the log."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from asyncio import CancelledError
from contextlib import aclosing
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from failsoft.base.errors import (
    DeadlineExceeded,
    FailsoftError,
    InternalError,
    NotFound,
    TimeoutExceeded,
)
from failsoft.kernel.scope import Scope as CallScope
from failsoft.kernel.scope import current
from failsoft.models.calls import CallRecord
from failsoft.models.chat_request import ChatRequest, decode_request
from failsoft.models.chunks import FINISH, Chunk
from failsoft.models.embeddings import EmbeddingRequest, decode_embedding_request, embed
from failsoft.models.wire import DONE_EVENT, error_event
from failsoft.server.auth import Caller
from failsoft.server.call_budget import budget_of, sound_id
from failsoft.server.call_log import CallLine
from failsoft.server.link import link_of
from failsoft.server.outlet import Outlet
from failsoft.server.plain import Headers, Receive, Scope, Send, read_body, send_body, send_error
from failsoft.server.refusals import ShuttingDown

if TYPE_CHECKING:
    from failsoft.server.openai_api import OpenAIApi

__all__ = ["Call", "ChatCall", "EmbeddingCall"]

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

_GONE: Final = 499
_UNSAFE: Final = re.compile(rb"[^\x21-\x7e]")

_STREAM_HEADERS: Final[Headers] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Call:
    """A request with its connection, its caller and its record. Its task is cancelled when its client goes."""

    operation: ClassVar[str] = "chat"

    began = 0.0
    until = math.inf
    request_id = ""
    status = 200
    code: str | None = None
    caller: Caller | None = None
    entered = False
    record: CallRecord | None = None
    watcher: asyncio.Task[None] | None = None
    outlet: Outlet | None = None
    done = False
    """Whether the client has all that it needs: what it does now is no cancellation."""
    ended_by: str | None = None
    """Who cancelled our task: ``client``, ``unread`` or ``shutdown``."""

    def __init__(self, api: OpenAIApi, scope: Scope, receive: Receive, send: Send) -> None:
        self.mark = perf_counter()
        self.api = api
        self.scope = scope
        self.receive = receive
        self.send = send
        self.task: asyncio.Task[Any] | None = None
        self.link = link_of(scope)

    # --- life --------------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Answers, whatever happens."""
        self.task = asyncio.current_task()
        api = self.api
        api.calls.add(self)
        try:
            try:
                await self._serve()
            except CancelledError:
                if self.ended_by is None:
                    raise
                assert self.task is not None
                self.task.uncancel()
                await self._cancelled()
            except FailsoftError as error:
                await self._refuse(error)
            except Exception:  # noqa: BLE001 - a defect: answered, and logged with its trace
                _log.exception("request %s failed inside the gateway", self.request_id)
                await self._refuse(InternalError("something went wrong on our side; it has been logged"))
        finally:
            if self.link is not None:
                self.link.unwatch()
            elif self.watcher is not None:
                self.watcher.cancel()
            api.calls.discard(self)
            self.outlet = None  # which knows us
            if self.entered:
                assert self.caller is not None
                self.caller.leave()
            self._told()

    async def _serve(self) -> None:
        api = self.api
        settings = api.settings
        loop = asyncio.get_running_loop()
        self.began = began = loop.time()
        headers = dict(self.scope["headers"])
        self.request_id = sound_id(headers) or api.new_id()
        self.caller = caller = api.ring.caller(headers)
        budget = budget_of(
            headers,
            self.scope["query_string"],
            default=settings.budget,
            maximum=settings.maximum_budget,
            wall=api.sources.wall() if b"x-start-time" in headers else 0.0,
        )
        caller.enter(began)
        self.entered = True
        body = await read_body(
            self.receive, headers, limit=settings.max_body, within=settings.body_timeout, link=self.link
        )
        request = self._decoded(body, settings.max_body)
        model = request.model
        caller.check(model)
        if not api.serves(model):
            api.gateway.alias(model)  # says which there are
        self.until = until = began + budget
        if loop.time() >= until:
            raise DeadlineExceeded("the budget was spent before the request could be read")
        if self.link is not None:
            self.link.watch(self._gone)
        else:
            self.watcher = loop.create_task(self._watched(), name="watch-client")
        self.record = record = CallRecord(model, self.request_id, caller.tenant, request.stream, began)
        record.mark = self.mark
        # No alarm of its own: whatever is waited for below (guards, shared calls, pauses) ends at the scope's deadline.
        token = current.set(CallScope(until, tenant=caller.tenant))
        try:
            await self._answer(request, record)
        finally:
            current.reset(token)

    def _decoded(self, body: bytes, limit: int) -> Any:
        raise NotImplementedError

    async def _answer(self, request: Any, record: CallRecord) -> None:
        raise NotImplementedError

    # --- who goes ----------------------------------------------------------------------------------------------------

    async def _watched(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self._gone()

    def _gone(self) -> None:
        self._stop("client")

    def _not_reading(self) -> None:
        self._stop("unread")

    def cut(self) -> None:
        """Ends the call: the server shuts down."""
        self._stop("shutdown")

    def _stop(self, by: str) -> None:
        if not self.done and self.ended_by is None and self.task is not None:
            self.ended_by = by
            self.task.cancel()

    async def _cancelled(self) -> None:
        """The task was stopped by one of the above."""
        if self.ended_by == "shutdown":
            await self._refuse(ShuttingDown("the server shuts down; try again", retry_after=1.0))
            return
        self.status = _GONE
        self.code = "client_gone" if self.ended_by == "client" else "client_not_reading"
        if self.ended_by == "unread" and self.link is not None:
            self.link.abort()

    # --- answers -----------------------------------------------------------------------------------------------------

    async def _refuse(self, error: FailsoftError) -> None:
        """Says what went wrong, as the stage of the response allows."""
        self.status, self.code = error.status, error.code
        record = self.record
        if record is not None and record.fired is None and isinstance(error, TimeoutExceeded):
            record.fired = error.limit
        outlet = self.outlet
        if outlet is not None and outlet.blocked:
            # The client does not read what it has; nothing more can be said to it.
            if self.link is not None:
                self.link.abort()
            return
        code = "model_not_found" if isinstance(error, NotFound) else None
        if outlet is not None and outlet.opened:
            self.done = True
            await outlet.end(error_event(error, code=code))
            return
        self.done = True
        headers = self._headers()
        if not error.retryable and error.status >= 500:
            headers.append((b"x-should-retry", b"false"))  # the SDKs obey it
        await send_error(self.send, error, headers, code=code, link=self.link)

    def _headers(self) -> Headers:
        """What is known now, as headers."""
        headers: Headers = [(b"x-request-id", self.request_id.encode())]
        record = self.record
        if record is None:
            return headers
        record.away()
        ended = record.ended
        if ended is None:
            ended = asyncio.get_running_loop().time()
        headers += (
            (b"x-failsoft-attempts", b"%d" % record.attempts),
            (b"x-failsoft-cache", record.cache.encode()),
            (b"x-failsoft-overhead-ms", b"%.3f" % ((record.own or 0.0) * 1000)),
            (b"x-llm-duration", b"%.3f" % (ended - record.began)),
            (b"x-llm-reason", record.reason().encode()),
            _limits_header(record.limits, record.fired),
        )
        if record.route is not None:
            headers += _route_headers(record.route, record.degraded)
        if record.tried:
            told = b",".join(_safe(one.route) + b"=" + _safe(one.reading) for one in record.tried)
            headers.append((b"x-failsoft-fallbacks", told))
        return headers

    # --- what is left of it ------------------------------------------------------------------------------------------

    def _told(self) -> None:
        """The count and the line."""
        api, record = self.api, self.record
        now = asyncio.get_running_loop().time()
        if record is None:
            api.metrics.refused(self.code or "none", self.status)
        else:
            record.status, record.code = self.status, self.code
            if record.ended is None:
                record.ended = now
            api.metrics.record(self.operation, record)
        if api.log.on:
            api.log.write(self._line(now, record))

    def _line(self, now: float, record: CallRecord | None) -> CallLine:
        caller = self.caller
        line = CallLine(
            round(self.api.sources.wall(), 3),
            self.request_id,
            self.operation,
            self.status,
            int((now - self.began) * 1000),
            None if caller is None else caller.name,
            None if caller is None else caller.tenant,
            code=self.code,
        )
        if self.until < math.inf:
            line.remaining_ms = int((self.until - now) * 1000)
            line.budget_ms = int((self.until - self.began) * 1000)
        if record is None:
            return line
        line.alias, line.route, line.model = record.alias, record.route, record.model
        line.stream, line.attempts, line.cache = record.stream, record.attempts, record.cache
        line.limits, line.fired, line.finish = record.limits, record.fired, record.finish
        line.degraded, line.seam = record.degraded, record.seam
        if record.queue:
            line.queue_ms = int(record.queue * 1000)
        if record.tried:
            line.fallbacks = [f"{one.route}={one.reading}" for one in record.tried]
        if record.first is not None:
            line.first_ms = int(record.first * 1000)
        if record.decode is not None:
            line.decode_ms = int(record.decode * 1000)
        if record.own is not None:
            line.own_us = int(record.own * 1_000_000)
        usage = record.usage
        if usage is not None:
            line.input_tokens = _count(usage.get("prompt_tokens"))
            line.output_tokens = _count(usage.get("completion_tokens"))
        return line


class ChatCall(Call):
    """``POST /v1/chat/completions``."""

    def _decoded(self, body: bytes, limit: int) -> ChatRequest:
        return decode_request(body, limit=limit)

    async def _answer(self, request: ChatRequest, record: CallRecord) -> None:
        if request.stream:
            await self._streamed(request, record)
            return
        answer = await self.api.answerer(request.model).complete(request, record)
        raw = record.raw
        if raw is None or record.cache == "stale":
            raw = _encode(answer)
        self.done = True
        await send_body(self.send, 200, raw, self._headers(), link=self.link)

    async def _streamed(self, request: ChatRequest, record: CallRecord) -> None:
        answerer = self.api.answerer(request.model)
        alias = answerer.alias(request.model)
        outlet = self.outlet = Outlet(
            self.send,
            self._stream_headers,
            self._not_reading,
            link=self.link,
            commit_after=alias.commit_after,
            every=alias.heartbeat,
            wait=self.api.settings.write_timeout,
        )
        async with outlet, aclosing(answerer.stream(request, record)) as pieces:
            async for piece in pieces:
                body, finished = _events(piece, record, facts=outlet.early or record.seam)
                await outlet.write(body)
                if finished:
                    self.done = True  # it may close without waiting for the last line
            self.done = True
            await outlet.end(DONE_EVENT)

    def _stream_headers(self) -> Headers:
        return [*_STREAM_HEADERS, *self._headers()]


def _events(piece: list[Chunk], record: CallRecord, *, facts: bool) -> tuple[bytes, bool]:
    """A piece of the stream as it goes out, and whether it has a reason for the end."""
    finished = False
    raws = []
    for chunk in piece:
        raw = chunk.raw
        if chunk.kinds & FINISH:
            finished = True
            if facts and chunk.data is not None:
                raw = _encode({**chunk.data, "failsoft": record.facts()})
        if b"\n" in raw:
            raw = raw.replace(b"\n", b"\ndata: ")
        raws.append(raw)
    return b"data: " + b"\n\ndata: ".join(raws) + b"\n\n", finished


class EmbeddingCall(Call):
    """``POST /v1/embeddings``."""

    operation = "embeddings"

    def _decoded(self, body: bytes, limit: int) -> EmbeddingRequest:
        return decode_embedding_request(body, limit=limit)

    async def _answer(self, request: EmbeddingRequest, record: CallRecord) -> None:
        body = await embed(self.api.gateway, request, record)
        self.done = True
        await send_body(self.send, 200, body, self._headers(), link=self.link)


def _safe(name: str) -> bytes:
    return _UNSAFE.sub(b"?", name.encode("utf-8"))


@lru_cache(maxsize=1024)
def _route_headers(route: str, degraded: bool) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    return (b"x-failsoft-route", _safe(route)), (b"x-failsoft-degraded", b"true" if degraded else b"false")


@lru_cache(maxsize=1024)
def _limits_header(limits: tuple[str, str, str] | None, fired: str | None) -> tuple[bytes, bytes]:
    first, idle, total = limits or ("none", "none", "none")
    return b"x-failsoft-limits", f"first={first},idle={idle},total={total},fired={fired or 'none'}".encode()


def _count(tokens: Any) -> int | None:
    return tokens if type(tokens) is int else None
