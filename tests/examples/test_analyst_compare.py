"""Changes are what subtraction says, and nothing is called unusual without a yardstick."""

import datetime as dt
import json
import math
import random
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.examples.analyst import anomaly, compare, data, query, sales
from failsoft.examples.analyst.anomaly import Judgement, unusual, unusual_points
from failsoft.examples.analyst.compare import Comparison, changes
from failsoft.examples.analyst.query import Result, ResultColumn
from failsoft.examples.analyst.spec import Group, Measure, Period, Query, from_dict, to_dict

NOW, BEFORE = (
    Period("d", dt.date(2024, 7, 1), dt.date(2024, 10, 1), "Q3"),
    Period("d", dt.date(2024, 4, 1), dt.date(2024, 7, 1), "Q2"),
)


def result(
    values: dict[Any, Any],
    *,
    aggregate: Any = "sum",
    period: Period | None = None,
    grain: Any = None,
    total: Any = None,
) -> Result:
    """An answer grouped by ``g`` (and by time, where a grain is given)."""
    keys = [k if isinstance(k, tuple) else (k,) for k in values]
    width = len(keys[0]) if keys else 1
    groups = [ResultColumn(f"g{i}", "group", f"g{i}") for i in range(width - bool(grain))]
    groups += [ResultColumn("d", "group", "d", grain)] if grain else []
    asked = Query("t", Measure(aggregate, "x"), tuple(Group(c.name, c.grain) for c in groups), period=period)
    return Result(
        columns=(*groups, ResultColumn("x", "value", "x", aggregate=aggregate)),
        rows=tuple((*k, v) for k, v in zip(keys, values.values(), strict=True)),
        counts=(1,) * len(values),
        total=sum(v for v in values.values() if v is not None) if total is None else total,
        row_count=len(values), missing=0, groups=len(values), truncated=False,
        sql="", parameters=(), table="t", source="", executed_at="",
        query=asked,
    )  # fmt: skip


values = st.dictionaries(
    st.sampled_from([*"abcdefgh", None]),
    st.none() | st.integers(-100, 100) | st.integers(-(10**5), 10**5).map(lambda n: n / 100),
)


@given(values, values)
def test_changes_are_differences_and_never_divisions_by_zero(left, right):
    compared = changes(result(left, period=NOW), result(right, period=BEFORE))
    assert [c.key[0] for c in compared.rows] == list(dict.fromkeys([*left, *right]))
    for change in compared.rows:
        key = change.key[0]
        value, reference = left.get(key), right.get(key)
        assert (change.value, change.reference) == (value, reference)
        assert change.status == ("both" if key in left and key in right else "new" if key in left else "vanished")
        if value is None or reference is None:
            assert change.difference is change.percent is None
            assert change.reason is not None
        else:
            assert change.difference == round(value - reference, 2)
            assert (change.percent is None) == (reference == 0)
            assert (change.reason == "reference_zero") == (reference == 0)
            if reference:
                assert math.isclose(change.percent, (value - reference) / abs(reference), rel_tol=1e-9, abs_tol=1e-12)
    assert from_dict(Comparison, json.loads(json.dumps(to_dict(compared)))) == compared


@given(values, values)
def test_judging_anything_gives_finite_marks_or_says_that_it_cannot(left, right):
    compared = changes(result(left, period=NOW), result(right, period=BEFORE))
    judgement = unusual(compared)
    assert judgement.judged == (sum(c.difference is not None for c in compared.rows) >= anomaly.MIN_GROUPS)
    assert judgement.judged or {n.code for n in judgement.notes} == {"not_judged"}
    for mark in judgement.marks:
        assert math.isfinite(mark.score)
        assert not mark.usual[0] <= mark.observed <= mark.usual[1]
    assert from_dict(Judgement, json.loads(json.dumps(to_dict(judgement)))) == judgement


def test_subtraction_has_no_binary_noise():
    assert compare.subtract(0.3, 0.1) == 0.2
    assert compare.subtract(1234.56, 1000.11) == 234.45
    assert isinstance(compare.subtract(5, 3), int)


def test_what_is_not_alike_or_no_number_is_refused():
    with pytest.raises(ValueError, match="not grouped alike"):
        changes(result({"a": 1}), result({("2024-01",): 1}, grain="month"))
    with pytest.raises(ValueError, match="only numbers"):
        changes(result({"a": "2024-01-01"}, total=0), result({"a": 1}))


def test_nan_is_missing_and_not_a_number_to_compare():
    (change,) = changes(result({"a": math.nan}, total=0), result({"a": 1})).rows
    assert (change.value, change.difference, change.reason) == (None, None, "value_missing")


def test_ranking_by_change_comes_after_comparing():
    left, right = result({"a": 10, "b": 50, "c": 3, "new": 99}), result({"a": 1, "b": 49, "c": 30})
    assert [c.key[0] for c in changes(left, right, rank="change", order="desc").rows] == ["a", "b", "c", "new"]
    assert [c.key[0] for c in changes(left, right, rank="change", order="asc").rows] == ["c", "b", "a", "new"]
    top = changes(left, right, rank="value", order="desc", limit=1)
    assert ([c.key[0] for c in top.rows], top.left_out) == (["new"], 3)
    assert (top.total.value, top.total.reference) == (162, 80)


def test_periods_inside_two_periods_are_paired_by_place():
    left = result({("2024-07",): 5, ("2024-08",): 6, ("2024-09",): 7}, grain="month", period=NOW)
    right = result({("2024-04",): 1, ("2024-06",): 7}, grain="month", period=BEFORE)
    compared = changes(left, right)
    assert [(c.key[0], c.difference, c.status) for c in compared.rows] == [
        ("2024-07", 4, "both"), ("2024-08", None, "new"), ("2024-09", 0, "both")]  # fmt: skip
    assert [n.code for n in compared.notes] == ["paired_by_place"]


# --- unusual changes -------------------------------------------------------------------------------------------------


def judged(percents: list[float], **options: Any) -> list[Any]:
    right = dict.fromkeys(range(len(percents)), 1000.0)
    left = {i: 1000.0 * (1 + p / 100) for i, p in enumerate(percents)}
    return [m.key[0] for m in unusual(changes(result(left), result(right)), **options).marks]


@pytest.mark.parametrize(
    ("percents", "marked"),
    [
        ([5, 6, 4, 5.5, 60], [4]),
        ([5, 6, 4, 5.5, -60], [4]),
        ([-5, -6, -4, -5.5, -60, -5.2], [4]),
        ([5, 6, 4, 5.5, 7], []),
        ([5, 5, 5, 5, 5], []),
        ([5, 5, 5, 5, 5, 5, 40], [6]),  # the MAD is 0: the mean deviation takes over
        ([59.8, 59.8, 59.8, 259], [3]),  # among four, one's own part of the mean deviation would hide it
        ([10, 10, 10, 50, -30], []),  # two odd ones of five: no telling what is usual
        ([10, 10, 10, 10, 50, 60], [5]),
        ([0, 0, 0, 0, 0, 0, 0, 1.5], []),  # too small a change to be worth a mark
        ([10.0, 10.1, 9.9, 10.05, 10.6, 10.0], []),
        ([5, 90], []),
        ([90], []),
        ([], []),
    ],
)
def test_changes_far_from_the_others_are_marked(percents, marked):
    assert judged(percents) == marked


def test_fewer_than_four_groups_without_history_are_not_judged():
    judgement = unusual(changes(result({"a": 1, "b": 9, "c": 1}), result({"a": 1, "b": 1, "c": 1})))
    assert not judgement.judged
    assert set(judgement.unjudged) == {("a",), ("b",), ("c",)}
    assert "无法判断" in judgement.notes[0].zh


def history(series: dict[str, list[float]], *, first: int = 2022) -> Result:
    """Quarters from the first of `first` on, for each group."""
    names = [f"{first + i // 4}-Q{i % 4 + 1}" for i in range(40)]
    return result({(g, names[i]): v for g, line in series.items() for i, v in enumerate(line)}, grain="quarter")


def test_a_groups_own_history_is_the_yardstick_where_there_is_one():
    rng = random.Random(5)
    calm = [100 + rng.uniform(-2, 2) for _ in range(10)]
    wild = [100 + rng.uniform(-40, 40) for _ in range(10)]
    compared = changes(
        result({"calm": 120.0, "wild": 120.0}, period=NOW), result({"calm": calm[-1], "wild": wild[-1]}, period=BEFORE)
    )
    judgement = unusual(compared, history=history({"calm": calm, "wild": wild}))
    assert [m.key[0] for m in judgement.marks] == ["calm"]
    assert judgement.methods == ("history",)
    assert judgement.marks[0].direction == "up"


def test_short_history_is_no_yardstick():
    compared = changes(result({"a": 120.0}, period=NOW), result({"a": 100.0}, period=BEFORE))
    judgement = unusual(compared, history=history({"a": [100, 101, 99, 100, 100]}, first=2023))
    assert not judgement.judged


def test_what_moves_all_groups_is_taken_out():
    season = [100, 130, 90, 160, 100, 130, 90, 160, 100, 130]
    series = {g: [v * size for v in season] for g, size in (("a", 1), ("b", 2), ("c", 3.5), ("d", 0.8))}
    now = {g: line[-1] * 0.7 for g, line in series.items()} | {"d": series["d"][-1] * 1.2}
    compared = changes(result(now, period=NOW), result({g: line[-1] for g, line in series.items()}, period=BEFORE))
    marks = unusual(compared, history=history(series)).marks
    assert [m.key[0] for m in marks] == ["d"]


def test_what_counting_noise_explains_is_not_marked():
    right = dict.fromkeys("abcdefg", 10)
    left = {**right, "g": 18}
    assert unusual(changes(result(left, aggregate="count"), result(right, aggregate="count"))).marks == ()
    big = dict.fromkeys("abcdefg", 10_000)
    assert [
        m.key[0]
        for m in unusual(changes(result({**big, "g": 18_000}, aggregate="count"), result(big, aggregate="count"))).marks
    ] == ["g"]


def test_differences_are_judged_where_percentages_mean_nothing():
    right = {"a": -5.0, "b": 0.0, "c": 3.0, "d": 1.0, "e": 2.0}
    left = {k: v + 1 for k, v in right.items()} | {"e": 40.0}
    judgement = unusual(changes(result(left), result(right)))
    assert (judgement.measure, [m.key[0] for m in judgement.marks]) == ("difference", ["e"])


def test_spread_is_right_on_average_and_rarely_cries_wolf():
    rng = random.Random(11)
    for n, most in ((5, 0.12), (6, 0.08), (9, 0.05), (20, 0.02)):
        samples = [[rng.gauss(0, 1) for _ in range(n)] for _ in range(2000)]
        spreads = [anomaly.spread(s) for s in samples]
        assert sum(s.deviation for s in spreads) / len(spreads) == pytest.approx(1, abs=0.06)
        wrong = sum(abs(s.score(rng.gauss(0, 1))) > anomaly.THRESHOLD for s in spreads) / len(spreads)
        assert wrong < most


# --- time lines ------------------------------------------------------------------------------------------------------


def monthly(line: list[float | None]) -> Result:
    return result({(f"{2020 + i // 12}-{i % 12 + 1:02d}",): v for i, v in enumerate(line)}, grain="month")


def test_a_spike_in_a_calm_line_is_marked():
    line: list[float | None] = [100 + (i % 3) for i in range(20)]
    line[7], line[12] = 160, None
    judgement = unusual_points(monthly(line))
    assert [m.key[0] for m in judgement.marks] == ["2020-08"]
    assert judgement.methods == ("neighbours",)


def test_a_season_is_not_unusual_and_its_break_is_marked_once():
    rng = random.Random(2)
    season = [10, 20, 40, 80, 60, 30, 20, 10, 50, 90, 70, 30]
    line: list[float | None] = [season[i % 12] * 10 + rng.uniform(-5, 5) for i in range(48)]
    assert unusual_points(monthly(line)).marks == ()
    line[20] = line[20] - 300 if line[20] else None
    judgement = unusual_points(monthly(line))
    assert [m.key[0] for m in judgement.marks] == ["2021-09"]  # and not 2022-09, which is compared with it
    assert judgement.methods == ("season",)


@pytest.mark.parametrize(
    "line", [[], [1], [1, 2, 3], [None] * 20, [5] * 30, [-3 - i for i in range(30)], [math.nan] * 9]
)
def test_short_flat_empty_and_negative_lines_have_no_marks(line):
    assert unusual_points(monthly(line)).marks == ()


def test_a_result_without_time_is_not_judged_as_a_line():
    assert not unusual_points(result({"a": 1, "b": 2})).judged


# --- over real tables ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sold(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sales")
    loaded = data.load_cached(sales.write_csv(folder / "sales.csv"), cache=folder)
    with query.connect(loaded.database, threads=1) as connection:
        yield loaded.profile, connection


def quarter(year: int, n: int) -> Period:
    return Period("date", dt.date(year, 3 * n - 2, 1), dt.date(year + n // 4, 3 * n % 12 + 1, 1), f"Q{n} {year}")


@pytest.mark.parametrize(
    ("now", "before", "marked"),
    [
        ((2024, 3), (2024, 2), {"North": "up", "West": "down"}),
        ((2024, 3), (2023, 3), {"North": "up", "West": "down"}),
        ((2023, 4), (2023, 3), {}),
    ],
)
def test_planted_changes_are_found_and_no_others(sold, now, before, marked):
    profile, connection = sold
    left = Query("sales", Measure("sum", "revenue"), (Group("region"),), period=quarter(*now))
    right = Query("sales", Measure("sum", "revenue"), (Group("region"),), period=quarter(*before))
    asked = compare.history_query(left, right, profile)
    assert asked is not None
    known = query.run(asked, connection)
    compared = changes(query.run(left, connection), query.run(right, connection))
    for judgement in (unusual(compared, history=known), unusual(compared)):
        assert {m.key[0]: m.direction for m in judgement.marks} == marked
    assert compare.coverage(left, profile) is None


def test_planted_months_are_found_in_the_time_line_and_no_others(sold):
    _, connection = sold
    asked = Query("sales", Measure("sum", "revenue"), (Group("region"), Group("date", "month")))
    marks = unusual_points(query.run(asked, connection)).marks
    planted = {("East", "2023-03")} | {(r, f"2024-0{m}") for r in ("North", "West") for m in (7, 8, 9)}
    assert {m.key for m in marks} == planted


def test_history_ends_with_the_compared_periods_and_starts_with_a_complete_one(sold):
    profile, _ = sold
    left = Query("sales", Measure("sum", "revenue"), (Group("region"),), period=quarter(2024, 3), order="desc", limit=2)
    asked = compare.history_query(left, Query("sales", left.measure, left.group_by, period=quarter(2024, 2)), profile)
    assert asked is not None
    assert asked.period is not None
    assert (asked.period.start, asked.period.end) == (dt.date(2023, 1, 1), dt.date(2024, 10, 1))
    assert (asked.group_by[-1], asked.order, asked.limit) == (Group("date", "quarter"), "natural", None)
    odd = Period("date", dt.date(2024, 1, 5), dt.date(2024, 1, 20), "")
    assert (
        compare.history_query(
            Query("sales", left.measure, period=odd), Query("sales", left.measure, period=odd), profile
        )
        is None
    )
    assert compare.history_query(Query("sales", left.measure), Query("sales", left.measure), profile) is None


@pytest.mark.parametrize(
    ("period", "code"),
    [
        (Period("date", dt.date(2025, 1, 1), dt.date(2025, 4, 1), "Q1 2025"), "no_data"),
        (Period("date", dt.date(2024, 10, 1), dt.date(2025, 4, 1), "winter"), "partial_period"),
        (Period("date", dt.date(2022, 10, 1), dt.date(2023, 4, 1), "winter"), "partial_period"),
    ],
)
def test_periods_that_the_data_does_not_cover_are_noted(sold, period, code):
    note = compare.coverage(Query("sales", Measure("count"), period=period), sold[0])
    assert note is not None
    assert note.code == code


def test_the_sales_file_is_the_same_for_the_same_seed(tmp_path):
    first, second, other = (
        sales.write_csv(tmp_path / f"{i}.csv", seed=s).read_bytes() for i, s in enumerate((1, 1, 2))
    )
    assert first == second != other
    assert len(first) < 100_000
    rows = [line.split(",") for line in first.decode().splitlines()[1:]]
    assert all(round(int(units) * float(price), 2) == float(revenue) for *_, units, price, revenue in rows)
    assert not [r for r in rows if r[0] == "2023-03-21" and r[1] == "East"]
    with duckdb.connect() as connection:
        assert data.load(tmp_path / "0.csv", database=connection).rows == len(rows)
