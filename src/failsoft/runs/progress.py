"""How far a run is and how long it will take, from what the same tools took before.

Estimates are medians of recent durations, by tool and, for a tool never seen, by kind of task. Without any history
there is no estimate: an invented number is worse than none.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from failsoft.runs.plan import Plan, TaskSpec

__all__ = ["History", "Progress", "ProgressReport"]

_PER_KEY: Final = 50
_KEYS: Final = 1_000
_PENDING: Final = 10_000


class History:
    """Recent durations by tool and by kind; at most 1 000 keys with the newest 50 each."""

    __slots__ = ("_medians", "_pending", "_samples")

    def __init__(self, samples: Mapping[str, Iterable[float]] | None = None) -> None:
        self._samples: OrderedDict[str, deque[float]] = OrderedDict()
        self._medians: dict[str, float] = {}
        self._pending: deque[tuple[str, float]] = deque(maxlen=_PENDING)
        self.load(samples or {})

    def load(self, samples: Mapping[str, Iterable[float]]) -> None:
        """Takes in what a store has kept."""
        for key, values in samples.items():
            for value in values:
                self._add(key, value)

    def add(self, task: TaskSpec, seconds: float) -> None:
        """A task took `seconds` and served its first choice."""
        for key in (f"{task.kind}:{task.tool}", task.kind):
            self._add(key, seconds)
            self._pending.append((key, seconds))

    def _add(self, key: str, seconds: float) -> None:
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = deque(maxlen=_PER_KEY)
            if len(self._samples) > _KEYS:
                old, _ = self._samples.popitem(last=False)
                self._medians.pop(old, None)
        samples.append(seconds)
        self._medians.pop(key, None)

    def usual(self, task: TaskSpec) -> float | None:
        """Seconds that tasks like this one usually take; None without history."""
        own = self.median(f"{task.kind}:{task.tool}")
        return own if own is not None else self.median(task.kind)

    def median(self, key: str) -> float | None:
        """The median of a key's durations; None without history."""
        known = self._medians.get(key)
        if known is None and (samples := self._samples.get(key)):
            known = self._medians[key] = median(samples)
        return known

    def take_pending(self) -> Sequence[tuple[str, float]]:
        """What has been added since the last time, for the store."""
        pending = list(self._pending)
        self._pending.clear()
        return pending

    def __repr__(self) -> str:
        return f"<History keys={len(self._samples)}>"


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """``done`` is a share from 0 to 1; ``eta`` seconds until all tasks are done, None without history."""

    done: float
    eta: float | None
    finished: int
    running: tuple[str, ...]
    total: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data: what the event ``run.eta`` carries."""
        return {
            "done": round(self.done, 4),
            "eta_s": None if self.eta is None else round(self.eta, 3),
            "finished": self.finished,
            "running": list(self.running),
            "total": self.total,
        }


class Progress:
    """The progress of one plan; told of every start and end, asked for a report now and then."""

    __slots__ = ("_ended", "_fractions", "_history", "_plan", "_started", "order")

    def __init__(self, plan: Plan, history: History) -> None:
        self._plan = plan
        self._history = history
        self.order = _topological(plan)
        self._started: dict[str, float] = {}
        self._ended: set[str] = set()
        self._fractions: dict[str, float] = {}

    def started(self, task: str, now: float) -> None:
        """A task started."""
        self._started[task] = now

    def ended(self, task: str) -> None:
        """A task ended, however."""
        self._ended.add(task)

    def fraction(self, task: str, fraction: float) -> None:
        """A running task said how far it is, 0 to 1."""
        self._fractions[task] = min(1.0, max(0.0, fraction))

    def report(self, now: float, *, left: float | None = None) -> ProgressReport:
        """How far things are; the estimate never exceeds `left`, the time there is at all."""
        done = whole = 0.0
        known = True
        finish: dict[str, float] = {}
        running: list[str] = []
        for task in self.order:
            begins = max((finish[need] for need in task.needs), default=0.0)
            usual = self._history.usual(task)
            size = usual if usual is not None else task.weight
            whole += size
            rest = size
            if task.id in self._ended:
                finish[task.id] = 0.0
                done += size
                continue
            estimated = usual is not None
            start = self._started.get(task.id)
            if start is not None:
                running.append(task.id)
                share = self._fractions.get(task.id)
                elapsed = now - start
                if share and elapsed > 0:
                    estimated = True
                    rest = elapsed / share * (1 - share)
                elif usual is not None and usual > 0:
                    # Overdue tasks: the longer it took, the longer it may still take.
                    rest = max(usual - elapsed, 0.1 * max(usual, elapsed))
                    share = min(0.95, elapsed / usual)
                done += size * (share or 0.0)
            known = known and estimated
            finish[task.id] = begins + rest
        eta = max(finish.values(), default=0.0) if known else None
        if eta is not None and left is not None:
            eta = min(eta, left)
        part = done / whole if whole > 0 else len(self._ended) / max(1, len(self.order))
        return ProgressReport(min(1.0, part), eta, len(self._ended), tuple(running), len(self.order))

    def __repr__(self) -> str:
        return f"<Progress {len(self._ended)}/{len(self.order)}>"


def _topological(plan: Plan) -> list[TaskSpec]:
    specs = {task.id: task for task in plan.tasks}
    waiting = {task.id: len(set(task.needs)) for task in plan.tasks}
    dependants: dict[str, list[str]] = {task.id: [] for task in plan.tasks}
    for task in plan.tasks:
        for need in set(task.needs):
            dependants[need].append(task.id)
    ready = [task.id for task in plan.tasks if waiting[task.id] == 0]
    order: list[TaskSpec] = []
    for task_id in ready:  # grows while it is walked
        order.append(specs[task_id])
        for dependant in dependants[task_id]:
            waiting[dependant] -= 1
            if waiting[dependant] == 0:
                ready.append(dependant)
    return order
