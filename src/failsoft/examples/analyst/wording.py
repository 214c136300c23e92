"""How numbers, units, groups, periods and measures are written for people, in English and Chinese."""

# ruff: noqa: E501 - lists of words read better in long lines
from __future__ import annotations

import math
from collections.abc import Sequence

from failsoft.examples.analyst.spec import Column, Grain, Measure, Scalar, TableProfile

_UNITS_ZH = {
    "minutes": "分钟",
    "minute": "分钟",
    "hours": "小时",
    "seconds": "秒",
    "days": "天",
    "miles": "英里",
    "km": "公里",
}
_BEFORE = ("$", "€", "£", "¥", "US$", "HK$", "R$", "₹", "₩")
WEEKDAYS = (
    ("Monday", "周一"),
    ("Tuesday", "周二"),
    ("Wednesday", "周三"),
    ("Thursday", "周四"),
    ("Friday", "周五"),
    ("Saturday", "周六"),
    ("Sunday", "周日"),
)
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_GRAINS = {
    "hour": ("hour", "小时"), "day": ("day", "日"), "week": ("week", "周"), "month": ("month", "月"), "quarter": ("quarter", "季度"),
    "year": ("year", "年"), "weekday": ("weekday", "星期"), "month_of_year": ("month of the year", "月份"),
    "hour_of_day": ("hour of the day", "钟点"),
}  # fmt: skip
_NOUNS_ZH = {"flight": "航班", "row": "记录", "order": "订单", "sale": "销售", "customer": "客户", "trip": "行程"}
_AGGREGATES = {
    "sum": ("total {}", "{}合计"), "mean": ("average {}", "平均{}"), "median": ("median {}", "{}中位数"), "min": ("lowest {}", "最低{}"),
    "max": ("highest {}", "最高{}"), "count": ("number of {} values", "{}个数"), "count_distinct": ("number of different {}", "不同{}的个数"),
}  # fmt: skip


def pick(language: str, en: str, zh: str) -> str:
    """The text in the language (``zh``, otherwise English)."""
    return zh if language == "zh" else en


def number(
    value: Scalar, unit: str | None = None, language: str = "en", *, signed: bool = False, decimals: int | None = None
) -> str:
    """A number with thousands separators and its unit; ``–`` for None.

    `decimals` fixes the decimals, for numbers that stand in one column; otherwise at most two are given (below 1:
    three digits).
    """
    if value is None or isinstance(value, bool | str):
        return "–" if value is None else str(value)
    text = _digits(abs(value)) if decimals is None or not math.isfinite(value) else f"{abs(value):,.{decimals}f}"
    if unit in _BEFORE:
        text = f"{unit}{text}"
    sign = "" if value == 0 or not any(c in "123456789" for c in text) else "−" if value < 0 else "+" if signed else ""
    return f"{sign}{text}{_after(unit, value, language)}"


def decimals(values: Sequence[Scalar], *, brief: bool = False) -> int:
    """The decimals that numbers of one column share: none for whole ones, otherwise two, or more when all are small.

    `brief` leaves decimals away that large numbers do not need in a picture.
    """
    sizes = [abs(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    if not sizes or all(size == int(size) for size in sizes):
        return 0
    largest = max(sizes)
    if largest < 1:
        return min(8, 2 - math.floor(math.log10(largest)))
    return (0 if largest >= 1000 else 1 if largest >= 100 else 2) if brief else 2


def _digits(size: float) -> str:
    if isinstance(size, int):
        return f"{size:,}"
    if not math.isfinite(size):
        return "–"
    decimals = 2 if size >= 1 else min(8, 2 - math.floor(math.log10(size))) if size else 0
    text = f"{size:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _after(unit: str | None, value: float, language: str) -> str:
    if not unit or unit in _BEFORE:
        return ""
    if unit in {"%", "％", "pp", "‰"}:
        return {"pp": pick(language, " pp", " 个百分点")}.get(unit, unit)
    if language == "zh":
        return f" {_UNITS_ZH.get(unit, unit)}"
    return f" {unit[:-1]}" if value == 1 and unit in _UNITS_ZH and unit.endswith("s") else f" {unit}"


def percent(fraction: float | None, *, signed: bool = True) -> str:
    """A fraction as a percentage: ``+5.5%``, ``−12%``; ``–`` for None."""
    if fraction is None:
        return "–"
    size = abs(fraction) * 100
    text = f"{size:,.0f}" if size >= 1000 else f"{size:.1f}"
    sign = "" if float(text.replace(",", "")) == 0 else "−" if fraction < 0 else "+" if signed else ""
    return f"{sign}{text}%"


def unit_name(unit: str | None, language: str) -> str | None:
    """The unit for an axis or a column head."""
    return _UNITS_ZH.get(unit, unit) if unit and language == "zh" else unit


def _is_chinese(text: str) -> bool:
    return any("\u4e00" <= c <= "\u9fff" for c in text)


def column_title(column: Column | None, name: str, language: str) -> str:
    """What a column is called: its first alias in the language, otherwise its own name without underscores."""
    if column is not None:
        for alias in column.aliases:
            if _is_chinese(alias) == (language == "zh"):
                return alias
        name = column.aliases[0] if column.aliases and not _is_chinese(column.aliases[0]) else column.name
    return name.replace("_", " ")


def _column(profile: TableProfile | None, name: str | None) -> Column | None:
    return next((c for c in profile.columns if c.name == name), None) if profile and name else None


def group_title(name: str, grain: Grain | None, profile: TableProfile | None, language: str) -> str:
    """The head of a grouping column: the period's name for time, otherwise the column's."""
    if grain is not None:
        return pick(language, *_GRAINS[grain])
    return column_title(_column(profile, name), name, language)


def measure_title(measure: Measure, profile: TableProfile | None, language: str) -> str:
    """What is measured: ``average departure delay``, ``航班数``."""
    if measure.column is None:
        noun = profile.row_noun if profile else "row"
        return pick(language, f"number of {plural(noun)}", f"{_NOUNS_ZH.get(noun, noun)}数")
    title = column_title(_column(profile, measure.column), measure.column, language)
    return pick(language, *_AGGREGATES[measure.aggregate]).format(title)


def plural(noun: str) -> str:
    """The English plural of a noun for rows."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"


def rows_of(count: int, profile: TableProfile | None, language: str) -> str:
    """``12 flights``, ``12 条记录``."""
    noun = profile.row_noun if profile else "row"
    if language == "zh":
        return f"{count:,} {'条记录' if noun == 'row' else '个' + _NOUNS_ZH.get(noun, noun)}"
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def value_label(value: Scalar, column: str, grain: Grain | None, profile: TableProfile | None, language: str) -> str:
    """One value of a grouping: with the name people know it by, weekdays and months by name, None as ``(none)``."""
    if value is None:
        return pick(language, "(none)", "（空）")
    if grain == "weekday" and isinstance(value, int) and 1 <= value <= 7:
        return pick(language, *WEEKDAYS[value - 1])
    if grain == "month_of_year" and isinstance(value, int) and 1 <= value <= 12:
        return pick(language, _MONTHS[value - 1], f"{value}月")
    if grain == "hour_of_day" and isinstance(value, int):
        return f"{value:02d}:00"
    known = _column(profile, column)
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    label = known.labels.get(text) if known else None
    return f"{label} ({text})" if label and label != text else text


def key_label(
    key: Sequence[Scalar], groups: Sequence[tuple[str, Grain | None]], profile: TableProfile | None, language: str
) -> str:
    """All values of a group in one text; the whole when there is no grouping."""
    if not key:
        return pick(language, "all", "全部")
    return " · ".join(value_label(v, c, g, profile, language) for v, (c, g) in zip(key, groups, strict=True))
