"""Bodies and answers in plain ASGI, for the paths on which a framework would cost more than the work."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from failsoft.base.errors import FailsoftError
from failsoft.models.wire import error_body
from failsoft.server.link import Link
from failsoft.server.refusals import BodyTooLarge, RequestTimeout

__all__ = [
    "ASGIApp",
    "Headers",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "as_headers",
    "body_at_hand",
    "read_body",
    "send_body",
    "send_error",
]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_DISCARDED_BYTES: Final = 4 << 20
_DISCARDED_SECONDS: Final = 1.0
"""How much of a body that is too large is read and thrown away, so that its sender gets to see the answer."""


def body_at_hand(headers: Mapping[bytes, bytes], limit: int, link: Link | None) -> bytes | None:
    """The request's whole body, if it has arrived with its head and fits; then it is taken."""
    if link is None or not link.body_is_here or link.disconnected:
        return None
    declared = headers.get(b"content-length")
    if declared is None or not declared.isdigit() or int(declared) > limit:
        return None
    return link.take_body()


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], *, limit: int, within: float, link: Link | None
) -> bytes:
    """The request's whole body. Raises :class:`BodyTooLarge` over `limit` bytes, without keeping them, and
    :class:`RequestTimeout` when it is not there `within` seconds.
    """
    declared = headers.get(b"content-length")
    if declared is not None and (not declared.isdigit() or int(declared) > limit):
        if b"expect" not in headers:  # else it waits for a word before it sends
            await _discard(receive)
        raise _too_large(limit)
    if link is not None and link.body_is_here and not link.disconnected:
        body = link.take_body()
        if len(body) > limit:
            raise _too_large(limit)
        return body
    try:
        async with asyncio.timeout(within):
            return await _rest(receive, limit)
    except TimeoutError:
        raise RequestTimeout(f"the body did not come within {within:g} s") from None


async def _rest(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _gone()
        body += message.get("body", b"")
        if len(body) > limit:
            body.clear()
            await _discard(receive)
            raise _too_large(limit)
        if not message.get("more_body"):
            return bytes(body)


async def _discard(receive: Receive) -> None:
    seen = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARDED_SECONDS):
            while seen <= _DISCARDED_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
                seen += len(message.get("body", b""))


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over {limit} bytes", param="body", details={"limit_bytes": limit})


def _gone() -> RequestTimeout:
    return RequestTimeout("the client went away before its body was complete")


async def send_body(
    send: Send,
    status: int,
    body: bytes,
    head: bytes = b"",
    kind: bytes = b"application/json",
    *,
    link: Link | None = None,
    close: bool = False,
) -> None:
    """A whole response, over its link when there is one. `head` has header lines, each with its line end; `close`: it
    is the connection's last.
    """
    head = b"%bcontent-type: %b\r\n" % (head, kind)
    if link is not None:
        if link.paused:
            await link.drained()
        link.respond(status, head, body, close=close)
        return
    headers = as_headers(head)
    headers.append((b"content-length", b"%d" % len(body)))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def as_headers(head: bytes) -> Headers:
    """Header lines as ASGI has them."""
    found = []
    for line in head.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        found.append((name, value))
    return found


async def send_error(
    send: Send, error: FailsoftError, head: bytes, *, code: str | None = None, link: Link | None = None
) -> None:
    """An error in OpenAI's shape, which says when to come back, and whether the connection is over."""
    if error.retry_after is not None and math.isfinite(error.retry_after):
        head += b"retry-after: %d\r\n" % max(1, math.ceil(error.retry_after))
    close = isinstance(error, BodyTooLarge | RequestTimeout)  # the rest of the body is not read
    await send_body(send, error.status, error_body(error, code=code), head, link=link, close=close)
