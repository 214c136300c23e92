"""The exact cache of answers: the same question in every respect, to the same alias, by the same tenant.

What is stored is complete (every choice ended by itself) and never degraded. Answers are kept as encoded JSON: sizes
are exact, nothing can change a stored answer in place, and a client that does not stream gets the bytes as they are.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from failsoft.kernel.cache import Cache, CachePolicy, CacheStatistics, Entry

__all__ = ["AnswerCache", "StoredAnswer", "cache_key", "is_complete"]

_UNKEYED: Final = (
    "stream",
    "stream_options",
    "metadata",
    "store",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
"""Parameters that cannot change an answer: how it is delivered, what the upstream files it under, and who of the
tenant's own users asked (``user``: a label for abuse reports, which no model sees). Everything else is in the key.
"""
_ORDERED: Final = ("tools", "functions", "response_format")
"""Parameters whose inner order is kept in the key: models write keys in the order of their schema."""

_COMPLETE: Final = frozenset({"stop", "tool_calls", "function_call"})

_canonical = msgspec.json.Encoder(order="sorted").encode
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def cache_key(request: Mapping[str, Any], tenant: str | None, route_alias: str) -> bytes:
    """The key of a request body (plain data): a digest of 32 bytes.

    Every parameter that may matter is in it, known or not; an absent one differs from one that is set to its default.
    The order of keys does not matter, except inside schemas.
    """
    data = dict(request)
    for name in _UNKEYED:
        data.pop(name, None)
    for name in _ORDERED:
        if name in data:
            data[name] = msgspec.Raw(_encode(data[name]))
    return hashlib.blake2b(_canonical((tenant, route_alias, data)), digest_size=32).digest()


def is_complete(result: Mapping[str, Any]) -> bool:
    """Whether every choice of a ``chat.completion`` ended by itself: not by length, filter or a cut."""
    choices = result.get("choices")
    return bool(choices) and all(
        isinstance(choice, dict) and isinstance(reason := choice.get("finish_reason"), str) and reason in _COMPLETE
        for choice in choices or ()
    )


class StoredAnswer(NamedTuple):
    """An answer from the cache: its JSON, and its age in seconds."""

    body: bytes
    age: float

    def result(self) -> dict[str, Any]:
        """The decoded answer, new each time."""
        return _decode(self.body)  # type: ignore[no-any-return] # what was stored is an object


class AnswerCache:
    """Complete answers by :func:`cache_key`; bounded in entries and bytes by its policy. Takes ``now`` (loop time)."""

    __slots__ = ("_cache",)

    def __init__(self, policy: CachePolicy | None = None, *, rng: random.Random) -> None:
        self._cache = Cache(policy or CachePolicy(), rng=rng)

    def fresh(self, key: bytes, now: float) -> StoredAnswer | None:
        """The answer, if it is fresh."""
        return _answer(self._cache.fresh(key, now), now)

    def stale(self, key: bytes, now: float) -> StoredAnswer | None:
        """The answer, fresh or not, for when no route serves."""
        return _answer(self._cache.stale(key, now), now)

    def put(
        self, key: bytes, result: Mapping[str, Any], now: float, *, degraded: bool = False, ttl: float | None = None
    ) -> bool:
        """Keeps an answer; False when it is degraded, not complete, or too large."""
        if degraded or not is_complete(result):
            return False
        body = _encode(result)
        return self._cache.put(key, body, now, ttl=ttl, size=len(body) + len(key) + 200)

    def drop(self, key: bytes) -> None:
        """Forgets an answer (harmless when it is not there)."""
        self._cache.drop(key)

    def reconfigure(self, policy: CachePolicy) -> None:
        """Takes new bounds in place."""
        self._cache.reconfigure(policy)

    def statistics(self) -> CacheStatistics:
        """Figures as of now."""
        return self._cache.statistics()

    def __len__(self) -> int:
        return len(self._cache)

    def __repr__(self) -> str:
        found = self.statistics()
        return f"<AnswerCache entries={found.entries} bytes={found.bytes} hits={found.hits} misses={found.misses}>"


def _answer(entry: Entry | None, now: float) -> StoredAnswer | None:
    return None if entry is None else StoredAnswer(entry.value, now - entry.stored)
