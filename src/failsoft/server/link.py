"""A request's own connection, for what ASGI has no words for, or dear ones.

ASGI tells that a client has gone only to a task that waits for it, cannot close a connection at once, and takes two
messages for an answer that is one piece of memory. An application asks :func:`link_of` for its link; under any other
server there is none, and it does without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from failsoft.server.protocol import bounded_protocol

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Base
else:
    _Base = object

__all__ = ["Link", "link_of", "linked_protocol"]

_KEY: Final = "failsoft.connection"


class Link:
    """One request on its connection. Its writes are for an application that has not used ``send`` for this request."""

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, protocol: _Linked, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle

    # --- the request -----------------------------------------------------------------------------------------------

    @property
    def body_is_here(self) -> bool:
        """Whether the whole body has arrived."""
        return not self._cycle.more_body

    def take_body(self) -> bytes:
        """The body, once it is here; then it is gone."""
        cycle = self._cycle
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()
        return body

    # --- the client --------------------------------------------------------------------------------------------------

    @property
    def disconnected(self) -> bool:
        """Whether the client has gone."""
        return self._cycle.disconnected

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

    # --- the response ------------------------------------------------------------------------------------------------

    @property
    def unread(self) -> int:
        """Bytes that wait for the client to read."""
        return self._protocol.transport.get_write_buffer_size()

    @property
    def paused(self) -> bool:
        """Whether too many bytes wait for the client to read."""
        return self._protocol.flow.write_paused and not self._cycle.disconnected

    async def drained(self) -> None:
        """Waits while the client does not read."""
        if self.paused:
            await self._protocol.flow.drain()

    def respond(self, status: int, head: bytes, body: bytes, *, close: bool = False) -> None:
        """A whole response. `head` has header lines, each with its line end; `close`: it is the connection's last."""
        if close:
            self._cycle.keep_alive = False
        self._begin(status, b"%bcontent-length: %d\r\n" % (head, len(body)), body)
        self._end()

    def begin(self, status: int, head: bytes) -> None:
        """The head of a response that comes in pieces."""
        if self._cycle.scope["http_version"] == "1.1":
            head += b"transfer-encoding: chunked\r\n"
            self._cycle.chunked_encoding = True
        else:  # its end is the connection's
            self._cycle.keep_alive = False
        self._begin(status, head, b"")

    def write(self, piece: bytes) -> None:
        """A piece of it; pair with :meth:`drained`."""
        cycle = self._cycle
        if not cycle.disconnected:
            if cycle.chunked_encoding:
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            cycle.transport.write(piece)

    def finish(self, piece: bytes) -> None:
        """The last piece, which is not empty."""
        cycle = self._cycle
        if not cycle.disconnected:
            if cycle.chunked_encoding:
                piece = b"%x\r\n%b\r\n0\r\n\r\n" % (len(piece), piece)
            cycle.transport.write(piece)
            self._end()

    def _begin(self, status: int, head: bytes, body: bytes) -> None:
        cycle = self._cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        if cycle.disconnected:
            return
        protocol = self._protocol
        if protocol.usual_of is not cycle.default_headers:  # a new list every second, for the date
            protocol.usual_of = cycle.default_headers
            protocol.usual = b"".join([b"%b: %b\r\n" % one for one in cycle.default_headers])
        usual = protocol.usual
        if not cycle.keep_alive:
            usual += b"connection: close\r\n"
        cycle.transport.write(b"%b%b%b\r\n%b" % (STATUS_LINE[status], usual, head, body))

    def _end(self) -> None:
        cycle = self._cycle
        if cycle.disconnected:
            return
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


class _Linked(_Base):
    """What gives requests their links; put in front of a protocol class."""

    gone: Callable[[], None] | None = None

    active: RequestResponseCycle | None = None

    usual_of: list[tuple[bytes, bytes]] | None = None
    usual = b""
    """The header lines that all responses have, made of ``usual_of``."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # Not the request's own state: that would refer to itself, and be kept until the garbage is collected.
        self.scope["extensions"] = {_KEY: self}  # type: ignore[dict-item]  # ASGI lets it be anything

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.active = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        gone = self.gone
        if gone is not None:
            gone()


def link_of(scope: MutableMapping[str, Any]) -> Link | None:
    """The link of the request whose task is running; ask before anything else is awaited."""
    extensions = scope.get("extensions")
    protocol = None if extensions is None else extensions.get(_KEY)
    return None if protocol is None or protocol.active is None else Link(protocol, protocol.active)


def linked_protocol(max_headers: int) -> type[asyncio.Protocol]:
    """The protocol class for ``uvicorn.Config(http=…)``: bounded, and with links."""
    base: Any = bounded_protocol(max_headers)
    return type("LinkedProtocol", (_Linked, base), {})
