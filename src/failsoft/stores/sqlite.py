"""The store in one SQLite file: WAL, the standard driver, one thread that writes in groups.

Whatever is asked while a commit is under way joins the next one, so that many runs share one sync to disk. In WAL
mode with ``synchronous=NORMAL`` a commit survives the death of the process; ``FULL`` also that of the machine, at the
cost of a sync each.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from pydantic import BaseModel

from failsoft.base.errors import FailsoftError, IdempotencyConflict, NotFound, StoreConflict, StoreError
from failsoft.stores.protocols import (
    AppendEvents,
    Created,
    CreateRun,
    Duration,
    FinishTask,
    RunRecord,
    SaveSnapshot,
    SingleWrites,
    StoredEvent,
    StoredRun,
    TaskRecord,
    Write,
)

__all__ = ["SqliteStore"]

T = TypeVar("T")

_GROUP: Final = 500
"""Jobs in one commit at most."""
_DURATIONS_PER_KEY: Final = 50
_VERSION: Final = 1

_SCHEMA: Final = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY,
    tenant TEXT,
    idempotency_key TEXT,
    body_hash TEXT NOT NULL,
    agent TEXT NOT NULL,
    session TEXT,
    request TEXT NOT NULL,
    created REAL NOT NULL,
    budget REAL NOT NULL,
    background INTEGER NOT NULL,
    first_node TEXT NOT NULL,
    node TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    state TEXT NOT NULL,
    snapshot TEXT NOT NULL,
    terminal TEXT,
    result TEXT
) WITHOUT ROWID;
CREATE UNIQUE INDEX runs_by_key ON runs (ifnull(tenant, ''), idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_by_tenant ON runs (tenant, run);
CREATE INDEX runs_by_session ON runs (tenant, session, run) WHERE session IS NOT NULL;
CREATE TABLE events (
    run TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at REAL NOT NULL,
    task TEXT,
    data TEXT,
    PRIMARY KEY (run, epoch, seq)
) WITHOUT ROWID;
CREATE TABLE tasks (
    run TEXT NOT NULL,
    task TEXT NOT NULL,
    status TEXT NOT NULL,
    value TEXT,
    provenance TEXT NOT NULL,
    started REAL,
    ended REAL,
    PRIMARY KEY (run, task)
) WITHOUT ROWID;
CREATE TABLE durations (id INTEGER PRIMARY KEY, key TEXT NOT NULL, seconds REAL NOT NULL);
CREATE INDEX durations_by_key ON durations (key, id);
"""


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else repr(value)


_encoder: Final = msgspec.json.Encoder(enc_hook=_plain)


def _text(value: Any) -> str:
    return _encoder.encode(dict(value) if isinstance(value, Mapping) else value).decode()


class _Job(NamedTuple):
    do: Callable[[sqlite3.Connection], Any]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class SqliteStore(SingleWrites):
    """Keeps runs in the file at `path`, made when it is not there; ``:memory:`` keeps them in the process."""

    def __init__(self, path: str | Path, *, synchronous: Literal["NORMAL", "FULL"] = "NORMAL") -> None:
        self._path = str(path)
        self._synchronous = synchronous
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._commits = 0

    # --- the writer thread -----------------------------------------------------------------------------------------

    async def _submit(self, do: Callable[[sqlite3.Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        begins = getattr(loop, "work_begins", None)
        if begins is not None:  # a virtual-time loop waits for the thread
            begins("sqlite")
        self._jobs.put(_Job(do, answer, loop))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="failsoft-sqlite", daemon=True)
            self._thread.start()
        return await answer

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            job = self._jobs.get()
            if job is None:
                break
            jobs = [job]
            ends = False
            while len(jobs) < _GROUP:
                try:
                    job = self._jobs.get_nowait()
                except Empty:
                    break
                if job is None:
                    ends = True
                    break
                jobs.append(job)
            try:
                if connection is None:
                    connection = self._open()
            except Exception as error:  # noqa: BLE001 - told to everyone who waits; the next job tries again
                for job in jobs:
                    _report(job, None, _store_error(error))
            else:
                self._commit(connection, jobs)
            if ends:
                break
        if connection is not None:
            connection.close()

    def _commit(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        """All jobs in one transaction; if the database refuses one, each in its own."""
        results: list[tuple[Any, BaseException | None]] = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            results = [_do(job, connection) for job in jobs]
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            _roll_back(connection)
            if len(jobs) > 1:
                for job in jobs:
                    self._commit(connection, [job])
                return
            results = [(None, _store_error(error))]
        self._commits += 1
        for job, (value, problem) in zip(jobs, results, strict=True):
            _report(job, value, problem)

    def _open(self) -> sqlite3.Connection:
        if self._path != ":memory:":
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=2.0, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > _VERSION:
                raise StoreError(f"{self._path} was written by a newer version (schema {version}, known {_VERSION})")
            if version == 0:
                connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={_VERSION}; COMMIT;")
        except BaseException:
            connection.close()
            raise
        return connection

    async def aclose(self) -> None:
        """Writes what is pending, closes the file and ends the thread."""
        if self._thread is None:
            return
        await self._submit(lambda _: None)
        self._jobs.put(None)
        self._thread = None

    # --- writes ----------------------------------------------------------------------------------------------------

    async def create_run(self, record: RunRecord) -> Created:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        return await self._submit(lambda db: _create(db, record))

    async def write(self, writes: Sequence[Write]) -> list[FailsoftError | None]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        return await self._submit(lambda db: [_write(db, write) for write in writes])

    async def acquire(self, run: str, node: str, *, expected: int | None = None) -> int:
        """See :class:`~failsoft.stores.protocols.RunStore`."""

        def do(db: sqlite3.Connection) -> int:
            row = db.execute("SELECT epoch, terminal FROM runs WHERE run = ?", (run,)).fetchone()
            if row is None:
                raise NotFound(f"there is no run {run}")
            epoch, terminal = row
            if terminal is not None or (expected is not None and epoch != expected):
                raise StoreConflict(f"run {run} is at epoch {epoch} and {terminal or 'running'}")
            db.execute("UPDATE runs SET epoch = epoch + 1, node = ? WHERE run = ?", (node, run))
            return int(epoch) + 1

        return await self._submit(do)

    async def record_durations(self, durations: Sequence[Duration]) -> None:
        """See :class:`~failsoft.stores.protocols.RunStore`."""

        def do(db: sqlite3.Connection) -> None:
            db.executemany(
                "INSERT INTO durations (key, seconds) VALUES (?, ?)", [(d.key, d.seconds) for d in durations]
            )
            for key in {d.key for d in durations}:
                db.execute(
                    "DELETE FROM durations WHERE key = ?1 AND id <= "
                    "(SELECT id FROM durations WHERE key = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                    (key, _DURATIONS_PER_KEY),
                )

        await self._submit(do)

    # --- reads -----------------------------------------------------------------------------------------------------

    async def load_run(self, run: str, *, tenant: str | None = None) -> StoredRun | None:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        return await self._submit(lambda db: _load(db, run, tenant))

    async def list_runs(
        self,
        *,
        tenant: str | None,
        session: str | None = None,
        agent: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Sequence[StoredRun]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        wanted = {"session": session, "agent": agent, "state": state}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = "".join(f" AND {name} = ?" for name in given)
        values: list[Any] = [tenant, *given.values()]
        if after is not None:
            where += " AND run < ?"
            values.append(after)
        query = f"SELECT {_COLUMNS} FROM runs WHERE tenant IS ?{where} ORDER BY run DESC LIMIT ?"  # noqa: S608 - names of ours

        def do(db: sqlite3.Connection) -> list[StoredRun]:
            return [_stored(row) for row in db.execute(query, (*values, limit))]

        return await self._submit(do)

    async def durations(self) -> Mapping[str, Sequence[float]]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""

        def do(db: sqlite3.Connection) -> dict[str, list[float]]:
            kept: dict[str, list[float]] = {}
            for key, seconds in db.execute("SELECT key, seconds FROM durations ORDER BY id"):
                kept.setdefault(key, []).append(seconds)
            return kept

        return await self._submit(do)

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path} commits={self._commits}>"


def _do(job: _Job, connection: sqlite3.Connection) -> tuple[Any, BaseException | None]:
    """A job's result or its own error; only the database's errors concern the whole group."""
    try:
        return job.do(connection), None
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 - told to who waits for it
        return None, error


def _report(job: _Job, value: Any, error: BaseException | None) -> None:
    def tell() -> None:
        if not job.answer.done():
            if error is None:
                job.answer.set_result(value)
            else:
                job.answer.set_exception(error)
        ends = getattr(job.loop, "work_ends", None)
        if ends is not None:
            ends("sqlite")

    try:
        job.loop.call_soon_threadsafe(tell)
    except RuntimeError:  # the loop is closed: nobody waits
        return


def _roll_back(connection: sqlite3.Connection) -> None:
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return


def _store_error(error: BaseException) -> StoreError:
    if isinstance(error, StoreError):
        return error
    mapped = StoreError(f"the database failed: {error}")
    mapped.__cause__ = error
    return mapped


def _create(db: sqlite3.Connection, record: RunRecord) -> Created:
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
        "INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 'received', '{}', NULL, NULL)",
        (
            record.run,
            record.tenant,
            record.idempotency_key,
            record.body_hash,
            record.agent,
            record.session,
            _text(record.request),
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


def _write(db: sqlite3.Connection, write: Write) -> FailsoftError | None:
    if isinstance(write, CreateRun):
        try:
            _create(db, write.record)
        except FailsoftError as error:
            return error
        return None
    if isinstance(write, SaveSnapshot):
        changed = db.execute(
            "UPDATE runs SET state = ?, snapshot = ? WHERE run = ? AND epoch = ? AND terminal IS NULL",
            (write.state, _text(write.data), write.run, write.epoch),
        ).rowcount
    elif isinstance(write, AppendEvents | FinishTask):
        changed = db.execute(
            "SELECT count(*) FROM runs WHERE run = ? AND epoch = ? AND terminal IS NULL", (write.run, write.epoch)
        ).fetchone()[0]
        if changed and isinstance(write, AppendEvents):
            db.executemany(
                "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(write.run, e.epoch, e.seq, e.kind, e.at, e.task, _text(e.data)) for e in write.events],
            )
        elif changed and isinstance(write, FinishTask):
            one = write.record
            db.execute(
                "INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)",
                (write.run, one.task, one.status, _text(one.value), _text(one.provenance), one.started, one.ended),
            )
    else:
        changed = db.execute(
            "UPDATE runs SET state = ?1, terminal = ?1, result = ?2 WHERE run = ?3 AND epoch = ?4 AND terminal IS NULL",
            (write.terminal, _text(write.result), write.run, write.epoch),
        ).rowcount
    return None if changed else _conflict(db, write.run, write.epoch)


def _conflict(db: sqlite3.Connection, run: str, epoch: int) -> StoreConflict:
    row = db.execute("SELECT epoch, terminal FROM runs WHERE run = ?", (run,)).fetchone()
    if row is None:
        return StoreConflict(f"there is no run {run}")
    if row[1] is not None:
        return StoreConflict(f"run {run} has ended as {row[1]}")
    return StoreConflict(f"run {run} is at epoch {row[0]}, not {epoch}")


_COLUMNS: Final = (
    "tenant, idempotency_key, body_hash, agent, session, request, created, budget, background, first_node, node, "
    "epoch, state, snapshot, terminal, result, run"
)


def _load(db: sqlite3.Connection, run: str, tenant: str | None) -> StoredRun | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM runs WHERE run = ?", (run,)).fetchone()  # noqa: S608 - names of ours
    if row is None or (tenant is not None and row[0] != tenant):
        return None
    decode = msgspec.json.decode
    tasks = {
        task: TaskRecord(task, status, decode(value), decode(provenance), started, ended)
        for task, status, value, provenance, started, ended in db.execute(
            "SELECT task, status, value, provenance, started, ended FROM tasks WHERE run = ?", (run,)
        )
    }
    events = tuple(
        StoredEvent(epoch, seq, kind, at, task, decode(data))
        for epoch, seq, kind, at, task, data in db.execute(
            "SELECT epoch, seq, kind, at, task, data FROM events WHERE run = ? ORDER BY epoch, seq", (run,)
        )
    )
    return _stored(row, tasks, events)


def _stored(
    row: tuple[Any, ...], tasks: Mapping[str, TaskRecord] | None = None, events: tuple[StoredEvent, ...] = ()
) -> StoredRun:
    decode = msgspec.json.decode
    record = RunRecord(
        run=row[16],
        tenant=row[0],
        idempotency_key=row[1],
        body_hash=row[2],
        agent=row[3],
        session=row[4],
        request=decode(row[5]),
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
        decode(row[13]),
        row[14],
        None if row[15] is None else decode(row[15]),
        tasks or {},
        events,
    )
