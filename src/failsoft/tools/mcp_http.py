"""An MCP server over streamable HTTP: the SDK's transport, with a bound on what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

__all__ = ["reached"]

BODY_LIMIT: Final = 16_000_000
"""Bytes of an answer that is no event stream, and of one event of a stream."""
UNREACHED: Final = -32000
"""The JSON-RPC code of a request that never got to its server; the SDK has the same for a lost connection."""
_CONNECT: Final = 5.0


@asynccontextmanager
async def reached(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """A transport for the SDK's client. Time limits are the caller's; connecting has one of its own."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class Bounded(httpx2.AsyncByteStream):
        """A body that ends when it gets too long or breaks off. It cannot be read then, which the SDK tells its caller;
        an exception from here would end the calls of all others.
        """

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            try:
                async for chunk in self._stream:
                    size += len(chunk)
                    if size > BODY_LIMIT:
                        return
                    yield chunk
            except httpx2.TransportError:
                return

        async def aclose(self) -> None:
            await self._stream.aclose()

    class Transport(httpx2.AsyncHTTPTransport):
        """A failure to connect is an answer, too: to one request, and not the end of all."""

        async def handle_async_request(self, request: Any) -> Any:
            try:
                response = await super().handle_async_request(request)
            except httpx2.TransportError as error:
                told = {"code": UNREACHED, "message": f"{type(error).__name__}: {error}"[:300]}
                return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": told}, request=request)
            if "event-stream" not in response.headers.get("content-type", ""):
                response.stream = Bounded(response.stream)
            return response

    def made() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers={**headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=_CONNECT),
            transport=Transport(),
            trust_env=False,
        )

    client = await asyncio.to_thread(made)  # it reads the machine's certificates
    async with client:
        yield streamable_http_client(url, http_client=client, max_sse_event_size=BODY_LIMIT)
