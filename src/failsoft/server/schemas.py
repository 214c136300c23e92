"""What the HTTP API takes and answers with, for its OpenAPI document. Bodies are made by the parts themselves and match
these; a test sends what the document promises and holds every answer against it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from failsoft.server.requests import SESSION_ID

__all__ = [
    "APPROVAL_PARAMETERS",
    "EVENT_PARAMETERS",
    "EVENT_RESPONSES",
    "FILE_RESPONSES",
    "LIST_PARAMETERS",
    "RESOLUTION_BODY",
    "RUN_PARAMETERS",
    "RUN_RESPONSES",
    "SESSION_PARAMETERS",
    "VALUES_PARAMETER",
    "AgentListView",
    "ApprovalListView",
    "ApprovalView",
    "DownstreamsView",
    "ErrorView",
    "HealthView",
    "Resolution",
    "RunListView",
    "RunView",
    "SessionView",
    "documented",
    "error_schemas",
    "refusals",
]

_RUN_ID = "run_019a22d9550077ea86a94f1ae5d13b7f"


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
    provenance: dict[str, Any] | None = Field(description="Which rung served it, why, how old it is.")
    started_ms: float | None
    elapsed_ms: float | None
    error: ErrorInside | None
    value: Any = Field(None, description="What it brought; only with `values=true`.")


class RunView(BaseModel):
    """A run: its answer when it has ended, its progress while it runs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "run_id": _RUN_ID,
                    "agent": "analyst",
                    "session_id": None,
                    "status": "degraded",
                    "answer": "# Revenue per region …",
                    "provenance": {"planner": "rules", "shortfalls": [{"task": "chart", "reason": "call_timeout"}]},
                    "elapsed_ms": 2612.4,
                    "budget_ms": 3000.0,
                    "tasks": [],
                    "artifacts": [],
                    "created": 1767225600.25,
                    "background": False,
                    "plan": None,
                    "error": None,
                }
            ]
        }
    )

    run_id: str
    agent: str | None
    status: str = Field(
        description="received, planning, dispatching, waiting_approval, aggregating; at its end completed, degraded, "
        "failed, cancelled or expired"
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
    created: float = Field(description="UTC seconds since the epoch.")
    background: bool
    plan: dict[str, Any] | None
    error: ErrorInside | None


class StrictView(BaseModel):
    """A degraded answer for a caller that wants codes: why, and what there is."""

    error: ErrorInside
    run: RunView | None = Field(None, description="With `strict`: the run with its degraded answer.")


class RunSummary(BaseModel):
    """A run in a list."""

    run_id: str
    agent: str
    session_id: str | None
    status: str
    input: str = Field(description="The first 200 characters of the question.")
    background: bool
    created: float = Field(description="UTC seconds since the epoch.")


class RunListView(BaseModel):
    """A page of runs, newest first."""

    runs: list[RunSummary]
    next: str | None = Field(description="`after` of the next page; null when this is the last.")


class TurnView(BaseModel):
    """A question of a session with its answer."""

    run_id: str
    created: float
    agent: str
    status: str
    input: str
    answer: str | None


class SessionView(BaseModel):
    """A conversation, oldest first."""

    session_id: str
    turns: list[TurnView]
    before: str | None = Field(description="`before` of the page of older turns; null when there are none.")


class AgentView(BaseModel):
    """Somebody who answers."""

    name: str
    description: str
    default: bool = Field(description="Whether it answers when a request names none.")
    budget_ms: float = Field(description="The budget of runs that ask for none.")
    planners: list[str]
    tools: list[dict[str, Any]] = Field(description="Each with `name`, `description`, `kind` and `downstream`.")


class AgentListView(BaseModel):
    """Who answers here."""

    agents: list[AgentView]


class ApprovalView(BaseModel):
    """A question to a person: may this task do this?"""

    id: str
    run_id: str
    task: str
    tool: str
    title: str
    agent: str
    arguments: dict[str, Any]
    arguments_hash: str = Field(description="What the answer is bound to.")
    reason: str = Field(description="tool, repeated_degradation or unknown_outcome")
    status: str = Field(description="pending, approved, rejected, expired or withdrawn")
    created: float
    expires: float
    resolved: float | None
    by: str | None
    note: str


class ApprovalListView(BaseModel):
    """A page of approvals, newest first."""

    approvals: list[ApprovalView]
    next: str | None = Field(description="`after` of the next page; null when this is the last.")


class Resolution(BaseModel):
    """A person's answer."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"status": "approved", "by": "ann@example.com", "note": "checked"}]},
    )

    status: Literal["approved", "rejected"] = Field(description="The answer.")
    by: str | None = Field(None, max_length=200, description="Who says so.")
    note: str = Field("", max_length=2_000, description="Why.")


class DownstreamsView(BaseModel):
    """Every downstream: its breaker, permits, queue, counts, and who holds what."""

    downstreams: list[dict[str, Any]]


class HealthView(BaseModel):
    """How the process is."""

    status: str
    why: str | None = None
    agents: list[str] = []


_TEXTS: Final = {
    400: "Something about the request is wrong; `param` says what.",
    401: "An API key is needed, or this one is not known.",
    403: "This key may not do that.",
    404: "There is no such thing, or it is another tenant's.",
    408: "The body did not come in time.",
    409: "It conflicts with what is there: the `Idempotency-Key` was used with another body, or it is settled.",
    410: "It has expired.",
    413: "The body is too large.",
    422: "No plan could be made for the question.",
    429: "Too many requests; `Retry-After` says when to come back.",
    431: "The request line with its headers is too large.",
    499: "The run was cancelled.",
    500: "A defect of ours; it has been logged.",
    502: "Something behind us failed.",
    503: "Refused for now; `retry_after` says how long.",
    504: "The time ran out.",
}


def refusals(*codes: int, model: type[BaseModel] = ErrorView) -> dict[int | str, dict[str, Any]]:
    """The error responses of a path; the document has `model` among its schemas, see :func:`error_schemas`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {code: {"description": _TEXTS[code], "content": {"application/json": {"schema": schema}}} for code in codes}


def error_schemas() -> dict[str, Any]:
    """What :func:`refusals` points at: given to the framework with each response, it would build each anew."""
    _, found = models_json_schema(
        [(ErrorView, "serialization"), (StrictView, "serialization")], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Any] = found["$defs"]
    return schemas


def documented(model: type[BaseModel], extra: dict[str, Any] | None = None, *codes: int) -> dict[str, Any]:
    """The options of a route that answers with `model`."""
    return {
        "response_model": None,
        "responses": {200: {"model": model, "description": "As asked."}, **refusals(400, 401, 404, 503, *codes)},
        "openapi_extra": extra or {},
    }


def _query(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


def _header(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}


_FLAG: Final = {"type": "boolean", "default": False}
_LIMIT: Final = _query("limit", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}, "Entries of a page.")

LIST_PARAMETERS: Final = {
    "parameters": [
        _LIMIT,
        _query("after", {"type": "string"}, "`next` of the page before."),
        _query("status", {"type": "string"}, "Only runs in this state."),
        _query("session_id", {"type": "string"}, "Only runs of this session."),
        _query("agent", {"type": "string"}, "Only runs of this agent."),
    ]
}
APPROVAL_PARAMETERS: Final = {
    "parameters": [
        _LIMIT,
        _query("after", {"type": "string"}, "`next` of the page before."),
        _query(
            "status",
            {"type": "string", "enum": ["pending", "approved", "rejected", "expired", "withdrawn"]},
            "Only those in this state.",
        ),
        _query("run_id", {"type": "string"}, "Only those of this run."),
    ]
}
RESOLUTION_BODY: Final = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": Resolution.model_json_schema()}}}
}
SESSION_PARAMETERS: Final = {
    "parameters": [_LIMIT, _query("before", {"type": "string"}, "`before` of the page of newer turns.")]
}
VALUES_PARAMETER: Final = {"parameters": [_query("values", _FLAG, "Whether tasks come with what they brought.")]}
EVENT_PARAMETERS: Final = {
    "parameters": [
        _header("Last-Event-ID", {"type": "string"}, "Events after this one; as browsers send it when they come back."),
        _query("after", {"type": "string"}, "The same, for a page that was loaded anew."),
        _query("strict", _FLAG, "End a degraded run with RUN_ERROR."),
    ]
}
RUN_PARAMETERS: Final = {
    "parameters": [
        _header("X-Max-Wait", {"type": "string", "examples": ["120s"]}, "The budget; also as `?max_wait=`."),
        _query("max_wait", {"type": "string", "examples": ["800ms"]}, "The budget."),
        _header("X-Request-Timeout-Ms", {"type": "string"}, "The budget in milliseconds."),
        _header("x-envoy-expected-rq-timeout-ms", {"type": "string"}, "What Envoy will wait; cut to the maximum."),
        _header("X-Start-Time", {"type": "string", "examples": ["t=1767225600.123"]}, "When the first proxy got it."),
        _header(
            "Idempotency-Key", {"type": "string", "pattern": "^[!-~]{1,255}$"}, "Requests with the same are one run."
        ),
        _header("X-Request-ID", {"type": "string"}, "Given back when it is a sound one."),
    ]
}
_STREAM: Final = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "description": "Each event: its `data` is one of AG-UI's events as JSON.",
            "properties": {
                "id": {"type": "string", "examples": ["1.4"]},
                "data": {"type": "string", "examples": ['{"type": "STEP_STARTED", "stepName": "chart"}']},
            },
        }
    }
}

RUN_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "model": RunView,
        "description": "The answer, complete or degraded; with `stream`, AG-UI events.",
        "content": dict(_STREAM),
    },
    202: {
        "model": RunView,
        "description": "With `background`: the run is written and goes on. Without: it waits for a person's approval.",
        "headers": {"Location": {"description": "Where the run is.", "schema": {"type": "string"}}},
    },
    **refusals(400, 401, 404, 408, 409, 413, 422, 429, 499, 500, 502),
    **refusals(503, 504, model=StrictView),
}
EVENT_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "AG-UI events; ids are `epoch.seq`.", "content": dict(_STREAM)},
    204: {"description": "`Last-Event-ID` was the last one: there is nothing more."},
    **refusals(400, 401, 404, 503),
}
FILE_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The file.", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}},
    **refusals(401, 404, 503),
}
SESSION_PATH: Final = {"type": "string", "pattern": SESSION_ID}
