"""The HTTP port by aiohttp: one connection pool per downstream, closed at once when its caller is cancelled."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import lru_cache, partial
from typing import Any, Final

import aiohttp

from failsoft.base.addresses import AddressRule
from failsoft.base.errors import AddressRefused, DownstreamUnavailable, MalformedResult, StreamCut
from failsoft.base.transport import HttpRequest, HttpResponse
from failsoft.transports.names import LookUp, Names

__all__ = ["AiohttpTransport"]

_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=None)
"""Limits are the guard's; a second set of them in the client would fire first and blame the wrong one."""


@lru_cache(maxsize=64)
def _connect_timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=seconds)


def _fault(error: BaseException) -> str:
    """What kind of failure to connect it is: ``refused``, ``reset``, ``dns``, ``tls``, ``garbage``, ``redirects``,
    ``timeout`` or ``unreachable``.
    """
    if isinstance(error, aiohttp.TooManyRedirects):
        return "redirects"
    if isinstance(error, aiohttp.ClientResponseError):  # what came is not HTTP
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


class _Response:
    """An aiohttp response as the port sees it."""

    __slots__ = ("_response", "headers")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        headers: dict[str, str] = {}
        for name, value in response.headers.items():
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        self.headers: Mapping[str, str] = headers

    @property
    def status(self) -> int:
        """The status code."""
        return self._response.status

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """See :class:`~failsoft.base.transport.HttpResponse`."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, ConnectionError, EOFError) as error:
            raise StreamCut(f"the body broke off: {type(error).__name__}") from error

    async def read(self, limit: int) -> bytes:
        """See :class:`~failsoft.base.transport.HttpResponse`."""
        parts: list[bytes] = []
        size = 0
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise MalformedResult(f"the body has more than {limit} bytes")
                parts.append(chunk)
        return b"".join(parts)


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
        self._sessions: dict[tuple[str, AddressRule | None], aiohttp.ClientSession] = {}
        self._closed = False

    def _session(self, downstream: str, rule: AddressRule | None) -> aiohttp.ClientSession:
        session = self._sessions.get((downstream, rule))
        if session is None or session.closed:
            session = self._sessions[downstream, rule] = aiohttp.ClientSession(
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
        return session

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        """See :class:`~failsoft.base.transport.Transport`."""
        if self._closed:
            raise RuntimeError("the transport is closed")
        try:
            response = await self._session(request.downstream, request.addresses).request(
                request.method,
                request.url,
                headers=dict(request.headers),
                data=request.body,
                allow_redirects=request.redirects > 0,
                max_redirects=request.redirects + 1,  # aiohttp counts the first request, too
                timeout=_NO_TIMEOUT if request.connect is None else _connect_timeout(request.connect),
            )
        except aiohttp.InvalidURL as error:
            raise DownstreamUnavailable(
                f"the URL is not valid: {error}", downstream=request.downstream, details={"fault": "url"}
            ) from error
        except (aiohttp.ClientError, ConnectionError, OSError) as error:
            raise DownstreamUnavailable(
                f"connection failed: {type(error).__name__}",
                downstream=request.downstream,
                details={"fault": _fault(error)},
            ) from error
        try:
            yield _Response(response)
        finally:
            # A connection whose body was read to its end has gone back to the pool by itself; any other is closed.
            response.close()

    async def aclose(self) -> None:
        """Closes all pools."""
        self._closed = True
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()
        if sessions:
            await asyncio.sleep(0)  # transports close in the loop's next pass

    def __repr__(self) -> str:
        return f"<AiohttpTransport pools={[downstream for downstream, _ in self._sessions]}>"
