"""The breaker against a naive model that keeps every result in a list and judges from scratch each time."""

import dataclasses
import math
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.deep import depth

from failsoft.kernel.breaker import Breaker, BreakerPolicy, BreakerState, ProbeCap

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
ENDS = ("ok", "failed", "timeout", "neutral")
# Multiples of 1/64, so that sums are exact in any order.
LATENCIES = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 2.015625, 3.0, 5.0, 6.0])
GAPS = st.sampled_from([0.0, 0.125, 0.5, 1.0, 1.5, 5.0, 9.0, 10.0, 30.0, 100.0])

POLICIES = [
    BreakerPolicy(minimum=4, consecutive_failures=4, consecutive_timeouts=3, probes=2, close_after=2),
    BreakerPolicy(
        window=20.0,
        minimum=3,
        failure_ratio=0.75,
        slow_threshold=1.0,
        slow_ratio=0.5,
        consecutive_failures=None,
        ramp=0.0,
    ),
    BreakerPolicy(minimum=5, failure_ratio=None, mean=2.0, p99=5.0, consecutive_timeouts=None, probes=1, ramp=10.0),
    BreakerPolicy(failures=3, failure_ratio=None, inflight_age=1.0, open_max=5.0, close_after=1, probe_lease=2.0),
    BreakerPolicy(
        window=5.0,
        minimum=2,
        failure_ratio=1.0,
        slow_threshold=2.0,
        slow_ratio=1.0,
        p99=3.0,
        inflight_age=4.0,
        probes=3,
    ),
]


class Half(random.Random):
    def random(self):
        return 0.5


@dataclasses.dataclass
class Result:
    at: float
    latency: float
    failed: bool
    timeout: bool
    slow: bool
    over: bool


@dataclasses.dataclass(eq=False)
class Call:
    generation: int
    probe: bool
    at: float
    lease_end: float = math.inf
    hung: bool = False
    settled: bool = False
    lost: bool = False


class Model:
    """Written for clearness only: nothing is cached, skipped or aged ahead of time."""

    def __init__(self, policy, cap_limit):
        self.policy, self.cap_limit = policy, cap_limit
        self.state, self.generation, self.since = CLOSED, 0, -math.inf
        self.calls = []  # every admission ever made
        self.ramping, self.rounds, self.open_until, self.by_hand = False, 0, -math.inf, False
        self.credit, self.passed_at = 0.0, -math.inf
        self.begin()

    def begin(self):
        self.results, self.good_probes = [], 0
        self.timeout_row, self.failure_row, self.last = [], [], None

    def enter(self, state, now):
        self.state, self.generation, self.since = state, self.generation + 1, now
        self.begin()

    # admission

    def probes(self, now):
        return [call for call in self.calls if call.probe and not call.settled and now < call.lease_end]

    def free(self, now):
        return len(self.probes(now)) < min(self.policy.probes, self.cap_limit)

    def considered(self, now):
        return self.state is CLOSED or ((self.state is HALF_OPEN or now >= self.open_until) and self.free(now))

    def admit(self, now):
        if not self.considered(now):
            return None
        if self.state is CLOSED:
            if self.ramping and not self.ramp_lets_through(now):
                return None
            call = Call(self.generation, probe=False, at=now)
        else:
            if self.state is OPEN:
                self.by_hand = False
                self.enter(HALF_OPEN, now)
            call = Call(self.generation, probe=True, at=now, lease_end=now + self.policy.probe_lease)
        self.calls.append(call)
        return call

    def ramp_lets_through(self, now):
        elapsed = now - self.since
        if elapsed >= self.policy.ramp:
            self.ramping, self.rounds = False, 0
            return True
        self.credit += max(0.1, elapsed / self.policy.ramp)
        if self.credit >= 1:
            self.credit -= 1
        elif now - self.passed_at >= self.policy.ramp / 10:
            self.credit = 0.0
        else:
            return False
        self.passed_at = now
        return True

    # results

    def settle(self, call, how, latency, now):
        if call.settled:
            return
        call.settled = True
        if call.generation != self.generation:
            return
        if call.probe:
            self.settle_probe(how, latency, now)
        elif how != "neutral" or call.hung:
            policy = self.policy
            aged = call.hung and policy.inflight_age is not None
            timeout = how == "timeout" or aged
            failed = how == "failed" and not aged
            over_when_hung = (
                policy.p99 is not None and policy.hung_after is not None and policy.hung_after >= policy.p99
            )
            self.results.append(
                Result(
                    now,
                    latency,
                    failed,
                    timeout,
                    slow=call.hung or (policy.slow_threshold is not None and latency > policy.slow_threshold),
                    over=(call.hung and over_when_hung) or (policy.p99 is not None and latency > policy.p99),
                )
            )
            if how != "neutral" and not aged:
                self.join_row(timeout, failed or timeout, now)
            self.judge(now)

    def settle_probe(self, how, latency, now):
        limits = [self.policy.mean, self.policy.p99]
        if self.policy.slow_ratio is not None:
            limits.append(self.policy.slow_threshold)
        if how in ("failed", "timeout") or (how == "ok" and any(limit and latency > limit for limit in limits)):
            self.open(now)
        elif how == "ok":
            self.good_probes += 1
            if self.good_probes >= self.policy.close_after:
                self.close(now, lasting=self.policy.ramp == 0)

    def hung(self, call, now):
        call.hung = True
        if call.settled or call.generation != self.generation:
            return
        policy = self.policy
        if call.probe:
            if policy.inflight_age or policy.mean or policy.p99 or policy.slow_ratio:
                self.open(now)
            return
        if policy.inflight_age is not None:
            self.join_row(True, True, now)
        self.judge(now)

    def join_row(self, timeout, bad, now):
        if self.last is not None and self.last[0] and now - self.last[1] >= self.policy.window:
            self.timeout_row, self.failure_row = [], []
        for row, rule_, entry in (
            (self.timeout_row, self.policy.consecutive_timeouts, timeout),
            (self.failure_row, self.policy.consecutive_failures, bad),
        ):
            if rule_ is not None:
                row.append(entry)
                del row[: -(rule_ + rule_ // 3)]
        self.last = (not bad, now)

    def counted(self, now):
        width = self.policy.window / 10
        return [each for each in self.results if each.at // width > now // width - 10]

    def hanging(self):
        return sum(c.hung and not c.settled and not c.probe and c.generation == self.generation for c in self.calls)

    def judge(self, now):
        policy, counted, hanging = self.policy, self.counted(now), self.hanging()
        volume = len(counted) + hanging
        bad = sum(each.failed or each.timeout for each in counted) + (hanging if policy.inflight_age is not None else 0)
        slow = sum(each.slow for each in counted) + hanging
        over = sum(each.over for each in counted)
        if policy.p99 is not None and policy.hung_after >= policy.p99:
            over += hanging
        timed = [each.latency for each in counted if not each.failed]
        enough = volume >= policy.minimum
        if (
            (policy.failures is not None and bad >= policy.failures)
            or (policy.consecutive_timeouts is not None and sum(self.timeout_row) >= policy.consecutive_timeouts)
            or (policy.consecutive_failures is not None and sum(self.failure_row) >= policy.consecutive_failures)
            or (enough and policy.failure_ratio is not None and bad / volume >= policy.failure_ratio)
            or (enough and policy.slow_ratio is not None and slow / volume >= policy.slow_ratio)
            or (enough and policy.mean is not None and timed and sum(timed) / len(timed) > policy.mean)
            or (enough and policy.p99 is not None and over > 0.01 * volume)
        ):
            self.open(now)

    # transitions

    def open(self, now):
        low = min(self.policy.open_for * 2**self.rounds, self.policy.open_max / (1 + self.policy.open_jitter))
        low = max(low, self.policy.open_for)
        high = min(low * (1 + self.policy.open_jitter), self.policy.open_max)
        self.open_until = now + (low + high) / 2
        self.rounds, self.by_hand = self.rounds + 1, False
        self.enter(OPEN, now)

    def close(self, now, *, lasting):
        self.credit, self.passed_at, self.by_hand = 0.0, -math.inf, False
        self.ramping = self.policy.ramp > 0
        if lasting:
            self.rounds = 0
        self.enter(CLOSED, now)

    def force_open(self, now, for_):
        self.by_hand = True
        self.open_until = math.inf if for_ is None else now + for_
        if self.state is not OPEN:
            self.enter(OPEN, now)

    def force_close(self, now):
        if self.state is not CLOSED:
            self.close(now, lasting=True)

    def reconfigure(self, policy, now):
        old, self.policy = self.policy, policy
        for row, before, after in (
            (self.timeout_row, old.consecutive_timeouts, policy.consecutive_timeouts),
            (self.failure_row, old.consecutive_failures, policy.consecutive_failures),
        ):
            if before is None or after is None:
                row.clear()
            else:
                del row[: -(after + after // 3)]
        if policy.window != old.window:
            # A bucket moves as one, by the time at which it starts, once what has left the old window is gone.
            width = old.window / 10
            self.results = [each for each in self.results if each.at // width > now // width - 10]
            for each in self.results:
                each.at = each.at // width * width
        if not self.by_hand:
            self.open_until = min(self.open_until, now + policy.open_max)


class BreakerMachine(RuleBasedStateMachine):
    calls = Bundle("calls")

    @initialize(policy=st.sampled_from(POLICIES), cap=st.sampled_from([1, 2, 8]))
    def start(self, policy, cap):
        self.seen = []
        self.cap = ProbeCap(cap)
        self.breaker = Breaker(policy, rng=Half(), on_transition=self.seen.append, probe_cap=self.cap)
        self.model = Model(policy, cap)
        self.now = 1000.0
        self.generation = 0

    @rule(gap=GAPS)
    def time_passes(self, gap):
        self.now += gap

    @rule(target=calls)
    def ask(self):
        model = self.model.admit(self.now)
        if self.breaker.clear:
            real = self.breaker.standing
        else:
            real = self.breaker.admit(self.now)
        assert (real is None) == (model is None)
        if real is None:
            return None
        assert (real.generation, real.probe) == (model.generation, model.probe)
        assert real.probe == (real.lease != 0)
        return real, model

    @rule(call=calls, how=st.sampled_from(ENDS), latency=LATENCIES)
    def ends(self, call, how, latency):
        if call is None or call[1].lost:
            return
        real, model = call
        if model.settled and not model.probe:
            return  # that is the ticket's business
        if how == "ok" and real is self.breaker.standing and not model.hung:
            self.breaker.record_ok(latency, self.now)
        else:
            self.breaker.settle(real, how, latency, self.now, hung_counted=model.hung)
        self.model.settle(model, how, latency, self.now)

    @rule(ends=st.lists(st.tuples(st.sampled_from(ENDS), LATENCIES), max_size=12))
    def a_burst_of_calls(self, ends):
        for how, latency in ends:
            call = self.ask()
            if call is not None:
                self.ends(call, how, latency)
                self.agree()

    @rule(call=calls)
    def hangs(self, call):
        if call is None or call[1].lost or call[1].hung or (call[1].settled and not call[1].probe):
            return
        real, model = call
        self.breaker.hung(real, self.now)
        self.model.hung(model, self.now)

    @rule(call=calls)
    def is_lost(self, call):
        if call is not None:
            call[1].lost = True

    @rule(for_=st.sampled_from([None, 0.0, 3.0, 90.0]))
    def is_opened_by_hand(self, for_):
        self.breaker.force_open(self.now, for_=for_)
        self.model.force_open(self.now, for_)

    @rule()
    def is_closed_by_hand(self):
        self.breaker.force_close(self.now)
        self.model.force_close(self.now)

    @rule(policy=st.sampled_from(POLICIES))
    def is_reconfigured(self, policy):
        self.breaker.reconfigure(policy, self.now)
        self.model.reconfigure(policy, self.now)

    @precondition(lambda self: self.model.state is not CLOSED)
    @rule()
    def recovers(self):
        """From anywhere but a hand's endless opening: waiting and good calls close it."""
        if self.model.by_hand and self.model.open_until == math.inf:
            return
        for _ in range(8):
            self.now += 100.0
            call = self.ask()
            assert call is not None
            self.ends(call, "ok", 0.0)
            self.agree()
        assert self.breaker.state is CLOSED
        assert self.breaker.clear

    @invariant()
    def agree(self):
        breaker, model, now = self.breaker, self.model, self.now
        assert breaker.state is model.state
        assert breaker.generation == model.generation >= self.generation
        self.generation = breaker.generation
        assert breaker.clear == (model.state is CLOSED and not model.ramping)
        assert (breaker.retry_in(now) is None) == model.considered(now)
        shown, counted, hanging = breaker.statistics(now), model.counted(now), model.hanging()
        if model.state is OPEN and now < model.open_until < math.inf:
            assert shown.retry_in == model.open_until - now
        assert shown.calls == len(counted) + hanging
        assert shown.failed == sum(each.failed for each in counted)
        aged = hanging if model.policy.inflight_age is not None else 0
        assert shown.timeouts == sum(each.timeout for each in counted) + aged
        assert shown.slow == sum(each.slow for each in counted) + hanging
        timed = [each.latency for each in counted if not each.failed]
        assert shown.mean == (sum(timed) / len(timed) if timed else 0.0)
        assert (shown.timeouts_in_row, shown.failures_in_row) == (sum(model.timeout_row), sum(model.failure_row))
        assert shown.probes == len(model.probes(now)) == self.cap.in_use(now)
        assert shown.good_probes == model.good_probes
        assert shown.failed_rounds == model.rounds
        assert shown.by_hand == model.by_hand
        assert len(self.seen) == model.generation
        assert [change.new for change in self.seen[:-1]] == [change.old for change in self.seen[1:]]

    @invariant()
    def never_more_probes_at_once_than_any_policy_allows(self):
        assert self.breaker.statistics(self.now).probes <= max(policy.probes for policy in POLICIES)


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=depth(50, 300), stateful_step_count=40, deadline=None)
