"""Reading the settings: file, environment and flags merged, checked once, and every mistake told with its place.

What wins, from weakest to strongest: the default, the file, ``FAILSOFT_…`` variables (``__`` goes one level down:
``FAILSOFT_RUN__BUDGET=5s``), command-line flags. ``${NAME}`` in a file's text is replaced by that variable. Secrets
come only from the environment, directly or by ``${NAME}``; no value is ever repeated in an error.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from failsoft.base.errors import ConfigError
from failsoft.config.reference import fields_at, is_secret
from failsoft.config.sections import Settings
from failsoft.config.tiers import overruns

__all__ = ["FILE_NAME", "load_settings", "settings_file"]

FILE_NAME = "failsoft.yaml"
PREFIX = "FAILSOFT_"
_NOT_KEYS = frozenset({"FAILSOFT_CONFIG", "FAILSOFT_URL", "FAILSOFT_API_KEY"})
"""What commands read themselves: where the settings are, and a running server with its key."""
"""Variables with our prefix that are no keys: where the file is."""

_SHOWN = re.compile(
    r"://[^/\s@:]*:([^/\s@]+)@"
    r"|[?&](?:api[_-]?key|key|token|access[_-]?token|auth|secret|password|passwd|sig(?:nature)?)=([^&\s{}]+|\$\{\w+\})",
    re.IGNORECASE,
)
"""A secret in a URL: before the host, or as a parameter. Not `{…}`, which is an argument of a tool."""
_FILE_LIMIT = 1_000_000
_NODE_LIMIT = 20_000
"""Bounds of a configuration file, in bytes and in values (aliases counted as often as they are used)."""


Place = tuple[str | int, ...]


def load_settings(
    file: Path | str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """Reads, merges and checks the settings.

    `file` must exist when it is given (or named by ``FAILSOFT_CONFIG``); otherwise ``failsoft.yaml`` in the working
    folder is read if it is there. `flags` maps dotted paths to values from the command line, `defaults` has
    sections that stand in for what nobody set: an agent's own. Raises
    :class:`~failsoft.base.errors.ConfigError` with the first mistake as its message and all of them in its details.
    """
    environ = os.environ if environ is None else environ
    named = file if file is not None else environ.get("FAILSOFT_CONFIG") or None
    where = settings_file(file, environ=environ)
    reading = _Reading(where.name)
    if named is not None or where.is_file():
        reading.read_file(where, environ)
    reading.read_environment(environ)
    for dotted, value in (flags or {}).items():
        reading.put(tuple(dotted.split(".")), value, f"--{dotted.rpartition('.')[2].replace('_', '-')}")
    reading.values = _over(defaults or {}, reading.values)
    return reading.checked(base=where.parent)


def settings_file(file: Path | str | None = None, *, environ: Mapping[str, str] | None = None) -> Path:
    """The file that is read: the given one, the one that ``FAILSOFT_CONFIG`` names, or ``failsoft.yaml`` here."""
    environ = os.environ if environ is None else environ
    return Path(file or environ.get("FAILSOFT_CONFIG") or FILE_NAME)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above`, with what only `below` has."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _over(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return merged


class _Reading:
    """Merged plain values, and where each came from."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, Any] = {}
        self.places: dict[Place, str] = {}
        self.errors: list[str] = []
        self._nodes = 0

    def read_file(self, file: Path, environ: Mapping[str, str]) -> None:
        from ruamel.yaml import YAML  # without a file there is nothing to read, and it takes long to load
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        raw = b""
        try:
            with file.open("rb") as stream:
                raw = stream.read(_FILE_LIMIT + 1)
            if len(raw) > _FILE_LIMIT:
                raise ConfigError(f"{file}: the file is over {_FILE_LIMIT} bytes", param="config")
            document = YAML(typ="rt", pure=True).load(raw.decode("utf-8-sig"))
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}", param="config") from None
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise ConfigError(f"{self.name}:{line}: not UTF-8 text", param="config") from None
        except MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            problem = re.sub(r" with value .*", "", str(error.problem or "not YAML"), flags=re.DOTALL)
            raise ConfigError(f"{self.name}:{line}: {problem}", param="config") from None
        except (YAMLError, RecursionError, ValueError) as error:
            raise ConfigError(f"{self.name}: not YAML ({type(error).__name__})", param="config") from None
        if document is None:
            return
        if not isinstance(document, Mapping):
            raise ConfigError(f"{self.name}:1: should be keys and values", param="config")
        self.values = self._plain(document, (), environ)

    def _plain(self, node: Any, path: Place, environ: Mapping[str, str]) -> Any:
        """Plain Python data without YAML's types; notes each key's line on the way."""
        self._nodes += 1
        if self._nodes > _NODE_LIMIT or len(path) > 20:
            raise ConfigError(f"{self.name}: too many values, or too deep", param="config")
        if getattr(getattr(node, "tag", None), "value", None) is not None:
            self.errors.append(f"{self._place(path)}: {dotted(path) or 'the file'}: YAML's tags (`!…`) are not read")
            return None
        if isinstance(node, Mapping):
            result: dict[str, Any] = {}
            for key, value in node.items():
                inner = (*path, str(key))
                self.places[inner] = f"{self.name}:{node.lc.key(key)[0] + 1}"  # type: ignore[attr-defined]  # ruamel's
                result[str(key)] = self._plain(value, inner, environ)
            return result
        if isinstance(node, list):
            items = []
            for index, value in enumerate(node):
                inner = (*path, index)
                self.places[inner] = f"{self.name}:{node.lc.item(index)[0] + 1}"  # type: ignore[attr-defined]  # ruamel's
                items.append(self._plain(value, inner, environ))
            return items
        if isinstance(node, bool) or node is None:
            return node
        if isinstance(node, int):
            return int(node)
        if isinstance(node, float):
            return float(node)
        if not isinstance(node, str):
            self.errors.append(f"{self._place(path)}: {dotted(path)}: should be text or a number; quote it")
            return None
        return self._filled(str(node), path, environ)

    def _filled(self, text: str, path: Place, environ: Mapping[str, str]) -> str | None:
        if is_secret(path) and not re.fullmatch(r"(?:[A-Za-z]{1,10} )?\$\{\w+\}", text):
            variable = PREFIX + "__".join(str(part).upper() for part in path)
            advice = f"a secret is not written into the file; use ${{NAME}} or {variable}"
            self.errors.append(f"{self._place(path)}: {dotted(path)}: {advice}")
            return None
        if (shown := _SHOWN.search(text)) is not None and not re.fullmatch(r"\$\{\w+\}", shown[1] or shown[2]):
            what = "a password" if shown[1] else "a secret"
            self.errors.append(
                f"{self._place(path)}: {dotted(path)}: {what} is not written into a URL; use ${{NAME}} there"
            )
            return None
        missing = [name for name in re.findall(r"\$\{(\w+)\}", text) if name not in environ]
        if missing:
            self.errors.append(f"{self._place(path)}: {dotted(path)}: the variable {missing[0]} is not set")
            return None
        return re.sub(r"\$\{(\w+)\}", lambda match: environ[match[1]], text)

    def read_environment(self, environ: Mapping[str, str]) -> None:
        for variable in sorted(environ):
            if variable.startswith(PREFIX) and variable not in _NOT_KEYS:
                path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
                value: Any = environ[variable]
                if path == ("data",):
                    value = [part for part in value.split(os.pathsep) if part]
                self.put(path, value, f"environment {variable}")
        for variable, path in (("OPENAI_BASE_URL", ("model", "base_url")), ("OPENAI_API_KEY", ("model", "api_key"))):
            section = self.values.get("model")
            if environ.get(variable) and (section is None or (isinstance(section, dict) and path[1] not in section)):
                self.put(path, environ[variable], f"environment {variable}")

    def put(self, path: Place, value: Any, place: str) -> None:
        node = self.values
        for part in path[:-1]:
            inner = node.setdefault(str(part), {})
            if not isinstance(inner, dict):
                inner = node[str(part)] = {}
            node = inner
        node[str(path[-1])] = value
        for length in range(1, len(path)):
            self.places.setdefault(path[:length], place)
        self.places[path] = place

    def checked(self, *, base: Path) -> Settings:
        settings: Settings | None = None
        try:
            settings = Settings.model_validate(self.values)
        except ValidationError as error:
            reported = {line.split(": ")[1] for line in self.errors}
            for one in error.errors(include_url=False, include_context=False, include_input=False):
                if dotted(one["loc"]) not in reported:
                    self.errors.append(self._told(one["loc"], one["type"], one["msg"]))
        if settings is not None and not self.errors:
            for over in overruns(settings):
                outer = f" ({self._place(over.outer)})" if over.outer in self.places else " (its default)"
                self.errors.append(f"{self._place(over.inner)}: {dotted(over.inner)}: {over.message}{outer}")
        if self.errors or settings is None:
            self.errors.sort(key=_by_line)
            more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
            raise ConfigError(self.errors[0] + more, param="config", details={"errors": list(self.errors)})
        update: dict[str, Any] = {"data": tuple(base / path for path in settings.data)}
        if settings.golden is not None:
            update["golden"] = base / settings.golden
        if settings.store.path is not None:
            update["store"] = settings.store.model_copy(update={"path": base / settings.store.path})
        return settings.model_copy(update=update)

    def _told(self, loc: Place, kind: str, message: str) -> str:
        if kind == "extra_forbidden":
            known = list(fields_at(loc[:-1]))
            close = difflib.get_close_matches(str(loc[-1]), known, n=1)
            message = (
                f"unknown key; did you mean {close[0]}?" if close else f"unknown key; known are {', '.join(known)}"
            )
        message = message.removeprefix("Value error, ").replace("Input should", "should")
        return f"{self._place(loc)}: {dotted(loc)}: {message}" if loc else f"{self._place(loc)}: {message}"

    def _place(self, path: Place) -> str:
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return self.name


def _by_line(error: str) -> tuple[str, int]:
    """The file's mistakes in its order, those of the environment after them."""
    found = re.match(r"([^:]*):(\d+): ", error)
    return (found[1], int(found[2])) if found else ("~" + error, 0)


def dotted(path: Sequence[str | int]) -> str:
    """``downstreams.warehouse.permits``."""
    return ".".join(str(part) for part in path)
