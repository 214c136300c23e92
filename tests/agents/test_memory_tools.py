"""An agent's memory: a tenant's own, under the guard, and an answer without it says so."""

import asyncio

from tests.agents.test_loop_model import Upstream, gateway
from tests.agents.worlds import Script, app, call, calls, last_results

from failsoft.memory.values import LocalValues
from failsoft.memory.vectors import VectorMemory
from failsoft.runs.memory_tools import GatewayEmbedder, memory_tools


class Words:
    async def embed(self, texts):
        return [[text.count(word) + 0.01 for word in ("red", "car", "house")] for text in texts]


def tools():
    clock = asyncio.get_running_loop().time
    return memory_tools(LocalValues(clock), VectorMemory(Words(), clock))


async def test_what_one_conversation_noted_another_recalls():
    model = Script(
        calls(call("note", key="name", value="Bo"), call("remember", text="a red car")),
        "noted",
        calls(call("recall", key="name"), call("search_memory", question="red?"), call("noted_names")),
        lambda r: " ".join(last_results(r)),
    )
    async with app(model, *tools()) as running:
        await running.ask("note it", tenant="t")
        result = await running.ask("what was it?", tenant="t")
    assert '"value":"Bo"' in result.answer
    assert "a red car" in result.answer
    assert '["name"]' in result.answer


async def test_tenants_recall_their_own_only():
    model = Script(
        calls(call("note", key="name", value="Bo")), "noted", calls(call("recall", key="name")),
        lambda r: last_results(r)[0],
    )  # fmt: skip
    async with app(model, *tools()) as running:
        await running.ask("note it", tenant="red")
        assert (await running.ask("what was it?", tenant="blue")).answer == "null"


async def test_a_memory_that_hangs_costs_its_limit_and_the_answer_says_so():
    class Hanging(LocalValues):
        async def get(self, space, key):
            await asyncio.get_running_loop().create_future()

    made = memory_tools(Hanging(asyncio.get_running_loop().time))
    model = Script(calls(call("recall", key="name")), "I cannot remember.")
    async with app(model, *made) as running:
        result = await running.ask("what was it?")
    assert result.status == "degraded"
    assert result.elapsed <= 8
    assert result.answer.startswith("I cannot remember.")
    assert "not complete" in result.answer


async def test_the_gateway_embeds():
    body = b'{"data": [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}]}'
    upstream = Upstream([body])
    vectors = await GatewayEmbedder(gateway(upstream), "assistant").embed(["a", "b"])
    assert list(map(list, vectors)) == [[1, 0], [0, 1]]
    assert upstream.asked[0]["input"] == ["a", "b"]
