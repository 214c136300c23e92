"""What an agent loop does next, as pure decisions: think, answer now, or stop; and whether it goes round in circles.

Nothing here waits or calls anything; times are the loop's, in seconds. Counts that a whole run shares (its calls, over
all its agents and their delegates) are a :class:`Tree`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from failsoft.base.errors import BadInput

__all__ = ["Chosen", "Decision", "LoopLimits", "Tree", "Turns"]

Step = Literal["think", "answer", "stop"]
Verdict = Literal["final", "call", "refuse", "again"]

_THOUGHT: Final = 2.0
"""Turns that must fit for another thought: this one, and the answer."""
_TRY: Final = 0.5
"""An answer is still asked for while this share of a usual turn is left: some are quicker than usual."""
_SMOOTH: Final = 0.5


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Bounds of a loop.

    ``turns``: replies of the model, the last of them the answer. ``calls``: calls of tools and delegates by all agents
    of the run together. ``depth``: levels of delegation below the first agent. ``same``: the same calls with the same
    arguments in so many turns running are a loop. ``unknown``: unknown tools named in a row, ``malformed``: turns in a
    row whose arguments all did not fit, ``empty``: empty replies in a row, each of which ends the loop.
    ``answer_share`` of the budget is kept for the answer while it is not known how long the model takes.
    ``result`` is how many characters of a tool's result the model is given, ``window`` how many tokens of conversation.
    """

    turns: int = 12
    calls: int = 40
    depth: int = 3
    same: int = 3
    unknown: int = 3
    malformed: int = 2
    empty: int = 2
    answer_share: float = 0.25
    result: int = 8_000
    window: int = 24_000

    def __post_init__(self) -> None:
        for name in ("turns", "calls", "same", "unknown", "malformed", "empty", "result", "window"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1", param=f"limits.{name}")
        if self.depth < 0:
            raise BadInput("depth must not be negative", param="limits.depth")
        if not 0 <= self.answer_share < 1:
            raise BadInput("answer_share must be at least 0 and less than 1", param="limits.answer_share")


class Tree:
    """The calls that all agents of one run may make together."""

    __slots__ = ("limit", "made")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.made = 0

    @property
    def left(self) -> int:
        """How many more may be made."""
        return self.limit - self.made

    def take(self, wanted: int) -> int:
        """Takes up to `wanted` calls, before any of them is made; gives how many there were."""
        granted = min(wanted, self.left)
        self.made += granted
        return granted

    def __repr__(self) -> str:
        return f"<Tree calls={self.made}/{self.limit}>"


class Decision(NamedTuple):
    """What to do next; ``reason`` (a code) when it is not simply thinking on."""

    step: Step
    reason: str | None = None


class Chosen(NamedTuple):
    """A call that a model chose: ``key`` stands for its name and arguments, whatever they are written like."""

    key: str
    known: bool = True
    sound: bool = True


class Turns:
    """The state of one loop. Ask :meth:`next` before each turn, tell :meth:`took` and :meth:`replied` after it."""

    __slots__ = (
        "_began",
        "_empty",
        "_last",
        "_malformed",
        "_row",
        "_tree",
        "_unknown",
        "answering",
        "deadline",
        "ending",
        "limits",
        "made",
        "usual",
    )

    def __init__(
        self, limits: LoopLimits, tree: Tree, *, began: float, deadline: float, usual: float | None = None
    ) -> None:
        self.limits = limits
        self.deadline = deadline
        self.usual = usual
        """Seconds that a turn of the model usually takes; None while that is not known."""
        self.made = 0
        """Turns so far."""
        self.ending: str | None = None
        """Why the loop may think no more."""
        self.answering = False
        """Whether the answer has been asked for."""
        self._tree = tree
        self._began = began
        self._last: tuple[str, ...] = ()
        self._row = 0
        self._unknown = 0
        self._malformed = 0
        self._empty = 0

    # --- before a turn ---------------------------------------------------------------------------------------------

    def next(self, now: float) -> Decision:
        """What fits and makes sense at `now`."""
        left = self.deadline - now
        if left <= 0:
            return Decision("stop", self.ending or "deadline_exceeded")
        if self.usual is not None and left < _TRY * self.usual:
            return Decision("stop", self.ending or "unaffordable")
        if self.answering:  # it was asked once, and did not
            return Decision("stop", self.ending)
        reason = self.ending or self._out_of(left)
        if reason is None:
            return Decision("think")
        self.ending = reason
        self.answering = True
        return Decision("answer", reason)

    def _out_of(self, left: float) -> str | None:
        if left < self.reserve + (self.usual or 0.0):
            return "time_short"
        if self.made + 1 >= self.limits.turns:
            return "turn_limit"
        if self._tree.left <= 0:
            return "call_limit"
        return None

    @property
    def reserve(self) -> float:
        """Seconds to keep for the answer."""
        share = self.limits.answer_share * (self.deadline - self._began)
        return share if self.usual is None else min((_THOUGHT - 1) * self.usual, 2 * share)

    # --- after a turn ----------------------------------------------------------------------------------------------

    def took(self, seconds: float) -> None:
        """The model's turn took so long."""
        self.made += 1
        self.usual = seconds if self.usual is None else self.usual + _SMOOTH * (seconds - self.usual)

    def replied(self, text: str, calls: Sequence[Chosen]) -> Verdict:
        """What becomes of a reply: ``final``, its calls are made (``call``) or not (``refuse``), or ask ``again``."""
        if not calls:
            if text.strip():
                return "final"
            self._empty += 1
            if self._empty >= self.limits.empty:
                self.ending = self.ending or "empty_replies"
            return "again"
        self._empty = 0
        for call in calls:
            self._unknown = 0 if call.known else self._unknown + 1
            if self._unknown >= self.limits.unknown:
                self.ending = self.ending or "unknown_tool"
        self._malformed = 0 if any(call.sound or not call.known for call in calls) else self._malformed + 1
        if self._malformed >= self.limits.malformed:
            self.ending = self.ending or "malformed_arguments"
        keys = tuple(sorted(call.key for call in calls))
        self._row = self._row + 1 if keys == self._last else 1
        self._last = keys
        if self._row >= self.limits.same:
            self.ending = self.ending or "loop_detected"
        return "refuse" if self.ending is not None else "call"

    def __repr__(self) -> str:
        return f"<Turns made={self.made} ending={self.ending} {self._tree!r}>"
