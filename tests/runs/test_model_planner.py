"""The model planner against a scripted endpoint: what it sends, what it accepts, what it refuses."""

import asyncio
import json

import pytest
from tests.runs.worlds import TOOLS, app, plan, task

from failsoft.base.errors import (
    BadInput,
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    EmptyResult,
    FailsoftError,
    FirstItemTimeout,
    IdleTimeout,
    MalformedResult,
    PlanRefused,
    StreamCut,
)
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import preset
from failsoft.runs.model_planner import ModelPlanner, parse_json, plan_schema, system_prompt
from failsoft.runs.plan import PlanLimits, check_plan
from failsoft.runs.planner import PlanContext, PlanRequest
from failsoft.runs.result import RunRequest
from failsoft.runs.state import RunState
from failsoft.testing.fakes import FakeResponse, FakeTransport, completion
from failsoft.tools.python import tool
from failsoft.tools.registry import ToolRegistry

REGISTRY = ToolRegistry(TOOLS)
GOOD = {"reading": "wait", "tasks": [{"id": "a", "tool": "work", "arguments": {"seconds": 1, "value": 5}, "needs": []}]}


def planner(*responses, **options):
    transport = FakeTransport(*responses)
    options.setdefault("model", "m")
    return ModelPlanner(transport, base_url="http://127.0.0.1:1/v1/", api_key="secret", **options), transport


async def asked(one, text="question", unavailable=(), tools=REGISTRY):
    kernel = Kernel()
    kernel.guard("model", preset("model"))
    context = PlanContext(kernel, PlanLimits(), lambda: 8.0, unavailable)
    try:
        return await one.plan(PlanRequest(text), tools, context)
    finally:
        assert kernel.guard("model").statistics().in_use == 0
        await kernel.aclose()


async def test_a_plan_is_asked_for_with_a_schema_and_streamed():
    one, transport = planner(completion(*json.dumps(GOOD)))
    made = await asked(one, "等一秒")
    assert check_plan(made, REGISTRY).tasks[0].arguments == {"seconds": 1, "value": 5}
    request = transport.requests[0]
    assert (request.method, request.url) == ("POST", "http://127.0.0.1:1/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer secret"
    assert request.downstream == "model"
    body = json.loads(request.body)
    assert (body["stream"], body["temperature"], body["model"]) == (True, 0, "m")
    assert body["messages"][-1] == {"role": "user", "content": "等一秒"}
    assert body["response_format"]["type"] == "json_schema"
    assert transport.open == 0


async def test_unavailable_tools_are_named_beside_the_question_so_that_the_prompt_stays_the_same():
    one, transport = planner(completion(json.dumps(GOOD)))
    await asked(one, unavailable=("chart",))
    messages = json.loads(transport.requests[0].body)["messages"]
    assert "Unavailable now: chart" in messages[-1]["content"]
    assert messages[0]["content"] == system_prompt(REGISTRY)


def test_the_schema_allows_exactly_the_tools_and_their_arguments_or_references():
    schema = plan_schema(REGISTRY, PlanLimits())
    options = schema["properties"]["tasks"]["items"]["anyOf"]
    assert [one["properties"]["tool"]["const"] for one in options] == list(REGISTRY.names)
    first = options[0]["properties"]["arguments"]
    assert first["additionalProperties"] is False
    assert first["properties"]["seconds"]["anyOf"][1] == {"$ref": "#/$defs/reference"}


def test_the_prompt_says_what_a_tool_usually_takes_and_costs():
    @tool(usual="3s", cost=2)
    async def dear() -> None:
        """Looks far."""

    assert "- dear(): Looks far. (usually 3 s, costs 2)" in system_prompt(ToolRegistry([dear]))


def test_definitions_of_tools_do_not_meet():
    from pydantic import BaseModel

    def make(name, field):
        model = type("Row", (BaseModel,), {"__annotations__": {field: int}, "__module__": __name__})

        async def function(row) -> None: ...

        function.__annotations__ = {"row": model, "return": None}
        return tool(name=name)(function)

    schema = plan_schema(ToolRegistry([make("one", "a"), make("two", "b")]), PlanLimits())
    assert set(schema["$defs"]["one.Row"]["properties"]) == {"a"}
    assert set(schema["$defs"]["two.Row"]["properties"]) == {"b"}
    text = json.dumps(schema)
    for reference in ("#/$defs/one.Row", "#/$defs/two.Row"):
        assert reference in text


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (completion('{"tasks": [', finish="length"), StreamCut),
        (completion(json.dumps(GOOD), finish="length"), StreamCut),
        (completion(json.dumps(GOOD), finish=None), StreamCut),
        (completion(json.dumps(GOOD), finish=None, done=False), StreamCut),
        (completion(), EmptyResult),
        (completion('{"tasks": ['), PlanRefused),
        (completion("I cannot do that"), PlanRefused),
        (completion("[1, 2]"), PlanRefused),
        (completion('{"tasks": [{"id": 5}]}'), PlanRefused),
        (completion("x" * 300_000), MalformedResult),
        (completion("[" * 100_000), PlanRefused),
        (FakeResponse([b"data: {bad\n\n"]), MalformedResult),
        (FakeResponse([b"data: []\n\n"]), MalformedResult),
        (FakeResponse([b'data: {"error": {"message": "overloaded"}}\n\n']), DownstreamError),
        (FakeResponse([b'data: {"choices": [{"delta": 5}]}\n\n']), MalformedResult),
        (FakeResponse([b"data: {}\n\ndata: [DONE]\n\n"]), StreamCut),
        (FakeResponse([StreamCut("cut")]), StreamCut),
        (FakeResponse([], 500), DownstreamUnavailable),
        (FakeResponse([b"x"], 429, {"retry-after": "47"}), DownstreamUnavailable),
        (FakeResponse([b'{"error": {"message": "too long"}}'], 400), DownstreamRejected),
        (FakeResponse([b'{"error": "bad key"}'], 401), DownstreamRejected),
        (FakeResponse([b"{}"], 200, {"content-type": "application/json"}), EmptyResult),
        (DownstreamUnavailable("connection failed"), DownstreamUnavailable),
    ],
)
async def test_whatever_is_no_complete_plan_is_a_typed_error(response, error):
    one, transport = planner(response)
    with pytest.raises(FailsoftError) as caught:
        await asked(one)
    assert isinstance(caught.value, error)
    assert transport.open == 0


async def test_an_endpoint_that_does_not_stream_is_understood():
    body = {"choices": [{"message": {"content": json.dumps(GOOD)}, "finish_reason": "stop"}]}
    one, _ = planner(FakeResponse([json.dumps(body).encode()], 200, {"content-type": "application/json"}))
    assert (await asked(one)).reading == "wait"


async def test_the_first_model_of_the_endpoint_is_used_when_none_is_named():
    listing = FakeResponse([b'{"data": [{"id": "tiny"}]}'], 200, {"content-type": "application/json"})
    one, transport = planner(listing, completion(json.dumps(GOOD)), completion(json.dumps(GOOD)), model=None)
    await asked(one)
    await asked(one)
    assert [request.url.rsplit("/v1", 1)[1] for request in transport.requests] == [
        "/models",
        "/chat/completions",
        "/chat/completions",
    ]
    assert json.loads(transport.requests[1].body)["model"] == "tiny"


async def test_silence_before_the_first_token_and_in_the_middle_are_different_limits():
    one, transport = planner(FakeResponse([None]), first_token=2.0)
    with pytest.raises(FirstItemTimeout):
        await asked(one)
    assert transport.open == 0
    chunk = b'data: {"choices": [{"delta": {"content": "{"}}]}\n\n'
    one, transport = planner(FakeResponse([chunk, None]), idle=3.0)
    with pytest.raises(IdleTimeout):
        await asked(one)
    assert transport.open == 0


async def test_cancelling_closes_the_connection():
    one, transport = planner(FakeResponse([None]))
    work = asyncio.ensure_future(asked(one))
    await asyncio.sleep(1)
    assert transport.open == 1
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert transport.open == 0


async def test_the_deadline_closes_the_connection():
    one, transport = planner(FakeResponse([None]))
    with pytest.raises(FailsoftError):
        async with deadline_scope(1.0):
            await asked(one)
    assert transport.open == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '\ufeff {"a": 1} ',
        '```json\n{"a": 1}\n```',
        'Here is the plan:\n```\n{"a": 1}\n```\nGood luck!',
        'Sure! {"a": 1} That is all.',
    ],
)
def test_json_is_found_in_fences_and_prose(text):
    assert parse_json(text) == {"a": 1}


@pytest.mark.parametrize("text", ["", "{", '{"a": [1, 2', "```json\n{\n", "no", '{"a": 1', "{" * 50_000])
def test_what_is_cut_is_never_completed(text):
    with pytest.raises(PlanRefused):
        parse_json(text)


async def test_a_model_that_fails_falls_to_the_rules(monkeypatch):
    from failsoft.runs.planner import RulesPlanner

    one, _ = planner(completion('{"tasks": [', finish="length"))
    rules = RulesPlanner(lambda request: plan(task("a", value="by rules")))
    async with app(planners=[one, rules]) as running:
        result = await running.ask("question")
    assert (result.planner, result.status) == ("rules", RunState.COMPLETED)
    assert [(item.planner, item.code) for item in result.refused] == [("model", "stream_cut")]


async def test_a_model_that_hangs_costs_its_share_only():
    from failsoft.runs.planner import RulesPlanner

    one, transport = planner(FakeResponse([None]))
    rules = RulesPlanner(lambda request: plan(task("a", value="by rules")))
    async with app(planners=[one, rules]) as running:
        handle = running.start(RunRequest("question", budget_ms=8000))
        result = await handle.result()
    assert result.status is RunState.COMPLETED
    assert result.elapsed <= 4.0
    assert transport.open == 0


def test_without_an_endpoint_there_is_no_model_planner(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert ModelPlanner.from_environment(FakeTransport()) is None
    with pytest.raises(BadInput, match="OPENAI_BASE_URL"):
        ModelPlanner(FakeTransport())
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:5/v1")
    assert "127.0.0.1:5" in repr(ModelPlanner.from_environment(FakeTransport()))
