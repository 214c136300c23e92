"""Codes for strict callers: a table from results to HTTP statuses."""

import asyncio

import pytest
from tests.runs.worlds import app, plan, task

from failsoft.base.errors import BadInput, BreakerOpen, RunCancelled, ToolFailed
from failsoft.runs.answer import Shortfall
from failsoft.runs.result import RunResult
from failsoft.runs.state import RunState
from failsoft.runs.strict import http_status
from failsoft.tools.python import tool


def shortfall(task, reason, kind="missing", *, essential=True):
    return Shortfall(task, task, kind, reason, f"{task}: {reason}", essential=essential)


def degraded(*shortfalls):
    return RunResult("r", "a", RunState.DEGRADED, "text", shortfalls=shortfalls)


def failed(error):
    return RunResult("r", "a", RunState.FAILED, error=error)


def test_an_answer_is_200_for_whoever_is_not_strict():
    assert http_status(RunResult("r", "a", RunState.COMPLETED, "text")) == (200, None, None, None, None)
    assert http_status(degraded(shortfall("a", "call_timeout"))).status == 200
    assert http_status(RunResult("r", "a", RunState.COMPLETED, "text"), strict=True).to_dict() is None


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("attempt_timeout", 504),
        ("call_timeout", 504),
        ("task_timeout", 504),
        ("deadline_exceeded", 504),
        ("idle_timeout", 504),
        ("not_started", 504),
        ("doomed", 504),
        ("unaffordable", 504),
        ("breaker_open", 503),
        ("queue_full", 503),
        ("rate_limited", 503),
        ("downstream_unavailable", 503),
        ("downstream_error", 503),
        ("tool_failed", 503),
        ("shutting_down", 503),
        ("no code at all", 503),
    ],
)
def test_strict_callers_get_504_for_time_and_503_for_all_else(reason, status):
    got = http_status(degraded(shortfall("a", reason)), strict=True)
    assert (got.status, got.code, got.task) == (status, reason, "a")
    assert got.to_dict() == {"code": reason, "task": "a", "message": f"a: {reason}", "retry_after": None}


def test_the_cause_is_what_failed_by_itself_essential_before_optional():
    got = http_status(
        degraded(
            shortfall("extra", "unaffordable", essential=False),
            shortfall("end", "dependency_failed"),
            shortfall("start", "breaker_open"),
        ),
        strict=True,
    )
    assert (got.status, got.task) == (503, "start")
    only = http_status(degraded(shortfall("extra", "unaffordable", essential=False)), strict=True)
    assert (only.status, only.task) == (504, "extra")


@pytest.mark.parametrize(
    ("error", "loose", "strict"),
    [
        (BadInput("no"), 400, 400),
        (BreakerOpen("no", retry_after=3.0), 503, 503),
        (ToolFailed("no"), 502, 503),
        (RunCancelled("no"), 499, 499),
    ],
)
def test_a_run_without_an_answer_gives_its_errors_status(error, loose, strict):
    assert http_status(failed(error)).status == loose
    got = http_status(failed(error), strict=True)
    assert (got.status, got.code, got.retry_after) == (strict, error.code, error.retry_after)


def test_an_end_without_an_error_has_a_status_all_the_same():
    assert http_status(RunResult("r", "a", RunState.EXPIRED)).status == 504
    assert http_status(RunResult("r", "a", RunState.FAILED)).status == 500
    assert http_status(degraded(), strict=True).status == 503


async def test_a_real_run_whose_tool_hangs_is_504_and_whose_tool_fails_503():
    @tool(kind="external")
    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    async with app(plan(task("a", "stuck"), task("b", needs=["a"])), tools=[stuck]) as running:
        late = await running.ask("question", budget=1)
    async with app(plan(task("a", "broken"), task("b", needs=["a"]))) as running:
        broken = await running.ask("question", budget=1)
    assert (http_status(late).status, http_status(late, strict=True)[:3]) == (200, (504, "deadline_exceeded", "a"))
    assert (http_status(broken).status, http_status(broken, strict=True)[:3]) == (200, (503, "tool_failed", "a"))
