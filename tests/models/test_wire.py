"""The OpenAI format: requests, chunks, assembled and replayed answers, errors."""

import copy
import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deep import depth

from failsoft.base.errors import BadInput, DeadlineExceeded, MalformedResult, RateLimited, Unauthorized
from failsoft.models import wire
from failsoft.models.sse import SseParser
from failsoft.models.wire import (
    CONTENT,
    CONTENT_KINDS,
    DONE,
    EMPTY,
    ERROR,
    FINISH,
    REASONING,
    ROLE,
    TOOL,
    USAGE,
    Assembler,
    ChatRequest,
    decode_request,
    error_body,
    error_event,
    read_chunk,
    replay,
    sse,
)

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def request(**more):
    return decode_request(json.dumps({**HELLO, **more}).encode())


def delta(index=0, finish=None, **parts):
    choice = {"index": index, "delta": parts, "finish_reason": finish}
    return json.dumps({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def assembled(*payloads, n=1):
    assembler = Assembler(n)
    for payload in payloads:
        assembler.feed(read_chunk(payload))
    return assembler


# --- requests ------------------------------------------------------------------------------------------------------


def test_a_request_keeps_everything_and_gives_what_the_gateway_needs():
    asked = request(
        n=2,
        stream=True,
        temperature=0.5,
        max_completion_tokens=7,
        max_tokens=9,
        tools=[{"type": "x"}],
        new_thing={"a": 1},
    )
    assert (asked.model, asked.n, asked.stream, asked.temperature, asked.max_tokens) == ("m", 2, True, 0.5, 7)
    assert asked.messages == HELLO["messages"]
    assert asked.tools == [{"type": "x"}]
    assert asked.data["new_thing"] == {"a": 1}
    assert not asked.include_usage
    bare = request()
    assert (bare.n, bare.stream, bare.temperature, bare.max_tokens, bare.tools) == (1, False, None, None, [])
    assert "model='m'" in repr(bare)


def test_null_is_as_good_as_absent():
    asked = request(n=None, stream=None, tools=None, max_tokens=None, stream_options=None)
    assert (asked.n, asked.stream, asked.tools, asked.max_tokens, asked.stream_options) == (1, False, [], None, {})


def test_what_goes_upstream_has_its_model_its_stream_and_the_overrides():
    asked = request(stream=True, stream_options={"include_obfuscation": False}, seed=3, user="u")
    up = msgspec.json.decode(asked.encode_for("real", stream=True, overrides={"max_tokens": 5, "user": None}))
    assert up == {
        "model": "real",
        "messages": HELLO["messages"],
        "stream": True,
        "stream_options": {"include_obfuscation": False, "include_usage": True},
        "seed": 3,
        "max_tokens": 5,
    }
    whole = msgspec.json.decode(asked.encode_for("real", stream=False))
    assert "stream" not in whole
    assert "stream_options" not in whole
    assert asked.data["stream_options"] == {"include_obfuscation": False}  # the request itself is as it was


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": "x" * 300}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [*HELLO["messages"], {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*HELLO["messages"] * 2, {"role": "user", "content": 5}]}, "messages[2].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function.name"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"stream_options": True}, "stream_options"),
        ({"response_format": "json"}, "response_format"),
    ],
)
def test_a_wrong_request_is_refused_with_the_path_of_the_part_at_fault(change, param):
    with pytest.raises(BadInput) as refused:
        request(**change)
    assert refused.value.param == param
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "developer", "content": "x"}],
        [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "custom", "custom": {}}]}],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "u"}}],
            }
        ],
        [{"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "1"}],
        [{"role": "user", "content": "x", "name": "n", "extra": 1}],
    ],
)
def test_what_is_unusual_but_right_passes(messages):
    assert request(messages=messages).messages == messages


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b'{"a":NaN}', b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(BadInput):
        decode_request(body)


def test_size_and_depth_are_bounded():
    with pytest.raises(BadInput, match="bytes"):
        decode_request(json.dumps(HELLO).encode(), limit=20)
    deep: dict = {}
    for _ in range(62):
        deep = {"a": deep}
    assert request(metadata=deep)
    with pytest.raises(BadInput, match="deep"):
        request(metadata={"a": deep})
    wide = [{"role": "user", "content": "x"}] * 500  # many brackets are not deep
    assert len(request(messages=wide).messages) == 500


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
FLAT = LEAF | st.lists(LEAF, max_size=3) | st.dictionaries(st.text(max_size=4), LEAF, max_size=3)
JSON = FLAT | st.lists(FLAT, max_size=3) | st.dictionaries(st.text(max_size=4), FLAT, max_size=3)
KEYS = ("model", "messages", "stream", "n", "tools", "max_tokens", "temperature", "stream_options", "role", "content")


@given(st.binary(max_size=200) | JSON.map(lambda data: json.dumps(data).encode()))
def test_arbitrary_bytes_give_a_request_or_bad_input(body):
    _decodes(body)


@given(
    st.dictionaries(st.sampled_from(KEYS), JSON | st.lists(st.dictionaries(st.sampled_from(KEYS), FLAT), max_size=3))
)
def test_arbitrary_values_for_known_keys_give_a_request_or_bad_input(data):
    _decodes(json.dumps({**HELLO, **data}).encode())


def _decodes(body):
    try:
        asked = decode_request(body)
    except BadInput as refused:
        json.loads(error_body(refused))
    else:
        assert type(asked) is ChatRequest
        assert asked.n >= 1
        assert asked.include_usage in {True, False}
        assert json.loads(asked.encode_for("up", stream=True))["model"] == "up"


# --- chunks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "kinds"),
    [
        (delta(role="assistant"), ROLE),
        (delta(role="assistant", content=""), ROLE),
        (delta(role="assistant", content="hi"), ROLE | CONTENT),
        (delta(content="hi"), CONTENT),
        (delta(content=""), 0),
        (delta(content=None), 0),
        (delta(refusal="no"), CONTENT),
        (delta(reasoning_content="hm"), REASONING),
        (delta(reasoning="hm"), REASONING),
        (delta(content="", reasoning="hm"), REASONING),
        (delta(content="x", reasoning="hm"), CONTENT | REASONING),
        (delta(tool_calls=[{"index": 0, "id": "1"}]), TOOL),
        (delta(role="assistant", content=None, tool_calls=[{"index": 0}]), ROLE | TOOL),
        (delta(function_call={"name": "f"}), TOOL),
        (delta(finish="stop"), FINISH),
        (delta(finish="stop", content="."), FINISH | CONTENT),
        ('{"choices":[],"usage":{"total_tokens":3}}', USAGE),
        ('{"choices":[]}', EMPTY),
        ("{}", EMPTY),
        ('{"choices":[{}]}', 0),
        ('{"error":{"message":"x"}}', ERROR),
        ('{"error":null,"choices":[]}', EMPTY),
        ("[DONE]", DONE),
        (" [DONE] ", DONE),
        ("", EMPTY),
    ],
)
def test_a_chunk_is_marked_with_what_is_in_it(payload, kinds):
    chunk = read_chunk(payload)
    assert chunk.kinds == kinds
    assert read_chunk(payload.encode()) == chunk
    assert chunk.data is None or chunk.raw == payload.encode()


def test_a_role_alone_is_no_content_but_reasoning_and_tool_calls_are():
    """Cases 33 and 34."""
    assert not read_chunk(delta(role="assistant", content="")).kinds & CONTENT_KINDS
    assert read_chunk(delta(reasoning_content="…")).kinds & CONTENT_KINDS
    assert read_chunk(delta(tool_calls=[{"index": 0}])).kinds & CONTENT_KINDS


@pytest.mark.parametrize(
    "payload",
    ["{", "null", "[]", "3", '"x"', "[DONE", "<html>", '{"choices":"abc"}', '{"choices":[3]}', '{"choices":5}',
     '{"choices":[{"delta":"x"}]}', "[" * 5000, '{"choices":{"a":1}}'],
)  # fmt: skip
def test_a_chunk_that_cannot_be_read_says_so(payload):
    with pytest.raises(MalformedResult) as bad:
        read_chunk(payload)
    assert bad.value.details["fault"] == "bad_chunk"


@given(st.binary(max_size=60) | JSON.map(lambda d: json.dumps({"choices": d}).encode()) | st.lists(JSON).map(
    lambda deltas: json.dumps({"choices": [{"delta": d} for d in deltas]}).encode()) | st.dictionaries(
    st.sampled_from(("content", "tool_calls", "role", "audio", "function_call", "reasoning_details")), JSON).map(
    lambda d: json.dumps({"choices": [{"delta": d, "index": d.get("role")}]}).encode()))  # fmt: skip
def test_whatever_an_upstream_sends_is_assembled_or_a_malformed_result(payload):
    assembler = Assembler()
    try:
        assembler.feed(read_chunk(payload))
        assembler.feed(read_chunk(payload))
    except MalformedResult:
        return
    json.dumps(assembler.result())
    assert assembler.finished in {True, False}
    assert isinstance(assembler.partial_text, str)


# --- assembling ----------------------------------------------------------------------------------------------------


def test_interleaved_tool_calls_are_kept_apart_by_index():
    """Case 46."""
    whole = assembled(
        delta(role="assistant", content=None),
        delta(tool_calls=[{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]),
        delta(tool_calls=[{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}]),
        delta(tool_calls=[{"index": 1, "function": {"arguments": '{"y"'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"x"'}}]),
        delta(
            tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}, {"index": 1, "function": {"arguments": ":2}"}}]
        ),
        delta(finish="tool_calls"),
        "[DONE]",
    )
    assert whole.finished
    assert whole.done
    message = whole.result()["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"y":2}'}},
    ]


def test_tool_calls_without_an_index_and_with_a_repeated_name_are_read():
    calls = assembled(
        delta(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{"}}]),
        delta(tool_calls=[{"function": {"name": "f", "arguments": "}"}}]),
        delta(tool_calls=[{"id": "b", "function": {"name": "g", "arguments": {"x": 1}}}]),
    ).result()["choices"][0]["message"]["tool_calls"]
    assert [(c["id"], c["function"]) for c in calls] == [
        ("a", {"name": "f", "arguments": "{}"}),
        ("b", {"name": "g", "arguments": '{"x":1}'}),
    ]


def test_usage_in_a_chunk_without_choices_is_kept():
    """Case 47."""
    whole = assembled(delta(content="hi", finish="stop"), '{"choices":[],"usage":{"prompt_tokens":5}}', "[DONE]")
    assert whole.usage == {"prompt_tokens": 5}
    assert whole.result()["usage"] == {"prompt_tokens": 5}
    assert whole.result()["model"] == "m"


def test_a_stream_is_finished_only_when_every_choice_has_said_why_it_ended():
    """Case 32."""
    assert not assembled().finished
    assert not assembled(delta(content="hi"), "[DONE]").finished
    assert assembled(delta(content="hi"), delta(finish="length")).finished
    two = [delta(0, content="a"), delta(1, content="b"), delta(0, finish="stop")]
    assert not assembled(*two, n=2).finished
    assert assembled(*two, delta(1, finish="stop"), n=2).finished
    one_of_two = [delta(0, content="a", finish="stop")]
    assert not assembled(*one_of_two, n=2).finished
    assert assembled(*one_of_two, "[DONE]", n=2).finished  # the upstream does not know `n`


def test_partial_text_and_all_kinds_of_parts():
    whole = assembled(
        delta(role="assistant", content=""),
        delta(reasoning_content="let "),
        delta(reasoning_content="me"),
        delta(content="a"),
        delta(content=[{"type": "text", "text": "b"}]),
        delta(refusal="no"),
        delta(reasoning_details=[{"t": 1}]),
        delta(reasoning_details=[{"t": 2}]),
        delta(audio={"id": "x", "transcript": "he"}),
        delta(audio={"transcript": "y"}),
        json.dumps({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [1], "refusal": None}}]}),
        json.dumps({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [2]}, "finish_reason": "stop"}]}),
    )
    assert whole.partial_text == "ab"
    assert whole.started
    [choice] = whole.result()["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "ab",
        "reasoning_content": "let me",
        "refusal": "no",
        "reasoning_details": [{"t": 1}, {"t": 2}],
        "audio": {"id": "x", "transcript": "hey"},
    }
    assert choice["logprobs"] == {"content": [1, 2], "refusal": None}


def test_an_old_function_call_is_assembled():
    message = assembled(
        delta(function_call={"name": "f", "arguments": "{"}), delta(function_call={"arguments": "}"})
    ).result()["choices"][0]["message"]
    assert message["function_call"] == {"name": "f", "arguments": "{}"}


# --- replaying -----------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=12) | st.text(alphabet="a🚀第\n", min_size=500, max_size=600)
CALLS = st.lists(
    st.builds(
        lambda i, name, arguments: {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}},
        st.text(min_size=1, max_size=5),
        st.text(min_size=1, max_size=5),
        TEXTS,
    ),
    min_size=1,
    max_size=3,
)
SAID = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXTS},
    optional={
        "reasoning_content": TEXTS,
        "refusal": st.none() | TEXTS,
        "annotations": st.lists(JSON, max_size=2),
        "vendor": st.none() | st.integers(),
        "audio": st.fixed_dictionaries({"id": st.text(max_size=3), "data": TEXTS}),
    },
)
CALLED = st.fixed_dictionaries({"role": st.just("assistant"), "content": st.none(), "tool_calls": CALLS})


@st.composite
def answers(draw):
    messages = draw(st.lists(SAID | CALLED, min_size=1, max_size=3))
    answer = {
        "id": draw(st.text(max_size=5)),
        "object": "chat.completion",
        "created": draw(st.integers(0, 2**31)),
        "model": "m",
        "choices": [
            {
                "index": index,
                "message": message,
                "logprobs": draw(st.none() | st.just({"content": [{"token": "a"}], "refusal": None})),
                "finish_reason": draw(st.sampled_from(["stop", "tool_calls", "length"])),
            }
            for index, message in enumerate(messages)
        ],
    }
    answer.update(draw(st.fixed_dictionaries({}, optional={"system_fingerprint": st.text(max_size=4)})))
    if draw(st.booleans()):
        answer["usage"] = {"prompt_tokens": draw(st.integers(0, 9)), "details": {"cached": 1}}
    return answer


finite = answers().map(lambda answer: json.loads(json.dumps(answer).replace("Infinity", "0")))


@settings(max_examples=depth(16, 100))
@given(finite, st.lists(st.integers(0, 4000), max_size=12))
def test_a_replayed_answer_assembles_to_itself_however_its_bytes_are_cut(answer, cuts):
    """Case 45, through SSE, chunks, assembling."""
    stored = copy.deepcopy(answer)
    stream = b"".join(replay(answer, include_usage=True))
    assert stream.endswith(b"data: [DONE]\n\n")
    parser = SseParser()
    assembler = Assembler(len(answer["choices"]))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for begin, end in pairwise(edges):
        for event in parser.feed(stream[begin:end]):
            assembler.feed(read_chunk(event.data))
    assert assembler.result() == stored == answer
    assert assembler.finished
    assert assembler.done


def test_a_replay_begins_with_a_role_and_leaves_usage_out_when_it_is_not_wanted():
    answer = {
        "id": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "y" * 1200}, "finish_reason": "stop"}],
        "usage": {"total_tokens": 3},
    }
    chunks = [read_chunk(event[6:].strip()) for event in replay(answer, include_usage=False)]
    assert [chunk.kinds for chunk in chunks] == [ROLE, CONTENT, CONTENT, CONTENT, FINISH, DONE]
    assert all(c.data is None or c.data["object"] == "chat.completion.chunk" for c in chunks)
    with_usage = [read_chunk(event[6:].strip()) for event in replay(answer, include_usage=True)]
    assert with_usage[-2].kinds == USAGE
    assert with_usage[-2].data["choices"] == []


# --- errors --------------------------------------------------------------------------------------------------------


def test_errors_have_openais_shape_with_what_we_know():
    body = json.loads(error_body(BadInput("n is wrong", param="n")))
    assert body == {
        "error": {"message": "n is wrong", "type": "invalid_request_error", "param": "n", "code": "bad_input"}
    }
    limited = json.loads(error_body(RateLimited("slow down", retry_after=3.0, run_id="r")))["error"]
    assert (limited["type"], limited["retry_after"], limited["run_id"]) == ("rate_limit_error", 3.0, "r")
    assert json.loads(error_body(Unauthorized()))["error"]["type"] == "authentication_error"
    assert json.loads(error_body(DeadlineExceeded()))["error"]["type"] == "timeout_error"
    assert json.loads(error_body(DeadlineExceeded(), code="x", status=502))["error"]["code"] == "x"


def test_an_error_event_is_one_unnamed_event_that_is_read_as_an_error():
    [event] = SseParser().feed(error_event(BadInput("line\nbreak")))
    assert event.event == "message"
    assert read_chunk(event.data).kinds == ERROR
    [event] = SseParser().feed(wire.ERROR_EVENT)
    assert read_chunk(event.data).kinds == ERROR
    assert list(SseParser().feed(wire.HEARTBEAT)) == []
    assert sse(b"x") == b"data: x\n\n"
