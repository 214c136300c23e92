"""Conditions: whether a task is wanted, from what earlier tasks brought. Data, like the plan that they stand in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from failsoft.base.errors import BadInput
from failsoft.runs.references import reference_of, resolve_one

__all__ = ["Condition", "holds"]

Test = Literal[
    "present", "absent", "true", "false", "empty", "filled", "eq", "ne", "lt", "le", "gt", "ge", "in", "contains"
]  # fmt: skip


class Condition(BaseModel):
    """Compares what a reference gives with a value.

    ``of`` is a reference: ``{"$from": "count", "path": "rows"}``. ``test``: ``present`` (something was brought that is
    not None), ``absent``; ``true``, ``false``; ``filled``, ``empty`` (has a length above 0, or none); ``eq ne lt le gt
    ge in contains`` against ``value``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: dict[str, Any]
    test: Test = "true"
    value: Any = None


_TESTS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "present": lambda found, _: found is not None,
    "absent": lambda found, _: found is None,
    "true": lambda found, _: bool(found),
    "false": lambda found, _: not found,
    "filled": lambda found, _: found is not None and len(found) > 0,
    "empty": lambda found, _: found is None or len(found) == 0,
    "eq": lambda found, value: found == value,
    "ne": lambda found, value: found != value,
    "lt": lambda found, value: found < value,
    "le": lambda found, value: found <= value,
    "gt": lambda found, value: found > value,
    "ge": lambda found, value: found >= value,
    "in": lambda found, value: found in value,
    "contains": lambda found, value: value in found,
}


def holds(condition: Condition, values: Mapping[str, Any], missing: Collection[str] = ()) -> bool:
    """Whether it holds for the results there are; raises :class:`BadInput` when the two cannot be compared."""
    reference = reference_of(condition.of, "when.of")
    try:
        found = resolve_one(reference, values, missing)
    except BadInput:
        if condition.test not in {"present", "absent"}:
            raise
        found = None
    try:
        return bool(_TESTS[condition.test](found, condition.value))
    except (TypeError, ValueError):
        raise BadInput(
            f"the condition on {reference.task!r} cannot be judged: {condition.test} does not apply to "
            f"{type(found).__name__}",
            param="when",
            details={"reason": "bad_condition"},
        ) from None
