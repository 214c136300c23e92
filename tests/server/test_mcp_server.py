"""Failsoft's own MCP server, spoken to by the official SDK's client: over HTTP, and in process."""

import asyncio
import importlib
from contextlib import asynccontextmanager

import pytest
from tests.server.serving import serving, until

from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner
from failsoft.server.mcp_server import mcp_server
from failsoft.tools.python import tool

pytestmark = pytest.mark.realtime

RELEASED: list[bool] = []


@tool(kind="external")
async def quick() -> str:
    return "4"


@tool(kind="external", timeout=30)
async def hangs() -> None:
    try:
        await asyncio.sleep(30)
    finally:
        RELEASED.append(True)


@tool(kind="action")
async def writes() -> str:
    return "written"


def agent(name, *tools, description=""):
    plan = Plan(tasks=tuple(TaskSpec(id=f"t{n}", tool=tools[0].spec.name) for n in range(2)))
    return Agent(name, description, tools=tools, planners=[StaticPlanner(plan)])


AGENTS = [
    agent("sums", quick, description="Adds up."),
    agent("a.b", quick, description="Has an odd name."),
    agent("stuck", hangs),
    agent("writer", writes),
]


@asynccontextmanager
async def client(url):
    await asyncio.to_thread(importlib.import_module, "mcp")
    from mcp import Client

    async with Client(url) as one:
        yield one


@pytest.mark.timeout(60)
async def test_agents_are_tools_over_http():
    async with serving(agents=AGENTS) as server, client(f"{server.server.address}/mcp") as one:
        tools = {tool.name: tool for tool in (await one.list_tools()).tools}
        assert list(tools) == ["adder", "sums", "a_b", "stuck", "writer"]
        assert tools["sums"].description == "Adds up."
        assert tools["sums"].annotations.read_only_hint is True
        assert tools["writer"].annotations.read_only_hint is False
        assert tools["sums"].input_schema["required"] == ["input"]

        seen = []

        async def progress(done, total, message):
            seen.append((done, total, message))

        result = await one.call_tool("sums", {"input": "2 + 2", "budget_ms": 2000}, progress_callback=progress)
        assert not result.is_error
        assert "4" in result.content[0].text
        assert result.meta["failsoft"]["status"] == "completed"
        assert seen == sorted(seen)
        assert all(total == 1.0 for _, total, _ in seen)

        degraded = await one.call_tool("stuck", {"input": "?", "budget_ms": 300})
        assert degraded.meta["failsoft"]["status"] == "degraded"
        for name, arguments, text in (
            ("nobody", {"input": "?"}, "unknown_tool"),
            ("sums", {}, "bad_input"),
            ("sums", {"input": 5}, "bad_input"),
            ("sums", {"input": "?", "budget_ms": -1}, "bad_input"),
            ("sums", {"input": "?", "more": 1}, "takes no argument 'more'"),
        ):
            refused = await one.call_tool(name, arguments)
            assert refused.is_error, name
            assert text in refused.content[0].text


@pytest.mark.timeout(60)
async def test_a_client_that_cancels_or_leaves_ends_its_run():
    RELEASED.clear()
    async with serving(agents=AGENTS) as server:
        async with client(f"{server.server.address}/mcp") as one:
            call = asyncio.ensure_future(one.call_tool("stuck", {"input": "?", "budget_ms": 20_000}))
            await until(lambda: server.app.runs)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await until(lambda: RELEASED and not server.app.runs)
        assert RELEASED == [True, True]


@pytest.mark.timeout(60)
async def test_what_is_no_message_or_comes_from_another_page_is_refused():
    async with serving(agents=AGENTS) as server:
        for headers, body, status in (
            ({"Origin": "https://evil.test"}, b"{}", 403),
            ({}, b"x" * 100_000, 413),
            ({}, b"not json", 400),
            ({}, b"[" * 5_000, 400),
        ):
            accepts = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
            async with server.client.post(f"{server.server.address}/mcp", data=body, headers=accepts) as answer:
                assert answer.status == status, (headers, body[:10], await answer.text())
        assert (await server.get("/health/liveness"))[0] == 200


async def test_in_process():
    await asyncio.to_thread(importlib.import_module, "mcp")
    from mcp import Client

    from failsoft.app import App

    async with App(agents=AGENTS, store="off") as app, Client(mcp_server(app)) as one:
        result = await one.call_tool("sums", {"input": "2 + 2"})
        assert "4" in result.content[0].text
