"""The `tools:` section: every key changes what is made, and mistakes are told with their line."""

import pytest

from failsoft.app import App
from failsoft.base.errors import ConfigError
from failsoft.config import keys, load_settings
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner
from failsoft.tools.python import tool
from failsoft.tools.registry import ToolRegistry

PETS = """
openapi: 3.0.0
servers: [{url: 'https://a.test'}]
paths: {/a: {get: {operationId: one}, post: {operationId: two}}}
"""
ENV = {"TOKEN": "tok-12345"}


def load(tmp_path, text, environ=ENV):
    (tmp_path / "pets.yaml").write_text(PETS)
    file = tmp_path / "failsoft.yaml"
    file.write_text(text.replace("$DIR", str(tmp_path)))
    return load_settings(file, environ=environ)


def made(tmp_path, kind, lines):
    base = {
        "http": "url: https://a.test/x",
        "openapi": "document: $DIR/pets.yaml",
        "sql": "database: sqlite:///x.db",
        "mcp": "command: [server]",
    }[kind]
    if lines.split(":")[0] in ("url", "document", "database", "command"):
        base = "agents: []"
    body = "".join(f"      {line}\n" for line in [base, *lines.split("\n")] if line.split(":")[0])
    settings = load(tmp_path, f"tools:\n  {kind}:\n    it:\n{body}")
    return [one for _, one in settings.tools.made()]


def seen(one):
    """Everything that can be told of a tool or a server."""
    found = {}
    for holder in (one, getattr(one, "_shape", None), getattr(one, "_rules", None), getattr(one, "_database", None)):
        for name in [*getattr(type(holder), "__slots__", ()), *getattr(holder, "__dict__", {})]:
            found[name] = str(getattr(holder, name, None))
    for name in ("_secrets",):
        secrets = getattr(one, name, {})
        found[name] = str({header: secret.reveal() for header, secret in secrets.items()})
    address = getattr(getattr(one, "_database", None), "_address", None)
    found["_address"] = address.reveal() if address is not None else ""
    bounds = getattr(getattr(one, "_database", None), "_bounds", None)
    found["_bounds"] = f"{bounds.rows} {bounds.bytes}" if bounds is not None else ""
    return found


CASES = [
    ("http", "url: https://b.test/x", "https://b.test/x"),
    ("http", "description: words", "words"),
    ("http", "downstream: other", "other"),
    ("http", "timeout: 700ms", "timeout=0.7"),
    ("http", "method: DELETE", "DELETE"),
    ("http", "kind: external", "external"),
    ("http", "parameters: {a: {type: integer, in: query}}", "'a': {'type': 'integer'}"),
    ("http", "headers: {X-A: b}", "{'X-A': 'b'}"),
    ("http", "secrets: {X-K: '${TOKEN}', Authorization: 'Bearer ${TOKEN}'}", "'Bearer tok-12345'"),
    ("http", "hosts: [c.test]", "c.test"),
    ("http", "allow: [loopback]", "loopback"),
    ("http", "response_limit: 77", "77"),
    ("http", "redirects: 9", "9"),
    ("http", "reads: text", "text"),
    ("http", "method: POST\nform: true", "True"),
    ("http", "stale_for: 1h", "stale_for=3600"),
    ("http", "approval: true", "approval=True"),
    ("openapi", "document: $DIR/pets.yaml", "https://a.test"),
    ("openapi", "downstream: other", "other"),
    ("openapi", "timeout: 700ms", "timeout=0.7"),
    ("openapi", "operations: [two]", "it_two"),
    ("openapi", "server: https://b.test", "https://b.test"),
    ("openapi", "prefix: p-", "p-one"),
    ("openapi", "kinds: {one: external}", "external"),
    ("openapi", "headers: {X-A: b}", "{'X-A': 'b'}"),
    ("openapi", "secrets: {X-K: '${TOKEN}'}", "tok-12345"),
    ("openapi", "allow: [loopback]", "loopback"),
    ("openapi", "response_limit: 77", "77"),
    ("openapi", "redirects: 9", "9"),
    ("openapi", "approval: [one]", "approval=True"),
    ("sql", "database: duckdb:///y.db", "duckdb"),
    ("sql", "description: words", "words"),
    ("sql", "downstream: other", "other"),
    ("sql", "timeout: 700ms", "timeout=0.7"),
    ("sql", "database: postgresql://u@h/d\npassword: '${TOKEN}'", "postgresql://u:tok-12345@h/d"),
    ("sql", "query: SELECT 1 AS one", "SELECT 1 AS one"),
    ("sql", "query: 'SELECT :a AS a'\nparameters: {a: {type: integer}}", "'a': {'type': 'integer'}"),
    ("sql", "tables: [orders]", "orders"),
    ("sql", "functions: [mine]", "mine"),
    ("sql", "row_limit: 7", "7 1000000"),
    ("sql", "byte_limit: 2222", "1000 2222"),
    ("sql", "database: duckdb:///y.db\nmemory: 64MB", "64MB"),
    ("sql", "stale_for: 1h", "stale_for=3600"),
    ("mcp", "command: [other, '-x']", "('other', '-x')"),
    ("mcp", "url: https://b.test/mcp", "https://b.test/mcp"),
    ("mcp", "downstream: other", "other"),
    ("mcp", "timeout: 700ms", "0.7"),
    ("mcp", "env: {A: b}", "{'A': 'b'}"),
    ("mcp", "allow_env: [MY_KEY]", "MY_KEY"),
    ("mcp", "cwd: /tmp", "/tmp"),
    ("mcp", "url: https://b.test/mcp\nsecrets: {X-K: '${TOKEN}'}", "tok-12345"),
    ("mcp", "prefix: p-", "p-"),
    ("mcp", "kind: query", "query"),
    ("mcp", "kinds: {one: action}", "action"),
    ("mcp", "trust_hints: true", "True"),
    ("mcp", "only: [one]", "one"),
    ("mcp", "approval: [one]", "one"),
    ("mcp", "start: 77s", "77.0"),
    ("mcp", "wait: 77s", "77.0"),
    ("mcp", "pause: 7s", "7.0"),
    ("mcp", "pause_max: 77s", "77.0"),
]


@pytest.mark.parametrize(("kind", "lines", "shows"), CASES)
def test_every_key_changes_what_is_made(tmp_path, kind, lines, shows):
    before = (
        ""
        if lines.split(":")[0] in ("url", "document", "database", "command")
        else str([seen(one) for one in made(tmp_path, kind, "agents: []")])
    )
    after = str([seen(one) for one in made(tmp_path, kind, lines)])
    assert shows in after.replace('"', "'")
    assert after != before


def test_no_key_is_left_out():
    covered = {f"tools.{kind}.<name>.{line.split(':')[0]}" for kind, lines, _ in CASES for line in lines.split("\n")}
    there = {key.path for key in keys() if key.path.startswith("tools.")}
    elsewhere = {f"tools.{kind}.<name>.agents" for kind in ("http", "openapi", "sql", "mcp")}
    assert there - covered == elsewhere  # which agents get it is shown below


def test_mistakes_are_told_with_their_line_and_without_secrets(tmp_path):
    text = (
        "tools:\n"
        "  http:\n"
        "    a:\n"
        "      url: ftp://a.test\n"
        "    b:\n"
        "      url: https://a.test/{x}\n"
        "      parameters: {x: {type: strange}}\n"
        "    c:\n"
        "      url: https://a.test\n"
        "      secrets: {X-Key: literal-secret}\n"
        "    d:\n"
        "      urll: https://a.test\n"
        "  sql:\n"
        "    e:\n"
        "      database: sqlite:///x.db\n"
        "      query: DROP TABLE x\n"
        "  openapi:\n"
        "    f: {document: /nowhere.yaml}\n"
        "  mcp:\n"
        "    g: {command: [x], url: 'https://a.test'}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    told = list(caught.value.details["errors"])
    assert "literal-secret" not in str(told)
    places = [line.split(": ")[:2] for line in told]
    assert ["failsoft.yaml:3", "tools.http.a"] in places
    assert ["failsoft.yaml:5", "tools.http.b"] in places
    assert ["failsoft.yaml:10", "tools.http.c.secrets.X-Key"] in places
    assert ["failsoft.yaml:12", "tools.http.d.urll"] in places
    assert ["failsoft.yaml:14", "tools.sql.e"] in places
    assert ["failsoft.yaml:18", "tools.openapi.f"] in places
    assert ["failsoft.yaml:20", "tools.mcp.g"] in places


@tool
async def own() -> int:
    return 1


def agent(name):
    plan = Plan(tasks=(TaskSpec(id="t", tool="own"),))
    return Agent(name, tools=ToolRegistry([own]), planners=[StaticPlanner(plan)])


def test_agents_get_the_tools_that_are_theirs(tmp_path):
    text = (
        "tools:\n"
        "  http:\n"
        "    all: {url: 'https://a.test'}\n"
        "    mine: {url: 'https://a.test', agents: [one], downstream: shared}\n"
        "  mcp:\n"
        "    server: {command: [x], agents: [two]}\n"
        "downstreams:\n"
        "  shared: {permits: 3}\n"
    )
    settings = load(tmp_path, text)
    one, two = agent("one"), agent("two")
    app = App(settings, agents=[one, two], store="off")
    assert app.agents.get("one").tools.names == ("own", "all", "mine")
    assert app.agents.get("two").tools.names == ("own", "all")
    assert [source.name for source in app.agents.get("two").tools.sources] == ["server"]
    assert app.agents.get("one").tools.sources == ()
    assert one.tools.names == ("own",)  # the agent that was given is as it was
    assert {"all", "shared", "server"} <= set(app.guards)
    assert app.guards["shared"].bulkhead.limit == 3
    with pytest.raises(ConfigError, match=r"tools: .*no agent 'nobody'; there are: one"):
        App(load(tmp_path, "tools: {http: {a: {url: 'https://a.test', agents: [nobody]}}}"), agents=[one], store="off")
    with pytest.raises(ConfigError, match="two tools are called 'own'"):
        App(load(tmp_path, "tools: {http: {own: {url: 'https://a.test'}}}"), agents=[one], store="off")
