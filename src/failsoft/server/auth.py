"""API keys: whose call it is, what it may use, and how much of it.

Keys are known by their SHA-256 only. A key is long and random, so that its digest cannot be guessed back, and looking
the digest up tells nothing about the key; the comparison itself takes the same time whatever is wrong.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from failsoft.base.errors import Forbidden, RateLimited, Unauthorized
from failsoft.config.access import KeySettings, parse_rate

__all__ = ["Caller", "KeyRing", "TokenBucket"]

_LONGEST: Final = 512
"""Bytes of an Authorization header that are looked at."""

_CONCURRENCY_PAUSE: Final = 1.0
"""Seconds after which a caller at its concurrency limit is told to come back."""


class TokenBucket:
    """A rate limit: `number` calls per `seconds`, up to `burst` of them at once. Pure: takes ``now``.

    Kept as one number, the time at which the bucket will be full again (the generic cell rate algorithm).
    """

    __slots__ = ("_each", "_full_at", "_span")

    def __init__(self, number: int, seconds: float, burst: int | None = None) -> None:
        if not (number >= 1 and seconds > 0 and (burst is None or burst >= 1)):
            raise ValueError("needs number >= 1, seconds > 0 and burst >= 1")
        self._each = seconds / number
        self._span = self._each * (number if burst is None else burst)
        self._full_at = -math.inf

    def take(self, now: float) -> float:
        """0 when the call may pass, else the seconds until it might."""
        after = max(self._full_at, now) + self._each
        if after - now > self._span * (1 + 1e-12):
            return after - now - self._span
        self._full_at = after
        return 0.0

    def __repr__(self) -> str:
        return f"<TokenBucket each={self._each:g}s burst={self._span / self._each:g}>"


class Caller:
    """Who calls: a key's tenant, models and limits. One per key, for the life of the process."""

    __slots__ = ("bucket", "concurrent", "in_flight", "models", "name", "refused", "tenant")

    def __init__(self, name: str | None, settings: KeySettings | None) -> None:
        self.name = name
        self.tenant = name if settings is None or settings.tenant is None else settings.tenant
        self.concurrent = math.inf if settings is None or settings.concurrent is None else settings.concurrent
        self.models = frozenset(settings.models) if settings is not None and settings.models else None
        self.bucket: TokenBucket | None = None
        if settings is not None and settings.rate is not None:
            number, seconds = parse_rate(settings.rate)
            self.bucket = TokenBucket(number, seconds, settings.burst)
        self.in_flight = 0
        self.refused = 0

    def enter(self, now: float) -> None:
        """Takes a place; raises :class:`~failsoft.base.errors.RateLimited` with ``retry_after``. Pair with `leave`."""
        if self.in_flight >= self.concurrent:
            self.refused += 1
            raise RateLimited(
                f"this key has {self.in_flight} calls in flight, as many as it may", retry_after=_CONCURRENCY_PAUSE,
                details={"limit": "concurrent"},
            )  # fmt: skip
        if self.bucket is not None:
            wait = self.bucket.take(now)
            if wait:
                self.refused += 1
                raise RateLimited("this key's rate is used up", retry_after=wait, details={"limit": "rate"})
        self.in_flight += 1

    def leave(self) -> None:
        """Gives the place back."""
        self.in_flight -= 1

    def may_use(self, model: str) -> bool:
        """Whether it may use the alias `model`."""
        return self.models is None or model in self.models

    def check(self, model: str) -> None:
        """Raises :class:`~failsoft.base.errors.Forbidden` unless it may use `model`."""
        if self.models is not None and model not in self.models:
            raise Forbidden(f"this key may not use the model {model[:100]!r}", param="model")

    def __repr__(self) -> str:
        return f"<Caller {self.name} tenant={self.tenant} in_flight={self.in_flight}>"


class KeyRing:
    """The keys there are. Without any, everybody is the same caller of no tenant."""

    def __init__(self, keys: Mapping[str, KeySettings]) -> None:
        self._callers = {
            bytes.fromhex(one.hash.removeprefix("sha256:")): Caller(name, one) for name, one in keys.items()
        }
        self._anybody = None if keys else Caller(None, None)

    @property
    def open(self) -> bool:
        """Whether everybody may call."""
        return self._anybody is not None

    @property
    def callers(self) -> list[Caller]:
        """All callers, for figures."""
        return list(self._callers.values()) if self._anybody is None else [self._anybody]

    def caller(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Whose request it is, by ``Authorization: Bearer …`` (or ``api-key``, ``x-api-key``).

        Raises :class:`~failsoft.base.errors.Unauthorized` when the key is missing or not known.
        """
        if self._anybody is not None:
            return self._anybody
        given = headers.get(b"authorization")
        if given is not None and given[:7].lower() == b"bearer ":
            given = given[7:]
        else:
            given = headers.get(b"api-key") or headers.get(b"x-api-key")
        if given is None or not given.strip():
            raise Unauthorized("an API key is needed: Authorization: Bearer …")
        digest = sha256(given[:_LONGEST].strip()).digest()
        found = self._callers.get(digest)
        # Known or not, one digest is compared in constant time: a look-up that fails must not be the quicker one.
        expected = digest if found is not None else _NOBODY
        if not hmac.compare_digest(digest, expected) or found is None:
            raise Unauthorized("this API key is not known")
        return found

    def __repr__(self) -> str:
        return f"<KeyRing {'open' if self.open else len(self._callers)}>"


_NOBODY: Final = bytes(32)
