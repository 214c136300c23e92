"""A strict client of chat completions and a gateway to ask: what the fault bench and the soak share.

The client believes nothing: it reads server-sent events line by line and notes whatever the format does not allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp


@dataclass
class Reply:
    """What a client got. ``problems`` is what a strict reader must object to, whatever else is right."""

    status: int = 0
    stream: bool = False
    text: str = ""
    finish: str | None = None
    done: bool = False
    error: dict[str, Any] | None = None
    seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether it says of itself that it is a complete answer."""
        if self.status != 200 or self.error is not None:
            return False
        return self.finish is not None and (self.done or not self.stream)


async def ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], *, budget: float, key: str | None = None
) -> Reply:
    """Asks and reads to the end, for a second beyond the budget at most."""
    reply = Reply(stream=bool(body.get("stream")))
    headers = {"X-Max-Wait": f"{budget:g}s", **({} if key is None else {"Authorization": f"Bearer {key}"})}
    began = time.perf_counter()
    try:
        async with asyncio.timeout(budget + 1.0), session.post(url, json=body, headers=headers) as response:
            reply.status = response.status
            reply.headers = {name.lower(): value for name, value in response.headers.items()}
            kind = reply.headers.get("content-type", "")
            if response.status == 200 and reply.stream:
                if not kind.startswith("text/event-stream"):
                    reply.problems.append(f"a stream of the type {kind!r}")
                await _events(response, reply)
            else:
                _whole(await response.read(), reply)
    except TimeoutError:
        reply.problems.append("still no end a second after the budget")
    except (aiohttp.ClientError, ConnectionError) as error:
        reply.problems.append(f"the connection broke: {type(error).__name__}")
    reply.seconds = time.perf_counter() - began
    return reply


async def _events(response: aiohttp.ClientResponse, reply: Reply) -> None:
    data: list[str] = []
    rest = b""
    async for piece in response.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for raw in lines:
            line = raw.decode("utf-8", "strict").removesuffix("\r")
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif line == "":
                if data:
                    _event("\n".join(data), reply)
                data = []
            elif not line.startswith(":"):
                reply.problems.append(f"no line of an event stream: {line[:60]!r}")
    if rest or data:
        reply.problems.append("the last event has no end")
    if not reply.done and reply.error is None:
        reply.problems.append("the stream ended with neither [DONE] nor an error")


def _event(data: str, reply: Reply) -> None:
    if reply.done or reply.error is not None:
        reply.problems.append("something came after the end")
    if data == "[DONE]":
        reply.done = True
        return
    try:
        chunk = json.loads(data)
    except ValueError:
        reply.problems.append(f"an event that is no JSON: {data[:60]!r}")
        return
    if "error" in chunk:
        _error(chunk, reply)
        return
    if chunk.get("object") != "chat.completion.chunk":
        reply.problems.append(f"a chunk that is none: {data[:60]!r}")
    for choice in chunk.get("choices") or ():
        reply.text += (choice.get("delta") or {}).get("content") or ""
        reply.finish = choice.get("finish_reason") or reply.finish


def _whole(body: bytes, reply: Reply) -> None:
    try:
        data = json.loads(body)
    except ValueError:
        reply.problems.append(f"a body that is no JSON: {body[:60]!r}")
        return
    if reply.status != 200 or "error" in data:
        _error(data, reply)
        return
    if data.get("object") != "chat.completion" or not data.get("choices"):
        reply.problems.append(f"no chat completion: {body[:60]!r}")
        return
    choice = data["choices"][0]
    reply.text = choice["message"].get("content") or ""
    reply.finish = choice.get("finish_reason")


def _error(data: Any, reply: Reply) -> None:
    error = data.get("error") if isinstance(data, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not {"type", "code"} <= set(error):
        reply.problems.append(f"an error that is not in OpenAI's shape: {str(data)[:80]}")
        error = {}
    reply.error = error


# --- the gateway -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """A gateway that listens."""

    url: str
    pid: int
    log: Path

    @property
    def chat(self) -> str:
        return f"{self.url}/v1/chat/completions"


@contextlib.asynccontextmanager
async def served(settings: dict[str, Any]) -> AsyncIterator[Served]:
    """``failsoft serve --gateway`` with these settings, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder) / "failsoft.yaml", Path(folder) / "log"
        config.write_text(json.dumps(settings))  # JSON is YAML
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).with_name("failsoft")), "serve", "--gateway", "--port", "0", "--json",
                "--config", str(config),
                stdout=asyncio.subprocess.PIPE, stderr=out, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 30.0)
            if not line:
                raise SystemExit(f"error: the gateway did not start: {log.read_text()[-2000:]}")
            yield Served(_url(json.loads(line)), process.pid, log)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), 20.0)
                except TimeoutError:
                    process.kill()
                    await process.wait()


def _url(told: dict[str, Any]) -> str:
    return next(str(value) for value in told.values() if str(value).startswith("http"))


async def get(session: aiohttp.ClientSession, url: str) -> Any:
    """A JSON document."""
    async with session.get(url, timeout=aiohttp.ClientTimeout(total=10)) as response:
        return await response.json()
