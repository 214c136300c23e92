"""HTTP endpoints as tools, from a declaration.

::

    weather = http_tool(
        "weather",
        "GET https://api.example.com/v1/{city}/weather",
        description="The weather of a city.",
        parameters={"city": str_, "days": {"type": "integer", "minimum": 1, "default": 1}},
        secrets={"Authorization": "Bearer ${WEATHER_TOKEN}"},
    )

Only public addresses are connected to, unless ``allow`` names others; see :mod:`failsoft.base.addresses`. Redirects of
queries are followed here, a few, with the secrets left behind when another origin is next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from failsoft.base.addresses import AddressRule
from failsoft.base.clock import Sources
from failsoft.base.errors import BadInput, DownstreamRejected, FailsoftError, MalformedResult
from failsoft.base.outcomes import Kind
from failsoft.base.tracing import traceparent
from failsoft.base.transport import HttpRequest, HttpResponse, Transport
from failsoft.kernel.guard import Guard
from failsoft.kernel.scope import current
from failsoft.tools.arguments import ArgumentSchema
from failsoft.tools.extras import require
from failsoft.tools.http_answer import Reads, read_answer, status_error
from failsoft.tools.http_request import BODY_METHODS, Parameter, Place, RequestShape, placeholders
from failsoft.tools.registry import Alternate, Default, ToolContext, ToolSpec, seconds
from failsoft.tools.secret_text import SecretText

__all__ = ["HttpTool", "http_tool"]

RESPONSE_LIMIT: Final = 1_000_000
"""Bytes of a response's body, decoded."""
REQUEST_LIMIT: Final = 1_000_000
"""Bytes of a request's body."""
URL_LIMIT: Final = 8_000
"""Characters of a URL with its arguments."""

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class HttpTool:
    """One endpoint as a tool. ``transport`` None: connections of its own, kept and closed by the downstream's guard."""

    __slots__ = (
        "_headers", "_limit", "_reads", "_redirects", "_rule", "_schema", "_secrets", "_shape", "_sources",
        "_transport", "spec",
    )  # fmt: skip

    def __init__(
        self,
        spec: ToolSpec,
        shape: RequestShape,
        *,
        headers: Mapping[str, str],
        secrets: Mapping[str, SecretText],
        rule: AddressRule,
        response_limit: int = RESPONSE_LIMIT,
        redirects: int = 3,
        reads: Reads = "auto",
        transport: Transport | None = None,
        sources: Sources | None = None,
    ) -> None:
        self.spec = spec
        self._shape = shape
        self._schema = ArgumentSchema(spec.name, spec.parameters)
        self._headers = dict(headers)
        self._secrets = dict(secrets)
        self._rule = rule
        self._limit = response_limit
        self._redirects = redirects
        self._reads = reads
        self._transport = transport
        if transport is None:
            require("failsoft.transports.aiohttp_transport", "all")
        self._sources = sources or Sources()
        for name in (*self._headers, *self._secrets):
            Parameter(name, "header")  # raises when it is none that a tool may set

    def check(self, arguments: Mapping[str, Any], *, unknown: Collection[str] = ()) -> None:
        """See :class:`~failsoft.tools.registry.Tool`."""
        self._schema.check(arguments, unknown)
        if not unknown:
            self._request(arguments)

    def _request(self, arguments: Mapping[str, Any]) -> tuple[str, dict[str, str], bytes | None]:
        given = {**_defaults(self.spec.parameters), **arguments}
        url, headers, body = self._shape.build(given)
        if len(url) > URL_LIMIT:
            raise BadInput(
                f"the URL of tool {self.spec.name!r} gets longer than {URL_LIMIT} characters", param="arguments"
            )
        if body is not None and len(body) > REQUEST_LIMIT:
            raise BadInput(
                f"the body of tool {self.spec.name!r} gets longer than {REQUEST_LIMIT} bytes", param="arguments"
            )
        return url, headers, body

    async def call(self, guard: Guard, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """See :class:`~failsoft.tools.registry.Tool`."""
        self._schema.check(arguments)
        url, headers, body = self._request(arguments)
        key = None if self.spec.kind == "query" else context.idempotency_key
        return await guard.call(
            self._attempt,
            guard,
            url,
            headers,
            body,
            context,
            kind=self.spec.kind,
            timeout=self.spec.timeout,
            idempotency_key=key,
        )

    async def _attempt(
        self, guard: Guard, url: str, headers: Mapping[str, str], body: bytes | None, context: ToolContext
    ) -> Any:
        transport = self._transport
        if transport is None:
            from failsoft.transports.aiohttp_transport import AiohttpTransport

            transport = guard.keep("http", AiohttpTransport)
        first, home = url, True
        for hop in range(self._redirects + 1):
            home = home and _origin(url) == _origin(first)  # who has been elsewhere does not come back as trusted
            request = HttpRequest(
                self._shape.method,
                url,
                self._all_headers(headers, context, home=home),
                body,
                downstream=guard.name,
                addresses=self._rule,
            )
            try:
                async with transport.send(request) as response:
                    if response.status in _REDIRECTS and "location" in response.headers:
                        url = self._next(url, response, last=hop == self._redirects)
                        continue
                    if not 200 <= response.status < 300:
                        raise await status_error(response, self.spec, self._sources.wall(), self._scrubbed)
                    return await read_answer(response, self.spec, self._limit, self._reads)
            except FailsoftError as error:
                if error.details.get("fault") == "url":  # it was made of the arguments, and nobody was asked
                    raise BadInput(f"tool {self.spec.name!r}: {error.message}", param="arguments") from None
                error.downstream = error.downstream or guard.name
                raise
        raise AssertionError("the last redirect is refused")

    def _next(self, url: str, response: HttpResponse, *, last: bool) -> str:
        """Where a redirect leads, if it may be followed."""
        status, name = response.status, self.spec.name
        details = {"status": status}
        if self._shape.method not in _SAFE:
            raise DownstreamRejected(
                f"tool {name!r} was answered {status}, a redirect: a {self._shape.method} is not sent twice",
                details=details,
            )
        if last:
            raise MalformedResult(f"tool {name!r} was redirected more than {self._redirects} times", details=details)
        target, parts, sound = "", urlsplit(""), False
        try:
            target = urljoin(url, response.headers["location"])
            parts = urlsplit(target)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
            _ = parts.port
        except ValueError:
            sound = False
        if not sound or len(target) > URL_LIMIT:
            raise MalformedResult(f"tool {name!r} was redirected to what is no URL", details=details)
        if urlsplit(url).scheme == "https" and parts.scheme == "http":
            raise MalformedResult(f"tool {name!r} was redirected from https to http", details=details)
        if not self._shape.permits(parts.hostname or ""):
            raise MalformedResult(f"tool {name!r} was redirected to a host that is not permitted", details=details)
        return target

    def _all_headers(self, headers: Mapping[str, str], context: ToolContext, *, home: bool) -> dict[str, str]:
        """The request's headers; what was declared or given by arguments goes to the first origin only."""
        found = {"Accept": "application/json, text/*;q=0.5", "User-Agent": "failsoft", "Accept-Encoding": "identity"}
        left = context.attempt().remaining()
        if math.isfinite(left):
            found["X-Request-Timeout-Ms"] = str(max(1, int(left * 1000)))
        scope = current.get()
        if (parent := traceparent(scope.run, scope.task)) is not None:
            found["traceparent"] = parent
        if self.spec.kind != "query" and context.idempotency_key is not None:
            found["Idempotency-Key"] = context.idempotency_key
        if home:
            own = {name.lower() for name in (*self._headers, *headers, *self._secrets)}
            found = {name: value for name, value in found.items() if name.lower() not in own}
            found |= headers  # what the owner declared stands over what an argument says
            fixed = {name.lower() for name in (*self._headers, *self._secrets)}
            found = {name: value for name, value in found.items() if name.lower() not in fixed}
            found |= self._headers
            found |= {name: secret.reveal() for name, secret in self._secrets.items()}
        return found

    def _scrubbed(self, text: str) -> str:
        for secret in self._secrets.values():
            text = secret.scrubbed(text)
        return text

    def __repr__(self) -> str:
        return f"<HttpTool {self.spec.name} {self._shape.method} {self._shape.url} kind={self.spec.kind}>"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: one["default"] for name, one in properties.items() if isinstance(one, Mapping) and "default" in one}


def http_tool(
    name: str,
    url: str,
    *,
    description: str = "",
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    method: str | None = None,
    kind: Kind | None = None,
    downstream: str | None = None,
    timeout: float | str | None = None,
    headers: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    hosts: Iterable[str] = (),
    allow: Iterable[str] = (),
    response_limit: int = RESPONSE_LIMIT,
    redirects: int = 3,
    reads: Reads = "auto",
    form: bool = False,
    alternates: Iterable[str | Alternate] = (),
    stale_for: float | str | None = None,
    fallback: Default | None = None,
    approval: bool = False,
    usual: float | str | None = None,
    cost: float | None = None,
    transport: Transport | None = None,
) -> HttpTool:
    """An endpoint as a tool.

    Args:
        name: the tool's name.
        url: a template like ``https://api.example.com/v1/{city}``, with the method in front (``POST https://…``) or in
            ``method``; GET by default. See :class:`~failsoft.tools.http_request.RequestShape` for what braces may be.
        description: what planners and models read.
        parameters: a JSON schema for each argument. ``in`` says where it goes (``path``, ``query``, ``header``,
            ``cookie``, ``body``); by default the path if it is in the template, else the body of a POST, PUT or
            PATCH, else the query. ``name`` is its name there, ``required`` whether it must be given (without a
            ``default`` it must).
        method: see ``url``.
        kind: ``query`` by default for GET and HEAD, ``action`` for others.
        downstream: whose guard its calls go through; by default the tool's name.
        timeout: the call limit, in seconds or as text.
        headers: sent with every request to the first origin.
        secrets: headers, too, filled from the environment: ``Bearer ${TOKEN}``; never shown, never sent elsewhere.
        environ: in place of the process's environment.
        hosts: hosts that a URL made of arguments, or a redirect, may lead to; see there.
        allow: addresses that may be reached besides public ones: ``loopback``, ``private``, networks.
        response_limit: bytes of a response's body, decoded.
        redirects: how many are followed, for GET and HEAD only.
        reads: how bodies are read.
        form: bodies are sent as forms.
        alternates: see :class:`~failsoft.tools.registry.ToolSpec`, as for all below.
        stale_for: see there.
        fallback: see there.
        approval: see there.
        usual: see there.
        cost: see there.
        transport: in place of connections of its own.

    Raises :class:`BadInput` naming what is wrong in the declaration.
    """
    first, _, rest = url.partition(" ")
    if rest and first.isupper():
        method, url = method or first, rest.strip()
    method = (method or "GET").upper()
    chosen: Kind = kind or ("query" if method in _SAFE else "action")
    placed, properties, required = _placed(parameters or {}, url, method)
    plain = dict(headers or {})
    for header in plain:
        if re.search(r"(?i)authorization|cookie|token|secret|password|api-?key|credential", header):
            raise BadInput(
                f"the header {header!r} looks like a secret: put it under `secrets`", param=f"headers.{header}"
            )
    if not all(value.isascii() and value.isprintable() for value in plain.values()):
        raise BadInput("a header has characters that no header has", param="headers")
    if not 0 <= redirects <= 20 or response_limit < 1:
        raise BadInput("redirects should be 0 to 20, response_limit positive", param="redirects")
    spec = ToolSpec(
        name=name,
        description=description,
        kind=chosen,
        downstream=downstream or name,
        timeout=None if timeout is None else seconds(timeout),
        alternates=tuple(Alternate(one) if isinstance(one, str) else one for one in alternates),
        stale_for=None if stale_for is None else seconds(stale_for),
        fallback=fallback,
        approval=approval,
        parameters={
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        usual=None if usual is None else seconds(usual),
        cost=cost,
    )
    try:
        rule = AddressRule(tuple(allow))
    except ValueError as error:
        raise BadInput(str(error), param="allow") from None
    return HttpTool(
        spec,
        RequestShape(method, url, placed, hosts=tuple(hosts), form=form),
        headers=plain,
        secrets={
            header: SecretText(text, environ=environ, where=f"secrets.{header}")
            for header, text in (secrets or {}).items()
        },
        rule=rule,
        response_limit=response_limit,
        redirects=redirects,
        reads=reads,
        transport=transport,
    )


def _placed(
    parameters: Mapping[str, Mapping[str, Any]], url: str, method: str
) -> tuple[tuple[Parameter, ...], dict[str, Any], list[str]]:
    in_path = set(placeholders(url))
    placed: list[Parameter] = []
    properties: dict[str, Any] = {}
    required: list[str] = []
    declared = {**{name: {"type": "string"} for name in placeholders(url) if name not in parameters}, **parameters}
    known = {str(one.get("name", name)) for name, one in parameters.items() if one.get("in") == "path"}
    for name, one in declared.items():
        if name not in parameters and name in known:  # a parameter of another name stands for it
            continue
        schema = dict(one)
        wire = str(schema.pop("name", name))
        place = schema.pop("in", None)
        must = schema.pop("required", None)
        if place is None:
            place = "path" if wire in in_path else "body" if method in BODY_METHODS else "query"
        if place not in ("path", "query", "header", "cookie", "body"):
            raise BadInput(f"parameter {name!r} cannot go into {place!r:.40}", param=f"parameters.{name}.in")
        where: Place = place
        placed.append(Parameter(name, where, wire))
        properties[name] = schema
        if where == "path" or (must if isinstance(must, bool) else "default" not in schema):
            required.append(name)
    return tuple(placed), properties, [name for name in required if "default" not in properties[name]]
