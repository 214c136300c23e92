"""The runs API: ask and wait, ask and watch, look, cancel.

A client that waits gets one JSON object; one that streams gets AG-UI events. When it goes away its run is cancelled,
unless the request or the settings say ``continue``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.background import BackgroundTask

from failsoft.app import App
from failsoft.base.errors import FailsoftError, NotFound
from failsoft.runs.handle import RunHandle
from failsoft.runs.result import RunRequest, RunResult
from failsoft.runs.state import RunState
from failsoft.server.agui import Projection
from failsoft.server.errors import Json, error_response
from failsoft.server.requests import RunBody, budget_of, idempotency_key, read_body, run_body, spent
from failsoft.server.routes import PlainRoute
from failsoft.server.schemas import ERROR_RESPONSES, RUN_RESPONSES, RunView
from failsoft.server.sse import EventStream

__all__ = ["runs_router"]

_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": RunBody.model_json_schema()}}}}


def runs_router(app: App) -> APIRouter:
    """The routes under ``/v1/runs``."""
    router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=PlainRoute)
    settings = app.settings.server
    audience = _Audience()

    @router.post("", summary="Ask a question", responses=RUN_RESPONSES, openapi_extra=_BODY, response_model=None)
    async def create(request: Request) -> Response:
        """Answers within the budget, in full or degraded; with ``stream`` the run's events as they come."""
        body = run_body(await read_body(request, settings.max_body))
        budget = budget_of(body, request, maximum=app.settings.run.maximum_budget)
        key = idempotency_key(request)
        handle = app.start(
            RunRequest(
                input=body.input,
                agent=body.agent,
                budget_ms=None if budget is None else budget * 1000,
                spent_ms=spent(request) * 1000,
                idempotency_key=key,
                tenant=_tenant(request),
            )
        )
        stay = (body.on_disconnect or settings.on_disconnect) == "continue"
        leave = audience.join(handle, stay=stay)
        if body.stream:
            if key is not None:
                await handle.accepted()  # it may be a run of another process, whose id it takes then
            headers = {"x-run-id": handle.run_id}
            return EventStream(_frames(handle), heartbeat=settings.heartbeat, headers=headers, on_end=leave)
        result = await _waited(handle, request, leave)
        if result is None:
            return Response(status_code=499)  # nobody is there to read it
        response = _answer(result, {"x-run-id": handle.run_id})
        response.background = _Told(handle)
        return response

    @router.get("/{run_id}", summary="A run as it stands", responses=ERROR_RESPONSES, response_model=RunView)
    async def read(request: Request, run_id: str) -> Any:
        """The result of a run that has ended, or the state, plan and tasks of one that runs."""
        return Json(_view(_found(app, run_id, request)))

    @router.get("/{run_id}/artifacts/{name}", summary="A file of a run's answer", responses=ERROR_RESPONSES)
    async def artifact(request: Request, run_id: str, name: str) -> Response:
        """A chart or a report, by the name under which the answer's Markdown and ``artifacts`` mention it."""
        result = _found(app, run_id, request).result_now()
        for one in result.artifacts if result is not None else ():
            if one.name == name:
                # Nothing in it may run: a report is shown, not trusted.
                headers = {"content-security-policy": "sandbox", "x-content-type-options": "nosniff"}
                return Response(one.data, media_type=one.media_type, headers=headers)
        raise NotFound(f"run {run_id} has no file {name[:80]!r}", param="name")

    @router.post("/{run_id}/cancel", summary="Cancel a run", responses=ERROR_RESPONSES, response_model=RunView)
    async def cancel(request: Request, run_id: str) -> Any:
        """Cancels a run; one that has ended is returned as it is."""
        handle = _found(app, run_id, request)
        handle.cancel()
        return Json(_view(handle))

    return router


def _tenant(request: Request) -> str | None:
    """Whose key the request came with; None when there are no keys."""
    state = request.scope.get("state") or {}
    tenant: str | None = state.get("tenant")
    return tenant


def _found(app: App, run_id: str, request: Request) -> RunHandle:
    handle = app.run(run_id, tenant=_tenant(request))  # another tenant's is as good as none
    if handle is None:
        raise NotFound(f"there is no run {run_id[:80]!r}", param="run_id")
    return handle


class _Audience:
    """Who watches which run. One idempotency key may bring several clients to a run: the last to leave ends it."""

    def __init__(self) -> None:
        self._watching: Counter[RunHandle] = Counter()  # bounded by the clients there are
        self._staying: set[RunHandle] = set()

    def join(self, handle: RunHandle, *, stay: bool) -> Callable[[], None]:
        """One more client; the function is to be called once when it goes. Runs that somebody wants to `stay` do."""
        self._watching[handle] += 1
        if stay:
            self._staying.add(handle)
        left = False

        def leave() -> None:
            nonlocal left
            if left:
                return
            left = True
            self._watching[handle] -= 1
            if self._watching[handle] > 0:
                return
            del self._watching[handle]
            if handle not in self._staying:
                handle.cancel()
            self._staying.discard(handle)

        return leave


class _Told(BackgroundTask):
    """Runs when a response is out."""

    def __init__(self, handle: RunHandle) -> None:
        super().__init__(handle.told)
        self._handle = handle

    async def __call__(self) -> None:
        """On the loop, where a plain function would go to a thread."""
        self._handle.told()


async def _waited(handle: RunHandle, request: Request, leave: Callable[[], None]) -> RunResult | None:
    """The run's result; None when the client went away before."""
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(handle.result())
        gone = tasks.create_task(_gone(request))
        try:
            await asyncio.wait((ending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leave()  # also when the server gives this request up at its own end
            if not handle.done:
                ending.cancel()
            gone.cancel()
    return handle.result_now()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _frames(handle: RunHandle) -> AsyncIterator[bytes]:
    projection = Projection(handle.run_id)
    async for event in handle.events():
        if frames := projection.frames(event, handle.result_now()):
            yield frames


def _answer(result: RunResult, headers: dict[str, str]) -> Response:
    """An answer, complete or degraded, is 200; a run that failed gives its error's status, with the run's id in it."""
    error: FailsoftError | None = result.error
    if result.status in (RunState.COMPLETED, RunState.DEGRADED) or error is None:
        return Json(result.to_dict(), headers=headers)
    response = error_response(error)
    response.headers.update(headers)
    return response


def _view(handle: RunHandle) -> dict[str, Any]:
    result = handle.result_now()
    if result is not None:
        return result.to_dict()
    progress = handle.progress()
    return {
        "run_id": handle.run_id,
        "agent": handle.request.agent,
        "status": str(handle.state),
        "answer": None,
        "provenance": None,
        "elapsed_ms": round((handle.budget - handle.remaining()) * 1000, 3),
        "budget_ms": round(handle.budget * 1000, 3),
        "tasks": [task.to_dict() for task in handle.tasks()],
        "progress": None if progress is None else progress.to_dict(),
        "error": None,
    }
