"""The gateway in front of the runs API, and under a server that is not ours."""

import asyncio
import json

import pytest
from tests.server.models_served import KEY, digest
from tests.server.serving import serving

from failsoft.kernel.guard import Kernel
from failsoft.models.gateway import Gateway
from failsoft.models.routes import Alias, Route
from failsoft.server.openai_api import OpenAIApi

TEXT = {"hi": {"routes": {"text": {"text": "You said: {question}"}}}}


@pytest.mark.realtime
async def test_models_and_runs_are_served_on_one_address_and_keys_hold_for_both():
    keys = {"team": {"hash": digest(KEY)}}
    async with serving(models=TEXT, keys=keys, gateway={"log": "off"}) as served:
        bearer = {"Authorization": f"Bearer {KEY}"}
        ask = {"model": "hi", "messages": [{"role": "user", "content": "x"}]}
        status, _, body = await served.post(ask, path="/v1/chat/completions", **bearer)
        assert (status, body["choices"][0]["message"]["content"]) == (200, "You said: x")
        assert (await served.post({"input": "add"}, **bearer))[0] == 200
        status, _, body = await served.post({"input": "add"})
        assert (status, body["error"]["code"]) == (401, "unauthorized")
        assert (await served.get("/health/readiness"))[0] == 200


class Hangs:
    """A transport that never answers, and knows whether it was let go."""

    def __init__(self) -> None:
        self.closed = 0

    def send(self, request):
        return self

    async def __aenter__(self):
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.closed += 1

    async def __aexit__(self, *exc):
        pass

    async def aclose(self):
        pass


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
async def test_without_our_protocol_plain_asgi_does(stream, leaves):
    transport = Hangs()
    route = Route("main", "http://127.0.0.1:1/v1") if leaves else Route("text", text="Hello")
    kernel = Kernel()
    api = OpenAIApi(Gateway([Alias("m", (route,))], kernel, transport), None)
    body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "x"}]}).encode()
    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "headers": [],
    }  # fmt: skip
    incoming = [
        {"type": "http.request", "body": body[:10], "more_body": True},
        {"type": "http.request", "body": body[10:]},
    ]
    sent = []

    async def receive():
        if incoming:
            return incoming.pop(0)
        await asyncio.sleep(1.0 if leaves else 1000.0)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    loop = asyncio.get_running_loop()
    began = loop.time()
    await api(scope, receive, send)
    if leaves:
        assert loop.time() - began == 1.0
        await asyncio.sleep(0.01)  # a shared call ends a turn after the last who waited for it
        assert transport.closed == 1
        assert sent == []
    else:
        assert sent[0]["status"] == 200
        assert b"Hello" in b"".join(message["body"] for message in sent[1:])
        assert not sent[-1].get("more_body")
    assert not api.calls
    await kernel.aclose()
