"""Seeing overload: how long calls usually hold a permit, and whether a queue stands longer than a burst would.

Source: Nichols & Jacobson, "Controlling Queue Delay" (ACM Queue 2012, RFC 8289), and for its use with requests instead
of packets Maurer, "Fail at Scale" (ACM Queue 2015: controlled delay with adaptive newest-first). CoDel's fixed 5 ms and
100 ms fit packets; here target and interval scale with how long the downstream's calls take.
"""

from __future__ import annotations

import math
from collections import deque

__all__ = ["CoDel", "HoldTimes"]


class HoldTimes:
    """The last 64 times that permits were held.

    Their median is what a call typically takes: it decides whether a call is doomed, because a few hung calls must not
    doom all others. Their mean is what a permit costs: it predicts waits, because a hung call really does occupy its
    permit. Estimates age: after ``LIFE`` seconds, or ten typical calls, without a sample they count for nothing.
    """

    SIZE = 64
    ENOUGH = 20
    """Samples before anything is refused by estimate."""
    LIFE = 30.0
    REFRESH = 8
    """Samples after which median and mean are computed anew (sorting 64 floats at each call would cost 3 µs)."""

    __slots__ = (
        "_interval",
        "_target",
        "add",
        "interval",
        "last",
        "mean",
        "samples",
        "stale",
        "target",
        "trusted",
        "typical",
    )

    def __init__(self) -> None:
        self._target: float | None = None
        self._interval: float | None = None
        self.samples: deque[float] = deque(maxlen=self.SIZE)
        self.add = self.samples.append
        self.last = -math.inf
        self.stale = 0
        self.typical = 0.0
        self.mean = 0.0
        self.trusted = False
        """Whether there are enough samples to refuse a call by their estimate."""
        self.target = math.inf
        """CoDel's target for the wait of the oldest; while nothing is known, nothing is overload."""
        self.interval = math.inf
        """CoDel's interval."""

    def configure(self, target: float | None, interval: float | None) -> None:
        """Fixes CoDel's target or interval (seconds); None lets them scale with the typical time."""
        self._target, self._interval = target, interval
        self._aim(self.typical if self.samples else math.inf)

    def _aim(self, typical: float) -> None:
        self.target = max(0.005, typical) if self._target is None else self._target
        self.interval = max(0.1, 10.0 * typical) if self._interval is None else self._interval

    def refresh(self, now: float) -> bool:
        """Brings ``typical`` and ``mean`` up to date; False when there is no sample, or none recent enough."""
        samples = self.samples
        if not samples:
            return False
        if self.stale >= self.REFRESH or (self.stale and len(samples) < self.ENOUGH):
            count = len(samples)
            self.typical = sorted(samples)[(count - 1) // 2]
            self.mean = math.fsum(samples) / count
            self.trusted = count >= self.ENOUGH
            self.stale = 0
            self._aim(self.typical)
        if now - self.last > self.LIFE and now - self.last > 10.0 * self.typical:
            samples.clear()
            self.stale = 0
            self._aim(math.inf)
            return False
        return True

    def doubt(self) -> None:
        """An exploratory call goes through. If the last three were far faster than expected, forgets the others."""
        samples = self.samples
        if len(samples) > 3:
            recent = (samples[-3], samples[-2], samples[-1])
            if max(recent) < 0.5 * max(self.typical, self.mean):
                samples.clear()
                samples.extend(recent)
                self.stale = self.REFRESH


class CoDel:
    """CoDel's state for one queue: ``overloaded`` when its oldest waiter waited longer than the target for an interval.

    It looks at the oldest waiter, not at the one that is being served: served newest first, that one has hardly waited.
    While overloaded one waiter is shed per ``interval / sqrt(count)``, and at most one per permit that becomes free, so
    that every operation stays O(1); more than that is refused by the queue's bound.
    """

    __slots__ = ("count", "first_above", "overloaded", "resumable", "shed_next")

    def __init__(self) -> None:
        self.overloaded = False
        self.first_above = math.inf
        """When the oldest wait will have been above target for one interval."""
        self.shed_next = math.inf
        self.count = 0
        self.resumable = -math.inf
        """Until when a new overload continues at the old shedding rate instead of starting over."""

    def calm(self, now: float, interval: float) -> None:
        """The queue is empty or its oldest waiter is below target."""
        self.first_above = math.inf
        if self.overloaded:
            self.overloaded = False
            self.resumable = now + 16.0 * interval

    def observe(self, now: float, oldest: float, target: float, interval: float) -> bool:
        """Takes the oldest waiter's wait at a dequeue; True when one waiter is to be shed now."""
        if oldest < target:
            self.calm(now, interval)
            return False
        if not self.overloaded:
            if self.first_above == math.inf:
                self.first_above = now + interval
                return False
            if now < self.first_above:
                return False
            self.overloaded = True
            self.count = self.count - 2 if self.count > 2 and now < self.resumable else 1
            self.shed_next = now + interval / math.sqrt(self.count)
            return True
        if now < self.shed_next:
            return False
        self.count += 1
        self.shed_next = max(self.shed_next, now - interval) + interval / math.sqrt(self.count)
        return True
