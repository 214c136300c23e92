"""From the store back into a run: its request, its plan, what had finished, what was asked of people.

Values of tasks that had finished come back as plain data: what a tool returned as a dataclass or a model is a mapping.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from failsoft.base.errors import FailsoftError, NodeLost
from failsoft.base.messages import Message, ToolCall
from failsoft.base.outcomes import Outcome, Provenance
from failsoft.runs.plan import Plan
from failsoft.runs.result import RunRequest, RunResult, TaskResult, why_missing
from failsoft.runs.state import RunState
from failsoft.stores.approvals import ActionIntent, ApprovalRecord
from failsoft.stores.protocols import StoredRun, TaskRecord

__all__ = ["Resumed", "lost_result", "messages_from", "messages_to", "plan_of", "request_of"]

_log = logging.getLogger(__name__)

_FINISHED = frozenset({"completed", "degraded", "failed", "skipped"})


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a run goes on from: the stored run, at the epoch at which it is held now."""

    stored: StoredRun
    epoch: int
    approvals: tuple[ApprovalRecord, ...] = ()
    intents: tuple[ActionIntent, ...] = ()

    @property
    def plan(self) -> Plan | None:
        """The plan, if there was one that can be read."""
        return plan_of(self.stored)

    @property
    def planner(self) -> str | None:
        """Who made it."""
        found = self.stored.snapshot.get("planner")
        return None if found is None else str(found)

    def finished(self, plan: Plan) -> dict[str, TaskResult]:
        """The tasks of the plan that had finished."""
        return {
            spec.id: TaskResult(
                spec.id,
                spec.label,
                spec.kind,
                spec.tool,
                record.status,  # type: ignore[arg-type]  # one of those
                outcome := _outcome(record),
                spec.needs,
                spec.essential,
                record.started,
                record.ended,
                why_missing(outcome),
            )
            for spec in plan.tasks
            if (record := self.stored.tasks.get(spec.id)) is not None and record.status in _FINISHED
        }

    def calls(self, plan: Plan) -> dict[str, Outcome[Any]]:
        """What was made inside the plan's tasks: the actions of its loops, by the names of their calls."""
        planned = {spec.id for spec in plan.tasks}
        return {name: _outcome(record) for name, record in self.stored.tasks.items() if name not in planned}


def _outcome(record: TaskRecord) -> Outcome[Any]:
    return Outcome(record.value, Provenance.from_dict(record.provenance))


def plan_of(stored: StoredRun) -> Plan | None:
    """The plan in a stored run's snapshot; None when there is none, or it cannot be read."""
    made = stored.snapshot.get("plan")
    if not made:
        return None
    try:
        return Plan.from_dict(made)
    except FailsoftError as error:
        _log.warning("the stored plan of run %s cannot be read: %s", stored.record.run, error.message)
        return None


def request_of(stored: StoredRun) -> RunRequest:
    """The request of a stored run."""
    record, data = stored.record, stored.record.request
    return RunRequest(
        input=str(data.get("input", "")),
        agent=record.agent,
        session_id=record.session,
        budget_ms=data.get("budget_ms"),
        mode=data.get("mode"),
        tenant=record.tenant,
        idempotency_key=record.idempotency_key,
        language=data.get("language"),
        history=messages_from(data.get("history") or ()),
        metadata=data.get("metadata") or {},
        background=True,
    )


def messages_to(history: tuple[Message, ...]) -> list[dict[str, Any]]:
    """A conversation as plain data."""
    return [
        {
            "role": one.role,
            "content": one.content,
            "tool_calls": [[call.id, call.name, call.arguments] for call in one.tool_calls],
            "tool_call_id": one.tool_call_id,
            "name": one.name,
        }
        for one in history
    ]


def messages_from(data: Any) -> tuple[Message, ...]:
    """What :meth:`messages_to` made."""
    return tuple(
        Message(
            one["role"],
            one.get("content"),
            tuple(ToolCall(*call) for call in one.get("tool_calls") or ()),
            one.get("tool_call_id"),
            one.get("name"),
        )
        for one in data
    )


def lost_result(stored: StoredRun, error: FailsoftError | None = None, *, elapsed: float = 0.0) -> RunResult:
    """The result of a run whose node died while its client waited: ``failed`` with ``node_lost``."""
    plan = plan_of(stored)
    finished: Mapping[str, TaskResult] = {} if plan is None else Resumed(stored, stored.epoch).finished(plan)
    return RunResult(
        run_id=stored.record.run,
        agent=stored.record.agent,
        status=RunState.FAILED,
        tasks=tuple(finished.values()),
        plan=plan,
        planner=stored.snapshot.get("planner"),
        error=error or NodeLost("the process that drove this run died", run_id=stored.record.run),
        elapsed=elapsed,
        budget=stored.record.budget,
        session_id=stored.record.session,
    )
