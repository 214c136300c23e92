"""Dates and times written as text, from ISO to ``2024年3月`` and ``Q3 2024``, and how a column of them is read.

A column is read as times only if one reading fits every value that is not missing. Whether ``3/4/2024`` is in March
or in April is decided by the data: by a value that allows only one reading; else dots and a name that is no
English one (``Datum``, ``fecha``) say day first; else which reading gives firsts of months or evenly spaced dates, else
it is read as month/day; a note says so.
"""

# ruff: noqa: S608 - SQL is put together from quoted identifiers and literals; values from outside are bound
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from failsoft.examples.analyst import names
from failsoft.examples.analyst.spec import Grain, Note
from failsoft.examples.analyst.textsql import VALUE, literal

SAMPLE = 200
"""Values looked at to choose candidate readings; the chosen one is checked against all."""


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to write a time: the pattern of the whole value, the SQL that reads it, and what it tells apart."""

    pattern: str
    sql: str
    grain: Grain
    day_first: bool | None = None
    needs_hint: bool = False
    """Only for columns whose name speaks of time: six digits may be anything."""


def _parse(fmt: str, value: str = VALUE) -> str:
    return f"try_strptime({value}, {literal(fmt)})"


def _quarter(year: str, quarter: str) -> str:
    number = f"((instr('1234一二三四', {quarter}) - 1) % 4)"
    return f"try(make_date(TRY_CAST({year} AS INTEGER), ({number} * 3 + 1)::INTEGER, 1))"


def _named(value: str, *formats: str) -> str:
    return f"try_strptime({value}, [{', '.join(literal(f) for f in formats)}])"


def _part(pattern: str, group: int) -> str:
    return f"regexp_extract({VALUE}, {literal(pattern)}, {group})"


_TIME = r"[ T]\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_ZONE = r"(?: ?Z| ?[+-]\d{2}(?::?\d{2})?)?"
_DASHED = f"regexp_replace(regexp_replace({VALUE}, '^([0-9]{{4}})[/.]([0-9]{{1,2}})[/.]', '\\1-\\2-'), ',', '.')"
_SPACED = f"regexp_replace(regexp_replace({VALUE}, '([0-9])(st|nd|rd|th)', '\\1', 'i'), '[-., ]+', ' ', 'g')"
_YEAR_QUARTER = r"(\d{4})[-/ ]?Q([1-4])"
_QUARTER_YEAR = r"Q([1-4])[-/ ']?(\d{4})"
_CHINESE_QUARTER = r"(\d{4})年?第?([1-4一二三四])季度?"
_WEEK = r"(\d{4})-?W(\d{1,2})"
_MONTH_LAST = _parse("%Y-%m-%d", f"translate({VALUE}, '/.', '--') || '-01'")
_MONTH_FIRST = _parse("%d-%m-%Y", f"'01-' || translate({VALUE}, '/.', '--')")

_FORMS: tuple[_Form, ...] = (
    _Form(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}", f"TRY_CAST({_DASHED} AS TIMESTAMP)", "day"),
    _Form(rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}{_TIME}{_ZONE}", f"TRY_CAST({_DASHED} AS TIMESTAMP)", "hour"),
    _Form(r"\d{4}年\d{1,2}月\d{1,2}[日号]", f"try_strptime({VALUE}, ['%Y年%m月%d日', '%Y年%m月%d号'])", "day"),
    _Form(
        r"\d{4}年\d{1,2}月\d{1,2}[日号] ?\d{1,2}:\d{2}(?::\d{2})?",
        f"try_strptime(replace(replace({VALUE}, ' ', ''), '号', '日'), ['%Y年%m月%d日%H:%M', '%Y年%m月%d日%H:%M:%S'])",
        "hour",
    ),
    _Form(r"\d{4}年\d{1,2}月(?:份)?", _parse("%Y年%m月", f"rtrim({VALUE}, '份')"), "month"),
    _Form(_CHINESE_QUARTER, _quarter(_part(_CHINESE_QUARTER, 1), _part(_CHINESE_QUARTER, 2)), "quarter"),
    _Form(r"\d{4}年(?:度)?", f"try(make_date(TRY_CAST(left({VALUE}, 4) AS INTEGER), 1, 1))", "year"),
    _Form(
        rf"(?i){_YEAR_QUARTER}", _quarter(_part(f"(?i){_YEAR_QUARTER}", 1), _part(f"(?i){_YEAR_QUARTER}", 2)), "quarter"
    ),
    _Form(
        rf"(?i){_QUARTER_YEAR}", _quarter(_part(f"(?i){_QUARTER_YEAR}", 2), _part(f"(?i){_QUARTER_YEAR}", 1)), "quarter"
    ),
    _Form(
        rf"(?i){_WEEK}",
        _parse("%G-W%V-%u", f"regexp_replace(upper({VALUE}), {literal('^' + _WEEK + '$')}, '\\1-W\\2-1')"),
        "week",
    ),
    _Form(r"(?:19|20)\d{2}[-/](?:0?[1-9]|1[0-2])", _MONTH_LAST, "month"),
    _Form(r"(?:0?[1-9]|1[0-2])[-/](?:19|20)\d{2}", _MONTH_FIRST, "month"),
    _Form(r"(?:19|20)\d{2}\.(?:0?[1-9]|1[0-2])", _MONTH_LAST, "month", needs_hint=True),
    _Form(r"(?:0?[1-9]|1[0-2])\.(?:19|20)\d{2}", _MONTH_FIRST, "month", needs_hint=True),
    _Form(r"(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])", _parse("%Y%m%d"), "day"),
    _Form(r"(?:19|20)\d{2}(?:0[1-9]|1[0-2])", _parse("%Y%m%d", f"{VALUE} || '01'"), "month", needs_hint=True),
    _Form(r"(?i)\d{1,2}[-. ]?[a-z]{3,9}\.?[-, ] ?\d{4}", _named(_SPACED, "%d %b %Y", "%d %B %Y"), "day"),
    _Form(r"(?i)\d{1,2}-[a-z]{3}-\d{2}", _parse("%d-%b-%y"), "day"),
    _Form(r"(?i)[a-z]{3,9}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4}", _named(_SPACED, "%b %d %Y", "%B %d %Y"), "day"),
    _Form(r"(?i)[a-z]{3,9}\.?[- ]\d{4}", _named(f"'01 ' || {_SPACED}", "%d %b %Y", "%d %B %Y"), "month"),
    _Form(r"(?i)[a-z]{3}[-' ]\d{2}", _parse("%d-%b-%y", f"'01-' || translate({VALUE}, ''' ', '--')"), "month"),
)


def _day_and_month() -> tuple[_Form, ...]:
    forms = []
    for year, code in ((r"\d{4}", "%Y"), (r"\d{2}", "%y")):
        for tail, clock, grain in (
            ("", "", "day"),
            (r",? \d{1,2}:\d{2}(?::\d{2})?(?: ?[AaPp][Mm])?", " %H:%M", "hour"),
        ):
            value = f"translate(replace({VALUE}, ',', ''), '/.', '--')"
            for day_first, order in ((False, f"%m-%d-{code}"), (True, f"%d-%m-{code}")):
                if clock:
                    clocks = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p", "%I:%M%p", "%I:%M:%S%p")
                    sql = f"try_strptime({value}, [{', '.join(literal(f'{order} {c}') for c in clocks)}])"
                else:
                    sql = f"try_strptime({value}, {literal(order)})"
                forms.append(_Form(rf"\d{{1,2}}[-/.]\d{{1,2}}[-/.]{year}{tail}", sql, grain, day_first))  # type: ignore[arg-type]  # a literal of the loop above
    return tuple(forms)


FORMS = (*_FORMS, *_day_and_month())


@dataclass(frozen=True, slots=True)
class TimeReading:
    """How a text column becomes times: the SQL over ``v`` (DATE, or TIMESTAMP when there is a time of day)."""

    sql: str
    type: str
    grain: Grain
    notes: tuple[Note, ...] = ()


def read(connection: Any, seen: str, name: str, *, hint: bool) -> tuple[TimeReading | None, Note | None]:
    """The reading that fits all values of the column in `seen`, or None and, when most looked like times, why not.

    `hint` says whether the column's name speaks of time.
    """
    sample = [v for (v,) in connection.execute(f"SELECT v FROM {seen} ORDER BY line, v LIMIT {SAMPLE}").fetchall()]
    if not sample:
        return None, None
    fits: list[_Form] = []
    near: _Form | None = None
    for form in FORMS:
        if form.needs_hint and not hint:
            continue
        matching = sum(1 for v in sample if re.fullmatch(form.pattern, v))
        if matching >= 0.8 * len(sample) and matching:
            near = near or form
            if _fits_all(connection, seen, form):
                fits.append(form)
    if not fits:
        return None, _why_not(connection, seen, near, name) if near else None
    both = {f.day_first: f for f in fits if f.day_first is not None}
    if len(both) == 2:
        form, note = _order_of_day_and_month(connection, seen, both, name, sample[0])
        return _reading(connection, seen, form, (note,), name), None
    form = fits[0]
    notes: tuple[Note, ...] = ()
    if form.day_first is not None:
        order = ("day/month/year", "日/月/年") if form.day_first else ("month/day/year", "月/日/年")
        notes = (
            Note(
                "day_month",
                f"{name}: dates were read as {order[0]}, as their values demand",
                f"“{name}”：日期按{order[1]}读取（由数据决定）",
            ),
        )
    return _reading(connection, seen, form, notes, name), None


def _fits_all(connection: Any, seen: str, form: _Form) -> bool:
    return bool(
        connection.execute(
            f"SELECT bool_and(regexp_full_match(v, {literal(form.pattern)}) AND {form.sql} IS NOT NULL) FROM {seen}"
        ).fetchone()[0]
    )


def _why_not(connection: Any, seen: str, form: _Form, name: str) -> Note:
    bad, example = connection.execute(
        f"SELECT sum(n)::BIGINT, arg_min(v, line) FROM {seen} "
        f"WHERE NOT regexp_full_match(v, {literal(form.pattern)}) OR {form.sql} IS NULL"
    ).fetchone()
    return Note(
        "not_all_dates",
        f"{name} was kept as text: {bad} of its values are not dates like the others, first {str(example)[:40]!r}",
        f"“{name}”保留为文本：有 {bad} 个值不是同类日期，例如“{str(example)[:40]}”",
    )


def _order_of_day_and_month(
    connection: Any, seen: str, both: Mapping[bool, _Form], name: str, example: str
) -> tuple[_Form, Note]:
    """Both readings are possible: dots and the name decide, then firsts of months, then evenly spaced dates."""
    firsts, steps = {}, {}
    for day_first, form in both.items():
        dates = f"SELECT DISTINCT ({form.sql})::DATE AS d FROM {seen}"
        firsts[day_first], steps[day_first] = connection.execute(
            f"SELECT count(*) > 1 AND bool_and(day(d) = 1), count(DISTINCT s) "
            f"FROM (SELECT d, d - lag(d) OVER (ORDER BY d) AS s FROM ({dates}))"
        ).fetchone()
    if "." in example or names.is_european(name):
        day_first = True
    elif firsts[True] != firsts[False]:
        day_first = bool(firsts[True])
    else:
        day_first = steps[True] < steps[False]
    order = ("day/month/year", "日/月/年") if day_first else ("month/day/year", "月/日/年")
    return both[day_first], Note(
        "day_month_open",
        f"{name}: no date shows whether the day or the month comes first; dates were read as {order[0]}",
        f"“{name}”：没有日期能说明日和月的先后，这里按{order[1]}读取",
    )


def _reading(connection: Any, seen: str, form: _Form, notes: tuple[Note, ...], name: str) -> TimeReading:
    if form.grain != "hour":
        return TimeReading(f"({form.sql})::DATE", "DATE", form.grain, notes)
    midnight, zoned = connection.execute(
        f"SELECT bool_and(t = date_trunc('day', t)), bool_or(z) FROM (SELECT ({form.sql})::TIMESTAMP AS t, "
        f"regexp_matches(v, '(Z|[+-][0-9]{{2}}:?[0-9]{{0,2}})$') AS z FROM {seen})"
    ).fetchone()
    if zoned:
        notes += (
            Note(
                "utc_offset",
                f"{name}: times were taken as written, their UTC offsets left aside",
                f"“{name}”：时间按原样读取，未换算时区",
            ),
        )
    if midnight:  # a date exported with an empty time of day
        return TimeReading(f"({form.sql})::DATE", "DATE", "day", notes)
    return TimeReading(f"({form.sql})::TIMESTAMP", "TIMESTAMP", "hour", notes)
