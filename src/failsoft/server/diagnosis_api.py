"""Why runs were slow or degraded: one run's diagnosis, and that of all of a while."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from failsoft.app import App
from failsoft.base.errors import BadInput, NotFound
from failsoft.config.durations import parse_duration
from failsoft.runs.handle import RunHandle
from failsoft.server.errors import Json
from failsoft.server.finding import found_run, tenant_of
from failsoft.server.requests import known_query
from failsoft.server.routes import PlainRoute
from failsoft.server.schemas import documented

__all__ = ["diagnosis_router"]

_LONGEST: Final = 86_400.0


class PartView(BaseModel):
    """A part of the time."""

    what: str = Field(description="door, planning, queue, downstream, backoff, review, answer or own")
    downstream: str | None
    task: str | None
    ms: float


class DiagnosisView(BaseModel):
    """Why a run was as it was."""

    run_id: str
    status: str
    nature: str = Field(description="slow, blocked, failing, planning, own or none")
    downstream: str | None = Field(description="Who is to blame.")
    cause: str
    suggestion: str = Field(description="One change that would help.")
    elapsed_ms: float
    budget_ms: float
    limit: str | None = Field(description="The limit that fired first: attempt, call, task, run, queue, …")
    spent: list[PartView] = Field(description="Where the time went; sums to `elapsed_ms`.")
    spent_before_the_limit: list[PartView] = Field(description="What had eaten the budget by then, largest first.")
    details: dict[str, Any]


class BlamedView(BaseModel):
    """How many runs blame a downstream."""

    downstream: str
    nature: str
    runs: int


class WindowView(BaseModel):
    """What the runs of a while have in common."""

    seconds: float
    runs: int
    statuses: dict[str, int]
    blamed: list[BlamedView]
    spent: dict[str, float] = Field(description="Shares of the time of all runs.")
    cause: str
    suggestion: str


_LAST: Final = {
    "parameters": [
        {
            "name": "last",
            "in": "query",
            "required": False,
            "description": "How far back: 15m, 1h, 90s.",
            "schema": {"type": "string", "default": "15m"},
        }
    ]
}


def diagnosis_router(app: App) -> APIRouter:
    """``/v1/runs/{id}/diagnosis`` and ``/v1/diagnosis``."""
    router = APIRouter(tags=["operating"], route_class=PlainRoute)

    @router.get("/v1/runs/{run_id}/diagnosis", summary="Why a run was slow or degraded", **documented(DiagnosisView))
    async def one(request: Request, run_id: str) -> Response:
        """Where its budget went, which limit fired, whom to blame and what to change; of runs known to this process."""
        known_query(request)
        found = await found_run(app, run_id, request)
        if not isinstance(found, RunHandle):
            raise NotFound(f"what run {run_id[:80]} did is not known to this process any more", param="run_id")
        return Json(app.diagnosis(found).to_dict())

    @router.get("/v1/diagnosis", summary="Why runs fell short lately", **documented(WindowView, _LAST))
    async def window(request: Request) -> Response:
        """The caller's own runs that ended in the last while, as one."""
        known_query(request, "last")
        given = request.query_params.get("last", "15m")
        try:
            seconds = parse_duration(given)
        except ValueError as error:
            raise BadInput(f"last: {error}", param="last") from None
        if not 0 < seconds <= _LONGEST:
            raise BadInput("last: more than 0 and at most a day", param="last")
        return Json((await app.diagnosis_of_last(seconds, tenant=tenant_of(request))).to_dict())

    return router
