"""References in a task's arguments to what other tasks brought, and what stands for them when the task starts.

``{"$from": "id"}`` is the result of an earlier task, ``{"$from": "id", "path": "rows[0].name"}`` a part of it; with
``"default"`` a missing result or part is no error. In a task that is mapped over a list, ``{"$item": "path"}`` is the
item, or with a path a part of it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from failsoft.base.errors import BadInput, PlanRefused

__all__ = ["ITEM", "Reference", "reference_of", "references", "resolve", "resolve_one"]

_DEPTH: Final = 64
"""Nesting of arguments beyond which a plan is refused."""

_FROM: Final = "$from"
ITEM: Final = "$item"
"""Stands for the item of a mapped task, as if it were the id of a task."""
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")


@dataclass(frozen=True, slots=True)
class Reference:
    """A ``$from`` in a task's arguments: whose result, which part of it, and where it stands."""

    task: str
    path: str = ""
    default: Any = None
    has_default: bool = False
    where: str = ""


class _TooDeep(Exception):
    """A signal within this module."""


def references(arguments: Mapping[str, Any]) -> list[Reference]:
    """All references in a task's arguments, in order. Raises :class:`PlanRefused` for malformed or too deep ones."""
    try:
        return list(_references(arguments, "arguments", 0))
    except _TooDeep:
        raise PlanRefused(
            f"arguments are nested more than {_DEPTH} deep", param="arguments", details={"reason": "too_deep"}
        ) from None


def _references(value: Any, where: str, depth: int) -> Iterator[Reference]:
    if depth > _DEPTH:
        raise _TooDeep
    if isinstance(value, dict):
        if _FROM in value or ITEM in value:
            yield reference_of(value, where)
            return
        for key, item in value.items():
            yield from _references(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _references(item, f"{where}[{i}]", depth + 1)


def reference_of(value: Mapping[str, Any], where: str) -> Reference:
    """Reads one reference; raises :class:`PlanRefused` for a malformed one. `where` is the place it stands at."""
    if ITEM in value and isinstance(value[ITEM], str) and value.keys() <= {ITEM, "default"}:
        return Reference(ITEM, value[ITEM], value.get("default"), "default" in value, where)
    task, path = value.get(_FROM), value.get("path", "")
    if not isinstance(task, str) or not isinstance(path, str) or not value.keys() <= {_FROM, "path", "default"}:
        raise PlanRefused(
            f'{where} is no reference: write {{"$from": "task", "path": "optional.path", "default": …}}',
            param=where,
            details={"reason": "bad_reference"},
        )
    return Reference(task, path, value.get("default"), "default" in value, where)


def resolve(arguments: Mapping[str, Any], values: Mapping[str, Any], missing: Collection[str] = ()) -> dict[str, Any]:
    """The arguments with each reference replaced by what it refers to.

    ``values`` are results by task id; a task in ``missing`` brought nothing and gives the reference's default, else
    None. Raises :class:`~failsoft.base.errors.BadInput` naming the argument when a path leads nowhere.
    """
    if not arguments:
        return {}
    return {key: _resolved(value, values, missing, key) for key, value in arguments.items()}


def resolve_one(reference: Reference, values: Mapping[str, Any], missing: Collection[str] = ()) -> Any:
    """What a reference refers to; see :func:`resolve`. A task that has not ended (yet) counts as missing."""
    if reference.task in missing or reference.task not in values:
        return reference.default
    return _follow(values[reference.task], reference)


def _resolved(value: Any, values: Mapping[str, Any], missing: Collection[str], where: str) -> Any:
    if isinstance(value, dict):
        if _FROM in value or ITEM in value:
            return resolve_one(reference_of(value, where), values, missing)
        return {key: _resolved(item, values, missing, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(item, values, missing, f"{where}[{i}]") for i, item in enumerate(value)]
    return value


def _follow(value: Any, reference: Reference) -> Any:
    """Walks a path through mappings, sequences and the fields of dataclasses and models, nothing else."""
    for match in _STEP.finditer(reference.path):
        name, index = match.groups()
        try:
            if index is not None:
                value = value[int(index)] if isinstance(value, list | tuple) else _nowhere()
            elif isinstance(value, Mapping):
                value = value[name]
            elif name in _field_names(value):
                value = getattr(value, name)
            else:
                _nowhere()
        except (KeyError, IndexError):
            if reference.has_default:
                return reference.default
            raise BadInput(
                f"the result of {reference.task!r} has no {reference.path!r}",
                param=reference.where,
                details={"reason": "no_such_part", "task": reference.task, "path": reference.path},
            ) from None
    return value


def _nowhere() -> Any:
    raise KeyError


def _field_names(value: Any) -> Collection[str]:
    if dataclasses.is_dataclass(value):
        return {field.name for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return type(value).model_fields.keys()
    return getattr(type(value), "_fields", ())
