"""Time limits of one model call: the least of what is configured, what its size and the load suggest, and the budget.

The cold formula (T7) is ``base × (1 + tokens/100 × k) × (1 + max(0, load − 0.8)/0.2) + margin``, kept within 5–120 s,
where tokens are those of the input and those that the answer may have. A learned model takes its place through
:class:`LatencyModel`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

__all__ = ["InFlightLoad", "LatencyModel", "LoadSource", "ModelLimits", "RequestLimits", "cold_limit", "limits_for"]

SILENT_LOAD: Final = 0.65
"""The load that is assumed when nothing reports one (T7)."""

_LEAST: Final = 0.001
"""Seconds of a limit when the budget leaves nothing: it fires at once, as a limit should."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What is configured for one model. Times in seconds.

    ``connect``: until the connection stands. ``first_content``: until the first content (a role is none).
    ``idle``: between chunks. ``total``: the whole. ``base``, ``k`` (per 100 tokens) and ``margin`` are for the cold
    formula, kept between ``least`` and ``most``. ``usual_output``: tokens expected when the request sets no limit.
    """

    connect: float = 3.0
    first_content: float = 5.0
    idle: float = 15.0
    total: float = 30.0
    base: float = 8.5
    k: float = 0.25
    margin: float = 1.0
    least: float = 5.0
    most: float = 120.0
    usual_output: int = 512

    def __post_init__(self) -> None:
        for name in ("connect", "first_content", "idle", "total", "base", "least"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive")
        if not (self.k >= 0 and self.margin >= 0 and self.usual_output >= 0):
            raise ValueError("k, margin and usual_output must not be negative")
        if not self.least <= self.most < math.inf:
            raise ValueError("needs least <= most")


class RequestLimits(NamedTuple):
    """Limits of one attempt in seconds. ``which`` says what set first, idle and total, in this order:
    ``configured``, ``computed``, ``learned`` or ``budget``. ``call`` is for all attempts until the first content,
    queueing and pauses included. ``lent`` names those that a caller's budget set too short for the route to be blamed
    when they fire. ``spare``: another model is there to go on to, so that nobody waits for this one to be welcome.
    """

    connect: float
    first: float
    idle: float
    total: float
    which: tuple[str, str, str] = ("configured", "configured", "configured")
    call: float = math.inf
    lent: tuple[str, ...] = ()
    spare: bool = False


class LatencyModel(Protocol):
    """What was learned about a model's times."""

    def limits(self, tokens: int, max_tokens: int | None, load: float) -> tuple[float | None, float | None]:
        """Seconds to allow until the first content and for the whole; None for what is not known (yet)."""
        ...


class LoadSource(Protocol):
    """How busy a model's server is."""

    def load(self) -> float | None:
        """0 for idle, 1 for full, more when it queues; None when it does not say."""
        ...


class InFlightLoad:
    """The load by our own count: calls in flight over the `capacity` that the server is taken to have."""

    __slots__ = ("capacity", "in_flight")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        self.in_flight = 0

    def started(self) -> None:
        """One more call."""
        self.in_flight += 1

    def ended(self) -> None:
        """One call less."""
        self.in_flight = max(0, self.in_flight - 1)

    def load(self) -> float | None:
        """See :class:`LoadSource`."""
        return self.in_flight / self.capacity

    def __repr__(self) -> str:
        return f"<InFlightLoad {self.in_flight}/{self.capacity}>"


def cold_limit(settings: ModelLimits, tokens: int, max_tokens: int | None, load: float | None) -> float:
    """Seconds by the formula above, within ``least`` and ``most``."""
    if load is None or not load >= 0:  # silent, or not a number
        load = SILENT_LOAD
    size = max(0, tokens) + (settings.usual_output if max_tokens is None else max(0, max_tokens))
    crowd = 1 + max(0.0, load - 0.8) / 0.2
    seconds = settings.base * (1 + size / 100 * settings.k) * crowd + settings.margin
    return min(settings.most, max(settings.least, seconds))


def limits_for(
    settings: ModelLimits,
    tokens: int,
    max_tokens: int | None = None,
    load: float | None = None,
    remaining: float = math.inf,
    reserve: float = 0.0,
    *,
    last: bool = False,
    learned: LatencyModel | None = None,
) -> RequestLimits:
    """The limits of one attempt.

    `tokens` of the input, `max_tokens` of the answer; `load` of the server (None: not known); `remaining` seconds of
    the budget, of which `reserve` are kept for later routes. With `last` (no route comes after) and a budget, neither
    a reserve nor the computed and first-content limits end the attempt while there is budget: nothing could be won.
    """
    left = remaining if last else remaining - max(0.0, reserve)
    if left < _LEAST:
        left = _LEAST
    total, by_total = settings.total, "configured"
    if last and left < math.inf:
        if left < total:
            total, by_total = left, "budget"
        first, by_first = total, by_total
    else:
        first_learned = total_learned = None
        if learned is not None:
            first_learned, total_learned = learned.limits(tokens, max_tokens, SILENT_LOAD if load is None else load)
        if total_learned is None:
            computed, by_computed = cold_limit(settings, tokens, max_tokens, load), "computed"
        else:
            computed, by_computed = min(settings.most, max(settings.least, total_learned)), "learned"
        if computed < total:
            total, by_total = computed, by_computed
        if left < total:
            total, by_total = left, "budget"
        first, by_first = settings.first_content, "configured"
        if first_learned is not None and first_learned < first:
            first, by_first = max(_LEAST, first_learned), "learned"
        if total < first:
            first, by_first = total, by_total
    idle, by_idle = settings.idle, "configured"
    if total < idle:
        idle, by_idle = total, by_total
    return RequestLimits(min(settings.connect, total), first, idle, total, (by_first, by_idle, by_total))
