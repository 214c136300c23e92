"""SQLite behind a SQL tool: opened read-only for each call, watched by its authorizer, interrupted at the limit."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from failsoft.base.errors import BadInput, DownstreamError, DownstreamRejected, DownstreamUnavailable
from failsoft.kernel.guard import Guard
from failsoft.tools.registry import ToolContext
from failsoft.tools.sql_check import Dialect
from failsoft.tools.sql_functions import SQLITE_FUNCTIONS, TABLE_FUNCTIONS
from failsoft.tools.sql_rows import Rows, SqlBounds

__all__ = ["SqliteDatabase"]

_ALLOWED: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_UNAVAILABLE: Final = ("unable to open", "locked", "busy", "disk i/o", "malformed", "not a database")


class SqliteDatabase:
    """One file. ``tables`` (lower case; None: all) and ``functions`` are what the authorizer lets through, whatever the
    query's text was.
    """

    dialect: Dialect = "sqlite"
    blocking = True

    def __init__(
        self, file: Path, *, tables: frozenset[str] | None, functions: frozenset[str], bounds: SqlBounds
    ) -> None:
        self._file = file
        names = {name.rpartition(".")[2].lower() for name in tables or ()}
        self._tables = None if tables is None else names | TABLE_FUNCTIONS["sqlite"]
        self._functions = SQLITE_FUNCTIONS | {name.lower() for name in functions}
        self._bounds = bounds

    def run(self, guard: Guard, sql: str, values: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Runs a query, in whatever thread this is."""
        refused: list[str] = []
        try:
            connection = self._connection(refused)
        except sqlite3.Error as error:
            raise DownstreamUnavailable(f"the database cannot be opened: {_said(error)}") from None
        try:
            with context.interrupting(connection.interrupt):
                cursor = connection.execute(sql, dict(values))
                rows = Rows([one[0] for one in cursor.description or ()], self._bounds)
                for row in cursor:
                    if not rows.add(row):
                        break
                return rows.result()
        except sqlite3.Error as error:
            if refused:
                raise BadInput(f"the query is refused: {refused[0]}", param="query") from None
            text = _said(error)
            if isinstance(error, sqlite3.OperationalError) and any(one in text.lower() for one in _UNAVAILABLE):
                raise DownstreamUnavailable(f"the database cannot be read: {text}") from None
            if "interrupted" in text:
                raise DownstreamError("the query was interrupted") from None
            raise DownstreamRejected(f"the query failed: {text}") from None
        except (OverflowError, UnicodeError) as error:
            raise DownstreamRejected(f"the query failed: {type(error).__name__}") from None
        finally:
            connection.close()

    def _connection(self, refused: list[str]) -> sqlite3.Connection:
        address = f"file:{quote(str(self._file.absolute()))}?mode=ro"
        connection = sqlite3.connect(address, uri=True, timeout=1.0, check_same_thread=False)
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            for limit, most in (
                (sqlite3.SQLITE_LIMIT_LENGTH, max(1_000_000, 2 * self._bounds.bytes)),
                (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
                (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
                (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
                (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
                (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
                (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 10),
            ):
                connection.setlimit(limit, most)
            there: set[str] = set()
            if self._tables is not None:
                there = {name.lower() for (name,) in connection.execute("SELECT name FROM sqlite_master")}

            def authorize(action: int, one: str | None, two: str | None, _: str | None, inner: str | None) -> int:
                if action in _ALLOWED:
                    if action != sqlite3.SQLITE_READ or self._tables is None or not one or inner is not None:
                        return sqlite3.SQLITE_OK
                    if one.lower() in self._tables or (one == "sqlite_master" and two == "ROWID"):
                        return sqlite3.SQLITE_OK
                    if two == "" and one.lower() not in there and not one.lower().startswith("sqlite_"):
                        return (
                            sqlite3.SQLITE_OK
                        )  # rows of the query's own are counted (WITH t … SELECT count(*) FROM t)
                    refused.append(f"the table {one[:60]!r} is not permitted")
                elif action == sqlite3.SQLITE_UPDATE and one == "sqlite_master":
                    return sqlite3.SQLITE_OK  # how json_each declares itself; the file is open for reading only
                elif action == sqlite3.SQLITE_FUNCTION:
                    if (two or "").lower() in self._functions:
                        return sqlite3.SQLITE_OK
                    refused.append(f"the function {(two or '')[:60]!r} is not permitted")
                else:
                    refused.append("it may only read")
                return sqlite3.SQLITE_DENY

            connection.set_authorizer(authorize)
        except BaseException:
            connection.close()
            raise
        return connection


def _said(error: Exception) -> str:
    return "".join(one for one in str(error) if one.isprintable())[:200] or type(error).__name__
