"""A concurrency limit that finds itself, by experiments on latency.

Past a downstream's knee each further call in flight only lengthens all others: throughput stays, latency grows in
proportion. What is looked for is the point where throughput divided by latency is best (Kleinrock's power, 1979): there
the elasticity of latency to concurrency, ``d ln latency / d ln in_use``, crosses one half. Below it there is nothing to
gain from fewer calls, above it nothing from more.

Known limiters (Netflix concurrency-limits' Vegas and Gradient2, Envoy's adaptive concurrency) compare latency with a
minimum or a slow average and must take every rise for queueing: a lucky minimum shrinks them, an average that adapts
lets them grow for ever. Here the baseline never moves up without an experiment:

- Time is cut into **epochs** of one limit each. A call counts only in the epoch it began and ended in, so no call
  judges a limit that it did not run under. An epoch lasts until its mean is known well enough.
- Latency well above the baseline **shrinks** the limit in proportion, and the next epoch tells why it was slow. If it
  became faster in proportion, the queue was ours: the limit stays down. If it did not, the downstream itself has become
  slower: that is the new baseline, and the limit is restored.
- Latency near the baseline **grows** the limit, faster when it goes well, but only if the limit was really used.
- Now and then a **probe** epoch at 70 % of the limit measures the baseline anew, so that its errors do not add up.
- The start is such a descent, too: an initial limit far above the knee would poison the first baseline.

Mean latency is what Little's law speaks of, so means are compared; a sample counts at most eight times the mean, so
that a few hung calls do not decide. A timed-out call is a censored sample: it took at least that long, and counts
double. When most calls time out, latencies say nothing: the limit is halved down to its minimum and doubled for one
epoch now and then; once calls succeed again it starts from half of what it was. A failed call counts as a slow one,
because many downstreams refuse what is too much for them; a cancelled one does not count at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from failsoft.base.errors import ConfigError
from failsoft.kernel.checks import is_whole

__all__ = ["AdaptiveLimit", "AdaptiveLimitPolicy"]


@dataclass(frozen=True, slots=True)
class AdaptiveLimitPolicy:
    """The range in which an adaptive limit moves, and how it judges.

    ``initial`` (the bulkhead's permits when None) is where it starts. ``tolerance``: how far above the baseline latency
    may be, as a ratio, before the limit shrinks; half of it stops growth. ``precision``: the relative standard error of
    the mean latency at which an epoch is long enough; ``min_samples`` and ``max_samples`` bound it, and so does
    ``max_epoch`` (seconds, or twenty mean latencies if that is longer). ``probe_every``: epochs between two probes.
    ``app_limited``: the share of the limit that must be in use on average for it to grow.
    """

    minimum: int = 1
    maximum: int = 1000
    initial: int | None = None
    tolerance: float = 0.15
    precision: float = 0.04
    min_samples: int = 10
    max_samples: int = 1000
    max_epoch: float = 20.0
    probe_every: int = 12
    app_limited: float = 0.7

    def __post_init__(self) -> None:
        for key in ("minimum", "maximum", "initial", "min_samples", "max_samples", "probe_every"):
            value = getattr(self, key)
            if not is_whole(value, 1) and not (value is None and key == "initial"):
                raise ConfigError(f"{key} must be a whole number of at least 1, not {value!r}", param=f"adaptive.{key}")
        if not 1 <= self.minimum <= self.maximum:
            raise ConfigError("minimum must be at least 1 and at most maximum", param="adaptive.minimum")
        if self.initial is not None and not self.minimum <= self.initial <= self.maximum:
            raise ConfigError("initial must be within minimum and maximum", param="adaptive.initial")
        if not 0.0 < self.tolerance <= 2.0:
            raise ConfigError("tolerance must be above 0 and at most 2", param="adaptive.tolerance")
        if not 0.0 < self.precision <= 1.0:
            raise ConfigError("precision must be above 0 and at most 1", param="adaptive.precision")
        if not 2 <= self.min_samples <= self.max_samples:
            raise ConfigError("min_samples must be at least 2 and at most max_samples", param="adaptive.min_samples")
        if not self.max_epoch > 0.0 or self.probe_every < 2 or not 0.0 <= self.app_limited <= 1.0:
            raise ConfigError("max_epoch, probe_every or app_limited is out of range", param="adaptive")


class Epoch(NamedTuple):
    """What an epoch found: its limit, the mean number in flight, the log of the mean latency and its standard error."""

    limit: int
    in_use: float
    latency: float
    error: float


# What the running epoch is for.
GO = "go"  # nothing but to run
START = "start"  # is a lower limit faster? there is no baseline yet
SHRUNK = "shrunk"  # was the queue ours?
PROBE = "probe"  # what is the baseline?

CENSORED = 2.0
FAILED = 4.0
OUTLIER = 8.0
HASTY = 30
PROBE_AT = 0.7
MOST_STEP = 1.5
LEAST_STEP = 1.06
EXPLORE_EVERY = 8


class AdaptiveLimit:
    """The limit and how it learns; :meth:`record` takes each ended call.

    ``limit`` is what holds now, ``baseline`` the latency in seconds that is taken for unqueued (None before it is
    known), ``purpose`` what the running epoch is for.
    """

    __slots__ = (
        "_before", "_epochs", "_healthy", "_log_baseline", "_mean", "_samples", "_seen", "_squares", "_started",
        "_starved", "_step", "_timeouts", "_troubled", "_use", "_warming", "limit", "policy", "purpose",
    )  # fmt: skip

    def __init__(self, policy: AdaptiveLimitPolicy, permits: int) -> None:
        self.policy = policy
        self.limit = self._clamp(permits if policy.initial is None else policy.initial)
        self.purpose = GO
        self._before: Epoch | None = None
        """The epoch that the running one is compared with."""
        self._log_baseline = math.nan
        self._epochs = 0
        self._step = MOST_STEP
        self._starved = 0
        """Epochs at the minimum in which most calls timed out."""
        self._healthy = self.limit
        """The limit before they did."""
        self._begin(-math.inf)

    @property
    def baseline(self) -> float | None:
        """Unqueued latency in seconds; None before it is known."""
        return None if math.isnan(self._log_baseline) else math.exp(self._log_baseline)

    def reconfigure(self, policy: AdaptiveLimitPolicy, now: float) -> None:
        """Takes another policy, keeping what was learnt."""
        self.policy = policy
        limit = self._clamp(self.limit)
        if limit != self.limit:
            self.limit = limit
            self.purpose, self._before = GO, None
            self._begin(now)

    def _clamp(self, limit: float) -> int:
        return min(max(round(limit), self.policy.minimum), self.policy.maximum)

    def _begin(self, now: float) -> None:
        self._started = now
        self._warming = -1
        self._seen = self._samples = self._timeouts = self._troubled = 0
        self._mean = self._squares = self._use = 0.0

    # --- samples ---------------------------------------------------------------------------------------------------

    def record(self, now: float, latency: float, in_use: int, counts: str) -> int:
        """Takes one ended call (``in_use`` counts it still) and returns the limit that holds from now on."""
        if now - latency < self._started or not 0.0 < latency < 1e9:
            return self.limit
        if self._warming:
            # The first round found the downstream as the epoch before had left it, and its fast calls end first.
            if self._warming < 0:
                self._warming = min(in_use, self.limit)
            self._warming -= 1
            if self._started == -math.inf:
                self._started = now
            return self.limit
        value = latency
        self._seen += 1
        self._use += in_use
        if counts != "ok":
            self._troubled += 1
            if counts == "timeout":
                self._timeouts += 1
                value *= CENSORED
            elif math.isnan(self._log_baseline):
                return self.limit
            else:
                value = max(value, math.exp(self._log_baseline) * FAILED)
        samples = self._samples
        if samples >= 8 and value > OUTLIER * self._mean:
            value = OUTLIER * self._mean
        # Welford's mean and sum of squares.
        samples = self._samples = samples + 1
        delta = value - self._mean
        self._mean += delta / samples
        self._squares += delta * (value - self._mean)
        if samples >= self.policy.min_samples and samples >= in_use and self._enough(now):
            self._end(now)
        return self.limit

    def _enough(self, now: float) -> bool:
        samples = self._samples
        policy = self.policy
        if samples >= policy.max_samples:
            return True
        error = self._error()
        if error <= policy.precision:
            return True
        if self.purpose == GO and samples >= HASTY and not math.isnan(self._log_baseline):
            # Long before the mean is known well it may be known well enough. Not when it is far below the baseline: it
            # will be the new one, and epochs that end because they happen to be fast would bias it.
            above = math.log(self._mean) - self._log_baseline
            if above - 4.0 * error > self._shrink_at:
                return True
            if above + 3.0 * error < self._grow_at and above + 3.0 * error > -0.05:
                return True
        return now - self._started >= max(policy.max_epoch, 20.0 * self._mean)

    def _error(self) -> float:
        """Relative standard error of the mean."""
        samples = self._samples
        return math.sqrt(self._squares / (samples - 1) / samples) / self._mean

    @property
    def _shrink_at(self) -> float:
        return math.log1p(self.policy.tolerance)

    @property
    def _grow_at(self) -> float:
        return math.log1p(self.policy.tolerance / 2.0)

    # --- decisions -------------------------------------------------------------------------------------------------

    def _end(self, now: float) -> None:
        epoch = Epoch(self.limit, self._use / self._seen, math.log(self._mean), self._error())
        self._epochs += 1
        purpose, before = self.purpose, self._before
        self.purpose, self._before = GO, None
        if self._timeouts * 2 >= self._seen:
            self._starve()
        elif self._troubled * 2 >= self._seen:
            # Mostly failures: the breaker's business, not a matter of how many calls there are.
            self.limit = self._clamp(epoch.limit if before is None else before.limit)
        elif self._starved:
            # It answers again. What this epoch's latency is worth, the next one will tell, at a limit of old.
            self._starved = 0
            self._log_baseline = epoch.latency
            self.limit = self._clamp(max(self._healthy / 2, epoch.limit))
        else:
            self._healthy = self.limit if before is None else before.limit
            if before is None:
                self._judge(epoch)
            else:
                self._compare(purpose, before, epoch)
        self._begin(now)

    def _starve(self) -> None:
        """Most calls time out."""
        if self.limit > self.policy.minimum and self._starved == 0:
            self.limit = self._clamp(self.limit / 2)
            return
        self._starved += 1
        self._step = MOST_STEP
        self.limit = self._clamp(self.policy.minimum * (2 if self._starved % EXPLORE_EVERY == 0 else 1))

    def _test(self, purpose: str, epoch: Epoch, limit: float) -> None:
        """Tries a lower limit, to compare it with the epoch that has just ended."""
        lower = max(min(self._clamp(limit), self.limit - 1), self.policy.minimum)
        self.purpose, self._before, self.limit = purpose, epoch, lower

    def _judge(self, epoch: Epoch) -> None:
        """An epoch at the limit that is believed in."""
        policy = self.policy
        if epoch.limit <= policy.minimum:
            # Nothing can be taken away, so this is the baseline, whatever it is.
            self._log_baseline = epoch.latency
            self._grow(epoch)
            return
        if math.isnan(self._log_baseline):
            self._log_baseline = epoch.latency
            if epoch.in_use >= policy.app_limited * epoch.limit:
                self._test(START, epoch, epoch.in_use / 2)
            return
        if self._log_baseline - epoch.latency > 3.0 * epoch.error + 0.05:
            # A whole epoch that much faster is no luck: the downstream has recovered, and its knee may have moved.
            self._log_baseline = epoch.latency
            self._step = MOST_STEP
        above = epoch.latency - self._log_baseline
        if above > self._shrink_at and above - 1.5 * epoch.error > self._grow_at:
            surely = max(above - epoch.error, 0.0)
            self._test(SHRUNK, epoch, max(min(epoch.in_use, epoch.limit) * 0.95 * math.exp(-surely), epoch.limit / 2))
        elif self._epochs >= policy.probe_every and epoch.in_use >= policy.app_limited * epoch.limit:
            self._epochs = 0
            self._test(PROBE, epoch, epoch.limit * PROBE_AT)
        elif above < self._grow_at:
            self._grow(epoch)
        else:
            self._step = LEAST_STEP

    def _grow(self, epoch: Epoch) -> None:
        if epoch.in_use < self.policy.app_limited * epoch.limit:
            return
        self.limit = self._clamp(max(epoch.limit * self._step, epoch.limit + 1))
        self._step = min(MOST_STEP, 1.0 + (self._step - 1.0) * 1.5)

    def _compare(self, purpose: str, before: Epoch, epoch: Epoch) -> None:
        """An epoch at a lower limit than the one before: did it help?"""
        fewer = math.log(before.in_use / epoch.in_use)
        faster = before.latency - epoch.latency
        if fewer < 0.05:  # the load has changed, and the comparison says nothing
            self.limit = self._clamp(before.limit)
            if purpose == START:
                self._log_baseline = min(before.latency, epoch.latency)
            return
        elasticity = faster / fewer
        doubt = 1.5 * math.hypot(before.error, epoch.error) / fewer
        if purpose == START:
            self._log_baseline = epoch.latency
            if elasticity < 0.5:
                self.limit = self._clamp(before.limit)
                self._step = MOST_STEP
            elif epoch.limit > self.policy.minimum:
                self._test(START, epoch, epoch.limit / 2)
        elif purpose == PROBE:
            if elasticity > 0.75 and epoch.limit > self.policy.minimum:
                # Far above the knee: the baseline was wrong, and must be looked for again.
                self._log_baseline = epoch.latency
                self._test(START, epoch, epoch.limit * PROBE_AT)
            else:
                self._log_baseline += (epoch.latency - self._log_baseline) * 0.5
                self.limit = self._clamp(before.limit)
        elif elasticity >= 0.5:
            self._step = LEAST_STEP
            self._judge(epoch)
        elif elasticity + doubt < 0.5 or epoch.limit <= self.policy.minimum:
            self._log_baseline = epoch.latency
            self.limit = self._clamp(before.limit)
        else:  # further down the difference will be plainer
            self._test(SHRUNK, before, epoch.limit * 0.85)

    def __repr__(self) -> str:
        baseline = self.baseline
        known = "unknown" if baseline is None else f"{baseline:.3g} s"
        return f"<AdaptiveLimit {self.limit} baseline={known} {self.purpose}>"
