"""Runs as clients see them, whether they run here, have ended here, or are only in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from failsoft.base.weights import weight
from failsoft.runs.handle import RunHandle
from failsoft.runs.result import RunResult
from failsoft.stores.protocols import StoredRun

__all__ = ["live_view", "result_view", "stored_summary", "stored_view", "summary"]

_INPUT: Final = 200
"""Characters of a question in a list."""
_VALUE: Final = 256 * 1024
"""Bytes, about, of a task's value that is shown."""


def result_view(result: RunResult, handle: RunHandle) -> dict[str, Any]:
    """A run that has ended here."""
    return {**result.to_dict(), **_about(handle)}


def live_view(handle: RunHandle, *, values: bool = False) -> dict[str, Any]:
    """A run as it stands, or its result when it has ended; with the tasks' `values` when asked for."""
    result = handle.result_now()
    if result is not None:
        view = result_view(result, handle)
    else:
        progress = handle.progress()
        view = {
            "run_id": handle.run_id,
            "agent": handle.agent,
            "session_id": handle.request.session_id,
            "status": str(handle.state),
            "answer": None,
            "provenance": None,
            "elapsed_ms": round(max(0.0, handle.elapsed()) * 1000, 3),
            "budget_ms": round(handle.budget * 1000, 3),
            "stages_ms": {},
            "tasks": [task.to_dict() for task in handle.tasks()],
            "artifacts": [],
            "progress": None if progress is None else progress.to_dict(),
            "error": None,
            **_about(handle),
        }
    if values:
        tasks = handle.tasks()
        for shown, task in zip(view["tasks"], tasks, strict=True):
            shown["value"] = _bounded(task.value)
    return view


def _about(handle: RunHandle) -> dict[str, Any]:
    plan = handle.plan
    return {
        "created": round(handle.created, 3),
        "background": handle.request.background,
        "plan": None if plan is None else plan.model_dump(mode="json"),
    }


def _bounded(value: Any) -> Any:
    if weight(value) > _VALUE:
        return {"omitted": "too large"}
    return value


def stored_view(stored: StoredRun, *, values: bool = False) -> dict[str, Any]:
    """A run that only the store knows."""
    record, plan = stored.record, stored.snapshot.get("plan")
    view: dict[str, Any] = {
        "run_id": record.run,
        "agent": record.agent,
        "session_id": record.session,
        "status": stored.state,
        "answer": None,
        "provenance": None,
        "elapsed_ms": None,
        "budget_ms": round(record.budget * 1000, 3),
        "stages_ms": {},
        "tasks": [] if plan is None else [_stored_task(task, stored) for task in plan.get("tasks", ())],
        "artifacts": [],
        "progress": None,
        "error": None,
        **{name: value for name, value in (stored.result or {}).items() if name != "files"},
        "created": round(record.created, 3),
        "background": record.background,
        "plan": plan,
    }
    if values:
        for task in view["tasks"]:
            found = stored.tasks.get(task["id"])
            task["value"] = None if found is None else _bounded(found.value)
    return view


def _stored_task(task: Mapping[str, Any], stored: StoredRun) -> dict[str, Any]:
    done = stored.tasks.get(task["id"])
    started, ended = (None, None) if done is None else (done.started, done.ended)
    return {
        "id": task["id"],
        "title": task.get("title") or task["id"],
        "kind": task.get("kind", "tool"),
        "tool": task.get("tool", ""),
        "needs": list(task.get("needs", ())),
        "essential": task.get("essential", True),
        "status": "waiting" if done is None else done.status,
        "provenance": None if done is None or not done.provenance else dict(done.provenance),
        "started_ms": None if started is None else round(started * 1000, 3),
        "elapsed_ms": None if started is None or ended is None else round((ended - started) * 1000, 3),
        "error": None,
    }


def summary(handle: RunHandle) -> dict[str, Any]:
    """A run in a list."""
    return {
        "run_id": handle.run_id,
        "agent": handle.agent,
        "session_id": handle.request.session_id,
        "status": str(handle.state),
        "input": handle.request.input[:_INPUT],
        "background": handle.request.background,
        "created": round(handle.created, 3),
    }


def stored_summary(stored: StoredRun) -> dict[str, Any]:
    """The same of a run that only the store knows."""
    record = stored.record
    return {
        "run_id": record.run,
        "agent": record.agent,
        "session_id": record.session,
        "status": stored.state,
        "input": str(record.request.get("input", ""))[:_INPUT],
        "background": record.background,
        "created": round(record.created, 3),
    }
