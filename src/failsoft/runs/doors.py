"""One breaker per agent, at the door: a chain that keeps failing as a whole is not gone through again for every
request.

What counts is a run that could not even degrade: one that ended as ``failed`` for a reason on our side or behind us.
A degraded answer, the caller's mistake, a refused plan, a store that fails and a cancellation do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from failsoft.base.clock import Sources
from failsoft.base.errors import BreakerOpen, FailsoftError, TimeoutExceeded
from failsoft.base.events import Event, EventBus
from failsoft.kernel.breaker import Admission, Breaker, BreakerPolicy, ProbeCap, Transition
from failsoft.kernel.classify import Counts
from failsoft.runs.state import RunState

__all__ = ["AGENT_BREAKER", "Doors"]

AGENT_BREAKER: Final = BreakerPolicy(minimum=10, failure_ratio=0.5, consecutive_timeouts=None, consecutive_failures=10)
"""Half of at least ten runs in ten seconds, or ten failed ones in a row (report A's per-agent breaker, eased)."""


class Doors:
    """The breakers of an app's agents, made when an agent is first asked. Pure: takes ``now`` (loop time)."""

    __slots__ = ("_breakers", "_bus", "_policies", "_probes", "_sources")

    def __init__(
        self, policies: Callable[[str], BreakerPolicy | None], bus: EventBus, sources: Sources, probes: ProbeCap
    ) -> None:
        self._policies = policies
        self._bus = bus
        self._sources = sources
        self._probes = probes
        self._breakers: dict[str, Breaker] = {}

    def admit(self, agent: str, now: float) -> Admission | None:
        """Lets a run of `agent` in, to be settled at its end; raises :class:`BreakerOpen` with ``retry_after``."""
        policy = self._policies(agent)
        if policy is None:
            return None
        breaker = self._breakers.get(agent)
        if breaker is None:
            breaker = self._breakers[agent] = Breaker(
                policy,
                rng=self._sources.rng,
                name=f"agent:{agent}",
                on_transition=self._tell,
                probe_cap=self._probes,
            )
        admission = breaker.admit(now)
        if admission is None:
            after = breaker.retry_after(now)
            raise BreakerOpen(f"agent {agent} keeps failing and is not tried now", retry_after=after)
        return admission

    def settle(
        self,
        agent: str,
        admission: Admission | None,
        state: RunState,
        error: FailsoftError | None,
        seconds: float,
        now: float,
        *,
        patient: bool = True,
    ) -> None:
        """A run has ended. Running out of time counts only when the client was `patient`: gave it as much as is usual.

        Else anybody could close the door to everybody, by asking for answers in a millisecond.
        """
        breaker = self._breakers.get(agent)
        if admission is None or breaker is None:
            return
        counts = _counts(state, error)
        if counts == Counts.TIMEOUT and not patient:
            counts = Counts.NEUTRAL
        breaker.settle(admission, counts, seconds, now)

    def _tell(self, change: Transition) -> None:
        self._bus.emit(Event(f"breaker.{change.new}", change.at, change.name, data=change))

    def breaker(self, agent: str) -> Breaker | None:
        """The breaker of an agent that was asked before."""
        return self._breakers.get(agent)


def _counts(state: RunState, error: FailsoftError | None) -> str:
    if state in {RunState.COMPLETED, RunState.DEGRADED}:
        return Counts.OK
    if state is RunState.FAILED and (error is None or (error.status >= 500 and error.type != "store_error")):
        return Counts.TIMEOUT if isinstance(error, TimeoutExceeded) else Counts.FAILED
    return Counts.NEUTRAL
