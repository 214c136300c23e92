"""The heap of alarms against a list: what fires, exactly when, and that nothing dead stays."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deep import depth

from failsoft.kernel.deadline import FIRED, FIRED_STALLED, NOT_FIRED, STALL, Alarm, DeadlineHeap
from failsoft.testing.clock import virtual_loop

TIMES = st.integers(0, 40).map(lambda eighths: eighths / 8)


class Recorded(Alarm):
    __slots__ = ("log",)

    def __init__(self, when, task, log):
        super().__init__(when, task)
        self.log = log

    def fire(self, how):
        self.log.append((self.when, asyncio.get_running_loop().time(), how))
        self.fired = how
        self.task = None


@settings(max_examples=depth(26, 100))
@given(st.lists(st.tuples(TIMES, st.one_of(st.none(), TIMES)), max_size=120))
async def test_each_alarm_fires_at_its_time_unless_it_was_disarmed_before(plan):
    loop = virtual_loop()
    heap, log, began = DeadlineHeap(loop), [], loop.time()
    task = asyncio.current_task()
    alarms = [Recorded(began + when, task, log) for when, _ in plan]
    for alarm, (_, off) in zip(alarms, plan, strict=True):
        if off is not None:  # set first, so that of what happens at one instant this comes first
            loop.call_at(began + off, heap.disarm, alarm)
    for alarm in alarms:
        heap.arm(alarm)
    assert len(heap) == len(alarms)
    await asyncio.sleep(10.0)
    expected = sorted(began + when for when, off in plan if off is None or off > when)
    certain = [at for at in expected if at not in {began + off for _, off in plan if off is not None}]
    fired = [when for when, _, _ in log]
    assert fired == sorted(fired)
    assert all(when == at and how == FIRED for when, at, how in log)
    assert set(certain) <= set(fired)
    assert [alarm.when for alarm in alarms if alarm.fired == NOT_FIRED].count(None) == 0
    for alarm, (when, off) in zip(alarms, plan, strict=True):
        if off is None or off > when:
            assert alarm.fired == FIRED
        elif off < when:
            assert alarm.fired == NOT_FIRED
        assert alarm.task is None
    assert len(heap) == 0
    assert repr(heap) == "<DeadlineHeap armed=0 dead=0>"
    assert not heap._heap


async def test_dead_entries_are_swept_when_they_are_most_of_the_heap():
    loop = virtual_loop()
    heap, task = DeadlineHeap(loop), asyncio.current_task()
    alive = Alarm(loop.time() + 5.0, task)
    heap.arm(alive)
    most = 0
    for number in range(1000):
        alarm = Alarm(loop.time() + 10.0 + number, task)
        heap.arm(alarm)
        heap.disarm(alarm)
        most = max(most, len(heap._heap))
        assert len(heap) == 1
    assert most == 65  # 64 dead ones are kept, the 65th sweeps
    heap.disarm(alive)
    heap.disarm(alive)
    assert len(heap) == 0


async def test_an_alarm_that_is_never_due_is_not_kept():
    heap = DeadlineHeap(virtual_loop())
    alarm = Alarm(float("inf"), asyncio.current_task())
    heap.arm(alarm)
    assert (len(heap), len(heap._heap), alarm.task) == (0, 0, None)


async def test_only_the_earliest_has_a_timer_and_it_moves_with_it():
    loop = virtual_loop()
    heap, task, log = DeadlineHeap(loop), asyncio.current_task(), []
    for when in (5.0, 3.0, 4.0):
        heap.arm(Recorded(when, task, log))
    assert [timer.when() for timer in loop._scheduled if not timer.cancelled()] == [3.0]
    await asyncio.sleep(3.5)
    assert 4.0 in [timer.when() for timer in loop._scheduled if not timer.cancelled()]
    await asyncio.sleep(3.0)
    assert log == [(3.0, 3.0, FIRED), (4.0, 4.0, FIRED), (5.0, 5.0, FIRED)]


async def test_a_timer_is_late_by_a_stall_from_more_than_a_tenth_of_a_second_on():
    for late, how in ((STALL - 0.001, FIRED), (STALL + 0.001, FIRED_STALLED)):
        loop = virtual_loop()
        heap, task, log, began = DeadlineHeap(loop), asyncio.current_task(), [], loop.time()
        heap.arm(Recorded(began + 1.0, task, log))
        loop.call_at(began + 0.5, loop.stall, 0.5 + late)
        await asyncio.sleep(10.0)
        assert [entry[2] for entry in log] == [how]
        assert len(heap) == 0


async def test_what_comes_in_the_passes_after_a_stall_disarms_in_time():
    """Eight passes: one polls and reads, one wakes the reader, the others whoever waits for whom behind it."""
    for passes, fires in ((8, False), (9, True)):
        loop = virtual_loop()
        heap, task, log, began = DeadlineHeap(loop), asyncio.current_task(), [], loop.time()
        alarm = Recorded(began + 1.0, task, log)
        heap.arm(alarm)

        def later(left, alarm=alarm, heap=heap, loop=loop):
            if left:
                loop.call_soon(later, left - 1)
            else:
                heap.disarm(alarm)

        loop.call_at(began + 0.5, loop.stall, 5.0)
        loop.call_at(began + 1.0, later, passes)  # due with the alarm, after it
        assert len(heap) == 1
        await asyncio.sleep(10.0)
        assert bool(log) == fires
        assert len(heap) == 0
