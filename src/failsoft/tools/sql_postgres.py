"""Postgres behind a SQL tool: each query in a read-only transaction with a time limit of the server's own.

Rows come as JSON that the server makes, each with a bound on its size, so that a single value of a gigabyte never
leaves the server.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from failsoft.base.errors import DownstreamError, DownstreamRejected, DownstreamUnavailable, ToolFailed
from failsoft.kernel.guard import Guard
from failsoft.tools.extras import require
from failsoft.tools.registry import ToolContext
from failsoft.tools.secret_text import SecretText
from failsoft.tools.sql_check import Dialect
from failsoft.tools.sql_rows import Rows, SqlBounds

__all__ = ["PostgresDatabase"]

_BATCH: Final = 50
_IDLE: Final = 4
"""Connections kept for the next calls."""
_MOST: Final = 600_000
"""Milliseconds that a statement has on the server when nobody set a limit."""

_UNAVAILABLE: Final = ("08", "53", "57P", "58", "XX")
"""Classes of SQLSTATE that mean the server cannot serve: connections, resources, shutdown, its system, its defects."""


class _Connections:
    """Connections that are free; one is used by one call, and thrown away unless that ended well."""

    def __init__(self) -> None:
        self.free: list[Any] = []

    async def aclose(self) -> None:
        """Ends them."""
        free, self.free = self.free, []
        for one in free:
            one.terminate()


class PostgresDatabase:
    """One server by its address, which may hold a secret: ``postgresql://reader:${PASSWORD}@host/db``."""

    dialect: Dialect = "postgres"
    blocking = False

    def __init__(self, address: SecretText, *, bounds: SqlBounds) -> None:
        require("asyncpg", "postgres")
        self._address = address
        self._bounds = bounds

    async def query(self, guard: Guard, sql: str, values: list[Any], context: ToolContext) -> dict[str, Any]:
        """Runs a query; `values` are those of ``$1``, ``$2`` and so on."""
        import asyncpg

        connections = guard.keep("postgres", _Connections)
        connection: Any = None
        ended_well = False
        try:
            while connections.free and connection is None:
                connection = connections.free.pop()
                if connection.is_closed():
                    connection = None
            if connection is None:
                connection = await self._connect()
            result = await self._transaction(connection, sql, values, context)
            ended_well = True
            return result
        except asyncpg.PostgresError as error:
            raise self._mapped(error) from None
        except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise DownstreamRejected(f"the query failed: {self._said(error)}") from None
        except (OSError, TimeoutError) as error:
            raise DownstreamUnavailable(f"the database cannot be reached: {type(error).__name__}") from None
        finally:
            if connection is not None:
                if ended_well and len(connections.free) < _IDLE:
                    connections.free.append(connection)
                else:
                    connection.terminate()  # at once; the server notices, and its own limit ends the query

    async def _connect(self) -> Any:
        import asyncpg

        try:
            return await asyncpg.connect(
                self._address.reveal(),
                server_settings={
                    "application_name": "failsoft",
                    "default_transaction_read_only": "on",
                    "idle_in_transaction_session_timeout": "30000",
                    "lock_timeout": "2000",
                    "jit": "off",
                },
                statement_cache_size=0,
                command_timeout=None,
                timeout=60,
            )
        except ValueError as error:
            raise DownstreamRejected(f"the address is none: {self._said(error)}") from None

    async def _transaction(self, connection: Any, sql: str, values: list[Any], context: ToolContext) -> dict[str, Any]:
        left = context.remaining()
        limit = _MOST if not math.isfinite(left) else max(1, min(_MOST, math.ceil(left * 1000)))
        async with connection.transaction(readonly=True, isolation="repeatable_read"):
            await connection.execute(f"SET LOCAL statement_timeout = {limit}")
            shape = await connection.prepare(sql)
            columns = [one.name for one in shape.get_attributes()]
            if not columns:
                return Rows([], self._bounds).result()
            rows = Rows(columns, self._bounds)
            # A row of more than its bytes comes as null in place of its text.
            bounded = (
                f"SELECT CASE WHEN octet_length(j) <= {4 * self._bounds.bytes} THEN j END "  # noqa: S608 - checked
                f"FROM (SELECT row_to_json(q)::text AS j FROM ({sql}) AS q) AS w"
            )
            async for record in connection.cursor(bounded, *values, prefetch=_BATCH):
                if record[0] is None:
                    raise ToolFailed(f"a row has more than the {self._bounds.bytes} bytes of a whole result")
                pairs = json.loads(record[0], object_pairs_hook=_Pairs)
                if not rows.add([_plain(value) for _, value in pairs.items]):
                    break
            return rows.result()

    def _mapped(self, error: Any) -> DownstreamError:
        state = str(getattr(error, "sqlstate", "") or "")
        text = self._said(error)
        details = {"sqlstate": state}
        if state == "57014":  # cancelled, by us or by its time limit
            return DownstreamError(f"the query was ended by the database: {text}", details=details)
        if state.startswith(_UNAVAILABLE):
            return DownstreamUnavailable(f"the database cannot serve: {text}", details=details)
        if state[:2] in ("28", "3D"):
            return DownstreamRejected(f"the database refuses the tool: {text}", details=details)
        return DownstreamRejected(f"the query failed: {text}", details=details)

    def _said(self, error: Exception) -> str:
        text = " ".join("".join(one if one.isprintable() else " " for one in str(error)).split())[:200]
        return self._address.scrubbed(text)


class _Pairs:
    """A JSON object as it is written: names may repeat."""

    __slots__ = ("items",)

    def __init__(self, items: list[tuple[str, Any]]) -> None:
        self.items = items


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {name: _plain(one) for name, one in value.items}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value
