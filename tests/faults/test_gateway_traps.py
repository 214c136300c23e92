"""Traps of the gateway: what concurrent, short-lived, broken or hostile calls must not do to the others, or leave
behind.
"""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.base.errors import DownstreamUnavailable, FailsoftError, StreamCut
from failsoft.kernel.breaker import BreakerState
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.cache import CachePolicy
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import preset
from failsoft.kernel.retry import RetryPolicy
from failsoft.models.assembly import Assembler
from failsoft.models.chat_request import ChatRequest
from failsoft.models.gateway import Gateway
from failsoft.models.limits import ModelLimits
from failsoft.models.passing import through
from failsoft.models.routes import Alias, Route
from failsoft.testing.clock import run

POLICY = replace(preset("model"), retry=RetryPolicy(queries=0))
LIMITS = ModelLimits(first_content=5.0, idle=5.0, total=30.0)


def ask(stream=False, **more):
    return ChatRequest({"model": "gpt-x", "messages": [{"role": "user", "content": "hello"}], "stream": stream, **more})


# --- an upstream in a few lines: each answer is a list of pieces of the body, of pauses and of errors -------


def delta(text=None, finish=None, index=0, **more):
    change = {**({} if text is None else {"content": text}), **more}
    return {"choices": [{"index": index, "delta": change, "finish_reason": finish}]}


def sse(*chunks):
    return b"".join(b"data: " + (c if isinstance(c, bytes) else json.dumps(c).encode()) + b"\n\n" for c in chunks)


WELL = [sse(delta("fine"), delta(None, "stop"), b"[DONE]")]
CUT = StreamCut("the body broke off")


class Response:
    status = 200
    headers = {"content-type": "text/event-stream"}

    def __init__(self, pieces):
        self.pieces = pieces

    async def chunks(self):
        for piece in self.pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            elif isinstance(piece, BaseException):
                raise piece
            else:
                yield piece

    async def read(self, limit):
        return b"".join([piece async for piece in self.chunks()])


class Upstreams:
    """A transport: answers by the host of the URL."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []
        self.requests = []
        self.open = 0

    @asynccontextmanager
    async def send(self, request):
        host = request.url.split("/")[2]
        self.asked.append(host)
        self.requests.append(request)
        self.open += 1
        try:
            answer = self.answers[host]
            if isinstance(answer, BaseException):
                raise type(answer)(str(answer), details=dict(getattr(answer, "details", {})))
            if answer and isinstance(answer[0], float):  # before the head
                await asyncio.sleep(answer[0])
                answer = answer[1:]
            yield Response(answer)
        finally:
            self.open -= 1

    async def aclose(self):
        pass


def route(name, **more):
    made = {"limits": LIMITS, "policy": POLICY, "equivalent": True, **more}
    return Route(name, f"http://{name}/v1", "m", **made)


def gateway(upstreams, *routes, **alias):
    routes = routes or tuple(route(name) for name in upstreams.answers)
    return Gateway([Alias("gpt-x", routes, **alias)], Kernel(), upstreams)


async def told(g, request, budget=20.0):
    """What a client of the stream gets: the assembled answer, whether it ended well, the record."""
    assembler, record = Assembler(request.n), g.record(request)
    try:
        async with deadline_scope(budget):
            async for piece in g.stream(request, record):
                for chunk in piece:
                    assembler.feed(chunk)
    except FailsoftError as error:
        return assembler, error, record
    return assembler, None, record


async def completed(g, request=None, budget=20.0):
    request = request or ask()
    record = g.record(request)
    async with deadline_scope(budget):
        answer = await g.complete(request, record)
    return answer["choices"][0]["message"]["content"], record


def guards(g):
    return list(g.kernel.guards.values())


# --- stickiness ----------------------------------------------------------------------------------------------------


async def test_a_route_that_cuts_every_stream_is_left_after_three():
    ups = Upstreams(main=[sse(delta("half")), 0.1, CUT], backup=WELL)
    g = gateway(ups)
    for _ in range(3):
        _, error, _ = await told(g, ask(stream=True))
        assert error is not None
    _, error, record = await told(g, ask(stream=True))
    assert error is None
    assert record.route == "backup"


async def test_a_probe_whose_client_goes_in_mid_stream_leaves_the_next_one_free():
    ups = Upstreams(main=DownstreamUnavailable("down"), backup=WELL)
    g = gateway(ups)
    for _ in range(3):
        await told(g, ask(stream=True))
    ups.answers["main"] = [sse(delta("a")), 1.0, *WELL]
    await asyncio.sleep(500.0)
    stream = g.stream(ask(stream=True), g.record(ask()))
    await anext(stream)
    assert ups.asked[-1] == "main"
    await stream.aclose()
    assert ups.open == 0
    _, error, record = await told(g, ask(stream=True))
    assert error is None
    assert record.route == "main"
    assert guards(g)[0].statistics().in_use == 0


async def test_a_probe_ends_when_the_budget_is_gone_before_it_starts():
    ups = Upstreams(main=DownstreamUnavailable("down"), backup=WELL)
    g = gateway(ups)
    for _ in range(3):
        await completed(g)
    ups.answers["main"] = WELL
    await asyncio.sleep(500.0)
    with pytest.raises(FailsoftError):
        async with deadline_scope(at=asyncio.get_running_loop().time()):
            await through(g, g.state("gpt-x"), ask(), g.record(ask()), None)
    _, record = await completed(g)
    assert record.route == "main"


async def test_when_the_backup_dies_the_main_route_is_asked_although_its_probe_is_not_due():
    ups = Upstreams(main=DownstreamUnavailable("down"), backup=WELL)
    g = gateway(ups)
    for _ in range(3):
        await completed(g)
    ups.answers.update(main=WELL, backup=DownstreamUnavailable("down"))
    text, record = await completed(g)
    assert (text, record.route) == ("fine", "main")


# --- budgets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_short_budgets_of_one_caller_take_the_route_from_nobody(stream):
    ups = Upstreams(main=[0.5, *WELL], backup=[0.5, *WELL])
    g = gateway(ups, coalesce=False)
    for _ in range(30):
        if stream:
            _, error, _ = await told(g, ask(stream=True), budget=0.1)
            assert error is not None
        else:
            with pytest.raises(FailsoftError):
                await completed(g, budget=0.1)
    assert {guard.breaker.state for guard in guards(g)} == {BreakerState.CLOSED}
    _, record = await completed(g)
    assert record.route == "main"
    assert not record.tried


async def test_a_route_that_is_late_with_time_enough_is_blamed():
    ups = Upstreams(main=[60.0], backup=WELL)
    g = gateway(ups, coalesce=False)
    for _ in range(5):
        await completed(g, budget=5.0)
    assert ups.asked.count("main") == 5
    _, record = await completed(g, budget=5.0)
    assert ups.asked.count("main") == 5
    assert record.route == "backup"


@pytest.mark.parametrize("mode", ["always", "auto", "never"])
async def test_however_the_upstream_is_asked_a_route_that_hangs_is_left_and_short_budgets_blame_nobody(mode):
    ups = Upstreams(main=[0.5, *WELL], backup=[0.5, *WELL])
    g = gateway(ups, *(route(name, upstream_stream=mode) for name in ups.answers), coalesce=False)
    for _ in range(30):
        with pytest.raises(FailsoftError):
            await completed(g, budget=0.1)
    _, record = await completed(g, budget=5.0)
    assert record.route == "main"
    ups.answers["main"] = [60.0]
    for _ in range(5):
        await completed(g, budget=5.0)
    asked = ups.asked.count("main")
    _, record = await completed(g, budget=5.0)
    assert (record.route, ups.asked.count("main")) == ("backup", asked)


@pytest.mark.parametrize("budget", [8.0, 60.0])
async def test_the_breaker_of_an_only_route_opens_when_it_hangs(budget):
    g = gateway(Upstreams(main=[600.0]), coalesce=False)
    for _ in range(12):
        with pytest.raises(FailsoftError):
            await completed(g, budget=budget)
    assert guards(g)[0].breaker.state != BreakerState.CLOSED


async def test_a_stream_that_has_begun_keeps_nothing_for_routes_that_cannot_take_over():
    ups = Upstreams(
        main=[sse(delta("slow")), 3.0, sse(delta(" but sure"), delta(None, "stop"), b"[DONE]")], backup=WELL
    )
    assembler, error, _ = await told(gateway(ups), ask(stream=True), budget=4.0)
    assert error is None
    assert assembler.partial_text == "slow but sure"
    text, record = await completed(gateway(ups), budget=4.0)
    assert (text, record.route) == ("fine", "backup")


async def test_a_budget_less_than_what_is_reserved_for_the_backup_still_leaves_the_main_route_half():
    g = gateway(Upstreams(main=[0.3, *WELL], backup=WELL))
    _, record = await completed(g, budget=1.0)
    assert record.route == "main"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_answers_although_the_model_hangs_to_the_budgets_end(stream):
    g = gateway(Upstreams(main=[60.0]), route("main"), Route("text", text="Later, please."))
    loop = asyncio.get_running_loop()
    began = loop.time()
    if stream:
        assembler, error, record = await told(g, ask(stream=True), budget=4.0)
        assert error is None
        assert assembler.partial_text == "Later, please."
    else:
        text, record = await completed(g, budget=4.0)
        assert text == "Later, please."
    assert loop.time() - began <= 4.0
    assert record.degraded


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stale_answer_serves_although_the_model_hangs_to_the_budgets_end(stream):
    ups = Upstreams(main=WELL)
    g = gateway(ups, cache=CachePolicy(ttl=1.0, jitter=0.0))
    await completed(g)
    await asyncio.sleep(5.0)
    ups.answers["main"] = [60.0]
    if stream:
        assembler, error, record = await told(g, ask(stream=True), budget=4.0)
        assert error is None
        assert assembler.finished
    else:
        _, record = await completed(g, budget=4.0)
    assert record.cache == "stale"


# --- ends of streams -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_whose_every_choice_ended_is_complete_though_the_connection_breaks(stream):
    ups = Upstreams(main=[sse(delta("all")), sse(delta(None, "stop")), CUT], backup=WELL)
    g = gateway(ups)
    if stream:
        assembler, error, record = await told(g, ask(stream=True))
        assert error is None
        assert assembler.partial_text == "all"
    else:
        text, record = await completed(g)
        assert text == "all"
    assert record.route == "main"
    assert not record.tried


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", [[600.0], [b"data: {\n\n"], [sse({"error": {"message": "boom"}})]])
async def test_an_answer_whose_every_choice_ended_is_not_spoilt_by_what_follows(stream, end):
    ups = Upstreams(main=[sse(delta("all"), delta(None, "stop")), 0.1, *end], backup=WELL)
    g = gateway(ups)
    if stream:
        assembler, error, record = await told(g, ask(stream=True))
        assert error is None
        assert assembler.partial_text == "all"
    else:
        text, record = await completed(g)
        assert text == "all"
    assert record.route == "main"
    assert ups.open == 0


@pytest.mark.parametrize("end", [[], [CUT]])
async def test_of_several_choices_none_may_be_missing_at_the_end(end):
    ups = Upstreams(main=[sse(delta("one", None, 0), delta(None, "stop", 0)), *end], backup=WELL)
    _, error, _ = await told(gateway(ups), ask(stream=True, n=2))
    assert error is not None


async def test_an_upstream_that_ignores_n_is_taken_at_its_word_when_it_says_that_it_is_done():
    _, error, _ = await told(gateway(Upstreams(main=WELL)), ask(stream=True, n=2))
    assert error is None


HALF_CALL = {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]}


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (delta("half", None, 0, **HALF_CALL), {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (delta("half"), {"n": 2}),
        (delta('{"a": '), {"response_format": {"type": "json_object"}}),
        (delta("", None, 0, reasoning_content="hm"), {}),
    ],
)
async def test_what_another_route_cannot_go_on_with_ends_in_an_error(first, more):
    ups = Upstreams(main=[sse(first), 0.1, CUT], backup=WELL)
    assembler, error, record = await told(gateway(ups, continue_on_cut=True), ask(stream=True, **more))
    assert error is not None
    assert not assembler.finished
    assert not record.seam
    assert "backup" not in ups.asked


async def test_when_nobody_can_go_on_the_client_hears_of_the_cut():
    ups = Upstreams(main=[sse(delta("half")), 0.1, CUT], backup=DownstreamUnavailable("down"))
    assembler, error, record = await told(gateway(ups, continue_on_cut=True), ask(stream=True))
    assert error.code == StreamCut.code
    assert not record.seam
    assert not assembler.finished
    assert [one.route for one in record.tried] == ["main", "backup"]


async def test_an_error_that_is_none_of_ours_in_mid_stream_is_told_as_one_of_ours():
    ups = Upstreams(main=[sse(delta("half")), 0.1, RuntimeError("a bug")], backup=WELL)
    _, error, record = await told(gateway(ups), ask(stream=True))
    assert isinstance(error, FailsoftError)
    assert record.tried[0].reading == "unexpected"


# --- records -------------------------------------------------------------------------------------------------------


async def test_who_shares_a_call_knows_who_served_it_and_that_it_was_second_best():
    ups = Upstreams(main=[0.5, DownstreamUnavailable("down")], small=[0.5, *WELL])
    g = gateway(ups, route("main"), route("small", equivalent=False))
    found = await asyncio.gather(*(completed(g) for _ in range(3)))
    assert {(record.route, record.model, record.degraded) for _, record in found} == {("small", "m", True)}
    assert sorted(record.cache for _, record in found) == ["off", "shared", "shared"]
    assert ups.asked == ["main", "small"]


@pytest.mark.realtime
@pytest.mark.parametrize("mode", ["always", "never"])
async def test_waiting_for_a_permit_is_not_the_gateways_own_time_whether_it_comes_or_not(mode):
    busy = replace(POLICY, bulkhead=BulkheadPolicy(permits=1, queue=4))
    g = gateway(Upstreams(main=[0.3, *WELL]), route("main", policy=busy, upstream_stream=mode), coalesce=False)

    async def call(budget):
        record = g.record(ask())
        record.back()
        try:
            async with deadline_scope(budget):
                await g.complete(ask(), record)
        except FailsoftError:
            pass
        record.away()
        return record

    first, second, never = await asyncio.gather(call(5.0), call(5.0), call(0.2))
    assert (first.attempts, second.attempts, never.attempts) == (1, 1, 0)
    assert second.queue >= 0.25
    assert never.queue >= 0.1
    assert max(first.own, second.own, never.own) < 0.1


async def test_the_reason_of_any_choice_is_noted():
    ups = Upstreams(
        main=[
            sse(delta("a", None, 0), delta("b", None, 1)),
            sse(
                {
                    "choices": [
                        {"index": 0, "delta": {"content": "a"}, "finish_reason": None},
                        {"index": 1, "delta": {}, "finish_reason": "length"},
                    ]
                }
            ),
            sse(delta(None, "length", 0), b"[DONE]"),
        ]
    )
    _, error, record = await told(gateway(ups), ask(stream=True, n=2))
    assert error is None
    assert record.finish == "length"


async def test_the_body_of_a_failed_attempt_is_not_kept_for_the_next_routes_answer():
    class Late(Upstreams):
        @asynccontextmanager
        async def send(self, request):
            async with super().send(request) as response:
                if "main" in request.url:
                    response.headers = {"content-type": "application/json"}
                yield response
            if "main" in request.url:
                raise DownstreamUnavailable("after all was read")

    message = {"role": "assistant", "content": "not this"}
    whole = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    ups = Late(main=[json.dumps(whole).encode()], backup=WELL)
    g = gateway(ups, *(route(name, upstream_stream="never") for name in ups.answers))
    text, record = await completed(g)
    assert (text, record.route, record.raw) == ("fine", "backup", None)


# --- routes --------------------------------------------------------------------------------------------------------


def test_routes_of_one_name_at_two_places_are_guarded_apart():
    one, other = Route("main", "http://a/v1", "m"), Route("main", "http://b/v1", "m")
    assert one.downstream != other.downstream
    assert replace(one, api_key="k").downstream != one.downstream
    assert "secret-key" not in replace(one, api_key="secret-key").downstream
    kernel = Kernel()
    Gateway(
        [Alias("a", (one,)), Alias("b", (other,)), Alias("c", (replace(one, equivalent=True),))], kernel, Upstreams()
    )
    assert len(kernel.guards) == 2


def test_one_route_guarded_in_two_ways_is_refused():
    with pytest.raises(ValueError, match="otherwise"):
        Gateway(
            [Alias("a", (route("main"),)), Alias("b", (route("main", policy=preset("model")),))], Kernel(), Upstreams()
        )


async def test_the_output_note_does_not_part_a_tools_result_from_its_call():
    ups = Upstreams(main=WELL)
    g = gateway(ups, route("main", output_note=True, max_tokens=100))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    await completed(g, ask(messages=messages))
    sent = json.loads(ups.requests[0].body)["messages"]
    assert [one["role"] for one in sent] == ["system", "system", "user", "assistant", "tool"]


async def test_the_connections_own_limit_goes_to_the_transport():
    ups = Upstreams(main=WELL)
    await completed(gateway(ups, route("main", limits=replace(LIMITS, connect=1.5))))
    assert ups.requests[0].connect == 1.5


# --- hostile upstreams ---------------------------------------------------------------------------------------------

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.just("x"), lambda one: st.lists(one, max_size=2)
)
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(0, 1) | JUNK,
        "delta": st.fixed_dictionaries(
            {},
            optional={
                "content": st.text(max_size=3) | JUNK,
                "tool_calls": JUNK,
                "reasoning_content": JUNK,
                "role": JUNK,
            },
        )
        | JUNK,
        "finish_reason": st.sampled_from(["stop", None]) | JUNK,
        "logprobs": JUNK,
    },
)
CHUNK = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(CHOICE | JUNK, max_size=2) | JUNK,
        "usage": st.fixed_dictionaries({}, optional={"prompt_tokens": JUNK}) | JUNK,
        "error": JUNK,
        "id": JUNK,
    },
)


@given(
    st.lists(st.lists(CHUNK | st.just(delta("text")) | st.just(delta(None, "stop")), max_size=3), max_size=4),
    st.booleans(),
)
def test_whatever_an_upstream_sends_the_end_is_an_answer_or_an_error_of_ours(pieces, stream):
    async def go():
        ups = Upstreams(main=[sse(*piece) for piece in pieces])
        g = gateway(ups, cache=CachePolicy(ttl=1.0))
        if stream:
            assembler, error, _ = await told(g, ask(stream=True))
            assert error is not None or assembler.has_choices
        else:
            try:
                await completed(g)
            except FailsoftError:
                pass
        assert ups.open == 0
        assert guards(g)[0].statistics().in_use == 0

    run(go())


# --- what people should know ---------------------------------------------------------------------------------------


async def asked_for(g, stream):
    """The record of a call, streamed or whole."""
    if stream:
        return (await told(g, ask(stream=True)))[2]
    return (await completed(g))[1]


@pytest.mark.parametrize(
    ("broken", "reading"),
    [
        (DownstreamUnavailable("x", details={"fault": "dns"}), "dns"),
        (DownstreamUnavailable("x", details={"fault": "tls"}), "tls"),
        ([sse(delta("", "stop"), b"[DONE]")], "no_content"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_what_needs_people_is_told_although_the_route_stays(broken, reading, stream):
    told_of, heard = [], []

    class Webhook:
        def tell(self, event, alias, route, data):
            told_of.append((event, alias, route, data["reading"]))

    g = gateway(Upstreams(main=broken, backup=WELL))
    g.webhook = Webhook()
    g.kernel.bus.add(heard.append)
    record = await asked_for(g, stream)
    assert record.route == "backup"
    assert told_of == [("alert", "gpt-x", "main", reading)]
    assert [event.data["reading"] for event in heard if event.kind == "route.alert"] == [reading]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_route_that_gives_nothing_but_empty_answers_is_left_and_its_breaker_stays_closed(stream):
    ups = Upstreams(main=[sse(delta("", "stop"), b"[DONE]")], backup=WELL)
    g = gateway(ups)
    for _ in range(6):
        assert (await asked_for(g, stream)).route == "backup"
    assert ups.asked.count("main") == 3  # three errors in a row: the alias has moved on
    assert all(guard.breaker.state is BreakerState.CLOSED for guard in guards(g))
