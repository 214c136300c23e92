"""Plain requests, put straight onto a connection of aiohttp's pool.

What calls of models are made of is always the same: a POST with its body at hand, no redirects, cookies, proxies or
traces. For those aiohttp's session does three quarters of its work in vain, a task for the body among it. Connections,
their pool, name look-ups, TLS and the parser stay aiohttp's; the head is written here, in one piece with the body. All
other requests go through the session.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage
from yarl import URL

from failsoft.base.transport import HttpRequest

__all__ = ["Answer", "Straight"]

_KNOWN: Final = aiohttp.__version__.startswith("3.")
"""Whether the pool is the one that this was written for: it is public, but hardly spoken of."""

_SHAPES: Final = 64
"""URLs, each with a set of header names, whose requests are known at once."""


class _Shape:
    """What requests to one URL with the same header names have in common."""

    __slots__ = ("head", "request")

    def __init__(self, url: URL, names: tuple[str, ...]) -> None:
        self.request = aiohttp.ClientRequest("POST", url, headers=dict.fromkeys(names, ""), data=b"")
        """What the pool is asked with; it is never sent."""
        own = {name.lower() for name in names} | {"content-length"}
        lines = [f"POST {url.raw_path_qs} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.request.headers.items() if name.lower() not in own]
        self.head = "\r\n".join(lines) + "\r\n"
        """The request line and the headers that aiohttp adds, each with its line end."""


class Answer:
    """A response whose head has arrived."""

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(self, connection: Connection, message: RawResponseMessage, content: aiohttp.StreamReader) -> None:
        self._connection = connection
        self.status = message.code
        self.headers = message.headers
        self.content = content
        content.on_eof(self._ended)

    def _ended(self) -> None:
        """The body is here: the connection can be used again, if all of the request has left it."""
        transport = self._connection.transport
        if transport is not None and transport.get_write_buffer_size():
            self._connection.close()
        else:
            self._connection.release()

    def close(self) -> None:
        """Closes the connection, unless the response has ended."""
        self._connection.close()


class Straight:
    """The way past one session to its connections."""

    __slots__ = ("_session", "_shapes")

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._shapes: OrderedDict[tuple[str, ...], _Shape | None] = OrderedDict()

    def shape_of(self, request: HttpRequest) -> _Shape | None:
        """The shape of a request that may go this way; None for all others."""
        if request.method != "POST" or not request.body or request.redirects:
            return None
        key = (request.url, *request.headers)
        try:
            return self._shapes[key]
        except KeyError:
            shape = self._shapes[key] = self._made(request.url, key[1:])
            if len(self._shapes) > _SHAPES:
                self._shapes.popitem(last=False)
            return shape

    def _made(self, address: str, names: tuple[str, ...]) -> _Shape | None:
        if not _KNOWN or self._session.trust_env:  # where a proxy may be asked for
            return None
        try:
            url = URL(address)
        except ValueError:
            return None
        if url.scheme not in ("http", "https") or not url.raw_host or url.raw_user or url.raw_password:
            return None
        return _Shape(url, names)

    async def send(self, shape: _Shape, request: HttpRequest, timeout: aiohttp.ClientTimeout) -> Answer:
        """Sends a request and gives the response once its head has arrived. Raises what aiohttp raises."""
        headers, body = request.headers, request.body or b""
        own = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        lines = len(headers)
        if own.count("\n") != lines or own.count("\r") != lines or "\0" in own:
            raise ValueError("a header has a line end or a zero in it")
        head = f"{shape.head}{own}Content-Length: {len(body)}\r\n\r\n".encode()
        connector = self._session.connector
        assert connector is not None
        connection = await connector.connect(shape.request, [], timeout)
        try:
            protocol, transport = connection.protocol, connection.transport
            if protocol is None or transport is None or transport.is_closing():
                raise aiohttp.ClientConnectionResetError("the connection was closed before the request was sent")
            protocol.set_response_params(read_until_eof=True)
            transport.write(head + body)
            message, content = await protocol.read()
            while message.code < 200 and message.code != 101:
                message, content = await protocol.read()
        except BaseException:
            connection.close()
            raise
        return Answer(connection, message, content)

    def __repr__(self) -> str:
        return f"<Straight shapes={len(self._shapes)}>"
