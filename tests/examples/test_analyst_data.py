"""Files of all kinds are loaded right, or refused with the line to mend; nothing is left half-written."""

import csv
import datetime as dt
import functools
import io
import os
import random
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from failsoft.examples.analyst import data, names, sniff
from failsoft.examples.analyst.errors import DataError
from failsoft.examples.analyst.spec import TableProfile, from_dict, to_dict

ROWS = [
    ("Nord", "2024-01-05", "12.50", "3"),
    ("Süd, Ost", "2024-02-06", "7.25", "4"),
    ('the "West"', "2024-03-07", "0.10", "5"),
    ("北京", "2024-04-08", "100.00", "6"),
]
HEADER = ("region", "date", "revenue", "units")


def written(path: Path, content: str | bytes, encoding: str = "utf-8") -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def as_text(rows, header=HEADER, *, end: str = "\n", **dialect) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator=end, **dialect)
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


@functools.cache
def a_database() -> Any:
    """One for all files that are read once: opening one takes as long as reading the file."""
    return duckdb.connect(config={"threads": 1})


def loaded(path: Path, **options) -> tuple[TableProfile, list[Any]]:
    connection = a_database()
    profile = data.load(path, database=connection, **options)
    rows = connection.execute(f'SELECT * FROM "{profile.table}"').fetchall()
    connection.execute(f'DROP TABLE "{profile.table}"')
    assert connection.execute("SHOW ALL TABLES").fetchall() == []
    return profile, rows


def column_of(tmp_path: Path, values: list[str], name: str = "x") -> Any:
    """One column (beside a text column that keeps lines from being blank), its values and its notes."""
    path = written(tmp_path / "c.csv", as_text([(v, "t") for v in values], (name, "label"), quoting=csv.QUOTE_ALL))
    profile, rows = loaded(path)
    return profile.column(name), [r[0] for r in rows], {n.code for n in profile.notes if n.column == name}


# --- dialects and encodings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delimiter", "quoting", "end"),
    [
        (",", csv.QUOTE_ALL, "\n"),
        (";", csv.QUOTE_MINIMAL, "\r\n"),
        ("\t", csv.QUOTE_MINIMAL, "\n"),
        ("|", csv.QUOTE_ALL, "\r\n"),
    ],
)
def test_delimiters_quotes_and_line_ends_are_recognised(tmp_path, delimiter, quoting, end):
    path = written(tmp_path / "a.csv", as_text(ROWS, delimiter=delimiter, quoting=quoting, end=end))
    profile, rows = loaded(path)
    assert [(r[0], r[1].isoformat(), f"{r[2]:.2f}", str(r[3])) for r in rows] == ROWS
    assert [c.role for c in profile.columns] == ["category", "time", "number", "number"]
    assert profile.time_column == "date"


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("utf-8", "UTF-8"),
        ("utf-8-sig", "byte order mark"),
        ("utf-16", "UTF-16"),
        ("utf-16-le", "little endian"),
        ("utf-16-be", "big endian"),
        ("gb18030", "GB18030"),
    ],
)
def test_encodings_are_recognised_and_said(tmp_path, encoding, said):
    rows = [
        ("北京", "2024-01-05", "12.5", "3"),
        ("上海浦东新区", "2024-02-06", "7", "4"),
        ("广州市", "2024-03-07", "9", "5"),
    ]
    path = written(tmp_path / "a.csv", as_text(rows, ("地区", "日期", "销售额", "数量")), encoding)
    profile, found = loaded(path)
    assert [r[0] for r in found] == [r[0] for r in rows]
    assert [c.name for c in profile.columns] == ["地区", "日期", "销售额", "数量"]
    (note,) = [n for n in profile.notes if n.code == "encoding"]
    assert said in note.en


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_western_text_is_not_taken_for_chinese(tmp_path, encoding):
    rows = [("São Paulo", "1"), ("Besançon", "2"), ("Málaga", "3"), ("Köln", "4"), ("Århus", "5")]
    profile, found = loaded(written(tmp_path / "a.csv", as_text(rows, ("Città", "n")), encoding))
    assert [r[0] for r in found] == [r[0] for r in rows]
    assert profile.columns[0].name == "Città"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [("регион,сумма\nМосква,5\nКазань,7\n", "cp1251"), ("地域,数\nとうきょう,5\nおおさか,7\n", "shift-jis")],
)
def test_an_encoding_that_is_not_known_is_refused_and_can_be_given(tmp_path, text, encoding):
    path = written(tmp_path / "a.csv", text, encoding)
    with pytest.raises(DataError) as caught:
        loaded(path)
    assert caught.value.code == "encoding"
    assert caught.value.line == 1
    _, rows = loaded(path, encoding=encoding)
    assert rows[0][0] == text.split("\n")[1].split(",")[0]


def test_a_delimiter_is_not_confused_with_decimal_commas(tmp_path):
    path = written(tmp_path / "a.csv", "stadt;umsatz;menge\nKöln;1.234,50;2\nBonn;7,25;3\nUlm;1.000;4\n")
    profile, rows = loaded(path)
    assert [float(r[1]) for r in rows] == [1234.5, 7.25, 1000]
    assert {n.code for n in profile.notes if n.column == "umsatz"} == {"decimal_comma"}


def test_single_quotes_and_excels_separator_line_are_understood(tmp_path):
    assert loaded(written(tmp_path / "a.csv", "a,b\n'x, y',1\n'z',2\n'u',3\n'w, v',4\n"))[1][0] == ("x, y", 1)
    assert loaded(written(tmp_path / "b.csv", "sep=|\na|b\nx|1\ny|2\n"))[1] == [("x", 1), ("y", 2)]


def test_random_tables_come_back_as_written(tmp_path):
    rng = random.Random(7)
    letters = "abc ,;\"'\n|\té北\\N%"
    for i in range(8):
        rows = [
            ("".join(rng.choice(letters) for _ in range(rng.randint(0, 6))) + "x", str(rng.randint(-99, 99)), f"k{n}")
            for n in range(rng.randint(1, 30))
        ]
        path = written(tmp_path / f"r{i}.csv", as_text(rows, ("text", "n", "k"), quoting=rng.choice([0, 1])))
        _, found = loaded(path, delimiter=",")
        assert [(r[0], str(r[1]), r[2]) for r in found] == [(t.strip(), n, k) for t, n, k in rows]


# --- what columns are ------------------------------------------------------------------------------------------------


NUMBERS = (
    (["1,234.50", "5"], [1234.5, 5], None),
    (["1.234,5", "7"], [1234.5, 7], None),
    (["1 234", "5"], [1234, 5], None),
    (["1\u00a0234,75", "5,5"], [1234.75, 5.5], None),
    (["$5", "-$1,200.10", "$-3"], [5, -1200.1, -3], "$"),
    (["¥1,234.5", "￥3"], [1234.5, 3], "¥"),
    (["5 €", "6,50 €"], [5, 6.5], "€"),
    (["300元", "20.5元"], [300, 20.5], "元"),
    (["12 %", "3.5%"], [12, 3.5], "%"),
    (["2184万", "4.5万"], [2184, 4.5], "万"),
    (["(300)", "20"], [-300, 20], None),
    (["−5", "+3"], [-5, 3], None),
    (["1e5", "2.5E-3"], [100000, 0.0025], None),
    (["", "3", "-", "NA"], [None, 3, None, None], None),
    (["1.234.567", "2"], [1234567, 2], None),
    ([".5", "1."], [0.5, 1], None),
    (["999999999999999999", "1"], [999999999999999999, 1], None),
    (["0.000000001", "12345678901.5"], [1e-9, 12345678901.5], None),
)


def side_by_side(tmp_path: Path, cases: list[list[str]], name: str) -> tuple[TableProfile, list[Any]]:
    """All cases as columns of one file, shorter ones filled up with blanks; the profile and each column's values."""
    longest = max(map(len, cases))
    rows = [[case[i] if i < len(case) else "" for case in cases] for i in range(longest)]
    header = [f"{name} {i}" for i in range(len(cases))]
    profile, found = loaded(written(tmp_path / "c.csv", as_text(rows, header, quoting=csv.QUOTE_ALL)))
    return profile, [[row[i] for row in found][: len(case)] for i, case in enumerate(cases)]


def test_numbers_written_as_text_are_read(tmp_path):
    profile, found = side_by_side(tmp_path, [values for values, _, _ in NUMBERS], "x")
    for (values, expected, unit), column, got in zip(NUMBERS, profile.columns, found, strict=True):
        assert column.role == "number", values
        assert [None if v is None else float(v) for v in got] == [None if e is None else float(e) for e in expected]
        assert (column.unit, values) == (unit, values)


TEXTS = (
    (["007", "012"], "leading_zeros"),
    (["$5", "€7"], "mixed_currencies"),
    (["5%", "7"], "mixed_percent"),
    (["12345678901234567890", "1"], "long_numbers"),
    (["1.2万", "9800"], "mixed_scales"),
    (["12", "13", "14", "about 15"], "not_all_numbers"),
    (["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04", "2024-02-30"], "not_all_dates"),
)


def test_what_cannot_be_read_as_a_whole_stays_text_and_that_is_said(tmp_path):
    profile, found = side_by_side(tmp_path, [values for values, _ in TEXTS], "x")
    for (values, code), column, got in zip(TEXTS, profile.columns, found, strict=True):
        assert column.role in {"category", "identifier"}
        assert got == values
        assert code in {n.code for n in profile.notes if n.column == column.name}


def test_missing_marks_count_as_missing_in_numbers_but_are_values_in_text(tmp_path):
    column, _, codes = column_of(tmp_path, ["NA", "n/a", "7", "8"])
    assert (column.nulls, codes) == (2, {"missing"})
    column, found, codes = column_of(tmp_path, ["NA", "DE", "FR", "NA"], "country")
    assert (column.nulls, found[0], codes) == (0, "NA", set())


def test_an_ambiguous_thousands_mark_follows_the_other_columns_or_is_noted(tmp_path):
    path = written(tmp_path / "a.csv", "k;a;b\nx;1.234;1,5\ny;2.500;2,25\n")
    assert [float(r[1]) for r in loaded(path)[1]] == [1234, 2500]
    column, found, codes = column_of(tmp_path, ["1,234", "2,500"])
    assert ([int(v) for v in found], codes, column.type) == ([1234, 2500], {"number_style"}, "BIGINT")


DATES = (
    (["2024-01-05", "2024/2/6", "2024.03.07"], ["2024-01-05", "2024-02-06", "2024-03-07"], "day"),
    (["2024-01-05 00:00:00", "2024-01-06 00:00:00"], ["2024-01-05", "2024-01-06"], "day"),
    (["2024-01-05T10:30:00Z", "2024-01-05 11:00"], ["2024-01-05T10:30:00", "2024-01-05T11:00:00"], "hour"),
    (["13/4/2024", "3/4/2024"], ["2024-04-13", "2024-04-03"], "day"),
    (["4/13/2024", "4/3/2024"], ["2024-04-13", "2024-04-03"], "day"),
    (["13.04.24", "03.04.24"], ["2024-04-13", "2024-04-03"], "day"),
    (["1/2/2024", "1/3/2024", "1/4/2024"], ["2024-02-01", "2024-03-01", "2024-04-01"], "month"),
    (["1/1/2024", "2/1/2024", "3/1/2024"], ["2024-01-01", "2024-02-01", "2024-03-01"], "month"),
    (["4/13/24 5:06 PM", "4/3/24 5:06 AM"], ["2024-04-13T17:06:00", "2024-04-03T05:06:00"], "hour"),
    (["2024年3月", "2024年11月"], ["2024-03-01", "2024-11-01"], "month"),
    (["2024年3月5日", "2024年11月15日"], ["2024-03-05", "2024-11-15"], "day"),
    (["2024年第3季度", "2024年一季度"], ["2024-07-01", "2024-01-01"], "quarter"),
    (["2024-Q3", "2023q1"], ["2024-07-01", "2023-01-01"], "quarter"),
    (["Q3 2024", "Q1 2023"], ["2024-07-01", "2023-01-01"], "quarter"),
    (["2024-03", "2023-12"], ["2024-03-01", "2023-12-01"], "month"),
    (["03/2024", "12/2023"], ["2024-03-01", "2023-12-01"], "month"),
    (["20240305", "20231231"], ["2024-03-05", "2023-12-31"], "day"),
    (["5 Mar 2024", "15 March 2024"], ["2024-03-05", "2024-03-15"], "day"),
    (["March 5, 2024", "Mar 12th, 2024"], ["2024-03-05", "2024-03-12"], "day"),
    (["Mar 2024", "January 2023"], ["2024-03-01", "2023-01-01"], "month"),
    (["Jan-24", "Feb-24"], ["2024-01-01", "2024-02-01"], "month"),
    (["2024-W05", "2024-W06"], ["2024-01-29", "2024-02-05"], "week"),
    (["2023年", "2024年"], ["2023-01-01", "2024-01-01"], "year"),
)


def test_dates_written_as_text_are_read(tmp_path):
    profile, found = side_by_side(tmp_path, [values for values, _, _ in DATES], "date")
    for (values, expected, grain), column, got in zip(DATES, profile.columns, found, strict=True):
        assert (column.role, column.grain, values) == ("time", grain, values)
        assert [v.isoformat() for v in got] == expected


def test_the_order_of_day_and_month_is_noted(tmp_path):
    assert "day_month" in column_of(tmp_path, ["13/4/2024", "3/4/2024"])[2]
    assert "day_month_open" in column_of(tmp_path, ["1/2/2024", "5/3/2024"])[2]


@pytest.mark.parametrize(
    ("header", "rows", "expected"),
    [
        (("year", "month", "v"), [("2023", "1", "5"), ("2024", "12", "6")], ("date", "2023-01-01", "month")),
        (("Year", "Month", "v"), [("2023", "January", "5"), ("2024", "Dec", "6")], ("date", "2023-01-01", "month")),
        (("年", "月", "v"), [("2023", "1月", "5"), ("2024", "12月", "6")], ("日期", "2023-01-01", "month")),
        (
            ("year", "month", "day", "v"),
            [("2023", "2", "3", "5"), ("2024", "12", "31", "6")],
            ("date", "2023-02-03", "day"),
        ),
        (("year", "quarter", "v"), [("2023", "Q2", "5"), ("2024", "Q4", "6")], ("date", "2023-04-01", "quarter")),
        (("year", "v"), [("2023", "5"), ("2024", "6")], ("year", "2023-01-01", "year")),
    ],
)
def test_parts_of_a_date_make_a_date(tmp_path, header, rows, expected):
    profile, _ = loaded(written(tmp_path / "a.csv", as_text(rows, header)))
    name, first, grain = expected
    assert profile.time_column == name
    assert (profile.column(name).minimum, profile.column(name).grain) == (first, grain)


def test_roles_and_additivity_follow_names_units_and_values(tmp_path):
    header = (
        "order_id",
        "customer",
        "unit price",
        "revenue",
        "conversion_rate",
        "share",
        "temp",
        "rating",
        "hours",
        "note",
        "row",
    )
    rng = random.Random(3)
    rows = [
        (
            i * 7919 % 100000,
            rng.choice("ABC"),
            i + 0.5,
            i * 10,
            f"{i % 50}%",
            f"0.{i:03d}",
            i % 30,
            i % 5,
            i % 9,
            "word " * 20 + str(i),
            i,
        )
        for i in range(1, 200)
    ]
    profile, _ = loaded(written(tmp_path / "a.csv", as_text(rows, header)))
    roles = {c.name: c.role for c in profile.columns}
    numbers = ["unit price", "revenue", "conversion_rate", "share", "temp", "rating", "hours"]
    expected = {"order_id": "identifier", "customer": "category", "note": "text", "row": "identifier"}
    assert roles == expected | dict.fromkeys(numbers, "number")
    assert {c.name for c in profile.columns if c.role == "number" and c.additive} == {"revenue", "hours"}
    assert profile.column("customer").values_complete
    assert set(profile.column("customer").values) == set("ABC")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("arrDelay_min", ["arr", "delay", "min"]), ("HTTPStatus", ["http", "status"]), ("销售额", [])],
)
def test_names_fall_into_words(name, expected):
    assert names.words(name) == expected


@pytest.mark.parametrize(
    "name",
    ["Temperatur", "Außentemperatur", "Einzelpreis", "precio", "nota", "Verspätung", "température", "Ausschussquote"],
)
def test_what_cannot_be_added_is_known_in_other_languages(name):
    assert names.is_not_additive(name)
    assert not names.is_not_additive("Umsatz")


def test_german_names_of_numbers_that_tell_rows_apart_and_of_dates_are_known(tmp_path):
    lines = "".join(f"{2020 + i // 12};{i % 12 + 1};{4000 + i % 7};{i},5\n" for i in range(48))
    profile, _ = loaded(written(tmp_path / "a.csv", "Jahr;Monat;Kundennummer;Temperatur\n" + lines))
    assert profile.column("Kundennummer").role == "identifier"
    assert profile.time_column is not None
    assert not profile.column("Temperatur").additive


@pytest.mark.parametrize(
    ("name", "dates", "first"),
    [
        ("Datum", ["05.03.2025", "06.03.2025", "07.04.2025", "08.03.2025"], "2025-03-05"),
        ("when", ["05.03.2025", "06.03.2025", "07.04.2025", "08.03.2025"], "2025-03-05"),  # dots: day first
        ("Fecha", ["05/03/2025", "06/03/2025", "07/04/2025", "08/03/2025"], "2025-03-05"),
        ("when", ["1/2/2025", "1/3/2025", "1/4/2025"], "2025-02-01"),  # firsts of months
        ("when", ["1/2/2025", "3/4/2025", "5/6/2025"], "2025-01-02"),
    ],
)
def test_dots_and_the_language_of_a_name_say_that_the_day_comes_first(tmp_path, name, dates, first):
    profile, _ = loaded(written(tmp_path / "a.csv", f"{name};n\n" + "".join(f"{d};1\n" for d in dates)))
    assert profile.column(name).minimum == first


def test_short_columns_of_small_numbers_are_amounts_and_an_index_without_a_name_is_not(tmp_path):
    profile, _ = loaded(
        written(tmp_path / "a.csv", ",x,card\n0,1,4111111111111111\n1,2,5500000000000004\n2,3,4012888888881881\n")
    )
    assert [c.role for c in profile.columns] == ["identifier", "number", "identifier"]


def test_blank_rows_are_left_out_and_noted(tmp_path):
    profile, rows = loaded(written(tmp_path / "a.csv", "a,b\n1,x\n,\n2,y\n,\n"))
    assert rows == [(1, "x"), (2, "y")]
    assert "blank_rows" in {n.code for n in profile.notes}


def test_units_in_a_name_are_taken_apart(tmp_path):
    profile, _ = loaded(written(tmp_path / "a.csv", "销售额（万元）,Weight [kg],GDP(亿元)\n5,6,4.4万\n7,8,4.7万\n"))
    units = [(c.unit, c.aliases) for c in profile.columns]
    assert units == [("万元", ("销售额",)), ("kg", ("Weight",)), ("万亿元", ("GDP",))]


def test_names_are_made_unique_and_gaps_in_the_header_filled(tmp_path):
    profile, _ = loaded(written(tmp_path / "a.csv", "a,A,a,,b ,\n1,2,3,4,5,\n6,7,8,9,0,\n"))
    assert [c.name for c in profile.columns] == ["a", "A_2", "a_3", "column_4", "b"]
    assert {n.code for n in profile.notes} >= {"renamed", "unnamed"}


def test_categories_keep_their_most_frequent_values_up_to_a_bound(tmp_path):
    rows = [(f"v{i % 1500}", "x") for i in range(3200)]
    profile, _ = loaded(written(tmp_path / "a.csv", as_text(rows, ("k", "y"))))
    column = profile.column("k")
    assert (len(column.values), column.values_complete, column.distinct) == (1000, False, 1500)
    assert set(column.values) <= {f"v{i}" for i in range(200)} | {f"v{i}" for i in range(200, 1500)}
    assert column.values[0] in {f"v{i}" for i in range(200)}


def test_profiles_survive_json(tmp_path):
    profile, _ = loaded(written(tmp_path / "a.csv", as_text(ROWS)))
    assert from_dict(TableProfile, to_dict(profile)) == profile


# --- parquet ---------------------------------------------------------------------------------------------------------


def test_parquet_is_recognised_by_content_and_its_nan_is_missing(tmp_path):
    path = tmp_path / "p.csv"  # the wrong suffix on purpose
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT * FROM (VALUES "
            "(' a ', 1.5::DOUBLE, DATE '2024-01-01', [1, 2], TIMESTAMPTZ '2024-01-01 10:00:00+00', 1), "
            "('b', 'nan'::DOUBLE, DATE '2024-01-02', [3], NULL, 2), ('a', 'inf'::DOUBLE, NULL, NULL, NULL, 3)) "
            f"t(k, x, d, l, z, line)) TO '{path}' (FORMAT parquet)"
        )
    profile, rows = loaded(path)
    assert [(r[0], r[1], r[2]) for r in rows] == [
        ("a", 1.5, dt.date(2024, 1, 1)),
        ("b", None, dt.date(2024, 1, 2)),
        ("a", None, None),
    ]
    assert {"nan", "utc"} <= {n.code for n in profile.notes}
    assert profile.column("l").role in {"text", "category"}
    assert profile.column("line").nulls == 0


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (b"", "empty", None),
        (b"\n \n\r\n", "empty", None),
        (b"\xef\xbb\xbf", "empty", None),
        (b"a,b,c\n", "header_only", None),
        (b"a,b,c\n1,2,3\n4,5\n", "broken_rows", 3),
        (b'a,b\n"x\ny",2\n3,4,5\n', "broken_rows", 4),
        (b'a,b\n1,2\n"never closed,3\n4,5\n', "broken_rows", 3),
        (b'a,b\n1,2\n"x"y,3\n', "broken_rows", 3),
        (b"a,b\nabc,1\n\xe4\xb8\xad\xe6\x96\x87,2\nd\xffef,3\n", "encoding", 4),
        (b"a,b\x00\x01\x02\x00\n1,2\n", "binary", None),
        (bytes(range(256)) * 20, "binary", None),
        (b"PK\x03\x04" + b"x" * 50, "binary", None),
        (b"\x1f\x8b\x08" + b"x" * 50, "binary", None),
        (b"PAR1" + b"x" * 50 + b"PAR1", "broken", None),
        (b"2024-01-01,5.5\n2024-01-02,6.5\n", "no_header", 1),
        (b"1.5,2\n3.5,4\n", "no_header", 1),
        (b"1,2\n3,4\n", "no_header", 1),
        (b"Sales report,,\n,,\nregion,month,revenue\nNorth,2024-01,5\n", "no_header", 1),
        (b"a,b\n,\n , \n", "header_only", None),
        ((",".join(f"c{i}" for i in range(2001)) + "\n").encode(), "too_wide", 1),
    ],
)
def test_bad_files_are_refused_with_a_code_and_the_line(tmp_path, content, code, line):
    path = written(tmp_path / "bad.csv", content)
    target = tmp_path / "out" / "d.duckdb"
    target.parent.mkdir()
    with pytest.raises(DataError) as caught:
        data.load(path, database=target)
    assert (caught.value.code, caught.value.line, caught.value.path) == (code, line, str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(target.parent.iterdir()) == []


def test_what_is_no_file_is_refused(tmp_path):
    assert refusal(tmp_path / "nothing.csv") == "missing"
    assert refusal(tmp_path) == "directory"
    assert refusal(Path("/dev/zero")) == "unreadable"
    assert refusal(Path("a\0b")) == "missing"
    assert refusal(written(tmp_path / "big.csv", "a,b\n1,2\n"), max_bytes=4) == "too_large"
    assert refusal(written(tmp_path / "c.csv", "a,b\n1,2\n"), encoding="klingon") == "encoding"


def refusal(path: Path, **options) -> str:
    with pytest.raises(DataError) as caught:
        loaded(path, **options)
    return caught.value.code


def test_broken_rows_are_dropped_only_when_asked_and_that_is_noted(tmp_path):
    path = written(tmp_path / "a.csv", "a,b\n1,2\n3\n4,5\n6,7,8\n")
    profile, rows = loaded(path, broken_rows="drop")
    assert rows == [(1, 2), (4, 5)]
    (note,) = [n for n in profile.notes if n.code == "rows_dropped"]
    assert "2 rows" in note.en
    assert "line 3" in note.en


# --- once, and all or nothing ----------------------------------------------------------------------------------------


def test_a_file_is_loaded_once_for_each_of_its_states(tmp_path):
    path, cache = written(tmp_path / "a.csv", as_text(ROWS)), tmp_path / "cache"
    steps: list[tuple[int, int]] = []
    first = data.load_cached(path, cache=cache, progress=lambda done, total: steps.append((done, total)))
    assert steps == sorted(steps)
    assert steps[-1] == (100, 100)
    before = first.database.stat().st_mtime_ns
    assert data.load_cached(path, cache=cache) == first
    assert first.database.stat().st_mtime_ns == before
    for n in range(4):
        written(path, as_text(ROWS * (n + 2)))
        os.utime(path, ns=(10**9 * n, 10**9 * n))
        newest = data.load_cached(path, cache=cache)
        assert newest.profile.rows == len(ROWS) * (n + 2)
    assert len(list(cache.glob("*.duckdb"))) == data.KEPT
    assert len(list(cache.iterdir())) == 2 * data.KEPT


def test_a_damaged_profile_is_made_again(tmp_path):
    path, cache = written(tmp_path / "a.csv", as_text(ROWS)), tmp_path / "cache"
    first = data.load_cached(path, cache=cache)
    first.database.with_suffix(".json").write_text("{")
    assert data.load_cached(path, cache=cache).profile.columns == first.profile.columns


class Enough(Exception):
    pass


@pytest.mark.parametrize("stop", [0, 60, 65, 80, 100])
def test_a_load_that_is_ended_leaves_nothing(tmp_path, stop):
    path, cache = written(tmp_path / "a.csv", as_text(ROWS * 3000)), tmp_path / "cache"

    def end(done: int, total: int) -> None:
        if done >= stop:
            raise Enough

    with pytest.raises(Enough):
        data.load_cached(path, cache=cache, progress=end)
    assert list(cache.iterdir()) == []


def test_what_a_killed_load_left_is_removed_by_a_later_one(tmp_path):
    path, cache = written(tmp_path / "a.csv", as_text(ROWS)), tmp_path / "cache"
    cache.mkdir()
    old, fresh = cache / "x.duckdb.1-ab.part", cache / "y.duckdb.2-cd.part"
    for left in (old, fresh):
        left.write_bytes(b"half")
    hour_ago = time.time() - 2 * data.STALE
    os.utime(old, (hour_ago, hour_ago))
    data.load_cached(path, cache=cache)
    assert not old.exists()
    assert fresh.exists()  # it may be another process at work


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = written(tmp_path / "a.csv", as_text(ROWS))

    def touch(done: int, total: int) -> None:
        os.utime(path, ns=(1, 1))

    with pytest.raises(DataError) as caught:
        data.load(path, database=tmp_path / "d.duckdb", progress=touch)
    assert caught.value.code == "changed"
    assert not (tmp_path / "d.duckdb").exists()


def test_table_names_are_made_of_any_language(tmp_path):
    assert [data.table_name(Path(n)) for n in ("sales 2024.csv", "销售-数据.csv", "2024.csv", "---.csv")] == [
        "sales_2024", "销售_数据", "t_2024", "data"]  # fmt: skip
    profile, rows = loaded(written(tmp_path / 'a "b"; drop.csv', 'x"y,z\n1,2\n'))
    assert (profile.table, profile.columns[0].name, rows) == ("a_b_drop", 'x"y', [(1, 2)])


def test_the_first_wrong_byte_is_found_in_any_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(sniff, "SAMPLE", 7)
    text = "a,b\n" + "中文字,1\n" * 5
    raw = text.encode() + b"x\xff,2\n"
    assert sniff._first_not_utf8(written(tmp_path / "a.csv", raw)) == (7, 0xFF)
    assert sniff._first_not_utf8(written(tmp_path / "b.csv", text)) is None
