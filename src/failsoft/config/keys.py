"""What a section of the settings is made of: keys with a meaning, a default, a unit and a scope."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from failsoft.base.settings import Scope
from failsoft.config.durations import parse_duration

__all__ = ["Seconds", "Section", "key"]

Seconds = Annotated[float, BeforeValidator(parse_duration)]
"""A duration; see :func:`~failsoft.config.durations.parse_duration`."""


def key(default: Any, description: str, *, scope: Scope, unit: str | None = None, **constraints: Any) -> Any:
    """A setting; `scope` says what its change may touch (see :mod:`failsoft.base.settings`)."""
    extra: dict[str, Any] = {"scope": scope, **({"unit": unit} if unit else {})}
    return Field(default, description=description, json_schema_extra=extra, **constraints)


class Section(BaseModel):
    """A part of the file: unknown keys are refused, and no value is shown in an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)
