"""What clients send: bodies, budgets and ids, and how each mistake is told."""

import pytest
from starlette.requests import Request

from failsoft.base.clock import Sources
from failsoft.base.errors import BadInput
from failsoft.server.requests import budget_of, request_id, run_body


def request(query: str = "", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw, "query_string": query.encode()})


@pytest.mark.parametrize(
    ("raw", "param", "says"),
    [
        (b"", "body", "empty"),
        (b"  \n", "body", "empty"),
        (b"{", "body", "not JSON"),
        (b'{"input": NaN}', "input", "string"),
        (b"\xff\xfe", "body", "not JSON"),
        (b"[]", "body", "object"),
        (b'"x"', "body", "object"),
        (b"{}", "input", "required"),
        (b'{"input": 5}', "input", "string"),
        (b'{"input": null}', "input", "string"),
        (b'{"input": "x", "budget_ms": "5"}', "budget_ms", "number"),
        (b'{"input": "x", "budget_ms": 0}', "budget_ms", "greater than 0"),
        (b'{"input": "x", "budget_ms": -5}', "budget_ms", "greater than 0"),
        (b'{"input": "x", "budget_ms": 1e999}', "budget_ms", "finite"),
        (b'{"input": "x", "budget_ms": true}', "budget_ms", "number"),
        (b'{"input": "x", "stream": "yes"}', "stream", "boolean"),
        (b'{"input": "x", "on_disconnect": "wait"}', "on_disconnect", "'cancel' or 'continue'"),
        (b'{"input": "x", "budget": 5}', "budget", "known are input, agent, budget_ms"),
        (b"[" * 100_000, "body", "not JSON"),
    ],
)
def test_wrong_bodies_name_their_field(raw, param, says):
    with pytest.raises(BadInput) as caught:
        run_body(raw)
    assert caught.value.param == param
    assert says in caught.value.message


def test_a_sound_body():
    body = run_body('{"input": "各航司平均延误", "budget_ms": 2500, "stream": true}'.encode())
    assert (body.input, body.budget_ms, body.stream, body.agent) == ("各航司平均延误", 2500, True, None)


def budget(body=b'{"input": "x"}', query="", **headers):
    return budget_of(run_body(body), request(query, **headers), maximum=120.0)


def test_budget_comes_from_body_header_or_query_and_the_shortest_header_counts():
    assert budget() is None
    assert budget(b'{"input": "x", "budget_ms": 1500}', x_max_wait="3s") == 1.5
    assert budget(x_max_wait="120s") == 120.0
    assert budget(x_max_wait="3") == 3.0
    assert budget(x_request_timeout_ms="250") == 0.25
    assert budget(x_max_wait="5s", x_request_timeout_ms="2500") == 2.5
    assert budget(query="max_wait=800ms") == 0.8


def test_what_the_proxy_announces_is_cut_to_the_maximum_and_not_refused():
    assert budget(x_envoy_expected_rq_timeout_ms="300000") == 120.0
    assert budget(x_envoy_expected_rq_timeout_ms="4000") == 4.0


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x_max_wait": "soon"}, "x-max-wait"),
        ({"x_max_wait": "0s"}, "x-max-wait"),
        ({"x_max_wait": "-1s"}, "x-max-wait"),
        ({"x_max_wait": "nan"}, "x-max-wait"),
        ({"x_max_wait": "121s"}, "x-max-wait"),
        ({"x_request_timeout_ms": "5s"}, "x-request-timeout-ms"),
        ({"x_request_timeout_ms": "120001"}, "x-request-timeout-ms"),
        ({"x_envoy_expected_rq_timeout_ms": "0"}, "x-envoy-expected-rq-timeout-ms"),
        ({"query": "max_wait=later"}, "max_wait"),
    ],
)
def test_wrong_budgets_name_their_header(headers, param):
    with pytest.raises(BadInput) as caught:
        budget(**headers)
    assert caught.value.param == param


def test_body_over_the_maximum_is_refused():
    with pytest.raises(BadInput, match="longest budget is 120 s") as caught:
        budget(b'{"input": "x", "budget_ms": 120001}')
    assert caught.value.param == "budget_ms"


def test_request_ids_are_taken_when_sound():
    assert request_id(request(x_request_id="abc-123.Z:9/+=~"), Sources()) == "abc-123.Z:9/+=~"
    for odd in ("", "a b", "x" * 129, "é", "<script>"):
        made = request_id(request(x_request_id=odd), Sources())
        assert made != odd
        assert made.startswith("req_")
