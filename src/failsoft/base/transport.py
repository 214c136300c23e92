"""The HTTP port: what models, tools and webhooks need of an HTTP client, and nothing of any particular one.

Transports map connection failures onto :class:`~failsoft.base.errors.DownstreamUnavailable` and a body that ends
early onto :class:`~failsoft.base.errors.StreamCut`; a status is never an error here. They set no time limits of their
own: whoever calls is under a guard and a deadline, and cancelling the caller closes the connection at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from failsoft.base.addresses import AddressRule

__all__ = ["HttpRequest", "HttpResponse", "Transport"]


class HttpRequest(NamedTuple):
    """A request. ``downstream`` chooses the connection pool: none can use up another's connections.

    Redirects are not followed unless ``redirects`` is more than 0, the number allowed. ``connect``: seconds within
    which a new connection must stand; when it does not, that is a ``DownstreamUnavailable`` whose fault is ``timeout``.
    ``addresses`` says which addresses may be connected to, at first and by redirect (None: any); it is asked about the
    very address that is connected to, and what it refuses raises :class:`~failsoft.base.errors.AddressRefused`.
    """

    method: str
    url: str
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes | None = None
    downstream: str = "default"
    redirects: int = 0
    connect: float | None = None
    addresses: AddressRule | None = None

    def __repr__(self) -> str:
        return f"<HttpRequest {self.method} {self.url} downstream={self.downstream}>"  # headers have keys


class HttpResponse(Protocol):
    """A response whose head has arrived; the body comes in pieces as they arrive."""

    @property
    def status(self) -> int:
        """The status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, names in lower case; repeated ones joined with commas."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, without its transfer and content encodings; ``StreamCut`` when it breaks off."""
        ...

    async def read(self, limit: int) -> bytes:
        """The whole body; raises :class:`~failsoft.base.errors.MalformedResult` when it has more than `limit` bytes."""
        ...


@runtime_checkable
class Transport(Protocol):
    """Sends requests. Used as ``async with transport.send(request) as response``."""

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """Sends a request and gives the response once its head has arrived.

        Leaving the context before the body was read to its end closes the connection, so that the far side stops
        working.
        """
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...
