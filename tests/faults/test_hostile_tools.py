"""Tools that do the worst they can, in an app that serves others: all bounded, all named, nobody else hurt."""

import asyncio
import time
from pathlib import Path

import pytest
from tests.tools import isolated

from failsoft.app import App
from failsoft.config import Settings
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner
from failsoft.tools.python import tool

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(60)]


class Unserialisable:
    """No plain data, and rude when it is looked at."""

    def __repr__(self):
        raise RuntimeError("do not look at me")

    __str__ = __repr__

    def __reduce__(self):
        raise RuntimeError("do not pickle me")


@tool(kind="external", timeout=1)
async def raises_base_exception() -> None:
    raise BaseException("boom")


@tool(kind="external", timeout=1)
def exits() -> None:
    raise SystemExit(3)


@tool(kind="external", timeout=5)
async def returns_100_mb() -> list[str]:
    return [f"{n}" * 1_000_000 for n in range(100)]


@tool(kind="external", timeout=5)
def returns_a_lot_in_a_thread() -> dict[str, list[int]]:
    return {"rows": list(range(2_000_000))}


@tool(kind="external", timeout=1)
async def returns_what_cannot_be_serialised() -> object:
    return {"a": [Unserialisable()]}


@tool(kind="external", timeout=1)
def returns_it_from_a_thread() -> object:
    return Unserialisable()


@tool(kind="external", timeout=0.4)
async def ignores_its_cancellation() -> None:
    for _ in range(4):
        try:
            await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            continue


@tool(kind="external", timeout=0.4)
def sleeps_in_a_thread() -> None:
    time.sleep(1.2)


@tool(kind="external", timeout=1)
async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(5)


@tool(kind="external", timeout=1)
async def recurses() -> None:
    def deeper() -> None:
        deeper()

    deeper()


@tool(kind="external", timeout=1)
async def nests_without_end() -> list[object]:
    inner: list[object] = []
    for _ in range(50_000):
        inner = [inner]
    return inner


@tool(kind="external", timeout=1)
async def contains_itself() -> list[object]:
    own: list[object] = []
    own.append(own)
    return own


@tool(kind="external")
async def quick(n: int) -> int:
    await asyncio.sleep(0.001)
    return n


ON_THE_LOOP = {
    raises_base_exception: "raised BaseException",
    exits: "raised SystemExit",
    returns_100_mb: "returned more than",
    returns_a_lot_in_a_thread: "returned more than",
    returns_what_cannot_be_serialised: "not plain data",
    returns_it_from_a_thread: "not plain data",
    ignores_its_cancellation: "limit passed|did not stop",
    sleeps_in_a_thread: "limit passed",
    cancels_itself: "by itself|cancelled",
    recurses: "RecursionError",
    nests_without_end: "not plain data",
    contains_itself: "not plain data",
}


def agent(name, tools, *tasks):
    return Agent(name, tools=tools, planners=[StaticPlanner(Plan(tasks=tasks))], breaker=None)


async def ask(app, name, budget=6.0):
    began = time.monotonic()
    result = await app.ask("?", agent=name, budget=budget)
    return result, time.monotonic() - began


def task(one, **arguments):
    return TaskSpec(id="t", tool=one.spec.name, arguments=arguments)


async def latencies(app, until):
    """How long runs of the quick agent take while `until` is not set."""
    seen = []
    while not until.is_set():
        result, seconds = await ask(app, "quick")
        assert str(result.status) == "completed"
        seen.append(seconds)
        await asyncio.sleep(0.01)
    return sorted(seen)


def why(result):
    """What the run says of its one task."""
    return str(result.to_dict())


@pytest.mark.deep
async def test_whatever_tools_do_they_are_bounded_and_named_and_others_are_served(tmp_path):
    hostile = {
        **{one: (text, {}) for one, text in ON_THE_LOOP.items()},
        isolated.sleeps_in_c: ("limit passed", {"seconds": 60}),
        isolated.stubborn: ("limit passed", {"pids": str(tmp_path / "pids")}),
    }
    agents = [agent("quick", [quick], TaskSpec(id="t", tool="quick", arguments={"n": 1}))]
    agents += [agent(one.spec.name, [one], task(one, **arguments)) for one, (_, arguments) in hostile.items()]
    for how in ("prints 1 GB", "segfault", "returns 100 MB", "unpicklable"):
        one = isolated.misbehaves
        agents.append(agent(how.replace(" ", "_"), [one], task(one, how=how)))
    async with App(Settings(), agents=agents, store="off") as app:
        done = asyncio.Event()
        watching = asyncio.create_task(latencies(app, done))
        for one, (text, _) in hostile.items():
            result, seconds = await ask(app, one.spec.name)
            assert seconds < 9, one
            assert str(result.status) in ("failed", "degraded"), one
            said = why(result)
            assert any(part in said for part in text.split("|")), (one, said)
        for name, text in {
            "segfault": "SIGSEGV",
            "returns_100_MB": "returned more than",
            "unpicklable": "cannot be pickled",
        }.items():
            result, _ = await ask(app, name, budget=30)  # each ends its worker: a new one is started
            assert text in why(result), name
        result, _ = await ask(app, "prints_1_GB", budget=40)
        assert str(result.status) == "completed"
        done.set()
        seen = await watching
        assert len(seen) > 50
        assert seen[len(seen) * 9 // 10] < 0.5  # on a machine that is busy with a gigabyte of output
    assert await asyncio.to_thread(running, tmp_path / "pids") == []


def running(file):
    return [pid for pid in map(int, file.read_text().split()) if is_running(pid)]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@tool(kind="external", timeout=1)
async def blocks_the_loop() -> str:
    time.sleep(0.4)  # noqa: ASYNC251 - that is the point
    return "done"


@pytest.mark.may_block(reason="a tool that blocks the loop is what is tested")
async def test_a_tool_that_blocks_the_loop_is_named_and_others_go_on():
    agents = [
        agent("quick", [quick], TaskSpec(id="t", tool="quick", arguments={"n": 1})),
        agent("blocks", [blocks_the_loop], task(blocks_the_loop)),
    ]
    stalls = []
    async with App(Settings(), agents=agents, store="off") as app:
        app.bus.add(lambda event: stalls.append(event) if "stall" in event.kind else None)
        both = asyncio.gather(ask(app, "blocks"), ask(app, "quick"))
        (blocked, _), (other, seconds) = await both
        assert str(blocked.status) == "completed"
        assert str(other.status) == "completed"
        assert seconds < 2
        await asyncio.sleep(0.2)
    assert any("blocks_the_loop" in str(event) for event in stalls)
