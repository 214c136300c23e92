"""Every key is read and changes what the platform does: each has its line here, and a key without one fails.

A line says how the key is written, and what is then different: a value of what the platform is made of, or the name of
a test elsewhere that sets the key and shows its effect from outside.
"""

import functools
import re
from pathlib import Path

import pytest

from failsoft.app import App, limits_of, retention_of
from failsoft.config import Settings, keys
from failsoft.runs.agents import Agent
from failsoft.runs.planner import RulesPlanner
from failsoft.testing import clock
from failsoft.tools.python import tool

TESTS = Path(__file__).parents[1]


def policy(settings):
    return settings.policy("x", default="data")


def alias(settings):
    return settings.aliases()[0]


def limits(settings):
    return limits_of(settings)


@tool(downstream="x")
async def one() -> None: ...


@tool(downstream="x", name="two")
async def two() -> None: ...


def default_agent(settings):
    made = [Agent(name, "", [one], [RulesPlanner(lambda request: None)]) for name in ("analyst", "other")]
    return App(settings, agents=made, store="off").agents.get(None).name


def pace(settings):
    return settings.run.pace.policy()


def webhook(settings):
    return settings.gateway.webhook.policy()


def sql(password):
    section = {
        "description": "d", "query": "select 1", "database": "postgresql://me@127.0.0.1/x", "password": password,
        "agents": ["a"],
    }  # fmt: skip
    return {"tools": {"sql": {"a": section}}}


def address(settings):
    """What a database is asked with: its address, and what fills it."""
    from failsoft.tools.sql import with_password

    section = settings.tools.sql["a"]
    return with_password(section.database, section.password.get_secret_value())


def durable(settings):
    return App(settings, store="off")._durable_limits


def tiers(settings):
    from failsoft.config.tiers import overruns

    return [over.outer for over in overruns(settings)]


def listens(settings):
    from failsoft.server.listening import listen_on

    with listen_on(settings.server.host, 0) as sock:
        return sock.getsockname()[0]


def heads(settings):
    from failsoft.server.protocol import bounded_protocol

    return bounded_protocol(settings.server.max_headers).max_headers


def answers_to_4k(settings):
    """The status of a request with a body of 4 000 bytes that is no JSON."""
    from failsoft.server.asgi import make_api
    from failsoft.server.listening import Readiness

    made = Agent("analyst", "", [one], [RulesPlanner(lambda request: None)])
    said = []

    async def receive():
        return {"type": "http.request", "body": b"{" * 4_000, "more_body": False}

    async def send(message):
        said.append(message)

    async def ask():
        async with App(settings, agents=[made], store="off") as app:
            await make_api(app, Readiness())(scope, receive, send)

    headers = [(b"content-type", b"application/json"), (b"content-length", b"4000"), (b"host", b"here")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/v1/runs",
        "raw_path": b"/v1/runs", "query_string": b"", "headers": headers, "scheme": "http", "server": ("here", 80),
        "client": ("127.0.0.1", 1), "root_path": "", "state": {},
    }  # fmt: skip
    clock.run(ask())
    return said[0]["status"]


def pool(settings):
    app = App(settings, store="off")
    return app._transport._connections


DOWNSTREAM = {
    "preset": "core",
    "kind": "action",
    "call_timeout": "4s",
    "attempt_timeout": "1s",
    "detachable": True,
    "permits": 3,
    "queue": 1,
    "max_wait": "300ms",
    "retries": 0,
    "retry_ratio": 0.5,
}
BREAKER = {
    "preset": "E",
    "enabled": False,
    "window": "77s",
    "minimum": 3,
    "failure_ratio": 0.9,
    "consecutive_timeouts": 2,
    "consecutive_failures": 4,
    "loop_stalls": 7,
    "slow_threshold": "3s",
    "open_for": "2s",
    "open_max": "100s",
    "probes": 1,
    "close_after": 2,
    "mean": "3s",
    "ramp": "1s",
}
HEDGE = {"quantile": 0.99, "minimum": "80ms", "share": 0.1}
LIMITS = {
    "connect": "1s",
    "first_content": "2s",
    "idle": "3s",
    "total": "4s",
    "base": "5s",
    "k": 0.5,
    "margin": "2s",
    "least": "1s",
    "most": "60s",
    "usual_output": 100,
}
STAGED = {
    "timeouts": 9,
    "successes": 9,
    "shortened": "9s",
    "slow_ratio": 9,
    "recovered_ratio": 1.1,
    "for_seconds": "9s",
    "instances": 9,
}
ROUTE = {
    "base_url": "http://other/v1",
    "model": "m",
    "api_key": "k",
    "headers": {"x": "y"},
    "system": "be brief",
    "equivalent": True,
    "upstream_stream": "auto",
    "max_input_tokens": 9,
    "max_tokens": 9,
    "output_note": True,
    "usual": "9s",
    "capacity": 9,
}
ALIAS = {"description": "d", "commit_after": "9s", "heartbeat": "9s", "continue_on_cut": True, "coalesce": False}
CACHE = {"ttl": "9s", "stale_for": "9s", "entries": 9, "max_bytes": 9}
STICKINESS = {"timeouts": 9, "errors": 9, "probe_after": "1m", "probe_within": "20m"}


def route_of(value):
    return {"models": {"a": {"routes": {"r": {"base_url": "http://x/v1", **value}}}}}


def alias_of(value):
    return {"models": {"a": {"routes": {"r": {"base_url": "http://x/v1"}}, **value}}}


SEEN = {
    "agent": ({"agent": "other"}, default_agent),
    "profile": ({"profile": "development"}, policy),
    "outside.client": ({"outside": {"client": 5}}, tiers),
    "outside.proxy": ({"outside": {"proxy": 5}}, tiers),
    "run.budget": ({"run": {"budget": 3}}, limits),
    "run.maximum_budget": ({"run": {"maximum_budget": 30}}, limits),
    "run.max_question": ({"run": {"max_question": 3}}, limits),
    "run.task_timeout": ({"run": {"task_timeout": 3}}, limits),
    "run.grace_ceiling": ({"run": {"grace_ceiling": 0.2}}, limits),
    "run.grace_floor": ({"run": {"grace_floor": 0.2}}, limits),
    "run.planning_share": ({"run": {"planning_share": 0.2}}, limits),
    "run.max_calls": ({"run": {"max_calls": 3}}, limits),
    "run.max_runs": ({"run": {"max_runs": 3}}, limits),
    **{
        f"run.pace.{key}": ({"run": {"pace": {key: value}}}, pace)
        for key, value in {"window": 5, "row": 2, "minimum": 3, "down": 0.5, "good": 7}.items()
    },
    **{
        f"downstreams.<name>.{key}": ({"downstreams": {"x": {key: value}}}, policy) for key, value in DOWNSTREAM.items()
    },
    "downstreams.<name>.breaker.slow_ratio": (
        {"downstreams": {"x": {"breaker": {"slow_threshold": "3s", "slow_ratio": 0.4}}}},
        policy,
        {"downstreams": {"x": {"breaker": {"slow_threshold": "3s"}}}},
    ),
    "models.<name>.routes.<name>.guard.breaker.slow_ratio": (
        route_of({"guard": {"breaker": {"slow_threshold": "3s", "slow_ratio": 0.4}}}),
        alias,
        route_of({"guard": {"breaker": {"slow_threshold": "3s"}}}),
    ),
    "models.<name>.routes.<name>.text": ({"models": {"a": {"routes": {"r": {"text": "hello"}}}}}, alias, route_of({})),
    "server.host": ({"server": {"host": "127.0.0.2"}}, listens),
    "server.max_headers": ({"server": {"max_headers": 2048}}, heads),
    "server.max_body": ({"server": {"max_body": 2048}}, answers_to_4k),
    "gateway.connections": ({**alias_of({}), "gateway": {"connections": 7}}, pool, alias_of({})),
    "downstreams.<name>.capped_by_budget": (
        {"downstreams": {"x": {"call_timeout": "30s", "capped_by_budget": True}}},
        tiers,
        {"downstreams": {"x": {"call_timeout": "30s"}}},
    ),
    **{
        f"downstreams.<name>.breaker.{key}": ({"downstreams": {"x": {"breaker": {key: value}}}}, policy)
        for key, value in BREAKER.items()
    },
    **{
        f"downstreams.<name>.hedge.{key}": (
            {"downstreams": {"x": {"hedge": {key: value}}}},
            policy,
            {"downstreams": {"x": {"hedge": {}}}},
        )
        for key, value in HEDGE.items()
    },
    **{f"models.<name>.{key}": (alias_of({key: value}), alias, alias_of({})) for key, value in ALIAS.items()},
    **{
        f"models.<name>.cache.{key}": (alias_of({"cache": {key: value}}), alias, alias_of({"cache": {}}))
        for key, value in CACHE.items()
    },
    **{
        f"models.<name>.stickiness.{key}": (alias_of({"stickiness": {key: value}}), alias, alias_of({}))
        for key, value in STICKINESS.items()
    },
    **{
        f"models.<name>.routes.<name>.{key}": (route_of({key: value}), alias, route_of({}))
        for key, value in ROUTE.items()
    },
    **{
        f"models.<name>.routes.<name>.limits.{key}": (route_of({"limits": {key: value}}), alias, route_of({}))
        for key, value in LIMITS.items()
    },
    **{
        f"models.<name>.routes.<name>.staged.{key}": (route_of({"staged": {key: value}}), alias, route_of({}))
        for key, value in STAGED.items()
    },
    **{
        f"models.<name>.routes.<name>.guard.{key}": (route_of({"guard": {key: value}}), alias, route_of({}))
        for key, value in DOWNSTREAM.items()
        if key != "max_wait"
    },
    "models.<name>.routes.<name>.guard.max_wait": (route_of({"guard": {"max_wait": "300ms"}}), alias, route_of({})),
    "models.<name>.routes.<name>.guard.capped_by_budget": (
        route_of({"guard": {"call_timeout": "90s", "capped_by_budget": True}}),
        tiers,
        route_of({"guard": {"call_timeout": "90s"}}),
    ),
    **{
        f"models.<name>.routes.<name>.guard.breaker.{key}": (
            route_of({"guard": {"breaker": {key: value}}}),
            alias,
            route_of({}),
        )
        for key, value in BREAKER.items()
    },
    **{
        f"models.<name>.routes.<name>.guard.hedge.{key}": (
            route_of({"guard": {"hedge": {key: value}}}),
            alias,
            route_of({"guard": {"hedge": {}}}),
        )
        for key, value in HEDGE.items()
    },
}

SEEN |= {
    "tools.sql.<name>.password": (sql("secret"), address, sql("another")),
    **{
        f"background.{key}": ({"background": {key: value}}, limits)
        for key, value in {"budget": 60, "maximum_budget": 4_000, "tasks": 2, "deaths": 2}.items()
    },
    **{
        f"background.{key}": ({"background": {key: value}}, durable)
        for key, value in {"width": 2, "queue": 7, "lease": 20, "clock_skew": 1}.items()
    },
    "approvals.after_degradations": ({"approvals": {"after_degradations": 3}}, limits),
    "approvals.resume_budget": ({"approvals": {"resume_budget": 3}}, limits),
    "approvals.expires": ({"approvals": {"expires": 60}}, durable),
    **{
        f"gateway.webhook.{key}": (
            {"gateway": {"webhook": {"url": "http://x/", key: value}}},
            webhook,
            {"gateway": {"webhook": {"url": "http://x/"}}},
        )
        for key, value in {
            "url": "http://y/",
            "secret": "s" * 20,
            "timeout": 9,
            "retries": 0,
            "repeat_after": 9,
            "events": ["L1"],
        }.items()
    },
    "store.prune_every": ({"store": {"prune_every": 99}}, durable),
    **{
        f"store.{key}": ({"store": {key: "400d"}}, retention_of)
        for key in ("keep_runs", "keep_keys", "keep_sessions", "keep_details")
    },
}

SHOWN = {
    "server.peers": "server/test_peers.py",
    "alarms.timed_out": "telemetry/test_burn.py",
    "alarms.diagnosis": "telemetry/test_burn.py",
    "alarms.webhook": "telemetry/test_burn.py",
    "alarms.webhook_secret": "telemetry/test_burn.py",
    "approvals.webhook": "config/test_durability.py",
    "approvals.webhook_secret": "config/test_durability.py",
    "golden": "agents/test_golden.py",
    "load": "cli/test_check.py",
    "redaction.names": "config/test_durability.py",
    "redaction.patterns": "config/test_durability.py",
    "store.path": "config/test_durability.py",
    "store.migrate": "config/test_durability.py",
    "store.synchronous": "config/test_durability.py",
    "run.chooser": "runs/test_choosing.py",
    "run.planner": "cli/test_ask.py",
    "model.base_url": "examples/test_analyst_model.py",
    "model.api_key": "config/test_settings.py",
    "model.name": "examples/test_analyst_model.py",
    "model.narrative": "examples/test_analyst_model.py",
    "model.first_token": "examples/test_analyst_model.py",
    "server.port": "cli/test_serve.py",
    "server.heartbeat": "server/test_runs_api.py",
    "server.write_timeout": "server/test_runs_kept.py",
    "server.log": "server/test_run_log.py",
    "server.drain": "server/test_runs_api.py",
    "server.on_disconnect": "server/test_runs_api.py",
    "gateway.budget": "server/test_openai_api.py",
    "gateway.maximum_budget": "server/test_openai_api.py",
    "gateway.max_body": "server/test_openai_api.py",
    "gateway.body_timeout": "server/test_openai_api.py",
    "gateway.write_timeout": "server/test_openai_api.py",
    "gateway.log": "server/test_openai_api.py",
    "keys.<name>.hash": "server/test_auth.py",
    "keys.<name>.tenant": "server/test_auth.py",
    "keys.<name>.rate": "server/test_auth.py",
    "keys.<name>.burst": "server/test_auth.py",
    "keys.<name>.concurrent": "server/test_auth.py",
    "keys.<name>.models": "server/test_auth.py",
    "data": "cli/test_ask.py",
    "cache_dir": "cli/conftest.py",
}


SHOWN |= {
    f"tools.{kind}.<name>.{key}": file
    for kind, files in {
        "http": {
            "tools/test_http_tools.py": "downstream url timeout headers method kind allow redirects parameters "
            "secrets hosts response_limit form",
            "config/test_tools.py": "agents description reads stale_for approval",
        },
        "openapi": {
            "tools/test_openapi.py": "downstream prefix kinds timeout document "
            "operations server headers allow approval",
            "config/test_tools.py": "agents secrets response_limit redirects",
        },
        "sql": {
            "tools/test_sql_tools.py": "downstream timeout byte_limit database "
            "query parameters tables row_limit memory",
            "tools/test_sql_check.py": "functions",
            "config/test_tools.py": "agents description stale_for",
        },
        "mcp": {
            "tools/test_mcp_tools.py": "approval command cwd downstream env kind "
            "kinds only pause pause_max prefix secrets "
            "start timeout trust_hints url wait",
            "config/test_tools.py": "agents allow_env",
        },
    }.items()
    for file, names in files.items()
    for key in names.split()
}


def test_every_key_has_its_line_and_every_line_its_key():
    there = {key.path for key in keys()}
    assert there - SEEN.keys() - SHOWN.keys() == set(), "a key without a line here: show what it changes"
    assert (SEEN.keys() | SHOWN.keys()) - there == set()


@pytest.mark.parametrize("path", SEEN)
def test_what_a_key_changes(path):
    given, look, *before = SEEN[path]
    changed = look(Settings.model_validate(given))
    usual = look(Settings.model_validate(before[0] if before else alias_of({}) if look is alias else {}))
    assert changed != usual


@functools.cache
def words(file: Path) -> frozenset[str]:
    """All words of a test module, those of variables like ``FAILSOFT_RUN__BUDGET`` among them."""
    return frozenset(re.findall(r"[a-z]+(?:_[a-z]+)*", file.read_text(encoding="utf-8").lower().replace("__", " ")))


@pytest.mark.parametrize("path", SHOWN)
def test_the_test_that_shows_a_key_sets_it(path):
    name = path.rpartition(".")[2]
    known = words(TESTS / SHOWN[path])
    assert name in known or f"failsoft_{name}" in known
