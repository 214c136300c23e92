"""The cache of one downstream: fresh values, and stale ones for when it fails, with their age.

In process, bounded by entries and bytes, least recently used out first. Lifetimes are jittered by ± 10 % so that keys
stored together do not expire together. What is stored is stored as full: whoever has a degraded value keeps it out
(:meth:`~failsoft.kernel.guard.Guard.fetch` does).

A second level (Redis, say) stands behind :class:`SecondLevel`; it is asked under the caller's deadline and its failures
are nobody's but its own.
"""

from __future__ import annotations

import math
import random
import sys
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

__all__ = ["Cache", "CachePolicy", "CacheStatistics", "Entry", "SecondLevel", "rough_size"]


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """``ttl`` seconds a value is fresh, ``stale_for`` seconds after that it may still serve when the downstream fails.

    ``entries`` and ``max_bytes`` bound the cache; one value larger than a tenth of ``max_bytes`` is not kept.
    ``jitter`` is the share by which each lifetime is stretched or shrunk at random.
    """

    ttl: float = 60.0
    stale_for: float = 3600.0
    entries: int = 1000
    max_bytes: int = 64 * 1024 * 1024
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if not (self.ttl > 0 and self.stale_for >= 0 and math.isfinite(self.ttl)):
            raise ValueError("needs ttl > 0 and stale_for >= 0")
        if not (self.entries >= 1 and self.max_bytes >= 1):
            raise ValueError("needs entries >= 1 and max_bytes >= 1")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter must be in [0, 1)")


class Entry(NamedTuple):
    """A value with its times (loop time): stored at, fresh until, of use until."""

    value: Any
    stored: float
    fresh_until: float
    stale_until: float
    size: int


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Figures since the start; ``bytes`` by estimate."""

    entries: int
    bytes: int
    hits: int
    stale_hits: int
    misses: int
    evicted: int
    refused: int


class SecondLevel(Protocol):
    """A slower cache shared by processes. Both calls may fail or hang: they are guarded by their caller.

    Values are plain data; `age` is in seconds, since clocks of two machines do not agree.
    """

    async def get(self, key: str) -> tuple[Any, float] | None:
        """The value and its age, or None."""
        ...

    async def put(self, key: str, value: Any, *, ttl: float) -> None:
        """Keeps a value for `ttl` seconds at most."""
        ...


_BASE: Final = 64


def rough_size(value: Any, *, limit: int = 10_000) -> int:
    """Bytes that a value of plain data takes, by estimate; looks at `limit` parts at most."""
    total, looked, stack = 0, 0, [value]
    while stack and looked < limit:
        one = stack.pop()
        looked += 1
        total += sys.getsizeof(one, _BASE)
        if isinstance(one, dict):
            stack.extend(one.keys())
            stack.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            stack.extend(one)
    if stack:  # the rest is taken to be like what was seen
        total += (total // max(looked, 1)) * len(stack)
    return total


class Cache:
    """Pure: takes ``now``. Not thread-safe: it belongs to one event loop."""

    __slots__ = ("_bytes", "_entries", "_rng", "evicted", "hits", "misses", "policy", "refused", "stale_hits")

    def __init__(self, policy: CachePolicy, *, rng: random.Random) -> None:
        self.policy = policy
        self._rng = rng
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._bytes = 0
        self.hits = self.stale_hits = self.misses = self.evicted = self.refused = 0

    def fresh(self, key: Hashable, now: float) -> Entry | None:
        """The entry of `key` if it is fresh."""
        entry = self._entries.get(key)
        if entry is not None and now < entry.fresh_until:
            self._entries.move_to_end(key)
            self.hits += 1
            return entry
        self.misses += 1
        return None

    def stale(self, key: Hashable, now: float) -> Entry | None:
        """The entry of `key` if it may still serve, fresh or not; an entry past all use is dropped."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now >= entry.stale_until:
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        self.stale_hits += 1
        return entry

    def put(
        self,
        key: Hashable,
        value: Any,
        now: float,
        *,
        ttl: float | None = None,
        age: float = 0.0,
        size: int | None = None,
    ) -> bool:
        """Keeps a full value; False when it is too large. `age` seconds of its life have passed already."""
        policy = self.policy
        size = rough_size(value) if size is None else size
        if size > max(policy.max_bytes // 10, 1):
            self.refused += 1
            self.drop(key)
            return False
        life = (policy.ttl if ttl is None else ttl) * self._rng.uniform(1 - policy.jitter, 1 + policy.jitter)
        stored = now - age
        self.drop(key)
        self._entries[key] = Entry(value, stored, stored + life, stored + life + policy.stale_for, size)
        self._bytes += size
        self._shrink()
        return True

    def drop(self, key: Hashable) -> None:
        """Forgets a key (harmless when it is not there)."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size

    def reconfigure(self, policy: CachePolicy) -> None:
        """Takes new bounds in place; kept entries keep their times."""
        self.policy = policy
        self._shrink()

    def _shrink(self) -> None:
        policy = self.policy
        while self._entries and (len(self._entries) > policy.entries or self._bytes > policy.max_bytes):
            _, entry = self._entries.popitem(last=False)
            self._bytes -= entry.size
            self.evicted += 1

    def __len__(self) -> int:
        return len(self._entries)

    def statistics(self) -> CacheStatistics:
        """Figures as of now."""
        return CacheStatistics(
            len(self._entries), self._bytes, self.hits, self.stale_hits, self.misses, self.evicted, self.refused
        )

    def __repr__(self) -> str:
        return f"<Cache entries={len(self._entries)} bytes={self._bytes} hits={self.hits} misses={self.misses}>"
