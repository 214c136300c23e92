"""Texts that hold secrets: written with ``${NAME}``, filled from the environment, never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from failsoft.base.errors import BadInput

__all__ = ["SecretText"]

_REFERENCE: Final = re.compile(r"\$\{(\w+)\}")


class SecretText:
    """A text like ``Bearer ${WEATHER_TOKEN}``. Raises :class:`BadInput` naming a variable that is not set."""

    __slots__ = ("_shown", "_value", "parts")

    def __init__(self, text: str, *, environ: Mapping[str, str] | None = None, where: str = "") -> None:
        values = os.environ if environ is None else environ
        names = _REFERENCE.findall(text)
        missing = [name for name in names if name not in values]
        if missing:
            raise BadInput(f"{where or text}: the variable {missing[0]} is not set", param=where or missing[0])
        self._value = _REFERENCE.sub(lambda match: values[match[1]], text)
        self._shown = text if names else "***"
        self.parts = tuple(values[name] for name in names) or (self._value,)
        """What must not be shown anywhere."""

    def reveal(self) -> str:
        """The text itself, for the wire."""
        return self._value

    def scrubbed(self, text: str) -> str:
        """`text` without the secret, should the far side have sent it back."""
        for part in self.parts:
            if len(part) >= 4:
                text = text.replace(part, "***")
        return text

    def __repr__(self) -> str:
        return f"SecretText({self._shown!r})"

    __str__ = __repr__
