"""Pictures show what they should on any machine: whole, with Chinese glyphs, the same every time, from any thread."""

import datetime as dt
import io
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.lazy import Lazy

from failsoft.examples.analyst import wording
from failsoft.examples.analyst.anomaly import Judgement, unusual, unusual_points
from failsoft.examples.analyst.compare import changes
from failsoft.examples.analyst.query import Result, ResultColumn
from failsoft.examples.analyst.spec import Column, Group, Measure, Period, Query, TableProfile

chart = Lazy("failsoft.examples.analyst.chart")
agg = Lazy("matplotlib.backends.backend_agg")
figures = Lazy("matplotlib.figure")
fonts = Lazy("matplotlib.font_manager")
images = Lazy("PIL.Image")

pytestmark = pytest.mark.may_block(reason="nothing here runs on a loop, and the font is read in pieces")

ALERT = (0xD9, 0x48, 0x0F)


def result(
    values: dict[Any, Any], *, grain: Any = None, unit: str | None = None, period: Period | None = None
) -> Result:
    keys = [k if isinstance(k, tuple) else (k,) for k in values]
    width = len(keys[0]) if keys else 1
    groups = [ResultColumn(f"g{i}", "group", f"g{i}") for i in range(width - bool(grain))]
    groups += [ResultColumn("d", "group", "d", grain)] if grain else []
    asked = Query("t", Measure("sum", "x"), tuple(Group(c.name, c.grain) for c in groups), period=period)
    return Result(
        columns=(*groups, ResultColumn("x", "value", "x", aggregate="sum", unit=unit)),
        rows=tuple((*k, v) for k, v in zip(keys, values.values(), strict=True)),
        counts=(1,) * len(values), total=0, row_count=len(values), missing=0, groups=len(values), truncated=False,
        sql="", parameters=(), table="t", source="", executed_at="", query=asked,
    )  # fmt: skip


def pixels(png: bytes) -> Any:
    return np.asarray(images.open(io.BytesIO(png)).convert("RGB"))


def has_color(png: bytes, color: tuple[int, int, int]) -> bool:
    return bool((np.abs(pixels(png).astype(int) - np.array(color)).sum(axis=2) < 12).sum() > 40)


def border_is_blank(image: Any) -> bool:
    edges = (image[:2], image[-2:], image[:, :2], image[:, -2:])
    return all((edge == 255).all() for edge in edges)


def ink_of(text: str) -> Any:
    """The pixels of a text in the chart's font."""
    figure = figures.Figure(figsize=(1, 0.6), dpi=100)
    agg.FigureCanvasAgg(figure)
    figure.text(
        0.1, 0.3, text, fontproperties=fonts.FontProperties(fname=str(chart.font_path()), size=24), parse_math=False
    )
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return pixels(out.getvalue())


def test_chinese_glyphs_are_real_and_different():
    tofu = ink_of("\U000f1234") if 0xF1234 in chart._glyphs() else None
    assert tofu is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        missing = ink_of("\ue123")  # in no font: what matplotlib draws for a missing glyph
    assert any("missing" in str(w.message) for w in caught)
    drawn = {c: ink_of(c) for c in "收入地区季度对比异常延误航空公司"}
    for c, image in drawn.items():
        assert (image != missing).any(), c
    assert len({image.tobytes() for image in drawn.values()}) == len(drawn)


def test_what_the_font_lacks_becomes_a_box_and_raises_no_warning():
    assert chart.drawable("a\ue123b\nc") == "a□b c"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chart.draw(
            "bar",
            result({"🦆 ขอ عر": 1, "$x$ ^_{}\\": 2}),
            title="🦆 $\\frac{1}{2}$ %s\n{}",
            language="zh",
            source="\ue123",
        )


NOW = Period("d", dt.date(2024, 7, 1), dt.date(2024, 10, 1), "Q3")
BEFORE = Period("d", dt.date(2024, 4, 1), dt.date(2024, 7, 1), "Q2")
CASES: dict[str, Any] = {
    "one": ("bar", result({"a": 5})),
    "negative": ("bar", result({"a": -5, "b": -0.25, "c": -1e6})),
    "mixed": ("bar", result({"a": -5, "b": 7, "c": 0})),
    "zero": ("bar", result({"a": 0, "b": 0})),
    "missing": ("bar", result({"a": None, "b": math.nan, "c": 3, None: 4})),
    "fifty": ("bar", result({f"{'very ' * 9}long label {i} (C{i})": i * 1e9 for i in range(50)})),
    "too many": ("bar", result({f"城市{i}": 100.0 - i for i in range(70)})),
    "tiny": ("bar", result({"a": 1e-7, "b": 3e-7}, unit="%")),
    "two groups": ("bar", result({("a", "x"): 1, ("a", "y"): 2, ("b", "x"): 3})),
    "columns": ("bar", result({f"2024-{m:02d}": m * 1000.5 for m in range(1, 13)}, grain="month", unit="$")),
    "weekdays": ("bar", result({d: d * 3 for d in range(1, 8)}, grain="weekday")),
    "line": ("line", result({f"2024-{m:02d}": m for m in range(1, 13)}, grain="month")),
    "gaps": ("line", result({"2024-01": 1, "2024-02": None, "2024-03": 2, "2024-12": 4, None: 9}, grain="month")),
    "one point": ("line", result({"2024-01": 1}, grain="month")),
    "many lines": ("line", result({(g, f"202{m}"): g * m - 9 for g in range(12) for m in range(9)}, grain="year")),
    "long line": ("line", result({f"{1950 + i}": 999 + i % 7 for i in range(90)}, grain="year")),
    "hours": ("line", result({h: (h - 12) ** 2 for h in range(24)}, grain="hour_of_day")),
    "line without time": ("line", result({"a": 1, "b": 2})),
    "compare": ("compare", changes(result({"a": 5, "b": -3, "c": 0, "new": 4}, period=NOW),
                                   result({"a": 4, "b": 6, "c": 0, "gone": 1}, period=BEFORE))),
    "compare whole": ("compare", changes(result({(): 5}, period=NOW), result({(): 4}, period=BEFORE))),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_every_shape_of_data_gives_a_whole_picture(case):
    kind, data = CASES[case]
    png = chart.draw(kind, data, title="A title for this picture", source="somewhere")
    assert png.startswith(b"\x89PNG")
    image = pixels(png)
    assert border_is_blank(image)
    assert (image != 255).any()


@pytest.mark.parametrize(
    "data", [result({}), result({"a": None}), result({"a": math.nan}), changes(result({}), result({}))]
)
def test_no_data_gives_a_small_picture_that_says_so(data):
    png = chart.draw("bar", data, title="Nothing")
    assert pixels(png).shape[0] < 400
    assert png != chart.draw("bar", data, title="Nothing", language="zh")


def test_the_same_input_gives_the_same_bytes_from_any_thread():
    kind, data = CASES["compare"]
    first = chart.draw(kind, data, title="对比", language="zh")
    with ThreadPoolExecutor(4) as threads:
        drawn = list(threads.map(lambda _: chart.draw(kind, data, title="对比", language="zh"), range(4)))
    assert set(drawn) == {first}


def test_what_is_unusual_stands_out():
    left, right = result({**dict.fromkeys("abcdef", 100), "g": 300}), result(dict.fromkeys("abcdefg", 99))
    compared = changes(left, right)
    marked = chart.draw("compare", compared, title="t", judgement=unusual(compared))
    assert has_color(marked, ALERT)
    assert not has_color(chart.draw("compare", compared, title="t"), ALERT)
    line = result({f"2024-{m:02d}": 100 + m % 3 + 80 * (m == 6) for m in range(1, 13)}, grain="month")
    assert has_color(chart.draw("line", line, title="t", judgement=unusual_points(line)), ALERT)
    assert not has_color(chart.draw("line", line, title="t", judgement=Judgement(False, "value")), ALERT)


# --- wording ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "language", "expected"),
    [
        (1234567, None, "en", "1,234,567"),
        (1234.5, None, "en", "1,234.5"),
        (-1234.567, "$", "en", "−$1,234.57"),
        (0.012345, None, "en", "0.0123"),
        (12.34, "%", "en", "12.34%"),
        (1, "minutes", "en", "1 minute"),
        (12.6, "minutes", "en", "12.6 minutes"),
        (12.6, "minutes", "zh", "12.6 分钟"),
        (300, "元", "zh", "300 元"),
        (0, "$", "en", "$0"),
        (-0.001, None, "en", "−0.001"),
        (None, "$", "en", "–"),
        (math.nan, None, "en", "–"),
        (10**20, None, "en", "100,000,000,000,000,000,000"),
    ],
)
def test_numbers_are_written_for_people(value, unit, language, expected):
    assert wording.number(value, unit, language) == expected


def test_signs_and_percentages():
    assert [wording.number(v, signed=True) for v in (5, -5, 0)] == ["+5", "−5", "0"]
    assert [wording.percent(v) for v in (0.0549, -0.12, 0, -0.0001, 25.5, None)] == [
        "+5.5%",
        "−12.0%",
        "0.0%",
        "0.0%",
        "+2,550%",
        "–",
    ]


def test_columns_groups_and_values_have_names_in_both_languages():
    delay = Column("dep_delay", "number", "INTEGER", aliases=("departure delay", "起飞延误"), unit="minutes")
    carrier = Column("carrier", "category", "VARCHAR", labels={"UA": "United"})
    profile = TableProfile("flights", 1, (delay, carrier), row_noun="flight")
    assert wording.measure_title(Measure("mean", "dep_delay"), profile, "en") == "average departure delay"
    assert wording.measure_title(Measure("mean", "dep_delay"), profile, "zh") == "平均起飞延误"
    assert wording.measure_title(Measure("count"), profile, "zh") == "航班数"
    assert wording.key_label(("UA", 1), [("carrier", None), ("t", "weekday")], profile, "en") == "United (UA) · Monday"
    assert wording.key_label((None, 3), [("carrier", None), ("t", "month_of_year")], profile, "zh") == "（空） · 3月"
    assert wording.column_title(None, "unit_price", "en") == "unit price"
    assert [wording.plural(w) for w in ("flight", "box", "city", "day")] == ["flights", "boxes", "cities", "days"]
