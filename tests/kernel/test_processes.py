"""Plain functions in worker processes: killed with all that they started, whatever they do."""

import asyncio
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kernel import hostile

from failsoft.base.errors import (
    AttemptTimeout,
    BadInput,
    CallTimeout,
    DownstreamUnavailable,
    MalformedResult,
    QueueFull,
    ToolFailed,
)
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.environment import without_secrets
from failsoft.kernel.guard import Guard, guard
from failsoft.kernel.policy import Policy
from failsoft.kernel.processes import ProcessPool, call_process, in_process_of
from failsoft.kernel.retry import RetryPolicy
from failsoft.testing.cancellation import cancel_at_every_await

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")
linux = pytest.mark.skipif(sys.platform != "linux", reason="descendants that left the group are found by /proc")

POLICY = Policy(
    call_timeout=15.0, retry=RetryPolicy(queries=0), bulkhead=BulkheadPolicy(permits=8, queue=8), breaker=None
)


def made(**changes) -> Guard:
    return guard("d", replace(POLICY, **changes))


async def eventually(condition: Callable[[], Any], within: float = 5.0) -> Any:
    """Waits, with a bound, until `condition` holds; looks in a thread, for it may read files."""
    until = time.monotonic() + within
    while not (found := await asyncio.to_thread(condition)):
        assert time.monotonic() < until, f"not within {within} s: {condition}"
        await asyncio.sleep(0.01)
    return found


def running(pids: list[int]) -> list[int]:
    """Those of `pids` that exist and are no zombies."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.append(pid)
    return found


def zombies() -> list[str]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in children if " Z " in Path(f"/proc/{pid}/stat").read_text()]


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def open_files() -> list[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


# --- clean calls ---------------------------------------------------------------------------------------------


@pytest.mark.realtime
async def test_a_function_runs_in_another_process_which_is_kept_for_the_next_call():
    async with ProcessPool() as pool:
        assert pool.statistics().started == 0  # lazily
        first = await call_process(made(), pool, hostile.pid)
        assert first != os.getpid()
        assert [await call_process(made(), pool, hostile.pid) for _ in range(3)] == [first] * 3
        assert await made().call(hostile.add, 1, runner=in_process_of(pool)) == 1
        assert pool.statistics().started == 1
        assert repr(pool) == "<ProcessPool busy=0 idle=1 of=2 waiting=0>"


@pytest.mark.realtime
async def test_a_warm_call_takes_less_than_a_millisecond():
    async with ProcessPool(1) as pool:
        g = made()
        await call_process(g, pool, hostile.pid)
        took = []
        for _ in range(100):
            began = time.perf_counter()
            await call_process(g, pool, hostile.pid)
            took.append(time.perf_counter() - began)
        assert min(took) < 0.001  # the machine may be busy, the code is not


@pytest.mark.realtime
async def test_calls_run_at_once_in_as_many_processes_as_there_may_be_and_others_wait():
    async with ProcessPool(2) as pool:
        g = made()
        pids = await asyncio.gather(*(call_process(g, pool, hostile.pid) for _ in range(8)))
        assert len(set(pids)) <= 2
        assert pool.statistics().started <= 2
        assert (g.statistics().ok, g.statistics().in_use) == (8, 0)


@pytest.mark.realtime
async def test_arguments_results_and_large_ones_travel_whole():
    async with ProcessPool(1) as pool:
        g = made()
        assert await call_process(g, pool, functools.partial(hostile.add, right=2), 1) == 3
        assert await call_process(g, pool, len, bytes(9_000_000)) == 9_000_000
        assert await call_process(g, pool, hostile.large, 9_000_000) == bytes(9_000_000)
        assert await call_process(g, pool, hostile.Class.static) == "static"
        assert await call_process(g, pool, hostile.Class.of_class) == "Class"
        assert await call_process(g, pool, hostile.under, 1) == 2  # found behind the decorator that has its name
        assert await call_process(g, pool, hostile.limits) == 0  # no core dumps


@pytest.mark.realtime
async def test_a_worker_is_replaced_after_its_number_of_calls():
    async with ProcessPool(1, max_calls=3) as pool:
        counts = [await call_process(made(), pool, hostile.counted) for _ in range(7)]
        assert counts == [1, 2, 3, 1, 2, 3, 1]
        assert pool.statistics().started == 3


@pytest.mark.realtime
async def test_a_full_queue_refuses_and_who_waits_is_served_in_order():
    async with ProcessPool(1, queue=2) as pool:
        g = made()
        blocking = asyncio.create_task(call_process(g, pool, hostile.nap, 1000, timeout=14))
        await eventually(pool.pids)
        waiting = [asyncio.create_task(call_process(g, pool, hostile.counted)) for _ in range(2)]
        await eventually(lambda: pool.statistics().waiting == 2)
        with pytest.raises(QueueFull, match="1 workers are busy and 2 calls wait"):
            await call_process(g, pool, hostile.pid)
        blocking.cancel()
        assert await asyncio.gather(*waiting) == [1, 2]
        with pytest.raises(asyncio.CancelledError):
            await blocking


@pytest.mark.realtime
async def test_the_wait_for_a_worker_is_not_blamed_on_the_downstream():
    async with ProcessPool(1) as pool:
        g = made(attempt_timeout=0.2, breaker=BreakerPolicy(consecutive_timeouts=1))
        other = made()
        blocking = asyncio.create_task(call_process(other, pool, hostile.nap, 1000, timeout=14))
        await eventually(pool.pids)
        with pytest.raises(AttemptTimeout):
            await call_process(g, pool, hostile.pid)
        assert (g.statistics().timed_out, g.statistics().neutral) == (0, 1)
        assert pool.statistics().waiting == 0
        blocking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocking


# --- killed --------------------------------------------------------------------------------------------------


@linux
@pytest.mark.realtime
async def test_at_the_limit_the_worker_is_killed_with_everything_it_has_started(tmp_path):
    async with ProcessPool(1) as pool:
        g = made(attempt_timeout=1.0)
        path = tmp_path / "pids"
        began = time.monotonic()
        with pytest.raises(AttemptTimeout):
            await call_process(g, pool, hostile.family_and_hang, str(path))
        assert time.monotonic() - began < 1.5
        family = await asyncio.to_thread(pids_in, path)
        assert len(family) == 4
        await eventually(lambda: g.statistics().in_use == 0)  # the permit comes back when they are really gone
        assert await asyncio.to_thread(running, family) == []
        assert await call_process(g, pool, hostile.pid) not in family
        assert pool.statistics().killed == 1


@linux
@pytest.mark.realtime
async def test_until_the_process_is_gone_its_ticket_is_an_orphan():
    async with ProcessPool(1) as pool:
        g = made(attempt_timeout=0.3)
        with pytest.raises(AttemptTimeout):
            await call_process(g, pool, hostile.nap, 1000)
        (pid,) = pool.pids()
        assert g.statistics().orphans == 1
        await eventually(lambda: g.statistics().orphans == 0)
        assert await asyncio.to_thread(running, [pid]) == []


@linux
@pytest.mark.realtime
async def test_a_cancelled_call_is_killed_with_everything_it_has_started(tmp_path):
    async with ProcessPool(1) as pool:
        g = made()
        path = tmp_path / "pids"
        task = asyncio.create_task(call_process(g, pool, hostile.family_and_hang, str(path)))
        family = await eventually(lambda: pids_in(path))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not running(family))
        await eventually(lambda: g.statistics().in_use == 0)


@linux
@pytest.mark.realtime
async def test_closing_kills_what_runs_and_fails_it_as_unavailable(tmp_path):
    pool = ProcessPool(1)
    g = made()
    path = tmp_path / "pids"
    task = asyncio.create_task(call_process(g, pool, hostile.family_and_hang, str(path)))
    family = await eventually(lambda: pids_in(path))
    waiting = asyncio.create_task(call_process(g, pool, hostile.pid))
    await eventually(lambda: pool.statistics().waiting == 1)
    await pool.aclose()
    assert await asyncio.to_thread(running, family) == []
    for closed in (task, waiting):
        with pytest.raises(DownstreamUnavailable, match="closed"):
            await closed
    with pytest.raises(DownstreamUnavailable, match="closed"):
        await call_process(g, pool, hostile.pid)
    await pool.aclose()
    assert repr(pool) == "<ProcessPool closed busy=0 idle=0 of=1 waiting=0>"
    assert g.statistics().in_use == 0


@linux
@pytest.mark.realtime
async def test_children_left_behind_by_a_clean_call_are_gone_before_it_is_over():
    async with ProcessPool(1) as pool:
        family = await call_process(made(), pool, hostile.family_and_return)
        assert len(family) == 4
        assert await asyncio.to_thread(running, family) == []
        assert await call_process(made(), pool, hostile.pid) not in family


@linux
@pytest.mark.realtime
async def test_children_of_a_worker_that_died_are_killed_too(tmp_path):
    async with ProcessPool(1) as pool:
        path = tmp_path / "pids"
        with pytest.raises(DownstreamUnavailable, match="exit code 9"):
            await call_process(made(), pool, hostile.family_and_die, str(path))
        family = await asyncio.to_thread(pids_in, path)
        assert len(family) == 3
        assert await asyncio.to_thread(running, family) == []


@pytest.mark.realtime
async def test_a_worker_that_sleeps_in_c_with_the_interpreter_locked_is_killed():
    async with ProcessPool(1) as pool:
        g = made(attempt_timeout=0.5)
        with pytest.raises(AttemptTimeout):
            await call_process(g, pool, hostile.sleep_in_c)
        await eventually(lambda: g.statistics().in_use == 0)


@pytest.mark.realtime
async def test_a_fork_that_comes_back_through_the_function_is_not_taken_for_the_worker():
    async with ProcessPool(1) as pool:
        pid = await call_process(made(), pool, hostile.fork_through)
        assert pid > 0
        assert await call_process(made(), pool, hostile.counted) == 1


@linux
@pytest.mark.realtime
async def test_nothing_is_left_no_zombie_no_file_no_thread():
    pool = ProcessPool(2)
    g = made(attempt_timeout=0.3)
    await asyncio.to_thread(int)  # the default executor's thread is there
    before = await asyncio.to_thread(open_files), threading.active_count()
    for fn, args in (
        (hostile.nap, (1000,)),
        (os._exit, (1,)),
        (hostile.unpicklable, ()),
        (hostile.family_and_return, ()),
    ):
        await asyncio.gather(*(call_process(g, pool, fn, *args) for _ in range(2)), return_exceptions=True)
    await pool.aclose()
    await eventually(lambda: threading.active_count() <= before[1])
    assert await asyncio.to_thread(open_files) == before[0]
    assert await asyncio.to_thread(zombies) == []
    assert g.statistics().in_use == 0


PROGRAM = """
import asyncio, sys
from failsoft.kernel.guard import guard
from failsoft.kernel.processes import ProcessPool, call_process
from tests.kernel import hostile
async def main():
    pool, g = ProcessPool(2), guard("d", "data")
    hanging = asyncio.create_task(call_process(g, pool, hostile.{function}, sys.argv[1], timeout=60))
    await call_process(g, pool, hostile.pid)
    {then}
asyncio.run(main())
"""


@linux
@pytest.mark.realtime
async def test_when_the_parent_is_killed_its_workers_and_their_children_end(tmp_path):
    path = tmp_path / "pids"
    program = PROGRAM.format(function="family_and_hang", then="await asyncio.sleep(1000)")
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(path))
    family = await eventually(lambda: pids_in(path), within=15.0)
    parent.kill()
    await parent.wait()
    await eventually(lambda: not running(family[:2]))  # those of its group: nobody is there to look for the others
    for pid in family[2:]:
        os.kill(pid, signal.SIGKILL)


@linux
@pytest.mark.realtime
async def test_a_program_that_forgets_its_pool_ends_and_leaves_no_worker(tmp_path):
    path = tmp_path / "pids"
    program = PROGRAM.format(
        function="family_and_hang",
        then="import os\n    while not os.path.exists(sys.argv[1]): await asyncio.sleep(0.01)",
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(path))
    assert await asyncio.wait_for(parent.wait(), 15) == 0
    family = await asyncio.to_thread(pids_in, path)
    await eventually(lambda: not running(family[:2]))
    for pid in await asyncio.to_thread(running, family):
        os.kill(pid, signal.SIGKILL)


# --- workers that die or lie -----------------------------------------------------------------------------------


@pytest.mark.realtime
async def test_a_worker_that_exits_fails_its_call_at_once_with_the_exit_code():
    async with ProcessPool(1) as pool:
        g = made()
        with pytest.raises(DownstreamUnavailable, match="exit code 3") as caught:
            await call_process(g, pool, os._exit, 3)
        assert caught.value.details["exit_code"] == 3
        assert caught.value.downstream == "d"
        assert caught.value.retryable
        assert (g.statistics().failed, g.statistics().in_use) == (1, 0)
        assert await call_process(g, pool, hostile.counted) == 1


@pytest.mark.realtime
async def test_a_segmentation_fault_says_its_signal_and_where_it_was():
    async with ProcessPool(1) as pool:
        with pytest.raises(DownstreamUnavailable, match="SIGSEGV") as caught:
            await call_process(made(), pool, hostile.segfault)
        assert caught.value.details["signal"] == "SIGSEGV"
        assert "in segfault" in caught.value.details["output"]


@pytest.mark.realtime
async def test_an_idle_worker_that_was_killed_is_replaced_unnoticed():
    async with ProcessPool(1) as pool:
        first = await call_process(made(), pool, hostile.pid)
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: pool.statistics().workers == 0)
        assert await call_process(made(), pool, hostile.pid) != first


@pytest.mark.realtime
async def test_a_worker_that_closes_its_pipes_is_unavailable_at_once():
    async with ProcessPool(1) as pool:
        with pytest.raises(DownstreamUnavailable, match="closed its pipe"):
            await call_process(made(), pool, hostile.close_pipes)


@linux
@pytest.mark.realtime
@pytest.mark.parametrize("text", [b"x" * 100, b"fsw1" + b"\xff" * 12, b"fsw1" + b"\0\0\0\2" + b"\0" * 8 + b"[]"])
async def test_garbage_in_place_of_a_reply_is_a_malformed_result(text):
    async with ProcessPool(1) as pool:
        with pytest.raises(MalformedResult, match="no reply"):
            await call_process(made(), pool, hostile.talk_out_of_turn, text)


@pytest.mark.realtime
async def test_a_result_that_is_too_long_is_named_and_not_read():
    async with ProcessPool(1) as pool:
        with pytest.raises(MalformedResult, match=r"10000\d\d\d\d bytes; at most 10000000") as caught:
            await call_process(made(), pool, hostile.large, 100_000_000)
        assert caught.value.details["limit"] == 10_000_000
        assert await call_process(made(), pool, hostile.counted) == 1  # by another worker


@pytest.mark.realtime
async def test_results_that_cannot_be_pickled_or_unpickled_are_malformed():
    async with ProcessPool(1) as pool:
        with pytest.raises(MalformedResult, match="cannot be pickled"):
            await call_process(made(), pool, hostile.unpicklable)
        with pytest.raises(MalformedResult, match="cannot be unpickled") as caught:
            await call_process(made(), pool, hostile.poison)
        assert caught.value.details["exception"] == "ValueError"
        assert pool.statistics().started == 1


@pytest.mark.realtime
async def test_whatever_a_function_raises_is_a_failed_tool_as_text():
    async with ProcessPool(1) as pool:
        details = {}
        for kind in hostile.ERRORS.split():
            with pytest.raises(ToolFailed, match=f"{kind} was raised in the worker") as caught:
                await call_process(made(), pool, hostile.raises, kind)
            assert caught.value.__cause__ is None
            details[kind] = caught.value.details
            assert details[kind]["exception"] == kind
        assert details["ValueError"]["message"] == "a text"
        assert "in raises\n" in details["ValueError"]["traceback"]
        assert "worker.py" not in details["ValueError"]["traceback"]
        assert details["UnprintableError"]["message"] == ""
        assert pool.statistics().started == 1  # it goes on


@pytest.mark.realtime
async def test_a_flood_of_output_blocks_nobody_and_its_end_is_kept():
    async with ProcessPool(1) as pool:
        with pytest.raises(ToolFailed) as caught:
            await call_process(made(), pool, hostile.flood, 1024)
        output = caught.value.details["output"]
        assert len(output) == 65_536
        assert output.endswith("xxxthe end\n")
        assert await call_process(made(), pool, hostile.counted) == 1


@pytest.mark.realtime
async def test_output_belongs_to_the_call_that_printed_it():
    async with ProcessPool(1) as pool:
        await call_process(made(), pool, hostile.whisper, "of another tenant")
        with pytest.raises(ToolFailed) as caught:
            await call_process(made(), pool, hostile.raises, "ValueError")
        assert caught.value.details["output"] == ""
        assert await call_process(made(), pool, hostile.shut_mouth) == "done"
        assert await call_process(made(), pool, hostile.pid)


@pytest.mark.realtime
async def test_memory_beyond_the_limit_is_an_error_in_the_worker():
    async with ProcessPool(1, memory_limit=1 << 30) as pool:
        assert await call_process(made(), pool, hostile.eat, 10)
        with pytest.raises(ToolFailed) as caught:
            await call_process(made(), pool, hostile.eat, 2000)
        assert caught.value.details["exception"] == "MemoryError"


@pytest.mark.realtime
async def test_a_worker_that_cannot_be_set_up_or_started_is_unavailable(monkeypatch):
    async with ProcessPool(1, memory_limit=1 << 70) as pool:
        with pytest.raises(DownstreamUnavailable, match="could not be set up"):
            await call_process(made(), pool, hostile.pid)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with ProcessPool(1) as pool:
        with pytest.raises(DownstreamUnavailable, match="no worker could be started: FileNotFoundError"):
            await call_process(made(), pool, hostile.pid)
        assert pool.statistics().workers == 0


# --- what travels ----------------------------------------------------------------------------------------------


def main_function() -> None: ...


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda: 0, "lambda"),
        (hostile.closure(), "defined in a function"),
        (hostile.coroutine, "coroutine function"),
        (hostile.Class().method, "something else under that name"),
        (hostile.Class(), "no module and qualified name"),
    ],
)
async def test_a_function_that_cannot_travel_is_refused_with_the_reason(fn, why):
    async with ProcessPool() as pool:
        g = made(breaker=BreakerPolicy(consecutive_failures=1))
        with pytest.raises(BadInput, match=why) as caught:
            await call_process(g, pool, fn)
        assert caught.value.param == "function"
        assert g.statistics().failed == 0  # nobody's downstream has failed
        assert pool.statistics().started == 0


async def test_a_function_of_the_main_program_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(main_function, "__module__", "__main__")
    async with ProcessPool() as pool:
        with pytest.raises(BadInput, match="main program"):
            await call_process(made(), pool, main_function)


async def test_arguments_that_cannot_travel_are_refused():
    async with ProcessPool(max_argument_bytes=1000) as pool:
        with pytest.raises(BadInput, match="cannot be pickled") as caught:
            await call_process(made(), pool, hostile.add, lambda: 0)
        assert caught.value.param == "arguments"
        with pytest.raises(BadInput, match=r"2\d\d\d bytes; at most 1000"):
            await call_process(made(), pool, len, bytes(2000))


def test_variables_that_look_like_secrets_are_taken_out():
    kept = {
        "PATH": "/bin", "HOME": "/root", "PWD": "/work", "LANG": "C", "KEYBOARD": "de", "TOKENIZERS_PARALLELISM": "1",
        "DATABASE_URL": "postgres://localhost/db", "MONKEY": "x", "COMPASS": "north",
    }  # fmt: skip
    secret = {
        "OPENAI_API_KEY": "1", "AWS_SECRET_ACCESS_KEY": "1", "PGPASSWORD": "1", "MYSQL_PWD": "1", "GITHUBTOKEN": "1",
        "DB_PASS": "1", "SENTRY_DSN": "1", "SSH_AUTH_SOCK": "1", "session_cookie": "1", "SIGNING_KEY_2": "1",
        "STORE": "redis://:hidden@cache/0", "HTTPS_PROXY": "http://me:hidden@proxy:3128", "X": "sk-abcdef",
        "Y": "ghp_1", "CERT": "-----BEGIN RSA PRIVATE KEY-----", "Z": "AKIAABCDEFGHIJKLMNOP",
    }  # fmt: skip
    assert without_secrets({**kept, **secret}) == kept
    assert without_secrets(secret, allow=["DB_PASS", "STORE"]) == {key: secret[key] for key in ("DB_PASS", "STORE")}


@pytest.mark.realtime
async def test_a_worker_gets_the_environment_without_secrets(monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "hidden")
    monkeypatch.setenv("OTHER_PASSWORD", "needed")
    async with ProcessPool(allow_env=["OTHER_PASSWORD"], env={"EXTRA": "1"}) as pool:
        seen = await call_process(made(), pool, hostile.variables)
        assert "SOME_PASSWORD" not in seen
        assert (seen["OTHER_PASSWORD"], seen["EXTRA"]) == ("needed", "1")


# --- cancellation and loops ------------------------------------------------------------------------------------


class Bench:
    pool: ProcessPool
    guard: Guard

    def fresh(self, **changes) -> None:
        self.pool = ProcessPool(1)
        self.guard = made(**changes)

    async def check(self) -> None:
        try:
            assert await call_process(self.guard, self.pool, hostile.add, 1) == 1  # nobody's worker was lost
        finally:
            await self.pool.aclose()
        figures = self.guard.statistics()
        assert (figures.in_use, figures.waiting, figures.orphans) == (0, 0, 0)
        assert (self.pool.statistics().workers, self.pool.statistics().waiting) == (0, 0)


def test_a_call_cancelled_at_every_await_leaves_nothing():
    bench = Bench()

    async def make():
        bench.fresh()
        await call_process(bench.guard, bench.pool, hostile.pid)

    assert cancel_at_every_await(make, bench.check) == 1


def test_a_wait_for_a_worker_cancelled_at_every_await_leaves_nothing():
    bench = Bench()

    async def make():
        bench.fresh()
        other = asyncio.create_task(call_process(bench.guard, bench.pool, hostile.pid))
        try:
            await asyncio.sleep(0)  # it is first
            await call_process(bench.guard, bench.pool, hostile.pid)
        finally:
            await other

    assert cancel_at_every_await(make, bench.check) >= 3


@pytest.mark.realtime
@pytest.mark.parametrize("delay", [0.0, 0.001, 0.01, 0.05, 0.1, 0.2])
async def test_cancelled_at_any_moment_a_call_leaves_nothing(delay):
    bench = Bench()
    bench.fresh()
    calls = [asyncio.create_task(call_process(bench.guard, bench.pool, hostile.nap, 0.04)) for _ in range(3)]
    await asyncio.sleep(delay)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await bench.check()


async def test_no_virtual_time_passes_while_a_worker_works():
    async with ProcessPool(1) as pool:
        g = made(attempt_timeout=0.001)
        assert await call_process(g, pool, hostile.pid)
        assert asyncio.get_running_loop().time() == 0.0


def test_a_pool_goes_on_in_the_next_event_loop():
    pool, g = ProcessPool(2), made()

    async def left_hanging():
        hanging = asyncio.create_task(call_process(g, pool, hostile.nap, 1000))
        first = await call_process(g, pool, hostile.pid)
        assert not hanging.done()
        return first

    async def later():
        again = await call_process(g, pool, hostile.pid)
        await pool.aclose()
        return again

    first = asyncio.run(left_hanging())
    g = made()
    assert asyncio.run(later()) == first


@pytest.mark.realtime
async def test_the_call_limit_covers_the_start_of_a_worker_too():
    async with ProcessPool(1) as pool:
        with pytest.raises(CallTimeout):
            await call_process(made(), pool, hostile.pid, timeout=0.001)


def test_settings_that_cannot_be_are_refused():
    for wrong in ({"workers": 0}, {"queue": -1}, {"max_calls": 0}, {"max_result_bytes": 0}):
        with pytest.raises(ValueError, match="must be"):
            ProcessPool(**wrong)
