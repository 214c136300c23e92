"""The HTTP/1.1 protocol with bounds: on the request line with its headers, and on the time a client takes to send them.

uvicorn's httptools protocol collects headers without a limit and waits for them without end; its errors are plain
text. Here each such refusal is our JSON error, and the connection is closed after it.
"""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from failsoft.server.errors import error_body

__all__ = ["bounded_protocol"]

HEADER_SECONDS = 10.0
"""How long a client may take from connecting, or from a first byte, to the end of its headers."""

LINGER_SECONDS = 0.5
"""How long a refused client may still send before its connection is closed."""

_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class _BoundedProtocol(HttpToolsProtocol):
    max_headers = 32_768

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
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

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
