"""The model gateway by itself: nothing of runs, tools, data or a web framework is loaded."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import msgspec

from failsoft.config.sections import Settings
from failsoft.kernel.guard import Kernel
from failsoft.models.gateway import Gateway
from failsoft.models.webhook import Webhook
from failsoft.server.auth import KeyRing
from failsoft.server.call_log import CallLog
from failsoft.server.downstreams import downstreams_view
from failsoft.server.listening import Listening, Readiness
from failsoft.server.openai_api import OpenAIApi
from failsoft.server.peer_metrics import PeerMetrics
from failsoft.server.plain import Receive, Scope, Send, send_body
from failsoft.server.refusals import error_body
from failsoft.transports.aiohttp_transport import AiohttpTransport

__all__ = ["GatewayServer", "gateway_server"]

_encode = msgspec.json.Encoder().encode


@contextlib.asynccontextmanager
async def gateway_server(
    settings: Settings,
    sock: socket.socket,
    *,
    kernel: Kernel | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> AsyncIterator[GatewayServer]:
    """A server for the settings' models on `sock`; ``await server.serve_until_stopped()`` runs it."""
    kernel = kernel or Kernel()
    transport = AiohttpTransport(connections=settings.gateway.connections)
    hook = settings.gateway.webhook
    webhook = None if hook is None else Webhook(hook.policy(), kernel, transport)
    gateway = Gateway(settings.aliases(), kernel, transport, webhook=webhook)
    readiness = Readiness()
    api = OpenAIApi(
        gateway,
        _Rest(gateway, readiness),
        settings=settings.gateway,
        ring=KeyRing(settings.keys),
        log=CallLog.named(settings.gateway.log),
    )
    if settings.server.peers:
        api.peers = PeerMetrics(settings.server.peers, kernel, transport)
    try:
        yield GatewayServer(api, sock, settings, readiness=readiness, on_listening=on_listening)
    finally:
        api.close()
        if webhook is not None:
            await webhook.aclose()
        await kernel.aclose()
        await transport.aclose()


class GatewayServer(Listening):
    """Serves the OpenAI routes of one gateway on one socket."""

    def __init__(
        self,
        api: OpenAIApi,
        sock: socket.socket,
        settings: Settings,
        *,
        readiness: Readiness,
        on_listening: Callable[[str], None] | None = None,
    ) -> None:
        self._gateway = api.gateway
        super().__init__(api, sock, settings.server, readiness=readiness, cut=api.cut, on_listening=on_listening)

    def reconfigure(self, settings: Settings) -> None:
        """Takes the settings' models in place of those there are; everything else needs a restart."""
        self._gateway.reconfigure(settings.aliases())


class _Rest:
    """What there is beside the OpenAI routes: health and downstreams."""

    def __init__(self, gateway: Gateway, readiness: Readiness) -> None:
        self._gateway = gateway
        self._readiness = readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, body = 200, {}
        path = scope["path"]
        if scope["method"] != "GET":
            status, body = 404, error_body("not_found", "not_found", "no such path")
        elif path == "/health/liveness":
            body = {"status": "alive"}
        elif path == "/health/readiness":
            if self._readiness.why is not None:
                status, body = 503, {"status": "not_ready", "why": self._readiness.why}
            else:
                body = {"status": "ready", "models": list(self._gateway.aliases)}
        elif path == "/v1/downstreams":
            body = downstreams_view(self._gateway.kernel, scope.get("state", {}).get("tenant"))
        else:
            status, body = 404, error_body("not_found", "not_found", "no such path")
        await send_body(send, status, _encode(body))
