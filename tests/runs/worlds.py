"""Tools and apps for the tests of this folder."""

import asyncio
from collections.abc import Iterable
from typing import Any

from failsoft.app import App
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner
from failsoft.tools.python import tool
from failsoft.tools.registry import Default, ToolContext

__all__ = ["App", "agent", "app", "plan", "task"]


@tool(downstream="work", kind="external")
async def work(seconds: float = 0.0, value: Any = "done") -> Any:
    """Takes that many seconds."""
    await asyncio.sleep(seconds)
    return value


@tool(downstream="broken", kind="external")
async def broken(seconds: float = 0.0) -> None:
    """Fails after that many seconds."""
    await asyncio.sleep(seconds)
    raise RuntimeError("no luck")


@tool(downstream="hanging", kind="external", timeout=600)
async def hanging() -> None:
    """Never answers."""
    await asyncio.get_running_loop().create_future()


@tool(downstream="guarded", kind="external", fallback=Default({"rows": []}))
async def with_default() -> None:
    """Fails, but has a default."""
    raise RuntimeError("no luck")


@tool(downstream="joined", kind="external")
async def join(parts: list[Any]) -> list[Any]:
    """Gives back what it was given."""
    return parts


@tool(downstream="knows", kind="action")
async def key(context: ToolContext) -> str | None:
    """The idempotency key of its call."""
    return context.idempotency_key


TOOLS: list[Any] = [work, broken, hanging, with_default, join, key]


def task(id: str, tool: str = "work", needs: Iterable[str] = (), **options: Any) -> TaskSpec:
    arguments: dict[str, Any] = {name: options.pop(name) for name in ("seconds", "value", "parts") if name in options}
    return TaskSpec(id=id, tool=tool, needs=tuple(needs), arguments=arguments, **options)


def plan(*tasks: TaskSpec, **options: Any) -> Plan:
    return Plan(tasks=tasks, **options)


def agent(what: Any = None, *, tools: Iterable[Any] = (), name: str = "tester", **options: Any) -> Agent:
    planners = options.pop("planners", None) or [StaticPlanner(what)]
    return Agent(name, "For tests.", [*TOOLS, *tools], planners, **options)


def app(what: Any = None, *, tools: Iterable[Any] = (), store: Any = "off", **options: Any) -> App:
    """An app with one agent that always makes the same plan."""
    mine = {
        name: options.pop(name) for name in ("answer", "width", "planners", "budget", "makes_up_for") if name in options
    }
    return App(agents=[agent(what, tools=tools, **mine)], store=store, **options)
