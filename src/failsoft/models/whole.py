"""Calls whose upstream answers in one piece: one guarded request, one body, checked before it counts as served.

There is no first content to wait for and nothing to assemble: of the limits only the total holds, and a body that is
a good answer goes to the client as it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from failsoft.base.errors import CallTimeout, TotalTimeout
from failsoft.models.asking import body_for
from failsoft.models.calls import CallRecord
from failsoft.models.chat_request import ChatRequest
from failsoft.models.failures import classifier_for, read_answer
from failsoft.models.limits import RequestLimits
from failsoft.models.states import RouteState
from failsoft.models.upstream import assembled, refused, request_for

if TYPE_CHECKING:
    from failsoft.models.gateway import Gateway

__all__ = ["WholeCall", "ask_whole"]

T = TypeVar("T")

_MAX_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of an answer that is not streamed."""


async def ask_whole(
    gateway: Gateway, chosen: RouteState, request: ChatRequest, limits: RequestLimits, record: CallRecord
) -> dict[str, Any]:
    """The ``chat.completion`` of a route that does not stream; its body, as it came, is left in ``record.raw``."""
    body = body_for(chosen.route, request, gateway.tokens, stream=False)
    call = WholeCall(gateway, chosen, limits, record, body, read_answer, n=request.n)
    answer = await call.under_guard()
    usage = answer.get("usage")
    if type(usage) is dict and chosen.as_asked:
        gateway.tokens.observe(chosen.route.model or "", record.tokens, usage.get("prompt_tokens"))
    return answer


class WholeCall(Generic[T]):
    """One call at one route. `read` makes the answer of a body, or raises; with `n` (choices asked for) the upstream
    may stream all the same. `url` is where chat completions are asked for, unless it is given.
    """

    __slots__ = (
        "_began", "_body", "_chosen", "_gateway", "_limits", "_most", "_n", "_read", "_record", "_started", "_url",
        "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        gateway: Gateway,
        chosen: RouteState,
        limits: RequestLimits,
        record: CallRecord,
        body: bytes,
        read: Callable[[bytes, str], T],
        *,
        n: int = 0,
        url: str | None = None,
        most: int = _MAX_ANSWER,
    ) -> None:
        self._gateway = gateway
        self._chosen = chosen
        self._limits = limits
        self._record = record
        self._body = body
        self._read = read
        self._n = n
        self._url = url
        self._most = most
        self._began = self._started = 0.0
        self._waiting = True

    async def under_guard(self) -> T:
        """The answer; raises the mapped error of anything but a success."""
        chosen, limits, record = self._chosen, self._limits, self._record
        guard = chosen.guard
        assert guard is not None
        loop = asyncio.get_running_loop()
        self._began = self._started = loop.time()
        chosen.load.started()
        try:
            found = await guard.call(
                self._attempt,
                timeout=limits.total,
                lent="total" in limits.lent,
                classify=classifier_for(limits.spare),
            )
        except CallTimeout as error:
            if record.queue > limits.total / 2:  # it hardly came to an attempt
                raise
            raise TotalTimeout(f"{guard.name}: no answer in time", downstream=guard.name) from error
        finally:
            chosen.load.ended()
            if self._waiting:
                record.queued(loop.time() - self._began)
        now = loop.time()
        record.first, record.decode = now - self._started, 0.0
        chosen.staged.success(now - self._started, now)
        return found

    async def _attempt(self) -> T:
        record = self._record
        self._started = now = asyncio.get_running_loop().time()
        if self._waiting:
            self._waiting = False
            record.queued(now - self._began)
        record.attempts += 1
        record.raw = None
        sent = request_for(
            self._chosen, self._body, self._limits, stream=False, request_id=record.request_id, now=now, url=self._url
        )
        gateway, downstream = self._gateway, sent.downstream
        record.away()
        async with gateway.transport.send(sent) as response:
            if response.status >= 300:
                raise await refused(response, downstream, gateway.sources.wall())
            if self._n and "text/event-stream" in response.headers.get("content-type", "").lower():
                found: Any = await assembled(response, self._n)
                record.back()
                return found  # type: ignore[no-any-return] # what is read otherwise is such an answer, too
            raw = await response.read(self._most)
        record.back()
        answer = self._read(raw, downstream)
        record.raw = raw
        return answer
