"""Streams read piece by piece: whatever is known without being decoded is what decoding would have found."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deep import depth

from failsoft.base.errors import EmptyResult, FailsoftError, MalformedResult, StreamCut
from failsoft.models.assembly import Assembler
from failsoft.models.chunks import CONTENT, FINISH, REASONING, USAGE, read_chunk
from failsoft.models.pieces import Run
from failsoft.models.reading import AnswerReader
from failsoft.models.sse import SseParser


def chunk(delta, finish=None, index=0, **more):
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def event(data, **options):
    return b"data: " + json.dumps(data, **options).encode() + b"\n\n"


def says(*texts, name="content", **options):
    return b"".join(event(chunk({name: text}), **options) for text in texts)


ROLE = event(chunk({"role": "assistant", "content": ""}))
END = event(chunk({}, "stop"))
DONE = b"data: [DONE]\n\n"
PLAIN = [f"word{n} " for n in range(20)]


def read(pieces, n=1):
    reader = AnswerReader(n)
    found = [piece for data in pieces if (piece := reader.read(data)) is not None]
    return reader, found


def items(found):
    return [item for piece in found for item in piece.items]


def test_a_run_of_plain_events_is_known_without_decoding_each_and_goes_out_as_it_came():
    body = ROLE + says(*PLAIN) + END + DONE
    reader, found = read([body])
    runs = [item for item in items(found) if isinstance(item, Run)]
    assert "".join(run.text for run in runs) == "".join(PLAIN[1:])  # the first one was learned from
    assert len(runs) == 1
    assert b"".join(piece.raw for piece in found) == body.removesuffix(DONE)
    assert found[0].kinds & CONTENT
    assert found[0].kinds & FINISH
    assert reader.done
    reader.check_end()


def test_token_by_token_each_piece_is_passed_on_as_it_came():
    events = [ROLE, *(says(text) for text in PLAIN), END, DONE]
    reader, found = read(events)
    assert [piece.raw for piece in found] == events[:-1]
    assert sum(isinstance(item, Run) for item in items(found)) == len(PLAIN) - 1
    reader.check_end()


@pytest.mark.parametrize("name", ["content", "reasoning_content", "reasoning"])
def test_texts_are_learned_under_any_of_their_names(name):
    _, found = read([says(*PLAIN, name=name)])
    assert any(isinstance(item, Run) for item in items(found))
    assert found[0].kinds == (CONTENT if name == "content" else REASONING)
    assembler = Assembler()
    for piece in found:
        assembler.take(piece)
    assert assembler.result()["choices"][0]["message"][name] == "".join(PLAIN)


ODD = [
    '"',
    "\\",
    "\n",
    "a\\",
    '\\"',
    "第一 🚀",
    "\ud7ff",
    "",
    " ",
    "content",
    '"content":"x"',
    "\u2028",
    "{}",
    "\x1f",
    "\r",
]
texts = st.lists(st.one_of(st.sampled_from([*ODD, "plain"]), st.text(max_size=4).filter(str.isprintable)), max_size=12)


@settings(max_examples=depth(20, 100))
@given(
    texts,
    st.lists(st.integers(0, 3000), max_size=10),
    st.booleans(),
    st.sampled_from([b"", b": comment\n\n", b"event: x\n", b"\n", b"retry: 5\n\n", b"\xef\xbb\xbf"]),
    st.integers(0, 12),
    st.sampled_from(["content", "reasoning_content"]),
)
def test_however_it_is_cut_and_whatever_is_said_the_answer_is_that_of_reading_every_event(
    said, cuts, ascii_only, odd, at, name
):
    """Case 45."""
    events = [event(chunk({name: text}), ensure_ascii=ascii_only) for text in said]
    events.insert(min(at, len(events)), odd)
    data = ROLE + b"".join(events) + END + event({"choices": [], "usage": {"prompt_tokens": 3}}) + DONE
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    parser = SseParser()
    plainly = [read_chunk(payload) for piece in pieces for payload in parser.payloads(piece)]
    reader, found = read(pieces)
    assert [one.data for piece in found for one in piece] == [one.data for one in plainly if one.data is not None]
    assert reader.done
    assert any(piece.kinds & USAGE for piece in found)
    mine, theirs = Assembler(), Assembler()
    for piece in found:
        mine.take(piece)
    for one in plainly:
        theirs.feed(one)
    assert mine.result() == theirs.result()
    again, out = SseParser(), b"".join(piece.raw for piece in found)
    assert [read_chunk(one).data for one in again.payloads(out)] == [
        one.data for one in plainly if one.data is not None
    ]
    kinds = [any(one.kinds & CONTENT for one in piece) for piece in found]
    assert [bool(piece.kinds & CONTENT) for piece in found] == kinds


@pytest.mark.parametrize(
    "broken",
    [
        says("x")[:-4] + b"\n\n",
        says("x").replace(b'"x"', b'"x\x01"'),
        says("x").replace(b'"x"', b'"x\\"'),
        says("x").replace(b'"x"', b'"x", "y"'),
        says("x").replace(b'"x"', b'"x\\q"'),
        says("ab").replace(b"ab", b"a\\") + says("nb"),
        b"data: {\n\n",
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_a_broken_event_among_plain_ones_is_found(broken, together):
    pieces = [ROLE, says(*PLAIN), broken, says(*PLAIN), END]
    with pytest.raises(MalformedResult):
        read([b"".join(pieces)] if together else pieces)


def test_an_error_among_plain_events_is_raised():
    with pytest.raises(FailsoftError):
        read([says(*PLAIN) + event({"error": {"message": "no"}}) + says(*PLAIN)])


def test_several_choices_are_told_apart():
    events = b"".join(says(f"a{n}") + event(chunk({"content": f"b{n}"}, index=1)) for n in range(6))
    ends = END + event(chunk({}, "length", index=1))
    reader, found = read([events, ends, DONE], n=2)
    assembler = Assembler(2)
    for piece in found:
        assembler.take(piece)
    first, second = assembler.result()["choices"]
    assert (first["message"]["content"], second["message"]["content"]) == ("a0a1a2a3a4a5", "b0b1b2b3b4b5")
    reader.check_end()


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x", "refusal": "y"},
        {"content": [{"type": "text", "text": "x"}]},
        {"refusal": "x"},
        {"audio": {"a": 1}},
    ],
)
def test_what_is_not_one_text_is_never_taken_for_a_template(delta):
    _, found = read([event(chunk(delta)), event(chunk(delta))])
    assert not any(isinstance(item, Run) for item in items(found))


def test_streams_whose_events_always_differ_are_read_one_by_one():
    body = b"".join(event(chunk({"content": f"{n}"}, obfuscation="x" * n)) for n in range(40))
    _, found = read([body + END])
    assert sum(isinstance(item, Run) for item in items(found)) == 0
    assert "".join(one.data["choices"][0]["delta"].get("content", "") for one in items(found)) == "".join(
        map(str, range(40))
    )


def test_an_end_without_a_reason_is_a_cut_and_nothing_said_is_empty():
    reader, _ = read([ROLE, says(*PLAIN), DONE])
    with pytest.raises(StreamCut):
        reader.check_end()
    reader, _ = read([ROLE, END, DONE])
    with pytest.raises(EmptyResult):
        reader.check_end()


def test_an_event_without_end_is_refused_before_it_fills_the_memory():
    with pytest.raises(MalformedResult):
        read([ROLE, b"data: " + b"x" * 1_000_000, *[b"x" * 1_000_000] * 5])
