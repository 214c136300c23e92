"""What a downstream's latency usually is: a time-decayed, mergeable histogram that understands censored samples.

Values fall into 32 buckets an octave (relative error ≤ 1.6 %, as HdrHistogram does it). Weights grow with time
instead of old ones being decayed (forward decay: Cormode et al., ICDE 2009). An attempt that was cut at a limit says
only "longer than this"; such samples enter the quantiles by the Kaplan–Meier product-limit estimator (1958), so that
cutting calls short does not make the downstream look fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from math import frexp
from typing import Any

__all__ = ["LatencyHistogram"]

_SUB = 32
_LOW_EXPONENT = -20  # 2**-20 s ≈ 1 µs
_HIGH_EXPONENT = 14  # 2**14 s ≈ 4.5 h
_SIZE = (_HIGH_EXPONENT - _LOW_EXPONENT + 1) * _SUB
_OFFSET = _LOW_EXPONENT * _SUB + _SUB
_LOWEST = 2.0 ** (_LOW_EXPONENT - 1)
_HIGHEST = 2.0**_HIGH_EXPONENT
_RESCALE_AFTER = 300.0
"""Half-lives after which weights start at 1 again, far below a float's range."""


def _bucket(value: float) -> int:
    if value <= _LOWEST:
        return 0
    if value >= _HIGHEST:
        return _SIZE - 1
    mantissa, exponent = frexp(value)
    return (exponent * _SUB) + int(mantissa * 64) - _OFFSET


def _middle(index: int) -> float:
    exponent, sub = divmod(index + _OFFSET, _SUB)
    return math.ldexp((sub + _SUB + 0.5) / 64, exponent - 1)


class LatencyHistogram:
    """Latencies in seconds, older ones weighing less: half after `half_life` seconds.

    ``count`` and the quantiles are weighted; ``samples`` is the plain number ever recorded.
    """

    __slots__ = ("_ends", "_high", "_low", "_origin", "_tick", "_weight", "cut", "half_life", "samples")

    def __init__(self, *, half_life: float = 150.0) -> None:
        if not half_life > 0:
            raise ValueError("half_life must be positive")
        self.half_life = half_life
        self._ends = [0.0] * _SIZE
        self.cut: dict[int, float] = {}
        self._low = _SIZE
        self._high = -1
        self._weight = 1.0
        self._origin: float | None = None
        self._tick = -math.inf
        self.samples = 0

    def record(self, seconds: float, now: float) -> None:
        """A call took `seconds`."""
        if now >= self._tick:
            self._advance(now)
        index = _bucket(seconds)
        self._ends[index] += self._weight
        self._low = min(self._low, index)
        self._high = max(self._high, index)
        self.samples += 1

    def record_many(self, values: Iterable[float], now: float) -> None:
        """Calls took these seconds each: as :meth:`record`, at half the cost."""
        if now >= self._tick:
            self._advance(now)
        ends, weight, low, high, number = self._ends, self._weight, self._low, self._high, 0
        for value in values:
            if _LOWEST < value < _HIGHEST:
                mantissa, exponent = frexp(value)
                index = (exponent * _SUB) + int(mantissa * 64) - _OFFSET
            else:
                index = _bucket(value)
            ends[index] += weight
            if index < low:
                low = index
            if index > high:
                high = index
            number += 1
        self._low, self._high = low, high
        self.samples += number

    def record_censored(self, seconds: float, now: float) -> None:
        """A call was cut after `seconds`: it would have taken longer."""
        if now >= self._tick:
            self._advance(now)
        index = _bucket(seconds)
        self.cut[index] = self.cut.get(index, 0.0) + self._weight
        self._low = min(self._low, index)
        self._high = max(self._high, index)
        self.samples += 1

    def _advance(self, now: float) -> None:
        """Weights step once in a hundredth of the half-life: exact enough, and not a power on every record."""
        if self._origin is None:
            self._origin = now
        halvings = (now - self._origin) / self.half_life
        self._tick = now + self.half_life / 100
        if halvings <= _RESCALE_AFTER:
            self._weight = 2.0**halvings
        else:
            factor = 2.0**-halvings
            self._ends = [value * factor for value in self._ends]
            self.cut = {index: value * factor for index, value in self.cut.items()}
            self._origin, self._weight = now, 1.0

    def _scale(self, now: float) -> float:
        if self._origin is None:
            return 1.0
        return 2.0 ** (-(now - self._origin) / self.half_life) if now > self._origin else 1.0

    def count(self, now: float, *, censored: bool = True) -> float:
        """The weighted number of samples as of `now`."""
        total = sum(self._ends[self._low : self._high + 1]) if self._high >= 0 else 0.0
        if censored:
            total += sum(self.cut.values())
        return total * self._scale(now)

    def quantiles(self, qs: Iterable[float], *, censored: bool = True) -> list[float | None]:
        """The values below which the shares `qs` (ascending, 0–1) lie; None where only cut calls are known to lie
        beyond.

        With ``censored=False`` calls that were cut are left out: the usual time of those that succeeded.
        """
        wanted = list(qs)
        answers: list[float | None] = [None] * len(wanted)
        if self._high < 0:
            return answers
        ends, cut = self._ends, self.cut if censored else {}
        at_risk = sum(ends[self._low : self._high + 1]) + sum(cut.values())
        surviving, position = 1.0, 0
        for index in range(self._low, self._high + 1):
            died = ends[index]
            if died and at_risk > 0:
                surviving *= max(0.0, 1.0 - died / at_risk)
                while position < len(wanted) and surviving <= 1.0 - wanted[position] + 1e-12:
                    answers[position] = _middle(index)
                    position += 1
                if position == len(wanted):
                    break
            at_risk -= died + cut.get(index, 0.0)
        return answers

    def quantile(self, q: float, *, censored: bool = True) -> float | None:
        """One quantile, see :meth:`quantiles`."""
        return self.quantiles([q], censored=censored)[0]

    def longest(self) -> float | None:
        """The largest value seen, cut ones included; None when empty."""
        return _middle(self._high) if self._high >= 0 else None

    def merge(self, other: LatencyHistogram, now: float) -> None:
        """Adds another histogram's samples, as both stand at `now`."""
        self._advance(now)
        factor = other._scale(now) * self._weight
        for index in range(max(other._low, 0), other._high + 1):
            self._ends[index] += other._ends[index] * factor
        for index, value in other.cut.items():
            self.cut[index] = self.cut.get(index, 0.0) + value * factor
        self._low, self._high = min(self._low, other._low), max(self._high, other._high)
        self.samples += other.samples

    def to_dict(self, now: float) -> dict[str, Any]:
        """Plain data as of `now`, to keep or to send; read back by :meth:`from_dict`."""
        scale = self._scale(now)
        return {
            "half_life": self.half_life,
            "samples": self.samples,
            "ends": {i: v * scale for i in range(max(self._low, 0), self._high + 1) if (v := self._ends[i])},
            "cut": {i: v * scale for i, v in self.cut.items()},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], now: float) -> LatencyHistogram:
        """A histogram as it was when :meth:`to_dict` was called, taken to be `now`; raises ``ValueError`` for bad
        data.
        """
        histogram = cls(half_life=float(data["half_life"]))
        histogram._advance(now)
        for key, into in (("ends", histogram._ends), ("cut", histogram.cut)):
            for text, value in data[key].items():
                index, weight = int(text), float(value)
                if not (0 <= index < _SIZE and math.isfinite(weight) and weight >= 0):
                    raise ValueError(f"bad bucket {text!r} in {key}")
                into[index] = weight
                histogram._low, histogram._high = min(histogram._low, index), max(histogram._high, index)
        histogram.samples = int(data["samples"])
        return histogram

    def __repr__(self) -> str:
        p50, p99 = self.quantiles([0.5, 0.99])
        return f"<LatencyHistogram samples={self.samples} p50={p50} p99={p99}>"
