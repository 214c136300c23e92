"""What a run may use and what it shares with the other runs of its app."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from failsoft.base.clock import Sources
from failsoft.base.events import EventBus
from failsoft.engines.lane import Lane
from failsoft.kernel.guard import Kernel
from failsoft.runs.crew import PATIENCE, Crew
from failsoft.runs.doubts import Doubts
from failsoft.runs.pace import Pace
from failsoft.runs.progress import History
from failsoft.runs.recorder import Recorder
from failsoft.runs.review import Reviews
from failsoft.runs.runners import TaskRunner
from failsoft.runs.sessions import Sessions
from failsoft.stores.protocols import RunStore
from failsoft.tools.stale import StaleResults

if TYPE_CHECKING:
    from failsoft.models.gateway import Gateway
    from failsoft.runs.agents import AgentRegistry
    from failsoft.runs.golden import GoldenAnswers

__all__ = ["Grace", "RunLimits", "RunParts"]


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What the platform allows a run, in seconds.

    ``task_timeout`` is the limit of a task whose plan sets none, None for no own limit.
    ``max_calls`` is how many tasks and items of one run are begun at all, None for as many as there are.

    ``grace_ceiling`` is the largest share of the budget kept for putting the answer together, ``grace_floor`` the
    least time. ``planning_share`` is how much of what is left one planner may use. ``store_wait`` bounds every wait
    for the store.

    ``background_budget`` is what background runs have when they ask for nothing, ``background_width`` how many tasks
    of one may run at once; after ``deaths`` nodes that died while they drove a run, no other one tries.
    ``resume_budget`` is what a run has after an approval, None for its own budget again; ``review_after`` that many
    degradations of a tool in a row a person is asked, 0 for never.
    """

    default_budget: float = 8.0
    max_budget: float = 600.0
    grace_ceiling: float = 0.125
    grace_floor: float = 0.05
    planning_share: float = 0.5
    patience: float = PATIENCE
    store_wait: float = 0.5
    max_question: int = 10_000
    max_runs: int = 20_000
    task_timeout: float | None = None
    max_calls: int | None = None
    background_budget: float = 600.0
    max_background_budget: float = 3_600.0
    background_width: int = 4
    deaths: int = 5
    resume_budget: float | None = None
    review_after: int = 0


class Grace:
    """What to keep back of a budget for the answer: twice the slowest recent one, between a floor and a ceiling.

    In a crowd it is what all of them take, one after another: runs that came together are cut together, too. And it is
    at least what passed lately between a cut and its answer, whatever for: a busy loop, a busy machine.
    """

    __slots__ = ("_late", "_recent", "crowd")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=50)
        self._late: deque[float] = deque(maxlen=50)
        self.crowd = 0
        """How many runs are running."""

    def learn(self, seconds: float) -> None:
        """An answer took this long to put together."""
        self._recent.append(seconds)

    def learn_late(self, seconds: float) -> None:
        """A run that was cut had its answer this long after it."""
        self._late.append(seconds)

    def of(self, budget: float, limits: RunLimits) -> float:
        """Seconds to keep back from a budget."""
        recent = self._recent
        usual = sum(recent) / len(recent) if recent else 0.0
        needed = max(
            limits.grace_floor,
            2 * max(recent, default=0.0),
            2 * usual * self.crowd,
            max(self._late, default=0.0),
        )
        return min(needed, limits.grace_ceiling * budget)

    def __repr__(self) -> str:
        return f"<Grace slowest={max(self._recent, default=0.0):.4f}>"


@dataclass(frozen=True, slots=True)
class RunParts:
    """What all runs of an app share."""

    kernel: Kernel
    bus: EventBus
    sources: Sources
    crew: Crew
    history: History
    stale: StaleResults
    limits: RunLimits
    grace: Grace
    node: str
    store: RunStore | None = None
    recorder: Recorder | None = None
    runners: Mapping[str, TaskRunner] | None = None
    pace: Pace = field(default_factory=Pace)
    sessions: Sessions = field(default_factory=Sessions)
    reviews: Reviews | None = None
    doubts: Doubts = field(default_factory=Doubts)
    lane: Lane | None = None
    may_call: Callable[[], bool] | None = None
    agents: AgentRegistry | None = None
    gateway: Gateway | None = None
    golden: GoldenAnswers | None = None
    models_failing: Callable[[], bool] = lambda: False
    """Whether models fail as a whole."""
