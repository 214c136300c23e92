"""The shape of a plan: who needs whom, in which order, and what ends before what; worked out once for each plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Shape"]


class Node(Protocol):
    """What a task is to its plan's shape."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Whom it needs."""
        ...


class Shape:
    """``tasks`` in the plan's order, and everything else by their index in it.

    ``needs[i]`` and ``dependants[i]`` are indices; ``order`` is an order in which every task comes after all it needs,
    and lacks those on a cycle or behind one. Needs that are not in the plan are left out.
    """

    __slots__ = ("_above", "dependants", "needs", "order", "places", "tasks")

    def __init__(self, tasks: Sequence[Node]) -> None:
        self.tasks = tasks
        self.places: dict[str, int] = {}
        for i, task in enumerate(tasks):
            self.places.setdefault(task.id, i)
        places = self.places
        self.needs = [tuple({places[need] for need in task.needs if need in places}) for task in tasks]
        self.dependants: list[list[int]] = [[] for _ in tasks]
        for i, needs in enumerate(self.needs):
            for need in needs:
                self.dependants[need].append(i)
        waiting = [len(needs) for needs in self.needs]
        self.order = [i for i, count in enumerate(waiting) if count == 0]
        for i in self.order:  # grows while it is walked
            for dependant in self.dependants[i]:
                waiting[dependant] -= 1
                if waiting[dependant] == 0:
                    self.order.append(dependant)
        self._above: list[int] | None = None

    def above(self, task: str, i: int) -> bool:
        """Whether `task` surely ended before the task at `i` starts: it needs it, directly or through others."""
        place = self.places.get(task)
        if place is None:
            return False
        if place in self.needs[i]:
            return True
        if self._above is None:
            # one number per task, one bit per other: a thousand tasks in a row cost a hundred kilobytes, not a gigabyte
            bits = [0] * len(self.needs)
            for j in self.order:
                for need in self.needs[j]:
                    bits[j] |= bits[need] | 1 << need
            self._above = bits
        return bool(self._above[i] >> place & 1)

    def cycle(self) -> list[str] | None:
        """The ids along a cycle, the first again at the end; None when there is none."""
        if len(self.order) == len(self.tasks):
            return None
        inside = set(range(len(self.tasks))) - set(self.order)
        # every task outside of the order needs another one outside of it: following those must come around
        at, path = min(inside), list[int]()
        while at not in path:
            path.append(at)
            at = min(need for need in self.needs[at] if need in inside)
        return [self.tasks[j].id for j in [*path[path.index(at) :], at]]
