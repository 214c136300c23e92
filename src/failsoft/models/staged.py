"""The staged response of report C to a model that gets slow (requirement B6, L1 and L2), as pure decisions.

L1: three time-outs in a row shorten the limit until five successes in a row. L2: a p99 of more than twice its
baseline for two minutes asks for more instances, and gives them back when it has been below 1.2 × for as long.

The baseline is learned slowly and only from healthy times, so that a lasting slow-down cannot become the new normal
unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from failsoft.kernel.latency import LatencyHistogram

__all__ = ["Staged", "StagedChange", "StagedPolicy"]

_TOGETHER: Final = 64
"""Successes that are counted together at most."""


@dataclass(frozen=True, slots=True)
class StagedPolicy:
    """Figures of B6; times in seconds. ``instances`` is what L2 asks for on top."""

    timeouts: int = 3
    successes: int = 5
    shortened: float = 15.0
    slow_ratio: float = 2.0
    recovered_ratio: float = 1.2
    for_seconds: float = 120.0
    minimum: int = 20
    instances: int = 2


class StagedChange(NamedTuple):
    """A level was entered or left at loop time ``at``; ``p99`` and ``baseline`` in seconds where they decided."""

    level: Literal["L1", "L2"]
    entered: bool
    at: float
    reason: str
    p99: float | None = None
    baseline: float | None = None
    instances: int = 0


class Staged:
    """The levels of one route. ``on_change`` is called after the state is consistent; it must not raise or await."""

    __slots__ = (
        "_baseline", "_checked", "_in_row", "_new", "_ok_in_row", "_recent", "_since", "baseline", "l1", "l2",
        "on_change", "policy",
    )  # fmt: skip

    def __init__(self, policy: StagedPolicy, on_change: Callable[[StagedChange], None]) -> None:
        self.policy = policy
        self.on_change = on_change
        self.l1 = False
        self.l2 = False
        self.baseline: float | None = None
        self._recent = LatencyHistogram(half_life=policy.for_seconds / 15)  # a peak is out of its p99 in time
        self._baseline = LatencyHistogram(half_life=3600.0)
        self._in_row = self._ok_in_row = 0
        self._new: list[float] = []
        """Successes that are in no histogram yet."""
        self._since: float | None = None
        self._checked = -math.inf

    def reconfigure(self, policy: StagedPolicy) -> None:
        """Takes a new policy in place: levels that are on stay on until they end by it."""
        if policy.for_seconds != self.policy.for_seconds:
            self._recent = LatencyHistogram(half_life=policy.for_seconds / 15)
        self.policy = policy

    @property
    def limit(self) -> float | None:
        """The shortened limit in seconds while L1 is on."""
        return self.policy.shortened if self.l1 else None

    def success(self, seconds: float, now: float) -> None:
        """An attempt was served after `seconds`."""
        self._in_row = 0
        self._new.append(seconds)
        if self.l1:
            self._ok_in_row += 1
            if self._ok_in_row >= self.policy.successes:
                self.l1 = False
                self.on_change(StagedChange("L1", False, now, f"{self._ok_in_row} successes in a row"))
        if now - self._checked >= 1.0 or len(self._new) >= _TOGETHER:
            self._judge(now)

    def timeout(self, seconds: float, now: float) -> None:
        """An attempt timed out after `seconds`."""
        self._ok_in_row = 0
        self._in_row += 1
        self._recent.record_censored(seconds, now)
        if not self.l1 and self._in_row >= self.policy.timeouts:
            self.l1 = True
            self.on_change(StagedChange("L1", True, now, f"{self._in_row} time-outs in a row"))
        self._judge(now)

    def _judge(self, now: float) -> None:
        """Looks at the figures, once a second."""
        new, self._new = self._new, []
        self._recent.record_many(new, now)
        if now - self._checked >= 1.0:
            self._checked = now
            self._compare(now)
        if not self.l1 and not self.l2 and self._since is None:
            self._baseline.record_many(new, now)

    def _compare(self, now: float) -> None:
        policy = self.policy
        if self._baseline.samples < policy.minimum or self._recent.count(now) < policy.minimum / 2:
            return
        self.baseline = self._baseline.quantile(0.99, censored=False)
        p99 = self._recent.quantile(0.99)
        if p99 is None:
            p99 = self._recent.longest()
        if p99 is None or not self.baseline:
            return
        ratio = p99 / self.baseline
        turning = ratio < policy.recovered_ratio if self.l2 else ratio > policy.slow_ratio
        if not turning:
            self._since = None
            return
        if self._since is None:
            self._since = now
        if now - self._since >= policy.for_seconds:
            self._since = None
            self.l2 = not self.l2
            word = "above" if self.l2 else "below"
            wanted = policy.slow_ratio if self.l2 else policy.recovered_ratio
            self.on_change(
                StagedChange(
                    "L2",
                    self.l2,
                    now,
                    f"p99 {word} {wanted:g} × baseline for {policy.for_seconds:g} s",
                    p99,
                    self.baseline,
                    policy.instances if self.l2 else 0,
                )
            )

    def __repr__(self) -> str:
        return f"<Staged L1={'on' if self.l1 else 'off'} L2={'on' if self.l2 else 'off'} baseline={self.baseline}>"
