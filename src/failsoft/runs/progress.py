"""How far a run is and how long it will take, from what the same tools took before.

Estimates are medians of recent durations, by tool and, for a tool never seen, by kind of task. Without any history
there is no estimate: an invented number is worse than none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from failsoft.runs.plan import Plan, TaskSpec

__all__ = ["History", "Progress", "ProgressReport"]

_PER_KEY: Final = 50
_KEYS: Final = 1_000
_PENDING: Final = 10_000
_KIND_EVERY: Final = 8
"""Of this many tasks of a known tool one counts for its kind, too."""


class _Samples:
    """The newest of one key, in their order and sorted, so that a median costs nothing; never empty once used."""

    __slots__ = ("_newest", "_sorted")

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        newest, ordered = self._newest, self._sorted
        if len(newest) == _PER_KEY:
            del ordered[bisect_left(ordered, newest.popleft())]
        newest.append(seconds)
        insort(ordered, seconds)

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def median(self) -> float:
        ordered = self._sorted
        middle = len(ordered) >> 1
        return ordered[middle] if len(ordered) & 1 else (ordered[middle - 1] + ordered[middle]) / 2


class History:
    """Recent durations by tool and by kind; at most 1 000 keys with the newest 50 each."""

    __slots__ = ("_pending", "_samples", "_turn")

    def __init__(self, samples: Mapping[str, Iterable[float]] | None = None) -> None:
        self._samples: OrderedDict[str, _Samples] = OrderedDict()
        self._pending: deque[tuple[str, float]] = deque(maxlen=_PENDING)
        self._turn = 0
        self.load(samples or {})

    def load(self, samples: Mapping[str, Iterable[float]]) -> None:
        """Takes in what a store has kept."""
        for key, values in samples.items():
            for value in values:
                self._add(key, value)

    def add(self, task: TaskSpec, seconds: float) -> None:
        """A task took `seconds` and served its first choice."""
        self.add_to(f"{task.kind}:{task.tool}", task.kind, seconds)

    def add_to(self, key: str, kind: str, seconds: float) -> None:
        """The same, for whoever knows the key (``kind:tool``)."""
        samples = self._samples.get(key)
        if samples is None:
            self._add(key, seconds)
        else:
            samples.add(seconds)
        self._pending.append((key, seconds))
        # what is known of a kind is for tools that were never seen: it need not hear of every task
        self._turn += 1
        if samples is None or len(samples) < _KIND_EVERY or self._turn % _KIND_EVERY == 0:
            self._add(kind, seconds)
            self._pending.append((kind, seconds))

    def _add(self, key: str, seconds: float) -> None:
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = _Samples()
            if len(self._samples) > _KEYS:
                self._samples.popitem(last=False)
        samples.add(seconds)

    def note(self, key: str, seconds: float) -> None:
        """Something other than a task took `seconds`: ``run:AGENT``."""
        self._add(key, seconds)
        self._pending.append((key, seconds))

    def usual(self, task: TaskSpec) -> float | None:
        """Seconds that tasks like this one usually take; None without history."""
        return self.usual_of(f"{task.kind}:{task.tool}", task.kind)

    def usual_of(self, key: str, kind: str) -> float | None:
        """The same, for whoever knows the key (``kind:tool``)."""
        found = self._samples.get(key) or self._samples.get(kind)
        return None if found is None else found.median

    def median(self, key: str) -> float | None:
        """The median of a key's durations; None without history."""
        found = self._samples.get(key)
        return None if found is None else found.median

    def take_pending(self) -> Sequence[tuple[str, float]]:
        """What has been added since the last time, for the store."""
        pending = list(self._pending)
        self._pending.clear()
        return pending

    def __repr__(self) -> str:
        return f"<History keys={len(self._samples)}>"


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """``done`` is a share from 0 to 1; ``eta`` seconds until all tasks are done, None without history; ``left`` seconds
    until there is an answer in any case.
    """

    done: float
    eta: float | None
    finished: int
    running: tuple[str, ...]
    total: int
    left: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data: what the event ``run.eta`` carries."""
        return {
            "done": round(self.done, 4),
            "eta_s": None if self.eta is None else round(self.eta, 3),
            "at_most_s": None if self.left is None else round(self.left, 3),
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
        self.order = [plan.tasks[i] for i in plan.shape.order]
        self._started: dict[str, float] = {}
        self._ended: set[str] = set()
        self._fractions: dict[str, tuple[float, float]] = {}

    def started(self, task: str, now: float) -> None:
        """A task started."""
        self._started[task] = now

    def ended(self, task: str) -> None:
        """A task ended, however."""
        self._ended.add(task)

    def fraction(self, task: str, fraction: float, now: float) -> None:
        """A running task said how far it is, 0 to 1."""
        self._fractions[task] = min(1.0, max(0.0, fraction)), now

    def report(self, now: float, *, left: float | None = None) -> ProgressReport:
        """How far things are; the estimate never exceeds `left`, the time there is at all."""
        if len(self._ended) == len(self.order):
            return ProgressReport(1.0, 0.0, len(self._ended), (), len(self.order), left)
        done = whole = 0.0
        known = True
        finish: dict[str, float] = {}
        running: list[str] = []
        usually: dict[tuple[str, str], float | None] = {}  # most plans use few tools, many times
        for task in self.order:
            begins = 0.0
            for need in task.needs:
                if finish[need] > begins:
                    begins = finish[need]
            tool = (task.kind, task.tool)
            if tool not in usually:
                usually[tool] = self._history.usual(task)
            usual = usually[tool]
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
                share, said = self._fractions.get(task.id, (0.0, now))
                elapsed = now - start
                if share and said > start:
                    # At the pace it had when it said so; when it says nothing more, a little longer each time.
                    estimated = True
                    size_now = (said - start) / share
                    rest = max(size_now - elapsed, 0.1 * (now - said))
                    share = max(share, min(0.95, elapsed / size_now))
                elif usual is not None and usual > 0:
                    # Overdue tasks: the longer it took, the longer it may still take.
                    rest = max(usual - elapsed, 0.1 * max(usual, elapsed))
                    share = min(0.95, elapsed / usual)
                done += size * share
            known = known and estimated
            finish[task.id] = begins + rest
        eta = max(finish.values(), default=0.0) if known else None
        if eta is not None and left is not None:
            eta = min(eta, left)
        part = done / whole if whole > 0 else len(self._ended) / max(1, len(self.order))
        return ProgressReport(min(1.0, part), eta, len(self._ended), tuple(running), len(self.order), left)

    def __repr__(self) -> str:
        return f"<Progress {len(self._ended)}/{len(self.order)}>"
