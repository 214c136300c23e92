"""Tool tasks behind a run's gate: approvals before the task, intents around actions, the lease before any call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from failsoft.kernel.ladder import Rung
from failsoft.runs.gate import Gate
from failsoft.runs.plan import TaskSpec
from failsoft.runs.runners import Direct, Ladder, LastRung, TaskFrame, ToolRunner
from failsoft.tools.registry import ToolRegistry, ToolSpec

__all__ = ["GatedRunner", "needs_gate"]


def needs_gate(tools: ToolRegistry) -> bool:
    """Whether any of the tools asks a person, or acts: else the gate has nothing to do for an interactive run."""
    return any(spec.kind == "action" or spec.approval is not False for spec in tools.specs)


class GatedRunner:
    """A :class:`ToolRunner` behind a gate."""

    __slots__ = ("_gate", "_inner", "_tools")

    def __init__(self, inner: ToolRunner, tools: ToolRegistry, gate: Gate) -> None:
        self._inner = inner
        self._tools = tools
        self._gate = gate

    def requested(self, task: TaskSpec) -> str:
        """See :class:`~failsoft.runs.runners.TaskRunner`."""
        return self._inner.requested(task)

    def last_resort(self, task: TaskSpec, arguments: Mapping[str, Any] | None, frame: TaskFrame) -> Iterator[LastRung]:
        """See :class:`~failsoft.runs.runners.TaskRunner`."""
        return self._inner.last_resort(task, arguments, frame)

    def ask(self, task: TaskSpec, arguments: Mapping[str, Any], frame: TaskFrame) -> None:
        """See :class:`~failsoft.runs.runners.AsksPeople`."""
        tool = self._tools.get(task.tool)
        spec = tool.spec
        if spec.approval is not False:
            tool.check(arguments)  # nobody is asked about what cannot be done
        self._gate.check(spec, arguments, frame.task, frame.idempotency_key, title=task.label)

    def ladder(self, task: TaskSpec, arguments: Mapping[str, Any], frame: TaskFrame) -> Ladder | Direct:
        """See :class:`~failsoft.runs.runners.TaskRunner`; raises what :meth:`Gate.check` raises."""
        self.ask(task, arguments, frame)
        spec = self._tools.get(task.tool).spec
        ladder = self._inner.ladder(task, arguments, frame)
        specs = [spec, *(self._tools.get(alternate.tool).spec for alternate in spec.alternates)]
        if self._gate.may_call is None and not any(one.kind == "action" or one.approval for one in specs):
            return ladder
        if isinstance(ladder, Direct):
            serve = self._guarded(partial(ladder.serve, *ladder.args), spec, arguments, frame)
            return Direct(ladder.requested, serve, (), ladder.repeatable)
        rungs = [self._rung(rung, one, arguments, frame) for rung, one in zip(ladder.rungs, specs, strict=True)]
        for index, one in enumerate(specs[1:], 1):
            if one.asks(arguments):  # the person was asked about the first choice
                rungs[index] = replace(rungs[index], available=_never, reason="approval_needed")
        return ladder._replace(rungs=tuple(rungs))

    def _rung(self, rung: Rung, spec: ToolSpec, arguments: Mapping[str, Any], frame: TaskFrame) -> Rung:
        return replace(rung, serve=self._guarded(rung.serve, spec, arguments, frame))

    def _guarded(
        self, serve: Callable[[], Awaitable[Any]], spec: ToolSpec, arguments: Mapping[str, Any], frame: TaskFrame
    ) -> Callable[[], Awaitable[Any]]:
        if spec.kind == "action":
            return partial(self._gate.act, spec, arguments, frame.task, frame.idempotency_key, serve)
        return partial(self._called, serve)

    async def _called(self, serve: Callable[[], Awaitable[Any]]) -> Any:
        self._gate.call()
        return await serve()

    def __repr__(self) -> str:
        return f"<GatedRunner {self._inner!r} {self._gate!r}>"


def _never() -> bool:
    return False
