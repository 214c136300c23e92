"""The gateway as a loop's model: native tool calls, choices held to a schema, and what breaks off."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.agents.worlds import agent

from failsoft.app import App
from failsoft.base.errors import StreamCut
from failsoft.config import Settings
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import preset
from failsoft.kernel.retry import RetryPolicy
from failsoft.models.gateway import Gateway
from failsoft.models.limits import ModelLimits
from failsoft.models.routes import Alias, Route
from failsoft.runs.loop_model import GatewayModel, choice_schema
from failsoft.tools.python import tool

POLICY = replace(preset("model"), retry=RetryPolicy(queries=0))
LIMITS = ModelLimits(first_content=5.0, idle=5.0, total=30.0)


@tool(downstream="stock")
async def stock(product: str) -> int:
    """How many there are."""
    return len(product)


def delta(text=None, finish=None, **more):
    change = {**({} if text is None else {"content": text}), **more}
    return {"choices": [{"index": 0, "delta": change, "finish_reason": finish}]}


def part(index, arguments, name=None, id=None):
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"index": index, "function": function, **({"id": id, "type": "function"} if id else {})}


def sse(*chunks):
    return b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"


class Upstream:
    """Answers each request with the next of its bodies: lists of bytes, of pauses, of errors."""

    def __init__(self, *bodies: Any) -> None:
        self.bodies = list(bodies)
        self.asked: list[Any] = []

    @asynccontextmanager
    async def send(self, request):
        self.asked.append(json.loads(request.body))
        yield _Response(self.bodies.pop(0))

    async def aclose(self):
        pass


class _Response:
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


def gateway(upstream):
    route = Route("main", "http://one/v1", model="m", policy=POLICY, limits=LIMITS)
    return Gateway([Alias("assistant", (route,))], Kernel(), upstream)


def app(upstream, calling="native", **options):
    made = App(
        Settings(agent="main"), agents=[agent("assistant", stock, name="main", calling=calling, **options)], store="off"
    )
    made.gateway = gateway(upstream)
    return made


async def test_native_calls_are_made_also_when_their_parts_interleave():
    first = [
        sse(
            delta(tool_calls=[part(0, '{"pro', "stock", "a"), part(1, '{"product"', "stock", "b")]),
            delta(tool_calls=[part(1, ': "coffee"}'), part(0, 'duct": "tea"}')]),
            delta(None, "tool_calls"),
        )
    ]
    upstream = Upstream(first, [sse(delta("Three and six."), delta(None, "stop"))])
    async with app(upstream) as running:
        result = await running.ask("How much?")
    assert (result.status, result.answer) == ("completed", "Three and six.")
    assert [m["content"] for m in upstream.asked[1]["messages"] if m["role"] == "tool"] == ["3", "6"]
    assert upstream.asked[0]["tools"][0]["function"]["name"] == "stock"


async def test_case_4_a_stream_that_stalls_ends_at_its_idle_limit_with_what_was_said():
    upstream = Upstream([sse(delta("Part "))[:-14], sse(delta("one "))[:-14], sse(delta("only."))[:-14], 100.0])
    async with app(upstream) as running:
        result = await running.ask("go", budget=60)
    assert result.elapsed < 6
    assert result.status == "degraded"
    assert result.answer.startswith("Part one only.")
    assert result.shortfalls[0].reason == "idle_timeout"


async def test_case_38_calls_in_a_stream_that_broke_off_are_not_made():
    cut = [sse(delta(tool_calls=[part(0, '{"product": "tea"}', "stock", "a")]))[:-14], StreamCut("gone")]
    upstream = Upstream(cut, [sse(delta("I could not look."), delta(None, "stop"))])
    async with app(upstream) as running:
        result = await running.ask("go")
    assert result.answer == "I could not look."
    assert "cut off" in upstream.asked[1]["messages"][-1]["content"]


def step(**given):
    return [sse(delta(json.dumps({"thought": "", "calls": [], "answer": "", **given})), delta(None, "stop"))]


async def test_models_without_tool_calls_choose_by_schema():
    upstream = Upstream(
        step(thought="Look it up.", calls=[{"tool": "stock", "arguments": {"product": "tea"}}]),
        step(answer="There are three."),
    )
    async with app(upstream, calling="choices") as running:
        result = await running.ask("How much tea?")
    assert (result.status, result.answer) == ("completed", "There are three.")
    first, second = upstream.asked
    assert "tools" not in first
    assert first["response_format"]["json_schema"]["schema"]["properties"]["calls"]
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["messages"][-1]["content"] == "Result of stock: 3"


async def test_a_choice_that_was_cut_is_none():
    cut = '{"thought": "x", "calls": [{"tool": "stock", "arguments": {"product": "t'
    upstream = Upstream([sse(delta(cut), delta(None, "length"))], step(answer="Nothing."))
    async with app(upstream, calling="choices") as running:
        assert (await running.ask("go")).answer == "Nothing."


async def test_plain_words_in_place_of_a_choice_are_an_answer():
    upstream = Upstream([sse(delta("It is three."), delta(None, "stop"))])
    async with app(upstream, calling="choices") as running:
        assert (await running.ask("go")).answer == "It is three."


async def test_a_model_that_is_not_configured_is_named():
    async with App(Settings(agent="main"), agents=[agent("assistant", name="main")], store="off") as running:
        result = await running.ask("go")
    assert result.tasks[0].outcome.provenance.reason == "bad_input"
    assert "assistant" in result.tasks[0].outcome.provenance.tried[0].message


def test_an_unknown_alias_is_refused():
    with pytest.raises(Exception, match="there is no model"):
        GatewayModel(gateway(Upstream()), "other")


def test_the_schema_of_choices_keeps_definitions_apart():
    parameters = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/Row"}},
        "$defs": {"Row": {"type": "object", "properties": {"y": {"$ref": "#/$defs/Row"}}}},
    }
    function = {"name": "one", "description": "", "parameters": parameters}
    schema = choice_schema([{"type": "function", "function": function}])
    assert list(schema["$defs"]) == ["one.Row"]
    assert json.dumps(schema).count('"#/$defs/one.Row"') == 2
