"""Operations of an OpenAPI 3 document as tools.

::

    tools = openapi_tools(Path("petstore.yaml"), operations=["listPets", "addPet"], downstream="petstore")

A GET is a ``query``, everything else an ``action``, unless ``kinds`` says otherwise. References are followed inside the
document only.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from failsoft.base.addresses import AddressRule
from failsoft.base.errors import BadInput
from failsoft.base.outcomes import Kind
from failsoft.base.transport import Transport
from failsoft.tools.http import RESPONSE_LIMIT, HttpTool
from failsoft.tools.http_request import Parameter, Place, RequestShape
from failsoft.tools.openapi_schema import Schemas
from failsoft.tools.registry import ToolSpec, seconds
from failsoft.tools.secret_text import SecretText

__all__ = ["openapi_tools", "read_document"]

_log = logging.getLogger(__name__)

DOCUMENT_LIMIT: Final = 10_000_000
"""Bytes of a document."""
_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch")
_DESCRIPTION: Final = 1_000
_PLACES: Final[dict[str, Place]] = {"path": "path", "query": "query", "header": "header", "cookie": "cookie"}
_IGNORED_HEADERS: Final = frozenset({"accept", "content-type", "authorization"})  # as OpenAPI says
_JSON: Final = re.compile(r"application/(?:[\w.+-]+\+)?json(?:;.*)?|\*/\*")
_FORM: Final = "application/x-www-form-urlencoded"


class _Operation(NamedTuple):
    name: str
    method: str
    path: str
    body: Mapping[str, Any]
    shared: Any
    """The parameters of its path."""


def read_document(source: Mapping[str, Any] | Path | str) -> Mapping[str, Any]:
    """A document from a file, from JSON or YAML text, or as it is. Raises :class:`BadInput` for what is none."""
    if isinstance(source, Mapping):
        document: Any = source
    else:
        what = str(source) if isinstance(source, Path) else "the document"
        try:
            text = source.read_text("utf-8-sig") if isinstance(source, Path) else source
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"{what} cannot be read: {getattr(error, 'strerror', None) or 'no UTF-8'}", param="document"
            ) from None
        if len(text) > DOCUMENT_LIMIT:
            raise BadInput(f"{what} is over {DOCUMENT_LIMIT} bytes", param="document")
        document = _parsed(text, what)
    if not isinstance(document, Mapping) or not str(document.get("openapi", "")).startswith("3."):
        raise BadInput("this is no OpenAPI 3 document: it should begin with `openapi: 3.…`", param="document")
    if not isinstance(document.get("paths"), Mapping):
        raise BadInput("the document has no paths", param="document")
    return document


def _parsed(text: str, what: str) -> Any:
    try:
        if text.lstrip()[:1] == "{":
            return json.loads(text)
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            return YAML(typ="safe", pure=True).load(text)
        except YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f":{mark.line + 1}" if mark is not None else ""
            raise BadInput(f"{what}{where}: not YAML", param="document") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{what}: neither JSON nor YAML ({type(error).__name__})", param="document") from None


def openapi_tools(
    document: Mapping[str, Any] | Path | str,
    *,
    operations: Iterable[str] | None = None,
    server: str | None = None,
    prefix: str = "",
    downstream: str | None = None,
    kinds: Mapping[str, Kind] | None = None,
    timeout: float | str | None = None,
    headers: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    allow: Iterable[str] = (),
    response_limit: int = RESPONSE_LIMIT,
    redirects: int = 3,
    approval: Iterable[str] = (),
    transport: Transport | None = None,
) -> list[HttpTool]:
    """The operations as tools, in the document's order.

    Args:
        document: a file, JSON or YAML text, or the document itself.
        operations: ids of those to take; without it all that can be tools (others are logged). An operation without an
            id is called by its method and path: ``get_pets_id``.
        server: the address in front of the paths; by default the document's first.
        prefix: put in front of the tools' names.
        downstream: whose guard all of them share; by default the server's host.
        kinds: kinds of single operations by id.
        timeout: the call limit of each.
        headers: see :func:`~failsoft.tools.http.http_tool`, as for those below.
        secrets: see there.
        environ: see there.
        allow: see there.
        response_limit: see there.
        redirects: see there.
        approval: ids of operations that a human must approve.
        transport: see there.

    Raises :class:`BadInput` naming the operation, and what of it cannot be understood or made a tool.
    """
    read = read_document(document)
    base = _server(read, server)
    schemas = Schemas(read)
    known = {one.name: one for one in _operations(read)}
    wanted = list(operations) if operations is not None else None
    for named in (*(wanted or ()), *(kinds or {}), *approval):
        if named not in known:
            close = difflib.get_close_matches(named, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(list(known)[:30])}"
            raise BadInput(f"the document has no operation {named!r}; {hint}", param="operations")
    try:
        rule = AddressRule(tuple(allow))
    except ValueError as error:
        raise BadInput(str(error), param="allow") from None
    filled = {
        name: SecretText(text, environ=environ, where=f"secrets.{name}") for name, text in (secrets or {}).items()
    }
    tools: list[HttpTool] = []
    for one in known.values() if wanted is None else (known[name] for name in dict.fromkeys(wanted)):
        try:
            shape, parameters = _shape(one, base, schemas)
            kind: Kind = (kinds or {}).get(one.name) or (
                "query" if one.method in ("get", "head", "options") else "action"
            )
            spec = ToolSpec(
                name=prefix + one.name,
                description=_description(one.body),
                kind=kind,
                downstream=downstream or urlsplit(base).hostname or "http",
                timeout=None if timeout is None else seconds(timeout),
                approval=one.name in set(approval),
                parameters=parameters,
            )
            tools.append(
                HttpTool(
                    spec, shape, headers=headers or {}, secrets=filled, rule=rule, response_limit=response_limit,
                    redirects=redirects, transport=transport,
                )
            )  # fmt: skip
        except BadInput as error:
            if wanted is not None:
                raise BadInput(f"operation {one.name!r}: {error.message}", param=f"operations.{one.name}") from None
            _log.warning("operation %s is not offered as a tool: %s", one.name, error.message)
    return tools


def _server(document: Mapping[str, Any], given: str | None) -> str:
    if given is not None:
        url = given
    else:
        servers = document.get("servers")
        first = servers[0] if isinstance(servers, list) and servers and isinstance(servers[0], Mapping) else {}
        url = str(first.get("url", ""))
        variables = first.get("variables")
        for name, one in variables.items() if isinstance(variables, Mapping) else ():
            url = url.replace(f"{{{name}}}", str(one.get("default", "")) if isinstance(one, Mapping) else "")
    if not re.match(r"https?://[^/?#{}]+", url) or re.search(r"[?#{}\s]", url):
        raise BadInput("the document names no server with a whole address: give `server`", param="server")
    return url.rstrip("/")


def _operations(document: Mapping[str, Any]) -> Iterator[_Operation]:
    taken: set[str] = set()
    for path, item in document["paths"].items():
        if not isinstance(item, Mapping) or not str(path).startswith("/"):
            continue
        for method in _METHODS:
            body = item.get(method)
            if not isinstance(body, Mapping):
                continue
            words = str(body.get("operationId") or f"{method}{path}")
            name = re.sub(r"[^A-Za-z0-9_-]+", "_", words).strip("_")[:64] or method
            first, count = name, 1
            while name in taken:
                count += 1
                name = f"{first[:58]}_{count}"
            taken.add(name)
            yield _Operation(name, method, str(path), body, item.get("parameters"))


def _description(body: Mapping[str, Any]) -> str:
    parts = [str(body[key]).strip() for key in ("summary", "description") if isinstance(body.get(key), str)]
    text = " ".join(" ".join(part.split()) for part in dict.fromkeys(parts) if part)
    return text if len(text) <= _DESCRIPTION else text[: _DESCRIPTION - 1] + "…"


class _Arguments:
    """Arguments as they are collected: names that models accept, each once."""

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.properties: dict[str, Any] = {}
        self.required: list[str] = []

    def add(self, wire: str, place: Place, schema: Any, *, required: bool, **options: Any) -> None:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", wire).strip("_")[:64] or place
        for candidate in (name, f"{name[:56]}_{place}", *(f"{name[:56]}_{place}{n}" for n in range(2, 100))):
            if candidate not in self.properties:
                name = candidate
                break
        self.parameters.append(Parameter(name, place, wire, **options))
        self.properties[name] = schema
        if required:
            self.required.append(name)


def _shape(one: _Operation, base: str, schemas: Schemas) -> tuple[RequestShape, dict[str, Any]]:
    arguments = _Arguments()
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for listed in (one.shared, one.body.get("parameters")):
        for reference in listed if isinstance(listed, list) else ():
            parameter = schemas.resolved(reference)
            found[str(parameter.get("name")), str(parameter.get("in"))] = parameter
    for (name, where), parameter in found.items():
        if where == "header" and name.lower() in _IGNORED_HEADERS:
            continue
        _add_parameter(arguments, name, where, parameter, schemas)
    form = _add_body(arguments, one.body.get("requestBody"), schemas)
    parameters = {
        "type": "object",
        "properties": arguments.properties,
        "required": arguments.required,
        "additionalProperties": False,
    }
    return (
        RequestShape(one.method.upper(), base + one.path, tuple(arguments.parameters), form=form),
        schemas.closed(parameters),
    )


def _add_parameter(
    arguments: _Arguments, name: str, where: str, parameter: Mapping[str, Any], schemas: Schemas
) -> None:
    if where not in _PLACES:
        raise BadInput(f"parameter {name!r} is in {where!r:.40}, which is nowhere", param=name)
    style = str(parameter.get("style") or {"query": "form", "cookie": "form"}.get(where, "simple"))
    if style not in ("form", "simple", "deepObject", "spaceDelimited", "pipeDelimited"):
        raise BadInput(f"parameter {name!r} has the style {style!r:.40}, which is not supported", param=name)
    explode = parameter.get("explode", style == "form")
    content = parameter.get("content")
    as_json = False
    if isinstance(content, Mapping) and content:
        as_json = True
        kind, media = next(iter(content.items()))
        if not _JSON.fullmatch(str(kind)):
            raise BadInput(f"parameter {name!r} is written as {kind!r:.40}, which is not supported", param=name)
        schema = media.get("schema", {}) if isinstance(media, Mapping) else {}
    else:
        schema = parameter.get("schema", {})
    converted = schemas.converted(schema)
    if isinstance(parameter.get("description"), str) and isinstance(converted, dict) and "description" not in converted:
        converted = {**converted, "description": " ".join(parameter["description"].split())[:_DESCRIPTION]}
    arguments.add(
        name,
        _PLACES[where],
        converted,
        required=where == "path" or parameter.get("required") is True,
        style=style,
        explode=explode is True,
        json=as_json,
    )


def _add_body(arguments: _Arguments, body: Any, schemas: Schemas) -> bool:
    """Adds what the body is made of; whether it is a form."""
    if body is None:
        return False
    body = schemas.resolved(body)
    content = body.get("content")
    if not isinstance(content, Mapping) or not content:
        return False
    kind = next((one for one in content if _JSON.fullmatch(str(one))), None)
    form = kind is None and _FORM in content
    if kind is None and not form:
        raise BadInput(f"its body is {next(iter(content))!r:.60}; only JSON and forms can be sent", param="requestBody")
    media = content[_FORM if form else kind]
    schema = media.get("schema", {}) if isinstance(media, Mapping) else {}
    must = body.get("required") is True
    fields = schemas.fields(schema)
    if fields is None or not must:
        arguments.add("body", "body", schemas.converted(schema), required=must, whole=True)
        return form
    properties, required = fields
    for name, one in properties.items():
        arguments.add(name, "body", one, required=name in required)
    return form
