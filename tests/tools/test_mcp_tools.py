"""MCP servers as tools: kept up, watched, let go of; two real ones and many broken ones."""

import asyncio
import json
import os
import random
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from failsoft.base.clock import Sources
from failsoft.base.errors import (
    BadInput,
    CallTimeout,
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    FailsoftError,
    ToolFailed,
    UnknownTool,
)
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.tools.mcp import McpServer
from failsoft.tools.registry import ResultTooLarge, ToolContext, ToolRegistry

pytestmark = pytest.mark.realtime

STUB = str(Path(__file__).with_name("mcp_stub.py"))


def stub(tmp_path, mode="good", **options):
    options.setdefault("pause", 0.05)
    options.setdefault("sources", Sources(rng=random.Random(1)))
    return McpServer("stub", command=[sys.executable, "-I", STUB, str(tmp_path / "log"), mode], **options)


class Run:
    """A server kept up, a registry that has it, and a kernel."""

    def __init__(self, server):
        self.server = server
        self.registry = ToolRegistry(sources=[server])
        self.kernel = Kernel()
        self.guard = self.kernel.guard(server.downstream, Policy(breaker=None))

    async def call(self, name, context=None, **arguments):
        tool = self.registry.get(name)
        return await tool.call(self.guard, arguments, context or ToolContext.current())

    async def pid(self):
        command = list(self.server._command)
        return await asyncio.to_thread(pid_of, command[-1], command[2])


def pid_of(*words):
    """The process whose command line has all of `words`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if all(word.encode() in line for word in words):
                return int(entry.name)
    return None


@asynccontextmanager
async def running(server, within=15):
    one = Run(server)
    task = asyncio.create_task(server.run())
    try:
        if within:
            async with asyncio.timeout(within):
                await server.ready()
        yield one
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled()
        await one.kernel.aclose()
        assert server.status().state == "closed"


async def heard(tmp_path):
    text = await asyncio.to_thread((tmp_path / "log").read_text)
    return [json.loads(line) for line in text.splitlines()]


async def until(condition, within=10):
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.02)


# --- what works ----------------------------------------------------------------------------------------------------


async def test_its_tools_are_offered_and_called(tmp_path):
    async with running(stub(tmp_path, trust_hints=True, kinds={"die": "external"}, approval=["fail"])) as one:
        assert "stub_echo" in one.registry.names
        spec = one.registry.get("stub_echo").spec
        assert (spec.description, spec.kind, spec.downstream, spec.timeout) == ("The echo tool.", "query", "stub", 30.0)
        kinds = {spec.name: spec.kind for spec in one.registry.specs}
        assert (kinds["stub_die"], kinds["stub_hang"]) == ("external", "action")
        assert one.registry.get("stub_fail").spec.approval
        status = one.server.status()
        assert (status.state, status.tools, status.starts) == ("ready", 13, 1)
        assert "no JSON schema" in status.skipped["odd name!"]
        assert await one.call("stub_echo", text="é") == "é"
        assert await one.call("stub_structured") == {"n": 1}
        with pytest.raises(BadInput, match="lacks the argument 'text'"):
            await one.call("stub_echo")
        with pytest.raises(ToolFailed, match="no such file"):
            await one.call("stub_fail")
        with pytest.raises(DownstreamError, match="it broke$"):
            await one.call("stub_error")
        with pytest.raises(ResultTooLarge, match="stub_big"):
            await one.call("stub_big")
        answers = await asyncio.gather(*(one.call("stub_echo", text=str(n)) for n in range(20)))
        assert answers == [str(n) for n in range(20)]
        lists = [request for request in await heard(tmp_path) if request.get("method") == "tools/list"]
        assert len(lists) == 1  # discovery is not on a call's time


async def test_progress_is_reported_and_does_not_extend_the_limit(tmp_path):
    seen = []
    async with running(stub(tmp_path)) as one:
        context = ToolContext(report=lambda fraction, text: seen.append((fraction, text)))
        assert await one.call("stub_slow", context) == "done"
        await until(lambda: bool(seen))
        assert seen[0] == (0.0, "step 0")
        assert set(seen) <= {(0.0, "step 0"), (0.25, "step 1"), (0.5, "step 2"), (0.75, "step 3")}
        assert seen == sorted(seen)


async def test_at_the_limit_the_server_is_told(tmp_path):
    async with running(stub(tmp_path, timeout=0.3)) as one:
        began = time.monotonic()
        with pytest.raises(CallTimeout):
            await one.call("stub_hang")
        assert time.monotonic() - began < 2
        task = asyncio.ensure_future(one.call("stub_hang"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await one.call("stub_echo", text="still there") == "still there"
        requests = await heard(tmp_path)
        hangs = [r["id"] for r in requests if r.get("params", {}).get("name") == "hang"]
        told = [r["params"]["requestId"] for r in requests if r.get("method") == "notifications/cancelled"]
        assert told == hangs
        assert len(hangs) == 2
        assert one.server._calls == set()


async def test_new_tools_are_seen(tmp_path):
    async with running(stub(tmp_path)) as one:
        assert await one.call("stub_more") == "ok"
        await until(lambda: "stub_late" in one.registry)


async def test_only_some_tools_are_taken(tmp_path):
    async with running(stub(tmp_path, only=["echo"], prefix="")) as one:
        assert one.registry.names == ("echo",)
        with pytest.raises(UnknownTool, match="there are: echo"):
            one.registry.get("slow")


async def test_a_chatty_server_works_and_secrets_stay_out(tmp_path, monkeypatch):
    monkeypatch.setenv("OTHER_TOKEN", "secret")
    async with running(stub(tmp_path, "chatty", env={"MODE_TOKEN": "given"})) as one:
        assert await one.call("stub_echo", text="x") == "x"
        pid = await one.pid()
        environ = await asyncio.to_thread(Path(f"/proc/{pid}/environ").read_bytes)
        assert b"OTHER_TOKEN" not in environ
        assert b"MODE_TOKEN=given" in environ


# --- what breaks ---------------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("die", "lost in mid-call|exit code 7|has ended"),
        ("half", "lost in mid-call"),
        ("garbage", "lost in mid-call"),
        ("flood", "lost in mid-call"),
        ("spam", "lost in mid-call: it wrote more than 200 messages a second"),
    ],
)
async def test_lost_in_mid_call_fails_at_once_and_the_next_call_is_served(tmp_path, name, why):
    async with running(stub(tmp_path)) as one:
        began = time.monotonic()
        others = [asyncio.ensure_future(one.call("stub_hang")) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(DownstreamUnavailable, match=why):
            await one.call(f"stub_{name}")
        for other in await asyncio.gather(*others, return_exceptions=True):
            assert isinstance(other, DownstreamUnavailable)
        assert time.monotonic() - began < 15  # the limit is 30
        assert "stub_echo" in one.registry  # it is still known what there was
        await until(lambda: one.server.status().state == "ready")
        assert await one.call("stub_echo", text="again") == "again"
        assert one.server.status().starts == 2


async def test_a_server_that_cannot_start_is_tried_again_with_growing_pauses(tmp_path):
    async with running(stub(tmp_path, "exits"), within=0) as one:
        await until(lambda: one.server.status().starts >= 3)
        status = one.server.status()
        assert status.tools == 0
        assert "exit code 3" in status.why or "has ended" in status.why or status.state == "starting"
        await until(lambda: one.server.status().state == "down")
        assert "cannot find my configuration" in one.server.status().said
        with pytest.raises(UnknownTool):
            one.registry.get("stub_echo")


@pytest.mark.parametrize("mode", ["silent", "slow list"])
async def test_a_silent_server_is_given_up_in_time(tmp_path, mode):
    async with running(stub(tmp_path, mode, start=0.5, pause=60), within=0) as one:
        began = time.monotonic()
        await until(lambda: one.server.status().state == "down")
        assert time.monotonic() - began < 8
        assert "not ready within 0.5 s" in one.server.status().why
        assert one.server.status().next_try > 20
        assert await one.pid() is None


async def test_an_endless_list_of_tools_ends(tmp_path):
    async with running(stub(tmp_path, "endless")) as one:
        assert one.server.status().tools >= 1


async def test_what_is_no_program_is_told():
    server = McpServer("none", command=["/nowhere/at-all"], pause=60)
    async with running(server, within=0):
        await until(lambda: server.status().state == "down")
        assert "cannot be started: No such file" in server.status().why


async def test_a_stubborn_server_is_killed_with_the_app(tmp_path):
    async with running(stub(tmp_path, "stubborn")) as one:
        assert await one.call("stub_echo", text="x") == "x"
        assert await one.pid() is not None
    assert await one.pid() is None


def test_a_declaration_that_is_wrong_is_refused():
    for options in ({}, {"command": ["x"], "url": "http://x"}, {"command": []}, {"command": "x"}, {"url": "ftp://x"}):
        with pytest.raises(BadInput):
            McpServer("x", **options)
    with pytest.raises(BadInput, match="NOT_THERE"):
        McpServer("x", url="http://x", secrets={"Authorization": "Bearer ${NOT_THERE}"})


# --- over HTTP -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(answer):
    """A server that hands each request's JSON-RPC message to `answer(message, writer)`."""
    tasks = set()

    async def serve(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = [
                    line.split(":")[1] for line in head.lower().split("\r\n") if line.startswith("content-length")
                ]
                body = await reader.readexactly(int(length[0]) if length else 0)
                await answer(json.loads(body) if body else None, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def sent(writer, body, status="200 OK", kind="application/json"):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    writer.write(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)


async def good(message, writer, call=None):
    """Speaks the protocol; `call(message, writer)` serves calls."""
    if message is None or "id" not in message:
        return sent(writer, b"", "202 Accepted") if message else sent(writer, b"", "405 X")
    result = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        info = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "s", "version": "1"},
        }
        return sent(writer, {**result, "result": info})
    if message["method"] == "tools/list":
        tools = [{"name": "echo", "inputSchema": {"type": "object"}}]
        return sent(writer, {**result, "result": {"tools": tools}})
    if message["method"] == "tools/call":
        return await call(message, writer)
    return sent(writer, {**result, "error": {"code": -32601, "message": "Method not found"}})


async def floods(message, writer):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while True:
        writer.write(b"x" * 1_000_000)
        await writer.drain()


async def hangs_up(message, writer):
    writer.close()


async def hangs(message, writer):
    await asyncio.sleep(60)


async def truncates(message, writer):
    writer.write(
        b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 500\r\n\r\ndata: {"jsonrpc": "2'
    )
    await writer.drain()
    writer.close()


async def answers(message, writer):
    content = [{"type": "text", "text": "ok"}]
    sent(writer, {"jsonrpc": "2.0", "id": message["id"], "result": {"content": content}})


async def failing(message, writer):
    sent(writer, b"broken", "500 Oops", "text/plain")


async def html(message, writer):
    sent(writer, b"<html>", "200 OK", "text/html")


@pytest.mark.deep
async def test_http_servers_that_break_are_bounded_and_named():
    how = answers
    cases = {
        "500": (failing, FailsoftError),
        "html": (html, FailsoftError),
        "flood": (floods, FailsoftError),
        "hang up": (hangs_up, FailsoftError),
        "truncated": (truncates, FailsoftError),
        "silence": (hangs, CallTimeout),
    }

    async def answer(message, writer):
        await good(message, writer, how)

    async with serving(answer) as url, running(McpServer("http", url=url, timeout=1.5, pause=0.05)) as one:
        assert await one.call("http_echo") == "ok"
        for name, (way, error) in cases.items():
            how = way
            began = time.monotonic()
            with pytest.raises(error) as caught:
                await one.call("http_echo")
            assert caught.value.downstream == "http", name
            assert isinstance(caught.value, DownstreamUnavailable | DownstreamError | CallTimeout), name
            assert time.monotonic() - began < 4, name
            how = answers
            await until(lambda: one.server.status().state == "ready")
            assert await one.call("http_echo") == "ok", name
        assert one.server.status().starts == 1  # one broken answer is no lost connection: other calls go on


@pytest.mark.deep
async def test_http_servers_that_are_broken_from_the_start_are_tried_again():
    how = failing

    async def answer(message, writer):
        await how(message, writer)

    async def right(message, writer):
        await good(message, writer, answers)

    async with (
        serving(answer) as url,
        running(McpServer("http", url=url, start=0.6, pause=0.05, pause_max=0.1), within=0) as one,
    ):
        for way in (failing, hangs, floods, hangs_up, truncates, html):
            how, before = way, one.server.status().starts
            await until(lambda before=before: one.server.status().starts >= before + 2)
            assert one.server.status().tools == 0
        how = right
        await until(lambda: one.server.status().state == "ready")
        assert await one.call("http_echo") == "ok"


async def test_nobody_there_is_unavailable():
    async with running(McpServer("http", url="http://127.0.0.1:1/mcp", pause=60), within=0) as one:
        await until(lambda: one.server.status().state == "down")
        assert "ConnectError" in one.server.status().why


# --- real servers --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(90)
async def test_two_real_servers_one_of_them_killed_in_mid_call(tmp_path):
    await asyncio.to_thread(repository, tmp_path)
    clock = McpServer("time", command=[sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"], start=40,
                      pause=60)  # fmt: skip
    git = McpServer("git", command=[sys.executable, "-m", "mcp_server_git", "-r", str(tmp_path)], start=40)
    async with running(clock, 45) as one, running(git, 45) as other:
        converted = await one.call(
            "time_convert_time", source_timezone="Asia/Shanghai", time="08:00", target_timezone="UTC"
        )
        assert "00:00" in str(converted)
        assert "first words" in str(await other.call("git_git_log", repo_path=str(tmp_path), max_count=1))
        with pytest.raises((ToolFailed, DownstreamRejected), match="(?i)zone"):
            await one.call("time_get_current_time", timezone="Nowhere/Atall")
        pid = await asyncio.to_thread(pid_of, "mcp_server_time", "--local-timezone")
        os.kill(pid, signal.SIGSTOP)  # so that the call is surely under way
        task = asyncio.ensure_future(one.call("time_get_current_time", timezone="UTC"))
        await asyncio.sleep(0.1)
        assert not task.done()
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(DownstreamUnavailable, match="lost in mid-call|onnection"):
            await task
        assert time.monotonic() - began < 1.5
        assert "nothing to commit" in str(await other.call("git_git_status", repo_path=str(tmp_path)))


def repository(folder):
    import subprocess

    (folder / "a.txt").write_text("a")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "first words"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
