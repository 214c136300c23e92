"""A cancelled run showed what had run in it as running, and what was to come as waiting, for ever."""

import asyncio

from tests.runs.worlds import app, plan, task

from failsoft.runs.result import RunRequest
from failsoft.stores.memory import MemoryStore


async def test_the_tasks_of_a_cancelled_run_are_cancelled_here_in_its_events_and_in_the_store():
    store = MemoryStore()
    what = plan(task("done"), task("runs", needs=["done"], seconds=5), task("waits", needs=["runs"]))
    async with app(what, store=store) as running:
        handle = running.start(RunRequest("q"))
        await asyncio.sleep(1)
        again = []
        running.bus.add(lambda event: again.append(handle.cancel()), only=lambda kind: kind == "task.finished")
        handle.cancel()  # and listeners that cancel it while it ends change nothing
        result = await handle.result()
        assert [(one.id, one.status) for one in result.tasks] == [
            ("done", "completed"), ("runs", "cancelled"), ("waits", "cancelled"),
        ]  # fmt: skip
        assert result.tasks[1].outcome.provenance.reason == "run_cancelled"
        kinds = [(event.kind, event.task) async for event in handle.events()]
        assert kinds[-1] == ("run.cancelled", None)
        assert [kind for kind, _ in kinds].count("run.cancelled") == 1
        assert again
    stored = await store.load_run(result.run_id)
    assert stored.terminal == "cancelled"
    assert [one["status"] for one in stored.result["tasks"]] == ["completed", "cancelled", "cancelled"]
