"""The last level of the staged response to failing models (requirement B6, L3): when models fail as a whole.

While it is on, nobody judges answers by a model, and prepared answers are served first. Pure decisions of ``now``,
asked whenever somebody wants to know: there is no timer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Level3", "Level3Change", "Level3Policy"]


@dataclass(frozen=True, slots=True)
class Level3Policy:
    """On when more than ``enter`` of all attempts failed for ``enter_for`` seconds, off when less than ``leave`` did
    for ``leave_for``. The share is that of the last ``window`` seconds; fewer than ``minimum`` attempts say nothing.
    """

    enter: float = 0.15
    enter_for: float = 60.0
    leave: float = 0.05
    leave_for: float = 180.0
    window: float = 10.0
    minimum: int = 10


@dataclass(frozen=True, slots=True)
class Level3Change:
    """It went on or off at loop time ``at``; ``share`` of the attempts had failed."""

    on: bool
    at: float
    share: float


class Level3:
    """The state for all models together. ``on_change`` is called after it has changed; it must not raise or await."""

    __slots__ = ("_bad", "_buckets", "_on", "_since", "_ticked", "_total", "on_change", "policy")

    def __init__(
        self, policy: Level3Policy | None = None, on_change: Callable[[Level3Change], None] | None = None
    ) -> None:
        self.policy = policy or Level3Policy()
        self.on_change = on_change
        self._buckets: deque[list[float]] = deque()  # second, attempts, failures: at most one for each of the window
        self._total = self._bad = 0
        self._on = False
        self._since: float | None = None
        self._ticked = -math.inf

    def record(self, ok: bool, now: float) -> None:
        """An attempt at a model has ended, at loop time `now`; what was no fault of the model's is not recorded."""
        buckets = self._buckets
        if buckets and now < buckets[-1][0] + 1.0:  # the usual case, on the way of every call of a model
            bucket = buckets[-1]
            bucket[1] += 1
            self._total += 1
            if not ok:
                bucket[2] += 1
                self._bad += 1
            return
        buckets.append([math.floor(now), 1, not ok])
        self._total += 1
        self._bad += not ok
        self._look(now)

    def on(self, now: float) -> bool:
        """Whether it is on."""
        self._look(now)
        return self._on

    @property
    def share(self) -> float:
        """The share of failures in the window, as of the last look."""
        return self._bad / self._total if self._total else 0.0

    def _look(self, now: float) -> None:
        policy, before = self.policy, self._ticked
        self._ticked = now
        edge = now - policy.window
        while self._buckets and self._buckets[0][0] < edge:
            _, total, bad = self._buckets.popleft()
            self._total -= int(total)
            self._bad -= int(bad)
        if now - before > policy.window:  # nobody looked, for there was nothing: then nothing was failing
            self._since = (self._since or before + policy.window) if self._on else None
        if self._on:
            turning = self._total == 0 or self.share < policy.leave
        else:
            turning = self._total >= policy.minimum and self.share > policy.enter
        if not turning:
            self._since = None
            return
        if self._since is None:
            self._since = now
        if now - self._since >= (policy.leave_for if self._on else policy.enter_for):
            self._since = None
            self._on = not self._on
            if self.on_change is not None:
                self.on_change(Level3Change(self._on, now, self.share))

    def __repr__(self) -> str:
        return f"<Level3 {'on' if self._on else 'off'} failures={self.share:.0%} of {self._total}>"
