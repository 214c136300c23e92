"""What every store must do besides keeping runs: approvals, intents, leases, lists, sessions, pruning, figures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final

from failsoft.base.errors import ApprovalConflict, FailsoftError, NotFound, StoreConflict
from failsoft.stores.approvals import ActionIntent, ApprovalRecord, arguments_hash
from failsoft.stores.keeping import Retention
from failsoft.stores.leases import LostRun
from failsoft.stores.protocols import (
    RunRecord,
    RunStore,
    StoredEvent,
    TaskRecord,
)

__all__ = ["CHECKS"]

_NOW: Final = 1_700_000_000.0


def _record(run: str = "run_1", **changes: Any) -> RunRecord:
    record = RunRecord(run=run, agent="a", request={"input": "q"}, created=_NOW, budget=8.0, node="node-a")
    return replace(record, **changes)


def _approval(name: str = "apr_1", *, amount: int = 1, **changes: Any) -> ApprovalRecord:
    arguments = {"amount": amount, "to": "é"}
    record = ApprovalRecord(
        name, "run_1", "pay", "pay", arguments, arguments_hash("pay", arguments), "tool", _NOW, _NOW + 60, tenant="t1"
    )
    return replace(record, **changes)


async def _raises(kind: type[FailsoftError], work: Awaitable[object]) -> FailsoftError:
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def _an_approval_is_asked_once(store: RunStore) -> None:
    await store.create_run(_record(tenant="t1"))
    asked = await store.ask_approval("run_1", 1, _approval())
    assert asked == _approval()
    again = await store.ask_approval("run_1", 1, _approval("apr_2", created=_NOW + 1))
    assert again == asked
    assert await store.load_approval("apr_1") == asked
    assert await store.load_approval("apr_1", tenant="t2") is None
    assert await store.load_approval("apr_2") is None
    await _raises(StoreConflict, store.ask_approval("run_1", 2, _approval("apr_3", amount=2)))
    await _raises(StoreConflict, store.ask_approval("run_x", 1, _approval("apr_3", amount=2)))


async def _other_arguments_are_another_approval(store: RunStore) -> None:
    await store.create_run(_record(tenant="t1"))
    await store.ask_approval("run_1", 1, _approval())
    changed = await store.ask_approval("run_1", 1, _approval("apr_2", amount=2))
    assert changed.status == "pending"
    first = await store.load_approval("apr_1")
    assert first is not None
    assert first.status == "withdrawn"
    other = await store.ask_approval("run_1", 1, _approval("apr_3", task="other"))
    assert (other.id, other.status) == ("apr_3", "pending")
    second = await store.load_approval("apr_2")
    assert second is not None
    assert second.status == "pending"
    back = await store.ask_approval("run_1", 1, _approval("apr_4"))
    assert (back.id, back.status) == ("apr_4", "pending")


async def _an_approval_is_resolved_once(store: RunStore) -> None:
    await store.create_run(_record(tenant="t1"))
    await store.ask_approval("run_1", 1, _approval())
    await _raises(NotFound, store.resolve_approval("apr_1", "approved", at=_NOW + 1, tenant="t2"))
    await _raises(NotFound, store.resolve_approval("apr_x", "approved", at=_NOW + 1))
    tries = [
        store.resolve_approval("apr_1", "approved" if i % 2 else "rejected", at=_NOW + 1, by=f"p{i}", note="é")
        for i in range(6)
    ]
    got = await asyncio.gather(*tries, return_exceptions=True)
    won = [one for one in got if isinstance(one, ApprovalRecord)]
    assert len(won) == 1
    conflicts = [one for one in got if isinstance(one, ApprovalConflict)]
    assert len(conflicts) == 5
    assert conflicts[0].details["status"] == won[0].status
    assert (won[0].resolved, won[0].note) == (_NOW + 1, "é")
    assert await store.load_approval("apr_1") == won[0]
    assert (await store.ask_approval("run_1", 1, _approval("apr_9"))) == won[0]


async def _an_expired_approval_is_neither_approved_nor_rejected(store: RunStore) -> None:
    await store.create_run(_record(tenant="t1"))
    await store.ask_approval("run_1", 1, _approval())
    error = await _raises(ApprovalConflict, store.resolve_approval("apr_1", "approved", at=_NOW + 60))
    assert error.details["status"] == "expired"
    known = await store.load_approval("apr_1")
    assert known is not None
    assert (known.status, known.resolved) == ("expired", _NOW + 60)
    await _raises(ApprovalConflict, store.resolve_approval("apr_1", "expired", at=_NOW + 61))


async def _approvals_are_listed_newest_first(store: RunStore) -> None:
    await store.create_run(_record(tenant="t1"))
    await store.create_run(_record("run_2", tenant="t2"))
    for i in range(1, 6):
        await store.ask_approval("run_1", 1, _approval(f"apr_{i}", task=f"pay{i}"))
    await store.ask_approval("run_2", 1, _approval("apr_6", run="run_2", tenant="t2"))
    await store.resolve_approval("apr_2", "rejected", at=_NOW)
    first = await store.list_approvals(tenant="t1", status="pending", limit=2)
    assert ([one.id for one in first.approvals], first.after) == (["apr_5", "apr_4"], "apr_4")
    rest = await store.list_approvals(tenant="t1", status="pending", limit=2, after=first.after)
    assert ([one.id for one in rest.approvals], rest.after) == (["apr_3", "apr_1"], None)
    assert [one.id for one in (await store.list_approvals(run="run_2")).approvals] == ["apr_6"]
    assert len((await store.list_approvals()).approvals) == 6


async def _an_intent_is_written_once(store: RunStore) -> None:
    await store.create_run(_record())
    intent = ActionIntent("run_1:pay", "pay", "pay", "h", _NOW, detail={"amount": 1})
    assert await store.begin_action("run_1", 1, intent) is None
    known = await store.begin_action("run_1", 1, replace(intent, at=_NOW + 1))
    assert known == intent
    await store.end_action("run_1", 1, intent.key)
    known = await store.begin_action("run_1", 1, intent)
    assert known is not None
    assert known.ended
    assert [one.key for one in await store.load_actions("run_1")] == ["run_1:pay"]
    assert list(await store.load_actions("run_x")) == []
    assert await store.acquire("run_1", "node-b") == 2
    await _raises(StoreConflict, store.begin_action("run_1", 1, replace(intent, key="other")))
    await _raises(StoreConflict, store.end_action("run_1", 1, intent.key))
    await store.finish_run("run_1", 2, "completed", {})
    await _raises(StoreConflict, store.begin_action("run_1", 2, replace(intent, key="other")))


async def _runs_of_nodes_that_are_gone_are_lost(store: RunStore) -> None:
    await store.renew_lease("node-a", _NOW + 10)
    await store.renew_lease("node-b", _NOW + 30)
    await store.create_run(_record("run_1", background=True))
    await store.create_run(_record("run_2"))
    await store.create_run(_record("run_3", node="node-b"))
    await store.create_run(_record("run_4", node="node-x"))
    await store.create_run(_record("run_5", node="node-x"))
    await store.finish_run("run_5", 1, "completed", {}, _NOW)
    assert [one.run for one in await store.lost_runs(_NOW + 5)] == ["run_4"]
    assert await store.leases() == {"node-a": _NOW + 10, "node-b": _NOW + 30}
    lost = await store.lost_runs(_NOW + 20)
    assert lost[0] == LostRun("run_1", 1, "node-a", background=True, state="received")
    assert [one.run for one in lost] == ["run_1", "run_2", "run_4"]
    assert [one.run for one in await store.lost_runs(_NOW + 20, limit=2)] == ["run_1", "run_2"]
    assert await store.acquire("run_1", "node-b", expected=1, died=True) == 2
    assert [one.run for one in await store.lost_runs(_NOW + 20)] == ["run_2", "run_4"]
    loaded = await store.load_run("run_1")
    assert loaded is not None
    assert (loaded.deaths, loaded.node, loaded.epoch) == (1, "node-b", 2)
    assert [one.run for one in await store.held_runs("node-b")] == ["run_1", "run_3"]
    assert [one.run for one in await store.held_runs("node-b", limit=1)] == ["run_1"]
    assert list(await store.held_runs("node-c")) == []
    await store.drop_lease("node-b")
    assert [one.run for one in await store.lost_runs(_NOW)] == ["run_1", "run_3", "run_4"]


async def _a_run_is_handed_back_by_who_holds_it(store: RunStore) -> None:
    await store.renew_lease("node-a", _NOW + 10)
    await store.create_run(_record("run_1"))
    await _raises(StoreConflict, store.release_run("run_1", 2))
    assert list(await store.lost_runs(_NOW)) == []
    await store.detach_run("run_1", 1)
    await store.release_run("run_1", 1)
    lost = await store.lost_runs(_NOW)
    assert [(one.run, one.node, one.background) for one in lost] == [("run_1", "", True)]
    await store.finish_run("run_1", 1, "cancelled", {})
    await _raises(StoreConflict, store.release_run("run_1", 1))
    await _raises(StoreConflict, store.detach_run("run_1", 1))


async def _events_are_read_after_an_id(store: RunStore) -> None:
    await store.create_run(_record(tenant="t1"))
    await store.append_events("run_1", 1, [StoredEvent(1, i, "k", _NOW) for i in range(1, 4)])
    await store.acquire("run_1", "node-b")
    await store.append_events("run_1", 2, [StoredEvent(2, i, "k", _NOW) for i in range(1, 4)])
    ids = [(e.epoch, e.seq) for e in await store.read_events("run_1", after=(1, 2))]
    assert ids == [(1, 3), (2, 1), (2, 2), (2, 3)]
    assert len(await store.read_events("run_1", limit=2)) == 2
    assert list(await store.read_events("run_1", tenant="t2")) == []
    assert list(await store.read_events("run_x")) == []


async def _what_was_kept_long_enough_is_pruned(store: RunStore) -> None:
    for i in range(1, 6):
        key, session = "k" if i == 2 else None, "s" if i == 3 else None
        await store.create_run(_record(f"run_{i}", idempotency_key=key, session=session))
        await store.append_events(f"run_{i}", 1, [StoredEvent(1, 1, "k", _NOW)])
        await store.finish_task(f"run_{i}", 1, TaskRecord("a", "completed", 1))
    await store.ask_approval("run_1", 1, _approval())
    await store.renew_lease("node-a", _NOW)
    for i in (1, 2, 3, 4):
        await store.finish_run(f"run_{i}", 1, "completed", {}, _NOW)
    keep = Retention(runs=100, keyed=1000, details=10, sessions=5000, leases=200)

    async def left() -> list[str]:
        return sorted(one.record.run for one in await store.list_runs(tenant=None))

    assert not (await store.prune(keep, now=_NOW + 9)).details
    assert (await store.prune(keep, now=_NOW + 50)).details == 4
    emptied = await store.load_run("run_1")
    assert emptied is not None
    assert (emptied.events, emptied.tasks, emptied.terminal) == ((), {}, "completed")
    assert len(await store.read_events("run_5")) == 1
    first = await store.prune(keep, now=_NOW + 300, batch=1)
    assert (first.runs, first.more, first.leases) == (1, True, 1)
    await store.prune(keep, now=_NOW + 300, batch=10)
    assert await left() == ["run_2", "run_3", "run_5"]
    assert await store.load_approval("apr_1") is None
    again = await store.create_run(_record("run_9", idempotency_key="k"))
    assert again.run == "run_2"
    await store.prune(keep, now=_NOW + 1000)
    assert await left() == ["run_3", "run_5"]
    assert not (await store.create_run(_record("run_9", idempotency_key="k"))).existing
    await store.prune(keep, now=_NOW + 5000)
    assert await left() == ["run_5", "run_9"]


async def _figures_tell_what_there_is(store: RunStore) -> None:
    await store.create_run(_record("run_1"))
    await store.create_run(_record("run_2", created=_NOW - 5))
    await store.finish_run("run_1", 1, "completed", {}, _NOW)
    await store.append_events("run_2", 1, [StoredEvent(1, 1, "k", _NOW)])
    figures = await store.statistics()
    assert dict(figures.runs) == {"completed": 1, "received": 1}
    assert (figures.rows["runs"], figures.rows["events"], figures.oldest) == (2, 1, _NOW - 5)


CHECKS: Final = (
    _an_approval_is_asked_once,
    _other_arguments_are_another_approval,
    _an_approval_is_resolved_once,
    _an_expired_approval_is_neither_approved_nor_rejected,
    _approvals_are_listed_newest_first,
    _an_intent_is_written_once,
    _runs_of_nodes_that_are_gone_are_lost,
    _a_run_is_handed_back_by_who_holds_it,
    _events_are_read_after_an_id,
    _what_was_kept_long_enough_is_pruned,
    _figures_tell_what_there_is,
)
