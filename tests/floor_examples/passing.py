"""Small tests that must pass: what the guards allow. Run by test_floor.py, not collected by itself."""

import asyncio
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


async def test_an_hour_passes_at_once():
    loop, wall = asyncio.get_running_loop(), time.monotonic()
    start = loop.time()
    await asyncio.sleep(3600)
    assert loop.time() == start + 3600
    assert time.monotonic() - wall < 10


@pytest.mark.realtime
async def test_time_really_passes():
    start = time.monotonic()
    await asyncio.sleep(0.05)
    assert time.monotonic() - start >= 0.049


@settings(database=None)
@given(st.integers())
async def test_property(number):
    await asyncio.sleep(1)
    assert number == number + 0


async def test_tasks_in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(1))


def test_blocks_off_the_loop():
    time.sleep(0.01)


async def test_blocks_in_a_thread():
    await asyncio.to_thread(time.sleep, 0.01)


@pytest.mark.realtime
async def test_blocks_in_a_thread_in_real_time():
    await asyncio.to_thread(time.sleep, 0.01)


@pytest.mark.realtime
async def test_starts_a_process():
    process = await asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0


async def test_imports_on_first_use():
    sys.modules.pop("colorsys", None)
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0)


async def test_takes_a_free_lock():
    with threading.Lock():
        pass


@pytest.mark.may_block(reason="shows the mark")
async def test_blocks_for_a_reason():
    time.sleep(0.01)


@pytest.mark.realtime
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_talks_over_loopback(host):
    async def echo(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(host, server.sockets[0].getsockname()[1])
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()
