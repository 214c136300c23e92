"""Brings an older store up to date. The only module that imports Alembic, and only when it is asked to migrate."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from failsoft.base.errors import StoreError, StoreOutdated
from failsoft.stores.sqlite_schema import HEAD, REVISIONS, revision_of

__all__ = ["migrate"]

MIGRATIONS = Path(__file__).with_name("migrations")


def migrate(path: str | Path) -> tuple[str | None, str]:
    """Migrates the file at `path`, in one transaction; gives the revision before and after.

    A file without tables is left alone (its first use makes them). Raises :class:`StoreOutdated` for one of a newer
    version, :class:`StoreError` when Alembic is not installed or the file cannot be migrated.
    """
    with contextlib.closing(sqlite3.connect(path, timeout=10.0)) as connection:
        try:
            found = revision_of(connection)
        except sqlite3.Error as error:
            raise StoreError(f"the database {path} failed: {error}") from error
    if found in (None, HEAD):
        return found, HEAD
    if found not in REVISIONS:
        raise StoreOutdated(
            f"{path} was written by a newer version (revision {found}, known up to {HEAD}): update Failsoft",
            param="store.path",
        )
    try:
        import sqlalchemy
        from alembic import command
        from alembic.config import Config
    except ImportError as error:
        raise StoreError("migrating needs Alembic: pip install 'failsoft[migrate]'") from error
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    engine = sqlalchemy.create_engine("sqlite://", creator=lambda: _connect(path), poolclass=sqlalchemy.pool.NullPool)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            config.attributes["connection"] = connection
            if found == REVISIONS[0]:
                command.stamp(config, found)
            command.upgrade(config, "head")
            connection.commit()
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise StoreError(f"{path} could not be migrated: {error.__cause__ or error}") from error
    finally:
        engine.dispose()
    return found, HEAD


def _connect(path: str | Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=10.0, isolation_level=None)
