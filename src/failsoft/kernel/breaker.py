"""The circuit breaker of one downstream: closed, open, half-open, as pure decisions about `now`.

Everything here is synchronous and takes the time (seconds of the loop's monotonic clock) as an argument. State
changes only inside :meth:`Breaker.admit`, :meth:`Breaker.settle`, :meth:`Breaker.hung` and the two ``force_``
methods, in one step, after which the listener is told. An open breaker whose time is over turns half-open when the
next call asks to be admitted, not before: there is no timer.

* Every state change starts a new *generation*. A result whose admission is of an earlier one is neutral.
* A probe holds a lease. A neutral end (cancelled, cut short) gives it back and decides nothing.
* A breaker that opens again before it has carried full load for once stays open for longer each time.

The pattern: M. Nygard, "Release It!"; rolling window and request volume: Netflix Hystrix; slow-call rate and a
counted half-open state: resilience4j; ramp: Envoy's slow start; growing and jittered open time: AWS Architecture
Blog, "Exponential Backoff And Jitter".
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from failsoft.kernel.breaker_policy import STALLS_WITHIN, BreakerPolicy, breaker_preset, row_mask
from failsoft.kernel.classify import Counts
from failsoft.kernel.probes import ProbeCap, ProbeLeases
from failsoft.kernel.window import Recent, RollingWindow

__all__ = [
    "Admission",
    "Breaker",
    "BreakerPolicy",
    "BreakerState",
    "BreakerStatistics",
    "ProbeCap",
    "Transition",
    "breaker_preset",
]

RAMP_FLOOR: Final = 0.1
"""The share of calls admitted at the instant of closing (Envoy's ``min_weight_percent`` has the same default)."""

RAMP_STEPS: Final = 10
"""While ramping, one call passes per ``ramp / RAMP_STEPS`` seconds whatever the share."""

P99_SHARE: Final = 0.01


class BreakerState(StrEnum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_CLOSED: Final = BreakerState.CLOSED
_OPEN: Final = BreakerState.OPEN
_HALF_OPEN: Final = BreakerState.HALF_OPEN

_OK: Final = Counts.OK
_FAILED: Final = Counts.FAILED
_TIMEOUT: Final = Counts.TIMEOUT
_NEUTRAL: Final = Counts.NEUTRAL
_COUNTS: Final = frozenset({_OK, _FAILED, _TIMEOUT, _NEUTRAL})


class Admission(NamedTuple):
    """The breaker's part of a ticket: settle it exactly once. ``lease`` is 0 unless ``probe``."""

    generation: int
    probe: bool = False
    lease: int = 0


class Transition(NamedTuple):
    """A change of state at loop time ``at``.

    ``reason`` names the rule, with its figures; ``open_for`` is in seconds: None unless it opens, and when it was
    opened by hand without an end.
    """

    name: str
    old: BreakerState
    new: BreakerState
    reason: str
    at: float
    open_for: float | None = None


@dataclass(frozen=True, slots=True)
class BreakerStatistics:
    """A breaker at one instant.

    ``since``: loop time of the last state change (None: never), ``reason`` why. ``retry_in``: seconds until a probe
    may be tried, None when calls are considered now. ``calls`` to ``mean`` are what is counted: the rolling window (of
    the current generation only) and the ``hung`` calls, which are in flight. ``probes`` run now, ``good_probes``
    succeeded this round. ``share`` of calls that is let through (1 when closed, 0 when open). ``refused``,
    ``opened``, ``listener_errors`` count since the start.
    """

    name: str
    state: BreakerState
    generation: int
    since: float | None
    reason: str
    retry_in: float | None
    by_hand: bool
    calls: int
    failed: int
    timeouts: int
    slow: int
    failure_ratio: float
    slow_ratio: float
    mean: float
    hung: int
    timeouts_in_row: int
    failures_in_row: int
    probes: int
    good_probes: int
    failed_rounds: int
    share: float
    refused: int
    opened: int
    listener_errors: int


class Breaker:
    """Decides for one downstream (or one agent, or one route and credential) which calls may go to it.

    Not thread-safe: it belongs to one event loop. `rng` gives the jitter. `on_transition` is called synchronously,
    after the state is consistent; what it raises is counted and dropped, and it must be a plain function. On the hot
    path a guard reads :attr:`clear` and takes :attr:`standing` instead of calling :meth:`admit`, and calls
    :meth:`record_ok` instead of :meth:`settle` when the admission still *is* :attr:`standing`.
    """

    __slots__ = (
        "_alarm", "_alert_until", "_by_hand", "_credit", "_failed_rounds", "_failure_mask", "_failure_row",
        "_good_probes", "_hung", "_hung_fails", "_hung_over", "_last_ok", "_listener_errors", "_on_transition",
        "_open_until", "_opened", "_over", "_passed_at", "_probes", "_quiet_until", "_reason", "_refused", "_rng",
        "_since", "_slow", "_stalls", "_timeout_mask", "_timeout_row", "_window", "clear", "generation", "name",
        "policy", "standing", "state",
    )  # fmt: skip

    def __init__(
        self,
        policy: BreakerPolicy,
        *,
        rng: random.Random,
        name: str = "",
        on_transition: Callable[[Transition], None] | None = None,
        probe_cap: ProbeCap | None = None,
    ) -> None:
        if on_transition is not None and inspect.iscoroutinefunction(on_transition):
            raise TypeError("on_transition must be a plain function: nothing is awaited in the middle of a transition")
        self.name = name
        self.state = _CLOSED
        self.generation = 0
        self.clear = True
        """Closed, at full load, nothing to check: a guard may take :attr:`standing` without asking."""
        self.standing = Admission(0)
        """The admission of every call of this generation while closed."""
        self._rng = rng
        self._on_transition = on_transition
        self._probes = ProbeLeases(probe_cap)
        self._since = -math.inf
        self._reason = "new"
        self._refused = self._opened = self._listener_errors = 0
        self._failed_rounds = 0
        self._open_until = -math.inf
        self._by_hand = False
        self._passed_at = -math.inf
        self._credit = 0.0
        """What the calls of this ramp have earned and not spent: below 1 always."""
        self._window = RollingWindow(policy.window)
        self._stalls = Recent(STALLS_WITHIN)
        self._apply(policy)
        self._forget()

    # --- settings and counts ---------------------------------------------------------------------------------------

    def _apply(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self._slow = math.inf if policy.slow_threshold is None else policy.slow_threshold
        self._over = math.inf if policy.p99 is None else policy.p99
        self._alarm = min(self._slow, self._over, math.inf if policy.mean is None else policy.mean)
        self._hung_fails = policy.inflight_age is not None
        hung_after = policy.hung_after
        self._hung_over = hung_after is not None and hung_after >= self._over
        self._timeout_mask = row_mask(policy.consecutive_timeouts)
        self._failure_mask = row_mask(policy.consecutive_failures)

    def _forget(self) -> None:
        """Starts the counts of a generation afresh: results of an earlier state do not count in this one."""
        self._window.clear()
        self._hung = 0
        self._good_probes = 0
        self._timeout_row = self._failure_row = 0
        self._last_ok = math.inf
        self._alert_until = -math.inf
        self._quiet_until = -math.inf

    # --- admission ---------------------------------------------------------------------------------------------

    def retry_in(self, now: float) -> float | None:
        """None when a call would be considered for admission now; else seconds until a probe may be tried.

        For asking at enqueue: takes nothing and changes nothing. With all probes taken it is the time until a lease
        ends at the latest, but no more than ``open_for``, as probes usually end long before. ``open_max`` when opened
        by hand without an end.
        """
        if self.state is _CLOSED:
            return None
        if self.state is _OPEN and now < self._open_until:
            return self.policy.open_max if self._open_until == math.inf else self._open_until - now
        wait = self._probes.retry_in(now, self.policy.probes)
        return None if wait is None else min(wait, self.policy.open_for)

    def retry_after(self, now: float) -> float:
        """Seconds after which a refused caller may come back: :meth:`retry_in`, else the interval of the ramp."""
        wait = self.retry_in(now)
        return self.policy.ramp / RAMP_STEPS if wait is None else wait

    def admit(self, now: float, *, lease: float = 0.0) -> Admission | None:
        """At dequeue: an admission to be settled, or None (refused).

        A probe's lease lasts ``probe_lease``, or `lease` seconds if that is longer: give the attempt's limit, so that a
        slow probe is not taken for a lost one.
        """
        if self.clear:
            return self.standing
        if self.state is _CLOSED:
            if self._ramp_admits(now):
                return self.standing
        elif self.state is _HALF_OPEN or now >= self._open_until:
            policy = self.policy
            taken = self._probes.take(now, max(policy.probe_lease, lease), policy.probes)
            if taken is not None:
                generation = self.generation
                if self.state is _OPEN:
                    generation += 1
                    self._by_hand = False
                    self._enter(_HALF_OPEN, "open time is over", now)
                return Admission(generation, True, taken)
        self._refused += 1
        return None

    def _share(self, now: float) -> float:
        """The share of calls that the ramp lets through: linear in time, as Envoy's slow start with aggression 1."""
        ramp = self.policy.ramp
        elapsed = now - self._since
        return 1.0 if ramp == 0 or elapsed >= ramp else max(RAMP_FLOOR, elapsed / ramp)

    def _ramp_admits(self, now: float) -> bool:
        """Every offered call earns its share of an admission; besides, one call per interval passes in any case.

        So load on a busy downstream grows with the share, evenly spread, and what has little traffic is not held up
        at all.
        """
        share = self._share(now)
        if share >= 1.0:
            self.clear = True
            self._failed_rounds = 0
            return True
        self._credit += share
        if self._credit >= 1.0:
            self._credit -= 1.0
        elif now - self._passed_at >= self.policy.ramp / RAMP_STEPS:
            self._credit = 0.0
        else:
            return False
        self._passed_at = now
        return True

    # --- results ---------------------------------------------------------------------------------------------------

    def record_ok(self, latency: float, now: float) -> None:
        """Settles a success whose admission is still :attr:`standing`: the hot path.

        A good, quick call only dilutes what is bad. So it needs no judging unless it is the one that fills the minimum
        volume, comes with a new bucket (older good calls left), or breaks a row; ``_quiet_until`` is the end of the
        current bucket while none of that can be.
        """
        if now < self._quiet_until and latency <= self._alarm:
            window = self._window
            window.calls += 1
            window.latency += latency
        else:
            self._record(now, latency)

    def settle(
        self, admission: Admission, counts: str, latency: float, now: float, *, hung_counted: bool = False
    ) -> None:
        """Takes the end of an admitted call, exactly once per admission.

        `counts` is one of :class:`~failsoft.kernel.classify.Counts`, `latency` in seconds; `hung_counted` says that
        :meth:`hung` was called for it, so that it is in the figures already. An admission of an earlier generation
        is neutral. A second settling of a probe is ignored; of the standing admission, which all calls of a generation
        share, it cannot be told from another call's: the ticket sees to that.
        """
        if counts not in _COUNTS:
            raise ValueError(f"counts must be one of {', '.join(sorted(_COUNTS))}, not {counts!r}")
        if admission.probe:
            self._settle_probe(admission, counts, latency, now)
        elif admission.generation == self.generation:
            if hung_counted:
                self._settle_hung(counts, latency, now)
            elif counts == _OK:
                self.record_ok(latency, now)
            elif counts != _NEUTRAL:
                self._record(now, latency, failed=counts == _FAILED, timeout=counts == _TIMEOUT)

    def _settle_hung(self, counts: str, latency: float, now: float) -> None:
        """Moves a call from the gauge of calls in flight into the window: what was counted stays counted, once."""
        self._hung = max(0, self._hung - 1)
        fails = self._hung_fails
        self._record(
            now,
            latency,
            failed=counts == _FAILED and not fails,
            timeout=counts == _TIMEOUT or fails,
            slow=True,
            over=self._hung_over,
            in_row=counts != _NEUTRAL and not fails,
        )

    def hung(self, admission: Admission, now: float) -> None:
        """A call in flight has passed ``policy.hung_after``: counts from now on; settle it with ``hung_counted=True``.

        A hung probe is a bad one: it opens the breaker again, and keeps its place until it is settled.
        """
        if admission.generation != self.generation:
            return
        if admission.probe:
            if self._probes.holds(admission.lease) and (self._hung_fails or self.policy.good_probe < math.inf):
                self._trip(f"a probe is in flight for more than {self.policy.hung_after or 0.0:g} s", now)
            return
        self._hung += 1
        if self._hung_fails:
            self._note_in_row(now, timeout=True, bad=True)
        self._alert(now)
        self._judge(now)

    def stalled(self, now: float) -> None:
        """A call blocked the event loop, whatever its end was."""
        limit = self.policy.loop_stalls
        if limit is not None and (span := self._stalls.add(now, limit)) is not None and self.state is not _OPEN:
            self._trip(f"blocked the event loop {limit} times in {span:.3g} s", now)

    def _settle_probe(self, admission: Admission, counts: str, latency: float, now: float) -> None:
        if not self._probes.give(admission.lease):
            return
        if admission.generation != self.generation or counts == _NEUTRAL:
            return
        if counts != _OK:
            self._trip(f"a probe ended as {counts} after {latency:.3g} s", now)
        elif latency > self.policy.good_probe:
            self._trip(f"a probe took {latency:.3g} s, more than {self.policy.good_probe:g} s", now)
        else:
            self._good_probes += 1
            if self._good_probes >= self.policy.close_after:
                self._close(f"{self._good_probes} good probes", now, lasting=self.policy.ramp == 0)

    def _record(
        self,
        now: float,
        latency: float,
        *,
        failed: bool = False,
        timeout: bool = False,
        slow: bool = False,
        over: bool = False,
        in_row: bool = True,
    ) -> None:
        if self.state is not _CLOSED:
            return
        bad = failed or timeout
        slow = slow or latency > self._slow
        over = over or latency > self._over
        self._window.add(now, latency, failed, timeout, slow, over)
        if in_row and (bad or self._failure_row or self._timeout_row):
            self._note_in_row(now, timeout=timeout, bad=bad)
        if bad or slow or over or latency > self._alarm:
            self._alert(now)
        self._judge(now)

    def _note_in_row(self, now: float, *, timeout: bool, bad: bool) -> None:
        if now - self._last_ok >= self._window.seconds:
            self._timeout_row = self._failure_row = 0
        self._timeout_row = (self._timeout_row << 1 | timeout) & self._timeout_mask
        self._failure_row = (self._failure_row << 1 | bad) & self._failure_mask
        self._last_ok = math.inf if bad else now

    def _alert(self, now: float) -> None:
        """Something that may trip was counted, and stays in the figures for a window."""
        self._alert_until = now + self._window.seconds
        self._quiet_until = -math.inf

    # --- rules -------------------------------------------------------------------------------------------------

    def _judge(self, now: float) -> None:
        """Opens when a rule is met; else says until when good calls need no judging."""
        policy, window = self.policy, self._window
        window.roll(now)
        hung = self._hung
        past = window.past
        calls = past.calls + window.calls + hung
        in_row = self._timeout_row | self._failure_row
        if now < self._alert_until or hung:
            bad = past.bad + window.failed + window.timeouts + (hung if self._hung_fails else 0)
            if policy.failures is not None and bad >= policy.failures:
                return self._trip(f"{bad} failures in {policy.window:g} s (limit {policy.failures})", now)
            if calls >= policy.minimum and (reason := self._broken_share(calls, bad)):
                return self._trip(reason, now)
        if in_row:
            row, limit = self._timeout_row.bit_count(), policy.consecutive_timeouts
            if limit is not None and row >= limit:
                return self._trip(f"{row} timeouts in a row (limit {limit})", now)
            row, limit = self._failure_row.bit_count(), policy.consecutive_failures
            if limit is not None and row >= limit:
                return self._trip(f"{row} failures in a row (limit {limit})", now)
        elif calls >= policy.minimum or not (hung or now < self._alert_until):
            self._quiet_until = window.edge
        return None

    def _broken_share(self, calls: int, bad: int) -> str | None:
        """The first rule that is met of those that need the minimum volume, with its figures."""
        policy, window, hung = self.policy, self._window, self._hung
        past = window.past
        # Divided, not multiplied: 11 / 20 >= 0.55 is true, 11 >= 0.55 * 20 is not.
        if policy.failure_ratio is not None and bad / calls >= policy.failure_ratio:
            return f"failure ratio {bad / calls:.3g} {self._of(calls)} (limit {policy.failure_ratio:g})"
        if policy.slow_ratio is not None:
            slow = (past.slow + window.slow + hung) / calls
            if slow >= policy.slow_ratio:
                return f"slow ratio {slow:.3g} {self._of(calls)} (limit {policy.slow_ratio:g})"
        if policy.mean is not None and (timed := past.calls + window.calls - past.failed - window.failed):
            mean = (past.latency + window.latency) / timed
            if mean > policy.mean:
                return f"mean latency {mean:.3g} s {self._of(calls)} (limit {policy.mean:g} s)"
        if policy.p99 is not None:
            over = past.over + window.over + (hung if self._hung_over else 0)
            if over / calls > P99_SHARE:
                return f"p99 latency above {policy.p99:g} s: {over} {self._of(calls)}"
        return None

    def _of(self, calls: int) -> str:
        return f"of {calls} calls in {self.policy.window:g} s"

    # --- transitions -----------------------------------------------------------------------------------------------

    def _trip(self, reason: str, now: float) -> None:
        """Opens by a rule or a bad probe. Opening while still ramping counts as one more failed round."""
        rounds = self._failed_rounds
        self._open(reason, now, self.policy.open_time(rounds, self._rng), failed_rounds=rounds + 1)

    def _open(self, reason: str, now: float, open_for: float, *, failed_rounds: int, by_hand: bool = False) -> None:
        self._failed_rounds = failed_rounds
        self._open_until = now + open_for
        self._by_hand = by_hand
        self._opened += 1
        self._enter(_OPEN, reason, now, open_for)

    def _close(self, reason: str, now: float, *, lasting: bool) -> None:
        """`lasting`: taken for recovered at once. Otherwise that is so when the ramp was gone through."""
        self._by_hand = False
        self._passed_at = -math.inf
        self._credit = 0.0
        if lasting:
            self._failed_rounds = 0
        self._enter(_CLOSED, reason, now)

    def _enter(self, new: BreakerState, reason: str, now: float, open_for: float | None = None) -> None:
        old, self.state = self.state, new
        self.generation += 1
        self.standing = Admission(self.generation)
        self.clear = new is _CLOSED and self.policy.ramp == 0
        self._since = now
        self._reason = reason
        self._forget()
        # The state is consistent from here on: the listener may call anything.
        if self._on_transition is not None:
            try:
                self._on_transition(
                    Transition(self.name, old, new, reason, now, None if open_for == math.inf else open_for)
                )
            except Exception:  # noqa: BLE001 - a listener's defect must not become the caller's
                self._listener_errors += 1

    def force_open(self, now: float, *, for_: float | None = None, reason: str = "by hand") -> None:
        """Opens now, for `for_` seconds and then as after any opening, or (None) until :meth:`force_close`.

        When it is open already only its end changes.
        """
        if for_ is not None and not for_ >= 0:
            raise ValueError(f"for_ must not be negative, not {for_!r}")
        open_for = math.inf if for_ is None else for_
        if self.state is _OPEN:
            self._open_until = now + open_for
            self._by_hand = True
            self._reason = reason
        else:
            self._open(reason, now, open_for, failed_rounds=self._failed_rounds, by_hand=True)

    def force_close(self, now: float, *, reason: str = "by hand") -> None:
        """Closes now, with the ramp; the open time starts from its base again. Nothing changes when it is closed."""
        if self.state is not _CLOSED:
            self._close(reason, now, lasting=True)

    def reconfigure(self, policy: BreakerPolicy, now: float) -> None:
        """Takes new figures and keeps state, generation, counts and leases.

        New limits are applied to what is counted at the next result. A running open time is cut to the new
        ``open_max`` unless it was set by hand; probes above the new limit drain.
        """
        if policy.window != self.policy.window:
            self._window = self._window.resized(policy.window, now)
        self._apply(policy)
        self._timeout_row &= self._timeout_mask
        self._failure_row &= self._failure_mask
        self._alert(now)
        if not self._by_hand:
            self._open_until = min(self._open_until, now + policy.open_max)

    # --- seeing ----------------------------------------------------------------------------------------------------

    def statistics(self, now: float) -> BreakerStatistics:
        """Everything that can be said about it at `now`."""
        hung, tally = self._hung, self._window.tally(now)
        calls, slow = tally.calls + hung, tally.slow + hung
        timeouts = tally.timeouts + (hung if self._hung_fails else 0)
        share = 0.0
        if self.state is _CLOSED:
            share = 1.0 if self.clear else self._share(now)
        return BreakerStatistics(
            name=self.name,
            state=self.state,
            generation=self.generation,
            since=None if self._since == -math.inf else self._since,
            reason=self._reason,
            retry_in=self.retry_in(now),
            by_hand=self._by_hand,
            calls=calls,
            failed=tally.failed,
            timeouts=timeouts,
            slow=slow,
            failure_ratio=(tally.failed + timeouts) / calls if calls else 0.0,
            slow_ratio=slow / calls if calls else 0.0,
            mean=tally.mean,
            hung=hung,
            timeouts_in_row=self._timeout_row.bit_count(),
            failures_in_row=self._failure_row.bit_count(),
            probes=self._probes.in_use(now),
            good_probes=self._good_probes,
            failed_rounds=self._failed_rounds,
            share=share,
            refused=self._refused,
            opened=self._opened,
            listener_errors=self._listener_errors,
        )

    def __repr__(self) -> str:
        figures = {
            _CLOSED: f"{self._window!r} hung={self._hung}" + ("" if self.clear else " ramping"),
            _OPEN: f"until={self._open_until:.3f} ({self._reason})",
            _HALF_OPEN: f"{self._probes!r} good={self._good_probes}/{self.policy.close_after}",
        }[self.state]
        return f"<Breaker {self.name!r} {self.state} generation={self.generation} {figures}>"
