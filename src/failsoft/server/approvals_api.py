"""Approvals over HTTP: what waits for a person, and the person's answer."""

from __future__ import annotations

from typing import Any, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from failsoft.app import App
from failsoft.base.errors import ApprovalConflict, BadInput
from failsoft.server.errors import Json
from failsoft.server.finding import tenant_of
from failsoft.server.requests import known_query, limit_of, parsed, read_body
from failsoft.server.routes import PlainRoute
from failsoft.server.schemas import (
    APPROVAL_PARAMETERS,
    RESOLUTION_BODY,
    ApprovalListView,
    ApprovalView,
    Resolution,
    documented,
)
from failsoft.stores.approvals import ApprovalStatus

__all__ = ["approvals_router"]


def approvals_router(app: App) -> APIRouter:
    """``/v1/approvals``."""
    router = APIRouter(prefix="/v1/approvals", tags=["approvals"], route_class=PlainRoute)

    @router.get("", summary="What waits for a person", **documented(ApprovalListView, APPROVAL_PARAMETERS))
    async def listed(request: Request) -> Response:
        """The caller's own approvals, newest first, in pages: `after` is `next` of the page before."""
        known_query(request, "limit", "after", "status", "run_id")
        query = request.query_params
        status: Any = query.get("status")
        if status is not None and status not in get_args(ApprovalStatus):
            raise BadInput(f"status: should be one of {', '.join(get_args(ApprovalStatus))}", param="status")
        page = await app.approvals.list(
            tenant=tenant_of(request),
            status=status,
            run=query.get("run_id"),
            limit=limit_of(request),
            after=query.get("after"),
        )
        return Json({"approvals": [one.to_dict() for one in page.approvals], "next": page.after})

    @router.get("/{approval_id}", summary="An approval", **documented(ApprovalView))
    async def read(request: Request, approval_id: str) -> Response:
        """What is asked, of whom it is, and the answer when there is one."""
        known_query(request)
        return Json((await app.approvals.get(approval_id, tenant=tenant_of(request))).to_dict())

    @router.post(
        "/{approval_id}/resolve",
        summary="Approve or reject",
        **documented(ApprovalView, RESOLUTION_BODY, 408, 409, 413),
    )
    async def resolve(request: Request, approval_id: str) -> Response:
        """The answer, which lets the run go on. The same answer again changes nothing; another one is a conflict, and
        so is one that comes too late.
        """
        body = parsed(Resolution, await read_body(request, app.settings.server.max_body), like='{"status": "approved"}')
        tenant = tenant_of(request)
        try:
            done = await app.approvals.resolve(approval_id, body.status, tenant=tenant, by=body.by, note=body.note)
        except ApprovalConflict:
            done = await app.approvals.get(approval_id, tenant=tenant)
            if done.status != body.status:
                raise
        return Json(done.to_dict())

    return router
