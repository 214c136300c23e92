"""Real databases for the tests of SQL tools: files of SQLite and DuckDB, a Postgres server of its own."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["ENDLESS", "ROWS", "duckdb_file", "postgres_binaries", "postgres_server", "sqlite_file"]

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
def postgres_server() -> Iterator[str]:
    """A server on a socket of its own; its address, without the user: ``postgresql://{user}@/sales?host=…``."""
    # Not in pytest's folders, which another session of pytest closes to all users but its own.
    with tempfile.TemporaryDirectory(prefix="failsoft-postgres-") as folder:
        yield from _running(Path(folder))


def _running(folder: Path) -> Iterator[str]:
    binaries = postgres_binaries()
    assert binaries is not None
    as_user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    if as_user:
        shutil.chown(folder, "postgres", "postgres")
    data, said = folder / "data", folder / "said"

    def run(*words: str, check: bool = True) -> None:
        with said.open("ab") as output:  # a pipe would be held open by the server
            done = subprocess.run(words, check=False, cwd=folder, stdout=output, stderr=output, **as_user)  # type: ignore[call-overload]
        if check and done.returncode:
            raise RuntimeError(f"{words[0]} failed:\n{said.read_text()}")

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


ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "duckdb": "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = 7",
    "postgres": "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 1000000) b WHERE a * b = -7",
}
"""A query of each kind that would run for hours."""
