"""Every fault of a fake upstream through the whole gateway over HTTP: main broken, backup healthy, streaming and not.

Right is the backup's whole answer where nothing was said yet, else a clean error and never a cut-off success; inside
the budget; with the upstream's connections closed.
"""

import asyncio

import pytest
from tests.server.models_served import serving_models
from tests.server.serving import until

from failsoft.testing.upstream import ANSWER, FAULTS

pytestmark = pytest.mark.realtime

CALLERS_FAULT = {
    "bad_request": "upstream_refusal",
    "content_filter": "content_filter",
    "context_length": "context_length_exceeded",
}
STILL_AN_ANSWER = {"no_done"}
AFTER_CONTENT = {"stall", "cut", "bad_chunk", "error_in_stream", "no_finish_reason"}
ROUTE_FAULTS = sorted(set(FAULTS) - set(CALLERS_FAULT) - STILL_AN_ANSWER)
BUDGET = 6.0


async def timed(served, **request):
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await served.chat(headers={"X_Max_Wait": f"{BUDGET}s"}, **request)
    assert loop.time() - began < BUDGET
    return answer


async def check_closed(served):
    """No connection is held but idle ones in their pools, and nothing is in flight."""
    await until(lambda: not served.api.calls)
    await until(lambda: served.main.open <= 1 and served.other.open <= 1, 2.0)


@pytest.mark.parametrize("fault", ROUTE_FAULTS)
async def test_without_a_stream_the_backup_gives_the_whole_answer(fault):
    async with serving_models(fault) as served:
        answer = await timed(served)
        assert (answer.status, answer.text) == (200, ANSWER)
        assert answer.body["model"] == "ok"
        assert answer.body["choices"][0]["finish_reason"] == "stop"
        assert answer.headers["x-failsoft-route"] == "backup"
        assert answer.headers["x-failsoft-fallbacks"].startswith("main=")
        assert answer.headers["x-failsoft-attempts"] == "2"
        await check_closed(served)


@pytest.mark.parametrize("fault", sorted(set(ROUTE_FAULTS) - AFTER_CONTENT - {"slow_drip"}))
async def test_with_a_stream_a_fault_before_content_is_invisible(fault):
    async with serving_models(fault) as served:
        answer = await timed(served, stream=True)
        assert (answer.status, answer.text, answer.done) == (200, ANSWER, True)
        assert answer.headers["x-failsoft-route"] == "backup"
        assert {event["model"] for event in answer.events} == {"ok"}
        await check_closed(served)


@pytest.mark.parametrize("fault", sorted(AFTER_CONTENT))
async def test_with_a_stream_a_fault_after_content_ends_in_an_error_and_never_passes_for_complete(fault):
    async with serving_models(fault) as served:
        served.main.pause = 0.02
        answer = await timed(served, stream=True)
        assert answer.status == 200
        assert not answer.done
        assert answer.error is not None
        assert answer.events[-1].keys() == {"error"}
        assert answer.error.keys() >= {"message", "type", "param", "code"}
        assert answer.text
        assert ANSWER.startswith(answer.text)
        finishes = [c["finish_reason"] for event in answer.events for c in event.get("choices", [])]
        assert not any(finishes)
        assert served.other.count == 0
        await check_closed(served)


async def test_a_slow_drip_streams_slowly_or_falls_back_but_is_never_cut_off_in_silence():
    async with serving_models("slow_drip") as served:
        answer = await timed(served, stream=True)
        assert answer.done != (answer.error is not None)
        assert answer.text == ANSWER if answer.done else ANSWER.startswith(answer.text)
        await check_closed(served)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", sorted(CALLERS_FAULT))
async def test_the_callers_fault_is_a_400_and_no_other_route_is_asked(fault, stream):
    larger = fault == "context_length"  # another model's context may be larger
    async with serving_models(fault, backup=fault if larger else "ok") as served:
        answer = await timed(served, stream=stream)
        assert (answer.status, answer.error["code"]) == (400, CALLERS_FAULT[fault])
        assert answer.error["type"] == "invalid_request_error"
        assert served.other.count == larger
        assert all(str(guard.breaker.state) == "closed" for guard in served.kernel.guards.values())
        await check_closed(served)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_missing_done_alone_is_forgiven(stream):
    async with serving_models("no_done") as served:
        answer = await timed(served, stream=stream)
        if stream:
            assert (answer.status, answer.text, answer.done) == (200, ANSWER, True)
            assert served.other.count == 0
        else:
            assert (answer.status, answer.text) == (200, ANSWER)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("refused", 502, "upstream_fault"),
        ("status_500", 502, "upstream_fault"),
        ("status_503", 503, "upstream_overloaded"),
        ("status_429_retry_after", 429, "upstream_limited"),
        ("status_401", 502, "upstream_credentials"),
        ("quota", 502, "upstream_quota"),
        ("status_404", 502, "model_missing"),
        ("empty_200", 502, "empty_result"),
        ("malformed_json", 502, "malformed_result"),
        ("headers_never", 504, "first_item_timeout"),
        ("role_then_silence", 504, "first_item_timeout"),
    ],
)
async def test_when_every_route_fails_the_client_gets_the_right_status(fault, status, code, stream):
    async with serving_models(fault, backup=fault, limits={"first_content": 0.4, "idle": 1, "total": 0.8}) as served:
        answer = await served.chat(stream=stream)
        if code.endswith("_timeout"):
            assert answer.status == 504
            assert answer.error["code"] in {code, "total_timeout"}
        else:
            assert (answer.status, answer.error["code"]) == (status, code)
        if fault == "status_429_retry_after":
            assert 1 <= int(answer.headers["retry-after"]) <= 47
        assert answer.headers["x-failsoft-attempts"] == "2"
        await check_closed(served)


async def test_when_all_are_taken_out_a_503_says_when_to_come_back():
    async with serving_models("status_429_retry_after", backup="status_429_retry_after") as served:
        assert (await served.chat()).status == 429
        answer = await served.chat(headers={"X_Max_Wait": "2s"})
        assert answer.status == 503
        assert 40 <= int(answer.headers["retry-after"]) <= 47
        assert (served.main.count, served.other.count) == (1, 1)


@pytest.mark.parametrize("fault", ["cut", "stall"])
async def test_a_cut_stream_goes_on_at_the_next_route_and_the_seam_is_told(fault):
    async with serving_models(fault, continue_on_cut=True) as served:
        served.main.pause = 0.02
        answer = await timed(served, stream=True)
        assert (answer.status, answer.done) == (200, True)
        assert answer.events[-1]["failsoft"]["seam"] is True
        assert answer.events[-1]["failsoft"]["route"] == "backup"


async def test_a_character_split_over_network_reads_and_other_odd_framing_come_through():
    async with serving_models() as served:
        served.main.text = "naïve 𝔘𝔫𝔦 日本語 🙂 done"
        for fault in ("ok", "slow_drip:0:0.001"):
            served.main.script([fault])
            answer = await timed(served, stream=True)
            assert (answer.text, answer.done) == (served.main.text, True)


async def test_tools_interleaved_several_choices_and_usage_come_through_both_ways():
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    async with serving_models() as served:
        streamed = await timed(served, stream=True, tools=tools, stream_options={"include_usage": True})
        whole = await timed(served, tools=tools)
        parts = {}
        for event in streamed.events:
            for choice in event["choices"]:
                for call in choice["delta"].get("tool_calls", []):
                    known = parts.setdefault(call["index"], "")
                    parts[call["index"]] = known + call["function"].get("arguments", "")
        assert parts == {0: '{"a": 1, "b": 2}', 1: '{"a": 3, "b": 4}'}
        calls = whole.body["choices"][0]["message"]["tool_calls"]
        assert [call["function"]["arguments"] for call in calls] == list(parts.values())
        assert streamed.events[-1]["usage"] == whole.body["usage"]
        several = await timed(served, n=3)
        assert [choice["message"]["content"] for choice in several.body["choices"]] == [ANSWER] * 3
