"""Policies: everything that can be said about how one downstream is guarded, and the presets to start from.

Immutable; change a running guard with :meth:`~failsoft.kernel.guard.Guard.reconfigure`, override fields with
``dataclasses.replace``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from failsoft.base.outcomes import Kind
from failsoft.kernel.adaptive import AdaptiveLimitPolicy
from failsoft.kernel.breaker import BreakerPolicy, breaker_preset
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.cache import CachePolicy
from failsoft.kernel.checks import check_options
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.timeout import AdaptiveTimeoutPolicy

__all__ = ["HedgePolicy", "Policy", "Preset", "preset"]

Preset = Literal["core", "data", "auxiliary", "external", "model"]


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """A second attempt of a query after the recent ``quantile`` of its latency ("The Tail at Scale", Dean & Barroso
    2013).

    ``minimum`` seconds at least; no hedge while fewer than 20 successes are known. ``share`` of first attempts at most.
    """

    quantile: float = 0.95
    minimum: float = 0.01
    share: float = 0.05

    def __post_init__(self) -> None:
        if not (0.5 <= self.quantile < 1 and self.minimum >= 0 and 0 <= self.share <= 1):
            raise ValueError("a hedge needs 0.5 <= quantile < 1, minimum >= 0 and 0 <= share <= 1")


@dataclass(frozen=True, slots=True)
class Policy:
    """How one downstream is guarded. Times in seconds; None switches a limit or mechanism off.

    ``call_timeout`` covers queueing, retries and back-offs; ``attempt_timeout`` one try. The run's or task's deadline
    always applies as well. ``retry_ratio`` is the share of extra load that retries and hedges may add together.
    ``cache`` and ``coalesce`` are for :meth:`~failsoft.kernel.guard.Guard.fetch` only, and for queries only.
    ``detachable``: a callee that ignores cancellation is abandoned at its limit (as threads always are).
    """

    kind: Kind = "query"
    call_timeout: float | None = 30.0
    attempt_timeout: float | None = None
    adaptive_timeout: AdaptiveTimeoutPolicy | None = None
    bulkhead: BulkheadPolicy = field(default_factory=BulkheadPolicy)
    breaker: BreakerPolicy | None = field(default_factory=BreakerPolicy)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    retry_ratio: float = 0.1
    hedge: HedgePolicy | None = None
    cache: CachePolicy | None = None
    coalesce: bool = True
    detachable: bool = False

    def __post_init__(self) -> None:
        check_options(self.kind, None, None, None, 1.0)
        for name in ("call_timeout", "attempt_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive or None")
        if (
            self.call_timeout is not None
            and self.attempt_timeout is not None
            and self.attempt_timeout > self.call_timeout
        ):
            raise ValueError("attempt_timeout must not exceed call_timeout")
        if not 0 <= self.retry_ratio <= 1:
            raise ValueError("retry_ratio must be between 0 and 1")


_PRESETS: Final[dict[str, Policy]] = {
    # I1: the adaptive range of permits, and the queue, as in the reports' presets; T3: core 5 s calls, auxiliary 3 s.
    "core": Policy(
        call_timeout=5.0,
        bulkhead=BulkheadPolicy(permits=64, queue=256, adaptive=AdaptiveLimitPolicy(minimum=64, maximum=128)),
        breaker=breaker_preset("strict"),
    ),
    "data": Policy(
        call_timeout=8.0,
        attempt_timeout=3.0,
        adaptive_timeout=AdaptiveTimeoutPolicy(floor=1.0, cap=3.0),
        bulkhead=BulkheadPolicy(permits=32, queue=128, adaptive=AdaptiveLimitPolicy(minimum=32, maximum=64)),
        breaker=breaker_preset("B"),
        retry=RetryPolicy(queries=2),
    ),
    "auxiliary": Policy(
        call_timeout=3.0,
        bulkhead=BulkheadPolicy(permits=8, queue=64, adaptive=AdaptiveLimitPolicy(minimum=8, maximum=16)),
        breaker=breaker_preset("strict"),
        retry=RetryPolicy(queries=0),
    ),
    "external": Policy(
        kind="external",
        call_timeout=8.0,
        bulkhead=BulkheadPolicy(permits=8, queue=32),
        breaker=breaker_preset("patient"),
    ),
    "model": Policy(
        call_timeout=30.0,
        bulkhead=BulkheadPolicy(permits=20, queue=64),
        breaker=breaker_preset("E", p99=None),  # below 100 calls one answer of over 5 s would open it
        retry=RetryPolicy(queries=1, base=0.5, spread=0.5),
    ),
}


def preset(name: Preset | str) -> Policy:
    """The preset called `name`: ``core``, ``data``, ``auxiliary``, ``external`` or ``model``; raises ``ValueError``."""
    try:
        return replace(_PRESETS[name])
    except KeyError:
        raise ValueError(f"unknown preset {name!r}; there are {', '.join(_PRESETS)}") from None
