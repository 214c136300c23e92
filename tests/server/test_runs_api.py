"""The HTTP API over a real socket: asking, streaming, bad input, cancelling, and what is left afterwards."""

import asyncio
import json
import re
from pathlib import Path

import aiohttp
import pytest
from tests.server.serving import LET_GO, agent, events_of, serving, until

from failsoft.app import App
from failsoft.config import Settings
from failsoft.server.asgi import openapi

pytestmark = pytest.mark.realtime

ERROR_KEYS = {"type", "code", "message", "param", "run_id", "retry_after"}


async def test_waiting_gives_one_result():
    async with serving() as served:
        status, headers, body = await served.post({"input": "add", "budget_ms": 2000}, X_Request_ID="mine-1")
        assert (status, headers["x-request-id"], headers["x-run-id"]) == (200, "mine-1", body["run_id"])
        assert (body["status"], body["budget_ms"], body["tasks"][0]["status"]) == ("completed", 2000, "completed")
        assert "5" in body["answer"]
        assert body["provenance"]["rungs"] == {"sum": {"rung": "primary", "served": "warehouse"}}
        assert body["elapsed_ms"] < 2000

        status, _, again = await served.get(f"/v1/runs/{body['run_id']}")
        assert (status, again) == (200, body)


async def test_a_hanging_downstream_gives_a_degraded_answer_within_the_budget():
    async with serving() as served:
        began = asyncio.get_running_loop().time()
        status, _, body = await served.post({"input": "hang"}, X_Max_Wait="2s")
        assert asyncio.get_running_loop().time() - began < 2.05 + 0.5  # the machine may be busy
        assert (status, body["status"], body["budget_ms"]) == (200, "degraded", 2000)
        assert body["elapsed_ms"] <= 2050
        assert [one["task"] for one in body["provenance"]["shortfalls"]] == ["slow"]
        assert served.app.guards["warehouse"].statistics().in_use == 0


async def test_streaming_speaks_ag_ui_with_one_end():
    async with serving() as served:
        async with served.client.post(
            f"{served.server.address}/v1/runs", json={"input": "hang", "stream": True, "budget_ms": 300}
        ) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["x-accel-buffering"] == "no"
            events = await events_of(response)
        types = [event["type"] for event in events]
        assert types[0] == "RUN_STARTED"
        assert types[-1] == "RUN_FINISHED"
        assert sum(kind in ("RUN_FINISHED", "RUN_ERROR") for kind in types) == 1
        assert types.count("STEP_STARTED") == types.count("STEP_FINISHED") == 2
        assert types.count("TOOL_CALL_START") == types.count("TOOL_CALL_END") == types.count("TOOL_CALL_RESULT") == 2
        assert "STATE_SNAPSHOT" in types
        assert types.index("TEXT_MESSAGE_START") < types.index("TEXT_MESSAGE_CONTENT") < types.index("TEXT_MESSAGE_END")
        degraded = [event["value"] for event in events if event["type"] == "CUSTOM" and event["name"] == "degraded"]
        assert [value["task"] for value in degraded] == ["slow"]
        ids = [tuple(map(int, event["id"].split("."))) for event in events if event["id"]]
        assert ids == sorted(set(ids))
        assert {epoch for epoch, _ in ids} == {1}
        assert events[-1]["result"]["status"] == "degraded"
        text = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
        assert text == events[-1]["result"]["answer"]


async def test_silent_streams_get_heartbeats_and_their_headers_at_once():
    async with serving(server={"heartbeat": 0.05, "drain": 1}) as served:
        began = asyncio.get_running_loop().time()
        async with served.client.post(
            f"{served.server.address}/v1/runs", json={"input": "hang", "stream": True, "budget_ms": 600}
        ) as response:
            assert asyncio.get_running_loop().time() - began < 0.5
            raw = await response.content.read()
        assert raw.count(b": alive\n\n") >= 5


async def test_failing_stream_ends_with_run_error():
    async with serving() as served:
        async with served.client.post(
            f"{served.server.address}/v1/runs", json={"input": "what?", "stream": True}
        ) as response:
            events = await events_of(response)
        assert [event["type"] for event in events] == ["RUN_STARTED", "RUN_ERROR"]
        assert events[-1]["code"] == "plan_refused"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_run_and_frees_everything(stream):
    async with serving() as served:
        body = json.dumps({"input": "hang", "stream": stream, "budget_ms": 60_000}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: served.app.guards["warehouse"].statistics().in_use == 1)
        (handle,) = served.app.runs
        writer.close()
        await writer.wait_closed()
        assert await until(lambda: handle.done) < 0.2
        assert str(handle.state) == "cancelled"
        await until(lambda: served.app.guards["warehouse"].statistics().in_use == 0)
        del reader


async def test_a_run_may_outlive_its_client_when_it_asks_for_that():
    async with serving() as served:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(served.post({"input": "hang", "budget_ms": 500, "on_disconnect": "continue"}), 0.15)
        (handle,) = served.app.runs
        assert str((await handle.result()).status) == "degraded"
        status, _, body = await served.get(f"/v1/runs/{handle.run_id}")
        assert (status, body["status"]) == (200, "degraded")


async def test_cancelling_a_run_and_one_that_has_ended():
    async with serving() as served:
        asking = asyncio.create_task(served.post({"input": "hang", "budget_ms": 60_000}))
        await until(lambda: len(served.app.runs) == 1)
        run_id = served.app.runs[0].run_id
        status, _, body = await served.get(f"/v1/runs/{run_id}")
        assert (status, body["status"]) == (200, "dispatching")
        status, _, body = await served.post({}, path=f"/v1/runs/{run_id}/cancel")
        assert (status, body["status"]) == (200, "cancelled")
        status, _, body = await asking
        assert (status, body["error"]["code"], body["error"]["run_id"]) == (499, "run_cancelled", run_id)
        status, _, body = await served.post({}, path=f"/v1/runs/{run_id}/cancel")
        assert (status, body["status"]) == (200, "cancelled")
        assert served.app.guards["warehouse"].statistics().in_use == 0


async def test_a_thread_that_will_not_stop_is_an_orphan_until_it_ends():
    LET_GO.clear()
    try:
        async with serving() as served:
            status, _, body = await served.post({"input": "stubborn", "budget_ms": 300})
            assert (status, body["status"]) == (200, "degraded")
            assert body["elapsed_ms"] <= 350
            _, _, view = await served.get("/v1/downstreams")
            (threads,) = [one for one in view["downstreams"] if one["name"] == "threads"]
            assert (threads["orphans"], threads["in_use"]) == (1, 1)
            assert threads["holders"][0]["orphan"] is True
            assert threads["holders"][0]["run"] == body["run_id"]
            LET_GO.set()
            await until(lambda: served.app.guards["threads"].statistics().in_use == 0)
            assert served.app.guards["threads"].statistics().orphans == 0
    finally:
        LET_GO.set()


BAD = [
    (b"", {}, 400, "bad_input", "body"),
    (b"{", {}, 400, "bad_input", "body"),
    (b"[]", {}, 400, "bad_input", "body"),
    (b"{}", {}, 400, "bad_input", "input"),
    (b'{"input": ""}', {}, 400, "bad_input", "input"),
    (b'{"input": "   "}', {}, 400, "bad_input", "input"),
    (b'{"input": 7}', {}, 400, "bad_input", "input"),
    (json.dumps({"input": "x" * 20_000}).encode(), {}, 400, "bad_input", "input"),
    (json.dumps({"input": "x" * 1_000_000}).encode(), {}, 413, "body_too_large", "input"),
    (b'{"input": "add", "agent": "nobody"}', {}, 404, "unknown_agent", "agent"),
    (b'{"input": "add", "budget_ms": 0}', {}, 400, "bad_input", "budget_ms"),
    (b'{"input": "add", "budget_ms": -1}', {}, 400, "bad_input", "budget_ms"),
    (b'{"input": "add", "budget_ms": "5"}', {}, 400, "bad_input", "budget_ms"),
    (b'{"input": "add", "budget_ms": 99999999}', {}, 400, "bad_input", "budget_ms"),
    (b'{"input": "add", "colour": "red"}', {}, 400, "bad_input", "colour"),
    (b'{"input": "add"}', {"X-Max-Wait": "soon"}, 400, "bad_input", "x-max-wait"),
    (b'{"input": "add"}', {"X-Max-Wait": "0"}, 400, "bad_input", "x-max-wait"),
    (b'{"input": "add"}', {"X-Max-Wait": "1h"}, 400, "bad_input", "x-max-wait"),
    (b'{"input": "add"}', {"X-Request-Timeout-Ms": "NaN"}, 400, "bad_input", "x-request-timeout-ms"),
    (b'{"input": "not a question"}', {}, 422, "plan_refused", "input"),
]


async def test_bad_input_is_told_by_field_and_leaves_nothing():
    async with serving() as served:
        for raw, headers, status, code, param in BAD:
            got, _, body = await served.post(raw=raw, **headers)
            assert (got, body["error"]["code"], body["error"]["param"]) == (status, code, param), (raw[:60], headers)
            assert body["error"].keys() >= ERROR_KEYS
        assert served.app.runs == []
        status, _, body = await served.get("/v1/runs/run_nothere")
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "not_found", "run_id")
        status, _, body = await served.get("/nowhere")
        assert (status, body["error"]["type"]) == (404, "not_found")
        status, _, body = await served.post({}, path="/v1/agents")
        assert (status, body["error"]["code"]) == (405, "method_not_allowed")


async def test_large_and_slow_and_broken_requests_are_cut_off():
    async with serving() as served:
        chunked = b"POST /v1/runs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        answer = await served.raw(chunked + (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 3)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer
        answer = await served.raw(
            b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (i, b"y" * 1000) for i in range(60))
        )
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"
        answer = await served.raw(b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 431 ")
        answer = await served.raw(b"nonsense\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "malformed_request"
        status, _, _ = await served.get("/health/liveness")
        assert status == 200


async def test_health_and_the_documented_api():
    async with serving() as served:
        assert (await served.get("/health/liveness"))[2] == {"status": "alive"}
        assert (await served.get("/health/readiness"))[2] == {"status": "ready", "agents": ["adder"]}
        _, _, document = await served.get("/openapi.json")
        assert document == openapi(served.app)
        body = document["paths"]["/v1/runs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(body["properties"]) == {
            "input", "agent", "budget_ms", "session_id", "mode", "background", "strict", "stream", "on_disconnect",
        }  # fmt: skip


async def test_stopping_answers_whoever_still_waits_with_what_there_is():
    """Case 57."""
    async with serving(server={"drain": 0.2}) as served:
        asking = asyncio.create_task(served.post({"input": "hang", "budget_ms": 60_000}))
        await until(lambda: len(served.app.runs) == 1)
        served.server.stop()
        status, _, body = await asking
        assert (status, body["status"]) == (200, "degraded")
        assert [(one["task"], one["reason"]) for one in body["provenance"]["shortfalls"]] == [("slow", "shutting_down")]
        assert "5" in body["answer"]
        with pytest.raises(aiohttp.ClientError):
            await served.get("/health/liveness")


def test_the_page_about_the_api_names_every_path():
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    shown = {
        (
            method,
            path.replace("sessions/{id}", "sessions/{session_id}")
            .replace("approvals/{id}", "approvals/{approval_id}")
            .replace("{id}", "{run_id}"),
        )
        for method, path in re.findall(r"^\| `(GET|POST) (\S+)` \|", page, re.MULTILINE)
    }
    paths = openapi(App(Settings(), agents=[agent()]))["paths"]
    assert shown == {(method.upper(), path) for path, methods in paths.items() for method in methods}


async def test_time_that_a_busy_loop_took_before_the_run_is_of_its_budget(monkeypatch):
    from failsoft.server import runs_api

    async def delayed(request, limit):
        body = await read_body(request, limit)
        await asyncio.sleep(0.2)
        return body

    read_body = runs_api.read_body
    monkeypatch.setattr(runs_api, "read_body", delayed)
    async with serving() as served:
        began = asyncio.get_running_loop().time()
        status, _, body = await served.post({"input": "hang", "budget_ms": 500})
        assert asyncio.get_running_loop().time() - began < 0.55 + 0.1
        assert (status, body["status"], body["budget_ms"]) == (200, "degraded", 500)
        assert 400 < body["elapsed_ms"] <= 550
