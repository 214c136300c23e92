"""When a breaker opens, how long it stays open, and how it closes again: the figures, and presets of them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields, replace
from typing import Any, Final

__all__ = ["STALLS_WITHIN", "BreakerPolicy", "breaker_preset", "row_mask"]

STALLS_WITHIN: Final = 120.0
"""Seconds within which ``loop_stalls`` are counted; more than the usual ``open_max``: a probe that stalls counts."""

_POSITIVE: Final = ("window", "slow_threshold", "mean", "p99", "inflight_age", "open_for", "open_max", "probe_lease")
_COUNTS: Final = (
    "minimum",
    "failures",
    "consecutive_timeouts",
    "consecutive_failures",
    "probes",
    "close_after",
    "loop_stalls",
)
_SHARES: Final = ("failure_ratio", "slow_ratio")
_REQUIRED: Final = frozenset(
    {"window", "minimum", "open_for", "open_max", "open_jitter", "probes", "close_after", "probe_lease", "ramp"}
)


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """The rules of one breaker. All times in seconds; ``None`` switches a rule off; any rule that is met opens.

    Counted in a rolling ``window`` of ten buckets (:class:`~failsoft.kernel.window.RollingWindow`). A *failure* is a
    call that failed or timed out; neutral ends (cancelled, refused by us, the caller's fault) are nowhere in these
    figures.

    At any volume:

    * ``failures``: that many failures in the window.
    * ``consecutive_timeouts``, ``consecutive_failures``: that many in a row, however long it takes: so trips what has
      too little traffic for the other rules. The row is a *rolling* one, n among the last n + n // 3 results (5 of 6,
      10 of 13: three quarters or more), so that one lucky success does not start it afresh; only once a success has
      stood as the last word for a whole window is everything before it forgotten. (A counter that any success resets
      never sees a downstream that fails four calls of five.)

    * ``loop_stalls``: its calls blocked the event loop that many times within two minutes, as the watchdog saw
      (:class:`~failsoft.kernel.watchdog.LoopWatchdog`): what harms everybody else is kept away from them.

    From ``minimum`` calls in the window on, as resilience4j's rates and Hystrix's request volume threshold:

    * ``failure_ratio``: this share of calls, or more, failed. Compared with ``>=``: 1.0 means "every call".
    * ``slow_ratio``: this share of calls, or more, took longer than ``slow_threshold``, whatever their end was.
    * ``mean``: the mean latency is above this. Failed calls are left out (a fast refusal would flatter it); timed-out
      ones are in with the time they were given, a lower bound.
    * ``p99``: more than 1 % of calls took longer than this. Below 100 calls one single call is more than 1 %.

    ``inflight_age``: a call still in flight at this age counts as timed out from then on, however it ends. When None,
    a call in flight counts as slow from ``slow_threshold`` on (or as over ``p99``), and its end tells whether it also
    failed. The mean takes calls in at their end only.

    Opening: ``open_for`` at least, doubling with each failed probe round up to ``open_max``, lengthened at random by
    up to the share ``open_jitter`` (:meth:`open_time`). Half-open: at most ``probes`` at once; ``close_after`` good
    ones close; one bad one opens again; one that never comes back frees its place after ``probe_lease``. After
    closing, load grows over ``ramp`` seconds (0: at once).
    """

    window: float = 10.0
    minimum: int = 20
    failures: int | None = None
    failure_ratio: float | None = 0.5
    slow_threshold: float | None = None
    slow_ratio: float | None = None
    mean: float | None = None
    p99: float | None = None
    consecutive_timeouts: int | None = 5
    consecutive_failures: int | None = 10
    loop_stalls: int | None = 3
    inflight_age: float | None = None
    open_for: float = 5.0
    open_max: float = 60.0
    open_jitter: float = 0.5
    probes: int = 3
    close_after: int = 3
    probe_lease: float = 30.0
    ramp: float = 5.0

    def __post_init__(self) -> None:
        for each in fields(self):
            name, value = each.name, getattr(self, each.name)
            if value is None:
                if name in _REQUIRED:
                    raise ValueError(f"{name} must not be None")
                continue
            if name in _COUNTS:
                if not (isinstance(value, int) and value >= 1):
                    raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
            elif not math.isfinite(value):
                raise ValueError(f"{name} must be finite, not {value!r}")
            elif name in _POSITIVE and value <= 0:
                raise ValueError(f"{name} must be above 0 seconds, not {value!r}")
            elif name in _SHARES and not 0 < value <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {value!r}")
        if not 0 <= self.open_jitter <= 1:
            raise ValueError(f"open_jitter must be between 0 and 1, not {self.open_jitter!r}")
        if self.ramp < 0:
            raise ValueError(f"ramp must not be negative, not {self.ramp!r}")
        if self.open_max < self.open_for:
            raise ValueError(f"open_max ({self.open_max!r}) must not be below open_for ({self.open_for!r})")
        if self.slow_ratio is not None and self.slow_threshold is None:
            raise ValueError("slow_ratio needs slow_threshold")

    @property
    def hung_after(self) -> float | None:
        """The age at which a call in flight is to be reported by ``Breaker.hung``; None: never."""
        for age in (self.inflight_age, self.slow_threshold, self.p99):
            if age is not None:
                return age
        return None

    @property
    def good_probe(self) -> float:
        """The latency up to which a probe's success is good: the tightest latency that a rule in force complains about.

        Without this a downstream that is merely slow would be closed by its slow probes and opened by its slow calls,
        for ever.
        """
        limits = (self.slow_threshold if self.slow_ratio is not None else None, self.mean, self.p99)
        return min((limit for limit in limits if limit is not None), default=math.inf)

    def open_time(self, failed_rounds: int, rng: random.Random) -> float:
        """Seconds to stay open, after `failed_rounds` openings in a row that did not end in a lasting recovery.

        Uniform in [d, d · (1 + jitter)] where d = open_for · 2^rounds, d being capped so that the sum stays within
        ``open_max``: breakers that opened together must not probe together, at the cap least of all, where clamping
        after the jitter would line them up again ("Exponential Backoff And Jitter", M. Brooker, AWS Architecture Blog
        2015). Never below ``open_for``; without jitter when ``open_max`` equals it.
        """
        longest = self.open_max / (1.0 + self.open_jitter)
        doubled = self.open_for * 2.0 ** min(failed_rounds, 64)
        low = max(self.open_for, min(doubled, longest))
        high = min(low * (1.0 + self.open_jitter), self.open_max)
        return low + (high - low) * rng.random()


def _report(**figures: Any) -> BreakerPolicy:
    """A policy of one of the incident reports: its rules and no others, but for the one that low traffic needs.

    ``consecutive_failures`` is set to no less than the report's own volume, so that it changes nothing at the traffic
    the report speaks of.
    """
    blank: dict[str, Any] = {
        "failure_ratio": None,
        "consecutive_timeouts": None,
        "loop_stalls": None,
        "consecutive_failures": max(10, figures.get("minimum", 0)),
    }
    return BreakerPolicy(**{**blank, **figures})


_PRESETS: Final[dict[str, BreakerPolicy]] = {
    # Requirement B1. "More than 20 %" and the like are compared with >=, as every share is.
    "A": _report(window=10.0, failures=5, open_for=5.0),
    "B": _report(window=10.0, minimum=20, failure_ratio=0.2, mean=2.0, open_for=30.0),
    "C": _report(window=10.0, minimum=20, failure_ratio=0.5, open_for=60.0, open_max=120.0, probes=10, close_after=10),
    # D names no threshold for "slow": a third of its 30-second call limit.
    "D": _report(window=60.0, minimum=20, slow_ratio=0.3, slow_threshold=10.0),
    "E": _report(window=60.0, minimum=10, failure_ratio=0.5, p99=5.0, open_for=30.0, probes=3, close_after=3),
    # Internal: expected to be fast and up; little patience, probed again soon.
    "strict": BreakerPolicy(
        minimum=10,
        failure_ratio=0.3,
        slow_threshold=2.0,
        slow_ratio=0.5,
        consecutive_timeouts=3,
        consecutive_failures=5,
        open_for=5.0,
        open_max=30.0,
    ),
    # Third party: uneven by nature, hurt by being hammered; more evidence, longer pauses, fewer probes.
    "patient": BreakerPolicy(
        window=60.0,
        minimum=20,
        failure_ratio=0.6,
        slow_threshold=10.0,
        slow_ratio=0.8,
        consecutive_timeouts=5,
        consecutive_failures=10,
        open_for=15.0,
        probes=1,
        close_after=2,
        ramp=10.0,
    ),
}


def breaker_preset(name: str, **overrides: Any) -> BreakerPolicy:
    """The preset called `name`, with `overrides` of single fields; raises ``ValueError`` for an unknown name.

    ``A`` to ``E`` as in the incident reports, ``strict`` for internal, ``patient`` for third-party downstreams.
    """
    try:
        found = _PRESETS[name]
    except KeyError:
        raise ValueError(f"unknown breaker preset {name!r}; there are {', '.join(_PRESETS)}") from None
    return replace(found, **overrides) if overrides else found


def row_mask(required: int | None) -> int:
    """Bits of the results among which `required` bad ones count as "in a row": at least three quarters of them."""
    return 0 if required is None else (1 << required + required // 3) - 1
