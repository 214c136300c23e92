"""The analyst with a model that plans: any OpenAI-compatible endpoint, and what happens when it is not there."""

import asyncio
import json

import pytest
from aiohttp import web

from failsoft.config import ModelSettings, RunSettings, load_settings
from failsoft.drills.injector import Injector
from failsoft.drills.toxics import Hang
from failsoft.examples.analyst.agent import analyst_app, loaded_sources
from failsoft.examples.analyst.toolset import DOWNSTREAMS

pytestmark = [pytest.mark.timeout(60), pytest.mark.realtime]

PLAN = {
    "tasks": [
        {
            "id": "numbers",
            "tool": "query",
            "arguments": {
                "query": {
                    "table": "deals",
                    "measure": {"aggregate": "sum", "column": "amount"},
                    "group_by": [{"column": "city"}],
                }
            },
        }
    ]
}


class Endpoint:
    """Answers chats with these replies, the last for ever; keeps what it was sent."""

    def __init__(self, *replies, wait=0.0):
        self.replies = list(replies)
        self.wait = wait
        self.seen = []
        self.keys = []

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        (host, port) = self.runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *exc):
        await self.runner.cleanup()

    async def chat(self, request):
        self.seen.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        reply = self.replies[0] if len(self.replies) == 1 else self.replies.pop(0)
        await asyncio.sleep(reply if isinstance(reply, float) else self.wait)
        for delta, finish in ((str(reply), None), ("", "stop")):
            chunk = {"choices": [{"index": 0, "delta": {"content": delta}, "finish_reason": finish}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "deals.csv").write_text("city,amount\nOslo,10\nLima,32\nOslo,5\n")

    given = {"data": [str(folder / "deals.csv")], "cache_dir": str(folder / "cache")}
    base = load_settings(environ={}, flags=given, defaults={"downstreams": DOWNSTREAMS})

    def settings(url, *, planner="auto", **model):
        chosen = ModelSettings.model_validate({"base_url": url, **model})
        return base.model_copy(update={"model": chosen, "run": RunSettings(planner=planner)})

    with loaded_sources(base) as sources:
        yield settings, sources


async def test_the_models_plan_is_run_and_the_numbers_are_the_tools(ready):
    settings, sources = ready
    async with Endpoint(json.dumps(PLAN)) as endpoint:
        chosen = settings(endpoint.url, api_key="sk-local", name="small")
        async with analyst_app(chosen, sources) as app:
            result = await app.ask("Who earned most?", budget=20.0)
    assert (str(result.status), result.planner) == ("completed", "model"), result.to_dict()
    assert result.answer is not None
    assert "32" in result.answer
    (body,) = endpoint.seen
    assert (body["model"], endpoint.keys) == ("small", ["Bearer sk-local"])
    assert "table deals, 3 rows" in body["messages"][0]["content"]
    assert "sk-local" not in json.dumps(result.to_dict())


@pytest.mark.parametrize("reply", ["I would rather not.", '{"tasks": []}', '{"tasks": [{"id": "x", "tool": "rm"}]}'])
async def test_without_a_usable_plan_the_rules_take_over_and_it_is_told(ready, reply):
    settings, sources = ready
    async with Endpoint(reply) as endpoint, analyst_app(settings(endpoint.url, name="small"), sources) as app:
        result = await app.ask("amount per city", budget=20.0)
    assert (str(result.status), result.planner) == ("completed", "rules")
    assert [one.planner for one in result.refused] == ["model"]


async def test_a_model_that_is_not_there_costs_no_answer(ready):
    settings, sources = ready
    async with analyst_app(settings("http://127.0.0.1:9/v1"), sources) as app:
        result = await app.ask("amount per city", budget=10.0)
    assert (str(result.status), result.planner) == ("completed", "rules")


async def test_a_model_that_hangs_leaves_time_for_the_rules(ready):
    settings, sources = ready
    async with (
        Endpoint(json.dumps(PLAN)) as endpoint,
        analyst_app(settings(endpoint.url, name="small"), sources) as app,
    ):
        assert app.guards["model"].policy.bulkhead.permits == 20
        with Injector(app.kernel) as injector:
            injector.inject("model", Hang())
            result = await app.ask("total amount", budget=2.0)
    assert (str(result.status), result.planner) == ("completed", "rules"), result.to_dict()
    assert result.elapsed < 2.0


async def test_a_first_token_that_does_not_come_in_time_leaves_it_to_the_rules(ready):
    settings, sources = ready
    async with Endpoint(json.dumps(PLAN), wait=20.0) as endpoint:
        chosen = settings(endpoint.url, name="small", first_token="200ms")
        async with analyst_app(chosen, sources) as app:
            result = await app.ask("total amount", budget=15.0)
    assert (str(result.status), result.planner) == ("completed", "rules")
    assert [one.code for one in result.refused] == ["first_item_timeout"]
    assert result.elapsed < 5.0


async def test_a_filled_frame_is_a_plan_and_one_that_forgets_is_returned_once(ready):
    settings, sources = ready
    whole = {"table": "deals", "measure": "sum amount", "per": ["city"], "where": []}
    async with (
        Endpoint(json.dumps({**whole, "per": []}), json.dumps(whole)) as endpoint,
        analyst_app(settings(endpoint.url, name="small", narrative=False), sources) as app,
    ):
        result = await app.ask("total amount per city", budget=20.0)
    assert (str(result.status), result.planner) == ("completed", "model"), result.to_dict()
    assert [task.id for task in result.tasks][:2] == ["query", "chart"]
    first, second = endpoint.seen
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert "left out a column of the question: 'city'" in second["messages"][-1]["content"]
    assert first["messages"][0] == second["messages"][0]


async def test_rules_alone_never_ask_the_model(ready):
    settings, sources = ready
    async with Endpoint(json.dumps(PLAN)) as endpoint:
        chosen = settings(endpoint.url, planner="rules")
        async with analyst_app(chosen, sources) as app:
            result = await app.ask("amount per city", budget=10.0)
    assert (result.planner, endpoint.seen) == ("rules", [])


# --- the narrative -------------------------------------------------------------------------------------------------

FRAME = {"table": "deals", "measure": "sum amount", "per": ["city"], "where": []}


async def told(ready, *replies, budget=20.0, **model):
    """The result of a question that the model plans, with its next reply for the narrative; and what it was sent."""
    settings, sources = ready
    async with (
        Endpoint(json.dumps(FRAME), *replies) as endpoint,
        analyst_app(settings(endpoint.url, name="small", **model), sources) as app,
    ):
        result = await app.ask("total amount per city", budget=budget)
    assert (str(result.status), result.planner) == ("completed", "model"), result.to_dict()
    assert "Lima has the highest total amount: 32" in result.answer  # the rules' text stays, whatever the model says
    return result, endpoint.seen


async def test_the_model_tells_what_the_tools_found(ready):
    result, seen = await told(ready, "Lima sold most with 32, Oslo only 15; together that is 47.")
    assert "Oslo only 15; together that is 47." in result.answer
    assert "each of its numbers was found among them" in result.answer
    facts = seen[1]["messages"][1]["content"]
    assert "Question: total amount per city" in facts
    assert "Oslo | 15" in facts
    assert [task.id for task in result.tasks] == ["query", "chart", "narrative"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Lima sold 33.", "a number that is not the tools': 33"),
        ("Lima sold 32 %.", "a number that is not the tools': 32 %"),
        ("Lima sold more than twice as much.", "a number that is not the tools': twice"),
        ("See [this](http://evil.test/?a=32).", "it was no plain text"),
        (" ", "it was empty"),
    ],
)
async def test_a_narrative_with_any_other_number_is_left_out_and_it_is_told(ready, text, why):
    result, _ = await told(ready, text)
    assert text.strip() == "" or text not in result.answer
    assert "The model's own words are left out" in result.answer
    assert why in result.answer


async def test_a_narrative_that_does_not_come_costs_neither_status_nor_budget(ready):
    result, _ = await told(ready, 60.0, budget=4.0)
    assert result.elapsed < 4.0
    assert "The model's own words are left out: the model did not write it" in result.answer


async def test_without_it_the_model_plans_only(ready):
    result, seen = await told(ready, "Lima sold 32.", narrative=False)
    assert "Lima sold 32." not in result.answer
    assert len(seen) == 1
