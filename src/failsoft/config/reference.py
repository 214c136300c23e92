"""Every key there is, for the reference documentation and for finding the key that was meant."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from failsoft.base.settings import Scope
from failsoft.config.sections import Settings
from failsoft.kernel.environment import looks_secret

__all__ = ["Key", "fields_at", "is_secret", "keys"]

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """One documented key. ``path`` has ``<name>`` where the user chooses; ``default`` is as one would write it."""

    path: str
    type: str
    default: str
    unit: str | None
    scope: Scope
    description: str


def keys(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[Key]:
    """Every key there is, in the order in which the documentation shows them."""
    for name, field in model.model_fields.items():
        section, many = _section(field.annotation)
        path = f"{prefix}{name}"
        if section is not None:
            yield from keys(section, f"{path}.<name>." if many else f"{path}.")
            continue
        extra: Any = field.json_schema_extra
        yield Key(path, _type_name(field), _default(field), extra.get("unit"), extra["scope"], field.description or "")


def is_secret(path: Place) -> bool:
    """Whether the key at `path` holds a secret."""
    field = fields_at(path[:-1]).get(str(path[-1])) if path else None
    if len(path) > 1 and path[-2] == "env" and "env" in fields_at(path[:-2]):  # a program's variables
        return looks_secret(str(path[-1]))
    if field is None and len(path) > 1 and path[-2] == "secrets":  # one of several, by names of the user's
        field = fields_at(path[:-2]).get("secrets")
    return field is not None and "SecretStr" in str(field.annotation)


def fields_at(path: Place) -> dict[str, FieldInfo]:
    """The keys that are known at a place of the file."""
    model: type[BaseModel] | None = Settings
    parts = list(path)
    while parts and model is not None:
        field = model.model_fields.get(str(parts.pop(0)))
        if field is None:
            return {}
        model, many = _section(field.annotation)
        if many and parts:
            parts.pop(0)
    return dict(model.model_fields) if model is not None else {}


def _section(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section behind an annotation, and whether the user names several of it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) in (Union, types.UnionType):
        for option in get_args(annotation):
            found, many = _section(option)
            if found is not None:
                return found, many
    if get_origin(annotation) is dict:
        found = get_args(annotation)[1]
        return (found, True) if isinstance(found, type) and issubclass(found, BaseModel) else (None, False)
    return None, False


def _type_name(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and extra.get("unit") == "seconds":
        return "duration"
    text = str(field.annotation)
    if options := re.search(r"Literal\[([^]]*)\]", text):
        return " | ".join(part.strip(" '") for part in options[1].split(","))
    for mark, name in (
        ("dict", "names and texts"),
        ("Secret", "secret"),
        ("tuple[str", "list of names"),
        ("tuple", "list of paths"),
        ("Path", "path"),
        ("bool", "true | false"),
    ):
        if mark in text:
            return name
    return "number" if "int" in text or "float" in text else "text"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if field.is_required() or value is None or value in ("", {}):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
