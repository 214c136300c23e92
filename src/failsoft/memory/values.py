"""Noted values by name: each tenant has its own, bounded in number and bytes, and for as long as it is said.

:class:`ValueStore` is the port; :class:`LocalValues` keeps them in this process.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from failsoft.base.errors import BadInput
from failsoft.base.weights import weight

__all__ = ["LocalValues", "Noted", "ValueStore"]

_KEY: Final = 200
"""Characters that a name may have."""
_VALUE: Final = 1 << 20
"""Bytes that one value may hold, about."""


class Noted(NamedTuple):
    """A value, and how many seconds ago it was noted."""

    value: Any
    age: float


@runtime_checkable
class ValueStore(Protocol):
    """Where values are kept. `space` parts them: a tenant, or a tenant's session."""

    async def put(self, space: str, key: str, value: Any, *, keep: float = math.inf) -> None:
        """Notes plain data under a name, for `keep` seconds; raises :class:`BadInput` for what cannot be kept."""
        ...

    async def get(self, space: str, key: str) -> Noted | None:
        """What is noted; None when nothing is, or it was for no longer."""
        ...

    async def delete(self, space: str, key: str) -> bool:
        """Forgets it; whether there was anything."""
        ...

    async def keys(self, space: str, *, prefix: str = "", limit: int = 100) -> list[str]:
        """Names of what is noted, newest first."""
        ...


class _Kept(NamedTuple):
    value: Any
    at: float
    until: float
    size: int


class LocalValues:
    """Values in this process: ``entries`` and ``room`` bytes for each space, ``spaces`` at most; what was used least
    recently goes first.
    """

    __slots__ = ("_clock", "_entries", "_held", "_room", "_spaces", "_spaces_most")

    def __init__(
        self, clock: Callable[[], float], *, entries: int = 1_000, room: int = 4 << 20, spaces: int = 1_000
    ) -> None:
        if entries < 1 or room < 1 or spaces < 1:
            raise BadInput("entries, room and spaces must be at least 1", param="memory")
        self._clock = clock
        self._entries = entries
        self._room = room
        self._spaces_most = spaces
        self._spaces: OrderedDict[str, OrderedDict[str, _Kept]] = OrderedDict()
        self._held: dict[str, int] = {}

    async def put(self, space: str, key: str, value: Any, *, keep: float = math.inf) -> None:
        """See :class:`ValueStore`."""
        if not key or len(key) > _KEY:
            raise BadInput(f"a name has 1 to {_KEY} characters", param="key")
        if not keep > 0:
            raise BadInput("keep must be more than 0 seconds", param="keep")
        size = weight(value) + len(key)
        if size > min(_VALUE, self._room):
            raise BadInput(f"a value may hold {min(_VALUE, self._room)} bytes; this one holds {size}", param="value")
        values = self._spaces.setdefault(space, OrderedDict())
        self._spaces.move_to_end(space)
        self._drop(space, key)
        now = self._clock()
        values[key] = _Kept(value, now, now + keep, size)
        self._held[space] = self._held.get(space, 0) + size
        while len(values) > self._entries or self._held[space] > self._room:
            self._drop(space, next(iter(values)))
        while len(self._spaces) > self._spaces_most:
            oldest, _ = self._spaces.popitem(last=False)
            self._held.pop(oldest, None)

    async def get(self, space: str, key: str) -> Noted | None:
        """See :class:`ValueStore`."""
        values = self._spaces.get(space)
        kept = None if values is None else values.get(key)
        if kept is None:
            return None
        now = self._clock()
        if now >= kept.until:
            self._drop(space, key)
            return None
        self._spaces[space].move_to_end(key)
        self._spaces.move_to_end(space)
        return Noted(kept.value, now - kept.at)

    async def delete(self, space: str, key: str) -> bool:
        """See :class:`ValueStore`."""
        return self._drop(space, key)

    async def keys(self, space: str, *, prefix: str = "", limit: int = 100) -> list[str]:
        """See :class:`ValueStore`."""
        now = self._clock()
        values: Mapping[str, _Kept] = self._spaces.get(space) or {}
        found = [(kept.at, key) for key, kept in values.items() if key.startswith(prefix) and now < kept.until]
        return [key for _, key in sorted(found, key=lambda one: -one[0])[:limit]]

    def _drop(self, space: str, key: str) -> bool:
        kept = self._spaces.get(space, OrderedDict()).pop(key, None)
        if kept is None:
            return False
        self._held[space] -= kept.size
        return True

    def __repr__(self) -> str:
        return f"<LocalValues spaces={len(self._spaces)} bytes={sum(self._held.values())}>"
