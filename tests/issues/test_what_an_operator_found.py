"""What somebody who runs a server and its drills found: keys in errors, waits for nothing, the wrong one blamed."""

import asyncio
import http.server
import io
import json
import threading

import aiohttp
import pytest
from rich.console import Console
from tests.drills.test_proxy import fronted

from failsoft.base.errors import DownstreamUnavailable, FailsoftError
from failsoft.cli.main import execute
from failsoft.cli.remote import asked
from failsoft.cli.seeing import frame
from failsoft.drills.proxy_control import control
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Kernel
from failsoft.models.chat_request import ChatRequest
from failsoft.models.gateway import Gateway
from failsoft.models.routes import Alias, Route
from failsoft.server.downstreams import downstreams_view
from failsoft.stores.approvals import ApprovalPage, ApprovalRecord
from failsoft.telemetry.diagnosis import RunFacts, TaskFacts, diagnose
from failsoft.telemetry.timeline import Span
from failsoft.testing.fakes import FakeResponse, FakeTransport, completion

# --- the gateway -----------------------------------------------------------------------------------------------------

KEY = "sk-upstream-main-SECRET1"


async def answered(gateway, **scope):
    request = ChatRequest({"model": "chat", "messages": [{"role": "user", "content": "hi"}]}, 50)
    async with deadline_scope(60.0, **scope):
        return await gateway.complete(request, gateway.record(request))


@pytest.mark.parametrize("status", [400, 401, 500, 200])
@pytest.mark.parametrize("upstream_stream", ["always", "never"])
async def test_an_upstream_that_repeats_the_key_it_was_sent_tells_no_client(status, upstream_stream):
    said = {"error": {"message": f"bad request: Bearer {KEY}, x-team {KEY[::-1]}", "type": "invalid_request_error"}}
    body = FakeResponse([json.dumps(said).encode()], status, {"content-type": "application/json"})
    main = Route("main", "http://main/v1", api_key=KEY, headers={"x-team": KEY[::-1]}, upstream_stream=upstream_stream)
    gateway = Gateway([Alias("chat", (main,))], Kernel(), FakeTransport(lambda _: body))
    with pytest.raises(FailsoftError) as caught:
        await answered(gateway)
    assert KEY not in json.dumps(caught.value.to_dict())
    assert KEY[::-1] not in json.dumps(caught.value.to_dict())


@pytest.mark.parametrize("upstream_stream", ["always", "never"])
@pytest.mark.parametrize(("backup", "seconds"), [(True, 0.0), (False, 20.0)])
async def test_nobody_waits_for_a_route_to_be_welcome_again_while_another_is_there(upstream_stream, backup, seconds):
    asked_of = []

    def answer(request):
        host = request.url.split("/")[2]
        asked_of.append(host)
        if host == "main" and asked_of.count("main") == 1:
            limited = {"error": {"message": "slow down", "type": "rate_limit_error"}}
            return FakeResponse(
                [json.dumps(limited).encode()], 429, {"retry-after": "20", "content-type": "application/json"}
            )
        return completion("yes")

    routes = [Route("main", "http://main/v1", upstream_stream=upstream_stream)]
    routes += [Route("backup", "http://backup/v1", equivalent=True)] if backup else []
    gateway = Gateway([Alias("chat", tuple(routes))], Kernel(), FakeTransport(answer))
    await answered(gateway)
    assert asked_of == ["main", "backup" if backup else "main"]
    assert asyncio.get_running_loop().time() == pytest.approx(seconds, abs=0.5)


# --- the command line ------------------------------------------------------------------------------------------------


class Server:
    """A server of one answer, in a thread, that notes the keys it was sent."""

    def __init__(self, status, body=b"", **headers):
        seen = self.seen = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                seen.append(self.headers.get("authorization"))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.realtime
def test_a_key_goes_to_no_other_server(monkeypatch):
    monkeypatch.setenv("FAILSOFT_API_KEY", "topsecretkey")
    with Server(200, b'{"runs": []}') as other, Server(302, location=f"{other.url}/v1/runs") as server:
        with pytest.raises(DownstreamUnavailable, match="answered 302"):
            asked("/v1/runs", field="runs", url=server.url)
        assert (server.seen, other.seen) == (["Bearer topsecretkey"], [])


@pytest.mark.realtime
@pytest.mark.parametrize("body", [b'{"a": 1}', b"[1]", b"<html>", b"", b"null"])
@pytest.mark.parametrize(
    "command", [["top", "--once"], ["why"], ["runs", "list"], ["runs", "why", "x"], ["approvals", "list"]]
)
def test_a_server_of_another_kind_is_said_to_be_one(capsys, body, command):
    with Server(200, body) as server:
        assert execute([*command, "--url", server.url]) == 1
        assert capsys.readouterr().err.strip() == f"error: what answers at {server.url} is no failsoft server"


@pytest.mark.realtime
async def test_the_control_of_a_drill_is_not_for_web_pages():
    async with fronted() as front, control(front.proxy) as url, aiohttp.ClientSession() as session:
        body = json.dumps({"toxic": "hang"})
        headers = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
        async with session.post(f"{url}/toxics", data=body, headers=headers) as response:
            assert response.status == 403
        async with session.get(f"{url}/toxics") as response:
            assert await response.json() == {"toxics": []}


# --- who is to blame -------------------------------------------------------------------------------------------------


def test_time_that_passed_before_the_door_is_nobodys_behind_it():
    spans = (Span("attempt", "a", "db", 2.80, 2.95, "deadline_exceeded"),)
    tasks = (TaskFacts("a", "db", (), 2.80, 2.95, "deadline_exceeded"),)
    found = diagnose(RunFacts("r", "degraded", 2.95, 3.0, door=2.80, tasks=tasks, spans=spans))
    assert (found.nature, found.downstream) == ("door", None)
    assert "2.80 s had passed before" in found.cause
    assert sum(part.seconds for part in found.parts) == pytest.approx(2.95)


def test_what_was_done_at_the_same_time_took_its_time_once():
    spans = tuple(Span("attempt", f"t{i}", "db", 0.01, 0.51) for i in range(10))
    tasks = tuple(TaskFacts(f"t{i}", "db", (), 0.01, 0.51) for i in range(10))
    found = diagnose(RunFacts("r", "completed", 0.513, 2.0, tasks=tasks, spans=spans))
    assert found.cause == "db took 0.50 s"


@pytest.mark.parametrize(
    ("about", "nature", "advice"),
    [
        ({"status": "failed", "error": "plan_refused"}, "planning", "more budget"),
        ({"status": "degraded", "reason": "not_understood"}, "question", "other words"),
        ({"status": "degraded", "reason": "models_failing"}, "failing", "routes"),
        ({"status": "degraded", "reason": "memory_lost"}, "failing", "store"),
    ],
)
def test_what_no_downstream_did_is_blamed_on_none(about, nature, advice):
    spans = (Span("attempt", "a", "db", 0.01, 0.05),)
    tasks = (TaskFacts("a", "db", (), 0.01, 0.05),)
    found = diagnose(RunFacts("r", elapsed=0.06, budget=3.0, tasks=tasks, spans=spans, **about))
    assert (found.nature, found.downstream) == (nature, None)
    assert advice in found.suggestion


def test_the_pause_between_a_tasks_own_retries_is_backoff():
    spans = (Span("attempt", "a", "db", 0.0, 0.5, "unavailable"), Span("attempt", "a", "db", 0.9, 1.0))
    found = diagnose(RunFacts("r", "completed", 1.0, 3.0, tasks=(TaskFacts("a", "db", (), 0.0, 1.0),), spans=spans))
    assert [(part.what, round(part.seconds, 6)) for part in found.parts] == [("downstream", 0.6), ("backoff", 0.4)]


def test_what_passes_before_a_call_to_another_downstream_is_no_pause():
    spans = (Span("attempt", "a", "db", 0.0, 0.5, "unavailable"), Span("attempt", "a", "copy", 0.9, 1.0))
    found = diagnose(RunFacts("r", "completed", 1.0, 3.0, tasks=(TaskFacts("a", "db", (), 0.0, 1.0),), spans=spans))
    assert [part.what for part in found.parts] == ["downstream", "own", "downstream"]


async def test_a_tenant_sees_of_others_calls_only_that_they_are_there():
    kernel = Kernel()
    guard = kernel.guard("db")
    gate = asyncio.Event()

    async def waits():
        await gate.wait()

    calls = []
    for tenant in ("red", "blue"):

        async def one(tenant=tenant):
            async with deadline_scope(10.0, run=f"run_of_{tenant}", task="a", tenant=tenant):
                await guard.call(waits)

        calls.append(asyncio.create_task(one()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    def seen(tenant):
        (view,) = downstreams_view(kernel, tenant)["downstreams"]
        assert view["in_use"] == 2
        return [(held["run"], held["where"] is not None) for held in view["holders"]]

    assert seen(None) == [("run_of_red", True), ("run_of_blue", True)]
    assert seen("blue") == [(None, False), ("run_of_blue", True)]
    gate.set()
    await asyncio.gather(*calls)


def test_an_approval_whose_time_is_over_waits_for_nobody_though_nobody_was_there_to_write_that_down():
    def asked(name, expires, status="pending"):
        return ApprovalRecord(name, "run_1", "pay", "pay", {}, "h", "tool", 0.0, expires, status=status)

    page = ApprovalPage((asked("a", 100.0), asked("b", 99.0), asked("c", 50.0, "approved")), "b")
    assert [(one.id, one.status) for one in page.as_of(99.0, None).approvals] == [
        ("a", "pending"),
        ("b", "expired"),
        ("c", "approved"),
    ]
    waiting = page.as_of(99.0, "pending")
    assert ([one.id for one in waiting.approvals], waiting.after) == (["a"], "b")


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_top_shows_on_a_narrow_terminal_who_waits_for_whom(width):
    one = {
        "name": "warehouse-of-the-north", "breaker": "half_open", "in_use": 128, "limit": 128, "waiting": 77,
        "oldest_wait": 12.5, "orphans": 3, "threads": 4, "typical": 0.21, "timed_out": 11111,
        "rejected": {"doomed": 22222}, "holders": [], "waiters": [],
    }  # fmt: skip
    text = io.StringIO()
    Console(file=text, width=width).print(frame({"downstreams": [one]}, width))
    header, cells, *_ = text.getvalue().splitlines()
    assert header.split()[:7] == ["downstream", "breaker", "in", "use", "limit", "queue", "oldest"]
    assert all(word in cells.split() for word in ("half_open", "128", "77", "12.50"))
    assert ("22222" in cells) == (width >= 100)
    assert ("warehouse-of-the-north" in cells) == (width >= 80)
