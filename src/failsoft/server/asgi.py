"""The HTTP server's parts put together: routes, errors, request ids."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from failsoft import __version__
from failsoft.app import App
from failsoft.base.clock import Sources
from failsoft.server.approvals_api import approvals_router
from failsoft.server.diagnosis_api import diagnosis_router
from failsoft.server.downstreams import downstreams_view
from failsoft.server.errors import Json, install_errors
from failsoft.server.finding import tenant_of
from failsoft.server.listening import Readiness
from failsoft.server.mcp_endpoint import McpEndpoint
from failsoft.server.openapi_document import complete
from failsoft.server.requests import request_id
from failsoft.server.routes import PlainRoute
from failsoft.server.runs_api import runs_router
from failsoft.server.schemas import DownstreamsView, HealthView
from failsoft.server.sessions_api import sessions_router

__all__ = ["make_api", "openapi"]


def make_api(app: App, readiness: Readiness | None = None) -> ASGIApp:
    """The ASGI application that serves `app`, which must be running."""
    return _Identified(McpEndpoint(app, _routed(app, readiness)), app.sources)


def openapi(app: App) -> dict[str, Any]:
    """The OpenAPI document, without a server."""
    return complete(_routed(app, None))


def _routed(app: App, readiness: Readiness | None) -> FastAPI:
    ready = readiness if readiness is not None else Readiness()
    api = FastAPI(
        title="Failsoft",
        version=__version__,
        description="Answers within the client's time budget, whatever is slow or broken behind it.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.router.route_class = PlainRoute
    api.openapi = lambda: complete(api)  # type: ignore[method-assign]  # the framework says so
    install_errors(api)
    api.include_router(runs_router(app, ready))
    api.include_router(sessions_router(app))
    api.include_router(approvals_router(app))
    api.include_router(diagnosis_router(app))

    @api.get(
        "/v1/downstreams",
        tags=["operating"],
        summary="Breakers, permits, who waits and who holds",
        responses={200: {"model": DownstreamsView, "description": "Each downstream with its figures."}},
    )
    async def downstreams(request: Request) -> Json:
        return Json(downstreams_view(app.kernel, tenant_of(request)))

    @api.get(
        "/health/liveness",
        tags=["operating"],
        summary="Whether the process answers",
        responses={200: {"model": HealthView, "description": "It does."}},
    )
    async def liveness(request: Request) -> Json:
        return Json({"status": "alive"})

    @api.get(
        "/health/readiness",
        tags=["operating"],
        summary="Whether new requests are welcome",
        responses={
            200: {"model": HealthView, "description": "They are."},
            503: {"model": HealthView, "description": "They are not; `why` says why."},
        },
    )
    async def readiness_view(request: Request) -> Json:
        if ready.why is not None:
            return Json({"status": "not_ready", "why": ready.why}, status_code=503)
        return Json({"status": "ready", "agents": list(app.agents.names)})

    return api


class _Identified:
    """Gives every response its request's id, the client's own when it sent a sound one."""

    def __init__(self, inner: ASGIApp, sources: Sources) -> None:
        self._inner = inner
        self._sources = sources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        identity = request_id(Request(scope), self._sources)

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = identity
            await send(message)

        await self._inner(scope, receive, identified)
