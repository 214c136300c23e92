"""A run's log: numbered without a gap, bounded, readable from any place, closed for good."""

import gc

import pytest
from tests.runs.worlds import app, plan, task

from failsoft.base.events import Event, EventBus
from failsoft.runs import event_log
from failsoft.runs.event_log import EventLog
from failsoft.runs.result import RunRequest
from failsoft.runs.scheduler import Scheduler
from failsoft.runs.serving import TaskState


def made() -> set[int]:
    """What drives runs, as far as it is there."""
    return {id(one) for one in gc.get_objects() if isinstance(one, Scheduler | TaskState)}


async def test_events_are_read_from_any_place_as_they_were_said():
    heard: list[Event] = []
    log = EventLog("r", "acme", EventBus([heard.append]), None)
    log.epoch = 3
    for number in range(5):
        log.emit("said", f"t{number}", {"n": number})
    assert log.since(0) == heard
    assert [event.id for event in log.since(2)] == ["3.3", "3.4", "3.5"]
    assert log.since(5) == log.since(9) == []
    assert log.since(4) == [Event("said", heard[4].at, None, "r", "t4", "acme", 5, 3, {"n": 4})]


async def test_the_oldest_are_dropped_and_the_numbers_go_on(monkeypatch):
    monkeypatch.setattr(event_log, "_KEPT", 3)
    log = EventLog("r", None, EventBus(), None)
    for number in range(1, 6):
        log.emit("odd" if number % 2 else "even", None, number)
    assert [(event.seq, event.data) for event in log.since(0)] == [(3, 3), (4, 4), (5, 5)]
    assert [data for _, data in log.last("odd", of=3)] == [5, 3]
    assert [data for _, data in log.last("odd", of=2)] == [5]


async def test_a_closed_log_takes_nothing_and_wakes_who_watches():
    log = EventLog("r", None, EventBus(), None)
    watcher = log.watch()
    log.closed = True
    log.emit("late")
    assert log.since(0) == []
    assert not watcher.done()
    log.tell(None)
    assert watcher.done()


@pytest.mark.parametrize("broken", [False, True])
async def test_an_ended_run_keeps_its_result_and_nothing_of_what_made_it(broken):
    tasks = [task("a", seconds=1.0), task("b", "broken" if broken else "work", ["a"]), task("c", needs=["b"])]
    gc.collect()
    before = made()
    gc.disable()  # nothing of it is to wait for the collector
    try:
        async with app(plan(*tasks)) as running:
            handle = running.start(RunRequest("go"))
            result = await handle.result()
            await handle._run.task
            if broken:  # an error and the frames that it came through hold each other
                gc.collect()
            assert made() <= before
            assert len(result.tasks) == 3
            progress = handle.progress()
            assert progress is not None
            assert (progress.done, progress.finished, progress.running) == (1.0, 3, ())
    finally:
        gc.enable()
