"""The HTTP/1.1 protocol with bounds: on the request line with its headers, and on the time a client takes to send them.

uvicorn's httptools protocol collects headers without a limit and waits for them without end; its errors are plain
text. Here each such refusal is our JSON error, and the connection is closed after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from failsoft.server.refusals import error_body

__all__ = ["Link", "bounded_protocol"]

HEADER_SECONDS = 10.0
"""How long a client may take from connecting, or from a first byte, to the end of its headers."""

LINGER_SECONDS = 0.5
"""How long a refused client may still send before its connection is closed."""

_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class Link:
    """What an application may know of the connection of its request, as ``scope["extensions"]["failsoft.link"]``.

    ASGI tells that a client has gone only to a task that waits for it, and has no word for closing at once.
    """

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, protocol: _BoundedProtocol) -> None:
        self._protocol = protocol
        self._cycle = protocol.cycle

    @property
    def body_is_here(self) -> bool:
        """Whether the whole body has arrived."""
        return not self._cycle.more_body

    def watch(self, gone: Callable[[], None]) -> None:
        """Calls `gone` when the client goes before its response is complete; at once if it has gone already."""
        if self._cycle.disconnected:
            gone()
            return
        self._protocol.gone = gone
        self._protocol.flow.resume_reading()  # an end that is not read is not seen

    def unwatch(self) -> None:
        """Ends the watch."""
        self._protocol.gone = None

    def abort(self) -> None:
        """Closes the connection at once, whatever was not sent."""
        self._cycle.disconnected = True
        self._protocol.transport.abort()


class _BoundedProtocol(HttpToolsProtocol):
    max_headers = 32_768
    gone: Callable[[], None] | None = None

    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)
        if self.gone is not None:
            self.gone()

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if self._in_head:
            # Counted before parsing, so that nothing oversized is kept; a body's first bytes in the same segment are
            # let pass, as a segment is at most 256 KiB and only its head is collected.
            head = data.find(b"\r\n\r\n")
            self._head_bytes += len(data) if head < 0 else head + 4
            if self._head_bytes > self.max_headers:
                self._refuse(
                    431, "headers_too_large", f"the request line and headers are over {self.max_headers} bytes"
                )
                return
        super().data_received(data)
        if self._in_head and self._head_bytes and self._head_timer is None and not self._refused:
            self._head_timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)  # most heads come whole

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()
        # Its task begins in the loop's next pass.
        self.scope["extensions"] = {"failsoft.link": Link(self)}  # type: ignore[dict-item]  # ASGI lets it be anything

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Also of clients that do not read the answer they asked for."""
        if not self.transport.is_closing() and self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "malformed_request", "this is not HTTP/1.1")

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self._refused and not self.transport.is_closing() and self._in_head:
            if self._head_bytes:
                self._refuse(408, "request_timeout", f"no complete request within {HEADER_SECONDS:g} s")
            else:
                self.transport.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps(error_body("invalid_request", code, message)).encode()
        head = (
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            % (status, _REASONS[status], len(body))
        )
        self._refused = True
        self._stop_head_timer()
        self.transport.write(head + body)
        if self.transport.can_write_eof():
            # What still comes is thrown away for a moment: closing now would reset the connection, and the answer
            # with it.
            self.transport.write_eof()
            self._head_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def bounded_protocol(max_headers: int) -> type[asyncio.Protocol]:
    """The protocol class for ``uvicorn.Config(http=…)``, refusing heads over `max_headers` bytes with 431."""
    return type("BoundedProtocol", (_BoundedProtocol,), {"max_headers": max_headers})
