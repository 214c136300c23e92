"""Cases from the field that runs have to stand, by number; those that show elsewhere name them in their tests."""

import asyncio

from tests.runs.worlds import App, agent, app, plan, task

from failsoft.base.errors import StoreError
from failsoft.config import Settings
from failsoft.kernel.guard import Kernel
from failsoft.runs.crew import Crew
from failsoft.runs.progress import History
from failsoft.runs.runners import ToolRunner
from failsoft.runs.scheduler import Scheduler
from failsoft.runs.state import RunState
from failsoft.stores.memory import MemoryStore
from failsoft.tools.python import tool
from failsoft.tools.registry import ToolContext
from failsoft.tools.stale import StaleResults


class FullDisk(MemoryStore):
    """A store whose every write fails from the second on."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    async def write(self, writes):
        self.writes += 1
        raise StoreError("disk full")


async def test_case_7_a_full_disk_in_mid_run_costs_no_answer_and_is_told():
    made = plan(task("a", seconds=1.0, value="first"), task("b", needs=["a"], seconds=1.0, value="second"))
    store = FullDisk()
    async with app(made, store=store) as running:
        result = await running.ask("question")
        assert result.status is RunState.COMPLETED
        assert "second" in result.answer
        assert [(one["part"], one["code"]) for one in result.failures] == [("store", "store_error")]
        statistics = running.statistics().recorder
    assert store.writes > 1
    assert statistics.dropped > 0
    assert statistics.last_error == "disk full"


async def test_case_10_three_tools_of_two_seconds_in_three_seconds_with_and_without_history():
    made = plan(
        task("a", seconds=2.0, value="first"), task("b", seconds=2.0, needs=["a"]), task("c", seconds=2.0, needs=["b"])
    )
    async with app(made) as running:
        first = await running.ask("question", budget=3)
        await running.ask("question", budget=60)  # now it is known that each takes two seconds
        second = await running.ask("question", budget=3)
    for result in (first, second):
        assert result.elapsed <= 3.0
        assert "first" in result.answer
        assert [one.status for one in result.tasks] == ["completed", "failed", "skipped"]
        assert result.task("c").started is None


async def test_case_15_what_arrives_after_the_deadline_is_no_success_however_little_late():
    @tool(kind="external")
    async def shielded() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "late"
        return "never"

    async with app(plan(task("a", "shielded")), tools=[shielded]) as running:
        result = await running.ask("question", budget=2)
    assert result.task("a").outcome.provenance.served is None
    assert result.status is RunState.DEGRADED
    assert "late" not in result.answer


async def test_case_22_of_five_parallel_calls_one_fails_and_nothing_is_left_running():
    made = plan(*(task(f"t{i}", seconds=1.0, value=i) for i in range(4)), task("bad", "broken", seconds=0.5))
    async with app(made) as running:
        result = await running.ask("question")
        assert [one.value for one in result.tasks] == [0, 1, 2, 3, None]
        assert all(guard.bulkhead.in_use == 0 for guard in running.guards.values())
        assert running.orphans() == []


async def test_case_23_of_twenty_parallel_calls_with_a_limit_of_ten_exactly_ten_are_made():
    calls = 0

    @tool(kind="external")
    async def count() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(1)

    settings = Settings.model_validate({"run": {"max_calls": 10}, "downstreams": {"count": {"permits": 50}}})
    made = plan(*(task(f"t{i}", "count") for i in range(20)))
    async with App(settings, agents=[agent(made, tools=[count])], store="off") as running:
        result = await running.ask("question")
    assert calls == 10
    left_out = [one for one in result.tasks if one.outcome.provenance.reason == "too_many_calls"]
    assert len(left_out) == 10
    assert {one.status for one in left_out} == {"skipped"}
    assert result.status is RunState.DEGRADED
    each = plan(task("each", "count", map={"over": list(range(20)), "width": 20}))
    calls = 0
    async with App(settings, agents=[agent(each, tools=[count])], store="off") as running:
        mapped = await running.ask("question")
    assert calls == 10
    assert mapped.task("each").outcome.provenance.truncated


async def test_case_25_a_tool_in_a_crash_loop_does_not_slow_the_others():
    made = plan(*(task(f"bad{i}", "broken") for i in range(10)), task("good", seconds=1.0, value="good"))
    async with app(made) as running:
        for _ in range(10):
            result = await running.ask("question")
            assert result.task("good").elapsed == 1.0
            assert result.elapsed == 1.0


class FarSide:
    """Does what it is asked once for each key, and answers only to a patient caller."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.done: set[str] = set()

    async def send(self, key: str) -> str:
        self.seen.append(key)
        again = key in self.done
        self.done.add(key)
        if not again:
            await asyncio.sleep(60)
        return "sent"


async def test_case_28_an_action_that_timed_out_after_it_was_done_is_done_once_when_its_run_goes_on():
    far = FarSide()

    @tool(kind="action", timeout=1.0)
    async def send(context: ToolContext) -> str:
        sent: str = await far.send(context.idempotency_key or "")
        return sent

    made = plan(task("a", "send", retries=3))
    tools = agent(made, tools=[send]).tools
    loop = asyncio.get_running_loop()
    outcomes = []
    for _ in range(2):  # the second as after a restart: the same run and task, in another process
        kernel, history = Kernel(), History()
        scheduler = Scheduler(
            made,
            run="run_1",
            tenant=None,
            runners={"tool": ToolRunner(tools, kernel, StaleResults(loop.time), history)},
            history=history,
            crew=Crew(loop),
            emit=lambda kind, one, data: None,
            began=loop.time(),
            cut=loop.time() + 8,
        )
        scheduler.start()
        await scheduler.done
        outcomes.append(scheduler.outcomes["a"])
        await kernel.aclose()
    assert far.seen == ["run_1:a", "run_1:a"]  # never again by itself, whatever the plan says about retries
    assert len(far.done) == 1
    assert [one.value for one in outcomes] == [None, "sent"]
