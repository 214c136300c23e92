"""A rolling window of call results: ten buckets, constant cost per record, no drift.

Time is cut into buckets of ``seconds / 10``, numbered by ``now // width``. A record counts until ten bucket starts
have passed since its own bucket began: for more than nine tenths of the window and for at most the whole of it, and
every record of a bucket leaves at the same instant. (Hystrix's rolling number and resilience4j's time-based window
age in the same way.)

Closed buckets are immutable tuples and their sums are recomputed, not adjusted, whenever a bucket is closed; so nothing
accumulates rounding errors, and an idle gap of any length costs one step.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

__all__ = ["BUCKETS", "Recent", "RollingWindow", "Tally"]

BUCKETS: Final = 10


class Tally(NamedTuple):
    """What a window (or one bucket) holds.

    ``calls`` counts all, ``failed`` and ``timeouts`` those that ended so (the rest was good), ``slow`` and ``over``
    those beyond the slow and the p99 threshold. ``latency`` is the sum, in seconds, over the calls that did not fail.
    """

    calls: int = 0
    failed: int = 0
    timeouts: int = 0
    slow: int = 0
    over: int = 0
    latency: float = 0.0

    @property
    def ok(self) -> int:
        """Calls that neither failed nor timed out."""
        return self.calls - self.failed - self.timeouts

    @property
    def bad(self) -> int:
        """Calls that failed or timed out."""
        return self.failed + self.timeouts

    @property
    def mean(self) -> float:
        """The mean latency in seconds of the calls that did not fail; 0 without any."""
        timed = self.calls - self.failed
        return self.latency / timed if timed else 0.0


_NOTHING: Final = Tally()


class RollingWindow:
    """Counts over the last `seconds`, as of the time last given.

    The attributes ``calls`` and ``latency`` belong to the current bucket. An owner on a hot path may add
    to them directly while ``now < edge``; everybody else uses :meth:`add`. A `now` before the current bucket counts
    in the current bucket.
    """

    __slots__ = (
        "_closed",
        "_tick",
        "calls",
        "edge",
        "failed",
        "latency",
        "over",
        "past",
        "seconds",
        "slow",
        "timeouts",
        "width",
    )

    def __init__(self, seconds: float) -> None:
        if not 0 < seconds < math.inf:
            raise ValueError(f"a window lasts more than 0 and finitely many seconds, not {seconds!r}")
        self.seconds = seconds
        self.width = seconds / BUCKETS
        self._closed: deque[tuple[float, Tally]] = deque(maxlen=BUCKETS)
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._closed.clear()
        self.past = _NOTHING
        self._tick = -math.inf
        self.edge = -math.inf
        """The first instant that no longer belongs to the current bucket."""
        self._start_bucket()

    def _start_bucket(self) -> None:
        self.calls = self.failed = self.timeouts = self.slow = self.over = 0
        self.latency = 0.0

    def roll(self, now: float) -> None:
        """Makes the bucket of `now` the current one and drops what has left the window."""
        if now < self.edge:
            return
        tick = now // self.width
        closed = self._closed
        if self.calls:
            closed.append((self._tick, self._current()))
            self._start_bucket()
        first = tick - BUCKETS
        while closed and closed[0][0] <= first:
            closed.popleft()
        # Column by column: exact for the counts, and within one rounding per bucket for the latency.
        self.past = Tally(*map(sum, zip(*(tally for _, tally in closed), strict=True)))
        self._tick = tick
        edge = (tick + 1.0) * self.width
        # The product may be rounded down; the edge is exactly the first float that `//` puts into a later bucket.
        self.edge = edge if edge // self.width > tick else math.nextafter(edge, math.inf)

    def _current(self) -> Tally:
        return Tally(self.calls, self.failed, self.timeouts, self.slow, self.over, self.latency)

    def add(
        self,
        now: float,
        latency: float,
        failed: bool = False,
        timeout: bool = False,
        slow: bool = False,
        over: bool = False,
    ) -> None:
        """Records one call of `latency` seconds."""
        if now >= self.edge:
            self.roll(now)
        self.calls += 1
        self.failed += failed
        self.timeouts += timeout
        self.slow += slow
        self.over += over
        if not failed:
            self.latency += latency

    def tally(self, now: float) -> Tally:
        """What the window holds at `now`."""
        self.roll(now)
        past = self.past
        return Tally(
            past.calls + self.calls,
            past.failed + self.failed,
            past.timeouts + self.timeouts,
            past.slow + self.slow,
            past.over + self.over,
            past.latency + self.latency,
        )

    def resized(self, seconds: float, now: float) -> RollingWindow:
        """A window of another length with what this one still holds at `now`; each bucket keeps its starting time."""
        self.roll(now)
        other = RollingWindow(seconds)
        for tick, tally in (*self._closed, (self._tick, self._current())):
            if tally.calls:
                other.roll(tick * self.width)
                other.calls += tally.calls
                other.failed += tally.failed
                other.timeouts += tally.timeouts
                other.slow += tally.slow
                other.over += tally.over
                other.latency += tally.latency
        return other

    def __repr__(self) -> str:
        past = self.past
        calls, bad = past.calls + self.calls, past.bad + self.failed + self.timeouts
        return f"<RollingWindow {self.seconds:g}s calls={calls} bad={bad} slow={past.slow + self.slow}>"


class Recent:
    """When something rare happened, the last few times, within so many seconds; kept until it is too long ago."""

    __slots__ = ("_times", "within")

    def __init__(self, within: float) -> None:
        self.within = within
        self._times: deque[float] = deque()

    def add(self, now: float, times: int) -> float | None:
        """It happened: how long the last `times` of it took, once there are so many within the time."""
        kept = self._times
        kept.append(now)
        while len(kept) > times or kept[0] <= now - self.within:
            kept.popleft()
        return now - kept[0] if len(kept) == times else None

    def __repr__(self) -> str:
        return f"<Recent {len(self._times)} within {self.within:g} s>"
