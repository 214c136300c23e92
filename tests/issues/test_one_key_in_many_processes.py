"""An idempotency key that another process has used gives that process's run: ended, still running, or lost with it."""

import asyncio

import pytest
from tests.runs.worlds import app, plan, task

from failsoft.base.clock import Sources
from failsoft.base.errors import IdempotencyConflict
from failsoft.kernel.scope import current_scope
from failsoft.runs.result import RunRequest
from failsoft.runs.state import RunState
from failsoft.stores.memory import MemoryStore
from failsoft.testing.fakes import FakeStore
from failsoft.tools.python import tool

SLOW = plan(task("a", seconds=2.0, value=[1, 2]), task("b", "broken"), reading="two things")
ASKED = RunRequest("question", idempotency_key="k", budget_ms=8000, session_id="s")


async def kinds(handle) -> list[str]:
    return [event.kind async for event in handle.events()]


async def test_an_ended_run_is_returned_as_it_was():
    store = MemoryStore()
    async with app(SLOW, store=store) as first:
        original = await first.start(ASKED).result()
    async with app(plan(task("other")), store=store) as second:
        handle = second.start(ASKED)
        await handle.accepted()
        assert handle.run_id == original.run_id
        again = await handle.result()
        assert again.to_dict(values=True) == original.to_dict(values=True)
        assert again.status is RunState.DEGRADED
        assert await kinds(handle) == ["run.received", "run.degraded"]
        assert second.run(original.run_id).result_now() is again
        assert second.runs == []
        assert second.start(ASKED).run_id == original.run_id
        assert second.guards["work"].statistics().calls == 0


async def test_an_ended_run_that_failed_fails_again_in_the_same_way():
    store = MemoryStore()
    async with app(planners=[Refusing()], store=store) as first:
        original = await first.start(ASKED).result()
    async with app(SLOW, store=store) as second:
        again = await second.start(ASKED).result()
    assert (again.status, again.run_id) == (RunState.FAILED, original.run_id)
    assert again.error.to_dict() == original.error.to_dict()
    assert type(again.error) is type(original.error)


class Refusing:
    name = "refusing"

    async def plan(self, request, tools, context):
        raise IdempotencyConflict("odd, but with a status of its own", param="input", details={"a": 1})


async def test_a_run_that_still_runs_elsewhere_is_waited_for():
    """Case 29."""
    store = MemoryStore()
    async with app(SLOW, store=store) as first, app(SLOW, store=store) as second:
        running = first.start(ASKED)
        await asyncio.sleep(0.5)
        waiting = second.start(ASKED)
        result, same = await asyncio.gather(running.result(), waiting.result())
        assert same.to_dict() == result.to_dict()
        assert second.guards["work"].statistics().calls == 0


async def test_one_that_does_not_end_in_time_is_named():
    store = MemoryStore()
    slow = plan(task("a", seconds=60.0))
    async with app(slow, store=store) as first, app(slow, store=store) as second:
        running = first.start(RunRequest("question", idempotency_key="k", budget_ms=60_000))
        await asyncio.sleep(0.5)
        with pytest.raises(IdempotencyConflict):
            (await second.start(RunRequest("other", idempotency_key="k")).result()).raise_for_status()
        asked = RunRequest("question", idempotency_key="k", budget_ms=60_000, spent_ms=57_000)
        late = await second.start(asked).result()
        assert late.elapsed <= 60.0
        assert (late.error.code, late.error.status, late.error.retryable) == ("run_elsewhere", 409, True)
        assert late.error.run_id == running.run_id
        running.cancel()


async def test_a_run_lost_with_its_process_is_taken_over_and_its_actions_keep_their_keys():
    store = MemoryStore()
    keys = []

    @tool(kind="action", downstream="mail", idempotent=True)
    async def send() -> str:
        keys.append(current_scope().idempotency_key)
        return "sent"

    wall = [1000.0]
    clock = Sources(wall=lambda: wall[0])
    doing = plan(task("a", "send"))
    async with app(doing, tools=[send], store=store, sources=clock) as first:
        lost = first.start(ASKED)
        await lost.accepted()
        lost._run._recorder = None  # its process was killed before it wrote more
        await lost.result()
    wall[0] += 8 + 6
    async with app(doing, tools=[send], store=store, sources=clock) as second:
        handle = second.start(ASKED)
        result = await handle.result()
        events = [event async for event in handle.events()]
    assert result.run_id == lost.run_id
    assert result.status is RunState.COMPLETED
    assert {event.epoch for event in events} == {2}
    assert keys == [f"{lost.run_id}:a"] * 2
    assert (await store.load_run(lost.run_id)).terminal == "completed"


@pytest.mark.parametrize("breaks", ["fails", "hangs"])
async def test_a_store_that_breaks_while_it_is_asked_for_the_key_costs_no_answer(breaks):
    store = FakeStore()
    async with app(plan(task("a", seconds=600.0)), store=store) as first:
        first.start(RunRequest("question", idempotency_key="k", budget_ms=60_000))
        await asyncio.sleep(0.5)
        async with app(plan(task("a", value=1)), store=store) as second:
            handle = second.start(RunRequest("question", idempotency_key="k", budget_ms=60_000))
            await asyncio.sleep(0.2)
            setattr(store, breaks, True)
            result = await handle.result()
            assert result.status is RunState.COMPLETED
            assert result.failures[0]["part"] == "store"
            setattr(store, breaks, False)


@pytest.mark.parametrize("after", [0.0, 0.1, 1.0])
async def test_cancelled_while_it_waits_it_leaves_the_other_run_alone(after):
    store = MemoryStore()
    async with app(SLOW, store=store) as first, app(SLOW, store=store) as second:
        running = first.start(ASKED)
        await asyncio.sleep(0.2)
        waiting = second.start(ASKED)
        await asyncio.sleep(after)
        assert waiting.cancel()
        assert await kinds(waiting) == ["run.received", "run.cancelled"]
        assert (await running.result()).status is RunState.DEGRADED
    assert (await store.load_run(running.run_id)).terminal == "degraded"
