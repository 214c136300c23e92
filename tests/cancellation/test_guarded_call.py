"""A guarded call is cancelled at every await there is, while suspended and just as what it awaited came true."""

import asyncio
from dataclasses import replace

import pytest

from failsoft.base.errors import Unaffordable
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Guard, guard
from failsoft.kernel.ladder import Rung, climb
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.testing.cancellation import cancel_at_every_await

BASE = Policy(
    attempt_timeout=2.0,
    call_timeout=30.0,
    retry=RetryPolicy(queries=1, base=0.5, spread=0.0),
    bulkhead=BulkheadPolicy(permits=1, queue=4),
    breaker=BreakerPolicy(ramp=0.0),
)


class Bench:
    """Makes a fresh guard for each run and checks afterwards that nothing is held."""

    def __init__(self, policy: Policy = BASE) -> None:
        self.policy = policy
        self.guard: Guard

    async def fresh(self) -> Guard:
        self.guard = guard("d", self.policy)
        return self.guard

    async def occupied(self, seconds: float = 1.0) -> Guard:
        """A guard whose only permit comes free after `seconds`."""
        g = await self.fresh()
        loop = asyncio.get_running_loop()
        assert g.bulkhead.try_acquire(loop.time())
        loop.call_later(seconds, lambda: g.bulkhead.release(loop.time()))
        return g

    async def check(self) -> None:
        await asyncio.sleep(60.0)
        figures = self.guard.statistics()
        assert (figures.in_use, figures.waiting, figures.orphans) == (0, 0, 0)
        assert not self.guard.holders()
        assert await self.guard.call(ok) == "ok"  # nobody's wake-up was lost
        await self.guard.aclose()


async def ok() -> str:
    await asyncio.sleep(0)
    return "ok"


async def twice() -> None:
    await asyncio.sleep(0.5)
    await asyncio.sleep(0.5)


def test_a_plain_call():
    bench = Bench()

    async def make():
        await (await bench.fresh()).call(twice)

    assert cancel_at_every_await(make, bench.check) == 2


def test_waiting_for_a_permit():
    bench = Bench()

    async def make():
        await (await bench.occupied()).call(twice)

    assert cancel_at_every_await(make, bench.check) >= 3


def test_a_retry_with_its_backoff():
    bench = Bench()

    async def make():
        g = await bench.fresh()
        tries = []

        async def flaky():
            tries.append(1)
            await asyncio.sleep(0.1)
            if len(tries) == 1:
                raise ConnectionError

        await g.call(flaky)

    assert cancel_at_every_await(make, bench.check) == 3


def test_an_attempt_that_times_out_and_is_retried():
    bench = Bench()

    async def make():
        g = await bench.fresh()
        tries = []

        async def slow_once():
            tries.append(1)
            await asyncio.sleep(60 if len(tries) == 1 else 0.1)

        await g.call(slow_once)

    assert cancel_at_every_await(make, bench.check) == 3


def test_a_probe_of_a_half_open_breaker():
    bench = Bench(
        replace(
            BASE,
            breaker=BreakerPolicy(
                consecutive_failures=1, open_for=1.0, open_jitter=0.0, probes=1, close_after=1, ramp=0.0
            ),
        )
    )

    async def make():
        g = await bench.fresh()
        g.breaker.force_open(asyncio.get_running_loop().time(), for_=1.0)
        await asyncio.sleep(2.0)
        await g.call(twice)

    assert cancel_at_every_await(make, bench.check) == 3


def test_a_deadline_scope_around_a_ladder():
    bench = Bench()

    async def make():
        g = await bench.fresh()
        async with deadline_scope(10.0):
            outcome = await climb(
                [Rung("a", lambda: g.call(asyncio.sleep, 60)), Rung("b", lambda: g.call(twice), reserve=2.0)]
            )
        assert outcome.provenance.served == "b"

    assert cancel_at_every_await(make, bench.check) >= 3


def test_a_detached_callee():
    bench = Bench(replace(BASE, detachable=True))

    async def make():
        await (await bench.fresh()).call(twice)

    assert cancel_at_every_await(make, bench.check) == 1


def test_a_thread():
    bench = Bench()

    async def make():
        await (await bench.fresh()).call_sync(int)

    assert cancel_at_every_await(make, bench.check) == 1


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0, 1.5])
async def test_a_deadline_at_the_very_instant_of_a_grant_or_an_end_leaves_nothing_behind(at):
    bench = Bench()
    g = await bench.occupied(1.0)
    with pytest.raises((TimeoutError, Unaffordable)):
        async with deadline_scope(at):
            await g.call(asyncio.sleep, 0.5)
    await bench.check()
