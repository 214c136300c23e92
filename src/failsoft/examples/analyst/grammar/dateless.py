"""What periods come to, and how they are read in tables that hold years or months as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from failsoft.examples.analyst.grammar.mentions import Sentence
from failsoft.examples.analyst.grammar.periods import Span
from failsoft.examples.analyst.grammar.wording import QuestionError, Voice
from failsoft.examples.analyst.spec import Filter, Operator, Period

_SIDES: Mapping[str, Operator] = MappingProxyType({"since": ">=", "after": ">", "before": "<", "until": "<="})


@dataclass(slots=True)
class TimeReading:
    """What the spans of a question come to.

    ``by`` asks for a grouping by that grain; ``filters`` stand in for periods where the table has only a year column.
    """

    period: Period | None = None
    other: Period | None = None
    filters: list[Filter] = field(default_factory=list)
    other_filters: list[Filter] = field(default_factory=list)
    by: str | None = None
    change: bool = False


def without_time(sentence: Sentence, spans: Sequence[Span], kind: str | None) -> TimeReading:
    """Years (or months, quarters) held as plain numbers become filters; anything else cannot be answered."""
    if not spans:
        return TimeReading()
    schema = sentence.schema
    conditions: list[list[Filter]] = []
    for span in spans:
        column = schema.time_part(span.unit) if span.unit in ("year", "quarter", "month", "week") else None
        year = schema.time_part("year") if span.year is not None else None
        if column is None or span.relative or (span.unit != "year" and span.year is not None and year is None):
            raise no_time(sentence, span)
        value = span.year if span.unit == "year" else span.number
        low = Filter(column.name, ">=" if span.until else "=", value)
        found = [low]
        if span.until is not None:
            found.append(Filter(column.name, "<=", span.until.year if span.unit == "year" else span.until.number))
        elif span.side:
            found = [Filter(column.name, _SIDES[span.side], value)]
        if span.unit != "year" and year is not None:
            found.append(Filter(year.name, "=", span.year))
        conditions.append(found)
    if len(conditions) == 1:
        return TimeReading(filters=conditions[0])
    a, b = conditions[:2]
    if kind is None:
        values = [c[0].value for c in conditions if not isinstance(c[0].value, list)]
        return TimeReading(filters=[Filter(a[0].column, "in", list(values))], by=spans[0].unit)
    link = sentence.words[spans[0].end : spans[1].start]
    later = isinstance(a[0].value, int) and isinstance(b[0].value, int) and b[0].value > a[0].value
    if (any(w.has("range") for w in link) and kind != "compare") or (later and any(w.has("join") for w in link)):
        a, b = b, a
    return TimeReading(filters=a, other_filters=b, change=kind == "change")


def no_time(sentence: Sentence, span: Span) -> QuestionError:
    """The error for a period that the table has no dates for."""
    voice = Voice(sentence.language)
    names = [named.column.name for named in sentence.schema.columns]
    said = sentence.said(span.start, span.end)
    return voice.error(
        "no_time_column",
        f"'{said}' is a period, but the table has no date or time column; its columns are {voice.listing(names)}.",
        f"“{said}”是时间段，但表中没有日期或时间列；现有的列：{voice.listing(names)}。",
        names,
    )
