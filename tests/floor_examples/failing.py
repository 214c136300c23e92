"""Small tests that must fail; test_floor.py runs them and looks at why. Not collected by itself (no test_ name)."""

import asyncio
import contextlib
import random
import socket
import sqlite3
import threading
import time
import urllib.request
import warnings
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

LOOPS = pytest.mark.parametrize("", [pytest.param(id="virtual"), pytest.param(id="real", marks=pytest.mark.realtime)])
OUTSIDE = "192.0.2.1"  # TEST-NET-1 (RFC 5737): routed nowhere
NAME = "failsoft.invalid"
swallowed = contextlib.suppress(Exception)


async def test_wrong_in_async():
    assert 1 == 2, "async tests are really run"


@settings(database=None)
@given(st.integers(0, 100))
async def test_property(number):
    await asyncio.sleep(1)
    assert number < 50


@LOOPS
async def test_task_left_behind():
    asyncio.get_running_loop().kept = asyncio.create_task(asyncio.sleep(60))


def test_warning():
    warnings.warn("careless", stacklevel=1)


def test_forgotten_await():
    asyncio.sleep(1)


def test_error_in_a_thread():
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()


def test_socket_left_open():
    socket.socket()


async def test_exception_that_nobody_looked_at():
    future = asyncio.get_running_loop().create_future()
    future.set_exception(ValueError("forgotten"))
    del future


@LOOPS
async def test_sleeps_on_the_loop():
    with swallowed:
        time.sleep(0.01)


@LOOPS
async def test_queries_on_the_loop():
    with swallowed, contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("select 1")


@LOOPS
async def test_reads_a_file_on_the_loop():
    with swallowed:
        Path(__file__).read_bytes()


@LOOPS
async def test_writes_a_file_on_the_loop(tmp_path):
    with swallowed:
        (tmp_path / "x").write_text("x")


@LOOPS
async def test_waits_for_a_lock_on_the_loop():
    lock = threading.Lock()
    with lock, swallowed:
        lock.acquire(timeout=0.01)


def test_blocks_a_loop_of_its_own():
    async def block():
        time.sleep(0.01)

    with swallowed:
        asyncio.run(block())


@pytest.mark.may_block
async def test_may_block_without_a_reason():
    pass


def test_connects():
    with swallowed:
        socket.create_connection((OUTSIDE, 80), timeout=0.01)


def test_resolves():
    with swallowed:
        socket.getaddrinfo(NAME, 80)


def test_resolves_the_old_way():
    with swallowed:
        socket.gethostbyname(NAME)


def test_sends_a_datagram():
    with swallowed, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"", (OUTSIDE, 80))


def test_listens_on_all_addresses():
    with swallowed, socket.socket() as sock:
        sock.bind(("0.0.0.0", 0))


def test_fetches():
    with swallowed:
        urllib.request.urlopen(f"http://{NAME}/", timeout=0.01)


@pytest.mark.realtime
async def test_opens_a_connection():
    with swallowed:
        await asyncio.open_connection(OUTSIDE, 80)


@pytest.mark.realtime
async def test_requests():
    with swallowed:
        async with aiohttp.request("GET", f"http://{NAME}/"):
            pass


@pytest.mark.timeout(0.5)
def test_hangs():
    threading.Event().wait()


@pytest.mark.timeout(0.5)
@pytest.mark.realtime
async def test_hangs_on_the_loop():
    await asyncio.Event().wait()


async def test_hangs_in_virtual_time():
    await asyncio.Event().wait()


def test_randomness_is_seeded_by_the_command_line():
    pytest.fail(f"drawn: {random.random()}")
