"""What happens if a downstream hangs now: report A's three closing questions, computed from tools and policies.

When does a run answer, which agents suffer, what does the client see. The figures are bounds for a run with the usual
budget whose plan uses the downstream: in the worst case of how its tasks stand one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from failsoft.kernel.policy import Policy
from failsoft.runs.agents import Agent
from failsoft.runs.limits import RunLimits
from failsoft.runs.plan import Plan
from failsoft.runs.planner import StaticPlanner
from failsoft.tools.registry import Tool

__all__ = ["Hang", "Suffering", "hangs"]

Sees = Literal["completed", "degraded"]


@dataclass(frozen=True, slots=True)
class Suffering:
    """What one agent's runs do while the downstream hangs.

    ``answers_within`` is in seconds, with what else the run does on top, and never more than the ``budget``; ``sees``
    the status that a client gets, ``strict`` the HTTP status of a strict one; ``instead`` says for each of the agent's
    tools there what stands in.
    """

    agent: str
    answers_within: float
    sees: Sees
    strict: int
    instead: Mapping[str, str]
    budget: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "agent": self.agent,
            "answers_within_s": round(self.answers_within, 3),
            "budget_s": self.budget,
            "client_sees": self.sees,
            "strict_status": self.strict,
            "instead": dict(self.instead),
        }


@dataclass(frozen=True, slots=True)
class Hang:
    """One downstream: who suffers, and after how many calls its breaker opens, so that nobody waits for it any more."""

    downstream: str
    agents: tuple[Suffering, ...]
    spared: tuple[str, ...]
    opens_after: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "downstream": self.downstream,
            "agents": [one.to_dict() for one in self.agents],
            "not_affected": list(self.spared),
            "breaker_opens_after": self.opens_after,
        }


def hangs(agents: Sequence[Agent], policy: Callable[[str, str], Policy], limits: RunLimits) -> list[Hang]:
    """One row for each downstream of the agents' tools. ``policy(downstream, default preset)`` is how it is guarded."""
    tools = {spec.downstream: spec for agent in agents for spec in agent.tools.specs}
    found = []
    for downstream in sorted(tools):
        suffering, spared = [], []
        for agent in agents:
            row = _suffering(agent, downstream, policy, limits)
            if row is None:
                spared.append(agent.name)
            else:
                suffering.append(row)
        breaker = policy(downstream, _default(tools[downstream].kind)).breaker
        opens = None if breaker is None else breaker.consecutive_timeouts or breaker.minimum
        found.append(Hang(downstream, tuple(suffering), tuple(spared), opens))
    return found


def _default(kind: str) -> str:
    return "external" if kind == "external" else "core"


def _suffering(
    agent: Agent, downstream: str, policy: Callable[[str, str], Policy], limits: RunLimits
) -> Suffering | None:
    mine = {tool.spec.name: tool for tool in agent.tools if tool.spec.downstream == downstream}
    made = next((p.fixed for p in agent.planners if isinstance(p, StaticPlanner) and p.fixed is not None), None)
    if made is not None:
        used = {task.tool for task in made.tasks if task.kind == "tool"}
        mine = {name: tool for name, tool in mine.items() if name in used}
    if not mine:
        return None
    budget = agent.budget if agent.budget is not None else limits.default_budget
    each = {name: _until_given_up(tool, policy, limits) for name, tool in mine.items()}
    one_after_another = _in_a_row(made, set(mine), agent)
    waits = max(each.values()) * one_after_another
    instead = {name: _instead(agent, tool, downstream) for name, tool in mine.items()}
    whole = all(text.endswith("(as good)") for text in instead.values())
    if waits >= budget - limits.grace_floor and not _at_the_end(made, set(mine)):
        whole = False  # what stands in comes so late that nothing can follow
    return Suffering(
        agent.name,
        min(budget, waits + limits.grace_floor),
        "completed" if whole else "degraded",
        200 if whole else 504,
        instead,
        budget,
    )


def _until_given_up(tool: Tool, policy: Callable[[str, str], Policy], limits: RunLimits) -> float:
    """Seconds until a task gives the tool up: its call limit, or all its attempts when they are done before."""
    spec = tool.spec
    rules = policy(spec.downstream, _default(spec.kind))
    call = spec.timeout if spec.timeout is not None else rules.call_timeout
    ends = [one for one in (call, limits.task_timeout) if one is not None]
    attempt = rules.attempt_timeout
    if attempt is not None:
        retries = rules.retry.retries(spec.kind)
        pauses = sum(min(rules.retry.cap, (rules.retry.base + rules.retry.spread) * 2.0**i) for i in range(retries))
        ends.append((retries + 1) * attempt + pauses)
    return min(ends, default=float("inf"))


def _in_a_row(plan: Plan | None, tools: set[str], agent: Agent) -> int:
    """How many tasks on the hanging downstream may stand one behind the other: those that go on without the one before.

    A plan that is made anew may do whatever its limits allow, but what needs something missing is skipped; so there it
    is one, unless something stands in and the next in line is tried.
    """
    if plan is None:
        return 1
    shape = plan.shape
    longest = [0] * len(shape.tasks)
    for i in shape.order:
        task = plan.tasks[i]
        before = max((longest[need] for need in shape.needs[i]), default=0)
        hangs_too = task.kind == "tool" and task.tool in tools
        goes_on = all(_stands_in(agent, plan, plan.tasks[need].id) or task.tolerates_missing for need in shape.needs[i])
        longest[i] = before + (1 if hangs_too and (goes_on or before == 0) else 0)
    return max(longest, default=1) or 1


def _at_the_end(plan: Plan | None, tools: set[str]) -> bool:
    """Whether nothing of a fixed plan comes after the tasks that use `tools`."""
    if plan is None:
        return False
    dependants = plan.shape.dependants
    return not any(dependants[i] for i, task in enumerate(plan.tasks) if task.kind == "tool" and task.tool in tools)


def _stands_in(agent: Agent, plan: Plan, task_id: str) -> bool:
    task = plan.task(task_id)
    if task.fallback is not None or task.kind != "tool":
        return True
    spec = agent.tools.get(task.tool).spec
    return spec.fallback is not None or bool(spec.alternates) or spec.stale_for is not None


def _instead(agent: Agent, tool: Tool, downstream: str) -> str:
    spec = tool.spec
    for alternate in spec.alternates:
        if agent.tools.get(alternate.tool).spec.downstream != downstream:
            return f"{alternate.tool} answers" + (" (as good)" if alternate.equivalent else "")
    if spec.stale_for is not None:
        return f"an earlier result, up to {spec.stale_for:g} s old, else " + _last(agent, tool)
    return _last(agent, tool)


def _last(agent: Agent, tool: Tool) -> str:
    fallback = tool.spec.fallback
    if fallback is not None:
        return "its default" + (" (as good)" if fallback.equivalent else "")
    if tool.spec.name in agent.makes_up_for:
        return "the answer says what is known without it"
    return "it is missing, and the answer says so"
