"""What a diagnosis is made from: a run's result, or its state as it stands, and what its calls did."""

from __future__ import annotations

from collections.abc import Sequence

from failsoft.runs.handle import RunHandle
from failsoft.runs.result import TaskResult
from failsoft.telemetry.diagnosis import RunFacts, TaskFacts
from failsoft.telemetry.timeline import Span

__all__ = ["facts_of"]


def facts_of(handle: RunHandle, spans: Sequence[Span]) -> RunFacts:
    """The facts of a run, ended or not; `spans` are in loop time."""
    result, began = handle.result_now(), handle.began
    stages = result.stages if result is not None else {}
    return RunFacts(
        run=handle.run_id,
        status=str(handle.state),
        elapsed=handle.elapsed(),
        budget=handle.budget,
        door=handle.request.spent_ms / 1000,
        planning=stages.get("planning", 0.0),
        answer=stages.get("aggregating", 0.0),
        tasks=tuple(_task(one) for one in handle.tasks()),
        spans=tuple(span._replace(start=max(0.0, span.start - began), end=span.end - began) for span in spans),
        error=result.error.code if result is not None and result.error is not None else None,
        reason=next((one.reason for one in result.shortfalls if not one.task), None) if result is not None else None,
    )


def _task(task: TaskResult) -> TaskFacts:
    provenance = None if task.outcome is None else task.outcome.provenance
    reason = None
    if provenance is not None and provenance.degraded:
        reason = provenance.reason or "unknown"
    elif task.error is not None:
        reason = task.error.code
    return TaskFacts(
        id=task.id,
        downstream=provenance.requested if provenance is not None and provenance.requested else task.tool,
        needs=task.needs,
        started=task.started,
        ended=task.ended,
        reason=reason,
    )
