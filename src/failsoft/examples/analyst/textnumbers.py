"""Numbers written as text: ``1,234.50``, ``1.234,5``, ``1 234``, ``$5``, ``12 %``, ``(300)``.

A column is read as numbers only if every value that is not missing is one; what ``1,234`` means is decided by the
other values of the column, then by the file's other columns, and said in a note when neither decides it. Amounts in
two currencies are never one column of numbers.
"""

# ruff: noqa: S608 - SQL is put together from quoted identifiers and literals; values from outside are bound
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from failsoft.examples.analyst.spec import Note
from failsoft.examples.analyst.textsql import VALUE, literal

_SPACE = r"[ \x{a0}\x{202f}\x{2009}]"
_SIGN = r"[-+−]?"
_CURRENCY = (
    r"(?:US\$|HK\$|R\$|[$€£¥￥₩₹₽]|(?:USD|EUR|GBP|CNY|RMB|JPY|CHF|HKD|INR|KRW|CAD|AUD)\b"
    r"|人民币|美元|万元|亿元|千元|万|亿|元|円|원|kr\b|zł)"
)
_SCALES = {"万元", "亿元", "千元", "万", "亿"}
_MARK = r"[%％]"
_WHOLE_POINT = rf"(?:\d{{1,3}}(?:,\d{{2,3}})*,\d{{3}}|\d{{1,3}}(?:{_SPACE}\d{{3}})+|\d{{1,3}}(?:['’]\d{{3}})+|\d+)"
_WHOLE_COMMA = rf"(?:\d{{1,3}}(?:\.\d{{3}})+|\d{{1,3}}(?:{_SPACE}\d{{3}})+|\d{{1,3}}(?:['’]\d{{3}})+|\d+)"
_POINT = rf"(?:{_WHOLE_POINT}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_COMMA = rf"(?:{_WHOLE_COMMA}(?:,\d+)?|,\d+)(?:[eE][-+]?\d+)?"
_UNIT_NAMES = {"￥": "¥", "RMB": "CNY", "人民币": "CNY"}


def _whole(number: str) -> str:
    before = rf"{_SIGN}{_SPACE}?(?:{_CURRENCY}{_SPACE}?)?{_SIGN}"
    after = rf"{_SPACE}?(?:{_MARK}|{_CURRENCY})?"
    return rf"(?:{before}{number}{after}|\({_SPACE}?(?:{_CURRENCY}{_SPACE}?)?{number}{after}\))"


POINT = _whole(_POINT)
"""A number with a decimal point, for RE2's full match."""
COMMA = _whole(_COMMA)
"""A number with a decimal comma."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was counted in one text column; all counts are of values that are not missing."""

    values: int
    point: int
    comma: int
    percent: int
    currencies: tuple[str, ...]
    with_currency: int
    thousands_only: int
    """Values like ``1,234`` or ``1.234``, which both readings allow."""
    leading_zeros: int
    longest: int
    """Digits of the longest whole number."""

    @property
    def style(self) -> str | None:
        """``point``, ``comma``, ``either`` (no value decides) or None: not numbers."""
        if not self.values:
            return None
        as_point, as_comma = self.point == self.values, self.comma == self.values
        if as_point and as_comma:
            return "either"
        return "point" if as_point else "comma" if as_comma else None


def gather(connection: Any, seen: str) -> Evidence:
    """Count the values of the column in `seen`."""

    def rows(condition: str) -> str:
        return f"coalesce(sum(n) FILTER ({condition}), 0)::BIGINT"

    def match(pattern: str) -> str:
        return rows(f"regexp_full_match(v, {literal(pattern)})")

    percent = f"regexp_matches(v, {literal(_MARK)})"
    currency = f"regexp_extract(v, {literal(_CURRENCY)})"
    priced = f"{currency} <> ''"
    row = connection.execute(
        f"SELECT coalesce(sum(n), 0)::BIGINT, {match(POINT)}, {match(COMMA)}, {rows(percent)}, "
        f"list(DISTINCT {currency}), {rows(priced)}, "
        f"{match('[^0-9]*[1-9][0-9]{0,2}[.,][0-9]{3}[^0-9]*')}, {match('0[0-9]+')}, "
        f"max(length(regexp_replace(regexp_extract(v, '^[0-9]+'), '^0+', ''))) FROM {seen}"
    ).fetchone()
    currencies = tuple(sorted({_UNIT_NAMES.get(c, c) for c in row[4] or () if c}))
    return Evidence(row[0], row[1], row[2], row[3], currencies, row[5], row[6], row[7], row[8] or 0)


def may_be_numbers(connection: Any, seen: str) -> bool:
    """Whether half of the values have a digit: a cheap look before the thorough one."""
    (digits,) = connection.execute(f"SELECT avg(regexp_matches(v, '[0-9]')::INTEGER) FROM {seen}").fetchone()
    return bool(digits is not None and digits >= 0.5)


def plain(connection: Any, seen: str) -> Evidence | None:
    """The evidence of a column of numbers as programs write them, found cheaply; None when there is anything else."""
    simple, values, zeros, longest, fractions = connection.execute(
        f"SELECT bool_and(regexp_full_match(v, '-?[0-9]{{1,18}}(\\.[0-9]+)?')), sum(n)::BIGINT, "
        f"count(*) FILTER (v LIKE '0_%' AND v NOT LIKE '0.%'), "
        f"max(length(v)), count(*) FILTER (v LIKE '%.%') FROM {seen}"
    ).fetchone()
    open_ones = (
        fractions
        and connection.execute(
            f"SELECT bool_and(regexp_full_match(v, '-?([1-9][0-9]{{0,2}}\\.[0-9]{{3}}|[0-9]+)')) FROM {seen}"
        ).fetchone()[0]
    )
    if not simple or zeros or open_ones:
        return None
    return Evidence(values, values, 0 if fractions else values, 0, (), 0, 0, 0, min(longest, 18))


@dataclass(frozen=True, slots=True)
class NumberReading:
    """How a text column becomes numbers: the SQL expression over ``v``, the unit seen, and what was assumed."""

    sql: str
    unit: str | None
    notes: tuple[Note, ...]


def not_a_number(evidence: Evidence, name: str) -> Note | None:
    """Why a column whose values all look like numbers is still kept as text; None when it is one."""
    if evidence.leading_zeros:
        return Note(
            "leading_zeros",
            f"{name} was kept as text: it has numbers with leading zeros, as codes have",
            f"“{name}”保留为文本：其中有以零开头的编码",
        )
    if len(evidence.currencies) > 1:
        listed = ", ".join(evidence.currencies)
        return Note(
            "mixed_currencies",
            f"{name} was kept as text: it mixes currencies ({listed}), which cannot be added up",
            f"“{name}”保留为文本：币种混杂（{listed}），不能相加",
        )
    if _SCALES & set(evidence.currencies) and evidence.with_currency < evidence.values:
        scale = evidence.currencies[0]
        return Note(
            "mixed_scales",
            f"{name} was kept as text: some of its values are in {scale}, others are not",
            f"“{name}”保留为文本：部分数值以{scale}为单位，其余不是",
        )
    if 0 < evidence.percent < evidence.values:
        return Note(
            "mixed_percent",
            f"{name} was kept as text: {evidence.percent} of {evidence.values} values are percentages, the others not",
            f"“{name}”保留为文本：{evidence.values} 个值中只有 {evidence.percent} 个带百分号",
        )
    if evidence.longest > 18:
        return Note(
            "long_numbers", f"{name} was kept as text: its numbers are too long", f"“{name}”保留为文本：数字过长"
        )
    return None


def read(evidence: Evidence, name: str, connection: Any, seen: str, *, file_style: str) -> NumberReading:
    """The reading of the column in `seen`; `file_style` (``point``, ``comma``) decides what the column leaves open."""
    notes: list[Note] = []
    style = evidence.style
    if style == "either":
        style = file_style
        if evidence.thousands_only:
            mark = "1,234 and 1.234"
            meaning = ("1234 and 1.234", "1234 和 1.234") if style == "point" else ("1.234 and 1234", "1.234 和 1234")
            notes.append(
                Note(
                    "number_style",
                    f"{name}: values like {mark} could be read in two ways; they were read as {meaning[0]}",
                    f"“{name}”：形如 {mark} 的数有两种读法，这里读作 {meaning[1]}",
                )
            )
    elif style == "comma":
        notes.append(
            Note("decimal_comma", f"{name}: the comma was read as the decimal mark", f"“{name}”：逗号读作小数点")
        )
    (dressed,) = connection.execute(f"SELECT bool_or(NOT regexp_full_match(v, '-?[0-9.]+')) FROM {seen}").fetchone()
    text = _undressed(style) if dressed or style == "comma" else VALUE
    decimals, digits, exponents = connection.execute(
        f"SELECT max(length(regexp_extract(t, '\\.([0-9]*)$', 1))), "
        f"max(length(regexp_extract(t, '^[-+]*([0-9]*)', 1))), "
        f"count(*) FILTER (t ILIKE '%e%') FROM (SELECT {text} AS t FROM {seen})"
    ).fetchone()
    # Decimals keep sums exact and alike on every machine; floating point only where a decimal cannot hold the values.
    if exponents or decimals > 8 or digits + decimals > 18:
        kind = "DOUBLE"
    else:
        kind = f"DECIMAL(18,{decimals})" if decimals else "BIGINT"
    unit = "%" if evidence.percent else (evidence.currencies[0] if evidence.currencies else None)
    if evidence.currencies and evidence.with_currency < evidence.values:
        bare = evidence.values - evidence.with_currency
        notes.append(
            Note(
                "some_without_currency",
                f"{name}: {bare} values without a currency were taken to be in {unit}",
                f"“{name}”：{bare} 个值没有币种，按 {unit} 处理",
            )
        )
    return NumberReading(f"TRY_CAST({text} AS {kind})", unit, tuple(notes))


def _undressed(style: str | None) -> str:
    """SQL that leaves of ``v`` only what a cast understands."""
    bare = f"regexp_replace({VALUE}, {literal(rf'{_CURRENCY}|{_MARK}|{_SPACE}|[()’' + chr(39) + ']')}, '', 'g')"
    bare = f"replace({bare}, '−', '-')"
    bare = f"replace({bare}, ',', '')" if style == "point" else f"replace(replace({bare}, '.', ''), ',', '.')"
    return f"CASE WHEN {VALUE} LIKE '(%' THEN '-' || {bare} ELSE {bare} END"
