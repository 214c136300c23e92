"""A new file, an old one, a newer one; and that migrating leads to the same tables as making them."""

import asyncio
import re
import sqlite3
import subprocess
import sys
from typing import Any

import pytest

from failsoft.base.errors import StoreError, StoreOutdated
from failsoft.stores.migrating import MIGRATIONS, migrate
from failsoft.stores.protocols import RunRecord
from failsoft.stores.sqlite import SqliteStore
from failsoft.stores.sqlite_schema import HEAD, REVISIONS

FIRST = """
CREATE TABLE runs (run TEXT PRIMARY KEY, tenant TEXT, idempotency_key TEXT, body_hash TEXT NOT NULL,
    agent TEXT NOT NULL, session TEXT, request TEXT NOT NULL, created REAL NOT NULL, budget REAL NOT NULL,
    background INTEGER NOT NULL, first_node TEXT NOT NULL, node TEXT NOT NULL, epoch INTEGER NOT NULL,
    state TEXT NOT NULL, snapshot TEXT NOT NULL, terminal TEXT, result TEXT) WITHOUT ROWID;
CREATE UNIQUE INDEX runs_by_key ON runs (ifnull(tenant, ''), idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TABLE events (run TEXT NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL,
    at REAL NOT NULL, task TEXT, data TEXT, PRIMARY KEY (run, epoch, seq)) WITHOUT ROWID;
CREATE TABLE tasks (run TEXT NOT NULL, task TEXT NOT NULL, status TEXT NOT NULL, value TEXT,
    provenance TEXT NOT NULL, started REAL, ended REAL, PRIMARY KEY (run, task)) WITHOUT ROWID;
CREATE TABLE durations (id INTEGER PRIMARY KEY, key TEXT NOT NULL, seconds REAL NOT NULL);
CREATE INDEX durations_by_key ON durations (key, id);
PRAGMA user_version=1;
INSERT INTO runs VALUES ('run_1', 't', NULL, '', 'a', NULL, '{"input": "q"}', 5.0, 8.0, 0, 'n', 'n', 1,
    'completed', '{}', 'completed', '{"answer": "yes"}');
INSERT INTO runs VALUES ('run_2', 't', NULL, '', 'a', NULL, '{"input": "q"}', 6.0, 8.0, 0, 'n', 'n', 1,
    'planning', '{}', NULL, NULL);
"""


def script(path, text: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(text)
    connection.close()


@pytest.fixture
def old(tmp_path):
    """A file of the first version, as that version made it."""
    path = tmp_path / "runs.db"
    script(path, FIRST)
    return path


def tables(path) -> dict[str, list[Any]]:
    connection = sqlite3.connect(path)
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found: dict[str, list[Any]] = {
        name: [
            (column, re.sub("DOUBLE.*|REAL", "REAL", kind), required, bool(key))
            for _, column, kind, required, _, key in connection.execute(f'PRAGMA table_info("{name}")')
        ]
        for name in names
    }
    indexes = connection.execute(
        "SELECT name, tbl_name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name"
    ).fetchall()
    for index, table in indexes:
        columns = [row[2] for row in connection.execute(f'PRAGMA index_info("{index}")')]
        (unique,) = [row[2] for row in connection.execute(f'PRAGMA index_list("{table}")') if row[1] == index]
        found[f"index {index}"] = [(table, columns, unique)]
    connection.close()
    return found


async def test_an_old_file_is_refused_with_the_command_that_helps(old):
    store = SqliteStore(old)
    with pytest.raises(StoreOutdated, match=r"failsoft store migrate --store .*runs\.db") as caught:
        await store.load_run("run_1")
    assert caught.value.details == {"found": "0001", "needed": HEAD}
    await store.aclose()


async def test_an_old_file_is_migrated_when_that_is_allowed(old):
    store = SqliteStore(old, migrate=True)
    done = await store.load_run("run_1")
    assert done is not None
    assert (done.ended, done.deaths, done.result) == (13.0, 0, {"answer": "yes"})
    running = await store.load_run("run_2")
    assert running is not None
    assert running.ended is None
    await store.create_run(
        RunRecord(run="run_3", agent="a", request={"input": "q"}, created=1.0, budget=8.0, node="n", background=True)
    )
    assert (await store.statistics()).revision == HEAD
    await store.aclose()


async def test_migrating_leads_to_the_tables_of_a_new_file(old, tmp_path):
    assert await asyncio.to_thread(migrate, old) == ("0001", HEAD)
    new = SqliteStore(tmp_path / "new.db")
    await new.durations()
    await new.aclose()
    migrated = await asyncio.to_thread(tables, old)
    made = await asyncio.to_thread(tables, tmp_path / "new.db")
    assert migrated.keys() == made.keys()
    for name, columns in made.items():
        if name not in {"runs", "events", "tasks"}:  # of those the first version's own
            assert migrated[name] == columns, name
        else:
            assert [column[:2] for column in migrated[name]] == [column[:2] for column in columns]
    assert await asyncio.to_thread(migrate, old) == (HEAD, HEAD)


def test_the_revisions_that_are_known_are_those_there_are():
    scripts = sorted(path.name[:4] for path in (MIGRATIONS / "versions").glob("0*.py"))
    assert tuple(scripts) == REVISIONS


def test_the_first_revision_makes_the_tables_of_the_first_version(tmp_path, old):
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    engine = create_engine(f"sqlite:///{tmp_path / 'first.db'}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()
    made = tables(tmp_path / "first.db")
    made.pop("alembic_version")
    first = tables(old)
    assert made.keys() == first.keys()
    for name, columns in first.items():
        assert [column[:2] for column in made[name]] == [column[:2] for column in columns]


async def test_a_newer_file_is_never_touched(tmp_path):
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.durations()
    await store.aclose()
    await asyncio.to_thread(script, path, "UPDATE alembic_version SET version_num = '9999'")
    for store in (SqliteStore(path), SqliteStore(path, migrate=True)):
        with pytest.raises(StoreOutdated, match="newer version"):
            await store.load_run("run_1")
        await store.aclose()
    with pytest.raises(StoreOutdated, match="newer version"):
        await asyncio.to_thread(migrate, path)


def test_what_is_no_database_is_told_as_such(tmp_path):
    path = tmp_path / "runs.db"
    path.write_text("this is no database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        migrate(path)


def test_alembic_is_imported_by_nothing_but_migrating():
    code = "import sys, failsoft.app, failsoft.stores.sqlite; print({'alembic', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
