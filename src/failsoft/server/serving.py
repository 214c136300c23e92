"""The server of a whole app: runs, and the model gateway in front when models are configured."""

from __future__ import annotations

import socket
from collections.abc import Callable

from failsoft.app import App
from failsoft.server.asgi import make_api
from failsoft.server.auth import KeyRing
from failsoft.server.call_log import CallLog
from failsoft.server.listening import Listening, Readiness, listen_on, loop_factory
from failsoft.server.openai_api import OpenAIApi
from failsoft.server.plain import ASGIApp

__all__ = ["HttpServer", "listen_on", "loop_factory"]


class HttpServer(Listening):
    """Serves one app on one socket, until :meth:`stop` or a signal ends it gracefully."""

    def __init__(self, app: App, sock: socket.socket, *, on_listening: Callable[[str], None] | None = None) -> None:
        settings = app.settings
        readiness = Readiness()
        application: ASGIApp = make_api(app, readiness)
        self._app = app
        self.openai: OpenAIApi | None = None
        """The gateway's routes, when models or keys are configured."""
        if app.gateway is not None:
            self.openai = application = OpenAIApi(
                app.gateway,
                application,
                settings=settings.gateway,
                ring=KeyRing(settings.keys),
                log=CallLog.named(settings.gateway.log),
            )
        super().__init__(
            application, sock, settings.server, readiness=readiness, cut=self._cut_all, on_listening=on_listening
        )

    async def serve_until_stopped(self) -> None:
        """Serves until :meth:`stop` or a signal; returns when everything has been answered or cancelled."""
        try:
            await super().serve_until_stopped()
        finally:
            if self.openai is not None:
                self.openai.close()

    def _cut_all(self) -> None:
        for run in self._app.runs:
            run.wrap_up("shutting_down")
        if self.openai is not None:
            self.openai.cut()
