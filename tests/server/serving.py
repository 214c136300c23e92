"""A real server on loopback for the tests of this folder, with a small agent whose tools can hang."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp

from failsoft.app import App
from failsoft.base.errors import BadInput
from failsoft.config import Settings
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import RulesPlanner
from failsoft.server.serving import HttpServer, listen_on
from failsoft.tools.python import tool
from failsoft.tools.registry import ToolContext


@tool(downstream="warehouse")
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool(downstream="warehouse")
async def hang() -> int:
    """Never answers."""
    await asyncio.get_running_loop().create_future()
    return 0


@tool(downstream="threads")
def stubborn(context: ToolContext) -> int:
    """A plain function that does not look at its cancellation until it is let go."""
    LET_GO.wait(15)
    return 1


@tool(downstream="odd")
async def odd() -> int:
    """Fails with an error that holds what JSON cannot."""
    details: dict[Any, Any] = {
        "nan": float("nan"),
        "half": "\ud83d",
        "object": object(),
        "deep": [{"inf": float("inf")}],
        1: 2,
    }
    raise BadInput("half a character: \ud83d", details=details)


LET_GO = threading.Event()


def plan_for(request) -> Plan | None:
    """Plans by a word of the question."""
    if request.input.startswith("unanswerable"):
        raise BadInput("half a character: \ud83d", param="input", details={"nan": float("nan"), "object": object()})
    tasks = {
        "add": [TaskSpec(id="sum", tool="add", arguments={"a": 2, "b": 3})],
        "hang": [TaskSpec(id="sum", tool="add", arguments={"a": 2, "b": 3}), TaskSpec(id="slow", tool="hang")],
        "odd": [TaskSpec(id="odd", tool="odd")],
        "stubborn": [TaskSpec(id="slow", tool="stubborn")],
    }.get(request.input.split()[0])
    return None if tasks is None else Plan(tasks=tuple(tasks), reading=f"read as {request.input}")


def agent() -> Agent:
    return Agent("adder", "Adds numbers.", tools=[add, hang, stubborn, odd], planners=[RulesPlanner(plan_for)])


@dataclass
class Served:
    """A running server and a client for it."""

    app: App
    server: HttpServer
    client: aiohttp.ClientSession
    port: int

    async def post(self, body: Any = None, *, raw: bytes | None = None, path: str = "/v1/runs", **headers: str):
        data = raw if raw is not None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(f"{self.server.address}{path}", data=data, headers=named) as response:
            return response.status, response.headers, await response.json()

    async def get(self, path: str, **headers: str):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.get(f"{self.server.address}{path}", headers=named) as response:
            return response.status, response.headers, await response.json()

    async def raw(self, sent: bytes, *, wait: float = 5.0) -> bytes:
        """Sends bytes and reads until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            return await asyncio.wait_for(reader.read(), wait)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(*, store: Any = "off", agents: Iterable[Agent] = (), **settings: Any):
    """Runs the server until the block ends; checks that its end leaves nothing."""
    door = {"log": "off", **settings.pop("server", {"drain": 1})}
    made = Settings.model_validate({"agent": "adder", "server": door, "gateway": {"log": "off"}, **settings})
    sock = listen_on("127.0.0.1", 0)
    async with App(made, agents=[agent(), *agents], store=store) as app:
        server = HttpServer(app, sock)
        task = asyncio.create_task(server.serve_until_stopped())
        await until(lambda: server.started)
        try:
            async with aiohttp.ClientSession() as client:
                yield Served(app, server, client, sock.getsockname()[1])
        finally:
            server.stop()
            await asyncio.wait_for(task, 10)


async def until(condition, seconds: float = 5.0) -> float:
    """Waits until `condition()`; gives the seconds it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < seconds, "waited in vain"
        await asyncio.sleep(0.005)
    return loop.time() - began


async def events_of(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    """The data of every event of a stream, with its id under ``"id"``."""
    found = []
    identity = None
    async for line in response.content:
        text = line.decode().rstrip("\n")
        if text.startswith("id: "):
            identity = text[4:]
        elif text.startswith("data: "):
            found.append({**json.loads(text[6:]), "id": identity})
            identity = None
    return found
