import math
import time

import pytest
from tests.runs.worlds import plan, task

from failsoft.base.outcomes import Outcome, Provenance
from failsoft.runs.answer import Answer, Parts, build, generic_answer, shortfalls
from failsoft.runs.plan import Plan
from failsoft.runs.planner import PlanRequest, language_of
from failsoft.runs.reasons import REASONS, age_text, clock_text, reason_text, sentence


def outcome(value, **marks):
    return Outcome(value, Provenance(**{"requested": "w", "served": "w", **marks}))


def missing(reason):
    return outcome(None, served=None, rung="skipped", reason=reason, equivalent=False)


def parts_of(made, outcomes, text="question"):
    language = language_of(text)
    return Parts(PlanRequest(text, language=language), made, outcomes, shortfalls(made, outcomes, language))


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("hello", "en"),
        ("各地区第三季度的收入", "zh"),
        ("把 revenue by region 画成图表", "zh"),
        ("12 + 5?", "en"),
        ("", "en"),
    ],
)
def test_the_language_is_that_of_the_question(text, language):
    assert language_of(text) == language


PLAN = plan(task("a", title="Query"), task("b", needs=["a"], title="Chart"))


def test_no_outcome_at_all_still_gives_an_answer():
    for made in (None, PLAN):
        answer, _, failed = build(parts_of(made, {}), None)
        assert answer.text
        assert failed is None


def test_only_the_ends_of_a_complete_plan_are_shown():
    text = generic_answer(parts_of(PLAN, {"a": outcome([1, 2]), "b": outcome("drawn")})).text
    assert text == "**Chart**: drawn"


def test_when_the_end_is_missing_what_led_to_it_is_shown_and_why():
    answer, _, _ = build(parts_of(PLAN, {"a": outcome(42.5), "b": missing("call_timeout")}), None)
    assert "**Query**: 42.5" in answer.text
    assert "“Chart” is missing: it did not answer in time." in answer.text


def test_shortfalls_say_what_is_missing_stale_substituted_or_doubtful_in_both_languages():
    made = plan(*(task(name) for name in "abcdef"))
    outcomes = {
        "a": missing("queue_full"),
        "b": outcome(1, age=3700.0, reason="breaker_open", rung="stale"),
        "c": outcome(1, equivalent=False, reason="call_timeout", rung="alternate"),
        "d": outcome(1, truncated=True),
        "e": outcome(1, suspicious=True),
        "f": outcome(1),
    }
    found = shortfalls(made, outcomes, "en")
    assert [(one.task, one.kind, one.reason) for one in found] == [
        ("a", "missing", "queue_full"),
        ("b", "stale", "breaker_open"),
        ("c", "substituted", "call_timeout"),
        ("d", "truncated", "truncated"),
        ("e", "suspicious", "empty_result"),
    ]
    assert found[1].text == (
        "“b” is from 1 h ago and may be out of date: it has been failing and is being left alone for now."
    )
    chinese = build(parts_of(made, outcomes, "多少？"), None)[0].text
    assert "这个回答不完整" in chinese
    assert "“a”缺失：等待它的请求过多。" in chinese
    assert "1 小时前的结果，可能已过时" in chinese


def test_every_reason_has_words_in_both_languages_and_unknown_ones_are_named():
    for reason, (english, chinese) in REASONS.items():
        assert english.isascii()
        assert not chinese.isascii()
        assert reason_text(reason, "en") == english
    assert reason_text("new_code", "zh") == "new code"
    assert age_text(30, "en") == "30 s"
    assert sentence("x", "stale", "doomed", 90000, "en").startswith("“x” is from 1 days ago")


@pytest.mark.parametrize(
    "value",
    [
        None,
        math.nan,
        -math.inf,
        -5,
        10**400,
        1e300,
        "",
        "text",
        b"bytes",
        [],
        {},
        [math.nan, None],
        [{"a": math.nan, "b": -1}, {"a": None, "c": "x|y"}],
        [{}],
        {"k": [1, 2, {"z": 1}]},
        object(),
        ["x" * 100_000] * 100,
        [{"a": i} for i in range(100_000)],
    ],
)
def test_any_value_can_be_shown_quickly(value):
    made = plan(task("a"))
    parts = parts_of(made, {"a": outcome(value)})
    start = time.process_time()
    answer, _, failed = build(parts, None)
    assert time.process_time() - start < 0.1  # 15 ms on a machine that does nothing else
    assert answer.text
    assert failed is None
    assert len(answer.text) < 20_000


def test_a_value_that_cannot_even_be_printed_costs_only_itself():
    class Bad:
        def __repr__(self):
            raise RuntimeError

    made = plan(task("a"), task("b"))
    assert generic_answer(parts_of(made, {"a": outcome(Bad()), "b": outcome(1)})).text == "**a**: ?\n\n**b**: 1"


def test_an_agents_answer_is_completed_by_the_shortfalls_unless_it_says_them_itself():
    parts = parts_of(PLAN, {"a": outcome(1)})
    added, _, _ = build(parts, lambda parts: Answer("mine"))
    assert added.text.startswith("mine\n\n**This answer is not complete:**")
    kept, _, _ = build(parts, lambda parts: Answer("mine", says_shortfalls=True))
    assert kept.text == "mine"


def test_parts_give_values_and_name_what_is_missing():
    parts = parts_of(PLAN, {"a": outcome(None), "b": missing("doomed")})
    assert parts.values == {"a": None}
    assert parts.missing == ("b",)
    assert parts.value("b", "default") == "default"
    assert Parts(PlanRequest("x")).missing == ()
    assert parts.degraded


def test_the_reading_comes_first():
    made = Plan(tasks=(task("a"),), reading="Revenue by region")
    assert generic_answer(parts_of(made, {"a": outcome(1)})).text == "Revenue by region\n\n**a**: 1"


# --- provenance ------------------------------------------------------------------------------------------------------


def test_a_stale_part_says_what_moment_it_is_of_in_text_and_structure_in_both_languages():
    made = plan(task("a", title="Revenue"))
    outcomes = {"a": outcome(1, age=300.0, reason="call_timeout", rung="stale")}
    now = 1_760_000_000.0  # 2025-10-09 08:53:20 UTC
    (found,) = shortfalls(made, outcomes, "en", now=now)
    assert found.text == ("“Revenue” is as of 08:48 UTC, 5 min ago, and may be out of date: it did not answer in time.")
    assert (found.as_of, found.to_dict()["as_of"], found.age) == (now - 300, now - 300, 300.0)
    (chinese,) = shortfalls(made, outcomes, "zh", now=now)
    assert chinese.text == "“Revenue”截至 08:48 UTC（5 分钟前），可能已过时：没有及时响应。"
    assert clock_text(now - 86_400, now) == "2025-10-08 08:53 UTC"
    assert clock_text(-1e300, now) == "?"


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        [None, None],
        [-1, -2.5],
        [math.nan, math.inf, -math.inf],
        [10**5000, -(10**5000)],
        [{"n": -1}, {"n": math.nan}, {"n": 10**400}, {}],
        [[1, 2], [3]],
        {"a": [], "b": None, "c": -math.inf},
        [{"a|b": "x|y\nz"}] * 50,
        {i: i for i in range(1000)},
    ],
)
@pytest.mark.parametrize("missing_too", [False, True])
def test_whatever_partial_results_hold_there_is_an_answer_in_moments(value, missing_too):
    made = plan(task("a", title="Parts"), task("b"))
    outcomes = {"a": outcome(value, truncated=True, reason="not_started")}
    if missing_too:
        outcomes["b"] = missing("deadline_exceeded")
    start = time.process_time()
    answer, _, failed = build(parts_of(made, outcomes), None)
    assert time.process_time() - start < 0.1  # 15 ms on a machine that does nothing else
    assert failed is None
    assert "“Parts” is incomplete: there was no time left to start it." in answer.text
    assert "nan" not in answer.text
    assert "inf" not in answer.text.replace("information", "")
    assert len(answer.text) < 20_000
