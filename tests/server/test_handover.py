"""Case 57 for what outlives the process: the server ends in time, its background runs go on in the next one."""

import asyncio

import aiohttp
import pytest
from tests.runs.outliving import LastingStore
from tests.server.serving import agent, until

from failsoft.app import App
from failsoft.config import Settings
from failsoft.server.serving import HttpServer, listen_on

pytestmark = pytest.mark.realtime


async def test_a_server_that_ends_hands_its_background_runs_on_and_lets_their_watchers_go():
    store = LastingStore()
    settings = Settings.model_validate(
        {"agent": "adder", "server": {"drain": 0.3, "log": "off"}, "gateway": {"log": "off"}}
    )
    sock = listen_on("127.0.0.1", 0)
    async with App(settings, agents=[agent()], store=store) as app:
        server = HttpServer(app, sock)
        serving = asyncio.create_task(server.serve_until_stopped())
        await until(lambda: server.started)
        async with aiohttp.ClientSession() as client:
            body = {"input": "hang", "background": True, "budget_ms": 1_200_000}
            async with client.post(f"{server.address}/v1/runs", json=body) as response:
                assert response.status == 202
                run_id = (await response.json())["run_id"]
            async with client.get(f"{server.address}/v1/runs/{run_id}/events") as watching:
                first = asyncio.create_task(watching.content.read())
                await until(lambda: len((app.run(run_id) or app.runs[0]).tasks()) == 2)
                began = asyncio.get_running_loop().time()
                server.stop()
                await asyncio.wait_for(serving, 10)
                assert asyncio.get_running_loop().time() - began < 4
                assert b"RUN_FINISHED" not in await first
    stored = await store.load_run(run_id)
    assert stored is not None
    assert (stored.node, stored.terminal, stored.record.background) == ("", None, True)
    assert [name for name, task in stored.tasks.items() if task.status == "completed"] == ["sum"]
    async with App(settings, agents=[agent()], store=store) as other:
        await until(lambda: other.run(run_id) is not None)
        handle = other.run(run_id)
        assert handle is not None
        await until(lambda: len(handle.tasks()) == 2)
        assert handle.cancel()
        await handle.written()
    stored = await store.load_run(run_id)
    assert stored is not None
    assert (stored.terminal, stored.epoch) == ("cancelled", 2)
