"""Where a run's budget is planned to go, stage by stage, so that it sums to the limit: for checks and diagnoses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from failsoft.kernel.policy import Policy
from failsoft.runs.agents import Agent
from failsoft.runs.limits import RunLimits
from failsoft.runs.plan import Plan
from failsoft.runs.planner import StaticPlanner

__all__ = ["Stage", "stage_budget"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a run: ``seconds`` planned for it, the ``limit`` of its own (None: what is left), and why."""

    name: str
    seconds: float
    limit: float | None
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {"stage": self.name, "seconds": round(self.seconds, 6), "limit_s": self.limit, "why": self.why}


def stage_budget(agent: Agent, policy: Callable[[str, str], Policy], limits: RunLimits) -> list[Stage]:
    """The stages of a run with the agent's usual budget; their seconds sum to it.

    Planning has at most its share and a plan that is fixed needs none. What is left until the cut goes to the tasks of
    the longest way, in proportion to their own limits. The grace at the end is for the answer.
    """
    budget = agent.budget if agent.budget is not None else limits.default_budget
    grace = min(limits.grace_floor, limits.grace_ceiling * budget)
    fixed = next((p.fixed for p in agent.planners if isinstance(p, StaticPlanner) and p.fixed is not None), None)
    planning = 0.0 if fixed is not None else limits.planning_share * (budget - grace)
    stages = [
        Stage("door", 0.0, None, "what passed in front (X-Start-Time) is taken off before"),
        Stage(
            "planning",
            planning,
            None if fixed is not None else planning,
            "the plan is fixed" if fixed is not None else f"one planner's share, {limits.planning_share:g} of the rest",
        ),
    ]
    rest = budget - grace - planning
    way = _longest_way(fixed, agent, policy) if fixed is not None else _one_tool(agent, policy)
    whole = sum(weight for _, weight, _ in way) or 1.0
    for name, weight, limit in way:
        stages.append(Stage(name, rest * weight / whole, limit, "its part of what is left until the cut"))
    if not way:
        stages.append(Stage("tasks", rest, None, "what is left until the cut"))
    stages.append(Stage("answer", grace, limits.grace_ceiling * budget, "kept back at first; how much is learned"))
    stages.append(Stage("serialising", 0.0, None, "part of the answer's grace"))
    return stages


def _limit_of(agent: Agent, tool: str, policy: Callable[[str, str], Policy]) -> float | None:
    if tool not in agent.tools:
        return None
    spec = agent.tools.get(tool).spec
    if spec.timeout is not None:
        return spec.timeout
    return policy(spec.downstream, "external" if spec.kind == "external" else "core").call_timeout


def _longest_way(
    plan: Plan, agent: Agent, policy: Callable[[str, str], Policy]
) -> list[tuple[str, float, float | None]]:
    """The tasks of the way with the largest sum of limits, in order."""
    shape = plan.shape
    limits = [task.timeout or _limit_of(agent, task.tool, policy) for task in plan.tasks]
    weights = [limit if limit is not None else 1.0 for limit in limits]
    best = [0.0] * len(weights)
    came: list[int | None] = [None] * len(weights)
    for i in shape.order:
        before = max(shape.needs[i], key=best.__getitem__, default=None)
        best[i] = weights[i] + (0.0 if before is None else best[before])
        came[i] = before
    at: int | None = max(range(len(best)), key=best.__getitem__)
    way = []
    while at is not None:
        task = plan.tasks[at]
        way.append((f"task {task.id} ({task.tool})", weights[at], limits[at]))
        at = came[at]
    return way[::-1]


def _one_tool(agent: Agent, policy: Callable[[str, str], Policy]) -> list[tuple[str, float, float | None]]:
    """A plan that is made anew: its tasks share what is left; each tool is named with its own limit."""
    return [
        (f"a task of {name}", _limit_of(agent, name, policy) or 1.0, _limit_of(agent, name, policy))
        for name in agent.tools.names
    ]
