"""Settings of what outlives requests: every key reaches what it is for."""

import pytest
from tests.config.test_settings import errors_of

from failsoft.app import App, retention_of, store_of
from failsoft.config import load_settings
from failsoft.stores.sqlite import SqliteStore


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        file = tmp_path / "failsoft.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def reached(value, path: str):
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("yaml", "field", "value"),
    [
        ("background: {width: 3}", "_durable_limits.width", 3),
        ("background: {queue: 5}", "_durable_limits.queue", 5),
        ("background: {tasks: 2}", "limits.background_width", 2),
        ("background: {budget: 5m}", "limits.background_budget", 300.0),
        ("background: {maximum_budget: 2h}", "limits.max_background_budget", 7200.0),
        ("background: {lease: 30s}", "_durable_limits.lease", 30.0),
        ("background: {clock_skew: 5s}", "_durable_limits.skew", 5.0),
        ("background: {deaths: 1}", "limits.deaths", 1),
        ("approvals: {expires: 1h}", "_durable_limits.approval_expires", 3600.0),
        ("approvals: {resume_budget: 20s}", "limits.resume_budget", 20.0),
        ("approvals: {after_degradations: 3}", "limits.review_after", 3),
        ("store: {keep_runs: 2h}", "_durable_limits.retention.runs", 7200.0),
        ("store: {keep_runs: 1s}", "_durable_limits.retention.runs", 420.0),
        ("store: {keep_keys: 2d}", "_durable_limits.retention.keyed", 172_800.0),
        ("store: {keep_details: 2h}", "_durable_limits.retention.details", 7200.0),
        ("store: {keep_sessions: 1d}", "_durable_limits.retention.sessions", 86_400.0),
        ("store: {prune_every: 5s}", "_durable_limits.prune_every", 5.0),
    ],
)
def test_each_key_reaches_the_app(written, yaml, field, value):
    settings = load_settings(written(yaml), environ={})
    assert reached(App(settings, store="off"), field) == value


def test_each_key_of_the_store_reaches_it(written, tmp_path):
    file = written(
        "store: {path: kept/runs.db, synchronous: full, migrate: true}\n"
        "redaction: {patterns: ['KD-\\d+'], names: [patient-id]}"
    )
    store = store_of(load_settings(file, environ={}))
    assert isinstance(store, SqliteStore)
    assert (store._path, store._synchronous, store._migrate) == (str(tmp_path / "kept" / "runs.db"), "FULL", True)
    assert store._redactor.json('{"patientId": "7", "a": "KD-12"}') == '{"patientId": "[redacted]", "a": "[redacted]"}'
    assert store_of(load_settings(written("run: {budget: 3s}"), environ={})) is None


def test_runs_are_kept_for_their_longest_budget_and_five_minutes_at_least(written):
    settings = load_settings(written("run: {maximum_budget: 1h}"), environ={})
    assert retention_of(settings).runs == 3900.0


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("approvals: {webhook: 'http://pager.example.com/x'}", "approvals.webhook: should be an https:// URL"),
        ("alarms: {webhook: 'ftp://pager.example.com'}", "alarms.webhook: should be an https:// URL"),
        ("server: {peers: ['http://10.0.0.7:8080/metrics']}", "should be the base URL of a process"),
        ("alarms: {timed_out: 2}", "alarms.timed_out"),
        ("approvals: {webhook_secret: plain}", "a secret is not written into the file"),
        ("redaction: {patterns: ['(']}", "is no regular expression"),
        ("store: {synchronous: off}", "store.synchronous"),
    ],
)
def test_mistakes_are_told_with_their_place(written, yaml, told):
    assert any(told in one and one.startswith("failsoft.yaml:1:") for one in errors_of(written(yaml)))
