"""Cases of tools that live elsewhere, as a loop meets them: silent, killed, not there yet; and limits, each of them."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
from tests.agents.worlds import Script, agent, app, call, calls, last_results
from tests.tools.test_mcp_tools import STUB, pid_of
from tests.tools.test_tool_sources import Server

from failsoft.app import App
from failsoft.config import Settings
from failsoft.runs.agents import Agent
from failsoft.runs.loop import Loop
from failsoft.runs.turns import LoopLimits
from failsoft.tools.http import http_tool
from failsoft.tools.mcp import McpServer
from failsoft.tools.python import tool
from failsoft.tools.registry import ToolRegistry


@tool(downstream="stock")
async def stock(product: str) -> int:
    """How many there are."""
    return len(product)


def served(model, server, *tools):
    one = Agent("main", "For tests.", ToolRegistry(tools, sources=[server]), loop=Loop(model))
    return App(agents=[one], settings=Settings(agent="main"), store="off")


@pytest.mark.realtime
async def test_case_1_a_server_that_never_writes_a_byte_costs_its_timeout_and_its_socket_is_closed():
    gone, heard = asyncio.Event(), []

    async def accept(reader, writer):
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        if await reader.read() == b"":
            gone.set()
        writer.close()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    silent = http_tool("silent", f"GET http://127.0.0.1:{port}/", allow=["127.0.0.0/8"], timeout=0.3)
    model = Script(calls(call("silent"), call("stock", product="tea")), lambda r: " ".join(last_results(r)))
    async with listener, app(model, silent, stock) as running:
        result = await running.ask("go", budget=10)
        assert "timeout" in result.answer
        assert " 3" in result.answer
        assert (result.status, len(heard)) == ("degraded", 1)
        assert result.elapsed < 3
        async with asyncio.timeout(2):
            await gone.wait()


@pytest.mark.realtime
async def test_case_2_a_server_killed_in_mid_call_fails_at_once_and_the_next_call_is_served(tmp_path):
    server = McpServer("stub", command=[sys.executable, "-I", STUB, str(tmp_path / "log"), "good"], pause=0.05, wait=15)
    before, after = Script(calls(call("stub_hang")), lambda r: last_results(r)[0]), None
    async with served(before, server) as running:
        began = time.monotonic()
        asked = asyncio.create_task(running.ask("go", budget=25))
        async with asyncio.timeout(10):
            while not asked.done() and not await asyncio.to_thread(calling, tmp_path / "log"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        pid = await asyncio.to_thread(pid_of, STUB, str(tmp_path / "log"))
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        result = await asked
        assert time.monotonic() - killed < 5, time.monotonic() - began  # its limit is 30
        assert (result.status, "downstream_unavailable" in result.answer) == ("degraded", True)
        async with asyncio.timeout(10):
            while server.status().state != "ready" or server.status().starts < 2:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        after = running.agents.get("main").loop.model
        after.lines = [calls(call("stub_echo", text="again")), lambda r: last_results(r)[0]]
        again = await running.ask("go", budget=25)
    assert (again.status, again.answer) == ("completed", "again")


def calling(log: Path):
    return log.exists() and '"hang"' in log.read_text()


async def test_case_3_a_server_that_is_not_there_at_start_is_picked_up_when_it_comes():
    server = Server(after=60)
    model = Script(calls(call("stock", product="tea")), lambda r: last_results(r)[0])
    async with served(model, server, stock) as running:
        result = await running.ask("go", budget=5)
        assert (result.status, result.answer, model.offered[0]) == ("completed", "3", ["stock"])
        await asyncio.sleep(60)
        model.lines = [calls(call("far")), lambda r: last_results(r)[0]]
        result = await running.ask("go", budget=5)
    assert (result.status, result.answer, model.offered[-1]) == ("completed", "from afar", ["stock", "far"])


@pytest.mark.realtime
@pytest.mark.may_block(reason="a tool that blocks the loop is what is tested")
async def test_case_9_a_tool_that_blocks_the_loop_is_named_and_deadlines_are_late_by_no_more():
    @tool(downstream="blocking", kind="external", timeout=5)
    async def blocks() -> str:
        time.sleep(0.5)  # noqa: ASYNC251 - that is the point
        return "done"

    @tool(downstream="waiting", kind="external", timeout=0.2)
    async def waits() -> str:
        await asyncio.sleep(30)
        return "never"

    stalls = []
    mine = Script(calls(call("blocks")), "blocked")
    other = agent(Script(calls(call("waits")), lambda r: last_results(r)[0]), waits, name="other")
    async with app(mine, blocks, others=[other]) as running:
        running.bus.add(lambda event: stalls.append(event) if "stall" in event.kind else None)
        waiting = asyncio.create_task(running.ask("go", agent="other", budget=10))
        await asyncio.sleep(0.05)
        blocked = await running.ask("go", budget=10)
        result = await waiting
        await asyncio.sleep(0.2)
    assert blocked.answer == "blocked"
    assert "timeout" in result.answer
    assert result.elapsed < 0.2 + 0.5 + 0.6  # its limit, the stall, and what a busy machine takes
    assert any("blocks" in str(event) for event in stalls)


@pytest.mark.realtime
async def test_case_13_listing_a_slow_server_s_tools_is_on_nobody_s_budget(tmp_path):
    log = tmp_path / "log"
    server = McpServer("stub", command=[sys.executable, "-I", STUB, str(log), "good"], pause=0.05, wait=15)
    echo = [calls(call("stub_echo", text=str(n))) for n in range(5)]
    async with served(Script(*echo, "4", echo[0], "0"), server) as running:
        result = await running.ask("go", budget=20)
        again = await running.ask("go", budget=20)
    assert (result.status, again.status) == ("completed", "completed")
    assert (await asyncio.to_thread(log.read_text)).count('"tools/list"') == 1


# --- case 14: every limit is read ----------------------------------------------------------------------------------

KNOWN = {field.name for field in fields(LoopLimits)}


def many(request):
    """Another call each turn, as long as there are tools."""
    return "enough" if request.answer_only else calls(call("stock", product="x" * len(request.messages)))


def forever(*arguments, **given):
    """The same call each turn."""
    return lambda r: "enough" if r.answer_only else calls(call(*arguments, **given))


CHANGES = {
    "turns": (many, 3, 5),
    "calls": (many, 2, 4),
    "same": (forever("stock", product="x"), 2, 4),
    "unknown": (forever("nothing"), 1, 3),
    "malformed": (forever("stock", amount=1), 1, 3),
    "empty": (lambda r: "enough" if r.answer_only else "", 1, 3),
    "answer_share": (many, 0.0, 0.9),
    "depth": (forever("main", input="go on"), 0, 2),
    "result": (lambda r: last_results(r)[0] if last_results(r) else calls(call("big")), 100, 4_000),
    "window": (lambda r: str(len(r.messages)) if r.answer_only else calls(call("big", n=len(r.messages))), 600, 24_000),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
async def test_case_14_every_limit_of_a_loop_changes_what_it_does(name):
    @tool
    async def big(n: int = 0) -> str:
        return f"{n} " + "word " * 500

    line, low, high = CHANGES[name]
    told = []
    for value in (low, high):
        model = Script(line, seconds=1.0)
        options = {"delegates": ("main",)} if name == "depth" else {}
        async with app(model, stock, big, **options, **{name: value}) as running:
            result = await running.ask("go", budget=10)
        told.append((len(model.asked), len(str(result.answer))))
    assert told[0] != told[1]
