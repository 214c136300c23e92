"""What makes an agent a loop: its model, what it is told, what it may delegate, and its bounds.

::

    helpdesk = Agent("helpdesk", "Answers questions about orders.", [orders, stock], loop=Loop("assistant"))

Such an agent needs no planner: its plan is one task of kind ``agent``, which any other plan may have, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from failsoft.base.errors import BadInput
from failsoft.runs.answer import Answer, Parts, generic_answer
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.turns import LoopLimits
from failsoft.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from failsoft.runs.loop_model import Calling, LoopModel
    from failsoft.runs.planner import PlanContext, PlanRequest

__all__ = ["TASK", "Loop", "LoopPlanner", "spoken"]

TASK: Final = "answer"
"""The id of the one task in the plan of an agent that is a loop."""


@dataclass(frozen=True, slots=True)
class Loop:
    """An agent's loop of thinking, calling tools and looking at what came.

    ``model`` is an alias of the gateway, or a model of your own; ``calling`` how that alias asks for calls (``choices``
    for models without tool calls of their own). ``delegates`` names agents with loops that it may hand a part of its
    work to. ``judge`` is a small model, by alias or itself, that judges the answers. ``max_tokens`` bounds a reply,
    ``temperature`` is 0.2 unless given or the run's mode says otherwise.
    """

    model: str | LoopModel
    instructions: str = ""
    calling: Calling = "native"
    delegates: tuple[str, ...] = ()
    limits: LoopLimits = field(default_factory=LoopLimits)
    judge: str | LoopModel | None = None
    max_tokens: int | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        if self.calling not in ("native", "choices"):
            raise BadInput("calling must be native or choices", param="loop.calling")
        if len(set(self.delegates)) < len(self.delegates):
            raise BadInput("a delegate is named twice", param="loop.delegates")


class LoopPlanner:
    """Plans the one task of an agent that is a loop."""

    name = "loop"

    def __init__(self, agent: str, title: str = "") -> None:
        self._agent = agent
        self._title = title

    async def plan(self, request: PlanRequest, tools: ToolRegistry, context: PlanContext) -> Plan:
        """See :class:`~failsoft.runs.planner.Planner`."""
        title = self._title or ("回答" if request.language == "zh" else "The answer")
        arguments = {"input": request.input}
        return Plan(tasks=(TaskSpec(id=TASK, tool=self._agent, kind="agent", arguments=arguments, title=title),))

    def __repr__(self) -> str:
        return f"<LoopPlanner {self._agent}>"


def spoken(parts: Parts) -> Answer:
    """The answer of an agent that is a loop: what it said, as it said it."""
    text = parts.value(TASK)
    return Answer(text) if isinstance(text, str) else generic_answer(parts)
