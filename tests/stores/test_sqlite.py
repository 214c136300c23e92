import asyncio
import dataclasses
import math
import sqlite3

import pytest

from failsoft.base.errors import StoreError
from failsoft.stores.protocols import Duration, RunRecord, StoredEvent, TaskRecord
from failsoft.stores.sqlite import SqliteStore


def record(run="run_1"):
    return RunRecord(run=run, agent="a", request={"input": "q"}, created=1.0, budget=8.0, node="n")


async def test_a_run_survives_closing_the_file(tmp_path):
    store = SqliteStore(tmp_path / "runs.db")
    await store.create_run(record())
    await store.append_events("run_1", 1, [StoredEvent(1, 1, "run.received", 2.0)])
    await store.record_durations([Duration("tool:a", 1.5)])
    await store.aclose()
    again = SqliteStore(tmp_path / "runs.db")
    loaded = await again.load_run("run_1")
    assert loaded is not None
    assert loaded.record == record()
    assert len(loaded.events) == 1
    assert await again.durations() == {"tool:a": [1.5]}
    await again.aclose()


async def test_what_is_asked_at_once_is_written_in_one_commit(tmp_path):
    store = SqliteStore(tmp_path / "runs.db")
    await store.create_run(record())
    before = store._commits
    await asyncio.gather(*(store.append_events("run_1", 1, [StoredEvent(1, i, "e", 0.0)]) for i in range(1, 201)))
    assert store._commits - before <= 20
    loaded = await store.load_run("run_1")
    assert loaded is not None
    assert len(loaded.events) == 200
    await store.aclose()


async def test_a_cancelled_caller_leaves_the_store_working(tmp_path):
    store = SqliteStore(tmp_path / "runs.db")
    task = asyncio.ensure_future(store.create_run(record()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.load_run("run_1") is not None
    await store.aclose()


@pytest.fixture
def newer(tmp_path):
    path = tmp_path / "runs.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    return path


async def test_a_file_of_a_newer_version_is_refused(newer):
    with pytest.raises(StoreError, match="newer version"):
        await SqliteStore(newer).durations()


async def test_a_path_that_cannot_be_opened_is_a_store_error_each_time():
    store = SqliteStore("/dev/null/runs.db")
    for _ in range(2):
        with pytest.raises(StoreError):
            await store.create_run(record())


@dataclasses.dataclass
class Row:
    name: str
    value: float


async def test_values_of_tasks_are_kept_as_plain_data(tmp_path):
    store = SqliteStore(tmp_path / "runs.db")
    await store.create_run(record())
    await store.finish_task("run_1", 1, TaskRecord("a", "completed", [Row("x", math.nan), object]))
    loaded = await store.load_run("run_1")
    assert loaded is not None
    value = loaded.tasks["a"].value
    assert value[0] == {"name": "x", "value": None}
    assert "object" in value[1]
    await store.aclose()
