"""Traces: which runs get one, what is in it, and that it arrives at a receiver of OTLP."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.server.serving import serving

from failsoft.app import App
from failsoft.base.errors import ConfigError
from failsoft.base.tracing import TraceContext, current_trace, parse_traceparent, span_id, trace_id, traceparent
from failsoft.config import Settings
from failsoft.kernel.scope import current
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import RulesPlanner
from failsoft.telemetry.traces import Traces
from failsoft.tools.python import tool

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


# --- context -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "garbage",
        CALLER.upper(),
        "ff" + CALLER[2:],
        CALLER + "-more",
        CALLER.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        CALLER.replace("00f067aa0ba902b7", "0" * 16),
        "00-" + "1" * 10_000,
    ],
)
def test_a_context_that_is_not_sound_is_none(text):
    assert parse_traceparent(text) is None


def test_a_context_goes_in_and_out():
    context = parse_traceparent(CALLER)
    assert context == TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)
    assert parse_traceparent("01" + CALLER[2:] + "-later") == context  # a later version may say more
    assert traceparent(None, None) is None
    assert traceparent("run", None) == f"00-{trace_id('run'):032x}-{span_id('run'):016x}-00"
    token = current_trace.set(context)
    try:
        assert traceparent(None, None) == CALLER
        own = span_id("run", "task", "a")
        assert traceparent("run", "a") == f"00-4bf92f3577b34da6a3ce929d0e0e4736-{own:016x}-01"
    finally:
        current_trace.reset(token)


# --- which and what ------------------------------------------------------------------------------------------------


@tool(downstream="good")
async def good() -> int:
    """Answers."""
    await asyncio.sleep(0.1)
    return 1


@tool(downstream="sick")
async def sick() -> int:
    """Never does."""
    await asyncio.sleep(60.0)
    return 2


def agent_of(*tools):
    plan = Plan(tasks=tuple(TaskSpec(id=name, tool=name) for name in tools))
    return Agent("a", "Asks.", tools=[good, sick], planners=[RulesPlanner(lambda _: plan)])


async def traced(share, *tools, context=None):
    spans = []
    async with App(Settings(), agents=[agent_of(*tools)], store="off") as app:
        traces = Traces(spans.append, share=share, wall=app.sources.wall)
        app.bus.add(traces.hear)
        token = current_trace.set(context)
        result = await app.ask("it", budget=3.0)
        current_trace.reset(token)
    assert app.bus.errors == 0
    return result, spans, traces


async def sent_out(share):
    """What a tool of a run would send out, and the spans that were exported of it."""
    spans, headers = [], []

    @tool(downstream="told")
    async def told() -> int:
        """Notes what it would send."""
        headers.append(traceparent(current.get().run, current.get().task))
        return 1

    plan = Plan(tasks=(TaskSpec(id="told", tool="told"),))
    agent = Agent("a", "Asks.", tools=[told], planners=[RulesPlanner(lambda _: plan)])
    async with App(Settings(), agents=[agent], store="off") as app:
        traces = Traces(spans.append, share=share, wall=app.sources.wall)
        app.bus.add(traces.hear)
        app.traced = traces.share
        for _ in range(12):
            await app.ask("it", budget=3.0)
    return [parse_traceparent(one) for one in headers], spans


async def test_what_is_sent_out_says_what_is_exported():
    for share in (0.0, 0.5, 1.0):
        sent, spans = await sent_out(share)
        exported = {span.context.trace_id for span in spans}
        assert [one.sampled for one in sent] == [one.trace in exported for one in sent]
        tasks = {span.context.span_id for span in spans if span.name == "task told"}
        assert {one.parent for one in sent if one.sampled} == tasks
    assert len(exported) == 12


async def test_a_sampled_run_is_told_whole():
    result, spans, _ = await traced(1.0, "good")
    by_name = {span.name: span for span in spans}
    assert set(by_name) == {"run a", "planning", "task good", "attempt good"}
    root, task, attempt = by_name["run a"], by_name["task good"], by_name["attempt good"]
    assert root.parent is None
    assert task.parent.span_id == root.context.span_id == span_id(result.run_id)
    assert attempt.parent.span_id == task.context.span_id
    assert {span.context.trace_id for span in spans} == {trace_id(result.run_id)}
    assert attempt.end_time - attempt.start_time == pytest.approx(0.1e9, rel=0.01)
    assert attempt.attributes["failsoft.remaining_ms"] == pytest.approx(2900.0, abs=1.0)
    assert root.attributes["failsoft.status"] == "completed"


async def test_degraded_runs_are_always_kept_and_good_ones_by_their_share():
    assert (await traced(0.0, "good"))[1] == []
    _, spans, traces = await traced(0.0, "good", "sick")
    assert traces.made == 1
    (missed,) = [span for span in spans if span.name == "task sick"]
    assert missed.attributes["error.type"] == "deadline_exceeded"
    assert not missed.status.is_ok


async def test_the_callers_decision_goes_first():
    kept = TraceContext(7, 9, True)
    _, spans, _ = await traced(0.0, "good", context=kept)
    (root,) = [span for span in spans if span.name == "run a"]
    assert (root.context.trace_id, root.parent.span_id) == (7, 9)
    assert (await traced(1.0, "good", context=kept._replace(sampled=False)))[1] == []


def test_the_environment_is_read_as_opentelemetry_says():
    def read(**environ):
        found = Traces.from_environment({f"OTEL_{key}": value for key, value in environ.items()}, wall=lambda: 0.0)
        if found is not None:
            found.close()
        return found

    assert read() is None
    assert read(EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", SDK_DISABLED="true") is None
    assert read(EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1") is not None
    for bad in ("2", "-1", "half", "nan"):
        with pytest.raises(ConfigError, match="share"):
            read(EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", TRACES_SAMPLER="traceidratio", TRACES_SAMPLER_ARG=bad)
    with pytest.raises(ConfigError, match="always_on"):
        read(EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", TRACES_SAMPLER="coin")


# --- on the wire ---------------------------------------------------------------------------------------------------


@contextmanager
def receiver() -> Iterator[tuple[str, list[Any]]]:
    """Takes what OTLP over HTTP sends, and reads it as its protocol says."""
    received: list[Any] = []

    class Receives(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        received.extend(scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receives)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_spans_arrive_at_a_receiver_with_the_callers_trace(monkeypatch):
    async def asked():
        async with serving() as served:
            _, _, body = await served.post({"input": "hang", "budget_ms": 2000}, traceparent=CALLER)
            return body["run_id"]

    with receiver() as (url, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        run = asyncio.run(asked())
    by_name = {span.name: span for span in received}
    assert {"run adder", "planning", "task sum", "task slow", "attempt warehouse"} <= set(by_name)
    assert {span.trace_id.hex() for span in received} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    assert by_name["run adder"].parent_span_id.hex() == "00f067aa0ba902b7"
    assert by_name["task slow"].parent_span_id == by_name["run adder"].span_id
    attributes = {one.key: one.value.string_value for one in by_name["run adder"].attributes}
    assert (attributes["failsoft.run"], attributes["failsoft.status"]) == (run, "degraded")
