"""A thread that sees who blocks the loop, while it does."""

import asyncio
import ctypes
import re
import signal
import sys
import threading
import time
from typing import Any

import pytest

from failsoft.base.events import Event, EventBus
from failsoft.kernel.scope import scope
from failsoft.kernel.watchdog import LoopWatchdog, Stall, Suspension

blocking = pytest.mark.may_block(reason="a blocked loop is what the watchdog is for")


class Watched:
    """A watchdog on the running loop, whose events can be awaited."""

    def __init__(self, **settings: Any) -> None:
        self.bus = EventBus()
        self.watchdog = LoopWatchdog(self.bus, **settings)
        self.events: list[Event] = []
        self.stalled: asyncio.Future[Event]

    async def __aenter__(self) -> "Watched":
        self.stalled = asyncio.get_running_loop().create_future()
        self.bus.add(self.receive)
        self.watchdog.start()
        await asyncio.sleep(0.01)
        return self

    def receive(self, event: Event) -> None:
        self.events.append(event)
        if event.kind == "loop.stalled" and not self.stalled.done():
            self.stalled.set_result(event)

    async def stall(self) -> Event:
        return await asyncio.wait_for(self.stalled, 5)

    async def __aexit__(self, *error: object) -> None:
        self.watchdog.stop()


def culprit(seconds: float) -> None:
    time.sleep(seconds)


async def innocent(seconds: float) -> None:
    with scope(run="run_1", task="revenue", tenant="acme"):
        culprit(seconds)


@blocking
@pytest.mark.realtime
async def test_a_stall_is_told_from_the_loop_with_its_duration_and_the_culprits_stack():
    async with Watched() as watched:
        began = time.monotonic()
        await asyncio.create_task(innocent(0.4), name="the blocking one")
        blocked = time.monotonic() - began
        event = await watched.stall()
        stall = event.data
        assert isinstance(stall, Stall)
        assert 0.3 < stall.seconds <= blocked + 0.05
        assert re.fullmatch(rf"{re.escape(__file__)}:\d+ culprit", stall.stack[-1])
        assert stall.stack[-2].endswith(" innocent")
        assert stall.asyncio_task == "the blocking one"
        assert (event.run, event.task, event.tenant) == ("run_1", "revenue", "acme")
        assert watched.bus.last_error is None


@blocking
@pytest.mark.realtime
async def test_the_callback_is_called_from_the_watchdogs_thread_while_the_loop_is_still_blocked():
    told: list[tuple[str, Stall]] = []
    seen = threading.Event()

    def on_stall(stall: Stall) -> None:
        told.append((threading.current_thread().name, stall))
        seen.set()
        raise RuntimeError("of the callback")

    async with Watched(on_stall=on_stall) as watched:
        assert seen.wait(5)  # this is what blocks the loop
        await watched.stall()
        ((thread, stall),) = told
        assert thread == "failsoft-watchdog"
        assert any("test_the_callback" in frame for frame in stall.stack)
        assert stall.seconds > 0.1
        assert watched.watchdog.errors == 1


@blocking
@pytest.mark.realtime
async def test_a_stall_of_a_plain_callback_has_no_task():
    async with Watched() as watched:
        asyncio.get_running_loop().call_soon(culprit, 0.3)
        event = await watched.stall()
        assert event.data.asyncio_task is None
        assert event.run is None
        assert event.data.stack[0].endswith(" culprit")
        assert len(event.data.stack) == 1  # not the loop's own frames


@blocking
@pytest.mark.realtime
async def test_a_c_function_that_keeps_the_interpreter_locked_is_a_stall_and_no_suspension():
    def locked() -> None:
        ctypes.PyDLL(None).usleep(500_000)

    async with Watched() as watched:
        asyncio.get_running_loop().call_soon(locked)
        event = await watched.stall()
        assert event.data.seconds > 0.3
        assert event.data.stack[-1].endswith("<locals>.locked")


@blocking
@pytest.mark.realtime
async def test_stacks_are_bounded_and_show_the_innermost():
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        else:
            time.sleep(0.3)

    async with Watched(depth=5) as watched:
        deep(50)
        event = await watched.stall()
        assert len(event.data.stack) == 5
        assert event.data.stack[-1].endswith(".deep")


@blocking
@pytest.mark.realtime
async def test_a_stall_that_is_just_over_is_told_when_the_watch_ends():
    async with Watched() as watched:
        culprit(0.4)
    assert [event.kind for event in watched.events] == ["loop.stalled"]


@blocking
@pytest.mark.realtime
async def test_blocking_below_the_threshold_and_a_busy_loop_are_no_stall():
    async with Watched(threshold=2.0) as watched:
        culprit(0.2)
        for _ in range(20_000):
            await asyncio.sleep(0)
    assert watched.events == []


@pytest.mark.realtime
async def test_start_and_stop_may_be_called_again_and_the_thread_ends():
    watchdog = LoopWatchdog(EventBus())
    watchdog.stop()
    watchdog.start()
    watchdog.start()
    thread = watchdog._thread
    assert thread is not None
    assert thread.daemon
    assert repr(watchdog) == "<LoopWatchdog loops=1 threshold=0.1>"
    watchdog.stop()
    watchdog.stop()
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
    watchdog.start()
    assert repr(watchdog) == "<LoopWatchdog loops=1 threshold=0.1>"
    watchdog.stop()


@blocking
def test_several_loops_are_watched_at_once_and_only_the_blocked_one_is_told():
    bus, events = EventBus(), []
    bus.add(events.append)
    watchdog = LoopWatchdog(bus)
    ready = threading.Barrier(2)

    async def blocks(seconds: float) -> None:
        watchdog.start()
        await asyncio.to_thread(ready.wait)
        culprit(seconds)
        await asyncio.sleep(0.3)
        watchdog.stop()

    threads = [threading.Thread(target=asyncio.run, args=(blocks(seconds),)) for seconds in (0.5, 0.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.kind for event in events] == ["loop.stalled"]
    assert events[0].data.stack[-2].endswith(".blocks")


@blocking
def test_a_loop_that_does_not_run_or_was_closed_is_not_blocked():
    bus, events = EventBus(), []
    bus.add(events.append)
    watchdog = LoopWatchdog(bus)

    async def start() -> None:
        watchdog.start()

    with asyncio.Runner() as runner:
        runner.run(start())
        time.sleep(0.3)
        runner.run(asyncio.sleep(0.1))
    thread = watchdog._thread
    assert thread is not None
    thread.join(5)  # its only loop is closed
    assert not thread.is_alive()
    assert events == []


async def test_virtual_time_is_not_watched():
    watchdog = LoopWatchdog(EventBus())
    watchdog.start()
    assert repr(watchdog) == "<LoopWatchdog loops=0 threshold=0.1>"
    watchdog.stop()


PROGRAM = """
import asyncio, sys
from failsoft.base.events import EventBus
from failsoft.kernel.watchdog import LoopWatchdog
async def main():
    bus = EventBus()
    bus.add(lambda event: print(event.kind, event.data.seconds, flush=True))
    LoopWatchdog(bus, threshold=0.3).start()
    print("up", flush=True)
    while True:
        await asyncio.sleep({pause})
asyncio.run(main())
"""


@pytest.mark.realtime
@pytest.mark.parametrize("pause", [10, 0], ids=["idle", "busy"])
async def test_a_stopped_process_is_reported_as_suspended_and_not_as_stalled(pause):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM.format(pause=pause), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    await asyncio.sleep(0.2)
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(0.8)
    process.send_signal(signal.SIGCONT)
    line = await asyncio.wait_for(process.stdout.readline(), 5)
    process.kill()
    rest = await process.stdout.read()
    await process.wait()
    assert re.fullmatch(rb"loop\.suspended 0\.\d+\n", line)
    assert float(line.split()[1]) > 0.5
    assert b"stalled" not in rest


@pytest.mark.realtime
async def test_its_thread_keeps_no_process_alive():
    program = PROGRAM.format(pause=0).replace("while True", "for _ in range(3)")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 10)
    assert out == b"up\n"
    assert process.returncode == 0


@blocking
@pytest.mark.parametrize("locked", [False, True], ids=["sleeping", "locked"])
def test_a_loop_of_another_kind_is_watched_too(locked):
    uvloop = pytest.importorskip("uvloop")

    def block() -> None:
        if locked:
            ctypes.PyDLL(None).usleep(500_000)
        else:
            culprit(0.5)

    async def main() -> None:
        async with Watched(threshold=0.2) as watched:
            await asyncio.sleep(0.2)
            assert watched.events == []
            asyncio.get_running_loop().call_soon(block)
            event = await watched.stall()
            assert 0.25 < event.data.seconds < 0.8
            assert any(frame.endswith(".block") for frame in event.data.stack) or locked

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.realtime
async def test_watching_an_idle_loop_costs_next_to_nothing():
    async with Watched() as watched:
        thread = watched.watchdog._thread
        assert thread is not None
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        began = time.clock_gettime(clock)
        await asyncio.sleep(1.0)
        assert time.clock_gettime(clock) - began < 0.01  # 1 %, for the machine may be very busy


@pytest.mark.parametrize("wrong", [{"threshold": 0.0}, {"depth": 0}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="must be positive"):
        LoopWatchdog(EventBus(), **wrong)


def test_a_suspension_says_how_long():
    assert Suspension(0.5).seconds == 0.5
