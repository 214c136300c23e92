"""The background lane, and what becomes of its runs when their process dies, ends, or loses its lease."""

import asyncio

import pytest
from tests.runs.outliving import NOW, LastingStore, process
from tests.runs.worlds import app, plan, task

from failsoft.base.errors import QueueFull, StoreError
from failsoft.runs.durable import DurableLimits
from failsoft.runs.limits import RunLimits
from failsoft.runs.planner import RulesPlanner
from failsoft.runs.result import RunRequest
from failsoft.runs.state import RunState
from failsoft.stores.sqlite import SqliteStore
from failsoft.tools.python import tool
from failsoft.tools.registry import ToolContext

CALLS: list[str] = []


@tool(downstream="counted", kind="external", timeout=2000)
async def counted(name: str, seconds: float = 0.0) -> str:
    """Notes that it was called."""
    CALLS.append(name)
    await asyncio.sleep(seconds)
    return name


@pytest.fixture(autouse=True)
def _nothing_called():
    CALLS.clear()


def steps(*seconds: float):
    """Tasks one after another."""
    return plan(
        *(
            task(f"t{i}", "counted", needs=[f"t{i - 1}"] if i else [], parts=None, value=None).model_copy(
                update={"arguments": {"name": f"t{i}", "seconds": one}}
            )
            for i, one in enumerate(seconds)
        )
    )


async def test_a_background_run_is_written_before_it_is_accepted():
    store = LastingStore()
    async with process(store, what=steps(5), tools=[counted]) as one:
        handle = one.start(background=True)
        await handle.accepted()
        stored = await store.load_run(handle.run_id)
        assert stored is not None
        assert stored.record.background
        result = await handle.result()
        assert result.status is RunState.COMPLETED
        stored = await store.load_run(handle.run_id)
        assert stored is not None
        assert (stored.terminal, stored.ended) == ("completed", stored.record.created + 5)


async def test_a_background_run_that_cannot_be_written_is_not_accepted():
    async with process(LastingStore(), what=steps(0), tools=[counted]) as one:
        one.line.dead = True
        result = await one.start(background=True).result()
        assert (result.status, result.error is not None and result.error.code) == (RunState.FAILED, "store_error")
        assert CALLS == []
    async with app(steps(0), tools=[counted]) as without:
        result = await without.start(RunRequest("q", background=True)).result()
        assert isinstance(result.error, StoreError)


async def test_the_lane_is_bounded_and_interactive_runs_pass_it_by():
    limits = DurableLimits(width=2, queue=3)
    async with process(LastingStore(), what=steps(10), tools=[counted], durable=limits) as one:
        loop = asyncio.get_running_loop()
        began = loop.time()
        handles = [one.start(background=True) for _ in range(2)]
        await asyncio.sleep(1)
        handles += [one.start(background=True) for _ in range(3)]
        await asyncio.sleep(1)
        with pytest.raises(QueueFull):
            one.start(background=True)
        assert len(CALLS) == 2
        interactive = one.start(budget_ms=20_000)
        assert (await interactive.result()).status is RunState.COMPLETED
        assert loop.time() - began == 12
        ends = []
        for handle in handles:
            assert (await handle.result()).status is RunState.COMPLETED
            ends.append(loop.time() - began)
        assert ends == [12, 12, 20, 20, 30]
        assert one.app.durable is not None
        assert one.app.durable.lane.in_use == 0


async def test_a_background_runs_budget_counts_from_its_turn():
    async with process(LastingStore(), what=steps(10), tools=[counted], durable=DurableLimits(width=1)) as one:
        handles = [one.start(background=True, budget_ms=12_000) for _ in range(3)]
        results = [await handle.result() for handle in handles]
        assert [result.status for result in results] == [RunState.COMPLETED] * 3
        assert [result.elapsed for result in results] == [10, 10, 10]


async def test_a_run_cancelled_in_the_lane_never_begins():
    async with process(LastingStore(), what=steps(10), tools=[counted], durable=DurableLimits(width=1)) as one:
        first, second, third = (one.start(background=True) for _ in range(3))
        await asyncio.sleep(1)
        assert second.cancel()
        assert (await second.result()).status is RunState.CANCELLED
        assert (await third.result()).status is RunState.COMPLETED
        assert first.done
        assert len(CALLS) == 2


async def test_a_cancelled_background_run_is_written_as_such():
    store = LastingStore()
    async with process(store, what=steps(10), tools=[counted], dies=True) as one:
        handle = one.start(background=True)
        await asyncio.sleep(1)
        assert handle.cancel()
        await handle.written()
        stored = await store.load_run(handle.run_id)
        assert stored is not None
        assert stored.terminal == "cancelled"
    async with process(store, what=steps(10), tools=[counted]) as other:
        await asyncio.sleep(60)
        assert other.app.run(handle.run_id) is None
    assert CALLS == ["t0"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_after_a_death_finished_tasks_are_not_run_again(kind, tmp_path):
    """Case 58."""
    store = LastingStore() if kind == "memory" else SqliteStore(tmp_path / "runs.db")
    work = steps(1, 2, 30, 1)
    async with process(store, what=work, tools=[counted], dies=True) as one:
        handle = one.start(background=True, session_id="s", tenant="t")
        await asyncio.sleep(10)
        assert CALLS == ["t0", "t1", "t2"]
    CALLS.clear()
    async with process(store, what=work, tools=[counted]) as other:
        began = asyncio.get_running_loop().time()
        result = await other.result(handle.run_id)
        waited = asyncio.get_running_loop().time() - began
        assert CALLS == ["t2", "t3"]
        assert result.status is RunState.COMPLETED
        assert [one.value for one in result.tasks] == ["t0", "t1", "t2", "t3"]
        assert (result.task("t1").started, result.task("t1").ended) == (1.0, 3.0)
        assert 31 <= waited <= 31 + 15 + 2 + 5
        stored = await store.load_run(handle.run_id)
        assert stored is not None
        assert (stored.epoch, stored.deaths, stored.terminal) == (2, 1, "completed")
        ids = [(event.epoch, event.seq) for event in stored.events]
        assert ids == sorted(set(ids))
        assert {epoch for epoch, _ in ids} == {1, 2}
        assert sum(event.kind == "run.completed" for event in stored.events) == 1
    await store.aclose()


async def test_a_file_knows_at_once_that_a_process_died(tmp_path):
    """A lock beside the file is lost with the process: no lease has to end."""
    first, second = SqliteStore(tmp_path / "runs.db"), SqliteStore(tmp_path / "runs.db")
    async with process(first, what=steps(1, 30), tools=[counted], dies=True) as one:
        handle = one.start(background=True)
        await asyncio.sleep(5)
    await first.aclose()  # what the system does for a process that is killed
    await asyncio.sleep(0)
    async with process(second, what=steps(1, 30), tools=[counted]) as other:
        began = asyncio.get_running_loop().time()
        assert (await other.result(handle.run_id)).status is RunState.COMPLETED
        assert asyncio.get_running_loop().time() - began <= 30 + 2
    await second.aclose()


async def test_an_interactive_run_of_a_dead_process_ends_as_node_lost():
    """Case 58."""
    store = LastingStore()
    async with process(store, what=steps(1, 30), tools=[counted], dies=True) as one:
        handle = one.start(budget_ms=60_000)
        await asyncio.sleep(5)
    async with process(store, what=steps(1, 30), tools=[counted]) as other:
        await asyncio.sleep(25)
        assert other.app.run(handle.run_id) is None
        stored = await store.load_run(handle.run_id)
        assert stored is not None
        assert (stored.terminal, stored.events[-1].kind) == ("failed", "run.failed")
        assert stored.result is not None
        assert stored.result["error"]["code"] == "node_lost"
        assert [one["status"] for one in stored.result["tasks"]] == ["completed"]
    assert CALLS == ["t0", "t1"]


async def test_a_process_that_ends_in_order_hands_its_background_runs_on():
    store = LastingStore()
    async with process(store, what=steps(1, 30), tools=[counted]) as one:
        handle = one.start(background=True)
        interactive = one.start(budget_ms=60_000)
        await asyncio.sleep(5)
    assert interactive.state is RunState.CANCELLED
    assert handle.done
    assert (await handle.settled()) is None
    stored = await store.load_run(handle.run_id)
    assert stored is not None
    assert (stored.node, stored.terminal, stored.deaths, len(stored.tasks)) == ("", None, 0, 1)
    CALLS.clear()
    async with process(store, what=steps(1, 30), tools=[counted]) as other:
        began = asyncio.get_running_loop().time()
        assert (await other.result(handle.run_id)).status is RunState.COMPLETED
        assert asyncio.get_running_loop().time() - began == 30
    assert CALLS == ["t1"]


async def test_a_run_that_kills_its_processes_is_given_up():
    store = LastingStore()
    limits = RunLimits(deaths=2)
    async with process(store, what=steps(1000), tools=[counted], limits=limits, dies=True) as one:
        handle = one.start(background=True)
        await asyncio.sleep(5)
    for _ in range(2):
        async with process(store, what=steps(1000), tools=[counted], limits=limits, dies=True):
            await asyncio.sleep(25)
    async with process(store, what=steps(1000), tools=[counted], limits=limits):
        await asyncio.sleep(25)
    stored = await store.load_run(handle.run_id)
    assert stored is not None
    assert stored.result is not None
    assert (stored.deaths, stored.terminal, stored.result["error"]["code"]) == (3, "failed", "node_lost")
    assert len(CALLS) == 3


async def test_a_run_of_an_agent_that_is_gone_ends_as_failed():
    store = LastingStore()
    async with process(store, what=steps(1000), tools=[counted], dies=True) as one:
        handle = one.start(background=True)
        await asyncio.sleep(1)
    stored = await store.load_run(handle.run_id)
    assert stored is not None
    async with process(store, what=steps(1000), tools=[counted]) as other:
        other.app.agents._agents.clear()
        await asyncio.sleep(25)
    stored = await store.load_run(handle.run_id)
    assert stored is not None
    assert stored.result is not None
    assert stored.result["error"]["code"] == "unknown_agent"


async def test_without_its_lease_a_process_starts_no_calls_and_lets_go_of_its_runs():
    store = LastingStore()
    work = steps(*[4.0] * 20)
    async with process(store, what=work, tools=[counted]) as one:
        handle = one.start(background=True)
        interactive = one.start(budget_ms=100_000)
        await asyncio.sleep(10)
        one.line.hangs = True
        await asyncio.sleep(16)
        assert one.app.durable is not None
        assert not one.app.durable.may_call()
        assert handle.done
        assert one.app.run(handle.run_id) is None
        assert not interactive.done
        CALLS.clear()
        async with process(store, what=work, tools=[counted]) as other:
            await asyncio.sleep(10)
            assert other.app.run(handle.run_id) is not None
            one.line.hangs = False
            result = await other.result(handle.run_id)
            assert result.status is RunState.COMPLETED
        assert (await interactive.result()).status is RunState.COMPLETED
        assert one.app.run(handle.run_id) is None
        stored = await store.load_run(handle.run_id)
        assert stored is not None
        assert (stored.epoch, stored.terminal) == (2, "completed")


async def test_a_process_takes_its_own_runs_up_again_when_its_lease_is_back():
    store = LastingStore()
    async with process(store, what=steps(*[4.0] * 10), tools=[counted]) as one:
        handle = one.start(background=True)
        await asyncio.sleep(10)
        one.line.dead = True
        await asyncio.sleep(20)
        assert one.app.run(handle.run_id) is None
        one.line.dead = False
        result = await one.result(handle.run_id)
        assert result.status is RunState.COMPLETED
        assert [task.status for task in result.tasks] == ["completed"] * 10


async def test_a_run_that_another_process_took_is_let_go_of():
    """Its writes meet a conflict: there is one driver."""
    store = LastingStore()
    async with process(store, what=steps(*[4.0] * 10), tools=[counted]) as one:
        handle = one.start(background=True)
        await asyncio.sleep(5)
        await store.renew_lease("somebody", NOW + 1000)
        await store.acquire(handle.run_id, "somebody")
        await asyncio.sleep(10)
        assert handle.done
        assert one.app.run(handle.run_id) is None
        assert len(CALLS) <= 3


async def test_a_plan_that_was_not_made_yet_is_made_after_the_restart():
    store = LastingStore()
    seen: list[str] = []

    class Slow(RulesPlanner):
        async def plan(self, request, tools, context):
            seen.append(request.input)
            await asyncio.sleep(20)
            return steps(1)

    planners = [Slow(lambda request: None)]
    async with process(store, tools=[counted], planners=planners, dies=True) as one:
        handle = one.start("why?", background=True, metadata={"a": 1}, mode="deep")
        await asyncio.sleep(5)
    async with process(store, tools=[counted], planners=planners) as other:
        result = await other.result(handle.run_id)
        assert result.status is RunState.COMPLETED
        resumed = other.app.run(handle.run_id)
        assert resumed is not None
        assert (resumed.request.metadata, resumed.request.mode) == ({"a": 1}, "deep")
    assert seen == ["why?", "why?"]


async def test_a_key_finds_the_background_run_that_was_taken_over():
    store = LastingStore()
    async with process(store, what=steps(1, 30), tools=[counted], dies=True) as one:
        handle = one.start(background=True, idempotency_key="k")
        await asyncio.sleep(5)
    async with process(store, what=steps(1, 30), tools=[counted]) as other:
        await other.result(handle.run_id)
        again = other.start(background=True, idempotency_key="k")
        assert (await again.result()).run_id == handle.run_id


# --- actions -------------------------------------------------------------------------------------------------------

EFFECTS: list[tuple[str, str | None]] = []


def acting(*, idempotent: bool):
    @tool(downstream="bank", kind="action", idempotent=idempotent, timeout=60)
    async def pay(amount: int, seconds: float, context: ToolContext) -> str:
        """Pays, then takes its time to say so."""
        EFFECTS.append(("pay", context.idempotency_key))
        await asyncio.sleep(seconds)
        return "paid"

    return pay


def payment(seconds: float = 10):
    return plan(task("pay", "pay").model_copy(update={"arguments": {"amount": 5, "seconds": seconds}}))


async def test_an_action_that_may_have_happened_is_repeated_with_its_key_if_its_tool_is_idempotent():
    EFFECTS.clear()
    store = LastingStore()
    pay = acting(idempotent=True)
    async with process(store, what=payment(), tools=[pay], dies=True) as one:
        handle = one.start(background=True)
        await asyncio.sleep(5)
    async with process(store, what=payment(), tools=[pay]) as other:
        assert (await other.result(handle.run_id)).status is RunState.COMPLETED
    assert [("pay", f"{handle.run_id}:pay")] * 2 == EFFECTS


@pytest.mark.parametrize("said", ["approved", "rejected"])
async def test_else_a_person_has_to_look(said):
    EFFECTS.clear()
    store = LastingStore()
    pay = acting(idempotent=False)
    async with process(store, what=payment(), tools=[pay], dies=True) as one:
        handle = one.start(background=True)
        await asyncio.sleep(5)
    async with process(store, what=payment(), tools=[pay]) as other:
        await asyncio.sleep(30)
        assert len(EFFECTS) == 1
        (asked,) = (await other.app.approvals.list(status="pending")).approvals
        assert (asked.reason, asked.tool, asked.run) == ("unknown_outcome", "pay", handle.run_id)
        await other.app.approvals.resolve(asked.id, said)
        result = await other.result(handle.run_id)
    if said == "approved":
        assert (result.status, len(EFFECTS)) == (RunState.COMPLETED, 2)
    else:
        assert (result.status, len(EFFECTS)) == (RunState.DEGRADED, 1)
        assert result.task("pay").outcome.provenance.reason == "approval_rejected"


async def test_an_action_that_is_not_written_down_is_not_done():
    EFFECTS.clear()
    async with process(LastingStore(), what=payment(0), tools=[acting(idempotent=False)]) as one:
        one.line.dead = True
        result = await one.start().result()
        assert (result.status, EFFECTS) == (RunState.DEGRADED, [])
        assert result.task("pay").outcome.provenance.reason == "store_error"
    async with process(LastingStore(), what=payment(0), tools=[acting(idempotent=True)]) as one:
        one.line.dead = True
        result = await one.start().result()
        assert (result.task("pay").status, len(EFFECTS)) == ("completed", 1)
        assert "store" in [failure["part"] for failure in result.failures]


async def test_a_store_that_hangs_costs_an_action_half_a_second_not_its_run():
    EFFECTS.clear()
    async with process(LastingStore(), what=payment(0), tools=[acting(idempotent=False)]) as one:
        one.line.hangs = True
        began = asyncio.get_running_loop().time()
        result = await one.start(budget_ms=5000).result()
        assert result.status is RunState.DEGRADED
        assert asyncio.get_running_loop().time() - began <= 0.6
        one.line.hangs = False
    assert EFFECTS == []
