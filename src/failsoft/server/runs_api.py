"""The runs API: ask and wait, ask and watch, ask and leave; list, look, watch, cancel.

A client that waits gets one JSON object; one that streams gets AG-UI events. When it goes away its run is cancelled,
unless the request or the settings say ``continue``, or it is a background run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.background import BackgroundTask

from failsoft.app import App
from failsoft.base.errors import NotFound
from failsoft.base.tracing import current_trace, parse_traceparent
from failsoft.runs.handle import RunHandle
from failsoft.runs.result import RunRequest, files_of
from failsoft.runs.state import RunState
from failsoft.runs.strict import http_status
from failsoft.server.errors import Json, error_response
from failsoft.server.finding import ended_with, entered, flag_of, found_run, run_page, tenant_of
from failsoft.server.listening import Readiness
from failsoft.server.requests import (
    RunBody,
    budget_of,
    idempotency_key,
    known_query,
    limit_of,
    read_body,
    run_body,
    spent,
)
from failsoft.server.routes import PlainRoute
from failsoft.server.schemas import (
    EVENT_PARAMETERS,
    EVENT_RESPONSES,
    FILE_RESPONSES,
    LIST_PARAMETERS,
    RUN_PARAMETERS,
    RUN_RESPONSES,
    VALUES_PARAMETER,
    RunListView,
    RunView,
    documented,
)
from failsoft.server.sse import EventStream, Frames
from failsoft.server.strict import strict_body
from failsoft.server.views import live_view, stored_view
from failsoft.server.watching import Audience, LiveFrames, Looks, StoredFrames

__all__ = ["runs_router"]

_BODY: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": RunBody.model_json_schema()}}},
    **RUN_PARAMETERS,
}


def runs_router(app: App, readiness: Readiness) -> APIRouter:
    """The routes under ``/v1/runs``."""
    router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=PlainRoute)
    settings = app.settings.server
    audience = Audience()
    looks = Looks(app.stored_run)

    def stream(frames: Frames, run_id: str, on_end: Callable[[], None] | None = None) -> EventStream:
        return EventStream(
            frames,
            heartbeat=settings.heartbeat,
            patience=settings.write_timeout,
            headers={"x-run-id": run_id},
            on_end=on_end,
            among=readiness.streams,
        )

    @router.post("", summary="Ask a question", responses=RUN_RESPONSES, openapi_extra=_BODY, response_model=None)
    async def create(request: Request) -> Response:
        """Answers within the budget, in full or degraded; with `stream` the run's events as they come; with
        `background` at once, as soon as the run is written.
        """
        current_trace.set(parse_traceparent(request.headers.get("traceparent")))
        freed = entered(request)
        try:
            return await answered(request, freed)
        except BaseException:
            freed()
            raise

    async def answered(request: Request, freed: Callable[[], None]) -> Response:
        """The response; `freed` is called when the caller's place is free again."""
        body = run_body(await read_body(request, settings.max_body))
        limits = app.settings.background if body.background else app.settings.run
        budget = budget_of(body, request, maximum=limits.maximum_budget)
        key = idempotency_key(request)
        asked = RunRequest(
            input=body.input,
            agent=body.agent,
            session_id=body.session_id,
            budget_ms=None if budget is None else budget * 1000,
            spent_ms=spent(request, app.sources) * 1000,
            mode=body.mode,
            idempotency_key=key,
            tenant=tenant_of(request),
            background=body.background,
        )
        handle = app.start(await app.chosen(asked))
        if body.background or (body.on_disconnect or app.settings.server.on_disconnect) == "continue":
            handle.keep()
        left = audience.join(handle, owner=True)

        def leave() -> None:
            left()
            freed()

        leaving = leave
        try:
            if key is not None or body.background:
                await handle.accepted()  # written; and it may be a run of another process, whose id it takes then
            if body.background:
                return _accepted(handle)
            if body.stream:
                leaving = _nothing
                return stream(LiveFrames(audience, handle, strict=body.strict), handle.run_id, leave)
            if not await _waited(handle, request):
                return Response(status_code=499)  # nobody is there to read it
        finally:
            leaving()
        response = _answer(handle, strict=body.strict)
        response.background = _Told(handle)
        return response

    @router.get("", summary="Runs, newest first", **documented(RunListView, LIST_PARAMETERS))
    async def listed(request: Request) -> Response:
        """The caller's own runs, in pages: `after` is `next` of the page before."""
        known_query(request, "limit", "after", "status", "session_id", "agent")
        query = request.query_params
        wanted = {"session": query.get("session_id"), "agent": query.get("agent"), "state": query.get("status")}
        return Json(await run_page(app, tenant_of(request), wanted, after=query.get("after"), limit=limit_of(request)))

    @router.get("/{run_id}", summary="A run as it stands", **documented(RunView, VALUES_PARAMETER))
    async def read(request: Request, run_id: str) -> Any:
        """The result of a run that has ended, or the state, plan and tasks of one that runs; with `values` what each
        task brought.
        """
        known_query(request, "values")
        values = flag_of(request, "values")
        found = await found_run(app, run_id, request)
        return Json(
            live_view(found, values=values) if isinstance(found, RunHandle) else stored_view(found, values=values)
        )

    @router.get("/{run_id}/events", summary="Watch a run", responses=EVENT_RESPONSES, openapi_extra=EVENT_PARAMETERS)
    async def events(request: Request, run_id: str) -> Response:
        """The run's events in AG-UI's words, from the beginning, or after `Last-Event-ID`; a snapshot of the state when
        what follows that id is no longer kept. Leaving does not cancel the run.
        """
        known_query(request, "after", "strict")
        strict = flag_of(request, "strict")
        found = await found_run(app, run_id, request)
        after = request.headers.get("last-event-id") or request.query_params.get("after")
        if isinstance(found, RunHandle):
            if found.done and after is not None and found.seq_of(after) == found.last:
                return Response(status_code=204)  # it has had the end: a browser does not come back after this
            leave = audience.join(found)
            return stream(LiveFrames(audience, found, after=after, strict=strict), found.run_id, leave)
        if ended_with(found, after):
            return Response(status_code=204)

        return stream(StoredFrames(found, looks.at(found.record), after=after, strict=strict), found.record.run)

    @router.get("/{run_id}/artifacts/{name}", summary="A file of a run's answer", responses=FILE_RESPONSES)
    async def artifact(request: Request, run_id: str, name: str) -> Response:
        """A chart or a report, by the name under which the answer's Markdown and `artifacts` mention it."""
        found = await found_run(app, run_id, request)
        if isinstance(found, RunHandle):
            result = found.result_now()
            files = () if result is None else result.artifacts
        else:
            files = files_of(found)
        for one in files:
            if one.name == name:
                # Nothing in it may run: a report is shown, not trusted.
                headers = {"content-security-policy": "sandbox", "x-content-type-options": "nosniff"}
                return Response(one.data, media_type=one.media_type, headers=headers)
        raise NotFound(f"run {run_id[:80]} has no file {name[:80]!r} here", param="name")

    @router.post("/{run_id}/cancel", summary="Cancel a run", **documented(RunView))
    async def cancel(request: Request, run_id: str) -> Any:
        """Cancels a run; one that has ended is returned as it is."""
        found = await found_run(app, run_id, request)
        if isinstance(found, RunHandle):
            found.cancel()
            if found.kept:
                await found.written()  # else a restart would go on with it
            return Json(live_view(found))
        return Json(stored_view(await app.cancel_stored(found)))

    return router


def _nothing() -> None:
    """Nobody leaves."""


class _Told(BackgroundTask):
    """Runs when a response is out."""

    def __init__(self, handle: RunHandle) -> None:
        super().__init__(handle.told)
        self._handle = handle

    async def __call__(self) -> None:
        """On the loop, where a plain function would go to a thread."""
        self._handle.told()


async def _waited(handle: RunHandle, request: Request) -> bool:
    """Whether the run has ended, or waits for a person, while its client was there."""
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(handle.settled())
        gone = tasks.create_task(_gone(request))
        try:
            await asyncio.wait((ending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            gone.cancel()
    return handle.done or handle.state is RunState.WAITING_APPROVAL


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _accepted(handle: RunHandle) -> Response:
    """202 for a run that goes on by itself; the error of one that could not be written."""
    result = handle.result_now()
    if result is not None and result.error is not None and not result.tasks:
        return _answer(handle, strict=False)
    headers = {"x-run-id": handle.run_id, "location": f"/v1/runs/{handle.run_id}"}
    return Json(live_view(handle), status_code=202, headers=headers)


def _answer(handle: RunHandle, *, strict: bool) -> Response:
    """An answer, complete or degraded, is 200 (degraded and strict: a code); what waits for a person is 202; a run that
    failed gives its error's status, with the run's id in it.
    """
    headers = {"x-run-id": handle.run_id}
    result = handle.result_now()
    if result is None:
        handle.keep()
        return _accepted(handle)
    status = http_status(result, strict=strict).status
    if result.error is not None:
        response = error_response(result.error)
        response.status_code = status
        response.headers.update(headers)
        return response
    if status != 200:
        return Json(strict_body(result, live_view(handle)), status_code=status, headers=headers)
    return Json(live_view(handle), headers=headers)
