"""Contract suites: what every implementation of a port must do, to be run by its own tests.

::

    async def test_my_store(case):
        await case.check(await open_my_store())  # for case in store_cases()
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from failsoft.base.errors import BadInput, FailsoftError, IdempotencyConflict, NotFound, StoreConflict
from failsoft.base.transport import HttpRequest, Transport
from failsoft.kernel.guard import Kernel
from failsoft.stores.protocols import (
    AppendEvents,
    CreateRun,
    Duration,
    FinishRun,
    FinishTask,
    RunRecord,
    RunStore,
    SaveSnapshot,
    StoredEvent,
    TaskRecord,
)
from failsoft.tools.registry import Tool, ToolContext

__all__ = ["StoreCase", "check_store", "check_tool", "check_transport", "store_cases"]


def _record(run: str = "run_1", **changes: Any) -> RunRecord:
    record = RunRecord(
        run=run, agent="analyst", request={"input": "为什么？"}, created=1_700_000_000.0, budget=8.0, node="node-a"
    )
    return replace(record, **changes)


async def _raises(kind: type[FailsoftError], work: Awaitable[object]) -> FailsoftError:
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def _a_run_is_stored_and_loaded(store: RunStore) -> None:
    record = _record(tenant="t1", session="s1", background=True)
    created = await store.create_run(record)
    assert (created.run, created.epoch, created.existing) == ("run_1", 1, False)
    events = [StoredEvent(1, 1, "run.received", 1_700_000_000.5, None, {"question": "为什么？"})]
    await store.append_events("run_1", 1, events)
    await store.append_events("run_1", 1, [StoredEvent(1, 2, "task.started", 1_700_000_001.0, "a", None)])
    task = TaskRecord("a", "completed", [{"n": 1.5, "s": "é"}, None], {"rung": "primary"}, 0.5, 1.25)
    await store.finish_task("run_1", 1, task)
    await store.save_snapshot("run_1", 1, "dispatching", {"plan": {"tasks": []}})
    loaded = await store.load_run("run_1")
    assert loaded is not None
    assert loaded.record == record
    assert (loaded.epoch, loaded.node, loaded.state, loaded.terminal, loaded.result) == (
        1,
        "node-a",
        "dispatching",
        None,
        None,
    )
    assert loaded.snapshot == {"plan": {"tasks": []}}
    assert [event.seq for event in loaded.events] == [1, 2]
    assert loaded.events[0] == events[0]
    assert loaded.tasks == {"a": task}


async def _what_is_not_there_is_none(store: RunStore) -> None:
    assert await store.load_run("run_x") is None
    assert await store.durations() == {}
    await _raises(NotFound, store.acquire("run_x", "node-b"))
    await _raises(StoreConflict, store.append_events("run_x", 1, [StoredEvent(1, 1, "k", 0.0)]))


async def _tenants_do_not_see_each_other(store: RunStore) -> None:
    await store.create_run(_record(tenant="t1"))
    assert await store.load_run("run_1", tenant="t2") is None
    assert await store.load_run("run_1", tenant="t1") is not None


async def _a_run_ends_once(store: RunStore) -> None:
    await store.create_run(_record())
    await store.finish_run("run_1", 1, "cancelled", {"status": "cancelled"})
    await _raises(StoreConflict, store.finish_run("run_1", 1, "completed", {"status": "completed"}))
    await _raises(StoreConflict, store.append_events("run_1", 1, [StoredEvent(1, 9, "late", 0.0)]))
    await _raises(StoreConflict, store.finish_task("run_1", 1, TaskRecord("a", "completed")))
    await _raises(StoreConflict, store.save_snapshot("run_1", 1, "dispatching", {}))
    await _raises(StoreConflict, store.acquire("run_1", "node-b"))
    loaded = await store.load_run("run_1")
    assert loaded is not None
    assert (loaded.terminal, loaded.state, loaded.result) == ("cancelled", "cancelled", {"status": "cancelled"})
    assert loaded.events == ()
    assert loaded.tasks == {}


async def _who_lost_a_run_writes_nothing(store: RunStore) -> None:
    await store.create_run(_record())
    assert await store.acquire("run_1", "node-b") == 2
    await _raises(StoreConflict, store.append_events("run_1", 1, [StoredEvent(1, 1, "k", 0.0)]))
    await _raises(StoreConflict, store.finish_task("run_1", 1, TaskRecord("a", "completed")))
    await _raises(StoreConflict, store.save_snapshot("run_1", 1, "dispatching", {}))
    await _raises(StoreConflict, store.finish_run("run_1", 1, "completed", {}))
    await store.finish_run("run_1", 2, "completed", {"ok": True})
    loaded = await store.load_run("run_1")
    assert loaded is not None
    assert (loaded.node, loaded.epoch, loaded.terminal, loaded.events) == ("node-b", 2, "completed", ())


async def _only_one_of_many_acquires_a_run(store: RunStore) -> None:
    await store.create_run(_record())
    tries = [store.acquire("run_1", f"node-{i}", expected=1) for i in range(10)]
    got = await asyncio.gather(*tries, return_exceptions=True)
    assert [one for one in got if one == 2] == [2]
    assert sum(isinstance(one, StoreConflict) for one in got) == 9


async def _a_key_gives_the_same_run(store: RunStore) -> None:
    first = _record("run_1", tenant="t1", idempotency_key="k", body_hash="h")
    await store.create_run(first)
    again = await store.create_run(replace(first, run="run_2"))
    assert (again.run, again.existing) == ("run_1", True)
    error = await _raises(IdempotencyConflict, store.create_run(replace(first, run="run_3", body_hash="other")))
    assert error.run_id == "run_1"
    other = await store.create_run(replace(first, run="run_4", tenant="t2"))
    assert (other.run, other.existing) == ("run_4", False)
    nobody = await store.create_run(replace(first, run="run_5", tenant=None))
    assert not nobody.existing
    assert await store.load_run("run_2") is None


async def _an_id_is_used_once(store: RunStore) -> None:
    await store.create_run(_record())
    await _raises(StoreConflict, store.create_run(_record(agent="other")))


async def _one_conflict_does_not_touch_the_group(store: RunStore) -> None:
    results = await store.write(
        [
            CreateRun(_record("run_1")),
            CreateRun(_record("run_2")),
            AppendEvents("run_1", 1, (StoredEvent(1, 1, "run.received", 0.0),)),
            AppendEvents("run_2", 7, (StoredEvent(7, 1, "run.received", 0.0),)),
            FinishTask("run_1", 1, TaskRecord("a", "failed")),
            FinishTask("run_1", 1, TaskRecord("a", "completed", 1)),
            SaveSnapshot("run_1", 1, "aggregating", {}),
            FinishRun("run_1", 1, "completed", {}),
            FinishRun("run_1", 1, "cancelled", {}),
            CreateRun(_record("run_2")),
        ]
    )
    assert [type(one) for one in results] == [
        type(None),
        type(None),
        type(None),
        StoreConflict,
        type(None),
        type(None),
        type(None),
        type(None),
        StoreConflict,
        StoreConflict,
    ]
    loaded = await store.load_run("run_1")
    assert loaded is not None
    assert (loaded.terminal, loaded.tasks["a"].value, len(loaded.events)) == ("completed", 1, 1)


async def _an_event_written_twice_is_there_once(store: RunStore) -> None:
    await store.create_run(_record())
    assert await store.write([]) == []
    await store.append_events("run_1", 1, [])


async def _runs_are_listed_newest_first_in_pages(store: RunStore) -> None:
    for i in range(7):
        session, tenant = "s1" if i % 2 else None, "t2" if i == 6 else "t1"
        await store.create_run(_record(f"run_{i}", created=1000.0 + i // 2, tenant=tenant, session=session))
    await store.create_run(_record("run_n", agent="other"))
    await store.finish_run("run_1", 1, "completed", {"answer": "é"})

    async def listed(**wanted: Any) -> list[str]:
        return [one.record.run for one in await store.list_runs(**wanted)]

    assert await listed(tenant="t1") == ["run_5", "run_4", "run_3", "run_2", "run_1", "run_0"]
    assert await listed(tenant="t1", limit=2) == ["run_5", "run_4"]
    assert await listed(tenant="t1", limit=2, after="run_4") == ["run_3", "run_2"]
    assert await listed(tenant="t1", session="s1") == ["run_5", "run_3", "run_1"]
    assert await listed(tenant="t1", state="completed") == ["run_1"]
    assert await listed(tenant="t1", session="s1", state="received", after="run_5") == ["run_3"]
    assert await listed(tenant="t2", session="s1") == []
    assert await listed(tenant=None) == ["run_n"]
    assert await listed(tenant=None, agent="analyst") == []
    (one,) = await store.list_runs(tenant="t1", state="completed")
    assert (one.terminal, one.result, one.record.session) == ("completed", {"answer": "é"}, "s1")


async def _durations_are_kept_and_bounded(store: RunStore) -> None:
    await store.record_durations([Duration("tool:a", float(i)) for i in range(120)])
    await store.record_durations([Duration("tool:b", 0.5)])
    kept = await store.durations()
    assert list(kept["tool:b"]) == [0.5]
    assert list(kept["tool:a"])[-1] == 119.0
    assert list(kept["tool:a"]) == sorted(kept["tool:a"])
    assert 10 <= len(kept["tool:a"]) <= 100


@dataclass(frozen=True, slots=True)
class StoreCase:
    """One demand on a store, to be checked on an empty one."""

    name: str
    check: Callable[[RunStore], Awaitable[None]]


def store_cases() -> list[StoreCase]:
    """All demands on a store."""
    checks = (
        _a_run_is_stored_and_loaded,
        _what_is_not_there_is_none,
        _tenants_do_not_see_each_other,
        _a_run_ends_once,
        _who_lost_a_run_writes_nothing,
        _only_one_of_many_acquires_a_run,
        _a_key_gives_the_same_run,
        _an_id_is_used_once,
        _one_conflict_does_not_touch_the_group,
        _an_event_written_twice_is_there_once,
        _runs_are_listed_newest_first_in_pages,
        _durations_are_kept_and_bounded,
    )
    from failsoft.testing.store_contracts import CHECKS

    return [StoreCase(check.__name__.strip("_"), check) for check in (*checks, *CHECKS)]


async def check_store(make: Callable[[], Awaitable[RunStore]]) -> None:
    """Checks every demand, each on a store from `make`, which is closed afterwards."""
    for case in store_cases():
        store = await make()
        try:
            await case.check(store)
        finally:
            await store.aclose()


async def check_tool(tool: Tool, good: dict[str, Any], bad: dict[str, Any]) -> Any:
    """What every tool must do: arguments that fit pass, others are :class:`BadInput`. Returns its result."""
    assert isinstance(tool, Tool)
    assert tool.spec.name
    assert tool.spec.downstream
    assert tool.spec.parameters.get("type") == "object"
    tool.check(good)
    tool.check(dict.fromkeys(good), unknown=set(good))
    kernel = Kernel()
    guard = kernel.guard(tool.spec.downstream)
    for arguments in (bad, {**good, "no_such_argument": 1}):
        try:
            tool.check(arguments)
        except BadInput as error:
            assert error.param  # noqa: PT017 - not a test function
        else:
            raise AssertionError("arguments that do not fit were accepted")
    await _raises(BadInput, tool.call(guard, bad, ToolContext.current()))
    assert guard.statistics().attempts == 0
    value = await tool.call(guard, good, ToolContext.current())
    await kernel.aclose()
    return value


async def check_transport(transport: Transport, url: str) -> None:
    """What every transport must do with the server at `url`; ``tests/transports/test_aiohttp_transport.py`` has one.

    ``/echo`` answers 200 with method and body, ``/status/503`` that status, ``/redirect`` a 302, ``/large`` 100 000
    bytes, ``/cut`` fewer bytes than announced.
    """
    from failsoft.base.errors import MalformedResult, StreamCut

    async with transport.send(HttpRequest("POST", f"{url}/echo", {"x-a": "1"}, b"body")) as response:
        assert response.status == 200
        assert await response.read(1_000) == b"POST body"
    async with transport.send(HttpRequest("GET", f"{url}/status/503")) as response:
        assert response.status == 503
        assert response.headers["retry-after"] == "7"
    async with transport.send(HttpRequest("GET", f"{url}/redirect")) as response:
        assert response.status == 302
    async with transport.send(HttpRequest("GET", f"{url}/redirect", redirects=1)) as response:
        assert response.status == 200
    async with transport.send(HttpRequest("GET", f"{url}/large")) as response:
        await _raises(MalformedResult, response.read(1_000))
    async with transport.send(HttpRequest("GET", f"{url}/cut")) as response:
        await _raises(StreamCut, response.read(1_000_000))
