"""HTTP tools against a real, hostile server on loopback: bombs, floods, redirects to places inside."""

import asyncio
import gzip
import time
import tracemalloc
import zlib
from contextlib import asynccontextmanager

import pytest

from failsoft.base.errors import AddressRefused, CallTimeout, DownstreamError, FailsoftError, MalformedResult
from failsoft.kernel.guard import Kernel
from failsoft.tools.http import http_tool
from failsoft.tools.registry import ResultTooLarge, ToolContext

pytestmark = pytest.mark.realtime


def bomb(kind: str) -> bytes:
    """60 MB of zeros, packed; twice for what may have several members."""
    if kind == "deflate":
        return zlib.compress(bytes(60_000_000), 9)
    return gzip.compress(bytes(30_000_000), 9) * 2


@pytest.fixture(scope="module")
def bombs():
    return {kind: bomb(kind) for kind in ("gzip", "deflate")}


@asynccontextmanager
async def serving(answers):
    """`answers` maps a path to a function of the writer."""
    seen = []

    serving_now = set()

    async def serve(reader, writer):
        serving_now.add(asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            seen.append(head.split()[1])
            await answers[head.split()[1]](writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", seen
    finally:
        listening.close()
        for one in serving_now:
            one.cancel()
        await asyncio.gather(*serving_now, return_exceptions=True)


def sends(*parts):
    async def send(writer):
        for part in parts:
            writer.write(part if isinstance(part, bytes) else part.encode())
            await writer.drain()

    return send


async def floods(writer):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def floods_headers(writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-a: " + b"y" * 4_000 + b"\r\n")
        await writer.drain()


async def drips(writer):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def silence(writer):
    await asyncio.sleep(60)


async def get(url, **options):
    options.setdefault("allow", ["loopback"])
    tool = http_tool("get", url, **{"timeout": 1.0, "kind": "external", **options})
    kernel = Kernel()
    try:
        return await tool.call(kernel.guard("get"), {}, ToolContext.current())
    finally:
        await kernel.aclose()


async def test_a_bomb_is_not_unpacked(bombs):
    answers = {
        f"/{kind}/{status}": sends(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-encoding: {kind}\r\n"
            f"content-length: {len(packed)}\r\n\r\n",
            packed,
        )
        for kind, packed in bombs.items()
        for status in (200, 400)
    }
    async with serving(answers) as (url, _):
        tracemalloc.start()
        try:
            for path in answers:
                with pytest.raises(ResultTooLarge if path.endswith("200") else DownstreamError):
                    await get(url + path, timeout=10)
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


async def test_floods_and_garbage_end_bounded_and_named():
    head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    cases = {
        "/flood": (floods, ResultTooLarge),
        "/headers": (floods_headers, DownstreamError),
        "/drips": (drips, CallTimeout),
        "/silence": (silence, CallTimeout),
        "/garbage": (sends(b"\x16\x03\x01\x02\x00" * 100), DownstreamError),
        "/cut": (sends(head, "content-length: 100\r\n\r\n[1,"), DownstreamError),
        "/lies": (sends(head, "content-length: -5\r\n\r\n[]"), DownstreamError),
        "/broken chunk": (sends(head, "transfer-encoding: chunked\r\n\r\nZZ\r\n[]"), DownstreamError),
        "/not gzip": (sends(head, "content-encoding: gzip\r\ncontent-length: 4\r\n\r\n[1,2"), DownstreamError),
        "/nothing": (sends(b""), DownstreamError),
    }
    cases = {path.replace(" ", "-"): case for path, case in cases.items()}
    async with serving({path: how for path, (how, _) in cases.items()}) as (url, _):
        for path, (_, error) in cases.items():
            began = time.monotonic()
            with pytest.raises(error) as caught:
                await get(url + path)
            assert isinstance(caught.value, FailsoftError), path
            assert caught.value.downstream == "get", path
            assert time.monotonic() - began < 3, path


async def test_loopback_and_what_leads_there_are_refused():
    async with serving({"/": sends("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]")}) as (url, seen):
        port = url.rpartition(":")[2]
        for target in (url, f"http://localhost:{port}", f"http://[::ffff:127.0.0.1]:{port}"):
            with pytest.raises(AddressRefused) as caught:
                await get(target + "/", allow=[])
            assert caught.value.downstream == "get"
        assert seen == []
        assert await get(url + "/") == []


async def test_a_redirect_inside_is_refused_although_the_first_address_was_allowed():
    answers = {}
    async with serving(answers) as (url, seen):
        port = url.rpartition(":")[2]
        for target in (f"http://127.0.0.2:{port}/x", f"http://[::1]:{port}/x", "http://169.254.169.254/latest"):
            answers["/"] = sends(f"HTTP/1.1 302 X\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n")
            with pytest.raises(AddressRefused):
                await get(url + "/", allow=["127.0.0.1"])
        assert set(seen) == {"/"}
        answers["/"] = sends(f"HTTP/1.1 302 X\r\nlocation: {url}/\r\ncontent-length: 0\r\n\r\n")
        with pytest.raises(MalformedResult, match="more than 3 times"):
            await get(url + "/")
