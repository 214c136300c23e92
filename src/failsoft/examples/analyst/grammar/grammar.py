"""Reads a question into an intent, from nothing but the table's own names, values and days."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

from failsoft.examples.analyst.grammar.absences import Absences
from failsoft.examples.analyst.grammar.accounting import Accounting
from failsoft.examples.analyst.grammar.alternatives import combined
from failsoft.examples.analyst.grammar.conditions import Conditions, FoundValue, complement, truth_filter
from failsoft.examples.analyst.grammar.dateless import TimeReading
from failsoft.examples.analyst.grammar.groupings import Asked, Groupings, auto_grain
from failsoft.examples.analyst.grammar.lexicon import ROW_CONCEPTS
from failsoft.examples.analyst.grammar.limits import Limits, time_means_note
from failsoft.examples.analyst.grammar.measures import Measures, is_unknown
from failsoft.examples.analyst.grammar.mentions import Sentence
from failsoft.examples.analyst.grammar.numeric import typed
from failsoft.examples.analyst.grammar.rankings import Rankings
from failsoft.examples.analyst.grammar.schema import SchemaIndex
from failsoft.examples.analyst.grammar.tables import also_in, read_for
from failsoft.examples.analyst.grammar.timecolumns import chosen_time, named_times
from failsoft.examples.analyst.grammar.timeline import Timeline
from failsoft.examples.analyst.grammar.weekdays import Weekdays
from failsoft.examples.analyst.grammar.wording import QuestionError, Voice, read_back
from failsoft.examples.analyst.grammar.words import Word, clean, stem
from failsoft.examples.analyst.spec import Column, Filter, Grain, Group, Intent, Measure, Query, TableProfile
from failsoft.examples.analyst.totals import without

MAX_QUESTION = 10_000
"""Characters of the longest question that is read."""
MAX_WORDS = 1_500
"""Words of the longest question that is read: far more than a question has, and a bound on the work."""

Language = Literal["en", "zh"]


class Grammar:
    """The grammar for some tables; the index is built once, :meth:`read` is pure and does no I/O."""

    def __init__(self, profiles: Sequence[TableProfile]) -> None:
        if not profiles:
            raise QuestionError("no_table", "There is no table to ask about.", param="profiles")
        self._schemas = tuple(SchemaIndex(profile) for profile in profiles)

    def __repr__(self) -> str:
        return f"<Grammar of {', '.join(schema.profile.table for schema in self._schemas)}>"

    def read(self, question: str, *, today: dt.date | None = None) -> Intent:
        """The question as an intent; raises :class:`QuestionError` and nothing else, whatever the text."""
        if not question.strip():
            raise QuestionError("empty_question", "The question is empty.")
        if len(question) > MAX_QUESTION:
            raise QuestionError(
                "question_too_long", f"The question has {len(question)} characters; at most {MAX_QUESTION} are read."
            )
        text = clean(question)
        if len(text) > MAX_QUESTION:  # some characters stand for a dozen
            raise QuestionError("question_too_long", f"The question spells out to {len(text)} characters.")
        fitting = read_for(text, self._schemas)
        schema, words, corrections = fitting.schema, fitting.words, fitting.corrections
        if not any(word.kind != "symbol" for word in words):
            raise QuestionError("empty_question", "The question has no words.")
        if len(words) > MAX_WORDS:
            raise QuestionError(
                "question_too_long", f"The question has {len(words)} words; at most {MAX_WORDS} are read."
            )
        reading = _Reading(text, words, schema, corrections, today)
        intent = reading.intent()
        others = also_in(intent, schema, self._schemas)
        if not others or not fitting.unsaid:
            return intent
        note = reading.voice.say(
            f"Answered from the table {schema.profile.table}; {reading.voice.listing(others)} has these columns, too.",
            f"取自表 {schema.profile.table}；{reading.voice.listing(others)} 也有这些列。",
        )
        return replace(intent, notes=(*intent.notes, note))


def read_question(question: str, profiles: Sequence[TableProfile], *, today: dt.date | None = None) -> Intent:
    """Read one question. For several questions about the same tables keep a :class:`Grammar`."""
    return Grammar(profiles).read(question, today=today)


def language_of(words: Sequence[Word]) -> Language:
    """Chinese when the words around the names of columns and values are."""
    chinese = latin = 0
    for strict in (True, False):
        for word in words:
            if strict and (word.columns or word.values):
                continue
            if word.kind == "cjk":
                chinese += len(word.text)
            elif word.kind == "word" and word.number is None:
                latin += 1
        if chinese or latin:
            break
    return "zh" if chinese > latin else "en"


class _Reading:
    """One question on its way."""

    def __init__(
        self,
        text: str,
        words: list[Word],
        schema: SchemaIndex,
        corrections: Sequence[tuple[str, str]],
        today: dt.date | None,
    ) -> None:
        self.words = words
        self.schema = schema
        self.language = language_of(words)
        self.voice = Voice(self.language)
        self.sentence = Sentence(words, schema, self.language, text)
        for written, read in corrections:
            self.sentence.note(f"'{written}' is read as '{read}'.", f"“{written}”按“{read}”理解。")
        self.conditions = Conditions(self.sentence)
        self.conditions.read_numbers()
        self.dates = named_times(self.sentence)
        self.sentence.time = self._time_column()
        self.timeline = Timeline(self.sentence, self.sentence.time, today, self.dates)
        self.conditions.read_values()
        self.groupings = Groupings(self.sentence)
        self.limits = Limits(self.sentence, self.groupings, self.conditions)

    def _time_column(self) -> Column | None:
        """The table's time, or another time column that the question names."""
        for mention in self.sentence.mentions:
            times = mention.columns("time")
            if len(times) == 1 and times[0].literal and mention.end - mention.start > 1 and len(mention.hits) == 1:
                return times[0].column
        return chosen_time(self.sentence, self.dates)

    # --- the parts -----------------------------------------------------------------------------------------------

    def intent(self) -> Intent:
        """All parts together."""
        self.limits.refuse_statistics()
        self.groupings.read()
        Weekdays(self.sentence, self.conditions, ranked=self.groupings.ranked).read()
        pair = self._pair_of_values()
        grouped = self.groupings.by_time or self.sentence.any("trend") is not None
        time = self.timeline.interpret(
            pair_of_values=pair is not None, grouped_by_time=grouped, ranked=self.groupings.ranked
        )
        share = self._share()
        self._group_by_time(time)
        measures = Measures(self.sentence, self.groupings, self.conditions)
        measure = self._measure(measures, time, share=share, pair=pair is not None)
        Absences(self.sentence, self.conditions, time.period.column if time.period is not None else None).read()
        self._compared_values(pair is not None)
        self.groupings.take_left(
            compared=self.timeline.kind() is not None, share=self.sentence.any("share") is not None
        )
        if share is not None:
            self.groupings.add(Group(share.column.name), share.index, "share")
        self.limits.refuse_shapes(measure)
        self._say_what_is_counted(measure)
        unusual = self._unusual(time)
        self._truths()
        column = self.schema.by_name[measure.column].column if measure.column else None
        self.conditions.settle(column)
        self._leftovers()
        self._say_which_date(time)
        if self.groupings.by_time and column is not None:
            time_means_note(self.sentence, measure.aggregate, column.additive, self.words)
        return self._assemble(measures, measure, time, pair, share, unusual=unusual)

    def _measure(self, measures: Measures, time: TimeReading, *, share: FoundValue | None, pair: bool) -> Measure:
        describe = self.sentence.any("describe")
        kinds = ("high", "top", "compare", "diff", "change", "yoy", "trend", "unusual", "share", "sort", "much")
        asked = bool(self.groupings.found) or any(self.sentence.any(kind) is not None for kind in kinds)
        asked = asked or time.period is not None or pair or share is not None
        asked = asked or any(m.columns("category") and not m.used for m in self.sentence.mentions)
        plain = bool(self.sentence.mentions) or any(w.used for w in self.words)
        if describe is not None and not asked and not plain:
            names = [named.column.name for named in self.schema.columns]
            self.sentence.note(
                f"The table has these columns: {self.voice.listing(names, 60)}.",
                f"表中有这些列：{self.voice.listing(names, 60)}。",
            )
            return Measure("count")
        return measures.read(anything_asked=asked)

    def _say_what_is_counted(self, measure: Measure) -> None:
        if measure.column is not None or stem(self.schema.profile.row_noun) not in ("row", ""):
            return
        for word in self.words:
            if word.used == "measure" and word.concepts & ROW_CONCEPTS and word.stem not in self.schema.row_nouns:
                self.sentence.note(f"Each row is counted as one of the {word.text}.", f"每一行计为一个“{word.text}”。")
                return

    def _pair_of_values(self) -> tuple[FoundValue, FoundValue | None] | None:
        """Two values of one column that are compared, or one with all others."""
        kind = self.timeline.kind()
        values = [v for v in self.conditions.values if not v.negated]
        if kind in ("compare", "diff") and len(values) == 1:
            others = self.sentence.any("others")
            if others is not None and others > values[0].index:
                self.sentence.use(others, others + 1, "compare")
                return values[0], None
        for a, b in itertools.pairwise(values):
            if a.column.name != b.column.name or a.value == b.value:
                continue
            same = [v for v in values if v.column.name == a.column.name]
            link = self.words[a.index + 1 : b.index]
            if len(link) > 5 or len(same) > 2:
                continue
            strong = any(w.has("compare") or w.has("refer") for w in link)
            directed = kind == "compare" and any(w.stem in ("with", "to", "than") for w in link)
            joined = (
                kind in ("compare", "diff")
                and len(self.timeline.spans) < 2
                and any(w.has("join") or w.has("range") or w.stem == "," for w in link)
            )
            if strong or directed or joined:
                return (b, a) if self._reference_first(a) else (a, b)
        return None

    def _reference_first(self, a: FoundValue) -> bool:
        before = self.sentence.word(a.index - 1)
        after = self.sentence.word(a.index + 1)
        if before is not None and before.has("refer") == "before" and before.has("compare") and before.kind != "cjk":
            return True
        return bool(before is not None and before.has("join") and after is not None and after.has("refer") == "after")

    def _share(self) -> FoundValue | None:
        """The value whose share is asked for: it stays among the groups instead of becoming a filter."""
        at = next((i for i, w in enumerate(self.words) if w.has("share") and not w.used), None)
        if at is None:
            return None
        grouped = {group.column for group in self.groupings.groups}
        values = [v for v in self.conditions.values if not v.negated and v.column.name not in grouped]
        if self.groupings.found or not values:
            return None
        after = [v for v in values if v.index > at]
        return (after or values)[0]

    def _compared_values(self, paired: bool) -> None:
        """Three or more values that are compared are groups."""
        if paired or self.timeline.kind() not in ("compare", "diff") or self.groupings.found:
            return
        for value in self.conditions.values:
            same = {v.value for v in self.conditions.values if v.column.name == value.column.name and not v.negated}
            if len(same) > 2:
                self.groupings.add(Group(value.column.name), value.index, "left")
                return

    def _group_by_time(self, time: TimeReading) -> None:
        trend = self.sentence.any("trend")
        wanted = time.by
        if trend is not None and not self.groupings.by_time:
            wanted = wanted or "auto"
        if (
            time.change
            and time.period is None
            and not time.filters
            and not self.groupings.by_time
            and self.sentence.time
        ):
            wanted = wanted or "auto"
        if wanted is None or self.groupings.by_time:
            return
        if wanted == "auto":
            self._by_auto(time, trend)
        elif self.sentence.time is not None and wanted in ("day", "week", "month", "quarter", "year"):
            self.groupings.add(Group(self.sentence.time.name, cast("Grain", wanted)), 0, "per")
        elif (part := self.schema.time_part(wanted)) is not None:
            self.groupings.add(Group(part.name), 0, "per")

    def _by_auto(self, time: TimeReading, trend: int | None) -> None:
        column = self.sentence.time
        if column is None:
            part = self.schema.time_part("year") or self.schema.time_part("month")
            if part is None:
                self.groupings.time_group("month", self.words[trend] if trend is not None else None)
                return
            self.groupings.add(Group(part.name), 0, "per")
            return
        known = self.schema.range(column)
        grain: Grain = "month"
        if time.period is not None:
            grain = auto_grain(time.period.start, time.period.end)
        elif known is not None:
            grain = auto_grain(*known)
        coarse: list[Grain] = ["day", "month", "quarter", "year"]
        if column.grain in coarse and grain in coarse:
            grain = coarse[max(coarse.index(grain), coarse.index(column.grain))]
        group = self.groupings.time_group(grain)
        self.groupings.found.insert(0, Asked(group, 0, "per"))
        names = {"day": "天", "month": "月", "quarter": "季度", "year": "年"}
        self.sentence.note(f"The course over time is shown per {grain}.", f"走势按{names[grain]}展示。")

    def _unusual(self, time: TimeReading) -> bool:
        if self.sentence.any("unusual") is None:
            return False
        self.groupings.take_left_grain()
        if not self.groupings.found:
            if self.sentence.time is None:
                raise self.voice.error(
                    "not_supported",
                    "Unusual values are looked for among groups: say per what, for there is no time column.",
                    "异常值需要在分组之间寻找：请说明按什么分组，因为表中没有时间列。",
                    [n.column.name for n in self.schema.columns if n.column.role == "category"],
                )
            self._by_auto(time, None)
        return True

    def _say_which_date(self, time: TimeReading) -> None:
        """Of several dates, none of which the question names, the one that was taken."""
        times = [n.column.name for n in self.schema.columns if n.column.role == "time"]
        used = time.period is not None or self.groupings.by_time or any(f.grain for f in self.conditions.filters)
        taken = self.sentence.time
        if len(times) < 2 or not used or taken is None or any(column is taken for _, column in self.dates):
            return
        if any(m.used and any(h.column is taken for h in m.hits) for m in self.sentence.mentions):
            return
        others = self.voice.listing([name for name in times if name != taken.name])
        self.sentence.note(
            f"The question names no date of its own; {taken.name} is taken, and not {others}.",
            f"问题没有指明哪个日期，取 {taken.name}，而不是 {others}。",
        )

    def _truths(self) -> None:
        """``returned orders``: a column of two truth values used as an adjective is a condition."""
        for mention in self.sentence.mentions:
            if mention.used or any(self.words[k].used for k in range(mention.start, mention.end)):
                continue
            for hit in mention.hits:
                nots = [
                    self.words[k] for k in range(max(mention.start - 2, 0), mention.start) if self.words[k].has("not")
                ]
                value = self.schema.truth(hit.column, not nots)
                if value is None:
                    continue
                for word in nots:
                    word.used = word.used or "condition"
                self.sentence.take(mention, "condition")
                self.conditions.add(truth_filter(hit.column, value), mention.start, mention.end)
                self.sentence.note(
                    f"'{mention.text}' is read as {hit.column.name} = {value}.",
                    f"“{mention.text}”理解为 {hit.column.name} = {value}。",
                )
                break

    # --- what nobody understood ----------------------------------------------------------------------------------

    def _leftovers(self) -> None:
        """Words that should have been a column or a value are errors; of others the accounting tells."""
        for i, word in enumerate(self.words):
            if word.has("dayname") and not word.used and not word.columns and not word.values:
                raise self.voice.error(
                    "not_supported",
                    f"'{word.text}' is a day of the week, and the table has no dates to take it from.",
                    f"“{word.text}”是星期，而表中没有可用的日期。",
                )
            if not is_unknown(word, self.sentence.mention_at(i)) or self.schema.is_row_noun(word):
                continue
            run = self._run(i)
            before = self._before(i)
            if before is not None and (before.has("per") or before.has("which")):
                raise self._unknown_column(run)
            slotted = before is not None and any(before.has(kind) for kind in ("slot", "dir", "not"))
            named = word.kind == "word" and word.text[:1].isupper() and i > 0
            if word.kind == "cjk":
                slotted = len(run) > 1 and (slotted or self._owned(i + len(run)))
            said_of = before is not None and (before.has("op") in ("=", "!=") or before.has("not"))
            slotted = slotted or bool(said_of and not run.casefold().endswith(("ing", "ly")))
            beside = self.sentence.word(i + 1)
            if word.concepts and beside is not None and beside.used == "measure":
                slotted = named = False  # customer satisfaction, employee salary: the noun only says whose
            if slotted or named or (len(run) > 1 and self._qualifies(i, run)):
                raise self._unknown_value(run)
            for k in range(i, min(i + len(run), len(self.words))):
                if word.kind == "cjk":
                    self.words[k].used = "left"

    def _run(self, i: int) -> str:
        """The word at `i`, or all of a run of unknown Chinese characters."""
        if self.words[i].kind != "cjk":
            return self.words[i].text[:60]
        j = i
        while (
            j < len(self.words)
            and j < i + 20
            and self.words[j].kind == "cjk"
            and is_unknown(self.words[j], self.sentence.mention_at(j))
        ):
            j += 1
        return "".join(w.text for w in self.words[i:j])

    def _owned(self, j: int) -> bool:
        """Whether 的 follows, with nothing but periods and values between: 某某 7月的延误."""
        while j < len(self.words) and (self.words[j].used in ("time", "value") or self.words[j].has("counter")):
            j += 1
        return j < len(self.words) and self.words[j].stem == "的"

    def _qualifies(self, i: int, run: str) -> bool:
        """Whether an unknown word stands right before what is measured: *emergency* visits are not all visits."""
        j = i + (len(run) if self.words[i].kind == "cjk" else 1)
        if j >= len(self.words) or self.words[j].used != "measure" or self.words[i].concepts:
            return False
        return not self.words[i].text.casefold().endswith(("ing", "ly"))

    def _before(self, i: int) -> Word | None:
        for j in range(i - 1, max(i - 4, -1), -1):
            word = self.words[j]
            if word.stem not in ("the", "a", "an", "our", "all", "this", "any", "every", "each") or word.has("per"):
                return word
        return None

    def _unknown_column(self, said: str) -> QuestionError:
        names = [named.column.name for named in self.schema.columns]
        return self.voice.error(
            "unknown_column",
            f"There is no column '{said}'; the table has {self.voice.listing(names)}.",
            f"没有名为“{said}”的列；表中有：{self.voice.listing(names)}。",
            names,
        )

    def _unknown_value(self, said: str) -> QuestionError:
        names = [n.column.name for n in self.schema.columns]
        return self.voice.error(
            "unknown_value",
            f"'{said}' is neither a column nor a value of the table; its columns are {self.voice.listing(names)}.",
            f"“{said}”既不是列名也不是表中的取值；现有的列：{self.voice.listing(names)}。",
            names,
        )

    # --- together ------------------------------------------------------------------------------------------------

    def _assemble(
        self,
        measures: Measures,
        measure: Measure,
        time: TimeReading,
        pair: tuple[FoundValue, FoundValue | None] | None,
        share: FoundValue | None,
        *,
        unusual: bool,
    ) -> Intent:
        leave = [v for v in (*(pair or ()), share) if v is not None]
        if share is not None:  # of several values: all of them stay among the groups
            leave += [v for v in self.conditions.values if v.column is share.column and not v.negated]
        placed = [*self.conditions.placed(), *self.conditions.value_filters(leave)]
        filters = [*combined(self.sentence, placed), *time.filters, *self.timeline.other_dates()]
        compared = time.other is not None or pair is not None or bool(time.other_filters)
        groups = tuple(self.groupings.groups)
        if pair is not None:
            groups = tuple(group for group in groups if group.column != pair[0].column.name)
        rankings = Rankings(self.sentence, self.groupings, measures.mention)
        ranking = rankings.read(measure, compared=compared) if groups else None
        self.limits.refuse_rank_of_each(ranking)
        self.limits.refuse_rates()
        self.limits.refuse_arithmetic(measures.mention)
        self.limits.refuse_unread(measures.mention)
        sharing = self._wants_share(groups)
        query = Query(
            table=self.schema.profile.table,
            measure=measure,
            group_by=groups,
            filters=tuple(_unique(filters)),
            period=time.period,
            order=ranking.order if ranking else "natural",
            limit=ranking.limit if ranking else None,
            share=sharing,
        )
        query = without(query, self.schema.profile)
        query, other = self._compared(query, time, pair)
        intent = Intent(
            query=query,
            compare_to=other,
            rank=ranking.rank if ranking else "value",
            mark_unusual=unusual,
            focus=share.value if share is not None else None,
            chart=self._chart(groups, compared=other is not None),
            language=self.language,
        )
        unread = Accounting(self.sentence, intent).unread()
        if unread:
            self.sentence.note(
                f"Not understood and left out: {self.voice.listing(unread, 10)}.",
                f"未能理解、已略去：{self.voice.listing(unread, 10)}。",
            )
        reading = read_back(intent, self.schema.profile)
        return replace(intent, reading=reading, notes=tuple(self.sentence.notes), unread=unread)

    def _compared(
        self, query: Query, time: TimeReading, pair: tuple[FoundValue, FoundValue | None] | None
    ) -> tuple[Query, Query | None]:
        plain = replace(query, order="natural", limit=None)
        if pair is not None:
            subject, reference = pair
            mine = Filter(subject.column.name, "=", typed(subject.column, subject.value))
            theirs = complement(mine)
            if reference is not None:
                theirs = Filter(reference.column.name, "=", typed(reference.column, reference.value))
            return replace(query, filters=(*query.filters, mine)), replace(plain, filters=(*query.filters, theirs))
        if time.other is not None:
            return query, replace(plain, period=time.other)
        if time.other_filters:
            kept = [f for f in query.filters if f not in time.filters]
            return query, replace(plain, filters=(*kept, *time.other_filters))
        return query, None

    def _wants_share(self, groups: Sequence[Group]) -> bool:
        said = any(w.has("share") and not w.used and not w.columns for w in self.words)
        if said and not groups:
            raise self.voice.error(
                "not_supported",
                "A share needs groups to be a share of: say per what.",
                "占比需要分组：请说明按什么分组。",
                [n.column.name for n in self.schema.columns if n.column.role == "category"],
            )
        return said

    def _chart(self, groups: Sequence[Group], *, compared: bool) -> Literal["bar", "line", "compare"] | None:
        if not groups:
            return None
        wishes = [w.senses["chart"] for w in self.words if "chart" in w.senses and not w.columns and w.used != "value"]
        if "other" in wishes:
            self.sentence.note("That kind of chart is not drawn; a plain one is.", "不支持该图表类型，改用普通图表。")
        if compared:
            return "compare"
        for wish in wishes:
            if wish in ("bar", "line"):
                return cast("Literal['bar', 'line']", wish)
        cyclic = ("weekday", "month_of_year", "hour_of_day")
        timed = any(group.grain is not None and group.grain not in cyclic for group in groups)
        parts = {
            n.column.name
            for n in self.schema.columns
            if n.concept in ("year", "month", "quarter") and not n.column.additive
        }
        ranked = any(w.has("top") or w.has("high") or w.has("busiest") for w in self.words if not w.columns)
        return "line" if (timed or groups[0].column in parts) and not (ranked and self._cut()) else "bar"

    def _cut(self) -> bool:
        return any(a.how in ("which", "rank") for a in self.groupings.found)


def _unique(filters: Sequence[Filter]) -> list[Filter]:
    kept: list[Filter] = []
    for item in filters:
        if item not in kept:
            kept.append(item)
    return kept
