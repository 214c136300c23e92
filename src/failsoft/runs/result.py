"""What goes into a run and what comes out: the request, each task's result, the run's result."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from failsoft.base.errors import FailsoftError, ToolFailed
from failsoft.base.messages import Message
from failsoft.base.outcomes import Outcome, Provenance
from failsoft.base.weights import weight
from failsoft.runs.answer import Artifact, Shortfall
from failsoft.runs.plan import Plan
from failsoft.runs.planner import Language, PlanFailure
from failsoft.runs.state import RunState
from failsoft.stores.protocols import StoredRun

__all__ = ["RunRequest", "RunResult", "TaskResult", "TaskStatus", "files_of", "readable", "why_missing"]

_FILES: Final = 256_000
"""Bytes of an answer's files, together, that are stored with it; of one with more, none are."""

TaskStatus = Literal["waiting", "running", "completed", "degraded", "failed", "skipped", "cancelled"]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One question of a client.

    ``budget_ms`` is the client's whole patience in milliseconds, None for the agent's or the platform's default;
    ``spent_ms`` of it went by before the request got here. ``mode`` is ``fast`` (optional tasks are left out) or
    ``deep``. The same ``idempotency_key`` of the same tenant gives the same run. ``language`` is found from the input
    when None. A run of a ``session_id`` is told what was said in it before, unless it brings its own ``history``. A
    ``background`` run is written to the store before it is accepted, waits for its turn in a lane of its own, and
    outlives its process; its budget counts from its turn. ``chosen`` is the agent that the platform chose for a
    request that names none.
    """

    input: str
    agent: str | None = None
    session_id: str | None = None
    budget_ms: float | None = None
    spent_ms: float = 0.0
    mode: Literal["fast", "deep"] | None = None
    tenant: str | None = None
    idempotency_key: str | None = None
    language: Language | None = None
    history: tuple[Message, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    background: bool = False
    chosen: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, without the history and without what the platform made of it."""
        return {
            "input": self.input,
            "agent": self.agent,
            "session_id": self.session_id,
            "budget_ms": self.budget_ms,
            "mode": self.mode,
            "tenant": self.tenant,
            "language": self.language,
            "metadata": dict(self.metadata),
            "background": self.background,
        }


class TaskResult(NamedTuple):
    """One task of a run. Times are seconds since the run began; ``outcome`` is None until the task has ended."""

    id: str
    title: str
    kind: str
    tool: str
    status: TaskStatus
    outcome: Outcome[Any] | None = None
    needs: tuple[str, ...] = ()
    essential: bool = True
    started: float | None = None
    ended: float | None = None
    error: FailsoftError | None = None

    @property
    def value(self) -> Any:
        """What it brought, None when nothing."""
        return None if self.outcome is None else self.outcome.value

    @property
    def elapsed(self) -> float | None:
        """Seconds it ran; None when it never started or still runs."""
        return None if self.started is None or self.ended is None else self.ended - self.started

    def to_dict(self, *, value: bool = False) -> dict[str, Any]:
        """Plain JSON data; the value only when asked for."""
        body: dict[str, Any] = {
            "id": self.id,
            "title": self.title,
            "kind": self.kind,
            "tool": self.tool,
            "needs": list(self.needs),
            "essential": self.essential,
            "status": self.status,
            "provenance": None if self.outcome is None else self.outcome.provenance.to_dict(),
            "started_ms": _ms(self.started),
            "elapsed_ms": _ms(self.elapsed),
            "error": None if self.error is None else self.error.to_dict()["error"],
        }
        if value:
            body["value"] = self.value
        return body


def why_missing(outcome: Outcome[Any] | None) -> FailsoftError | None:
    """The error of the first rung that was tried for a task that nothing served; None when nothing was, or one did."""
    if outcome is None or outcome.provenance.served is not None or not outcome.provenance.tried:
        return None
    first = outcome.provenance.tried[0]
    error = FailsoftError.from_dict({"code": first.code, "message": first.message})
    # a rung may have been passed over for a reason that is no error's code
    return error if error.code == first.code else ToolFailed(first.message or first.code.replace("_", " "))


def files_of(stored: StoredRun) -> tuple[Artifact, ...]:
    """The files of a stored run's answer, as far as they are stored with it."""
    result = stored.result or {}
    files = result.get("files") or {}
    return tuple(
        Artifact(one["name"], one["media_type"], base64.b64decode(files[one["name"]]), one["title"], one["task"])
        for one in result.get("artifacts", ())
        if one["name"] in files
    )


def readable(text: str) -> bool:
    """Whether it is text throughout: it can be encoded, without halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stored_task(data: Mapping[str, Any], stored: StoredRun) -> TaskResult:
    task, provenance, error = stored.tasks.get(data["id"]), data.get("provenance"), data.get("error")
    started, elapsed = data.get("started_ms"), data.get("elapsed_ms")
    begin = None if started is None else started / 1000
    return TaskResult(
        id=data["id"],
        title=data["title"],
        kind=data["kind"],
        tool=data["tool"],
        status=data["status"],
        outcome=None
        if provenance is None
        else Outcome(None if task is None else task.value, Provenance.from_dict(provenance)),
        needs=tuple(data["needs"]),
        essential=data["essential"],
        started=begin,
        ended=None if begin is None or elapsed is None else begin + elapsed / 1000,
        error=None if error is None else FailsoftError.from_dict(error),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    ``answer`` is Markdown; None only when the run failed before there was a plan, or was cancelled. ``error`` says
    why it failed. ``stages`` is what the run's parts took, in seconds: ``planning``, ``dispatching``,
    ``aggregating``. ``failures`` are parts of the platform that failed without costing the answer: ``{"part", "code",
    "message"}``.
    """

    run_id: str
    agent: str
    status: RunState
    answer: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    tasks: tuple[TaskResult, ...] = ()
    plan: Plan | None = None
    planner: str | None = None
    refused: tuple[PlanFailure, ...] = ()
    failures: tuple[Mapping[str, Any], ...] = ()
    error: FailsoftError | None = None
    elapsed: float = 0.0
    budget: float = 0.0
    stages: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    session_id: str | None = None

    @property
    def degraded(self) -> bool:
        """Whether the answer is less than what was asked for."""
        return self.status is RunState.DEGRADED

    def task(self, task_id: str) -> TaskResult:
        """The task of that id; raises ``KeyError``."""
        for task in self.tasks:
            if task.id == task_id:
                return task
        raise KeyError(task_id)

    def weight(self) -> int:
        """About how many bytes of memory it holds."""
        files = sum(len(one.data) for one in self.artifacts)
        return 2_000 + files + 1_500 * len(self.tasks) + sum(weight(task.value) for task in self.tasks)

    def raise_for_status(self) -> RunResult:
        """Itself, or raises the error of a failed or cancelled run."""
        if self.error is not None:
            raise self.error
        return self

    @classmethod
    def from_stored(cls, stored: StoredRun, plan: Plan | None) -> RunResult:
        """The result of a run that has ended elsewhere. Files too large to store stayed there; ``failures`` says so."""
        data = stored.result or {}
        provenance = data.get("provenance") or {}
        failures = [*provenance.get("failures", ())]
        files = files_of(stored)
        if data.get("artifacts") and not files:
            names = ", ".join(str(one.get("name")) for one in data["artifacts"])
            text = f"the answer's files are where it was made: {names}"
            failures.append({"part": "artifacts", "code": "not_found", "message": text})
        error = data.get("error")
        return cls(
            run_id=stored.record.run,
            agent=stored.record.agent,
            status=RunState(stored.terminal or "failed"),
            answer=data.get("answer"),
            artifacts=files,
            shortfalls=tuple(
                Shortfall(
                    one["task"],
                    one["title"],
                    one["kind"],
                    one["reason"],
                    one["text"],
                    one["age_s"],
                    one["essential"],
                    one.get("as_of"),
                )
                for one in provenance.get("shortfalls", ())
            ),
            tasks=tuple(_stored_task(one, stored) for one in data.get("tasks", ())),
            plan=plan,
            planner=provenance.get("planner"),
            refused=tuple(PlanFailure(**one) for one in provenance.get("planners_refused", ())),
            failures=tuple(failures),
            error=None if error is None else FailsoftError.from_dict(error),
            elapsed=(data.get("elapsed_ms") or 0.0) / 1000,
            budget=(data.get("budget_ms") or 0.0) / 1000,
            stages={name: (ms or 0.0) / 1000 for name, ms in (data.get("stages_ms") or {}).items()},
            session_id=data.get("session_id"),
        )

    def to_stored(self) -> dict[str, Any]:
        """What the store keeps: :meth:`to_dict`, and under ``files`` the bytes of artifacts, unless they are large."""
        body = self.to_dict()
        if self.artifacts and sum(len(one.data) for one in self.artifacts) <= _FILES:
            body["files"] = {one.name: base64.b64encode(one.data).decode("ascii") for one in self.artifacts}
        return body

    def to_dict(self, *, values: bool = False, artifact_data: bool = False) -> dict[str, Any]:
        """Plain JSON data; tasks' values and artifacts' bytes (base64) only when asked for."""
        return {
            "run_id": self.run_id,
            "agent": self.agent,
            "session_id": self.session_id,
            "status": str(self.status),
            "answer": self.answer,
            "provenance": {
                "planner": self.planner,
                "planners_refused": [one.to_dict() for one in self.refused],
                "reading": self.plan.reading if self.plan is not None else "",
                "notes": list(self.plan.notes) if self.plan is not None else [],
                "shortfalls": [one.to_dict() for one in self.shortfalls],
                "failures": [dict(one) for one in self.failures],
                "rungs": {
                    task.id: {"rung": task.outcome.provenance.rung, "served": task.outcome.provenance.served}
                    for task in self.tasks
                    if task.outcome is not None
                },
            },
            "elapsed_ms": _ms(self.elapsed),
            "budget_ms": _ms(self.budget),
            "stages_ms": {name: _ms(seconds) for name, seconds in self.stages.items()},
            "tasks": [task.to_dict(value=values) for task in self.tasks],
            "artifacts": [artifact.to_dict(data=artifact_data) for artifact in self.artifacts],
            "error": None if self.error is None else self.error.to_dict()["error"],
        }
