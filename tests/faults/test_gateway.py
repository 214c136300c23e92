"""The gateway in front of a fake upstream that shows every fault: main broken, backup healthy; streaming and not."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from failsoft.base.errors import DownstreamError, FailsoftError, NotFound
from failsoft.kernel.cache import CachePolicy
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import preset
from failsoft.kernel.retry import RetryPolicy
from failsoft.models.assembly import Assembler
from failsoft.models.chat_request import ChatRequest
from failsoft.models.gateway import Gateway
from failsoft.models.limits import ModelLimits
from failsoft.models.routes import Alias, Route
from failsoft.testing.upstream import ANSWER, FAULTS, FakeUpstream
from failsoft.transports.aiohttp_transport import AiohttpTransport

LIMITS = ModelLimits(first_content=2.0, idle=2.0, total=10.0)
POLICY = replace(preset("model"), retry=RetryPolicy(queries=0))

NOT_THE_ROUTES_FAULT = {"bad_request", "content_filter", "context_length"}
"""The caller's fault: no other route can help."""

STILL_AN_ANSWER = {"no_done"}
"""Every choice said why it ended: complete, though the last line is missing."""

AFTER_CONTENT = {"stall", "cut", "bad_chunk", "error_in_stream", "no_finish_reason", "slow_drip"}


def ask(model="gpt-x", stream=False, **more):
    return ChatRequest({"model": model, "messages": [{"role": "user", "content": "hello"}], "stream": stream, **more})


@asynccontextmanager
async def gateway(fault="ok", *, backup="ok", alias=None, **changes):
    async with FakeUpstream() as main, FakeUpstream() as other:
        routes = (
            Route("main", main.base_url, fault, "sk-main", limits=LIMITS, policy=POLICY),
            Route("backup", other.base_url, backup, "sk-backup", limits=LIMITS, policy=POLICY, equivalent=True),
        )
        transport = AiohttpTransport()
        kernel = Kernel()
        made = Gateway([alias or Alias("gpt-x", routes, **changes)], kernel, transport)
        made.main, made.other = main, other
        try:
            yield made
            await asyncio.sleep(0.1)
            for guard in kernel.guards.values():
                figures = guard.statistics()
                assert (figures.in_use, figures.waiting, figures.orphans) == (0, 0, 0)
        finally:
            await transport.aclose()


async def streamed(g, request, record):
    assembler, pieces = Assembler(request.n), 0
    async for piece in g.stream(request, record):
        pieces += 1
        for chunk in piece:
            assembler.feed(chunk)
    return assembler, pieces


def text(answer):
    return answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - NOT_THE_ROUTES_FAULT - STILL_AN_ANSWER))
async def test_not_streaming_the_backup_gives_the_whole_answer(fault):
    async with gateway(fault) as g:
        request = ask()
        record = g.record(request)
        async with deadline_scope(12.0):
            answer = await g.complete(request, record)
        assert text(answer) == ANSWER
        assert record.route == "backup"
        assert [one.route for one in record.tried] == ["main"]
        assert not record.degraded
        await asyncio.sleep(0.1)
        assert g.other.open <= 1


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - NOT_THE_ROUTES_FAULT - STILL_AN_ANSWER - AFTER_CONTENT))
async def test_streaming_a_fault_before_content_is_invisible(fault):
    async with gateway(fault) as g:
        request = ask(stream=True)
        record = g.record(request)
        async with deadline_scope(12.0):
            assembler, _ = await streamed(g, request, record)
        assert assembler.finished
        assert text(assembler.result()) == ANSWER
        assert record.route == "backup"


@pytest.mark.parametrize("fault", sorted(AFTER_CONTENT - {"slow_drip"}))
async def test_streaming_a_fault_after_content_never_passes_for_complete(fault):
    async with gateway(fault) as g:
        request = ask(stream=True)
        record = g.record(request)
        seen = Assembler()
        g.main.pause = 0.01  # else it all comes in one piece, and nothing was said before the fault
        with pytest.raises(FailsoftError):
            async for piece in g.stream(request, record):
                for chunk in piece:
                    seen.feed(chunk)
        assert not seen.finished
        assert ANSWER.startswith(seen.partial_text.rstrip())
        assert record.ended is not None
        assert g.other.count == 0
        await asyncio.sleep(0.1)
        assert g.main.open <= (fault == "no_finish_reason")  # that one may be used again


@pytest.mark.parametrize("fault", ["cut", "stall", "bad_chunk"])
async def test_a_cut_stream_goes_on_at_the_next_route_when_the_alias_says_so(fault):
    async with gateway(fault, continue_on_cut=True) as g:
        request = ask(stream=True)
        record = g.record(request)
        g.main.pause = 0.01
        async with deadline_scope(12.0):
            assembler, _ = await streamed(g, request, record)
        assert assembler.finished
        assert record.seam
        sent = g.other.requests[0].body["messages"]
        assert sent[-1]["role"] == "assistant"
        assert ANSWER.startswith(sent[-1]["content"].rstrip())


@pytest.mark.parametrize("stream", [False, True])
async def test_the_callers_fault_is_told_and_no_other_route_is_asked(stream):
    async with gateway("bad_request") as g:
        request = ask(stream=stream)
        with pytest.raises(FailsoftError) as caught:
            if stream:
                await streamed(g, request, g.record(request))
            else:
                await g.complete(request, g.record(request))
        assert caught.value.status == 400
        assert g.other.count == 0
        assert str(g.kernel.guards[next(iter(g.kernel.guards))].breaker.state) == "closed"


async def test_a_missing_done_alone_is_forgiven():
    async with gateway("no_done") as g:
        request = ask(stream=True)
        assembler, _ = await streamed(g, request, g.record(request))
        assert assembler.finished
        assert g.other.count == 0


async def test_a_long_retry_after_is_not_waited_for_when_the_budget_is_short():
    async with gateway("status_429_retry_after") as g:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with deadline_scope(5.0):
            await g.complete(ask(), g.record(ask()))
        assert loop.time() - began < 1.0


async def test_a_refused_key_takes_the_route_out_at_once_and_raises_an_alert():
    heard = []
    async with gateway("status_401") as g:
        g.kernel.bus.add(heard.append)
        for _ in range(3):
            await g.complete(ask(), g.record(ask()))
        assert g.main.count == 1
        assert "route.alert" in {event.kind for event in heard}


async def test_after_three_errors_the_alias_stays_on_its_backup():
    async with gateway("status_500", coalesce=False) as g:
        for _ in range(6):
            await g.complete(ask(), g.record(ask()))
        assert g.main.count == 3
        assert g.other.count == 6


async def test_when_all_routes_fail_the_last_ones_error_is_told_inside_the_budget():
    async with gateway("status_500", backup="headers_never") as g:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(FailsoftError) as caught:
            async with deadline_scope(6.0):
                await g.complete(ask(), g.record(ask()))
        assert caught.value.status in {502, 503, 504}
        assert loop.time() - began <= 6.05


async def test_a_text_route_answers_when_no_model_does():
    async with FakeUpstream() as dead:
        routes = (
            Route("main", dead.base_url, "status_503", limits=LIMITS, policy=POLICY),
            Route("simplified", text="Please try again later: {question}"),
        )
        async with gateway(alias=Alias("gpt-x", routes)) as g:
            record = g.record(ask())
            answer = await g.complete(ask(), record)
            assert text(answer) == "Please try again later: hello"
            assert record.degraded
            assembler, _ = await streamed(g, ask(stream=True), g.record(ask()))
            assert assembler.finished


async def test_identical_calls_in_flight_share_one_and_a_fresh_answer_is_cached():
    async with gateway("ok", cache=CachePolicy(ttl=60.0)) as g:
        g.main.pause = 0.5
        records = [g.record(ask()) for _ in range(5)]
        answers = await asyncio.gather(*(g.complete(ask(), record) for record in records))
        assert {text(answer) for answer in answers} == {ANSWER}
        assert g.main.count == 1
        assert sorted(record.cache for record in records) == ["miss"] + ["shared"] * 4
        again = g.record(ask())
        await g.complete(ask(), again)
        assert again.cache == "hit"
        assembler, _ = await streamed(g, ask(stream=True), g.record(ask()))
        assert text(assembler.result()) == ANSWER
        assert g.main.count == 1
        await g.complete(ask(temperature=0.5), g.record(ask()))
        assert g.main.count == 2


async def test_a_stale_answer_serves_when_no_route_does():
    async with gateway("ok", cache=CachePolicy(ttl=10.0, jitter=0.0)) as g:
        await g.complete(ask(), g.record(ask()))
        await asyncio.sleep(20.0)
        g.main.default = g.other.default = "status_500"
        record = g.record(ask())
        assert text(await g.complete(ask(), record)) == ANSWER
        assert (record.cache, record.degraded) == ("stale", True)


async def test_tools_interleaved_and_several_choices_come_through():
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    async with gateway("ok") as g:
        answer = await g.complete(ask(tools=tools), g.record(ask()))
        calls = answer["choices"][0]["message"]["tool_calls"]
        assert [call["function"]["arguments"] for call in calls] == ['{"a": 1, "b": 2}', '{"a": 3, "b": 4}']
        answer = await g.complete(ask(n=3), g.record(ask()))
        assert [c["message"]["content"] for c in answer["choices"]] == [ANSWER] * 3
        assert answer["usage"]["total_tokens"] == 22


async def test_reasoning_is_progress_and_a_role_is_not():
    async with gateway("reasoning:5:1.5") as g:
        async with deadline_scope(60.0):
            answer = await g.complete(ask(), g.record(ask()))
        assert answer["choices"][0]["message"]["reasoning_content"].startswith("step 0")
        assert g.other.count == 1 or g.main.count == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_closes_the_upstream_at_once(stream):
    async with gateway("headers_never") as g:
        request = ask(stream=stream)
        coroutine = streamed(g, request, g.record(request)) if stream else g.complete(request, g.record(request))
        task = asyncio.create_task(coroutine)
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.2)
        assert g.main.closed_early == 1
        assert g.other.count == 0


async def test_budget_and_credentials_go_to_the_upstream():
    async with gateway("ok") as g:
        async with deadline_scope(4.0):
            await g.complete(ask(stop=["x"]), g.record(ask(), request_id="r-1"))
        seen = g.main.requests[0]
        assert seen.headers["authorization"] == "Bearer sk-main"
        assert 0 < int(seen.headers["x-request-timeout-ms"]) <= 4000
        assert seen.headers["x-request-id"] == "r-1"
        assert seen.body["stop"] == ["x"]
        assert seen.body["stream"] is True


async def test_an_unknown_alias_names_those_there_are():
    async with gateway("ok") as g:
        with pytest.raises(NotFound, match="gpt-x"):
            await g.complete(ask("gpt-y"), g.record(ask("gpt-y")))


async def test_all_routes_cooling_down_are_waited_for_when_the_budget_allows():
    async with gateway("ok", backup="ok", coalesce=False) as g:
        loop = asyncio.get_running_loop()
        for one in g.kernel.guards.values():
            one.bind()
            one.breaker.force_open(loop.time(), for_=3.0)
        began = loop.time()
        async with deadline_scope(10.0):
            await g.complete(ask(), g.record(ask()))
        assert 3.0 <= loop.time() - began < 4.0
        for one in g.kernel.guards.values():
            one.breaker.force_open(loop.time(), for_=60.0)
        with pytest.raises(DownstreamError) as caught:
            async with deadline_scope(5.0):
                await g.complete(ask(), g.record(ask()))
        assert caught.value.status == 503
        assert 50 < caught.value.retry_after <= 60
