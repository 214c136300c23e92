"""What a loaded table holds: the role, range and values of each column, worked out once, by SQL over the whole column.

Roles: ``time`` for dates; ``identifier`` for what only tells rows apart (a name like ``order_id`` or ``编号``, or a
running number); ``category`` for texts with few values, for booleans, and for parts of a date (``month`` 1–12);
``number`` for the rest of the numbers; ``text`` for the rest of the texts. A number is not additive when its name or
its unit says so, or when all values are fractions between 0 and 1.
"""

# ruff: noqa: S608 - SQL is put together from quoted identifiers and literals; values from outside are bound
from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from failsoft.examples.analyst import names, totals
from failsoft.examples.analyst.spec import Column, Grain, Note, Role, TableProfile
from failsoft.examples.analyst.textsql import identifier

MAX_VALUES = 1000
"""Distinct values of a category that are kept."""
LONG_TEXT = 60
"""Mean length of a text column above which it is prose and not a category."""
RUNNING = 10
"""Rows from which on 1, 2, 3, … is taken for a running number."""
INTEGERS = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"}
)
"""DuckDB's types of whole numbers."""

_PART_LIMITS = {
    "year": (1000, 2999),
    "quarter": (1, 4),
    "month": (1, 12),
    "week": (0, 53),
    "weekday": (0, 7),
    "day": (1, 31),
    "hour": (0, 24),
    "minute": (0, 59),
}


@dataclass(frozen=True, slots=True)
class Hint:
    """What is known of a column beyond its values."""

    unit: str | None = None
    grain: Grain | None = None
    aliases: tuple[str, ...] = ()
    role: Role | None = None
    additive: bool | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


def describe(
    connection: Any,
    table: str,
    *,
    source: str,
    hints: Mapping[str, Hint] | None = None,
    time_column: str | None = None,
    row_noun: str = "row",
    notes: Sequence[Note] = (),
    now: dt.datetime | None = None,
) -> TableProfile:
    """The profile of a table in the open database; reads all of it once per column."""
    hints = hints or {}
    described = columns_of(connection, table)
    (rows,) = connection.execute(f"SELECT count(*) FROM {identifier(table)}").fetchone()
    columns = [_column(connection, table, name, kind, rows, hints.get(name, Hint())) for name, kind in described]
    columns, summed = totals.marked(connection, table, columns)
    notes = [*notes, *summed]
    if time_column is None:
        time_column, note = _main_time(columns)
        notes += [note] if note else []
    return TableProfile(
        table=table,
        rows=rows,
        columns=tuple(columns),
        time_column=time_column,
        source=source,
        loaded_at=(now or dt.datetime.now(dt.UTC)).isoformat(timespec="seconds"),
        row_noun=row_noun,
        notes=tuple(notes),
    )


def columns_of(connection: Any, table: str) -> list[tuple[str, str]]:
    """Names and types of a table's columns; raises what the database raises when there is no such table."""
    described = connection.execute(f"SELECT * FROM {identifier(table)} LIMIT 0").description
    return [(column[0], str(column[1])) for column in described]


def _column(connection: Any, table: str, name: str, kind: str, rows: int, hint: Hint) -> Column:
    quoted, source = identifier(name), identifier(table)
    base = kind.split("(", maxsplit=1)[0]
    temporal = base == "DATE" or base.startswith("TIMESTAMP")
    numeric = base in INTEGERS or base in {"DOUBLE", "FLOAT", "DECIMAL"}
    bounds = f"min({quoted}), max({quoted})" if temporal or numeric else "NULL, NULL"
    distinct, present, low, high = connection.execute(
        f"SELECT count(DISTINCT {quoted}), count({quoted}), {bounds} FROM {source}"
    ).fetchone()
    bare, unit = names.split_unit(name)
    unit = f"{hint.unit}{unit}" if hint.unit in {"万", "亿"} and unit else hint.unit or unit
    aliases = hint.aliases or ((bare,) if bare != name else ())
    shape = Column(
        name=name, role="text", type=kind, distinct=distinct, nulls=rows - present, unit=unit, aliases=aliases,
        labels=dict(hint.labels),
    )  # fmt: skip
    if temporal:
        coarse = hint.grain not in {None, "day"}
        grain = hint.grain if coarse else _grain(connection, quoted, source, base)
        return dataclasses.replace(
            shape, role=hint.role or "time", minimum=_iso(low), maximum=_iso(high), grain=grain, additive=False
        )
    if numeric:
        role = hint.role or _number_role(connection, quoted, source, name, base, rows, distinct, low, high)
        column = dataclasses.replace(shape, role=role, minimum=_float(low), maximum=_float(high))
        if role == "number":
            additive = (
                _additive(connection, quoted, source, name, unit, low, high) if hint.additive is None else hint.additive
            )
            return dataclasses.replace(column, additive=additive)
        column = dataclasses.replace(column, additive=False)
    else:
        (length,) = connection.execute(f"SELECT avg(length({quoted}::VARCHAR)) FROM {source}").fetchone()
        role = hint.role or _text_role(connection, quoted, source, name, base, present, distinct, length or 0.0)
        column = dataclasses.replace(shape, role=role, additive=False)
    return _with_values(connection, quoted, source, column) if column.role == "category" else column


def _with_values(connection: Any, quoted: str, source: str, column: Column) -> Column:
    values = connection.execute(
        f"SELECT {quoted}::VARCHAR AS v FROM {source} WHERE {quoted} IS NOT NULL GROUP BY 1 "
        f"ORDER BY count(*) DESC, v LIMIT {MAX_VALUES}"
    ).fetchall()
    return dataclasses.replace(
        column, values=tuple(v for (v,) in values), values_complete=column.distinct <= MAX_VALUES
    )


def _grain(connection: Any, quoted: str, source: str, base: str) -> Grain:
    """The finest grain that the values of a time column tell apart."""
    if base != "DATE":
        (midnight,) = connection.execute(
            f"SELECT bool_and({quoted} = date_trunc('day', {quoted})) FROM {source}"
        ).fetchone()
        if not midnight:
            return "hour"
    firsts, months, many = connection.execute(
        f"SELECT bool_and(day({quoted}) = 1), list(DISTINCT month({quoted})), count(DISTINCT {quoted}) FROM {source}"
    ).fetchone()
    if not firsts or many < 3:
        return "day"
    held = set(months or ())
    return "year" if held == {1} else "quarter" if held <= {1, 4, 7, 10} else "month"


def _number_role(
    connection: Any, quoted: str, source: str, name: str, base: str, rows: int, distinct: int, low: Any, high: Any
) -> Role:
    if base not in INTEGERS or low is None:
        return "number"
    if names.is_identifier(name):
        return "identifier"
    part = names.time_part(name)
    if part and _PART_LIMITS[part][0] <= low and high <= _PART_LIMITS[part][1]:
        return "category"
    if distinct == rows and not names.is_measure(name):
        if low >= 10**12:  # card numbers and the like
            return "identifier"
        # A short column of 1, 2, 3 may well be amounts; a long one, or one without a name, counts the rows.
        if high - low == rows - 1 and low in {0, 1} and (rows >= RUNNING or re.fullmatch(r"column_\d+", name)):
            (running,) = connection.execute(f"SELECT bool_and({quoted} - {low} = rowid) FROM {source}").fetchone()
            if running:
                return "identifier"
    return "number"


def _text_role(
    connection: Any, quoted: str, source: str, name: str, base: str, present: int, distinct: int, length: float
) -> Role:
    if base == "BOOLEAN":
        return "category"
    if base in {"BLOB", "STRUCT", "MAP"} or base.endswith("[]") or length > LONG_TEXT:
        return "text"
    unique = present > 1 and distinct >= 0.95 * present
    if unique and (names.is_identifier(name) or distinct > 20):
        (coded,) = connection.execute(
            f"SELECT avg(regexp_matches({quoted}::VARCHAR, '[0-9]')::INT) FROM {source} WHERE {quoted} IS NOT NULL"
        ).fetchone()
        if names.is_identifier(name) or (coded or 0) > 0.9:
            return "identifier"
    if names.is_identifier(name) and distinct > MAX_VALUES:
        return "identifier"
    return "category" if distinct <= MAX_VALUES or distinct <= 0.5 * present else "text"


def _additive(connection: Any, quoted: str, source: str, name: str, unit: str | None, low: Any, high: Any) -> bool:
    if names.is_not_additive(name) or (unit and unit.strip() in {"%", "％", "‰", "°C", "°F", "℃", "°", "pct"}):
        return False
    if low is not None and low >= 0 and high <= 1:
        (whole,) = connection.execute(f"SELECT bool_and({quoted} = floor({quoted})) FROM {source}").fetchone()
        return bool(whole)
    return True


def _main_time(columns: Sequence[Column]) -> tuple[str | None, Note | None]:
    """The column that says when a row happened, by its name and completeness; with a note when others were possible."""
    times = [c for c in columns if c.role == "time"]
    if not times:
        return None, None
    best = min(
        times, key=lambda c: (names.is_side_time(c.name), c.nulls > 0, not names.is_time(c.name), columns.index(c))
    )
    if len(times) == 1:
        return best.name, None
    others = ", ".join(c.name for c in times if c is not best)
    return best.name, Note(
        "time_column",
        f"periods are taken from {best.name}; other times in the data: {others}",
        f"时间以“{best.name}”为准；数据中还有：{others}",
    )


def _iso(value: Any) -> str | None:
    return None if value is None else value.isoformat()


def _float(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if isinstance(value, Decimal | int) or number - number == 0 else None
