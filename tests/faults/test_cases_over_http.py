"""Cases 16 and 21 over real sockets: what a client or a proxy does to a run that waits for something silent."""

import asyncio
import contextlib
import json

import aiohttp
import pytest
from tests.server.serving import events_of, serving, until

from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner
from failsoft.tools.http import http_tool
from failsoft.tools.python import tool

pytestmark = pytest.mark.realtime


class Silent:
    """A server that takes requests and never says a word; counts its open connections."""

    def __init__(self) -> None:
        self.open = self.taken = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.taken += 1
        try:
            while await reader.read(65_536):
                pass
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


@contextlib.asynccontextmanager
async def listening(serve):
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("stream", [False, True])
async def test_case_16_when_the_client_goes_every_upstream_connection_of_its_run_is_closed(stream):
    paid = []

    @tool(kind="action")
    async def pay() -> None:
        """Pays."""
        paid.append(1)

    silent = Silent()
    async with listening(silent.serve) as port:
        asking = [
            http_tool(f"ask{i}", f"http://127.0.0.1:{port}/{i}", downstream=f"d{i}", allow=["127.0.0.1"])
            for i in range(3)
        ]
        tasks = [TaskSpec(id=f"t{i}", tool=f"ask{i}") for i in range(3)]
        tasks.append(TaskSpec(id="pay", tool="pay", needs=("t0",), tolerates_missing=True))
        asker = Agent("asker", "Asks.", [*asking, pay], [StaticPlanner(Plan(tasks=tuple(tasks)))])
        async with serving(agents=[asker]) as served:
            body = json.dumps({"input": "q", "agent": "asker", "stream": stream, "budget_ms": 60_000}).encode()
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await until(lambda: silent.open == 3)
            (handle,) = served.app.runs
            writer.close()
            assert await until(lambda: silent.open == 0) < 0.2
            await until(lambda: handle.done)
            assert str(handle.state) == "cancelled"
    assert (silent.taken, paid) == (3, [])


class IdleProxy:
    """A proxy that closes a connection on which the server has been silent for `idle` seconds."""

    def __init__(self, port: int, idle: float) -> None:
        self.port = port
        self.idle = idle

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self.port)

        async def requests() -> None:
            while data := await reader.read(65_536):
                to_upstream.write(data)

        sending = asyncio.create_task(requests())
        try:
            while data := await asyncio.wait_for(upstream.read(65_536), self.idle):
                writer.write(data)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            to_upstream.close()
            writer.close()


@pytest.mark.parametrize(("heartbeat", "ends"), [(0.1, True), (30.0, False)])
async def test_case_21_heartbeats_keep_a_silent_stream_open_through_a_proxy_that_closes_idle_ones(heartbeat, ends):
    """Told at a fifteenth of the time: the proxy closes after 0.6 s, the model is silent for 1.5 s."""
    async with serving(server={"heartbeat": heartbeat, "drain": 1}) as served:
        proxy = IdleProxy(served.port, 0.6)
        async with listening(proxy.serve) as port, aiohttp.ClientSession() as client:
            asked = {"input": "hang", "stream": True, "budget_ms": 1_500, "on_disconnect": "continue"}
            events = []
            with contextlib.suppress(aiohttp.ClientPayloadError):
                async with client.post(f"http://127.0.0.1:{port}/v1/runs", json=asked) as response:
                    events = await events_of(response)
        finished = [event["type"] for event in events if event["type"] in {"RUN_FINISHED", "RUN_ERROR"}]
        assert finished == (["RUN_FINISHED"] if ends else [])
        for handle in served.app.runs:
            await handle.result()
