"""A query becomes one read-only SELECT with bound values and quoted names, and its answer plain data.

What is not obvious about the numbers:

* NULL, NaN and infinite values are missing: no aggregate uses them, and :attr:`Result.missing` says how many there
  were.
* A group of rows without a value of the grouping column is a group of its own, with the name None.
* ``!=`` and ``not in`` keep rows that have no value: what is not known to be X is not X.
* The total comes from the same SELECT (grouping sets) and is the aggregate over all rows, not over the groups: the
  mean of all flights, not the mean of the carriers' means. It is of all groups, before ``limit``.
* Sums of decimals are exact; sums of floating-point columns are compensated (Kahan).
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import duckdb

from failsoft.examples.analyst import timecut
from failsoft.examples.analyst.errors import DatabaseError, QueryError
from failsoft.examples.analyst.profiling import INTEGERS, columns_of
from failsoft.examples.analyst.spec import Filter, Grain, Group, Measure, Note, Query, Scalar, TableProfile
from failsoft.examples.analyst.textsql import identifier

LIMIT_ROWS = 10_000
"""Rows of an answer unless the caller says otherwise; more are cut off and :attr:`Result.truncated` says so."""
TIES = 20
"""Groups behind a limit that are looked at, to tell of those that are as high as the last one within."""
_COMPARISONS = {"=", "!=", "<", "<=", ">", ">="}


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of an answer: a ``group``, the ``value`` or its ``share`` of the total (0–1).

    ``column`` is the table's column (None for a count of rows), ``aggregate`` and ``unit`` are set for the value.
    """

    name: str
    kind: Literal["group", "value", "share"]
    column: str | None = None
    grain: Grain | None = None
    aggregate: str | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """An answer of the database, as plain data.

    ``rows`` have one entry per column: texts, numbers, booleans or None. Times are ISO names (``2024-03``).
    ``counts`` are the table's rows behind each row. ``total`` is the aggregate over all rows that passed the filters,
    ``row_count`` how many those are, ``missing`` how many of them had no usable value, ``groups`` how many groups
    there are in all.
    """

    columns: tuple[ResultColumn, ...]
    rows: tuple[tuple[Scalar, ...], ...]
    counts: tuple[int, ...]
    total: Scalar
    row_count: int
    missing: int
    groups: int
    truncated: bool
    sql: str
    parameters: tuple[Scalar, ...]
    table: str
    source: str
    executed_at: str
    query: Query
    notes: tuple[Note, ...] = ()
    tied: tuple[tuple[Scalar, ...], ...] = ()
    """Groups beyond the query's limit, at most :data:`TIES`, whose value is that of the last one within."""

    @property
    def value_index(self) -> int:
        """Where the value is in a row."""
        return next(i for i, c in enumerate(self.columns) if c.kind == "value")

    @property
    def value_column(self) -> ResultColumn:
        """The column of the value."""
        return self.columns[self.value_index]

    def key(self, row: Sequence[Scalar]) -> tuple[Scalar, ...]:
        """The group that a row is of."""
        return tuple(row[: self.value_index])


def connect(database: str | Path, *, memory: str = "512MB", spill: str = "1GB", threads: int = 2) -> Any:
    """Open a database for reading only: no writing, no files, no network, no extensions, bounded memory, settings
    locked.

    Any thread may end a running query with the connection's ``interrupt()``. For queries at the same time use one
    ``cursor()`` for each. Raises :class:`DatabaseError` (``unreadable``).
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": "false",
        "lock_configuration": "true",
        "memory_limit": memory,
        "max_temp_directory_size": spill,
        "threads": threads,
    }
    try:
        return duckdb.connect(str(database), read_only=True, config=settings)
    except duckdb.Error as error:
        raise DatabaseError("unreadable", _first_line(error), retryable=False) from error


def run(
    query: Query,
    connection: Any,
    *,
    profile: TableProfile | None = None,
    limit_rows: int = LIMIT_ROWS,
    now: dt.datetime | None = None,
) -> Result:
    """Answer one query.

    Args:
        query: what is asked.
        connection: an open DuckDB connection, see :func:`connect`; used by this thread alone until the answer is there.
        profile: gives units and the source's name; types come from the database itself.
        limit_rows: rows of the answer at most.
        now: the wall-clock time to stamp the answer with.

    Raises:
        QueryError: the query does not fit the table.
        DatabaseError: the database failed, or was interrupted.
    """
    types = _types(connection, query.table)
    built = _Builder(query, types)
    sql = built.sql(limit_rows + 2)  # the total, and one more than wanted to see whether there are more
    try:
        fetched = connection.execute(sql, built.parameters).fetchall()
    except duckdb.Error as error:
        raise _mapped(error) from error
    return _result(query, built, sql, fetched, limit_rows, profile, now or dt.datetime.now(dt.UTC))


def _types(connection: Any, table: str) -> dict[str, str]:
    try:
        return dict(columns_of(connection, table))
    except duckdb.CatalogException:
        raise QueryError("unknown_table", f"there is no table {table!r}") from None
    except duckdb.Error as error:
        raise _mapped(error) from error


def _mapped(error: Exception) -> DatabaseError:
    if isinstance(error, duckdb.InterruptException):
        return DatabaseError("interrupted", "the query was interrupted", retryable=True)
    if isinstance(error, duckdb.OutOfMemoryException):
        return DatabaseError("out_of_memory", _first_line(error), retryable=False)
    return DatabaseError("failed", _first_line(error), retryable=isinstance(error, duckdb.IOException))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class _Builder:
    """Puts the SELECT together; collects its parameters in the order in which they appear."""

    def __init__(self, query: Query, types: dict[str, str]) -> None:
        self.query = query
        self.types = types
        self.parameters: list[Any] = []
        if query.limit is not None and (isinstance(query.limit, bool) or query.limit < 1):
            raise QueryError("bad_limit", f"a limit must be at least 1, not {query.limit}")
        if query.share and query.measure.aggregate not in {"sum", "count"}:
            raise QueryError(
                "no_share", f"a {query.measure.aggregate} has no shares of a total; only sums and counts have"
            )

    def sql(self, fetch: int) -> str:
        query = self.query
        groups = [self._group(g) for g in query.group_by]
        value, present = self._measure(query.measure)
        positions = [str(i + 1) for i in range(len(groups))]
        n = len(groups)
        names = [f'{g} AS "group_{i + 1}"' for i, g in enumerate(groups)]
        total = f"grouping({', '.join(groups)}) > 0" if groups else "true"
        selected = [
            *names,
            f'{value} AS "value"',
            'count(*) AS "rows"',
            f'{present} AS "present"',
            f'{total} AS "is_total"',
            'count(*) OVER () AS "groups"',
        ]
        where = self._conditions()
        lines = ["SELECT " + ",\n  ".join(selected), f"FROM {identifier(query.table)}"]
        if where:
            lines.append("WHERE " + "\n  AND ".join(where))
        if groups:
            listed = ", ".join(groups)
            lines.append(f"GROUP BY GROUPING SETS (({listed}), ())")
        natural = [f"{p} ASC NULLS LAST" for p in positions]
        order = [] if query.order == "natural" else [f"{n + 1} {query.order.upper()} NULLS LAST"]
        if groups:
            lines.append("ORDER BY " + ", ".join([f"{n + 4} DESC", *order, *natural]))
        limit = fetch if query.limit is None else min(fetch, query.limit + 1 + TIES)
        lines.append(f"LIMIT {limit}")
        return "\n".join(lines)

    def _type(self, column: str) -> str:
        if column not in self.types:
            raise QueryError("unknown_column", f"there is no column {column!r}; there are {', '.join(self.types)}")
        return self.types[column].split("(")[0]

    def _is_time(self, column: str) -> bool:
        kind = self._type(column)
        return kind == "DATE" or kind.startswith("TIMESTAMP")

    def _is_number(self, column: str) -> bool:
        return self._type(column) in INTEGERS or self._type(column) in {"DECIMAL", "DOUBLE", "FLOAT"}

    def _group(self, group: Group) -> str:
        self._type(group.column)
        if group.grain is None:
            return identifier(group.column)
        if not self._is_time(group.column):
            raise QueryError(
                "not_time", f"{group.column!r} is not a time, so it cannot be cut into {group.grain} periods"
            )
        return timecut.cut(identifier(group.column), group.grain)

    def _measure(self, measure: Measure) -> tuple[str, str]:
        """The aggregate and the count of the values it used."""
        if measure.column is None:
            if measure.aggregate != "count":
                raise QueryError("not_numeric", f"a {measure.aggregate} needs a column")
            return "count(*)", "count(*)"
        kind = self._type(measure.column)
        column = identifier(measure.column)
        if kind in {"DOUBLE", "FLOAT"}:
            column = f"CASE WHEN isfinite({column}) THEN {column} END"
        present = f"count({column})"
        if measure.aggregate == "count":
            return present, present
        if measure.aggregate == "count_distinct":
            return f"count(DISTINCT {column})", present
        if measure.aggregate in {"min", "max"} and self._is_time(measure.column):
            return f"{measure.aggregate}({column})", present
        if not self._is_number(measure.column):
            raise QueryError("not_numeric", f"{measure.column!r} holds no numbers, so it has no {measure.aggregate}")
        if measure.aggregate == "sum":
            return f"{'fsum' if kind in {'DOUBLE', 'FLOAT'} else 'sum'}({column})", present
        if measure.aggregate == "mean":
            return f"avg({column})", present
        if measure.aggregate == "median":
            return f"median(({column})::DOUBLE)", present  # the median of decimals would be cut to their scale
        return f"{measure.aggregate}({column})", present

    def _conditions(self) -> list[str]:
        conditions = []
        period = self.query.period
        if period is not None:
            if not self._is_time(period.column):
                raise QueryError("not_time", f"{period.column!r} is not a time")
            column = identifier(period.column)
            conditions.append(f"{column} >= {self._bind(period.start)} AND {column} < {self._bind(period.end)}")
        conditions += [self._either(f) for f in self.query.filters]
        return conditions

    def _either(self, condition: Filter) -> str:
        tests = [self._condition(one) for one in (condition, *condition.alternatives)]
        return tests[0] if len(tests) == 1 else "(" + " OR ".join(f"({test})" for test in tests) + ")"

    def _bind(self, value: Any) -> str:
        self.parameters.append(value)
        return "?"

    def _condition(self, condition: Filter) -> str:
        column, op, value = identifier(condition.column), condition.op, condition.value
        self._type(condition.column)
        if condition.grain is not None:
            return self._part_condition(condition)
        if op in {"in", "not in"}:
            if not isinstance(value, list):
                raise QueryError("bad_value", f"{op!r} on {condition.column!r} needs a list of values")
            return self._membership(condition.column, value, negated=op == "not in")
        if isinstance(value, list):
            raise QueryError("bad_value", f"{op!r} on {condition.column!r} needs one value, not a list")
        if op == "contains":
            if not isinstance(value, str):
                raise QueryError("bad_value", f"'contains' on {condition.column!r} needs a text")
            return f"contains(lower({column}::VARCHAR), lower({self._bind(value)}))"
        if op not in _COMPARISONS:
            raise QueryError("bad_value", f"unknown operator {op!r}")
        if value is None:
            if op not in {"=", "!="}:
                raise QueryError("bad_value", f"{condition.column!r} cannot be {op} nothing")
            return f"{column} IS {'NOT ' if op == '!=' else ''}NULL"
        if self._is_time(condition.column):
            return self._time_condition(condition.column, op, value)
        bound = self._bind(self._typed(condition.column, value))
        return f"{column} IS DISTINCT FROM {bound}" if op == "!=" else f"{column} {op} {bound}"

    def _part_condition(self, condition: Filter) -> str:
        """A condition on a part of a time, which is a whole number: the weekday, the hour of the day."""
        cut = self._group(Group(condition.column, condition.grain))
        values = condition.value if isinstance(condition.value, list) else [condition.value]
        if condition.grain not in timecut.CYCLIC or not all(type(one) is int for one in values) or not values:
            raise QueryError("bad_value", f"{condition.value!r} is no {condition.grain} of {condition.column!r}")
        if condition.op in {"in", "not in"}:
            inside = f"{cut} IN ({', '.join(self._bind(one) for one in values)})"
            return f"({inside}) IS NOT TRUE" if condition.op == "not in" else inside
        if condition.op not in _COMPARISONS or len(values) > 1:
            raise QueryError("bad_value", f"unknown operator {condition.op!r}")
        bound = self._bind(values[0])
        return f"{cut} IS DISTINCT FROM {bound}" if condition.op == "!=" else f"{cut} {condition.op} {bound}"

    def _time_condition(self, name: str, op: str, value: Scalar) -> str:
        """Comparisons are with the whole period that a text names: ``<= 2024-03`` includes all of March."""
        column = identifier(name)
        found = timecut.start(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else None
        if found is None:
            raise QueryError("bad_value", f"{value!r} is not a time as {name!r} holds them")
        begin, grain = found
        exact = grain == "hour" and (begin.minute, begin.second, begin.microsecond) != (0, 0, 0)
        end = begin + dt.timedelta(microseconds=1) if exact else timecut.after(begin, grain)
        if op == "=":
            return f"{column} >= {self._bind(begin)} AND {column} < {self._bind(end)}"
        if op == "!=":
            return f"({column} < {self._bind(begin)} OR {column} >= {self._bind(end)} OR {column} IS NULL)"
        return {
            "<": lambda: f"{column} < {self._bind(begin)}",
            "<=": lambda: f"{column} < {self._bind(end)}",
            ">": lambda: f"{column} >= {self._bind(end)}",
            ">=": lambda: f"{column} >= {self._bind(begin)}",
        }[op]()

    def _membership(self, name: str, values: list[Scalar], *, negated: bool) -> str:
        column = identifier(name)
        known = [v for v in values if v is not None]
        if self._is_time(name):
            parts = [self._time_condition(name, "=", v) for v in known]
            inside = "(" + " OR ".join(parts) + ")" if parts else "false"
        else:
            bound = [self._bind(self._typed(name, v)) for v in known]
            inside = f"{column} IN ({', '.join(bound)})" if bound else "false"
        if None in values:
            inside = f"({inside} OR {column} IS NULL)"
        return f"({inside}) IS NOT TRUE" if negated else inside

    def _typed(self, name: str, value: Scalar) -> Any:
        """`value` as the column's type; texts that spell a number or a truth value are taken as such."""
        kind = self._type(name)
        try:
            if kind == "BOOLEAN":
                if isinstance(value, str):
                    return {"true": True, "false": False}[value.strip().lower()]
                return bool(value)
            if self._is_number(name):
                number = Decimal(str(value).strip()) if not isinstance(value, bool) else Decimal(int(value))
                if not number.is_finite():
                    raise ValueError
                return int(number) if number == int(number) and abs(number) < 2**63 else float(number)
        except (KeyError, ValueError, ArithmeticError):
            raise QueryError("bad_value", f"{value!r} is not a value as {name!r} holds them ({kind})") from None
        return str(value).lower() if isinstance(value, bool) else str(value)


def _result(
    query: Query,
    built: _Builder,
    sql: str,
    fetched: list[tuple[Any, ...]],
    limit: int,
    profile: TableProfile | None,
    now: dt.datetime,
) -> Result:
    n = len(query.group_by)
    total_row = next(row for row in fetched if row[n + 3])
    rows: list[tuple[Scalar, ...]] = []
    counts: list[int] = []
    total = _plain(total_row[n])
    notes: list[Note] = []
    for row in fetched:
        if row[n + 3] and n:
            continue
        keys = tuple(_plain(v, g.grain) for v, g in zip(row[:n], query.group_by, strict=True))
        rows.append((*keys, _plain(row[n])))
        counts.append(row[n + 1])
    groups = total_row[n + 4] - 1 if n else 1
    tied: list[tuple[Scalar, ...]] = []
    if query.limit is not None and query.limit < len(rows):
        last = rows[query.limit - 1][n]
        tied = [row[:n] for row in rows[query.limit :] if row[n] is not None and row[n] == last]
        rows, counts = rows[: query.limit], counts[: query.limit]
        if tied:
            many = f"{len(tied)}{'+' if len(tied) == TIES else ''}"
            notes.append(
                Note(
                    "tie",
                    f"a tie: {many} more group(s) have the same value as the last one that is given",
                    f"并列：另有 {many} 组与所给的最后一组数值相同",
                )
            )
    truncated = len(rows) > limit
    rows, counts = rows[:limit], counts[:limit]
    if truncated:
        notes.append(
            Note(
                "truncated",
                f"only the first {limit} of {groups} groups are given",
                f"只给出前 {limit} 组（共 {groups} 组）",
            )
        )
    rows, counts = _with_gaps(query, rows, counts, notes)
    rows, counts = _by_calendar(query, rows, counts)
    columns = _columns(query, profile)
    if query.share:
        rows = [(*row, _share(row[n], total)) for row in rows]
        columns.append(ResultColumn("share", "share"))
    missing = total_row[n + 1] - total_row[n + 2] if query.measure.column is not None else 0
    return Result(
        columns=tuple(columns),
        rows=tuple(rows),
        counts=tuple(counts),
        total=total,
        row_count=total_row[n + 1],
        missing=missing,
        groups=groups,
        truncated=truncated,
        sql=sql,
        parameters=tuple(_plain(p) for p in built.parameters),
        table=query.table,
        source=profile.source if profile else query.table,
        executed_at=now.isoformat(timespec="seconds"),
        query=query,
        notes=tuple(notes),
        tied=tuple(tied),
    )


def _columns(query: Query, profile: TableProfile | None) -> list[ResultColumn]:
    columns = [ResultColumn(g.column, "group", g.column, g.grain) for g in query.group_by]
    measure, unit = query.measure, None
    if profile is not None and measure.column is not None and measure.aggregate not in {"count", "count_distinct"}:
        unit = next((c.unit for c in profile.columns if c.name == measure.column), None)
    name = measure.aggregate if measure.column is None else f"{measure.aggregate}({measure.column})"
    return [*columns, ResultColumn(name, "value", measure.column, aggregate=measure.aggregate, unit=unit)]


def _plain(value: Any, grain: Grain | None = None) -> Scalar:
    """A database value as JSON has it: times as ISO text, decimals as numbers, what is not finite as None."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dt.date):  # datetimes, too
        return timecut.name(value, grain) if grain else value.isoformat()
    return str(value)


def _share(value: Scalar, total: Scalar) -> float | None:
    if isinstance(value, str) or isinstance(total, str) or value is None or not total:
        return None
    return float(value) / float(total)


def _with_gaps(
    query: Query, rows: list[tuple[Scalar, ...]], counts: list[int], notes: list[Note]
) -> tuple[list[tuple[Scalar, ...]], list[int]]:
    """Give periods without rows a row of their own, where the answer is a time line: 0 for a count, otherwise None."""
    grain = query.group_by[0].grain if len(query.group_by) == 1 else None
    if grain is None or grain in timecut.CYCLIC or query.order != "natural" or query.limit is not None:
        return rows, counts
    known = {row[0]: (row, count) for row, count in zip(rows, counts, strict=True)}
    starts = [s[0] for name in known if isinstance(name, str) and (s := timecut.start(name))]
    if len(starts) < 2 or timecut.distance(min(starts), max(starts), grain) >= LIMIT_ROWS:
        return rows, counts
    empty: Scalar = 0 if query.measure.aggregate in {"count", "count_distinct"} else None
    filled, gaps = [], 0
    for moment in timecut.between(min(starts), max(starts), grain, LIMIT_ROWS):
        name = timecut.name(moment, grain)
        gaps += name not in known
        filled.append(known.get(name, ((name, empty), 0)))
    if None in known:
        filled.append(known[None])
    if gaps:
        notes.append(Note("gaps", f"{gaps} periods in between have no rows", f"其间有 {gaps} 个时间段没有数据"))
    return [row for row, _ in filled], [count for _, count in filled]


def _by_calendar(
    query: Query, rows: list[tuple[Scalar, ...]], counts: list[int]
) -> tuple[list[tuple[Scalar, ...]], list[int]]:
    """Months and weekdays that the data holds as names come in the calendar's order, not the alphabet's."""
    if len(query.group_by) != 1 or query.group_by[0].grain or query.order != "natural" or query.limit is not None:
        return rows, counts
    places = {str(row[0]): timecut.calendar_place(row[0]) for row in rows if isinstance(row[0], str)}
    if not places or None in places.values():
        return rows, counts
    both = sorted(zip(rows, counts, strict=True), key=lambda pair: places.get(str(pair[0][0])) or 99)
    return [row for row, _ in both], [count for _, count in both]


def unranked(query: Query) -> Query:
    """The query for a comparison: all groups, in natural order; ranking comes after the changes are known."""
    return replace(query, order="natural", limit=None)
