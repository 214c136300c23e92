"""Every symptom has a reading, and the reading says the right thing."""

import asyncio
import json
import socket
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.base import errors as base
from failsoft.base.errors import (
    BreakerOpen,
    DeadlineExceeded,
    DownstreamUnavailable,
    EmptyResult,
    FailsoftError,
    FirstItemTimeout,
    IdleTimeout,
    MalformedResult,
    QueueFull,
    StreamCut,
    TotalTimeout,
    Unaffordable,
)
from failsoft.kernel.classify import Counts, classify
from failsoft.models.failure_table import ROWS, UpstreamCredentials, UpstreamFault, UpstreamQuota, UpstreamRefusal
from failsoft.models.failures import (
    Reading,
    Symptom,
    check_answer,
    check_end,
    classifier,
    read_answer,
    read_failure,
)
from failsoft.models.wire import Assembler, error_body, read_chunk

ALLOWED = {400, 429, 499, 502, 503, 504}


def http(status, body=None, **headers):
    content = json.dumps(body).encode() if isinstance(body, dict | list) else body
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_failure(Symptom(status=status, headers=named, body=content, downstream="main", wall=1000.0))


def failed(message="x", **parts):
    return {"error": {"message": message, **parts}}


def unavailable(fault):
    return DownstreamUnavailable("connection failed", downstream="main", details={"fault": fault})


def caused(cause):
    error = DownstreamUnavailable("connection failed")
    error.__cause__ = cause
    return error


# --- the table -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_every_row_is_consistent(row):
    assert row.status in ALLOWED
    assert row.counts in {Counts.FAILED, Counts.TIMEOUT, Counts.NEUTRAL}
    assert row.staged is (row.counts == Counts.TIMEOUT)
    if row.status == 400:
        assert row.counts == Counts.NEUTRAL  # case 36: the caller's fault opens nothing
    if row.take_out is not None:
        assert row.alert
        assert row.next_route
    if row.retry_here:
        assert row.next_route
    made = row.error("x")
    assert made.status == row.status


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_reading_the_mapped_error_again_gives_the_same(row):
    first = read_failure(FailsoftError("x", details={"symptom": row.name}))
    again = read_failure(first.error)
    assert again.name == first.name == row.name
    assert again.error is first.error
    assert again[1:10] == first[1:10]


# --- responses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reading", "name"),
    [
        (http(400, failed("bad temperature")), "bad_request"),
        (http(422), "bad_request"),
        (http(451, b"<html>"), "bad_request"),
        (http(400, failed("no", code="context_length_exceeded")), "context_length"),
        (http(400, failed("This model's maximum context length is 8192 tokens")), "context_length"),
        (http(400, failed("too long", type="exceed_context_size_error")), "context_length"),
        (http(500, failed("the request exceeds the available context size")), "context_length"),
        (http(400, {"object": "error", "message": "maximum context length is 4096", "code": 400}), "context_length"),
        (http(413), "context_length"),
        (http(400, failed("no", code="content_filter")), "content_filter"),
        (http(400, failed("filtered by Azure OpenAI's content management policy")), "content_filter"),
        (http(403, failed("your input was flagged by the moderation")), "content_filter"),
        (http(401, failed("no", code="invalid_api_key")), "credentials"),
        (http(403), "credentials"),
        (http(400, [failed("API key not valid. Please pass a valid API key.")]), "credentials"),
        (http(402), "quota"),
        (http(429, failed("no", code="insufficient_quota")), "quota"),
        (http(429, failed("You exceeded your current quota, please check your plan")), "quota"),
        (http(429, failed("You exceeded your current quota, retry later"), retry_after="7"), "rate_limited"),
        (http(404, failed("no", code="model_not_found")), "model_missing"),
        (http(404, b"not here"), "model_missing"),
        (http(405), "misrouted"),
        (http(408), "upstream_timeout"),
        (http(409), "conflict"),
        (http(429), "rate_limited"),
        (http(429, failed("Request too large for tokens per minute, context length")), "rate_limited"),
        (http(500), "server_error"),
        (http(500, failed("x", type="rate_limit_error")), "server_error"),
        (http(501), "server_error"),
        (http(502), "bad_gateway"),
        (http(503), "overloaded"),
        (http(504), "upstream_timeout"),
        (http(524), "upstream_timeout"),
        (http(529), "overloaded"),
        (http(302), "odd_status"),
        (http(100), "odd_status"),
        (http(-7), "odd_status"),
        (http(200, failed("boom")), "error_under_200"),
        (http(200, {"error": "boom"}), "error_under_200"),
        (http(200, failed("slow down", code=429)), "rate_limited"),
        (http(200, failed("x", code="503")), "overloaded"),
        (http(200, failed("x", type="overloaded_error")), "overloaded"),
        (http(200, failed("x", code="context_length_exceeded")), "context_length"),
        (http(200, b""), "empty_body"),
        (http(200, b" \n"), "empty_body"),
        (http(200, None), "empty_body"),
        (http(200, b"{}"), "empty_body"),
        (http(200, b'{"choices": ['), "malformed_body"),
        (http(200, b"<html>"), "malformed_body"),
        (http(200, b"[1]"), "malformed_body"),
        (http(200, {"choices": []}), "no_choices"),
        (http(200, {"id": "x"}), "no_choices"),
        (http(200, {"choices": "x"}), "malformed_body"),
        (http(200, {"choices": [1]}), "malformed_body"),
        (http(200, {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}), "no_content"),
        (http(200, {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}), "no_content"),
        (http(200, {"choices": [{"message": {"content": "hi"}}]}), "no_finish"),
    ],
)
def test_a_response_is_read_for_what_it_is(reading, name):
    assert reading.name == name
    assert reading.status in ALLOWED
    assert reading.error.downstream == "main"


def test_the_callers_fault_stays_on_this_route_and_quotes_the_upstream():
    reading = http(400, failed("temperature is too high", param="temperature"))
    assert (reading.retry_here, reading.next_route, reading.counts, reading.status) == (False, False, "neutral", 400)
    assert isinstance(reading.error, UpstreamRefusal)
    assert (reading.error.message, reading.error.param) == ("temperature is too high", "temperature")
    assert reading.error.details["upstream_status"] == 400


def test_credentials_take_a_route_out_at_once_and_never_reach_the_client():
    """Case 36."""
    reading = http(401, failed("Incorrect API key provided: sk-abc"))
    assert isinstance(reading.error, UpstreamCredentials)
    assert reading.take_out == 300.0
    assert reading.alert
    assert reading.next_route
    assert reading.status == 502
    assert b"sk-abc" not in error_body(reading.error)
    assert isinstance(http(402).error, UpstreamQuota)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "47"}, 47.0),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after_ms": "250"}, 0.25),
        ({"retry_after": "Thu, 01 Jan 1970 00:17:10 GMT"}, 30.0),
        ({"retry_after": "Thu, 01 Jan 1970 00:00:30 GMT", "date": "Thu, 01 Jan 1970 00:00:10 GMT"}, 20.0),
        ({"retry_after": "Thu, 01 Jan 1970 00:17:10 GMT", "date": "garbage"}, 30.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms_and_takes_the_route_out_that_long(headers, seconds):
    """Case 26."""
    reading = http(429, **headers)
    assert reading.retry_after == reading.error.retry_after == reading.take_out == seconds
    assert reading.status == 429
    assert not reading.alert


def test_a_retry_after_of_a_day_takes_the_route_out_for_an_hour_only():
    assert http(503, retry_after="86400").take_out == 3600.0
    assert read_failure(Symptom(status=429, headers={"retry-after": "Thu, 01 Jan 1970 00:17:10 GMT"})).take_out is None


# --- answers -------------------------------------------------------------------------------------------------------


def test_a_good_answer_passes():
    for choice in (
        {"message": {"content": "hi"}, "finish_reason": "stop"},
        {"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "tool_calls"},
        {"message": {"content": None, "refusal": "no"}, "finish_reason": "stop"},
        {"message": {"content": ""}, "finish_reason": "length"},
        {"message": {"content": None}, "finish_reason": "content_filter"},
    ):
        answer = {"error": None, "choices": [choice]}
        assert read_answer(json.dumps(answer).encode()) == answer


@pytest.mark.parametrize(
    ("body", "kind", "name"),
    [
        (b"", EmptyResult, "empty_body"),
        (b"x" * 200_000, MalformedResult, "malformed_body"),
        (b'{"choices":[]}', EmptyResult, "no_choices"),
        (b'{"error":{"message":"x"}}', MalformedResult, "error_under_200"),
        (b'{"choices":[{"message":{"content":null},"finish_reason":"stop"}]}', EmptyResult, "no_content"),
        (b'{"choices":[{"message":{"content":"x"}}]}', StreamCut, "no_finish"),
    ],
)
def test_a_failure_in_disguise_is_raised(body, kind, name):
    """Case 30."""
    with pytest.raises(kind) as raised:
        read_answer(body, downstream="main")
    assert read_failure(raised.value).name == name
    assert raised.value.downstream == "main"


def test_what_is_merely_empty_breaks_nothing_but_is_suspicious():
    reading = http(200, {"choices": []})
    assert reading.verdict() == classify(None, reading.error)._replace(retry=False)
    assert (reading.counts, reading.suspicious, reading.next_route) == (Counts.NEUTRAL, True, True)


def end_of(*payloads, n=1):
    assembler = Assembler(n)
    for payload in payloads:
        assembler.feed(read_chunk(json.dumps(payload) if isinstance(payload, dict) else payload))
    check_end(assembler, downstream="main")


def chunk(finish=None, **delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("payloads", "name"),
    [
        ([], "no_choices"),
        (["[DONE]"], "no_choices"),
        ([chunk(content="hi")], "no_finish"),
        ([chunk(content="hi"), "[DONE]"], "no_finish"),
        ([chunk(role="assistant", content=""), chunk(finish="stop"), "[DONE]"], "no_content"),
    ],
)
def test_a_stream_that_ended_too_early_is_no_answer(payloads, name):
    """Case 32."""
    with pytest.raises(FailsoftError) as raised:
        end_of(*payloads)
    assert read_failure(raised.value).name == name


def test_a_complete_stream_passes_with_or_without_done():
    end_of(chunk(content="hi"), chunk(finish="stop"), "[DONE]")
    end_of(chunk(content="hi", finish="stop"))
    end_of(chunk(role="assistant"), chunk(finish="length"))
    with pytest.raises(MalformedResult):
        check_answer({"error": {"message": "x"}, "choices": []})


# --- exceptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (unavailable("refused"), "refused"),
        (unavailable("reset"), "reset"),
        (unavailable("dns"), "dns"),
        (unavailable("tls"), "tls"),
        (unavailable("garbage"), "garbage"),
        (unavailable("url"), "misrouted"),
        (unavailable("new"), "unreachable"),
        (caused(ConnectionRefusedError()), "refused"),
        (caused(caused(ConnectionResetError())), "reset"),
        (caused(socket.gaierror()), "dns"),
        (caused(ssl.SSLError()), "tls"),
        (caused(TimeoutError()), "connect_late"),
        (caused(ValueError()), "unreachable"),
        (ConnectionRefusedError(), "refused"),
        (BrokenPipeError(), "reset"),
        (TimeoutError(), "connect_late"),
        (OSError(113, "no route"), "unreachable"),
        (StreamCut(), "stream_cut"),
        (StreamCut(details={"fault": "no_finish"}), "no_finish"),
        (MalformedResult(details={"fault": "bad_chunk"}), "bad_chunk"),
        (FirstItemTimeout(), "first_content_late"),
        (IdleTimeout(), "stalled"),
        (TotalTimeout(), "too_long"),
        (base.AttemptTimeout(), "too_long"),
        (base.CallTimeout(), "call_late"),
        (DeadlineExceeded(), "deadline"),
        (BreakerOpen(retry_after=3.0), "breaker_open"),
        (QueueFull(), "queue_full"),
        (base.Evicted(), "queue_full"),
        (Unaffordable(), "unaffordable"),
        (base.Doomed(), "unaffordable"),
        (base.RateLimited(), "own_limit"),
        (base.BadInput(), "own_refusal"),
        (base.DownstreamRejected(), "bad_request"),
        (asyncio.CancelledError(), "cancelled"),
        (base.RunCancelled(), "cancelled"),
        (RuntimeError("secret"), "unexpected"),
        (base.InternalError("secret"), "unexpected"),
        (KeyboardInterrupt(), "unexpected"),
        (ExceptionGroup("x", [ValueError()]), "unexpected"),
    ],
)
def test_an_exception_is_read_for_what_it_is(error, name):
    reading = read_failure(error)
    assert reading.name == name
    assert reading.status == reading.error.status
    assert reading.status in ALLOWED
    assert reading.code == reading.error.code
    assert b"secret" not in error_body(reading.error)


def test_an_error_with_the_right_status_is_kept_as_it_is():
    for error in (IdleTimeout("x"), BreakerOpen(retry_after=3.0), StreamCut("x")):
        assert read_failure(error).error is error
    assert read_failure(BreakerOpen(retry_after=3.0)).retry_after == 3.0
    refused = read_failure(unavailable("refused"))
    assert isinstance(refused.error, UpstreamFault)
    assert refused.error.downstream == "main"
    assert refused.error.details["fault"] == "refused"


def test_time_and_rejections_count_as_they_should():
    assert read_failure(FirstItemTimeout())[1:4] == (False, True, Counts.TIMEOUT)
    assert read_failure(FirstItemTimeout()).staged
    assert read_failure(DeadlineExceeded())[1:4] == (False, False, Counts.NEUTRAL)
    assert read_failure(BreakerOpen())[1:4] == (False, True, Counts.NEUTRAL)
    assert read_failure(asyncio.CancelledError())[1:4] == (False, False, Counts.NEUTRAL)
    assert read_failure(asyncio.CancelledError()).status == 499


def test_the_classifier_gives_guards_the_same_reading():
    assert classifier("a value", None) is None
    assert classifier(None, asyncio.CancelledError()) is None
    limited = http(429, retry_after="3")
    verdict = classifier(None, limited.error)
    assert verdict == limited.verdict()
    assert (verdict.counts, verdict.retry, verdict.retry_after, verdict.good) == ("failed", True, 3.0, False)
    refused = classifier(None, unavailable("refused"))
    assert not refused.retry


# --- totality ------------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["error", "code", "type", "message", "choices", "detail", "object", "quota", "context length"])
VALUES: st.SearchStrategy[Any] = (
    st.none() | st.integers() | st.text(max_size=5) | WORDS | st.just([]) | st.just({}) | st.just([{}])
)
BODIES = st.dictionaries(WORDS, VALUES | st.dictionaries(WORDS, VALUES, max_size=3), max_size=4)


@given(
    st.none() | st.integers(-10, 1000),
    st.none() | st.binary(max_size=40) | st.text(max_size=20) | BODIES | BODIES.map(lambda b: json.dumps([b]).encode()),
    st.dictionaries(st.sampled_from(["retry-after", "date", "retry-after-ms"]), st.text(max_size=30)),
)
def test_whatever_comes_has_a_reading(status, body, headers):
    reading = read_failure(Symptom(None, status, headers, body))
    assert type(reading) is Reading
    assert reading.status in ALLOWED
    assert reading.status == reading.error.status
    assert read_failure(reading.error).name == reading.name
    json.loads(error_body(reading.error))


def errors_of(cls):
    yield cls
    for sub in cls.__subclasses__():
        yield from errors_of(sub)


def test_every_error_there_is_has_a_reading():
    for kind in set(errors_of(FailsoftError)):
        try:
            error = kind("x")
        except TypeError:
            continue  # one with arguments of its own
        reading = read_failure(error)
        assert reading.status in ALLOWED, kind
        assert reading.error.status == reading.status, kind


def test_a_reason_for_the_end_that_is_no_text_is_no_accident_of_ours():
    from failsoft.models.answers import is_complete

    answer = {"choices": [{"message": {"content": "x"}, "finish_reason": [None]}]}
    check_answer(answer)
    assert not is_complete(answer)
