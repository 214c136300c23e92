"""Failsoft as a drill sees it: a real app with an agent whose tools are a scenario's downstreams; and bare calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any, Protocol

from failsoft.app import App
from failsoft.base.clock import Sources
from failsoft.base.events import Event
from failsoft.config import Settings
from failsoft.drills.backends import Backend
from failsoft.drills.requests import Reply, Request, parsed
from failsoft.drills.scenario import Scenario
from failsoft.kernel.guard import Guard
from failsoft.runs.agents import Agent
from failsoft.runs.answer import AnswerFunction
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import PlanRequest, RulesPlanner
from failsoft.runs.result import RunRequest
from failsoft.tools.python import PythonTool, tool

__all__ = ["BareCalls", "FailsoftPlatform", "Queried", "desk", "settings_for"]


class Queried(Protocol):
    """A downstream that can be asked."""

    name: str

    async def query(self, key: int) -> dict[str, Any]:
        """The value of `key`."""
        ...


def _tool_of(backend: Queried) -> PythonTool[..., Any]:
    @tool(name=backend.name, description=f"Looks a key up in {backend.name}.", downstream=backend.name)
    async def look_up(key: int) -> dict[str, Any]:
        return await backend.query(key)

    return look_up


def _plan(request: PlanRequest) -> Plan | None:
    parts = parsed(request.input)
    if not parts:
        return None
    priority = request.metadata.get("priority", "normal")
    return Plan(
        tasks=tuple(
            TaskSpec(
                id=part.id,
                tool=part.use,
                arguments={"key": part.key},
                needs=part.needs,
                priority=priority,
                tolerates_missing=True,
            )
            for part in parts
        ),
        reading=request.input,
    )


def desk(backends: Mapping[str, Queried], answer: AnswerFunction | None = None) -> Agent:
    """The agent that answers a drill's questions, as a user would write it: tools, and rules that plan."""
    return Agent(
        "desk",
        "Looks keys up in the downstreams that the question names.",
        tools=[_tool_of(backend) for backend in backends.values()],
        planners=[RulesPlanner(_plan)],
        answer=answer,
    )


def settings_for(scenario: Scenario) -> Settings:
    """The settings of the scenario's file, which are a ``failsoft.yaml``; ``downstreams.each`` is for each of them."""
    given = dict(scenario.settings)
    sections = dict(given.get("downstreams", {}))
    each = sections.pop("each", None)
    if each is not None:
        sections = {name: {**each, **sections.get(name, {})} for name in scenario.downstreams}
    return Settings.model_validate({"agent": "desk", **given, "downstreams": sections})


class FailsoftPlatform:
    """An app for one drill. Enter it on the loop; ``breakers`` collects what they did, with loop times."""

    def __init__(self, scenario: Scenario, backends: Mapping[str, Backend], seed: int) -> None:
        self.app = App(
            settings_for(scenario),
            agents=[desk(backends)],
            store="memory",
            sources=Sources(rng=Random(f"{seed}/failsoft")),
        )
        self.breakers: list[tuple[float, str, str]] = []
        self._remove = self.app.bus.add(self._note)
        self._extra = 0

    def _note(self, event: Event) -> None:
        if event.kind.startswith("breaker."):
            self.breakers.append((event.at, event.downstream or "", event.kind.removeprefix("breaker.")))

    async def __aenter__(self) -> FailsoftPlatform:
        await self.app.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._remove()
        await self.app.aclose()

    def measure(self) -> None:
        """From now on extra attempts are counted."""
        self._extra = self._attempts()

    def _attempts(self) -> int:
        figures = [guard.statistics() for guard in self.app.guards.values()]
        return sum(one.retries + one.hedges for one in figures)

    @property
    def guards(self) -> Mapping[str, Guard]:
        """The guards by downstream."""
        return self.app.guards

    @property
    def extra(self) -> int:
        """Retries and hedges since measuring began."""
        return self._attempts() - self._extra

    async def ask(self, request: Request) -> Reply:
        """One run, as a client of the platform has it."""
        handle = self.app.start(
            RunRequest(
                request.text,
                budget_ms=request.budget * 1000,
                tenant=request.spec.tenant,
                metadata={"priority": request.spec.priority},
            )
        )
        try:
            result = await handle.result()
        except asyncio.CancelledError:
            handle.cancel()
            raise
        values = {task.id: task.value for task in result.tasks if task.value is not None}
        marks = [task.outcome.provenance for task in result.tasks if task.outcome is not None]
        rungs = ",".join(sorted({mark.rung if mark.served else mark.reason or "" for mark in marks}))
        status = "completed" if result.status == "completed" else str(result.status)
        code = "" if result.error is None else result.error.code
        return Reply(status, values, code, rungs)


class BareCalls:
    """The same calls with nothing around them: what a healthy platform of no cost would answer."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = backends

    async def ask(self, request: Request) -> Reply:
        """All calls, each as soon as what it needs is there."""
        ends: dict[str, asyncio.Task[Any]] = {}

        async def task(needs: tuple[str, ...], use: str, key: int) -> Any:
            for need in needs:
                await ends[need]
            return await self._backends[use].query(key)

        async with asyncio.TaskGroup() as group:
            for part in request.parts:
                ends[part.id] = group.create_task(task(part.needs, part.use, part.key))
        return Reply("completed", {name: end.result() for name, end in ends.items()})
