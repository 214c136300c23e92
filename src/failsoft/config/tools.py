"""Tools from the file: HTTP endpoints, operations of OpenAPI documents, SQL databases, MCP servers.

Every key maps to one argument of :func:`~failsoft.tools.http.http_tool`,
:func:`~failsoft.tools.openapi.openapi_tools`, :func:`~failsoft.tools.sql.sql_tool` or
:class:`~failsoft.tools.mcp.McpServer`; a key that is left out keeps its default. Each is made once when the settings
are loaded, so that what is wrong with it is told with its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from failsoft.base.errors import BadInput
from failsoft.config.keys import Seconds, Section, key

if TYPE_CHECKING:
    from failsoft.tools.registry import Tool, ToolSource

__all__ = ["HttpToolSettings", "McpServerSettings", "OpenApiSettings", "SqlToolSettings", "ToolSettings"]

Kinds = Literal["query", "action", "external"]


def _plain(value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: dict(one) for name, one in value.items()}


Schemas = Annotated[dict[str, dict[str, Any]], AfterValidator(_plain)]


def _revealed(secrets: Mapping[str, SecretStr]) -> tuple[dict[str, str], dict[str, str]]:
    """Headers that refer to variables, and those variables: so a value that looks like ``${…}`` is not read again."""
    return (
        {header: f"${{S{number}}}" for number, header in enumerate(secrets)},
        {f"S{number}": secret.get_secret_value() for number, secret in enumerate(secrets.values())},
    )


class _Common(Section):
    """What all kinds have."""

    agents: tuple[str, ...] = key((), "The agents that get it, by name. Default: all.", scope="process")
    downstream: str | None = key(
        None, "Whose guard its calls go through. Default: its name.", scope="process", min_length=1
    )
    timeout: Seconds | None = key(
        None, "The limit of a call with its queueing, retries and back-offs.", scope="process", unit="seconds", gt=0
    )

    def _given(self, *without: str) -> dict[str, Any]:
        names = [name for name in type(self).model_fields if name not in ("agents", *without)]
        return {name: value for name in names if (value := getattr(self, name)) not in (None, (), {}, "")}

    @model_validator(mode="after")
    def _sound(self) -> _Common:
        try:
            list(self.made("this"))
        except BadInput as error:
            raise ValueError(error.message) from None
        return self

    def made(self, name: str) -> Iterator[Tool | ToolSource]:
        """What it is, under that name."""
        raise NotImplementedError


class HttpToolSettings(_Common):
    """One HTTP endpoint as a tool."""

    description: str = key("", "What planners and models read of it.", scope="process")
    url: str = key(..., "The address, `{name}` for arguments; the method may stand in front.", scope="process")
    method: str | None = key(None, "The method. Default: GET.", scope="process")
    kind: Kinds | None = key(None, "Default: `query` for GET and HEAD, else `action`.", scope="process")
    parameters: Schemas = key(
        {}, "A JSON schema for each argument; `in`, `name` and `required` say where it goes.", scope="process"
    )
    headers: dict[str, str] = key({}, "Headers of every request.", scope="process")
    secrets: dict[str, SecretStr] = key({}, "Headers whose values are secrets: `Bearer ${NAME}`.", scope="process")
    hosts: tuple[str, ...] = key((), "Hosts that arguments and redirects may lead to.", scope="process")
    allow: tuple[str, ...] = key((), "Addresses besides public ones: `loopback`, `private`, networks.", scope="process")
    response_limit: int = key(1_000_000, "The largest response.", scope="process", unit="bytes", ge=1)
    redirects: int = key(3, "Redirects that are followed, of GET and HEAD.", scope="process", ge=0, le=20)
    reads: Literal["auto", "json", "text"] = key("auto", "How responses are read.", scope="process")
    form: bool = key(False, "Whether bodies are sent as forms.", scope="process")
    stale_for: Seconds | None = key(
        None, "How old an earlier result may be that stands in.", scope="process", unit="seconds", gt=0
    )
    approval: bool = key(False, "Whether a human must approve each call.", scope="process")

    def made(self, name: str) -> Iterator[Tool | ToolSource]:
        """The tool."""
        from failsoft.tools.http import http_tool

        secrets, environ = _revealed(self.secrets)
        yield http_tool(name, **self._given("secrets"), secrets=secrets, environ=environ)


class OpenApiSettings(_Common):
    """Operations of an OpenAPI 3 document as tools; the name stands in front of theirs."""

    document: Path = key(..., "The document, JSON or YAML.", scope="process")
    operations: tuple[str, ...] = key((), "Ids of the operations that are taken. Default: all.", scope="process")
    server: str | None = key(None, "The address in front of the paths. Default: the document's.", scope="process")
    prefix: str | None = key(None, "What stands in front of the names. Default: its name and `_`.", scope="process")
    kinds: dict[str, Kinds] = key({}, "Kinds of single operations by id.", scope="process")
    headers: dict[str, str] = key({}, "Headers of every request.", scope="process")
    secrets: dict[str, SecretStr] = key({}, "Headers whose values are secrets: `Bearer ${NAME}`.", scope="process")
    allow: tuple[str, ...] = key((), "Addresses besides public ones: `loopback`, `private`, networks.", scope="process")
    response_limit: int = key(1_000_000, "The largest response.", scope="process", unit="bytes", ge=1)
    redirects: int = key(3, "Redirects that are followed, of GET and HEAD.", scope="process", ge=0, le=20)
    approval: tuple[str, ...] = key((), "Ids of operations that a human must approve.", scope="process")

    def made(self, name: str) -> Iterator[Tool | ToolSource]:
        """The tools."""
        from failsoft.tools.openapi import openapi_tools

        secrets, environ = _revealed(self.secrets)
        given = self._given("secrets", "document", "prefix", "downstream")
        prefix = f"{name}_" if self.prefix is None else self.prefix
        yield from openapi_tools(
            self.document, **given, prefix=prefix, downstream=self.downstream or name, secrets=secrets, environ=environ
        )


class SqlToolSettings(_Common):
    """A database as a tool that can only read."""

    description: str = key("", "What planners and models read of it.", scope="process")
    database: str = key(..., "`sqlite:///file`, `duckdb:///file` or `postgresql://user@host/name`.", scope="process")
    password: SecretStr | None = key(None, "Postgres' password, by `${NAME}`.", scope="process")
    query: str | None = key(None, "Its own SELECT, `:name` for parameters. Default: any SELECT.", scope="process")
    parameters: Schemas = key({}, "A JSON schema for each parameter of `query`.", scope="process")
    tables: tuple[str, ...] = key((), "The tables that may be read. Default: all.", scope="process")
    functions: tuple[str, ...] = key((), "Functions permitted besides the usual ones.", scope="process")
    row_limit: int = key(1_000, "Rows of a result at most.", scope="process", ge=1, le=1_000_000)
    byte_limit: int = key(1_000_000, "Bytes of a result at most.", scope="process", unit="bytes", ge=1000)
    memory: str = key("512MB", "DuckDB's limit of memory.", scope="process")
    stale_for: Seconds | None = key(
        None, "How old an earlier result may be that stands in.", scope="process", unit="seconds", gt=0
    )

    def made(self, name: str) -> Iterator[Tool | ToolSource]:
        """The tool."""
        from failsoft.tools.sql import sql_tool, with_password

        given = self._given("password", "database")
        environ: dict[str, str] = {}
        database = self.database
        if self.password is not None:
            database, environ = with_password(database, self.password.get_secret_value())
        yield sql_tool(name, database, **given, environ=environ)


class McpServerSettings(_Common):
    """An MCP server as a source of tools; the name stands in front of theirs."""

    command: tuple[str, ...] = key((), "The program that is the server, with its arguments.", scope="process")
    url: str | None = key(None, "Where it is, in place of `command`: streamable HTTP.", scope="process")
    env: dict[str, str] = key({}, "Variables for the program.", scope="process")
    allow_env: tuple[str, ...] = key((), "Variables that it gets although they look like secrets.", scope="process")
    cwd: Path | None = key(None, "Where the program runs.", scope="process")
    secrets: dict[str, SecretStr] = key({}, "Headers whose values are secrets: `Bearer ${NAME}`.", scope="process")
    prefix: str | None = key(None, "What stands in front of the names. Default: its name and `_`.", scope="process")
    kind: Kinds = key("external", "What its tools are.", scope="process")
    kinds: dict[str, Kinds] = key({}, "Kinds of single tools, by the server's names.", scope="process")
    trust_hints: bool = key(
        False, "Whether what it calls read-only is a `query`, and else an `action`.", scope="process"
    )
    only: tuple[str, ...] = key((), "The tools that are taken. Default: all.", scope="process")
    approval: tuple[str, ...] = key((), "Tools that a human must approve.", scope="process")
    start: Seconds = key(10.0, "How long connecting may take.", scope="process", unit="seconds", gt=0)
    wait: Seconds = key(5.0, "How long the app's start waits for it.", scope="process", unit="seconds")
    pause: Seconds = key(
        0.5, "The first pause before it is started again; doubled each time.", scope="process", unit="seconds", gt=0
    )
    pause_max: Seconds = key(30.0, "The longest pause.", scope="process", unit="seconds", gt=0)

    def made(self, name: str) -> Iterator[Tool | ToolSource]:
        """The server."""
        from failsoft.tools.mcp import McpServer

        secrets, environ = _revealed(self.secrets)
        given = self._given("secrets", "prefix")
        yield McpServer(name, **given, prefix=self.prefix, secrets=secrets, environ=environ)


class ToolSettings(Section):
    """Tools of all kinds, by their names."""

    http: dict[str, HttpToolSettings] = Field(default_factory=dict, description="HTTP endpoints.")
    openapi: dict[str, OpenApiSettings] = Field(default_factory=dict, description="OpenAPI documents.")
    sql: dict[str, SqlToolSettings] = Field(default_factory=dict, description="SQL databases.")
    mcp: dict[str, McpServerSettings] = Field(default_factory=dict, description="MCP servers.")

    def made(self) -> Iterator[tuple[tuple[str, ...], Tool | ToolSource]]:
        """Every tool and server, with the agents that get it (none named: all)."""
        sections: tuple[Mapping[str, _Common], ...] = (self.http, self.openapi, self.sql, self.mcp)
        for section in sections:
            for name, one in section.items():
                for made in one.made(name):
                    yield one.agents, made
