"""A platform in a process of its own, for drills that stop processes: served over HTTP, its downstreams behind HTTP.

``python -m failsoft.drills.served`` reads a scenario (JSON, one line) from standard input, serves until it is
terminated, and prints two lines: its address, and what its breakers did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any, Final, Self

import aiohttp
from aiohttp import web

from failsoft.app import App
from failsoft.base.clock import Sources
from failsoft.base.errors import DownstreamUnavailable, InternalError
from failsoft.base.events import Event
from failsoft.drills.backends import Backend
from failsoft.drills.baseline.platform import NaivePlatform
from failsoft.drills.platforms import desk, settings_for
from failsoft.drills.requests import Reply, Request, parsed
from failsoft.drills.scenario import RunSpec, Scenario
from failsoft.kernel.guard import Guard
from failsoft.runs.answer import Answer, Parts
from failsoft.server.listening import listen_on, loop_factory
from failsoft.server.serving import HttpServer

__all__ = ["ServedPlatform"]

_START: Final = 60.0
"""Seconds that the process may take to listen."""


class RemoteBackend:
    """A downstream of the drill, asked over HTTP."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession) -> None:
        self.name = name
        self._url = url
        self._session = session

    async def query(self, key: int) -> dict[str, Any]:
        """Asks for the value of `key`."""
        try:
            async with self._session.get(f"{self._url}/{self.name}/{key}") as response:
                found: dict[str, Any] = await response.json()
                if response.status != 200:
                    raise DownstreamUnavailable(f"status {response.status}")
                return found
        except aiohttp.ClientError as error:
            raise DownstreamUnavailable(f"connection failed: {type(error).__name__}") from error


@asynccontextmanager
async def serving_backends(backends: Mapping[str, Backend]) -> AsyncIterator[str]:
    """The downstreams on a loopback port; gives its URL."""

    async def query(request: web.Request) -> web.StreamResponse:
        try:
            value = await backends[request.match_info["name"]].query(int(request.match_info["key"]))
        except OSError:
            return web.json_response({}, status=503)
        return web.json_response(value)

    application = web.Application()
    application.router.add_get("/{name}/{key}", query)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


# --- the side of the drill --------------------------------------------------------------------------------------------


class ServedPlatform:
    """A platform in another process: asked over HTTP, stopped and continued by signals."""

    def __init__(self, scenario: Scenario, backends: Mapping[str, Backend], seed: int, *, which: str) -> None:
        self._scenario = scenario
        self._backends = backends
        self._seed = seed
        self._which = which
        self._stack = AsyncExitStack()
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession
        self._url = ""
        self.breakers: list[tuple[float, str, str]] = []
        self.guards: Mapping[str, Guard] = {}
        self.extra = 0

    async def __aenter__(self) -> Self:
        url = await self._stack.enter_async_context(serving_backends(self._backends))
        command = [sys.executable, "-m", "failsoft.drills.served", self._which, url, "--seed", str(self._seed)]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._stack.push_async_callback(self._end)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._scenario.model_dump_json(by_alias=True).encode() + b"\n")
        async with asyncio.timeout(_START):
            line = await self._process.stdout.readline()
        if not line:
            raise InternalError("the platform's process did not start")
        self._url = json.loads(line)["address"]
        connector = aiohttp.TCPConnector(limit=0)
        self._session = await self._stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self.resume()
            self._process.kill()
            await self._process.wait()

    async def aclose(self) -> None:
        """See :meth:`__aexit__`."""
        await self._stack.aclose()

    async def finish(self) -> None:
        """Ends the process, and hears what its breakers did."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        process.terminate()
        async with asyncio.timeout(30.0):
            line = await process.stdout.readline()
            await process.wait()
        self.breakers = [(at, name, new) for at, name, new in json.loads(line or b"[]")]

    def stop(self) -> None:
        """SIGSTOP: from now on it does nothing at all."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def measure(self) -> None:
        """Nothing is counted in the other process."""

    async def ask(self, request: Request) -> Reply:
        """One run over HTTP."""
        body = {"input": request.text, "budget_ms": request.budget * 1000}
        async with self._session.post(f"{self._url}/v1/runs", json=body) as response:
            told = await response.json()
        if response.status != 200:
            return Reply("failed", {}, str(response.status))
        return Reply(told["status"], json.loads(told["answer"] or "{}"))


# --- the process ------------------------------------------------------------------------------------------------------


def _values(parts: Parts) -> Answer:
    return Answer(json.dumps(parts.values), says_shortfalls=True)


async def _serve(which: str, url: str, seed: int, scenario: Scenario) -> None:
    sock = listen_on("127.0.0.1", 0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        backends = {name: RemoteBackend(name, url, session) for name in scenario.downstreams}
        if which == "baseline":
            platform = NaivePlatform(scenario.baseline, backends)
            await _serve_naive(platform, scenario, sock)
            breakers = platform.breakers
        else:
            breakers = await _serve_failsoft(scenario, backends, seed, sock)
    sys.stdout.write(json.dumps(breakers) + "\n")
    sys.stdout.flush()


def _listening(address: str) -> None:
    sys.stdout.write(json.dumps({"address": address}) + "\n")
    sys.stdout.flush()


async def _serve_failsoft(
    scenario: Scenario, backends: Mapping[str, RemoteBackend], seed: int, sock: socket.socket
) -> list[tuple[float, str, str]]:
    breakers: list[tuple[float, str, str]] = []

    def note(event: Event) -> None:
        if event.kind.startswith("breaker."):
            breakers.append((event.at, event.downstream or "", event.kind.removeprefix("breaker.")))

    sources = Sources(rng=Random(f"{seed}/failsoft"))
    async with App(settings_for(scenario), agents=[desk(backends, answer=_values)], sources=sources) as app:
        app.bus.add(note)
        server = HttpServer(app, sock, on_listening=_listening)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
        await server.serve_until_stopped()
    return breakers


async def _serve_naive(platform: NaivePlatform, scenario: Scenario, sock: socket.socket) -> None:
    spec = RunSpec(draw=1)

    async def run(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        question = Request(0, spec, parsed(asked["input"]), asked["budget_ms"] / 1000, uses=False)
        try:
            reply = await platform.ask(question)
        except Exception as error:  # noqa: BLE001 - as a naive platform does
            return web.json_response({"error": type(error).__name__}, status=500)
        if reply.status == "failed":
            return web.json_response({}, status=int(reply.code))
        return web.json_response({"status": reply.status, "answer": json.dumps(reply.values)})

    application = web.Application()
    application.router.add_post("/v1/runs", run)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    try:
        await web.SockSite(runner, sock, backlog=1024).start()
        host, port = sock.getsockname()[:2]
        _listening(f"http://{host}:{port}")
        await stopped.wait()
    finally:
        await runner.cleanup()
        await platform.aclose()


def _end_with_drill() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Serves one platform for one arm of a drill."""
    parser = argparse.ArgumentParser(prog="python -m failsoft.drills.served")
    parser.add_argument("which", choices=["baseline", "failsoft"])
    parser.add_argument("url")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.setpgrp()  # a group of its own in the drill's session: should that die while we are stopped, the system ends us
    scenario = Scenario.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with_drill, daemon=True, name="drill").start()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(given.which, given.url, given.seed, scenario))


if __name__ == "__main__":
    main()
