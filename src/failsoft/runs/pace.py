"""How many tasks of one kind a run starts at once: all, half of them, or one after another, by how often they time out.

Report E's step from parallel to half to serial. One :class:`Pace` per app, so that what one run learns holds for all;
kept apart by tool, so that a tool that hangs narrows nobody else. It only decides about starting: what runs is never
dropped. Pure: every method takes ``now`` (loop time, seconds).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Pace", "PacePolicy"]

Level = Literal["parallel", "half", "serial"]
_LEVELS: Final[tuple[Level, ...]] = ("parallel", "half", "serial")
_KEYS: Final = 1_000


@dataclass(frozen=True, slots=True)
class PacePolicy:
    """``window`` seconds are looked at; a step down needs ``minimum`` tasks in it and a share of time-outs of ``down``.

    A step up needs ``good`` tasks since the last step with a share of at most ``up``, or a window without any time-out,
    and longer after one that took longer. Between ``up`` and ``down`` nothing changes: what is neither good nor bad
    does not make it swing.
    """

    window: float = 10.0
    minimum: int = 5
    down: float = 0.3
    up: float = 0.1
    good: int = 5

    def __post_init__(self) -> None:
        if not (self.window > 0 and self.minimum >= 1 and self.good >= 1 and 0 <= self.up < self.down <= 1):
            raise ValueError("needs window > 0, minimum and good >= 1, 0 <= up < down <= 1")


class _Stage:
    """Two halves of the window: the running one and the one before."""

    __slots__ = ("before", "ended", "level", "since", "start", "timed_out", "timed_out_before", "wait")

    def __init__(self, now: float) -> None:
        self.level = 0
        self.start = now
        self.ended = self.timed_out = 0
        self.before = self.timed_out_before = 0
        self.since = now
        self.wait = 0.0

    def roll(self, now: float, half: float) -> None:
        passed = now - self.start
        if passed < half:
            return
        recent = passed < 2 * half
        self.before, self.timed_out_before = (self.ended, self.timed_out) if recent else (0, 0)
        self.ended = self.timed_out = 0
        self.start = now

    def step(self, level: int, now: float) -> None:
        self.level = level
        self.start = self.since = now
        self.ended = self.timed_out = self.before = self.timed_out_before = 0


class Pace:
    """The levels of an app's tools; at most 1 000 are remembered."""

    __slots__ = ("_half", "_stages", "narrow", "policy")

    def __init__(self, policy: PacePolicy | None = None) -> None:
        self.policy = policy or PacePolicy()
        self._half = self.policy.window / 2
        self._stages: OrderedDict[str, _Stage] = OrderedDict()
        self.narrow = 0
        """How many tools are stepped down: 0 means that nobody need ask."""

    def record(self, tool: str, now: float, *, timed_out: bool = False, seconds: float = 0.0) -> None:
        """A task of that tool has ended after `seconds`; `timed_out` when it was the tool that was too slow."""
        stage = self._stages.get(tool)
        if stage is None:
            stage = self._stages[tool] = _Stage(now)
            if len(self._stages) > _KEYS:
                self._forget()
        if now - stage.start >= self._half:
            stage.roll(now, self._half)
        stage.ended += 1
        if timed_out:
            stage.timed_out += 1
            stage.since = now
            stage.wait = seconds
            self._down(stage, now)
        elif stage.level:
            self._up(stage, now)

    def _forget(self) -> None:
        """The oldest that nothing is known of but good."""
        for tool, stage in self._stages.items():
            if stage.level == 0:
                del self._stages[tool]
                return
        self._stages.popitem(last=False)
        self.narrow -= 1

    def _down(self, stage: _Stage, now: float) -> None:
        ended = stage.ended + stage.before
        share = (stage.timed_out + stage.timed_out_before) / ended
        if ended >= self.policy.minimum and share >= self.policy.down and stage.level < 2:
            self.narrow += stage.level == 0
            stage.step(stage.level + 1, now)

    def _up(self, stage: _Stage, now: float) -> None:
        ended = stage.ended + stage.before
        share = (stage.timed_out + stage.timed_out_before) / ended
        if ended >= self.policy.good and share <= self.policy.up:
            self._widen(stage, now)

    def _widen(self, stage: _Stage, now: float) -> None:
        stage.step(stage.level - 1, now)
        self.narrow -= stage.level == 0

    def level(self, tool: str, now: float) -> Level:
        """How tasks of that tool are started now."""
        stage = self._stages.get(tool)
        if stage is None:
            return "parallel"
        # Nothing timed out for so long: one step back, to see. A tool that takes long to time out is given that time.
        while stage.level and now - stage.since >= max(self.policy.window, 1.5 * stage.wait):
            self._widen(stage, stage.since + max(self.policy.window, 1.5 * stage.wait))
        return _LEVELS[stage.level]

    def width(self, tool: str, full: int, now: float) -> int:
        """How many tasks of that tool one run may have running, of `full` at most; at least 1."""
        level = self.level(tool, now)
        if level == "parallel":
            return full
        return max(1, math.ceil(full / 2)) if level == "half" else 1

    def levels(self, now: float) -> dict[str, Level]:
        """The tools that are stepped down, by name."""
        found = {tool: self.level(tool, now) for tool in self._stages}
        return {tool: level for tool, level in found.items() if level != "parallel"}

    def __repr__(self) -> str:
        return f"<Pace narrow={self.narrow} tools={len(self._stages)}>"
