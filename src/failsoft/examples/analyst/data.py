"""Any CSV, TSV or Parquet file, loaded into DuckDB once and described, with everything that was assumed said.

Loading is all or nothing: the database is built beside its final name and renamed when it is complete, so neither an
error nor a kill leaves half a table. The profile is computed while loading and kept as JSON beside the data: a
question can then be understood while the database hangs.
"""

# ruff: noqa: S608 - SQL is put together from quoted identifiers and literals; values from outside are bound
from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from failsoft.examples.analyst import profiling, sniff, textfiles
from failsoft.examples.analyst.convert import convert
from failsoft.examples.analyst.errors import DataError
from failsoft.examples.analyst.spec import Note, SpecError, TableProfile, from_dict, to_dict
from failsoft.examples.analyst.textfiles import STAGED, BrokenRows, Progress
from failsoft.examples.analyst.textsql import literal

MAX_BYTES = 1 << 30
"""The largest file taken without being told otherwise: 1 GiB."""
FORMAT = 2
"""Raised when loading changes, so that what was cached by older code is loaded again."""
HASHED_WHOLE = 64 << 20
"""Bytes of a file up to which all of it tells its states apart; of a larger one its ends and parts in between do."""
_PIECES, _PIECE = 64, 256 << 10
KEPT = 2
"""Loaded versions of one file that stay in a cache."""
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
STALE = 3600.0
"""Seconds after which a half-built database that a killed process left is removed."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file in its database."""

    database: Path
    profile: TableProfile


def load(
    path: str | Path,
    *,
    database: str | Path | Any,
    progress: Progress | None = None,
    table: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    broken_rows: BrokenRows = "refuse",
    max_bytes: int = MAX_BYTES,
) -> TableProfile:
    """Load a file as one table and describe it.

    Args:
        path: a CSV or TSV file (UTF-8, UTF-16, GB18030 or Latin-1, recognised) or a Parquet file, also by another name.
        database: the DuckDB file to make (replaced when complete), or an open connection, whose table is replaced.
        progress: called with steps done and steps in all; what it raises ends the loading and leaves nothing behind.
        table: the table's name; by default the file's name without its suffix.
        encoding: a Python encoding name, when the file's is known.
        delimiter: one character, when the file's is known.
        broken_rows: ``refuse`` a file with records of the wrong length (the error names the first), or ``drop`` them
            with a note.
        max_bytes: the largest file taken.

    Raises:
        DataError: see its codes.
    """
    path = Path(path)
    before = _check(path, max_bytes)
    report = progress or (lambda done, total: None)
    table = table or table_name(path)
    options = (encoding, delimiter, broken_rows)
    if not isinstance(database, str | Path):
        profile = _fill(database, path, table, report, *options)
    else:
        with built_beside(Path(database)) as part, contextlib.closing(duckdb.connect(str(part))) as connection:
            profile = _fill(connection, path, table, report, *options)
            _check_unchanged(path, before)
            complete(connection)
    return profile


def load_cached(
    path: str | Path,
    *,
    cache: str | Path,
    progress: Progress | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    broken_rows: BrokenRows = "refuse",
    max_bytes: int = MAX_BYTES,
) -> Loaded:
    """Like :func:`load`, but once for each state of a file (path, size, time of change, contents); see :func:`load` for
    the arguments. Of files beyond :data:`HASHED_WHOLE` only parts of the contents are compared.

    The database and its profile are files in the folder `cache`, of which the last :data:`KEPT` states of a file are
    kept.
    """
    path, cache = Path(path), Path(cache)
    stat = _check(path, max_bytes)
    owner = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    contents = f"{stat.st_size} {stat.st_mtime_ns} {_fingerprint(path, stat.st_size)}"
    state = f"{FORMAT} {duckdb.__version__} {contents} {encoding} {delimiter} {broken_rows}"
    database = cache / f"{owner}-{hashlib.sha256(state.encode()).hexdigest()[:12]}.duckdb"
    if (profile := read_profile(database)) is not None:
        if progress is not None:
            progress(1, 1)
        return Loaded(database, profile)
    cache.mkdir(parents=True, exist_ok=True)
    profile = load(
        path,
        database=database,
        progress=progress,
        encoding=encoding,
        delimiter=delimiter,
        broken_rows=broken_rows,
        max_bytes=max_bytes,
    )
    write_profile(database, profile)
    _forget_older(cache, owner)
    return Loaded(database, profile)


def read_profile(database: Path) -> TableProfile | None:
    """The profile kept beside a database; None when there is none, or no database, or it cannot be read."""
    if not database.is_file():
        return None
    try:
        return from_dict(TableProfile, json.loads(database.with_suffix(".json").read_text(encoding="utf-8")))
    except (OSError, ValueError, SpecError):
        return None


def write_profile(database: Path, profile: TableProfile) -> None:
    """Keep a profile beside its database, whole or not at all."""
    with built_beside(database.with_suffix(".json")) as part:
        part.write_text(json.dumps(to_dict(profile), ensure_ascii=False), encoding="utf-8")


def table_name(path: Path) -> str:
    """A table name made from a file's name: letters, digits and underscores of any language."""
    name = re.sub(r"\W+", "_", path.stem).strip("_") or "data"
    return f"t_{name}" if name[0].isdigit() else name


def _check(path: Path, max_bytes: int) -> os.stat_result:
    try:
        stat = path.stat()
        if path.is_dir():
            raise DataError("directory", "this is a folder, not a file", path)
        if not path.is_file():
            raise DataError("unreadable", "this is not a regular file", path)
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise DataError("missing", "there is no such file", path) from None
    except OSError as error:
        raise DataError("unreadable", f"cannot be read: {error.strerror or error}", path) from error
    except DataError:
        raise
    except ValueError as error:  # a zero byte in the name
        raise DataError("missing", f"this is not a file name: {error}", repr(str(path))) from error
    if stat.st_size == 0:
        raise DataError("empty", "the file is empty", path)
    if stat.st_size > max_bytes:
        raise DataError("too_large", f"{stat.st_size:,} bytes are more than the {max_bytes:,} allowed", path)
    return stat


def _fingerprint(path: Path, size: int) -> str:
    """A hash of the contents: the same size and time of change do not mean the same file (copies, coarse clocks)."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            if size <= HASHED_WHOLE:
                while block := file.read(1 << 20):
                    digest.update(block)
            else:
                for k in range(_PIECES):
                    file.seek((size - _PIECE) * k // (_PIECES - 1))
                    digest.update(file.read(_PIECE))
    except OSError as error:
        raise DataError("unreadable", f"cannot be read: {error.strerror or error}", path) from error
    return digest.hexdigest()


def _check_unchanged(path: Path, before: os.stat_result) -> None:
    after = path.stat()
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise DataError("changed", "the file was changed while it was read; try again", path)


def _fill(
    connection: Any,
    path: Path,
    table: str,
    report: Progress,
    encoding: str | None,
    delimiter: str | None,
    broken_rows: BrokenRows,
) -> TableProfile:
    """Stage, convert and describe: 60, 20 and 20 of 100 steps."""
    report(0, 100)

    def staging(done: int, total: int) -> None:
        report(int(60 * done / max(total, 1)), 100)

    try:
        if sniff.is_parquet(path):
            names, notes = _stage_parquet(connection, path), list[Note]()
        else:
            dialect = sniff.find_dialect(path, encoding=encoding, delimiter=delimiter)
            names, notes = textfiles.stage(connection, path, dialect, broken_rows=broken_rows, progress=staging)
            notes.insert(0, _said(dialect, given=encoding is not None))
        report(60, 100)
        hints, converted = convert(
            connection, STAGED, table, names, path, lambda done, total: report(60 + int(20 * done / total), 100)
        )
        profile = profiling.describe(connection, table, source=path.name, hints=hints, notes=notes + converted)
    finally:
        connection.execute(f"DROP TABLE IF EXISTS {STAGED}")
    report(100, 100)
    return profile


def _stage_parquet(connection: Any, path: Path) -> list[str]:
    file = f"read_parquet({literal(str(path))})"
    try:
        names = [row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM {file}").fetchall()]
        aliases = ", ".join(f"c{i}" for i in range(len(names)))
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {STAGED} AS SELECT 0::BIGINT AS line, t.* FROM {file} t({aliases})"
        )
        (rows,) = connection.execute(f"SELECT count(*) FROM {STAGED}").fetchone()
        types = connection.execute(
            f"SELECT column_name FROM (DESCRIBE {STAGED}) WHERE column_type = 'VARCHAR'"
        ).fetchall()
        if types:
            connection.execute(f"UPDATE {STAGED} SET " + ", ".join(f"{c} = trim({c})" for (c,) in types))
    except duckdb.Error as error:
        raise DataError("broken", f"this Parquet file cannot be read: {str(error).splitlines()[0]}", path) from error
    if not rows:
        raise DataError("header_only", "there are columns but no rows", path)
    return names


def _said(dialect: sniff.Dialect, *, given: bool) -> Note:
    how = ("as given", "由调用方指定") if given else ("recognised", "自动识别")
    return Note(
        "encoding",
        f"read as {dialect.encoding_name} ({how[0]}), fields separated by {dialect.delimiter_name}",
        f"按 {dialect.encoding_name} 读取（{how[1]}），分隔符为 {dialect.delimiter_name}",
    )


@contextlib.contextmanager
def built_beside(target: Path) -> Iterator[Path]:
    """A name to build `target` under; renamed to it at the end, removed when anything goes wrong.

    Raises :class:`DataError` (``not_kept``) when the disk is what goes wrong, for that is not the data's fault.
    """
    for left in target.parent.glob("*.part*"):
        with contextlib.suppress(OSError):
            if left.is_file() and time.time() - left.stat().st_mtime > STALE:
                left.unlink()
    part = target.with_name(f"{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        yield part
        part.replace(target)
    except RuntimeError as error:
        if str(error) == "Query interrupted":  # what DuckDB makes of a signal that came while it worked
            raise KeyboardInterrupt from error
        raise
    except (duckdb.Error, OSError, DataError) as error:
        if (why := _disk_trouble(error)) is not None:
            text = f"what was loaded cannot be kept ({why}); make room, or set cache_dir or FAILSOFT_CACHE_DIR"
            raise DataError("not_kept", text, target.parent) from error
        raise
    finally:
        for left in (part, part.with_name(part.name + ".wal")):
            left.unlink(missing_ok=True)


def complete(connection: Any) -> None:
    """Write everything into the database's own file, and fail if that fails: closing would try, and keep quiet."""
    connection.execute("CHECKPOINT")


def forget(database: Path) -> None:
    """Remove a loaded database, so that it is loaded anew; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for file in (database.with_suffix(".json"), database):
            file.unlink(missing_ok=True)


def _disk_trouble(error: BaseException | None) -> str | None:
    """What the disk has to do with an error, or with what it was made of."""
    while error is not None:
        text = str(error).splitlines()[0] if str(error) else ""
        if isinstance(error, OSError) and error.errno in _DISK:
            return error.strerror
        if isinstance(error, duckdb.Error):
            for number in _DISK:
                if os.strerror(number) in text:
                    return os.strerror(number)
        error = error.__cause__
    return None


def _forget_older(cache: Path, owner: str) -> None:
    """Remove all but the last states of a file; who has one of them open keeps it until closing."""
    states = sorted(cache.glob(f"{owner}-*.duckdb"), key=lambda p: p.stat().st_mtime, reverse=True)
    for old in states[KEPT:]:
        forget(old)
