"""Thousands of calls that begin in one pass of the loop made it long, and one of them was blamed for all of it: after
three such passes its downstream's breaker opened, with everybody behind it, and nothing had been wrong.
"""

import asyncio
import ctypes
import time

import pytest
from tests.kernel.test_watchdog import blocking

from failsoft.base.events import EventBus
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.watchdog import LoopWatchdog

POLICY = Policy(bulkhead=BulkheadPolicy(permits=5_000, queue=5_000))


def work(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class World:
    async def __aenter__(self):
        self.stalls = []
        self.kernel = Kernel(bus=EventBus([lambda event: self.stalls.append(event.data)]))
        self.guard = self.kernel.guard("crowded", POLICY)
        self.watchdog = LoopWatchdog(self.kernel.bus, kernel=self.kernel)
        self.watchdog.start()
        await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *error):
        self.watchdog.stop()

    def blamed(self):
        return [one.downstream for one in self.stalls if hasattr(one, "asyncio_task")]


@blocking
@pytest.mark.realtime
async def test_many_short_steps_in_one_pass_are_nobodys_fault():
    async def step():
        work(0.0002)

    async with World() as world:
        for _ in range(3):
            await asyncio.gather(*(world.guard.call(step) for _ in range(2_000)))
            await asyncio.sleep(0.05)
        assert set(world.blamed()) == {None}  # three of them, and more where the machine is busy elsewhere
        assert world.guard.statistics().breaker == "closed"


@blocking
@pytest.mark.realtime
@pytest.mark.parametrize("how", ["in Python", "in C, with the interpreter locked"])
async def test_one_long_step_is_its_downstreams(how):
    async def step():
        if how == "in Python":
            work(0.4)
        else:
            ctypes.PyDLL(None).usleep(400_000)

    async with World() as world:
        await world.guard.call(step)
        await asyncio.sleep(0.1)
        assert world.blamed()[0] == "crowded"
