"""Whether what a model understood is what was asked: nothing that the question names is left out, nothing is made up.

The grammar's dictionary of the table knows which words of a question name columns, values, numbers and grains. A small
model often forgets one of them, or adds a condition of its own; the answer to that would be a right number to another
question. So what was added is left away again, and a plan that forgets is refused, with the word.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from failsoft.base.errors import PlanRefused
from failsoft.examples.analyst.grammar.mentions import read_words
from failsoft.examples.analyst.grammar.schema import SchemaIndex
from failsoft.examples.analyst.grammar.words import Word, clean
from failsoft.examples.analyst.spec import Filter, Intent, Query, Scalar, TableProfile

__all__ = ["Faithful"]

_READ: Final = 500
"""Characters of a question that are compared; of a longer one a part may have been told in passing."""


_RANKING: Final = frozenset({"top", "high", "low", "bottom", "busiest", "rank", "order", "sort"})
"""Senses of words that ask for an order."""


class Faithful:
    """The check for one table."""

    def __init__(self, profile: TableProfile) -> None:
        self._profile = profile
        self._schema = SchemaIndex(profile)

    def checked(self, question: str, intent: Intent) -> Intent:
        """The intent without what the question does not say; raises :class:`PlanRefused` when it lacks what it says."""
        text = clean(question)
        if not text.strip() or len(text) > _READ:
            return intent
        words, _ = read_words(text, self._schema)
        intent = self._trimmed(intent, words, text)
        queries = [intent.query] if intent.compare_to is None else [intent.query, intent.compare_to]
        for word in words:
            missing = self._left_out(word, queries)
            if missing:
                raise PlanRefused(
                    f"the model left out {missing} of the question: {word.text[:80]!r}", details={"reason": "left_out"}
                )
        self._aggregate(words, intent.query)
        return intent

    def _trimmed(self, intent: Intent, words: Sequence[Word], text: str) -> Intent:
        """Without conditions, periods, limits and extras that nothing in the question speaks of."""
        timed = any(_of_time(word) for word in words)
        said = {word.number for word in words if word.number is not None}
        ranked = any(set(word.senses) & _RANKING and not word.columns for word in words)
        grained = any(word.has("grain") or word.has("trend") for word in words)
        named = {name for word in words for name in word.columns}

        def trimmed(query: Query) -> Query:
            filters = tuple(one for one in query.filters if self._asked(one, words, text))
            fixed = {one.column for one in filters if one.op == "="}
            groups = tuple(
                group
                for group in query.group_by
                if group.column not in fixed
                and (ranked or group.column in named or (group.grain is not None and grained))
            )
            counted = query.limit in said
            return replace(
                query,
                group_by=groups,
                filters=filters,
                period=query.period if timed else None,
                order=query.order if groups and (ranked or counted) else "natural",
                limit=query.limit if groups and (counted or (ranked and query.limit == 1)) else None,
                share=query.share and any(word.has("share") for word in words),
            )

        query = trimmed(intent.query)
        other = None if intent.compare_to is None else trimmed(intent.compare_to)
        unusual = intent.mark_unusual and any(set(word.senses) & {"unusual", "outlier"} for word in words)
        return replace(intent, query=query, compare_to=None if other == query else other, mark_unusual=unusual)

    def _left_out(self, word: Word, queries: Sequence[Query]) -> str:
        """What a word names that no query uses, in a word; empty when it is used, or names nothing for certain."""
        if word.number is not None:
            return "" if word.number in _numbers(queries) else "a number"
        hits = [hit for hit in word.values if not hit.partial]
        if hits and not word.columns and not word.senses:
            used = {(f.column, str(v).casefold()) for f in _filters(queries) for v in _values(f)}
            return "" if any((hit.column, hit.value.casefold()) in used for hit in hits) else "a value"
        if word.columns and not hits:
            named = [self._profile.column(name) for name in word.columns]
            if any(column.role == "time" for column in named):
                return ""
            return "" if any(column.name in _columns(queries) for column in named) else "a column"
        month = word.has("month")
        if month is not None and word.text.casefold() != "may":
            return "" if any(_has_month(query, int(month)) for query in queries) else "a month"
        if (word.has("not") or word.has("op") == "!=") and not any(one.op == "!=" for one in _filters(queries)):
            return "a negation"
        grain = word.has("grain")
        if grain is not None and not word.columns:
            timed = any(group.grain is not None for query in queries for group in query.group_by)
            return "" if timed or any(query.period is not None for query in queries) else "a span of time"
        return ""

    def _aggregate(self, words: Sequence[Word], query: Query) -> None:
        said = {word.senses["agg"] for word in words if "agg" in word.senses and not word.columns}
        if any(word.has("count") and not word.stop for word in words):  # 多少 asks how much as well as how many
            said.add("count")
        meant = query.measure.aggregate
        if not said or meant in said or (meant == "count_distinct" and "count" in said):
            return
        named = {name for word in words for name in word.columns}
        if "count" in said and meant == "sum" and query.measure.column in named:  # how many units were sold
            return
        if "count" in said or "mean" in said or "median" in said or meant in ("mean", "median"):
            raise PlanRefused(
                f"the model takes the {meant}, the question says {', '.join(sorted(said))}",
                details={"reason": "left_out"},
            )

    def _asked(self, one: Filter, words: Sequence[Word], text: str) -> bool:
        """Whether a condition's value is named; a value in another script than the question's may be a translation."""
        said = text.casefold()
        for value in _values(one):
            if isinstance(value, bool):
                named = one.column in {name for word in words for name in word.columns} or any(
                    word.values for word in words
                )
            elif isinstance(value, int | float):
                named = any(word.number == value for word in words)
            else:
                shown = str(value).casefold()
                hit = any(h.column == one.column and h.value.casefold() == shown for w in words for h in w.values)
                named = hit or shown in said or (not said.isascii() and shown.isascii())
            if not named:
                return False
        return True

    def __repr__(self) -> str:
        return f"<Faithful {self._profile.table}>"


def _filters(queries: Sequence[Query]) -> Iterator[Filter]:
    for query in queries:
        yield from query.filters


def _values(one: Filter) -> list[Scalar]:
    return one.value if isinstance(one.value, list) else [one.value]


def _columns(queries: Sequence[Query]) -> set[str | None]:
    found: set[str | None] = set()
    for query in queries:
        found |= {query.measure.column, *(group.column for group in query.group_by)}
        found |= {one.column for one in query.filters}
    return found


def _numbers(queries: Sequence[Query]) -> set[float]:
    """All numbers that the queries use: in conditions, limits, and the parts of periods."""
    found: set[float] = set()
    for query in queries:
        if query.limit is not None:
            found.add(query.limit)
        for one in query.filters:
            for value in _values(one):
                if isinstance(value, int | float):
                    found.add(value)
                elif isinstance(value, str):
                    found |= {float(part) for part in value.split() if part.isdecimal()}
        if query.period is not None:
            for day in (query.period.start, query.period.end):
                found |= {day.year, day.month, day.day, (day.month + 2) // 3}
    return found


def _of_time(word: Word) -> bool:
    """Whether a word may speak of time: a number, a grain, a month, a quarter, last or this."""
    return (
        word.number is not None
        or any(part.isdigit() for part in word.text)
        or bool(set(word.senses) & {"grain", "month", "season", "half", "rel", "relday"})
    )


def _has_month(query: Query, month: int) -> bool:
    period = query.period
    if period is None:
        return False
    first, last = period.start, period.end - dt.timedelta(days=1)
    return last.year - first.year > 1 or any(
        first <= dt.date(year, month, 1) <= last or (first.year, first.month) == (year, month)
        for year in range(first.year, last.year + 1)
    )
