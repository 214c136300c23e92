"""The time-out budget burns: more runs run out of time than may.

Judged over two windows, as by the alert rule ``FailsoftBudgetBurn`` and for its reason (Google, *The Site Reliability
Workbook*, chapter 5): the long one keeps a short burst from raising an alarm, the short one ends it soon after the
trouble does.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

__all__ = ["Burn", "BurnPolicy", "Burning"]

_BUCKETS: Final = 5
"""Into so many the short window is divided."""
_AGENTS: Final = 1000
"""Agents that are counted; who ended no run for longest is forgotten."""


@dataclass(frozen=True, slots=True)
class BurnPolicy:
    """The share of runs that may run out of time, and the windows (seconds) in which more must.

    ``least``: so many must have in the long window before an alarm is raised; one late run of three is no outage.
    ``repeat_after``: seconds after an alarm before the same agent raises another, while it lasts or when it comes back.
    """

    share: float = 0.005
    short: float = 300.0
    long: float = 3600.0
    least: int = 5
    repeat_after: float = 3600.0


@dataclass(frozen=True, slots=True)
class Burning:
    """An alarm: of `ended` runs of `agent` in the long window `timed_out` ran out of time.

    ``share`` is their share in the short window.
    """

    agent: str
    share: float
    ended: int
    timed_out: int


@dataclass(slots=True)
class _Counts:
    buckets: deque[list[int]]
    """[bucket's number, runs ended, runs out of time], oldest first."""
    raised: float | None = None


class Burn:
    """Counts runs as they end. A function of what it is told: `now` is seconds on any clock that does not go back."""

    def __init__(self, policy: BurnPolicy | None = None) -> None:
        self.policy = policy or BurnPolicy()
        self._agents: OrderedDict[str, _Counts] = OrderedDict()
        self._width = self.policy.short / _BUCKETS

    def ended(self, agent: str, *, timed_out: bool, now: float) -> Burning | None:
        """A run of `agent` has ended; the alarm when this one raises it."""
        policy = self.policy
        counts = self._agents.get(agent)
        if counts is None:
            counts = self._agents[agent] = _Counts(deque())
            if len(self._agents) > _AGENTS:
                self._agents.popitem(last=False)
        self._agents.move_to_end(agent)
        buckets, number = counts.buckets, int(now // self._width)
        if not buckets or buckets[-1][0] != number:
            buckets.append([number, 0, 0])
            while buckets[0][0] <= number - policy.long / self._width:
                buckets.popleft()
        buckets[-1][1] += 1
        buckets[-1][2] += timed_out
        if not timed_out or (counts.raised is not None and now < counts.raised + policy.repeat_after):
            return None
        recent = [bucket for bucket in buckets if bucket[0] > number - _BUCKETS]
        share = sum(bucket[2] for bucket in recent) / sum(bucket[1] for bucket in recent)
        runs, late = sum(bucket[1] for bucket in buckets), sum(bucket[2] for bucket in buckets)
        if share <= policy.share or late <= policy.share * runs or late < policy.least:
            return None
        counts.raised = now
        return Burning(agent, share, runs, late)

    def __repr__(self) -> str:
        return f"<Burn agents={len(self._agents)}>"
