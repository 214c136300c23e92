"""Plain functions in daemon threads: bounded, abandoned at the limit, listed until they end."""

import asyncio
import sys
import threading
from dataclasses import replace

import pytest

from failsoft.base.errors import AttemptTimeout, QueueFull, ToolFailed
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.guard import guard
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.scope import current_scope, scope
from failsoft.testing.clock import VirtualEvent

POLICY = Policy(attempt_timeout=1.0, retry=RetryPolicy(queries=0), bulkhead=BulkheadPolicy(permits=2, queue=0))


async def test_a_function_runs_in_a_daemon_thread_with_the_callers_scope():
    g = guard("d", POLICY)

    def where():
        return threading.current_thread().daemon, current_scope().tenant

    with scope(tenant="acme"):
        assert await g.call_sync(where) == (True, "acme")
    await g.aclose()


async def test_a_thread_that_hangs_is_an_orphan_that_holds_its_permit_until_it_ends():
    g = guard("d", POLICY)
    stuck = VirtualEvent()
    with pytest.raises(AttemptTimeout):
        await g.call_sync(stuck.wait)
    assert asyncio.get_running_loop().time() == 1.0
    (orphan,) = g.orphans()
    assert orphan.downstream == "d"
    assert ".py:" in orphan.where
    assert g.statistics().in_use == 1
    with pytest.raises(AttemptTimeout):
        await g.call_sync(stuck.wait)
    with pytest.raises(QueueFull):  # the pool is not exhausted by threads nobody sees: they are seen, and bounded
        await g.call_sync(int)
    assert g.statistics().threads == 2
    stuck.set()
    await asyncio.sleep(1.0)
    assert g.orphans() == []
    assert g.statistics().in_use == 0
    assert await g.call_sync(int) == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, asyncio.CancelledError])
async def test_whatever_a_thread_raises_is_a_failed_call_and_the_process_lives(error):
    g = guard("d", POLICY)

    def raises():
        raise error

    with pytest.raises(ToolFailed, match=error.__name__):
        await g.call_sync(raises)
    assert g.statistics().failed == 1
    assert g.statistics().in_use == 0


async def test_an_ordinary_error_in_a_thread_is_raised_unchanged():
    g = guard("d", POLICY)

    def raises():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await g.call_sync(raises)


async def test_a_cancelled_caller_leaves_the_thread_to_end_by_itself():
    g = guard("d", POLICY)
    stuck = VirtualEvent()
    task = asyncio.create_task(g.call_sync(stuck.wait))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert g.statistics().orphans == 1
    stuck.set()
    await asyncio.sleep(1.0)
    assert g.statistics().in_use == 0


async def test_idle_threads_are_used_again():
    g = guard("d", replace(POLICY, bulkhead=BulkheadPolicy(permits=8, queue=8)))
    for _ in range(20):
        await g.call_sync(sys.getrecursionlimit)
    assert g.statistics().threads == 1
    await g.aclose()


@pytest.mark.realtime
async def test_an_orphan_never_blocks_the_exit_of_a_process():
    program = """
import asyncio, time
from failsoft.kernel.guard import guard
from failsoft.kernel.policy import Policy
async def main():
    try:
        await guard("d", Policy(attempt_timeout=0.05)).call_sync(time.sleep, 3600)
    except TimeoutError:
        print("timed out")
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 15)
    assert out == b"timed out\n"
    assert process.returncode == 0
