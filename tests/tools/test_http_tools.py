"""HTTP endpoints as tools: what is sent for which arguments, and what is made of the answers."""

import json
import math
from typing import Any

import pytest

from failsoft.base.errors import (
    BadInput,
    CallTimeout,
    DownstreamError,
    DownstreamRejected,
    DownstreamUnavailable,
    EmptyResult,
    FailsoftError,
    MalformedResult,
)
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Kernel
from failsoft.testing.contracts import check_tool
from failsoft.testing.fakes import FakeResponse, FakeTransport
from failsoft.tools.http import http_tool
from failsoft.tools.registry import ResultTooLarge, ToolContext

ENV = {"TOKEN": "tok-12345", "EMPTY": ""}


def answered(body: Any = b'{"ok": true}', status: int = 200, **headers: str) -> FakeResponse:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return FakeResponse(
        [raw], status, {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    )


async def call(tool, arguments=None, **context):
    kernel = Kernel()
    try:
        return await tool.call(kernel.guard(tool.spec.downstream), arguments or {}, ToolContext.current(**context))
    finally:
        await kernel.aclose()


def made(url="GET https://api.test/v1/{city}/weather", *responses, **options):
    transport = FakeTransport(*(responses or [answered()]))
    options.setdefault("environ", ENV)
    return http_tool("weather", url, transport=transport, **options), transport


# --- requests ------------------------------------------------------------------------------------------------------


async def test_each_argument_goes_to_its_place():
    tool, transport = made(
        "POST https://api.test/v1/{city}?lang=de",
        parameters={
            "city": {"type": "string"},
            "unit": {"type": "string", "in": "query"},
            "tags": {"type": "array", "in": "query", "required": False},
            "trace": {"type": "boolean", "in": "header", "name": "X-Trace", "default": True},
            "login": {"type": "string", "in": "cookie", "required": False},
            "note": {"type": "string"},
            "more": {"type": "object", "name": "extra", "default": {"a": 1}},
        },
        headers={"X-From": "us"},
        secrets={"Authorization": "Bearer ${TOKEN}"},
    )
    arguments = {"city": "Köln/..", "unit": "a&b=c", "tags": ["x y", 2], "login": "a;b", "note": "é"}
    assert await call(tool, arguments, idempotency_key="k1") == {"ok": True}
    request = transport.requests[0]
    assert request.url == "https://api.test/v1/K%C3%B6ln%2F..?lang=de&unit=a%26b%3Dc&tags=x%20y&tags=2"
    assert request.method == "POST"
    assert json.loads(request.body or b"") == {"note": "é", "extra": {"a": 1}}
    assert request.downstream == "weather"
    assert request.addresses is not None
    assert request.addresses.refusal("127.0.0.1")
    headers = dict(request.headers)
    assert headers["X-Trace"] == "true"
    assert headers["Cookie"] == "login=a%3Bb"
    assert (headers["X-From"], headers["Authorization"]) == ("us", "Bearer tok-12345")
    assert headers["Accept-Encoding"] == "identity"
    assert headers["Idempotency-Key"] == "k1"
    assert tool.spec.kind == "action"


async def test_a_query_is_sent_without_a_key_and_with_what_is_left_of_the_budget():
    tool, transport = made()
    async with deadline_scope(2.0):
        await call(tool, {"city": "x"}, idempotency_key="k1")
    headers = transport.requests[0].headers
    assert "Idempotency-Key" not in headers
    assert headers["X-Request-Timeout-Ms"] == "2000"
    assert tool.spec.kind == "query"


async def test_a_form_is_sent_as_one():
    tool, transport = made(
        "POST https://api.test/", form=True, parameters={"a": {"type": "string"}, "b": {"type": "array"}}
    )
    await call(tool, {"a": "1&2", "b": [1, True]})
    assert transport.requests[0].body == b"a=1%262&b=1&b=true"
    assert transport.requests[0].headers["Content-Type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize("city", ["", ".", ".."])
async def test_a_path_cannot_be_left(city):
    tool, transport = made()
    with pytest.raises(BadInput, match="city"):
        await call(tool, {"city": city})
    assert transport.requests == []


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\0", "é", "a\nb"])
async def test_a_header_cannot_be_left(value):
    tool, transport = made("https://api.test/", parameters={"h": {"type": "string", "in": "header", "name": "X-H"}})
    with pytest.raises(BadInput, match="no header has"):
        await call(tool, {"h": value})
    assert transport.requests == []


async def test_what_the_owner_declared_stands_over_arguments():
    tool, transport = made(
        "https://api.test/",
        parameters={"h": {"type": "string", "in": "header", "name": "authorization"}},
        secrets={"Authorization": "Bearer ${TOKEN}"},
    )
    await call(tool, {"h": "mine"})
    headers = transport.requests[0].headers
    assert [headers[name] for name in headers if name.lower() == "authorization"] == ["Bearer tok-12345"]


@pytest.mark.parametrize(
    ("arguments", "param", "text"),
    [
        ({}, "city", "lacks"),
        ({"city": 1}, "city", "string"),
        ({"city": "x", "more": 1}, "more", "takes no argument"),
        ({"city": "x", "days": 99}, "days", "maximum"),
        ({"city": "x", "days": math.nan}, "arguments", "no number"),
        ({"city": "x", "unit": "K"}, "unit", "'C', 'F'"),
        ({"city": "x" * 20_000}, "arguments", "longer than"),
    ],
)
async def test_arguments_that_do_not_fit_are_named(arguments, param, text):
    tool, transport = made(
        parameters={
            "city": {"type": "string"},
            "days": {"type": "integer", "maximum": 10, "default": 1},
            "unit": {"enum": ["C", "F"], "default": "C"},
        }
    )
    with pytest.raises(BadInput, match=text) as caught:
        await call(tool, arguments)
    assert caught.value.param == param
    assert transport.requests == []


async def test_the_contract_of_tools():
    tool, _ = made()
    await check_tool(tool, {"city": "x"}, {"city": 5})


async def test_values_not_known_yet_are_not_checked():
    tool, _ = made(parameters={"days": {"type": "integer"}})
    tool.check({"city": {"$from": "a"}, "days": 1}, unknown={"city"})
    with pytest.raises(BadInput, match="days"):
        tool.check({"city": {"$from": "a"}, "days": "one"}, unknown={"city"})


async def test_arguments_of_any_depth_and_size_are_refused_and_never_crash():
    tool, _ = made("POST https://api.test/", parameters={"x": {}})
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    for x in (deep, [0] * 300_000, "x" * 2_000_000):
        with pytest.raises(BadInput):
            await call(tool, {"x": x})


# --- hosts ---------------------------------------------------------------------------------------------------------


async def test_a_host_made_of_arguments_must_be_permitted():
    tool, transport = made("https://{region}.api.test/x", hosts=["*.api.test"])
    await call(tool, {"region": "eu-1"})
    assert transport.requests[0].url == "https://eu-1.api.test/x"
    for region in ("evil.test/", "a.b", "evil.test#", "user@evil.test:80", "-", "", "a\\b", "127.0.0.1"):
        with pytest.raises(BadInput):
            await call(tool, {"region": region})
    assert len(transport.requests) == 1


async def test_a_whole_url_must_lead_to_permitted_hosts():
    tool, transport = made("{url}", hosts=["docs.test", "*.pages.test"])
    for url in ("https://docs.test/a?b=c", "http://x.pages.test:8080/", "https://DOCS.test./"):
        await call(tool, {"url": url})
    sent = len(transport.requests)
    for url in (
        *("https://evil.test/", "https://docs.test.evil.test/", "https://docs.test@evil.test/", "https://pages.test/"),
        *(
            "file:///etc/passwd",
            "ftp://docs.test/",
            "//docs.test/",
            "docs.test",
            "https://",
            "https://docs.test:99999/",
        ),
        *(
            "https://docs.test\\@evil.test/",
            "https://docs.test/\r\nx: y",
            "https://evil.test#docs.test",
            "https://[::1/",
        ),
        *("javascript:alert(1)", "https://docs.test:0/", "https://docs.test/ a"),
    ):
        with pytest.raises(BadInput):
            await call(tool, {"url": url})
    assert len(transport.requests) == sent


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "ftp://api.test/"}, "http or https"),
        ({"url": "https://user:pass@api.test/"}, "user name"),
        ({"url": "https://{host}/"}, "hosts"),
        ({"url": "{url}"}, "hosts"),
        ({"url": "https://api.test/", "parameters": {"a": {"in": "path"}}}, "lacks"),
        ({"url": "https://api.test/", "parameters": {"a": {"in": "moon"}}}, "moon"),
        ({"url": "https://api.test/", "parameters": {"a": {"in": "header", "name": "Host"}}}, "Host"),
        ({"url": "https://api.test/", "parameters": {"a": {"in": "header", "name": "X: Y"}}}, "header"),
        ({"url": "https://api.test/", "parameters": {"a": {"in": "body"}}}, "no body"),
        ({"url": "https://api.test/", "parameters": {"a": {"type": "strange"}}}, "JSON schema"),
        ({"url": "https://api.test/", "headers": {"Authorization": "x"}}, "secret"),
        ({"url": "https://api.test/", "headers": {"X-A": "a\nb"}}, "characters"),
        ({"url": "https://api.test/", "headers": {"Content-Length": "1"}}, "Content-Length"),
        ({"url": "https://api.test/", "secrets": {"A": "${NOT_THERE}"}}, "NOT_THERE"),
        ({"url": "https://api.test/", "allow": ["everything"]}, "no network"),
        ({"url": "https://api.test/", "redirects": 99}, "redirects"),
        ({"url": "TRACE https://api.test/"}, "no method"),
    ],
)
def test_a_declaration_that_is_wrong_is_refused(options, text):
    with pytest.raises(BadInput, match=text):
        made(**options)


# --- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "value"),
    [
        (answered({"a": [1]}), {"a": [1]}),
        (FakeResponse([b"\xef\xbb\xbf[1]"], 200, {"content-type": "application/hal+json; charset=utf-8"}), [1]),
        (FakeResponse([b'{"a": 1}'], 200, {}), {"a": 1}),
        (FakeResponse([b"plain"], 200, {}), "plain"),
        (FakeResponse([b"caf\xe9"], 200, {"content-type": "text/plain; charset=latin-1"}), "café"),
        (FakeResponse([b"caf\xc3\xa9"], 200, {"content-type": "text/plain; charset=nonsense"}), "café"),
        (FakeResponse([b"<a/>"], 201, {"content-type": "application/xml"}), "<a/>"),
        (FakeResponse([], 204, {}), None),
    ],
)
async def test_bodies_are_read_by_their_type(response, value):
    tool, _ = made("https://api.test/", response)
    assert await call(tool) == value


@pytest.mark.parametrize(
    ("response", "error", "text"),
    [
        (answered(b"{"), MalformedResult, "no JSON"),
        (answered(b"[" * 990), MalformedResult, "no JSON"),
        (answered(b'{"a": NaN}'), MalformedResult, "no JSON"),
        (answered(b"  "), EmptyResult, "nothing in it"),
        (FakeResponse([b"\x89PNG"], 200, {"content-type": "image/png"}), MalformedResult, "image/png"),
        (answered(content_encoding="br"), MalformedResult, "encoding 'br'"),
        (answered(b"x" * 2_000), ResultTooLarge, "more than 1000"),
        (answered(content_length="99999999999"), ResultTooLarge, "more than 1000"),
        (answered({"error": "no such city"}, 404), DownstreamRejected, "404: .*no such city"),
        (answered({"error": "token tok-12345 is old"}, 401), DownstreamRejected, r"401: .*token \*\*\* is old"),
        (FakeResponse([b"<html>"], 403, {"content-type": "text/html"}), DownstreamRejected, "answered 403$"),
        (answered({}, 500), DownstreamError, "500"),
        (answered({}, 501), DownstreamRejected, "501"),
        (answered({}, 302), DownstreamRejected, "302"),
        (answered({}, 101), MalformedResult, "101"),
        (DownstreamUnavailable("connection failed"), DownstreamUnavailable, "failed"),
    ],
)
async def test_other_answers_are_typed_errors(response, error, text):
    tool, transport = made("https://api.test/", response, response_limit=1000, secrets={"A": "Key ${TOKEN}"})
    with pytest.raises(error, match=text) as caught:
        await call(tool)
    assert type(caught.value) is error
    assert caught.value.downstream == "weather"
    assert transport.open == 0


@pytest.mark.parametrize("status", [408, 425, 429, 502, 503, 504])
async def test_who_asks_for_patience_is_unavailable_and_says_for_how_long(status):
    tool, _ = made("POST https://api.test/", answered({}, status, retry_after="47"))
    with pytest.raises(DownstreamUnavailable) as caught:
        await call(tool)
    assert caught.value.retry_after == 47.0
    assert caught.value.details["status"] == status


async def test_a_query_is_tried_again_and_an_action_never():
    query, asked = made("GET https://api.test/", answered({}, 503), answered([1]))
    assert await call(query) == [1]
    assert len(asked.requests) == 2
    action, told = made("POST https://api.test/", answered({}, 503), answered([1]))
    with pytest.raises(DownstreamUnavailable):
        await call(action)
    assert len(told.requests) == 1


async def test_callers_faults_do_not_open_the_breaker():
    tool, _ = made("https://api.test/", answered({}, 404))
    kernel = Kernel()
    guard = kernel.guard("weather", "core")
    for _ in range(50):
        with pytest.raises(DownstreamRejected):
            await tool.call(guard, {}, ToolContext.current())
    assert str(guard.breaker.state) == "closed"
    await kernel.aclose()


async def test_an_endpoint_that_never_answers_ends_at_its_limit():
    for body in ([None], [b"{", None], [b"x", *[1.0, b"x"] * 30]):
        tool, transport = made("https://api.test/", FakeResponse(body, 200, {}), timeout=3)
        with pytest.raises(CallTimeout):
            await call(tool)
        assert transport.open == 0


# --- redirects -----------------------------------------------------------------------------------------------------


def to(url: str, status: int = 302) -> FakeResponse:
    return FakeResponse([], status, {"location": url})


async def test_redirects_are_followed_and_secrets_stay_at_home():
    tool, transport = made(
        "https://api.test/a/{city}",
        *[to("../b?x=1"), to("https://other.test/c"), to("https://api.test/d"), answered([1])],
        secrets={"X-Key": "${TOKEN}"},
        headers={"X-From": "us"},
        parameters={"h": {"type": "string", "in": "header", "name": "X-H"}},
    )
    assert await call(tool, {"city": "x", "h": "private"}) == [1]
    assert [request.url for request in transport.requests] == [
        "https://api.test/a/x",
        "https://api.test/b?x=1",
        "https://other.test/c",
        "https://api.test/d",
    ]
    with_secret = ["X-Key" in request.headers for request in transport.requests]
    assert with_secret == [True, True, False, False]  # nor when it is sent back home
    assert ["X-H" in request.headers or "X-From" in request.headers for request in transport.requests] == with_secret
    assert all(request.addresses is not None for request in transport.requests)


@pytest.mark.parametrize(
    ("target", "options", "text"),
    [
        ("http://api.test/", {}, "from https to http"),
        ("file:///etc/passwd", {}, "no URL"),
        ("https://u:p@api.test/", {}, "no URL"),
        ("https://[::1", {}, "no URL"),
        ("https://evil.test/", {"hosts": ["api.test"]}, "not permitted"),
        ("https://api.test/again", {}, "more than 3 times"),
        ("/x", {"method": "POST"}, "is not sent twice"),
        ("/x", {"redirects": 0}, "more than 0 times"),
    ],
)
async def test_redirects_that_are_not_followed(target, options, text):
    tool, transport = made("https://api.test/", to(target), **options)
    with pytest.raises(FailsoftError, match=text) as caught:
        await call(tool)
    assert isinstance(caught.value, MalformedResult | DownstreamRejected)
    assert len({request.url for request in transport.requests}) <= 2


def test_no_secret_shows():
    tool, _ = made("https://api.test/", secrets={"Authorization": "Bearer ${TOKEN}", "X-Plain": "literal-secret"})
    shown = repr(tool) + repr(tool.spec) + repr(tool._secrets) + str(list(tool._secrets.values()))
    assert "tok-12345" not in shown
    assert "literal-secret" not in shown
