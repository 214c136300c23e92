"""Queries give the numbers that plain Python gives, whatever is in the table and in the query."""

# ruff: noqa: DTZ001 - the data has no time zones

import datetime as dt
import json
import math
import statistics
import threading
from collections import defaultdict
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.deep import depth

from failsoft.examples.analyst import query, timecut
from failsoft.examples.analyst.errors import DatabaseError, QueryError
from failsoft.examples.analyst.spec import Filter, Group, Measure, Period, Query, from_dict, to_dict

COLUMNS = '(k VARCHAR, t TIMESTAMP, whole BIGINT, exact DECIMAL(18,2), real DOUBLE, flag BOOLEAN, "we""ird" VARCHAR)'
T0 = dt.datetime(2024, 1, 1)


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect(config={"threads": 1}) as opened:
        yield opened


def filled(connection: Any, rows: list[tuple[Any, ...]]) -> None:
    connection.execute(f"CREATE OR REPLACE TABLE t {COLUMNS}")
    if rows:
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


rows_strategy = st.lists(
    st.tuples(
        st.none() | st.sampled_from(["a", "b", "c'; DROP TABLE t --", 'd"', "北", ""]),
        st.none() | st.integers(0, 400 * 24).map(lambda h: T0 + dt.timedelta(hours=h)),
        st.none() | st.integers(-1000, 1000),
        st.none() | st.integers(-(10**6), 10**6).map(lambda n: f"{n / 100:.2f}"),
        st.none() | st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf]),
        st.none() | st.booleans(),
        st.none() | st.sampled_from(["x", "y"]),
    ),
    max_size=25,
)
POSITION = {"k": 0, "t": 1, "whole": 2, "exact": 3, "real": 4, "flag": 5, 'we"ird': 6}
AGGREGATES: dict[str, Any] = {
    "sum": math.fsum,
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "count": len,
    "count_distinct": lambda values: len(set(values)),
}


def expected(rows: list[tuple[Any, ...]], measure: Measure) -> float | None:
    if measure.column is None:
        return len(rows)
    values = [r[POSITION[measure.column]] for r in rows]
    numbers = [float(v) for v in values if v is not None and math.isfinite(float(v))]
    if not numbers and not measure.aggregate.startswith("count"):
        return None
    answer: float = AGGREGATES[measure.aggregate](numbers)
    return answer


def close(found: Any, wanted: float | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-6)


@settings(max_examples=depth(13, 100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=rows_strategy,
    aggregate=st.sampled_from(list(AGGREGATES)),
    column=st.sampled_from(["whole", "exact", "real"]),
    by=st.sampled_from([(), ("k",), ('we"ird',), ("k", 'we"ird'), ("flag",)]),
    share=st.booleans(),
)
def test_aggregates_are_those_of_plain_python(connection, rows, aggregate, column, by, share):
    filled(connection, rows)
    measure = Measure(aggregate, column)
    share = share and aggregate in {"sum", "count"}
    result = query.run(Query("t", measure, tuple(Group(c) for c in by), share=share), connection)
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[POSITION[c]] for c in by)].append(row)
    if not by:
        groups.setdefault((), [])
    assert {result.key(r) for r in result.rows} == set(groups)
    for row, count in zip(result.rows, result.counts, strict=True):
        mine = groups[result.key(row)]
        assert close(row[result.value_index], expected(mine, measure))
        assert count == len(mine)
        if share:
            whole, part = expected(rows, measure), expected(mine, measure)
            wanted = None if not whole or part is None else part / whole
            # A total that cancels out to rounding noise has no meaningful shares to compare.
            assert close(row[-1], wanted) or abs(whole or 0) < 1e-3
    assert close(result.total, expected(rows, measure))
    assert (result.row_count, result.groups) == (len(rows), len(groups))
    assert result.missing == sum(1 for r in rows if (v := r[POSITION[column]]) is None or not math.isfinite(float(v)))
    assert from_dict(query.Result, json.loads(json.dumps(to_dict(result)))) == result


@settings(max_examples=depth(12, 100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=rows_strategy,
    grain=st.sampled_from(
        ["hour", "day", "week", "month", "quarter", "year", "weekday", "month_of_year", "hour_of_day"]
    ),
)
def test_time_is_cut_as_the_calendar_does(connection, rows, grain):
    filled(connection, rows)
    result = query.run(Query("t", Measure("count"), (Group("t", grain),)), connection)

    def name(moment: dt.datetime | None) -> Any:
        if moment is None:
            return None
        cyclic = {"weekday": moment.isoweekday(), "month_of_year": moment.month, "hour_of_day": moment.hour}
        if grain in cyclic:
            return cyclic[grain]
        if grain == "week":
            moment -= dt.timedelta(days=moment.weekday())
        return timecut.name(moment, grain)

    wanted: dict[Any, int] = defaultdict(int)
    for row in rows:
        wanted[name(row[1])] += 1
    assert {k: n for k, n in result.rows if n} == dict(wanted)
    known = [k for k, _ in result.rows if k is not None]
    assert known == sorted(known)
    if grain not in timecut.CYCLIC and known and len(known) < query.LIMIT_ROWS:
        starts = [s[0] for k in known if (s := timecut.start(k))]
        assert [timecut.after(a, grain) for a in starts[:-1]] == starts[1:]  # gaps are rows of their own


FILTERS: list[tuple[Filter, Any]] = [
    (Filter("k", "=", "a"), lambda r: r[0] == "a"),
    (Filter("k", "!=", "a"), lambda r: r[0] != "a"),
    (Filter("k", "=", "c'; DROP TABLE t --"), lambda r: r[0] == "c'; DROP TABLE t --"),
    (Filter("k", "in", ["a", "b"]), lambda r: r[0] in {"a", "b"}),
    (Filter("k", "in", ["a", None]), lambda r: r[0] in {"a", None}),
    (Filter("k", "in", []), lambda r: False),
    (Filter("k", "not in", ["a", "b"]), lambda r: r[0] not in {"a", "b"}),
    (Filter("k", "not in", ["a", None]), lambda r: r[0] not in {"a", None}),
    (Filter("k", "=", None), lambda r: r[0] is None),
    (Filter("k", "!=", None), lambda r: r[0] is not None),
    (Filter("k", "contains", "DROP"), lambda r: r[0] is not None and "drop" in r[0].lower()),
    (Filter("k", "contains", "%"), lambda r: False),
    (Filter("whole", ">", 10), lambda r: r[2] is not None and r[2] > 10),
    (Filter("whole", "<=", "10.5"), lambda r: r[2] is not None and r[2] <= 10.5),
    (Filter("exact", ">=", -3.25), lambda r: r[3] is not None and float(r[3]) >= -3.25),
    (Filter("whole", "not in", [1, 2]), lambda r: r[2] not in {1, 2}),
    (Filter("flag", "=", True), lambda r: r[5] is True),
    (Filter("flag", "!=", "false"), lambda r: r[5] is not False),
    (Filter("t", "=", "2024-03"), lambda r: r[1] is not None and (r[1].year, r[1].month) == (2024, 3)),
    (Filter("t", "!=", "2024"), lambda r: r[1] is None or r[1].year != 2024),
    (Filter("t", "<=", "2024-Q1"), lambda r: r[1] is not None and r[1] < dt.datetime(2024, 4, 1)),
    (Filter("t", ">", "2024-05-06"), lambda r: r[1] is not None and r[1] >= dt.datetime(2024, 5, 7)),
    (
        Filter("t", "in", ["2024-01-01", 2025]),
        lambda r: r[1] is not None and (r[1].date() == T0.date() or r[1].year == 2025),
    ),
]


@settings(max_examples=depth(12, 100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=rows_strategy, chosen=st.lists(st.sampled_from(FILTERS), min_size=1, max_size=2), period=st.booleans())
def test_filters_keep_what_plain_python_keeps(connection, rows, chosen, period):
    filled(connection, rows)
    span = Period("t", dt.date(2024, 2, 1), dt.date(2024, 8, 1), "Feb–Jul") if period else None
    result = query.run(Query("t", Measure("count"), filters=tuple(f for f, _ in chosen), period=span), connection)

    def kept(row: tuple[Any, ...]) -> bool:
        inside = not period or (row[1] is not None and dt.datetime(2024, 2, 1) <= row[1] < dt.datetime(2024, 8, 1))
        return inside and all(test(row) for _, test in chosen)

    assert result.total == sum(map(kept, rows))


def some_rows(connection: Any) -> None:
    rows = [
        ("a", T0, 5, "1.10", 0.1, True, "x"),
        ("b", T0 + dt.timedelta(days=70), 7, "2.20", 0.2, False, "y"),
        ("c", T0, 7, None, math.nan, None, None),
        ("a", None, 1, "0.05", 0.3, True, "x"),
    ]
    filled(connection, rows)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (Query("nope", Measure("count")), "unknown_table"),
        (Query('t"; DROP TABLE t; --', Measure("count")), "unknown_table"),
        (Query("t", Measure("sum", "nope")), "unknown_column"),
        (Query("t", Measure("count"), (Group("nope"),)), "unknown_column"),
        (Query("t", Measure("count"), filters=(Filter("k) OR (1=1", "=", "a"),)), "unknown_column"),
        (Query("t", Measure("sum", "k")), "not_numeric"),
        (Query("t", Measure("mean")), "not_numeric"),
        (Query("t", Measure("count"), (Group("k", "month"),)), "not_time"),
        (Query("t", Measure("count"), period=Period("k", T0.date(), T0.date(), "")), "not_time"),
        (Query("t", Measure("count"), filters=(Filter("whole", "=", "many"),)), "bad_value"),
        (Query("t", Measure("count"), filters=(Filter("whole", "=", math.nan),)), "bad_value"),
        (Query("t", Measure("count"), filters=(Filter("t", "=", "soon"),)), "bad_value"),
        (Query("t", Measure("count"), filters=(Filter("k", "in", "a"),)), "bad_value"),
        (Query("t", Measure("count"), filters=(Filter("k", "=", ["a"]),)), "bad_value"),
        (Query("t", Measure("count"), filters=(Filter("k", "<", None),)), "bad_value"),
        (Query("t", Measure("count"), filters=(Filter("k", "; DROP", "a"),)), "bad_value"),  # type: ignore[arg-type]  # on purpose
        (Query("t", Measure("count"), limit=0), "bad_limit"),
        (Query("t", Measure("mean", "whole"), (Group("k"),), share=True), "no_share"),
    ],
)
def test_what_does_not_fit_the_table_is_refused(connection, asked, code):
    some_rows(connection)
    with pytest.raises(QueryError) as caught:
        query.run(asked, connection)
    assert caught.value.code == code
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (4,)


def test_unknown_columns_are_answered_with_those_there_are(connection):
    some_rows(connection)
    with pytest.raises(QueryError, match="there are k, t, whole, exact, real, flag"):
        query.run(Query("t", Measure("sum", "Revenue")), connection)


def test_order_limit_and_ties_are_the_same_every_time(connection):
    some_rows(connection)
    by = (Group("k"),)
    assert [r[0] for r in query.run(Query("t", Measure("max", "whole"), by, order="desc"), connection).rows] == [
        "b",
        "c",
        "a",
    ]
    assert [r[0] for r in query.run(Query("t", Measure("max", "whole"), by, order="asc"), connection).rows] == [
        "a",
        "b",
        "c",
    ]
    top = query.run(Query("t", Measure("sum", "exact"), by, order="desc", limit=1), connection)
    assert (top.rows, top.groups, top.total, top.truncated) == ((("b", 2.2),), 3, 3.35, False)
    last = query.run(Query("t", Measure("sum", "exact"), by, order="desc"), connection)
    assert last.rows[-1] == ("c", None)  # no value ranks last, also upwards
    assert query.run(Query("t", Measure("sum", "exact"), by, order="asc"), connection).rows[-1] == ("c", None)


def test_too_many_groups_are_cut_off_and_said(connection):
    connection.execute("CREATE OR REPLACE TABLE t AS SELECT i::VARCHAR AS k, i AS whole FROM range(50) r(i)")
    result = query.run(Query("t", Measure("sum", "whole"), (Group("k"),)), connection, limit_rows=10)
    assert (len(result.rows), result.groups, result.truncated, result.total) == (10, 50, True, sum(range(50)))
    assert [n.code for n in result.notes] == ["truncated"]


def test_sums_are_exact_and_medians_not_cut(connection):
    connection.execute("CREATE OR REPLACE TABLE t AS SELECT 0.1::DECIMAL(18,2) AS x, 0.1::DOUBLE AS y FROM range(1000)")
    connection.execute("INSERT INTO t VALUES (0.15, 1e16), (0.0, -1e16)")
    assert query.run(Query("t", Measure("sum", "x")), connection).total == 100.15
    assert query.run(Query("t", Measure("sum", "y")), connection).total == pytest.approx(100, abs=4)
    connection.execute("CREATE OR REPLACE TABLE t AS SELECT unnest([0.01, 0.02])::DECIMAL(18,2) AS x")
    assert query.run(Query("t", Measure("median", "x")), connection).total == pytest.approx(0.015)


def test_gaps_in_time_are_rows_without_a_value(connection):
    some_rows(connection)
    counted = query.run(Query("t", Measure("count"), (Group("t", "month"),)), connection)
    assert counted.rows == (("2024-01", 2), ("2024-02", 0), ("2024-03", 1), (None, 1))
    summed = query.run(Query("t", Measure("sum", "exact"), (Group("t", "month"),)), connection)
    assert summed.rows == (("2024-01", 1.1), ("2024-02", None), ("2024-03", 2.2), (None, 0.05))
    assert [n.code for n in summed.notes] == ["gaps"]


@pytest.mark.parametrize(
    "names",
    [
        ["January", "february", "Mar", "Sept", "Dec."],
        ["Mon", "Tuesday", "Sun"],
        ["1月", "2月", "10月", "12月"],
        ["一月", "三月", "十月", "十二月"],
        ["周一", "周三", "周日"],
        ["星期二", "星期六", "星期天"],
    ],
)
def test_months_and_weekdays_by_name_come_in_the_calendars_order(connection, names):
    connection.execute("CREATE OR REPLACE TABLE t (k VARCHAR)")
    connection.executemany("INSERT INTO t VALUES (?)", [[n] for n in [*reversed(names), None]])
    assert [r[0] for r in query.run(Query("t", Measure("count"), (Group("k"),)), connection).rows] == [*names, None]


def test_other_names_keep_the_alphabets_order(connection):
    connection.execute("CREATE OR REPLACE TABLE t AS SELECT unnest(['may', 'april', 'ma', 'zoe']) AS k")
    answered = query.run(Query("t", Measure("count"), (Group("k"),)), connection)
    assert [r[0] for r in answered.rows] == ["april", "ma", "may", "zoe"]


@pytest.fixture
def read_only(tmp_path):
    path = tmp_path / "d.duckdb"
    with duckdb.connect(str(path)) as made:
        made.execute("CREATE TABLE t AS SELECT i AS whole, (i % 1000)::VARCHAR AS k FROM range(300000) r(i)")
    with query.connect(path, memory="64MB", threads=1) as opened:
        yield opened


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE x (i INT)",
        "DELETE FROM t",
        "DROP TABLE t",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY t TO '/tmp/stolen.csv'",
        "ATTACH '/tmp/other.duckdb'",
        "SET memory_limit = '100GB'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "LOAD httpfs",
    ],
)
def test_the_connection_can_only_read_its_table(read_only, statement):
    with pytest.raises(duckdb.Error):
        read_only.execute(statement)


def test_a_running_query_can_be_interrupted_from_another_thread(read_only):
    read_only.execute("CREATE OR REPLACE TEMP MACRO slow() AS 1")
    with pytest.raises(DatabaseError) as caught:
        _interrupted(read_only)
    assert (caught.value.code, caught.value.retryable) == ("interrupted", True)
    assert query.run(Query("t", Measure("count")), read_only).total == 300000  # the connection is still good


def _interrupted(connection: Any) -> None:
    connection.execute("CREATE OR REPLACE TEMP VIEW endless AS SELECT a.whole FROM t a, t b, t c")
    timer = threading.Timer(0.1, connection.interrupt)
    timer.start()
    try:
        query.run(Query("endless", Measure("sum", "whole")), connection)
    finally:
        timer.join()


def test_memory_is_bounded(read_only, tmp_path):
    read_only.close()
    with query.connect(tmp_path / "d.duckdb", memory="48MB", spill="0B", threads=1) as small:
        small.execute("CREATE TEMP VIEW wide AS SELECT repeat(k, 50) || whole AS k FROM t")
        with pytest.raises(DatabaseError) as caught:
            query.run(Query("wide", Measure("count_distinct", "k")), small)
        assert (caught.value.code, caught.value.retryable) == ("out_of_memory", False)
        assert query.run(Query("t", Measure("count")), small).total == 300000


def test_no_database_or_a_damaged_one_is_said(tmp_path):
    for content in (None, b"junk" * 2000):
        path = tmp_path / "x.duckdb"
        if content:
            path.write_bytes(content)
        with pytest.raises(DatabaseError) as caught:
            query.connect(path)
        assert caught.value.code == "unreadable"


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        ((2024, 1, 1), (2025, 1, 1), ("year", 1)),
        ((2024, 7, 1), (2024, 10, 1), ("quarter", 1)),
        ((2024, 1, 1), (2024, 7, 1), ("quarter", 2)),
        ((2024, 2, 1), (2024, 3, 1), ("month", 1)),
        ((2024, 1, 29), (2024, 2, 5), ("week", 1)),
        ((2024, 1, 30), (2024, 1, 31), ("day", 1)),
        ((2024, 1, 30), (2024, 1, 30), None),
    ],
)
def test_spans_have_a_grain(begin, end, expected):
    assert timecut.grain_of(dt.date(*begin), dt.date(*end)) == expected


@given(
    st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1)),
    st.sampled_from(["hour", "day", "week", "month", "quarter", "year"]),
    st.integers(-50, 50),
)
def test_period_names_and_steps_are_inverse(moment, grain, steps):
    named = timecut.start(timecut.name(moment, grain))
    assert named is not None
    begin = named[0]
    assert named[1] == grain
    assert begin <= moment < timecut.after(begin, grain)
    later = timecut.after(begin, grain, steps)
    assert timecut.distance(begin, later, grain) == steps
    assert timecut.after(later, grain, -steps) == begin
