"""Planners: who turns a request into a plan. An agent's planners are tried in order.

A planner that cannot plan a request raises :class:`~failsoft.base.errors.PlanRefused` and the next is tried with the
reason kept; one that knows the request itself to be wrong raises :class:`~failsoft.base.errors.BadInput`, which ends
the run at once: a wrong column must be told to the user, not guessed around by the next planner.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, runtime_checkable

from failsoft.base.errors import PlanRefused
from failsoft.base.messages import Message
from failsoft.kernel.bulkhead_policy import BulkheadPolicy
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.runs.plan import Plan, PlanLimits
from failsoft.tools.registry import ToolRegistry

__all__ = ["Language", "PlanContext", "PlanRequest", "Planner", "RulesPlanner", "StaticPlanner", "language_of"]

Language = Literal["en", "zh"]
Mode = Literal["fast", "deep"]


def language_of(text: str) -> Language:
    """The language to answer in: Chinese when at least one in ten letters is a Han character, else English."""
    if text.isascii():
        return "en"
    han = sum(1 for c in text if "\u4e00" <= c <= "\u9fff" or "\u3400" <= c <= "\u4dbf")
    letters = sum(1 for c in text if c.isalpha())
    return "zh" if han and han * 10 >= letters else "en"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is asked, as a planner sees it."""

    input: str
    agent: str = ""
    language: Language = "en"
    mode: Mode | None = None
    tenant: str | None = None
    session_id: str | None = None
    history: tuple[Message, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What a planner may use. ``remaining()`` is the planner's own time in seconds, not the run's.

    ``unavailable`` tools (breaker open) are withdrawn from the registry the planner gets; they are named here so that a
    prompt can say so. ``refused`` are the planners tried before, with why.
    """

    kernel: Kernel
    limits: PlanLimits
    remaining: Callable[[], float]
    unavailable: tuple[str, ...] = ()
    refused: Sequence[PlanFailure] = ()


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """Why a planner made no plan: the error's code and text, and its ``details["reason"]`` when it has one."""

    planner: str
    code: str
    message: str
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {"planner": self.planner, "code": self.code, "message": self.message, "reason": self.reason}


@runtime_checkable
class Planner(Protocol):
    """Makes plans. Cancelled when its share of the budget is used up."""

    @property
    def name(self) -> str:
        """How it is called in settings, events and reasons: ``rules``, ``model``, ``static``."""
        ...

    async def plan(self, request: PlanRequest, tools: ToolRegistry, context: PlanContext) -> Plan:
        """The plan for `request`; it is checked against `tools` by the caller.

        Raises :class:`PlanRefused` when this planner cannot, :class:`BadInput` when nobody can.
        """
        ...


class StaticPlanner:
    """Always the same plan, or what a function makes of the request."""

    name = "static"

    def __init__(self, plan: Plan | Callable[[PlanRequest], Plan]) -> None:
        self._plan = plan

    @property
    def fixed(self) -> Plan | None:
        """The plan when it is always the same, else None."""
        return self._plan if isinstance(self._plan, Plan) else None

    async def plan(self, request: PlanRequest, tools: ToolRegistry, context: PlanContext) -> Plan:
        """The plan it was given."""
        return self._plan if isinstance(self._plan, Plan) else self._plan(request)

    def __repr__(self) -> str:
        return "<StaticPlanner>"


_SHORT: Final = 300
"""Characters of a request that are read at once, on the loop: a thread would cost more."""
_READING: Final = Policy(
    call_timeout=None, bulkhead=BulkheadPolicy(permits=2, queue=64), breaker=None, retry=RetryPolicy(queries=0)
)
"""Reading is the processor's work, and may fail by the text alone, which is nobody's outage."""

Rule = Callable[[PlanRequest], "Plan | Awaitable[Plan | None] | None"]


class RulesPlanner:
    """Plans by a function that understands some requests, without any model; None means that it does not understand.

    A request with a long text is read in a thread: however long that takes, other runs' clocks go on.
    """

    name = "rules"

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    async def plan(self, request: PlanRequest, tools: ToolRegistry, context: PlanContext) -> Plan:
        """The rule's plan."""
        if len(request.input) <= _SHORT:
            made = self._rule(request)
        else:
            made = await context.kernel.guard("planner.rules", _READING).call_sync(self._rule, request)
        plan = await made if inspect.isawaitable(made) else made
        if plan is None:
            raise PlanRefused(
                "the rules do not understand this question", param="input", details={"reason": "not_understood"}
            )
        return plan

    def __repr__(self) -> str:
        return f"<RulesPlanner {getattr(self._rule, '__qualname__', self._rule)}>"
