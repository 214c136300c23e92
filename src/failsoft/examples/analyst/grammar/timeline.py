"""From spans to periods: which year is meant, what is compared with what, and whether the data reaches that far."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from failsoft.examples.analyst.grammar.dateless import TimeReading, no_time, without_time
from failsoft.examples.analyst.grammar.mentions import Sentence
from failsoft.examples.analyst.grammar.periods import BadDate, Calendar, Span, add_months, find_spans, label, third_of
from failsoft.examples.analyst.grammar.wording import QuestionError, Voice
from failsoft.examples.analyst.grammar.words import Word
from failsoft.examples.analyst.spec import Column, Filter, Period

Bounds = tuple[dt.date, dt.date]
LIVE_DAYS = 7
"""Data that ends at most so many days before today is live: "last month" then counts from today."""


class Timeline:
    """Interprets the spans of one sentence."""

    def __init__(
        self, sentence: Sentence, column: Column | None, today: dt.date | None, dates: Sequence[tuple[int, Column]] = ()
    ) -> None:
        self.sentence = sentence
        self.words = sentence.words
        self.column = column
        self.voice = Voice(sentence.language)
        self.calendar = self._calendar(today)
        years = range(self.calendar.first.year, self.calendar.last.year + 1) if self.calendar else self._part_years()
        self.spans = find_spans(self.words, years)
        if column is None:
            self.spans = [span for span in self.spans if not self._is_value(span)]
        self.elsewhere = self._of_other_dates(dates)
        for span in [*self.spans, *(span for span, _ in self.elsewhere)]:
            sentence.use(span.start, span.end, "time")
            mention = sentence.mention_at(span.start) if span.third else None
            if mention is not None and mention.end <= span.end:
                mention.used = "time"  # the late of late May is no delay

    def _of_other_dates(self, dates: Sequence[tuple[int, Column]]) -> list[tuple[Span, Column]]:
        """Spans of another date than the others: *borrowed in January and returned in February*."""
        if self.column is None or len({column.name for _, column in dates}) < 2 or len(self.spans) < 2:
            return []
        found: list[tuple[Span, Column]] = []
        for at, span in enumerate(self.spans):
            low = self.spans[at - 1].end if at else 0
            named = [column for i, column in dates if low <= i < span.start]
            if named and named[-1].name != self.column.name:
                found.append((span, named[-1]))
        self.spans = [span for span in self.spans if span not in [other for other, _ in found]]
        return found

    def other_dates(self) -> list[Filter]:
        """The conditions on other dates than the period's."""
        filters: list[Filter] = []
        mine = self.column, self.calendar
        for span, column in self.elsewhere:
            self.column = column
            self.calendar = self._calendar(None)
            if self.calendar is None:
                raise no_time(self.sentence, span)
            period = self._period(replace(span, side=self._side(span)))
            filters.append(Filter(column.name, ">=", period.start.isoformat()))
            filters.append(Filter(column.name, "<", period.end.isoformat()))
        self.column, self.calendar = mine
        return filters

    def _calendar(self, today: dt.date | None) -> Calendar | None:
        if self.column is None or (known := self.sentence.schema.range(self.column)) is None:
            return None
        first, last = known
        if self.column.grain in ("month", "quarter", "year"):
            last = Calendar(first, last, last).around(self.column.grain, last)[1] - dt.timedelta(days=1)
        live = today is not None and 0 <= (today - last).days <= LIVE_DAYS
        return Calendar(first, last, today if today is not None and live else last)

    def _part_years(self) -> range:
        year = self.sentence.schema.time_part("year")
        if year is None:
            return range(0)
        try:
            low, high = (float(v) for v in (year.minimum or min(year.values), year.maximum or max(year.values)))
            return range(int(low), int(high) + 1)
        except (ValueError, TypeError):
            return range(0)

    def _is_value(self, span: Span) -> bool:
        return any(not hit.partial for word in self.words[span.start : span.end] for hit in word.values)

    # --- what is asked -------------------------------------------------------------------------------------------

    def kind(self) -> str | None:
        """``change``, ``diff`` or ``compare`` when the question compares, else None."""
        found = {k for w in self.words if not w.columns for k in ("change", "diff", "compare", "yoy") if k in w.senses}
        return next((k for k in ("diff", "change", "compare", "yoy") if k in found), None)

    def interpret(self, *, pair_of_values: bool, grouped_by_time: bool, ranked: bool) -> TimeReading:
        """Periods and comparison; `ranked` says that groups are ranked, so that a change needs two periods."""
        spans, kind = self._with_ranges(grouped_by_time), self.kind()
        if self.column is None:
            return without_time(self.sentence, spans, self.kind())
        if self.calendar is None:
            if spans:
                raise self.voice.error(
                    "period_out_of_range",
                    f"Nothing is known about the days that {self.column.name!r} covers, so no period can be chosen.",
                    f"不知道“{self.column.name}”覆盖哪些日期，无法选择时间段。",
                )
            return TimeReading()
        yoy = next((w.has("yoy") for w in self.words if w.has("yoy")), None)
        if len(spans) >= 2:
            return self._several(spans, None if pair_of_values else kind)
        if yoy and not pair_of_values:
            return self._year_over_year(spans, yoy)
        if spans and (spans[0].same or self._is_reference(spans[0])) and kind and not pair_of_values:
            return self._reference_only(spans[0])
        if not spans and kind == "change" and ranked and not grouped_by_time and not pair_of_values:
            year_before = _year_earlier(self.calendar.around("year", self.calendar.last))
            return self._year_over_year([], "year" if self.calendar.overlaps(year_before) else "previous")
        if not spans:
            return TimeReading(change=kind == "change")
        if kind == "change" and not pair_of_values and not grouped_by_time and not spans[0].until:
            return self._against_previous(spans[0])
        return TimeReading(period=self._period(spans[0]))

    def _several(self, spans: Sequence[Span], kind: str | None) -> TimeReading:
        first, second = spans[0], spans[1]
        if len(spans) > 2:
            self.sentence.note("Only the first two periods of the question are used.", "只使用了问题中的前两个时间段。")
        link = self.words[first.end : second.start]
        versus = any(w.has("compare") or w.has("refer") for w in link) and len(link) <= 6
        if kind or versus:
            return self._pair(first, second, kind or "compare", link)
        if second.same:
            return self._pair(first, second, "compare", link)
        a, b = self._resolve_pair(first, second, ascending=False)
        if a[1] == b[0] or b[1] == a[0]:
            low, high = min(a[0], b[0]), max(a[1], b[1])
            return TimeReading(period=self._named("day", (low, high), self._both(first, a, second, b)), by=first.unit)
        self.sentence.note(
            "The two periods are not adjacent, so they are set side by side.", "两个时间段不相邻，因此并列比较。"
        )
        return self._pair(first, second, "compare", link)

    def _pair(self, first: Span, second: Span, kind: str, link: Sequence[Word]) -> TimeReading:
        before = self.words[first.start - 1] if first.start else None
        after_first = self.words[first.end] if first.end < len(self.words) else None
        after_second = self.words[second.end] if second.end < len(self.words) else None
        ranged = any(w.has("range") for w in link)
        from_first = before is not None and (before.has("dir") == "from" or before.has("between"))
        ascending = ranged and (bool(from_first) or kind == "change")
        a, b = self._resolve_pair(first, second, ascending=ascending)
        subject, reference = (a, first), (b, second)
        swap = False
        joined = any(w.has("join") for w in link) and not any(w.has("refer") for w in link)
        if (
            (
                before is not None
                and before.has("refer") == "before"
                and before.has("compare")
                and before.stem not in ("比较", "对比")
            )
            or (before is not None and before.has("join") and after_first is not None and after_first.has("refer"))
            or ascending
            or (ranged and kind == "diff")
        ):
            swap = True
        elif (
            joined and kind != "diff" and not (after_second is not None and after_second.has("refer") == "after")
        ) or (
            joined
            and kind == "diff"
            and before is not None
            and before.has("between")
            and self.sentence.any("change") is not None
        ):
            swap = b[0] > a[0]
        if swap:
            subject, reference = reference, subject
        return self._compared(
            subject[0], self._name(*subject), reference[0], self._name(*reference), change=kind == "change"
        )

    def _year_over_year(self, spans: Sequence[Span], yoy: str) -> TimeReading:
        calendar = self._known()
        if spans:
            bounds, unit = self._resolve(spans[0]), spans[0].unit
            name = self._name(bounds, spans[0])
        else:
            said = next((w.has("yoygrain") for w in self.words if w.has("yoygrain")), None)
            grains = [g for w in self.words if (g := w.has("grain")) in ("week", "month", "quarter", "year", "day")]
            unit = said or (grains[0] if grains else "year" if yoy == "year" else "month")
            bounds = calendar.around(unit, calendar.last)
            name = label(unit, *bounds, self.voice.zh)
            self.sentence.note(
                f"No period was named; the latest {unit} of the data is compared ({name}).",
                f"没有指明时间段，按数据中最近的一期（{name}）比较。",
            )
            for word in self.words:
                if word.has("grain") == unit:
                    word.used = word.used or "time"
        if bounds[1] - dt.timedelta(days=1) > calendar.last and not spans and unit == "year":
            bounds = (bounds[0], calendar.last + dt.timedelta(days=1))
            name = label("day", *bounds, self.voice.zh)
        reference = _year_earlier(bounds) if yoy == "year" else self._previous(unit, bounds)
        unit_label = unit if yoy != "year" or unit != "year" or bounds[1].month == 1 else "day"
        return self._compared(
            bounds, name, reference, label(_unit_of(unit_label, reference), *reference, self.voice.zh), change=True
        )

    def _reference_only(self, span: Span) -> TimeReading:
        """*Compared with last quarter*: the subject is the latest such unit."""
        calendar = self._known()
        unit = (
            "year"
            if span.same
            else span.unit
            if span.unit in ("day", "week", "month", "quarter", "half", "year")
            else "year"
        )
        subject = calendar.around(unit, calendar.anchor)
        name = label(unit, *subject, self.voice.zh)
        self.sentence.note(
            f"Compared from the data's latest {unit} ({name}).", f"以数据中最近的一期（{name}）作为比较对象。"
        )
        if span.relative:
            reference = self._relative_to(span, subject, unit)
            return self._compared(subject, name, reference, label(_unit_of(unit, reference), *reference, self.voice.zh))
        bounds = self._resolve(span)
        return self._compared(subject, name, bounds, self._name(bounds, span))

    def _against_previous(self, span: Span) -> TimeReading:
        calendar = self._known()
        bounds = self._resolve(span)
        reference = self._previous(span.unit, bounds)
        name = self._name(bounds, span)
        if not calendar.overlaps(reference):
            self.sentence.note(
                f"The data has nothing before {name} to compare with; the course within it is shown.",
                f"数据中没有{name}之前可供比较的时间段，改为展示该时间段内的走势。",
            )
            return TimeReading(period=self._named(span.unit, bounds, name), by="auto", change=True)
        theirs = label(_unit_of(span.unit, reference), *reference, self.voice.zh)
        self.sentence.note(
            f"Change is counted against the period before: {theirs}.", f"变化是与前一时间段相比：{theirs}。"
        )
        return self._compared(bounds, name, reference, theirs, change=True)

    def _compared(
        self, subject: Bounds, name: str, reference: Bounds, theirs: str, *, change: bool = False
    ) -> TimeReading:
        if subject == reference:
            raise self.voice.error("bad_period", f"{name} is compared with itself.", f"{name}与自身比较，没有意义。")
        return TimeReading(
            period=self._named("day", subject, name), other=self._named("day", reference, theirs), change=change
        )

    # --- ranges --------------------------------------------------------------------------------------------------

    def _with_ranges(self, grouped_by_time: bool) -> list[Span]:
        """Spans joined to ranges where the question does not compare their ends, and given open sides."""
        spans, kind = list(self.spans), self.kind()
        merged: list[Span] = []
        i = 0
        while i < len(spans):
            span = spans[i]
            following = spans[i + 1] if i + 1 < len(spans) else None
            if following is not None and self._is_range(span, following, kind, grouped_by_time, len(spans)):
                self.sentence.use(span.end, following.start, "time")
                self.sentence.use(max(span.start - 1, 0), span.start, "time") if self._opens_range(span) else None
                merged.append(replace(span, end=following.end, until=following))
                i += 2
                continue
            merged.append(replace(span, side=self._side(span)))
            i += 1
        return merged

    def _opens_range(self, span: Span) -> bool:
        before = self.words[span.start - 1] if span.start else None
        return before is not None and bool(before.has("dir") == "from" or before.has("between"))

    def _is_range(self, a: Span, b: Span, kind: str | None, grouped_by_time: bool, count: int) -> bool:
        link = self.words[a.end : b.start]
        if not 1 <= len(link) <= 3 or a.relative or b.relative:
            return False
        before = self.words[a.start - 1] if a.start else None
        between = before is not None and before.has("between")
        if any(w.has("compare") for w in link):
            return False
        if any(w.stem in ("-", "~", "through", "thru", "until", "till", "至", "~") for w in link):
            return True
        if any(w.has("range") for w in link):
            if kind is None or count > 2 or grouped_by_time:
                return True
            # "from 2013-02-01 to 2013-02-10" names one stretch even where something else is compared.
            return kind == "compare" and self._opens_range(a) and a.unit == "day"
        after = self.words[b.end] if b.end < len(self.words) else None
        closed = after is not None and after.has("between")
        joined = any(w.has("join") for w in link)
        return joined and bool(between or closed) and (kind is None or grouped_by_time)

    def _side(self, span: Span) -> str:
        before = self.words[span.start - 1] if span.start else None
        after = self.words[span.end] if span.end < len(self.words) else None
        if after is not None and after.kind == "cjk":
            for side in ("since", "after", "before", "until"):
                if after.has(side) or (side == "since" and after.stem in ("以来", "起", "开始")):
                    after.used = "time"
                    return side
        opened = before is not None and before.has("dir") == "from"
        if after is not None and (
            after.stem in ("onward", "onwards")
            or (after.stem in ("on", "an") and opened and not self._says_more(span.end + 1))
            or (after.has("post") == ">=" and after.kind == "word")
        ):
            after.used = "time"
            return "since"
        if after is not None and after.kind == "word" and (after.has("post") == "<=" or after.stem == "or before"):
            after.used = "time"
            return "until"
        if before is not None and before.stem == "by" and span.third == 3:
            return "until"
        if before is not None:
            for side in ("since", "until", "after", "before"):
                if before.has(side) and not (side == "until" and before.stem == "through"):
                    before.used = "time"
                    return side
        return ""

    def _says_more(self, i: int) -> bool:
        """Whether something stands behind an *on* that it may belong to: from May *on weekends*."""
        word = self.sentence.word(i)
        return word is not None and (bool(word.has("dayname")) or word.kind == "date")

    # --- days ----------------------------------------------------------------------------------------------------

    def _known(self) -> Calendar:
        if self.calendar is None:
            raise AssertionError("asked for days of a table without known days")
        return self.calendar

    def _resolve(self, span: Span, year: int | None = None) -> Bounds:
        calendar = self._known()
        try:
            if span.until is not None:
                return self._range(span, span.until)
            if span.same:
                return _year_earlier(calendar.around("year", calendar.anchor))
            if span.count or span.back is not None:
                bounds = self._from_anchor(span)
                return self._part_of(span, third_of(bounds, span.third)) if span.third and not span.number else bounds
            bounds = calendar.bounds(span, self._year(span) if year is None else year)
        except BadDate:
            raise self._bad(span) from None
        if span.third and not span.side:
            self._part_of(span, bounds)
        if span.side:
            bounds = {
                "since": (bounds[0], calendar.last + dt.timedelta(days=1)),
                "after": (bounds[1], calendar.last + dt.timedelta(days=1)),
                "before": (calendar.first, bounds[0]),
                "until": (calendar.first, bounds[1]),
            }[span.side]
            if bounds[0] >= bounds[1]:
                raise self._outside(self._said(span))
        return bounds

    def _part_of(self, span: Span, bounds: Bounds) -> Bounds:
        """Says which days an *early* or a *late* is taken for."""
        last = bounds[1] - dt.timedelta(days=1)
        self.sentence.note(
            f"'{self._said(span)}' is read as {bounds[0]} to {last}.",
            f"“{self._said(span)}”按 {bounds[0]} 至 {last} 理解。",
        )
        return bounds

    def _from_anchor(self, span: Span) -> Bounds:
        calendar = self._known()
        day, said = calendar.anchor, self._said(span)
        if span.number and span.back is not None:
            return calendar.bounds(
                span, day.year - span.back if span.unit != "month" or self._yearly(span) else self._year(span)
            )
        bounds = (
            calendar.rolling(span.unit, span.count) if span.count else calendar.back(span.unit, span.back or 0, day)
        )
        which = "today" if day != calendar.last else "the data's last day"
        self.sentence.note(
            f"'{said}' is counted from {which}, {day}.",
            f"“{said}”以{'今天' if day != calendar.last else '数据的最后一天'} {day} 为准。",
        )
        return bounds

    def _yearly(self, span: Span) -> bool:
        return any(w.has("relyear") is not None for w in self.words[span.start : span.end])

    def _range(self, start: Span, end: Span) -> Bounds:
        start = replace(start, until=None, year=start.year or end.year)
        end = replace(end, year=end.year or start.year)
        calendar = self._known()
        if start.year is None:
            common = [y for y in calendar.years_of(start) if y in calendar.years_of(end)]
            year = common[0] if common else self._year(start)
            self._note_year(start, common, year)
            start, end = replace(start, year=year), replace(end, year=year)
        a, b = calendar.bounds(start, start.year or 1), calendar.bounds(end, end.year or 1)
        if b[1] <= a[0] and end.unit != "year":
            b = calendar.bounds(end, (end.year or 1) + 1)
        if b[1] <= a[0]:
            raise self.voice.error("bad_period", "The period ends before it starts.", "时间段的结束早于开始。")
        return a[0], b[1]

    def _year(self, span: Span) -> int:
        """The year of a span that names none: the latest one in which the data has it."""
        if span.year is not None:
            return span.year
        calendar = self._known()
        years = calendar.years_of(span)
        if not years:
            try:
                calendar.bounds(span, calendar.last.year)
            except BadDate:
                raise self._bad(span) from None
            raise self._outside(self._said(span))
        self._note_year(span, years, years[0])
        return years[0]

    def _note_year(self, span: Span, years: Sequence[int], year: int) -> None:
        if len(years) > 1:
            said = self._said(span)
            self.sentence.note(
                f"'{said}' names no year; the latest one in the data, {year}, is taken.",
                f"“{said}”没有指明年份，取数据中最近的 {year} 年。",
            )

    def _resolve_pair(self, first: Span, second: Span, *, ascending: bool) -> tuple[Bounds, Bounds]:
        calendar = self._known()
        if second.relative and not first.relative:
            a = self._resolve(first)
            return a, self._relative_to(second, a, first.unit)
        if first.relative and not second.relative and (first.same or (first.back and self._is_reference(first))):
            b = self._resolve(second)
            return self._relative_to(first, b, second.unit), b
        if second.relative:
            a = self._resolve(first)
            return a, self._relative_to(second, a, first.unit) if (second.back or second.same) else self._resolve(
                second
            )
        if first.relative:
            return self._resolve(first), self._resolve(second)
        if second.unit == "year" and first.unit != "year" and first.year is not None and not first.until:
            second = replace(first, year=second.year, start=second.start, end=second.end)
        if first.until or second.until or first.side or second.side:
            if first.year is None and second.year is not None and not second.until:
                first = replace(first, year=second.year)
            return self._resolve(first), self._resolve(second)
        if first.year is None and second.year is None:
            mine, theirs = calendar.years_of(first), calendar.years_of(second)
            if ascending and first.unit == second.unit and first.number > second.number:
                common = [y for y in theirs if y - 1 in mine]
                if common:
                    return self._resolve(first, common[0] - 1), self._resolve(second, common[0])
            common = [y for y in mine if y in theirs]
            if common:
                self._note_year(first, common, common[0])
                return self._resolve(first, common[0]), self._resolve(second, common[0])
            return self._resolve(first), self._resolve(second)
        return self._resolve(first, first.year or second.year), self._resolve(second, second.year or first.year)

    def _relative_to(self, span: Span, subject: Bounds, unit: str) -> Bounds:
        """The period before `subject`, or the same one a year earlier."""
        calendar = self._known()
        if span.count:
            return self._resolve(span)
        yearly = span.same or (span.unit == "year" and unit != "year")
        if yearly:
            return _year_earlier(subject)
        steps = span.back if span.back is not None else 1
        return calendar.back(span.unit, steps, subject[0])

    def _previous(self, unit: str, bounds: Bounds) -> Bounds:
        months = (bounds[1].year - bounds[0].year) * 12 + bounds[1].month - bounds[0].month
        if bounds[0].day == bounds[1].day == 1 and months > 0:
            return add_months(bounds[0], -months), bounds[0]
        return bounds[0] - (bounds[1] - bounds[0]), bounds[0]

    def _is_reference(self, span: Span) -> bool:
        before = self.words[span.start - 1] if span.start else None
        if before is not None and before.stem == "the" and span.start > 1:
            before = self.words[span.start - 2]
        after = self.words[span.end] if span.end < len(self.words) else None
        if before is None:
            return False
        if before.has("refer") == "before" and before.stem not in ("over", "比较", "对比", "from the", "同"):
            return True
        compared = self.sentence.any("compare")
        if before.stem in ("with", "to") and compared is not None and compared < span.start:
            return True
        return bool(before.has("join") and after is not None and after.has("refer") == "after")

    # --- names and checks ----------------------------------------------------------------------------------------

    def _said(self, span: Span) -> str:
        return self.sentence.said(span.start, span.end)

    def _name(self, bounds: Bounds, span: Span) -> str:
        zh = self.voice.zh
        if span.until is not None:
            last = bounds[1] - dt.timedelta(days=1)
            calendar = self._known()
            if (
                span.unit != "day"
                and span.until.unit == span.unit
                and span.unit in ("month", "quarter", "year", "half")
            ):
                low = label(span.unit, *calendar.around(span.unit, bounds[0]), zh)
                high = label(span.unit, *calendar.around(span.unit, last), zh)
                return f"{low}至{high}" if zh else f"{low} to {high}"
            return label("day", *bounds, zh)
        if span.side or span.count:
            return label("day", *bounds, zh)
        return label(_unit_of("year" if span.same else span.unit, bounds), *bounds, zh)

    def _both(self, first: Span, a: Bounds, second: Span, b: Bounds) -> str:
        names = (self._name(a, first), self._name(b, second))
        return "和".join(names) if self.voice.zh else " and ".join(names)

    def _period(self, span: Span) -> Period:
        bounds = self._resolve(span)
        return self._named(span.unit, bounds, self._name(bounds, span))

    def _named(self, unit: str, bounds: Bounds, name: str) -> Period:
        del unit
        calendar = self._known()
        if not calendar.overlaps(bounds):
            raise self._outside(name)
        last = bounds[1] - dt.timedelta(days=1)
        missing = max((calendar.first - bounds[0]).days, 0) + max((last - calendar.last).days, 0)
        if missing > 0.03 * (bounds[1] - bounds[0]).days:
            self.sentence.note(
                f"The data covers {calendar.first} to {calendar.last}, so only a part of {name}.",
                f"数据只覆盖 {calendar.first} 至 {calendar.last}，{name}并不完整。",
            )
        if self.column is None:
            raise AssertionError("a period without a time column")
        return Period(self.column.name, bounds[0], bounds[1], name)

    def _outside(self, name: str) -> QuestionError:
        calendar = self._known()
        return self.voice.error(
            "period_out_of_range",
            f"The data has nothing for {name}: it covers {calendar.first} to {calendar.last}.",
            f"数据中没有{name}：数据覆盖 {calendar.first} 至 {calendar.last}。",
            [calendar.first.isoformat(), calendar.last.isoformat()],
        )

    def _bad(self, span: Span) -> QuestionError:
        said = self._said(span)
        return self.voice.error("bad_period", f"'{said}' is not a day that exists.", f"“{said}”不是有效的日期。")


def _year_earlier(bounds: Bounds) -> Bounds:
    return add_months(bounds[0], -12), add_months(bounds[1], -12)


_DAYS = MappingProxyType(
    {"day": (1, 1), "week": (7, 7), "month": (28, 31), "quarter": (90, 92), "season": (90, 92), "half": (181, 184),
     "year": (365, 366)}
)  # fmt: skip
_FIRSTS = MappingProxyType({"quarter": (1, 4, 7, 10), "season": (3, 6, 9, 12), "half": (1, 7), "year": (1,)})


def _unit_of(unit: str, bounds: Bounds) -> str:
    """The unit of which the days are a whole one, `unit` if possible; a plain range of days otherwise."""
    days = (bounds[1] - bounds[0]).days
    for name in (unit, "month", "quarter", "year"):
        low, high = _DAYS.get(name, (1, 0))
        begins = name in ("day", "week") or (bounds[0].day == 1 and bounds[0].month in _FIRSTS.get(name, range(1, 13)))
        if low <= days <= high and begins:
            return name
    return "day"
