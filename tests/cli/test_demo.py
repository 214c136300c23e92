"""``failsoft demo``: it ends well only if every run ends as promised and in time."""

import json

import pytest

from failsoft.cli import demo
from failsoft.cli.main import execute

pytestmark = pytest.mark.timeout(120)


def test_the_demo_keeps_its_promise(capsys, tmp_path):
    assert execute(["demo", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.strip().splitlines()[-3:]
    flights, sales, broken = lines
    assert flights.startswith("flights ")
    assert "completed" in flights
    assert "query primary" in flights
    assert sales.startswith("sales ")
    assert "compare primary" in sales
    assert broken.startswith("flights, warehouse=hang ")
    assert "degraded" in broken
    assert "query skipped" in broken
    assert all("/ 5.00 s" in line for line in lines)
    assert (tmp_path / "out" / "sales" / "chart.png").is_file()


@pytest.mark.deep
def test_a_fault_that_breaks_nothing_is_not_as_expected(capsys, tmp_path, monkeypatch):
    code = execute(["demo", "--json", "--fault", "warehouse=delay:1ms", "--out", str(tmp_path)])
    body = json.loads(capsys.readouterr().out)
    assert (code, body["ok"]) == (1, False)
    assert [run["status"] for run in body["runs"]] == ["completed"] * 3
    assert body["runs"][2]["expected"] == "degraded"


@pytest.mark.deep
def test_a_late_answer_is_not_as_expected(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "LATE", -5.0)
    assert execute(["demo", "--out", str(tmp_path)]) == 1
    assert "NOT AS EXPECTED" in capsys.readouterr().out


def test_an_unknown_fault_is_one_line_before_anything_is_loaded(capsys):
    assert execute(["demo", "--fault", "warehouse=explode"]) == 2
    assert capsys.readouterr().err.startswith("error: --fault: unknown kind of fault")
