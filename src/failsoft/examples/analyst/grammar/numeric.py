"""Numeric conditions: ``delay over 60``, ``price between 10 and 20``, ``超过60分钟``, ``100以上``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from failsoft.examples.analyst.grammar.lexicon import ADJECTIVES, UNITS
from failsoft.examples.analyst.grammar.mentions import Hit, Mention, Sentence, choose, choose_and_tell
from failsoft.examples.analyst.grammar.quantities import (
    UNIT_WORDS,
    Unit,
    converted,
    number_in_words,
    said_unit,
    unit_of,
)
from failsoft.examples.analyst.grammar.schema import name_parts
from failsoft.examples.analyst.grammar.wording import Voice
from failsoft.examples.analyst.grammar.words import Word, phrase_key, stem
from failsoft.examples.analyst.spec import Column, Filter, Operator, Scalar

_SCALES = {
    "k": 1e3,
    "thousand": 1e3,
    "千": 1e3,
    "m": 1e6,
    "mio": 1e6,
    "million": 1e6,
    "bn": 1e9,
    "billion": 1e9,
    "万": 1e4,
    "亿": 1e8,
}
_SCALED = re.compile(r"(\d+(?:\.\d+)?)(k|m|bn|min|mins|h|km|kg|kwh|usd|eur|pct)$")
_MONEY = frozenset("$€£¥")
_COMPARATIVES = {
    "longer": "long",
    "shorter": "short",
    "older": "old",
    "younger": "young",
    "later": "delayed",
    "cheaper": "cheap",
}
_COMPARATIVES |= {
    "heavier": "heavy",
    "lighter": "light",
    "farther": "far",
    "further": "far",
    "faster": "fast",
    "slower": "slow",
}


@dataclass(frozen=True, slots=True)
class Pending:
    """A comparison with a number whose column was not said beside it."""

    index: int
    op: Operator
    value: float


def typed(column: Column, text: str | float) -> Scalar:
    """A value as the column stores it: numbers as numbers, truth as truth, all else as text."""
    kind = column.type.upper()
    if isinstance(text, float):
        return int(text) if text.is_integer() and abs(text) < 1e15 else text
    if kind.startswith("BOOL"):
        return text.strip().casefold() in ("true", "t", "1", "yes")
    if "INT" in kind and re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if kind.startswith(("DOUBLE", "FLOAT", "REAL", "DECIMAL", "NUMERIC")) and re.fullmatch(
        r"-?\d{1,18}(\.\d{1,18})?", text
    ):
        return float(text)
    return text


class NumericConditions:
    """Reads the comparisons with numbers of one sentence."""

    def __init__(self, sentence: Sentence) -> None:
        self.sentence = sentence
        self.words = sentence.words
        self.schema = sentence.schema
        self.voice = Voice(sentence.language)
        self.filters: list[Filter] = []
        self.places: list[tuple[int, int]] = []
        """Of each filter, the words that say it."""
        self.pending: list[Pending] = []
        self.borrowed: list[Mention] = []
        """Mentions that a numeric condition uses; they may name the measure as well."""

    def read_numbers(self) -> None:
        """Comparisons with numbers, before periods: the 2000 of *over 2000* is no year."""
        for i, word in enumerate(self.words):
            if word.used:
                continue
            if word.has("between"):
                self._between(i)
            elif (op := word.has("op")) and op not in ("=", "contains"):
                self._comparison(i, op)
            elif word.has("op") == "=" and (
                word.kind == "symbol" or word.stem in ("equals", "equal", "等于", "exactly")
            ):
                self._comparison(i, "=")
            elif word.has("post") and word.stem.startswith("or ") and i and self.words[i - 1].used == "condition":
                self._comparison(i, word.senses["post"].rstrip("="))
            elif self._value_of(word) is not None or word.kind == "word":
                self._postfix(i)

    def add(self, condition: Filter, start: int, end: int) -> None:
        """Take a condition that words ``[start, end)`` say."""
        self.filters.append(condition)
        self.places.append((start, end))

    def _value_of(self, word: Word) -> float | None:
        if word.number is not None:
            return word.number
        if match := _SCALED.match(word.stem):
            return float(match[1]) * _SCALES.get(match[2], 1.0)
        return None

    def _number(self, i: int) -> tuple[float, int] | None:
        """The number at `i` with sign, currency and scale, and where the words go on."""
        sign = 1.0
        if i < 0:
            return None
        for _ in range(3):
            if i < len(self.words) and self.words[i].stem in ("-", *_MONEY, "a", "the", "usd", "eur"):
                if self._spelled(i) is not None:
                    break
                sign = -1.0 if self.words[i].stem == "-" else sign
                i += 1
        if i >= len(self.words) or self.words[i].used:
            return None
        if (spelled := self._spelled(i)) is not None:
            return sign * spelled[0], spelled[1]
        if (value := self._value_of(self.words[i])) is None:
            return None
        i += 1
        if i < len(self.words) and (scale := _SCALES.get(self.words[i].stem)) and self.words[i].stem not in ("m", "千"):
            value, i = value * scale, i + 1
        return sign * value, i

    def _spelled(self, i: int) -> tuple[float, int] | None:
        """A number in letters; one in digits is none."""
        if self.words[i].kind != "word" or self.words[i].values:
            return None
        return number_in_words(self.words, i)

    def _skip_unit(self, i: int) -> int:
        while i < len(self.words) and (
            self.words[i].stem in UNITS or self.words[i].stem in ("%", "个", "件", *_MONEY) or self._is_unit(i)
        ):
            if self.sentence.mention_at(i) is not None and not (
                self.words[i].stem in ("%", "percent") or self.words[i].stem in UNIT_WORDS
            ):
                break
            i += 1
        return i

    def _is_unit(self, i: int) -> bool:
        return self.words[i].stem in UNIT_WORDS and (len(self.words[i].stem) > 1 or self.words[i].kind == "cjk")

    def _comparison(self, i: int, op: str) -> None:
        found = self._number(i + 1)
        if found is None:
            return
        value, end = found
        if op == "=" and (self.words[end - 1].values or (1000 <= value <= 2999 and self._is_date_context(i))):
            return
        self._accept(i, end, [(operator_of(op), value)])

    def _is_date_context(self, i: int) -> bool:
        mention = self._before(i)
        return mention is not None and bool(mention.columns("time"))

    def _postfix(self, i: int) -> None:
        found = self._number(i)
        if found is None:
            return
        value, end = found
        unit_end = self._skip_unit(end)
        if unit_end < len(self.words) and (op := self.words[unit_end].has("post")) and not self.words[unit_end].used:
            self._accept(i - 1, unit_end + 1, [(operator_of(op), value)], start=i)

    def _between(self, i: int) -> None:
        last = i - 1
        while last > 2 and self.words[last].stem in UNITS:  # 10到20公斤之间
            last -= 1
        if (low := self._number(i + 1)) is not None:
            start, first = i, low
        elif (low := self._number(last - 2)) is not None and low[1] == last - 1:
            start, first = last - 2, low
        else:
            return
        middle = first[1]
        if middle >= len(self.words) or not (self.words[middle].has("join") or self.words[middle].has("range")):
            return
        high = self._number(middle + 1)
        if high is None:
            return
        if self._before(start) is None and 1000 <= first[0] <= 2999 and 1000 <= high[0] <= 2999:
            return  # between 2010 and 2015: years
        end = max(high[1], i + 1)
        if end < len(self.words) and self.words[end].has("between"):
            end += 1
        if end < len(self.words) and self.words[end].has("grain"):
            unit = said_unit(self.words[end : end + 1])
            if unit is None or not (self._before(start) or self._by_dimension(unit)):
                return
        self._accept(start - 1 if start != i else i, end, [(">=", first[0]), ("<=", high[0])], start=start)

    def _before(self, i: int, reach: int = 5) -> Mention | None:
        """The number column named shortly before word `i`."""
        for end in range(i, max(i - reach, 0), -1):
            mention = self.sentence.mention_ending(end)
            if mention is not None:
                between = self.words[end:i]
                if any(w.number is not None or w.values or (w.has("per") and w.stem != "by") for w in between):
                    return None
                if self._numeric(mention):
                    return mention
        return None

    def _numeric(self, mention: Mention) -> list[Hit]:
        return choose(mention, mention.columns("number"), self.schema)

    def _accept(self, i: int, end: int, tests: Sequence[tuple[Operator, float]], *, start: int | None = None) -> None:
        start = i if start is None else start
        percent = end < len(self.words) and self.words[end].stem in ("%", "percent")
        stop = self._skip_unit(end)
        mention = self._before(start, 3)
        unit = said_unit(self.words[end:stop])
        after = self._after(stop)
        written = self.words[start].stem in (">", "<", ">=", "<=", "=", "!=")
        if mention is None or (
            after is not None
            and not written
            and (not self._beside(mention, start) or (after.start == stop and self._led(mention, start)))
        ):
            mention = after or mention or self._before(start)
        hits = self._numeric(mention) if mention is not None else []
        compared = _COMPARATIVES.get(self.words[start].stem.split(" ")[0])
        if compared is not None and mention is not None and not self._beside(mention, start):
            meant = self._by_adjective(compared, self.words[start].text)  # visits of members older than 30
            hits, mention = (meant, None) if meant else (hits, mention)
        if not hits and unit is None:
            hits = self._by_unit(self.words[end:stop])
        if not hits and self.words[start].stem.split(" ")[0] in _COMPARATIVES:
            hits = self._by_adjective(_COMPARATIVES[self.words[start].stem.split(" ")[0]], self.words[start].text)
        if after is None and unit is None and not (mention is not None and self._beside(mention, start)):
            self._refuse_number_of_rows(start, stop)
        if not hits and unit is not None:
            hits = self._by_unit(self.words[end:stop]) or self._by_dimension(unit)
        if not hits and (before := self._alternative_to(start)) is not None:
            hits = [Hit(before, 0.5, literal=False)]
        self.sentence.use(start, stop, "condition")
        if start and (unit is not None or self.words[start - 1].stem.endswith("ing")):
            self._verb(self.words[start - 1])
        thing = self.sentence.word(stop)
        if not hits and thing is not None and not thing.stop and not thing.known and thing.stem not in UNITS:
            names = [n.column.name for n in self.schema.columns]
            raise self.voice.error(
                "unknown_column",
                f"There is no column '{thing.text}'; the table has {self.voice.listing(names)}.",
                f"没有名为“{thing.text}”的列；表中有：{self.voice.listing(names)}。",
                names,
            )
        if not hits:
            self.pending += [Pending(start, op, value) for op, value in tests]
            return
        column = self.pick(hits, mention.text if mention else self.words[start].text)
        if mention is not None and hits:
            self.borrowed.append(mention)
        for op, value in tests:
            scaled = self._in_unit(column, value, self.words[end:stop])
            if percent and isinstance(column.maximum, float) and column.maximum <= 1:
                scaled /= 100
            self.add(Filter(column.name, op, typed(column, scaled)), start, stop)

    def _refuse_number_of_rows(self, start: int, stop: int) -> None:
        """``wards with more than 40 admissions``: the condition is on how many rows a group has, not on a row."""
        word, mention = self.sentence.word(stop), self.sentence.mention_at(stop)
        if word is None or self.words[start].has("op") is None:
            return
        rows = self.schema.profile.rows
        hits = mention.hits if mention is not None else ()
        unique = any(h.column.role == "identifier" and h.column.distinct >= 0.99 * rows for h in hits)
        if unique or (mention is None and self.schema.is_row_noun(word)):
            said = self.sentence.said(start, stop + 1)
            raise self.voice.error(
                "not_supported",
                f"Conditions on how many rows a group has ('{said}') are not supported; rank the groups instead.",
                f"不支持以分组的行数（“{said}”）为条件；可以改为排序。",
                [n.column.name for n in self.schema.columns if n.column.role == "category"],
            )

    def _verb(self, word: Word) -> None:
        """``stayed``, ``lasted``, ``kept`` before a length of time only say that it is one."""
        says = word.stem.endswith(("ed", "ing")) or word.stem in ("kept", "took", "last", "stay", "spent")
        if says and word.kind == "word" and not (word.used or word.columns or word.values):
            word.used = "condition"

    def _alternative_to(self, start: int) -> Column | None:
        """``below 10 or above 100``: the column of the comparison before the *or*."""
        opened = self.words[start].has("post") is not None
        joined = start > 0 and self.words[start - 1].has("join") is not None
        if not (opened or joined) or not self.places or self.places[-1][1] != (start if opened else start - 1):
            return None
        return self.schema.by_name[self.filters[-1].column].column

    def _by_dimension(self, unit: Unit) -> list[Hit]:
        """``more than a week``: the only number column that is in a unit of the same kind."""
        kinds = {"time", "span"} if unit.kind in ("time", "span") else {unit.kind}
        hits = [
            Hit(n.column, 0.5, literal=False)
            for n in self.schema.columns
            if n.column.role == "number" and (own := unit_of(n.column)) is not None and own.kind in kinds
        ]
        if len(hits) == 1:
            name = hits[0].column.name
            self.sentence.note(f"The only column in such a unit is {name}.", f"具有该单位的列只有 {name}。")
        return hits if len(hits) == 1 else []

    def _in_unit(self, column: Column, value: float, units: Sequence[Word]) -> float:
        """Hours said of a column in minutes become minutes, and the like; told when nobody knows the column's unit."""
        said, own = said_unit(units), unit_of(column)
        if said is None or own == said:
            return value
        scaled = converted(value, said, own) if own is not None else None
        name = next(w.text for w in units if w.stem in UNIT_WORDS)
        if scaled is None:
            self.sentence.left(name)
            self.sentence.note(
                f"The unit of {column.name} is not known, so {value:g} is compared with its numbers as it is.",
                f"“{column.name}”的单位未知，直接与数值 {value:g} 比较。",
            )
            return value
        unit = column.unit or name_parts(column.name)[-1]
        self.sentence.note(
            f"{value:g} {name} {'is' if value == 1 else 'are'} {scaled:g} {unit} of {column.name}.",
            f"{value:g}{name}按 {scaled:g} {unit}计（{column.name}）。",
        )
        return scaled

    def _led(self, mention: Mention, start: int) -> bool:
        """``the bill with more than ten guests``: a preposition leads to what stands behind the number."""
        leads = ("with", "having", "for", "where", "when", "at", "in", "among", "that", "who", "bei", "mit", "von")
        return any(w.stem in leads for w in self.words[mention.end : start])

    def _beside(self, mention: Mention, start: int) -> bool:
        return all(w.stop or w.has("op") for w in self.words[mention.end : start])

    def _after(self, stop: int) -> Mention | None:
        for i in range(stop, min(stop + 4, len(self.words))):
            mention = self.sentence.mention_at(i)
            if mention is not None:
                return mention if self._numeric(mention) else None
            if not self.words[i].stop or self.words[i].has("per") or self.words[i].has("join"):
                return None
        return None

    def _by_unit(self, units: Sequence[Word]) -> list[Hit]:
        """``over 500 USD``: the only number column in that unit."""
        said = {w.stem for w in units}
        hits = [
            Hit(n.column, 0.5, literal=False)
            for n in self.schema.columns
            if n.column.role == "number" and said & ({stem(n.column.unit or "")} | set(phrase_key(n.column.name)[1:]))
        ]
        return hits if len(hits) == 1 else []

    def _by_adjective(self, adjective: str, said: str) -> list[Hit]:
        for concept in ADJECTIVES[adjective][0]:
            hits = [
                Hit(n.column, 0.5, literal=False)
                for n in self.schema.columns
                if n.concept == concept and n.column.role == "number"
            ]
            if hits:
                return choose_and_tell(self.sentence, Mention(0, 0, said, tuple(hits)), hits)
        return []

    def pick(self, hits: Sequence[Hit], said: str) -> Column:
        """The one column of several that fit equally, or an error that names them."""
        if len(hits) > 1:
            names = [hit.column.name for hit in hits]
            raise self.voice.error(
                "ambiguous",
                f"'{said}' may be any of these columns: {self.voice.listing(names)}. Please name one.",
                f"“{said}”可能是以下任一列：{self.voice.listing(names)}。请指明其中一列。",
                names,
            )
        return hits[0].column

    def settle(self, column: Column | None) -> None:
        """Give the comparisons without a column that of the measure; an error when there is none."""
        for pending in self.pending:
            if column is None or column.role != "number":
                names = [n.column.name for n in self.schema.columns if self.schema.is_measure(n.column)]
                said = f"{self.words[pending.index].text} {pending.value:g}"
                raise self.voice.error(
                    "ambiguous",
                    f"Which column is meant by '{said}'? There are {self.voice.listing(names)}.",
                    f"“{said}”指的是哪一列？现有：{self.voice.listing(names)}。",
                    names,
                )
            self.sentence.note(
                f"The condition on {pending.value:g} is taken to be on {column.name}.",
                f"与 {pending.value:g} 比较的列按 {column.name} 理解。",
            )
            self.add(Filter(column.name, pending.op, typed(column, pending.value)), pending.index, pending.index + 1)
        self.pending.clear()


def operator_of(text: str) -> Operator:
    """The operator of that name."""
    operators: dict[str, Operator] = {
        "=": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "contains": "contains",
    }  # fmt: skip
    return operators[text]
