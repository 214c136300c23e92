"""The proxy in front of a real server: every toxic on the wire, faults as leases, control while it runs."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from tests.lazy import Lazy

from failsoft.base.errors import BadInput, DownstreamUnavailable, NotFound
from failsoft.drills.faults import parse_toxic
from failsoft.drills.leases import LeaseBook
from failsoft.drills.proxy import DrillProxy, Target, parse_target
from failsoft.drills.proxy_control import control, held
from failsoft.drills.toxics import KINDS
from failsoft.testing.upstream import ANSWER, FakeUpstream

openai = Lazy("openai")

BODY = {"model": "ok", "messages": [{"role": "user", "content": "hi"}]}
COMMAND = Path(sys.executable).parent / "failsoft"


def target_of(upstream):
    return Target("127.0.0.1", int(re.search(r":(\d+)/", upstream.base_url)[1]))


class Fronted:
    """An upstream, the proxy before it, and clients."""

    def __init__(self, upstream, proxy):
        self.upstream, self.proxy = upstream, proxy
        host, port = proxy.address
        self.url = f"http://{host}:{port}/v1"

    async def post(self, *, stream=False, seconds=3.0):
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{self.url}/chat/completions", json={**BODY, "stream": stream}) as response,
        ):
            return response.status, dict(response.headers), await response.read()


class _Fronting:
    def __init__(self, *toxics, tcp=False):
        self.toxics, self.tcp = toxics, tcp

    async def __aenter__(self):
        self.upstream = FakeUpstream()
        await self.upstream.__aenter__()
        self.proxy = await DrillProxy(target_of(self.upstream), tcp=self.tcp, seed=1).__aenter__()
        for text in self.toxics:
            self.proxy.faults.add(parse_toxic(text))
        return Fronted(self.upstream, self.proxy)

    async def __aexit__(self, *exc):
        await self.proxy.aclose()
        await self.upstream.aclose()


def now():
    return asyncio.get_running_loop().time()


def fronted(*toxics, tcp=False):
    return _Fronting(*toxics, tcp=tcp)


# --- without a fault --------------------------------------------------------------------------------------------------


@pytest.mark.realtime
async def test_without_a_fault_everything_passes_whole_streamed_and_on_one_connection():
    async with fronted() as front, aiohttp.ClientSession() as session:
        for stream in (False, True, False):
            async with session.post(f"{front.url}/chat/completions", json={**BODY, "stream": stream}) as response:
                assert response.status == 200
                text = await response.text()
            assert (text.endswith("data: [DONE]\n\n")) is stream
        assert front.proxy.connections == 1
        async with session.get(f"{front.url}/models") as response:
            assert (await response.json())["data"][0]["id"] == "ok"
        big = {**BODY, "messages": [{"role": "user", "content": "x" * 900_000}]}
        async with session.post(f"{front.url}/chat/completions", json=big) as response:
            assert response.status == 200
        assert len(front.upstream.requests[-1].body["messages"][0]["content"]) == 900_000


@pytest.mark.realtime
async def test_a_client_that_leaves_is_gone_for_the_upstream_too():
    async with fronted() as front:
        front.upstream.hold = 30.0
        with pytest.raises(TimeoutError):
            await front.post(seconds=0.2)
        for _ in range(200):
            if not front.upstream.busy:
                break
            await asyncio.sleep(0.01)
        assert (front.upstream.busy, front.upstream.closed_early) == (0, 1)


# --- each toxic -------------------------------------------------------------------------------------------------------

ANSWERS = {
    "http_error:status=502": (502, b"injected"),
    "error:code=unavailable": (503, b"injected"),
    "error_under_200": (200, b"overloaded"),
    "empty_200": (200, b""),
    "garbage": (200, b"\xff"),
    "rate_limit:retry_after=7": (429, b"slow down"),
}


@pytest.mark.realtime
@pytest.mark.parametrize("text", ANSWERS)
async def test_answers_in_the_upstreams_place(text):
    async with fronted(text) as front:
        status, headers, body = await front.post()
        assert (status, ANSWERS[text][1] in body) == (ANSWERS[text][0], True)
        assert front.upstream.count == 0
        if status == 429:
            assert headers["Retry-After"] == "7"


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("refuse", aiohttp.ServerDisconnectedError),
        ("reset", aiohttp.ClientOSError),
        ("cut:after=20", aiohttp.ClientError),
        ("wrong_length", aiohttp.ClientError),
    ],
)
async def test_connections_that_end_badly(text, error):
    async with fronted(text) as front:
        with pytest.raises(error):
            await front.post()


SLOW = {
    "latency:delay=300ms": 0.3,
    "jitter:up_to=600ms": 0.0,
    "slow_first_byte:delay=300ms": 0.3,
    "bandwidth:bytes_per_second=1000": 0.25,
    "drip:size=50,every=50ms": 0.25,
}


@pytest.mark.realtime
@pytest.mark.parametrize("text", SLOW)
async def test_what_only_takes_longer(text):
    async with fronted(text) as front:
        began = now()
        status, _, body = await front.post()
        assert now() - began >= SLOW[text]
        assert status == 200
        assert json.loads(body)["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.realtime
async def test_streams_that_stall_and_streams_without_an_end():
    async with fronted("stall:after=3") as front:
        with pytest.raises(TimeoutError):
            await front.post(stream=True, seconds=0.4)
    async with fronted("no_finish_reason") as front:
        _, _, body = await front.post(stream=True)
        assert b"lazy" in body
        assert b'"stop"' not in body
        assert b"[DONE]" not in body
        _, _, whole = await front.post()
        assert json.loads(whole)["choices"][0]["finish_reason"] is None


@pytest.mark.realtime
async def test_a_hang_ends_with_its_fault():
    async with fronted() as front:
        lease = front.proxy.faults.add(parse_toxic("hang"), seconds=0.3)
        began = now()
        status, _, _ = await front.post()
        assert status == 200
        assert 0.25 < now() - began < 2.0
        assert (lease.seen, lease.struck, len(front.proxy.faults)) == (1, 1, 0)


def test_every_toxic_is_tried_on_the_wire():
    tried = {text.partition(":")[0] for text in (*ANSWERS, *SLOW)}
    tried |= {"refuse", "reset", "cut", "wrong_length", "stall", "no_finish_reason", "hang"}
    assert tried == set(KINDS)


@pytest.mark.realtime
async def test_shares_are_drawn_for_each_exchange_on_one_connection():
    async with fronted("http_error:share=0.3") as front, aiohttp.ClientSession() as session:
        statuses = []
        for _ in range(60):
            async with session.post(f"{front.url}/chat/completions", json=BODY) as response:
                statuses.append(response.status)
                await response.read()
        assert 8 <= statuses.count(503) <= 30
        assert statuses.count(200) + statuses.count(503) == 60


@pytest.mark.realtime
async def test_bytes_of_any_protocol():
    async with fronted("latency:delay=200ms", tcp=True) as front:
        began = now()
        status, _, _ = await front.post()
        assert status == 200
        assert now() - began > 0.2
    async with fronted("cut:after=30", tcp=True) as front:
        with pytest.raises(aiohttp.ClientError):
            await front.post()
    async with fronted(tcp=True) as front:
        with pytest.raises(BadInput, match="rate_limit is for HTTP"):
            front.proxy.faults.add(parse_toxic("rate_limit"))


# --- leases -----------------------------------------------------------------------------------------------------------


async def test_leases_end_by_themselves_unless_renewed():
    book = LeaseBook()
    one, other = book.add(parse_toxic("hang"), seconds=5.0), book.add(parse_toxic("reset"), seconds=5.0)
    await asyncio.sleep(4.0)
    book.renew(one.id, 5.0)
    await asyncio.sleep(2.0)
    assert [lease.id for lease in book] == [one.id]
    assert (one.term.is_set(), other.term.is_set()) == (False, True)
    await asyncio.sleep(4.0)
    assert (len(book), one.term.is_set()) == (0, True)
    with pytest.raises(NotFound):
        book.renew(one.id, 1.0)


async def test_leases_are_bounded():
    book = LeaseBook()
    for seconds in (0.0, -1.0, 3601.0):
        with pytest.raises(BadInput, match="a lease is more than 0"):
            book.add(parse_toxic("hang"), seconds=seconds)
    for _ in range(64):
        book.add(parse_toxic("hang"))
    with pytest.raises(BadInput, match="64 faults"):
        book.add(parse_toxic("hang"))
    book.close()
    assert len(book) == 0


@pytest.mark.realtime
async def test_control_over_http():
    async with fronted() as front, control(front.proxy) as url, aiohttp.ClientSession() as session:

        async def asked(method, path, body=None):
            async with session.request(method, url + path, json=body) as response:
                return response.status, None if response.status == 204 else await response.json()

        status, made = await asked("POST", "/toxics", {"toxic": "latency:share=0.05,delay=20s", "lease": "30s"})
        assert (status, made["toxic"], made["lease_s"]) == (201, "latency:delay=20,share=0.05", 30.0)
        assert [one["id"] for one in (await asked("GET", "/toxics"))[1]["toxics"]] == [made["id"]]
        assert (await asked("POST", f"/toxics/{made['id']}/renew", {"lease": 90}))[1]["lease_s"] == 90.0
        assert (await asked("DELETE", f"/toxics/{made['id']}"))[0] == 204
        assert (await asked("DELETE", f"/toxics/{made['id']}"))[0] == 404
        for body, param in (({"toxic": "odd"}, "toxic"), ({"toxic": "hang", "lease": "0"}, "lease"), ({"x": 1}, "x")):
            status, told = await asked("POST", "/toxics", body)
            assert (status, told["error"]["param"]) == (400, param)
        assert len(front.proxy.faults) == 0


@pytest.mark.realtime
async def test_a_holder_takes_its_faults_away_and_tells_when_nobody_is_there():
    async with fronted() as front, control(front.proxy) as url:
        async with held(url, ["http_error"], lease=0.3):
            await asyncio.sleep(0.5)  # longer than the lease: it was renewed
            assert (await front.post())[0] == 503
        assert (await front.post())[0] == 200
    with pytest.raises(DownstreamUnavailable, match="control does not answer"):
        async with held("http://127.0.0.1:9", ["hang"]):
            pass


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("127.0.0.1:80", Target("127.0.0.1", 80)),
        ("http://example.com", Target("example.com", 80, False, "example.com")),
        ("https://api.example.com/v1", Target("api.example.com", 443, True, "api.example.com")),
        ("http://[::1]:8080", Target("::1", 8080, False, "[::1]:8080")),
    ],
)
def test_targets_as_people_write_them(text, target):
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "example.com", "ftp://x:1", "x:y", ":80", "x:99999"])
def test_what_is_no_target_is_told(text):
    with pytest.raises(BadInput, match="should be HOST:PORT"):
        parse_target(text)


# --- the command, a real client, and a drill that is killed -----------------------------------------------------------


async def started(*arguments):
    process = await asyncio.create_subprocess_exec(COMMAND, "drill", *arguments, stdout=asyncio.subprocess.PIPE)
    line = await asyncio.wait_for(process.stdout.readline(), 15)
    return process, line.decode()


@pytest.mark.deep
@pytest.mark.realtime
@pytest.mark.timeout(60)
async def test_the_command_under_the_openai_client_scripted_while_it_runs_and_a_killed_drill_leaves_nothing():
    async with FakeUpstream() as upstream:
        target = target_of(upstream)
        proxy, line = await started("proxy", "--listen", "127.0.0.1:0", "--to", f"127.0.0.1:{target.port}", "--json")
        try:
            told = json.loads(line)
            client = openai.AsyncOpenAI(base_url=f"http://{told['address']}/v1", api_key="x", max_retries=0)

            async def asked(**options):
                return await client.chat.completions.create(**BODY, **options)

            assert (await asked()).choices[0].message.content == ANSWER
            async with held(told["control"], ["rate_limit:retry_after=3"]):
                with pytest.raises(openai.RateLimitError) as caught:
                    await asked()
                assert caught.value.response.headers["Retry-After"] == "3"
            async with held(told["control"], ["stall:after=3"]):
                seen = []
                with pytest.raises(openai.APITimeoutError):
                    async for chunk in await asked(stream=True, timeout=0.5):
                        seen += [chunk.choices[0].delta.content]
                assert 0 < len(seen) <= 3

            drill, line = await started(
                "hold", "--control", told["control"], "--toxic", "http_error", "--lease", "600ms"
            )
            assert line == "holding toxic-3\n"
            await asyncio.sleep(0.8)  # renewed once at least
            with pytest.raises(openai.InternalServerError):
                await asked()
            os.kill(drill.pid, signal.SIGKILL)
            await drill.wait()
            await asyncio.sleep(0.7)
            assert (await asked()).choices[0].message.content == ANSWER
            await client.close()
        finally:
            proxy.terminate()
            assert await asyncio.wait_for(proxy.wait(), 10) == 0


@pytest.mark.realtime
async def test_other_machines_are_let_in_only_when_asked():
    process = await asyncio.create_subprocess_exec(
        COMMAND, "drill", "proxy", "--listen", "0.0.0.0:0", "--to", "127.0.0.1:1", stderr=asyncio.subprocess.PIPE
    )
    _, told = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 2
    assert b"add --expose" in told
