"""Settings: what wins over what, how mistakes are told, and that no secret ever shows."""

import dataclasses

import pytest

from failsoft.base.errors import ConfigError
from failsoft.config import keys, load_settings, parse_duration
from failsoft.kernel.policy import preset


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        file = tmp_path / "failsoft.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def errors_of(file, environ=None):
    with pytest.raises(ConfigError) as caught:
        load_settings(file, environ=environ or {})
    return list(caught.value.details["errors"])


def test_nothing_set_gives_the_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = load_settings(environ={})
    assert (settings.run.budget, settings.run.maximum_budget, settings.agent) == (8.0, 120.0, "analyst")
    assert settings.policy("anything", default="data") == preset("data")


def test_flag_wins_over_environment_over_file_over_default(written):
    file = written("run:\n  budget: 2s\n  planner: rules\nserver:\n  port: 1\n  host: '::1'\n")
    environ = {"FAILSOFT_RUN__BUDGET": "3500ms", "FAILSOFT_SERVER__PORT": "2"}
    settings = load_settings(file, environ=environ, flags={"server.port": 3})
    assert (settings.run.budget, settings.run.planner, settings.server.port) == (3.5, "rules", 3)
    assert settings.server.host == "::1"


def test_file_in_the_working_folder_is_found_and_one_named_by_the_environment_must_exist(written, monkeypatch):
    file = written("agent: one\n")
    monkeypatch.chdir(file.parent)
    assert load_settings(environ={}).agent == "one"
    with pytest.raises(ConfigError, match=r"other\.yaml: cannot be read"):
        load_settings(environ={"FAILSOFT_CONFIG": "other.yaml"})


def test_data_is_relative_to_the_file(written):
    file = written("data: [sales.csv]\n")
    assert load_settings(file, environ={}).data == (file.parent / "sales.csv",)


def test_every_mistake_is_told_at_once_with_its_line(written):
    file = written(
        "run:\n"
        "  budgte: 5\n"
        "  maximum_budget: soon\n"
        "server:\n"
        "  port: 99999\n"
        "downstreams:\n"
        "  warehouse:\n"
        "    preset: dta\n"
        "    permits: 0\n"
        "    brekaer: {}\n"
    )
    told = errors_of(file)
    assert [line.split(": ")[:2] for line in told] == [
        ["failsoft.yaml:2", "run.budgte"],
        ["failsoft.yaml:3", "run.maximum_budget"],
        ["failsoft.yaml:5", "server.port"],
        ["failsoft.yaml:8", "downstreams.warehouse.preset"],
        ["failsoft.yaml:9", "downstreams.warehouse.permits"],
        ["failsoft.yaml:10", "downstreams.warehouse.brekaer"],
    ]
    assert "did you mean budget?" in "\n".join(told)
    assert "did you mean breaker?" in "\n".join(told)


def test_first_mistake_is_the_message(written):
    with pytest.raises(ConfigError, match=r"^failsoft.yaml:1: agnet: unknown key; did you mean agent\?$"):
        load_settings(written("agnet: x\n"), environ={})


def test_mistakes_in_the_environment_name_the_variable():
    told = errors_of(None, {"FAILSOFT_RUN__BUDGET": "later", "FAILSOFT_RNU__BUDGET": "5"})
    assert any(line.startswith("environment FAILSOFT_RUN__BUDGET: run.budget: ") for line in told)
    assert any(
        line.startswith("environment FAILSOFT_RNU__BUDGET: rnu: unknown key; did you mean run?") for line in told
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: [1\nb: 2", 2), ("agent: x\nagent: y", 2), ("\tagent: x", 1), ("- 1\n- 2", 1), ("agent: x\n  y: 1", 2)],
)
def test_broken_yaml_is_told_with_its_line(written, text, line):
    with pytest.raises(ConfigError, match=rf"^failsoft.yaml:{line}: "):
        load_settings(written(text), environ={})


def test_not_utf8_is_told_with_its_line(tmp_path):
    file = tmp_path / "failsoft.yaml"
    file.write_bytes(b"agent: x\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"^failsoft.yaml:2: not UTF-8 text$"):
        load_settings(file, environ={})


def test_aliases_cannot_blow_up_memory(written):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    with pytest.raises(ConfigError, match="too many values"):
        load_settings(written(bomb), environ={})


def test_secrets_come_by_the_environment_only_and_never_show(written):
    file = written("model:\n  base_url: http://127.0.0.1:1/v1\n  api_key: ${THE_KEY}\n")
    settings = load_settings(file, environ={"THE_KEY": "sk-very-secret"})
    assert settings.model.api_key is not None
    assert settings.model.api_key.get_secret_value() == "sk-very-secret"
    assert "very-secret" not in repr(settings) + str(settings) + settings.model_dump_json()

    told = errors_of(written("model:\n  api_key: sk-very-secret\n"))
    assert told == [
        "failsoft.yaml:2: model.api_key: a secret is not written into the file; use ${NAME} or FAILSOFT_MODEL__API_KEY"
    ]
    told = errors_of(written("run: {budget: '${THE_KEY}'}\n"), {"THE_KEY": "sk-very-secret"})
    assert told
    assert "very-secret" not in "".join(told)
    told = errors_of(written("agent: x\nmodel: {api_key: '${NOT_THERE}'}\n"))
    assert told == ["failsoft.yaml:2: model.api_key: the variable NOT_THERE is not set"]


def test_openai_variables_are_the_models_defaults(written):
    environ = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "sk-x"}
    settings = load_settings(written("model: {name: small}\n"), environ=environ)
    assert (settings.model.base_url, settings.model.name) == ("http://127.0.0.1:1/v1", "small")
    own = load_settings(written("model: {base_url: 'http://127.0.0.1:2/v1'}\n"), environ=environ)
    assert own.model.base_url == "http://127.0.0.1:2/v1"


def test_budget_over_its_maximum_is_refused(written):
    assert errors_of(written("run:\n  budget: 10\n  maximum_budget: 5\n")) == [
        "failsoft.yaml:1: run: budget is over maximum_budget"
    ]


@pytest.mark.parametrize(
    ("yaml", "field", "value"),
    [
        ("kind: action", "kind", "action"),
        ("call_timeout: 20s\n    capped_by_budget: true", "call_timeout", 20.0),
        ("attempt_timeout: 900ms", "attempt_timeout", 0.9),
        ("attempt_timeout: 900ms", "adaptive_timeout.cap", 0.9),
        ("call_timeout: 2s", "attempt_timeout", 2.0),
        ("detachable: true", "detachable", True),
        ("permits: 3", "bulkhead.permits", 3),
        ("queue: 0", "bulkhead.queue", 0),
        ("max_wait: 300ms", "bulkhead.max_wait", 0.3),
        ("retries: 0", "retry.queries", 0),
        ("retry_ratio: 0.5", "retry_ratio", 0.5),
        ("preset: core", "call_timeout", 5.0),
        ("breaker: {enabled: false}", "breaker", None),
        ("breaker: {preset: E}", "breaker.window", 60.0),
        ("breaker: {window: 1m}", "breaker.window", 60.0),
        ("breaker: {minimum: 3}", "breaker.minimum", 3),
        ("breaker: {failure_ratio: 0.9}", "breaker.failure_ratio", 0.9),
        ("breaker: {consecutive_timeouts: 2}", "breaker.consecutive_timeouts", 2),
        ("breaker: {consecutive_failures: 4}", "breaker.consecutive_failures", 4),
        ("breaker: {loop_stalls: 4}", "breaker.loop_stalls", 4),
        ("breaker: {slow_threshold: 3s, slow_ratio: 0.4}", "breaker.slow_ratio", 0.4),
        ("breaker: {slow_threshold: 3s}", "breaker.slow_threshold", 3.0),
        ("breaker: {open_for: 2s}", "breaker.open_for", 2.0),
        ("breaker: {open_max: 100s}", "breaker.open_max", 100.0),
        ("breaker: {probes: 1}", "breaker.probes", 1),
        ("breaker: {close_after: 2}", "breaker.close_after", 2),
        ("breaker: {mean: 2s}", "breaker.mean", 2.0),
        ("breaker: {ramp: 1s}", "breaker.ramp", 1.0),
        ("hedge: {}", "hedge.share", 0.05),
        ("hedge: {quantile: 0.99}", "hedge.quantile", 0.99),
        ("hedge: {minimum: 80ms}", "hedge.minimum", 0.08),
        ("hedge: {share: 0.1}", "hedge.share", 0.1),
    ],
)
def test_each_downstream_key_reaches_its_policy(written, yaml, field, value):
    settings = load_settings(written(f"downstreams:\n  warehouse:\n    {yaml}\n"), environ={})
    found = settings.policy("warehouse", default="data")
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value


def test_what_is_not_set_keeps_the_presets_value(written):
    settings = load_settings(written("downstreams: {warehouse: {permits: 3}}\n"), environ={})
    data = preset("data")
    assert settings.policy("warehouse", default="data") == dataclasses.replace(
        data, bulkhead=dataclasses.replace(data.bulkhead, permits=3, adaptive=None)
    )


def test_contradicting_keys_of_a_downstream_are_told_with_their_place(written):
    file = written("downstreams:\n  charts:\n    call_timeout: 1s\n    attempt_timeout: 2s\n")
    (told,) = errors_of(file)
    assert told.startswith("failsoft.yaml:2: downstreams.charts: attempt_timeout must not exceed call_timeout")


def test_every_key_is_described():
    table = list(keys())
    assert len({one.path for one in table}) == len(table) > 30
    for one in table:
        assert one.description.endswith("."), one
        assert one.scope in ("run", "downstream", "process")
        assert one.type
        assert one.default
    by_path = {one.path: one for one in table}
    assert by_path["run.budget"].default == "8"
    assert by_path["run.budget"].unit == "seconds"
    assert by_path["downstreams.<name>.permits"].type == "number"
    assert by_path["downstreams.<name>.breaker.preset"].type == "strict | patient | A | B | C | D | E"
    assert by_path["model.api_key"].type == "secret"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(5, 5.0), (0.25, 0.25), ("5", 5.0), ("2.5s", 2.5), ("800ms", 0.8), ("2m", 120.0), ("1 h", 3600.0)],
)
def test_durations_as_people_write_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "x", "5x", "-1", -1, "nan", float("nan"), float("inf"), "1e3", True, None, [], "٣", "9" * 400]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="should be a"):
        parse_duration(text)


@pytest.mark.parametrize("name", ["FAILSOFT_URL", "FAILSOFT_API_KEY"])
def test_what_commands_read_themselves_is_no_unknown_key(name):
    assert load_settings(environ={name: "http://127.0.0.1:1"}) == load_settings(environ={})
