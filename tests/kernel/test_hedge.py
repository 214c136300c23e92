"""Hedges: after the usual time, when there is room; the first answer wins, the loser is cancelled and censored."""

import asyncio
from dataclasses import replace

import pytest

from failsoft.base.errors import AttemptTimeout
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.guard import Guard, guard
from failsoft.kernel.policy import HedgePolicy, Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.testing.cancellation import cancel_at_every_await

POLICY = Policy(
    attempt_timeout=5.0,
    call_timeout=20.0,
    hedge=HedgePolicy(),
    retry=RetryPolicy(queries=0),
    bulkhead=BulkheadPolicy(permits=4, queue=4),
    breaker=BreakerPolicy(ramp=0.0),
)


class Server:
    """Takes `slow` seconds for the calls whose numbers are in `which`, 0.1 s for the others."""

    def __init__(self, slow=3.0, which=()):
        self.slow, self.which = slow, which
        self.started = self.cancelled = 0

    async def __call__(self):
        self.started += 1
        number = self.started
        try:
            await asyncio.sleep(self.slow if number in self.which else 0.1)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return number


async def warmed(policy=POLICY, calls=40) -> Guard:
    g = guard("d", policy)
    for _ in range(calls):
        await g.call(Server())
    return g


async def test_the_hedge_comes_after_the_quantile_that_the_policy_names():
    g = guard("d", replace(POLICY, hedge=HedgePolicy(quantile=0.5, minimum=0.0)))
    for number in range(40):
        await g.call(asyncio.sleep, 0.1 if number % 4 else 0.3)
    assert g.hedge_delay() == pytest.approx(0.1, rel=0.1)
    g.reconfigure(replace(POLICY, hedge=HedgePolicy(quantile=0.9, minimum=0.0)))
    g.latency.refresh(g.now())
    assert g.hedge_delay() == pytest.approx(0.3, rel=0.1)


async def test_nothing_is_hedged_while_the_usual_time_is_unknown():
    g = guard("d", POLICY)
    server = Server(which={1})
    await g.call(server)
    assert server.started == 1


async def test_a_slow_query_is_answered_by_its_second_leg_and_the_first_is_cancelled():
    g = await warmed()
    server = Server(which={1})
    began = asyncio.get_running_loop().time()
    assert await g.call(server) == 2
    took = asyncio.get_running_loop().time() - began
    assert took == pytest.approx(0.2, rel=0.05)
    await asyncio.sleep(0.01)  # the cancelled leg ends
    assert (server.started, server.cancelled) == (2, 1)
    figures = g.statistics()
    assert (figures.hedges, figures.in_use, figures.orphans) == (1, 0, 0)
    assert figures.ok == 41
    assert figures.neutral == 1


async def test_the_first_leg_may_still_win():
    g = await warmed()
    server = Server(slow=0.15, which={1, 2})
    assert await g.call(server) == 1
    await asyncio.sleep(0.01)  # the cancelled leg ends
    assert server.cancelled == 1
    assert g.statistics().in_use == 0


async def test_an_action_is_never_hedged():
    g = await warmed()
    server = Server(which={1})
    await g.call(server, kind="action")
    assert server.started == 1


async def test_a_hedge_needs_a_free_permit_and_an_empty_queue():
    g = await warmed(replace(POLICY, bulkhead=BulkheadPolicy(permits=1, queue=4)))
    server = Server(which={1})
    await g.call(server)
    assert server.started == 1
    assert g.statistics().hedges == 0


async def test_in_a_global_slowdown_hedges_keep_to_their_share_and_primaries_are_unharmed():
    g = await warmed(replace(POLICY, bulkhead=BulkheadPolicy(permits=50, queue=50)), calls=60)
    server = Server(slow=1.0, which=range(10_000))
    before = g.statistics()
    for _ in range(200):
        await g.call(server)
    hedges = g.statistics().hedges - before.hedges
    assert hedges <= (60 + 200) * 0.05 + 1
    assert g.statistics().ok == 260


async def test_when_both_legs_fail_the_first_error_is_raised():
    g = await warmed()
    legs = []

    async def fails():
        legs.append(1)
        number = len(legs)
        await asyncio.sleep(0.3)
        raise ValueError(f"leg {number}")

    with pytest.raises(ValueError, match="leg 1"):
        await g.call(fails)
    assert len(legs) == 2
    assert g.statistics().in_use == 0


async def test_a_first_leg_that_fails_waits_for_the_second():
    g = await warmed()
    legs = []

    async def first_fails():
        legs.append(1)
        if len(legs) == 1:
            await asyncio.sleep(0.15)
            raise ValueError
        await asyncio.sleep(0.1)
        return "second"

    assert await g.call(first_fails) == "second"
    assert g.statistics().in_use == 0


async def test_the_attempt_limit_ends_both_legs():
    g = await warmed()
    server = Server(slow=60, which={1, 2})
    with pytest.raises(AttemptTimeout):
        await g.call(server)
    await asyncio.sleep(0.01)  # the cancelled leg ends
    assert server.cancelled == 2
    assert g.statistics().in_use == 0


def test_cancelled_at_every_await_nothing_is_held():
    made: list[Guard] = []

    async def make():
        g = await warmed(calls=0)
        g.latency.healthy_tail = 0.1
        made.append(g)
        await g.call(Server(which={1}))

    async def check():
        await asyncio.sleep(10.0)
        figures = made[-1].statistics()
        assert (figures.in_use, figures.waiting, figures.orphans) == (0, 0, 0)

    assert cancel_at_every_await(make, check) == 1
