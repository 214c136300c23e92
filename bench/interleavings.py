"""Seeded random interleavings of everything that can happen to a guarded call, and what must hold afterwards.

    python bench/interleavings.py [--n 100000] [--seed S] [--json] [--only I]

An interleaving is a small world: one to three guards that share a kernel with a probe cap, three to eight calls of
every sort (plain, fetched, streamed, in threads, up a ladder, nested, in groups), callees that answer, fail, hang,
ignore or raise cancellations, and meanwhile cancels at random awaits and instants, deadlines, reconfigurations,
stalls, openings and closings by hand. Times are multiples of 1/8 s, so that much happens at the same instant. All of
it runs through the real guard, in virtual time.

Afterwards the counts of :data:`INVARIANTS` must be zero, for any seed. The same seed gives the same trace, in every
process: ``trace`` is a hash over everything that was seen. ``--only I`` replays one world and prints its trace.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import itertools
import json
import math
import random
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from failsoft.base.clock import Sources
from failsoft.base.errors import BadInput, DownstreamRejected, DownstreamUnavailable, FailsoftError, InternalError
from failsoft.base.events import Event, EventBus
from failsoft.base.outcomes import Priority
from failsoft.kernel import deadline as deadlines
from failsoft.kernel.adaptive import AdaptiveLimitPolicy
from failsoft.kernel.breaker import Admission, Breaker, BreakerPolicy, ProbeCap
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.cache import CachePolicy
from failsoft.kernel.deadline import deadline_scope, heap_of
from failsoft.kernel.guard import Guard, Kernel
from failsoft.kernel.ladder import Rung, climb
from failsoft.kernel.policy import HedgePolicy, Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.scope import current_scope, scope
from failsoft.kernel.ticket import Ticket
from failsoft.kernel.timeout import AdaptiveTimeoutPolicy
from failsoft.testing.clock import VirtualEvent, VirtualTimeLoop

INVARIANTS = (
    "permits_in_use",  # permits, and their labels, still held at the end
    "waiting",  # still in a queue
    "tasks",  # still there
    "children",  # callees, flights, orphans still there
    "alarms",  # armed for nobody
    "probes_above_limit",  # at any time, of one breaker
    "probes_above_cap",  # at any time, of all breakers together
    "probes_unsettled",  # admitted and never settled
    "permits_above_limit",  # more permits in use than the highest limit there was
    "started_late",  # attempts started at or after the deadline or the call limit
    "ended_late",  # calls answered after the deadline or call limit, though the callee obeys and nothing stalled
    "cancelling_left",  # task.cancelling() is not the number of outside cancels
    "cancel_swallowed",  # a cancel that was neither raised nor taken by the callee
    "budget_negative",
    "settled_not_once",
    "released_not_once",
    "unexpected_errors",  # RuntimeError, InternalError, unheard exceptions, warnings
    "unusable",  # a guard that does not serve when everything is over
)

HORIZON = 512.0
"""Virtual seconds after which everything that could end has ended."""

HANG = 60.0


# --- chance --------------------------------------------------------------------------------------------------------


def instant(rng: random.Random, most: float) -> float:
    """A multiple of 1/8 s up to `most`."""
    return rng.randrange(int(most * 8) + 1) / 8


def drawn_policy(rng: random.Random) -> Policy:
    """A policy with small figures, so that every limit is met."""
    pick = rng.choice
    breaker = None
    if rng.random() < 0.9:
        slow = pick([None, None, 0.5, 1.0])
        breaker = BreakerPolicy(
            window=pick([1.0, 10.0]),
            minimum=pick([1, 2, 4]),
            failures=pick([None, 2]),
            failure_ratio=pick([None, 0.5, 1.0]),
            slow_threshold=slow,
            slow_ratio=None if slow is None else pick([None, 0.5]),
            mean=pick([None, None, 2.0]),
            p99=pick([None, None, 3.0]),
            consecutive_timeouts=pick([None, 1, 2]),
            consecutive_failures=pick([None, 1, 2, 3]),
            inflight_age=pick([None, 0.5, 1.0]),
            open_for=pick([0.125, 0.5, 1.0]),
            open_max=2.0,
            open_jitter=pick([0.0, 0.5]),
            probes=pick([1, 1, 2]),
            close_after=pick([1, 2]),
            probe_lease=pick([0.25, 1.0, 4.0]),
            ramp=pick([0.0, 0.0, 0.5]),
        )
    attempt = pick([None, 0.5, 1.0])
    return Policy(
        kind=pick(["query", "query", "action", "external"]),
        call_timeout=pick([None, 1.0, 2.0, 4.0]),
        attempt_timeout=attempt,
        adaptive_timeout=AdaptiveTimeoutPolicy(floor=0.25, cap=1.0) if rng.random() < 0.2 else None,
        bulkhead=BulkheadPolicy(
            permits=pick([1, 1, 2, 3]),
            queue=pick([0, 1, 2, 4]),
            max_wait=pick([None, None, 0.125, 0.5]),
            explore_interval=pick([0.5, math.inf]),
            adaptive=AdaptiveLimitPolicy(initial=2, minimum=1, maximum=4) if rng.random() < 0.1 else None,
        ),
        breaker=breaker,
        retry=RetryPolicy(
            queries=pick([0, 1, 2]),
            actions=pick([0, 0, 1]),
            base=pick([0.0, 0.125, 0.25]),
            spread=pick([0.0, 0.125]),
            room=pick([0.0, 1.0]),
        ),
        retry_ratio=pick([0.1, 1.0]),
        hedge=HedgePolicy(minimum=pick([0.125, 0.25]), share=1.0) if rng.random() < 0.3 else None,
        cache=CachePolicy(ttl=0.25, stale_for=2.0, entries=2) if rng.random() < 0.5 else None,
        coalesce=rng.random() < 0.8,
        detachable=rng.random() < 0.25,
    )


SHOWN = 4
"""Violations of each invariant that are described."""

POOL = 600
"""Policies drawn once per seed; worlds pick among them."""


class Script:
    """What one attempt's callee does: waits, then ends in a certain way; `deaf` ones ignore that many cancels.

    `blocks` seconds of a blocked loop come first.
    """

    __slots__ = ("blocks", "deaf", "how", "waits")

    ENDS = ("ok", "ok", "ok", "ok", "lost", "lost", "busy", "refused", "wrong", "bug", "cancels itself", "hang")

    def __init__(self, rng: random.Random) -> None:
        self.waits = tuple(instant(rng, 1.0) if rng.random() < 0.7 else 0.0 for _ in range(rng.randrange(4)))
        self.how = rng.choice(self.ENDS)
        self.deaf = rng.randrange(1, 3) if rng.random() < 0.08 else 0
        self.blocks = rng.choice([0.125, 0.5, 4.0]) if rng.random() < 0.02 else 0.0

    @property
    def obeys(self) -> bool:
        return self.deaf == 0

    def end(self) -> str:
        if self.how == "ok":
            return "value"
        raise {
            "lost": ConnectionResetError("lost"),
            "busy": DownstreamUnavailable("later", retry_after=0.5),
            "refused": DownstreamRejected("no"),
            "wrong": BadInput("wrong"),
            "bug": KeyError("bug"),
            "cancels itself": asyncio.CancelledError(),
            "hang": TimeoutError("inside"),
        }[self.how]

    def __repr__(self) -> str:
        blocks = f"blocks {self.blocks} " if self.blocks else ""
        return f"{blocks}{'+'.join(map(str, self.waits)) or '-'} {self.how}{' deaf' * self.deaf}"


# --- spies ---------------------------------------------------------------------------------------------------------


class SpiedBreaker(Breaker):
    """Keeps its own account of probes, apart from the one it checks."""

    __slots__ = ("live", "world")

    live: dict[int, float]
    world: World

    def admit(self, now: float, *, lease: float = 0.0) -> Admission | None:
        admission = super().admit(now, lease=lease)
        if admission is not None and admission.probe:
            world = self.world
            world.seen["probes"] += 1
            self.live[admission.lease] = now + max(self.policy.probe_lease, lease)
            mine = sum(1 for end in self.live.values() if end > now)
            every = sum(1 for one in world.breakers for end in one.live.values() if end > now)
            if mine > self.policy.probes:
                world.violated("probes_above_limit", f"{mine} {self!r}")
            if every > world.cap:
                world.violated("probes_above_cap", f"{every}")
        return admission

    def settle(
        self, admission: Admission, counts: str, latency: float, now: float, *, hung_counted: bool = False
    ) -> None:
        if admission.probe and self.live.pop(admission.lease, None) is None:
            self.world.violated("settled_not_once", f"probe {admission} of {self!r}")
        super().settle(admission, counts, latency, now, hung_counted=hung_counted)


class Tickets(dict[Ticket, None]):
    """The tickets of a guard: sees each come and go."""

    def __init__(self, guard: SpiedGuard) -> None:
        super().__init__()
        self.guard = guard

    def __setitem__(self, ticket: Ticket, value: None) -> None:
        super().__setitem__(ticket, value)
        self.guard.admitted(ticket)

    def __delitem__(self, ticket: Ticket) -> None:
        if not ticket.settled or not ticket.released:
            self.guard.world.violated("released_not_once", f"{ticket!r} went unsettled or unreleased")
        super().__delitem__(ticket)
        self.guard.released += 1


class SpiedGuard(Guard):
    """Counts how often each attempt is admitted, settled and released."""

    def __init__(self, name: str, policy: Policy, kernel: Kernel, world: World) -> None:
        super().__init__(name, policy, kernel)
        self.world = world
        breaker = SpiedBreaker(
            self.breaker.policy,
            rng=kernel.sources.rng,
            name=name,
            on_transition=self._on_transition,
            probe_cap=kernel.probes,
        )
        breaker.world, breaker.live = world, {}
        self.breaker = breaker
        self._tickets = Tickets(self)
        self.settlements = self.released = 0
        self.highest = self.bulkhead.limit

    def admitted(self, ticket: Ticket) -> None:
        world, now = self.world, self.now()
        world.seen["attempts"] += 1
        if now >= ticket.scope.deadline:
            world.violated("started_late", f"{ticket!r} at {now}, deadline {ticket.scope.deadline}")
        self.highest = max(self.highest, self.bulkhead.limit)
        if self.bulkhead.in_use > self.highest:
            world.violated("permits_above_limit", repr(self.bulkhead))
        if ticket.admission.probe and ticket.admission.lease not in self.breaker.live:
            world.violated("settled_not_once", f"probe {ticket!r} was settled before it started")

    def reconfigure(self, policy: Policy) -> None:
        super().reconfigure(policy)
        self.highest = max(self.highest, self.bulkhead.limit)

    def _served(self, ticket: Ticket, now: float, size: float) -> None:
        self._once(ticket)
        super()._served(ticket, now, size)

    def settle(self, ticket: Ticket, counts: str, now: float, size: float, **options: Any) -> None:
        self._once(ticket)
        super().settle(ticket, counts, now, size, **options)

    def _once(self, ticket: Ticket) -> None:
        self.settlements += 1
        if ticket.settled or ticket not in self._tickets:
            self.world.violated("settled_not_once", repr(ticket))


class SimulatedThreads:
    """Stands in for the lane of threads: functions take virtual time, cannot be stopped, and report in order."""

    threads = 0

    def __init__(self, world: World) -> None:
        self.world = world

    class Job:
        name = "simulated"
        over = False

        def done(self) -> bool:
            return self.over

        def stack(self) -> list[str]:
            return []

    def start(self, loop: Any, fn: Callable[..., Any], args: tuple[Any, ...], ended: Callable[..., None]) -> Any:
        job, script = self.Job(), fn(*args)
        self.world.seen["simulated threads"] += 1

        def report() -> None:
            job.over = True
            value, error = None, None
            try:
                value = script.end()
            except BaseException as raised:  # noqa: BLE001 - reported, as a thread's
                error = raised
            ended(value, error)

        loop.call_later(HANG / 8 if script.how == "hang" else sum(script.waits), report)
        return job

    def close(self) -> None:
        pass


# --- a world -------------------------------------------------------------------------------------------------------


class Loop(VirtualTimeLoop):
    """A loop that can be used for one world after the other, each as if it were the first."""

    def __init__(self) -> None:
        super().__init__(io_grace=0.0)
        selector, idle = self._selector, self._idle
        # While callbacks are ready there is nothing to poll for: no descriptors, and threads only when all is idle.
        selector.select = lambda timeout=None: [] if timeout is not None and timeout <= 0 else idle()  # type: ignore[method-assign]
        self.complaints: list[str] = []
        self.set_exception_handler(lambda _, context: self.complaints.append(str(context)))

    def rewind(self) -> None:
        """Back to time 0, with nothing pending."""
        for timer in self._scheduled:
            timer.cancel()
        self._scheduled.clear()
        deadlines._heaps.pop(self, None)
        self._order = itertools.count()
        self._move(0.0)


@types.coroutine
def watched(coroutine: Coroutine[Any, Any, Any], suspended: Callable[[Any], None]) -> Generator[Any, Any, Any]:
    """Awaits `coroutine` and says when it suspends, and on what."""
    step = partial(coroutine.send, None)
    while True:
        try:
            awaited = step()
        except StopIteration as end:
            return end.value
        suspended(awaited)
        try:
            step = partial(coroutine.send, (yield awaited))
        except BaseException as error:  # noqa: BLE001 - passed on
            step = partial(coroutine.throw, error)


class Call:
    """One of a world's calls: its script, and what happened to it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.sort = ""
        self.until = math.inf
        self.began = math.nan
        self.timeout = math.inf
        self.scripts: list[Script] = []
        self.attempt = 0
        self.cancels = 0
        self.cancel_at: float | None = None
        self.cancel_nth = 0
        self.granted_first = False
        self.deaf = False
        self.held_up = False
        self.task: asyncio.Task[None]

    def next_script(self) -> Script:
        script = self.scripts[min(self.attempt, len(self.scripts) - 1)]
        self.attempt += 1
        return script


class World:
    """Draws an interleaving from its seed, runs it, and looks whether everything holds."""

    def __init__(self, seed: str, policies: list[Policy], loop: Loop) -> None:
        self.rng = rng = random.Random(seed)
        self.loop = loop
        self.policies = policies
        self.trace: list[Any] = []
        self.violations: list[tuple[str, str]] = []
        self.seen: Counter[str] = Counter()
        self.stalled = False
        self.cap = rng.choice([1, 2, 8])
        bus = EventBus([self.hear])
        self.kernel = Kernel(bus=bus, sources=Sources(wall=lambda: 0.0, rng=rng), probes=ProbeCap(self.cap))
        self.guards = [
            SpiedGuard(name, rng.choice(policies), self.kernel, self) for name in "abc"[: rng.choice([1, 1, 2, 3])]
        ]
        self.first_policies = [(guard.name, guard.policy) for guard in self.guards]
        self.breakers = [guard.breaker for guard in self.guards]
        for guard in self.guards:
            guard.threads = SimulatedThreads(self)  # type: ignore[assignment]
        self.calls = [self.drawn_call(index) for index in range(rng.randrange(3, 9))]

    def violated(self, invariant: str, what: str) -> None:
        self.violations.append((invariant, what))
        self.note("violated", invariant, what)

    def note(self, *what: Any) -> None:
        self.trace.append((self.loop.time(), *what))

    def hear(self, event: Event) -> None:
        data = event.data
        self.seen[event.kind] += 1
        if isinstance(data, tuple):
            said: Any = tuple(data)
        else:
            said = data.code if isinstance(data, FailsoftError) else type(data).__name__
        self.trace.append((event.at, event.kind, event.downstream, event.task, str(said)))
        for guard in self.guards:
            if guard.budget._tokens < 0.0 or guard._hedges._tokens < 0.0:
                self.violated("budget_negative", guard.name)

    # --- drawing -----------------------------------------------------------------------------------------------

    def drawn_call(self, index: int) -> Call:
        rng = self.rng
        call = Call(index)
        call.scripts = [Script(rng) for _ in range(rng.choice([1, 2, 3]))]
        call.deaf = any(not script.obeys for script in call.scripts)
        luck = rng.random()
        if luck < 0.2:
            call.cancel_at = instant(rng, 4.0)
        elif luck < 0.5:
            call.cancel_nth = rng.randrange(1, 8)
            call.granted_first = rng.random() < 0.5
        return call

    # --- callees -----------------------------------------------------------------------------------------------

    async def callee(self, call: Call, *_: Any) -> Any:
        self.starts(call)
        script = call.next_script()
        if script.blocks:
            self.disturbs("stall", self.guards[0], self.policies[0], script.blocks)
        return await self.acts(script)

    def starts(self, call: Call) -> None:
        now, inherited = self.loop.time(), current_scope()
        until = inherited.deadline if call.sort == "fetch" else call.until  # a flight belongs to no caller
        if (now >= inherited.deadline or now >= until) and not call.held_up:
            self.violated("started_late", f"callee of {call.index} {call.sort} at {now}")

    async def acts(self, script: Script) -> Any:
        deaf = script.deaf
        for seconds in (*script.waits, HANG) if script.how == "hang" else script.waits:
            while True:
                try:
                    await asyncio.sleep(seconds)
                    break
                except asyncio.CancelledError:
                    if deaf == 0:
                        raise
                    deaf -= 1
        return script.end()

    def in_thread(self, call: Call) -> Script:
        self.starts(call)
        return call.next_script()

    async def items(self, call: Call) -> Any:
        self.starts(call)
        script = call.next_script()
        for number, seconds in enumerate(script.waits):
            await asyncio.sleep(seconds)
            yield number
        if script.how == "hang":
            await asyncio.sleep(HANG)
        yield script.end()

    async def interceptor(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Holds the callee up. The attempt begins here; when its callee does is no longer the guard's concern."""
        for call in args:
            if isinstance(call, Call):
                self.starts(call)
                call.held_up = True
        await asyncio.sleep(0.125)
        return await fn(*args)

    # --- calls -------------------------------------------------------------------------------------------------

    async def runs(self, call: Call, start: float) -> None:
        """The task of a call: waits for its time, makes it, and writes down how it ended."""
        await asyncio.sleep(start)
        made = self.makes(call)
        try:
            if call.cancel_nth:
                value = await watched(made, self.counter(call))
            else:
                value = await made
            self.ends(call, repr(value)[:40])
        except (FailsoftError, ConnectionError, KeyError, TimeoutError) as error:
            self.ends(call, type(error).__name__)
            if isinstance(error, InternalError):
                self.violated("unexpected_errors", repr(error))
        except asyncio.CancelledError:
            self.note("end", call.index, "cancelled")
            if not call.cancels:
                self.violated("unexpected_errors", f"call {call.index} cancelled by nobody")
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.ends(call, type(error).__name__)
            self.violated("unexpected_errors", f"call {call.index} {call.sort}: {error!r} {error.__cause__!r}")

    def ends(self, call: Call, how: str) -> None:
        now = self.loop.time()
        self.note("end", call.index, how)
        if now > call.until and not call.deaf and not self.stalled:
            self.violated("ended_late", f"call {call.index} {call.sort} ended {how} at {now}, until {call.until}")
        if call.cancels and not call.deaf:
            self.violated("cancel_swallowed", f"call {call.index} {call.sort} ended {how}")

    def counter(self, call: Call) -> Callable[[Any], None]:
        left = call.cancel_nth

        def suspended(awaited: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                if call.granted_first and asyncio.isfuture(awaited):
                    awaited.add_done_callback(lambda _: self.cancel(call))
                else:
                    self.cancel(call)

        return suspended

    def cancel(self, call: Call) -> None:
        if not call.task.done():
            call.cancels += 1
            self.seen["cancels"] += 1
            self.note("cancel", call.index)
            call.task.cancel()

    async def makes(self, call: Call) -> Any:
        """The call itself, in a scope with a deadline or without."""
        rng, loop = self.rng, self.loop
        labels = {
            "tenant": rng.choice([None, None, "x", "y"]),
            "priority": rng.choice([Priority.NORMAL, Priority.NORMAL, Priority.CRITICAL, Priority.OPTIONAL]),
            "fallback": rng.random() < 0.1,
            "task": str(call.index),
        }
        if rng.random() < 0.5:
            seconds = instant(rng, 4.0)
            call.until = loop.time() + seconds
            async with deadline_scope(seconds, limit=rng.choice(["run", "task"]), **labels):
                return await self.sort(call)
        with scope(**labels):
            return await self.sort(call)

    async def sort(self, call: Call) -> Any:
        rng = self.rng
        guard = rng.choice(self.guards)
        options: dict[str, Any] = {}
        if rng.random() < 0.2:
            options["kind"] = rng.choice(["query", "action", "external"])
        if rng.random() < 0.3:
            options["timeout"] = instant(rng, 2.0) + 0.125
        if rng.random() < 0.1:
            options["size"] = rng.choice([0.5, 4.0])
        call.sort = sort = rng.choices(
            ["call", "fetch", "stream", "thread", "ladder", "nested", "group"], [40, 14, 14, 10, 8, 6, 8]
        )[0]
        self.seen[sort] += 1
        self.note("make", call.index, sort, guard.name, repr(call.scripts), sorted(options.items()))
        limit = options.get("timeout", guard.policy.call_timeout)
        within = math.inf if limit is None else self.loop.time() + limit
        if sort == "call":
            call.until = min(call.until, within)
            if rng.random() < 0.1:
                options["idempotency_key"] = "k"
            return await guard.call(self.callee, call, **options)
        if sort == "thread":
            call.until = min(call.until, within)
            return await guard.call_sync(self.in_thread, call, **options)
        if sort == "fetch":
            call.deaf = call.deaf and not guard.policy.coalesce  # a flight is not waited for
            options["kind"] = "query"
            return await guard.fetch(rng.choice("pq"), self.callee, call, **options)
        if sort == "stream":
            return await self.streams(call, guard, options)
        if sort == "ladder":
            other = rng.choice(self.guards)
            rungs = [
                Rung("one", lambda: guard.call(self.callee, call, **options)),
                Rung("two", lambda: other.call(self.callee, call), reserve=rng.choice([0.0, 0.5])),
                Rung("three", partial(asyncio.sleep, 0.125, "default"), kind="default", equivalent=False),
            ]
            return (await climb(rungs)).value
        if sort == "nested":
            inner = rng.choice(self.guards)  # of the same guard it may wait for itself, but not for ever
            return await guard.call(partial(inner.call, timeout=4.0), self.callee, call, **options)
        # Not a TaskGroup: before Python 3.13 that one itself leaves cancelling() at 1 when a child fails.
        pair = [self.loop.create_task(guard.call(self.callee, call, **options)) for _ in range(2)]
        try:
            await asyncio.wait(pair)
        except asyncio.CancelledError:
            for one in pair:
                one.add_done_callback(lambda task: task.cancelled() or task.exception())
                one.cancel()
            raise
        return [type(one.exception()).__name__ for one in pair]

    async def streams(self, call: Call, guard: Guard, options: dict[str, Any]) -> Any:
        rng = self.rng
        leaves_after = rng.choice([None, None, 0, 1])
        pause = rng.choice([0.0, 0.0, 0.5])
        limits = {
            "first_item": rng.choice([None, 0.5]),
            "idle": rng.choice([None, 0.5]),
            "total": rng.choice([None, 1.0, 2.0]),
            "content": rng.choice([None, bool]),
        }
        got = 0
        call.deaf = call.deaf or pause > 0.0
        async with guard.stream(self.items, call, **limits, **options) as items:
            async for _ in items:
                got += 1
                if leaves_after is not None and got > leaves_after:
                    break
                if pause:
                    await asyncio.sleep(pause)
        return got

    # --- what happens meanwhile ------------------------------------------------------------------------------------

    def disturb(self) -> None:
        rng, loop = self.rng, self.loop
        for _ in range(rng.choice([0, 0, 1, 2])):
            guard = rng.choice(self.guards)
            at = instant(rng, 4.0)
            what = rng.choice(["reconfigure", "reconfigure", "stall", "open", "close", "intercept"])
            loop.call_at(at, self.disturbs, what, guard, rng.choice(self.policies), rng.choice([0.125, 0.5, 4.0]))

    def disturbs(self, what: str, guard: SpiedGuard, policy: Policy, seconds: float) -> None:
        self.seen[what] += 1
        self.note(what, guard.name, seconds)
        now = self.loop.time()
        if what == "reconfigure":
            self.note("to", repr(policy))
            guard.reconfigure(policy)
        elif what == "stall":
            self.stalled = True
            self.loop.stall(seconds)
        elif what == "open":
            guard.breaker.force_open(now, for_=seconds)
        elif what == "close":
            guard.breaker.force_close(now)
        else:
            guard.interceptor = None if guard.interceptor is not None else self.interceptor

    def prime(self, guard: Guard) -> None:
        """What many successes of 1/8 s would have taught it: so calls are hedged, unaffordable and doomed."""
        for _ in range(20):
            guard.latency.record(0.125, 0.0)
            assert guard.bulkhead.try_acquire(0.0)
            guard.bulkhead.release(0.0, latency=0.125)
        guard.budget.deposits += 20

    # --- the whole ---------------------------------------------------------------------------------------------

    async def happens(self) -> None:
        rng, loop = self.rng, self.loop
        for guard in self.guards:
            if rng.random() < 0.5:
                self.prime(guard)
        self.disturb()
        me = asyncio.current_task()
        for call in self.calls:
            call.task = loop.create_task(self.runs(call, instant(rng, 2.0)))
            if call.cancel_at is not None:
                loop.call_at(call.cancel_at, self.cancel, call)
        await asyncio.sleep(HORIZON)
        left = asyncio.all_tasks() - {me}
        if left:
            self.violated("tasks", " ".join(sorted(map(repr, left))))
        for call in self.calls:
            if call.task.cancelling() != call.cancels:
                self.violated("cancelling_left", f"call {call.index} {call.sort}: {call.task.cancelling()}")
        for guard in self.guards:
            self.look(guard)
        if armed := len(heap_of(loop)):
            self.violated("alarms", str(armed))
        for task in left:
            task.cancel()
        for guard in self.guards:
            await self.use(guard)
        if rng.random() < 0.03:
            await self.use_thread()
        await self.kernel.aclose()
        await asyncio.sleep(1.0)

    def look(self, guard: SpiedGuard) -> None:
        """Nothing is held by anybody."""
        figures, bulkhead = guard.statistics(), guard.bulkhead
        if figures.in_use or bulkhead._held or bulkhead._fallback_in_use:
            self.violated("permits_in_use", f"{bulkhead!r} {guard.holders()}")
        if figures.waiting or bulkhead._queue.queued or bulkhead._queue.fallback_waiting:
            self.violated("waiting", repr(bulkhead))
        if figures.orphans or len(guard._tickets) or guard._children or len(guard.flights):
            self.violated("children", f"{figures.orphans} {guard.holders()} {guard._children} {guard.flights!r}")
        if guard.breaker.live:
            self.violated("probes_unsettled", repr(guard.breaker))
        if guard.settlements != guard._attempts:
            self.violated("settled_not_once", f"{guard.settlements} of {guard._attempts} in {guard.name}")
        if guard.released != guard._attempts:
            self.violated("released_not_once", f"{guard.released} of {guard._attempts} in {guard.name}")
        if self.kernel.bus.errors:
            self.violated("unexpected_errors", repr(self.kernel.bus.last_error))

    async def use(self, guard: SpiedGuard) -> None:
        """Whatever happened: put to rights, it serves."""
        guard.interceptor = None
        guard.reconfigure(Policy(bulkhead=BulkheadPolicy(permits=1, queue=0)))
        guard.breaker.force_close(self.loop.time())
        try:
            assert await guard.call(asyncio.sleep, 0.0, "usable") == "usable"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.violated("unusable", f"{guard!r} {error!r}")

    async def use_thread(self) -> None:
        """A real thread, alone, so that the order of what happens is the same each time: in time or left behind."""
        self.seen["real threads"] += 1
        guard = SpiedGuard("t", Policy(), self.kernel, self)
        go, loop = VirtualEvent(self.loop), self.loop
        began, wakes = loop.time(), self.rng.choice([0.25, 2.0])
        loop.call_at(began + wakes, go.set)
        try:
            ended = repr(await guard.call_sync(go.wait, timeout=1.0))
        except FailsoftError as error:
            ended = error.code
        self.note("thread", ended)
        if loop.time() != began + min(1.0, wakes):
            self.violated("ended_late", f"a thread's call at {loop.time()}, begun {began}")
        await asyncio.sleep(4.0)
        self.look(guard)
        await guard.aclose()


def one_world(seed: int, index: int, policies: list[Policy], loop: Loop) -> World:
    """Runs the world of that number."""
    world = World(f"{seed}:{index}", policies, loop)
    loop.run_until_complete(world.happens())
    for complaint in loop.complaints:
        world.violated("unexpected_errors", complaint)
    loop.complaints.clear()
    loop.rewind()
    return world


class Interleavings:
    """Worlds 0 to n - 1 of a seed, with their counts."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = random.Random(f"policies:{seed}")
        self.policies = [drawn_policy(rng) for _ in range(POOL)]
        self.loop = Loop()
        self.hash = hashlib.blake2b(digest_size=16)
        self.violations: Counter[str] = Counter(dict.fromkeys(INVARIANTS, 0))
        self.seen: Counter[str] = Counter()
        self.worst: list[str] = []
        self.calls = 0

    def run(
        self, n: int, progress: Callable[[int], None] = lambda _: None, *, until: Callable[[], bool] = lambda: False
    ) -> None:
        """All `n` of them, or as many as it takes `until` something was seen."""
        warnings.simplefilter("error")
        unraisable, sys.unraisablehook = sys.unraisablehook, self._unraisable
        try:
            for index in range(n):
                self._one(index)
                if index % 256 == 255:
                    gc.collect()
                    progress(index + 1)
                if until():
                    break
        finally:
            sys.unraisablehook = unraisable

    def _unraisable(self, what: Any) -> None:
        self.loop.complaints.append(f"{what.err_msg}: {what.exc_value!r} {what.object!r}")

    def _one(self, index: int) -> World:
        world = one_world(self.seed, index, self.policies, self.loop)
        self.hash.update(repr(world.trace).encode())
        self.calls += len(world.calls)
        self.seen.update(world.seen)
        for invariant, what in world.violations:
            self.violations[invariant] += 1
            if self.violations[invariant] <= SHOWN:
                self.worst.append(f"world {index}: {invariant}: {what}")
        return world

    def close(self) -> None:
        self.loop.close()

    def figures(self, n: int) -> dict[str, Any]:
        return {
            "interleavings": n,
            "seed": self.seed,
            "violations": dict(self.violations),
            "total": sum(self.violations.values()),
            "trace": self.hash.hexdigest(),
            "calls": self.calls,
            "seen": dict(sorted(self.seen.items())),
        }


def bar(n: int) -> Callable[[int], None]:
    began = time.monotonic()

    def show(done: int) -> None:
        took = time.monotonic() - began
        filled = 30 * done // n
        left = took / done * (n - done)
        print(
            f"\r[{'#' * filled}{'.' * (30 - filled)}] {done}/{n}  {left:4.0f} s left",
            end="",
            file=sys.stderr,
            flush=True,
        )

    return show


def replay(seed: int, index: int) -> int:
    """Prints one world's trace."""
    worlds = Interleavings(seed)
    world = one_world(seed, index, worlds.policies, worlds.loop)
    for name, policy in world.first_policies:
        print(name, policy)
    for line in world.trace:
        print(*line)
    worlds.close()
    return 1 if world.violations else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=100_000, help="how many interleavings")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="replay the world of this number and print its trace")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.only is not None:
        return replay(options.seed, options.only)
    worlds = Interleavings(options.seed)
    began = time.process_time()
    worlds.run(options.n, bar(options.n) if sys.stderr.isatty() or options.n >= 10_000 else lambda _: None)
    worlds.close()
    figures = worlds.figures(options.n)
    figures["cpu_seconds"] = round(time.process_time() - began, 1)
    for line in worlds.worst:
        print(line, file=sys.stderr)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, count in figures["violations"].items():
            print(f"{name:22} {count}")
        print(f"{options.n} interleavings, {worlds.calls} calls, trace {figures['trace']}")
    return 1 if figures["total"] else 0


if __name__ == "__main__":
    sys.exit(main())
