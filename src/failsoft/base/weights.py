"""About how much memory a value holds: for caches and histories whose bound is bytes, not entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, Final

__all__ = ["weight"]

_SAMPLE: Final = 8
"""Items of a collection that are looked at; the others are taken to be like them."""
_DEPTH: Final = 8
_SMALL: Final = frozenset({type(None), bool, int, float})


def weight(value: Any, depth: int = _DEPTH) -> int:
    """Bytes, within a small factor; takes microseconds, however large the value is."""
    kind = type(value)
    if kind is str:  # what most values are, and most of what is in them
        return 56 + len(value)
    if kind in _SMALL or isinstance(value, bool | int | float):
        return 32
    if isinstance(value, str | bytes | bytearray | memoryview):
        return 56 + len(value)
    if depth == 0:
        return 64
    if kind is dict:
        if len(value) > _SAMPLE:
            return _many(len(value), [weight(k, depth - 1) + weight(v, depth - 1) for k, v in _few(value.items())])
        size = 64 + 8 * len(value)
        for key, inner in value.items():
            size += weight(key, depth - 1) + weight(inner, depth - 1)
        return size
    if kind is list or kind is tuple:
        return _many(len(value), [weight(item, depth - 1) for item in value[:_SAMPLE]])
    if isinstance(value, Mapping):
        return _many(len(value), [weight(k, depth - 1) + weight(v, depth - 1) for k, v in _few(value.items())])
    if isinstance(value, Sequence | Set):
        return _many(len(value), [weight(item, depth - 1) for item in _few(value)])
    if is_dataclass(value):
        return 64 + sum(weight(getattr(value, field.name, None), depth - 1) for field in fields(value))
    inside = getattr(value, "__dict__", None)
    return 64 + (weight(inside, depth - 1) if inside else 0)


def _few(items: Any) -> Any:
    return islice(items, _SAMPLE)


def _many(count: int, sampled: list[int]) -> int:
    return 64 + 8 * count + (count * sum(sampled) // len(sampled) if sampled else 0)
