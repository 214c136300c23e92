"""From a tool's arguments to an HTTP request: where each argument goes, and how it is written there.

Whatever an argument holds, it stays in its place: it cannot add a path segment, a second header or another host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from failsoft.base.errors import BadInput

__all__ = ["RESERVED_HEADERS", "Parameter", "Place", "RequestShape"]

Place = Literal["path", "query", "header", "cookie", "body"]

RESERVED_HEADERS: Final = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"),
        *("keep-alive", "accept-encoding", "proxy-authorization", "proxy-connection", "http2-settings"),
    }
)
"""Headers that belong to the connection and not to a tool."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_PLACEHOLDER: Final = re.compile(r"\{([^{}]+)\}")
_SEPARATORS: Final = {"spaceDelimited": " ", "pipeDelimited": "|"}

BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument: where it goes, its name there (its own by default), and how lists and objects are written.

    ``style`` and ``explode`` are OpenAPI's; ``json`` writes the value as JSON whatever it is. ``whole`` (in the body):
    the argument is the body and not a field of it.
    """

    name: str
    place: Place
    wire: str = ""
    style: str = ""
    explode: bool = True
    json: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        wire = self.wire or self.name
        object.__setattr__(self, "wire", wire)
        if self.place == "header" and (not _TOKEN.fullmatch(wire) or wire.lower() in RESERVED_HEADERS):
            raise BadInput(f"{wire[:80]!r} is no header that a tool may set", param=self.name)
        if self.place == "cookie" and not _TOKEN.fullmatch(wire):
            raise BadInput(f"{wire[:80]!r} is no name for a cookie", param=self.name)


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Method, URL template and parameters. ``hosts`` are the hosts that a host taken from an argument may be.

    ``{name}`` in the path is an argument, percent-encoded; in the host it must be one label, and the whole host be in
    ``hosts``; a template that is ``{name}`` alone takes whole URLs to these. A host is written as it is or as
    ``*.example.com``; ``*`` is any. ``form``: bodies are sent as forms and not as JSON.
    """

    method: str
    url: str
    parameters: tuple[Parameter, ...]
    hosts: tuple[str, ...] = ()
    form: bool = False
    by_name: Mapping[str, Parameter] = field(init=False)

    def __post_init__(self) -> None:
        names = [one.name for one in self.parameters]
        if len(set(names)) != len(names):
            raise BadInput("two parameters have one name", param="parameters")
        object.__setattr__(self, "by_name", {one.name: one for one in self.parameters})
        if (
            not _TOKEN.fullmatch(self.method)
            or self.method != self.method.upper()
            or self.method in ("CONNECT", "TRACE")
        ):
            raise BadInput(f"{self.method[:20]!r} is no method for a tool", param="method")
        wanted = set(placeholders(self.url))
        placed = {one.wire for one in self.parameters if one.place == "path"}
        if wanted - placed:
            raise BadInput(f"the URL has {{{min(wanted - placed)}}}, which is no path parameter", param="url")
        if placed - wanted:
            raise BadInput(f"the URL lacks {{{min(placed - wanted)}}}", param="url")
        bodies = [one for one in self.parameters if one.place == "body"]
        if bodies and self.method not in BODY_METHODS and self.method != "DELETE":
            raise BadInput(f"a {self.method} request has no body for {bodies[0].name!r}", param="parameters")
        if any(one.whole for one in bodies) and len(bodies) > 1:
            raise BadInput("one parameter is the whole body, another a part of it", param="parameters")
        if not self.free:
            _check_url(_PLACEHOLDER.sub("x", self.url))
            if _PLACEHOLDER.search(urlsplit(self.url).netloc) and not self.hosts:
                raise BadInput("a URL whose host is an argument needs `hosts`: those that it may be", param="hosts")
        elif not self.hosts:
            raise BadInput("a URL that is an argument needs `hosts`: those that it may lead to", param="hosts")

    @property
    def free(self) -> bool:
        """Whether an argument is the whole URL."""
        return bool(re.fullmatch(r"\{[^{}]+\}", self.url))

    def permits(self, host: str) -> bool:
        """Whether `hosts` has that host; without any, every host is permitted."""
        host = host.lower().rstrip(".")
        return not self.hosts or any(
            one in ("*", host) or (one.startswith("*.") and host.endswith(one[1:]))
            for one in (permitted.lower() for permitted in self.hosts)
        )

    def build(self, arguments: Mapping[str, Any]) -> tuple[str, dict[str, str], bytes | None]:
        """URL, headers and body. Raises :class:`BadInput` naming the argument that cannot stand in its place."""
        given = [(one, arguments[one.name]) for one in self.parameters if arguments.get(one.name) is not None]
        headers: dict[str, str] = {}
        cookies: list[str] = []
        query: list[str] = []
        for one, value in given:
            if one.place == "query":
                query.extend(_query(one, value))
            elif one.place == "header":
                headers[one.wire] = _header(one, value)
            elif one.place == "cookie":
                cookies.append(f"{one.wire}={quote(_plain(one, value), safe='')}")
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        url = self._url({one.wire: (one, value) for one, value in given if one.place == "path"})
        if query:
            url += ("&" if "?" in url else "?") + "&".join(query)
        body = self._body([(one, value) for one, value in given if one.place == "body"])
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded" if self.form else "application/json"
        return url, headers, body

    def _url(self, values: Mapping[str, tuple[Parameter, Any]]) -> str:
        def found(name: str) -> tuple[Parameter, Any]:
            if name not in values:
                raise BadInput(f"the URL needs the argument {name!r}", param=name)
            return values[name]

        if self.free:
            one, value = found(self.url[1:-1])
            host = _check_url(value if isinstance(value, str) else "", one.name)
            if not self.permits(host):
                raise BadInput(f"argument {one.name!r}: the host {host[:100]!r} is not permitted", param=one.name)
            return str(value)
        scheme, _, rest = self.url.partition("://")
        netloc, slash, path = rest.partition("/")

        def label(match: re.Match[str]) -> str:
            one, value = found(match[1])
            text = _plain(one, value)
            if not _HOST_LABEL.fullmatch(text):
                raise BadInput(f"argument {one.name!r} cannot stand in a host", param=one.name)
            return text

        def segment(match: re.Match[str]) -> str:
            one, value = found(match[1])
            text = (
                ",".join(_plain(one, item) for item in value) if isinstance(value, list | tuple) else _plain(one, value)
            )
            if text in ("", ".", ".."):
                raise BadInput(f"argument {one.name!r} cannot stand in a path: {text!r}", param=one.name)
            return quote(text, safe="")

        host = _PLACEHOLDER.sub(label, netloc)
        url = f"{scheme}://{host}{slash}{_PLACEHOLDER.sub(segment, path)}"
        if host != netloc and not self.permits(urlsplit(url).hostname or ""):
            raise BadInput(f"the host {host[:100]!r} is not permitted", param="url")
        return url

    def _body(self, given: Sequence[tuple[Parameter, Any]]) -> bytes | None:
        if not given:
            return None
        value: Any = given[0][1] if given[0][0].whole else {one.wire: value for one, value in given}
        if not self.form:
            return msgspec.json.encode(value)
        if not isinstance(value, Mapping):
            raise BadInput(f"argument {given[0][0].name!r} should be an object", param=given[0][0].name)
        one = given[0][0]
        fields = [
            (name, _scalar(one, item) if not isinstance(item, Mapping) else msgspec.json.encode(item).decode())
            for name, items in value.items()
            for item in (items if isinstance(items, list | tuple) else [items])
        ]
        return urlencode(fields).encode("ascii")


def placeholders(url: str) -> list[str]:
    """The names in braces."""
    return _PLACEHOLDER.findall(url)


def _check_url(url: str, argument: str = "url") -> str:
    """The host of a sound absolute HTTP URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise BadInput(f"argument {argument!r} should be an http or https URL", param=argument)
    if parts.username is not None or parts.password is not None or "\\" in url or "@" in parts.netloc:
        raise BadInput(f"argument {argument!r}: a URL with a user name is not taken", param=argument)
    if not url.isprintable() or any(one.isspace() for one in url) or "{" in url or "}" in url:
        raise BadInput(f"argument {argument!r} has characters that no URL has", param=argument)
    return parts.hostname


def _scalar(one: Parameter, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if value is None:
        return ""
    raise BadInput(f"argument {one.name!r}: a list or an object cannot stand there", param=one.name)


def _plain(one: Parameter, value: Any) -> str:
    return msgspec.json.encode(value).decode() if one.json else _scalar(one, value)


def _header(one: Parameter, value: Any) -> str:
    text = (
        ",".join(_plain(one, item) for item in value)
        if isinstance(value, list | tuple) and not one.json
        else _plain(one, value)
    )
    if not text.isascii() or not text.isprintable():
        raise BadInput(f"argument {one.name!r} has characters that no header has", param=one.name)
    return text


def _query(one: Parameter, value: Any) -> Iterator[str]:
    encode: Callable[[str], str] = lambda text: quote(text, safe="")  # noqa: E731 - short and used at once
    name = encode(one.wire)
    if one.json or not isinstance(value, list | tuple | Mapping):
        yield f"{name}={encode(_plain(one, value))}"
    elif isinstance(value, Mapping):
        pairs = [(key, _scalar(one, item)) for key, item in value.items() if item is not None]
        if one.style == "deepObject":
            yield from (f"{encode(f'{one.wire}[{key}]')}={encode(item)}" for key, item in pairs)
        elif one.explode:
            yield from (f"{encode(key)}={encode(item)}" for key, item in pairs)
        else:
            yield f"{name}={','.join(encode(part) for pair in pairs for part in pair)}"
    elif one.explode and one.style not in _SEPARATORS:
        yield from (f"{name}={encode(_scalar(one, item))}" for item in value)
    else:
        separator = encode(_SEPARATORS[one.style]) if one.style in _SEPARATORS else ","
        yield f"{name}={separator.join(encode(_scalar(one, item)) for item in value)}"
