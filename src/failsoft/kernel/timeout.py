"""Limits learned from recent latency: how long an attempt may take, and what it usually takes.

Steady downstreams get tight limits, jittery ones wide limits, always between a floor and the configured cap
(requirement T8: 1 s when steady at 50 ms, 3 s under jitter). Cut attempts are censored samples, so a limit cannot
talk itself ever shorter; when the data says nothing about the quantile (most calls were cut), the cap applies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from failsoft.kernel.latency import LatencyHistogram

__all__ = ["AdaptiveTimeout", "AdaptiveTimeoutPolicy"]

TYPICAL_SAMPLES: Final = 20
"""Successes needed before the usual time of a call is trusted (``design``: affordability)."""


REFRESH_EVERY: Final = 0.5
"""Seconds after which new samples are looked at, unless a quarter more came sooner."""


@dataclass(frozen=True, slots=True)
class AdaptiveTimeoutPolicy:
    """How an attempt limit follows latency. Times in seconds.

    limit = clamp(``margin`` × q + ``spread`` × (q − median)) between ``floor`` and ``cap``, q being the ``quantile``
    of the last ``window`` seconds or so; the cap while there are fewer than ``samples``. ``hard_cap`` is what
    slow-by-nature tools may be given at most when ``slow_by_nature`` is set and the cap is reached by honest work.
    """

    floor: float = 1.0
    cap: float = 3.0
    quantile: float = 0.99
    margin: float = 2.0
    spread: float = 3.0
    window: float = 600.0
    samples: int = 20
    slow_by_nature: bool = False
    hard_cap: float = 120.0

    def __post_init__(self) -> None:
        if not 0 < self.floor <= self.cap <= max(self.hard_cap, self.cap):
            raise ValueError("needs 0 < floor <= cap")
        if not 0.5 <= self.quantile < 1:
            raise ValueError("quantile must be in [0.5, 1)")
        if not (self.margin >= 1 and self.spread >= 0 and self.window > 0 and self.samples >= 1):
            raise ValueError("needs margin >= 1, spread >= 0, window > 0 and samples >= 1")


class AdaptiveTimeout:
    """Records an attempt's latency and gives the current limit; the answers are cached and refreshed as samples come.

    ``typical`` is the median of recent successes in seconds (0.0 until there are 20): a call is refused as
    unaffordable when less is left. ``healthy_p95`` is that quantile of them, None until known; ``healthy_tail`` the
    one called ``tail`` (a share), after which a hedge may start.

    Sizes: latencies are recorded per unit of `size`, relative to the usual size, so a long request's limit grows in
    proportion and a shortened limit cannot lock long work out.
    """

    __slots__ = (
        "_due", "_learned", "_look_at", "_look_at_samples", "_pending", "_size", "current", "fixed", "healthy_p95",
        "healthy_tail", "histogram", "policy", "shortened_to", "tail", "typical", "usual",
    )  # fmt: skip

    def __init__(self, policy: AdaptiveTimeoutPolicy | None, *, fixed: float | None = None) -> None:
        self.policy = policy
        self.fixed = fixed
        self.histogram = LatencyHistogram(half_life=(policy.window if policy else 600.0) / 4)
        self.typical = 0.0
        """The median of successes; 0 while it is unknown."""
        self.usual = 0.0
        """The median when calls that were cut count as taking longer, as they would have: what a call should be left.
        Where little time is left for it only short calls succeed, and their median alone would leave it still less.
        """
        self.healthy_p95: float | None = None
        self.healthy_tail: float | None = None
        self.tail = 0.95
        self.shortened_to: float | None = None
        self.current: float | None = None
        """The limit in force for a request of the usual size: learned, or `fixed` without a policy; shortened if so."""
        self._learned: float | None = None
        self._pending: list[float] = []
        self._due = TYPICAL_SAMPLES
        self._look_at = -math.inf
        self._look_at_samples = TYPICAL_SAMPLES
        self._size = 1.0
        self._set_current()

    def reconfigure(self, policy: AdaptiveTimeoutPolicy | None, fixed: float | None, now: float) -> None:
        """Takes a new policy in place; what was learned is kept."""
        self.policy, self.fixed = policy, fixed
        self.refresh(now)

    def shorten(self, seconds: float | None) -> None:
        """Caps the limit at `seconds` for a staged response (B6 L1); None ends that."""
        self.shortened_to = seconds
        self._set_current()

    def _set_current(self) -> None:
        limit = self.fixed
        if self.policy is not None:
            limit = self.policy.cap if self._learned is None else self._learned
        if self.shortened_to is not None:
            limit = self.shortened_to if limit is None else min(limit, self.shortened_to)
        self.current = limit

    def record(self, seconds: float, now: float, *, size: float = 1.0) -> None:
        """An attempt succeeded after `seconds`. Samples are buffered, and counted a few dozen at a time."""
        if size != 1.0:
            seconds /= self._relative(size, learn=True)
        pending = self._pending
        pending.append(seconds)
        if len(pending) >= self._due:
            self._flush(now)

    def record_censored(self, seconds: float, now: float, *, size: float = 1.0) -> None:
        """An attempt was cut after `seconds` (a limit, or the loser of a hedge)."""
        if size != 1.0:
            seconds /= self._relative(size)
        self.histogram.record_censored(seconds, now)
        if now >= self._look_at or self.histogram.samples >= self._look_at_samples:
            self.refresh(now)

    def _relative(self, size: float, *, learn: bool = False) -> float:
        if not size > 0:
            raise ValueError("size must be positive")
        if learn:
            self._size += 0.05 * (size - self._size)
        return max(0.05, min(20.0, size / self._size))

    def _flush(self, now: float) -> None:
        """Counts what was recorded, and looks at the figures anew if time or samples have moved on."""
        self.histogram.record_many(self._pending, now)
        self._pending.clear()
        samples = self.histogram.samples
        if now >= self._look_at or samples >= self._look_at_samples:
            self.refresh(now)
        self._due = TYPICAL_SAMPLES - samples if samples < TYPICAL_SAMPLES else min(256, max(8, samples // 4))

    def refresh(self, now: float) -> None:
        """Recomputes the limit and the usual times from what was recorded."""
        histogram = self.histogram
        histogram.record_many(self._pending, now)
        self._pending.clear()
        samples = histogram.samples
        self._look_at, self._look_at_samples = now + REFRESH_EVERY, samples + max(8, samples // 4)
        if samples < TYPICAL_SAMPLES:
            self._look_at_samples = TYPICAL_SAMPLES
        if samples >= TYPICAL_SAMPLES and histogram.count(now, censored=False) >= TYPICAL_SAMPLES / 2:
            if self.tail == 0.95:
                median, self.healthy_p95 = histogram.quantiles([0.5, 0.95], censored=False)
                self.healthy_tail = self.healthy_p95
            else:
                shares = sorted((0.5, 0.95, self.tail))
                found = dict(zip(shares, histogram.quantiles(shares, censored=False), strict=True))
                median, self.healthy_p95, self.healthy_tail = found[0.5], found[0.95], found[self.tail]
            self.typical = median or 0.0
            if not histogram.cut:
                self.usual = self.typical
            else:
                self.usual = histogram.quantile(0.5) or histogram.longest() or self.typical
        else:
            self.usual = 0.0
            self.typical, self.healthy_p95, self.healthy_tail = 0.0, None, None
        policy = self.policy
        if policy is not None:
            self._learned = None
            if histogram.count(now) >= policy.samples / 2:
                median, high = histogram.quantiles([0.5, policy.quantile])
                top = policy.hard_cap if policy.slow_by_nature else policy.cap
                if median is None or high is None:
                    self._learned = top
                else:
                    wanted = policy.margin * high + policy.spread * (high - median)
                    self._learned = min(top, max(policy.floor, wanted))
        self._set_current()

    def limit(self, *, size: float = 1.0) -> float | None:
        """The attempt limit in seconds for a request of `size`; None when nothing limits it."""
        limit = self.current
        if limit is None or size == 1.0:
            return limit
        scaled = limit * self._relative(size)
        if self.policy is None:
            return max(limit, scaled) if self.shortened_to is not None else limit
        long = self.policy.slow_by_nature or self.shortened_to is not None
        return min(self.policy.hard_cap if long else self.policy.cap, max(self.policy.floor, scaled))

    def __repr__(self) -> str:
        return f"<AdaptiveTimeout limit={self.current} typical={self.typical:.4g} samples={self.histogram.samples}>"
