"""Whether a text is one SELECT that only reads; read off its syntax tree, not guessed from its words.

What is checked is what runs: the database gets the tree written out anew, without comments, and never the text. What
the parser does not know is refused. The connection is read-only as well; see the modules of the databases.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from failsoft.base.errors import BadInput
from failsoft.tools.extras import require
from failsoft.tools.sql_functions import PERMITTED, TABLE_FUNCTIONS

__all__ = ["QUERY_LIMIT", "Dialect", "ReadQuery", "SqlRules"]

Dialect = Literal["sqlite", "duckdb", "postgres"]

QUERY_LIMIT: Final = 10_000
"""Characters of a query."""
_NODES: Final = 20_000
"""Nodes of its tree."""
_BARE: Final = re.compile(r"[^\W\d][\w$]*|\d+")
"""A name that every database reads as one (a number is the place of an element)."""
_reading: Final[ContextVar[bool]] = ContextVar("failsoft_sql_reading", default=False)

_DENIED: Final = (
    "DML", "DDL", "Command", "Into", "Lock", "Set", "SetItem", "Pragma", "Attach", "Detach", "Copy", "LoadData", "Use",
    "Transaction", "Commit", "Rollback", "Kill", "Cache", "Uncache", "Refresh", "Grant", "Revoke", "Analyze", "Export",
    "Install", "Describe", "Show", "Summarize", "Execute", "ExecuteSql", "Declare", "Block", "IfBlock", "WhileBlock",
    "Return", "Comment", "Alter", "Drop", "TruncateTable", "Merge", "Returning", "SessionParameter", "Operator",
    "ReadCSV", "ReadParquet", "ToFile", "NetFunc", "Host", "NextValueFor", "CurrentUser", "CurrentRole", "SessionUser",
    "CurrentCatalog", "CurrentDatabase", "CurrentSchema", "CurrentSchemas", "CurrentSession", "CurrentVersion",
    "CurrentAccount", "CurrentIpAddress", "CurrentClient", "Search", "VectorSearch", "DynamicIdentifier", "XMLTable",
    "Macro", "UserDefinedFunction", "Inline", "Semicolon", "HistoricalData", "Version", "DirectoryStage", "Directory",
    "AIAgg", "AIClassify", "AIEmbed", "AIGenerate", "AISimilarity", "AISummarizeAgg", "AIForecast", "MLForecast",
    "MLTranslate", "Predict", "FeaturesAtTime", "GenerateEmbedding", "GenerateTable", "GenerateText", "Secret",
)  # fmt: skip
"""Kinds of nodes that a query must not have: what writes, locks, runs text, or tells of the server."""


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """A query that may run: its text in the database's dialect, and the parameters that it names."""

    sql: str
    parameters: frozenset[str]


@dataclass(frozen=True, slots=True)
class SqlRules:
    """What a query of one tool may use. ``tables``: those it may read (None: all that the connection may),
    ``functions``: names permitted besides the usual ones, ``row_limit``: rows that are asked for at most.
    """

    dialect: Dialect
    tables: frozenset[str] | None = None
    functions: frozenset[str] = frozenset()
    row_limit: int = 1000
    permitted: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        require("sqlglot", "tools")
        object.__setattr__(
            self,
            "permitted",
            PERMITTED["common"]
            | PERMITTED[self.dialect]
            | TABLE_FUNCTIONS[self.dialect]
            | {name.lower() for name in self.functions},
        )
        if self.tables is not None:
            object.__setattr__(self, "tables", frozenset(name.lower() for name in self.tables))

    def read(self, text: Any, *, parameters: Collection[str] = (), param: str = "query") -> ReadQuery:
        """The query that `text` is. Raises :class:`BadInput` saying what is not permitted.

        `parameters` are names that may stand for values, as ``:name``; a query from outside has none.
        """
        if not isinstance(text, str) or not text.strip():
            raise BadInput("the query is empty", param=param)
        if len(text) > QUERY_LIMIT:
            raise BadInput(f"the query has {len(text)} characters; at most {QUERY_LIMIT} are read", param=param)
        if "\0" in text:
            raise BadInput("the query holds a NUL character", param=param)
        try:
            return self._read(text, parameters, param)
        except RecursionError:
            raise BadInput("the query is nested too deeply", param=param) from None

    def _read(self, text: str, parameters: Collection[str], param: str) -> ReadQuery:
        import sqlglot
        from sqlglot import exp

        logging.getLogger("sqlglot").addFilter(_say_nothing)  # once, however often it is added
        token = _reading.set(True)
        try:
            query = self._judged(sqlglot, exp, text, parameters, param)
            # What runs is what was written out anew: it has to mean the same once more, to whoever reads it.
            if self._judged(sqlglot, exp, query.sql, parameters, param).sql != query.sql:
                raise BadInput("the query can be read in two ways", param=param)
            return query
        finally:
            _reading.reset(token)

    def _judged(self, sqlglot: Any, exp: Any, text: str, parameters: Collection[str], param: str) -> ReadQuery:
        try:
            found = [one for one in sqlglot.parse(text, dialect=self.dialect) if one is not None]
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 - not only its own errors come out of a parser
            raise BadInput(f"the query cannot be read: {_first_line(error)}", param=param) from None
        statements = [one for one in found if not isinstance(one, exp.Semicolon)]
        if len(statements) != 1:
            raise BadInput(f"the query has {len(statements)} statements; exactly one SELECT is taken", param=param)
        root: Any = statements[0]
        while isinstance(root, exp.Paren | exp.Subquery) and not isinstance(root.this, exp.Table):
            inner = root.this
            if any(value for name, value in root.args.items() if name != "this"):
                break
            root = inner
        if not isinstance(root, exp.Select | exp.SetOperation | exp.Values):
            raise BadInput(f"a {type(root).__name__.upper()} is no SELECT; exactly one SELECT is taken", param=param)
        names = self._walk(root, parameters, param)
        self._check_tables(root, param)
        limited = _limited(root, self.row_limit + 1)
        return ReadQuery(limited.sql(dialect=self.dialect, comments=False), names)

    def _walk(self, root: Any, parameters: Collection[str], param: str) -> frozenset[str]:
        from sqlglot import exp

        denied = tuple(kind for name in _DENIED if (kind := getattr(exp, name, None)) is not None)
        names: set[str] = set()
        for count, node in enumerate(root.walk()):
            if count > _NODES:
                raise BadInput("the query is too large", param=param)
            if isinstance(node, denied):
                raise BadInput(f"{_shown(node)} is not permitted; the query may only read", param=param)
            if isinstance(node, exp.Placeholder | exp.Parameter):
                name = str(node.name or node.this or "")
                if name not in parameters:
                    raise BadInput(f"the query has the placeholder {name or '?'!r:.60}; write the value", param=param)
                names.add(name)
            elif isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
                self._permit(str(node.name), param)
            elif isinstance(node, exp.Identifier):
                if not node.quoted and not _BARE.fullmatch(node.name):
                    raise BadInput(f"{node.name[:60]!r} is no name; write it in quotes if it is one", param=param)
            elif isinstance(node, exp.Table):
                self._check_source(node, param)
        return frozenset(names)

    def _permit(self, name: str, param: str) -> None:
        if name.lower() not in self.permitted:
            raise BadInput(f"the function {name[:60]!r} is not permitted", param=param)

    def _check_source(self, table: Any, param: str) -> None:
        """What stands behind FROM: a table by its name, or a function that makes rows."""
        from sqlglot import exp

        source = table.this
        if isinstance(source, exp.Identifier):
            if self.dialect == "duckdb" and any(mark in source.name for mark in "/\\.:*"):
                raise BadInput(f"{source.name[:60]!r} is no table", param=param)  # it would be read as a file
            return
        if isinstance(source, exp.Func):
            name = source.name if isinstance(source, exp.Anonymous) else source.sql_name()
            if str(name).lower() not in TABLE_FUNCTIONS[self.dialect] | self.functions:
                raise BadInput(f"the function {str(name)[:60]!r} is not permitted as a table", param=param)
            return
        if source is not None and not isinstance(source, exp.Select | exp.SetOperation | exp.Values | exp.Subquery):
            raise BadInput(f"{_shown(table)} is no table", param=param)

    def _check_tables(self, root: Any, param: str) -> None:
        if self.tables is None:
            return
        from sqlglot import exp
        from sqlglot.optimizer.scope import traverse_scope

        derived: set[int] = set()
        try:
            for scope in traverse_scope(root):
                derived |= {id(table) for table in scope.tables if not table.db and table.name in scope.cte_sources}
        except Exception as error:  # noqa: BLE001 - whatever it cannot resolve
            raise BadInput(f"the query's tables cannot be told: {_first_line(error)}", param=param) from None
        for table in root.find_all(exp.Table):
            if id(table) in derived or not isinstance(table.this, exp.Identifier):
                continue
            name = ".".join(part.name for part in table.parts).lower()
            if name not in self.tables:
                known = ", ".join(sorted(self.tables)) or "none"
                raise BadInput(f"the table {name[:80]!r} is not permitted; there are: {known}", param=param)


def _limited(root: Any, most: int) -> Any:
    """The query with a limit of `most` rows, unless it has a smaller one."""
    from sqlglot import exp

    limit = root.args.get("limit")
    if limit is None and not root.args.get("offset") and not isinstance(root, exp.Values):
        return root.limit(most, copy=True)
    asked = limit.expression if isinstance(limit, exp.Limit) else None
    if isinstance(asked, exp.Literal) and asked.is_int and int(asked.this) <= most:
        return root
    return (
        exp.select("*")
        .from_(exp.Subquery(this=root.copy(), alias=exp.TableAlias(this=exp.to_identifier("q"))))
        .limit(most)
    )


def _say_nothing(record: logging.LogRecord) -> bool:
    """The parser warns of what it only half understands; here that is refused, and told as an error."""
    return not _reading.get()


def _shown(node: Any) -> str:
    text = " ".join(str(node).split())
    return repr(text if len(text) <= 60 else text[:59] + "…")


def _first_line(error: Exception) -> str:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return "".join(one for one in text if one.isprintable())[:200]
