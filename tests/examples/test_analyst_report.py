"""Reports say the numbers of the results, where they came from and what is missing, and nothing in them can do harm."""

import datetime as dt
import html.parser
import re
from dataclasses import replace
from typing import Any, Literal

import duckdb
import pytest

from failsoft.examples.analyst import answer, data, query, report
from failsoft.examples.analyst.anomaly import unusual
from failsoft.examples.analyst.answer import Section, Table
from failsoft.examples.analyst.compare import changes
from failsoft.examples.analyst.spec import Filter, Group, Intent, Measure, Period, Query

NOTHING = "There is no data for this question."
EVIL = '<script>alert(1)</script>|`*_[x](javascript:1)_*` & "q"'
CSV = "region,date,revenue,units\n" + "".join(
    f"{region},2024-{month:02d}-01,{size * (3 if region == 'D' and month == 5 else 1)}.5,{month}\n"
    for region, size in (("A", 100), ("B", 200), ("C", 150), ("D", 120), ("E", 90))
    for month in (4, 5)
)
MAY = Period("date", dt.date(2024, 5, 1), dt.date(2024, 6, 1), "May 2024")
APRIL = Period("date", dt.date(2024, 4, 1), dt.date(2024, 5, 1), "April 2024")


@pytest.fixture
def table(tmp_path):
    (tmp_path / "shop.csv").write_text(CSV)
    with duckdb.connect(config={"threads": 1}) as connection:
        yield data.load(tmp_path / "shop.csv", database=connection), connection


def comparing(table: Any, language: Literal["en", "zh"]) -> tuple[Intent, list[Section]]:
    profile, connection = table
    now = Query("shop", Measure("sum", "revenue"), (Group("region"),), period=MAY)
    before = replace(now, period=APRIL)
    left, right = (query.run(q, connection, profile=profile) for q in (now, before))
    compared = changes(left, right)
    intent = Intent(now, before, mark_unusual=True, language=language, reading="x", notes=("2024 was assumed",))
    sections = answer.write(
        intent,
        profile=profile,
        result=left,
        reference=right,
        comparison=compared,
        judgement=unusual(compared),
        chart=b"\x89PNG",
    )
    return intent, sections


def test_a_comparison_is_told_with_its_numbers_marks_and_sources(table):
    _, sections = comparing(table, "en")
    assert [s.title for s in sections] == ["Answer", "Figures", "Chart", "What is unusual", "Assumptions and notes"]
    lead = sections[0].body
    assert "902.5" in lead
    assert "662.5" in lead
    assert "+240" in lead
    assert "+36.2%" in lead
    assert "D (+240, +199.2%)" in lead
    assert "1 unusual change" in lead
    assert all(s.provenance for s in sections)
    assert "shop.csv" in sections[0].provenance
    assert "5 of 10 rows" in sections[0].provenance
    assert "2024-05-01" in sections[1].sql
    table_of = sections[1].table
    assert table_of is not None
    assert ("D", "360.5", "120.5", "+240.0", "+199.2%", "▲ unusual") in {
        tuple(re.sub(r"(\.\d)0\b", r"\1", c) for c in row) for row in table_of.rows
    }
    assert table_of.rows[-1][:3] == ("all", "902.50", "662.50")
    assert "2024 was assumed" in sections[-1].items


def test_answers_are_in_the_language_of_the_question(table):
    _, sections = comparing(table, "zh")
    assert [s.title for s in sections] == ["结论", "数据", "图表", "异常", "假设与说明"]
    assert "1 项异常变化" in sections[0].body
    text = report.markdown("比较", sections, language="zh")
    assert "来源：shop.csv" in text
    english = re.findall(
        r"\b(?:unusual|Source|rows|change|read as)\b", re.sub(r"```sql.*?```", "", text, flags=re.DOTALL)
    )
    assert english == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Query("shop", Measure("count")), "The number of rows is 10."),
        (Query("shop", Measure("sum", "revenue")), "The total revenue is 1,565 (from 10 rows)."),
        (Query("shop", Measure("sum", "revenue"), (Group("region"),), order="desc"),
         "D has the highest total revenue: 481; the lowest is E with 181 (in all 1,565, 5 groups)."),
        (Query("shop", Measure("mean", "revenue"), (Group("region"),), order="desc", limit=1, period=MAY),
         "D has the highest average revenue in May 2024: 360.5 (overall 180.5, 5 groups)."),
        (Query("shop", Measure("count"), filters=(Filter("region", "=", "Z"),)), "The number of rows is 0."),
        (Query("shop", Measure("max", "units"), filters=(Filter("units", ">", 9),)), NOTHING),
        (Query("shop", Measure("sum", "revenue"), (Group("region"),), period=replace(MAY, end=MAY.start)),
         "There is no data for this question in May 2024."),
    ],
)  # fmt: skip
def test_leads_say_the_main_numbers(table, asked, expected):
    profile, connection = table
    assert answer.lead(Intent(asked), profile=profile, result=query.run(asked, connection, profile=profile)) == expected


def test_shares_have_a_column_of_their_own(table):
    profile, connection = table
    asked = Query("shop", Measure("sum", "units"), (Group("region"),), share=True)
    sections = answer.write(Intent(asked), profile=profile, result=query.run(asked, connection, profile=profile))
    assert sections[1].table == Table(
        ("region", "total units", "share"), tuple((r, "9", "20.0%") for r in "ABCDE"), numeric=(1, 2)
    )


def test_notes_are_those_of_the_columns_that_were_used(tmp_path):
    (tmp_path / "n.csv").write_text("k,a,b\nx,$1,NA\ny,2,3\nz,4,5\n")
    with duckdb.connect() as connection:
        profile = data.load(tmp_path / "n.csv", database=connection)
        asked = Query("n", Measure("sum", "a"))
        sections = answer.write(Intent(asked), profile=profile, result=query.run(asked, connection, profile=profile))
    assert "a: 2 values without a currency were taken to be in $" in sections[-1].items
    assert not [i for i in sections[-1].items if i.startswith("b:")]


def test_a_degraded_answer_says_what_is_missing_and_why(table):
    _, sections = comparing(table, "en")
    stale = replace(sections[1], status="stale", reason="from 14:05, the warehouse does not answer")
    degraded = [sections[0], stale, answer.missing("Chart", "not drawn: 0.2 s were left")]
    text, page = (write("t", degraded, language="en") for write in (report.markdown, report.html))
    for words in ("Not up to date: from 14:05, the warehouse does not answer", "Missing: not drawn: 0.2 s were left"):
        assert words in text
        assert words in page


class Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        self.sources += [v or "" for name, v in attrs if name in {"src", "href"}]
        if tag not in {"meta", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def evil_sections() -> list[Section]:
    table = Table((EVIL, "n"), ((EVIL, EVIL), ("a\n| b |", "1")), (1,), 3)
    return [Section(EVIL, EVIL, (EVIL,), table, b"\x89PNG", EVIL, f"SELECT '{EVIL}' ```", "partial", EVIL)]


def test_html_is_whole_and_harmless():
    page = report.html(EVIL, evil_sections())
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.seen.isdisjoint({"script", "a", "link", "iframe", "object", "form"})
    assert [s.split(",")[0] for s in reader.sources] == ["data:image/png;base64"]
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("&lt;script&gt;") >= 9


def test_markdown_tables_keep_their_shape_and_markup_is_harmless():
    text = report.markdown(EVIL, evil_sections(), images=["a chart.png"])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}
    outside = re.sub(r"````sql.*?````", "", text, flags=re.DOTALL)
    assert "<script" not in outside
    assert not re.search(r"(?<!\\)\]\(javascript", outside)
    assert "](a%20chart.png)" in text
    assert "data:image" not in text
    assert "data:image/png;base64," in report.markdown("t", evil_sections())
