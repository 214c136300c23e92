"""How a downstream is guarded: a preset of the kernel's policies, and the keys that stand over it.

Every key maps to one field of :class:`~failsoft.kernel.policy.Policy`; a key that is left out keeps the preset's value.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from pydantic import model_validator

from failsoft.config.keys import Seconds, Section, key
from failsoft.kernel.breaker_policy import BreakerPolicy, breaker_preset
from failsoft.kernel.policy import HedgePolicy, Policy, preset

__all__ = ["BreakerSettings", "DownstreamSettings"]

Presets = Literal["core", "data", "auxiliary", "external", "model"]
BreakerPresets = Literal["strict", "patient", "A", "B", "C", "D", "E"]


class BreakerSettings(Section):
    """When a downstream's breaker opens and closes; see the kernel's breaker policy for the rules."""

    preset: BreakerPresets | None = key(
        None, "The rules to start from. Default: those of the downstream's preset.", scope="downstream"
    )
    enabled: bool = key(True, "Whether there is a breaker at all.", scope="downstream")
    window: Seconds | None = key(None, "How far back calls are counted.", scope="downstream", unit="seconds", gt=0)
    minimum: int | None = key(None, "Calls in the window below which ratios say nothing.", scope="downstream", ge=1)
    failure_ratio: float | None = key(None, "Opens at this share of failed calls.", scope="downstream", gt=0, le=1)
    consecutive_timeouts: int | None = key(None, "Opens at this many time-outs in a row.", scope="downstream", ge=1)
    consecutive_failures: int | None = key(None, "Opens at this many failures in a row.", scope="downstream", ge=1)
    loop_stalls: int | None = key(
        None, "Opens when its calls blocked the event loop this many times within two minutes.", scope="downstream",
        ge=1,
    )  # fmt: skip
    slow_threshold: Seconds | None = key(
        None,
        "Calls longer than this are slow; in flight they count from then on.",
        scope="downstream",
        unit="seconds",
        gt=0,
    )
    slow_ratio: float | None = key(None, "Opens at this share of slow calls.", scope="downstream", gt=0, le=1)
    open_for: Seconds | None = key(None, "How long it stays open at least.", scope="downstream", unit="seconds", gt=0)
    open_max: Seconds | None = key(
        None, "How long it stays open at most, after repeated failed probes.", scope="downstream", unit="seconds", gt=0
    )
    mean: Seconds | None = key(
        None, "Opens when the mean latency is above this.", scope="downstream", unit="seconds", gt=0
    )
    probes: int | None = key(None, "Calls that may probe it at once when half-open.", scope="downstream", ge=1)
    close_after: int | None = key(None, "Good probes that close it.", scope="downstream", ge=1)
    ramp: Seconds | None = key(
        None, "How long load takes to grow to its full after closing.", scope="downstream", unit="seconds"
    )

    def policy(self, base: BreakerPolicy | None) -> BreakerPolicy | None:
        """The policy over `base`; None without a breaker. Raises ``ValueError`` when keys contradict each other."""
        if not self.enabled:
            return None
        start = breaker_preset(self.preset) if self.preset is not None else base or BreakerPolicy()
        return dataclasses.replace(start, **_given(self, without=("preset", "enabled")))


class HedgeSettings(Section):
    """A second attempt of a query while the first is still running, for what is slow now and then."""

    quantile: float | None = key(
        None, "Starts when this share of calls would have been answered. Default: 0.95.", scope="downstream", ge=0.5,
        lt=1,
    )  # fmt: skip
    minimum: Seconds | None = key(None, "Never sooner than this. Default: 10 ms.", scope="downstream", unit="seconds")
    share: float | None = key(
        None, "The share of extra load that hedges may add, within `retry_ratio`. Default: 0.05.", scope="downstream",
        ge=0, le=1,
    )  # fmt: skip


class DownstreamSettings(Section):
    """How one downstream is guarded."""

    preset: Presets | None = key(
        None,
        "The policies to start from. Default: what its tool asks for.",
        scope="downstream",
    )
    kind: Literal["query", "action", "external"] | None = key(
        None, "What its calls are when nobody says: only a `query` is repeated in place.", scope="downstream"
    )
    call_timeout: Seconds | None = key(
        None, "The limit of a call with its queueing, retries and back-offs.", scope="downstream", unit="seconds", gt=0
    )
    attempt_timeout: Seconds | None = key(
        None, "The limit of one try; also the cap of the learned limit, if there is one.", scope="downstream",
        unit="seconds", gt=0,
    )  # fmt: skip
    capped_by_budget: bool = key(
        False, "Says that its limits may exceed a run's budget, which then is what ends its calls.", scope="downstream"
    )
    detachable: bool | None = key(
        None, "Abandon a callee that ignores its cancellation (threads always are abandoned).", scope="downstream"
    )
    permits: int | None = key(
        None, "Calls that may be in flight at once: fixed, where the preset lets the limit move in a range.",
        scope="downstream", ge=1, le=100_000,
    )  # fmt: skip
    queue: int | None = key(
        None, "Calls that may wait for a permit; more are refused.", scope="downstream", ge=0, le=100_000
    )
    max_wait: Seconds | None = key(
        None, "How long a call may wait for a permit; its deadline always counts.", scope="downstream", unit="seconds"
    )
    retries: int | None = key(None, "Tries after the first, for queries.", scope="downstream", ge=0, le=10)
    retry_ratio: float | None = key(
        None, "The share of extra load that retries may add.", scope="downstream", ge=0, le=1
    )
    breaker: BreakerSettings | None = None
    hedge: HedgeSettings | None = None

    @model_validator(mode="after")
    def _sound(self) -> DownstreamSettings:
        self.policy("external")
        return self

    def policy(self, default: str) -> Policy:
        """The policy over the section's preset, or `default`. Raises ``ValueError`` when keys contradict each other."""
        base = preset(self.preset or default)
        elsewhere = ("preset", "permits", "queue", "max_wait", "retries", "breaker", "hedge", "capped_by_budget")
        changes = _given(self, without=elsewhere)
        places = _given(self, only=("permits", "queue", "max_wait"))
        if "permits" in places:
            places["adaptive"] = None
        changes["bulkhead"] = dataclasses.replace(base.bulkhead, **places)
        if self.retries is not None:
            changes["retry"] = dataclasses.replace(base.retry, queries=self.retries)
        attempt = self.attempt_timeout
        if attempt is None and self.call_timeout is not None and base.attempt_timeout is not None:
            attempt = changes["attempt_timeout"] = min(base.attempt_timeout, self.call_timeout)
        if attempt is not None and base.adaptive_timeout is not None:
            changes["adaptive_timeout"] = dataclasses.replace(
                base.adaptive_timeout, cap=attempt, floor=min(base.adaptive_timeout.floor, attempt)
            )
        if self.breaker is not None:
            changes["breaker"] = self.breaker.policy(base.breaker)
        if self.hedge is not None:
            changes["hedge"] = dataclasses.replace(base.hedge or HedgePolicy(), **_given(self.hedge))
        return dataclasses.replace(base, **changes)


def _given(section: Section, *, only: tuple[str, ...] | None = None, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The keys that were set."""
    names = only or tuple(name for name in type(section).model_fields if name not in without)
    return {name: value for name in names if (value := getattr(section, name)) is not None}
