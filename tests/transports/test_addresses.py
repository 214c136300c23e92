"""Which addresses may be connected to, and that no name, redirect or second look-up gets around it."""

import asyncio
import socket
import threading
from contextlib import asynccontextmanager

import pytest
from aiohttp.abc import ResolveResult

from failsoft.base.addresses import AddressRule
from failsoft.base.errors import AddressRefused, DownstreamUnavailable
from failsoft.base.transport import HttpRequest
from failsoft.transports.aiohttp_transport import AiohttpTransport
from failsoft.transports.names import Names

PUBLIC = AddressRule()


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "2002:101:101::"])
def test_public_addresses_are_allowed(address):
    assert PUBLIC.refusal(address) is None


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1"),
        *("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "192.0.2.1", "::", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::127.0.0.1"),
        *("::ffff:0:127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::"),
        *("2002:a9fe:a9fe::1", "2001:0:1::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254"),
        *("ff02::1", "2001:db8::1", "nonsense", "", "127.1", "0x7f.0.0.1"),
    ],
)
def test_all_others_are_refused(address):
    assert PUBLIC.refusal(address)


def test_what_is_allowed_besides():
    private = AddressRule(("private",))
    assert private.refusal("10.0.0.1") is None
    assert private.refusal("fd12::1") is None
    assert private.refusal("::ffff:10.0.0.1") is None
    assert private.refusal("127.0.0.1") == "a loopback address"
    assert private.refusal("169.254.169.254") == "a link-local or metadata address"
    assert private.refusal("fd00:ec2::254") == "a link-local or metadata address"
    loopback = AddressRule(("loopback",))
    assert loopback.refusal("127.0.0.1") is None
    assert loopback.refusal("::1") is None
    assert loopback.refusal("::ffff:127.0.0.1") is None
    assert loopback.refusal("10.0.0.1")
    network = AddressRule(("10.1.0.0/16", "169.254.169.254"))
    assert network.refusal("10.1.2.3") is None
    assert network.refusal("::ffff:10.1.2.3") is None
    assert network.refusal("10.2.0.1")
    assert network.refusal("169.254.169.254") is None


@pytest.mark.parametrize("word", ["everything", "10.0.0.0/33", ""])
def test_a_rule_that_means_nothing_is_refused(word):
    with pytest.raises(ValueError, match="no network"):
        AddressRule((word,))


# --- on real sockets ---


@asynccontextmanager
async def served(look_up=None):
    """A server on 127.0.0.1 that redirects as its path says; a transport that resolves by `look_up`."""
    seen = []

    async def serve(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        seen.append(path)
        if path.startswith("/to/"):
            writer.write(f"HTTP/1.1 302 X\r\nlocation: {path[4:]}\r\ncontent-length: 0\r\n\r\n".encode())
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    transport = AiohttpTransport(look_up=look_up, trust_env=True)
    try:
        yield port, transport, seen
    finally:
        await transport.aclose()
        listening.close()
        await listening.wait_closed()
        await asyncio.sleep(0.01)


def answer(*addresses):
    def look_up(host, port, family):
        return [
            ResolveResult(hostname=host, host=one, port=port, family=socket.AF_INET, proto=6, flags=0)
            for one in addresses
        ]

    return look_up


async def get(transport, url, rule=PUBLIC, **more):
    async with transport.send(HttpRequest("GET", url, addresses=rule, **more)) as response:
        return await response.read(100)


@pytest.mark.realtime
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::ffff:127.0.0.1]", "[::1]", "name.test", "localhost.", "169.254.169.254", "0x7f.1"]
)
async def test_a_refused_address_is_not_connected_to(host):
    async with served(answer("127.0.0.1")) as (port, transport, seen):
        with pytest.raises(AddressRefused):
            await get(transport, f"http://{host}:{port}/x")
        assert seen == []


@pytest.mark.realtime
@pytest.mark.parametrize("host", ["2130706433", "127.1", "0177.0.0.1", "127.0.0.1%00", "①②⑦.⓪.⓪.①"])
async def test_other_ways_to_write_an_address_lead_nowhere(host):
    async with served(answer("127.0.0.1")) as (port, transport, seen):
        with pytest.raises((AddressRefused, DownstreamUnavailable)):
            await get(transport, f"http://{host}:{port}/x")
        assert seen == []


@pytest.mark.realtime
async def test_a_redirect_to_a_refused_address_is_not_followed():
    rule = AddressRule(("127.0.0.1",))
    async with served(answer("127.0.0.2")) as (port, transport, seen):
        for target in (f"http://127.0.0.2:{port}/x", f"http://inside.test:{port}/x"):
            with pytest.raises(AddressRefused):
                await get(transport, f"http://127.0.0.1:{port}/to/{target}", rule, redirects=3)
        assert all(path.startswith("/to/") for path in seen)
        with pytest.raises(DownstreamUnavailable):
            await get(transport, f"http://127.0.0.1:{port}/to/file:///etc/passwd", rule, redirects=3)


@pytest.mark.realtime
async def test_the_address_that_was_judged_is_the_one_that_is_connected_to():
    meanings = [["127.0.0.1"], ["127.0.0.2"]]  # the name means something else the second time it is asked for
    asked = []

    def rebinding(host, port, family):
        asked.append(host)
        return answer(*meanings[min(len(asked), 2) - 1])(host, port, family)

    rule = AddressRule(("127.0.0.1",))
    async with served(rebinding) as (port, transport, seen):
        assert await get(transport, f"http://name.test:{port}/a", rule) == b"ok"
        assert (seen, asked) == (["/a"], ["name.test"])
        fresh = AiohttpTransport(look_up=rebinding)
        with pytest.raises(AddressRefused, match=r"name\.test"):
            await get(fresh, f"http://name.test:{port}/b", rule)
        await fresh.aclose()


@pytest.mark.realtime
async def test_of_several_addresses_only_the_allowed_ones_are_tried():
    async with served(answer("127.0.0.2", "127.0.0.1", "10.0.0.1")) as (port, transport, _):
        assert await get(transport, f"http://name.test:{port}/a", AddressRule(("127.0.0.1",))) == b"ok"


@pytest.mark.realtime
async def test_a_proxy_of_the_environment_is_not_asked_when_there_is_a_rule(monkeypatch):
    async with served(answer("127.0.0.1")) as (port, transport, seen):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(AddressRefused):
            await get(transport, "http://10.0.0.1/secret", AddressRule(("127.0.0.1",)))
        assert seen == []


# --- look-ups ---


async def test_hanging_look_ups_are_bounded():
    release = threading.Event()

    def hangs(host, port, family):
        release.wait(10)
        return []

    names = Names(None, hangs, under_way=2)
    asking = [asyncio.ensure_future(names.resolve(f"h{n}")) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="2 name look-ups"):
        await names.resolve("h3")
    for one in asking:
        one.cancel()  # nobody waits any more, but the threads are still there
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="2 name look-ups"):
        await names.resolve("h3")
    release.set()
    await asyncio.sleep(1)
    assert await names.resolve("h3") == []
    await names.close()


@pytest.mark.realtime
@pytest.mark.parametrize("host", ["a" * 70 + ".test", "nul\0.test"])
async def test_a_name_that_is_none_is_an_error_like_any_other(host):
    def refused(host, port, family):
        host.encode("idna")
        raise OSError("no such name")

    with pytest.raises(OSError):  # noqa: PT011 - whatever it says
        await Names(None, refused).resolve(host)


@pytest.mark.realtime
async def test_the_system_knows_localhost():
    found = await Names(AddressRule(("loopback",))).resolve("localhost", 80)
    assert {one["host"] for one in found} <= {"127.0.0.1", "::1"}
    with pytest.raises(AddressRefused, match="localhost"):
        await Names(PUBLIC).resolve("localhost", 80)
