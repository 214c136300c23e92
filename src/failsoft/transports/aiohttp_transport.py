"""The HTTP port by aiohttp: one connection pool per downstream, closed at once when its caller is cancelled."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import lru_cache, partial
from typing import Any, Final

import aiohttp
from aiohttp.http import HttpProcessingError
from multidict import CIMultiDictProxy

from failsoft.base.addresses import AddressRule
from failsoft.base.errors import AddressRefused, DownstreamUnavailable, MalformedResult, StreamCut
from failsoft.base.transport import HttpRequest, HttpResponse
from failsoft.transports.names import LookUp, Names
from failsoft.transports.straight import Answer, Straight

__all__ = ["AiohttpTransport"]

_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=None)
"""Limits are the guard's; a second set of them in the client would fire first and blame the wrong one."""


@lru_cache(maxsize=64)
def _connect_timeout(seconds: float) -> aiohttp.ClientTimeout:
    # of both, since the second knows nothing of names that are looked up, nor of TLS
    return aiohttp.ClientTimeout(total=None, connect=seconds, sock_read=None, sock_connect=seconds)


def _fault(error: BaseException) -> str:
    """What kind of failure to connect it is: ``refused``, ``reset``, ``dns``, ``tls``, ``garbage``, ``redirects``,
    ``timeout`` or ``unreachable``.
    """
    if isinstance(error, aiohttp.TooManyRedirects):
        return "redirects"
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):  # what came is not HTTP
        return "garbage"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "dns"
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return "tls"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "reset"
    below: BaseException | None = error
    for _ in range(8):
        if isinstance(below, aiohttp.ClientConnectorError):
            below = below.os_error
        if isinstance(below, ConnectionRefusedError) or getattr(below, "errno", None) == errno.ECONNREFUSED:
            return "refused"
        if isinstance(below, ConnectionResetError | BrokenPipeError | ConnectionAbortedError | EOFError):
            return "reset"
        if isinstance(below, TimeoutError):
            return "timeout"
        if below is None:
            break
        below = below.__cause__
    return "unreachable"


def _allowed_socket(rule: AddressRule, info: tuple[Any, ...]) -> socket.socket:
    """A socket for an address about to be connected to: the last place where it can be refused, and the surest."""
    family, kind, protocol, _, address = info
    refusal = rule.refusal(str(address[0]))
    if refusal is not None:
        raise AddressRefused(f"{address[0]} is {refusal}")
    return socket.socket(family, kind, protocol)


class _Headers(Mapping[str, str]):
    """aiohttp's headers as the port has them; looked at when somebody asks."""

    __slots__ = ("_found",)

    def __init__(self, found: CIMultiDictProxy[str]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> str:
        found = self._found.getall(name)
        return found[0] if len(found) == 1 else ", ".join(found)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.lower() for name in self._found))

    def __len__(self) -> int:
        return len({name.lower() for name in self._found})


class _Response:
    """An aiohttp response as the port sees it, and the iterator over its body."""

    __slots__ = ("_content", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse | Answer) -> None:
        self._content = response.content
        self.headers: Mapping[str, str] = _Headers(response.headers)
        self.status = response.status

    def chunks(self) -> AsyncIterator[bytes]:
        """See :class:`~failsoft.base.transport.HttpResponse`."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """What has arrived of the body, once there is anything."""
        content = self._content
        try:
            piece, more = await content.readchunk()
            while more and not piece:
                piece, more = await content.readchunk()
            if more:
                piece += _at_hand(content)
        except (aiohttp.ClientError, ConnectionError, EOFError) as error:
            raise StreamCut(f"the body broke off: {type(error).__name__}") from error
        if not piece:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Nothing is kept between two pieces."""

    async def read(self, limit: int) -> bytes:
        """See :class:`~failsoft.base.transport.HttpResponse`."""
        content = self._content
        if content.is_eof() and content.total_bytes <= limit and content.exception() is None:
            return content.read_nowait()  # all of it came with the head
        parts: list[bytes] = []
        size = 0
        async for piece in self:
            size += len(piece)
            if size > limit:
                raise MalformedResult(f"the body has more than {limit} bytes")
            if not parts and content.at_eof():
                return piece
            parts.append(piece)
        return b"".join(parts)


def _at_hand(content: aiohttp.StreamReader) -> bytes:
    """What has arrived besides the chunk just read.

    aiohttp gives chunks back one by one, each with 2 µs of bookkeeping, a third of what a busy stream costs. Put
    together first they are one. Of what is not its public face only the buffer is touched; without it, or when it is
    something else, the chunks come one by one.
    """
    buffer = getattr(content, "_buffer", None)
    if type(buffer) is not deque or not buffer:
        return b""
    if len(buffer) > 1:
        joined = b"".join(buffer)
        buffer.clear()
        buffer.append(joined)
    return content.read_nowait()


class _Sending:
    """A request on its way: entering sends it, leaving ends it."""

    __slots__ = ("_request", "_response", "_session", "_straight")

    def __init__(self, session: aiohttp.ClientSession, straight: Straight, request: HttpRequest) -> None:
        self._session = session
        self._straight = straight
        self._request = request
        self._response: aiohttp.ClientResponse | Answer | None = None

    async def __aenter__(self) -> HttpResponse:
        request = self._request
        timeout = _NO_TIMEOUT if request.connect is None else _connect_timeout(request.connect)
        response: aiohttp.ClientResponse | Answer
        try:
            shape = self._straight.shape_of(request)
            if shape is not None:
                response = await self._straight.send(shape, request, timeout)
            else:
                response = await self._session.request(
                    request.method,
                    request.url,
                    headers=request.headers,
                    data=request.body,
                    allow_redirects=request.redirects > 0,
                    max_redirects=request.redirects + 1,  # aiohttp counts the first request, too
                    timeout=timeout,
                )
            self._response = response
        except aiohttp.InvalidURL as error:
            raise DownstreamUnavailable(
                f"the URL is not valid: {error}", downstream=request.downstream, details={"fault": "url"}
            ) from error
        except (aiohttp.ClientError, HttpProcessingError, ConnectionError, OSError) as error:
            raise DownstreamUnavailable(
                f"connection failed: {type(error).__name__}",
                downstream=request.downstream,
                details={"fault": _fault(error)},
            ) from error
        return _Response(response)

    async def __aexit__(self, *exc: object) -> None:
        # A connection whose body was read to its end has gone back to the pool by itself; any other is closed.
        if self._response is not None:
            self._response.close()


class AiohttpTransport:
    """Keeps at most ``connections`` connections per downstream; made sessions belong to the running loop.

    ``trust_env`` obeys the proxy variables of the environment, but for requests with an address rule: through a proxy
    nobody here knows where they end. ``look_up`` resolves names in place of the system.
    """

    def __init__(
        self,
        *,
        connections: int = 100,
        keepalive: float = 30.0,
        trust_env: bool = False,
        look_up: LookUp | None = None,
    ) -> None:
        self._look_up = look_up
        self._connections = connections
        self._keepalive = keepalive
        self._trust_env = trust_env
        self._sessions: dict[tuple[str, AddressRule | None], tuple[aiohttp.ClientSession, Straight]] = {}
        self._closed = False

    def _session(self, downstream: str, rule: AddressRule | None) -> tuple[aiohttp.ClientSession, Straight]:
        found = self._sessions.get((downstream, rule))
        if found is None or found[0].closed:
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._connections,
                    limit_per_host=self._connections,
                    keepalive_timeout=self._keepalive,
                    resolver=Names(rule, self._look_up),
                    socket_factory=None if rule is None else partial(_allowed_socket, rule),
                ),
                timeout=_NO_TIMEOUT,
                trust_env=self._trust_env and rule is None,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            found = self._sessions[downstream, rule] = session, Straight(session)
        return found

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """See :class:`~failsoft.base.transport.Transport`."""
        if self._closed:
            raise RuntimeError("the transport is closed")
        return _Sending(*self._session(request.downstream, request.addresses), request)

    async def aclose(self) -> None:
        """Closes all pools."""
        self._closed = True
        sessions, self._sessions = list(self._sessions.values()), {}
        for session, _ in sessions:
            await session.close()
        if sessions:
            await asyncio.sleep(0)  # transports close in the loop's next pass

    def __repr__(self) -> str:
        return f"<AiohttpTransport pools={[downstream for downstream, _ in self._sessions]}>"
