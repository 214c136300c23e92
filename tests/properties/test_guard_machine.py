"""The guard as a state machine: Hypothesis makes calls, ends them, lets time pass, and shrinks whatever breaks a law.

Random interleavings (bench/interleavings.py) reach more; a failure here is short enough to read.
"""

import asyncio
import random
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.deep import depth

from failsoft.base.clock import Sources
from failsoft.base.errors import FailsoftError
from failsoft.base.outcomes import Priority
from failsoft.kernel.breaker import BreakerPolicy, ProbeCap
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.deadline import deadline_scope, heap_of
from failsoft.kernel.guard import Guard, Kernel
from failsoft.kernel.policy import HedgePolicy, Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.testing.clock import VirtualTimeLoop

MOMENT = 2.0**-20
SMALL = Policy(
    call_timeout=4.0,
    attempt_timeout=2.0,
    retry=RetryPolicy(queries=1, base=0.5, spread=0.0, room=0.0),
    bulkhead=BulkheadPolicy(permits=2, queue=3),
    breaker=BreakerPolicy(
        minimum=2,
        failure_ratio=0.5,
        consecutive_failures=2,
        inflight_age=1.5,
        open_for=1.0,
        open_max=4.0,
        probes=1,
        close_after=1,
        probe_lease=1.0,
        ramp=1.0,
    ),
)
POLICIES = {
    "small": SMALL,
    "one permit": replace(SMALL, bulkhead=BulkheadPolicy(permits=1, queue=1, max_wait=0.5)),
    "detachable": replace(SMALL, detachable=True),
    "hedging": replace(SMALL, hedge=HedgePolicy(minimum=0.25, share=1.0), bulkhead=BulkheadPolicy(permits=4, queue=3)),
    "no breaker": replace(SMALL, breaker=None, call_timeout=None),
}
ENDS = st.sampled_from(["ok", "lost", "wrong", "cancels itself"])
SECONDS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.5])


class GuardMachine(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(sorted(POLICIES)), warm=st.booleans())
    def begins(self, policy, warm):
        self.loop = VirtualTimeLoop(io_grace=0.0)
        self.complaints = []
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(context["message"]))
        self.kernel = Kernel(sources=Sources(rng=random.Random(1)), probes=ProbeCap(1))
        self.guard: Guard = self.kernel.guard("d", POLICIES[policy])
        self.limits = {self.guard.bulkhead.limit}
        self.callees = {}  # number: future its callee waits for
        self.tasks = {}
        self.cancels = {}
        self.made = self.running = 0
        if warm:
            for _ in range(20):
                self.guard.latency.record(0.125, 0.0)
        self.passes(MOMENT)

    def passes(self, seconds):
        self.loop.run_until_complete(asyncio.sleep(seconds))

    async def callee(self):
        number = self.made = self.made + 1
        self.callees[number] = answer = self.loop.create_future()
        self.running += 1
        try:
            return await answer
        finally:
            self.running -= 1
            self.callees.pop(number, None)

    async def call(self, seconds, options):
        try:
            if seconds is None:
                await self.guard.call(self.callee, **options)
            else:
                async with deadline_scope(seconds):
                    await self.guard.call(self.callee, **options)
        except (FailsoftError, ConnectionError, KeyError):
            pass

    @rule(
        seconds=st.one_of(st.none(), SECONDS),
        priority=st.sampled_from([None, Priority.CRITICAL, Priority.OPTIONAL]),
        tenant=st.sampled_from([None, "x"]),
        kind=st.sampled_from([None, "action"]),
    )
    def starts(self, seconds, priority, tenant, kind):
        number = len(self.tasks)
        options = {"priority": priority, "tenant": tenant, "kind": kind}
        self.tasks[number] = self.loop.create_task(self.call(seconds, options))
        self.cancels[number] = 0
        self.passes(MOMENT)

    @precondition(lambda self: self.callees)
    @rule(data=st.data(), how=ENDS, at_once=st.booleans())
    def ends(self, data, how, at_once):
        answer = self.callees.pop(data.draw(st.sampled_from(sorted(self.callees)), label="callee"))
        if answer.done():
            return
        if how == "ok":
            answer.set_result("value")
        elif how == "cancels itself":
            answer.cancel()
        else:
            answer.set_exception(ConnectionResetError() if how == "lost" else KeyError())
        if not at_once:
            self.passes(MOMENT)

    @precondition(lambda self: any(not task.done() for task in self.tasks.values()))
    @rule(data=st.data())
    def is_cancelled(self, data):
        alive = [number for number, task in self.tasks.items() if not task.done()]
        number = data.draw(st.sampled_from(alive), label="call")
        self.cancels[number] += 1
        self.tasks[number].cancel()
        self.passes(MOMENT)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds):
        self.passes(seconds + MOMENT)

    @rule(seconds=SECONDS)
    def the_loop_is_blocked(self, seconds):
        self.loop.call_soon(self.loop.stall, seconds)
        self.passes(MOMENT)

    @rule(policy=st.sampled_from(sorted(POLICIES)))
    def is_reconfigured(self, policy):
        self.guard.reconfigure(POLICIES[policy])
        self.limits.add(self.guard.bulkhead.limit)
        self.passes(MOMENT)

    @rule(opens=st.booleans())
    def is_switched_by_hand(self, opens):
        now = self.loop.time()
        if opens:
            self.guard.breaker.force_open(now, for_=1.0)
        else:
            self.guard.breaker.force_close(now)
        self.passes(MOMENT)

    @invariant()
    def holds(self):
        one = self.guard
        figures = one.statistics()
        assert len(one.holders()) <= figures.in_use <= max(self.limits)
        breaker = one.breaker.statistics(self.loop.time())
        # Once its time is over an open breaker has calls wait for a permit: the first to get one is its probe.
        assert figures.breaker != "open" or figures.waiting == 0 or breaker.retry_in is None
        assert breaker.probes <= 1
        assert one.budget.statistics().tokens >= 0.0
        settled = figures.ok + figures.failed + figures.timed_out + figures.neutral
        assert settled == figures.attempts - (len(one.holders()) - figures.orphans)
        assert not self.complaints

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        try:
            for _ in range(30):  # answers retries, hedges and those who waited, too
                for answer in list(self.callees.values()):
                    if not answer.done():
                        answer.set_result("value")
                self.passes(1.0)
            one, figures = self.guard, self.guard.statistics()
            assert (figures.in_use, figures.waiting, figures.orphans, self.running) == (0, 0, 0, 0)
            assert one.breaker.statistics(self.loop.time()).probes == 0
            assert not asyncio.all_tasks(self.loop)
            assert not len(heap_of(self.loop))
            for number, task in self.tasks.items():
                assert task.cancelling() == self.cancels[number]
                assert task.cancelled() == bool(self.cancels[number])
            one.reconfigure(POLICIES["no breaker"])
            one.breaker.force_close(self.loop.time())
            assert self.loop.run_until_complete(one.call(asyncio.sleep, 0.0, "serves")) == "serves"
            assert not self.complaints
        finally:
            self.loop.close()


TestGuardMachine = GuardMachine.TestCase
TestGuardMachine.settings = settings(max_examples=depth(25, 150), stateful_step_count=25, deadline=None)
