"""Rows as plain data, within bounds."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from failsoft.base.errors import ToolFailed

__all__ = ["Rows", "SqlBounds", "plain"]

_DEEP: Final = 20


class SqlBounds:
    """``rows`` and ``bytes`` that a result has at most; what is over is cut, and the result says so."""

    __slots__ = ("bytes", "rows")

    def __init__(self, rows: int, size: int) -> None:
        self.rows = rows
        self.bytes = size


class Rows:
    """A result as it is read: ``add`` says whether more is wanted."""

    __slots__ = ("_bounds", "_size", "columns", "rows", "truncated")

    def __init__(self, columns: Sequence[str], bounds: SqlBounds) -> None:
        self.columns = list(columns)
        self.rows: list[list[Any]] = []
        self.truncated = False
        self._bounds = bounds
        self._size = sum(len(name) + 3 for name in columns)

    def add(self, row: Sequence[Any]) -> bool:
        """Takes one row, if it fits. Raises :class:`ToolFailed` for a single row that never would."""
        if len(self.rows) >= self._bounds.rows:
            self.truncated = True
            return False
        made = [plain(value) for value in row]
        size = 2 + sum(_size(value) for value in made)
        if size > self._bounds.bytes:
            raise ToolFailed(f"a row has {size} bytes, more than the {self._bounds.bytes} of a whole result")
        if self._size + size > self._bounds.bytes:
            self.truncated = True
            return False
        self._size += size
        self.rows.append(made)
        return True

    def result(self) -> dict[str, Any]:
        """Plain data: names, rows in order, whether there were more."""
        return {"columns": self.columns, "rows": self.rows, "truncated": self.truncated}


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass")) + 3
    if isinstance(value, list):
        return 2 + sum(_size(one) + 1 for one in value)
    if isinstance(value, dict):
        return 2 + sum(len(name) + 4 + _size(one) for name, one in value.items())
    return len(repr(value)) + 1


def plain(value: Any, depth: int = 0) -> Any:
    """A database's value as JSON has it: times as ISO 8601, decimals as numbers where that loses nothing and else as
    text, bytes in hexadecimal, what is not a number as null.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            return None
        if value == value.to_integral_value() and abs(value) < 1 << 53:
            return int(value)
        number = float(value)
        return number if math.isfinite(number) and decimal.Decimal(repr(number)) == value else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, uuid.UUID):
        return str(value)
    if depth > _DEEP:
        return str(value)[:1000]
    if isinstance(value, Mapping):
        return {str(name): plain(one, depth + 1) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one, depth + 1) for one in value]
    return str(value)
