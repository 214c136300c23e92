"""What a bulkhead is told, and what it tells: its policy and its statistics."""

from __future__ import annotations

from dataclasses import dataclass

from failsoft.base.errors import ConfigError
from failsoft.kernel.adaptive import AdaptiveLimitPolicy
from failsoft.kernel.checks import is_whole

__all__ = ["BulkheadPolicy", "BulkheadStatistics"]


@dataclass(frozen=True, slots=True)
class BulkheadPolicy:
    """How much may run at once, how much may wait, and how the scarce permits are shared.

    ``permits`` calls run at once, ``queue`` wait, each at most ``max_wait`` seconds (None: until its deadline).
    ``normal_share``: the part of grants that NORMAL keeps while CRITICAL floods; as long as it waits, CRITICAL neither
    evicts it from that part of the queue nor fills that part.
    ``tenant_share``: one tenant's most of the queue, and of the permits while others wait (traffic without a tenant is
    exempt). ``fallback_share``: the most of the permits that traffic which fell back here may hold.
    ``codel_target`` and ``codel_interval`` (seconds): None scales them to the recent service time, 1 and 10 times.
    ``explore_interval``: seconds between calls that are let through although an estimate says they are doomed
    (``math.inf``: never).
    ``adaptive``: find the limit; ``permits`` is then where it starts unless it says otherwise.
    """

    permits: int = 64
    queue: int = 256
    max_wait: float | None = None
    normal_share: float = 0.1
    tenant_share: float = 0.5
    fallback_share: float = 0.5
    codel_target: float | None = None
    codel_interval: float | None = None
    explore_interval: float = 1.0
    adaptive: AdaptiveLimitPolicy | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.permits, 1):
            raise ConfigError(f"permits must be a whole number of at least 1, not {self.permits!r}", param="permits")
        if not is_whole(self.queue, 0):
            raise ConfigError(f"queue must be a whole number of at least 0, not {self.queue!r}", param="queue")
        for key in ("normal_share", "tenant_share", "fallback_share"):
            if not 0.0 <= getattr(self, key) <= 1.0:
                raise ConfigError(f"{key} must be within 0 and 1, is {getattr(self, key)}", param=key)
        if self.normal_share > 0.9:
            raise ConfigError(f"normal_share must leave CRITICAL a part, is {self.normal_share}", param="normal_share")
        for key in ("max_wait", "codel_target", "codel_interval", "explore_interval"):
            value = getattr(self, key)
            if value is not None and not value >= 0.0:
                raise ConfigError(f"{key} must not be negative, is {value}", param=key)


@dataclass(frozen=True, slots=True)
class BulkheadStatistics:
    """A bulkhead at one moment. The counters below ``overloaded`` only grow; they count waiters, by how they ended."""

    name: str
    limit: int
    in_use: int
    waiting: int
    waiting_by_priority: tuple[int, int, int]
    fallback_in_use: int
    fallback_waiting: int
    oldest_wait: float
    service_time: float | None
    overloaded: bool
    granted: int
    left: int
    queue_full: int
    evicted: int
    shed: int
    doomed: int
    timed_out: int
    refused: int
