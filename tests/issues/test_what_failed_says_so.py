"""A task that nothing served had no error of its own in the run's JSON: code and text were in its provenance only."""

import pytest
from tests.runs.worlds import app, plan, task

from failsoft.base.outcomes import Outcome, Provenance, RungTried
from failsoft.runs.result import RunRequest, why_missing


async def test_the_error_of_the_first_choice_is_the_tasks():
    async with app(plan(task("a", "broken"), task("b"))) as one:
        result = (await one.start(RunRequest("how much", budget_ms=5000)).result()).to_dict()
    failed, served = result["tasks"]
    assert failed["provenance"]["served"] is None
    assert failed["error"]["code"] == failed["provenance"]["reason"] == "tool_failed"
    assert failed["error"]["message"] == "RuntimeError was raised"
    assert served["error"] is None


@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        ("breaker_open", "", ("breaker_open", "breaker open")),
        ("judged_wrong", "too short", ("tool_failed", "too short")),
        ("judged_wrong", "", ("tool_failed", "judged wrong")),
    ],
)
def test_a_reason_that_is_no_errors_code_is_told_as_its_text(code, message, told):
    tried = (RungTried("lookup", code, message), RungTried("default", "tool_failed", "no"))
    error = why_missing(Outcome(None, Provenance(requested="lookup", served=None, reason=code, tried=tried)))
    assert error is not None
    assert (error.code, error.message) == told


def test_what_was_served_or_never_begun_has_no_error():
    tried = (RungTried("lookup", "breaker_open"),)
    assert why_missing(None) is None
    assert why_missing(Outcome(None, Provenance(requested="lookup", served=None, reason="not_started"))) is None
    assert why_missing(Outcome(1, Provenance(requested="lookup", served="default", tried=tried))) is None
