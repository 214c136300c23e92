"""Agents over the Model Context Protocol, at ``/mcp`` (streamable HTTP).

The SDK takes seconds to be imported, so that happens with the first request, in a thread. Bodies are read here, within
our own bounds, and handed to the SDK whole.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from failsoft.app import App
from failsoft.base.errors import FailsoftError, Forbidden
from failsoft.server.mcp_server import mcp_server
from failsoft.server.plain import ASGIApp, Message, Receive, Scope, Send, read_body, send_body

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

__all__ = ["PATH", "McpEndpoint"]

PATH: Final = "/mcp"

SESSIONS: Final = 1_000
"""Sessions of clients that speak an older version of the protocol; those of the newest have none."""
_IDLE: Final = 300.0
"""Seconds after which a session that nobody uses is forgotten."""


class McpEndpoint:
    """Serves :data:`PATH` itself and hands the rest to `inner`. What it keeps running ends with the app."""

    def __init__(self, app: App, inner: ASGIApp) -> None:
        self._app = app
        self._inner = inner
        self._lock = asyncio.Lock()
        self._sessions: StreamableHTTPSessionManager | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http" or scope["path"].rstrip("/") != PATH:
            await self._inner(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            _check_origin(headers)
            settings = self._app.settings.server
            body = b""
            if scope["method"] == "POST":
                body = await read_body(receive, headers, limit=settings.max_body, within=_WITHIN, link=None)
            async with self._lock:
                sessions = self._sessions or await self._started()
        except FailsoftError as error:
            await send_body(send, error.status, json.dumps(error.to_dict()).encode())
            return
        given = False

        async def receive_whole() -> Message:
            nonlocal given
            if not given and scope["method"] == "POST":
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        await sessions.handle_request(scope, receive_whole, send)

    async def _started(self) -> StreamableHTTPSessionManager:
        await asyncio.to_thread(importlib.import_module, "mcp.server.streamable_http_manager")
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        sessions = StreamableHTTPSessionManager(
            mcp_server(self._app, _tenant), max_sessions=SESSIONS, session_idle_timeout=_IDLE
        )
        up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def keep() -> None:
            async with sessions.run():
                up.set_result(None)
                await asyncio.get_running_loop().create_future()

        self._app.look_after(keep(), "mcp sessions")
        await up
        self._sessions = sessions
        return sessions


_WITHIN: Final = 15.0
"""Seconds that a client may take to send its request."""


def _tenant(request: Any) -> str | None:
    """Whose request it is, as the keys in front have found out."""
    state = request.scope.get("state") if request is not None else None
    return None if state is None else state.get("tenant")


def _check_origin(headers: dict[bytes, bytes]) -> None:
    """Refuses what a page of another site has sent through its reader's browser."""
    origin = headers.get(b"origin")
    if origin is not None and urlsplit(origin.decode("latin-1")).netloc != headers.get(b"host", b"").decode("latin-1"):
        raise Forbidden("requests from pages of other origins are not served", param="Origin")
