"""A failure to connect keeps what kind it is, so that it can be read for what it is."""

import asyncio
import socket
import struct
import threading
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from failsoft.base.errors import DownstreamUnavailable
from failsoft.base.transport import HttpRequest
from failsoft.models.failures import read_failure
from failsoft.transports.aiohttp_transport import AiohttpTransport, _fault


@asynccontextmanager
async def answering(answer):
    """A server that reads something, writes `answer` (None: resets the connection) and hangs up."""

    async def serve(reader, writer):
        await reader.read(100)
        if answer is None:
            linger = struct.pack("ii", 1, 0)  # close by a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        else:
            writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await listening.wait_closed()
        await asyncio.sleep(0.01)


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("answer", "scheme", "fault"),
    [
        (None, "http", "reset"),
        (b"", "http", "reset"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "http", "garbage"),
        (b"\x15\x03\x01\x00\x02\x02\x28" * 3, "http", "garbage"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "https", "tls"),
        (b"HTTP/1.1 302 X\r\nlocation: /a\r\ncontent-length: 0\r\n\r\n", "http", "redirects"),
    ],
)
async def test_the_kind_of_failure_is_kept(answer, scheme, fault):
    async with answering(answer) as port:
        await fails(HttpRequest("GET", f"{scheme}://127.0.0.1:{port}/", redirects=int(fault == "redirects")), fault)


@pytest.mark.realtime
@pytest.mark.parametrize(("url", "fault"), [("http://127.0.0.1:1/", "refused"), ("nonsense", "url")])
async def test_nobody_there(url, fault):
    await fails(HttpRequest("GET", url), fault)


@pytest.mark.realtime
async def test_a_server_that_takes_no_connections_is_left_at_the_connect_limit():
    with socket.socket() as deaf:  # a full backlog: the system drops what comes
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(deaf.getsockname())
            began = asyncio.get_running_loop().time()
            await fails(HttpRequest("GET", f"http://127.0.0.1:{deaf.getsockname()[1]}/", connect=0.3), "timeout")
            assert 0.25 < asyncio.get_running_loop().time() - began < 1.5
        finally:
            for one in waiting:
                one.close()


@pytest.mark.realtime
async def test_a_tls_handshake_that_never_ends_is_within_the_connect_limit():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began = asyncio.get_running_loop().time()
        await fails(HttpRequest("GET", f"https://127.0.0.1:{mute.getsockname()[1]}/", connect=0.3), "timeout")
        assert 0.25 < asyncio.get_running_loop().time() - began < 1.5


@pytest.mark.realtime
async def test_a_name_that_is_looked_up_without_end_is_within_the_connect_limit():
    ended = threading.Event()

    def hang(host, port, family):
        ended.wait(5.0)
        raise OSError("at last")

    began = asyncio.get_running_loop().time()
    try:
        await fails(HttpRequest("GET", "http://models.test/", connect=0.3), "timeout", look_up=hang)
        assert 0.25 < asyncio.get_running_loop().time() - began < 1.5
    finally:
        ended.set()


async def fails(request, fault, **options):
    transport = AiohttpTransport(**options)
    try:
        with pytest.raises(DownstreamUnavailable) as failed:
            async with transport.send(request):
                pass
    finally:
        await transport.aclose()
    assert failed.value.details["fault"] == fault
    assert read_failure(failed.value).name == {
        "url": "misrouted",
        "redirects": "misrouted",
        "timeout": "connect_late",
    }.get(fault, fault)


KEY = ConnectionKey("h", 1, False, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "Name or service not known")), "dns"),
        (aiohttp.ClientConnectorError(KEY, OSError(113, "No route to host")), "unreachable"),
        (aiohttp.ClientConnectorError(KEY, TimeoutError()), "timeout"),
        (aiohttp.ConnectionTimeoutError(), "timeout"),
        (aiohttp.ClientConnectorCertificateError(KEY, ValueError("expired")), "tls"),
        (BrokenPipeError(), "reset"),
        (aiohttp.ClientError("odd"), "unreachable"),
    ],
)
def test_what_cannot_be_had_on_loopback(error, fault):
    assert _fault(error) == fault
