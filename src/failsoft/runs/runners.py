"""How a task of each kind is served: its ladder of awaited rungs, and its last resort that needs no time at all.

The last resort is served by the scheduler at the task's boundary, so it is there also when the deadline has passed,
when the task never started, or when it had to be left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from failsoft.base.outcomes import Outcome, Provenance
from failsoft.kernel.breaker import BreakerState
from failsoft.kernel.guard import Kernel
from failsoft.kernel.ladder import Rung, RungKind
from failsoft.runs.plan import TaskSpec
from failsoft.runs.progress import History
from failsoft.tools.registry import Report, Tool, ToolContext, ToolRegistry
from failsoft.tools.stale import StaleResults

__all__ = ["AsksPeople", "Direct", "Ladder", "LastRung", "TaskFrame", "TaskRunner", "ToolRunner"]


class TaskFrame(NamedTuple):
    """Where a task runs: its run, tenant, deadline (loop time) and a way to report progress."""

    run: str
    tenant: str | None
    task: str
    deadline: float
    report: Report | None = None

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this task of this run, also after a restart."""
        return f"{self.run}:{self.task}"

    def context(self) -> ToolContext:
        """What a tool that is called in this frame is told of it."""
        return ToolContext(
            run=self.run,
            task=self.task,
            tenant=self.tenant,
            idempotency_key=self.idempotency_key,
            deadline=self.deadline,
            clock=asyncio.get_running_loop().time,
            report=self.report,
        )


class LastRung(NamedTuple):
    """A rung that is served at once: ``serve()`` gives an outcome, or None when it has none; it must not block."""

    name: str
    kind: RungKind
    serve: Callable[[], Outcome[Any] | None]


class Ladder(NamedTuple):
    """The awaited rungs of a task, first choice first; ``repeatable`` when all of it may be tried again."""

    requested: str
    rungs: tuple[Rung, ...]
    repeatable: bool = False


class Direct:
    """A ladder of one awaited rung, ``serve(*args)``: what most tasks have, at a fraction of the cost."""

    __slots__ = ("args", "repeatable", "requested", "serve")

    def __init__(
        self,
        requested: str,
        serve: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...] = (),
        repeatable: bool = False,
    ) -> None:
        self.requested = requested
        self.serve = serve
        self.args = args
        self.repeatable = repeatable


class TaskRunner(Protocol):
    """Serves tasks of one kind (``tool``, ``model``, ``agent``, ``rule``)."""

    def ladder(self, task: TaskSpec, arguments: Mapping[str, Any], frame: TaskFrame) -> Ladder | Direct:
        """The rungs for these arguments; raises :class:`~failsoft.base.errors.BadInput` when they do not fit."""
        ...

    def requested(self, task: TaskSpec) -> str:
        """The name of the first choice, for the provenance of a task that was never tried."""
        ...

    def last_resort(self, task: TaskSpec, arguments: Mapping[str, Any] | None, frame: TaskFrame) -> Iterator[LastRung]:
        """What can be served at once when nothing else could; ``arguments`` are None when the task never had any."""
        ...


@runtime_checkable
class AsksPeople(Protocol):
    """A :class:`TaskRunner` some of whose tasks need a person's word first."""

    def ask(self, task: TaskSpec, arguments: Mapping[str, Any], frame: TaskFrame) -> None:
        """Raises :class:`~failsoft.runs.gate.ApprovalNeeded` while somebody has to be asked; starts nothing."""
        ...


class ToolRunner:
    """Serves tool tasks: the tool, its alternates; then an earlier result, the tool's default, the plan's fallback."""

    __slots__ = ("_history", "_kernel", "_stale", "_tools")

    def __init__(self, tools: ToolRegistry, kernel: Kernel, stale: StaleResults, history: History) -> None:
        self._tools = tools
        self._kernel = kernel
        self._stale = stale
        self._history = history

    def requested(self, task: TaskSpec) -> str:
        """See :class:`TaskRunner`."""
        return self._tools.get(task.tool).spec.downstream

    def ladder(self, task: TaskSpec, arguments: Mapping[str, Any], frame: TaskFrame) -> Ladder | Direct:
        """See :class:`TaskRunner`."""
        tool = self._tools.get(task.tool)
        spec = tool.spec
        if spec.alternates and task.needs:  # else the call's own check is early enough, or the plan's check was
            tool.check(arguments)

        repeatable = spec.kind == "query"
        if not spec.alternates:
            if spec.stale_for is None:
                guard = self._kernel.guard(spec.downstream)
                return Direct(spec.downstream, tool.call, (guard, arguments, frame.context()), repeatable)
            return Direct(spec.downstream, self._primary, (tool, arguments, frame), repeatable)

        async def primary() -> Any:
            return await self._primary(tool, arguments, frame)

        rungs = [Rung(spec.downstream, primary)]
        for alternate in spec.alternates:
            if alternate.tool not in self._tools:  # its server has not been seen yet
                continue
            other = self._tools.get(alternate.tool)
            rungs.append(self._alternate(other, arguments, frame, alternate.equivalent, spec.downstream))
        return Ladder(spec.downstream, tuple(rungs), repeatable)

    async def _primary(self, tool: Tool, arguments: Mapping[str, Any], frame: TaskFrame) -> Any:
        spec = tool.spec
        context = ToolContext.current(idempotency_key=frame.idempotency_key, report=frame.report)
        value = await tool.call(self._kernel.guard(spec.downstream), arguments, context)
        if spec.stale_for is not None:
            self._stale.put(spec, arguments, frame.tenant, value)
        return value

    def _alternate(
        self, tool: Tool, arguments: Mapping[str, Any], frame: TaskFrame, equivalent: bool, first: str
    ) -> Rung:
        spec = tool.spec
        guard = self._kernel.guard(spec.downstream)

        async def serve() -> Any:
            return await self._call(tool, arguments, frame)

        return Rung(
            spec.downstream if spec.downstream != first else spec.name,
            serve,
            kind="alternate",
            equivalent=equivalent,
            reserve=self._reserve(tool, frame),
            available=lambda: guard.breaker.state is not BreakerState.OPEN,
        )

    def _reserve(self, tool: Tool, frame: TaskFrame) -> float:
        """What an alternate usually needs; its limit while nothing is known, but at most a third of what is left."""
        usual = self._history.median(f"tool:{tool.spec.name}")
        typical = usual if usual is not None else self._kernel.guard(tool.spec.downstream).latency.typical
        if typical:
            return 1.5 * typical
        left = ToolContext.current().remaining()
        return min(tool.spec.timeout if tool.spec.timeout is not None else left, left / 3)

    async def _call(self, tool: Tool, arguments: Mapping[str, Any], frame: TaskFrame) -> Any:
        context = ToolContext.current(idempotency_key=frame.idempotency_key, report=frame.report)
        return await tool.call(self._kernel.guard(tool.spec.downstream), arguments, context)

    def last_resort(self, task: TaskSpec, arguments: Mapping[str, Any] | None, frame: TaskFrame) -> Iterator[LastRung]:
        """See :class:`TaskRunner`."""
        spec = self._tools.get(task.tool).spec
        if spec.stale_for is not None and arguments is not None:
            known = arguments

            def stale() -> Outcome[Any] | None:
                found = self._stale.get(spec, known, frame.tenant)
                if found is None:
                    return None
                value, age = found
                return Outcome(value, Provenance(spec.downstream, "stale", "stale", age=age))

            yield LastRung("stale", "stale", stale)
        default = spec.fallback
        if default is not None and (default.rule is None or arguments is not None):

            def served() -> Outcome[Any]:
                value = default.value if default.rule is None else default.rule(arguments or {})
                kind = "default" if default.rule is None else "rule"
                return Outcome(value, Provenance(spec.downstream, kind, kind, equivalent=default.equivalent))

            yield LastRung("default", "default" if default.rule is None else "rule", served)

    def __repr__(self) -> str:
        return f"<ToolRunner {self._tools!r}>"
