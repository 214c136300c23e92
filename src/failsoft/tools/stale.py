"""Earlier results of tools that allow them to be served when the tool itself cannot answer, with their age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from failsoft.base.weights import weight
from failsoft.tools.registry import ToolSpec

__all__ = ["StaleResults"]

_encode: Final = msgspec.json.Encoder(order="deterministic", enc_hook=repr).encode


class StaleResults:
    """At most ``entries`` results in about ``room`` bytes, least recently used out first; each tenant has its own.

    Only fresh results are put in; what was served stale or by a substitute never is.
    """

    __slots__ = ("_clock", "_entries", "_held", "_results", "_room")

    def __init__(self, clock: Callable[[], float], *, entries: int = 512, room: int = 64 << 20) -> None:
        self._clock = clock
        self._entries = entries
        self._room = room
        self._held = 0
        self._results: OrderedDict[tuple[str | None, str, bytes], tuple[Any, float, int]] = OrderedDict()

    def put(self, spec: ToolSpec, arguments: Mapping[str, Any], tenant: str | None, value: Any) -> None:
        """Keeps a fresh result, when the tool allows stale ones at all."""
        if spec.stale_for is None or spec.kind == "action":
            return
        key = (tenant, spec.name, _encode(arguments))
        self._drop(key)
        size = weight(value) + len(key[2])
        if size > self._room:
            return
        self._results[key] = (value, self._clock(), size)
        self._held += size
        while len(self._results) > self._entries or self._held > self._room:
            self._drop(next(iter(self._results)))

    def _drop(self, key: tuple[str | None, str, bytes]) -> None:
        dropped = self._results.pop(key, None)
        if dropped is not None:
            self._held -= dropped[2]

    def get(self, spec: ToolSpec, arguments: Mapping[str, Any], tenant: str | None) -> tuple[Any, float] | None:
        """An earlier result for the same arguments and its age in seconds, when it is not too old."""
        if spec.stale_for is None:
            return None
        key = (tenant, spec.name, _encode(arguments))
        found = self._results.get(key)
        if found is None:
            return None
        value, at, _ = found
        age = self._clock() - at
        if age > spec.stale_for:
            self._drop(key)
            return None
        self._results.move_to_end(key)
        return value, age

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return f"<StaleResults {len(self._results)}/{self._entries}>"
