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
from failsoft.base.tracing import current_trace, parse_traceparent
from failsoft.kernel.scope import Scope as CallScope
from failsoft.kernel.scope import current
from failsoft.models.calls import CallRecord
from failsoft.models.chat_request import ChatRequest, decode_request
from failsoft.models.chunks import FINISH, Chunk
from failsoft.models.embeddings import EmbeddingRequest, decode_embedding_request, embed
from failsoft.models.pieces import Piece, Run, framed
from failsoft.models.wire import DONE_EVENT, error_event
from failsoft.server.auth import Caller
from failsoft.server.call_budget import budget_of, sound_id
from failsoft.server.call_log import CallLine
from failsoft.server.link import link_of
from failsoft.server.outlet import Outlet
from failsoft.server.plain import Receive, Scope, Send, body_at_hand, read_body, send_body, send_error
from failsoft.server.refusals import ShuttingDown

if TYPE_CHECKING:
    from failsoft.server.openai_api import OpenAIApi

__all__ = ["Call", "ChatCall", "EmbeddingCall"]

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

_GONE: Final = 499
_UNSAFE: Final = re.compile(rb"[^\x21-\x7e]")

_STREAM_HEAD: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\n"
)  # fmt: skip
_HEAD: Final = (
    b"x-request-id: %b\r\nx-failsoft-attempts: %d\r\nx-failsoft-cache: %b\r\nx-failsoft-overhead-ms: %.3f\r\n"
    b"x-llm-duration: %.3f\r\nx-llm-reason: %b\r\n%b"
)
_NO_USAGE: Final[dict[str, Any]] = {}


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
        api, link = self.api, self.link
        api.calls.add(self)
        try:
            try:
                headers = self._enter()
                trace = headers.get(b"traceparent")
                current_trace.set(None if trace is None else parse_traceparent(trace.decode("latin-1")))
                limit = api.settings.max_body
                body = body_at_hand(headers, limit, link)
                if body is None:
                    body = await read_body(
                        self.receive, headers, limit=limit, within=api.settings.body_timeout, link=link
                    )
                request, record = self._accept(body)
                # No alarm of its own: what is waited for (guards, shared calls, pauses) ends at the scope's deadline.
                token = current.set(CallScope(self.until, tenant=record.tenant))
                try:
                    await self._answer(request, record)
                finally:
                    current.reset(token)
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
            if link is not None:
                link.unwatch()
            elif self.watcher is not None:
                self.watcher.cancel()
            api.calls.discard(self)
            self.outlet = None  # which knows us
            if self.entered:
                assert self.caller is not None
                self.caller.leave()
            self._told()

    def _enter(self) -> dict[bytes, bytes]:
        """Who calls, within which limits and until when; gives the headers."""
        api = self.api
        settings = api.settings
        self.began = began = asyncio.get_running_loop().time()
        headers = dict(self.scope["headers"])
        self.request_id = sound_id(headers) or api.new_id()
        self.caller = caller = api.ring.caller(headers)
        self.until = began + budget_of(
            headers,
            self.scope["query_string"],
            default=settings.budget,
            maximum=settings.maximum_budget,
            wall=api.sources.wall() if b"x-start-time" in headers else 0.0,
        )
        caller.enter(began)
        self.entered = True
        return headers

    def _accept(self, body: bytes) -> tuple[Any, CallRecord]:
        """What is wanted, if the caller may have it and there is time for it."""
        api, caller = self.api, self.caller
        assert caller is not None
        request = self._decoded(body, api.settings.max_body)
        model = request.model
        caller.check(model)
        if not api.serves(model):
            api.gateway.alias(model)  # says which there are
        loop = asyncio.get_running_loop()
        if loop.time() >= self.until:
            raise DeadlineExceeded("the budget was spent before the request could be read")
        if self.link is not None:
            self.link.watch(self._gone)
        else:
            self.watcher = loop.create_task(self._watched(), name="watch-client")
        self.record = record = CallRecord(model, self.request_id, caller.tenant, request.stream, self.began)
        record.mark = self.mark
        return request, record

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
        head = self._head()
        if not error.retryable and error.status >= 500:
            head += b"x-should-retry: false\r\n"  # the SDKs obey it
        await send_error(self.send, error, head, code=code, link=self.link)

    def _head(self) -> bytes:
        """What is known now, as header lines."""
        record = self.record
        if record is None:
            return b"x-request-id: %b\r\n" % self.request_id.encode()
        record.away()
        ended = record.ended
        if ended is None:
            ended = asyncio.get_running_loop().time()
        head = _HEAD % (
            self.request_id.encode(),
            record.attempts,
            record.cache.encode(),
            (record.own or 0.0) * 1000,
            ended - record.began,
            record.reason().encode(),
            _limits_line(record.limits, record.fired),
        )
        if record.route is not None:
            head += _route_lines(record.route, record.degraded)
        if record.tried:
            told = b",".join(_safe(one.route) + b"=" + _safe(one.reading) for one in record.tried)
            head += b"x-failsoft-fallbacks: %b\r\n" % told
        return head

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
        name, tenant = (None, None) if caller is None else (caller.name, caller.tenant)
        ts, ms = int(self.api.sources.wall() * 1000) / 1000, int((now - self.began) * 1000)
        remaining = budget = None
        if self.until < math.inf:
            remaining, budget = int((self.until - now) * 1000), int((self.until - self.began) * 1000)
        if record is None:
            return CallLine(
                ts, self.request_id, self.operation, self.status, ms, name, tenant, code=self.code,
                budget_ms=budget, remaining_ms=remaining,
            )  # fmt: skip
        first, decode, own, usage = record.first, record.decode, record.own, record.usage or _NO_USAGE
        return CallLine(
            ts,
            self.request_id,
            self.operation,
            self.status,
            ms,
            name,
            tenant,
            record.alias,
            record.route,
            record.model,
            record.stream,
            record.attempts,
            [f"{one.route}={one.reading}" for one in record.tried] if record.tried else [],
            self.code,
            record.fired,
            record.limits,
            budget,
            remaining,
            int(record.queue * 1000),
            None if first is None else int(first * 1000),
            None if decode is None else int(decode * 1000),
            None if own is None else int(own * 1_000_000),
            record.cache,
            record.degraded,
            record.seam,
            record.finish,
            _count(usage.get("prompt_tokens")),
            _count(usage.get("completion_tokens")),
        )


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
        await send_body(self.send, 200, raw, self._head(), link=self.link)

    async def _streamed(self, request: ChatRequest, record: CallRecord) -> None:
        answerer = self.api.answerer(request.model)
        alias = answerer.alias(request.model)
        outlet = self.outlet = Outlet(
            self.send,
            self._stream_head,
            self._not_reading,
            link=self.link,
            commit_after=alias.commit_after,
            every=alias.heartbeat,
            wait=self.api.settings.write_timeout,
        )
        async with outlet, aclosing(answerer.stream(request, record)) as pieces:
            async for piece in pieces:
                finished = piece.kinds & FINISH
                raw = _with_facts(piece, record) if finished and (outlet.early or record.seam) else piece.raw
                waiting = outlet.put(raw)
                if waiting is not None:
                    await waiting
                if finished:
                    self.done = True  # it may close without waiting for the last line
            self.done = True
            await outlet.end(DONE_EVENT)

    def _stream_head(self) -> bytes:
        return _STREAM_HEAD + self._head()


def _with_facts(piece: Piece, record: CallRecord) -> bytes:
    """A piece with a reason for the end as it goes out when there is more to say than the headers could."""
    items: list[Chunk | Run] = []
    for item in piece.items:
        if isinstance(item, Chunk) and item.kinds & FINISH:
            assert item.data is not None
            items.append(item._replace(raw=_encode({**item.data, "failsoft": record.facts()})))
        else:
            items.append(item)
    return framed(items)


class EmbeddingCall(Call):
    """``POST /v1/embeddings``."""

    operation = "embeddings"

    def _decoded(self, body: bytes, limit: int) -> EmbeddingRequest:
        return decode_embedding_request(body, limit=limit)

    async def _answer(self, request: EmbeddingRequest, record: CallRecord) -> None:
        body = await embed(self.api.gateway, request, record)
        self.done = True
        await send_body(self.send, 200, body, self._head(), link=self.link)


def _safe(name: str) -> bytes:
    return _UNSAFE.sub(b"?", name.encode("utf-8"))


@lru_cache(maxsize=1024)
def _route_lines(route: str, degraded: bool) -> bytes:
    return b"x-failsoft-route: %b\r\nx-failsoft-degraded: %b\r\n" % (_safe(route), b"true" if degraded else b"false")


@lru_cache(maxsize=1024)
def _limits_line(limits: tuple[str, str, str] | None, fired: str | None) -> bytes:
    first, idle, total = limits or ("none", "none", "none")
    return f"x-failsoft-limits: first={first},idle={idle},total={total},fired={fired or 'none'}\r\n".encode()


def _count(tokens: Any) -> int | None:
    return tokens if type(tokens) is int else None
