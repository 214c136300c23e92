"""A run's agent tasks: who serves them. What that takes is imported only when there are any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from failsoft.base.errors import BadInput
from failsoft.base.outcomes import Outcome
from failsoft.runs.limits import RunParts
from failsoft.runs.loop import spoken
from failsoft.runs.plan import Plan
from failsoft.runs.planner import PlanRequest
from failsoft.runs.runners import TaskRunner

if TYPE_CHECKING:
    from failsoft.runs.agents import Agent
    from failsoft.runs.loop_model import Calling, LoopModel

__all__ = ["agent_runner", "hands_on"]


def hands_on(agent: Agent) -> bool:
    """Whether other agents may work for a run of `agent`: with tools of theirs, which may act."""
    return "agent" in agent.limits.kinds and (agent.loop is None or bool(agent.loop.delegates))


def agent_runner(
    parts: RunParts,
    agent: Agent,
    plan: Plan,
    request: PlanRequest,
    emit: Callable[[str, str | None, Any], None],
    tools: Callable[[Agent], TaskRunner],
    *,
    done: Mapping[str, Outcome[Any]],
    keep: Callable[[str, Outcome[Any]], None] | None,
) -> TaskRunner:
    """The runner of one run's agent tasks; `agent` is the run's, `tools` gives what serves an agent's tools.

    ``done`` and ``keep``: the actions of its loops, from before a restart and from now on.
    """
    from failsoft.runs.agent_loop import AgentRunner

    agents = parts.agents
    assert agents is not None

    def model(wanted: str | LoopModel, calling: Calling) -> LoopModel:
        if not isinstance(wanted, str):
            return wanted
        if parts.gateway is None:
            raise BadInput(f"there is no model {wanted!r}: none is configured", param="models")
        from failsoft.runs.loop_model import GatewayModel

        return GatewayModel(parts.gateway, wanted, calling)

    alone = plan.tasks[0].id if len(plan.tasks) == 1 and agent.answer is spoken else None
    return AgentRunner(
        parts,
        agents=agents.get,
        tools=tools,
        model=model,
        request=request,
        emit=emit,
        speaks=alone,
        width=agent.width,
        done=done,
        keep=keep,
    )
