"""What of a question its answer does not respect: every word that says something must have found its place.

A word is accounted for when a reader has used it, when one of its senses shows in the intent (*highest* in an order,
*average* in the aggregate), when it names what the query reads anyway, or when it says nothing by itself
(:data:`~failsoft.examples.analyst.grammar.phrases.STOPS` without :data:`TELLING`). All others are unread: the numbers
ignore them, so the answer must say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

from failsoft.examples.analyst.grammar.lexicon import CONCEPTS, PEOPLE_WORDS, PERSON_WORDS, UNITS
from failsoft.examples.analyst.grammar.mentions import Mention, Sentence
from failsoft.examples.analyst.grammar.quantities import UNIT_WORDS, unit_of
from failsoft.examples.analyst.grammar.schema import name_parts
from failsoft.examples.analyst.grammar.words import Word, stem
from failsoft.examples.analyst.spec import Intent, Query, columns_of

_TELLING_WORDS = """
early late later earlier recently currently today usually typically normally mostly mainly higher lower larger
better quick quickly fast slow slowly almost nearly same another other near less more than 只 率 较
"""
TELLING: Final = frozenset(stem(word) for word in _TELLING_WORDS.split())
"""Words that readers may skip, but that say something of the numbers where nobody has read them."""
_STATES: Final = frozenset({"paid", "left", "sold", "registered", "booked"})
"""Words that only tell what happened, unless they stand before what is counted: *paid* invoices."""
_LITTLE_WORDS = """
en de del la el los las le les du des dans et y au aux con para sur un una une
everything anything something money sum statistic trend performance situation data metric measure kpi
"""
_LITTLE: Final = frozenset(_LITTLE_WORDS.split())
"""Words that say nothing, and are too short or too common to be left out of typing errors and names elsewhere."""
_WHOSE: Final = frozenset({*PERSON_WORDS, "energy"})
"""Concepts that only say whose or what kind of thing a number is, where the table has no column of them."""
_BARE: Final = frozenset({"date", "time", "日期", "时间"})
_MEANT_TO_LEAD: Final = frozenset(
    {"on", "in", "at", "for", "when", "if", "while", "during", "with", "by", "under", "over"}
)
MOST: Final = 12
"""Phrases that are told; more are counted."""

_FREE: Final = frozenset(
    {
        "count",
        "countpost",
        "much",
        "which",
        "who",
        "whom",
        "where",
        "when",
        "chart",
        "dir",
        "slot",
        "range",
        "with",
        "all",
    }
    | {"counter", "nth", "describe", "join", "rowvalue", "beyond", "not"}
)
"""Senses that say how a question is put, or that are refused where nobody has read them."""


class Accounting:
    """Accounts for the words of one sentence, whose intent is known."""

    def __init__(self, sentence: Sentence, intent: Intent) -> None:
        self.sentence = sentence
        self.words = sentence.words
        self.schema = sentence.schema
        self.intent = intent
        self.queries: list[Query] = [intent.query] if intent.compare_to is None else [intent.query, intent.compare_to]
        self.columns = {name for query in self.queries for name in columns_of(query)}
        self._shown = self._senses()

    def unread(self) -> tuple[str, ...]:
        """The phrases that nobody understood, as they were written, each once."""
        left = [i for i in range(len(self.words)) if not self._accounted(i)]
        phrases: list[str] = list(self.sentence.unread)
        for start, end in _runs(left, self.words):
            said = self.sentence.said(self._lead(start), end)
            if said and said not in phrases:
                phrases.append(said)
        if len(phrases) > MOST:
            phrases = [*phrases[:MOST], f"… ({len(phrases) - MOST})"]
        return tuple(phrases)

    def _lead(self, start: int) -> int:
        """Where the phrase begins: with the preposition or the *when* before it."""
        for i in range(start - 1, max(start - 4, -1), -1):
            word = self.words[i]
            if word.used or not word.stop:
                break
            if word.stem in _MEANT_TO_LEAD:
                return i
        return start

    def _accounted(self, i: int) -> bool:
        word, mention = self.words[i], self.sentence.mention_at(i)
        if word.used and word.used != "left":
            return True
        if word.kind == "symbol":
            return not (word.values and self._stands_alone(i))
        if mention is not None and self._named(mention, i):
            return True
        if word.stem in _LITTLE or self._belongs(i):
            return True
        if word.used == "left":
            return False
        if word.senses:
            return any(self._shows(kind, word) for kind in word.senses) or (
                word.has("month") == "5" and word.text == "may"
            )
        if self.schema.is_row_noun(word) or word.stem in PEOPLE_WORDS:
            return True
        if word.stem in UNITS:
            return self._in_that_unit(word)
        if word.stop:
            return not self._tells(i)
        return bool(word.concepts) and all(
            c in _WHOSE or (mention is None and CONCEPTS[c].kind in "gt") for c in word.concepts
        )

    def _belongs(self, i: int) -> bool:
        """Whether a word is only the end of the one before: 30 *days*, 瑜伽*课*, JFK*出发*, 每*单*."""
        word, before = self.words[i], self.sentence.word(i - 1) if i else None
        if word.stem == "aged":
            after = self.sentence.word(i + 1)
            return after is not None and bool(after.used)
        if before is None:
            return False
        if (word.has("grain") or word.stem in UNITS) and before.used and before.number is not None:
            return True
        if before.used == "measure" and word.concepts & {"amount", "total", "value"} and not word.senses:
            return True  # 罚款总额
        if word.kind != "cjk" or word.stem in TELLING:
            return False
        if before.used == "value" and word.concepts & {"departure", "arrival"}:
            return True
        lone = len(word.text) == 1 and not word.senses
        following = self.sentence.word(i + 1)
        lone = lone and (following is None or following.kind != "cjk" or following.known or following.stop)
        opened = any(before.has(kind) for kind in ("per", "agg", "count"))
        return lone and (before.used == "value" or opened)

    def _in_that_unit(self, word: Word) -> bool:
        """Whether the measure may be in a unit that is said without a number: *in kWh*, but not *in MWh* then."""
        name = self.intent.query.measure.column
        column = self.schema.by_name[name].column if name is not None else None
        if column is None or word.stem in ("thousand", "million"):
            return word.stem not in ("thousand", "million")
        own = {stem(column.unit)} if column.unit else {part for part in name_parts(column.name) if part in UNITS}
        said, known = UNIT_WORDS.get(word.stem), unit_of(column)
        return (
            not own or word.stem in own or word.stem in column.name.casefold() or (said is not None and said == known)
        )

    def _per_head(self) -> bool:
        """Whether a row of the table is a person, so that a mean of rows is one per head."""
        people = PERSON_WORDS
        if any(word in self.schema.row_nouns for word in PEOPLE_WORDS):
            return True
        rows = self.schema.profile.rows
        return any(n.concept in people and n.column.distinct >= 0.99 * rows for n in self.schema.columns)

    def _stands_alone(self, i: int) -> bool:
        """Whether a value like ``/`` has spaces around it: it is no mark between words then."""
        word, text = self.words[i], self.sentence.text
        return text[: word.start][-1:] in ("", " ") and text[word.end :][:1] in ("", " ")

    def _named(self, mention: Mention, i: int) -> bool:
        """Whether a column is named that the query reads, or what a row is."""
        if mention.used and mention.used != "left":
            return True
        if any(hit.column.name in self.columns for hit in mention.hits):
            return True
        if all(hit.column.role == "time" and not hit.column.nulls for hit in mention.hits):
            return True  # all tickets were issued once
        rows = self.schema.profile.rows
        unique = any(h.column.role == "identifier" and h.column.distinct >= 0.99 * rows for h in mention.hits)
        return unique or self.schema.is_row_noun(self.words[i])

    def _tells(self, i: int) -> bool:
        word = self.words[i]
        if word.stem in TELLING:
            return True
        following = self.sentence.word(i + 1)
        if following is None:
            return False
        if word.stem in _STATES:
            named = self.sentence.mention_at(i + 1) is not None or self.schema.is_row_noun(following)
            return named and (i == 0 or not self.words[i - 1].concepts)
        return False

    # --- senses --------------------------------------------------------------------------------------------------

    def _shows(self, kind: str, word: Word) -> bool:
        if kind in _FREE:
            return True
        shown = self._shown.get(kind)
        return shown is not None and shown(word)

    def _senses(self) -> MappingProxyType[str, Callable[[Word], bool]]:
        query, intent = self.intent.query, self.intent
        aggregates = {query.measure.aggregate}
        ranked = query.order != "natural"
        extremes = aggregates & {"min", "max"}
        timed = any(group.grain for group in query.group_by) or self._by_part()
        compared = intent.compare_to is not None
        changing = compared or timed
        dated = any(one.period is not None for one in self.queries)
        excluded = any(f.op in ("!=", "not in") for one in self.queries for f in one.filters)
        shared = query.share or intent.focus is not None
        counted = {"count", "count_distinct"}

        def aggregated(word: Word) -> bool:
            asked = word.senses["agg"]
            if word.stem == "人均" and not self._per_head():
                return False
            return asked in aggregates or (asked == "sum" and bool(aggregates & counted)) or "count" in aggregates

        def ordered(word: Word) -> bool:
            """*Lowest* in an order or in a minimum; of *lowest and highest* a minimum shows but one."""
            if ranked or not extremes:
                return ranked
            said = word.has("agg") or {"high": "max", "low": "min"}.get(word.has("high") or "", "")
            return said not in ("min", "max") or said in extremes

        def grained(word: Word) -> bool:
            return timed or dated or word.stem in _BARE

        return MappingProxyType(
            {
                "agg": aggregated,
                **dict.fromkeys(("high", "top", "adjhigh", "adjlow", "busiest", "dirword", "sort"), ordered),
                "distinct": lambda word: "count_distinct" in aggregates or bool(query.group_by),
                "per": lambda word: bool(query.group_by) or word.stem in ("by", "every", "each", "within", "in each"),
                "compare": lambda word: compared or bool(query.group_by),
                **dict.fromkeys(("between", "refer"), lambda word: compared),
                "diff": lambda word: compared or bool(query.group_by),
                **dict.fromkeys(("change", "yoy", "yoygrain"), lambda word: changing),
                "others": lambda word: compared or excluded,
                "share": lambda word: shared,
                "unusual": lambda word: intent.mark_unusual,
                "trend": lambda word: timed,
                "grain": grained,
                "adverb": grained,
                "num": lambda word: word.number == 1,
                "op": lambda word: word.senses["op"] == "=" or (compared and word.has("refer") is not None),
                "rel": lambda word: word.senses["rel"] == "this",
            }
        )

    def _by_part(self) -> bool:
        """Whether the groups are parts of a date that the table holds by themselves."""
        parts = {"year", "quarter", "month", "week", "weekday", "day", "hour"}
        return any(self.schema.by_name[g.column].concept in parts for g in self.intent.query.group_by)


def _runs(places: Sequence[int], words: Sequence[Word]) -> list[tuple[int, int]]:
    """Neighbouring places as ``[start, end)``; little words between two of them are part of what they say."""
    runs: list[tuple[int, int]] = []
    for i in places:
        if runs and i - runs[-1][1] <= 2 and all(w.stop and not w.used for w in words[runs[-1][1] : i]):
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs
