"""Calls whose upstream answers in one piece: one guarded request, one body, checked before it counts as served.

There is no first content to wait for and nothing to assemble: of the limits only the total holds, and a body that is
a good answer goes to the client as it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from failsoft.base.errors import CallTimeout, TotalTimeout
from failsoft.base.transport import HttpResponse
from failsoft.models.asking import body_for
from failsoft.models.assembly import Assembler
from failsoft.models.calls import CallRecord
from failsoft.models.chat_request import ChatRequest
from failsoft.models.failures import classifier, read_answer
from failsoft.models.limits import RequestLimits
from failsoft.models.states import RouteState
from failsoft.models.upstream import refused, request_for, streamed

if TYPE_CHECKING:
    from failsoft.models.gateway import Gateway

__all__ = ["ask_whole", "guarded_whole"]

T = TypeVar("T")

_MAX_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of an answer that is not streamed."""


async def ask_whole(
    gateway: Gateway, chosen: RouteState, request: ChatRequest, limits: RequestLimits, record: CallRecord
) -> dict[str, Any]:
    """The ``chat.completion`` of a route that does not stream; its body, as it came, is left in ``record.raw``."""
    route = chosen.route
    body = body_for(route, request, gateway.tokens, stream=False)

    async def read(response: HttpResponse) -> dict[str, Any]:
        record.raw = None
        if "text/event-stream" in response.headers.get("content-type", "").lower():  # it streams all the same
            assembler = Assembler(request.n)
            async for piece in streamed(response, request.n):
                for chunk in piece:
                    assembler.feed(chunk)
            return assembler.result()
        raw = await response.read(_MAX_ANSWER)
        record.back()
        answer = read_answer(raw, downstream=route.downstream)
        record.raw = raw
        return answer

    answer = await guarded_whole(gateway, chosen, limits, record, route.url, body, read)
    usage = answer.get("usage")
    # only a prompt that went out as it was estimated can correct the estimate
    if usage.__class__ is dict and route.model is not None and route.system is None and route.max_input_tokens is None:
        assert isinstance(usage, dict)
        gateway.tokens.observe(route.model, record.tokens, usage.get("prompt_tokens"))
    return answer


async def guarded_whole(
    gateway: Gateway,
    chosen: RouteState,
    limits: RequestLimits,
    record: CallRecord,
    url: str,
    body: bytes,
    read: Callable[[HttpResponse], Awaitable[T]],
) -> T:
    """What `read` makes of the response, under the route's guard; raises the mapped error of anything but a success."""
    route, guard = chosen.route, chosen.guard
    assert guard is not None
    loop = asyncio.get_running_loop()
    began = started = loop.time()

    waiting = True

    async def attempt() -> T:
        nonlocal started, waiting
        started = loop.time()
        if waiting:
            record.queued(started - began)
            waiting = False
        record.attempts += 1
        sent = request_for(
            route,
            body,
            stream=False,
            request_id=record.request_id,
            total=limits.total,
            connect=route.limits.connect,
            url=url,
        )
        record.away()
        async with gateway.transport.send(sent) as response:
            if response.status >= 300:
                raise await refused(response, route.downstream, gateway.sources.wall())
            found = await read(response)
        record.back()
        return found

    chosen.load.started()
    try:
        found = await guard.call(attempt, timeout=limits.total, lent="total" in limits.lent, classify=classifier)
    except CallTimeout as error:
        if record.queue > limits.total / 2:  # it hardly came to an attempt
            raise
        raise TotalTimeout(f"{guard.name}: no answer in time", downstream=guard.name) from error
    finally:
        chosen.load.ended()
        if waiting:
            record.queued(loop.time() - began)
    now = loop.time()
    record.first, record.decode = now - started, 0.0
    chosen.staged.success(now - started, now)
    return found
