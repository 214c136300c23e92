"""Who of an agent's planners makes the plan: in their order, each for its share of the time, every reason kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from failsoft.base.errors import BadInput, DeadlineExceeded, FailsoftError, PlanRefused
from failsoft.kernel.breaker import BreakerState
from failsoft.kernel.classify import as_error
from failsoft.runs.agents import Agent
from failsoft.runs.crew import within
from failsoft.runs.limits import RunParts
from failsoft.runs.plan import Plan, TaskSpec, check_plan
from failsoft.runs.planner import PlanContext, PlanFailure, PlanRequest, StaticPlanner
from failsoft.runs.progress import History
from failsoft.runs.split import tails

__all__ = ["make_plan"]


async def make_plan(
    request: PlanRequest,
    agent: Agent,
    parts: RunParts,
    *,
    run: str,
    cut: float,
    refuse: Callable[[PlanFailure], None],
) -> tuple[Plan, str]:
    """The first plan that can be run, and the planner's name; `refuse` is told of every planner that made none.

    No planner gets more than its share of the time until `cut` (loop time), and none can hold the run up beyond it.
    Raises the error that says best why there is no plan.
    """
    loop = asyncio.get_running_loop()
    errors: list[FailsoftError] = []
    refused: list[PlanFailure] = []
    spare: tuple[Plan, str] | None = None
    last = agent.planners[-1]
    unavailable = _unavailable(agent, parts)
    tools = agent.tools.without(unavailable) if unavailable else agent.tools
    for planner in agent.planners:
        now = loop.time()
        if now >= cut:
            errors.append(DeadlineExceeded("the time budget was used up before there was a plan"))
            break
        until = now + parts.limits.planning_share * (cut - now)
        context = PlanContext(
            kernel=parts.kernel,
            limits=agent.limits,
            remaining=partial(_left, loop, until),
            unavailable=unavailable,
            refused=tuple(refused),
        )
        try:
            made: object = planner.fixed if isinstance(planner, StaticPlanner) else None
            if made is None:  # else there is nothing to wait for
                made = await within(
                    parts.crew,
                    planner.plan(request, tools, context),
                    at=until,
                    what=f"planner {planner.name}",
                    patience=min(parts.limits.patience, max(0.0, cut - until)),
                    run=run,
                    tenant=request.tenant,
                )
            if not isinstance(made, Plan):
                raise PlanRefused(f"planner {planner.name!r} made no plan but {type(made).__name__}")
            # Withdrawn tools stay known: a plan that uses one all the same meets an open breaker, and its ladder.
            plan = check_plan(made, agent.tools, agent.limits)
            if planner is last or (missing := _unaffordable(plan, agent, parts.history, cut - loop.time())) is None:
                return plan, planner.name
            spare = spare or (plan, planner.name)
            raise PlanRefused(missing, details={"reason": "unaffordable"})
        except Exception as error:  # noqa: BLE001 - whatever a planner raises, the next one is asked
            mapped = as_error(error)
            failure = PlanFailure(planner.name, mapped.code, mapped.message, mapped.details.get("reason"))
            refused.append(failure)
            errors.append(mapped)
            refuse(failure)
            if isinstance(mapped, BadInput):
                break  # the question itself is wrong: no other planner is to guess around that
    if spare is not None:  # a part of it is better than nothing
        return spare
    raise _no_plan(errors, refused)


def _left(loop: asyncio.AbstractEventLoop, until: float) -> float:
    return max(0.0, until - loop.time())


def _unaffordable(plan: Plan, agent: Agent, history: History, left: float) -> str | None:
    """Why a plan does not fit, when what its essential tasks usually take one after another is more than is `left`.

    What was never called takes what its tool says of itself, if it does.
    """
    shape = plan.shape
    usual = [_usual(task, agent, history) for task in plan.tasks]
    essential = [task.essential for task in plan.tasks]
    needed = max((tail for tail, one in zip(tails(shape, usual, essential), essential, strict=True) if one), default=0)
    return None if needed <= left else f"the plan usually needs {needed:.3g} s, {max(left, 0.0):.3g} s are left"


def _usual(task: TaskSpec, agent: Agent, history: History) -> float | None:
    seen = history.median(f"{task.kind}:{task.tool}")
    if seen is not None or task.kind != "tool":
        return seen
    spec = agent.tools.get(task.tool).spec
    return None if spec.alternates else spec.usual


def _unavailable(agent: Agent, parts: RunParts) -> tuple[str, ...]:
    """Tools whose breaker is open: withdrawn from planners."""
    guards = parts.kernel.guards
    found = []
    for spec in agent.tools.specs:
        guard = guards.get(spec.downstream)
        if guard is not None and guard.breaker.state is BreakerState.OPEN:
            found.append(spec.name)
    return tuple(found)


def _no_plan(errors: list[FailsoftError], refused: list[PlanFailure]) -> FailsoftError:
    """Why there is no plan: a wrong question first, then what may be better a little later, then the refusals."""
    for error in errors:
        if isinstance(error, BadInput):
            return error
    for error in errors:
        if error.retryable:
            return error
    text = "; ".join(f"{one.planner}: {one.message}" for one in refused)
    return PlanRefused(
        f"no plan could be made ({text})" if text else "no plan could be made",
        param=errors[-1].param if errors else "input",
        details={"planners": [one.to_dict() for one in refused]},
    )
