from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.base.errors import MalformedResult
from failsoft.models.sse import SseEvent, SseParser

TEXT = (
    "\ufeff: a comment\r\n"
    "event: add\r\ndata: 第一\r\ndata: line 🚀\r\nid: 7\r\n\r\n"
    "data:no space\n\n"
    "data\n\n"
    "retry: 5\n\n"
    "data: cr\r\rdata: [DONE]\n\n"
    "data: cut off"
)
EVENTS = [
    SseEvent("第一\nline 🚀", "add", "7"),
    SseEvent("no space", "message", "7"),
    SseEvent("", "message", "7"),
    SseEvent("cr", "message", "7"),
    SseEvent("[DONE]", "message", "7"),
]


def parsed(chunks):
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_events_are_read():
    assert parsed([TEXT.encode()]) == EVENTS


@given(st.lists(st.integers(0, len(TEXT.encode())), max_size=30))
def test_however_the_bytes_are_cut_the_events_are_the_same(cuts):
    """Case 45."""
    data = TEXT.encode()
    edges = [0, *sorted(cuts), len(data)]
    assert parsed([data[a:b] for a, b in pairwise(edges)]) == EVENTS


def test_byte_by_byte():
    assert parsed([bytes([byte]) for byte in TEXT.encode()]) == EVENTS


def test_a_line_without_end_is_refused_before_it_fills_the_memory():
    with pytest.raises(MalformedResult):
        parsed([b"data: " + b"x" * 1_000_000] * 5)


PLAIN = "".join(f'data: {{"n": {n}, "text": "第{n} 🚀"}}\n\n' for n in range(6)) + "data: [DONE]\n\n"


@given(st.sampled_from([TEXT, PLAIN, PLAIN + TEXT, TEXT + "\n\n" + PLAIN]), st.lists(st.integers(0, 400), max_size=12))
def test_payloads_are_the_events_data_however_the_bytes_are_cut(text, cuts):
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    parser = SseParser()
    found = [one if isinstance(one, str) else one.decode() for piece in pieces for one in parser.payloads(piece)]
    assert found == [event.data for event in parsed(pieces)]


def test_plain_events_are_passed_on_as_they_came():
    payloads = SseParser().payloads(PLAIN.encode())
    assert all(isinstance(one, bytes) for one in payloads)
    assert len(payloads) == 7


def test_bytes_that_are_no_text_are_mended_and_not_passed_on():
    assert SseParser().payloads(b"data: a\xff\n\n") == ["a\ufffd"]
