"""The OpenAI routes over a real socket: answers, headers, budgets, keys and their limits, bounds, metrics, the log."""

import asyncio
import json
import os

import pytest
from tests.server.models_served import KEY, digest, serving_models
from tests.server.serving import until

from failsoft.testing.upstream import ANSWER

pytestmark = pytest.mark.realtime


async def test_an_answer_says_who_served_it_and_where_the_time_went():
    async with serving_models() as served:
        answer = await served.chat(headers={"X_Request_ID": "mine-1"})
        assert (answer.status, answer.text) == (200, ANSWER)
        assert answer.body["model"] == "ok"
        headers = answer.headers
        assert headers["x-request-id"] == "mine-1"
        assert headers["x-failsoft-route"] == "main"
        assert headers["x-failsoft-attempts"] == "1"
        assert "x-failsoft-fallbacks" not in headers
        assert headers["x-failsoft-degraded"] == "false"
        assert headers["x-failsoft-cache"] == "off"
        assert headers["x-failsoft-limits"].startswith("first=configured,idle=configured,total=")
        assert headers["x-failsoft-limits"].endswith("fired=none")
        assert 0 < float(headers["x-failsoft-overhead-ms"]) < 1000
        assert 0 <= float(headers["x-llm-duration"]) < 5
        assert headers["x-llm-reason"].startswith("queue=")
        assert served.main.requests[0].headers["x-request-id"] == "mine-1"


async def test_the_callers_trace_goes_on_to_the_upstream_and_to_no_other_call():
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with serving_models() as served:
        await served.chat(headers={"traceparent": trace})
        await served.chat(headers={"traceparent": "00-nonsense"})
        await served.chat()
        assert [one.headers.get("traceparent") for one in served.main.requests] == [trace, None, None]


async def test_overhead_is_ours_and_not_the_upstreams():
    async with serving_models() as served:
        served.main.hold = 0.5
        for stream in (False, True):
            answer = await served.chat(stream=stream)
            assert float(answer.headers["x-failsoft-overhead-ms"]) < 250
            assert float(answer.headers["x-llm-duration"]) >= 0.5


async def test_a_request_id_that_is_not_sound_is_replaced():
    async with serving_models() as served:
        answer = await served.chat(headers={"X_Request_ID": 'x" onload='})
        assert answer.headers["x-request-id"].startswith("req_")
        assert (await served.chat()).headers["x-request-id"] != answer.headers["x-request-id"]


async def test_a_stream_comes_through_event_by_event_and_ends_with_done():
    async with serving_models() as served:
        answer = await served.chat(stream=True)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert (answer.text, answer.done) == (ANSWER, True)
        assert answer.headers["x-failsoft-route"] == "main"
        assert not any(event["choices"] == [] for event in answer.events)
        assert not any("failsoft" in event for event in answer.events)
        asked = await served.chat(stream=True, stream_options={"include_usage": True})
        assert asked.events[-1]["choices"] == []
        assert asked.events[-1]["usage"]["total_tokens"] == 22


async def test_models_are_listed_and_an_unknown_one_is_404():
    async with serving_models() as served:
        listed = await served.get("/v1/models")
        assert [one["id"] for one in listed.body["data"]] == ["gpt-x"]
        assert (await served.get("/v1/models/gpt-x")).body["id"] == "gpt-x"
        assert (await served.get("/v1/models/gpt-y")).status == 404
        for stream in (False, True):
            answer = await served.chat("gpt-y", stream=stream)
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            assert "gpt-x" in answer.error["message"]
        assert (await served.get("/v1/chat/completions")).status == 405
        assert (await served.get("/v1/nothing")).status == 404


async def test_embeddings_pass_through_and_fall_back():
    async with serving_models("status_500") as served:
        answer = await served.post("/v1/embeddings", {"model": "gpt-x", "input": ["a", "b"]})
        assert answer.status == 200
        assert [len(one["embedding"]) for one in answer.body["data"]] == [3, 3]
        assert answer.headers["x-failsoft-route"] == "backup"
        assert answer.headers["x-failsoft-fallbacks"] == "main=server_error"
        assert served.other.requests[0].path == "/v1/embeddings"
        assert served.other.requests[0].body["input"] == ["a", "b"]
        bad = await served.post("/v1/embeddings", {"model": "gpt-x", "input": []})
        assert (bad.status, bad.error["param"]) == (400, "input")


@pytest.mark.parametrize(
    "fault", ["refused", "empty_200", "malformed_json", "headers_never", "status_429", "status_401"]
)
async def test_embeddings_survive_what_chat_survives(fault):
    async with serving_models(fault, limits={"total": 1.0, "most": 5.0, "least": 0.5, "base": 0.5}) as served:
        answer = await served.post("/v1/embeddings", {"model": "gpt-x", "input": "a"})
        assert (answer.status, answer.headers["x-failsoft-route"]) == (200, "backup")


# --- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X_Max_Wait", "700ms"),
        ("X_Request_Timeout_Ms", "700"),
        ("x_envoy_expected_rq_timeout_ms", "700"),
    ],
)
async def test_each_budget_header_ends_the_call_in_time(header, value):
    async with serving_models("headers_never", backup="headers_never") as served:
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await served.chat(headers={header: value})
        assert 0.5 < loop.time() - began < 1.2
        assert answer.status == 504
        assert answer.error["type"] == "timeout_error"
        assert "fired=" in answer.headers["x-failsoft-limits"]


async def test_the_shortest_budget_holds_and_reaches_the_upstream():
    async with serving_models() as served:
        await served.chat(query="?max_wait=3s", headers={"X_Max_Wait": "120s", "X_Request_Timeout_Ms": "50000"})
        assert 0 < int(served.main.requests[0].headers["x-request-timeout-ms"]) <= 3000


async def test_a_budget_is_capped_by_the_settings_and_lessened_by_time_already_spent():
    async with serving_models(gateway={"budget": 2, "maximum_budget": 4}, limits={"total": 100}, usual=0) as served:
        await served.chat()
        await served.chat(headers={"X_Max_Wait": "500s"})
        now = served.api.sources.wall()
        await served.chat(headers={"X_Start_Time": f"t={now - 1.5:.3f}"})
        await served.chat(headers={"X_Start_Time": f"{int((now - 1.5) * 1000)}", "X_Max_Wait": "3s"})
        left = [int(seen.headers["x-request-timeout-ms"]) for seen in served.main.requests]
        assert 1000 < left[0] <= 2000 < left[1] <= 4000
        assert left[2] <= 500
        assert 500 < left[3] <= 1500
        late = await served.chat(headers={"X_Start_Time": f"t={now - 30:.3f}"})
        assert (late.status, served.main.count) == (504, 4)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Max-Wait", "soon"),
        ("X-Max-Wait", "-1"),
        ("X-Max-Wait", "0"),
        ("X-Request-Timeout-Ms", "1e3"),
        ("X-Request-Timeout-Ms", "nan"),
        ("X-Envoy-Expected-Rq-Timeout-Ms", "5s"),
        ("X-Start-Time", "yesterday"),
        ("X-Start-Time", "9" * 20),
    ],
)
async def test_a_budget_that_cannot_be_read_is_told_by_its_name(header, value):
    async with serving_models() as served:
        answer = await served.chat(headers={header: value})
        assert (answer.status, answer.error["param"]) == (400, header)
        assert served.main.count == 0


# --- keys ------------------------------------------------------------------------------------------------------------


async def test_a_key_is_needed_once_there_is_one():
    async with serving_models(keys={"team": {"hash": digest(KEY), "tenant": "blue"}}) as served:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            for headers in (
                {},
                {"Authorization": "Bearer sk-wrong"},
                {"Authorization": KEY},
                {"Authorization": "Bearer "},
            ):
                answer = await served.post(path, {"model": "gpt-x"}, **headers)
                assert (answer.status, answer.error["code"]) == (401, "unauthorized")
                assert answer.error["type"] == "authentication_error"
        for path in ("/v1/models", "/v1/models/gpt-x", "/v1/downstreams", "/v1/anything"):
            assert (await served.get(path)).status == 401
        for path in ("/health/liveness", "/health/readiness", "/metrics"):
            assert (await served.get(path)).status == 200
        for headers in ({"Authorization": f"Bearer {KEY}"}, {"Authorization": f"bearer {KEY}"}, {"api_key": KEY}):
            assert (await served.chat(headers=headers)).status == 200
        assert (await served.get("/v1/models", Authorization=f"Bearer {KEY}")).status == 200
        assert served.main.requests[0].headers["authorization"] == "Bearer sk-main"


async def test_a_key_may_be_for_some_models_only():
    keys = {"team": {"hash": digest(KEY), "models": ["other"]}}
    async with serving_models(keys=keys) as served:
        bearer = {"Authorization": f"Bearer {KEY}"}
        answer = await served.chat(headers=bearer)
        assert (answer.status, answer.error["param"]) == (403, "model")
        assert (await served.get("/v1/models", **bearer)).body["data"] == []
        assert (await served.get("/v1/models/gpt-x", **bearer)).status == 403
        assert served.main.count == 0


async def test_a_keys_rate_is_a_429_with_the_time_to_wait():
    keys = {"team": {"hash": digest(KEY), "rate": "3/minute"}, "free": {"hash": digest("sk-other-key")}}
    async with serving_models(keys=keys) as served:
        bearer = {"Authorization": f"Bearer {KEY}"}
        statuses = [(await served.chat(headers=bearer)).status for _ in range(3)]
        assert statuses == [200] * 3
        answer = await served.chat(headers=bearer)
        assert (answer.status, answer.error["code"]) == (429, "rate_limited")
        assert 1 <= int(answer.headers["retry-after"]) <= 20
        assert (await served.chat(headers={"Authorization": "Bearer sk-other-key"})).status == 200
        figures = await served.scrape()
        assert figures['failsoft_gateway_key_refused_total{key="team"}'] == 1


async def test_a_keys_concurrency_is_a_429_and_is_given_back():
    async with serving_models(keys={"team": {"hash": digest(KEY), "concurrent": 2}}) as served:
        bearer = {"Authorization": f"Bearer {KEY}"}
        served.main.hold = 0.3
        answers = await asyncio.gather(*(served.chat(headers=bearer) for _ in range(4)))
        assert sorted(answer.status for answer in answers) == [200, 200, 429, 429]
        assert all("retry-after" in answer.headers for answer in answers if answer.status == 429)
        assert (await served.chat(headers=bearer)).status == 200
        assert [caller.in_flight for caller in served.api.ring.callers] == [0]


async def test_tenants_do_not_share_cached_answers():
    keys = {"a": {"hash": digest("sk-a-key")}, "b": {"hash": digest("sk-b-key")}}
    async with serving_models(keys=keys, cache={"ttl": 60}) as served:
        for key, cache in (("sk-a-key", "miss"), ("sk-a-key", "hit"), ("sk-b-key", "miss"), ("sk-b-key", "hit")):
            answer = await served.chat(headers={"Authorization": f"Bearer {key}"})
            assert answer.headers["x-failsoft-cache"] == cache
        other = await served.chat(headers={"Authorization": "Bearer sk-a-key"}, temperature=0.1)
        assert other.headers["x-failsoft-cache"] == "miss"
        streamed = await served.chat(headers={"Authorization": "Bearer sk-a-key"}, stream=True)
        assert (streamed.headers["x-failsoft-cache"], streamed.text, streamed.done) == ("hit", ANSWER, True)
        assert served.main.count == 3


# --- bounds ----------------------------------------------------------------------------------------------------------


async def test_a_bad_body_is_told_with_its_place():
    async with serving_models() as served:
        for body, param in (
            (b"", None),
            (b"{", None),
            (b"[]", None),
            (b"[" * 100_000, None),
            (b"{}", "model"),
            (b'{"model": "gpt-x", "messages": []}', "messages"),
            (b'{"model": "gpt-x", "messages": [{"role": "user", "content": 1}]}', "messages[0].content"),
        ):
            answer = await served.post("/v1/chat/completions", body)
            assert (answer.status, answer.error["type"], answer.error["param"]) == (400, "invalid_request_error", param)


async def test_a_body_over_the_limit_is_413_whether_announced_or_not():
    async with serving_models(gateway={"max_body": 2000}) as served:
        answer = await served.chat(padding="x" * 3000)
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")

        async def parts():
            for _ in range(30):
                yield b"x" * 100

        async with served.client.post(f"{served.base_url}/chat/completions", data=parts()) as response:
            assert response.status == 413
        assert (await served.chat()).status == 200


async def test_headers_over_the_limit_are_431():
    async with serving_models() as served:
        reader, writer = await served.connect()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + b"X-A: " + b"a" * 40_000 + b"\r\n\r\n")
        assert b" 431 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_does_not_send_its_body_is_let_go_in_time():
    async with serving_models(gateway={"body_timeout": 0.3}) as served:
        reader, writer = await served.connect()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(), 3)
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert b"request_timeout" in answer
        writer.close()
        await writer.wait_closed()
        assert (await served.chat()).status == 200


# --- figures and lines -----------------------------------------------------------------------------------------------


async def test_metrics_count_calls_routes_tokens_and_failures_under_known_names():
    async with serving_models() as served:
        served.main.script(["ok", "status_500"])
        for stream in (False, True):
            assert (await served.chat(stream=stream)).status == 200
        await served.chat("nothing")
        await served.post("/v1/chat/completions", b"{")
        figures = await served.scrape()
        chat = (
            'gen_ai_operation_name="chat",gen_ai_request_model="gpt-x",failsoft_route="main",gen_ai_response_model="ok"'
        )
        assert figures[f"gen_ai_client_operation_duration_seconds_count{{{chat}}}"] == 1
        assert figures[f'gen_ai_client_token_usage_sum{{{chat},gen_ai_token_type="input"}}'] == 12
        assert figures[f'gen_ai_client_token_usage_sum{{{chat},gen_ai_token_type="output"}}'] == 10
        backup = chat.replace('"main"', '"backup"')
        assert figures[f"gen_ai_server_time_to_first_token_seconds_count{{{backup}}}"] == 1
        calls = "failsoft_gateway_calls_total"
        assert figures[f'{calls}{{alias="gpt-x",route="backup",operation="chat",status="200"}}'] == 1
        fell = 'failsoft_gateway_fallbacks_total{alias="gpt-x",route="main",reading="server_error"}'
        assert figures[fell] == 1
        assert figures['failsoft_gateway_attempts_total{alias="gpt-x"}'] == 3
        assert figures['failsoft_gateway_refused_total{code="not_found",status="404"}'] == 1
        assert figures['failsoft_gateway_refused_total{code="bad_input",status="400"}'] == 1
        assert figures["failsoft_gateway_in_flight"] == 0
        assert any(name.startswith("failsoft_downstream_breaker_state{") for name in figures)


async def test_metrics_tell_how_many_calls_are_in_flight():
    async with serving_models("headers_never") as served:
        held = [await served.send_raw(stream=stream) for stream in (False, True)]
        while served.main.busy < 2:  # noqa: ASYNC110 - the fake upstream has no event to wait for
            await asyncio.sleep(0.01)
        assert (await served.scrape())["failsoft_gateway_in_flight"] == 2
        for _, writer in held:
            writer.close()
        while served.main.busy:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await served.scrape())["failsoft_gateway_in_flight"] == 0


@pytest.mark.may_block(reason="the test reads the pipe that the log is written to")
async def test_one_line_for_each_call_with_everything_but_content_and_keys():
    reading, writing = os.pipe()
    keys = {"team": {"hash": digest(KEY), "tenant": "blue"}}
    try:
        async with serving_models("status_500", keys=keys) as served:
            served.api.log._fd = writing
            bearer = {"Authorization": f"Bearer {KEY}"}
            await served.chat(headers=bearer, stream=True)
            await served.chat(headers={"Authorization": "Bearer sk-wrong"})
            served.main.default = served.other.default = "headers_never"
            await served.chat(headers={**bearer, "X_Max_Wait": "400ms"})
        text = os.read(reading, 100_000).decode()
    finally:
        os.close(reading)
        os.close(writing)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["status"] for line in lines] == [200, 401, 504]
    first, refused, late = lines
    assert (first["tenant"], first["key"], first["alias"], first["route"]) == ("blue", "team", "gpt-x", "backup")
    assert first["fallbacks"] == ["main=server_error"]
    assert (first["attempts"], first["stream"], first["input_tokens"], first["output_tokens"]) == (2, True, 12, 10)
    assert 0 < first["remaining_ms"] < first["budget_ms"] == 60_000
    assert first["limits"][0] == "configured"
    assert (refused["code"], "alias" in refused) == ("unauthorized", False)
    assert late["fired"]
    assert late["remaining_ms"] < 100
    for secret in (KEY, "sk-", "hello", "fox"):
        assert secret not in text


# --- clients that go, and those that do not read ---------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["headers_never", "slow_first_token", "role_then_silence", "stall"])
async def test_a_client_that_goes_closes_the_upstream_within_200_ms(fault, stream):
    async with serving_models(fault, limits={"first_content": 9, "idle": 9, "total": 9}) as served:
        served.main.pause = 0.01
        _, writer = await served.send_raw(stream=stream)
        await until(lambda: served.main.count == 1)
        await asyncio.sleep(0.15)
        writer.close()
        await writer.wait_closed()
        assert await until(lambda: served.main.closed_early == 1) < 0.2
        await until(lambda: not served.api.calls)
        assert served.other.count == 0
        figures = await served.scrape()
        assert sum(v for k, v in figures.items() if k.startswith("failsoft_gateway_calls_total") and '"499"' in k) == 1
        (guard,) = (one for one in served.kernel.guards.values() if one.statistics().calls)
        assert (guard.statistics().failed, guard.statistics().timed_out) == (0, 0)


async def test_a_client_that_closes_right_after_done_was_served():
    async with serving_models() as served:
        for _ in range(5):
            reader, writer = await served.send_raw(stream=True)
            await reader.readuntil(b"[DONE]")
            writer.transport.abort()
        await until(lambda: not served.api.calls)
        figures = await served.scrape()
        calls = {k: v for k, v in figures.items() if k.startswith("failsoft_gateway_calls_total")}
        assert sum(calls.values()) == 5
        assert not any('"499"' in name for name in calls)


async def test_a_client_that_does_not_read_is_bounded_and_slows_nobody():
    async with serving_models(
        gateway={"write_timeout": 1.0}, limits={"first_content": 5, "idle": 5, "total": 60}
    ) as served:
        served.main.text = " ".join("wörter" * 40 for _ in range(20_000))
        _, writer = await served.send_raw(stream=True)
        writer.transport.pause_reading()
        await until(lambda: served.main.count == 1)
        await asyncio.sleep(0.3)
        (call,) = served.api.calls
        assert call.outlet is not None
        await until(lambda: call.outlet.blocked)
        served.main.text = ANSWER
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await served.chat()).status == 200
        assert loop.time() - began < 0.5
        assert call.link is not None
        assert call.link._protocol.transport.get_write_buffer_size() < 1_000_000
        await until(lambda: not served.api.calls)
        figures = await served.scrape()
        assert any('"499"' in name for name in figures)
        await until(lambda: served.main.open <= 1)  # the other one is idle, in its pool
        writer.transport.abort()


# --- held headers ----------------------------------------------------------------------------------------------------


async def test_headers_are_held_until_content_and_then_go_with_heartbeats():
    async with serving_models(
        "slow_first_token:1.2", commit_after=0.3, heartbeat=0.2, limits={"first_content": 5}
    ) as served:
        loop = asyncio.get_running_loop()
        began = loop.time()
        body = {"model": "gpt-x", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        async with served.client.post(f"{served.base_url}/chat/completions", json=body) as response:
            assert 0.25 < loop.time() - began < 0.9
            assert response.status == 200
            assert "x-failsoft-route" not in response.headers
            raw = await response.read()
        assert raw.count(b": keep-alive\n\n") >= 3
        assert raw.startswith(b": keep-alive\n\n")
        finish = [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")][-1]
        assert finish["failsoft"]["route"] == "main"
        assert finish["failsoft"]["attempts"] == 1
        assert raw.endswith(b"data: [DONE]\n\n")


async def test_failover_after_the_headers_went_is_invisible_and_told_at_the_end():
    async with serving_models(
        "headers_never", commit_after=0.2, heartbeat=0.2, limits={"first_content": 0.6}
    ) as served:
        answer = await served.chat(stream=True)
        assert (answer.status, answer.text, answer.done) == (200, ANSWER, True)
        facts = answer.events[-1]["failsoft"]
        assert (facts["route"], facts["fallbacks"], facts["limit_fired"]) == ("backup", ["main"], "first_item")


async def test_a_failure_after_the_headers_went_is_an_error_event_without_done():
    async with serving_models(
        "headers_never",
        backup="headers_never",
        commit_after=0.2,
        heartbeat=0.1,
        limits={"first_content": 0.5, "total": 1},
    ) as served:
        answer = await served.chat(stream=True, headers={"X_Max_Wait": "1s"})
        assert (answer.status, answer.done) == (200, False)
        assert answer.error["type"] == "timeout_error"
        assert answer.events[-1].keys() == {"error"}


async def test_silence_between_chunks_gets_heartbeats():
    async with serving_models("reasoning:4:0.5", heartbeat=0.15) as served:
        answer = await served.chat(stream=True)
        assert answer.raw.count(b": keep-alive") >= 4
        assert (answer.text, answer.done) == (ANSWER, True)


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_at_the_end_calls_may_finish_and_late_ones_are_cut_with_a_reason(stream):
    async with serving_models("reasoning:3:0.2", server={"drain": 5}) as served:
        quick = asyncio.create_task(served.chat(stream=stream))
        await until(lambda: served.main.count == 1)
        served.server.stop()
        answer = await quick
        assert answer.text == ANSWER
    async with serving_models("headers_never", server={"drain": 0.3}, limits={"first_content": 9}) as served:
        slow = asyncio.create_task(served.chat(stream=stream))
        await until(lambda: served.main.count == 1)
        served.server.stop()
        answer = await slow
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        assert answer.headers["retry-after"] == "1"
        await until(lambda: served.main.closed_early == 1)
