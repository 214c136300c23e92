"""A run is cancelled at each thing it says, and whoever waits for it at every await: nothing is left behind."""

import asyncio

import pytest
from tests.runs.worlds import app, plan, task

from failsoft.base.errors import DownstreamUnavailable
from failsoft.runs.result import RunRequest
from failsoft.runs.run import Run
from failsoft.runs.state import TERMINAL, RunState
from failsoft.stores.memory import MemoryStore
from failsoft.testing.cancellation import cancel_at_every_await
from failsoft.testing.fakes import FakePlanner
from failsoft.tools.python import tool
from failsoft.tools.registry import Alternate

ENDS = {f"run.{state}" for state in TERMINAL}


@tool(kind="external", alternates=[Alternate("work", equivalent=True)])
async def failing(seconds: float = 0.0, value: str = "") -> None:
    """Its alternate answers."""
    await asyncio.sleep(seconds)
    raise DownstreamUnavailable("gone")


@tool(name="flaky")
async def flaky(seconds: float = 0.0) -> None:
    """Never answers, and may be tried again."""
    await asyncio.sleep(seconds)
    raise DownstreamUnavailable("gone")


RICH = plan(
    task("list", seconds=0.5, value=[1, 2, 3]),
    task("each", needs=["list"], map={"over": {"$from": "list"}, "width": 2}).model_copy(
        update={"arguments": {"seconds": 0.3, "value": {"$item": ""}}}
    ),
    task("alternate", "failing", seconds=0.2, value="b"),
    task("again", "flaky", seconds=0.1, retries=2, fallback={"value": "spare"}),
    task("late", needs=["each"], seconds=0.2, when={"of": {"$from": "each"}, "test": "filled"}),
    task("end", "join", ["late", "alternate"], parts=[{"$from": "late"}], join="any"),
)


def rich(store):
    return app(planners=[FakePlanner(RICH, delay=0.1)], tools=[failing, flaky], store=store)


async def one_run(cancel_at):
    """A run that is cancelled when it says its nth thing; how many things it said, and how it ended."""
    store = MemoryStore()
    async with rich(store) as running:
        loop = asyncio.get_running_loop()
        said = 0

        def listen(event):
            nonlocal said
            if event.run is not None:
                said += 1
                if said == cancel_at:
                    loop.call_soon(handle.cancel)

        running.bus.add(listen)
        handle = running.start(RunRequest("question"))
        result = await handle.result()
        events = [event async for event in handle.events()]
        await asyncio.sleep(30)
        assert handle.state is result.status
        assert [event async for event in handle.events()] == events
        assert [event.kind in ENDS for event in events].count(True) == 1
        assert {one.status for one in handle.tasks()}.isdisjoint({"running", "waiting"})
        assert events[-1].kind == f"run.{result.status}"
        assert all(guard.bulkhead.in_use == 0 and not guard.bulkhead.waiting for guard in running.guards.values())
        assert running.orphans() == []
        assert running.runs == []
    assert (await store.load_run(result.run_id)).terminal == str(result.status)
    return said, result


async def test_a_run_is_cancelled_at_each_thing_it_says():
    """Case 18, for every place of a run."""
    whole, result = await one_run(cancel_at=None)
    assert result.status is RunState.DEGRADED  # the spare
    assert whole > 20
    states = set()
    for n in range(1, whole):
        _, result = await one_run(cancel_at=n)
        states.add(result.status)
        assert result.status is RunState.CANCELLED or n >= whole - 3
    assert RunState.CANCELLED in states


def test_whoever_waits_for_a_run_may_be_cancelled_at_every_await():
    running = None

    async def make():
        nonlocal running
        running = rich("off")
        async with running as the_app:
            await the_app.ask("question")

    def check():
        assert running.runs == []
        assert running.orphans() == []
        assert all(guard.bulkhead.in_use == 0 for guard in running.guards.values())

    assert cancel_at_every_await(make, check) >= 2


@pytest.mark.parametrize("flavour", ["suspended", "granted"])
@pytest.mark.parametrize("store", [True, False])
def test_a_run_may_be_cancelled_at_every_await_of_its_own(store, flavour):
    """From the claim of its key in the store to its last word, with tasks that fan out, fall back and try again."""
    seen = []

    async def make():
        seen.clear()
        kept = MemoryStore() if store else "off"
        async with rich(kept) as running:
            run = Run("run_1", RunRequest("q", idempotency_key="k"), running.agents.get(), 8.0, running._parts)
            run.on_end = running._on_end
            running._active[run.id] = run
            seen.append((running, run, kept))
            await run.drive()
            seen.append("driven")

    async def check():
        if not seen:
            return
        running, run, kept = seen[0]
        if run.events:  # else the app was cancelled before it began
            kinds = [event.kind for event in run.events]
            assert [kind for kind in kinds if kind in ENDS] == kinds[-1:] == [f"run.{run.cell.value}"]
            assert run.ended.is_set()
            if store and "driven" not in seen:  # else it was the app's end that was cancelled, and what it still writes
                assert (await kept.load_run("run_1")).terminal == str(run.cell.value)
            ended = [event.task for event in run.events if event.kind == "task.finished"]
            assert len(ended) == len(set(ended))
            begun = {event.task for event in run.events if event.kind == "task.started"}
            assert begun <= set(ended)
            assert {one.status for one in run.result.tasks}.isdisjoint({"running", "waiting"})
        assert running.runs == []
        assert running.orphans() == []
        assert all(guard.bulkhead.in_use == 0 and not guard.bulkhead.waiting for guard in running.guards.values())

    assert cancel_at_every_await(make, check, flavours=[flavour], limit=200) >= (4 if store else 2)
