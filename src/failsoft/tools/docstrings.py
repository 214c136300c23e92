"""What a function's docstring says of it and of its parameters, in any of the usual styles."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["first_paragraph", "parameter_descriptions"]

_log = logging.getLogger(__name__)

_HAS_PARAMETERS: Final = re.compile(
    r"(?m)^\s*(?:(?:Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments|Other Parameters)\s*:?\s*$"
    r"|:param\b|:parameter\b|:arg\b|@param\b)"
)
"""What a docstring must have before it is worth importing a parser for it."""


def first_paragraph(function: Callable[..., Any]) -> str:
    """The first paragraph on one line; empty without a docstring."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def parameter_descriptions(function: Callable[..., Any]) -> Mapping[str, str]:
    """The description of each parameter that has one, on one line; nothing where griffe is not installed."""
    text = inspect.getdoc(function)
    if not text or not _HAS_PARAMETERS.search(text):
        return {}
    try:
        import griffe
    except ImportError:
        _log.info("griffe is not installed: the parameters of %s get no descriptions", function.__qualname__)
        return {}
    quiet: Any = {"warnings": False}
    docstring = griffe.Docstring(text)
    style, found = griffe.infer_docstring_style(docstring)
    sections = found or docstring.parse(style, **quiet)
    described: dict[str, str] = {}
    for section in sections:
        if section.kind in (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.other_parameters):
            for one in section.value:
                description = " ".join(str(one.description or "").split())
                if description:
                    described[one.name.lstrip("*")] = description
    return described
