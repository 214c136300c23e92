"""Real databases for the tests of SQL tools: files of SQLite and DuckDB, a Postgres server of its own."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["ROWS", "duckdb_file", "postgres_binaries", "postgres_server", "sqlite_file"]

ROWS = [(1, "north", 10.5), (2, "south", 20.0), (3, "north", None)]
_CREATE = "CREATE TABLE orders (id INTEGER, region TEXT, amount DOUBLE PRECISION)"


def sqlite_file(folder: Path) -> Path:
    file = folder / "sales.db"
    with sqlite3.connect(file) as connection:
        connection.execute(_CREATE)
        connection.execute("CREATE TABLE secrets (token TEXT)")
        connection.execute("INSERT INTO secrets VALUES ('s3cret')")
        connection.execute("CREATE VIEW leak AS SELECT token FROM secrets")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", ROWS)
    connection.close()
    return file


def duckdb_file(folder: Path) -> Path:
    import duckdb

    file = folder / "sales.duckdb"
    connection = duckdb.connect(str(file))
    connection.execute(_CREATE)
    connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", ROWS)
    connection.close()
    return file


def postgres_binaries() -> Path | None:
    """Where a Postgres server's programs are on this machine, if anywhere."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    return next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """A server on a socket in `folder`; its address, without the user: ``postgresql://{user}@/sales?host=…``."""
    binaries = postgres_binaries()
    assert binaries is not None
    as_user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    folder.mkdir()
    if as_user:
        shutil.chown(folder, "postgres", "postgres")
        for parent in list(folder.parents)[:4]:  # of which some are pytest's, for nobody else's eyes
            if parent.name.startswith(("pytest-", "popen-", "sql")):
                parent.chmod(0o755)
    data = folder / "data"

    def run(*words: str, check: bool = True) -> None:
        subprocess.run(words, check=check, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_user)  # type: ignore[call-overload]

    run(str(binaries / "initdb"), "-D", str(data), "-U", "owner", "-A", "trust", "--no-sync", "-E", "UTF8")
    options = f"-k {folder} -c listen_addresses='' -c fsync=off -c shared_buffers=16MB -c max_connections=20"
    run(str(binaries / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:
        script = (
            f"CREATE DATABASE sales; \\c sales\n{_CREATE};"
            "INSERT INTO orders VALUES (1, 'north', 10.5), (2, 'south', 20.0), (3, 'north', NULL);"
            "CREATE ROLE reader LOGIN; GRANT SELECT ON orders TO reader;"
        )
        psql = ["psql", "-h", str(folder), "-U", "owner", "-d", "postgres", "-v", "ON_ERROR_STOP=1"]
        subprocess.run([str(binaries / psql[0]) if (binaries / psql[0]).exists() else psql[0], *psql[1:]],
                       input=script.encode(), check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        yield f"postgresql://{{user}}@/sales?host={folder}"
    finally:
        run(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop", check=False)
