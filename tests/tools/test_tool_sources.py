"""Tool servers in an app: started with it, waited for a moment, picked up when they come, ended with it."""

import asyncio

from failsoft.app import App
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner
from failsoft.tools.python import tool
from failsoft.tools.registry import Alternate, ToolRegistry, ToolSource


@tool(downstream="far", kind="external")
async def far() -> str:
    return "from afar"


@tool(alternates=[Alternate("far")])
async def near() -> str:
    return "from here"


class Server:
    """Comes up after a while, if ever."""

    name = downstream = "far"

    def __init__(self, after, wait=5.0):
        self.after = after
        self.wait = wait
        self.tools = {}
        self.up = asyncio.Event()
        self.ended = False

    async def run(self):
        try:
            await asyncio.sleep(self.after)
            self.tools = {"far": far}
            self.up.set()
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended = True

    async def ready(self):
        await self.up.wait()


def app(server, *names):
    plan = Plan(tasks=tuple(TaskSpec(id=name, tool=name) for name in names))
    agent = Agent("a", tools=ToolRegistry([near], sources=[server]), planners=[StaticPlanner(plan)])
    return App(agents=[agent, Agent("b", tools=ToolRegistry(sources=[server]), planners=agent.planners)], store="off")


async def test_the_start_waits_for_a_server_that_comes():
    server = Server(after=3)
    assert isinstance(server, ToolSource)
    began = asyncio.get_running_loop().time()
    async with app(server, "far") as running:
        assert asyncio.get_running_loop().time() - began == 3
        assert "far" in running.guards
        result = await running.ask("?", agent="a", budget=2)
        assert str(result.status) == "completed"
    assert server.ended


async def test_who_does_not_come_holds_up_nobody_and_is_picked_up_later():
    server = Server(after=60)
    began = asyncio.get_running_loop().time()
    async with app(server, "near") as running:
        assert asyncio.get_running_loop().time() - began == 5
        assert running.agents.get("a").tools.names == ("near",)
        assert str((await running.ask("?", agent="a", budget=2)).status) == "completed"
        await asyncio.sleep(60)
        assert running.agents.get("a").tools.names == ("near", "far")
        assert running.agents.get("b").tools.names == ("far",)
    assert server.ended


async def test_a_tool_of_ones_own_hides_one_that_a_server_brings():
    @tool(name="far")
    async def own() -> str:
        return "mine"

    server = Server(after=0)
    registry = ToolRegistry([own], sources=[server])
    server.tools = {"far": far, "other": near}
    assert registry.get("far") is own
    assert registry.names == ("far", "other")
    assert len(registry.without(["far"])) == 1
    assert [one.name for one in registry.specs] == ["far", "near"]
