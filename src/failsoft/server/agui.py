"""Our events as AG-UI's: a projection, so that nothing is in the stream that is not in the run.

Every segment that is begun is ended once, and the stream ends with exactly one of RUN_FINISHED and RUN_ERROR. Our ids,
``epoch.seq``, stand on the last frame that an event gives, so that resuming after an id never skips half an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from failsoft.base.events import Event
from failsoft.runs.result import RunResult
from failsoft.server.sse import frame

__all__ = ["Projection"]

_TERMINAL = frozenset({"run.completed", "run.degraded", "run.failed", "run.cancelled", "run.expired"})

Body = dict[str, Any]


class Projection:
    """Projects the events of one run, in their order."""

    def __init__(self, run_id: str, *, thread_id: str | None = None) -> None:
        self._run = run_id
        self._thread = thread_id or run_id
        self._open: dict[str, str] = {}
        self._message = f"{run_id}:answer"
        self._writing = False
        self.ended = False

    def frames(self, event: Event, result: RunResult | None) -> bytes:
        """The frames of one event; empty when it has no counterpart. `result` is the run's, once it has ended."""
        if self.ended:
            return b""
        bodies = list(self._bodies(event, result))
        last = len(bodies) - 1
        return b"".join(frame(body, event_id=event.id if i == last else None) for i, body in enumerate(bodies))

    def _bodies(self, event: Event, result: RunResult | None) -> Iterator[Body]:
        kind, data = event.kind, event.data if isinstance(event.data, Mapping) else {}
        if kind == "run.received":
            yield {"type": "RUN_STARTED", "threadId": self._thread, "runId": self._run}
        elif kind == "plan.made":
            yield {"type": "STATE_SNAPSHOT", "snapshot": {"runId": self._run, "state": "planning", "plan": dict(data)}}
        elif kind == "task.started" and event.task is not None:
            yield from self._task_started(event.task, data)
        elif kind == "task.finished" and event.task is not None:
            yield from self._task_finished(event.task, data)
        elif kind == "run.eta":
            yield {"type": "CUSTOM", "name": "eta", "value": dict(data)}
        elif kind == "text.delta":
            yield from self._text(str(data.get("text", "")))
        elif kind in _TERMINAL:
            yield from self._end(kind, data, result)

    def _task_started(self, task: str, data: Mapping[str, Any]) -> Iterator[Body]:
        self._open[task] = str(data.get("tool", ""))
        yield {"type": "STEP_STARTED", "stepName": task}
        if data.get("kind", "tool") == "tool":
            call = self._call(task)
            yield {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": data.get("tool", "")}
            yield {"type": "TOOL_CALL_END", "toolCallId": call}

    def _task_finished(self, task: str, data: Mapping[str, Any]) -> Iterator[Body]:
        if self._open.pop(task, None) is not None:
            yield {
                "type": "TOOL_CALL_RESULT",
                "messageId": f"{self._call(task)}:result",
                "toolCallId": self._call(task),
                "role": "tool",
                "content": str(data.get("status", "")),
            }
            yield {"type": "STEP_FINISHED", "stepName": task}
        if data.get("status") not in ("completed", None):
            yield {"type": "CUSTOM", "name": "degraded", "value": {"task": task, **data}}

    def _text(self, text: str) -> Iterator[Body]:
        if not text:
            return
        if not self._writing:
            self._writing = True
            yield {"type": "TEXT_MESSAGE_START", "messageId": self._message, "role": "assistant"}
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._message, "delta": text}

    def _end(self, kind: str, data: Mapping[str, Any], result: RunResult | None) -> Iterator[Body]:
        for task in list(self._open):
            self._open.pop(task)
            yield {"type": "STEP_FINISHED", "stepName": task}
        if not self._writing:
            yield from self._text(str(data.get("answer") or ""))
        if self._writing:
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._message}
        self.ended = True
        error = data.get("error")
        if kind in ("run.completed", "run.degraded"):
            yield {
                "type": "RUN_FINISHED",
                "threadId": self._thread,
                "runId": self._run,
                "result": result.to_dict() if result is not None else dict(data),
            }
        else:
            error = error or {"code": kind.partition(".")[2], "message": kind}
            yield {
                "type": "RUN_ERROR",
                "runId": self._run,
                "code": error["code"],
                "message": error["message"],
                "error": error,
            }

    def _call(self, task: str) -> str:
        return f"{self._run}:{task}"
