"""examples/guard_only.py, against a server of our own: it answers, retries, and gives up in time."""

import asyncio
import importlib
import sys
from dataclasses import replace

import pytest
from aiohttp import web

pytestmark = pytest.mark.realtime


@pytest.fixture
def example():
    sys.modules.pop("examples.guard_only", None)
    return importlib.import_module("examples.guard_only")


async def served(handler):
    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/"


async def test_it_answers(example):
    async def handler(request):
        return web.Response(text="all well")

    runner, url = await served(handler)
    assert await example.main(url) == "all well"
    await runner.cleanup()


async def test_a_connection_that_is_dropped_is_tried_again(example):
    seen = []

    async def handler(request):
        seen.append(1)
        if len(seen) <= 2:  # aiohttp itself tries once more, too
            request.transport.abort()
        return web.Response(text="in the end")

    runner, url = await served(handler)
    assert await example.main(url) == "in the end"
    assert example.api.statistics().retries == 1
    await runner.cleanup()


async def test_a_server_that_hangs_is_left_in_time_and_the_reason_is_told(example):
    policy = example.api.policy
    example.api.reconfigure(replace(policy, attempt_timeout=0.2, call_timeout=0.3))

    async def handler(request):
        while request.transport is not None:  # noqa: ASYNC110 - until the client has gone
            await asyncio.sleep(0.01)
        return web.Response()

    runner, url = await served(handler)
    told = await example.main(url)
    assert told.startswith("no answer, and why: <AttemptTimeout attempt_timeout downstream='api': api: the")
    await runner.cleanup()


async def test_a_refusal_of_the_server_is_told_and_not_tried_again(example):
    async def handler(request):
        return web.Response(status=404)

    runner, url = await served(handler)
    assert "404" in await example.main(url)
    assert example.api.statistics().attempts == 1
    await runner.cleanup()
