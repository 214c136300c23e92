"""SQL databases as tools that can only read.

::

    ask_sales = sql_tool(
        "ask_sales",
        "sqlite:///sales.db",
        tables=["orders", "customers"],
        description="Answers one SELECT over orders and customers.",
    )
    by_region = sql_tool(
        "by_region",
        "postgresql://reader:${PGPASSWORD}@db/sales",
        query="SELECT quarter, sum(amount) FROM orders WHERE region = :region GROUP BY quarter",
        parameters={"region": {"type": "string"}},
    )

Without ``query`` the argument is one, from whoever calls: a model, that is. It must be exactly one SELECT; see
:mod:`failsoft.tools.sql_check`. The result is ``{"columns": […], "rows": [[…], …], "truncated": false}``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from failsoft.base.errors import BadInput, FailsoftError
from failsoft.kernel.guard import Guard
from failsoft.tools.arguments import ArgumentSchema
from failsoft.tools.registry import Alternate, Default, ToolContext, ToolSpec, seconds
from failsoft.tools.secret_text import SecretText
from failsoft.tools.sql_check import QUERY_LIMIT, Dialect, ReadQuery, SqlRules
from failsoft.tools.sql_duckdb import DuckdbDatabase
from failsoft.tools.sql_postgres import PostgresDatabase
from failsoft.tools.sql_rows import SqlBounds
from failsoft.tools.sql_sqlite import SqliteDatabase

__all__ = ["SqlTool", "sql_tool", "with_password"]

_EAGER = 1_000
"""Characters up to which a query is read on the loop, to refuse it before it is planned; longer ones in a thread."""


class _Blocking(Protocol):
    dialect: Dialect

    def run(self, guard: Guard, sql: str, values: Mapping[str, Any], context: ToolContext) -> dict[str, Any]: ...


class SqlTool:
    """A database as a tool: with a query of its own, or one for any SELECT."""

    __slots__ = ("_database", "_fixed", "_order", "_rules", "_schema", "spec")

    def __init__(
        self, spec: ToolSpec, database: _Blocking | PostgresDatabase, rules: SqlRules, query: str | None
    ) -> None:
        self.spec = spec
        self._database = database
        self._rules = rules
        self._schema = ArgumentSchema(spec.name, spec.parameters)
        self._order: list[str] = []
        self._fixed: ReadQuery | None = None
        if query is not None:
            names = list(spec.parameters["properties"])
            if isinstance(database, PostgresDatabase):  # which numbers its parameters
                query, self._order = _numbered(query, names)
                names = [str(n + 1) for n in range(len(self._order))]
            self._fixed = rules.read(query, parameters=names)

    def check(self, arguments: Mapping[str, Any], *, unknown: Collection[str] = ()) -> None:
        """See :class:`~failsoft.tools.registry.Tool`."""
        self._schema.check(arguments, unknown)
        if "query" not in unknown:
            self._early(arguments)

    def _early(self, arguments: Mapping[str, Any]) -> ReadQuery | None:
        """The query, when it is the tool's own or short enough to be read on the loop."""
        if self._fixed is not None:
            return self._fixed
        query = arguments["query"]
        return self._rules.read(query) if len(query) <= _EAGER else None

    async def call(self, guard: Guard, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """See :class:`~failsoft.tools.registry.Tool`."""
        self._schema.check(arguments)
        read = self._early(arguments)
        spec = self.spec
        defaults = {name: one["default"] for name, one in spec.parameters["properties"].items() if "default" in one}
        given = {**defaults, **arguments}
        attempts: list[ToolContext] = []
        try:
            if isinstance(self._database, PostgresDatabase):
                if read is None:
                    read = await asyncio.to_thread(self._rules.read, given["query"])
                values = [given.get(name) for name in self._order]
                return await guard.call(
                    self._query, guard, read.sql, values, context, kind=spec.kind, timeout=spec.timeout
                )
            return await guard.call_sync(
                self._run, guard, read, given, context, attempts, kind=spec.kind, timeout=spec.timeout
            )
        except FailsoftError as error:
            error.downstream = error.downstream or guard.name
            raise
        finally:
            for attempt in attempts:
                attempt.cancelled.set()

    async def _query(self, guard: Guard, sql: str, values: list[Any], context: ToolContext) -> Any:
        assert isinstance(self._database, PostgresDatabase)
        return await self._database.query(guard, sql, values, context.attempt())

    def _run(
        self,
        guard: Guard,
        read: ReadQuery | None,
        given: Mapping[str, Any],
        context: ToolContext,
        attempts: list[ToolContext],
    ) -> dict[str, Any]:
        assert not isinstance(self._database, PostgresDatabase)
        attempt = context.attempt()
        for earlier in attempts:
            earlier.cancelled.set()
        attempts.append(attempt)
        query = read or self._rules.read(given["query"])
        values = {name: given.get(name) for name in query.parameters}
        return self._database.run(guard, query.sql, values, attempt)

    def __repr__(self) -> str:
        return f"<SqlTool {self.spec.name} {self._rules.dialect} {'fixed' if self._fixed else 'any SELECT'}>"


def _numbered(query: str, names: list[str]) -> tuple[str, list[str]]:
    """``:name`` as ``$1``, and the names in that order."""
    order: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match[1]
        if name not in names:
            return match[0]
        if name not in order:
            order.append(name)
        return f"${order.index(name) + 1}"

    return re.sub(r"(?<![:\w]):([A-Za-z_]\w*)", number, query), order


def sql_tool(
    name: str,
    database: str,
    *,
    description: str = "",
    query: str | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    tables: Iterable[str] | None = None,
    functions: Iterable[str] = (),
    row_limit: int = 1_000,
    byte_limit: int = 1_000_000,
    memory: str = "512MB",
    downstream: str | None = None,
    timeout: float | str | None = 10.0,
    environ: Mapping[str, str] | None = None,
    alternates: Iterable[str | Alternate] = (),
    stale_for: float | str | None = None,
    fallback: Default | None = None,
    usual: float | str | None = None,
    cost: float | None = None,
) -> SqlTool:
    """A database as a tool that can only read.

    Args:
        name: the tool's name.
        database: ``sqlite:///file.db``, ``duckdb:///file.duckdb`` (``////`` in front of an absolute path) or
            ``postgresql://user:${PASSWORD}@host/db``; ``${NAME}`` is taken from the environment.
        description: what planners and models read; name the tables and columns here.
        query: the tool's own SELECT, with ``:name`` for each parameter; without it the argument ``query`` is one.
        parameters: a JSON schema for each parameter of ``query``.
        tables: the tables that may be read, ``schema.table`` where a query has to write it so; all by default.
        functions: functions permitted besides the usual ones.
        row_limit: rows of a result at most; more are cut, and ``truncated`` is true.
        byte_limit: bytes of a result at most; likewise.
        memory: DuckDB's limit.
        downstream: whose guard its calls go through; by default the tool's name.
        timeout: the call limit; the database stops at it.
        environ: in place of the process's environment.
        alternates: see :class:`~failsoft.tools.registry.ToolSpec`, as for all below.
        stale_for: see there.
        fallback: see there.
        usual: see there.
        cost: see there.

    Raises :class:`BadInput` naming what is wrong, in the query as well.
    """
    if row_limit < 1 or byte_limit < 1000:
        raise BadInput("row_limit should be positive, byte_limit at least 1000", param="row_limit")
    own = frozenset(functions)
    allowed = None if tables is None else frozenset(tables)
    bounds = SqlBounds(row_limit, byte_limit)
    scheme = database.partition(":")[0]
    made: _Blocking | PostgresDatabase
    if scheme == "sqlite":
        made = SqliteDatabase(_file(database), tables=allowed, functions=own, bounds=bounds)
    elif scheme == "duckdb":
        made = DuckdbDatabase(_file(database), bounds=bounds, memory=memory)
    elif scheme in ("postgresql", "postgres"):
        made = PostgresDatabase(SecretText(database, environ=environ, where="database"), bounds=bounds)
    else:
        raise BadInput("the database should be sqlite:///…, duckdb:///… or postgresql://…", param="database")
    if query is None and parameters:
        raise BadInput("parameters are for a query of the tool's own", param="parameters")
    properties: dict[str, Any] = {one: dict(schema) for one, schema in (parameters or {}).items()}
    if query is None:
        text = f"One SELECT in the {made.dialect} dialect; values written out, no placeholders."
        properties = {"query": {"type": "string", "description": text, "maxLength": QUERY_LIMIT}}
    spec = ToolSpec(
        name=name,
        description=description,
        kind="query",
        downstream=downstream or name,
        timeout=None if timeout is None else seconds(timeout),
        alternates=tuple(Alternate(one) if isinstance(one, str) else one for one in alternates),
        stale_for=None if stale_for is None else seconds(stale_for),
        fallback=fallback,
        parameters={
            "type": "object",
            "properties": properties,
            "required": [one for one, schema in properties.items() if "default" not in schema],
            "additionalProperties": False,
        },
        blocking=made.blocking,
        usual=None if usual is None else seconds(usual),
        cost=cost,
    )
    return SqlTool(spec, made, SqlRules(made.dialect, allowed, own, row_limit), query)


def _file(database: str) -> Path:
    parts = urlsplit(database)
    if parts.netloc or not parts.path.strip("/") or parts.query or parts.fragment:
        raise BadInput(f"{parts.scheme}: write {parts.scheme}:///file, with nothing behind it", param="database")
    return Path(unquote(parts.path[1:]))


def with_password(database: str, password: str) -> tuple[str, dict[str, str]]:
    """A server's address with a place for the password, and the variable that fills it; raises :class:`BadInput`."""
    head, at, tail = database.partition("@")
    scheme, mark, user = head.partition("://")
    if not at or not mark or ":" in user or not user:
        raise BadInput("a password is for postgresql://user@host/name", param="password")
    return f"{scheme}://{user}:${{PASSWORD}}@{tail}", {"PASSWORD": quote(password, safe="")}
