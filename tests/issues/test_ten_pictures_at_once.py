"""The first ten questions for a picture met a server that had yet to import what draws: most got none, in three seconds
that ten threads spent on it together, and the breaker of all pictures opened.
"""

import asyncio

from failsoft.config import load_settings
from failsoft.examples.analyst.toolset import DOWNSTREAMS
from failsoft.kernel.guard import guard

SETTINGS = load_settings(None, defaults={"downstreams": DOWNSTREAMS})


async def test_ten_pictures_at_once_on_a_server_that_has_drawn_none_are_all_drawn():
    charts = guard("charts", SETTINGS.policy("charts"))
    interpreter = asyncio.Lock()  # one thread computes at a time
    imported = False

    async def draw():
        nonlocal imported
        async with interpreter:
            await asyncio.sleep(0.25 if imported else 2.25)
            imported = True
        return "picture"

    assert await asyncio.gather(*(charts.call(draw) for _ in range(10))) == ["picture"] * 10
    assert str(charts.breaker.state) == "closed"
