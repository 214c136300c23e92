"""One key, one run, several clients; and results that hold what JSON has no words for."""

import asyncio
import hashlib
import json

import aiohttp
import pytest
from tests.server.serving import agent, events_of, serving, until

from failsoft.base.jsontext import json_text
from failsoft.runs.answer import Artifact

pytestmark = pytest.mark.realtime


async def test_the_same_key_gives_the_same_run_and_another_body_409():
    """Case 29."""
    async with serving() as served:
        asked = {"input": "hang", "budget_ms": 600}
        first, second = await asyncio.gather(
            served.post(asked, Idempotency_Key="k-1"), served.post(asked, Idempotency_Key="k-1")
        )
        assert first[2] == second[2]
        assert first[1]["x-run-id"] == second[1]["x-run-id"]
        status, headers, again = await served.post(asked, Idempotency_Key="k-1")
        assert (status, again, headers["x-run-id"]) == (200, first[2], first[1]["x-run-id"])
        status, _, body = await served.post({"input": "add"}, Idempotency_Key="k-1")
        assert (status, body["error"]["code"], body["error"]["param"]) == (
            409,
            "idempotency_conflict",
            "Idempotency-Key",
        )
        assert (await served.post({"input": "add"}, Idempotency_Key="k-2"))[0] == 200
        async with served.client.post(
            f"{served.server.address}/v1/runs", json={**asked, "stream": False}, headers={"Idempotency-Key": "k-1"}
        ) as response:
            assert (await response.json())["run_id"] == again["run_id"]
        async with served.client.post(
            f"{served.server.address}/v1/runs", json={**asked, "stream": True}, headers={"Idempotency-Key": "k-1"}
        ) as response:
            events = await events_of(response)
        assert events[-1]["result"] == again


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "x" * 256, "\x7f"])
async def test_a_key_that_is_none_is_refused(key):
    async with serving() as served:
        raw = b'{"input": "add"}'
        head = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n" % len(raw)
        answer = await served.raw(head + b"Idempotency-Key: %s\r\n\r\n%s" % (key.encode(), raw))
        assert answer.startswith(b"HTTP/1.1 400")
        two = await served.raw(head + b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n\r\n" + raw)
        assert json.loads(two.partition(b"\r\n\r\n")[2])["error"]["param"] == "Idempotency-Key"


@pytest.mark.parametrize("stays", [False, True])
async def test_a_run_with_several_clients_ends_when_the_last_has_gone(stays):
    async with serving() as served:

        async def ask(**more) -> aiohttp.ClientResponse:
            body = {"input": "hang", "budget_ms": 20_000, **more}
            headers = {"Idempotency-Key": "shared"}
            response: aiohttp.ClientResponse = await served.client.post(
                f"{served.server.address}/v1/runs", json=body, headers=headers
            )
            return response

        waiting = asyncio.create_task(ask(on_disconnect="continue" if stays else None))
        await until(lambda: len(served.app.runs) == 1)
        watching = await ask(stream=True)
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.sleep(0.3)
        assert len(served.app.runs) == 1
        watching.close()
        if stays:
            await asyncio.sleep(0.3)
            assert len(served.app.runs) == 1
            served.app.runs[0].cancel()
        else:
            assert await until(lambda: not served.app.runs) < 0.5


async def test_a_result_with_what_json_has_no_words_for_is_a_response_all_the_same():
    async with serving() as served:
        status, _, body = await served.post({"input": "odd"})
        assert (status, body["status"], body["provenance"]["shortfalls"][0]["reason"]) == (200, "degraded", "bad_input")
        assert body["tasks"][0]["provenance"]["tried"][0]["message"] == "half a character: ?"
        async with served.client.post(
            f"{served.server.address}/v1/runs", json={"input": "odd", "stream": True}
        ) as response:
            events = await events_of(response)
        assert events[-1]["type"] == "RUN_FINISHED"
        status, _, body = await served.post({"input": "unanswerable"})
        assert (status, body["error"]["code"], body["error"]["message"]) == (400, "bad_input", "half a character: ?")
        assert body["error"]["details"]["nan"] is None


async def test_no_path_is_redirected():
    async with serving() as served:
        assert (await served.get("/v1/runs/"))[0] == 404
        assert (await served.post({"input": "add"}, path="/v1/runs/"))[0] == 404


@pytest.mark.parametrize(
    "name",
    ["../up.png", "/etc/passwd", "a/b", "a\\b", "", ".", "..", ".h", "a\x00b", "a\nb", "c:x", "x" * 201, "\ud800"],
)
def test_an_artifacts_name_is_one_of_a_file(name):
    with pytest.raises(ValueError, match="no file name"):
        Artifact(name, "image/png", b"")


@pytest.mark.parametrize("kind", ["", "text", "text/html\r\nSet-Cookie: a=b", "é/x", "text/plain; charset=utf-8\x00"])
def test_an_artifacts_media_type_can_stand_in_a_header(kind):
    with pytest.raises(ValueError, match="no media type"):
        Artifact("a.png", kind, b"")
    Artifact("表 1.html", "text/html; charset=utf-8", b"")
    Artifact("a.svg", "image/svg+xml", b"")


def test_json_can_be_made_of_anything():
    class Rude:
        def __repr__(self):
            raise RuntimeError

    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    odd = [float("nan"), 10**5000, "\ud83d", b"bytes", {1, 2}, {("a", "b"): 1, "\udc00": 2}, Rude(), deep, object]
    json.loads(json_text(odd).encode())
    assert json_text({"a": [1, 1.5, "ü", None, True]}) == '{"a":[1,1.5,"ü",null,true]}'
    assert agent().name == "adder"


async def test_no_tenant_sees_joins_or_cancels_another_tenants_run():
    keys = {
        name: {"hash": "sha256:" + hashlib.sha256(f"sk-{name}".encode()).hexdigest(), "tenant": tenant}
        for name, tenant in (("mine", "blue"), ("too", "blue"), ("theirs", "red"))
    }
    async with serving(keys=keys) as served:
        mine, too, theirs = ({"Authorization": f"Bearer sk-{name}"} for name in ("mine", "too", "theirs"))

        async def call(method: str, path: str, key: dict[str, str]) -> tuple[int, bytes]:
            async with served.client.request(method, served.server.address + path, headers=key) as response:
                return response.status, await response.read()

        asked = {"input": "hang", "budget_ms": 400}
        status, _, body = await served.post(asked, Idempotency_Key="k", **mine)
        assert (status, served.app.run(body["run_id"]).tenant) == (200, "blue")
        run = f"/v1/runs/{body['run_id']}"
        for path in (run, f"{run}/artifacts/chart.png"):
            status, told = await call("GET", path, theirs)
            assert (status, b"hang" in told) == (404, False)
        assert (await call("POST", f"{run}/cancel", theirs))[0] == 404
        assert (await call("GET", run, {}))[0] == 401
        assert (await call("GET", run, too))[0] == 200
        assert (await call("POST", f"{run}/cancel", too))[0] == 200
        other = await served.post(asked, Idempotency_Key="k", **theirs)
        assert other[2]["run_id"] != body["run_id"]
        assert (await served.post(asked, Idempotency_Key="k", **too))[2]["run_id"] == body["run_id"]
