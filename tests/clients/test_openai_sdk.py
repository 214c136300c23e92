"""The official SDK against the gateway, unchanged: what it is given is what it would get from OpenAI."""

import asyncio

import pytest
from pydantic import BaseModel
from tests.lazy import Lazy
from tests.server.models_served import KEY, digest, serving_models
from tests.server.serving import until

from failsoft.testing.upstream import ANSWER

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.may_block(reason="the SDK looks at files on the loop: platform, certificates"),
]

openai = Lazy("openai")
ASK = [{"role": "user", "content": "hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
]


class Reply(BaseModel):
    answer: int


def sdk(served, key: str = KEY, retries: int = 0):
    return openai.AsyncOpenAI(base_url=served.base_url, api_key=key, max_retries=retries)


async def test_answers_streams_models_and_embeddings():
    async with serving_models(keys={"team": {"hash": digest(KEY)}}) as served, sdk(served) as client:
        answer = await client.chat.completions.create(model="gpt-x", messages=ASK)
        assert answer.choices[0].message.content == ANSWER
        assert (answer.model, answer.usage.total_tokens) == ("ok", 22)

        stream = await client.chat.completions.create(
            model="gpt-x", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].usage.total_tokens == 22

        assert [one.id for one in (await client.models.list()).data] == ["gpt-x"]
        assert (await client.models.retrieve("gpt-x")).id == "gpt-x"
        vectors = await client.embeddings.create(model="gpt-x", input=["a", "b"])
        assert len(vectors.data) == 2


async def test_tools_whole_and_streamed_with_interleaved_deltas():
    async with serving_models() as served, sdk(served) as client:
        answer = await client.chat.completions.create(model="gpt-x", messages=ASK, tools=TOOLS)
        calls = answer.choices[0].message.tool_calls
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            ("add", '{"a": 1, "b": 2}'),
            ("add", '{"a": 3, "b": 4}'),
        ]
        assert answer.choices[0].finish_reason == "tool_calls"
        # The SDK's own accumulating helper takes a call for finished when another begins; its chunks are what counts.
        stream = await client.chat.completions.create(model="gpt-x", messages=ASK, tools=TOOLS, stream=True)
        arguments: dict[int, str] = {}
        async for chunk in stream:
            for part in chunk.choices[0].delta.tool_calls or []:
                arguments[part.index] = arguments.get(part.index, "") + (part.function.arguments or "")
        assert list(arguments.values()) == [call.function.arguments for call in calls]


async def test_a_json_schema_is_passed_on_and_its_answer_parsed():
    async with serving_models() as served, sdk(served) as client:
        served.main.text = '{"answer": 42}'
        answer = await client.chat.completions.parse(model="gpt-x", messages=ASK, response_format=Reply)
        assert answer.choices[0].message.parsed == Reply(answer=42)
        assert served.main.requests[0].body["response_format"]["json_schema"]["name"] == "Reply"


async def test_several_choices_and_unknown_parameters_come_through():
    async with serving_models() as served, sdk(served) as client:
        answer = await client.chat.completions.create(model="gpt-x", messages=ASK, n=3, extra_body={"top_k": 5})
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert served.main.requests[0].body["top_k"] == 5


async def test_headers_are_there_to_read():
    async with serving_models("status_500") as served, sdk(served) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="gpt-x", messages=ASK, extra_headers={"X-Max-Wait": "5s"}
        )
        assert raw.headers["x-failsoft-route"] == "backup"
        assert raw.parse().choices[0].message.content == ANSWER


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("bad_request", "BadRequestError"),
        ("status_429", "RateLimitError"),
        ("status_500", "InternalServerError"),
        ("status_401", "InternalServerError"),
        ("headers_never", "InternalServerError"),
    ],
)
async def test_errors_are_the_sdks_own(fault, error):
    limits = {"first_content": 0.3, "total": 0.5}
    async with serving_models(fault, backup=fault, limits=limits) as served, sdk(served) as client:
        with pytest.raises(getattr(openai, error)) as caught:
            await client.chat.completions.create(model="gpt-x", messages=ASK)
        assert caught.value.code
        assert caught.value.request_id


async def test_keys_and_names_that_are_not_known():
    async with serving_models(keys={"team": {"hash": digest(KEY)}}) as served:
        async with sdk(served, "sk-wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="gpt-x", messages=ASK)
        async with sdk(served) as client:
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="gpt-y", messages=ASK)


async def test_a_stream_that_breaks_off_raises_and_never_ends_well():
    async with serving_models("cut") as served, sdk(served) as client:
        served.main.pause = 0.02
        stream = await client.chat.completions.create(model="gpt-x", messages=ASK, stream=True)
        text = ""
        with pytest.raises(openai.APIError) as caught:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        assert text
        assert ANSWER.startswith(text)
        assert caught.value.code == "stream_cut"


async def test_leaving_a_stream_stops_the_upstream():
    limits = {"idle": 9, "total": 9, "first_content": 9}
    async with serving_models("stall", limits=limits) as served, sdk(served) as client:
        served.main.pause = 0.02
        stream = await client.chat.completions.create(model="gpt-x", messages=ASK, stream=True)
        async for _ in stream:
            break
        await stream.close()
        assert await until(lambda: served.main.closed_early == 1) < 0.3


async def test_a_key_over_its_rate_is_waited_for_by_the_sdk():
    keys = {"team": {"hash": digest(KEY), "rate": "60/minute", "burst": 1}}
    async with serving_models(keys=keys) as served, sdk(served, retries=2) as client:
        loop = asyncio.get_running_loop()
        await client.chat.completions.create(model="gpt-x", messages=ASK)
        began = loop.time()
        await client.chat.completions.create(model="gpt-x", messages=ASK)
        assert 0.3 < loop.time() - began < 6
        assert served.main.count == 2


async def test_what_cannot_succeed_is_not_tried_again_by_the_sdk():
    async with serving_models("status_401", backup="status_401") as served, sdk(served, retries=2) as client:
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="gpt-x", messages=ASK)
        assert (served.main.count, served.other.count) == (1, 1)
