"""What the answer is cut by: ``per region``, ``monthly``, ``which carrier``, ``top 5 products``, ``各地区``."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import cast

from failsoft.examples.analyst.grammar.lexicon import PERSON_WORDS, PLACE_WORDS
from failsoft.examples.analyst.grammar.mentions import Mention, Sentence, choose, choose_and_tell
from failsoft.examples.analyst.grammar.wording import Voice
from failsoft.examples.analyst.grammar.words import Word
from failsoft.examples.analyst.spec import Column, Grain, Group

MAX_GROUPS = 3
"""Groupings of one query; more make a table that nobody reads."""
FEW_VALUES = 60
"""A number column with at most so many different values can be grouped by."""
_BY = frozenset(
    {"by", "grouped by", "group by", "broken down by", "split by", "nach", "por", "按", "按照", "根据", "依"}
)
_COUNTABLE = frozenset({"most", "fewest", "least", "最多", "最少"})
_SKIPPED = frozenset(
    [
        "the",
        "of",
        "our",
        "all",
        "individual",
        "single",
        "different",
        "distinct",
        "unique",
        "given",
        "个",
        "的",
        "家",
        "名",
        "种",
        "位",
        "大",
        "一",
        "performing",
        "ranked",
        "ranking",
        "selling",
        "rated",
        "other",
        "each",
        "every",
        "possible",
        "known",
        "'",
        '"',
        "various",
        "respective",
    ]
)


@dataclass(slots=True)
class Asked:
    """One grouping: ``how`` it was asked for (``per``, ``which``, ``rank``, ``left``), how many, one or several."""

    group: Group
    at: int
    how: str
    plural: bool = True
    number: int | None = None


def has_clock(column: Column) -> bool:
    """Whether a time column knows more than the day."""
    return column.grain == "hour" or (column.grain is None and "TIME" in column.type.upper())


def auto_grain(first: dt.date, last: dt.date) -> Grain:
    """A grain that gives a readable number of points."""
    days = (last - first).days
    return "day" if days <= 62 else "month" if days <= 1200 else "quarter" if days <= 3700 else "year"


class Groupings:
    """Reads the groupings of one sentence."""

    def __init__(self, sentence: Sentence) -> None:
        self.sentence = sentence
        self.words = sentence.words
        self.schema = sentence.schema
        self.voice = Voice(sentence.language)
        self.found: list[Asked] = []
        self.per_row = False
        self.ranked = any(
            w.has(kind) for w in self.words for kind in ("high", "top", "busiest", "adjhigh", "adjlow") if not w.columns
        )
        self.sorted = sentence.any("sort") is not None

    @property
    def groups(self) -> list[Group]:
        """The groupings in the order they were said."""
        return [asked.group for asked in self.found]

    @property
    def by_time(self) -> bool:
        """Whether one of them is a cut of time."""
        return any(group.grain for group in self.groups)

    def read(self) -> None:
        """All groupings that a word of the question asks for."""
        for i, word in enumerate(self.words):
            if word.used or len(self.found) >= MAX_GROUPS:
                continue
            if word.has("per") and not self._distinct_count(i):
                self._list(i)
            elif word.has("grain") and word.has("which"):
                self._adverb(i, how="which")
            elif (word.has("adverb") and word.has("grain")) or (
                word.has("grain") and word.kind == "cjk" and self._measure_at(i + 1)
            ):
                self._adverb(i)
            elif (word.has("who") or word.has("where") or word.has("when")) and (i == 0 or word.kind == "cjk"):
                self._pronoun(i)
            elif word.has("which"):
                self._which(i)
            if not word.used:
                self._ranked_item(i)
        self._things_with()
        self._unusual_things()

    def _measure_at(self, i: int) -> bool:
        mention = self.sentence.mention_at(i)
        return mention is not None and not mention.used and any(self.schema.is_measure(h.column) for h in mention.hits)

    def _distinct_count(self, i: int) -> bool:
        return self.words[i].has("distinct") is not None and any(
            w.has("count") or w.has("countpost") for w in self.words[max(i - 3, 0) : i + 4]
        )

    # --- single items --------------------------------------------------------------------------------------------

    def _skip(self, j: int, most: int = 4) -> int:
        for _ in range(most):
            word = self.sentence.word(j)
            if (
                word is None
                or word.used
                or not (word.stem in _SKIPPED or word.has("counter"))
                or self.sentence.mention_at(j)
            ):
                break
            if word.has("grain"):
                break
            j += 1
        return j

    def item(self, j: int, *, numbers: bool = True) -> tuple[Group, int, Mention | None] | None:
        """The column or grain named at word `j`, as a grouping, and where the words go on."""
        word = self.sentence.word(j)
        if word is None or word.used:
            return None
        mention = self.sentence.mention_at(j)
        grain = word.has("grain")
        if grain and (mention is None or mention.end - mention.start == 1) and (self.sentence.time or not word.columns):
            return self.time_group(cast("Grain", grain), word), j + 1, mention
        if mention is None or mention.start != j or mention.used:
            return None
        group = self._mention_group(mention, numbers=numbers)
        return (group, mention.end, mention) if group is not None else None

    def _mention_group(self, mention: Mention, *, numbers: bool) -> Group | None:
        for roles in (("category",), ("text",), ("time",), ("identifier",)):
            hits = mention.columns(*roles)
            strong = [h for h in hits if h.score >= 0.45 or not any(o.score > h.score + 0.3 for o in mention.hits)]
            if not strong:
                continue
            best = choose(mention, strong, self.schema)
            if len(best) > 1:
                names = [hit.column.name for hit in best]
                raise self.voice.error(
                    "ambiguous",
                    f"'{mention.text}' may be any of these columns: {self.voice.listing(names)}. Please name one.",
                    f"“{mention.text}”可能是以下任一列：{self.voice.listing(names)}。请指明其中一列。",
                    names,
                )
            choose_and_tell(self.sentence, mention, strong)
            column = best[0].column
            return Group(column.name, "day" if column.role == "time" else None)
        hits = choose(mention, mention.columns("number"), self.schema)
        if numbers and len(hits) == 1:
            column = hits[0].column
            if not self.schema.is_measure(column):
                return Group(column.name)
            few = 0 < column.distinct <= FEW_VALUES and not self.ranked and not self.sorted
            if few and self._measured_otherwise(mention):
                return Group(column.name)
        return None

    def _measured_otherwise(self, mention: Mention) -> bool:
        """Whether something else is measured, so that a number column may serve as a grouping."""
        if any(w.has("count") or self.schema.is_row_noun(w) for w in self.words):
            return True
        return any(
            other is not mention and not other.used and any(self.schema.is_measure(h.column) for h in other.hits)
            for other in self.sentence.mentions
        )

    def time_group(self, grain: Grain, word: Word | None = None) -> Group:
        """A cut of the table's time, or the column that holds that part of it; raises ``no_time_column``."""
        time = self.sentence.time
        said = word.text if word is not None else grain
        part = self.schema.time_part(grain)
        if time is not None and grain in ("hour", "hour_of_day"):
            if has_clock(time):
                known = self.schema.range(time)
                long = known is not None and (known[1] - known[0]).days > 2
                if long and grain == "hour":
                    self.sentence.note("Hours are hours of the day.", "小时按一天中的钟点分组。")
                return Group(time.name, "hour_of_day" if long else grain)
            if part is not None:
                return Group(part.name)
            raise self.voice.error(
                "no_time_column",
                f"{time.name!r} holds days without hours, so nothing can be grouped by '{said}'.",
                f"“{time.name}”只有日期而没有时刻，无法按“{said}”分组。",
                [n.column.name for n in self.schema.columns],
            )
        if time is not None:
            return Group(time.name, grain)
        if part is not None:
            return Group(part.name)
        names = [n.column.name for n in self.schema.columns]
        raise self.voice.error(
            "no_time_column",
            f"Grouping by '{said}' needs a date or time column, and the table has none; its columns are "
            f"{self.voice.listing(names)}.",
            f"按“{said}”分组需要日期或时间列，而表中没有；现有的列：{self.voice.listing(names)}。",
            names,
        )

    def add(self, group: Group, at: int, how: str, *, plural: bool = True, number: int | None = None) -> None:
        """Take a grouping, once."""
        for asked in self.found:
            if asked.group == group:
                asked.number = asked.number if asked.number is not None else number
                if how != "per":
                    asked.how, asked.plural = how, plural
                return
        if len(self.found) >= MAX_GROUPS:
            self.sentence.note(f"At most {MAX_GROUPS} groupings are used.", f"最多使用 {MAX_GROUPS} 个分组。")
            return
        self.found.append(Asked(group, at, how, plural, number))

    def _take(self, start: int, end: int, mention: Mention | None) -> None:
        self.sentence.use(start, end, "group")
        if mention is not None:
            mention.used = "group"

    def is_unique(self, mention: Mention) -> bool:
        """Whether a mention names the rows themselves: an identifier that is different in each."""
        rows = self.schema.profile.rows
        return any(h.column.role == "identifier" and h.column.distinct >= 0.99 * rows for h in mention.hits)

    # --- the ways to ask -----------------------------------------------------------------------------------------

    def _list(self, i: int) -> None:
        j, first = i + 1, True
        while True:
            start = i if first and self._own_item(i) else self._skip(j)
            word = self.sentence.word(start)
            if word is None:
                return
            mention = self.sentence.mention_at(start)
            if (
                first
                and (self.schema.is_row_noun(word) or (mention is not None and self.is_unique(mention)))
                and not word.has("grain")
            ):
                following = self.sentence.word(start + 1)
                if mention is None or (
                    (mention.end == start + 1 and self.is_unique(mention)) and not (following and following.columns)
                ):
                    self.per_row = True
                    self.sentence.use(i, start + 1, "group")
                    return
            item = self.item(start, numbers=first)
            if item is None:
                return
            group, end, mention = item
            self._refuse_ratio(i, group, mention)
            self._take(i, end, mention)
            self.add(group, start, "per")
            first = False
            following = self.sentence.word(end)
            if following is None or not (
                following.has("join") or following.stem in (",", "/", "x", "×") or following.has("per")
            ):
                return
            if (ahead := self.sentence.word(end + 1)) is not None and (ahead.has("per") or ahead.has("adverb")):
                return
            i, j = end, end + 1

    def _refuse_ratio(self, i: int, group: Group, mention: Mention | None) -> None:
        """``average bill per guest``: a quotient of two measures, which a table by numbers of guests is not."""
        column = self.schema.by_name[group.column].column
        if self.words[i].stem in _BY or not self.schema.is_measure(column) or not column.additive or mention is None:
            return
        if any(w.has("count") or w.has("countpost") for w in self.words):
            return
        raise self.voice.error(
            "not_supported",
            f"Values per single {mention.text} are not supported: nothing is divided by {column.name}. "
            f"'by {column.name}' groups by it.",
            f"不支持“{self.words[i].text}{mention.text}”：不做除以“{column.name}”的计算；“按{column.name}”则按其分组。",
            [n.column.name for n in self.schema.columns if n.column.role == "category"],
        )

    def _own_item(self, i: int) -> bool:
        """Whether a word says both that and what to group by: 各国, 哪省."""
        mention = self.sentence.mention_at(i)
        return mention is not None and mention.start == i

    def _adverb(self, i: int, how: str = "per") -> None:
        word = self.words[i]
        self.add(self.time_group(cast("Grain", word.has("grain")), word), i, how, plural=how == "per")
        word.used = "group"

    def _pronoun(self, i: int) -> None:
        word = self.words[i]
        if word.has("when"):
            if not self.ranked:
                return
            if any(w.has("grain") for w in self.words[i + 1 :]):
                word.used = "group"  # when was the busiest *hour*
                return
            known = self.schema.range(self.sentence.time) if self.sentence.time is not None else None
            grain = auto_grain(*known) if known else "month"
            self.add(self.time_group(grain, word), i, "which", plural=False)
            word.used = "group"
            return
        for concept in PERSON_WORDS if word.has("who") else PLACE_WORDS:
            for named in self.schema.columns:
                if named.concept == concept and named.column.role in ("category", "identifier", "text"):
                    self.sentence.note(
                        f"'{word.text}' is read as {named.column.name}.", f"“{word.text}”按 {named.column.name} 理解。"
                    )
                    self.add(Group(named.column.name), i, "which", plural=False)
                    word.used = "group"
                    return

    def _which(self, i: int) -> None:
        if i and self.words[i].stem == "who":
            return  # members who joined in May
        j = i + 1
        number = None
        following = self.sentence.word(j)
        if following is not None and following.number is not None and not following.used:
            number, j = int(following.number), j + 1
        j = i if self._own_item(i) else self._skip(j)
        while (w := self.sentence.word(j)) is not None and (w.has("high") or w.has("busiest")) and j < i + 5:
            j += 1
        item = self.item(j)
        if item is None:
            return
        group, end, mention = item
        word = self.sentence.word(j)
        if word is not None and mention is not None and self.is_unique(mention) and group.grain is None:
            pass
        plural = number is not None or self._plural(end - 1) or self.words[i].stem in ("哪些", "哪几个", "哪几家")
        self._take(i, end, mention)
        self.add(group, j, "which", plural=plural, number=number)

    def _plural(self, at: int) -> bool:
        word = self.words[at]
        said = word.text.casefold()
        return word.kind != "cjk" and said.endswith("s") and not said.endswith(("ss", "'s", "’s")) and word.stem != said

    def _ranked_item(self, i: int) -> None:
        """``top 5 products``, ``5 best carriers``, ``the worst month``, ``最高的三个地区``, ``前五个产品``."""
        word = self.words[i]
        ranks = [k for k in ("top", "high", "busiest", "adjhigh", "adjlow") if word.has(k)]
        number: int | None = None
        j = i
        if ranks:
            j = i + 1
        elif word.number is None or not self.ranked or word.used or not word.number.is_integer():
            return
        while j < min(i + 5, len(self.words)):
            here = self.words[j]
            if (
                here.number is not None
                and number is None
                and 0 < here.number <= 1000
                and here.number.is_integer()
                and not here.used
            ):
                number = int(here.number)
            elif not (
                here.has("high")
                or here.has("busiest")
                or here.has("adjhigh")
                or here.stem in _SKIPPED
                or here.has("counter")
            ):
                break
            if self.sentence.mention_at(j) is not None or here.has("grain"):
                break
            j += 1
        if j >= len(self.words) or (word.stem in ("前", "后", "末", "倒数") and number is None):
            return
        if word.stem in _COUNTABLE and number is None and not (word.kind == "cjk" and self.words[i + 1].stem == "的"):
            return
        mention = self.sentence.mention_at(j)
        if mention is not None and mention.used:
            return
        if (mention is not None and self.is_unique(mention)) or self.schema.is_row_noun(self.words[j]):
            if number is not None:
                self._single_rows(i, j, mention, number)
            return
        if ranks and mention is not None and not mention.columns("category", "text", "time") and word.kind != "cjk":
            j = mention.end  # the highest revenue *day*
        item = self.item(j, numbers=False)
        if item is None or (item[2] is not None and self.is_unique(item[2])):
            return
        group, end, mention = item
        plural = number is not None or self._plural(end - 1)
        if not ranks and not plural:
            return
        self._take(j, end, mention)
        for k in range(i, j):
            if self.words[k].number is not None:
                self.words[k].used = "group"
        self.add(group, j, "rank", plural=plural, number=number)

    def _single_rows(self, i: int, j: int, mention: Mention | None, number: int) -> None:
        """``top 10 projects``: the rows themselves, which can be listed only by what tells them apart."""
        named = mention if mention is not None and self.is_unique(mention) else None
        names = [h.column.name for h in named.hits if h.column.role == "identifier"] if named is not None else []
        unique = [n.column for n in self.schema.columns if n.column.role == "identifier"]
        rows = self.schema.profile.rows
        names = names or [c.name for c in unique if c.distinct >= 0.99 * rows]
        if not names:
            raise self.voice.error(
                "not_supported",
                f"No column tells the {self.words[j].text} apart, so they cannot be listed; rank groups instead.",
                f"无法逐行列出“{self.words[j].text}”：没有可以区分它们的列；请改为对分组排序。",
                [n.column.name for n in self.schema.columns if n.column.role == "category"],
            )
        end = mention.end if mention is not None else j + 1
        self._take(i, end, mention)
        self.add(Group(names[0]), j, "rank", number=number)

    def _things_with(self) -> None:
        """``the regions with the highest revenue``, ``the month that had most flights``."""
        for i, word in enumerate(self.words):
            if not (word.has("with") or word.stem in ("that", "where", "when")) or not self.ranked or i == 0:
                continue
            if not any(w.has("high") or w.has("top") or w.has("adjhigh") for w in self.words[i + 1 : i + 6]):
                continue
            mention = self.sentence.mention_ending(i)
            start = mention.start if mention is not None else i - 1
            item = self.item(start, numbers=False)
            if item is None or (mention is not None and self.is_unique(mention)):
                continue
            before = self.sentence.word(start - 1)
            number = None
            if before is not None and before.number is not None and not before.used:
                number = int(before.number)
                before.used = "group"
            self._take(start, i, item[2])
            self.add(item[0], start, "rank", plural=number is not None or self._plural(i - 1), number=number)

    def _unusual_things(self) -> None:
        for i, word in enumerate(self.words):
            if word.has("unusual") and self._free(i + 1):
                j = self._skip(i + 1)
                item = self.item(j, numbers=False)
                if item is not None and not (item[2] is not None and self.is_unique(item[2])):
                    self._take(j, item[1], item[2])
                    self.add(item[0], j, "per")

    def _free(self, i: int) -> bool:
        word = self.sentence.word(i)
        return word is not None and not word.used

    # --- what is left --------------------------------------------------------------------------------------------

    def take_left(self, *, compared: bool, share: bool) -> None:
        """Category columns and grains that nothing else has used: named to be grouped by."""
        for mention in self.sentence.mentions:
            if mention.used or any(self.words[k].used for k in range(mention.start, mention.end)):
                continue
            if not mention.columns("category", "text") or self.is_unique(mention):
                continue
            if max((h.score for h in mention.columns("number")), default=0.0) > max(
                h.score for h in mention.columns("category", "text")
            ):
                continue
            group = self._mention_group(mention, numbers=False)
            if group is None:
                continue
            if self._names_values(mention, group.column):
                self.sentence.take(mention, "qualifier")
                continue
            if self.schema.truth(self.schema.by_name[group.column].column, True) is not None and not (
                share and not self.found
            ):
                continue
            several = self._plural(mention.end - 1) or self.words[mention.start].kind == "cjk"
            if self.found and not several:
                continue
            mention_start = mention.start
            self.sentence.take(mention, "group")
            self.add(group, mention_start, "rank" if self.ranked and not self.found else "left", plural=several)
            if not (several or self.ranked or compared):
                self.sentence.note(f"Grouped by {group.column}.", f"按 {group.column} 分组。")
        if self.ranked:
            self.take_left_grain()

    def _names_values(self, mention: Mention, column: str) -> bool:
        """``venues other than Dome``: the name only says of what the values are that follow."""
        for word in self.words[mention.end : mention.end + 3]:
            if word.used == "value":
                return any(hit.column == column for hit in word.values)
            if not (word.stop or word.has("not") or word.has("op")) or word.has("per") or word.stem == ",":
                return False
        return False

    def take_left_grain(self) -> None:
        """A grain that nothing else has used, where something must be grouped: *the best month*, *strange days*."""
        if self.found or self.sentence.time is None:
            return
        for i, word in enumerate(self.words):
            if word.has("grain") and not word.used and not word.has("agg"):
                self._take(i, i + 1, None)
                self.add(self.time_group(cast("Grain", word.has("grain")), word), i, "rank", plural=self._plural(i))
                return
