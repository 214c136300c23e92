"""The store's file breaks in every way it can: a clear error that names it, and no answer is lost.

Case 7 and its kind: slow, hanging, locked by another process, full, corrupt, replaced, read-only.
"""

import asyncio
import sqlite3
from typing import Any

import pytest
from tests.runs.outliving import LastingStore, process
from tests.runs.worlds import App, agent, plan, task

from failsoft.base.errors import StoreError
from failsoft.runs.result import RunRequest
from failsoft.runs.state import RunState
from failsoft.stores.protocols import RunRecord, TaskRecord
from failsoft.stores.sqlite import SqliteStore

WORK = plan(task("a", seconds=0.05), task("b", needs=["a"]))


def record(run: str = "run_1") -> RunRecord:
    return RunRecord(run=run, agent="a", request={"input": "q"}, created=1.0, budget=8.0, node="n")


async def answered(store: SqliteStore) -> list[dict[str, Any]]:
    """A run over a broken store answers in full; gives what its result says of the store."""
    async with App(agents=[agent(WORK)], store=store) as app:
        result = await app.ask("q", budget=5)
        assert result.status is RunState.COMPLETED
        again = await app.ask("q", budget=5, idempotency_key="k")
        assert again.status is RunState.COMPLETED
        return [dict(one) for one in again.failures if one["part"] == "store"]


@pytest.mark.realtime
async def test_a_file_locked_by_another_process_is_told_and_costs_no_answer(tmp_path):
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.create_run(record())
    other = await asyncio.to_thread(sqlite3.connect, path, isolation_level=None, check_same_thread=False)
    await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"runs\.db failed: database is locked"):
        await store.finish_task("run_1", 1, TaskRecord("a", "completed"))
    await asyncio.to_thread(other.execute, "ROLLBACK")
    await asyncio.to_thread(other.close)
    await store.finish_task("run_1", 1, TaskRecord("a", "completed"))
    await store.aclose()


@pytest.mark.realtime
async def test_many_jobs_behind_a_lock_fail_together_and_not_one_by_one(tmp_path):
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.create_run(record())
    other = await asyncio.to_thread(sqlite3.connect, path, isolation_level=None, check_same_thread=False)
    await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
    loop = asyncio.get_running_loop()
    began = loop.time()
    jobs = [store.finish_task("run_1", 1, TaskRecord(f"t{i}", "completed")) for i in range(50)]
    failed = await asyncio.gather(*jobs, return_exceptions=True)
    assert all(isinstance(one, StoreError) for one in failed)
    assert loop.time() - began < 10
    await asyncio.to_thread(other.close)
    await store.aclose()


async def test_a_full_disk_is_told_and_costs_no_answer(tmp_path):
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.create_run(record())
    pages = await store._submit(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    await store._submit(lambda db: db.execute(f"PRAGMA max_page_count = {pages + 1}").fetchone())
    with pytest.raises(StoreError, match=r"runs\.db failed: database or disk is full"):
        await store.finish_task("run_1", 1, TaskRecord("a", "completed", "x" * 100_000))
    assert await store.load_run("run_1") is not None
    assert [one["code"] for one in await answered(store)] in ([], ["store_error"])
    await store._submit(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
    await store.create_run(record("run_2"))
    await store.finish_task("run_2", 1, TaskRecord("a", "completed", "x" * 100_000))
    await store.aclose()


async def test_a_corrupt_file_is_told_and_costs_no_answer(tmp_path):
    path = tmp_path / "runs.db"
    await asyncio.to_thread(path.write_bytes, b"this is no database" * 1000)
    store = SqliteStore(path)
    with pytest.raises(StoreError, match=r"runs\.db failed: file is not a database"):
        await store.create_run(record())
    told = await answered(store)
    assert [one["code"] for one in told] == ["store_error"]
    assert "runs.db failed: file is not a database" in told[0]["message"]
    await store.aclose()
    assert (await asyncio.to_thread(path.read_bytes)).startswith(b"this is no database")  # never repaired by us


async def test_a_path_that_is_a_folder_is_told(tmp_path):
    store = SqliteStore(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreError, match="unable to open database file"):
            await store.create_run(record())
    assert [one["code"] for one in await answered(store)] == ["store_error"]
    await store.aclose()


@pytest.mark.parametrize("fault", ["dead", "hangs"])
async def test_a_store_that_fails_under_background_runs_loses_none_of_them(fault):
    """While it is away nothing ends, and when it is back everything does, once."""
    store = LastingStore()
    work = plan(task("a", seconds=5), task("b", needs=["a"], seconds=5))
    async with process(store, what=work) as one:
        handles = [one.start(background=True) for _ in range(3)]
        await asyncio.sleep(2)
        setattr(one.line, fault, True)
        await asyncio.sleep(40)
        setattr(one.line, fault, False)
        await asyncio.sleep(60)
        for handle in handles:
            stored = await store.load_run(handle.run_id)
            assert stored is not None
            assert stored.terminal == "completed"
            assert sum(event.kind == "run.completed" for event in stored.events) == 1


async def test_a_slow_store_slows_no_answer_down():
    store = LastingStore()
    async with process(store, what=plan(task("a", seconds=1))) as one:
        inner = one.line.store

        class Slow:
            durable = True

            def __getattr__(self, name):
                async def call(*args, **kwargs):
                    await asyncio.sleep(0.4)
                    return await getattr(inner, name)(*args, **kwargs)

                return call

        one.line.store = Slow()
        began = asyncio.get_running_loop().time()
        results = await asyncio.gather(*(one.start(f"q{i}").result() for i in range(8)))
        assert asyncio.get_running_loop().time() - began == 1.0
        assert {result.status for result in results} == {RunState.COMPLETED}
    for result in results:
        stored = await store.load_run(result.run_id)
        assert stored is not None
        assert stored.terminal == "completed"


async def test_a_run_that_cannot_say_that_it_ended_is_ended_by_the_next_process():
    """The end of a background run is written before anybody hears of it; what was not written is done again."""
    store = LastingStore()
    async with process(store, what=plan(task("a", seconds=5)), dies=True) as one:
        handle = one.app.start(RunRequest("q", background=True))
        await asyncio.sleep(4)
        one.line.dead = True
        result = await handle.settled()
        assert result is None or result.status is RunState.COMPLETED
    async with process(store, what=plan(task("a", seconds=5))) as other:
        assert (await other.result(handle.run_id)).status is RunState.COMPLETED
    stored = await store.load_run(handle.run_id)
    assert stored is not None
    assert stored.terminal == "completed"
