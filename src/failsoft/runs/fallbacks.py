"""Whether an agent can answer when what it needs cannot: its essential tasks need something to fall back on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner

__all__ = ["Uncovered", "uncovered"]


@dataclass(frozen=True, slots=True)
class Uncovered:
    """An essential task of an agent that nothing stands in for; of agents that plan anew each time, a tool."""

    agent: str
    tool: str
    task: str | None = None

    def __str__(self) -> str:
        what = f"tool {self.tool!r}" if self.task is None else f"task {self.task!r} (tool {self.tool!r})"
        return (
            f"agent {self.agent!r}: {what} is essential and has no fallback; give the tool a `fallback=Default(...)`, "
            "the task a `fallback`, make it `essential: false`, or name the tool in the agent's `makes_up_for`"
        )


def uncovered(agent: Agent) -> list[Uncovered]:
    """What of an agent has no fallback. Alternates and earlier results are none: they may be out as well, or not there.

    Planners other than static ones may make any tool's task an essential one.
    """
    found: dict[Uncovered, None] = {}
    for planner in agent.planners:
        made = planner.fixed if isinstance(planner, StaticPlanner) else None
        found.update(dict.fromkeys(_of_tools(agent) if made is None else _of_plan(agent, made)))
    return list(found)


def _of_plan(agent: Agent, plan: Plan) -> Iterator[Uncovered]:
    for task in plan.tasks:
        if task.essential and task.fallback is None and not _covered(agent, task.tool, task):
            yield Uncovered(agent.name, task.tool, task.id)


def _of_tools(agent: Agent) -> Iterator[Uncovered]:
    for name in agent.tools.names:
        if not _covered(agent, name):
            yield Uncovered(agent.name, name)


def _covered(agent: Agent, tool: str, task: TaskSpec | None = None) -> bool:
    if tool in agent.makes_up_for:
        return True
    if task is not None and task.kind != "tool":
        return False
    return tool in agent.tools and agent.tools.get(tool).spec.fallback is not None
