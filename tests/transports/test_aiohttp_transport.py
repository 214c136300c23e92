"""The aiohttp transport against a real server on loopback."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from failsoft.base.errors import DownstreamUnavailable
from failsoft.base.transport import HttpRequest, Transport
from failsoft.testing.contracts import check_transport
from failsoft.testing.fakes import FakeTransport
from failsoft.transports.aiohttp_transport import AiohttpTransport

pytestmark = pytest.mark.realtime


class Server:
    """Speaks just enough HTTP; ``closed`` is set when a client that was kept waiting hangs up."""

    def __init__(self):
        self.closed = asyncio.Event()
        self.connections = 0
        self.url = ""

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.decode().split(" ", 2)
                length = next(
                    (
                        int(line.split(":")[1])
                        for line in head.decode().lower().split("\r\n")
                        if line.startswith("content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                if path == "/hang":
                    await reader.read()
                    self.closed.set()
                    return
                if path == "/drip":
                    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
                    await writer.drain()
                    await reader.read()
                    self.closed.set()
                    return
                answer = {
                    "/echo": (200, method.encode() + b" " + body, ""),
                    "/status/503": (503, b"", "retry-after: 7\r\n"),
                    "/redirect": (302, b"", "location: /echo\r\n"),
                    "/large": (200, b"x" * 100_000, ""),
                    "/cut": (200, b"x" * 10, ""),
                }[path]
                size = 1_000 if path == "/cut" else len(answer[1])
                writer.write(
                    f"HTTP/1.1 {answer[0]} X\r\n{answer[2]}content-length: {size}\r\n\r\n".encode() + answer[1]
                )
                await writer.drain()
                if path == "/cut":
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def served():
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    transport = AiohttpTransport()
    try:
        yield server, transport
    finally:
        await transport.aclose()
        listening.close()
        await listening.wait_closed()
        await asyncio.sleep(0.01)


async def test_the_contract_of_transports():
    async with served() as (server, transport):
        assert isinstance(transport, Transport)
        await check_transport(transport, server.url)


async def test_cancelling_the_head_or_the_body_closes_the_connection_at_once():
    async with served() as (server, transport):
        for path in ("/hang", "/drip"):
            server.closed.clear()

            async def get(path=path):
                async with transport.send(HttpRequest("GET", server.url + path)) as response:
                    await response.read(100)

            task = asyncio.ensure_future(get())
            await asyncio.sleep(0.1)
            assert not server.closed.is_set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.closed.wait(), 0.5)


async def test_leaving_before_the_end_closes_the_connection():
    async with served() as (server, transport):
        async with transport.send(HttpRequest("GET", server.url + "/drip")) as response:
            async for chunk in response.chunks():
                assert chunk == b"x"
                break
        await asyncio.wait_for(server.closed.wait(), 0.5)


async def test_a_connection_is_used_again_and_each_downstream_has_its_own():
    async with served() as (server, transport):
        for downstream in ("a", "a", "a", "b"):
            async with transport.send(HttpRequest("GET", server.url + "/echo", downstream=downstream)) as response:
                await response.read(100)
        assert server.connections == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://", "nonsense", "http://127.0.0.1:1 /"])
async def test_what_cannot_be_reached_is_unavailable(url):
    transport = AiohttpTransport()
    with pytest.raises(DownstreamUnavailable):
        async with transport.send(HttpRequest("GET", url)):
            pass
    await transport.aclose()


async def test_the_fake_is_a_transport():
    assert isinstance(FakeTransport(), Transport)
