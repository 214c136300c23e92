"""The agent that bench/kill.py serves and kills: six tasks over a downstream that counts, two of them actions."""

from __future__ import annotations

import os
from typing import Any

import aiohttp

from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import RulesPlanner
from failsoft.tools.python import tool
from failsoft.tools.registry import ToolContext

URL = os.environ.get("KILL_DOWNSTREAM", "")


async def _ask(path: str, context: ToolContext, **headers: str) -> Any:
    body = {"run": context.run, "task": context.task}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{URL}/{path}", json=body, headers=headers) as response,
    ):
        response.raise_for_status()
        return await response.json()


@tool(kind="query", downstream="counting", timeout=20)
async def look(context: ToolContext) -> Any:
    """Asks the downstream."""
    return await _ask("look", context)


@tool(kind="action", downstream="counting", timeout=20, idempotent=True)
async def book(context: ToolContext) -> Any:
    """Has the downstream do something that it does once for one key."""
    return await _ask("book", context, **{"idempotency-key": context.idempotency_key or ""})


@tool(kind="action", downstream="counting", timeout=20)
async def pay(context: ToolContext) -> Any:
    """Has the downstream do something that it does as often as it is asked."""
    return await _ask("pay", context)


def agents() -> list[Agent]:
    """The one agent."""
    tasks = (
        TaskSpec(id="t0", tool="look"),
        TaskSpec(id="t1", tool="look", needs=("t0",)),
        TaskSpec(id="t2", tool="book", needs=("t0",)),
        TaskSpec(id="t3", tool="look", needs=("t1", "t2")),
        TaskSpec(id="t4", tool="pay", needs=("t3",)),
        TaskSpec(id="t5", tool="look", needs=("t4",), tolerates_missing=True),
    )
    plan = Plan(tasks=tasks)
    return [Agent("worker", "Works.", [look, book, pay], [RulesPlanner(lambda request: plan)])]
