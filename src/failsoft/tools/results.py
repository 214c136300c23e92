"""What a tool may return: plain data of a bounded size, found out without holding anybody else up.

Encoding 100 MB to see that they are too many would stall the loop, or, from a thread, keep the interpreter's lock. So
large values are encoded in pieces, and the first piece over the limit is the last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from failsoft.base.weights import weight
from failsoft.tools.registry import ResultTooLarge, ResultUnserialisable, ToolSpec

__all__ = ["check_result", "checked_result"]

_WHOLE: Final = 1 << 19
"""Bytes, by estimate, up to which a value is encoded at once: well under a millisecond."""

_DEEP: Final = 16
"""Levels of nesting to which a value is taken apart; what is below is encoded at once."""


def _encode_model(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(type(value).__qualname__)


_encoder: Final = msgspec.json.Encoder(enc_hook=_encode_model)


def check_result(value: Any, spec: ToolSpec) -> Any:
    """Returns `value` when it is plain data of a permitted size (dataclasses and pydantic models count as plain).

    For threads; in between it lets others run. Raises :class:`ResultTooLarge` or :class:`ResultUnserialisable`, naming
    the tool.
    """
    for _ in _measured(value, spec):
        time.sleep(0)
    return value


async def checked_result(value: Any, spec: ToolSpec) -> Any:
    """:func:`check_result` for the loop."""
    for _ in _measured(value, spec):
        await asyncio.sleep(0)
    return value


def _measured(value: Any, spec: ToolSpec) -> Iterator[None]:
    """Raises when `value` is no result; yields after each piece but the last."""
    if value is None or isinstance(value, bool | float):
        return
    limit = spec.result_limit
    size = 0
    try:
        for piece in _pieces(value, limit, 0):
            if size:
                yield
            size += len(_encoder.encode(piece))
            if size > limit:
                break
    except _Long:
        size = limit + 1
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ResultUnserialisable(
            f"tool {spec.name!r} returned something that is not plain data: {str(error) or type(error).__name__}"
        ) from None
    if size > limit:
        raise ResultTooLarge(f"tool {spec.name!r} returned more than {limit} bytes", details={"limit": limit})


class _Long(Exception):
    """One text or collection is over the limit by its length alone."""


def _pieces(value: Any, limit: int, depth: int) -> Iterator[Any]:
    """Parts of `value` that together encode to about as much as it does."""
    if isinstance(value, str | bytes | bytearray | list | tuple | dict) and len(value) > limit:
        raise _Long
    if not isinstance(value, list | tuple | dict) or depth >= _DEEP or (size := weight(value)) <= _WHOLE:
        yield value
        return
    step = max(1, len(value) * _WHOLE // size)
    for part in _slices(value, step):
        if len(part) > 1:
            yield from _pieces(part, limit, depth + 1)
        elif isinstance(part, dict):
            for key, inner in part.items():
                yield {key: None}
                yield from _pieces(inner, limit, depth + 1)
        else:
            yield from _pieces(part[0], limit, depth + 1)


def _slices(value: Sequence[Any] | dict[Any, Any], step: int) -> Iterator[Any]:
    if isinstance(value, dict):
        items = iter(value.items())
        while part := dict(islice(items, step)):
            yield part
    else:
        for start in range(0, len(value), step):
            yield value[start : start + step]
