"""What goes straight onto a connection is what the session would have sent, and ends as it would have ended."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from failsoft.base.errors import DownstreamUnavailable, StreamCut
from failsoft.base.transport import HttpRequest
from failsoft.transports.aiohttp_transport import AiohttpTransport
from failsoft.transports.straight import Straight

pytestmark = pytest.mark.realtime

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer:
    """Keeps what it is sent, as it came; ``answer`` is what each request gets, ``reads`` whether bodies are read."""

    def __init__(self):
        self.requests = []
        self.connections = 0
        self.left = asyncio.Event()
        self.answer = OK
        self.reads = True
        self.url = ""

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                body = await reader.readexactly(size) if self.reads else b""
                self.requests.append((head, body))
                writer.write(self.answer)
                await writer.drain()
                if not self.reads:
                    await self.left.wait()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.left.set()
            writer.close()


@asynccontextmanager
async def peer(**options):
    one = Peer()
    listening = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/chat?a=b%20c"
    transport = AiohttpTransport(**options)
    try:
        yield one, transport
    finally:
        await transport.aclose()
        listening.close()
        await listening.wait_closed()
        await asyncio.sleep(0.01)


def lines(head):
    return sorted(line.lower() for line in head.split(b"\r\n") if line)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "application/json", "Authorization": "Bearer k", "X-Request-ID": "r1"},
        {"user-agent": "mine", "Accept": "text/event-stream", "accept-encoding": "identity", "Host": "elsewhere"},
    ],
)
async def test_it_sends_what_the_session_would(headers):
    headers = {"Content-Type": "application/json", **headers}
    async with peer() as (one, transport):
        for redirects in (0, 1):  # the second goes through the session
            request = HttpRequest("POST", one.url, headers, b'{"a": 1}', redirects=redirects)
            async with transport.send(request) as response:
                assert (response.status, await response.read(10)) == (200, b"ok")
        (straight, body), (usual, other) = one.requests
        assert lines(straight) == lines(usual)
        assert body == other
        assert one.connections == 1, "both ways share the pool"


@pytest.mark.parametrize(
    ("request_", "environment"),
    [
        (HttpRequest("GET", "http://a/", body=b"x"), False),
        (HttpRequest("POST", "http://a/"), False),
        (HttpRequest("POST", "http://a/", body=b"x", redirects=1), False),
        (HttpRequest("POST", "http://me:secret@a/", body=b"x"), False),
        (HttpRequest("POST", "nonsense", body=b"x"), False),
        (HttpRequest("POST", "http://a/", body=b"x"), True),
    ],
)
async def test_all_that_is_not_plain_goes_through_the_session(request_, environment):
    import aiohttp

    async with aiohttp.ClientSession(trust_env=environment) as session:
        assert Straight(session).shape_of(request_) is None


async def test_header_values_cannot_bring_headers_of_their_own():
    async with peer() as (one, transport):
        for value in ("a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0"):
            with pytest.raises(ValueError, match="header"):
                async with transport.send(HttpRequest("POST", one.url, {"X-A": value}, b"x")):
                    pass
        assert one.requests == []


async def test_the_shapes_of_requests_are_bounded():
    import aiohttp

    async with aiohttp.ClientSession() as session:
        straight = Straight(session)
        for number in range(200):
            assert straight.shape_of(HttpRequest("POST", f"http://a/{number}", body=b"x")) is not None
        assert repr(straight) == "<Straight shapes=64>"


async def test_early_hints_are_not_the_answer():
    async with peer() as (one, transport):
        one.answer = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK
        async with transport.send(HttpRequest("POST", one.url, body=b"x")) as response:
            assert (response.status, await response.read(10)) == (200, b"ok")


@pytest.mark.parametrize(
    ("answer", "fault"),
    [(b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "garbage"), (b"", "reset")],
)
async def test_what_is_no_answer_is_told_as_what_it_is(answer, fault):
    async with peer() as (one, transport):
        one.answer, one.reads = answer, bool(answer)
        if not answer:
            one.left.set()
        with pytest.raises(DownstreamUnavailable) as failed:
            async with transport.send(HttpRequest("POST", one.url, body=b"x")):
                pass
        assert failed.value.details["fault"] == fault


async def test_a_body_that_breaks_off_is_a_cut():
    async with peer() as (one, transport):
        one.answer, one.reads = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nok", False
        one.left.set()
        with pytest.raises(StreamCut):
            async with transport.send(HttpRequest("POST", one.url, body=b"x")) as response:
                await response.read(1_000)


async def test_an_answer_that_comes_before_the_request_has_left_ends_the_connection():
    async with peer() as (one, transport):
        one.reads = False  # a refusal of a body that nobody reads: the rest of it must not become the next request
        async with transport.send(HttpRequest("POST", one.url, body=b"x" * 30_000_000)) as response:
            assert await response.read(10) == b"ok"
        one.left.set()
        one.reads = True
        async with transport.send(HttpRequest("POST", one.url, body=b"y")) as response:
            assert await response.read(10) == b"ok"
        assert one.connections == 2
        assert one.requests[-1][1] == b"y"


@pytest.mark.parametrize("begun", [False, True])
async def test_cancelling_closes_the_connection_at_once(begun):
    async with peer() as (one, transport):
        one.answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n" if begun else b""

        async def post():
            async with transport.send(HttpRequest("POST", one.url, body=b"x")) as response:
                await response.read(100)

        task = asyncio.ensure_future(post())
        await asyncio.sleep(0.1)
        assert not one.left.is_set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(one.left.wait(), 0.5)


async def test_the_pool_bounds_the_connections():
    async with peer(connections=2) as (one, transport):

        async def post():
            async with transport.send(HttpRequest("POST", one.url, body=b"x")) as response:
                return await response.read(10)

        assert await asyncio.gather(*(post() for _ in range(20))) == [b"ok"] * 20
        assert one.connections <= 2
