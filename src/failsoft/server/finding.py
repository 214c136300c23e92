"""Whose a request is, and the runs and sessions that it may see: those of its tenant, here and in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import Request

from failsoft.app import App
from failsoft.base.errors import BadInput, NotFound
from failsoft.runs.handle import RunHandle
from failsoft.runs.sessions import Turn, turn_of
from failsoft.server.agui import TERMINAL
from failsoft.server.auth import Caller
from failsoft.server.views import stored_summary, summary
from failsoft.stores.protocols import StoredRun

__all__ = ["ended_with", "entered", "flag_of", "found_run", "run_page", "session_page", "tenant_of"]


def tenant_of(request: Request) -> str | None:
    """Whose key the request came with; None when there are no keys."""
    state = request.scope.get("state") or {}
    tenant: str | None = state.get("tenant")
    return tenant


def entered(request: Request) -> Callable[[], None]:
    """Takes one of the caller's places, by its key's rate and concurrency; the function gives it back, once.

    Raises :class:`~failsoft.base.errors.RateLimited`.
    """
    caller: Caller | None = (request.scope.get("state") or {}).get("caller")
    if caller is None:
        return lambda: None
    caller.enter(asyncio.get_running_loop().time())
    here = [caller]

    def leave() -> None:
        if here:
            here.pop().leave()

    return leave


def flag_of(request: Request, name: str) -> bool:
    """``?name=true``."""
    given = request.query_params.get(name, "false")
    if given not in ("true", "false"):
        raise BadInput(f"{name}: should be true or false", param=name)
    return given == "true"


async def found_run(app: App, run_id: str, request: Request) -> RunHandle | StoredRun:
    """The run, here or else in the store. Another tenant's is as good as none."""
    tenant = tenant_of(request)
    found = app.run(run_id, tenant=tenant) or await app.stored_run(run_id, tenant=tenant)
    if found is None:
        raise NotFound(f"there is no run {run_id[:80]!r}", param="run_id")
    return found


def ended_with(stored: StoredRun, event_id: str | None) -> bool:
    """Whether that is the id of the run's terminal event."""
    last = stored.events[-1] if stored.events else None
    return last is not None and last.kind in TERMINAL and event_id == f"{last.epoch}.{last.seq}"


async def run_page(
    app: App, tenant: str | None, wanted: dict[str, str | None], *, after: str | None, limit: int
) -> dict[str, Any]:
    """The tenant's runs, newest first: those in the store, and those here that are not written yet."""
    stored = await app.stored_runs(tenant=tenant, after=after, limit=limit + 1, **wanted)
    found = {one.record.run: stored_summary(one) for one in stored}
    oldest = min(found, default="") if len(stored) > limit else ""
    for handle in app.known_runs():
        request = handle.request
        seen = {"session": request.session_id, "agent": handle.agent, "state": str(handle.state)}
        mine = handle.tenant == tenant and oldest <= handle.run_id and (after is None or handle.run_id < after)
        if mine and all(value is None or seen[name] == value for name, value in wanted.items()):
            found[handle.run_id] = summary(handle)
        else:
            found.pop(handle.run_id, None)  # what is here is newer than what is written
    newest = sorted(found, reverse=True)
    page = newest[:limit]
    return {"runs": [found[run] for run in page], "next": page[-1] if len(newest) > limit else None}


async def session_page(app: App, tenant: str | None, session: str, *, before: str | None, limit: int) -> dict[str, Any]:
    """The newest messages of a session, oldest first. Raises :class:`~failsoft.base.errors.NotFound`."""
    stored = await app.stored_runs(tenant=tenant, session=session, after=before, limit=limit + 1)
    turns: dict[str, Turn] = {one.record.run: turn_of(one) for one in stored}
    oldest = min(turns, default="") if len(stored) > limit else ""
    for handle in app.known_runs():
        result, request = handle.result_now(), handle.request
        mine = handle.tenant == tenant and request.session_id == session
        if mine and oldest <= handle.run_id and (before is None or handle.run_id < before):
            answer, state = None if result is None else result.answer, str(handle.state)
            turns[handle.run_id] = Turn(handle.run_id, handle.created, state, request.input, answer, handle.agent)
    newest = sorted(turns, reverse=True)
    if not newest:
        if before is None:
            raise NotFound(f"there is no session {session[:128]!r}", param="session_id")
        await session_page(app, tenant, session, before=None, limit=1)  # is there one at all?
    page = newest[:limit]
    return {
        "session_id": session,
        "turns": [turns[run].to_dict() for run in reversed(page)],
        "before": page[-1] if len(newest) > limit else None,
    }
