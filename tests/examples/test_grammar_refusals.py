"""Questions that cannot be answered as asked: each says what is wrong and what there is; nothing is guessed instead."""
# ruff: noqa: E501, SIM905 - the words of the last tests read better in lines of text.

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deep import depth
from tests.examples.grammars import TABLES, grammar

from failsoft.examples.analyst.grammar import MAX_QUESTION, Grammar, QuestionError, read_question
from failsoft.examples.analyst.spec import TableProfile

REFUSED = [
    ("sales", "average temperature by planet", "unknown_metric"),
    ("sales", "average revenue by planet", "unknown_column"),
    ("sales", "hello", "no_measure"),
    ("sales", "revenue in 2019", "period_out_of_range"),
    ("sales", "turnover in Narnia", "unknown_value"),
    ("zh", "火星的平均温度", "unknown_metric"),
    ("survey", "satisfaction in 2024", "no_time_column"),
    ("survey", "satisfaction over time", "no_time_column"),
    ("sales", "profit by region", "unknown_metric"),
    ("sales", "revenue by foo", "unknown_column"),
    ("sales", "average foo by region", "unknown_metric"),
    ("sales", "blorp", "unknown_metric"),
    ("sales", "average", "no_measure"),
    ("sales", "total", "no_measure"),
    ("zh", "各部门的销售额", "unknown_column"),
    ("zh", "库存按产品", "unknown_metric"),
    ("zh", "纳尼亚的销售额", "unknown_value"),
    ("zh", "2026年的销售额", "period_out_of_range"),
    ("zh", "你好", "no_measure"),
    ("zh", "国庆节的销售额", "unknown_value"),
    ("zh", "客户数", "unknown_metric"),
    ("flights", "flights on Christmas", "unknown_value"),
    ("flights", "number of planes", "unknown_metric"),
    ("flights", "what is the average delay in the morning", "unknown_value"),
    ("flights", "ratio of delayed flights", "not_supported"),
    ("hospital", "patients over 65 by gender", "ambiguous"),
    ("hospital", "emergency visits", "unknown_value"),
    ("energy", "water consumption by building", "unknown_value"),
    ("survey", "monthly income", "no_time_column"),
    ("survey", "youngest group", "unknown_metric"),
    ("pos", "Which branch made the most money in Q1 2024?", "unknown_metric"),
    ("pos", "bills over 150 by payment type", "ambiguous"),
    ("hr", "salary last year", "no_time_column"),
    ("hr", "who earns the most?", "no_measure"),
    ("immo", "average price of houses in Lyon", "unknown_value"),
    ("lib", "top 2 authors among children", "no_measure"),
    ("tel", "calls from Germany", "unknown_value"),
    ("tel", "calls longer than 10 minutes per country", "ambiguous"),
    ("farm", "fertilizer cost per crop", "unknown_value"),
    ("farm", "days with rain over 30", "not_supported"),
    ("air", "ozone by station", "unknown_metric"),
    ("bike", "平均骑行时长按会员类型", "unknown_value"),
    ("panel", "richest country", "unknown_metric"),
    ("tickets", "slowest team", "unknown_metric"),
    ("flights", "top 5 flights by distance", "not_supported"),
    ("sales", "how many new customers", "unknown_metric"),
    ("flights", "how many flights were diverted", "unknown_value"),
    ("sales", "orders shipped to Mars", "unknown_value"),
]


def outcome(read_with: Grammar, question: str) -> str:
    """What a question comes to: said back, or refused; anything else is a defect."""
    try:
        return read_with.read(question).reading
    except QuestionError as error:
        return error.code and error.message


def refusal(table: str, question: str) -> QuestionError:
    with pytest.raises(QuestionError) as caught:
        grammar(table).read(question)
    return caught.value


@pytest.mark.parametrize(("table", "question", "code"), REFUSED)
def test_question_is_refused_with(table, question, code):
    error = refusal(table, question)
    assert error.code == code
    assert error.param == "question"
    assert error.message == str(error)


def test_an_unknown_column_says_which_columns_there_are():
    error = refusal("survey", "average temperature by planet")
    assert "temperature" in error.message
    assert set(error.choices) >= {"ageGroup", "satisfactionScore", "HouseholdIncome"}
    assert all(choice in error.message for choice in error.choices)


def test_a_period_outside_says_which_days_there_are():
    error = refusal("flights", "average delay in 2015")
    assert error.choices == ("2013-01-01", "2013-12-31")
    assert "2013-01-01 to 2013-12-31" in error.message


def test_a_question_without_a_measure_is_answered_with_questions_that_work():
    error = refusal("sales", "hello")
    assert len(error.choices) >= 2
    for example in error.choices:
        assert grammar("sales").read(example)


def test_the_examples_of_every_table_can_be_asked():
    for name in TABLES:
        for greeting in ("hello", "你好"):
            for example in refusal(name, greeting).choices:
                assert grammar(name).read(example)


def test_an_unknown_value_of_a_column_says_which_values_there_are():
    error = refusal("sales", "revenue where region = Narnia")
    assert error.code == "unknown_value"
    assert error.choices == ("North", "South", "East", "West")


def test_errors_speak_the_language_of_the_question():
    assert refusal("zh", "各部门的销售额").message.startswith("没有名为“部门”的列")


@pytest.mark.parametrize("question", ["", "   ", "\n\t", "\u200b\u202e", "???", "…", "🙂"])
def test_an_empty_question_is_refused(question):
    assert refusal("sales", question).code == "empty_question"


@pytest.mark.parametrize(
    "question", ["a" * (MAX_QUESTION + 1), "x " * 600_000, "by it " * 1_600, "\ufdfa" * 9_000, "延误" * 4_900]
)
def test_a_long_question_is_refused_before_any_work_on_it(question):
    assert refusal("sales", question).code == "question_too_long"


def test_no_table_is_an_error():
    with pytest.raises(QuestionError) as caught:
        read_question("total revenue", [])
    assert caught.value.code == "no_table"


@pytest.mark.parametrize("profile", [TableProfile("t", 0, ()), TableProfile("数据", 1, ())])
@pytest.mark.parametrize(
    "question", ["total revenue", "how many rows", "top 5", "Q3 vs Q2", "describe", "各地区", "hello"]
)
def test_a_table_without_columns_is_survived(profile, question):
    assert outcome(Grammar([profile]), question)


HOSTILE = [
    "(" * 3_000,
    "((a+)+)+$ " * 200,
    "'; DROP TABLE orders; --",
    "revenue\x00\x07\x1b[31m by region",
    "\u202erevenue by region",
    "a\u0301" * 3_000,
    "revenue " + "\ud800",
    "2013-99-99 revenue",
    "revenue on 31 February 2025",
    "top 99999999999999999999 products by revenue",
    "revenue over 1e999",
    "last 99999 years revenue",
    "revenue over " + "9" * 400,
    "一" * 3_000,
    "revenue from Q3 to Q1 2024",
    "Q3 vs Q3",
]


@pytest.mark.parametrize("question", HOSTILE)
@pytest.mark.parametrize("table", ["sales", "zh", "flights", "survey", "panel"])
def test_hostile_text_gives_an_intent_or_a_typed_error(table, question):
    assert len(outcome(grammar(table), question)) < 5_000


WORDS = sorted(
    """revenue qty average total top 5 bottom worst highest per by each which region product carrier month monthly Q3 Q2 2025
    2013 2024 July May from to between and vs compare with difference change growth over under 60 >= = not excluding share unusual
    trend North JFK LGA United Widget of the in for Women 18-24 is was last this year before same 30 days , ? 各 按 的 销售额 最高
    第三季度 7月 比 同比 环比 从 到 超过 除了 占比 华东 延误 航空公司 哪个 三 个 月 异常 % - " '""".split()
)


@settings(max_examples=depth(100, 300), deadline=None)
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=25),
    st.sampled_from(sorted(TABLES)),
    st.sampled_from(["", " "]),
)
def test_any_order_of_known_words_gives_an_intent_or_a_typed_error(words, table, gap):
    assert outcome(grammar(table), gap.join(words))


@settings(max_examples=depth(66, 200), deadline=None)
@given(st.text(max_size=300), st.sampled_from(sorted(TABLES)))
def test_any_text_gives_an_intent_or_a_typed_error(text, table):
    assert outcome(grammar(table), text)
