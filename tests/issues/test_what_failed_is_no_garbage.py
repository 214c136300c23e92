"""What has failed is let go of at once: a traceback that holds the frame that holds the error is a cycle, which only
the garbage collector finds, and on a busy platform that stops everybody for as long as it looks: half a second, once.
"""

import asyncio
import gc

import pytest
from tests.runs.worlds import agent, plan, task

from failsoft.app import App
from failsoft.config import Settings
from failsoft.kernel.ladder import Rung, climb
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
