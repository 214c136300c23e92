"""Conditions: numbers (``delay over 60``, ``超过60``), values of columns (``in the North``, ``not from EWR``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from failsoft.examples.analyst.grammar.lexicon import ADJECTIVES, DIRECTIONS, PEOPLE_WORDS, UNITS
from failsoft.examples.analyst.grammar.mentions import Hit, Mention, Sentence, choose, choose_and_tell
from failsoft.examples.analyst.grammar.schema import name_parts
from failsoft.examples.analyst.grammar.wording import Voice
from failsoft.examples.analyst.grammar.words import ValueHit, Word, phrase_key, stem
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
_MINUTES = {"second": 1 / 60, "sec": 1 / 60, "秒": 1 / 60, "minute": 1.0, "min": 1.0, "mins": 1.0, "分钟": 1.0}
_MINUTES |= {"hour": 60.0, "h": 60.0, "hr": 60.0, "小时": 60.0}
_LINKING = frozenset({"the", "的", "named", "called", ":", '"', "“", "'"})
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
class FoundValue:
    """A value of a column said at word ``index``; ``negated`` when it is to be left out."""

    index: int
    column: Column
    value: str
    negated: bool


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


class Conditions:
    """Reads the conditions of one sentence."""

    def __init__(self, sentence: Sentence) -> None:
        self.sentence = sentence
        self.words = sentence.words
        self.schema = sentence.schema
        self.voice = Voice(sentence.language)
        self.filters: list[Filter] = []
        self.pending: list[Pending] = []
        self.values: list[FoundValue] = []
        self.borrowed: list[Mention] = []
        """Mentions that a numeric condition uses; they may name the measure as well."""

    # --- numbers -------------------------------------------------------------------------------------------------

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
            elif self._value_of(word) is not None:
                self._postfix(i)

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
                sign = -1.0 if self.words[i].stem == "-" else sign
                i += 1
        if i >= len(self.words) or self.words[i].used or (value := self._value_of(self.words[i])) is None:
            return None
        i += 1
        if i < len(self.words) and (scale := _SCALES.get(self.words[i].stem)) and self.words[i].stem not in ("m", "千"):
            value, i = value * scale, i + 1
        return sign * value, i

    def _skip_unit(self, i: int) -> int:
        while i < len(self.words) and (self.words[i].stem in UNITS or self.words[i].stem in ("%", "个", "件", *_MONEY)):
            if self.sentence.mention_at(i) is not None and self.words[i].stem not in ("minute", "分钟", "%"):
                break
            i += 1
        return i

    def _comparison(self, i: int, op: str) -> None:
        found = self._number(i + 1)
        if found is None:
            return
        value, end = found
        if op == "=" and (self.words[end - 1].values or (1000 <= value <= 2999 and self._is_date_context(i))):
            return
        self._accept(i, end, [(_operator(op), value)])

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
            self._accept(i - 1, unit_end + 1, [(_operator(op), value)], start=i)

    def _between(self, i: int) -> None:
        if (low := self._number(i + 1)) is not None:
            start, first = i, low
        elif (low := self._number(i - 3)) is not None and low[1] == i - 2:
            start, first = i - 3, low
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
        after = self._after(stop)
        if mention is None or (
            after is not None
            and self.words[start].stem not in (">", "<", ">=", "<=", "=", "!=")
            and not self._beside(mention, start)
        ):
            mention = after or mention or self._before(start)
        hits = self._numeric(mention) if mention is not None else []
        if not hits:
            hits = self._by_unit(self.words[end:stop])
        if not hits and self.words[start].stem.split(" ")[0] in _COMPARATIVES:
            hits = self._by_adjective(_COMPARATIVES[self.words[start].stem.split(" ")[0]], self.words[start].text)
        self.sentence.use(start, stop, "condition")
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
            self.filters.append(Filter(column.name, op, typed(column, scaled)))

    def _in_unit(self, column: Column, value: float, units: Sequence[Word]) -> float:
        """Hours said of a column in minutes become minutes, and the like."""
        own = _MINUTES.get(stem(column.unit or name_parts(column.name)[-1]))
        said = next((_MINUTES[w.stem] for w in units if w.stem in _MINUTES), None)
        if own is None or said is None or own == said:
            return value
        self.sentence.note(
            f"{value:g} {units[0].text} are {value * said / own:g} {column.unit or ''} of {column.name}.",
            f"{value:g}{units[0].text}按 {value * said / own:g} {column.unit or ''}计（{column.name}）。",
        )
        return value * said / own

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

    # --- values --------------------------------------------------------------------------------------------------

    def read_values(self) -> None:
        """Values said by name, label or part of one; texts given for a column; numbers of a column of codes."""
        for i, word in enumerate(self.words):
            if word.used:
                continue
            if word.values and (choice := self._choose_value(i)) is not None:
                hit, mention = choice
                self._found(i, hit, mention)
            elif word.has("op") in ("=", "!=", "contains"):
                self._given(i)
            elif word.number is not None and word.kind == "number":
                self._coded(i)

    def _choose_value(self, i: int) -> tuple[ValueHit, Mention | None] | None:
        word = self.words[i]
        beside = self._columns_beside(i)
        near = [hit for hit in word.values if hit.column in beside]
        hits = near or [hit for hit in word.values if not hit.partial] or list(word.values)
        if not near and not self._credible(i, hits):
            return None
        if len({hit.column for hit in hits}) > 1:
            hits = self._by_direction(i, hits) or hits
        if len({hit.column for hit in hits}) > 1:
            hits = self._fewest(word, hits)
        if len({hit.value for hit in hits}) > 1:
            exact = [hit for hit in hits if hit.value == word.text]
            hits = exact or hits
        hit = hits[0]
        return hit, beside.get(hit.column)

    def _credible(self, i: int, hits: Sequence[ValueHit]) -> bool:
        word = self.words[i]
        if word.quoted:
            return True
        said = word.text.strip("\"'“”")
        exact = any(hit.value == said for hit in hits)
        before = self.words[i - 1] if i else None
        if word.kind == "cjk" and len(word.text) == 1:
            around = [self.words[j] for j in (i - 1, i + 1) if 0 <= j < len(self.words)]
            if any(w.kind == "cjk" and not w.known and not w.stop for w in around):
                return False
        if len(said) == 1 and word.kind != "cjk":
            return exact and said.isupper() and said not in ("A", "I") and i > 0
        if len(said) <= 2 and word.kind != "cjk":
            slotted = before is not None and (
                before.has("slot") or before.has("join") or before.has("compare") or before.has("dir")
            )
            return exact and (said.isupper() or said.isdigit()) and (len(said) == 2 or bool(slotted))
        if word.stop and not word.senses and any(not hit.partial for hit in hits) and self._attributive(i):
            return True
        if word.senses or word.stop:
            return exact and i > 0 and said[:1].isupper() and not (word.has("high") or word.has("agg"))
        mention = self.sentence.mention_at(i)
        if mention is not None and any(hit.literal for hit in mention.hits):
            grouped = before is not None and (before.has("per") or before.has("which"))
            return exact and said[:1].isupper() and i > 0 and not grouped
        if mention is not None and word.concepts:
            grouped = before is not None and (before.has("per") or before.has("which") or before.has("count"))
            return exact and not grouped
        return True

    def _attributive(self, i: int) -> bool:
        """Whether a word stands before a noun of the table: the *new* of new customers."""
        following = self.sentence.word(i + 1)
        if following is None:
            return False
        named = self.sentence.mention_at(i + 1) is not None or following.stem in PEOPLE_WORDS
        return named or self.schema.is_row_noun(following)

    def _columns_beside(self, i: int) -> dict[str, Mention]:
        """Columns named right beside the word: *region North*, *North region*, *region = North*, 地区为华北."""
        found: dict[str, Mention] = {}
        for step in (-1, 1):
            j = i + step
            for _ in range(3):
                word, mention = self.sentence.word(j), self.sentence.mention_at(j)
                if word is None:
                    break
                if mention is not None and not mention.start <= i < mention.end:
                    found |= {hit.column.name: mention for hit in mention.hits}
                    break
                linked = word.has("op") == "=" or word.stem in _LINKING
                listed = bool(word.values) or word.has("join") is not None or (step == -1 and word.stem in (",", "not"))
                if not (linked or listed):
                    break
                j += step
        return found

    def _by_direction(self, i: int, hits: Sequence[ValueHit]) -> list[ValueHit]:
        direction = self._direction(i)
        if direction is None:
            return []
        concepts = DIRECTIONS[direction]
        return [h for h in hits if any(concepts & w.concepts for w in self.schema.by_name[h.column].words)]

    def _direction(self, i: int) -> str | None:
        """``from`` or ``to`` beside a value, also as 出发 and 到达 after it."""
        following = self.sentence.word(i + 1)
        if following is not None and following.kind == "cjk" and following.concepts & {"departure", "arrival"}:
            return "from" if "departure" in following.concepts else "to"
        for j in range(i - 1, max(i - 4, -1), -1):
            if direction := self.words[j].has("dir"):
                return direction
            if not (self.words[j].stop or self.words[j].values):
                break
        return None

    def _fewest(self, word: Word, hits: Sequence[ValueHit]) -> list[ValueHit]:
        sizes = {hit.column: self.schema.by_name[hit.column].column.distinct or 10**9 for hit in hits}
        smallest = min(sizes.values())
        kept = [hit for hit in hits if sizes[hit.column] == smallest]
        names = list(dict.fromkeys(hit.column for hit in hits))
        if len({hit.column for hit in kept}) > 1:
            raise self.voice.error(
                "ambiguous",
                f"'{word.text}' is a value of several columns: {self.voice.listing(names)}. "
                "Please name the column beside it.",
                f"“{word.text}”是多个列的取值：{self.voice.listing(names)}。请在旁边指明列名。",
                names,
            )
        self.sentence.note(
            f"'{word.text}' is a value of {self.voice.listing(names)}; {kept[0].column} is taken.",
            f"“{word.text}”同时是 {self.voice.listing(names)} 的取值，按 {kept[0].column} 理解。",
        )
        return kept

    def _found(self, i: int, hit: ValueHit, mention: Mention | None) -> None:
        column = self.schema.by_name[hit.column].column
        self.values.append(FoundValue(i, column, hit.value, self._negated(i)))
        self.words[i].used = "value"
        own = self.sentence.mention_at(i)
        if own is not None and not own.used:
            own.used = "value"
        grouped = mention is not None and mention.start > 0 and self.words[mention.start - 1].has("per")
        if mention is not None and not mention.used and not grouped:
            self.sentence.take(mention, "qualifier")
        if hit.partial:
            shown = column.labels.get(hit.value, hit.value)
            self.sentence.note(
                f"'{self.words[i].text}' is read as {shown} ({column.name}).",
                f"“{self.words[i].text}”理解为 {shown}（{column.name}）。",
            )

    def _negated(self, i: int) -> bool:
        for j in range(i - 1, max(i - 9, -1), -1):
            word = self.words[j]
            if word.has("not"):
                word.used = word.used or "condition"
                return True
            if word.has("op") == "!=":
                word.used = word.used or "condition"
                return True
            listed = word.used == "value" or word.has("join") or word.stem == ","
            if not (
                listed
                or (word.stop and not word.has("compare"))
                or (self.sentence.mention_at(j) is not None and j == i - 1)
            ):
                return False
        return False

    def _given(self, i: int) -> None:
        """``region = Narnia``: a text given for a column, even one that the profile did not list."""
        mention = self.sentence.mention_ending(i)
        op = self.words[i].has("op")
        if mention is None or mention.used or i + 1 >= len(self.words):
            return
        start = i + 1
        if self.words[start].kind == "symbol" and i + 2 < len(self.words) and self.words[i + 2].quoted:
            start += 1
        following = self.words[start]
        if not following.quoted and self.sentence.mention_at(start) is not None:
            return
        explicit = self.words[i].kind == "symbol" or op == "contains" or following.quoted
        said = self.words[i].stem in ("is", "was", "equals", "为", "是", "等于")
        if not explicit and not (said and (following.kind == "cjk" or following.text[:1].isupper())):
            return
        if (
            following.used
            or following.kind == "symbol"
            or following.values
            or ((following.known or following.stop) and not explicit)
        ):
            return
        hits = choose(mention, mention.columns("category", "text", "identifier"), self.schema)
        if not hits:
            return
        column = self.pick(hits, mention.text)
        end = start + 1
        while end < len(self.words) and (following.quoted and self.words[end].quoted):
            end += 1
        raw = self._text(start, end)
        if op != "contains" and column.values_complete:
            raise self.unknown_value(raw, column)
        self.sentence.take(mention, "qualifier")
        self.sentence.use(i, end, "condition")
        self.filters.append(Filter(column.name, _operator(op or "="), raw if op == "contains" else typed(column, raw)))

    def _text(self, start: int, end: int) -> str:
        gap = "" if self.words[start].kind == "cjk" else " "
        return gap.join(w.text for w in self.words[start:end])[:200]

    def _coded(self, i: int) -> None:
        """``class 3``, ``rating = 5``: the number of a column of codes."""
        j = i - 1
        while j >= 0 and (self.words[j].has("op") == "=" or self.words[j].stem in ("#", "no", "number", ":")):
            j -= 1
        mention = self.sentence.mention_ending(j + 1)
        if mention is None or mention.used:
            return
        text = self.words[i].text
        for hit in mention.hits:
            column = hit.column
            whole = re.fullmatch(r"\d+", text) is not None
            listed = text in column.values
            coded = (
                column.role == "number" and whole and 0 < column.distinct <= 60 and not self.schema.is_measure(column)
            )
            if listed or coded or (column.role == "identifier" and whole):
                self.sentence.take(mention, "qualifier")
                self.sentence.use(j + 1, i + 1, "value")
                if listed:
                    self.values.append(FoundValue(i, column, text, self._negated(mention.start)))
                else:
                    self.filters.append(
                        Filter(
                            column.name,
                            "=",
                            typed(column, float(text)) if column.role == "number" else typed(column, text),
                        )
                    )
                return

    def unknown_value(self, said: str, column: Column) -> Exception:
        """The error for a value that the column does not have."""
        names = [column.labels.get(value, value) for value in column.values[:20]]
        return self.voice.error(
            "unknown_value",
            f"{column.name!r} has no value '{said}'; it has {self.voice.listing(names)}.",
            f"“{column.name}”中没有“{said}”；现有取值：{self.voice.listing(names)}。",
            names,
        )

    # --- together ------------------------------------------------------------------------------------------------

    def value_filters(self, leave: Sequence[FoundValue] = ()) -> list[Filter]:
        """The found values as filters, one per column and sign; `leave` out those that are used otherwise."""
        filters: list[Filter] = []
        for negated in (False, True):
            by_column: dict[str, list[FoundValue]] = {}
            for found in self.values:
                if found.negated == negated and found not in leave:
                    by_column.setdefault(found.column.name, []).append(found)
            for name, members in by_column.items():
                values = list(dict.fromkeys(m.value for m in members))
                scalars = [typed(members[0].column, value) for value in values]
                if len(scalars) == 1:
                    filters.append(Filter(name, "!=" if negated else "=", scalars[0]))
                else:
                    filters.append(Filter(name, "not in" if negated else "in", scalars))
        return filters

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
            self.filters.append(Filter(column.name, pending.op, typed(column, pending.value)))
        self.pending.clear()


def _operator(text: str) -> Operator:
    operators: dict[str, Operator] = {
        "=": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "contains": "contains",
    }  # fmt: skip
    return operators[text]


def complement(item: Filter) -> Filter:
    """The filter that keeps all other rows."""
    opposite: dict[str, Operator] = {"=": "!=", "in": "not in", "!=": "=", "not in": "in"}
    return replace(item, op=opposite[item.op])
