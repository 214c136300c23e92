"""Injected sources of time and chance: nothing in Failsoft reads a global clock or random generator.

Monotonic time is always the running loop's ``time()``, which a virtual-time loop replaces. Wall-clock time is only for
stored and shown timestamps; randomness only for jitter, ids and sampling.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Sources"]


def _uuid7_like(rng: random.Random, now: float) -> str:
    """A time-ordered id: 48 bits of milliseconds, then random bits, with UUID version 7 and variant set (RFC 9562)."""
    ms = int(now * 1000) & ((1 << 48) - 1)
    value = (ms << 80) | (0x7 << 76) | (rng.getrandbits(12) << 64) | (0b10 << 62) | rng.getrandbits(62)
    return str(uuid.UUID(int=value))


@dataclass(frozen=True, slots=True)
class Sources:
    """``wall()`` gives seconds since the epoch, ``rng`` all randomness. Tests pass fixed ones."""

    wall: Callable[[], float] = time.time
    rng: random.Random = field(default_factory=random.SystemRandom)

    def new_id(self, prefix: str) -> str:
        """A unique, time-ordered id like ``run_0192…``."""
        return f"{prefix}_{_uuid7_like(self.rng, self.wall()).replace('-', '')}"

    def jitter(self, low: float, high: float) -> float:
        """A uniform random number in ``[low, high]``."""
        return self.rng.uniform(low, high)
