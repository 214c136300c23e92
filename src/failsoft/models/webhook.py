"""Telling people and autoscalers what the gateway sees, by a signed webhook, off every call's path.

Each message is one POST of a JSON object. ``X-Failsoft-Signature`` is ``t=SECONDS,v1=HEX``: HEX is the HMAC-SHA256,
under the shared secret, of ``SECONDS.BODY``, so that nobody else can make a message and an old one is known for old. A
message keeps its ``id`` when it is sent again: whoever receives it twice can tell.

A receiver that hangs or fails costs nothing but its messages: they wait in a short queue, are sent one after the other
under a guard of their own, and are given up after a few tries. The same alert is told once in a while, with how often
it was seen since.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from failsoft.base.clock import Sources
from failsoft.base.errors import DownstreamRejected, DownstreamUnavailable, FailsoftError
from failsoft.base.transport import HttpRequest, Transport
from failsoft.kernel.breaker_policy import BreakerPolicy
from failsoft.kernel.bulkhead_policy import BulkheadPolicy
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.scope import ROOT, current

__all__ = ["Webhook", "WebhookPolicy", "signature"]

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

_KNOWN: Final = 1024
"""Alerts that are remembered so as not to be told again and again."""


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """Where messages go. Times in seconds: ``timeout`` of one try, ``repeat_after`` until the same alert is told again.

    ``events`` are the kinds that are told: ``alert``, ``L1``, ``L2``, ``approval``. ``waiting``: messages kept at
    most while the receiver is slow; the oldest goes first. The secret never shows in a repr.
    """

    url: str
    secret: str | None = field(default=None, repr=False)
    events: frozenset[str] = frozenset({"alert", "L2"})
    timeout: float = 5.0
    retries: int = 2
    repeat_after: float = 60.0
    waiting: int = 64


def signature(secret: str, body: bytes, at: int) -> str:
    """The header's value for a body sent `at` seconds since the epoch."""
    made = hmac.new(secret.encode(), b"%d.%b" % (at, body), sha256).hexdigest()
    return f"t={at},v1={made}"


class Webhook:
    """Sends messages; use it from one event loop, and close it. ``sent``, ``failed`` and ``dropped`` count."""

    def __init__(
        self, policy: WebhookPolicy, kernel: Kernel, transport: Transport, *, sources: Sources | None = None
    ) -> None:
        self.policy = policy
        self.sources = sources or kernel.sources
        self.sent = self.failed = self.dropped = 0
        self._transport = transport
        self._guard = kernel.guard(
            f"webhook:{urlsplit(policy.url).hostname}",
            Policy(
                attempt_timeout=policy.timeout,
                call_timeout=policy.timeout * (policy.retries + 1) + 10.0,
                bulkhead=BulkheadPolicy(permits=1, queue=1),
                breaker=BreakerPolicy(consecutive_failures=5, open_for=30.0),
                retry=RetryPolicy(queries=policy.retries, base=1.0, spread=1.0),
                retry_ratio=1.0,
            ),
        )
        self._waiting: deque[dict[str, Any]] = deque()
        self._told: OrderedDict[tuple[Any, ...], list[float]] = OrderedDict()
        """When an alert was told last, and how often it was seen since."""
        self._task: asyncio.Task[None] | None = None

    def tell(self, event: str, alias: str, route: str, data: dict[str, Any]) -> None:
        """Takes a message; never waits and never raises. `data` is plain data, without secrets."""
        if event not in self.policy.events:
            return
        message = {"id": self.sources.new_id("evt"), "event": event, "at": round(self.sources.wall(), 3)}
        message |= {"alias": alias, "route": route, **data}
        if event == "alert":
            now = asyncio.get_running_loop().time()
            key = (alias, route, data.get("reading"))
            known = self._told.get(key)
            if known is not None and now - known[0] < self.policy.repeat_after:
                known[1] += 1
                return
            message["seen_since"] = 1 if known is None else int(known[1]) + 1
            self._told[key] = [now, 0]
            self._told.move_to_end(key)
            if len(self._told) > _KNOWN:
                self._told.popitem(last=False)
        self._put(message)

    def say(self, event: str, data: dict[str, Any]) -> None:
        """Like :meth:`tell`, of something that is not about a route and is told each time."""
        if event in self.policy.events:
            head = {"id": self.sources.new_id("evt"), "event": event, "at": round(self.sources.wall(), 3)}
            self._put(head | data)

    def _put(self, message: dict[str, Any]) -> None:
        if len(self._waiting) >= self.policy.waiting:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(message)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(), name="webhook")

    async def _work(self) -> None:
        current.set(ROOT)  # not the call's whose trouble this tells of
        while self._waiting:
            message = self._waiting.popleft()
            try:
                await self._guard.call(self._post, message)
                self.sent += 1
            except FailsoftError as error:
                self.failed += 1
                _log.warning("the webhook could not be told of %s: %s", message["event"], error.code)

    async def _post(self, message: dict[str, Any]) -> None:
        policy = self.policy
        body = _encode(message)
        headers = {"Content-Type": "application/json", "X-Failsoft-Event": message["event"]}
        if policy.secret is not None:
            headers["X-Failsoft-Signature"] = signature(policy.secret, body, int(self.sources.wall()))
        sent = HttpRequest("POST", policy.url, headers, body, self._guard.name, connect=policy.timeout)
        async with self._transport.send(sent) as response:
            status = response.status
        if 400 <= status < 500 and status != 429:
            raise DownstreamRejected(f"the webhook's receiver answered {status}", downstream=self._guard.name)
        if status >= 300:
            raise DownstreamUnavailable(f"the webhook's receiver answered {status}", downstream=self._guard.name)

    async def aclose(self, within: float = 2.0) -> None:
        """Sends what waits, for at most `within` seconds."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            await asyncio.wait([task], timeout=within)
            self.dropped += len(self._waiting)
            self._waiting.clear()
            task.cancel()
            await asyncio.wait([task])

    def __repr__(self) -> str:
        return f"<Webhook {urlsplit(self.policy.url).hostname} sent={self.sent} failed={self.failed}>"
