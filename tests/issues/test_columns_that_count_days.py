"""A column *days* was taken for a part of a date: sums of it were sums of another column, with a note."""

import pytest
from tests.examples.test_grammar_readings import in_a_line

from failsoft.examples.analyst.grammar import Grammar
from failsoft.examples.analyst.spec import Column, TableProfile


def table(*numbers):
    return Grammar(
        [
            TableProfile(
                "loans",
                432,
                (
                    Column("lent", "time", "DATE", minimum="2022-01-04", maximum="2022-12-27", grain="day"),
                    Column("genre", "category", "VARCHAR", 2, values=("crime", "poetry"), values_complete=True),
                    *(Column(name, "number", "BIGINT", 20, minimum=low, maximum=high) for name, low, high in numbers),
                ),
                time_column="lent",
            )
        ]
    )


LOANS = table(("days", 3.0, 28.0), ("fee", 0.0, 9.0))
LAST = "[2022-12-18 to 2022-12-27|2022-12-18..2022-12-28]"


@pytest.mark.parametrize(
    ("question", "read"),
    [
        ("average days per genre", "mean(days) by genre [bar/en]"),
        ("total days", "sum(days) [None/en]"),
        ("how many days per genre", "sum(days) by genre [bar/en]"),
        ("which genre has the most days", "sum(days) by genre desc limit 1 [bar/en]"),
        ("days per month", "sum(days) by lent:month [line/en]"),
        ("days in the last 10 days", f"sum(days) in {LAST} [None/en]"),
        ("average fee per day", "mean(fee) by lent:day [line/en]"),
        ("mean fee over the last 10 days", f"mean(fee) in {LAST} [None/en]"),
        ("which day had the most days", "sum(days) by lent:day desc limit 1 [bar/en]"),
        ("the busiest day", "count(*) by lent:day desc limit 1 [bar/en]"),
    ],
)
def test_a_column_that_counts_days_is_a_measure_and_the_day_is_not(question, read):
    intent = LOANS.read(question)
    assert in_a_line(intent) == read
    assert not any("fee" in note for note in intent.notes)


@pytest.mark.parametrize(
    ("column", "low", "high", "measure"),
    [
        ("hours", 0.0, 40.0, True),
        ("years", 1.0, 30.0, True),
        ("years", 1990.0, 2024.0, False),
        ("year", 2019.0, 2024.0, False),
        ("month", 1.0, 12.0, False),
        ("month", 0.0, 900.0, True),
        ("天数", 1.0, 30.0, True),
    ],
)
def test_what_a_number_of_time_is_shows_in_its_name_and_its_values(column, low, high, measure):
    grammar = table((column, low, high), ("fee", 0.0, 9.0))
    read = in_a_line(grammar.read(f"total {column} per genre"))
    assert (f"sum({column}) by genre" in read) is measure
