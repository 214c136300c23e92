"""What clients may do to a connection: send ahead, leave unread, leave unsent, offer another protocol, break off."""

import asyncio
import json
import socket
import struct

import pytest
from tests.server.serving import serving, until

from failsoft.server import protocol

pytestmark = pytest.mark.realtime

LIVE = b"GET /health/liveness HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /health/liveness HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def asking(what: str, *headers: bytes, **more) -> bytes:
    body = json.dumps({"input": what, **more}).encode()
    head = b"".join(header + b"\r\n" for header in headers)
    return b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), head, body)


def statuses(answer: bytes) -> list[bytes]:
    return [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("ahead", [LIVE, asking("hang"), b"GET /heal"])
async def test_a_client_that_has_sent_ahead_is_missed_when_it_goes(ahead):
    async with serving() as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(asking("hang", budget_ms=20_000) + ahead)
        await until(lambda: served.app.guards["warehouse"].statistics().in_use == 1)
        writer.close()
        assert await until(lambda: served.app.guards["warehouse"].statistics().in_use == 0) < 0.2 + 0.3
        assert served.app.runs == []


async def test_requests_sent_ahead_are_answered_in_their_order_up_to_a_bound():
    async with serving() as served:
        assert statuses(await served.raw(LIVE * 3 + asking("add") + LAST)) == [b"200"] * 5
        flood = await served.raw(asking("add") + LIVE * 5000)
        assert statuses(flood) == [b"200"] * (protocol.AHEAD + 1)


async def test_what_was_asked_properly_is_answered_when_nonsense_follows():
    async with serving() as served:
        answer = await served.raw(asking("add") + b"\x00\x01nonsense\r\n\r\n")
        assert statuses(answer) == [b"200"]
        assert b'"status":"completed"' in answer
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(asking("hang", budget_ms=400))
        await until(lambda: served.app.guards["warehouse"].statistics().in_use == 1)
        writer.write(b"GET /" + b"a" * 60_000)
        assert statuses(await asyncio.wait_for(reader.read(), 5)) == [b"200"]
        writer.close()


async def test_a_body_that_is_broken_gets_one_answer():
    async with serving() as served:
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert statuses(await served.raw(head % b"/v1/runs" + b"zz\r\n")) == [b"400"]
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(head % b"/nowhere")
        assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 404")
        writer.write(b"zz\r\n")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


@pytest.mark.parametrize("offer", [b"h2c", b"websocket", b"H2C, foo"])
async def test_an_offer_of_another_protocol_is_passed_over(offer):
    """As Java's client makes it with every request, by default."""
    async with serving() as served:
        upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAEAAEAAAAIAAAAB", b"upgrade: " + offer)
        answer = await served.raw(asking("add", *upgrade) + LIVE + LAST)
        assert statuses(answer) == [b"200"] * 3
        assert b'"status":"completed"' in answer


async def test_an_offer_that_comes_in_pieces_costs_the_connection_and_no_answer():
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /health/liveness HTTP/1.1\r\nHost: x\r\nUpg")
        await asyncio.sleep(0.05)
        writer.write(b"rade: h2c\r\nConnection: Upgrade\r\n\r\n" + LIVE)
        answer = await asyncio.wait_for(reader.read(), 5)
        assert statuses(answer) == [b"200"]
        assert b"connection: close" in answer
        writer.close()


async def test_trailers_are_bounded_and_are_no_headers():
    async with serving() as served:
        head = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        body = b'f\r\n{"input":"add"}\r\n0\r\n'
        answer = await served.raw(head + body + b"X-Max-Wait: nonsense\r\n\r\n")
        assert statuses(answer) == [b"200"]
        assert statuses(await served.raw(head + body + b"A: b\r\n" * 10_000 + b"\r\n")) == [b"400"]


@pytest.mark.parametrize("request_line", [b"POST /nowhere", b"DELETE /v1/runs", b"GET /health/liveness"])
async def test_who_is_answered_before_all_was_sent_does_not_keep_the_connection(request_line, monkeypatch):
    monkeypatch.setattr(protocol, "REST_SECONDS", 0.1)
    async with serving() as served:
        answer = await served.raw(request_line + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc")
        assert len(statuses(answer)) == 1
        complete = request_line + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        assert len(statuses(await served.raw(complete + complete + LAST))) == 3


async def test_who_reads_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.1)
    async with serving() as served:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", served.port))
            many = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * protocol.AHEAD

            async def asks_on() -> None:
                with pytest.raises((ConnectionResetError, BrokenPipeError)):
                    while True:
                        await asyncio.get_running_loop().sock_sendall(client, many)
                        await asyncio.sleep(0.01)

            await asyncio.wait_for(asks_on(), 15)
        await until(lambda: not served.server.server_state.connections)


async def test_clients_that_reset_leave_no_trace(caplog):
    async with serving() as served:
        for pause in (0, 0, 0, 0.001, 0.005, 0.02, 0.05):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(asking("hang") + LIVE * 3)
            await asyncio.sleep(pause)
            client = writer.get_extra_info("socket")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        await until(lambda: not served.server.server_state.connections and not served.app.runs)
        assert served.app.guards["warehouse"].statistics().in_use == 0
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
