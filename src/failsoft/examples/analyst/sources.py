"""The tables that the analyst answers from: loaded before any run's budget starts, and kept in a cache.

A profile is read from its own file, so a question is understood, and something is known of the table, while the
database itself hangs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from failsoft.base.errors import BadInput
from failsoft.examples.analyst import data, flights, query
from failsoft.examples.analyst.errors import DatabaseError, DataError
from failsoft.examples.analyst.spec import TableProfile

__all__ = ["BadData", "Source", "Sources", "cache_folder", "load_sources"]

Report = Callable[[int, int], None]
"""``report(done, total)``, told of a load's steps."""
Loading = Callable[[str], contextlib.AbstractContextManager[Report | None]]
"""Opens a display for what is loaded, by its name."""


class BadData(BadInput):
    """A file that cannot be answered from; ``details["reason"]`` says why, ``line`` where."""

    code = "bad_data"


@dataclass(frozen=True, slots=True)
class Source:
    """One table: its profile, and an open connection for reading."""

    profile: TableProfile
    connection: Any


class Sources:
    """All tables, by name. Close it when nobody asks any more."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._by_table = {source.profile.table: source for source in sources}

    @property
    def profiles(self) -> tuple[TableProfile, ...]:
        """What is known of each table."""
        return tuple(source.profile for source in self._by_table.values())

    def get(self, table: str) -> Source:
        """The table of that name; raises :class:`~failsoft.base.errors.BadInput`, which says which there are."""
        try:
            return self._by_table[table]
        except KeyError:
            known = ", ".join(self._by_table)
            raise BadInput(f"there is no table {table[:80]!r}; there are: {known}", param="table") from None

    def close(self) -> None:
        """Closes the connections; a query that still runs is interrupted."""
        for source in self._by_table.values():
            with contextlib.suppress(Exception):
                source.connection.interrupt()
            source.connection.close()

    def __repr__(self) -> str:
        return f"<Sources {', '.join(self._by_table)}>"


@contextlib.contextmanager
def _silently(name: str) -> Iterator[Report | None]:
    yield None


def load_sources(files: Sequence[Path], *, cache: Path, loading: Loading = _silently) -> Sources:
    """Loads the files, or the flights when there are none, each once for each of its states.

    Raises :class:`BadData` naming the file, or two files that give the same table.
    """
    opened: list[Source] = []
    try:
        for file in files or (None,):
            try:
                loaded = _loaded(file, cache, loading)
                if any(source.profile.table == loaded.profile.table for source in opened):
                    raise BadData(f"two files give a table {loaded.profile.table!r}; rename one", param="data")
                try:
                    connection = query.connect(loaded.database)
                except DatabaseError:  # damaged since: what was loaded once can be loaded again
                    data.forget(loaded.database)
                    loaded = _loaded(file, cache, loading)
                    connection = query.connect(loaded.database)
                opened.append(Source(loaded.profile, connection))
            except DataError as error:
                raise bad_data(error) from error
            except DatabaseError as error:
                message = f"what was loaded cannot be opened ({error.message}); remove {cache} and try again"
                raise BadData(message, param="cache_dir", details={"reason": error.code}) from error
    except BaseException:
        Sources(opened).close()
        raise
    return Sources(opened)


def _loaded(file: Path | None, cache: Path, loading: Loading) -> data.Loaded:
    with loading("flights of 2013" if file is None else file.name) as report:
        if file is None:
            return flights.load(cache=cache, progress=report)
        return data.load_cached(file, cache=cache, progress=report)


def bad_data(error: DataError) -> BadData:
    """The error for whoever named the file."""
    details = {"reason": error.code, "file": error.path, "line": error.line}
    return BadData(str(error), param="data", details=details)


def cache_folder(chosen: Path | None, environ: Mapping[str, str] | None = None) -> Path:
    """Where loaded data is kept: as chosen, in ``XDG_CACHE_HOME``, in ``~/.cache``, else in the temporary folder.

    The first that can be written to is taken; a chosen one must be. Raises :class:`BadData` when there is none.
    """
    environ = os.environ if environ is None else environ
    if chosen is not None:
        candidates = [chosen]
    else:
        home, xdg = environ.get("HOME", ""), environ.get("XDG_CACHE_HOME", "")
        candidates = [Path(xdg, "failsoft")] if Path(xdg).is_absolute() else []
        candidates += [Path(home, ".cache", "failsoft")] if Path(home).is_absolute() else []
        candidates.append(Path(tempfile.gettempdir(), f"failsoft-{os.getuid()}"))
    for folder in candidates:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if chosen is not None or (folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK)):
                return folder
    raise BadData(f"{candidates[0]}: cannot be written to; set cache_dir or FAILSOFT_CACHE_DIR", param="cache_dir")
