"""Failsoft: an agent platform that never cascades.

A client asks in natural language; the platform plans, calls models and tools, aggregates, and answers
within the client's time budget, whatever is slow or broken behind it: in full where it can, degraded and
saying so where it must.

Names are loaded when they are first used, so that the kernel alone costs what the kernel costs, and the command line
starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from failsoft.app import App
    from failsoft.base.errors import FailsoftError
    from failsoft.base.outcomes import Outcome, Provenance
    from failsoft.kernel.deadline import Deadline, deadline_scope
    from failsoft.kernel.guard import Guard, Kernel, guard
    from failsoft.kernel.ladder import Rung, climb
    from failsoft.kernel.policy import Policy, preset
    from failsoft.kernel.scope import current_scope, scope
    from failsoft.runs.agents import Agent
    from failsoft.tools.python import tool
    from failsoft.tools.registry import ToolContext

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "App",
    "Deadline",
    "FailsoftError",
    "Guard",
    "Kernel",
    "Outcome",
    "Policy",
    "Provenance",
    "Rung",
    "ToolContext",
    "__version__",
    "climb",
    "current_scope",
    "deadline_scope",
    "guard",
    "preset",
    "scope",
    "tool",
]

_HOMES = {
    "failsoft.app": ("App",),
    "failsoft.base.errors": ("FailsoftError",),
    "failsoft.base.outcomes": ("Outcome", "Provenance"),
    "failsoft.kernel.deadline": ("Deadline", "deadline_scope"),
    "failsoft.kernel.guard": ("Guard", "Kernel", "guard"),
    "failsoft.kernel.ladder": ("Rung", "climb"),
    "failsoft.kernel.policy": ("Policy", "preset"),
    "failsoft.kernel.scope": ("current_scope", "scope"),
    "failsoft.runs.agents": ("Agent",),
    "failsoft.tools.python": ("tool",),
    "failsoft.tools.registry": ("ToolContext",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'failsoft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
