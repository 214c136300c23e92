"""The gateway over a real socket, in front of two fake upstreams: what the tests of its HTTP side share."""

import asyncio
import contextlib
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import aiohttp
from tests.server.serving import until

from failsoft.config import Settings
from failsoft.kernel.guard import Kernel
from failsoft.server.gateway_only import gateway_server
from failsoft.server.listening import Listening, listen_on
from failsoft.server.openai_api import OpenAIApi
from failsoft.testing.upstream import FakeUpstream

LIMITS = {"first_content": 10.0, "idle": 10.0, "total": 20.0}
"""For what answers at once: a machine that is busy elsewhere for a second makes no late answer of it."""
SHORT_LIMITS = {"first_content": 1.0, "idle": 1.0, "total": 5.0}
"""For what never answers."""
SILENT = {"headers_never", "slow_first_token", "role_then_silence", "stall", "slow_drip", "wrong_length"}
KEY = "sk-test-1234567890"


def digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


@dataclass
class Answer:
    """A response: ``events`` are the data of a stream's, decoded, ``done`` whether ``[DONE]`` came."""

    status: int
    headers: Any
    body: Any
    raw: bytes

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(one) for one in self._payloads() if one != "[DONE]"]

    @property
    def done(self) -> bool:
        return self._payloads()[-1:] == ["[DONE]"]

    def _payloads(self) -> list[str]:
        return [line[6:] for line in self.raw.decode().split("\n") if line.startswith("data: ")]

    @property
    def text(self) -> str:
        if self.body is not None:
            return str(self.body["choices"][0]["message"]["content"])
        parts = [c["delta"].get("content") or "" for e in self.events for c in e.get("choices", []) if c["index"] == 0]
        return "".join(parts)

    @property
    def error(self) -> dict[str, Any] | None:
        if self.body is not None:
            found: dict[str, Any] | None = self.body.get("error")
            return found
        return next((event["error"] for event in self.events if "error" in event), None)


@dataclass
class ServedModels:
    """A running gateway, its upstreams, and a client for it."""

    main: FakeUpstream
    other: FakeUpstream
    server: Listening
    kernel: Kernel
    client: aiohttp.ClientSession
    port: int

    @property
    def api(self) -> OpenAIApi:
        found = self.server.config.app
        assert isinstance(found, OpenAIApi)
        return found

    @property
    def base_url(self) -> str:
        return f"{self.server.address}/v1"

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(f"{self.server.address}{path}", data=data, headers=named) as response:
            return await read(response)

    async def chat(self, model: str = "gpt-x", *, query: str = "", headers: Any = None, **more: Any) -> Answer:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **more}
        return await self.post(f"/v1/chat/completions{query}", body, **(headers or {}))

    async def get(self, path: str, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.get(f"{self.server.address}{path}", headers=named) as response:
            return await read(response)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send_raw(self, *, stream: bool, model: str = "gpt-x", **more: Any):
        """Sends a chat request over a connection of its own, which the test holds."""
        reader, writer = await self.connect()
        body = json.dumps({"model": model, "stream": stream, "messages": [{"role": "user", "content": "x"}], **more})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body.encode())
        await writer.drain()
        return reader, writer

    async def scrape(self) -> dict[str, float]:
        page = (await self.get("/metrics")).raw.decode()
        lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}


async def read(response: aiohttp.ClientResponse) -> Answer:
    raw = await response.read()
    kind = response.headers.get("content-type", "")
    return Answer(response.status, response.headers, json.loads(raw) if "json" in kind else None, raw)


def aliases(main: FakeUpstream, other: FakeUpstream, fault: str = "ok", backup: str = "ok", **changes: Any) -> Any:
    limits = changes.pop("limits", SHORT_LIMITS if fault in SILENT else LIMITS)
    usual = changes.pop("usual", 2.0)
    guard = {"retries": 0, **changes.pop("guard", {})}

    def route(upstream: FakeUpstream, model: str, key: str) -> dict[str, Any]:
        return {
            "base_url": upstream.base_url, "model": model, "api_key": key, "limits": limits, "guard": guard,
            "equivalent": True, "usual": usual,
        }  # fmt: skip

    routes = {"main": route(main, fault, "sk-main"), "backup": route(other, backup, "sk-backup")}
    return {"gpt-x": {"routes": routes, "coalesce": False, **changes}}


@contextlib.asynccontextmanager
async def serving_models(
    fault: str = "ok", *, backup: str = "ok", keys: Any = None, gateway: Any = None, **changes: Any
):
    """Runs the gateway until the block ends; checks that its end leaves nothing in flight."""
    server_settings = {"drain": 1.0, **changes.pop("server", {})}
    async with FakeUpstream() as main, FakeUpstream() as other:
        settings = Settings.model_validate(
            {
                "server": server_settings,
                "models": aliases(main, other, fault, backup, **changes),
                "keys": keys or {},
                "gateway": {"log": "off", **(gateway or {})},
            }
        )
        sock = listen_on("127.0.0.1", 0)
        kernel = Kernel()
        async with gateway_server(settings, sock, kernel=kernel) as server:
            task = asyncio.create_task(server.serve_until_stopped())
            await until(lambda: server.started)
            async with aiohttp.ClientSession() as client:
                yield ServedModels(main, other, server, kernel, client, sock.getsockname()[1])
            server.stop()
            await asyncio.wait_for(task, 10)
            for guard in kernel.guards.values():
                figures = guard.statistics()
                assert (figures.in_use, figures.waiting, figures.orphans) == (0, 0, 0)
