"""DuckDB behind a SQL tool: read-only, without files, network or extensions, interrupted at the limit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from failsoft.base.errors import DownstreamError, DownstreamRejected, DownstreamUnavailable
from failsoft.kernel.guard import Guard
from failsoft.tools.extras import require
from failsoft.tools.registry import ToolContext
from failsoft.tools.sql_check import Dialect
from failsoft.tools.sql_rows import Rows, SqlBounds

__all__ = ["DuckdbDatabase"]

_BATCH = 64


class _Instance:
    """The database of one downstream, opened by its first call; each call has a cursor of its own."""

    def __init__(self, file: Path, memory: str, threads: int) -> None:
        self._file = file
        self._settings: dict[str, Any] = {
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "temp_directory": "",
            "memory_limit": memory,
            "threads": str(threads),
            "lock_configuration": "true",
        }
        self._lock = threading.Lock()
        self._connection: Any = None

    def cursor(self) -> Any:
        """A new cursor."""
        import duckdb

        with self._lock:
            if self._connection is None:
                self._connection = duckdb.connect(str(self._file), read_only=True, config=self._settings)
            return self._connection.cursor()

    async def aclose(self) -> None:
        """Closes the database. One whose query was told to stop and still runs is left to that query's thread."""
        import duckdb

        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(duckdb.Error):
                connection.close()


class DuckdbDatabase:
    """One file; ``memory`` is DuckDB's limit, ``threads`` those that one query may use."""

    dialect: Dialect = "duckdb"
    blocking = True

    def __init__(self, file: Path, *, bounds: SqlBounds, memory: str = "512MB", threads: int = 2) -> None:
        require("duckdb", "analyst")
        self._file = file
        self._bounds = bounds
        self._memory = memory
        self._threads = threads

    def run(self, guard: Guard, sql: str, values: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Runs a query, in whatever thread this is."""
        import duckdb

        instance = guard.keep(f"duckdb:{self._file}", lambda: _Instance(self._file, self._memory, self._threads))
        try:
            cursor = instance.cursor()
        except (duckdb.Error, OSError) as error:
            raise DownstreamUnavailable(f"the database cannot be opened: {_said(error)}") from None
        try:
            with context.interrupting(cursor.interrupt):
                cursor.execute(sql, dict(values)) if values else cursor.execute(sql)
                rows = Rows([one[0] for one in cursor.description or ()], self._bounds)
                while batch := cursor.fetchmany(_BATCH):
                    if not all(rows.add(row) for row in batch):
                        break
                return rows.result()
        except duckdb.InterruptException:
            raise DownstreamError("the query was interrupted") from None
        except (duckdb.FatalException, duckdb.IOException, duckdb.InternalException) as error:
            raise DownstreamUnavailable(f"the database cannot be read: {_said(error)}") from None
        except duckdb.OutOfMemoryException as error:
            raise DownstreamRejected(f"the query needs more memory than it may have: {_said(error)}") from None
        except duckdb.Error as error:
            raise DownstreamRejected(f"the query failed: {_said(error)}") from None
        finally:
            cursor.close()


def _said(error: Exception) -> str:
    return " ".join("".join(one if one.isprintable() else " " for one in str(error)).split())[:200]
