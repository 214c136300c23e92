"""The states of a run: a pure table of transitions, and the one place where a run's state changes."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["TERMINAL", "TRANSITIONS", "RunState", "StateCell"]


class RunState(StrEnum):
    """Where a run is. The last five are terminal."""

    RECEIVED = "received"
    PLANNING = "planning"
    DISPATCHING = "dispatching"
    WAITING_APPROVAL = "waiting_approval"
    AGGREGATING = "aggregating"
    COMPLETED = "completed"
    DEGRADED = "degraded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL: Final = frozenset(
    {RunState.COMPLETED, RunState.DEGRADED, RunState.FAILED, RunState.CANCELLED, RunState.EXPIRED}
)

_ALWAYS: Final = frozenset({RunState.FAILED, RunState.CANCELLED})
"""Any run that has not ended may fail or be cancelled."""

TRANSITIONS: Final[dict[RunState, frozenset[RunState]]] = {
    RunState.RECEIVED: _ALWAYS | {RunState.PLANNING},
    RunState.PLANNING: _ALWAYS | {RunState.DISPATCHING},
    RunState.DISPATCHING: _ALWAYS | {RunState.AGGREGATING, RunState.WAITING_APPROVAL},
    RunState.WAITING_APPROVAL: _ALWAYS | {RunState.DISPATCHING, RunState.AGGREGATING, RunState.EXPIRED},
    RunState.AGGREGATING: _ALWAYS | {RunState.COMPLETED, RunState.DEGRADED, RunState.EXPIRED},
    **{state: frozenset() for state in TERMINAL},
}


class StateCell:
    """A run's state, changed by compare-and-set only, so that a terminal state is reached once and stays."""

    __slots__ = ("terminal", "value")

    def __init__(self, value: RunState = RunState.RECEIVED) -> None:
        self.value = value
        self.terminal = value in TERMINAL
        """Whether the run has ended."""

    def to(self, target: RunState, *, expected: RunState | None = None) -> bool:
        """Moves to `target` if the table allows it (and the state is `expected`); returns whether it did."""
        if (expected is not None and self.value is not expected) or target not in TRANSITIONS[self.value]:
            return False
        self.value = target
        self.terminal = target in TERMINAL
        return True

    def replay(self, terminal: RunState) -> bool:
        """Moves a run that has not begun to the end that it had elsewhere; returns whether it did."""
        if self.value is not RunState.RECEIVED or terminal not in TERMINAL:
            return False
        self.value = terminal
        self.terminal = True
        return True

    def __repr__(self) -> str:
        return f"<StateCell {self.value}>"
