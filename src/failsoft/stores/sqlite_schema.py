"""The tables of the SQLite store as of now, and what to do about a file that has others.

A new file is made by plain statements and stamped with the newest revision. An older one is migrated by Alembic
(:mod:`failsoft.stores.migrating`), which nothing else imports; ``tests/stores`` shows that both ways lead to the same.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from failsoft.base.errors import StoreOutdated

__all__ = ["HEAD", "REVISIONS", "prepare", "revision_of"]

REVISIONS: Final = ("0001", "0002")
"""Every revision there was, oldest first."""
HEAD: Final = REVISIONS[-1]

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
    result TEXT,
    ended REAL,
    deaths INTEGER DEFAULT 0 NOT NULL,
    details INTEGER DEFAULT 1 NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX runs_by_key ON runs (ifnull(tenant, ''), idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_unended ON runs (node) WHERE terminal IS NULL;
CREATE INDEX runs_by_end ON runs (ended) WHERE ended IS NOT NULL AND session IS NULL AND idempotency_key IS NULL;
CREATE INDEX runs_by_end_keyed ON runs (ended)
    WHERE ended IS NOT NULL AND session IS NULL AND idempotency_key IS NOT NULL;
CREATE INDEX runs_by_end_in_session ON runs (ended) WHERE ended IS NOT NULL AND session IS NOT NULL;
CREATE INDEX runs_by_end_detailed ON runs (ended) WHERE ended IS NOT NULL AND details = 1;
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
CREATE TABLE approvals (
    approval TEXT NOT NULL PRIMARY KEY,
    run TEXT NOT NULL,
    task TEXT NOT NULL,
    tool TEXT NOT NULL,
    arguments TEXT NOT NULL,
    arguments_hash TEXT NOT NULL,
    reason TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    tenant TEXT,
    agent TEXT NOT NULL,
    title TEXT NOT NULL,
    status TEXT NOT NULL,
    resolved REAL,
    resolved_by TEXT,
    note TEXT NOT NULL
);
CREATE INDEX approvals_by_run ON approvals (run);
CREATE TABLE actions (
    run TEXT NOT NULL,
    "key" TEXT NOT NULL,
    tool TEXT NOT NULL,
    task TEXT NOT NULL,
    arguments_hash TEXT NOT NULL,
    at REAL NOT NULL,
    ended INTEGER NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (run, "key")
);
CREATE TABLE leases (node TEXT NOT NULL PRIMARY KEY, until REAL NOT NULL);
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
"""


def revision_of(connection: sqlite3.Connection) -> str | None:
    """The revision of a file's tables; None when it has none of ours."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "alembic_version" in tables:
        found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return None if found is None else str(found[0])
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > 1:
        return f"user_version {version}"
    return "0001" if version == 1 and "runs" in tables else None


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Makes the tables of a new file; raises :class:`StoreOutdated` for those of another version."""
    found = revision_of(connection)
    if found == HEAD:
        return
    if found is None:
        # Another process may be making them now: whoever comes second finds them there.
        connection.execute("BEGIN IMMEDIATE")
        try:
            found = revision_of(connection)
            if found is None:
                for statement in _SCHEMA.split(";"):
                    if statement.strip():
                        connection.execute(statement)
                connection.execute("INSERT INTO alembic_version VALUES (?)", (HEAD,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    if found in (None, HEAD):
        return
    if found in REVISIONS:
        raise StoreOutdated(
            f"{path} has the tables of an older version (revision {found}, needed is {HEAD}): "
            f"run `failsoft store migrate --store {path}`, or set `store.migrate` to true",
            param="store.path",
            details={"found": found, "needed": HEAD},
        )
    raise StoreOutdated(
        f"{path} was written by a newer version (revision {found}, known up to {HEAD}): update Failsoft",
        param="store.path",
        details={"found": found, "needed": HEAD},
    )
