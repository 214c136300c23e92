"""Text files read strictly into a staging table: each record has as many fields as the header, or none is loaded."""

# ruff: noqa: S608 - SQL is put together from quoted identifiers and literals; values from outside are bound
from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

from failsoft.examples.analyst.errors import DataError
from failsoft.examples.analyst.sniff import Dialect
from failsoft.examples.analyst.spec import Note
from failsoft.examples.analyst.textsql import identifier, literal

MAX_COLUMNS = 2000
STAGED = "staged"
"""The temporary table: ``line`` (of the file, from 1) and ``c0``, ``c1``, … as text without the spaces around it."""

Progress = Callable[[int, int], None]
BrokenRows = Literal["refuse", "drop"]


def stage(
    connection: Any, path: Path, dialect: Dialect, *, broken_rows: BrokenRows, progress: Progress
) -> tuple[list[str], list[Note]]:
    """Fill :data:`STAGED` from a text file; returns the column names as written and what was noted.

    The records are parsed here and handed to the database in one canonical form, so that there is one reading of
    quotes and line ends, and every error has a line. `progress` gets bytes done and in all. Raises
    :class:`DataError`.
    """
    with tempfile.TemporaryDirectory(prefix="failsoft-") as folder:
        canonical = Path(folder) / "rows.csv"
        with canonical.open("w", encoding="utf-8", newline="") as out:
            names, rows, notes = _copy(path, dialect, out, broken_rows, progress)
        if not rows:
            raise DataError("header_only", "there are column names but no rows", path)
        columns = ", ".join(f"{literal(c)}: {literal(t)}" for c, t in _columns(len(names)))
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {STAGED} AS SELECT * FROM read_csv("
            f"{literal(str(canonical))}, auto_detect=false, header=false, "
            f"delim=',', quote='\"', escape='\"', nullstr='', columns={{{columns}}}, "
            f"max_line_size={canonical.stat().st_size + 2})"
        )
        (loaded,) = connection.execute(f"SELECT count(*) FROM {identifier(STAGED)}").fetchone()
        if loaded != rows:
            raise DataError("broken_rows", f"{rows} rows were read but {loaded} arrived in the database", path)
    return names, notes


def _columns(count: int) -> list[tuple[str, str]]:
    return [("line", "BIGINT"), *((f"c{i}", "VARCHAR") for i in range(count))]


def _copy(
    path: Path, dialect: Dialect, out: TextIO, broken_rows: BrokenRows, progress: Progress
) -> tuple[list[str], int, list[Note]]:
    total = path.stat().st_size
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    names: list[str] | None = None
    rows, blank, dropped, first_dropped = 0, 0, 0, 0
    with path.open("rb") as raw:
        for line, record in _records(path, raw, dialect):
            if names is None:
                names = record
                if len(names) > MAX_COLUMNS:
                    raise DataError(
                        "too_wide", f"{len(names)} columns are more than the {MAX_COLUMNS} allowed", path, line
                    )
                continue
            if not any(map(str.strip, record)):
                blank += 1
                continue
            if len(record) != len(names):
                if broken_rows == "refuse":
                    raise DataError(
                        "broken_rows", f"{len(record)} fields where the header has {len(names)}", path, line
                    )
                dropped += 1
                first_dropped = first_dropped or line
                continue
            writer.writerow((line, *map(str.strip, record)))
            rows += 1
            if not rows % 4096:
                progress(min(raw.tell(), total), total)
    progress(total, total)
    if names is None:
        raise DataError("empty", "the file is empty", path)
    notes = []
    if blank:
        notes.append(
            Note("blank_rows", f"{blank} rows without any value were left out", f"没有任何数值的 {blank} 行已略去")
        )
    if dropped:
        notes.append(
            Note(
                "rows_dropped",
                f"{dropped} rows with a wrong number of fields were left out, the first in line {first_dropped}",
                f"字段数不符的 {dropped} 行已略去，第一处在第 {first_dropped} 行",
            )
        )
    return names, rows, notes


def _records(path: Path, raw: io.BufferedReader, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each record; blank lines are skipped."""
    text = io.TextIOWrapper(raw, encoding=dialect.encoding, newline="")
    for _ in range(dialect.skip):
        text.readline()
    reader = csv.reader(text, delimiter=dialect.delimiter, quotechar=dialect.quote, strict=True)
    line = 0
    try:
        for record in _with_lines(reader):
            line, fields = record
            if fields:
                yield line + dialect.skip, fields
    except UnicodeError as error:
        at = reader.line_num + 1 + dialect.skip
        raise DataError("encoding", f"not valid {dialect.encoding_name} near here ({error})", path, at) from error
    except csv.Error as error:
        at = line + 1 + dialect.skip
        reason = (
            "a quote is opened and not closed"
            if "unexpected end" in str(error) or "limit" in str(error)
            else str(error)
        )
        raise DataError("broken_rows", f"cannot be read as fields: {reason}", path, max(at, 1)) from error
    finally:
        text.detach()


def _with_lines(reader: Any) -> Iterator[tuple[int, list[str]]]:
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        yield line, fields
