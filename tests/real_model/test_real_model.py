"""The gateway before a real model: plans, tools, streams, clients that leave, too long inputs, too many calls."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from strict_client import Reply, ask, get  # type: ignore[import-not-found]

from failsoft.base.errors import PlanRefused, StreamCut
from failsoft.config import Settings
from failsoft.examples.analyst.agent import loaded_sources
from failsoft.examples.analyst.toolset import make_tools
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import preset
from failsoft.models.assembly import Assembler
from failsoft.models.chunks import read_chunk
from failsoft.models.hygiene import clean_json
from failsoft.runs.model_planner import ModelPlanner
from failsoft.runs.plan import PlanLimits, check_plan
from failsoft.runs.planner import PlanContext, PlanRequest
from failsoft.tools.registry import ToolRegistry
from failsoft.transports.aiohttp_transport import AiohttpTransport

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(1200)]

PATIENCE = 300.0
"""Seconds for what has to be right and not fast: the machine may be busy."""
LATE = 0.25
"""Seconds beyond a budget that are forgiven where model, gateway and client share two cores."""


def body(text, *, system=None, **more):
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {"model": "qwen", "messages": messages, "temperature": 0, "max_tokens": 64, **more}


@asynccontextmanager
async def client():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        yield session


async def busy_slots(session, model):
    return sum(bool(slot["is_processing"]) for slot in await get(session, f"{model.server}/slots"))


async def until_slots(session, model, number, within, *, every=0.02):
    """Seconds until exactly `number` slots work.

    Whoever asks this server all the time keeps it from noticing that a client has gone while it reads a prompt: each
    answer starts its wait of a second anew.
    """
    began = time.perf_counter()
    while await busy_slots(session, model) != number:
        if time.perf_counter() - began > within:
            pytest.fail(f"not {number} busy slots within {within} s")
        await asyncio.sleep(every)
    return time.perf_counter() - began


async def holding(session, model):
    """Permits that the gateway holds."""
    return sum(one["in_use"] for one in (await get(session, f"{model.gateway}/v1/downstreams"))["downstreams"])


async def nothing_left(session, model):
    async with session.get(f"{model.gateway}/metrics") as response:
        page = await response.text()
    assert "failsoft_gateway_in_flight 0" in page
    guards = (await get(session, f"{model.gateway}/v1/downstreams"))["downstreams"]
    assert [(one["in_use"], one["waiting"], one["orphans"]) for one in guards] == [(0, 0, 0)] * len(guards)
    await until_slots(session, model, 0, 10.0)


# --- plans and tools -------------------------------------------------------------------------------------------------

SALES = "day,region,product,revenue\n" + "\n".join(
    f"2024-{month:02}-{day:02},{region},{product},{month * 10 + day}"
    for month in range(1, 5)
    for day in (3, 17)
    for region in ("north", "south")
    for product in ("apples", "pears")
)

DATA = """Table sales (names and values must be written exactly so): day (time), region (north, south),
product (apples, pears), revenue (number).
A query is {"table", "measure": {"aggregate", "column"}, "group_by": [{"column"}]}."""

QUESTIONS = (
    "What is the total revenue per region?",
    "Draw a bar chart of revenue per product.",
    "每个地区的总收入是多少?",
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "sales.csv"
    file.write_text(SALES)
    settings = Settings.model_validate({"data": [str(file)], "cache_dir": str(file.parent / "cache")})
    with loaded_sources(settings) as loaded:
        yield loaded


async def test_plans_are_constrained_to_the_analysts_tools(model, sources, row):
    tools = ToolRegistry(make_tools(sources))
    transport = AiohttpTransport()
    planner = ModelPlanner(
        transport, base_url=f"{model.gateway}/v1", api_key="", model="qwen", instructions=DATA,
        first_token=PATIENCE, idle=60.0, total=PATIENCE, max_tokens=600,
    )  # fmt: skip
    kernel = Kernel()
    kernel.guard("model", preset("model"))
    context = PlanContext(kernel, PlanLimits(), lambda: PATIENCE)
    read = 0
    try:
        for question in QUESTIONS:
            began = time.perf_counter()
            async with deadline_scope(PATIENCE):
                try:
                    plan = check_plan(await planner.plan(PlanRequest(question), tools, context), tools)
                except PlanRefused as refused:  # a small model may draw a cycle: refused, never run
                    read += 1
                    told = f"refused: {refused.details['reason']}"
                except StreamCut as cut:  # or find no end
                    told = f"refused: {cut.message}"
                else:
                    read += 1
                    told = ", ".join(task.tool for task in plan.tasks)
            row(f"plan: {question[:36]}", time.perf_counter() - began, told)
    finally:
        await kernel.aclose()
        await transport.aclose()
    assert read >= len(QUESTIONS) - 1


TOOLS = {
    "get_weather": ("The weather in a city", {"city": {"type": "string"}}),
    "convert_money": ("Converts money to a currency", {"amount": {"type": "number"}, "to": {"type": "string"}}),
    "set_alarm": ("Sets an alarm for a time of day", {"time": {"type": "string"}}),
}  # fmt: skip

ASKED = (
    ("How warm is it in Paris?", "get_weather"),
    ("Wake me up at 6:30.", "set_alarm"),
    ("How much is 100 dollars in euros?", "convert_money"),
    ("明天早上七点叫我起床。", "set_alarm"),
)


def parameters(properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


async def test_a_tool_is_chosen_by_a_json_schema_of_alternatives(model, row):
    schema = {
        "anyOf": [
            {
                "type": "object",
                "properties": {"tool": {"const": name}, "arguments": parameters(properties)},
                "required": ["tool", "arguments"],
                "additionalProperties": False,
            }
            for name, (_, properties) in TOOLS.items()
        ]
    }
    told = "\n".join(f"- {name}: {text}" for name, (text, _) in TOOLS.items())
    system = f"Choose the tool that answers the user, with its arguments, as JSON.\n{told}"
    right = 0
    began = time.perf_counter()
    async with client() as session:
        for question, wanted in ASKED:
            asked = body(
                question,
                system=system,
                response_format={"type": "json_schema", "json_schema": {"name": "call", "schema": schema}},
            )
            reply = await ask(session, model.chat, asked, budget=PATIENCE)
            assert reply.complete, reply
            call = json.loads(reply.text)
            assert set(call["arguments"]) == set(TOOLS[call["tool"]][1])
            right += call["tool"] == wanted
    row("tool choice by JSON schema", time.perf_counter() - began, f"{right} of {len(ASKED)} right")
    assert right >= len(ASKED) - 1


@pytest.mark.parametrize("stream", [False, True])
async def test_native_tools_come_through_as_the_server_answers_them(model, row, stream):
    """This model writes its call as text, which its server leaves as it is; both ways are read here."""
    tools = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": parameters(properties)}}
        for name, (text, properties) in TOOLS.items()
    ]
    asked = body("How warm is it in Paris?", tools=tools, stream=stream, max_tokens=200)
    began = time.perf_counter()
    async with client() as session:
        through, direct = [
            await called(session, url, asked) for url in (model.chat, f"{model.server}/v1/chat/completions")
        ]
    assert through == direct
    assert through[0] == "get_weather"
    assert "paris" in through[1]["city"].lower()
    row(
        f"native tools, {'streamed' if stream else 'whole'}", time.perf_counter() - began, f"{through[0]}({through[1]})"
    )


async def called(session, url, asked):
    """The name and the arguments of the tool that an answer calls, as a tool call or in its text."""
    async with session.post(url, json=asked) as response:
        raw = await response.text()
        assert response.status == 200, raw
    assembler = Assembler()
    if asked["stream"]:
        for line in raw.split("\n"):
            if line.startswith("data: "):
                assembler.feed(read_chunk(line[6:]))
        assert assembler.done
        message = assembler.result()["choices"][0]["message"]
    else:
        message = json.loads(raw)["choices"][0]["message"]
    if message.get("tool_calls"):
        (call,) = message["tool_calls"]
        return call["function"]["name"], json.loads(call["function"]["arguments"])
    call, _ = clean_json(message["content"])
    return call["name"], call["arguments"]


# --- streams ---------------------------------------------------------------------------------------------------------


async def test_a_stream_comes_as_it_is_made_and_says_the_same_as_the_whole(model, row):
    text = "Name three colours of the rainbow, one per line."
    async with client() as session:
        whole = await ask(session, model.chat, body(text), budget=PATIENCE)
        began = time.perf_counter()
        marks = []
        asked = body(text, stream=True, stream_options={"include_usage": True})
        async with session.post(model.chat, json=asked) as response:
            raw = b""
            async for piece in response.content.iter_any():
                marks.append(time.perf_counter() - began)
                raw += piece
        streamed = await ask(session, model.chat, body(text, stream=True), budget=PATIENCE)
    assert whole.complete
    assert streamed.complete
    assert streamed.text == whole.text  # at temperature 0 it says the same each time
    assert b'"usage"' in raw
    assert marks[0] < marks[-1] / 2, "it all came at once"
    row("stream: first piece, whole", marks[-1], f"first after {marks[0]:.2f} s, {len(marks)} pieces")


# --- clients that leave ----------------------------------------------------------------------------------------------


def long_text(words, seed):
    return " ".join(f"item {seed}-{number} is number {number * 7919 % 1000}" for number in range(words // 5))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_while_the_model_writes_stops_it(model, row, stream):
    asked = body("Count from 1 to 1000, one number per line.", stream=stream, max_tokens=2000)
    async with client() as session:
        call = asyncio.create_task(ask(session, model.chat, asked, budget=PATIENCE))
        await until_slots(session, model, 1, 60.0)
        await asyncio.sleep(3.0)
        assert not call.done()
        call.cancel()
        await asyncio.wait([call])
        idle = await until_slots(session, model, 0, 5.0)
        row(f"cancel in decode, {'streamed' if stream else 'whole'}", idle, "until the slot was idle")
        await nothing_left(session, model)


async def test_a_client_that_leaves_while_the_model_reads_stops_it_at_the_end_of_the_batch(model, row):
    async with client() as session:
        asked = body(long_text(1200, time.time_ns() % 1000), stream=True)
        call = asyncio.create_task(ask(session, model.chat, asked, budget=PATIENCE))
        await until_slots(session, model, 1, 60.0)
        await asyncio.sleep(0.3)
        assert not call.done()
        call.cancel()
        await asyncio.wait([call])
        began = time.perf_counter()
        while (await holding(session, model)) != 0:
            assert time.perf_counter() - began < 1.0
        row("cancel in prefill", time.perf_counter() - began, "until the gateway held nothing")
        idle = await until_slots(session, model, 0, 60.0, every=2.0)
        row("cancel in prefill", idle, "until the slot was idle: at the end of its batch of 256 tokens")
        again = await ask(session, model.chat, body("Say yes."), budget=PATIENCE)
        assert again.complete
        await nothing_left(session, model)


# --- too long, too many ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_an_input_that_does_not_fit_is_the_callers_fault(model, row, stream):
    async with client() as session:
        reply = await ask(session, model.chat, body(long_text(20_000, 1), stream=stream), budget=PATIENCE)
    assert reply.error["code"] == "context_length_exceeded", reply
    assert reply.status == 400 or (stream and reply.seconds > 4.9), reply  # unless the headers had to go out before
    assert not reply.problems
    row("context length", reply.seconds, f"{reply.status} {reply.error['code']}: {reply.error['message'][:60]}")


async def test_of_more_calls_than_slots_each_is_answered_or_refused_in_time(model, row):
    async with client() as session:
        await ask(session, model.chat, body("Say yes."), budget=PATIENCE)  # it is warm
        asked = [body(f"Write one sentence about the number {n}.", stream=bool(n % 2)) for n in range(8)]
        alone = await ask(session, model.chat, asked[0], budget=PATIENCE)
        assert alone.complete
        for budget in (PATIENCE, 2.0 * alone.seconds, 0.5 * alone.seconds):
            replies: list[Reply] = await asyncio.gather(
                *(ask(session, model.chat, one, budget=round(budget, 3)) for one in asked)
            )
            answered = sum(reply.complete for reply in replies)
            refused = [reply for reply in replies if not reply.complete]
            for reply in replies:
                assert not reply.problems, reply
                assert reply.seconds <= budget + LATE, reply
            for reply in refused:
                assert reply.error is not None
                assert not reply.done
                assert reply.status in {200, 429, 503, 504}
            codes = sorted({str(reply.error["code"]) for reply in refused if reply.error})
            row(
                f"8 at once on 2 slots, budget {budget:.1f} s",
                max(reply.seconds for reply in replies),
                f"{answered} answered, {len(refused)} refused {' '.join(codes)}",
            )
            if budget == PATIENCE:
                assert answered == 8
            await until_slots(session, model, 0, 10.0)
        await nothing_left(session, model)
