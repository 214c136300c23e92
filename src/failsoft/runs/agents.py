"""Agents: a name, a description, tools, planners, and how to answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from failsoft.base.errors import BadInput, UnknownAgent
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.runs.answer import AnswerFunction
from failsoft.runs.doors import AGENT_BREAKER
from failsoft.runs.loop import Loop, LoopPlanner, spoken
from failsoft.runs.plan import PlanLimits
from failsoft.runs.planner import Planner
from failsoft.tools.registry import Tool, ToolRegistry, ToolSource

__all__ = ["Agent", "AgentRegistry"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}")


@dataclass(frozen=True)
class Agent:
    """Something that answers questions.

    ``planners`` are tried in their order, usually rules, then model; ``planner_order`` picks and reorders them by name.
    ``loop`` makes it an agent that thinks and calls tools by itself; it then needs no planner, and may be a task of any
    plan. ``answer`` makes the text and files from the outcomes; without it a generic one is made. ``budget`` in seconds
    is the default for runs that ask for none. ``width`` is how many tasks of one run may run at once.
    ``breaker`` short-circuits the agent at the door while its runs keep failing as a whole; None: never.
    ``makes_up_for`` names the tools without whose results the ``answer`` function still has something to say: what is
    known without them. See :func:`~failsoft.runs.fallbacks.uncovered`.
    """

    name: str
    description: str
    tools: ToolRegistry
    planners: tuple[Planner, ...]
    answer: AnswerFunction | None = None
    budget: float | None = None
    limits: PlanLimits = field(default_factory=PlanLimits)
    width: int = 16
    breaker: BreakerPolicy | None = AGENT_BREAKER
    makes_up_for: frozenset[str] = frozenset()
    loop: Loop | None = None

    def __init__(
        self,
        name: str,
        description: str = "",
        tools: Iterable[Tool] | ToolRegistry = (),
        planners: Sequence[Planner] = (),
        *,
        answer: AnswerFunction | None = None,
        budget: float | None = None,
        limits: PlanLimits | None = None,
        width: int = 16,
        breaker: BreakerPolicy | None = AGENT_BREAKER,
        planner_order: Sequence[str] | None = None,
        makes_up_for: Iterable[str] = (),
        loop: Loop | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise BadInput(f"{name[:80]!r} is no name for an agent: letters, digits, _ . -", param="agents")
        if loop is not None:
            if not planners:
                planners = (LoopPlanner(name),)
                answer = answer or spoken
            limits = limits or PlanLimits(kinds=frozenset({"tool", "agent"}))
        if not planners:
            raise BadInput(f"agent {name!r} has no planner", param=f"agents.{name}.planners")
        if width < 1:
            raise BadInput("width must be at least 1", param=f"agents.{name}.width")
        registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        registry.check()
        if loop is not None and (both := set(registry.names) & set(loop.delegates)):
            raise BadInput(f"a tool and an agent are both called {min(both)!r}", param=f"agents.{name}.loop.delegates")
        values: dict[str, Any] = {
            "name": name,
            "description": description,
            "tools": registry,
            "planners": tuple(planners),
            "answer": answer,
            "budget": budget,
            "limits": limits or PlanLimits(),
            "width": width,
            "breaker": breaker,
            "makes_up_for": frozenset(makes_up_for),
            "loop": loop,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        if planner_order is not None:
            object.__setattr__(self, "planners", self._ordered(planner_order))

    def _ordered(self, order: Sequence[str]) -> tuple[Planner, ...]:
        by_name = {planner.name: planner for planner in self.planners}
        for wanted in order:
            if wanted not in by_name:
                raise BadInput(
                    f"agent {self.name!r} has no planner {wanted!r}; there are: {', '.join(by_name)}",
                    param=f"agents.{self.name}.planner_order",
                )
        return tuple(by_name[wanted] for wanted in order)

    def with_planners(self, *order: str) -> Agent:
        """The same agent with these planners, by name, in this order."""
        changed = replace(self)
        object.__setattr__(changed, "planners", self._ordered(order))
        return changed

    def with_tools(self, tools: Iterable[Tool], sources: Iterable[ToolSource] = ()) -> Agent:
        """The same agent with more tools; raises :class:`BadInput` when a name is taken."""
        changed = replace(self)
        registry = ToolRegistry(self.tools.own, (*self.tools.sources, *sources))
        for tool in tools:
            registry.add(tool)
        object.__setattr__(changed, "tools", registry)
        return changed

    def __repr__(self) -> str:
        return f"<Agent {self.name} tools={len(self.tools)} planners={'>'.join(p.name for p in self.planners)}>"


class AgentRegistry:
    """The agents of an app. When there is only one, or a default was named, a request need not name it."""

    __slots__ = ("_agents", "default")

    def __init__(self, agents: Iterable[Agent] = (), *, default: str | None = None) -> None:
        self._agents: dict[str, Agent] = {}
        self.default = default
        for agent in agents:
            self.add(agent)

    def add(self, agent: Agent) -> None:
        """Adds an agent; raises :class:`BadInput` when the name is taken."""
        if agent.name in self._agents:
            raise BadInput(f"two agents are called {agent.name!r}", param="agents")
        self._agents[agent.name] = agent

    def get(self, name: str | None = None) -> Agent:
        """The agent of that name, or the default one; raises :class:`UnknownAgent`, which names those there are."""
        known = ", ".join(self._agents) or "none"
        if name is None:
            if self.default in self._agents:
                return self._agents[self.default]
            if len(self._agents) == 1:
                return next(iter(self._agents.values()))
            raise UnknownAgent(
                f"the request names no agent and there is no default; there are: {known}",
                param="agent",
                details={"agents": list(self._agents)},
            )
        try:
            return self._agents[name]
        except (KeyError, TypeError):
            raise UnknownAgent(
                f"there is no agent {str(name)[:80]!r}; there are: {known}",
                param="agent",
                details={"agents": list(self._agents)},
            ) from None

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order they were added."""
        return tuple(self._agents)

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents.values())

    def __len__(self) -> int:
        return len(self._agents)

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def __repr__(self) -> str:
        return f"<AgentRegistry {', '.join(self._agents)}>"
