"""Spans of time as people write them (``Q3``, ``7月``, ``from March to May``, ``last 30 days``) and the days they are.

Reading (:func:`find_spans`) knows words only; resolving (:class:`Calendar`) knows which days the data covers.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from failsoft.examples.analyst.grammar.words import Word

_QUARTER = re.compile(r"(?:(\d{4})?q([1-4])|([1-4])q)$")
_YEAR_QUARTER = re.compile(r"q([1-4])(\d{4})$")
_HALF = re.compile(r"(\d{4})?h([12])$")
_ORDINAL_DAY = re.compile(r"(\d{1,2})(?:st|nd|rd|th)$")
_CUES = frozenset(
    {
        "in",
        "during",
        "of",
        "for",
        "since",
        "year",
        "fy",
        "from",
        "within",
        "through",
        "until",
        "between",
        "after",
        "before",
    }
)
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "winter": 12}
_MONTHS = [
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
]
_ZH_MONTH = ("月", "月份")
MAX_SPANS = 12
"""Spans read from one question."""


@dataclass(frozen=True, slots=True)
class Span:
    """A period as said, in words ``[start, end)``.

    ``unit`` with ``number`` (third *quarter*), ``year`` and ``day`` where they were said. ``back`` counts units before
    the data's last day (0: this month, 1: last month), ``count`` is N in "last N days", ``same`` the same period one
    year earlier, ``until`` the end of a range, ``side`` an open end (``since``, ``after``, ``before``, ``until``).
    """

    start: int
    end: int
    unit: str
    year: int | None = None
    number: int = 0
    day: int = 0
    back: int | None = None
    count: int = 0
    same: bool = False
    until: Span | None = None
    side: str = ""
    third: int = 0
    """Which third of it: 1 (early), 2 (mid), 3 (late), 0 for the whole."""

    @property
    def relative(self) -> bool:
        """Whether it needs another day to count from."""
        return (self.back is not None and not self.number) or self.count > 0 or self.same


def find_spans(words: Sequence[Word], years: range) -> list[Span]:
    """All spans, left to right. `years` are the years of the data: in them a bare number may be a year."""
    spans: list[Span] = []
    i = 0
    while i < len(words) and len(spans) < MAX_SPANS:
        span = _span(words, i, years, spans[-1] if spans else None)
        if span is None:
            i += 1
        else:
            spans.append(span)
            i = span.end
    return spans


def _at(words: Sequence[Word], i: int) -> Word | None:
    return words[i] if 0 <= i < len(words) else None


def _whole(word: Word | None, low: int, high: int) -> int | None:
    if word is None or word.number is None or word.number != int(word.number) or not low <= word.number <= high:
        return None
    return int(word.number)


def _span(words: Sequence[Word], i: int, years: range, before: Span | None) -> Span | None:
    word = words[i]
    if word.kind == "date":
        return _date(word, i)
    for read in (_third, _relative, _year_first, _part, _day_first):
        found = read(words, i, years)
        if found is not None:
            return found
    return _short_end(words, i, before)


def _date(word: Word, i: int) -> Span | None:
    parts = [int(p) for p in re.split(r"[-/.]", word.text)]
    if parts[0] > 31:
        year, month, day = parts[0], parts[1], parts[2] if len(parts) > 2 else 0
    elif "." in word.text or parts[0] > 12:
        day, month, year = parts
    else:
        month, day, year = parts
    if not 1 <= month <= 12 or not 0 <= day <= 31 or not 1000 <= year <= 2999:
        return None
    return Span(i, i + 1, "day" if day else "month", year, month, day)


def _grain(word: Word | None) -> str | None:
    return word.has("grain") if word is not None else None


def _relative(words: Sequence[Word], i: int, years: range) -> Span | None:
    word = words[i]
    if day := word.has("relday"):
        return Span(i, i + 1, "day", back=0 if day == "today" else 1)
    if (shift := word.has("relyear")) is not None:
        after = _at(words, i + 1)
        if after is not None and after.has("rel") == "same":
            return Span(i, i + 2, "year", same=True)
        if shift == "-1" and word.stem not in ("去年", "上年"):
            return Span(i, i + 1, "year", same=True)
        number = _whole(after, 1, 12)
        following = _at(words, i + 2)
        if number and following is not None and following.stem in _ZH_MONTH:
            return Span(i, i + 3, "month", number=number, back=-int(shift))
        if after is not None and (quarter := _part(words, i + 1, years)) is not None and quarter.year is None:
            return replace(quarter, start=i, back=-int(shift))
        return Span(i, i + 1, "year", back=-int(shift))
    kind = word.has("rel")
    if kind == "same":
        j = i + 1
        while (
            j < len(words)
            and j < i + 4
            and (words[j].stop or words[j].has("rel") or _grain(words[j]) or words[j].has("relyear"))
        ):
            j += 1
        return Span(i, j, "year", same=True)
    if kind in ("last", "recent", "this"):
        j = i + 1
        count = _whole(_at(words, j), 1, 10_000)
        j += count is not None
        counter = _at(words, j)
        if counter is not None and counter.has("counter") and not _grain(counter):
            j += 1
        grain = _grain(_at(words, j))
        if grain in ("day", "week", "month", "quarter", "year"):
            if count is not None:
                return Span(i, j + 1, grain, count=count)
            if words[j].has("adverb") and words[j].stem not in ("月度", "年度"):
                return None
            return Span(i, j + 1, grain, back=1 if kind == "last" else 0)
        season = _at(words, i + 1)
        if kind == "last" and season is not None and (month := season.has("month")):
            return Span(i, i + 2, "month", number=int(month))
        return None
    if kind is None and _grain(word) in ("day", "week", "month", "quarter", "year"):
        after = _at(words, i + 1)
        ahead = _at(words, i + 2)
        if after is not None and after.has("rel") == "before" and (ahead is None or ahead.stop or not ahead.known):
            return Span(i, i + 2, str(_grain(word)), back=1)
    return None


def _third(words: Sequence[Word], i: int, years: range) -> Span | None:
    """*early May*, *mid-2024*, *the end of Q3*: a third of what follows."""
    third = words[i].has("third")
    if not third or words[i].kind == "cjk":
        return None
    j = i + 1
    while (gap := _at(words, j)) is not None and j < i + 4 and gap.stem in ("-", "in", "of", "the"):
        j += 1
    inner = (
        _relative(words, j, years) or _year_first(words, j, years) or _part(words, j, years) if j < len(words) else None
    )
    if inner is None or inner.unit not in ("month", "quarter", "half", "year") or inner.count or inner.same:
        return None
    return replace(inner, start=i, third=int(third))


def _year_first(words: Sequence[Word], i: int, years: range) -> Span | None:
    year = _whole(words[i], 1000, 2999)
    if year is None or "." in words[i].text or "," in words[i].text:
        return None
    j = i + 1
    following = _at(words, j)
    cued = following is not None and following.stem in ("年", "年度", "年份")
    if cued:
        j += 1
    k = j
    while (gap := _at(words, k)) is not None and gap.stem in ("-", "/", "of", ",", "的", "'"):
        k += 1
    part = _part(words, k, years)
    if part is not None and part.year is None:
        return replace(part, start=i, year=year)
    if cued:
        return Span(i, j, "year", year)
    previous = _at(words, i - 1)
    if (
        previous is not None
        and previous.has("op")
        and not (previous.stem in _CUES or previous.has("compare") or previous.has("refer"))
    ):
        return None
    if year in years or (previous is not None and previous.stem in _CUES and 1900 <= year <= 2100):
        return Span(i, i + 1, "year", year)
    return None


def _year_after(words: Sequence[Word], j: int) -> tuple[int | None, int]:
    """The year that may follow a part of one, and where the words go on."""
    k = j
    while (
        (gap := _at(words, k)) is not None and k < j + 2 and gap.stem in ("of", "in", "the", ",", "-", "/", "'", "year")
    ):
        k += 1
    word = _at(words, k)
    year = _whole(word, 1900, 2100)
    if year is None and k > j and words[k - 1].stem == "'" and (short := _whole(word, 0, 99)) is not None:
        year = 2000 + short
    if year is None or word is None or "," in word.text or "." in word.text:
        return None, j
    after = _at(words, k + 1)
    if after is not None and after.stem == "年":
        following = _at(words, k + 2)
        if following is not None and following.number is not None:
            return None, j
        return year, k + 2
    return year, k + 1


def _part(words: Sequence[Word], i: int, years: range) -> Span | None:
    """A quarter, half, month, week or season, with the year when it follows."""
    word = _at(words, i)
    if word is None:
        return None
    if match := _QUARTER.match(word.stem):
        j = i + 1
        if _grain(_at(words, j)) == "quarter":
            j += 1
        number = int(match[2] or match[3])
        year, j = (int(match[1]), j) if match[1] else _year_after(words, j)
        return Span(i, j, "quarter", year, number)
    if match := _YEAR_QUARTER.match(word.stem):
        return Span(i, i + 1, "quarter", int(match[2]), int(match[1]))
    if match := _HALF.match(word.stem):
        year, j = (int(match[1]), i + 1) if match[1] else _year_after(words, i + 1)
        return Span(i, j, "half", year, int(match[2]))
    if half := word.has("half"):
        year, j = _year_after(words, i + 1)
        return Span(i, j, "half", year, int(half))
    if month := word.has("month"):
        return _month(words, i, int(month))
    if (season := word.has("season")) and _season_meant(words, i):
        year, j = _year_after(words, i + 1)
        return Span(i, j, "season", year, _SEASONS[season])
    return _counted_part(words, i)


def _counted_part(words: Sequence[Word], i: int) -> Span | None:
    """Third quarter, quarter 3, 第三季度, 7月, 7月1日, week 12; also the 3 of 3到5月."""
    word = words[i]
    j = i + 1
    ordinal = word.has("ordinal")
    number = int(ordinal) if ordinal else None
    if word.has("nth"):
        number, j = _whole(_at(words, j), 1, 53), j + 1
    elif number is None:
        number = _whole(word, 1, 53)
    unit = _at(words, j)
    if number is not None and unit is not None:
        grain, chinese = _grain(unit), unit.kind == "cjk"
        if grain == "quarter" and number <= 4 and (ordinal or chinese):
            year, j = _year_after(words, j + 1)
            return Span(i, j, "quarter", year, number)
        if unit.stem in _ZH_MONTH and number <= 12:
            day, following = _whole(_at(words, j + 1), 1, 31), _at(words, j + 2)
            if day and following is not None and following.stem in ("日", "号"):
                return Span(i, j + 3, "day", None, number, day)
            part = _at(words, j + 1)
            if part is not None and part.kind == "cjk" and (third := part.has("third")):
                return Span(i, j + 2, "month", None, number, third=int(third))
            return Span(i, j + 1, "month", None, number)
        if grain == "week" and chinese and word.has("nth"):
            return Span(i, j + 1, "week", None, number)
        if grain == "week" and word.has("ordinal"):
            return None
        last, final = _whole(_at(words, j + 1), 1, 12), _at(words, j + 2)
        if unit.has("range") and last and final is not None and final.kind == "cjk" and not word.has("nth"):
            if final.stem in _ZH_MONTH:
                return Span(i, i + 1, "month", None, number)
            if _grain(final) == "quarter" and number <= 4:
                return Span(i, i + 1, "quarter", None, number)
        if unit.has("range") and ordinal and number <= 4 and _grain(_at(words, j + 2)) == "quarter":
            return Span(i, i + 1, "quarter", None, number)
    if _grain(word) in ("quarter", "week") and word.kind != "cjk":
        counted = _whole(_at(words, i + 1), 1, 4 if _grain(word) == "quarter" else 53)
        if counted is not None:
            year, j = _year_after(words, i + 2)
            return Span(i, j, str(_grain(word)), year, counted)
    return None


def _month(words: Sequence[Word], i: int, month: int) -> Span | None:
    word = words[i]
    previous, following = _at(words, i - 1), _at(words, i + 1)
    if word.text.casefold().endswith("s"):
        return None  # Mars is no month
    if word.stem in ("may", "march", "mar", "sep", "dec", "jan"):
        named = word.text[:1].isupper() and i > 0
        near = previous is not None and (
            previous.stem in _CUES or previous.has("range") or previous.has("join") or previous.has("rel")
        )
        near = near or (previous is None and following is not None and following.has("range") is not None)
        near = near or (previous is not None and previous.has("compare") is not None)
        if not (named or near or _whole(following, 1, 2999) or (following is not None and following.has("compare"))):
            return None
    day, j = _day_number(following), i + 2
    if day is None:
        year, j = _year_after(words, i + 1)
        return Span(i, j, "month", year, month)
    year, j = _year_after(words, j)
    return Span(i, j, "day", year, month, day)


def _day_number(word: Word | None) -> int | None:
    if word is None:
        return None
    if match := _ORDINAL_DAY.match(word.stem):
        return int(match[1]) if 1 <= int(match[1]) <= 31 else None
    return _whole(word, 1, 31) if word.kind == "number" else None


def _day_first(words: Sequence[Word], i: int, years: range) -> Span | None:
    """1 February 2013, 1st of July."""
    day = _day_number(words[i])
    if day is None:
        return None
    j = i + 1
    if (gap := _at(words, j)) is not None and gap.stem in ("of", "."):
        j += 1
    word = _at(words, j)
    if word is None or not (month := word.has("month")):
        return None
    year, j = _year_after(words, j + 1)
    return Span(i, j, "day", year, int(month), day)


def _season_meant(words: Sequence[Word], i: int) -> bool:
    word, previous = words[i], _at(words, i - 1)
    return word.stem != "fall" or (
        previous is not None and previous.stem in ("in", "during", "the", "of", "this", "last")
    )


def _short_end(words: Sequence[Word], i: int, before: Span | None) -> Span | None:
    """The 15 of *July 1 to 15* and of 7月1日到15日."""
    if (
        before is None
        or before.unit != "day"
        or before.relative
        or i != before.end + 1
        or not words[i - 1].has("range")
    ):
        return None
    day = _day_number(words[i])
    if day is None:
        return None
    following = _at(words, i + 1)
    year, end = _year_after(words, i + 1)
    if following is not None and following.stem in ("日", "号"):
        end = i + 2
    return Span(i, end, "day", year or before.year, before.number, day)


def _season_label(number: int, zh: bool) -> str:
    names = {3: ("spring", "春季"), 6: ("summer", "夏季"), 9: ("autumn", "秋季"), 12: ("winter", "冬季")}
    return names[number][zh]


def add_months(day: dt.date, months: int) -> dt.date:
    """The same day `months` later, or the last one of that month."""
    index = day.year * 12 + day.month - 1 + months
    year, month = divmod(index, 12)
    return dt.date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))


def third_of(bounds: tuple[dt.date, dt.date], third: int) -> tuple[dt.date, dt.date]:
    """A third of a month (to the 10th, to the 20th, the rest), or of a year, half or quarter in whole months."""
    start, end = bounds
    months = (end.year - start.year) * 12 + end.month - start.month
    if months >= 3:
        cuts = [start, add_months(start, months // 3), add_months(start, 2 * (months // 3)), end]
    else:
        cuts = [start, start + dt.timedelta(days=10), start + dt.timedelta(days=20), end]
    return cuts[third - 1], cuts[third]


class BadDate(ValueError):
    """A day that no calendar has."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The days the data covers, ``first`` to ``last``; ``anchor`` is the day that "last month" is counted from."""

    first: dt.date
    last: dt.date
    anchor: dt.date

    def bounds(self, span: Span, year: int) -> tuple[dt.date, dt.date]:
        """The days ``[start, end)`` of a span in `year`; raises :class:`BadDate`."""
        whole = self._whole(span, year)
        return third_of(whole, span.third) if span.third else whole

    def _whole(self, span: Span, year: int) -> tuple[dt.date, dt.date]:
        try:
            if span.unit == "year":
                return dt.date(year, 1, 1), dt.date(year + 1, 1, 1)
            if span.unit == "week":
                start = dt.date.fromisocalendar(year, span.number, 1)
                return start, start + dt.timedelta(days=7)
            if span.unit == "day":
                start = dt.date(year, span.number, span.day)
                return start, start + dt.timedelta(days=1)
            months = {"half": 6, "quarter": 3, "month": 1, "season": 3}[span.unit]
            first = span.number if span.unit in ("season", "month") else (span.number - 1) * months + 1
            start = dt.date(year, first, 1)
            return start, add_months(start, months)
        except (ValueError, OverflowError) as error:
            raise BadDate(str(error)) from None

    def overlaps(self, bounds: tuple[dt.date, dt.date]) -> bool:
        """Whether the data has a day within."""
        return bounds[0] <= self.last and bounds[1] > self.first

    def years_of(self, span: Span) -> list[int]:
        """The years in which the data has this part of the year, latest first."""
        found = []
        for year in range(self.last.year, max(self.first.year - 1, self.last.year - 200) - 1, -1):
            try:
                if self.overlaps(self.bounds(span, year)):
                    found.append(year)
            except BadDate:
                continue
        return found

    def around(self, unit: str, day: dt.date) -> tuple[dt.date, dt.date]:
        """The whole unit that contains `day`."""
        if unit == "day":
            return day, day + dt.timedelta(days=1)
        if unit == "week":
            monday = day - dt.timedelta(days=day.weekday())
            return monday, monday + dt.timedelta(days=7)
        months = {"month": 1, "quarter": 3, "season": 3, "half": 6, "year": 12}[unit]
        start = dt.date(day.year, (day.month - 1) // months * months + 1, 1)
        return start, add_months(start, months)

    def back(self, unit: str, steps: int, day: dt.date) -> tuple[dt.date, dt.date]:
        """The whole unit, `steps` before the one that contains `day`."""
        bounds = self.around(unit, day)
        for _ in range(min(steps, 1000)):
            bounds = self.around(unit, bounds[0] - dt.timedelta(days=1))
        return bounds

    def rolling(self, unit: str, count: int) -> tuple[dt.date, dt.date]:
        """The last `count` units up to and with the anchor; raises :class:`BadDate` before the year 1."""
        end = self.anchor + dt.timedelta(days=1)
        try:
            if unit in ("day", "week"):
                return end - dt.timedelta(days=count * (7 if unit == "week" else 1)), end
            return add_months(end, -count * {"month": 1, "quarter": 3, "year": 12}[unit]), end
        except (ValueError, OverflowError) as error:
            raise BadDate(str(error)) from None


def label(unit: str, start: dt.date, end: dt.date, zh: bool) -> str:
    """What a whole unit is called: ``Q3 2013``, ``2013年第三季度``."""
    if unit == "year":
        return f"{start.year}年" if zh else f"{start.year}"
    if unit == "half":
        half = 1 if start.month == 1 else 2
        return f"{start.year}年{'上' if half == 1 else '下'}半年" if zh else f"H{half} {start.year}"
    if unit == "quarter":
        quarter = (start.month + 2) // 3
        return f"{start.year}年第{'一二三四'[quarter - 1]}季度" if zh else f"Q{quarter} {start.year}"
    if unit == "month":
        return f"{start.year}年{start.month}月" if zh else f"{_MONTHS[start.month - 1]} {start.year}"
    if unit == "season":
        return (
            f"{start.year}年{_season_label(start.month, True)}"
            if zh
            else f"{_season_label(start.month, False)} {start.year}"
        )
    if unit == "week":
        iso = start.isocalendar()
        return f"{iso.year}年第{iso.week}周" if zh else f"week {iso.week} of {iso.year}"
    last = end - dt.timedelta(days=1)
    if last == start:
        return start.isoformat()
    return f"{start}至{last}" if zh else f"{start} to {last}"
