"""Quoting for SQL that is put together here; every name and every text that comes from outside goes through it."""

from __future__ import annotations

VALUE = "v"
"""The name under which expressions over a text column see its trimmed value."""

MISSING = (
    *("NA", "N/A", "n/a", "#N/A", "#NA", "NULL", "null", "Null", "None", "NaN", "nan", "NAN"),
    *("inf", "-inf", "+inf", "Inf", "-Inf", "INF", "-INF", "Infinity", "-Infinity", "infinity", "-infinity", "∞", "-∞"),
    *("-", "--", "—", "–", ".", "?", "无", "缺失", "空", "暂无"),
)
"""Texts that stand for a missing value among numbers and dates. In text columns they are values: ``NA`` is Namibia."""


def identifier(name: str) -> str:
    """`name` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """`text` as a quoted SQL string."""
    return "'" + text.replace("'", "''") + "'"


def is_missing(value: str = VALUE) -> str:
    """A condition: `value` is NULL, empty or one of :data:`MISSING`."""
    return f"({value} IS NULL OR {value} = '' OR {value} IN ({', '.join(literal(m) for m in MISSING)}))"
