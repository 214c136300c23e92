"""The HTTP/1.1 protocol with bounds: on heads and trailers, on requests sent ahead, on the time a client takes.

uvicorn's httptools protocol collects headers without a limit and waits for them without end; its errors are plain
text. Here each such refusal is our JSON error, and the connection is closed after it. Also, a connection is let go
when its client leaves unread what it asked for, or unsent what it announced; a client that goes away is noticed while
requests wait behind the one that runs, too; and an offer to speak another protocol is passed over, as the standard
has it, and the request answered.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from failsoft.server.refusals import error_body

__all__ = ["ARRIVED", "bounded_protocol"]

HEADER_SECONDS = 10.0
"""How long a client may take from connecting, or from a first byte, to the end of its headers."""

LINGER_SECONDS = 0.5
"""How long a refused client may still send before its connection is closed."""

REST_SECONDS = 1.0
"""How long a client whose request has been answered may take to send the rest of it."""

UNREAD_SECONDS = 30.0
"""How long a client may take none of what was sent to it."""

AHEAD: Final = 16
"""Requests that a client may send ahead of the answers."""

ARRIVED: Final = "failsoft.arrived"
"""Where a request's scope says at which loop time all of it was there: what follows is spent of the client's budget."""

_UPGRADE: Final = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class _BoundedProtocol(HttpToolsProtocol):
    max_headers = 32_768

    _head_bytes = 0
    _trailer_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _rest_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _refused = False
    _deaf = False
    _taken = False
    _running: RequestResponseCycle | None = None

    # --- the connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        for timer in (self._rest_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        self._give_up()  # the base class tells the newest request only
        self.pipeline.clear()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        """Tells the request that runs that nobody waits for its answer."""
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    # --- what comes in -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused or self._deaf or self.transport.is_closing():
            return
        if self._in_head:
            # Counted before parsing, so that nothing oversized is kept; a body's first bytes in the same segment are
            # let pass, as a segment is at most 256 KiB and only its head is collected.
            head = data.find(b"\r\n\r\n")
            if head > 0 and self._head_bytes == 0 and _UPGRADE.search(data, 0, head):
                # The parser would take the request's body, and all requests after it, for the other protocol.
                data = _UPGRADE.sub(b"", data[:head]) + data[head:]
                head = data.find(b"\r\n\r\n")
            self._head_bytes += len(data) if head < 0 else head + 4
            if self._head_bytes > self.max_headers:
                self._reject(
                    431, "headers_too_large", f"the request line and headers are over {self.max_headers} bytes"
                )
                return
        super().data_received(data)
        if self._in_head and self._head_bytes and self._head_timer is None and not self._refused:
            self._head_timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)  # most heads come whole

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= AHEAD:
            raise ValueError("too many requests ahead of their answers")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # as in the base class, which a call for each header would reach at twice the cost
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))
            return
        self._trailer_bytes += len(name) + len(value) + 4  # a trailer is no header, and nothing here wants it
        if self._trailer_bytes > self.max_headers:
            raise ValueError("the trailers are too large")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()
        if self.pipeline:  # the base class stops reading then, and would not see that the client has gone
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = self._trailer_bytes = 0
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None
        self.scope[ARRIVED] = self.loop.time()  # type: ignore[typeddict-unknown-key]  # ASGI allows it
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        # An offer whose head came in pieces. The parser reads no further, so this answer is the connection's last.
        self._deaf = True
        self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        self._reject(400, "malformed_request", "this is not HTTP/1.1")

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self._refused and not self.transport.is_closing() and self._in_head:
            if self._head_bytes:
                self._reject(408, "request_timeout", f"no complete request within {HEADER_SECONDS:g} s")
            else:
                self.transport.close()

    # --- what goes out -------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        answered = self._running
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._watch_reader()
        if answered is not None and answered.more_body and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(REST_SECONDS, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken = True

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def _watch_reader(self, before: int | None = None) -> None:
        """Ends the connection when none of what was sent is taken for too long; closing it would wait for that."""
        if before is None and self._unread_timer is not None:
            return
        self._unread_timer = None
        unread = self.transport.get_write_buffer_size()
        if before is not None and unread >= before and not self._taken:
            self.transport.abort()
        elif unread:
            self._taken = False
            self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self._watch_reader, unread)

    def _reject(self, status: int, code: str, message: str) -> None:
        """Refuses what cannot be read and takes nothing more; what was asked before it is still answered."""
        running = self._running
        if running is None or (running.response_complete and not running.more_body):
            self._refuse(status, code, message)
        elif running.response_complete:  # this is the rest of a request that has had its answer
            self.transport.close()
        elif running.more_body and not running.response_started:
            self._give_up()
            self._refuse(status, code, message)
        else:
            self._deaf = True
            self._stop_head_timer()
            self.cycle.keep_alive = False

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
