"""What the HTTP API answers with, for its OpenAPI document. Bodies are made by the parts themselves and match these."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

__all__ = ["ERROR_RESPONSES", "RUN_RESPONSES", "ErrorView", "RunView"]


class ErrorInside(BaseModel):
    """What went wrong."""

    type: str = Field(description="The family, to switch on.", examples=["invalid_request"])
    code: str = Field(description="The exact cause; see docs/errors.md.", examples=["bad_input"])
    message: str = Field(description="For people.")
    param: str | None = Field(description="The field, header or column that is wrong.")
    run_id: str | None
    retry_after: float | None = Field(description="Seconds after which another try makes sense.")
    downstream: str | None = None
    details: dict[str, Any] | None = None


class ErrorView(BaseModel):
    """Every error, of every path."""

    error: ErrorInside


class TaskView(BaseModel):
    """One task of a run's plan."""

    id: str
    title: str
    kind: str
    tool: str
    needs: list[str]
    essential: bool
    status: str
    provenance: dict[str, Any] | None
    started_ms: float | None
    elapsed_ms: float | None
    error: ErrorInside | None


class RunView(BaseModel):
    """A run: its answer when it has ended, its progress while it runs."""

    run_id: str
    agent: str | None
    status: str = Field(
        description="received, planning, dispatching, aggregating, completed, degraded, failed, cancelled"
    )
    answer: str | None = Field(description="Markdown.")
    provenance: dict[str, Any] | None = Field(description="The planner, what was understood, what is missing and why.")
    elapsed_ms: float | None
    budget_ms: float | None
    tasks: list[TaskView]
    artifacts: list[dict[str, Any]] = []
    stages_ms: dict[str, float | None] = {}
    progress: dict[str, Any] | None = None
    session_id: str | None = None
    error: ErrorInside | None


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorView, "description": "There is no such run."},
}
RUN_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "model": RunView,
        "description": "The answer, complete or degraded; with `stream`, AG-UI events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    400: {"model": ErrorView, "description": "Something about the request is wrong; `param` says what."},
    404: {"model": ErrorView, "description": "There is no such agent."},
    408: {"model": ErrorView, "description": "The body did not come in time."},
    413: {"model": ErrorView, "description": "The body is too large."},
    422: {"model": ErrorView, "description": "No plan could be made for the question."},
    503: {"model": ErrorView, "description": "Refused for now; `retry_after` says how long."},
    504: {"model": ErrorView, "description": "The time ran out before there was any plan."},
}
