"""What a drill saw: one sample per request, what was counted beside them, and the figures made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from failsoft.drills.scenario import ViewSpec

__all__ = ["Measured", "Moment", "Sample", "figures", "quantile", "selected"]


class Sample(NamedTuple):
    """One request as its client saw it. ``at`` and ``seconds``: when it should have been sent, after the end of the
    warm-up, and how long after that it was answered. ``outcome``: complete, degraded or error; ``right`` of ``parts``
    were right. ``uses``: it uses the faulted downstream. ``rungs``: which rungs served.
    """

    at: float
    seconds: float
    outcome: str
    code: str
    stage: int
    kind: str
    tenant: str
    priority: str
    uses: bool
    right: int
    parts: int
    rungs: str = ""
    attempts: int = 1


class Moment(NamedTuple):
    """The system at one time: permits in use and calls waiting by downstream, breakers that are not closed."""

    at: float
    in_use: dict[str, int]
    waiting: dict[str, int]
    breakers: dict[str, str]


@dataclass
class Measured:
    """One arm of a drill."""

    arm: str
    samples: list[Sample] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    lateness: list[float] = field(default_factory=list)
    unsent: int = 0
    faulted: str | None = None
    offered: dict[str, int] = field(default_factory=dict)
    """Calls that the requests' plans have, by downstream."""
    started: dict[str, int] = field(default_factory=dict)
    """Calls that the downstreams saw."""
    extra: int = 0
    """Retries and hedges."""
    late_started: int = 0
    late_ended: int = 0
    breakers: list[tuple[float, str, str]] = field(default_factory=list)
    """(seconds, downstream, new state)."""
    facts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data that :meth:`from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measured:
        """The same again."""
        made = cls(**data)
        made.samples = [Sample(*one) for one in made.samples]
        made.moments = [Moment(*one) for one in made.moments]
        made.breakers = [(one[0], one[1], one[2]) for one in made.breakers]
        return made


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of sorted `values`; NaN of nothing."""
    if not values:
        return math.nan
    return values[min(len(values) - 1, max(0, math.ceil(share * len(values)) - 1))]


def selected(samples: Iterable[Sample], view: ViewSpec) -> list[Sample]:
    """The samples that a view is of."""

    def wanted(one: Sample) -> bool:
        return (
            (view.after is None or one.at >= view.after)
            and (view.before is None or one.at < view.before)
            and (view.kind is None or one.kind == view.kind)
            and (not view.kinds or one.kind in view.kinds)
            and (view.tenant is None or one.tenant == view.tenant)
            and (view.not_tenant is None or one.tenant != view.not_tenant)
            and (view.priority is None or one.priority == view.priority)
            and (view.uses is None or one.uses == view.uses)
        )

    return [one for one in samples if wanted(one)]


def figures(samples: Sequence[Sample]) -> dict[str, float]:
    """Percentiles in milliseconds over all requests, errors included, and shares of them.

    ``completeness`` is the share of all requested parts that were right.
    """
    times = sorted(one.seconds for one in samples)
    count = max(1, len(samples))
    return {
        "runs": len(samples),
        "p50_ms": quantile(times, 0.50) * 1000,
        "p95_ms": quantile(times, 0.95) * 1000,
        "p99_ms": quantile(times, 0.99) * 1000,
        "error_rate": sum(one.outcome == "error" for one in samples) / count,
        "degraded_rate": sum(one.outcome == "degraded" for one in samples) / count,
        "good_rate": sum(one.outcome != "error" for one in samples) / count,
        "complete_rate": sum(one.outcome == "complete" for one in samples) / count,
        "completeness": sum(one.right for one in samples) / max(1, sum(one.parts for one in samples)),
        "gateway_timeouts": sum(one.code == "504" for one in samples) / count,
    }
