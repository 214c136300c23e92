"""Figures of downstreams and of runs, for Prometheus.

Downstreams keep their own figures and are asked when somebody scrapes. What happens only once (a run's end, a breaker's
change, a stall) is counted by a listener; it never sees the attempts of calls.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from failsoft.base.events import Event
from failsoft.kernel.guard import GuardStatistics, Kernel
from failsoft.telemetry.burn import Burn, Burning
from failsoft.telemetry.exposition import Histogram, Page

__all__ = ["RunMetrics", "downstream_families"]

_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SHARES: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_OPEN: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_LATE: Final = 50.0
"""Milliseconds after its budget until which an answer is in time."""
_AGENTS: Final = 10_000
"""Running runs whose agent is remembered."""

_COUNTED: Final = frozenset({"task.finished", "run.received", "plan.refused", "loop.stalled"})
_ENDS: Final = frozenset({"run.completed", "run.degraded", "run.failed", "run.cancelled", "run.expired"})


def downstream_families(page: Page, kernel: Kernel) -> None:
    """Adds what every guard of `kernel` says of itself."""
    figures = {name: guard.statistics() for name, guard in kernel.guards.items()}
    for name, kind, meaning in (
        ("in_use", "gauge", "Permits in use."),
        ("limit", "gauge", "Permits there are."),
        ("waiting", "gauge", "Calls that wait for a permit."),
        ("oldest_wait", "gauge", "Seconds that the oldest of them has waited."),
        ("orphans", "gauge", "Callees left behind that still run, and hold their permits."),
        ("threads", "gauge", "Threads of the downstream."),
        ("calls", "counter", "Calls."),
        ("attempts", "counter", "Attempts, retries and hedges included."),
        ("retries", "counter", "Retries."),
        ("hedges", "counter", "Second legs."),
    ):
        suffix = {"oldest_wait": "_seconds"}.get(name, "_total" if kind == "counter" else "")
        page.family(
            f"failsoft_downstream_{name}{suffix}",
            kind,
            meaning,
            (({"downstream": one}, getattr(found, name)) for one, found in figures.items()),
        )
    page.family(
        "failsoft_downstream_attempts_ended_total",
        "counter",
        "Attempts by how they count.",
        (({"downstream": one, "counts": how}, n) for one, found in figures.items() for how, n in _ends(found)),
    )
    page.family(
        "failsoft_downstream_rejected_total",
        "counter",
        "Calls that were refused, by why.",
        (
            ({"downstream": one, "code": code}, n)
            for one, found in figures.items()
            for code, n in found.rejected.items()
        ),
    )
    page.family(
        "failsoft_downstream_typical_seconds",
        "gauge",
        "What a call usually takes, once it is known.",
        (({"downstream": one}, found.typical) for one, found in figures.items() if found.typical),
    )
    page.family(
        "failsoft_downstream_attempt_limit_seconds",
        "gauge",
        "The limit of an attempt now.",
        (
            ({"downstream": one}, found.attempt_limit)
            for one, found in figures.items()
            if found.attempt_limit is not None
        ),
    )
    page.family(
        "failsoft_downstream_breaker_state",
        "gauge",
        "1 for the state that a downstream's breaker is in.",
        (({"downstream": name, "state": found.breaker}, 1) for name, found in figures.items()),
    )


def _ends(found: GuardStatistics) -> tuple[tuple[str, int], ...]:
    return (("ok", found.ok), ("failed", found.failed), ("timeout", found.timed_out), ("neutral", found.neutral))


class RunMetrics:
    """Counts what runs, breakers and the loop do. Add :meth:`hear` to the bus, for what it :meth:`hears`.

    `on_burn` is called when `burn` raises an alarm; it must neither wait nor raise.
    """

    def __init__(self, burn: Burn | None = None, on_burn: Callable[[Burning], None] | None = None) -> None:
        self._burn = burn or Burn()
        self._on_burn = on_burn
        self._burns: Counter[str] = Counter()
        self._agents: OrderedDict[str, str] = OrderedDict()
        self._ended: Counter[tuple[str, str]] = Counter()
        self._late: Counter[str] = Counter()
        self._timed_out: Counter[str] = Counter()
        self._elapsed: dict[tuple[str, str], Histogram] = {}
        self._left: dict[str, Histogram] = {}
        self._rungs: Counter[tuple[str, str, str]] = Counter()
        self._refused: Counter[str] = Counter()
        self._changes: Counter[tuple[str, str]] = Counter()
        self._opened: dict[str, float] = {}
        self._recovery: dict[str, Histogram] = {}
        self._stalls = 0
        self._stalled = 0.0

    @staticmethod
    def hears(kind: str) -> bool:
        """Whether it counts events of that kind."""
        return kind in _COUNTED or kind in _ENDS or kind.startswith("breaker.")

    def hear(self, event: Event) -> None:
        """Takes an event."""
        kind = event.kind
        if kind == "task.finished":
            data = event.data
            self._rungs[data["rung"], data["reason"] or "", data["status"]] += 1
        elif kind == "run.received":
            self._agents[event.run or ""] = event.data["agent"]
            if len(self._agents) > _AGENTS:
                self._agents.popitem(last=False)
        elif kind in _ENDS:
            self._run_ended(self._agents.pop(event.run or "", ""), event.data, event.at)
        elif kind.startswith("breaker.") and event.downstream is not None:
            self._breaker(event.downstream, kind[8:], event.at)
        elif kind == "plan.refused":
            self._refused[event.data.get("code", "")] += 1
        elif kind == "loop.stalled":
            self._stalls += 1
            self._stalled += event.data.seconds

    def _run_ended(self, agent: str, data: Mapping[str, Any], at: float) -> None:
        status, elapsed, budget = data["status"], data["elapsed_ms"], data["budget_ms"]
        self._ended[agent, status] += 1
        key = (agent, status)
        if key not in self._elapsed:
            self._elapsed[key] = Histogram(_SECONDS)
        self._elapsed[key].observe(elapsed / 1000)
        if agent not in self._left:
            self._left[agent] = Histogram(_SHARES)
        if budget:
            self._left[agent].observe(max(0.0, 1.0 - elapsed / budget))
        if status != "cancelled" and elapsed > budget + _LATE:
            self._late[agent] += 1
        late = any(one.get("reason") in _TIME for one in data["shortfalls"])
        late = late or (data["error"] or {}).get("code") in _TIME
        self._timed_out[agent] += late
        if (burning := self._burn.ended(agent, timed_out=late, now=at)) is not None:
            self._burns[agent] += 1
            if self._on_burn is not None:
                self._on_burn(burning)

    def _breaker(self, downstream: str, state: str, at: float) -> None:
        self._changes[downstream, state] += 1
        if state == "open":
            self._opened.setdefault(downstream, at)
        elif state == "closed" and (since := self._opened.pop(downstream, None)) is not None:
            if downstream not in self._recovery:
                self._recovery[downstream] = Histogram(_OPEN)
            self._recovery[downstream].observe(at - since)

    def add_to(self, page: Page) -> None:
        """Adds the families to a scrape's page."""
        page.family(
            "failsoft_runs_ended_total",
            "counter",
            "Runs by agent and end.",
            (({"agent": agent, "status": status}, n) for (agent, status), n in self._ended.items()),
        )
        page.histograms(
            "failsoft_run_seconds",
            "What runs took, the time in front of us included.",
            (({"agent": agent, "status": status}, one) for (agent, status), one in self._elapsed.items()),
        )
        page.histograms(
            "failsoft_run_budget_left_ratio",
            "The share of their budget that was left when runs ended.",
            (({"agent": agent}, one) for agent, one in self._left.items()),
        )
        page.family(
            "failsoft_runs_late_total",
            "counter",
            "Runs that ended more than 50 ms after their budget.",
            (({"agent": agent}, n) for agent, n in self._late.items()),
        )
        page.family(
            "failsoft_runs_timed_out_total",
            "counter",
            "Runs of which a part, or all, ran out of time: what burns the time-out budget.",
            (({"agent": agent}, n) for agent, n in self._timed_out.items() if n),
        )
        page.family(
            "failsoft_budget_burn_alarms_total",
            "counter",
            "Alarms: more runs ran out of time than may, and a diagnosis was made.",
            (({"agent": agent}, n) for agent, n in self._burns.items()),
        )
        page.family(
            "failsoft_tasks_total",
            "counter",
            "Tasks by the rung that served them, the reason why not the first, and their end.",
            (
                ({"rung": rung, "reason": reason, "status": status}, n)
                for (rung, reason, status), n in self._rungs.items()
            ),
        )
        page.family(
            "failsoft_plans_refused_total",
            "counter",
            "Plans that were refused, by why.",
            (({"code": code}, n) for code, n in self._refused.items()),
        )
        page.family(
            "failsoft_breaker_changes_total",
            "counter",
            "Changes of breakers, by the state they came to.",
            (({"downstream": name, "state": state}, n) for (name, state), n in self._changes.items()),
        )
        page.histograms(
            "failsoft_breaker_recovery_seconds",
            "From opening until full service again.",
            (({"downstream": name}, one) for name, one in self._recovery.items()),
        )
        page.family("failsoft_loop_stalls_total", "counter", "Times that the loop was blocked.", [({}, self._stalls)])
        page.family(
            "failsoft_loop_stalled_seconds_total", "counter", "How long the loop was blocked.", [({}, self._stalled)]
        )

    def __repr__(self) -> str:
        return f"<RunMetrics ended={sum(self._ended.values())} stalls={self._stalls}>"


_TIME: Final = frozenset(
    {
        "attempt_timeout",
        "call_timeout",
        "task_timeout",
        "deadline_exceeded",
        "first_item_timeout",
        "idle_timeout",
        "total_timeout",
        "not_started",
        "unaffordable",
    }
)
"""Reasons that speak of time."""
