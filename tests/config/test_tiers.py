"""Inner limits that outlast outer ones are refused, with both paths and their lines."""

import pytest

from failsoft.base.errors import ConfigError
from failsoft.config import load_settings
from failsoft.config.tiers import worst_case
from failsoft.kernel.retry import RetryPolicy


@pytest.fixture
def told(tmp_path):
    def load(text: str) -> list[str]:
        file = tmp_path / "failsoft.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            load_settings(file, environ={})
        except ConfigError as error:
            return list(error.details["errors"])
        return []

    return load


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "run:\n  budget: 9s\noutside:\n  client: 8s\n",
            "failsoft.yaml:2: run.budget: 9 s must be below the 8 s of outside.client (failsoft.yaml:4)",
        ),
        (
            "outside:\n  client: 8s\n",
            "failsoft.yaml: run.budget: 8 s must be below the 8 s of outside.client (failsoft.yaml:2)",
        ),
        (
            "outside:\n  client: 12s\n  proxy: 10s\n",
            "failsoft.yaml:2: outside.client: 12 s must not exceed the 10 s of outside.proxy (failsoft.yaml:3)",
        ),
        (
            "run: {budget: 20s}\noutside:\n  proxy: 10s\n",
            "failsoft.yaml:1: run.budget: 20 s must be below the 10 s of outside.proxy (failsoft.yaml:3)",
        ),
        (
            "run:\n  task_timeout: 9s\n",
            "failsoft.yaml:2: run.task_timeout: 9 s must not exceed the 8 s of run.budget (its default)",
        ),
        (
            "run:\n  task_timeout: 2s\ndownstreams:\n  x:\n    call_timeout: 3s\n",
            (
                "failsoft.yaml:5: downstreams.x.call_timeout: 3 s must not exceed the 2 s of run.task_timeout; or say "
                "capped_by_budget: true (failsoft.yaml:2)"
            ),
        ),
        (
            "downstreams:\n  x:\n    call_timeout: 30s\n",
            (
                "failsoft.yaml:3: downstreams.x.call_timeout: 30 s must not exceed the 8 s of run.budget; or say "
                "capped_by_budget: true (its default)"
            ),
        ),
        (
            "downstreams:\n  x:\n    preset: data\n    call_timeout: 5s\n    attempt_timeout: 2s\n    retries: 2\n",
            (
                "failsoft.yaml:5: downstreams.x.attempt_timeout: 3 attempts of 2 s with their back-offs need 6.9 s, "
                "more than the 5 s of downstreams.x.call_timeout (failsoft.yaml:4)"
            ),
        ),
        (
            "run: {budget: 4s}\ndownstreams:\n  x:\n    preset: data\n    attempt_timeout: 2s\n    retries: 2\n",
            (
                "failsoft.yaml:5: downstreams.x.attempt_timeout: 3 attempts of 2 s with their back-offs need 6.9 s, "
                "more than the 4 s of run.budget; or say capped_by_budget: true (failsoft.yaml:1)"
            ),
        ),
    ],
)
def test_what_outlasts_what_is_around_it_is_refused(told, text, error):
    assert told(text) == [error]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run: {budget: 7s}\noutside: {client: 8s, proxy: 10s}\n",
        "outside: {client: 10s, proxy: 10s}\n",
        "downstreams:\n  x: {call_timeout: 30s, capped_by_budget: true}\n",
        "downstreams:\n  x: {call_timeout: 8s}\n",
        "downstreams:\n  x: {preset: data, call_timeout: 7s, attempt_timeout: 2s, retries: 2}\n",
        "run: {budget: 2s, task_timeout: 1s}\n",  # presets may exceed it: the budget ends their calls
        "downstreams:\n  x: {preset: model}\n",
    ],
)
def test_what_fits_is_taken(told, text):
    assert told(text) == []


def test_routes_of_models_are_held_against_the_gateways_budget(told):
    route = (
        "models:\n  m:\n    routes:\n      r:\n        base_url: http://x/v1\n        guard:\n          call_timeout: "
    )
    assert told(route + "60s\n") == []
    (error,) = told(route + "61s\n")
    assert error.startswith(
        "failsoft.yaml:7: models.m.routes.r.guard.call_timeout: 61 s must not exceed the 60 s of gatew"
    )


def test_the_worst_case_counts_every_attempt_and_the_longest_back_offs():
    assert worst_case(2.0, 0, RetryPolicy()) == 2.0
    assert worst_case(2.0, 2, RetryPolicy(base=0.2, spread=0.1)) == pytest.approx(6.0 + 0.3 + 0.6)
    assert worst_case(1.0, 3, RetryPolicy(base=1.0, spread=0.0, cap=1.5)) == pytest.approx(4.0 + 1.0 + 1.5 + 1.5)
