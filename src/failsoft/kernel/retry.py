"""Retries: how many by kind, how long between, and what a ``Retry-After`` means.

A policy only says what may be tried; the guard spends each wait from the call's own deadline, asks the shared
:class:`~failsoft.kernel.budget.RetryBudget`, and never sleeps past the end.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, get_args

from failsoft.base.outcomes import Kind
from failsoft.kernel.checks import is_whole

__all__ = ["RetryPolicy", "parse_retry_after"]

Jitter = Literal["additive", "full", "decorrelated"]

_MAX_DOUBLINGS = 32
"""Beyond it every back-off is at its cap; keeps ``2 ** n`` from overflowing a float."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and after which pause a failed attempt is repeated. All times in seconds.

    ``queries``, ``actions`` and ``externals`` are *retries* (attempts after the first) by kind: an action never
    repeats by itself, an external call goes to its alternate instead. ``base`` doubles with each retry up to ``cap``;
    jitter kinds: ``additive`` waits base + U(0, spread) with both doubling (report B's 200 + 0–100, 400 + 0–200 ms),
    ``full`` waits U(0, base) and ``decorrelated`` U(base, 3 × previous) (Brooker, "Exponential Backoff And Jitter",
    AWS 2015). ``room``: no retry when less than ``room`` × the attempt limit is left of the budget (1.5, report B).
    """

    queries: int = 1
    actions: int = 0
    externals: int = 0
    base: float = 0.2
    spread: float = 0.1
    cap: float = 30.0
    jitter: Jitter = "additive"
    room: float = 1.5

    def __post_init__(self) -> None:
        for name in ("queries", "actions", "externals"):
            value = getattr(self, name)
            if not (is_whole(value, 0) and value <= 10):
                raise ValueError(f"{name} must be a whole number between 0 and 10, not {value!r}")
        if self.jitter not in get_args(Jitter):
            raise ValueError(f"jitter must be one of {', '.join(get_args(Jitter))}, not {self.jitter!r}")
        if not (0 <= self.base <= self.cap and self.spread >= 0 and self.room >= 0):
            raise ValueError("needs 0 <= base <= cap, spread >= 0 and room >= 0")

    def retries(self, kind: Kind) -> int:
        """Retries allowed for a call of this kind."""
        if kind == "query":
            return self.queries
        return self.actions if kind == "action" else self.externals

    def backoff(self, retry: int, rng: random.Random, *, previous: float = 0.0) -> float:
        """Seconds to wait before the `retry`-th retry (1 for the first); `previous` is the wait before, for
        decorrelated.
        """
        factor = 2.0 ** min(max(retry - 1, 0), _MAX_DOUBLINGS)
        if self.jitter == "additive":
            wait = self.base * factor + rng.uniform(0.0, self.spread * factor)
        elif self.jitter == "full":
            wait = rng.uniform(0.0, min(self.cap, self.base * factor))
        else:
            wait = rng.uniform(self.base, max(self.base, 3.0 * previous))
        return min(self.cap, wait)


def parse_retry_after(value: str | float | int | None, *, wall: float) -> float | None:
    """Seconds from a ``Retry-After`` header: delta-seconds or an HTTP date (RFC 9110, 10.2.3); None for garbage.

    `wall` is the current wall-clock time in seconds since the epoch. A date in the past means 0.
    """
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) and value >= 0 else None
    text = value.strip()
    if not text or len(text) > 64:
        return None
    if text.isascii() and text.replace(".", "", 1).isdigit():
        seconds = float(text)
        return seconds if math.isfinite(seconds) else None
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    try:
        return max(0.0, (date - datetime.fromtimestamp(wall, UTC)).total_seconds())
    except (OverflowError, OSError, ValueError):
        return None
