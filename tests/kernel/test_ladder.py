"""The ladder: rungs in order, time reserved for the lower ones, provenance that tells."""

import asyncio

import pytest

from failsoft.base.errors import DownstreamUnavailable
from failsoft.base.outcomes import Outcome, Provenance
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.ladder import Rung, climb
from failsoft.kernel.scope import current_scope


async def good():
    return "value"


async def bad():
    raise DownstreamUnavailable("gone")


async def hang():
    await asyncio.sleep(10_000)


async def test_the_first_rung_that_serves_is_no_degradation():
    outcome = await climb([Rung("a", good), Rung("b", bad, kind="alternate")])
    assert outcome.value == "value"
    assert not outcome.degraded
    assert outcome.provenance.to_dict()["served"] == "a"


async def test_a_lower_rung_tells_why_and_what_was_tried():
    outcome = await climb([Rung("a", bad), Rung("b", good, kind="alternate", equivalent=False)], requested="table")
    p = outcome.provenance
    assert (p.requested, p.served, p.rung, p.reason) == ("table", "b", "alternate", "downstream_unavailable")
    assert [t.rung for t in p.tried] == ["a"]
    assert outcome.degraded


async def test_an_equivalent_alternate_gives_a_complete_result():
    outcome = await climb([Rung("a", bad), Rung("b", good, kind="alternate", equivalent=True)])
    assert not outcome.degraded


async def test_when_nothing_serves_the_outcome_says_so_instead_of_raising():
    outcome = await climb([Rung("a", bad)])
    assert outcome.value is None
    assert outcome.provenance.rung == "skipped"
    assert outcome.provenance.reason == "downstream_unavailable"
    assert outcome.degraded


async def test_a_hanging_first_rung_leaves_the_next_its_usual_time():
    loop = asyncio.get_running_loop()
    async with deadline_scope(10.0):
        outcome = await climb([Rung("a", hang), Rung("b", good, kind="alternate", reserve=3.0)])
    assert loop.time() == 7.0
    assert outcome.provenance.reason == "task_timeout"
    assert outcome.provenance.remaining == 3.0


async def test_a_rung_whose_breaker_is_open_is_passed_over():
    outcome = await climb([Rung("a", hang, available=lambda: False), Rung("b", good, kind="stale", equivalent=False)])
    assert outcome.provenance.reason == "breaker_open"
    assert asyncio.get_running_loop().time() == 0.0


async def test_lower_rungs_are_marked_as_fallback_traffic():
    seen = []

    async def look():
        seen.append(current_scope().fallback)
        if len(seen) == 1:
            raise ConnectionError

    await climb([Rung("a", look), Rung("b", look, kind="alternate")])
    assert seen == [False, True]


async def test_an_outcome_from_below_keeps_its_age():
    async def stale():
        return Outcome("old", Provenance(requested="x", served="cache", rung="stale", age=60.0, equivalent=False))

    outcome = await climb([Rung("a", bad), Rung("cache", stale, kind="stale", equivalent=False)])
    assert outcome.provenance.age == 60.0
    assert outcome.provenance.rung == "stale"
    assert outcome.degraded


async def test_cancellation_passes_through():
    task = asyncio.create_task(climb([Rung("a", hang), Rung("b", good)]))
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_empty_ladder_is_a_mistake():
    with pytest.raises(ValueError, match="at least one"):
        await climb([])
