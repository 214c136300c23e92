"""Writing behind: what is written at once, what is gathered, and how often durations are."""

import asyncio
from contextlib import asynccontextmanager

from failsoft.base.events import Event
from failsoft.runs.crew import Crew
from failsoft.runs.progress import History
from failsoft.runs.recorder import Recorder
from failsoft.stores.memory import MemoryStore


class Counting(MemoryStore):
    """Knows when it was written to, with how many events, and which durations."""

    def __init__(self):
        super().__init__()
        self.writes = []
        self.kept = []

    async def write(self, writes):
        now = asyncio.get_running_loop().time()
        self.writes.append((now, sum(len(one.events) for one in writes)))
        return [None for _ in writes]

    async def record_durations(self, durations):
        self.kept.append([one.seconds for one in durations])


@asynccontextmanager
async def recording():
    loop = asyncio.get_running_loop()
    store, crew, history = Counting(), Crew(loop), History()
    recorder = Recorder(store, crew, history, lambda: 0.0)
    working = loop.create_task(recorder.work())
    await asyncio.sleep(0)
    try:
        yield recorder, store, history
    finally:
        working.cancel()
        await crew.aclose()


def event(number):
    return Event("said", 0.0, None, "run", None, None, number, 1, None)


async def test_what_may_wait_is_written_with_what_comes_within_a_moment():
    async with recording() as (recorder, store, _):
        for number in range(1, 6):
            recorder.put(event(number), soon=False)
            await asyncio.sleep(0.0015)
        await asyncio.sleep(1)
        recorder.put(event(6), soon=False)
        await asyncio.sleep(1)
        assert [count for _, count in store.writes] == [5, 1]


async def test_what_must_not_wait_takes_along_what_came_before_it():
    async with recording() as (recorder, store, _):
        recorder.put(event(1), soon=False)
        recorder.put(event(2))
        await asyncio.sleep(0.001)
        assert store.writes == [(0.0, 2)]
        recorder.put(event(3), soon=False)
        assert await recorder.flush(0.001)
        assert [count for _, count in store.writes] == [2, 1]


async def test_a_full_group_does_not_wait():
    async with recording() as (recorder, store, _):
        for number in range(1, 250):
            recorder.put(event(number), soon=False)
        await asyncio.sleep(0.001)
        assert store.writes == [(0.0, 200)]
        await asyncio.sleep(1)
        assert [count for _, count in store.writes] == [200, 49]


async def test_durations_are_written_once_a_second_the_newest_only_and_at_the_end():
    async with recording() as (recorder, store, history):
        recorder.put(event(1))
        await asyncio.sleep(0.1)
        for number in range(80):
            history.note("key", float(number))
        recorder.put(event(2))
        await asyncio.sleep(0.1)
        history.note("key", 80.0)
        recorder.put(event(3))
        await asyncio.sleep(2)
        assert store.kept == []
        recorder.put(event(4))
        await asyncio.sleep(0.1)
        assert store.kept == [[float(number) for number in range(31, 81)]]
        history.note("key", 81.0)
        await recorder.drain()
        assert store.kept[1:] == [[81.0]]
