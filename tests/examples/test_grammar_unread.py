"""Words that may change the numbers are read or refused, never left out; a column's own name is always understood."""

import pytest

from failsoft.examples.analyst.grammar import Grammar, QuestionError
from failsoft.examples.analyst.spec import Column, TableProfile


def number(name: str, kind: str = "DOUBLE", **more) -> Column:
    return Column(name, "number", kind, distinct=50, minimum=0.0, maximum=300.0, **more)


def category(name: str, *values: str) -> Column:
    return Column(name, "category", "VARCHAR", distinct=len(values), values=values, values_complete=True)


def day(name: str) -> Column:
    return Column(name, "time", "DATE", distinct=200, minimum="2024-01-01", maximum="2024-12-31", grain="day")


def table(name: str, *columns: Column) -> Grammar:
    time = next((c.name for c in columns if c.role == "time"), None)
    return Grammar([TableProfile(name, 300, columns, time_column=time)])


INN = table(
    "restaurant",
    day("Visit Date"),
    category("Waiter", "Anna", "Ben", "Carla"),
    Column("Table No", "identifier", "BIGINT", distinct=12),
    category("Dish", "Pasta", "Steak", "Soup"),
    category("Meal", "lunch", "dinner"),
    number("Guests", "BIGINT"),
    number("Bill"),
    number("Tip"),
)
FREIGHT = table(
    "物流",
    day("发货日期"),
    category("承运商", "顺丰", "中通", "德邦"),
    category("仓库", "东莞仓", "武汉仓"),
    number("重量（公斤）", unit="公斤", aliases=("重量",)),
    number("运费"),
    category("是否延误", "是", "否"),
)
BRANCHES = table(
    "filialen", day("Datum"), category("Filiale", "Mitte", "Nord", "Ost"), number("Umsatz"), number("Menge", "BIGINT")
)
WEB = table("web", day("date"), category("channel", "email", "ads"), number("sessions", "BIGINT"), number("signups"))
ODD = table(
    "odd",
    category("Level", "High", "Low", "First"),
    category("Line", "A1", "Other"),
    category("Case", "K1", "K2"),
    number("Best", "BIGINT"),
    number("Bar", "BIGINT"),
    number("a"),
)


def refusal(grammar: Grammar, question: str) -> QuestionError:
    with pytest.raises(QuestionError) as caught:
        grammar.read(question)
    return caught.value


@pytest.mark.parametrize(
    ("grammar", "question", "code"),
    [
        # numbers
        (INN, "total bill for 7", "not_supported"),
        (INN, "bill of Anna 1500", "not_supported"),
        # negations
        (INN, "total bill without a tip", "not_supported"),
        (INN, "guests neither at breakfast nor outside", "unknown_value"),
        # an order of values, parts of periods
        (INN, "second highest bill", "not_supported"),
        (INN, "bill in the first week of March", "not_supported"),
        (FREIGHT, "第二高的运费", "not_supported"),
        # statistics that are not computed, arithmetic of two columns
        (INN, "standard deviation of the bill", "not_supported"),
        (INN, "correlation between guests and bill", "not_supported"),
        (FREIGHT, "运费的标准差", "not_supported"),
        (INN, "cumulative bill per month", "not_supported"),
        (INN, "total bill minus tip", "not_supported"),
        (INN, "tip as a percentage of the bill per waiter", "not_supported"),
        (FREIGHT, "运费与重量的比例", "not_supported"),
        # quotients
        (INN, "average bill per guest", "not_supported"),
        (FREIGHT, "每公斤运费", "not_supported"),
        # conditions on totals, the first of each group
        (INN, "waiters with a total bill above 1000", "not_supported"),
        (FREIGHT, "哪些承运商的总运费超过5000", "not_supported"),
        (INN, "top 2 dishes for each waiter by bill", "not_supported"),
        (FREIGHT, "每个仓库运费最高的承运商", "not_supported"),
        # a noun behind a column's name, a group that is not there, a person that is not there
        (WEB, "average session duration per channel", "unknown_metric"),
        (INN, "tip rate by waiter", "unknown_metric"),
        (FREIGHT, "各省的运费", "unknown_column"),
        (WEB, "who got the highest signups?", "not_supported"),
        (WEB, "signups per Kunde", "unknown_column"),
        # rates within groups, quotients of columns with many values
        (FREIGHT, "各承运商延误占比", "not_supported"),
        (INN, "bill per tip", "not_supported"),
        # none of, numbers in letters, shapes
        (INN, "visits with no tip", "not_supported"),
        (INN, "ten highest bills", "not_supported"),
        (INN, "bill distribution", "not_supported"),
        (FREIGHT, "运费低于5的有几天", "not_supported"),
    ],
)
def test_what_may_change_the_numbers_is_refused_rather_than_left_out(grammar, question, code):
    error = refusal(grammar, question)
    assert error.code == code
    assert error.message
    assert "\n" not in error.message


def read(grammar: Grammar, question: str) -> str:
    query = grammar.read(question).query
    text = f"{query.measure.aggregate} {query.measure.column or 'rows'}"
    text += "".join(f" by {g.grain or g.column}" for g in query.group_by)
    text += "".join(f" [{f.column} {f.op} {f.value}]" for f in query.filters)
    return text + (f" {query.order} {query.limit}" if query.limit else "")


@pytest.mark.parametrize(
    ("grammar", "question", "reading"),
    [
        # the table's own noun is a column: a row is not one of those
        (BRANCHES, "top 2 Filiale by Menge in March", "sum Menge by Filiale desc 2"),
        (BRANCHES, "bottom 2 Filialen by Umsatz", "sum Umsatz by Filiale asc 2"),
        (BRANCHES, "how many Filialen are there?", "count_distinct Filiale"),
        # names made of little words
        (INN, "total bill for table 7", "sum Bill [Table No = 7]"),
        (INN, "total bill for tables 3, 4 and 9", "sum Bill [Table No in [3, 4, 9]]"),
        (INN, "total bill per table", "sum Bill by Table No"),
        (INN, "how many rows are in the table?", "count rows"),
        (ODD, "average Bar per Level", "mean Bar by Level"),
        (ODD, "Best where Level is Low", "sum Best [Level = Low]"),
        (ODD, "Best for Line Other", "sum Best [Line = Other]"),
        (ODD, "how many cases", "count_distinct Case"),
        (ODD, "total a", "sum a"),
        (ODD, "sum of a per Level", "sum a by Level"),
        # equal to a number
        (INN, "how many visits had a tip of 0?", "count rows [Tip = 0]"),
        (INN, "bill when guests is 2", "sum Bill [Guests = 2]"),
        (FREIGHT, "重量在10到20公斤之间的运费", "sum 运费 [重量（公斤） >= 10] [重量（公斤） <= 20]"),
        # amounts in the plural are counted, not added
        (INN, "How many bills were above 200?", "count rows [Bill > 200]"),
        (INN, "how many tips did Anna get?", "count rows [Waiter = Anna]"),
        (INN, "how many guests in Q2", "sum Guests"),
        (FREIGHT, "运费大于100且重量小于20的有多少", "count rows [运费 > 100] [重量（公斤） < 20]"),
        # negations that are read
        (FREIGHT, "不延误的平均运费", "mean 运费 [是否延误 = 否]"),
        (INN, "tips neither from Anna nor Ben", "sum Tip [Waiter not in ['Anna', 'Ben']]"),
        # who did something is counted, not what they did
        (INN, "how many waiters had visits in May", "count_distinct Waiter"),
        (INN, "how many Anna visits in May", "count rows [Waiter = Anna]"),
        # a part of a date's name is no thing of its own
        (FREIGHT, "延误的运单有多少", "count rows [是否延误 = 是]"),
        # all values whose share is asked for stay among the groups
        (FREIGHT, "顺丰或中通的运费占总数多少", "sum 运费 by 承运商"),
        (INN, "share of tips from Anna and Ben", "sum Tip by Waiter"),
        (BRANCHES, "Umsatz pro Monat", "sum Umsatz by month"),
        (INN, "who got the most tips?", "sum Tip by Waiter desc 1"),
    ],
)
def test_columns_and_conditions_are_understood(grammar, question, reading):
    assert read(grammar, question) == reading


def test_the_mean_of_each_day_is_said_not_to_be_that_of_daily_totals():
    assert any("not the mean of its totals" in note for note in INN.read("average daily bill").notes)
    assert FREIGHT.read("平均每天运费").notes
    assert not any("totals" in note for note in INN.read("total bill per day").notes)


def test_a_typing_error_is_never_read_as_something_that_the_table_does_not_have():
    assert refusal(WEB, "water signups").code == "unknown_value"  # not waiters
    assert INN.read("averge bill by waitr").query.measure.aggregate == "mean"
