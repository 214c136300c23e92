"""Our events as AG-UI's: a projection, so that nothing is in the stream that is not in the run.

Every segment that is begun is ended once, and the stream ends with exactly one of RUN_FINISHED and RUN_ERROR. Our ids,
``epoch.seq``, stand on the last frame that an event gives, so that resuming after an id never skips half an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from failsoft.base.events import Event
from failsoft.server.pieces import pieces
from failsoft.server.sse import frame

__all__ = ["TERMINAL", "Projection"]

TERMINAL = frozenset({"run.completed", "run.degraded", "run.failed", "run.cancelled", "run.expired"})

Body = dict[str, Any]


class Projection:
    """Projects the events of one run, in their order. It can tell at any point what has been begun and not ended."""

    def __init__(self, run_id: str, *, thread_id: str | None = None) -> None:
        self._run = run_id
        self._thread = thread_id or run_id
        self._open: dict[str, tuple[str, str]] = {}
        self._message = f"{run_id}:answer"
        self._said: list[str] = []
        self.ended = False

    def frames(self, event: Event, result: Mapping[str, Any] | None, cause: Mapping[str, Any] | None = None) -> bytes:
        """The frames of one event; empty when it has no counterpart. `result` is the run's, once it has ended.

        With a `cause` a degraded run ends as that error. The end may be projected more than once.
        """
        bodies = list(self._bodies(event, result, cause))
        last = len(bodies) - 1
        return b"".join(frame(body, event_id=event.id if i == last else None) for i, body in enumerate(bodies))

    def snapshot(self, view: Mapping[str, Any], event_id: str | None) -> bytes:
        """The beginning of a stream that does not begin with the run: where it is, and what is open by now."""
        bodies: list[Body] = [
            {"type": "RUN_STARTED", "threadId": self._thread, "runId": self._run},
            {"type": "STATE_SNAPSHOT", "snapshot": dict(view)},
        ]
        for task, (tool, kind) in self._open.items():
            bodies.extend(self._began(task, tool, kind))
        if self._said:
            bodies.append({"type": "TEXT_MESSAGE_START", "messageId": self._message, "role": "assistant"})
            bodies.extend(self._contents("".join(self._said)))
        last = len(bodies) - 1
        return b"".join(frame(body, event_id=event_id if i == last else None) for i, body in enumerate(bodies))

    def resume(self, running: Mapping[str, tuple[str, str]]) -> None:
        """Goes on after events that are lost: these tasks are running, each with its tool and kind."""
        self._open = dict(running)

    def _bodies(
        self, event: Event, result: Mapping[str, Any] | None, cause: Mapping[str, Any] | None
    ) -> Iterator[Body]:
        kind, data = event.kind, event.data if isinstance(event.data, Mapping) else {}
        if kind == "run.received":
            yield {"type": "RUN_STARTED", "threadId": self._thread, "runId": self._run}
        elif kind == "plan.made":
            yield {"type": "STATE_SNAPSHOT", "snapshot": {"runId": self._run, "state": "planning", "plan": dict(data)}}
        elif kind == "task.started" and event.task is not None:
            tool, what = str(data.get("tool", "")), str(data.get("kind", "tool"))
            self._open[event.task] = (tool, what)
            yield from self._began(event.task, tool, what)
        elif kind == "task.finished" and event.task is not None:
            yield from self._task_finished(event.task, data)
        elif kind == "run.eta":
            yield {"type": "CUSTOM", "name": "eta", "value": dict(data)}
        elif kind in ("run.waiting_approval", "approval.resolved"):
            yield {"type": "CUSTOM", "name": kind.removeprefix("run."), "value": {"task": event.task, **data}}
        elif kind == "tool.started":  # a call that an agent makes inside its task
            call = self._inner_call(event.task, data)
            yield {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": str(data.get("tool", ""))}
            yield {"type": "TOOL_CALL_END", "toolCallId": call}
        elif kind == "tool.finished":
            call = self._inner_call(event.task, data)
            status = str(data.get("status", ""))
            yield {
                "type": "TOOL_CALL_RESULT",
                "messageId": f"{call}:result",
                "toolCallId": call,
                "role": "tool",
                "content": status,
            }
        elif kind == "thought.delta":
            yield {"type": "CUSTOM", "name": "thought", "value": {"task": event.task, **data}}
        elif kind == "text.delta":
            yield from self._text(str(data.get("text", "")))
        elif kind in TERMINAL:
            yield from self._end(kind, data, result, cause)

    def _began(self, task: str, tool: str, kind: str) -> Iterator[Body]:
        yield {"type": "STEP_STARTED", "stepName": task}
        if kind == "tool":
            call = self._call(task)
            yield {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": tool}
            yield {"type": "TOOL_CALL_END", "toolCallId": call}

    def _task_finished(self, task: str, data: Mapping[str, Any]) -> Iterator[Body]:
        begun = self._open.pop(task, None)
        if begun is not None:
            if begun[1] == "tool":
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
        if not self._said:
            yield {"type": "TEXT_MESSAGE_START", "messageId": self._message, "role": "assistant"}
        self._said.append(text)
        yield from self._contents(text)

    def _contents(self, text: str) -> Iterator[Body]:
        for piece in pieces(text):
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._message, "delta": piece}

    def _end(
        self,
        kind: str,
        data: Mapping[str, Any],
        result: Mapping[str, Any] | None,
        cause: Mapping[str, Any] | None,
    ) -> Iterator[Body]:
        # Nothing here changes what is open: somebody may come later and need the same end again.
        self.ended = True
        for task in self._open:
            yield {"type": "STEP_FINISHED", "stepName": task}
        answer = str(data.get("answer") or "")
        if self._said or answer:
            said = "".join(self._said)
            if not said:
                yield {"type": "TEXT_MESSAGE_START", "messageId": self._message, "role": "assistant"}
            if answer.startswith(said):  # what was said while it was made is its beginning
                yield from self._contents(answer[len(said) :])
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._message}
        error = data.get("error") or cause
        if kind in ("run.completed", "run.degraded") and error is None:
            yield {
                "type": "RUN_FINISHED",
                "threadId": self._thread,
                "runId": self._run,
                "result": dict(result) if result is not None else dict(data),
            }
            return
        error = error or {"code": kind.partition(".")[2], "message": kind}
        ended: Body = {
            "type": "RUN_ERROR",
            "runId": self._run,
            "code": error["code"],
            "message": error["message"],
            "error": error,
        }
        if result is not None and result.get("answer") is not None:
            ended["result"] = dict(result)
        yield ended

    def _inner_call(self, task: str | None, data: Mapping[str, Any]) -> str:
        return f"{self._run}:{task}:{data.get('call')}"

    def _call(self, task: str) -> str:
        return f"{self._run}:{task}"
