"""Calls whose upstream streams: opened under the route's guard, begun by the first content, ended by who reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from failsoft.base.errors import FailsoftError
from failsoft.kernel.stream import GuardedStream
from failsoft.models.asking import body_for, streams, text_answer
from failsoft.models.assembly import Assembler
from failsoft.models.calls import CallRecord
from failsoft.models.chat_request import ChatRequest
from failsoft.models.failures import classifier_for
from failsoft.models.limits import RequestLimits
from failsoft.models.pieces import Piece
from failsoft.models.states import RouteState
from failsoft.models.upstream import Exchange, has_content, request_for

if TYPE_CHECKING:
    from failsoft.models.gateway import Gateway

__all__ = ["OpenedStream", "assemble", "open_stream"]


class OpenedStream:
    """One route's answer under its guard, from its first content on; ``pieces`` is what to iterate.

    :meth:`ended` when the pieces have come to their end, :meth:`aclose` in any case.
    """

    __slots__ = ("_asked", "_began", "_body", "_gateway", "_guarded", "_record", "_streams", "_waiting", "began",
                 "chosen", "limits", "n", "pieces")  # fmt: skip

    def __init__(
        self, gateway: Gateway, chosen: RouteState, request: ChatRequest, limits: RequestLimits, record: CallRecord,
        *, stream: bool,
    ) -> None:  # fmt: skip
        self._gateway = gateway
        self._record = record
        self._guarded: GuardedStream[Piece] | None = None
        self._waiting = True
        self.began = asyncio.get_running_loop().time()
        self.chosen = chosen
        self.limits = limits
        self.n = request.n
        self.pieces: AsyncIterator[Piece]
        if chosen.guard is None:
            self.pieces = _Only(text_answer(chosen.route, request, gateway.sources))
        else:
            self._body = body_for(chosen.route, request, gateway.tokens, stream=stream)
            self._streams = streams(chosen.route, stream=stream)

    async def open(self) -> None:
        """Waits for the first content; raises when there is none."""
        guard, limits, record = self.chosen.guard, self.limits, self._record
        if guard is None:
            return
        self.chosen.load.started()
        guarded = guard.stream(
            self._attempt,
            first_item=limits.first,
            idle=limits.idle,
            total=limits.total,
            timeout=limits.call,
            lent=limits.lent,
            content=has_content,
            classify=classifier_for(limits.spare),
        )
        try:
            await guarded.__aenter__()
        except BaseException:
            self.chosen.load.ended()
            if self._waiting:
                record.queued(asyncio.get_running_loop().time() - self.began)
            raise
        self._guarded = self.pieces = guarded
        record.back()
        if guarded.first_item_at is not None:
            assert guarded.started_at is not None
            record.first = guarded.first_item_at - guarded.started_at

    def _attempt(self) -> Exchange:
        gateway, record = self._gateway, self._record
        now = asyncio.get_running_loop().time()
        if self._waiting:
            self._waiting = False
            record.queued(now - self.began)
        record.attempts += 1
        sent = request_for(
            self.chosen, self._body, self.limits, stream=self._streams, request_id=record.request_id, now=now
        )
        record.away()
        return Exchange(gateway.transport, sent, n=self.n, wall=gateway.sources.wall())

    def reported(self, usage: dict[str, Any]) -> None:
        """The upstream told its token counts."""
        if self.chosen.as_asked:
            self._gateway.tokens.observe(self.chosen.route.model or "", self._record.tokens, usage.get("prompt_tokens"))

    def ended(self) -> None:
        """All pieces were there."""
        guarded = self._guarded
        if guarded is None:
            return
        now = asyncio.get_running_loop().time()
        assert guarded.started_at is not None
        if guarded.first_item_at is not None:
            self._record.decode = now - guarded.first_item_at
        self.chosen.staged.success(now - guarded.started_at, now)

    async def aclose(self) -> None:
        """Closes what is left of it; the upstream stops."""
        guarded, self._guarded = self._guarded, None
        if guarded is not None:
            self.pieces, self._body = _Only(None), b""  # it knows us, and is garbage only for the collector
            self.chosen.load.ended()
            await guarded.__aexit__(None, None, None)

    def __repr__(self) -> str:
        return f"<OpenedStream {self.chosen.route.name}>"


async def open_stream(
    gateway: Gateway, chosen: RouteState, request: ChatRequest, limits: RequestLimits, record: CallRecord
) -> OpenedStream:
    """A route's answer for a client that streams; raises when it does not come to any content."""
    opened = OpenedStream(gateway, chosen, request, limits, record, stream=True)
    await opened.open()
    return opened


async def assemble(
    gateway: Gateway, chosen: RouteState, request: ChatRequest, limits: RequestLimits, record: CallRecord
) -> dict[str, Any]:
    """A route's whole answer, which its upstream streams, or which is a text."""
    opened = OpenedStream(gateway, chosen, request, limits, record, stream=False)
    assembler = Assembler(request.n)
    try:
        await opened.open()
        async for piece in opened.pieces:
            record.back()
            assembler.take(piece)
            record.away()
        record.back()
        opened.ended()
    except FailsoftError:
        if not (assembler.finished and assembler.started):
            raise
        record.back()  # all was said; what failed was the waiting for the last line
    finally:
        await opened.aclose()
    usage = assembler.usage
    if usage is not None:
        opened.reported(usage)
    return assembler.result()


class _Only:
    """An iterator over one piece, or none."""

    __slots__ = ("_piece",)

    def __init__(self, piece: Piece | None) -> None:
        self._piece = piece

    def __aiter__(self) -> _Only:
        return self

    async def __anext__(self) -> Piece:
        piece, self._piece = self._piece, None
        if piece is None:
            raise StopAsyncIteration
        return piece
