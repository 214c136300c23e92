"""A small configuration, checked exhaustively: three calls through the real guard, in every order, with every end.

Each call starts once and ends once: ok, failed, slow, cancelled, or hung until its limit. All orders of these six steps
(up to renaming calls) × all combinations of ends × a closed breaker or one that is due for a probe × permits and places
are run, and compared step by step with a model that says in a few lines what tickets, breaker and bulkhead must do
together. A second pass joins neighbouring steps into one pass of the loop and checks what must hold regardless.
"""

import asyncio
from collections import deque
from itertools import product

import pytest
from tests.deep import some_of

from failsoft.base.errors import FailsoftError
from failsoft.kernel.breaker import BreakerPolicy, BreakerState
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.guard import Guard, guard
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy

ENDS = ("ok", "fail", "slow", "cancel", "hang")
STEP, SLOW, LIMIT, OPEN_FOR = 0.25, 1.0, 10.0, 3.0
MOMENT = 2.0**-20
"""Virtual time only passes when nothing is ready: after a moment everything that had to happen has happened."""
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

BREAKER = BreakerPolicy(
    window=1000.0,
    minimum=1,
    failures=1,
    failure_ratio=None,
    slow_threshold=SLOW,
    slow_ratio=0.5,
    consecutive_timeouts=None,
    consecutive_failures=None,
    open_for=OPEN_FOR,
    open_max=OPEN_FOR,
    open_jitter=0.0,
    probes=1,
    close_after=1,
    probe_lease=1000.0,
    ramp=0.0,
)


def orders():
    """All orders of 3 starts and 3 ends, each end after its start, calls numbered in the order of their starts."""

    def go(order, started, running):
        if started == 3 and not running:
            yield tuple(order)
        if started < 3:
            yield from go([*order, ("start", started)], started + 1, [*running, started])
        for one in running:
            yield from go([*order, ("end", one)], started, [other for other in running if other != one])

    return list(go([], 0, []))


ORDERS = orders()
BULKHEADS = {"1 permit, 2 wait": (1, 2), "1 permit, nobody waits": (1, 0), "2 permits, 2 wait": (2, 2)}


def policy(permits, places):
    return Policy(
        call_timeout=None,
        attempt_timeout=LIMIT,
        retry=RetryPolicy(queries=0),
        breaker=BREAKER,
        bulkhead=BulkheadPolicy(permits=permits, queue=places),
    )


class Model:
    """What must happen, said as plainly as possible. Times are relative to the start."""

    def __init__(self, permits, places, probe_due):
        self.permits, self.places = permits, places
        self.state, self.open_until = (OPEN, 0.0) if probe_due else (CLOSED, 0.0)
        self.generation = 0
        self.calls = self.slow = 0
        self.running = {}  # call: [since, generation, probe, hung]
        self.queue = deque()
        self.ended = {}  # call: how its callee ends as soon as it runs
        self.outcome = {}
        self.now = 0.0

    # breaker
    def enter(self, state):
        self.state, self.generation = state, self.generation + 1
        self.calls = self.slow = 0
        for one in self.running.values():
            one[3] = one[3] and None  # a hung call of an earlier generation counts nowhere any more

    def trip(self):
        self.open_until = self.now + OPEN_FOR
        self.enter(OPEN)
        while self.queue:
            self.outcome[self.queue.popleft()] = "breaker_open"

    def may_enter(self):
        if self.state is CLOSED:
            return True
        probes = sum(probe for _, _, probe, _ in self.running.values())
        return probes == 0 and (self.state is HALF_OPEN or self.now >= self.open_until)

    def judge(self):
        hung = sum(1 for one in self.running.values() if one[3] is True)
        if (self.slow + hung) * 2 >= self.calls + hung > 0 and self.slow + hung:
            self.trip()

    def count_hung(self):
        for one in list(self.running.values()):
            since, generation, probe, hung = one
            if hung is False and self.now - since >= SLOW:
                one[3] = True
                if generation != self.generation:
                    one[3] = None
                elif probe:
                    self.trip()
                    one[3] = None
                else:
                    self.judge()

    # bulkhead
    def start(self, call):
        self.count_hung()
        if not self.may_enter():
            self.outcome[call] = "breaker_open"
        elif len(self.running) < self.permits and not self.queue:
            self.run(call)
        elif len(self.queue) < self.places:
            self.queue.append(call)
        else:
            self.outcome[call] = "queue_full"
        self.settle_ended()

    def run(self, call):
        probe = self.state is not CLOSED
        if self.state is OPEN:
            self.enter(HALF_OPEN)
        self.running[call] = [self.now, self.generation, probe, False]

    def settle_ended(self):
        while ready := [call for call in self.running if call in self.ended]:
            self.settle(ready[0], self.ended[ready[0]])

    def settle(self, call, how):
        since, generation, probe, hung = self.running[call]
        took = self.now - since
        self.outcome[call] = how
        if generation == self.generation and (how != "cancelled" or hung):
            if how in ("lost", "attempt_timeout") or (probe and took > SLOW):
                self.running[call][3] = None
                self.trip()
            elif probe:
                self.enter(CLOSED)
            else:
                self.calls += 1
                self.slow += hung is True or took > SLOW
                self.running[call][3] = None
                self.judge()
        del self.running[call]
        while self.queue and len(self.running) < self.permits:
            call = self.queue.popleft()
            if self.may_enter():
                self.run(call)
            else:
                self.outcome[call] = "breaker_open"

    # steps
    def advance(self, to):
        while self.running:
            call = min(self.running, key=lambda one: self.running[one][0])
            if self.running[call][0] + LIMIT > to:
                break
            self.now = self.running[call][0] + LIMIT
            self.settle(call, "attempt_timeout")
            self.settle_ended()
        self.now = to

    def end(self, call, how):
        if call in self.outcome:
            return
        if how == "cancel":
            if call in self.queue:
                self.queue.remove(call)
                self.outcome[call] = "cancelled"
            else:
                self.settle(call, "cancelled")
        elif how != "hang":
            self.ended[call] = "lost" if how == "fail" else "ok"
        self.settle_ended()

    def seen(self):
        return self.state, self.generation, len(self.running), len(self.queue), self.outcome


class Real:
    """The same steps on a guard."""

    def __init__(self, permits, places, probe_due):
        self.loop = asyncio.get_running_loop()
        self.guard: Guard = guard("d", policy(permits, places))
        self.began = self.loop.time()
        self.guard.bind()
        if probe_due:
            self.guard.breaker.force_open(self.began, for_=0.0)
        self.generation = self.guard.breaker.generation
        self.answers, self.tasks = {}, {}
        self.outcome = {}
        self.running = 0
        self.most = 0
        self.cancelled = set()

    async def callee(self, call):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self.answers[call]
        finally:
            self.running -= 1

    async def calls(self, call):
        try:
            how = await self.guard.call(self.callee, call)
        except FailsoftError as error:
            how = error.code
        except ConnectionError:
            how = "lost"
        except asyncio.CancelledError:
            how = "cancelled"
        assert call not in self.outcome, "answered twice"
        self.outcome[call] = how

    def start(self, call):
        self.answers[call] = self.loop.create_future()
        self.tasks[call] = self.loop.create_task(self.calls(call))

    def end(self, call, how):
        answer = self.answers[call]
        if how == "cancel":
            if not self.tasks[call].done():
                self.cancelled.add(call)
                self.tasks[call].cancel()
        elif answer.done():  # cancelled by its limit
            pass
        elif how == "fail":
            answer.set_exception(ConnectionResetError())
            answer.exception()  # it may never be awaited
        elif how != "hang":
            answer.set_result("ok")

    def seen(self):
        breaker, bulkhead = self.guard.breaker, self.guard.bulkhead
        return breaker.state, breaker.generation - self.generation, bulkhead.in_use, bulkhead.waiting, self.outcome

    def holds(self):
        """What must hold between any two passes of the loop."""
        bulkhead, breaker = self.guard.bulkhead, self.guard.breaker
        assert self.running <= bulkhead.in_use <= bulkhead.limit
        assert self.most <= bulkhead.limit
        assert self.guard.breaker.state is not OPEN or bulkhead.waiting == 0
        assert sum(one.admission.probe for one in self.guard._tickets) <= BREAKER.probes
        assert breaker.clear == (breaker.state is CLOSED)

    async def is_over(self):
        """When nothing can happen any more, nothing is held and it serves."""
        await asyncio.sleep(4 * LIMIT)
        one = self.guard
        figures = one.statistics()
        assert (figures.in_use, figures.waiting, figures.orphans, self.running, one.holders()) == (0, 0, 0, 0, [])
        assert one.breaker.statistics(self.loop.time()).probes == 0
        assert figures.attempts == figures.ok + figures.failed + figures.timed_out + figures.neutral
        assert all(task.done() for task in self.tasks.values())
        for call in self.cancelled - set(self.outcome):  # cancelled before its first step
            assert self.tasks[call].cancelled()
            self.outcome[call] = "cancelled"
        assert set(self.outcome) == set(self.tasks)
        assert [task.cancelling() for task in self.tasks.values()] == [call in self.cancelled for call in self.tasks]
        one.breaker.force_close(self.loop.time())
        assert await one.call(asyncio.sleep, 0.0, "serves") == "serves"


WAITS = {"slow": 2 * SLOW, "hang": LIMIT}
"""What an end takes beyond a step."""


def runs():
    """Every order with every combination of ends, but for those that differ only in ends that came too late to matter.

    The caller adds to the last element the calls that were answered before their end.
    """
    for order in ORDERS:
        same = set()
        for ends in product(ENDS, repeat=3):
            if any(all(b in (None, a) for a, b in zip(ends, other, strict=True)) for other in same):
                continue
            idle = set()
            yield order, ends, idle
            if idle:
                same.add(tuple(None if call in idle else end for call, end in enumerate(ends)))


def wait_before(what, end, over):
    return STEP + (WAITS.get(end, 0.0) if what == "end" and not over else 0.0)


@pytest.mark.parametrize(("probe_due", "bulkhead"), some_of(product([True, False], BULKHEADS), each=2))
async def test_every_order_and_end_does_what_the_model_says(probe_due, bulkhead):
    permits, places = BULKHEADS[bulkhead]
    states = set()
    for order, ends, idle in runs():
        model, real = Model(permits, places, probe_due), Real(permits, places, probe_due)
        for what, call in order:
            over = call in real.outcome
            wait = wait_before(what, ends[call], over)
            await asyncio.sleep(wait)
            model.advance(model.now + wait)
            if what == "start":
                real.start(call)
                model.start(call)
            elif over:
                idle.add(call)
            else:
                real.end(call, ends[call])
                model.end(call, ends[call])
            await asyncio.sleep(MOMENT)
            model.advance(model.now + MOMENT)
            assert real.seen() == model.seen(), (order, ends, "after", what, call)
            real.holds()
            states.add(model.state)
        await real.is_over()
        model.advance(model.now + 4 * LIMIT)
        assert real.outcome == model.outcome, (order, ends)
    assert len(states) >= 2 + probe_due


JOINTS = {"all": (True,) * 5, "2, 4, 6": (True, False, True, False, True), "3, 5": (False, True, False, True, False)}
"""Which steps follow the one before in the same pass of the loop."""


@pytest.mark.parametrize(("joints", "probe_due"), some_of(product(JOINTS, [True, False]), each=4))
async def test_nothing_is_lost_when_steps_meet_in_one_pass_of_the_loop(joints, probe_due):
    for order, ends, idle in runs():
        real = Real(1, 2, probe_due)
        for (what, call), joined in zip(order, (False, *JOINTS[joints]), strict=True):
            over = call in real.outcome
            if not joined:
                await asyncio.sleep(wait_before(what, ends[call], over))
                real.holds()
            if what == "start":
                real.start(call)
            elif over:
                idle.add(call)
            else:
                real.end(call, ends[call])
        await asyncio.sleep(MOMENT)
        real.holds()
        await real.is_over()
