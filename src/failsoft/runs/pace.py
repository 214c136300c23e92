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
    """When to step down and up.

    Down: after ``row`` time-outs in a row, or when a share of ``down`` of at least ``minimum`` tasks timed out in a
    ``window`` (seconds). Up: after ``good`` tasks in a row without one, or half a window without any; after a time-out
    that took long, one and a half times as long as that. In between nothing changes: what is neither good nor bad does
    not make it swing.
    """

    window: float = 10.0
    row: int = 5
    minimum: int = 10
    down: float = 0.3
    good: int = 20

    def __post_init__(self) -> None:
        if not (self.window > 0 and min(self.row, self.minimum, self.good) >= 1 and 0 < self.down <= 1):
            raise ValueError("needs window > 0; row, minimum and good >= 1; 0 < down <= 1")


class _Stage:
    """One tool: two halves of the window, the running one and the one before; and how it went last."""

    __slots__ = ("before", "ended", "level", "row", "since", "start", "timed_out", "timed_out_before", "wait")

    def __init__(self, now: float) -> None:
        self.wait = 0.0
        self.step(0, now)

    def step(self, level: int, now: float) -> None:
        self.level = level
        self.start = self.since = now
        self.ended = self.timed_out = self.before = self.timed_out_before = 0
        self.row = 0
        """Above 0: time-outs in a row; below: tasks in a row without one."""

    def count(self, now: float, half: float, *, timed_out: bool) -> None:
        if now - self.start >= half:
            recent = now - self.start < 2 * half
            self.before, self.timed_out_before = (self.ended, self.timed_out) if recent else (0, 0)
            self.ended = self.timed_out = 0
            self.start = now
        self.ended += 1
        if timed_out:
            self.timed_out += 1
            self.row = max(0, self.row) + 1
        else:
            self.row = min(0, self.row) - 1

    @property
    def total(self) -> int:
        return self.ended + self.before

    @property
    def share(self) -> float:
        return (self.timed_out + self.timed_out_before) / self.total


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
        stage.count(now, self._half, timed_out=timed_out)
        policy = self.policy
        if timed_out:
            stage.since, stage.wait = now, seconds
            bad = stage.row >= policy.row or (stage.total >= policy.minimum and stage.share >= policy.down)
            if bad and stage.level < 2:
                self.narrow += stage.level == 0
                stage.step(stage.level + 1, now)
        elif stage.level and -stage.row >= policy.good:
            self._widen(stage, now)

    def _forget(self) -> None:
        """The oldest that nothing is known of but good."""
        for tool, stage in self._stages.items():
            if stage.level == 0:
                del self._stages[tool]
                return
        self._stages.popitem(last=False)
        self.narrow -= 1

    def _widen(self, stage: _Stage, now: float) -> None:
        stage.step(stage.level - 1, now)
        self.narrow -= stage.level == 0

    def level(self, tool: str, now: float) -> Level:
        """How tasks of that tool are started now."""
        stage = self._stages.get(tool)
        if stage is None:
            return "parallel"
        # Nothing timed out for so long: one step back, to see. A tool that takes long to time out is given that time.
        calm = max(self._half, 1.5 * stage.wait)
        while stage.level and now - stage.since >= calm:
            self._widen(stage, stage.since + calm)
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
