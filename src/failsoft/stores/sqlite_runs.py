"""Runs in SQLite: the statements that create, write and load them. Run on the store's thread, within a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from failsoft.base.errors import FailsoftError, IdempotencyConflict, NotFound, StoreConflict
from failsoft.stores.protocols import (
    AppendEvents,
    Created,
    CreateRun,
    FinishRun,
    FinishTask,
    RunRecord,
    SaveSnapshot,
    StoredEvent,
    StoredRun,
    TaskRecord,
    Write,
)

__all__ = ["Texts", "acquire", "check_held", "create", "json_of", "listed", "load", "read_events", "write"]

Texts = Callable[[Sequence[Any]], Sequence[str]]
"""Makes the JSON of each value, without secrets."""


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else repr(value)


_encoder: Final = msgspec.json.Encoder(enc_hook=_plain)
_decode: Final = msgspec.json.decode


def json_of(value: Any) -> str:
    """The JSON of a value; what JSON has no words for is written as its repr."""
    if type(value) is not dict and isinstance(value, Mapping):
        value = dict(value)
    return _encoder.encode(value).decode()


def create(db: sqlite3.Connection, record: RunRecord, texts: Texts) -> Created:
    """See :meth:`~failsoft.stores.protocols.RunStore.create_run`."""
    if record.idempotency_key is not None:
        row = db.execute(
            "SELECT run, epoch, body_hash FROM runs WHERE ifnull(tenant, '') = ifnull(?, '') AND idempotency_key = ?",
            (record.tenant, record.idempotency_key),
        ).fetchone()
        if row is not None:
            run, epoch, body_hash = row
            if body_hash != record.body_hash:
                raise IdempotencyConflict(
                    "this Idempotency-Key was used with another request", param="Idempotency-Key", run_id=run
                )
            return Created(run, epoch, existing=True)
    made = db.execute(
        "INSERT OR IGNORE INTO runs (run, tenant, idempotency_key, body_hash, agent, session, request, created, "
        "budget, background, first_node, node, epoch, state, snapshot) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 'received', '{}')",
        (
            record.run,
            record.tenant,
            record.idempotency_key,
            record.body_hash,
            record.agent,
            record.session,
            *texts([record.request]),
            record.created,
            record.budget,
            record.background,
            record.node,
            record.node,
        ),
    ).rowcount
    if made == 0:
        raise StoreConflict(f"there is a run {record.run} already")
    return Created(record.run, 1)


def write(db: sqlite3.Connection, writes: Sequence[Write], texts: Texts) -> list[FailsoftError | None]:
    """Makes each write whose condition holds, in order; gives the conflict of each that does not."""
    found: list[FailsoftError | None] = []
    for _, same in groupby(writes, _together):
        group = list(same)
        first = group[0]
        if isinstance(first, AppendEvents | FinishTask):
            if not _is_held(db, first.run, first.epoch):
                found += [_conflict(db, first.run, first.epoch)] * len(group)
                continue
            if isinstance(first, FinishTask):
                _insert_tasks(db, first.run, [one.record for one in group if isinstance(one, FinishTask)], texts)
            else:
                _insert_events(db, first, texts)
            found += [None] * len(group)
        else:
            found.append(_write_one(db, first, texts))
    return found


def _together(one: Write) -> Any:
    """What is the same for writes that can be made at once: ends of tasks of one run."""
    return (one.run, one.epoch) if isinstance(one, FinishTask) else id(one)


def _write_one(db: sqlite3.Connection, one: CreateRun | SaveSnapshot | FinishRun, texts: Texts) -> FailsoftError | None:
    if isinstance(one, CreateRun):
        try:
            create(db, one.record, texts)
        except FailsoftError as error:
            return error
        return None
    if isinstance(one, SaveSnapshot):
        changed = db.execute(
            "UPDATE runs SET state = ?, snapshot = ? WHERE run = ? AND epoch = ? AND terminal IS NULL",
            (one.state, *texts([one.data]), one.run, one.epoch),
        ).rowcount
    else:
        changed = db.execute(
            "UPDATE runs SET state = ?, terminal = ?, result = ?, ended = ? "
            "WHERE run = ? AND epoch = ? AND terminal IS NULL",
            (one.terminal, one.terminal, *texts([one.result]), one.at, one.run, one.epoch),
        ).rowcount
    return None if changed else _conflict(db, one.run, one.epoch)


def _insert_events(db: sqlite3.Connection, one: AppendEvents, texts: Texts) -> None:
    run, events = one.run, one.events
    db.executemany(
        "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (run, e.epoch, e.seq, e.kind, e.at, e.task, data)
            for e, data in zip(events, texts([e.data for e in events]), strict=True)
        ],
    )


def _insert_tasks(db: sqlite3.Connection, run: str, tasks: Sequence[TaskRecord], texts: Texts) -> None:
    values, provenances = texts([one.value for one in tasks]), texts([one.provenance for one in tasks])
    db.executemany(
        "INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (run, one.task, one.status, value, provenance, one.started, one.ended)
            for one, value, provenance in zip(tasks, values, provenances, strict=True)
        ],
    )


def _is_held(db: sqlite3.Connection, run: str, epoch: int) -> int:
    found = db.execute(
        "SELECT count(*) FROM runs WHERE run = ? AND epoch = ? AND terminal IS NULL", (run, epoch)
    ).fetchone()
    return int(found[0])


def check_held(db: sqlite3.Connection, run: str, epoch: int) -> None:
    """Raises the conflict of a write to a run that is at another epoch, has ended, or is not there."""
    if not _is_held(db, run, epoch):
        raise _conflict(db, run, epoch)


def _conflict(db: sqlite3.Connection, run: str, epoch: int) -> StoreConflict:
    row = db.execute("SELECT epoch, terminal FROM runs WHERE run = ?", (run,)).fetchone()
    if row is None:
        return StoreConflict(f"there is no run {run}")
    if row[1] is not None:
        return StoreConflict(f"run {run} has ended as {row[1]}")
    return StoreConflict(f"run {run} is at epoch {row[0]}, not {epoch}")


def acquire(db: sqlite3.Connection, run: str, node: str, expected: int | None, *, died: bool) -> int:
    """See :meth:`~failsoft.stores.protocols.RunStore.acquire`."""
    row = db.execute("SELECT epoch, terminal FROM runs WHERE run = ?", (run,)).fetchone()
    if row is None:
        raise NotFound(f"there is no run {run}")
    epoch, terminal = row
    if terminal is not None or (expected is not None and epoch != expected):
        raise StoreConflict(f"run {run} is at epoch {epoch} and {terminal or 'running'}")
    db.execute("UPDATE runs SET epoch = epoch + 1, node = ?, deaths = deaths + ? WHERE run = ?", (node, died, run))
    return int(epoch) + 1


_COLUMNS: Final = (
    "tenant, idempotency_key, body_hash, agent, session, request, created, budget, background, first_node, node, "
    "epoch, state, snapshot, terminal, result, run, ended, deaths"
)


def load(db: sqlite3.Connection, run: str, tenant: str | None) -> StoredRun | None:
    """See :meth:`~failsoft.stores.protocols.RunStore.load_run`."""
    row = db.execute(f"SELECT {_COLUMNS} FROM runs WHERE run = ?", (run,)).fetchone()  # noqa: S608 - names of ours
    if row is None or (tenant is not None and row[0] != tenant):
        return None
    tasks = {
        task: TaskRecord(task, status, _decode(value), _decode(provenance), started, ended)
        for task, status, value, provenance, started, ended in db.execute(
            "SELECT task, status, value, provenance, started, ended FROM tasks WHERE run = ?", (run,)
        )
    }
    return _stored(row, tasks, tuple(read_events(db, run, (0, 0), -1)))


def listed(
    db: sqlite3.Connection, tenant: str | None, wanted: Mapping[str, str | None], after: str | None, limit: int
) -> list[StoredRun]:
    """See :meth:`~failsoft.stores.protocols.RunStore.list_runs`."""
    given = {name: value for name, value in wanted.items() if value is not None}
    where = "".join(f" AND {name} = ?" for name in given)
    values: list[Any] = [tenant, *given.values()]
    if after is not None:
        where += " AND run < ?"
        values.append(after)
    query = f"SELECT {_COLUMNS} FROM runs WHERE tenant IS ?{where} ORDER BY run DESC LIMIT ?"  # noqa: S608 - names of ours
    return [_stored(row) for row in db.execute(query, (*values, limit))]


def _stored(
    row: tuple[Any, ...], tasks: Mapping[str, TaskRecord] | None = None, events: tuple[StoredEvent, ...] = ()
) -> StoredRun:
    record = RunRecord(
        run=row[16],
        tenant=row[0],
        idempotency_key=row[1],
        body_hash=row[2],
        agent=row[3],
        session=row[4],
        request=_decode(row[5]),
        created=row[6],
        budget=row[7],
        background=bool(row[8]),
        node=row[9],
    )
    return StoredRun(
        record,
        row[11],
        row[10],
        row[12],
        _decode(row[13]),
        row[14],
        None if row[15] is None else _decode(row[15]),
        tasks or {},
        events,
        row[17],
        row[18],
    )


def read_events(db: sqlite3.Connection, run: str, after: tuple[int, int], limit: int) -> list[StoredEvent]:
    """The events after an id, in order; all of them when `limit` is negative."""
    return [
        StoredEvent(epoch, seq, kind, at, task, _decode(data))
        for epoch, seq, kind, at, task, data in db.execute(
            "SELECT epoch, seq, kind, at, task, data FROM events WHERE run = ? AND (epoch, seq) > (?, ?) "
            "ORDER BY epoch, seq LIMIT ?",
            (run, *after, limit),
        )
    ]
