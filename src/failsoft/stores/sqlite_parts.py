"""The parts of the SQLite store besides runs: approvals and intents, leases, and what is listed and pruned."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from failsoft.base.errors import NotFound
from failsoft.stores.approvals import ActionIntent, ApprovalPage, ApprovalRecord, ApprovalStatus, Resolution
from failsoft.stores.keeping import (
    Pruned,
    Retention,
    StoreStatistics,
)
from failsoft.stores.leases import LostRun
from failsoft.stores.memory_parts import resolved_before
from failsoft.stores.node_locks import NodeLocks
from failsoft.stores.sqlite_runs import check_held
from failsoft.stores.sqlite_schema import revision_of

__all__ = ["SqliteApprovals", "SqliteKeeping", "SqliteLeases"]

T = TypeVar("T")

_decode: Final = msgspec.json.decode

_APPROVAL: Final = (
    "approval, run, task, tool, arguments, arguments_hash, reason, created, expires, tenant, agent, title, status, "
    "resolved, resolved_by, note"
)
_TABLES: Final = ("runs", "events", "tasks", "approvals", "actions", "leases", "durations")


class _Submitting:
    """What the parts need of the store: a way to have something done on its thread, in a transaction."""

    _path: str

    async def _submit(self, do: Callable[[sqlite3.Connection], T]) -> T:
        raise NotImplementedError

    def _texts(self, values: Sequence[Any]) -> Sequence[str]:
        raise NotImplementedError


def _restricted(conditions: Iterable[tuple[str, Any]]) -> tuple[str, list[Any]]:
    """The WHERE of those conditions whose value is given."""
    given = [(text, value) for text, value in conditions if value is not None]
    where = " AND ".join(text for text, _ in given)
    return (f"WHERE {where}" if where else ""), [value for _, value in given]


# --- approvals and intents -------------------------------------------------------------------------------------------


def _approval(row: Sequence[Any]) -> ApprovalRecord:
    values: list[Any] = [*row]
    values[4] = _decode(values[4])
    return ApprovalRecord(*values)


def _load_approval(db: sqlite3.Connection, approval: str, tenant: str | None) -> ApprovalRecord | None:
    row = db.execute(f"SELECT {_APPROVAL} FROM approvals WHERE approval = ?", (approval,)).fetchone()  # noqa: S608
    known = None if row is None else _approval(row)
    return None if known is None or (tenant is not None and known.tenant != tenant) else known


def _resolve(db: sqlite3.Connection, known: ApprovalRecord) -> ApprovalRecord:
    db.execute(
        "UPDATE approvals SET status = ?, resolved = ?, resolved_by = ?, note = ? WHERE approval = ?",
        (known.status, known.resolved, known.by, known.note, known.id),
    )
    return known


class SqliteApprovals(_Submitting):
    """Approvals and intents; they go with their run."""

    async def ask_approval(self, run: str, epoch: int, record: ApprovalRecord) -> ApprovalRecord:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""

        def do(db: sqlite3.Connection) -> ApprovalRecord:
            check_held(db, run, epoch)
            row = db.execute(
                f"SELECT {_APPROVAL} FROM approvals "  # noqa: S608 - names of ours
                "WHERE run = ? AND task = ? AND arguments_hash = ? AND reason = ? AND status != 'withdrawn'",
                (run, record.task, record.arguments_hash, record.reason),
            ).fetchone()
            if row is not None:
                return _approval(row)
            db.execute(
                "UPDATE approvals SET status = 'withdrawn', resolved = ? "
                "WHERE run = ? AND task = ? AND status = 'pending'",
                (record.created, run, record.task),
            )
            db.execute(
                f"INSERT INTO approvals ({_APPROVAL}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                (
                    record.id,
                    record.run,
                    record.task,
                    record.tool,
                    *self._texts([record.arguments]),
                    record.arguments_hash,
                    record.reason,
                    record.created,
                    record.expires,
                    record.tenant,
                    record.agent,
                    record.title,
                    record.status,
                    record.resolved,
                    record.by,
                    record.note,
                ),
            )
            return record

        return await self._submit(do)

    async def resolve_approval(
        self,
        approval: str,
        status: Resolution,
        *,
        at: float,
        by: str | None = None,
        note: str = "",
        tenant: str | None = None,
    ) -> ApprovalRecord:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""

        def do(db: sqlite3.Connection) -> ApprovalRecord:
            known = _load_approval(db, approval, tenant)
            if known is None:
                raise NotFound(f"there is no approval {approval[:80]!r}", param="approval_id")
            if known.status == "pending" and status in ("approved", "rejected") and at >= known.expires:
                known = _resolve(db, replace(known, status="expired", resolved=at))
            if known.status != "pending":
                raise resolved_before(known)
            return _resolve(db, replace(known, status=status, resolved=at, by=by, note=note))

        return await self._submit(do)

    async def load_approval(self, approval: str, *, tenant: str | None = None) -> ApprovalRecord | None:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""
        return await self._submit(lambda db: _load_approval(db, approval, tenant))

    async def list_approvals(
        self,
        *,
        tenant: str | None = None,
        status: ApprovalStatus | None = None,
        run: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> ApprovalPage:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""
        where, values = _restricted(
            [("tenant = ?", tenant), ("status = ?", status), ("run = ?", run), ("approval < ?", after)]
        )

        def do(db: sqlite3.Connection) -> ApprovalPage:
            rows = db.execute(
                f"SELECT {_APPROVAL} FROM approvals {where} ORDER BY approval DESC LIMIT ?",  # noqa: S608
                (*values, limit + 1),
            ).fetchall()
            page = tuple(_approval(row) for row in rows[:limit])
            return ApprovalPage(page, page[-1].id if len(rows) > len(page) > 0 else None)

        return await self._submit(do)

    async def begin_action(self, run: str, epoch: int, intent: ActionIntent) -> ActionIntent | None:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""

        def do(db: sqlite3.Connection) -> ActionIntent | None:
            check_held(db, run, epoch)
            known = _actions(db, run, intent.key)
            if known:
                return known[0]
            db.execute(
                'INSERT INTO actions (run, "key", tool, task, arguments_hash, at, ended, detail) '
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    run,
                    intent.key,
                    intent.tool,
                    intent.task,
                    intent.arguments_hash,
                    intent.at,
                    intent.ended,
                    *self._texts([intent.detail]),
                ),
            )
            return None

        return await self._submit(do)

    async def end_action(self, run: str, epoch: int, key: str) -> None:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""

        def do(db: sqlite3.Connection) -> None:
            check_held(db, run, epoch)
            db.execute('UPDATE actions SET ended = 1 WHERE run = ? AND "key" = ?', (run, key))

        await self._submit(do)

    async def load_actions(self, run: str) -> Sequence[ActionIntent]:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""
        return await self._submit(lambda db: _actions(db, run, None))


def _actions(db: sqlite3.Connection, run: str, key: str | None) -> list[ActionIntent]:
    return [
        ActionIntent(known, tool, task, digest, at, bool(ended), _decode(detail))
        for known, tool, task, digest, at, ended, detail in db.execute(
            'SELECT "key", tool, task, arguments_hash, at, ended, detail FROM actions '
            'WHERE run = ? AND coalesce("key" = ?, TRUE) ORDER BY at, "key"',
            (run, key),
        )
    ]


# --- leases ----------------------------------------------------------------------------------------------------------


class SqliteLeases(_Submitting):
    """Leases, and locks beside the file, which a process loses when it dies: no lease has to end for that."""

    _locks: NodeLocks | None

    @property
    def durable(self) -> bool:
        """Whether it is a file."""
        return self._path != ":memory:"

    async def renew_lease(self, node: str, until: float) -> None:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""

        def do(db: sqlite3.Connection) -> None:
            if self._locks is not None:
                self._locks.hold(node)
            db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?)", (node, until))

        await self._submit(do)

    async def drop_lease(self, node: str) -> None:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""

        def do(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM leases WHERE node = ?", (node,))
            if self._locks is not None:
                self._locks.drop(node)

        await self._submit(do)

    async def leases(self) -> Mapping[str, float]:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""
        return await self._submit(lambda db: dict(db.execute("SELECT node, until FROM leases").fetchall()))

    async def lost_runs(self, now: float, *, limit: int = 100) -> Sequence[LostRun]:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""

        def do(db: sqlite3.Connection) -> list[LostRun]:
            holders = [row[0] for row in db.execute("SELECT DISTINCT node FROM runs WHERE terminal IS NULL")]
            known = dict(db.execute("SELECT node, until FROM leases").fetchall())
            lost = []
            for node in holders:
                if known.get(node, 0.0) < now:
                    lost.append(node)
                elif self._locks is not None and self._locks.is_free(node):
                    db.execute("DELETE FROM leases WHERE node = ?", (node,))
                    lost.append(node)
            found = [one for node in lost for one in _held(db, node, limit)]
            return sorted(found, key=lambda one: one.run)[:limit]

        return await self._submit(do)

    async def held_runs(self, node: str, *, limit: int = 1000) -> Sequence[LostRun]:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""
        return await self._submit(lambda db: _held(db, node, limit))

    async def release_run(self, run: str, epoch: int) -> None:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""

        def do(db: sqlite3.Connection) -> None:
            check_held(db, run, epoch)
            db.execute("UPDATE runs SET node = '' WHERE run = ?", (run,))

        await self._submit(do)

    async def detach_run(self, run: str, epoch: int) -> None:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""

        def do(db: sqlite3.Connection) -> None:
            check_held(db, run, epoch)
            db.execute("UPDATE runs SET background = 1 WHERE run = ?", (run,))

        await self._submit(do)


def _held(db: sqlite3.Connection, node: str, limit: int) -> list[LostRun]:
    return [
        LostRun(run, epoch, node, bool(background), state, deaths)
        for run, epoch, background, state, deaths in db.execute(
            "SELECT run, epoch, background, state, deaths FROM runs "
            "WHERE terminal IS NULL AND node = ? ORDER BY run LIMIT ?",
            (node, limit),
        )
    ]


# --- what is kept ----------------------------------------------------------------------------------------------------


class SqliteKeeping(_Submitting):
    """Lists, sessions, pruning, figures."""

    async def prune(self, retention: Retention, *, now: float, batch: int = 100) -> Pruned:
        """See :class:`~failsoft.stores.keeping.KeepingStore`."""

        def do(db: sqlite3.Connection) -> Pruned:
            runs: list[tuple[str]] = []
            for kept, condition in (  # each has its index
                (retention.runs, "session IS NULL AND idempotency_key IS NULL"),
                (max(retention.runs, retention.keyed), "session IS NULL AND idempotency_key IS NOT NULL"),
                (max(retention.runs, retention.keyed, retention.sessions), "session IS NOT NULL"),
            ):
                runs += db.execute(
                    f"SELECT run FROM runs WHERE ended IS NOT NULL AND {condition} AND ended <= ? "  # noqa: S608 - ours
                    "ORDER BY ended LIMIT ?",
                    (now - kept, batch - len(runs)),
                ).fetchall()
            for table in ("tasks", "events", "approvals", "actions", "runs"):
                db.executemany(f"DELETE FROM {table} WHERE run = ?", runs)  # noqa: S608
            details = db.execute(
                "SELECT run FROM runs WHERE ended IS NOT NULL AND details = 1 AND ended <= ? ORDER BY ended LIMIT ?",
                (now - retention.details, batch),
            ).fetchall()
            for table in ("tasks", "events"):
                db.executemany(f"DELETE FROM {table} WHERE run = ?", details)  # noqa: S608
            db.executemany("UPDATE runs SET details = 0 WHERE run = ?", details)
            gone = db.execute("DELETE FROM leases WHERE until <= ?", (now - retention.leases,)).rowcount
            return Pruned(len(runs), len(details), gone, len(runs) >= batch or len(details) >= batch)

        return await self._submit(do)

    async def statistics(self) -> StoreStatistics:
        """See :class:`~failsoft.stores.keeping.KeepingStore`."""

        def do(db: sqlite3.Connection) -> StoreStatistics:
            rows = {
                table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
                for table in _TABLES
            }
            size = sum(
                file.stat().st_size
                for file in (Path(self._path), Path(f"{self._path}-wal"))
                if self._path != ":memory:" and file.exists()
            )
            return StoreStatistics(
                runs=dict(db.execute("SELECT state, count(*) FROM runs GROUP BY state").fetchall()),
                rows=rows,
                oldest=db.execute("SELECT min(created) FROM runs").fetchone()[0],
                size=size,
                revision=revision_of(db) or "",
            )

        return await self._submit(do)
