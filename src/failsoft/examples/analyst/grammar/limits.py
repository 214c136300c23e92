"""What may not be left out: words that change the numbers and that nobody has read are errors, never a note.

A number, a negation, an ordinal, a noun that turns a column into something else (*session* duration, cost *per
hectare*), an interrogative that asks for a column the table does not have; and what this grammar cannot do, said before
anything near to it is answered: standard deviations, totals with conditions, the top of each group.
"""

from __future__ import annotations

from collections.abc import Sequence

from failsoft.examples.analyst.grammar.conditions import Conditions
from failsoft.examples.analyst.grammar.groupings import Groupings
from failsoft.examples.analyst.grammar.lexicon import UNITS
from failsoft.examples.analyst.grammar.measures import is_unknown
from failsoft.examples.analyst.grammar.mentions import Mention, Sentence
from failsoft.examples.analyst.grammar.rankings import Ranking
from failsoft.examples.analyst.grammar.wording import QuestionError, Voice
from failsoft.examples.analyst.grammar.words import Word
from failsoft.examples.analyst.spec import Measure

_VERB_ENDINGS = ("ing", "ly", "ed", "en")
_ARITHMETIC = frozenset({"minus", "plus", "times", "/", "减", "减去", "加", "除以", "乘"})
_NEUTRAL = frozenset(
    {"money", "sum", "statistic", "trend", "performance", "situation", "data", "metric", "measure", "kpi"}
)
_ARTICLES = frozenset({"the", "a", "an", "的", "它", "其"})


class Limits:
    """The checks of one sentence."""

    def __init__(self, sentence: Sentence, groupings: Groupings, conditions: Conditions) -> None:
        self.sentence = sentence
        self.words = sentence.words
        self.schema = sentence.schema
        self.groupings = groupings
        self.conditions = conditions
        self.voice = Voice(sentence.language)

    # --- what cannot be done -------------------------------------------------------------------------------------

    def refuse_statistics(self) -> None:
        """Statistics that are not computed: the column they are of is no answer in their place."""
        for word in self.words:
            if word.has("beyond") and not (word.columns or word.values or word.used):
                raise self._unsupported(
                    f"'{word.text}' is not something that can be computed here; there are sums, means, medians, "
                    "minima, maxima, counts, shares and differences.",
                    f"不支持“{word.text}”；可以求总和、平均值、中位数、最小值、最大值、数量、占比和差异。",
                )

    def refuse_shapes(self, measure: Measure) -> None:
        """Running totals and conditions on totals, once groups, conditions and the measure are known."""
        for word in self.words:
            if word.stem in ("cumulative", "running", "累计") and self.groupings.by_time and not word.columns:
                raise self._unsupported(
                    f"Running totals ('{word.text}') are not supported; totals of each period are.",
                    f"不支持逐期累加（“{word.text}”）；可以按期给出总计。",
                )
            if word.stem in ("distribution", "distributed", "分布") and not self.groupings.found and not word.columns:
                raise self._unsupported(
                    "A distribution needs groups: say by what it is to be shown.", "分布需要分组：请说明按什么分组。"
                )
        for mention in self.conditions.borrowed:
            self._refuse_condition_on_total(mention, measure)

    def _refuse_condition_on_total(self, mention: Mention, measure: Measure) -> None:
        """``waiters with a total bill above 1000``: the condition is on the group, not on its rows."""
        k = mention.start - 1
        while k >= 0 and self.words[k].stem in _ARTICLES:
            k -= 1
        things = measure.aggregate == "count_distinct"  # how many waiters have an average bill above 50
        if k < 0 or not self.words[k].has("agg") or not (self.groupings.found or things):
            return
        lead = k - 1
        while lead >= 0 and self.words[lead].stem in _ARTICLES:
            lead -= 1
        opened = lead >= 0 and (self.words[lead].has("with") or self.words[lead].stem in ("that", "where"))
        if opened or things or any(asked.how == "which" for asked in self.groupings.found):
            raise self._unsupported(
                f"Conditions on totals of groups ('{self.words[k].text} {mention.text}') are not supported, only on "
                "single rows; rank the groups instead.",
                f"不支持以分组的统计值（“{self.words[k].text}{mention.text}”）为条件，只能以单行数据为条件；可以改为排序。",
            )

    def refuse_rank_of_each(self, ranking: Ranking | None) -> None:
        """``the top 2 dishes of each waiter``: one ranking over all pairs would be another answer."""
        if ranking is None or ranking.limit is None:
            return
        ranked = [a for a in self.groupings.found if a.how in ("which", "rank")]
        each = [a for a in self.groupings.found if a.how == "per"]
        if ranked and each:
            said = ranked[0].group.grain or ranked[0].group.column
            outer = each[0].group.grain or each[0].group.column
            raise self._unsupported(
                f"The first {said} of each {outer} is not supported; ask for one {outer}, or rank without it.",
                f"不支持在每个“{outer}”内部对“{said}”排名；请指定一个“{outer}”，或不分组地排名。",
            )

    def refuse_arithmetic(self, measured: Mention | None) -> None:
        """``bill minus tip``, ``tip as a percentage of the bill``: two measures joined by more than *and*."""
        if measured is None:
            return
        for other in self.sentence.mentions:
            if other is measured or other.used != "left":
                continue
            first, second = sorted((measured, other), key=lambda m: m.start)
            between = self.words[first.end : second.start]
            whole = any(w.has("share") for w in self.words)
            if whole or any(
                w.stem in ("minus", "plus", "times", "/", "减", "减去", "加", "除以", "乘") for w in between
            ):
                raise self._unsupported(
                    f"Nothing is computed from two measures ('{measured.text}' and '{other.text}'); ask for one.",
                    f"不支持由两个指标（“{measured.text}”和“{other.text}”）计算；请只问其中一个。",
                )

    def refuse_rates(self) -> None:
        """``share of reopened tickets per queue``: what part of each group, not of all reopened ones."""
        share = next((i for i, w in enumerate(self.words) if w.has("share") and not w.columns), None)
        if share is None or not self.groupings.found:
            return
        for mention in self.sentence.mentions:
            truth = any(self.schema.truth(hit.column, True) is not None for hit in mention.hits)
            if mention.used != "condition" or not truth:
                continue
            first = min(asked.at for asked in self.groupings.found)
            said = share < mention.start < first or (self.voice.zh and mention.end == share)
            if said:
                raise self._unsupported(
                    f"What part of each group is '{mention.text}' is not supported; count those by group, and all.",
                    f"不支持各组内“{mention.text}”所占的比例；可以分别按组统计其数量和总数。",
                )

    # --- what nobody has read ------------------------------------------------------------------------------------

    def refuse_unread(self, measured: Mention | None) -> None:
        """An error for the first word that may change the numbers and that nothing has understood."""
        for i, word in enumerate(self.words):
            if word.used or self._named(i):
                continue
            if self._counts(i):
                raise self._not_understood(word.text, "number", "数字")
            if self._numbers_a_rank(i):
                raise self._not_understood(word.text, "number", "数字")
            if (word.has("not") or self._none_of(i)) and not self._told_otherwise(i):
                raise self._not_understood(word.text, "negation", "否定")
            if (word.has("ordinal") and word.kind != "cjk" and not self._enumerates(i)) or self._nth(i):
                raise self._not_understood(self._ordinal(i), "order", "次序")
            if word.has("per"):
                self._refuse_ratio(i)
            if i == 0 and (word.has("who") or word.has("where")) and word.kind != "cjk":
                raise self._not_understood(word.text, "question", "疑问")
        self._refuse_compound(measured)

    def _named(self, i: int) -> bool:
        return self.sentence.mention_at(i) is not None and bool(self.words[i].columns)

    def _counts(self, i: int) -> bool:
        """Whether a word is a number that says how many or which: written in digits, or two and more in Chinese."""
        word = self.words[i]
        if word.kind == "date":
            return True
        if word.number is None or word.values:
            return False
        return word.kind == "number" or (word.kind == "cjk" and not word.senses and word.number >= 2)

    def _numbers_a_rank(self, i: int) -> bool:
        """``ten highest``: a number in letters beside a rank."""
        word = self.words[i]
        if word.kind != "word" or word.number is None or word.number < 2:
            return False
        beside = (self.sentence.word(i - 1) if i else None, self.sentence.word(i + 1))
        return any(w is not None and (w.has("high") or w.has("top")) for w in beside)

    def _none_of(self, i: int) -> bool:
        """``with no rating``."""
        return self.words[i].stem == "no" and self.sentence.mention_at(i + 1) is not None

    def _told_otherwise(self, i: int) -> bool:
        """Politeness and idioms: *why not*, *not only*, *if not*."""
        following = self.sentence.word(i + 1)
        before = self.sentence.word(i - 1)
        if following is None or following.stem in ("only", "just", "仅", "只", "错"):
            return True
        return before is not None and before.stem in ("or", "why", "whether", "if", "是否")

    def _enumerates(self, i: int) -> bool:
        """``First, …``: an ordinal that only opens the sentence."""
        following = self.sentence.word(i + 1)
        return following is not None and following.stem in (",", "of", ":")

    def _nth(self, i: int) -> bool:
        following = self.sentence.word(i + 1)
        word = self.words[i]
        numbered = following is not None and (
            following.number is not None or following.stem[:1] in "二三四五六七八九十"
        )
        return word.kind == "cjk" and bool(
            (word.has("nth") and numbered) or (word.has("ordinal") and word.senses["ordinal"] != "1")
        )

    def _ordinal(self, i: int) -> str:
        following = self.sentence.word(i + 1)
        gap = "" if self.words[i].kind == "cjk" else " "
        return self.words[i].text if following is None else f"{self.words[i].text}{gap}{following.text}"

    def _refuse_ratio(self, i: int) -> None:
        """``cost per kilogram``, ``每公斤运费``, ``各省``: something is to be divided by what is no group here."""
        word, following = self.words[i], self.sentence.word(i + 1)
        names = [n.column.name for n in self.schema.columns]
        if word.concepts and word.kind == "cjk":
            raise self.voice.error(
                "unknown_column",
                f"There is no column '{word.text}'; the table has {self.voice.listing(names)}.",
                f"没有“{word.text}”对应的列；表中有：{self.voice.listing(names)}。",
                names,
            )
        other = self.sentence.mention_at(i + 1)
        quotient = other is not None and other.used in ("", "left") and any(h.literal for h in other.columns("number"))
        if word.stem == "by" or following is None or (following.used and not quotient):
            return
        if following.concepts and self.sentence.mention_at(i + 1) is None and following.stem not in UNITS:
            raise self.voice.error(
                "unknown_column",
                f"There is no column '{following.text}'; the table has {self.voice.listing(names)}.",
                f"没有“{following.text}”对应的列；表中有：{self.voice.listing(names)}。",
                names,
            )
        if following.stem not in UNITS and not quotient:
            return
        raise self._unsupported(
            f"Values per {following.text} are not supported: nothing is divided by another column.",
            f"不支持“{word.text}{following.text}”：不做两列相除的计算。",
        )

    def _refuse_compound(self, measured: Mention | None) -> None:
        """``session duration`` where only sessions are known: the noun behind a name says what it is of."""
        if measured is None or measured.end >= len(self.words) or measured.used != "measure":
            return
        i = measured.end
        word, last = self.words[i], self.words[i - 1]
        if not is_unknown(word, self.sentence.mention_at(i)) or word.kind != last.kind:
            return
        said = word.text
        if word.kind == "word":
            if said[:1].isupper() or word.stem in _NEUTRAL or said.casefold().endswith(_VERB_ENDINGS):
                return
            said = f"{measured.text} {said}"
        elif word.kind == "cjk":
            j = i
            while j < len(self.words) and self.words[j].kind == "cjk" and is_unknown(self.words[j], None):
                j += 1
            run = "".join(w.text for w in self.words[i:j])
            if len(run) < 2:
                return
            said = measured.text + run
        else:
            return
        names = [n.column.name for n in self.schema.columns]
        raise self.voice.error(
            "unknown_metric",
            f"Nothing in the table is called '{said[:60]}'; its columns are {self.voice.listing(names)}.",
            f"表中没有“{said[:60]}”；现有的列：{self.voice.listing(names)}。",
            names,
        )

    # --- how it is said ------------------------------------------------------------------------------------------

    def _not_understood(self, said: str, kind: str, kind_zh: str) -> QuestionError:
        names = [n.column.name for n in self.schema.columns]
        return self.voice.error(
            "not_supported",
            f"'{said[:60]}' was not understood, and leaving out a {kind} may change the answer; name the column it "
            f"belongs to: {self.voice.listing(names)}."
            if kind != "order"
            else f"'{said[:60]}' is not supported; ask for the first ones ('top 3') or for the whole period.",
            f"未能理解“{said[:60]}”（{kind_zh}），略去可能改变结果；请指明相关的列：{self.voice.listing(names)}。",
            names,
        )

    def _unsupported(self, en: str, zh: str) -> QuestionError:
        return self.voice.error("not_supported", en, zh, [n.column.name for n in self.schema.columns])


def _each_time(word: Word, before: Word | None) -> bool:
    """``daily``, ``每天``, also 天 after 平均每."""
    if not word.has("grain"):
        return False
    return bool(word.has("adverb")) or (before is not None and before.stem == "平均每")


def time_means_note(sentence: Sentence, aggregate: str, additive: bool, words: Sequence[Word]) -> None:
    """``average daily bill``, ``average bill per day``: the mean of the rows of each day is given, and that is said."""
    grains = [w for w in words if w.has("grain") and not w.columns]
    daily = (w for w, before in zip(words, (None, *words), strict=False) if _each_time(w, before))
    said = next(daily, grains[0] if grains else None)
    if aggregate == "mean" and additive and said is not None:
        sentence.note(
            f"The mean of single rows is given per {said.senses['grain']}, not the mean of its totals.",
            "给出的是各期内单行数据的平均值，而不是各期总计的平均值。",
        )
