"""What a request may ask for, and the time it gets."""

from __future__ import annotations

import math

from failsoft.base.errors import BadInput, DeadlineExceeded
from failsoft.kernel.deadline import remaining
from failsoft.runs.agents import Agent
from failsoft.runs.limits import RunLimits
from failsoft.runs.result import RunRequest, readable

__all__ = ["budget_of", "check_input", "number", "usual_budget"]


def budget_of(request: RunRequest, agent: Agent, limits: RunLimits) -> float:
    """Seconds from the request's beginning, at most what the caller's own deadline leaves.

    Raises :class:`~failsoft.base.errors.BadInput` for what is no budget or too much, and
    :class:`~failsoft.base.errors.DeadlineExceeded` when it was spent on the way here.
    """
    if request.budget_ms is None:
        budget = limits.background_budget if request.background else usual_budget(agent, limits)
    else:
        budget = number(request.budget_ms, "budget") / 1000
        most = limits.max_background_budget if request.background else limits.max_budget
        if not budget > 0:
            raise BadInput("the budget must be more than 0", param="budget")
        if budget > most:
            raise BadInput(f"the budget must be at most {most:g} s", param="budget")
    spent = number(request.spent_ms, "spent_ms") / 1000
    if spent < 0:
        raise BadInput("spent_ms must not be negative", param="spent_ms")
    if spent >= budget:
        raise DeadlineExceeded("the budget was spent before the request got here")
    return min(budget, remaining() + spent)


def usual_budget(agent: Agent, limits: RunLimits) -> float:
    """Seconds for a request that names none."""
    return agent.budget if agent.budget is not None else limits.default_budget


def number(value: object, param: str) -> float:
    """A finite number; raises :class:`~failsoft.base.errors.BadInput` naming `param`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{param} must be a number, not {type(value).__name__}", param=param)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadInput(f"{param} must be a finite number", param=param)
    return number


def check_input(request: RunRequest, limits: RunLimits) -> None:
    """Raises :class:`~failsoft.base.errors.BadInput` when the question cannot be one."""
    text: object = request.input
    if not isinstance(text, str):
        raise BadInput("the question must be text", param="input")
    if not text.strip():
        raise BadInput("the question is empty", param="input")
    if not text.isascii() and not readable(text):
        raise BadInput("the question holds halves of characters: it is no text", param="input")
    if len(text) > limits.max_question:
        raise BadInput(
            f"the question has {len(text)} characters, more than the {limits.max_question} allowed", param="input"
        )
    mode: object = request.mode
    if mode not in (None, "fast", "deep"):
        raise BadInput(f"mode must be fast or deep, not {mode!r:.80}", param="mode")
