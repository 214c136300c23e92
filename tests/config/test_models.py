"""Settings of the gateway: every key reaches what it is for, mistakes are told with their place, secrets never show."""

import pytest
from tests.config.test_settings import errors_of

from failsoft.config import load_settings
from failsoft.config.access import parse_rate
from failsoft.kernel.cache import CachePolicy
from failsoft.models.routes import Alias, Route

ROUTE = "base_url: http://127.0.0.1:1/v1"


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        file = tmp_path / "failsoft.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def alias_of(file) -> Alias:
    (alias,) = load_settings(file, environ={"UP_KEY": "sk-up"}).aliases()
    return alias


def test_routes_keep_the_files_order_and_the_defaults(written):
    alias = alias_of(
        written(
            "models:\n  gpt-x:\n    routes:\n"
            "      zeta: {base_url: 'http://127.0.0.1:1/v1', model: big, api_key: '${UP_KEY}'}\n"
            "      alpha: {base_url: 'http://127.0.0.1:2/v1'}\n"
            "      text: {text: 'Later, please: {question}'}\n"
        )
    )
    assert [route.name for route in alias.routes] == ["zeta", "alpha", "text"]
    assert alias.routes[0].api_key == "sk-up"
    assert alias.routes[1] == Route("alpha", "http://127.0.0.1:2/v1")
    assert alias.routes[2].text == "Later, please: {question}"
    assert alias == Alias("gpt-x", alias.routes)


@pytest.mark.parametrize(
    ("yaml", "field", "value"),
    [
        ("model: big", "model", "big"),
        ("headers: {X-Team: blue}", "headers", {"X-Team": "blue"}),
        ("system: Be brief.", "system", "Be brief."),
        ("equivalent: true", "equivalent", True),
        ("upstream_stream: never", "upstream_stream", "never"),
        ("max_input_tokens: 100", "max_input_tokens", 100),
        ("max_tokens: 50", "max_tokens", 50),
        ("output_note: true", "output_note", True),
        ("usual: 300ms", "usual", 0.3),
        ("capacity: 3", "capacity", 3),
        ("limits: {connect: 1s}", "limits.connect", 1.0),
        ("limits: {first_content: 2s}", "limits.first_content", 2.0),
        ("limits: {idle: 3s}", "limits.idle", 3.0),
        ("limits: {total: 4s}", "limits.total", 4.0),
        ("limits: {base: 5s}", "limits.base", 5.0),
        ("limits: {k: 0.5}", "limits.k", 0.5),
        ("limits: {margin: 0}", "limits.margin", 0.0),
        ("limits: {least: 1s}", "limits.least", 1.0),
        ("limits: {most: 60s}", "limits.most", 60.0),
        ("limits: {usual_output: 9}", "limits.usual_output", 9),
        ("staged: {timeouts: 2}", "staged.timeouts", 2),
        ("staged: {successes: 2}", "staged.successes", 2),
        ("staged: {shortened: 7s}", "staged.shortened", 7.0),
        ("staged: {slow_ratio: 3}", "staged.slow_ratio", 3.0),
        ("staged: {recovered_ratio: 1.5}", "staged.recovered_ratio", 1.5),
        ("staged: {for_seconds: 1m}", "staged.for_seconds", 60.0),
        ("staged: {instances: 4}", "staged.instances", 4),
        ("guard: {permits: 2}", "policy.bulkhead.permits", 2),
        ("guard: {retries: 0}", "policy.retry.queries", 0),
        ("guard: {breaker: {enabled: false}}", "policy.breaker", None),
    ],
)
def test_each_key_of_a_route_reaches_it(written, yaml, field, value):
    file = written(f"models:\n  gpt-x:\n    routes:\n      main:\n        {ROUTE}\n        {yaml}\n")
    found = alias_of(file).routes[0]
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    ("yaml", "field", "value"),
    [
        ("description: The big one.", "description", "The big one."),
        ("commit_after: 2s", "commit_after", 2.0),
        ("heartbeat: 3s", "heartbeat", 3.0),
        ("continue_on_cut: true", "continue_on_cut", True),
        ("coalesce: false", "coalesce", False),
        ("cache: {}", "cache", CachePolicy()),
        ("cache: {ttl: 5s}", "cache.ttl", 5.0),
        ("cache: {stale_for: 5s}", "cache.stale_for", 5.0),
        ("cache: {entries: 5}", "cache.entries", 5),
        ("cache: {max_bytes: 5}", "cache.max_bytes", 5),
        ("stickiness: {timeouts: 2}", "stickiness.timeouts", 2),
        ("stickiness: {errors: 2}", "stickiness.errors", 2),
        ("stickiness: {probe_after: 1m}", "stickiness.probe_after", 60.0),
        ("stickiness: {probe_within: 10m}", "stickiness.probe_within", 600.0),
    ],
)
def test_each_key_of_an_alias_reaches_it(written, yaml, field, value):
    found = alias_of(written(f"models:\n  gpt-x:\n    {yaml}\n    routes:\n      main: {{{ROUTE}}}\n"))
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("models: {gpt-x: {}}", "models.gpt-x.routes: "),
        ("models: {gpt-x: {routes: {}}}", "models.gpt-x.routes: "),
        ("models: {gpt-x: {routes: {main: {}}}}", "models.gpt-x.routes.main: "),
        ("models: {gpt-x: {routes: {main: {base_url: 'ftp://x'}}}}", "models.gpt-x.routes.main: "),
        ("models: {gpt-x: {routes: {main: {text: a, limits: {least: 9, most: 8}}}}}", "models.gpt-x.routes.main: "),
        ("models: {gpt-x: {routes: {main: {text: a, api_key: sk-x}}}}", "models.gpt-x.routes.main.api_key: a secret"),
        ("keys: {a: {hash: sk-mine}}", "keys.a.hash: "),
        ("keys: {a: {}}", "keys.a.hash: "),
        (f"keys: {{a: {{hash: 'sha256:{'0' * 64}', rate: often}}}}", "keys.a.rate: "),
        (f"keys: {{a: {{hash: 'sha256:{'0' * 64}', burst: 2}}}}", "keys.a: burst needs a rate"),
        ("gateway: {budget: 10m, maximum_budget: 1m}", "gateway: budget is over maximum_budget"),
    ],
)
def test_mistakes_are_told_with_their_place_and_without_the_value(written, yaml, told):
    errors = errors_of(written(yaml))
    assert any(f"failsoft.yaml:1: {told}" in line for line in errors), errors
    assert not any("sk-" in line for line in errors)


def test_upstream_keys_and_headers_never_show(written):
    file = written(
        "models:\n  gpt-x:\n    routes:\n"
        "      main: {base_url: 'http://127.0.0.1:1/v1', api_key: '${UP_KEY}', headers: {api-key: '${UP_KEY}'}}\n"
    )
    settings = load_settings(file, environ={"UP_KEY": "sk-up"})
    assert settings.aliases()[0].routes[0].headers == {"api-key": "sk-up"}
    assert "sk-up" not in repr(settings) + settings.model_dump_json() + repr(settings.aliases())


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100/minute", (100, 60.0)), ("5/s", (5, 1.0)), ("1000 / 10 minutes", (1000, 600.0)), ("2/hours", (2, 3600.0))],
)
def test_rates_as_people_write_them(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "100", "0/s", "-1/s", "1/0 s", "1/fortnight", "1.5/s", "٣/s"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ValueError, match="should be a rate"):
        parse_rate(text)
