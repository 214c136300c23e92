"""Numbers that are easily wrong: ties, units sold, rows that are totals, tables alike, a cache of another file."""

import os

import pytest
from tests.examples.asking import Asked

from failsoft.examples.analyst import data
from failsoft.examples.analyst.answer import lead
from failsoft.examples.analyst.grammar import QuestionError

BAKERY = """
    date,shop,item,count,takings
    2024-01-01,A,Brezel,10,12.5
    2024-01-01,B,Roll,7,5
    2024-01-02,A,Brezel,3,4
    2024-01-03,B,Brezel,5,6.2
    2024-01-03,A,Roll,8,5.5
"""
REGIONS = """
    region,revenue
    North,100
    South,200
    West,200
    East,50
    Total,550
"""


def said(asked: Asked, question: str) -> str:
    intent = asked.read(question)
    return lead(intent, profile=asked.profiles[intent.query.table], result=asked.result(question))


@pytest.fixture
def regions(tmp_path):
    return Asked(tmp_path, report=REGIONS)


@pytest.fixture
def bakery(tmp_path):
    return Asked(tmp_path, bakery=BAKERY)


def test_the_lowest_is_called_the_lowest(regions):
    told = said(regions, "which region has the lowest revenue?")
    assert told.startswith("East has the lowest total revenue: 50")
    assert "highest" not in told
    assert said(regions, "哪个region的revenue最低").startswith("revenue合计最低的是East")


def test_a_tie_is_told_also_beyond_the_limit(regions):
    question = "which region has the highest revenue?"
    assert said(regions, question).startswith("South and West (a tie) have the highest total revenue: 200")
    result = regions.result(question)
    assert result.rows == (("South", 200),)
    assert result.tied == (("West",),)
    assert [note.code for note in result.notes] == ["tie"]
    assert regions.result("top 2 regions by revenue").tied == ()
    assert "have the highest total revenue: 200; the lowest is East" in said(regions, "revenue per region")


@pytest.mark.parametrize(
    ("question", "truth"),
    [
        ("how many Brezel were sold", 18),
        ("how many Brezel", 18),
        ("how many Brezel did shop A sell", 13),
        ("how many items were sold", 33),
        ("wie viele Brezel wurden verkauft?", 18),
        ("Brezel卖了多少", 18),
        ("total count", 33),
        ("how many different items", 2),
        ("how many rows", 5),
    ],
)
def test_how_many_of_a_thing_is_the_sum_of_the_column_that_counts(bakery, question, truth):
    assert bakery.total(question) == truth


@pytest.mark.parametrize(
    "question", ["total revenue", "Total revenue", "revenue per region", "share of revenue per region"]
)
def test_rows_that_add_the_others_up_are_not_counted_twice(regions, question):
    result = regions.result(question)
    assert result.total == 550
    assert all("Total" not in row for row in result.rows)
    (note,) = regions.profiles["report"].notes[-1:]
    assert note.code == "totals"


def test_a_value_that_is_only_called_like_a_total_stays(tmp_path):
    fuels = Asked(tmp_path, fuels="station,litres\nAll,10\nShell,20\nTotalEnergies,40\n")
    assert fuels.total("total litres") == 70


def test_infinite_values_are_missing_and_said_to_be(tmp_path):
    lab = Asked(tmp_path, lab="sample,ratio\na,1.5\nb,inf\nc,2\nd,-Infinity\n")
    assert lab.total("average ratio") == 1.75
    assert lab.total("how many rows have a ratio above 1") == 2
    assert any("inf" in note.en for note in lab.profiles["lab"].notes)


def test_a_number_that_was_kept_as_text_is_no_reason_to_answer_another(tmp_path):
    lab = Asked(tmp_path, lab="sample,weight,ratio\na,1,1.5\nb,2,x?\nc,3,2\nd,4,2.5\n")
    with pytest.raises(QuestionError, match="kept as text") as caught:
        lab.read("average ratio")
    assert caught.value.code == "unknown_metric"
    assert caught.value.choices == ("weight",)


def test_tables_alike_are_asked_for_by_name(tmp_path):
    both = Asked(tmp_path, north_2024="day,takings\n2024-01-01,10\n", south_2024="day,takings\n2024-01-01,20\n")
    with pytest.raises(QuestionError) as caught:
        both.read("total takings")
    assert caught.value.code == "ambiguous"
    assert caught.value.choices == ("north_2024", "south_2024")
    assert both.total("total takings in south_2024") == 20
    assert both.total("total takings of north_2024") == 10


def test_a_table_that_fits_best_is_named_where_another_has_the_columns_too(tmp_path):
    both = Asked(tmp_path, a="day,shop,takings\n2024-01-01,Mitte,10\n", b="day,takings\n2024-01-01,20\n")
    intent = both.read("total takings in Mitte")
    assert intent.query.table == "a"
    assert not intent.unread
    assert both.read("takings per day in a").query.table == "a"


@pytest.mark.parametrize(
    "question",
    [
        "shops with average takings above 5",
        "shops whose total takings exceed 10",
        "average takings of shops with more than 2 rows",
        "how many shops have an average takings over 5",
    ],
)
def test_conditions_on_groups_are_refused_rather_than_taken_for_rows(bakery, question):
    with pytest.raises(QuestionError) as caught:
        bakery.read(question)
    assert caught.value.code == "not_supported"


@pytest.mark.parametrize("question", ["mean takings per day", "average daily takings", "average takings per month"])
def test_the_mean_per_day_says_that_it_is_that_of_rows(bakery, question):
    assert any("not the mean of its totals" in note for note in bakery.read(question).notes)


def test_the_cache_knows_a_file_by_its_contents(tmp_path):
    file = tmp_path / "sales.csv"
    file.write_text("a,b\nx,1\n")
    stat = file.stat()
    first = data.load_cached(file, cache=tmp_path / "cache")
    file.write_text("a,b\nx,2\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_mtime_ns == stat.st_mtime_ns
    second = data.load_cached(file, cache=tmp_path / "cache")
    assert second.database != first.database
    assert second.profile.column("b").maximum == 2
    assert data.load_cached(file, cache=tmp_path / "cache").database == second.database


def test_a_large_file_is_told_apart_by_its_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "HASHED_WHOLE", 16)
    monkeypatch.setattr(data, "_PIECE", 8)
    file = tmp_path / "sales.csv"
    file.write_text("a,b\n" + "x,1\n" * 20)
    stat = file.stat()
    first = data.load_cached(file, cache=tmp_path / "cache")
    file.write_text("a,b\n" + "x,1\n" * 19 + "x,2\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert data.load_cached(file, cache=tmp_path / "cache").database != first.database


def test_the_longest_trip_of_somebody_is_one_trip(tmp_path):
    fleet = Asked(
        tmp_path,
        fleet="trip_id,driver,distance_km,unit_cost\n1,Huber,400,3\n2,Huber,400,3\n3,Moser,500,9\n4,Moser,10,1\n",
    )
    assert fleet.rows("which driver had the longest trip") == (("Moser", 500),)
    assert fleet.rows("which driver had the shortest trip") == (("Moser", 10),)
    assert fleet.rows("most expensive driver") == (("Moser", 5),)  # the cost of one is no sum
