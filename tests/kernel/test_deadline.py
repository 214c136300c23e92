"""Deadline scopes: they tighten, cancel, tell their own cancellation from others', and forgive a stalled loop."""

import asyncio
import math

import pytest

from failsoft.base.errors import DeadlineExceeded, TaskTimeout
from failsoft.kernel.deadline import Alarm, Deadline, deadline_scope, heap_of, remaining
from failsoft.kernel.scope import current_scope, scope


async def test_a_scope_cancels_its_body_exactly_at_the_deadline():
    loop = asyncio.get_running_loop()
    with pytest.raises(DeadlineExceeded) as caught:
        async with deadline_scope(3.0):
            await asyncio.sleep(60)
    assert loop.time() == 3.0
    assert caught.value.limit == "run"
    assert asyncio.current_task().cancelling() == 0


async def test_a_body_that_ends_in_time_is_left_alone():
    async with deadline_scope(3.0) as deadline:
        await asyncio.sleep(2.0)
        assert deadline.remaining() == 1.0
        assert remaining() == 1.0
    assert remaining() == math.inf
    await asyncio.sleep(5.0)  # its alarm is gone
    assert len(heap_of(asyncio.get_running_loop())) == 0


async def test_an_inner_scope_can_only_tighten():
    async with deadline_scope(2.0):
        async with deadline_scope(60.0, limit="task") as inner:
            assert inner.when == 2.0
            assert inner.limit == "run"
        async with deadline_scope(1.0, limit="task") as inner:
            assert inner.when == 1.0


async def test_the_inner_scopes_end_names_the_task_and_leaves_the_outer_one_running():
    async with deadline_scope(2.0):
        with pytest.raises(TaskTimeout):
            async with deadline_scope(1.0, limit="task"):
                await asyncio.sleep(60)
        await asyncio.sleep(0.5)


async def test_detached_work_does_not_inherit_a_dead_deadline():
    async with deadline_scope(1.0), deadline_scope(10.0, detach=True) as own:
        assert own.when == 10.0


async def test_a_deadline_reaches_child_tasks_without_cancelling_them_through_the_parent():
    seen = []

    async def child():
        seen.append(current_scope().deadline)

    async with deadline_scope(5.0, run="r1"), asyncio.TaskGroup() as group:
        group.create_task(child())
    assert seen == [5.0]


async def test_a_cancellation_from_elsewhere_passes_through_unchanged():
    entered = asyncio.Event()

    async def body():
        async with deadline_scope(10.0):
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancellation_at_the_same_instant_as_the_deadline_wins():
    async def body():
        async with deadline_scope(1.0):
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    asyncio.get_running_loop().call_at(1.0, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_body_that_swallows_its_cancellation_is_late_all_the_same():
    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(1.0):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass  # the trap: "any result is a success"
    assert asyncio.current_task().cancelling() == 0


async def test_another_error_during_the_cancellation_is_kept():
    with pytest.raises(ZeroDivisionError):
        async with deadline_scope(1.0):
            try:
                await asyncio.sleep(60)
            finally:
                raise ZeroDivisionError
    assert asyncio.current_task().cancelling() == 0


async def test_scopes_ending_at_one_instant_each_raise_their_own():
    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(1.0), deadline_scope(1.0, limit="task"):
            await asyncio.sleep(60)
    assert asyncio.current_task().cancelling() == 0


async def test_a_deadline_in_the_past_cancels_at_the_first_await():
    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(0.0):
            await asyncio.sleep(60)
    assert asyncio.get_running_loop().time() == 0.0


async def test_a_result_that_was_there_when_a_stall_ended_is_taken():
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    loop.call_at(1.5, arrived.set_result, "answer")

    async def body():
        async with deadline_scope(2.0, limit="task"):
            return await arrived

    task = asyncio.create_task(body())
    loop.call_at(1.0, loop.stall, 1.5)  # awake again at 2.5, both timers late
    with pytest.raises(TaskTimeout):  # a scope is strict: what comes after the deadline is late
        await task


async def test_after_a_stall_what_is_still_pending_times_out():
    loop = asyncio.get_running_loop()
    loop.call_at(1.0, loop.stall, 5.0)
    with pytest.raises(DeadlineExceeded):
        async with deadline_scope(2.0):
            await asyncio.sleep(60)
    assert loop.time() == 6.0


async def test_one_timer_serves_many_alarms_and_dead_ones_are_compacted():
    loop = asyncio.get_running_loop()
    heap = heap_of(loop)
    alarms = [Alarm(10.0 + i, asyncio.current_task()) for i in range(1000)]
    for alarm in alarms:
        heap.arm(alarm)
    assert len(loop._scheduled) <= 1
    for alarm in alarms:
        heap.disarm(alarm)
        heap.disarm(alarm)
    assert len(heap) == 0
    assert len(heap._heap) <= 130


async def test_labels_reach_what_runs_inside_and_end_with_it():
    with scope(task="t1", tenant="acme"):
        assert current_scope().task == "t1"
        async with deadline_scope(1.0, run="r1"):
            assert (current_scope().run, current_scope().task, current_scope().tenant) == ("r1", "t1", "acme")
    assert current_scope().task is None
    with pytest.raises(TypeError, match="deadline_scope"), scope(deadline=1.0):
        pass


async def test_a_deadline_says_what_it_is():
    deadline = Deadline.after(2.0)
    assert deadline.remaining() == 2.0
    assert not deadline.expired()
    assert repr(deadline) == "Deadline(2.0, 'run')"
    assert deadline.error().code == "deadline_exceeded"
    with pytest.raises(ValueError, match="number"):
        deadline_scope(math.nan)
    with pytest.raises(TypeError):
        deadline_scope(1.0, at=2.0)
