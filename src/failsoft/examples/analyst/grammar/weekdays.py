"""Conditions on days of the week: ``on weekends``, ``Monday sales``, ``except Sundays``, ``周末``, ``montags``."""

from __future__ import annotations

from types import MappingProxyType

from failsoft.examples.analyst import timecut
from failsoft.examples.analyst.grammar.conditions import Conditions
from failsoft.examples.analyst.grammar.mentions import Sentence
from failsoft.examples.analyst.grammar.wording import Voice
from failsoft.examples.analyst.grammar.words import Word, fold
from failsoft.examples.analyst.spec import Column, Filter, Scalar

_NAMES = """
1 monday montag 周一 星期一 礼拜一
2 tuesday dienstag 周二 星期二 礼拜二
3 wednesday mittwoch 周三 星期三 礼拜三
4 thursday donnerstag 周四 星期四 礼拜四
5 friday freitag 周五 星期五 礼拜五
6 saturday samstag sonnabend 周六 星期六 礼拜六
7 sunday sonntag 周日 星期日 星期天 周天 礼拜天
"""
_WORKING = (1, 2, 3, 4, 5)
_FREE = (6, 7)


def _days() -> MappingProxyType[str, tuple[int, ...]]:
    known: dict[str, tuple[int, ...]] = {}
    for line in _NAMES.strip().splitlines():
        number, *names = line.split()
        known |= dict.fromkeys(names, (int(number),))
    known |= dict.fromkeys(("weekend", "wochenende", "周末", "双休日"), _FREE)
    known |= dict.fromkeys(("weekday", "workday", "werktag", "working day", "business day", "工作日"), _WORKING)
    return MappingProxyType(known)


DAYS = _days()


def days_of(word: Word) -> tuple[int, ...]:
    """The days (1 is Monday) that a word names; empty for other words."""
    said = fold(word.text)
    return DAYS.get(said) or DAYS.get(said.removesuffix("s")) or DAYS.get(said.removesuffix("en")) or ()


class Weekdays:
    """Reads the days of the week of one sentence, once its groups are known."""

    def __init__(self, sentence: Sentence, conditions: Conditions, *, ranked: bool) -> None:
        self.sentence = sentence
        self.words = sentence.words
        self.schema = sentence.schema
        self.conditions = conditions
        self.ranked = ranked
        self.voice = Voice(sentence.language)

    def read(self) -> None:
        """One condition from all days that are said; raises ``QuestionError`` where they are set against each other."""
        places = [i for i in range(len(self.words)) if self._is_condition(i)]
        column = self._column() if places else None
        if column is None:
            return
        if any(w.has("compare") or w.has("diff") for w in self.words) and len(places) > 1:
            raise self._unsupported(places[0])
        wanted: dict[bool, set[int]] = {True: set(), False: set()}
        spans: dict[bool, list[int]] = {True: [], False: []}
        for at, i in enumerate(places):
            left_out = self.conditions.denied(i)
            days = set(days_of(self.words[i]))
            if at and (last := places[at - 1]) + 2 == i and self.words[i - 1].has("range"):
                first, final = min(days_of(self.words[last])), max(days)
                days |= set(range(first, final + 1)) if first <= final else {*range(first, 8), *range(1, final + 1)}
                self.words[i - 1].used = self.words[i - 1].used or "condition"
            wanted[left_out] |= days
            spans[left_out] += [i]
            self.words[i].used = "condition"
        for left_out, days in wanted.items():
            if days:
                self._add(column, sorted(days), min(spans[left_out]), max(spans[left_out]) + 1, left_out=left_out)

    def _is_condition(self, i: int) -> bool:
        word = self.words[i]
        if word.used or word.columns or word.values or not days_of(word):
            return False
        if word.has("grain") != "weekday":
            return True
        before, following = self.sentence.word(i - 1) if i else None, self.sentence.word(i + 1)
        if before is not None and before.stem in ("on", "during", "only", "except", "for", "am", "an"):
            return True
        measured = self.sentence.mention_at(i + 1) is not None or (
            following is not None and self.schema.is_row_noun(following)
        )
        return measured and not self.ranked and not (before is not None and (before.has("per") or before.has("which")))

    def _column(self) -> Column | None:
        return self.sentence.time or self.schema.time_part("weekday")

    def _add(self, column: Column, days: list[int], start: int, end: int, *, left_out: bool) -> None:
        if column.role == "time":
            numbers: list[Scalar] = list(days)
            test = Filter(column.name, "not in" if left_out else "in", numbers, grain="weekday")
        else:
            named = {value: timecut.calendar_place(value) for value in column.values}
            values: list[Scalar] = [value for value, place in named.items() if place in days]
            if not values or None in named.values():
                return
            test = Filter(column.name, "not in" if left_out else "in", values)
        self.conditions.add(test, start, end)

    def _unsupported(self, i: int) -> Exception:
        said = self.words[i].text
        return self.voice.error(
            "not_supported",
            f"Days of the week are not set against each other; group by weekday instead of '{said}'.",
            f"不支持星期之间的比较；可以改为按星期几分组，而不是“{said}”。",
        )
