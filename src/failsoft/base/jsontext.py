"""JSON text of whatever an answer or an error holds: what tools and planners put into it must not cost the response."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

__all__ = ["json_text"]

_DEPTH: Final = 50
_compact: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_text(value: Any) -> str:
    """Compact JSON that can be encoded as UTF-8. Numbers that are not finite become null, halves of characters a
    replacement, and what is no plain data its ``repr``.
    """
    try:
        text = _compact(value)
        if not text.isascii():
            text.encode()
    except (ValueError, TypeError, OverflowError, RecursionError):  # UnicodeEncodeError is a ValueError
        return _compact(_plain(value, _DEPTH))
    return text


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 1024 else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if depth > 0 and isinstance(value, Mapping):
        return {_plain(str(key), 1): _plain(item, depth - 1) for key, item in value.items()}
    if depth > 0 and isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item, depth - 1) for item in value]
    try:
        return repr(value)[:500].encode("utf-8", "replace").decode()
    except Exception:  # noqa: BLE001 - any object's repr may raise anything
        return type(value).__name__
