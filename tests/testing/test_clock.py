"""The virtual-time loop: exact instants, real work that holds time back, and no way to hang."""

import asyncio
import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from failsoft.testing.clock import (
    Deadlock,
    LeftBehind,
    OutOfPatience,
    VirtualEvent,
    VirtualTimeLoop,
    run,
    virtual_loop,
)


def now() -> float:
    return virtual_loop().time()


# --- time --------------------------------------------------------------------------------------------------


def test_a_sleep_ends_at_exactly_its_instant():
    async def main() -> list[float]:
        instants = [now()]
        for seconds in (0.1, 0.2, 3600.0):
            await asyncio.sleep(seconds)
            instants.append(now())
        return instants

    assert run(main()) == [0.0, 0.1, 0.1 + 0.2, 0.1 + 0.2 + 3600.0]


def test_a_day_of_seconds_takes_no_day():
    async def main() -> float:
        for _ in range(8640):
            await asyncio.sleep(10)
        return now()

    began = time.monotonic()
    assert run(main()) == 86400.0
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("start", [0.0, 1.0, 1e9, -5.0, -1.0])
def test_no_timer_fires_early_or_late_by_even_the_smallest_step(start: float):
    async def main() -> None:
        loop = virtual_loop()
        base = start + 1.0
        whens = [base, math.nextafter(base, -math.inf), math.nextafter(base, math.inf), start, base + 1e-6]
        fired: list[tuple[float, float]] = []

        def note(when: float) -> None:
            fired.append((when, loop.time()))

        for when in whens:
            loop.call_at(when, note, when)
        await asyncio.sleep(2)
        assert fired == [(when, when) for when in sorted(whens)]

    run(main(), start=start)


def test_timers_of_one_instant_fire_in_the_order_of_setting():
    async def main() -> list[int]:
        fired: list[int] = []
        for i in range(100):
            virtual_loop().call_later(1 if i % 3 else 2, fired.append, i)
        await asyncio.sleep(2)
        return fired

    numbers = range(100)
    assert run(main()) == [i for i in numbers if i % 3] + [i for i in numbers if not i % 3]


def test_cancelled_timers_do_not_move_time():
    async def main() -> float:
        for _ in range(200):
            virtual_loop().call_later(5, pytest.fail, "cancelled").cancel()
        await asyncio.sleep(1)
        return now()

    assert run(main()) == 1.0


def test_a_timeout_comes_at_exactly_its_instant():
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await asyncio.Event().wait()
        return now()

    assert run(main(), start=100.0) == 100.3


def test_ready_callbacks_run_before_time_moves():
    async def main() -> None:
        virtual_loop().call_later(1e-300, pytest.fail, "time moved")
        for _ in range(1000):
            await asyncio.sleep(0)
            assert now() == 0.0

    run(main())


def test_a_stall_makes_timers_late_together_and_in_order():
    async def main() -> list[tuple[str, float]]:
        loop = virtual_loop()
        fired: list[tuple[str, float]] = []

        def note(name: str) -> None:
            fired.append((name, loop.time()))

        for name, seconds in (("c", 6.0), ("b", 4.0), ("a", 1.0)):
            loop.call_later(seconds, note, name)
        loop.call_later(0.5, loop.stall, 5.0)
        await asyncio.sleep(10)
        return fired

    assert run(main()) == [("a", 5.5), ("b", 5.5), ("c", 6.0)]


def test_results_that_arrived_during_a_stall_come_before_the_late_timers():
    async def main() -> list[str]:
        loop = virtual_loop()
        seen: list[str] = []
        here, there = socket.socketpair()

        def data() -> None:
            seen.append("data")
            loop.remove_reader(here)

        with here, there:
            here.setblocking(False)
            there.setblocking(False)
            loop.add_reader(here, data)
            loop.call_later(1, seen.append, "timer")
            there.send(b"x")
            loop.stall(2)
            await asyncio.sleep(3)
        return seen

    assert run(main()) == ["data", "timer"]


def test_time_cannot_stall_backwards_nor_start_nowhere():
    async def main() -> None:
        with pytest.raises(ValueError, match="back"):
            virtual_loop().stall(-1)

    run(main())
    for start in (math.inf, math.nan):
        with pytest.raises(ValueError, match="finite"):
            VirtualTimeLoop(start=start)


def test_the_repr_says_the_state():
    async def main() -> str:
        virtual_loop().call_later(9, print)
        virtual_loop().work_begins("import")
        shown = repr(virtual_loop())
        virtual_loop().work_ends("import")
        return shown

    assert run(main(), start=2.0) == "<VirtualTimeLoop time=2.0 timers=1 holding=['import']>"


# --- order -------------------------------------------------------------------------------------------------


def test_a_task_group_cancels_its_tasks_in_the_order_of_creation():
    ended: list[int] = []

    async def member(i: int) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(i)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for i in range(300):
                group.create_task(member(i), name=f"member {i}")
            await asyncio.sleep(1)
            raise LookupError

    with pytest.raises(ExceptionGroup):
        run(main())
    assert ended == list(range(300))


# --- threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("debug", [False, True])
def test_time_stands_still_while_a_thread_works(debug: bool):
    async def main() -> None:
        for _ in range(50):
            async with asyncio.timeout(1e-9):
                await asyncio.to_thread(sum, range(20_000))
            assert now() == 0.0

    run(main(), debug=debug)


def test_a_thread_whose_waiter_was_cancelled_still_holds_time_back():
    cancelled, ended_at = threading.Event(), []

    async def main() -> None:
        loop = virtual_loop()

        def work() -> None:
            cancelled.wait()
            ended_at.append(loop.time())

        waiter = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
        loop.call_soon(cancelled.set)
        await asyncio.sleep(1)
        assert ended_at == [0.0]

    run(main())


def test_a_queued_job_that_is_cancelled_holds_nothing_back():
    async def main() -> float:
        loop, event = virtual_loop(), VirtualEvent()
        first = loop.run_in_executor(pool, event.wait)
        queued = loop.run_in_executor(pool, pytest.fail, "cancelled")
        queued.cancel()
        await asyncio.sleep(1)
        event.set()
        await first
        return now()

    with ThreadPoolExecutor(1) as pool:
        assert run(main()) == 1.0


def test_a_thread_started_by_hand_holds_time_back_until_it_has_reported():
    async def main() -> None:
        loop = virtual_loop()
        for _ in range(50):
            done: asyncio.Future[None] = loop.create_future()

            def work(done: asyncio.Future[None] = done) -> None:
                sum(range(10_000))
                loop.call_soon_threadsafe(done.set_result, None)
                loop.work_ends()

            loop.work_begins()
            threading.Thread(target=work, daemon=True).start()
            async with asyncio.timeout(1e-9):
                await done
            assert now() == 0.0

    run(main())


def test_work_that_reports_nothing_lets_time_go_on_when_it_ends():
    async def main() -> float:
        loop = virtual_loop()
        loop.work_begins("index")
        threading.Thread(target=loop.work_ends, args=("index",)).start()
        await asyncio.sleep(1)
        return now()

    assert run(main()) == 1.0


def test_ending_work_that_never_began_is_an_error():
    async def main() -> None:
        virtual_loop().work_begins("one")
        with pytest.raises(RuntimeError, match="other"):
            virtual_loop().work_ends("other")
        virtual_loop().work_ends("one")

    run(main())


def test_another_kind_of_executor_is_counted_too_and_gets_the_function_as_it_is():
    class Threads(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            assert fn is sum
            future: Future[Any] = Future()
            threading.Thread(target=lambda: future.set_result(fn(*args, **kwargs))).start()
            return future

    async def main() -> int:
        async with asyncio.timeout(1e-9):
            return await virtual_loop().run_in_executor(Threads(), sum, range(1000))

    assert run(main()) == 499500


def test_a_job_that_is_refused_holds_nothing_back():
    async def main() -> float:
        pool = ThreadPoolExecutor(1)
        pool.shutdown()
        with pytest.raises(RuntimeError, match="shutdown"):
            await virtual_loop().run_in_executor(pool, print)
        await asyncio.sleep(1)
        return now()

    assert run(main()) == 1.0


def test_an_error_in_a_thread_reaches_its_waiter():
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)

    run(main())


def test_patience_with_real_work_ends_and_names_it():
    stuck = threading.Event()

    def never_ends() -> None:
        stuck.wait(20)

    async def main() -> None:
        await asyncio.to_thread(never_ends)

    try:
        with pytest.raises(OutOfPatience, match=r"0\.02 s of real time for 1 x .*never_ends; pending:\n.*to_thread"):
            run(main(), patience=0.02)
    finally:
        stuck.set()


# --- threads that are meant to hang ------------------------------------------------------------------------


def test_a_thread_can_hang_for_an_exact_virtual_time():
    async def main() -> list[object]:
        event = VirtualEvent()
        orphan = asyncio.create_task(asyncio.to_thread(event.wait, 30.0))
        seen: list[object] = []
        try:
            async with asyncio.timeout(2):
                await asyncio.shield(orphan)
        except TimeoutError:
            seen.append(now())
        return [*seen, await orphan, now()]

    assert run(main()) == [2.0, False, 30.0]


def test_a_hanging_thread_goes_on_at_the_instant_at_which_it_is_let_go():
    async def main() -> list[object]:
        event = VirtualEvent()
        assert not event.is_set()
        virtual_loop().call_later(7, event.set)
        assert await asyncio.gather(*(asyncio.to_thread(event.wait, 30) for _ in range(3))) == [True] * 3
        assert event.is_set()
        assert await asyncio.to_thread(event.wait)  # set already
        return [now(), repr(event)]

    assert run(main()) == [7.0, "<VirtualEvent set waiting=0>"]


def test_a_thread_that_was_let_go_leaves_no_timer_and_no_place_behind():
    instants: list[float] = []

    async def main() -> None:
        event = VirtualEvent()
        virtual_loop().call_later(7, event.set)
        await asyncio.to_thread(event.wait, 30)
        try:
            await asyncio.Event().wait()
        finally:
            instants.append(now())

    with pytest.raises(Deadlock) as caught:
        run(main())
    assert instants == [7.0]
    assert "VirtualEvent" not in str(caught.value)


def test_a_thread_that_goes_on_holds_time_back_again():
    async def main() -> None:
        event = VirtualEvent()

        def work() -> int:
            event.wait(1)
            return sum(range(50_000))

        for _ in range(20):
            began = now()
            await asyncio.to_thread(work)
            assert now() == began + 1

    run(main())


def test_a_thread_started_by_hand_can_hang_as_well():
    async def main() -> float:
        loop, event = virtual_loop(), VirtualEvent()
        done = loop.create_future()

        def work() -> None:
            was_set = event.wait(5)
            sum(range(100_000))
            loop.call_soon_threadsafe(done.set_result, was_set)
            loop.work_ends("orphan")

        loop.work_begins("orphan")
        threading.Thread(target=work).start()
        async with asyncio.timeout(5 + 1e-9):
            assert await done is False
        return now()

    assert run(main()) == 5.0


def test_a_job_queued_behind_hanging_threads_starts_when_one_of_them_ends():
    async def main() -> list[float]:
        loop, event = virtual_loop(), VirtualEvent()
        hanging = [loop.run_in_executor(pool, event.wait, seconds) for seconds in (40.0, 30.0)]
        instants = [await loop.run_in_executor(pool, loop.time)]
        await asyncio.gather(*hanging)
        return [*instants, now()]

    with ThreadPoolExecutor(2) as pool:
        assert run(main()) == [30.0, 40.0]


def test_a_detached_thread_does_not_hold_time_back():
    stuck = threading.Event()

    async def main() -> float:
        with virtual_loop().detached():
            orphan = asyncio.create_task(asyncio.to_thread(stuck.wait))
            await asyncio.sleep(30)
        still_stuck_at = now()
        stuck.set()
        await orphan
        return still_stuck_at

    assert run(main()) == 30.0  # and while the orphan was about to report, with nothing else due, it was waited for


def test_a_wait_outside_counted_threads_is_refused():
    async def main() -> str:
        loop, event = virtual_loop(), VirtualEvent()
        caught: asyncio.Future[str] = loop.create_future()

        def work() -> None:
            try:
                event.wait()
            except RuntimeError as error:
                loop.call_soon_threadsafe(caught.set_result, str(error))

        with pytest.raises(RuntimeError, match="block the loop"):
            event.wait()
        thread = threading.Thread(target=work)
        thread.start()
        await asyncio.to_thread(thread.join)
        return await caught

    assert "not counted" in run(main())


def test_a_thread_that_hangs_for_ever_is_let_go_when_the_loop_ends():
    ends: list[str] = []

    async def main() -> None:
        event = VirtualEvent()

        def work() -> None:
            try:
                event.wait()
            except RuntimeError as error:
                sum(range(3_000_000))
                ends.append(str(error))

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(work), 3600)
        assert repr(event) == "<VirtualEvent unset waiting=1>"

    run(main())
    assert ends == ["the loop was shut down while this thread was waiting"]


# --- processes ---------------------------------------------------------------------------------------------


def test_time_stands_still_while_a_process_works():
    async def main() -> tuple[bytes, int | None, float]:
        async with asyncio.timeout(1e-9):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-S", "-c", "print(6 * 7)", stdout=asyncio.subprocess.PIPE
            )
            out, _ = await process.communicate()
        return out.strip(), process.returncode, now()

    assert run(main()) == (b"42", 0, 0.0)


def test_a_detached_process_does_not_hold_time_back():
    async def main() -> tuple[float, int]:
        with virtual_loop().detached():
            process = await asyncio.create_subprocess_exec("sleep", "1000")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.wait(), 600)
        process.kill()
        return now(), await process.wait()

    assert run(main()) == (600.0, -9)


def test_a_process_that_cannot_be_started_holds_nothing_back():
    async def main() -> float:
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/nowhere/to/be/found")
        await asyncio.sleep(1)
        return now()

    assert run(main()) == 1.0


# --- sockets -----------------------------------------------------------------------------------------------


def test_sockets_on_loopback_work_beside_exact_timers():
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            await asyncio.sleep(0.25)
            writer.write(line)
        writer.close()
        await writer.wait_closed()

    async def main() -> list[object]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        seen: list[object] = []
        for i in range(4):
            writer.write(b"%d\n" % i)
            seen += [await reader.readline(), now()]
        writer.close()
        await writer.wait_closed()
        server.close()
        await asyncio.sleep(1)
        return seen

    assert run(main()) == [b"0\n", 0.25, b"1\n", 0.5, b"2\n", 0.75, b"3\n", 1.0]


def test_without_a_timer_a_socket_is_waited_for_in_real_time():
    async def main() -> tuple[bytes, float]:
        loop = virtual_loop()
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            threading.Timer(0.01, there.send, [b"x"]).start()  # a peer the loop knows nothing of
            return await loop.sock_recv(here, 1), now()

    assert run(main(), io_grace=0) == (b"x", 0.0)


def test_patience_with_a_silent_socket_ends():
    async def main() -> None:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            await virtual_loop().sock_recv(here, 1)

    with pytest.raises(OutOfPatience, match="1 x registered descriptor; pending:"):
        run(main(), patience=0.01)


# --- no way to hang ----------------------------------------------------------------------------------------


def test_a_deadlock_is_an_error_that_says_who_waits_where():
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits_for_ever(), name="the forgotten")

    with pytest.raises(Deadlock) as caught:
        run(main())
    first, main_task, forgotten = str(caught.value).splitlines()
    assert first == "nothing can ever happen, but these tasks wait:"
    assert "main (test_clock.py:" in main_task
    assert "TaskGroup.__aexit__ (taskgroups.py:" in main_task
    assert forgotten.startswith("  the forgotten: test_a_deadlock")
    assert "waits_for_ever (test_clock.py:" in forgotten
    assert "> Event.wait (locks.py:" in forgotten


def test_waiting_for_an_infinite_timer_or_a_hanging_thread_is_a_deadlock():
    instants: list[float] = []

    async def main() -> None:
        try:
            await asyncio.gather(asyncio.sleep(math.inf), asyncio.to_thread(VirtualEvent().wait))
        finally:
            instants.append(now())

    with pytest.raises(Deadlock, match="threads waiting at a VirtualEvent: 1"):
        run(main())
    assert instants == [0.0]


def test_what_a_deadlocked_task_has_to_clean_up_is_cleaned_up():
    cleaned: list[float] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(3)
            cleaned.append(now())

    with pytest.raises(Deadlock):
        run(main())
    assert cleaned == [3.0]


# --- run ---------------------------------------------------------------------------------------------------


def test_tasks_left_behind_are_named_and_cancelled():
    cancelled: list[str] = []

    async def forgotten() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append("forgotten")
            raise

    async def main() -> str:
        virtual_loop().forgotten = asyncio.create_task(forgotten(), name="forgotten")  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        return "done"

    with pytest.raises(LeftBehind, match=r"tasks behind:\n  forgotten: .*forgotten \(test_clock.py:\d+\) > sleep"):
        run(main())
    assert run(main(), strict=False) == "done"
    assert cancelled == ["forgotten"] * 2


def test_an_error_of_main_is_raised_whatever_it_leaves():
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        virtual_loop().stubborn = asyncio.create_task(stubborn())  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        raise LookupError("main")

    noise: list[dict[str, Any]] = []

    async def quiet() -> None:
        virtual_loop().set_exception_handler(lambda _, context: noise.append(context))
        await main()

    with pytest.raises(LookupError, match="main"):
        run(quiet())


def test_run_closes_async_generators_and_pool_and_touches_no_global():
    closed: list[str] = []

    async def numbers() -> Any:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(1)
            closed.append("generator")

    async def main() -> list[Any]:
        generator = numbers()
        await anext(generator)
        await asyncio.to_thread(int)
        return [virtual_loop(), generator]

    before = set(threading.enumerate())
    loop, _ = run(main())
    assert closed == ["generator"]
    assert loop.is_closed()
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="no running event loop"):
        virtual_loop()


def test_the_virtual_loop_is_not_any_loop():
    async def main() -> None:
        with pytest.raises(RuntimeError, match="not a virtual-time loop"):
            virtual_loop()
        with pytest.raises(RuntimeError, match="not a virtual-time loop"):
            VirtualEvent()

    asyncio.run(main())
