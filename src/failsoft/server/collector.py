"""CPython's garbage collector, so that it does not stop a server for long.

A full collection looks at every object there is: with some thousand ended runs kept that is a tenth of a second, in
which nobody is served, again and again. Nearly all that dies here is freed without it (what failed keeps no cycle), so
what has survived two collections is frozen, and looked at no more. What is frozen is freed as ever when nobody refers
to it; cycles among it are found when all is looked at again, once in a while.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Collector", "collect_rarely"]

_EVERY: Final = 600.0
"""Seconds after which all is looked at again."""
_ROUNDS: Final = (20, 400)
"""Second collections after which it is, too: the fewest, while much that was frozen turns out to be garbage, and the
most, while little does. Each freezes some three thousand objects.
"""
_MUCH: Final = 250
"""Objects of garbage for each of them."""
_THRESHOLD: Final = (1_000, 2, 2)
"""Allocations until a first collection, and how many of each kind until one of the next; Python 3.11 has 700, 10, 10.
What lives long is looked at twice whatever these are; with small ones each look is short, a millisecond or two.
"""


class Collector:
    """A callback for ``gc.callbacks``; `rounds` are the second collections until all is looked at again at first."""

    def __init__(self, *, rounds: int = _ROUNDS[1], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._due = now() + _EVERY
        self._rounds = 0
        self._most = rounds
        self._all = False
        self.full = 0
        """How often all was looked at."""

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """Before and after a collection."""
        generation = info["generation"]
        if phase == "start" or generation == 0:
            return
        if generation == 2:
            gc.freeze()
            self.full += 1
            least, most = _ROUNDS
            much = info["collected"] > _MUCH * self._rounds
            self._most = max(least, self._most // 2) if much else min(most, self._most * 2)
            self._all, self._rounds, self._due = False, 0, self._now() + _EVERY
        elif not self._all:
            self._rounds += 1
            self._all = self._rounds > self._most or self._now() >= self._due
            if self._all:
                gc.unfreeze()  # a full collection comes soon: freezing would put it off
            else:
                gc.freeze()

    def __repr__(self) -> str:
        return f"<Collector full={self.full}>"


def collect_rarely(*, rounds: int = _ROUNDS[1]) -> None:
    """From now on, in this process; what start-up has made is frozen. See :class:`Collector`."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLD)
    gc.callbacks.append(Collector(rounds=rounds))
