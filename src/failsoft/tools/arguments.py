"""Arguments checked against a JSON schema, for tools whose schema is not made from type hints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from failsoft.base.errors import BadInput
from failsoft.tools.extras import require

__all__ = ["ArgumentSchema"]

_DEPTH: Final = 64
"""Levels of nesting that arguments may have; deeper ones are refused before any recursive code sees them."""

_VALUES: Final = 200_000
"""Values that arguments may have in all."""
_SECONDS: Final = 0.3
"""Seconds of work for one check, which stands in everybody's way; a schema that doubles with each reference needs more.
"""


class ArgumentSchema:
    """The JSON schema (2020-12) of a tool's arguments.

    It may come from somebody else, a tool server for example. So ``pattern``, ``format`` and ``uniqueItems`` are left
    to the far side (a pattern may take exponential time), references are followed inside the schema only, and a check
    takes a bounded time. Raises :class:`BadInput` for what is no schema.
    """

    __slots__ = ("_names", "_tool", "_until", "_validator", "schema")

    def __init__(self, tool: str, schema: Mapping[str, Any]) -> None:
        self._tool = tool
        self.schema = schema
        self._until = 0.0
        require("jsonschema", "tools")
        _check_shape(schema, f"the schema of tool {tool!r}")
        try:
            self._validator = _validator(schema, self._step)
        except Exception as error:  # noqa: BLE001 - whatever the library makes of a schema from elsewhere
            raise BadInput(
                f"the parameters of tool {tool!r} are no JSON schema: {_first_line(error)}", param="parameters"
            ) from None
        properties = schema.get("properties")
        self._names = tuple(properties) if isinstance(properties, Mapping) else ()

    def check(self, arguments: Mapping[str, Any], unknown: Collection[str] = ()) -> None:
        """Raises :class:`BadInput` naming the argument that does not fit; those in `unknown` are taken to be right."""
        _check_shape(arguments, f"the arguments of tool {self._tool!r}")
        self._until = time.thread_time() + _SECONDS
        try:
            errors = [one for one in self._validator.iter_errors(dict(arguments)) if not _excused(one, unknown)]
        except RecursionError:
            raise BadInput("the arguments are nested too deeply", param="arguments") from None
        except _TooMuch:
            raise BadInput(
                f"the arguments of tool {self._tool!r} take too long to be checked", param="arguments"
            ) from None
        except Exception as error:  # noqa: BLE001 - a reference that leads nowhere shows only when it is followed
            raise BadInput(
                f"the schema of tool {self._tool!r} cannot be used: {_first_line(error)}", param="arguments"
            ) from None
        if errors:
            raise self._misfit(min(errors, key=lambda one: (len(one.absolute_path), str(one.validator))))

    def _step(self) -> None:
        if time.thread_time() > self._until:
            raise _TooMuch

    def _misfit(self, error: Any) -> BadInput:
        path = [str(part) for part in error.absolute_path]
        kind = str(error.validator)
        if kind == "required":
            missing = next((name for name in error.validator_value if name not in error.instance), "?")
            path.append(str(missing))
            text = f"tool {self._tool!r} lacks the argument {'.'.join(path)!r}"
        elif kind in ("additionalProperties", "unevaluatedProperties") and isinstance(error.instance, Mapping):
            known = tuple(error.schema.get("properties", {})) or (self._names if not path else ())
            extra = next((name for name in error.instance if name not in known), "?")
            path.append(str(extra)[:80])
            takes = ", ".join(map(str, known)) or "none"
            text = f"tool {self._tool!r} takes no argument {'.'.join(path)!r}; it takes: {takes}"
        else:
            text = f"argument {'.'.join(path) or '(all)'!r} of tool {self._tool!r}: {_said(error, kind)}"
        return BadInput(text, param=".".join(path)[:200] or "arguments", details={"tool": self._tool, "type": kind})


def _said(error: Any, kind: str) -> str:
    """What is wrong, without repeating a value that may be long or private."""
    wanted = error.validator_value
    if kind == "type":
        return f"should be {wanted if isinstance(wanted, str) else ' or '.join(wanted)}"
    if kind in ("enum", "const"):
        options = wanted if kind == "enum" else [wanted]
        return f"should be one of {', '.join(repr(one)[:60] for one in options[:30])}"
    if kind in ("anyOf", "oneOf"):
        return "fits none of the permitted shapes" if kind == "anyOf" else "should fit exactly one permitted shape"
    if isinstance(wanted, int | float | str | bool):
        return f"does not fit {kind} {wanted!r:.60}"
    return f"does not fit {kind}"


def _excused(error: Any, unknown: Collection[str]) -> bool:
    return bool(error.absolute_path) and error.absolute_path[0] in unknown


def _first_line(error: Exception) -> str:
    return (str(getattr(error, "message", None) or error).splitlines() or [type(error).__name__])[0][:200]


def _check_shape(value: Any, what: str) -> None:
    """Bounds depth and number of values, and refuses numbers that JSON does not have."""
    level: list[Any] = [value]
    seen = 0
    for _ in range(_DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                if not all(isinstance(name, str) for name in one):
                    raise BadInput(f"{what}: names should be text", param="arguments")
                below.extend(one.values())
            elif isinstance(one, list | tuple):
                below.extend(one)
            elif isinstance(one, float) and not math.isfinite(one):
                raise BadInput(f"{what}: {one} is no number that can be sent", param="arguments")
        seen += len(below)
        if seen > _VALUES:
            raise BadInput(f"{what}: too many values", param="arguments")
        if not below:
            return
        level = below
    raise BadInput(f"{what}: nested too deeply", param="arguments")


class _TooMuch(Exception):
    """A check takes longer than it may."""


def _validator(schema: Mapping[str, Any], step: Callable[[], None]) -> Any:
    import jsonschema
    from jsonschema.validators import extend
    from referencing import Registry

    base = jsonschema.Draft202012Validator

    def ignored(*_: object) -> None:
        return None

    def array(_: object, value: Any) -> bool:
        return isinstance(value, list | tuple)

    def counted(check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def counting(*args: Any) -> Iterator[Any]:
            step()
            yield from check(*args) or ()

        return counting

    left_out = dict.fromkeys(("pattern", "patternProperties", "format", "uniqueItems"), ignored)
    kind = extend(
        base,
        {**{name: counted(check) for name, check in base.VALIDATORS.items()}, **left_out},
        type_checker=base.TYPE_CHECKER.redefine("array", array),
    )
    base.check_schema(schema)
    return kind(dict(schema), registry=Registry())
