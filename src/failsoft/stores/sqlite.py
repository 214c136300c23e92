"""The store in one SQLite file: WAL, the standard driver, one thread that writes in groups.

Whatever is asked while a commit is under way joins the next one, so that many runs share one sync to disk. In WAL
mode with ``synchronous=NORMAL`` a commit survives the death of the process; ``FULL`` also that of the machine, at the
cost of a sync each.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, NamedTuple, TypeVar

from failsoft.base.errors import FailsoftError, StoreError
from failsoft.base.futures import heard
from failsoft.base.redaction import Redactor
from failsoft.stores.node_locks import NodeLocks
from failsoft.stores.protocols import (
    Created,
    Duration,
    RunRecord,
    SingleWrites,
    StoredEvent,
    StoredRun,
    Write,
)
from failsoft.stores.sqlite_parts import SqliteApprovals, SqliteKeeping, SqliteLeases
from failsoft.stores.sqlite_runs import acquire, create, json_of, listed, load, read_events, write
from failsoft.stores.sqlite_schema import prepare

__all__ = ["SqliteStore"]

T = TypeVar("T")

_GROUP: Final = 500
"""Jobs in one commit at most."""
_WAITING: Final = 50_000
"""Jobs that wait at most; more are refused."""
_DURATIONS_PER_KEY: Final = 50
_LOCKED: Final = 2.0
"""Seconds to wait for another process that holds the file."""
_BROKEN: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    }
)
"""Errors that are about the file and not about one job: trying the jobs one by one would only take longer."""


class _Job(NamedTuple):
    do: Callable[[sqlite3.Connection], Any]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class SqliteStore(SqliteApprovals, SqliteLeases, SqliteKeeping, SingleWrites):
    """Keeps runs in the file at `path`, made when it is not there; ``:memory:`` keeps them in the process.

    ``redactor`` takes secrets out of everything before it is written. ``migrate`` brings an older file up to date
    when it is opened; else it is refused.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        redactor: Redactor | None = None,
        migrate: bool = False,
    ) -> None:
        self._path = str(path)
        self._redactor = redactor if redactor is not None else Redactor()
        self._migrate = migrate
        self._locks = NodeLocks(Path(path)) if self._path != ":memory:" else None
        self._synchronous = synchronous
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._commits = 0
        self._file: tuple[int, int] | None = None
        """Which file it is that is open: what is written to one that has no name any more is lost with the process."""

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = Path(self._path).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _texts(self, values: Sequence[Any]) -> Sequence[str]:
        return self._redactor.jsons([json_of(value) for value in values])

    # --- the writer thread -----------------------------------------------------------------------------------------

    async def _submit(self, do: Callable[[sqlite3.Connection], T]) -> T:
        if self._jobs.qsize() >= _WAITING:
            raise StoreError(f"the database {self._path} is too slow: {_WAITING} jobs wait")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        begins = getattr(loop, "work_begins", None)
        if begins is not None:  # a virtual-time loop waits for the thread
            begins("sqlite")
        self._jobs.put(_Job(do, answer, loop))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="failsoft-sqlite", daemon=True)
            self._thread.start()
        try:
            return await answer
        finally:
            heard(answer)

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
                    _report(job, None, self._store_error(error))
            else:
                if self._file is not None and self._identity() != self._file:
                    gone = StoreError(f"the file {self._path} was removed or replaced while it was in use: start again")
                    for job in jobs:
                        _report(job, None, gone)
                elif not self._commit(connection, jobs):
                    connection.close()  # whatever is wrong with the file, it is opened anew
                    connection = None
            if ends:
                break
        if connection is not None:
            connection.close()
        if self._locks is not None:
            self._locks.close()

    def _commit(self, connection: sqlite3.Connection, jobs: list[_Job]) -> bool:
        """All jobs in one transaction; if the database refuses one, each in its own. False when the file is broken."""
        results: list[tuple[Any, BaseException | None]] = []
        sound = True
        try:
            connection.execute("BEGIN IMMEDIATE")
            results = [_do(job, connection) for job in jobs]
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            _roll_back(connection)
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code not in _BROKEN and len(jobs) > 1:
                for job in jobs:
                    sound = self._commit(connection, [job]) and sound
                return sound
            sound = code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL} or code not in _BROKEN
            results = [(None, self._store_error(error))] * len(jobs)
        self._commits += 1
        for job, (value, problem) in zip(jobs, results, strict=True):
            _report(job, value, problem)
        return sound

    def _open(self) -> sqlite3.Connection:
        if self._path != ":memory:":
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            if self._migrate and Path(self._path).exists():
                from failsoft.stores.migrating import migrate

                migrate(self._path)
        connection = sqlite3.connect(self._path, timeout=_LOCKED, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            prepare(connection, self._path)
        except BaseException:
            connection.close()
            raise
        if self._path != ":memory:":
            self._file = self._identity()
        return connection

    def _store_error(self, error: BaseException) -> StoreError:
        if isinstance(error, StoreError):
            return error
        mapped = StoreError(f"the database {self._path} failed: {error}", details={"kind": type(error).__name__})
        mapped.__cause__ = error
        return mapped

    async def aclose(self) -> None:
        """Writes what is pending, closes the file and ends the thread."""
        if self._thread is None:
            return
        with contextlib.suppress(StoreError):  # a broken file was reported to whoever wrote to it
            await self._submit(lambda _: None if self._locks is None else self._locks.close())
        self._jobs.put(None)
        self._thread = None

    # --- writes ----------------------------------------------------------------------------------------------------

    async def create_run(self, record: RunRecord) -> Created:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        return await self._submit(lambda db: create(db, record, self._texts))

    async def write(self, writes: Sequence[Write]) -> list[FailsoftError | None]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        return await self._submit(lambda db: write(db, writes, self._texts))

    async def acquire(self, run: str, node: str, *, expected: int | None = None, died: bool = False) -> int:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        return await self._submit(lambda db: acquire(db, run, node, expected, died=died))

    async def record_durations(self, durations: Sequence[Duration]) -> None:
        """See :class:`~failsoft.stores.protocols.RunStore`."""

        def do(db: sqlite3.Connection) -> None:
            db.executemany(
                "INSERT INTO durations (key, seconds) VALUES (?, ?)", [(d.key, d.seconds) for d in durations]
            )
            for key in {d.key for d in durations}:
                db.execute(
                    "DELETE FROM durations WHERE key = ? AND id <= "
                    "(SELECT id FROM durations WHERE key = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
                    (key, key, _DURATIONS_PER_KEY),
                )

        await self._submit(do)

    # --- reads -----------------------------------------------------------------------------------------------------

    async def load_run(self, run: str, *, tenant: str | None = None) -> StoredRun | None:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        return await self._submit(partial(load, run=run, tenant=tenant))

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
        return await self._submit(lambda db: listed(db, tenant, wanted, after, limit))

    async def read_events(
        self, run: str, *, tenant: str | None = None, after: tuple[int, int] | None = None, limit: int = 500
    ) -> Sequence[StoredEvent]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""

        def do(db: sqlite3.Connection) -> Sequence[StoredEvent]:
            whose = db.execute("SELECT tenant FROM runs WHERE run = ?", (run,)).fetchone()
            if whose is None or (tenant is not None and whose[0] != tenant):
                return ()
            return read_events(db, run, after or (0, 0), limit)

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
