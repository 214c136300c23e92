"""The server of a whole app: its runs, and in front of them models and agents in OpenAI's format."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from failsoft.app import App
from failsoft.base.errors import DownstreamUnavailable
from failsoft.base.transport import HttpRequest, HttpResponse
from failsoft.models.gateway import Gateway
from failsoft.models.webhook import Webhook
from failsoft.server.agent_models import AgentModels
from failsoft.server.asgi import make_api
from failsoft.server.auth import KeyRing
from failsoft.server.call_log import CallLog
from failsoft.server.listening import Listening, Readiness, listen_on, loop_factory
from failsoft.server.openai_api import OpenAIApi
from failsoft.server.peer_metrics import PeerMetrics
from failsoft.server.run_log import RunLog
from failsoft.server.run_metrics import run_metrics
from failsoft.telemetry.traces import Traces
from failsoft.transports.aiohttp_transport import AiohttpTransport

__all__ = ["HttpServer", "listen_on", "loop_factory"]


_TELLING: Final = 1.0
"""Seconds that streams have to tell the ends of runs that were cut."""


class HttpServer(Listening):
    """Serves one app on one socket, until :meth:`stop` or a signal ends it gracefully."""

    def __init__(self, app: App, sock: socket.socket, *, on_listening: Callable[[str], None] | None = None) -> None:
        settings = app.settings
        readiness = Readiness()
        self._app = app
        gateway = app.gateway or Gateway((), app.kernel, _Nowhere(), sources=app.sources)
        hook = settings.gateway.webhook
        self._webhook = None if hook is None else Webhook(hook.policy(), app.kernel, gateway.transport)
        gateway.webhook = self._webhook
        self.openai = OpenAIApi(
            gateway,
            make_api(app, readiness),
            settings=settings.gateway,
            ring=KeyRing(settings.keys),
            log=CallLog.named(settings.gateway.log),
            agents=AgentModels(app, budget=settings.gateway.budget),
        )
        """The routes in OpenAI's format."""
        self._runs_log = RunLog(app.bus, CallLog.named(settings.server.log), app.sources.wall)
        self._traces: Traces | None = None
        self.openai.more_metrics = lambda: run_metrics(app)
        self._peers_transport = AiohttpTransport() if settings.server.peers else None
        if self._peers_transport is not None:
            self.openai.peers = PeerMetrics(settings.server.peers, app.kernel, self._peers_transport)
        super().__init__(
            self.openai, sock, settings.server, readiness=readiness, cut=self._cut_all, on_listening=on_listening
        )

    async def serve_until_stopped(self) -> None:
        """Serves until :meth:`stop` or a signal; returns when everything has been answered or cancelled."""
        # In a thread: the exporter's libraries are many, and start threads of their own.
        self._traces = await asyncio.to_thread(Traces.from_environment, os.environ, wall=self._app.sources.wall)
        if self._traces is not None:
            self._app.bus.add(self._traces.hear)
            self._app.traced = self._traces.share
        try:
            await super().serve_until_stopped()
        finally:
            self.openai.close()
            self._runs_log.close()
            if self._traces is not None:
                await asyncio.to_thread(self._traces.close)
            if self._webhook is not None:
                await self._webhook.aclose()
            if self._peers_transport is not None:
                await self._peers_transport.aclose()

    def _cut_all(self) -> None:
        self._app.hand_over()
        for run in self._app.runs:
            run.wrap_up("shutting_down")
        self.openai.cut()
        # Runs that end now tell so first; what is open then watches runs that go on without this process.
        asyncio.get_running_loop().call_later(_TELLING, self._readiness.end_streams)


class _Nowhere:
    """Where an app without models sends its requests to models."""

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """Is never called."""
        raise DownstreamUnavailable("there are no models")

    async def aclose(self) -> None:
        """Nothing to close."""
