"""What is measured: an aggregate of a column or a count of rows."""

from __future__ import annotations

from typing import cast

from failsoft.examples.analyst.grammar.conditions import Conditions, truth_filter
from failsoft.examples.analyst.grammar.counting import Counting
from failsoft.examples.analyst.grammar.groupings import Groupings
from failsoft.examples.analyst.grammar.lexicon import ADJECTIVES, CONCEPTS, NOT_ADDITIVE, PEOPLE_WORDS, UNITS
from failsoft.examples.analyst.grammar.mentions import Hit, Mention, Sentence, choose, choose_and_tell, missing_concept
from failsoft.examples.analyst.grammar.rankings import direction_of
from failsoft.examples.analyst.grammar.teaching import example_questions
from failsoft.examples.analyst.grammar.wording import QuestionError, Voice
from failsoft.examples.analyst.grammar.words import Word
from failsoft.examples.analyst.spec import Aggregate, Column, Filter, Measure

_COUNTED = frozenset({"most", "fewest", "least", "最多", "最少", "top"})


class Measures(Counting):
    """Reads the measure of one sentence."""

    def __init__(self, sentence: Sentence, groupings: Groupings, conditions: Conditions) -> None:
        self.sentence = sentence
        self.words = sentence.words
        self.schema = sentence.schema
        self.groupings = groupings
        self.conditions = conditions
        self.voice = Voice(sentence.language)
        self.mention: Mention | None = None
        self.column: Column | None = None

    # --- which column --------------------------------------------------------------------------------------------

    def read(self, *, anything_asked: bool) -> Measure:
        """The measure; `anything_asked` allows a default. Raises ``QuestionError``."""
        self._refuse_texts()
        self._late_rows()
        measure = (
            self._row_value()
            or self._counted()
            or self._ranked_by_adjective()
            or self._named()
            or self._rows()
            or self._borrowed()
        )
        if measure is not None:
            return measure
        self._refuse_unknown()
        if self.sentence.any("busiest") is not None:
            return Measure("count")
        if not anything_asked:
            raise self.no_measure()
        return self._default()

    def _refuse_texts(self) -> None:
        """``average ratio`` of a column that was kept as text because of one value: another column is no answer."""
        kept = {n.column: n for n in self.schema.profile.notes if n.code in ("not_all_numbers", "mixed_marks")}
        for mention in self.sentence.mentions if kept else ():
            hits = [hit for hit in mention.hits if hit.column.name in kept]
            if not hits or mention.used or self._numeric(mention):
                continue
            if self._aggregated(mention) or not self.schema.by_name[hits[0].column.name].column.values:
                note = kept[hits[0].column.name]
                raise self.voice.error("unknown_metric", f"{note.en}.", f"{note.zh}。", self.numbers())

    def numbers(self) -> list[str]:
        """The columns that can be measured."""
        return [n.column.name for n in self.schema.columns if self.schema.is_measure(n.column)]

    def aggregate(self, column: Column) -> Aggregate:
        """The aggregate that was asked for, else the column's usual one."""
        asked = [w.senses["agg"] for w in self.words if "agg" in w.senses]
        special = [a for a in asked if a != "sum"]
        if special:
            if len(set(special)) > 1:
                self.sentence.note(
                    f"One aggregate at a time: the {special[0]} is given.", f"一次只给出一种统计：{special[0]}。"
                )
            return cast("Aggregate", special[0])
        if asked:
            if not column.additive:
                self.sentence.note(
                    f"Adding up {column.name} has little meaning; it was asked for, so it is done.",
                    f"对 {column.name} 求和意义不大，但按要求计算。",
                )
            return "sum"
        named = self.schema.by_name.get(column.name)
        adding = column.additive and not (named is not None and named.concept in NOT_ADDITIVE)
        if (extreme := self._extreme(column)) is not None:
            return extreme
        if not adding and self.groupings.ranked:
            self.sentence.note(f"Groups are ranked by the mean of {column.name}.", f"按 {column.name} 的平均值排序。")
        return "sum" if adding else "mean"

    def _extreme(self, column: Column) -> Aggregate | None:
        """*The highest delay per carrier* is a maximum; *the carrier with the highest delay* a ranking."""
        if self.mention is None or any(a.how != "per" for a in self.groupings.found):
            return None
        if self.sentence.any("top") is not None and self.sentence.any("high") is None:
            return None
        for i, word in enumerate(self.words):
            if self.mention.start <= i < self.mention.end:
                continue  # a column called Best
            direction = word.has("high")
            adjective = word.has("adjhigh")
            if direction is None and adjective and i == self.mention.start - 1:
                return "max" if ADJECTIVES[adjective][1] == "desc" else "min"
            if direction is None or word.used == "group" or word.has("agg"):
                continue
            if self.groupings.found and not self.mention.start - 3 <= i < self.mention.start:
                continue
            if word.stem in ("most", "fewest", "least", "top"):
                continue
            return "max" if direction_of(direction, column, self.schema) == "desc" else "min"
        return None

    def _numeric(self, mention: Mention) -> list[Hit]:
        return [hit for hit in mention.columns("number") if self.schema.is_measure(hit.column)]

    def _take(self, mention: Mention, hits: list[Hit]) -> Column:
        best = choose_and_tell(self.sentence, mention, hits)
        column = self.conditions.pick(best, mention.text)
        self.sentence.take(mention, "measure")
        self.mention, self.column = mention, column
        return column

    def _named(self) -> Measure | None:
        """A number column that the question names; the one beside an aggregate first."""
        candidates = [
            m
            for m in self.sentence.mentions
            if not m.used
            and m not in self.conditions.borrowed
            and self._numeric(m)
            and not all(word.used and word.has("grain") for word in self.words[m.start : m.end])  # the last 10 days
        ]
        strong = [m for m in candidates if not all(hit.related for hit in self._numeric(m))]
        candidates = strong or candidates
        if not candidates:
            return self._extreme_of_time()
        self._refuse_missing(candidates)
        beside = [m for m in candidates if self._aggregated(m)]
        mention = (beside or candidates)[0]
        column = self._take(mention, self._numeric(mention))
        for other in candidates:
            if other is not mention and not other.used:
                best = choose(other, self._numeric(other), self.schema)
                self.sentence.take(other, "left")
                if best[0].column.name != column.name:
                    self.sentence.note(
                        f"One measure at a time: {column.name} is answered, '{other.text}' is left out.",
                        f"一次只回答一个指标：回答 {column.name}，略去“{other.text}”。",
                    )
        return Measure(self.aggregate(column), column.name)

    def _aggregated(self, mention: Mention) -> bool:
        for i in range(mention.start - 1, max(mention.start - 4, -1), -1):
            word = self.words[i]
            if word.has("agg") or word.has("high"):
                return True
            if not word.stop:
                break
        following = self.sentence.word(mention.end)
        return following is not None and following.kind == "cjk" and bool(following.has("agg") or following.has("high"))

    def _extreme_of_time(self) -> Measure | None:
        asked = next((w.senses["agg"] for w in self.words if w.has("agg") in ("min", "max")), None)
        for mention in self.sentence.mentions:
            times = mention.columns("time")
            if times and asked and not mention.used:
                self.sentence.take(mention, "measure")
                return Measure(cast("Aggregate", asked), times[0].column.name)
        return None

    def _borrowed(self) -> Measure | None:
        """``average delay over 60``: the column of a condition is the measure as well, when nothing else is."""
        if not self.conditions.borrowed:
            return None
        subject = next((w for w in self.words if not w.stop or w.has("grain")), None)
        if subject is not None and subject.has("grain") and not subject.used and not subject.has("adverb"):
            raise self.voice.error(
                "not_supported",
                f"Counting the {subject.text} that have something is not supported; group by {subject.text} instead.",
                f"不支持统计有多少{subject.text}；可以改为按{subject.text}分组。",
            )
        self._refuse_unknown()
        mention = self.conditions.borrowed[0]
        column = self._take(mention, self._numeric(mention))
        return Measure(self.aggregate(column), column.name)

    def _ranked_by_adjective(self) -> Measure | None:
        changing = self.sentence.any("change") is not None
        for kind in ("adjhigh", "adjlow"):
            at = self.sentence.any(kind)
            if at is None or (changing and self.words[at].senses[kind] in ("fast", "slow")):
                continue
            if any(
                self._numeric(m) and not m.used and not all(h.related for h in m.hits) for m in self.sentence.mentions
            ):
                continue  # "the longest delay": the noun says it
            concepts, _ = ADJECTIVES[self.words[at].senses[kind]]
            for concept in concepts:
                hits = [
                    Hit(n.column, 0.5, literal=False)
                    for n in self.schema.columns
                    if n.concept == concept and n.column.role == "number"
                ]
                if hits:
                    column = self._take(Mention(at, at + 1, self.words[at].text, tuple(hits)), hits)
                    direct = kind == "adjhigh" and (not self.groupings.found or self._is_one_row(at + 1))
                    return Measure(
                        ("max" if ADJECTIVES[self.words[at].senses[kind]][1] == "desc" else "min")
                        if direct
                        else self.aggregate(column),
                        column.name,
                    )
            if self.sentence.any("agg") is None and not (self.words[at].senses[kind] == "sold"):
                raise self._unknown(self.words[at].text)
        return None

    # --- counts --------------------------------------------------------------------------------------------------

    def _counted(self) -> Measure | None:
        for i, word in enumerate(self.words):
            if word.columns and (not word.has("count") or word.stem == "count"):
                continue  # a column called *count* is one
            if word.has("count") and not word.used:
                measure = self._count_after(i)
            elif word.stem == "volume" and not (i and self._is_row(i - 1)):
                continue
            elif word.has("countpost") and not word.used:
                measure = self._count_before(i)
            else:
                continue
            if measure is not None:
                word.used = "measure"
                return measure
        if (at := self.sentence.any("distinct")) is not None and self.words[at].used == "":
            return self._count_after(at, distinct=True)
        return None

    def _count_after(self, i: int, *, distinct: bool = False) -> Measure | None:
        j, end = i + 1, min(i + 6, len(self.words))
        rows_ahead = next((k for k in range(j, end) if self._is_row(k)), None)
        while j < end:
            word = self.words[j]
            distinct = distinct or word.has("distinct") is not None
            mention = self.sentence.mention_at(j)
            if rows_ahead is not None and mention is not None and self._owns_rows(mention, rows_ahead):
                self.words[rows_ahead].used = self.words[rows_ahead].used or "measure"
                return self._count_of(mention, distinct=True)
            if rows_ahead is not None and not distinct:
                if word.used and word.used != "value":
                    break
                self.sentence.use(rows_ahead, rows_ahead + 1, "measure")
                self._late(range(j, end))
                return Measure("count")
            if word.used == "value":
                return self._pieces(thing=self._is_thing(j), said=self.words[j].text) or Measure("count")
            product = mention is not None and not mention.used and not distinct and self._is_product(mention)
            if product and mention is not None and (pieces := self._pieces(thing=False, said=mention.text)) is not None:
                self.sentence.take(mention, "measure")
                return pieces
            if mention is not None and not mention.used and self._sales(mention):
                return Measure("count")
            if mention is not None and not mention.used:
                return self._count_of(mention, distinct=distinct)
            if word.stem in PEOPLE_WORDS:
                return self._people(j)
            if word.stem == "sale" and mention is None and not word.values:
                word.used = "measure"
                self.sentence.note("Each row is counted as one sale.", "每一行计为一笔销售。")
                return Measure("count")
            days = self.words[i].kind != "cjk" or (j == i + 1 and bool(self.conditions.borrowed))
            if word.has("grain") and not mention and not word.used and days:
                raise self.voice.error(
                    "not_supported",
                    f"Counting the {word.text} that have something is not supported; group by {word.text} instead.",
                    f"不支持统计有多少{word.text}；可以改为按{word.text}分组。",
                )
            if not (word.stop or word.stem in UNITS or word.has("distinct") or word.has("counter")) or word.used:
                break
            j += 1
        return self._count_before(i) or (Measure("count") if self._counts_alone(self.words[i]) else None)

    def _owns_rows(self, mention: Mention, row: int) -> bool:
        """``how many customers opened tickets``: those who did are counted, not the rows."""
        last = self.words[mention.end - 1]
        plural = last.kind == "word" and last.text.casefold() != last.stem
        return not mention.used and plural and row > mention.end and bool(mention.columns("category", "identifier"))

    def _counts_alone(self, word: Word) -> bool:
        """``count``, ``次数``, ``有几节``: a measure word says that rows are counted."""
        if word.stem == "多少" and self.conditions.borrowed:
            return self._last(word)  # 运费大于100的有多少
        classified = word.stem != "多少" and word.stem.startswith(("几", "有几", "多少"))
        return classified or word.stem in ("count", "次数", "计数")

    def _last(self, word: Word) -> bool:
        """Whether nothing but particles and punctuation follows."""
        at = next(i for i, other in enumerate(self.words) if other is word)
        return all(w.kind == "symbol" or w.stem in ("了", "呢", "啊", "吗") for w in self.words[at + 1 :])

    def _count_before(self, i: int) -> Measure | None:
        """``客户数``, ``航班有多少``: the thing counted stands before."""
        for k in range(i - 1, max(i - 4, -1), -1):
            mention = self.sentence.mention_at(k)
            word = self.words[k]
            if self._is_row(k):
                word.used = word.used or "measure"
                self._late(range(max(k - 2, 0), k))
                return Measure("count")
            if word.used == "value":
                pieces = self._pieces(thing=False, said=word.text)
                if pieces is not None or word.kind == "cjk":
                    return pieces or Measure("count")
            if mention is not None:
                if mention.used or (
                    self._numeric(mention)
                    and self.words[i].has("countpost")
                    and not mention.columns("category", "identifier")
                ):
                    return None
                return self._count_of(mention, distinct=False)
            if word.stem in PEOPLE_WORDS:
                return self._people(k)
            if not word.stop:
                return None
        return None

    def _is_row(self, k: int) -> bool:
        word = self.words[k]
        mention = self.sentence.mention_at(k)
        if mention is not None and (mention.used or any(h.literal and h.column.role == "number" for h in mention.hits)):
            return False
        if mention is not None and self.groupings.is_unique(mention) and mention.end - mention.start == 1:
            return True
        if not self.schema.is_row_noun(word) or word.used:
            return False
        return mention is None or not any(h.literal for h in mention.hits) or word.stem in self.schema.row_nouns

    def _is_one_row(self, k: int) -> bool:
        """``the longest trip``: one row is meant, and not all of somebody's trips together."""
        word = self.sentence.word(k)
        return word is not None and word.kind == "word" and word.text.casefold() == word.stem and self._is_row(k)

    def _count_of(self, mention: Mention, *, distinct: bool) -> Measure | None:
        numeric = self._numeric(mention)
        things = [hit for hit in mention.columns("identifier", "category", "text") if hit.score > 0.2]
        if things and (not numeric or things[0].score >= numeric[0].score):
            best = choose_and_tell(self.sentence, mention, things)
            column = self.conditions.pick(best, mention.text)
            nots = [w for w in self.words[max(mention.start - 2, 0) : mention.start] if w.has("not") and not w.used]
            truth = self.schema.truth(column, not nots)
            self.sentence.take(mention, "measure")
            if truth is not None and not distinct:
                for word in nots:
                    word.used = "condition"
                self.conditions.add(truth_filter(column, truth), mention.start, mention.end)
                return self._pieces_after(mention.end) or Measure("count")
            if self.groupings.is_unique(mention) and not distinct:
                return Measure("count")
            return Measure("count_distinct", column.name)
        if numeric:
            if distinct:
                column = self._take(mention, numeric)
                return Measure("count_distinct", column.name)
            adding = [hit for hit in numeric if hit.column.additive]
            if adding and self._each_is_one(mention, adding[0].column):
                return self._rows_of(mention)
            if not adding:
                self._late(range(mention.start, mention.end))
                return Measure("count")
            column = self._take(mention, adding)
            averaged = any(w.has("agg") not in (None, "sum") for w in self.words)
            return Measure(self.aggregate(column) if averaged else "sum", column.name)
        times = mention.columns("time")
        if times:
            self.sentence.take(mention, "measure")
            return Measure("count_distinct", times[0].column.name)
        raise self._unknown(mention.text)

    def _each_is_one(self, mention: Mention, column: Column) -> bool:
        """``how many bills were above 200``, ``how many tips``: amounts are not added up but counted, one per row."""
        if mention in self.conditions.borrowed:
            return True
        said, name = self.words[mention.end - 1], self.schema.by_name[column.name].words[-1].stem
        plural = said.kind == "word" and said.text.casefold() != said.stem
        named_so = column.name.casefold().endswith(said.text.casefold())
        return plural and not named_so and said.stem == name and "INT" not in column.type.upper()

    def _rows_of(self, mention: Mention) -> Measure:
        self.sentence.take(mention, "measure")
        self.sentence.note(
            f"Rows with '{mention.text}' are counted, one per row.", f"按行计数，每行计为一个“{mention.text}”。"
        )
        return Measure("count")

    def _late(self, places: range) -> None:
        """``late flights`` without a number: those with a delay above zero."""
        reach = 3 if len(places) != 1 else 0
        for k in range(places.start, min(places.stop + reach, len(self.words))):
            word, mention = self.words[k], self.sentence.mention_at(k)
            if "delay" not in word.concepts or mention is None or mention.used or mention in self.conditions.borrowed:
                continue
            hits = choose(mention, self._numeric(mention), self.schema)
            if len(hits) != 1 or (word.stem == "delay" and word.text.casefold() != "delayed"):
                continue
            self.sentence.take(mention, "condition")
            name = hits[0].column.name
            self.conditions.add(Filter(name, ">", 0), mention.start, mention.end)
            self.sentence.note(f"'{word.text}' is read as {name} > 0.", f"“{word.text}”理解为 {name} > 0。")

    def _late_rows(self) -> None:
        """``delayed flights``, ``晚点的航班``: the rows with a delay, not the delay."""
        for i, word in enumerate(self.words):
            if "delay" not in word.concepts or word.text.casefold() not in ("delayed", "late", "延误", "晚点", "误点"):
                continue
            j = i + 2 if self._is_stem(i + 1, "的") else i + 1
            if j < len(self.words) and self._is_row(j) and not self._is_stem(i - 1, "平均"):
                self._late(range(i, i + 1))

    def _is_stem(self, i: int, stem: str) -> bool:
        word = self.sentence.word(i)
        return word is not None and word.stem == stem

    def _rows(self) -> Measure | None:
        """``flights per carrier``, ``orders by month``: the rows themselves."""
        self._refuse_missing([])
        if not self.groupings.found and any(w.has("agg") not in (None, "sum") for w in self.words):
            return None  # the average of what?
        if (largest := self._largest_row()) is not None:
            return largest
        for k in range(len(self.words)):
            if self._is_row(k):
                self.words[k].used = "measure"
                if (mention := self.sentence.mention_at(k)) is not None:
                    mention.used = "measure"
                if any(w.has("agg") not in (None, "sum") for w in self.words):
                    self.sentence.note(
                        "Rows are counted per group; their average over groups is not computed.",
                        "按组计数；不计算各组的平均。",
                    )
                return Measure("count")
        for mention in self.sentence.mentions:
            best = mention.hits[0]
            if not mention.used and best.column.role == "identifier" and best.score > 0.4:
                return self._count_of(mention, distinct=False)
        if self.sentence.any("busiest") is not None:
            return Measure("count")
        return None

    def _largest_row(self) -> Measure | None:
        """``the largest order``: the extreme of the table's main measure."""
        for k in range(len(self.words) - 1):
            sense = self.words[k].has("high")
            if sense and not self.groupings.found and self._is_row(k + 1) and self.words[k].stem not in _COUNTED:
                column = self.schema.by_name[name].column if (name := self._default().column) else None
                if column is None:
                    return None
                self.sentence.use(k, k + 2, "measure")
                return Measure("max" if direction_of(sense, column, self.schema) == "desc" else "min", column.name)
        return None

    def _row_value(self) -> Measure | None:
        """``average order value``: the table's main measure, per row."""
        if (at := self.sentence.any("rowvalue")) is not None and not self.words[at].columns:
            self.words[at].used = "measure"
            measure = self._default()
            return measure if measure.column is None else Measure("mean", measure.column)
        for k in range(len(self.words) - 1):
            following = self.words[k + 1]
            if self._is_row(k) and following.stem in ("value", "size", "amount", "金额") and not following.columns:
                measure = self._default()
                self.sentence.use(k, k + 2, "measure")
                asked = any("agg" in w.senses for w in self.words)
                return measure if asked or measure.column is None else Measure("mean", measure.column)
        return None

    # --- nothing named -------------------------------------------------------------------------------------------

    def _default(self) -> Measure:
        measures = [n for n in self.schema.columns if self.schema.is_measure(n.column)]
        if measures and self.sentence.any("share") is not None:
            measures = [n for n in measures if n.column.additive and n.concept == "revenue"]
            if not measures:
                self.sentence.note("No measure was named; rows are counted.", "没有指明指标，按行数统计。")
        revenue = [n for n in measures if n.concept == "revenue"] or [n for n in measures if n.concept == "amount"]
        chosen = measures[0] if len(measures) == 1 else revenue[0] if len(revenue) == 1 else None
        if chosen is None:
            if not measures:
                return Measure("count")
            judged = any(w.has("high") in ("good", "bad") for w in self.words)
            if self.schema.profile.row_noun not in ("", "row") and not judged:
                noun = self.schema.profile.row_noun
                self.sentence.note(
                    f"No measure was named; {noun}s are counted.", f"没有指明指标，按 {noun} 的数量统计。"
                )
                return Measure("count")
            names = [n.column.name for n in measures]
            raise self.voice.error(
                "no_measure",
                f"The question does not say what to measure; there are {self.voice.listing(names)}.",
                f"问题没有说明要统计什么；可选：{self.voice.listing(names)}。",
                names,
            )
        self.column = chosen.column
        self.sentence.note(
            f"No measure was named; {chosen.column.name} is taken.", f"没有指明指标，取 {chosen.column.name}。"
        )
        return Measure(self.aggregate(chosen.column), chosen.column.name)

    def no_measure(self) -> QuestionError:
        """The error that teaches: what one may ask of this very table."""
        examples = example_questions(self.schema, zh=self.voice.zh, timed=self.sentence.time is not None)
        return self.voice.error(
            "no_measure",
            "The question names nothing to measure. One may ask, for example: " + " · ".join(examples),
            "问题中没有可统计的指标。可以这样问：" + " · ".join(examples),
            examples,
        )

    def _refuse_missing(self, candidates: list[Mention]) -> None:
        """An error when a measure is named that the table does not have."""
        for i, word in enumerate(self.words):
            if word.used or word.columns or word.values or self.sentence.mention_at(i) is not None:
                continue
            concept = missing_concept(word)
            if (
                concept is None
                or CONCEPTS[concept].kind != "m"
                or word.stem in UNITS
                or word.has("change")
                or word.has("agg")
            ):
                continue
            before = self.sentence.word(i - 1)
            asked = before is not None and (
                before.has("agg") or before.has("high") or before.has("much") or before.has("top")
            )
            nouned = any(m.start == i + 1 for m in candidates)
            rows = any(self._is_row(k) for k in range(len(self.words)))
            if (not candidates and (asked or not rows)) or (asked and not nouned):
                raise self._unknown(word.text)

    def _refuse_unknown(self) -> None:
        """An error when the question's noun is no word of this table: never fall back to some other column."""
        for word in self.leftover():
            raise self._unknown(word)

    def leftover(self) -> list[str]:
        """Runs of words that nothing understood."""
        runs: list[str] = []
        last = -2
        for i, word in enumerate(self.words):
            if not is_unknown(word, self.sentence.mention_at(i)):
                continue
            if i == last + 1 and runs:
                runs[-1] += ("" if word.kind == "cjk" else " ") + word.text
            else:
                runs.append(word.text)
            last = i
        return [run for run in runs if len(run) > 1]

    def _unknown(self, said: str) -> QuestionError:
        names = [n.column.name for n in self.schema.columns]
        return self.voice.error(
            "unknown_metric",
            f"Nothing in the table is called '{said[:60]}'; its columns are {self.voice.listing(names)}.",
            f"表中没有“{said[:60]}”；现有的列：{self.voice.listing(names)}。",
            names,
        )


def is_unknown(word: Word, mention: Mention | None) -> bool:
    """Whether a word is content that nothing understood."""
    if word.used or word.stop or word.kind in ("symbol", "date") or word.number is not None or word.stem in UNITS:
        return False
    named = word.senses.keys() == {"month"} and word.text[:1].isupper() and word.text.endswith("s")  # Mars
    if mention is not None or (word.senses and not named) or word.stem in PEOPLE_WORDS:
        return False
    kinds = {CONCEPTS[c].kind for c in word.concepts}
    return not kinds or bool(kinds & set("me"))
