"""Time cut into periods: the SQL that cuts, each period's ISO name, and the periods in between, so that gaps show."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator

from failsoft.examples.analyst.spec import Grain

CYCLIC: frozenset[str] = frozenset({"weekday", "month_of_year", "hour_of_day"})
"""Grains whose names come round again."""
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TRUNCATED = {"hour", "day", "week", "month", "quarter", "year"}
_CYCLES = {"weekday": "isodow", "month_of_year": "month", "hour_of_day": "hour"}


def cut(column: str, grain: Grain) -> str:
    """SQL that cuts a quoted time column: a timestamp at the period's start, or a whole number for a cyclic grain."""
    if grain in _TRUNCATED:
        return f"date_trunc('{grain}', {column})"
    return f"{_CYCLES[grain]}({column})"


def name(moment: dt.date | dt.datetime, grain: Grain) -> str:
    """The ISO name of the period that starts at `moment`: ``2024-03``, ``2024-Q1``, ``2024-W05`` and so on."""
    if grain == "year":
        return f"{moment.year:04d}"
    if grain == "quarter":
        return f"{moment.year:04d}-Q{(moment.month + 2) // 3}"
    if grain == "month":
        return f"{moment.year:04d}-{moment.month:02d}"
    if grain == "week":
        year, week, _ = moment.isocalendar()
        return f"{year:04d}-W{week:02d}"
    if grain == "hour":
        hour = moment.hour if isinstance(moment, dt.datetime) else 0
        return f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d} {hour:02d}:00"
    return f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}"


def start(text: str) -> tuple[dt.datetime, Grain] | None:
    """The start and the grain of a named period, the inverse of :func:`name`; None when it is no such name."""
    text = text.strip()
    try:
        if re.fullmatch(r"\d{4}", text):
            return dt.datetime(int(text), 1, 1), "year"  # noqa: DTZ001 - the data has no zone
        if found := re.fullmatch(r"(\d{4})-?Q([1-4])", text, re.IGNORECASE):
            return dt.datetime(int(found[1]), int(found[2]) * 3 - 2, 1), "quarter"  # noqa: DTZ001
        if found := re.fullmatch(r"(\d{4})-W(\d{2})", text):
            day = dt.date.fromisocalendar(int(found[1]), int(found[2]), 1)
            return dt.datetime(day.year, day.month, day.day), "week"  # noqa: DTZ001
        if found := re.fullmatch(r"(\d{4})-(\d{1,2})", text):
            return dt.datetime(int(found[1]), int(found[2]), 1), "month"  # noqa: DTZ001
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=None), "day" if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) else "hour"


def after(moment: dt.datetime, grain: Grain, steps: int = 1) -> dt.datetime:
    """The start of the period `steps` later (earlier when negative); OverflowError, ValueError at time's end."""
    if grain in {"month", "quarter", "year"}:
        months = moment.year * 12 + moment.month - 1 + steps * {"month": 1, "quarter": 3, "year": 12}[grain]
        return moment.replace(year=months // 12, month=months % 12 + 1)
    return (
        moment
        + steps * {"hour": dt.timedelta(hours=1), "day": dt.timedelta(days=1), "week": dt.timedelta(weeks=1)}[grain]
    )


def distance(first: dt.datetime, second: dt.datetime, grain: Grain) -> int:
    """Periods from the one that starts at `first` to the one that starts at `second`."""
    if grain in {"month", "quarter", "year"}:
        months = (second.year - first.year) * 12 + second.month - first.month
        return months // {"month": 1, "quarter": 3, "year": 12}[grain]
    seconds = {"hour": 3600, "day": 86400, "week": 604800}[grain]
    return int((second - first).total_seconds() // seconds)


def between(first: dt.datetime, last: dt.datetime, grain: Grain, limit: int) -> Iterator[dt.datetime]:
    """The starts of all periods from `first` to `last`, at most `limit`."""
    moment = first
    for _ in range(limit):
        if moment > last:
            return
        yield moment
        moment = after(moment, grain)


def calendar_place(name: str) -> int | None:
    """Where a month's or a weekday's name stands in its cycle (from 1), in English or Chinese; None for other texts."""
    text = name.strip().lower().rstrip(".")
    if found := re.fullmatch(r"(1[0-2]|0?[1-9])月份?", text):
        return int(found[1])
    for names in (_MONTHS, _WEEKDAYS):
        places = [i for i, full in enumerate(names, 1) if len(text) >= 3 and full.startswith(text)]
        if len(places) == 1:
            return places[0]
    if found := re.fullmatch(r"(?:星期|周|礼拜)([一二三四五六日天])", text):
        return min("一二三四五六日".find(found[1]) % 7, 6) + 1
    if found := re.fullmatch(r"(十?[一二]|[三四五六七八九十])月份?", text):
        return ("一", "二", "三", "四", "五", "六", "七", "八", "九", "十", "十一", "十二").index(found[1]) + 1
    return None


def grain_of(begin: dt.date, end: dt.date) -> tuple[Grain, int] | None:
    """The grain of which ``[begin, end)`` is a whole number of periods, and that number; None for an empty span."""
    days = (end - begin).days
    if days <= 0:
        return None
    if begin.day == 1 and end.day == 1:
        months = (end.year - begin.year) * 12 + end.month - begin.month
        if months % 12 == 0 and begin.month == 1:
            return "year", months // 12
        if months % 3 == 0 and begin.month % 3 == 1:
            return "quarter", months // 3
        return "month", months
    if days % 7 == 0 and begin.weekday() == 0:
        return "week", days // 7
    return "day", days
