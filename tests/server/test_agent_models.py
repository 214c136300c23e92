"""Agents as models: in OpenAI's format, whole and streamed, with their history, budgets, faults and tenants."""

import asyncio
import hashlib
import json
from typing import Any

import pytest
from openai import AsyncOpenAI
from tests.runs.worlds import agent, plan, task
from tests.server.serving import serving, until

from failsoft.runs.planner import PlanRequest, StaticPlanner
from failsoft.testing.upstream import FakeUpstream

pytestmark = pytest.mark.realtime

HEARD: list[PlanRequest] = []


def listener() -> Any:
    def make(request: PlanRequest) -> Any:
        HEARD.append(request)
        return plan(task("a", value=request.input))

    return agent(planners=[StaticPlanner(make)], name="listener")


def ask(model: str, *said: str, **more: Any) -> dict[str, Any]:
    roles = ["user", "assistant"]
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    return {"model": model, "messages": messages, **more}


CHAT = "/v1/chat/completions"


async def test_an_agent_answers_like_a_model_and_says_how_it_falls_short():
    async with serving() as served:
        status, headers, body = await served.post(ask("agent/adder", "add"), path=CHAT, X_Request_ID="mine")
        assert (status, headers["x-request-id"], headers["x-failsoft-route"]) == (200, "mine", "agent/adder")
        assert headers["x-failsoft-degraded"] == "false"
        (choice,) = body["choices"]
        assert (choice["finish_reason"], "5" in choice["message"]["content"]) == ("stop", True)
        assert (body["model"], body["object"]) == ("agent/adder", "chat.completion")
        assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"] > 2
        assert (body["failsoft"]["status"], body["failsoft"]["degraded"]) == ("completed", False)
        assert body["id"] == f"chatcmpl-{body['failsoft']['run_id']}"
        assert (await served.get(f"/v1/runs/{body['failsoft']['run_id']}"))[0] == 200

        status, headers, body = await served.post(ask("adder", "hang"), path=CHAT, X_Max_Wait="1s")
        assert (status, headers["x-failsoft-degraded"], body["failsoft"]["degraded"]) == (200, "true", True)
        assert [one["task"] for one in body["failsoft"]["shortfalls"]] == ["slow"]
        assert body["failsoft"]["elapsed_ms"] <= 1050
        assert "“slow” is missing" in body["choices"][0]["message"]["content"]


async def test_an_agent_streams_and_the_sdk_understands_it():
    async with serving() as served, AsyncOpenAI(base_url=f"{served.server.address}/v1", api_key="x") as sdk:
        stream = await sdk.chat.completions.create(
            model="agent/adder",
            messages=[{"role": "user", "content": "add"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        assert "5" in text
        assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        whole = await sdk.chat.completions.create(model="adder", messages=[{"role": "user", "content": "add"}])
        assert whole.choices[0].message.content == text
        models = [one.id async for one in await sdk.models.list()]
        assert models == ["agent/adder"]
        assert (await sdk.models.retrieve("adder")).id == "adder"


async def test_a_stream_ends_in_its_budget_with_what_falls_short():
    async with serving() as served:
        body = json.dumps(ask("adder", "hang", stream=True)).encode()
        url = f"{served.server.address}{CHAT}"
        async with served.client.post(url, data=body, headers={"X-Max-Wait": "1s"}) as response:
            raw = (await response.read()).decode()
        assert (response.status, raw.rstrip().endswith("data: [DONE]")) == (200, True)
        events = [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: {")]
        assert [one["failsoft"]["degraded"] for one in events if "degraded" in one.get("failsoft", {})] == [True]


async def test_what_was_said_before_is_the_agents_history():
    HEARD.clear()
    async with serving(agents=[listener()]) as served:
        messages = [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "t", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "t", "content": "x"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": [{"type": "text", "text": "three"}, {"type": "text", "text": "four"}]},
        ]
        await served.post({"model": "listener", "messages": messages}, path=CHAT)
        assert HEARD[0].input == "three\nfour"
        assert [(one.role, one.content) for one in HEARD[0].history] == [
            ("system", "Be short."), ("user", "one"), ("assistant", "two"),
        ]  # fmt: skip
        for text in ("first", "second"):
            await served.post(ask("listener", text, failsoft={"session_id": "s", "mode": "fast"}), path=CHAT)
        assert (HEARD[2].history[0].content, HEARD[2].mode) == ("first", "fast")


BAD = [
    (ask("agent/nobody", "x"), 404, "model"),
    (ask("adder", "x", "y"), 400, "messages[1]"),
    (ask("adder", "   "), 400, "input"),
    (ask("adder", "add", n=2), 400, "n"),
    (ask("adder", "add", failsoft={"colour": 1}), 400, "failsoft"),
    (ask("adder", "add", failsoft={"session_id": "../x"}), 400, "failsoft"),
    (ask("adder", "add", failsoft={"mode": "slow"}), 400, "mode"),
    (ask("adder", "nonsense"), 422, "input"),
    (
        {"model": "adder", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        400,
        "messages[0].content",
    ),
]


async def test_what_an_agent_cannot_take_is_told_in_openais_shape():
    async with serving() as served:
        for body, expected, param in BAD:
            for stream in (False, True):
                status, headers, answer = await served.post({**body, "stream": stream}, path=CHAT)
                assert (status, answer["error"]["param"]) == (expected, param), body
                assert headers["x-request-id"]
        assert served.app.runs == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_agents_run(stream):
    async with serving() as served:
        body = json.dumps(ask("adder", "hang", stream=stream)).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-max-wait: 60s\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        await until(lambda: served.app.guards["warehouse"].statistics().in_use == 1)
        writer.close()
        await writer.wait_closed()
        assert await until(lambda: not served.app.runs) < 0.5
        await until(lambda: served.app.guards["warehouse"].statistics().in_use == 0)


async def test_an_alias_goes_before_an_agent_of_the_same_name_and_keys_hold_for_both():
    def key(name: str, **more: Any) -> dict[str, Any]:
        return {"hash": "sha256:" + hashlib.sha256(name.encode()).hexdigest(), "tenant": name, **more}

    async with FakeUpstream("ok") as upstream:
        models = {"adder": {"routes": {"main": {"base_url": upstream.base_url}}}}
        keys = {"all": key("all"), "some": key("some", models=["agent/adder"])}
        async with serving(models=models, keys=keys) as served:
            status, headers, _ = await served.post(ask("adder", "add"), path=CHAT, Authorization="Bearer all")
            assert (status, headers["x-failsoft-route"]) == (200, "main")
            status, _, body = await served.post(ask("agent/adder", "add"), path=CHAT, Authorization="Bearer all")
            assert (status, body["failsoft"]["status"]) == (200, "completed")
            assert served.app.run(body["failsoft"]["run_id"], tenant="all") is not None
            assert served.app.run(body["failsoft"]["run_id"], tenant="some") is None
            assert (await served.post(ask("adder", "add"), path=CHAT, Authorization="Bearer some"))[0] == 403
            assert (await served.post(ask("agent/adder", "add"), path=CHAT, Authorization="Bearer some"))[0] == 200
            _, _, listed = await served.get("/v1/models", Authorization="Bearer some")
            assert [one["id"] for one in listed["data"]] == ["agent/adder"]
