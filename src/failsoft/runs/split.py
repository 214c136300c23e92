"""How a run's budget is split over its plan: what each task may spend so that what comes after it still fits.

Pure arithmetic over the plan's shape and the usual times. ``tail`` of a task is the usual time of the longest way from
its start to the end of the plan; ways through optional tasks do not count. Without history nothing is split: a guess
would cut what might have answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from failsoft.runs.shape import Shape

__all__ = ["allowance", "fits", "tails"]

_MARGIN: Final = 1.25
"""How much more than usual is kept for what comes after a task, when there is enough."""
_ROUNDED: Final = 1.0 + 1e-9
"""What fits exactly fits, whatever sums of floats make of it."""
_HOPELESS: Final = 2.0
"""How much of its own usual time a task may spend when not everything fits any more."""


def tails(shape: Shape, usual: Sequence[float | None], essential: Sequence[bool]) -> list[float]:
    """For each task the usual seconds of the longest essential way from its start to the end, its own included."""
    found = [0.0] * len(shape.tasks)
    for i in reversed(shape.order):
        below = max((found[d] for d in shape.dependants[i] if essential[d]), default=0.0)
        found[i] = below + (usual[i] or 0.0)
    return found


def allowance(left: float, usual: float | None, after: float) -> float:
    """Seconds that a task may spend of the `left` ones, when it usually takes `usual` and `after` comes behind it.

    When everything fits, what is over is shared out in proportion, but nothing gets more kept for it than 1.25 times
    its usual time: the rest is this task's. So whoever keeps its allowance leaves at least the usual time to all that
    follow. When it does not fit any more, the task has twice its usual time: a part that is whole is better than none.
    """
    if left <= 0:
        return 0.0
    if usual is None or after <= 0:
        return left
    needed = usual + after
    if needed <= left * _ROUNDED:
        return max(left * usual / needed, left - _MARGIN * after)
    return min(left, _HOPELESS * usual)


def fits(left: float, usual: float | None, after: float) -> bool:
    """Whether an optional task can be done in time, with what needs it; unknown ones may try."""
    return usual is None or usual + after <= left
