"""What models write is read tolerantly but never completed; what goes in is cut without losing the instruction."""

import json
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deep import depth

from failsoft.base.errors import MalformedResult
from failsoft.models import loose_json
from failsoft.models.hygiene import (
    RepetitionWatch,
    clean_json,
    cut_input,
    limit_note,
    repeated_tail,
    strip_fences,
)

# --- JSON ----------------------------------------------------------------------------------------------------------

CASE_42 = [
    ('{"a": 1}', {"a": 1}, []),
    ("3", 3, []),
    ('  {"a": 1}\n', {"a": 1}, []),
    ('\ufeff{"a": 1}', {"a": 1}, ["byte order mark"]),
    ('```json\n{"a": 1}\n```', {"a": 1}, ["code fence"]),
    ('```\n[1]\n```', [1], ["code fence"]),
    ('```{"a": 1}```', {"a": 1}, ["code fence"]),
    ('```json {"a": 1}```', {"a": 1}, ["code fence"]),
    ('~~~json\n{"a": 1}\n~~~', {"a": 1}, ["code fence"]),
    ('Here it is:\n```json\n{"a": 1}\n```\nHope it helps.', {"a": 1}, ["code fence"]),
    ('```json\n{"a": "```py\\nx\\n```"}\n```', {"a": "```py\nx\n```"}, ["code fence"]),
    ('The answer is {"a": 1}, as [1] says.', {"a": 1}, ["text around it"]),
    ('See [1].\n[{"a": 1}, {"b": 2}]', [{"a": 1}, {"b": 2}], ["text around it"]),
    ("{'a': 'b'}", {"a": "b"}, ["loose punctuation"]),
    ("{'a': 'it's', \"b\": 'x \"y\"'}", {"a": "it's", "b": 'x "y"'}, ["loose punctuation"]),
    (r"{'a': 'it\'s é 😀 \n'}", {"a": "it's é 😀 \n"}, ["loose punctuation"]),
    ('{"a": [1, 2,], }', {"a": [1, 2]}, ["loose punctuation"]),
    ("{“名”：“北京，上海”，“数”：3}", {"名": "北京，上海", "数": 3}, ["loose punctuation"]),
    ('｛"a"：［1，2］｝', {"a": [1, 2]}, ["loose punctuation"]),
    ("{a: True, b: None, c: -1.5e3} // done", {"a": True, "b": None, "c": -1500.0}, ["loose punctuation"]),
    ('{"a": 1, /* one */ "b": 2 // two\n}', {"a": 1, "b": 2}, ["loose punctuation"]),
    ('{"a": "x\ny"}', {"a": "x\ny"}, ["loose punctuation"]),
    ("```json\n{'a': 1,}\n```", {"a": 1}, ["code fence", "loose punctuation"]),
    ('{"a": 1 "b": 2}', {"a": 1, "b": 2}, ["repaired"]),
    ('{"a": "he said "hi" there"}', {"a": 'he said "hi" there'}, ["repaired"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value", "notes"), CASE_42)
def test_what_models_write_is_read(text, value, notes):
    """Case 42."""
    assert clean_json(text) == (value, notes)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1',
        '{"a": "b',
        '{"command": "rm -rf /tmp/x", "path": "/',
        '[{"a": 1}, {"b"',
        '{"rows": [{"id": 1}], "note": "and then',
        '```json\n{"a": [1, 2',
        "{'a': 'x",
        'First {"a": 1}, then {"b": ',
        '{"a": 1} {"b": [{"c": 2}',
        '{"a": /* and',
    ],
)
def test_what_was_cut_is_never_completed(text):
    """Case 38."""
    with pytest.raises(MalformedResult) as refused:
        clean_json(text)
    assert refused.value.details["fault"] == "truncated"


def test_output_that_ended_by_length_is_not_read_even_if_it_could_be():
    for options in ({"finish_reason": "length"}, {"truncated": True}):
        with pytest.raises(MalformedResult) as refused:
            clean_json('{"a": 1}', **options)
        assert refused.value.details["fault"] == "truncated"
    assert clean_json('{"a": 1}', finish_reason="stop") == ({"a": 1}, [])


@given(st.dictionaries(st.text("ab{[\"'“\\", max_size=5), st.text(max_size=5) | st.lists(st.integers()), min_size=1),
       st.floats(0, 0.999), st.booleans())  # fmt: skip
def test_no_beginning_of_an_object_is_read_as_something(data, share, fenced):
    """Case 38, for any cut of any object."""
    text = json.dumps(data)
    cut = text[: max(1, int(len(text) * share))]
    with pytest.raises(MalformedResult):
        clean_json("```json\n" + cut if fenced else cut)


@pytest.mark.parametrize("text", ["", "  ", "\ufeff", "no JSON here", "NaN", '{"a": NaN}', "[1, -Infinity]", ":-[ sad"])
def test_no_value_is_no_value(text):
    """Case 39: NaN."""
    with pytest.raises(MalformedResult):
        clean_json(text)


@pytest.mark.parametrize(
    "text",
    ["[" * 10_000 + "]" * 10_000, '{"a":' * 10_000 + "1" + "}" * 10_000, "{'a':" * 10_000 + "1" + "}" * 10_000,
     "[" * 10_000, "[" * 65 + "]" * 65, "x " + "[" * 65 + "]" * 65, "[1 " * 70 + "]" * 70],
)  # fmt: skip
def test_deep_nesting_is_refused(text):
    """Case 39: nesting 10 000 deep."""
    with pytest.raises(MalformedResult):
        clean_json(text)
    assert clean_json("[" * 64 + "]" * 64)[1] == []


@pytest.mark.deep
def test_ten_megabytes_of_string_are_no_trouble():
    """Case 39."""
    text = "x" * 10_000_000
    assert clean_json(json.dumps({"a": text}))[0] == {"a": text}
    with pytest.raises(MalformedResult):
        clean_json('{"a": "' + text)
    with pytest.raises(MalformedResult, match="characters"):
        clean_json(" " * 17_000_000)


HOSTILE = [
    '{"a": "' + "x" * 1_000_000,
    "[" + "'a' 'b\"" * 6000 + "]",
    "[" + "'a' 'b\"" * 1600 + "]",
    '{"a": ' + '"x" ' * 4000 + "}",
    "{" + '"a" ' * 4000 + "}",
    "{" + "a" * 16_000 + "}",
    "{“a”" + "“ " * 7000 + "}",
    "{" + "/*" * 30_000 + "}",
    "{" + "'" * 100_000 + "}",
    "[{}" * 20_000,
    "{x}" * 20_000,
    "`" * 100_000,
    "\n```" * 20_000,
    " " * 100_000 + "{" + " " * 100_000,
    "{'a':'" + "' " * 50_000 + "'}",
]


@pytest.mark.parametrize("text", HOSTILE, ids=[text[:12] for text in HOSTILE])
def test_hostile_text_takes_bounded_time(text):
    began = time.process_time()
    try:
        clean_json(text)
    except MalformedResult:
        pass
    assert time.process_time() - began < 2.0  # usually a tenth; json-repair alone took minutes for some of these


PIECES = st.sampled_from(
    [*"{}[]:,\"'“”‘’：，｛｝0-.eE+/*\\ \n`x", '"a"', "'b'", "```", "true", "NaN", "null", "\\u", "\ud83d"]
)


@settings(max_examples=depth(66, 200))
@given(st.text(max_size=30) | st.lists(PIECES, max_size=40).map("".join))
def test_whatever_a_model_writes_is_a_value_or_malformed(text):
    try:
        value, notes = clean_json(text)
    except MalformedResult:
        return
    assert isinstance(notes, list)
    repr(value)


LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = LEAF | st.lists(LEAF, max_size=3) | st.dictionaries(st.text(max_size=3), LEAF, max_size=3)


@settings(max_examples=depth(20, 100))
@given(st.lists(VALUES, min_size=1, max_size=3) | st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=3))
def test_json_is_read_as_json_and_pythons_repr_as_what_it_says(value):
    assert clean_json(json.dumps(value)) == (value, [])
    assert clean_json(f"Well: {json.dumps(value)} .")[0] == value
    if "\\" not in repr(value) and not any(quote in repr(value) for quote in '"“”‘’'):
        assert clean_json(repr(value))[0] == value


def test_without_the_library_only_its_part_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "json_repair", None)
    assert clean_json("{'a': 1,}") == ({"a": 1}, ["loose punctuation"])
    with pytest.raises(MalformedResult):
        clean_json('{"a": 1 "b": 2}')


def test_surrogates_and_odd_escapes():
    assert clean_json(r"{'a': '😀 \ud83dx \q'}")[0] == {"a": "😀 \ufffdx q"}
    assert loose_json.MAX_DEPTH == 64


def test_fences():
    assert strip_fences("a\n```py\nx = 1\n```\nb") == "x = 1"
    assert strip_fences("```\nx\n") == "x"
    assert strip_fences("````\n```\nx\n```\n````") == "```\nx\n```"
    assert strip_fences("no fence ``` here") == "no fence ``` here"


# --- repetition ----------------------------------------------------------------------------------------------------

PROSE = "".join(f"Flight {n} left {n % 7} minutes late from gate {n * 7 % 31}. " for n in range(300))


def test_a_repeated_tail_is_found_and_one_copy_kept():
    piece = "and it goes on like that, "
    for begin in ("", "Well: ", PROSE):
        text = begin + piece * 40 + piece[:7]
        position = repeated_tail(text)
        assert position is not None
        assert position <= len(begin) + len(piece)
        assert text[:position].startswith(begin)
        assert text[position:] == (text * 2)[position - len(piece) : len(text) - len(piece)]


@pytest.mark.parametrize("text", ["", "a" * 100, PROSE, "|---" * 20 + "\n| a | b |", "0, " * 60 + "1", "ab" * 10])
def test_what_only_looks_like_repetition_is_left_alone(text):
    assert repeated_tail(text) is None


@pytest.mark.parametrize("piece", ["a", "\n", " ", "哈", "ab", "no no yes "])
def test_short_periods_are_found(piece):
    assert repeated_tail("start: " + piece * 500) is not None


def test_the_cost_does_not_grow_with_the_text():
    text = PROSE * 100
    began = time.process_time()
    for _ in range(100):
        repeated_tail(text)
    assert time.process_time() - began < 0.5


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_a_watched_stream_is_stopped_soon_after_it_begins_to_repeat(sizes):
    text = PROSE[:3000] + "over and over again. " * 100
    watch = RepetitionWatch()
    position = at = 0
    found = None
    while at < len(text) and found is None:
        for size in sizes:
            found = watch.feed(text[at : at + size])
            at = min(len(text), at + size)
            if found is not None:
                break
    assert found is not None
    assert at <= 3000 + 21 * 12 + 256 + 60
    assert text[found:at] == ("over and over again. " * 100)[(found - 3000) % 21 :][: at - found]
    assert position == 0
    assert "characters=" in repr(watch)


# --- inputs --------------------------------------------------------------------------------------------------------


def tokens(text):
    return len(text) // 4 + 1


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def cost(messages):
    return sum(4 + tokens(m["content"] or "") for m in messages)


CHAT = [
    message("system", "You are careful."),
    message("user", "The task: summarise the flights."),
    *[message(role, f"{role} turn {n} " + "x" * 400) for n in range(10) for role in ("assistant", "user")],
    message("user", "Now the summary, in Chinese."),
]


def test_what_fits_is_sent_as_it_is():
    assert cut_input(CHAT, 100_000, tokens) == CHAT


def test_the_middle_goes_first_and_the_instruction_stays():
    cut = cut_input(CHAT, 900, tokens)
    assert cost(cut) <= 900
    assert cut[:2] == CHAT[:2]
    assert cut[-1] == CHAT[-1]
    assert "left out" in cut[2]["content"]
    assert cut[3:] == CHAT[-len(cut[3:]) :]
    assert len(cut) > 6  # no more than needed


def test_a_call_and_its_results_go_together():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [
        message("user", "start"),
        message("assistant", None, tool_calls=[call, call]),
        message("tool", "y" * 4000, tool_call_id="1"),
        message("tool", "z" * 4000, tool_call_id="1"),
        message("assistant", "done"),
        message("user", "go on"),
        message("assistant", None, tool_calls=[call]),
        message("tool", "w" * 400, tool_call_id="1"),
    ]
    cut = cut_input(chat, 400, tokens)
    assert [m["role"] for m in cut] == ["user", "user", "assistant", "user", "assistant", "tool"]
    assert cut[-1] == chat[-1]  # the call under way is whole


def test_one_text_that_is_too_long_loses_its_middle():
    chat = [message("system", "s"), message("user", "Summarise: " + "x" * 50_000 + " in one line.")]
    cut = cut_input(chat, 500, tokens)
    text = cut[1]["content"]
    assert text.startswith("Summarise: ")
    assert text.endswith(" in one line.")
    assert "characters left out" in text
    assert cost(cut) <= 520
    assert len(chat[1]["content"]) > 50_000  # the caller's own is untouched


def test_tool_results_are_shortened_before_the_question():
    chat = [message("user", "q" * 2000), message("tool", "t" * 20_000, tool_call_id="1")]
    cut = cut_input(chat, 1500, tokens)
    assert cut[0] == chat[0]
    assert len(cut[1]["content"]) < 4000


def test_what_cannot_fit_comes_back_as_short_as_it_gets():
    cut = cut_input([message("system", "s" * 100), message("user", [{"type": "text", "text": "u" * 5000}])], 10, tokens)
    assert [m["role"] for m in cut] == ["system", "user"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.integers(0, 3000)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 3000),
)
def test_cutting_keeps_system_first_and_last_user_and_shrinks(parts, budget):
    chat = [message(role, f"{n}:" + "x" * size) for n, (role, size) in enumerate(parts)]
    cut = cut_input(chat, budget, tokens)
    marks = sum("left out" in m["content"] for m in cut)
    assert cost(cut) <= max(budget, cost(chat)) + 15 * marks
    users = [m for m in chat if m["role"] == "user"]
    for kept in [*[m for m in chat if m["role"] == "system"], *users[:1], *users[-1:]]:
        begin = kept["content"][:2]
        assert any(m["role"] == kept["role"] and m["content"].startswith(begin) for m in cut)


def test_the_limit_note_names_the_limit():
    assert "300 tokens" in limit_note(300)
    assert "180 words" in limit_note(300)
