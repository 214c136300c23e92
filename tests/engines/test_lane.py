"""The background lane: places in order, none lost, none given twice."""

import asyncio

from failsoft.engines.lane import Lane
from failsoft.testing.cancellation import cancel_at_every_await


async def test_places_are_given_in_order():
    lane = Lane(2, 3)
    order: list[int] = []

    async def one(i: int) -> None:
        await lane.enter()
        order.append(i)
        await asyncio.sleep(1)
        lane.leave()

    async with asyncio.TaskGroup() as tasks:
        for i in range(5):
            tasks.create_task(one(i))
        await asyncio.sleep(0.5)
        assert (order, lane.in_use, lane.waiting, lane.full) == ([0, 1], 2, 3, True)
    assert order == [0, 1, 2, 3, 4]
    assert repr(lane) == "<Lane 0/2 waiting=0>"


async def test_who_comes_later_does_not_overtake():
    lane = Lane(1)
    await lane.enter()
    waiting = asyncio.ensure_future(lane.enter())
    await asyncio.sleep(0)
    lane.leave()
    late = asyncio.ensure_future(lane.enter())
    await asyncio.sleep(0)
    assert waiting.done()
    assert not late.done()
    lane.leave()
    await late
    lane.leave()
    assert lane.in_use == 0


def test_no_place_is_lost_wherever_a_wait_is_cancelled():
    lanes: list[Lane] = []

    async def make():
        lane = Lane(1)
        lanes[:] = [lane]
        await lane.enter()
        asyncio.get_running_loop().call_later(1, lane.leave)
        await lane.enter()
        lane.leave()

    async def check():
        await asyncio.sleep(2)
        assert (lanes[0].in_use, lanes[0].waiting) == (0, 0)

    assert cancel_at_every_await(make, check) >= 1
