"""From a staging table of texts to a table with types: which reading each column gets, and what that assumes.

A text column becomes times or numbers only when all its values do; then a few texts that mean "missing" are taken as
missing, which is noted. Integer columns that are the parts of a date (``year``, ``month``, ``day``) also give a date
column; a year alone becomes one.
"""

# ruff: noqa: S608 - SQL is put together from quoted identifiers and literals; values from outside are bound
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from failsoft.examples.analyst import names as words
from failsoft.examples.analyst import textdates, textnumbers
from failsoft.examples.analyst.errors import DataError
from failsoft.examples.analyst.profiling import INTEGERS, Hint, columns_of
from failsoft.examples.analyst.spec import Grain, Note
from failsoft.examples.analyst.textsql import identifier, is_missing, literal

_SPACES = " \t\r\n\u00a0\u3000\u2007\u202f\ufeff"
_KEPT_TYPES = {*INTEGERS, "DECIMAL", "DATE", "BOOLEAN"}
_LISTED = 4
"""Columns named in a note before it says how many more there are."""


@dataclass(slots=True)
class _Column:
    """A column on its way: the staged one, its name, the SQL that makes it, its type."""

    staged: str
    name: str
    written: str
    sql: str
    type: str
    notes: list[Note] = field(default_factory=list)
    unit: str | None = None
    grain: Grain | None = None
    evidence: textnumbers.Evidence | None = None
    missing: list[tuple[str, int]] = field(default_factory=list)
    """Texts that stand for a missing value, with their rows."""


def convert(
    connection: Any, staged: str, table: str, written: list[str], path: Path, progress: Callable[[int, int], None]
) -> tuple[dict[str, Hint], list[Note]]:
    """Create `table` from `staged` (``c0``, ``c1``, …, called `written`); returns hints and notes for the profile."""
    types = dict(connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE {staged})").fetchall())
    columns, notes = _named(connection, staged, written, types)
    unnamed = sum(note.code == "unnamed" for note in notes)
    if unnamed * 2 > len(columns):
        message = f"the first line names only {len(columns) - unnamed} of {len(columns)} columns; put the names first"
        raise DataError("no_header", message, path, 1)
    if not columns:
        raise DataError("empty", "no column has a name or a value", path)
    for i, column in enumerate(columns):
        if column.type == "VARCHAR":
            _read_text(connection, staged, column)
        else:
            _read_typed(connection, staged, column)
        progress(i, len(columns))
    _decide_number_styles(connection, staged, columns)
    _refuse_missing_header(connection, columns, path)
    for column in columns:
        notes += [replace(note, column=column.name) for note in column.notes]
        connection.execute(f"DROP TABLE IF EXISTS seen_{column.staged}")
    selected = ", ".join(f"{c.sql} AS {identifier(c.name)}" for c in columns)
    connection.execute(
        f"CREATE OR REPLACE TABLE {identifier(table)} AS SELECT {selected} FROM {staged} ORDER BY {staged}.rowid"
    )
    hints = {c.name: Hint(unit=c.unit, grain=c.grain) for c in columns if c.unit or c.grain}
    if not any(c.type in {"DATE", "TIMESTAMP"} for c in columns):
        notes += _dates_from_parts(connection, table, columns, hints)
    progress(len(columns), len(columns))
    return hints, notes


def _named(connection: Any, staged: str, written: list[str], types: dict[str, str]) -> tuple[list[_Column], list[Note]]:
    """Give every column a name of its own; columns without name and values are left out."""
    columns: list[_Column] = []
    notes: list[Note] = []
    taken: set[str] = set()
    for i, original in enumerate(written):
        source = f"c{i}"
        name = re.sub(r"\s+", " ", original.strip(_SPACES))
        if not name:
            (empty,) = connection.execute(
                f"SELECT bool_and(coalesce(trim({source}::VARCHAR), '') = '') FROM {staged}"
            ).fetchone()
            if empty:
                continue
            name = f"column_{i + 1}"
            notes.append(
                Note(
                    "unnamed",
                    f"column {i + 1} has no name; it is called {name}",
                    f"第 {i + 1} 列没有名称，称为“{name}”",
                )
            )
        unique, n = name, 2
        while unique.lower() in taken:  # SQL does not tell upper case from lower case in names
            unique, n = f"{name}_{n}", n + 1
        if unique != name:
            notes.append(
                Note(
                    "renamed",
                    f"there are several columns {name}; one is called {unique}",
                    f"“{name}”列重名，其中一列改称“{unique}”",
                )
            )
        taken.add(unique.lower())
        columns.append(_Column(source, unique, original, source, types[source].split("(")[0]))
    return columns, notes


def _see(connection: Any, staged: str, column: _Column) -> str:
    """A temporary table of the column's distinct values, so that each is looked at once: ``v``, ``n`` rows, first
    ``line``.

    Values that mean "missing" are taken out of it and kept in the column.
    """
    seen = f"seen_{column.staged}"
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {seen} AS SELECT {column.staged} AS v, count(*) AS n, min(line) AS line "
        f"FROM {staged} GROUP BY {column.staged}"
    )
    gone = connection.execute(f"DELETE FROM {seen} WHERE {is_missing()} RETURNING v, n").fetchall()
    column.missing = sorted(((v, n) for v, n in gone if v), key=lambda item: (-item[1], item[0]))
    return seen


def _read_text(connection: Any, staged: str, column: _Column) -> None:
    column.sql = f"nullif({column.staged}, '')"
    seen = _see(connection, staged, column)
    evidence = textnumbers.plain(connection, seen)
    time, why = textdates.read(connection, seen, column.name, hint=words.is_time(column.name))
    if time is not None:
        column.sql, column.type, column.grain = _over(time.sql, column), time.type, time.grain
        column.notes += [*time.notes, *_missing_note(column)]
        return
    if evidence is None and not textnumbers.may_be_numbers(connection, seen):
        column.notes += [why] if why else []
        return
    evidence = evidence or textnumbers.gather(connection, seen)
    if max(evidence.point, evidence.comma) < 0.5 * evidence.values or not evidence.values:
        column.notes += [why] if why else []
    elif evidence.style is None:
        column.notes.append(why or _not_all_numbers(connection, seen, column.name))
    elif (reason := textnumbers.not_a_number(evidence, column.name)) is not None:
        column.notes.append(reason)
    else:
        column.evidence = evidence


def _decide_number_styles(connection: Any, staged: str, columns: list[_Column]) -> None:
    """Columns that could be read either way follow the others of the file, when those agree."""
    styles = {c.evidence.style for c in columns if c.evidence}
    file_style = "comma" if "comma" in styles and "point" not in styles else "point"
    for column in columns:
        if column.evidence is None:
            continue
        seen = f"seen_{column.staged}"
        reading = textnumbers.read(column.evidence, column.name, connection, seen, file_style=file_style)
        column.sql, column.type, column.unit = _over(reading.sql, column), "NUMBER", reading.unit
        column.notes += [*reading.notes, *_missing_note(column)]


def _over(sql: str, column: _Column) -> str:
    """An expression over ``v`` as one over the staged column; what is missing becomes NULL."""
    if sql.startswith("TRY_CAST(v AS ") and not column.missing:
        return sql.replace("(v ", f"({column.staged} ", 1)  # the plain case, several times as fast
    # Bound by a lambda: nothing is edited into an expression that holds patterns and literals.
    return f"list_transform([{column.staged}], lambda v: CASE WHEN {is_missing()} THEN NULL ELSE {sql} END)[1]"


def _read_typed(connection: Any, staged: str, column: _Column) -> None:
    """A column that has a type already (Parquet): NaN is missing, nested values are text."""
    name, kind = column.staged, column.type
    if kind in {"DOUBLE", "FLOAT"}:
        (bad,) = connection.execute(f"SELECT count(*) FROM {staged} WHERE NOT isfinite({name})").fetchone()
        column.sql, column.type = f"CASE WHEN isfinite({name}) THEN {name}::DOUBLE END", "NUMBER"
        if bad:
            column.notes.append(
                Note(
                    "nan",
                    f"{column.name}: {bad} values that are NaN or infinite count as missing",
                    f"“{column.name}”：{bad} 个 NaN 或无穷值视为缺失",
                )
            )
    elif kind == "TIMESTAMP WITH TIME ZONE":
        column.sql, column.type = f"({name} AT TIME ZONE 'UTC')", "TIMESTAMP"
        column.notes.append(Note("utc", f"{column.name}: times are in UTC", f"“{column.name}”：时间为 UTC"))
    elif kind.startswith("TIMESTAMP"):
        column.sql, column.type = f"{name}::TIMESTAMP", "TIMESTAMP"
    elif kind not in _KEPT_TYPES:
        column.sql, column.type = f"{name}::VARCHAR", "VARCHAR"


def _not_all_numbers(connection: Any, seen: str, name: str) -> Note:
    number = f"regexp_full_match(v, {literal(textnumbers.POINT)}) OR regexp_full_match(v, {literal(textnumbers.COMMA)})"
    count, value, line = connection.execute(
        f"SELECT sum(n)::BIGINT, arg_min(v, line), min(line) FROM {seen} WHERE NOT ({number})"
    ).fetchone()
    if not count:
        return Note(
            "mixed_marks", f"{name} was kept as text: decimal marks are mixed", f"“{name}”保留为文本：小数点写法不一"
        )
    where = (f" in line {line}", f"（第 {line} 行）") if line else ("", "")
    return Note(
        "not_all_numbers",
        f"{name} was kept as text: {count} of its values are not numbers, the first is {str(value)[:40]!r}{where[0]}",
        f"“{name}”保留为文本：有 {count} 个值不是数字，例如“{str(value)[:40]}”{where[1]}",
    )


def _missing_note(column: _Column) -> list[Note]:
    if not column.missing:
        return []
    texts = ", ".join(f"“{v}”" for v, _ in column.missing[:_LISTED])
    total, name = sum(n for _, n in column.missing), column.name
    return [
        Note(
            "missing",
            f"{name}: {total} values written {texts} count as missing",
            f"“{name}”：写作 {texts} 的 {total} 个值视为缺失",
        )
    ]


def _refuse_missing_header(connection: Any, columns: list[_Column], path: Path) -> None:
    """Names that are values themselves mean that the file has no line of names: the first record must not get lost."""
    numbers = 0
    for column in columns:
        cell = column.written.strip(_SPACES)
        if column.type == "NUMBER" and cell:
            (number,) = connection.execute(
                f"SELECT regexp_full_match(?, {literal(textnumbers.POINT)})", [cell]
            ).fetchone()
            numbers += bool(number)
            is_value = number and not cell.isdigit()
        else:
            is_value = column.type in {"DATE", "TIMESTAMP"} and any(
                re.fullmatch(f.pattern, cell) for f in textdates.FORMS
            )
        if is_value or numbers == len(columns):
            raise DataError(
                "no_header", f"the first line has values ({cell!r}), not column names; add a line with names", path, 1
            )


def _dates_from_parts(connection: Any, table: str, columns: list[_Column], hints: dict[str, Hint]) -> list[Note]:
    """Add a date column made of ``year`` and ``month``, ``quarter`` or ``day``; a year alone becomes one itself."""
    described = reversed(columns_of(connection, table))
    parts = {part: (name, kind) for name, kind in described if (part := words.time_part(name))}
    if "year" not in parts or parts["year"][1] != "BIGINT":
        return []
    name = parts["year"][0]
    year = identifier(name)
    ok, many = connection.execute(
        f"SELECT bool_and({year} BETWEEN 1000 AND 2999), count(DISTINCT {year}) FROM {identifier(table)}"
    ).fetchone()
    if not ok:
        return []
    target = "日期" if not name.isascii() else "date"
    taken = {c.name.lower() for c in columns}
    while target.lower() in taken:
        target += "_"
    month = _month_of(parts["month"]) if "month" in parts else None
    day = f"{identifier(parts['day'][0])}::INTEGER" if "day" in parts and parts["day"][1] == "BIGINT" else None
    quarter = _quarter_of(parts["quarter"]) if "quarter" in parts else None
    grain: Grain
    used: tuple[str, ...]
    if month and day:
        sql, used, grain = f"try(make_date({year}::INTEGER, {month}, {day}))", ("year", "month", "day"), "day"
    elif month:
        sql, used, grain = f"try(make_date({year}::INTEGER, {month}, 1))", ("year", "month"), "month"
    elif quarter:
        sql, used, grain = f"try(make_date({year}::INTEGER, {quarter} * 3 - 2, 1))", ("year", "quarter"), "quarter"
    elif many > 1:
        connection.execute(
            f"ALTER TABLE {identifier(table)} ALTER COLUMN {year} TYPE DATE USING make_date({year}::INTEGER, 1, 1)"
        )
        hints[name] = Hint(grain="year")
        return []
    else:
        return []
    (bad,) = connection.execute(
        f"SELECT count(*) FROM {identifier(table)} WHERE {year} IS NOT NULL AND ({sql}) IS NULL"
    ).fetchone()
    if bad:
        return []
    connection.execute(f"ALTER TABLE {identifier(table)} ADD COLUMN {identifier(target)} DATE")
    connection.execute(f"UPDATE {identifier(table)} SET {identifier(target)} = {sql}")
    hints[target] = Hint(grain=grain)
    listed = ", ".join(parts[p][0] for p in used)
    return [Note("combined_date", f"the column {target} was made of {listed}", f"“{target}”列由 {listed} 合成")]


def _month_of(part: tuple[str, str]) -> str:
    column, kind = identifier(part[0]), part[1]
    if kind == "BIGINT":
        return f"{column}::INTEGER"
    named = f"month(try_strptime('1 ' || {column} || ' 2000', ['%d %b %Y', '%d %B %Y']))::INTEGER"
    return f"coalesce(TRY_CAST(rtrim({column}, '月份') AS INTEGER), {named})"


def _quarter_of(part: tuple[str, str]) -> str:
    column, kind = identifier(part[0]), part[1]
    if kind == "BIGINT":
        return f"{column}::INTEGER"
    return f"nullif((instr('1234一二三四', regexp_extract({column}, '[1-4一二三四]')) - 1) % 4 + 1, 0)::INTEGER"
