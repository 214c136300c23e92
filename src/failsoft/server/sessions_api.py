"""What can be looked up beside runs: sessions and agents."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from failsoft.app import App
from failsoft.base.errors import NotFound, UnknownAgent
from failsoft.runs.agents import Agent
from failsoft.server.errors import Json
from failsoft.server.finding import session_page, tenant_of
from failsoft.server.requests import SESSION_ID, known_query, limit_of
from failsoft.server.routes import PlainRoute
from failsoft.server.schemas import SESSION_PARAMETERS, AgentListView, SessionView, documented

__all__ = ["sessions_router"]


def sessions_router(app: App) -> APIRouter:
    """``/v1/sessions`` and ``/v1/agents``."""
    router = APIRouter(prefix="/v1", tags=["runs"], route_class=PlainRoute)

    @router.get("/sessions/{session_id}", summary="A conversation", **documented(SessionView, SESSION_PARAMETERS))
    async def session(request: Request, session_id: str) -> Response:
        """The newest turns of a session, oldest first; `before` of a page asks for the older ones."""
        known_query(request, "limit", "before")
        if not re.fullmatch(SESSION_ID, session_id):
            raise NotFound(f"there is no session {session_id[:128]!r}", param="session_id")
        before = request.query_params.get("before")
        page = await session_page(app, tenant_of(request), session_id, before=before, limit=limit_of(request))
        return Json(page)

    @router.get("/agents", summary="Who answers here", **documented(AgentListView))
    async def agents(request: Request) -> Response:
        """The agents, with what they are for, their planners and their tools."""
        known_query(request)
        try:
            default = app.agents.get(None).name
        except UnknownAgent:
            default = None
        return Json({"agents": [_agent(app, one, default=one.name == default) for one in app.agents]})

    return router


def _agent(app: App, agent: Agent, *, default: bool) -> dict[str, Any]:
    budget = agent.budget if agent.budget is not None else app.limits.default_budget
    return {
        "name": agent.name,
        "description": agent.description,
        "default": default,
        "budget_ms": round(budget * 1000, 3),
        "planners": [planner.name for planner in agent.planners],
        "tools": [
            {"name": spec.name, "description": spec.description, "kind": spec.kind, "downstream": spec.downstream}
            for spec in agent.tools.specs
        ],
    }
