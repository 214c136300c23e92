"""Conditions: values of columns (``in the North``, ``not from EWR``), and numbers by what they extend."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from failsoft.examples.analyst.grammar.alternatives import Placed
from failsoft.examples.analyst.grammar.lexicon import DIRECTIONS, PEOPLE_WORDS
from failsoft.examples.analyst.grammar.mentions import Mention, Sentence, choose
from failsoft.examples.analyst.grammar.numeric import NumericConditions, operator_of, typed
from failsoft.examples.analyst.grammar.words import ValueHit, Word
from failsoft.examples.analyst.spec import Column, Filter, Operator

_LINKING = frozenset({"the", "的", "named", "called", ":", '"', "“", "'"})


@dataclass(frozen=True, slots=True)
class FoundValue:
    """A value of a column said at word ``index``; ``negated`` when it is to be left out."""

    index: int
    column: Column
    value: str
    negated: bool


class Conditions(NumericConditions):
    """Reads the conditions of one sentence."""

    def __init__(self, sentence: Sentence) -> None:
        super().__init__(sentence)
        self.values: list[FoundValue] = []

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
        if word.quoted or (word.kind == "symbol" and len(word.text) > 1):  # /checkout
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
            if not (said.isupper() or said.isdigit()):  # a little word: a value when it is nothing else
                return exact and not (word.stop or word.senses or word.concepts)
            return exact and (len(said) == 2 or bool(slotted))
        if word.stop and not word.senses and any(not hit.partial for hit in hits) and self._attributive(i):
            return True
        if word.kind == "cjk" and exact and len(said) > 1 and self._may_be_named_so(word):
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

    def _may_be_named_so(self, word: Word) -> bool:
        """Whether a Chinese word that may say something else is rather the value of that name: 历史 of books."""
        return not word.stop and word.senses.keys() <= {"trend", "describe", "chart", "unusual", "distinct"}

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
        return self._denied_before(i) or self._excepted_after(i)

    def denied(self, i: int) -> bool:
        """Whether what word `i` says is to be left out."""
        return self._negated(i)

    def _excepted_after(self, i: int) -> bool:
        """``华东以外``, ``华东和华北之外``: the words behind a list of values say that they are left out."""
        j = i + 1
        while (word := self.sentence.word(j)) is not None and (
            word.values or word.has("join") or word.stem in (",", "地区", "的")
        ):
            j += 1
        word = self.sentence.word(j)
        if word is None or word.stem not in ("以外", "之外", "除外", "excluded", "excepted", "ausgenommen"):
            return False
        word.used = word.used or "condition"
        return True

    def _denied_before(self, i: int) -> bool:
        for j in range(i - 1, max(i - 9, -1), -1):
            word = self.words[j]
            if word.has("not"):
                word.used = word.used or "condition"
                return True
            if word.has("op") == "!=":
                word.used = word.used or "condition"
                return True
            listed = word.used == "value" or word.has("join") or word.stem == ","
            after_not = j > 0 and self.words[j - 1].has("not") is not None
            if after_not and self._denies_itself(j):
                return False  # not vaccinated dogs
            verb = after_not and self._only_verb(j)
            if not (
                listed
                or verb
                or (word.stop and not word.has("compare"))
                or (self.sentence.mention_at(j) is not None and j == i - 1)
            ):
                return False
        return False

    def _only_verb(self, j: int) -> bool:
        """Whether a word behind *not* denies nothing by itself: not *borrowed* by Ann, but not *resolved* in Oslo."""
        word = self.words[j]
        return word.kind == "word" and not word.values and not self._denies_itself(j)

    def _denies_itself(self, j: int) -> bool:
        """Whether a word names a column of yes and no, or one that may lack a value: *not* is then of that."""
        mention = self.sentence.mention_at(j)
        hits = mention.hits if mention is not None else ()
        return any(hit.column.nulls or self.schema.truth(hit.column, True) is not None for hit in hits)

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
        test = Filter(column.name, operator_of(op or "="), raw if op == "contains" else typed(column, raw))
        self.add(test, mention.start, end)

    def _text(self, start: int, end: int) -> str:
        gap = "" if self.words[start].kind == "cjk" else " "
        return gap.join(w.text for w in self.words[start:end])[:200]

    def _coded(self, i: int) -> None:
        """``class 3``, ``rating = 5``: the number of a column of codes."""
        j = i - 1
        while j >= 0 and (self.words[j].has("op") == "=" or self.words[j].stem in ("#", "no", "number", ":")):
            j -= 1
        mention = self.sentence.mention_ending(j + 1)
        if mention is None and j >= 0 and self.words[j].stem == "of" and self._closed(i + 1):
            mention = self.sentence.mention_ending(j)  # a tip of 0
        if mention is None or mention.used:
            return
        text = self.words[i].text
        for hit in mention.hits:
            column = hit.column
            whole = re.fullmatch(r"\d+", text) is not None
            listed = text in column.values
            said = self.words[i - 1].stem in ("of", "is", "was", "are", "were", "be", "为", "是")
            if said and column.role == "number" and self._closed(i + 1) and not listed:
                self.borrowed.append(mention)
                self.sentence.use(mention.end, i + 1, "condition")
                same = Filter(column.name, "=", typed(column, self.words[i].number or 0.0))
                self.add(same, mention.start, i + 1)
                return
            counted = self.schema.is_measure(column) and self.schema.by_name[column.name].concept != "status"
            coded = column.role == "number" and whole and 0 < column.distinct <= 60 and not counted
            if listed or coded or (column.role == "identifier" and whole):
                self._take_codes(i, j, mention, column, listed=listed)
                return

    def _take_codes(self, i: int, j: int, mention: Mention, column: Column, *, listed: bool) -> None:
        """The codes from word `i` on: *table 7*, *tables 3, 4 and 9*."""
        places = [i]
        while (link := self.sentence.word(places[-1] + 1)) is not None and (
            link.has("join") or link.stem in (",", "or")
        ):
            following = self.sentence.word(places[-1] + 2)
            if following is None or following.used or following.kind != "number":
                break
            if listed and following.text not in column.values:
                break
            places.append(places[-1] + 2)
        negated = self._negated(mention.start)
        self.sentence.take(mention, "qualifier")
        self.sentence.use(j + 1, places[-1] + 1, "value")
        texts = [self.words[place].text for place in places]
        if listed:
            self.values += [FoundValue(i, column, text, negated) for text in texts]
            return
        scalars = [typed(column, float(text) if column.role == "number" else text) for text in texts]
        if len(scalars) > 1:
            test = Filter(column.name, "not in" if negated else "in", scalars)
        else:
            test = Filter(column.name, "!=" if negated else "=", scalars[0])
        self.add(test, min(mention.start, j + 1), places[-1] + 1)

    def _closed(self, i: int) -> bool:
        """Whether nothing follows that the number before may count: *of 3 stores* is no value."""
        word = self.sentence.word(i)
        return word is None or word.kind == "symbol" or bool(word.has("slot") or word.has("per") or word.has("join"))

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

    def value_filters(self, leave: Sequence[FoundValue] = ()) -> list[Placed]:
        """The found values as filters, one per column and sign; `leave` out those that are used otherwise.

        Values of different columns that an *or* joins stay apart from others of their column.
        """
        filters: list[Placed] = []
        for negated in (False, True):
            by_column: dict[str, list[FoundValue]] = {}
            for found in self.values:
                if found.negated == negated and found not in leave:
                    by_column.setdefault(found.column.name, []).append(found)
            for name, members in by_column.items():
                values = list(dict.fromkeys(m.value for m in members))
                scalars = [typed(members[0].column, value) for value in values]
                if len(scalars) == 1:
                    test = Filter(name, "!=" if negated else "=", scalars[0])
                else:
                    test = Filter(name, "not in" if negated else "in", scalars)
                start, end = self._place(members)
                filters.append(Placed(start, end, test))
        return filters

    def _place(self, members: Sequence[FoundValue]) -> tuple[int, int]:
        """The words of the values with the name of their column around them."""
        start, end = members[0].index, members[-1].index + 1
        before = self.sentence.mention_ending(start)
        while (
            before is None
            and start
            and (self.words[start - 1].has("op") == "=" or self.words[start - 1].stem in _LINKING)
        ):
            start -= 1
            before = self.sentence.mention_ending(start)
        if before is not None and before.used == "qualifier":
            start = before.start
        after = self.sentence.mention_at(end)
        if after is not None and after.used == "qualifier" and after.start == end:
            end = after.end
        return start, end

    def placed(self) -> list[Placed]:
        """The other conditions, each with its words."""
        return [Placed(*place, one) for place, one in zip(self.places, self.filters, strict=True)]


def complement(item: Filter) -> Filter:
    """The filter that keeps all other rows."""
    opposite: dict[str, Operator] = {"=": "!=", "in": "not in", "!=": "=", "not in": "in"}
    return replace(item, op=opposite[item.op])


def truth_filter(column: Column, value: str) -> Filter:
    """The filter on a column of two truth values."""
    if column.type.upper().startswith("BOOL"):
        return Filter(column.name, "=", value.strip().casefold() in ("true", "t", "1", "yes"))
    if "INT" in column.type.upper() and value.isdigit():
        return Filter(column.name, "=", int(value))
    return Filter(column.name, "=", value)
