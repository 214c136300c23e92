"""``@tool(isolation="process")``: what a tool's code does to its process is its own affair."""

import asyncio
import contextlib
import os
import time
from pathlib import Path

import pytest
from tests.tools import isolated
from tests.tools.isolated import Pair

from failsoft.base.errors import CallTimeout, DownstreamUnavailable, MalformedResult, ToolFailed
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.tools.python import tool
from failsoft.tools.registry import ResultTooLarge, ResultUnserialisable, ToolContext

pytestmark = pytest.mark.realtime


async def call(kernel, one, **arguments):
    return await one.call(kernel.guard(one.spec.downstream), arguments, ToolContext.current())


async def test_a_tool_runs_in_a_worker_that_is_used_again():
    kernel = Kernel()
    one = await call(kernel, isolated.added, pair={"left": 1, "right": 2}, times=3)
    two = await call(kernel, isolated.added, pair=Pair(1))
    assert (one.left, two.left) == (9, 1)
    assert one.right == two.right != os.getpid()
    assert await asyncio.to_thread(alive, [one.right]) == [one.right]
    await kernel.aclose()
    assert await asyncio.to_thread(alive, [one.right]) == []


async def test_at_the_limit_the_worker_is_killed_with_its_children(tmp_path):
    kernel = Kernel()
    began = time.monotonic()
    with pytest.raises(CallTimeout):
        await call(kernel, isolated.sleeps_in_c, seconds=60)
    assert time.monotonic() - began < 5
    await call(kernel, isolated.warm)  # a worker is up: the limit is not spent on starting one
    with pytest.raises(CallTimeout):
        await call(kernel, isolated.stubborn, pids=str(tmp_path / "pids"))
    await kernel.aclose()
    pids = await asyncio.to_thread(written, tmp_path / "pids")
    assert len(pids) == 3
    assert await asyncio.to_thread(alive, pids) == []


def written(file):
    return [int(one) for one in file.read_text().split()] if file.exists() else []


def alive(pids):
    """Those that exist and are no zombies."""
    states = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            states[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return [pid for pid, state in states.items() if state not in "ZX"]


ENDS = {
    "segfault": (DownstreamUnavailable, "killed by SIGSEGV"),
    "exit": (DownstreamUnavailable, "ended with exit code 3"),
    "BaseException": (ToolFailed, "BaseException was raised"),
    "SystemExit": (ToolFailed, "SystemExit was raised"),
    "returns 100 MB": (ResultTooLarge, "'misbehaves' returned more than 1000000 bytes"),
    "unpicklable": (MalformedResult, "cannot be pickled"),
    "no plain data": (ResultUnserialisable, "not plain data"),
    "recursion": (ToolFailed, "RecursionError was raised"),
}


async def test_how_it_ends_is_named_and_the_next_call_is_served():
    kernel = Kernel()
    kernel.guard("misbehaves", Policy(breaker=None))
    try:
        for how, (error, text) in ENDS.items():
            with pytest.raises(error, match=text):
                await call(kernel, isolated.misbehaves, how=how)
        with pytest.raises(ToolFailed, match="ValueError") as raised:
            await call(kernel, isolated.misbehaves, how="secret")
        assert raised.value.details["message"] == "secret"
        assert "secret" not in str(raised.value.to_dict())
    finally:
        await kernel.aclose()


@pytest.mark.deep
async def test_a_gigabyte_of_output_is_read_and_forgotten():
    kernel = Kernel()
    try:
        assert await call(kernel, isolated.misbehaves, how="prints 1 GB") == "printed"
    finally:
        await kernel.aclose()


async def test_memory_is_bounded_and_secrets_stay_out(monkeypatch):
    monkeypatch.setenv("THE_TOKEN", "allowed")
    monkeypatch.setenv("OTHER_TOKEN", "secret")
    kernel = Kernel()
    try:
        with pytest.raises(ToolFailed, match="MemoryError"):
            await call(kernel, isolated.hungry, megabytes=4000)
        assert await call(kernel, isolated.hungry, megabytes=10) == 10 << 20
        assert await call(kernel, isolated.variables, names=["THE_TOKEN", "OTHER_TOKEN"]) == ["allowed", None]
    finally:
        await kernel.aclose()


async def test_cancelling_kills_at_once(tmp_path):
    kernel = Kernel()
    task = asyncio.ensure_future(call(kernel, isolated.stubborn, pids=str(tmp_path / "pids")))
    while not (pids := await asyncio.to_thread(written, tmp_path / "pids")):
        await asyncio.wait([task], timeout=0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await kernel.aclose()
    assert pids
    assert await asyncio.to_thread(alive, pids) == []


def test_what_cannot_be_isolated_is_refused_where_it_is_decorated():
    async def coroutine() -> None: ...

    def local() -> None: ...

    for function, why in ((coroutine, "plain functions"), (local, "top of a module")):
        with pytest.raises(TypeError, match=why):
            tool(isolation="process")(function)
    with pytest.raises(TypeError, match="'context': the context of a call stays"):
        tool(isolation="process")(takes_context)


def takes_context(context: ToolContext) -> None: ...
