"""Why a run was slow or degraded: the parts of its time, the limit that fired, who is to blame."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.app import App
from failsoft.config import Settings
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import RulesPlanner
from failsoft.telemetry.diagnosis import RunFacts, TaskFacts, diagnose, summarise
from failsoft.telemetry.timeline import Span
from failsoft.tools.python import tool


def attempt(task, downstream, start, end, code=None):
    return Span("attempt", task, downstream, start, end, code)


def queued(task, downstream, start, end):
    return Span("queue", task, downstream, start, end)


def refused(task, downstream, at, code, why=""):
    return Span("refused", task, downstream, at, at, code, why)


def facts(tasks, spans, *, elapsed=4.0, budget=5.0, status="degraded", **more):
    return RunFacts("r", status, elapsed, budget, tasks=tuple(tasks), spans=tuple(spans), **more)


# --- where the time went -------------------------------------------------------------------------------------------


def test_the_critical_chain_is_told_part_by_part():
    tasks = [
        TaskFacts("a", "fast", (), 0.5, 1.0),
        TaskFacts("b", "slow", (), 0.5, 3.0),
        TaskFacts("c", "chart", ("a", "b"), 3.1, 3.6),
    ]
    spans = [
        attempt("a", "fast", 0.5, 1.0),
        queued("b", "slow", 0.5, 0.9),
        attempt("b", "slow", 0.9, 1.4, "downstream_unavailable"),
        Span("backoff", "b", "slow", 1.4, 1.6),
        attempt("b", "slow", 1.6, 3.0),
        attempt("c", "chart", 3.1, 3.6),
    ]
    found = diagnose(facts(tasks, spans, door=0.1, planning=0.3, answer=0.2, status="completed"))
    assert [(part.what, part.downstream, round(part.seconds, 9)) for part in found.parts] == [
        ("door", None, 0.1),
        ("own", None, 0.4),
        ("planning", None, 0.3),
        ("queue", "slow", 0.4),
        ("downstream", "slow", 1.9),
        ("backoff", "slow", 0.2),
        ("downstream", "chart", 0.5),
        ("answer", None, 0.2),
    ]
    assert (found.downstream, found.nature) == ("slow", "slow")


TIMES = st.floats(0.0, 10.0)


@given(
    st.lists(
        st.tuples(TIMES, TIMES, st.lists(st.integers(0, 5), max_size=2), st.sampled_from([None, "attempt_timeout"])),
        max_size=6,
    ),
    st.lists(
        st.tuples(st.integers(0, 5), TIMES, TIMES, st.sampled_from(["queue", "attempt", "backoff", "refused"])),
        max_size=20,
    ),
    TIMES,
    TIMES,
    TIMES,
    TIMES,
)
def test_the_parts_always_sum_to_what_elapsed(tasks, spans, elapsed, door, planning, answer):
    made = [
        TaskFacts(str(i), f"d{i}", tuple(str(n) for n in needs if n < len(tasks)), min(a, b), max(a, b), reason)
        for i, (a, b, needs, reason) in enumerate(tasks)
    ]
    seen = [Span(what, str(i), f"d{i}", min(a, b), max(a, b)) for i, a, b, what in spans]
    found = diagnose(facts(made, seen, elapsed=elapsed, door=door, planning=planning, answer=answer))
    assert sum(part.seconds for part in found.parts) == pytest.approx(elapsed, abs=1e-9)
    assert all(part.seconds > 0 for part in found.parts)
    assert found.to_dict()["run_id"] == "r"


# --- who is to blame -----------------------------------------------------------------------------------------------


def test_a_downstream_that_gives_no_answer_is_slow():
    found = diagnose(
        facts([TaskFacts("a", "w", (), 0.0, 3.0, "attempt_timeout")], [attempt("a", "w", 0.0, 3.0, "attempt_timeout")])
    )
    assert (found.nature, found.downstream, found.limit) == ("slow", "w", "attempt")
    assert "no answer within its limit 1 times" in found.cause
    assert "w" in found.suggestion


def test_a_queue_without_permits_is_blocked_however_it_ends():
    for code in ("queue_timeout", "queue_full", "doomed", "evicted"):
        spans = [queued("a", "w", 0.0, 2.0), refused("a", "w", 2.0, code)]
        found = diagnose(facts([TaskFacts("a", "w", (), 0.0, 2.0, code)], spans))
        assert (found.nature, found.downstream) == ("blocked", "w"), code
        assert "permits" in found.suggestion


def test_an_answer_that_came_late_for_its_queue_is_blocked():
    spans = [queued("a", "w", 0.0, 3.0), attempt("a", "w", 3.0, 3.1)]
    found = diagnose(facts([TaskFacts("a", "w", (), 0.0, 3.1)], spans, status="completed", elapsed=3.2, budget=3.3))
    assert (found.nature, found.downstream) == ("blocked", "w")


def test_an_open_breaker_blames_what_opened_it():
    for why, nature in (("2 consecutive timeouts", "slow"), ("failure ratio 0.6 of 20", "failing")):
        spans = [refused("a", "w", 0.0, "breaker_open", why)]
        found = diagnose(facts([TaskFacts("a", "w", (), 0.0, 0.0, "breaker_open")], spans, elapsed=0.1))
        assert (found.nature, found.downstream) == (nature, "w")
        assert why in found.cause


def test_errors_are_failures_and_not_slowness():
    spans = [attempt("a", "w", 0.0, 0.1, "downstream_unavailable"), attempt("a", "w", 0.3, 0.4, "downstream_error")]
    found = diagnose(facts([TaskFacts("a", "w", (), 0.0, 0.4, "downstream_error")], spans))
    assert (found.nature, found.downstream) == ("failing", "w")


def test_what_had_eaten_the_budget_before_the_limit_fired_is_told_largest_first():
    tasks = [TaskFacts("a", "first", (), 0.0, 3.0), TaskFacts("b", "last", ("a",), 3.0, 4.0, "deadline_exceeded")]
    spans = [attempt("a", "first", 0.0, 3.0), attempt("b", "last", 3.0, 4.0, "task_timeout")]
    found = diagnose(facts(tasks, spans))
    assert found.limit == "task"
    assert [(part.downstream, part.seconds) for part in found.before] == [("first", 3.0), ("last", 1.0)]


def test_a_slow_planner_and_a_good_run_blame_nobody():
    slow = diagnose(facts([TaskFacts("a", "w", (), 3.0, 3.1)], [], planning=3.0, elapsed=3.2, status="completed"))
    assert (slow.nature, slow.downstream) == ("planning", None)
    good = diagnose(
        facts([TaskFacts("a", "w", (), 0.0, 0.1)], [attempt("a", "w", 0.0, 0.1)], elapsed=0.1, status="completed")
    )
    assert "nothing" in good.suggestion


def test_a_window_counts_only_runs_that_fell_short():
    bad = diagnose(
        facts([TaskFacts("a", "w", (), 0.0, 3.0, "attempt_timeout")], [attempt("a", "w", 0.0, 3.0, "attempt_timeout")])
    )
    good = diagnose(facts([], [], elapsed=1.0, status="completed"))
    window = summarise([bad, good, bad], 900.0)
    assert window.to_dict()["blamed"] == [{"downstream": "w", "nature": "slow", "runs": 2}]
    assert window.statuses == {"degraded": 2, "completed": 1}
    assert sum(window.spent.values()) == pytest.approx(1.0)
    assert summarise([], 900.0).to_dict()["runs"] == 0


# --- of real runs --------------------------------------------------------------------------------------------------


@tool(downstream="steady")
async def steady() -> int:
    """Answers in a tenth of a second."""
    await asyncio.sleep(0.1)
    return 1


@tool(downstream="sick")
async def sick() -> int:
    """Answers in 20 s."""
    await asyncio.sleep(20.0)
    return 2


@tool(downstream="narrow")
async def narrow() -> int:
    """Takes a second, for one at a time."""
    await asyncio.sleep(1.0)
    return 3


def one_of_each(second):
    plan = Plan(tasks=(TaskSpec(id="ok", tool="steady"), TaskSpec(id="other", tool=second)))
    return Agent("a", "Two things.", tools=[steady, sick, narrow], planners=[RulesPlanner(lambda _: plan)])


async def test_a_run_whose_downstream_hangs_blames_it():
    async with App(Settings(), agents=[one_of_each("sick")], store="off") as app:
        result = await app.ask("two", budget=3.0)
        handle = app.run(result.run_id)
        assert handle is not None
        found = app.diagnosis(handle)
        window = await app.diagnosis_of_last(60.0)
    assert result.degraded
    assert (found.nature, found.downstream) == ("slow", "sick")
    assert sum(part.seconds for part in found.parts) == pytest.approx(result.elapsed)
    assert [(name, nature) for name, nature, _ in window.blamed] == [("sick", "slow")]


async def test_runs_that_wait_for_permits_are_blocked():
    settings = Settings.model_validate({"downstreams": {"narrow": {"permits": 1, "queue": 100}}})
    async with App(settings, agents=[one_of_each("narrow")], store="off") as app:
        results = await asyncio.gather(*(app.ask("two", budget=3.0) for _ in range(12)))
        degraded = [one for one in results if one.degraded]
        found = [app.diagnosis(app.run(one.run_id)) for one in degraded]
    assert len(degraded) >= 8
    assert {(one.nature, one.downstream) for one in found} == {("blocked", "narrow")}


async def test_nothing_of_a_call_is_kept_but_what_is_told():
    settings = Settings.model_validate({"downstreams": {"narrow": {"permits": 1, "queue": 0}}})
    async with App(settings, agents=[one_of_each("narrow")], store="off") as app:
        await asyncio.gather(*(app.ask("two", budget=3.0) for _ in range(3)))
        kept = [span for handle in app.known_runs() for span in app._timeline.spans(handle.run_id)]
    assert {span.what for span in kept} >= {"attempt", "refused"}
    assert {type(value) for span in kept for value in span} <= {str, float, type(None)}
