"""pydantic-ai and LangChain through their OpenAI clients, unchanged: runs, streams, tools, structured answers."""

from contextlib import asynccontextmanager

import pytest
from pydantic import BaseModel
from tests.lazy import Lazy
from tests.server.models_served import KEY, digest, serving_models

from failsoft.testing.upstream import ANSWER

openai = Lazy("openai")
pydantic_ai = Lazy("pydantic_ai")
pydantic_ai_openai = Lazy("pydantic_ai.models.openai")
providers = Lazy("pydantic_ai.providers.openai")
langchain = Lazy("langchain_openai")
langchain_tools = Lazy("langchain_core.tools")
langchain_messages = Lazy("langchain_core.messages")

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.may_block(reason="the SDKs look at files on the loop: platform, certificates"),
]

KEYS = {"team": {"hash": digest(KEY)}}


class Reply(BaseModel):
    """A reply."""

    answer: int


# --- pydantic-ai -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def pydantic_model(fault="ok"):
    async with (
        serving_models(fault, keys=KEYS) as served,
        openai.AsyncOpenAI(base_url=served.base_url, api_key=KEY, max_retries=0) as client,
    ):
        yield (
            served,
            pydantic_ai_openai.OpenAIChatModel("gpt-x", provider=providers.OpenAIProvider(openai_client=client)),
        )


@pytest.mark.parametrize("fault", ["ok", "status_500", "empty_200"])
async def test_a_pydantic_ai_agent_answers_whatever_main_does(fault):
    async with pydantic_model(fault) as (_, model):
        result = await pydantic_ai.Agent(model).run("hello")
        assert result.output == ANSWER
        assert result.usage.output_tokens == 10


async def test_a_pydantic_ai_agent_streams():
    async with pydantic_model() as (_served, model):
        async with pydantic_ai.Agent(model).run_stream("hello") as stream:
            parts = [part async for part in stream.stream_text(delta=True)]
        assert "".join(parts) == ANSWER


async def test_a_pydantic_ai_agent_calls_its_tools():
    async with pydantic_model() as (served, model):
        agent = pydantic_ai.Agent(model)
        seen = []

        @agent.tool_plain
        def add(a: int, b: int) -> int:
            seen.append((a, b))
            return a + b

        result = await agent.run("add")
        assert result.output == ANSWER
        assert sorted(seen) == [(1, 2), (3, 4)]
        assert [message["role"] for message in served.main.requests[1].body["messages"]][-2:] == ["tool", "tool"]


async def test_a_pydantic_ai_agent_gets_structured_output():
    async with pydantic_model() as (served, model):
        served.main.text = '{"answer": 42}'
        result = await pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(Reply)).run("hello")
        assert result.output == Reply(answer=42)
        assert served.main.requests[0].body["response_format"]["type"] == "json_schema"


async def test_a_pydantic_ai_agent_is_told_what_failed():
    async with pydantic_model("bad_request") as (_, model):
        with pytest.raises(pydantic_ai.exceptions.ModelHTTPError) as caught:
            await pydantic_ai.Agent(model).run("hello")
        assert caught.value.status_code == 400


# --- LangChain -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def langchain_model(fault="ok"):
    async with serving_models(fault, keys=KEYS) as served, openai.DefaultAsyncHttpxClient() as client:
        yield (
            served,
            langchain.ChatOpenAI(
                model="gpt-x", base_url=served.base_url, api_key=KEY, max_retries=0, http_async_client=client
            ),
        )


@pytest.mark.parametrize("fault", ["ok", "status_500", "empty_200"])
async def test_langchain_answers_whatever_main_does(fault):
    async with langchain_model(fault) as (_, model):
        message = await model.ainvoke("hello")
        assert message.content == ANSWER
        assert message.usage_metadata["total_tokens"] == 22
        assert message.response_metadata["model_name"] == "ok"


async def test_langchain_streams():
    async with langchain_model() as (_served, model):
        parts = [part.content async for part in model.astream("hello")]
        assert "".join(parts) == ANSWER
        assert len(parts) > 3


async def test_langchain_calls_tools():
    @langchain_tools.tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    async with langchain_model() as (_served, model):
        bound = model.bind_tools([add])
        asked = langchain_messages.HumanMessage("add")
        message = await bound.ainvoke([asked])
        assert [call["args"] for call in message.tool_calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        results = [
            langchain_messages.ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
            for call in message.tool_calls
        ]
        assert (await bound.ainvoke([asked, message, *results])).content == ANSWER
        streamed = None
        async for part in bound.astream([asked]):
            streamed = part if streamed is None else streamed + part
        assert [call["args"] for call in streamed.tool_calls] == [call["args"] for call in message.tool_calls]


async def test_langchain_gets_structured_output():
    async with langchain_model() as (served, model):
        served.main.text = '{"answer": 42}'
        structured = model.with_structured_output(Reply, method="json_schema")
        assert await structured.ainvoke("hello") == Reply(answer=42)


async def test_langchain_embeds():
    async with langchain_model() as (served, model):
        embeddings = langchain.OpenAIEmbeddings(
            model="gpt-x",
            base_url=served.base_url,
            api_key=KEY,
            check_embedding_ctx_length=False,
            max_retries=0,
            http_async_client=model.http_async_client,
        )
        assert await embeddings.aembed_documents(["a", "b"]) == [[0.1, 0.2, 0.0], [0.1, 0.2, 1.0]]
