"""What has failed is let go of at once: a traceback that holds the frame that holds the error is a cycle, which only
the garbage collector finds, and on a busy platform that stops everybody for as long as it looks: half a second, once.
"""

import asyncio
import contextlib
import gc
from dataclasses import replace

import pytest
from tests.runs.worlds import agent, plan, task

from failsoft.app import App
from failsoft.config import Settings
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.guard import guard
from failsoft.kernel.ladder import Rung, climb
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.runs.result import RunRequest

RUNS = 40
MOST = 5
"""Objects of a run that only the collector finds: none, but for what asyncio itself may leave now and then."""


async def refuse():
    raise ConnectionResetError("no")


async def served():
    return 1


async def garbage_of(make, forget=lambda: None, times=RUNS):
    """Objects per time that are left to the garbage collector, when what is kept on purpose is forgotten."""
    for _ in range(3):
        await make()
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            await make()
        await asyncio.sleep(1.0)
        forget()
        return gc.collect() / times
    finally:
        gc.enable()


PLAIN = Policy(
    call_timeout=None,
    retry=RetryPolicy(queries=0),
    breaker=None,
    bulkhead=BulkheadPolicy(permits=1, queue=0),
)
POLICIES = {
    "plain": PLAIN,
    "limited": replace(PLAIN, attempt_timeout=0.1),
    "limited as a whole": replace(PLAIN, call_timeout=0.1),
    "detachable": replace(PLAIN, attempt_timeout=0.1, detachable=True),
    "retried": replace(PLAIN, retry=RetryPolicy(queries=2, base=0.01), retry_ratio=1.0),
}


async def hang():
    await asyncio.sleep(1000)


def defect():
    raise ValueError("no")


async def swallowed(call, *args):
    with contextlib.suppress(Exception):
        await call(*args)


ENDING = [(name, callee) for name in POLICIES for callee in (served, refuse)]
LATE = [(name, hang) for name in ("limited", "limited as a whole", "detachable")]


@pytest.mark.parametrize(("policy", "callee"), [*ENDING, *LATE])
async def test_a_guarded_call(policy, callee):
    one = guard("d", POLICIES[policy])
    assert await garbage_of(lambda: swallowed(one.call, callee)) <= 0.5


@pytest.mark.parametrize("callee", [int, defect])
async def test_a_guarded_thread(callee):
    one = guard("d", PLAIN)
    assert await garbage_of(lambda: swallowed(one.call_sync, callee)) <= 0.5


async def test_a_refused_call():
    broken, full = guard("d", replace(PLAIN, breaker=BreakerPolicy())), guard("e", PLAIN)
    broken.breaker.force_open(0.0)
    held = asyncio.create_task(full.call(hang))
    await asyncio.sleep(0.1)
    for one in (broken, full):
        assert await garbage_of(lambda one=one: swallowed(one.call, served)) <= 0.5
    held.cancel()


async def test_a_ladder_whose_first_rung_fails():
    assert await garbage_of(lambda: climb([Rung("main", refuse), Rung("backup", served)])) <= 0.5


@pytest.mark.parametrize("tool", ["work", "broken", "with_default"])
@pytest.mark.parametrize("breaker", ["closed", "open"])
async def test_a_run(tool, breaker):
    made = App(Settings(agent="tester"), agents=[agent(plan(task("t", tool), task("u")))], store="off")
    async with made as app:
        for name in ("broken", "guarded"):
            if breaker == "open":
                app.guards[name].breaker.force_open(0.0)

        async def ask():
            await app.start(RunRequest("q")).result()

        assert await garbage_of(ask, app._remembered.clear) <= MOST
