"""What a table's own names and values mean: the part of the dictionary that each data set brings along."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from failsoft.examples.analyst.grammar.lexicon import CONCEPTS, ROW_CONCEPTS, ROW_WORDS, UNITS, VALUE_WORDS
from failsoft.examples.analyst.grammar.words import (
    BASE,
    BASE_LONGEST,
    BASE_VOCABULARY,
    LONGEST_PHRASE,
    SAYING,
    STOP_STEMS,
    Entry,
    Phrasebook,
    ValueHit,
    Word,
    clean,
    longest_by_first,
    phrase_key,
    segment,
    spellings,
    stem,
    tokenize,
)
from failsoft.examples.analyst.spec import Column, TableProfile

T = TypeVar("T")

TIME_PARTS = frozenset({"year", "quarter", "month", "week", "weekday", "day", "hour"})
_LENGTHS = frozenset({
    "days", "weeks", "months", "quarters", "years", "hours", "tage", "wochen", "monate", "quartale", "jahre", "stunden",
    "天", "天数", "周数", "月数", "年数", "小时", "小时数", "钟头",
})  # fmt: skip
"""Names of columns that say how long something took, and not when it was."""
_WITHIN = {
    "year": (1000, 3000), "quarter": (1, 4), "month": (1, 12), "week": (0, 53), "weekday": (0, 7), "day": (1, 31),
    "hour": (0, 24),
}  # fmt: skip
TRUE_WORDS = frozenset({"true", "yes", "1", "y", "t", "ja", "si", "sí", "oui", "是", "有", "1.0"})
FALSE_WORDS = frozenset({"false", "no", "0", "n", "f", "nein", "non", "否", "无", "0.0", "没有"})
MAX_COLUMNS = 300
"""Columns of one table that are indexed; the rest can still be named exactly."""
MAX_VALUES = 1000
"""Values of one column that are indexed."""

_CAMEL = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NUMBERED = frozenset({"no", "nr", "num", "number", "id", "code"})
_UNIT_NOTE = re.compile(r"\s*[(\[（【][^)\]）】]{0,40}[)\]）】]\s*$")
_VALUE_SUFFIXES = ("市", "省", "区", "地区", "公司", "店", "县", "部", "科", "州")


@dataclass(frozen=True, slots=True)
class NameWord:
    """One word of a column's name; ``weight`` is how much of the name it carries."""

    stem: str
    concepts: frozenset[str]
    weight: float


@dataclass(frozen=True, slots=True)
class NamedColumn:
    """A column with its name taken apart; ``head`` is the word that says what it is (``delay`` in ``dep_delay``)."""

    column: Column
    words: tuple[NameWord, ...]
    head: int

    @property
    def concept(self) -> str | None:
        """The head's concept, if the lexicon knows one."""
        return min(self.words[self.head].concepts, default=None)


def _named_book() -> Phrasebook:
    book: dict[tuple[str, ...], set[str]] = {}
    for concept in CONCEPTS.values():
        for word in (*concept.asked, *concept.named):
            for spelling in spellings(word):
                book.setdefault(phrase_key(spelling.replace("_", " ")), set()).add(concept.id)
    return MappingProxyType({key: Entry(concepts=frozenset(ids)) for key, ids in book.items()})


NAMES: Phrasebook = _named_book()
_ASKED = frozenset(phrase_key(word.replace("_", " ")) for concept in CONCEPTS.values() for word in concept.asked)
_FOREIGN = frozenset(key for key in NAMES if key not in _ASKED and key[0].isascii())
_NAMES_LONGEST = longest_by_first((NAMES,))
_LONG_NAMES = tuple(sorted((key[0] for key in NAMES if len(key) == 1 and len(key[0]) >= 5), key=len, reverse=True))


def name_words(name: str) -> list[Word]:
    """A column's name cut into words: snake_case, CamelCase, spaces, Chinese; the unit in brackets dropped."""
    text = clean(_UNIT_NOTE.sub("", name) or name)
    text = _CAMEL.sub(" ", text).replace("_", " ").removeprefix("是否") or text
    words = [w for w in segment(tokenize(text), text, (NAMES,), _NAMES_LONGEST) if w.kind != "symbol"]
    merged: list[Word] = []
    for word in words:
        last = merged[-1] if merged else None
        if last is not None and last.kind == word.kind == "cjk" and not last.known and not word.known:
            last.text, last.stem, last.end = last.text + word.text, last.stem + word.stem, word.end
        else:
            merged.append(word)
    return merged


def name_parts(name: str) -> list[str]:
    """The words of a column's name as text, its unit with them; never empty."""
    return [w.stem for w in name_words(name)] or [name]


def _take_apart(column: Column) -> NamedColumn:
    words = name_words(column.name)
    while len(words) > 1 and words[-1].stem in UNITS and not _only_generic(words[:-1]):
        words.pop()
    parts = [NameWord(w.stem, w.concepts or _compound(w.stem), 1.0) for w in words] or [
        NameWord(column.name, frozenset(), 1.0)
    ]
    wanted = {"number": "m", "time": "t"}.get(column.role, "e")
    generic = [
        i
        for i, part in enumerate(parts)
        if (_kinds(part) and _kinds(part) <= {"g"}) or (part.stem in STOP_STEMS and not _kinds(part) & set("met"))
    ]
    solid = [i for i in range(len(parts)) if i not in generic]
    solid = solid or [i for i in range(len(parts)) if parts[i].stem not in _NUMBERED] or list(range(len(parts)))
    fitting = [i for i in solid if wanted in _kinds(parts[i])]
    unqualified = [i for i in solid if "q" not in _kinds(parts[i])] or solid
    ordered = fitting or unqualified
    # Romance names say the thing first (prix_vente, coste_total), English and Chinese ones last.
    head = ordered[0 if (parts[ordered[0]].stem,) in _FOREIGN else -1]
    weighted = tuple(
        NameWord(p.stem, p.concepts, 1.0 if i == head else 0.25 if i in generic else 0.5) for i, p in enumerate(parts)
    )
    return NamedColumn(column, weighted, head)


def _kinds(word: NameWord) -> set[str]:
    return {CONCEPTS[c].kind for c in word.concepts}


def _only_generic(words: Iterable[Word]) -> bool:
    return all(w.concepts and all(CONCEPTS[c].kind == "g" for c in w.concepts) for w in words)


def _compound(word: str) -> frozenset[str]:
    """The concept of a German compound's last part: *Stromverbrauch* is a consumption."""
    for name in _LONG_NAMES:
        if len(word) >= len(name) + 3 and word.endswith(name):
            return NAMES[(name,)].concepts
    return frozenset()


_MOMENTS = TIME_PARTS | {"date", "time", "beginning", "ending", "identifier"}


def _holds_part_of_date(named: NamedColumn) -> bool:
    """Whether a column holds a part of a date by itself (``month`` 1 to 12), and not a number of days or years."""
    column = named.column
    parts = named.words[0].concepts & TIME_PARTS if len(named.words) == 1 else frozenset()
    if not parts or column.role == "time":
        return False
    if column.role != "number" or not isinstance(column.minimum, int | float):
        return True
    least, most = _WITHIN[min(parts)]
    fits = least <= column.minimum and float(column.maximum or 0) <= most
    return fits and ("year" in parts or column.name.casefold() not in _LENGTHS)


class SchemaIndex:
    """The dictionary of one table, computed once from its profile."""

    def __init__(self, profile: TableProfile) -> None:
        self.profile = profile
        self.columns = tuple(_take_apart(column) for column in profile.columns[:MAX_COLUMNS])
        self.by_name: Mapping[str, NamedColumn] = {named.column.name: named for named in self.columns}
        self.book: Phrasebook = self._phrases()
        self.books = (BASE, self.book)
        self.small = {name: named for name, named in self.by_name.items() if len(name) < 4 and stem(name) in STOP_STEMS}
        """Columns called like a little word (*a*, *it*): they are named only where a name must stand."""
        self.lengths = {
            name
            for name, named in self.by_name.items()
            if name.casefold() in _LENGTHS and self.is_measure(named.column)
        }
        """Columns that count days or the like: *days* names one, *day* does not."""
        own = longest_by_first((self.book,))
        self.longest = {**BASE_LONGEST, **{k: max(n, BASE_LONGEST.get(k, 1)) for k, n in own.items()}}
        self.vocabulary = BASE_VOCABULARY | {part for key in self.book for part in key}
        self.own_words = frozenset(part for key in self.book for part in key if len(part) > 3)
        self.by_atom: Mapping[str, tuple[tuple[int, int], ...]] = self._atoms()
        self._nameless = stem(profile.row_noun) in ("row", "") and not any(
            n.column.role == "identifier" and n.concept in ROW_CONCEPTS for n in self.columns
        )
        self.spelled = SAYING | {part for key in self.book for part in key} | self._asked_words()
        self.row_nouns = self._row_nouns()
        self.time = self._time()

    def __repr__(self) -> str:
        return f"<SchemaIndex {self.profile.table}: {len(self.columns)} columns, {len(self.book)} phrases>"

    def _phrases(self) -> Phrasebook:
        columns: dict[tuple[str, ...], list[str]] = {}
        values: dict[tuple[str, ...], list[ValueHit]] = {}
        for named in self.columns:
            column = named.column
            for name in (column.name, *column.aliases):
                spaced = _CAMEL.sub(" ", name).replace("_", " ")
                bare = _UNIT_NOTE.sub("", spaced)
                joined = "".join(part for part in phrase_key(bare))
                for key in {phrase_key(spaced), phrase_key(bare), phrase_key(name), (joined,) if joined else ()}:
                    if (
                        key
                        and len(key) <= LONGEST_PHRASE
                        and not (len(key) == 1 and key[0] in STOP_STEMS and len(key[0]) < 4)
                    ):
                        _add(columns, key, column.name)
            if column.role in ("category", "identifier", "text"):
                for key, hit in (*_value_phrases(column), *_meant_alike(named)):
                    _add(values, key, hit)
        for named in self.columns:
            for word in named.words:
                columns.setdefault(phrase_key(word.stem) or (word.stem,), [])
        return MappingProxyType(
            {
                key: Entry(columns=tuple(columns.get(key, ())), values=tuple(values.get(key, ())))
                for key in columns.keys() | values.keys()
            }
        )

    def _atoms(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        atoms: dict[str, list[tuple[int, int]]] = {}
        for i, named in enumerate(self.columns):
            for j, word in enumerate(named.words):
                for atom in (word.stem, *(f"c:{c}" for c in word.concepts)):
                    atoms.setdefault(atom, []).append((i, j))
        return {atom: tuple(places) for atom, places in atoms.items()}

    def _asked_words(self) -> frozenset[str]:
        """Other words for what the table has: a typing error is never read as something that it does not have."""
        concepts = (c for c in CONCEPTS.values() if f"c:{c.id}" in self.by_atom or c.id in ROW_CONCEPTS)
        return frozenset(part for c in concepts for word in c.asked for part in phrase_key(word.replace("_", " ")))

    def _row_nouns(self) -> frozenset[str]:
        nouns = {stem(self.profile.row_noun)}
        for word in name_words(self.profile.table):
            kinds = {CONCEPTS[c].kind for c in word.concepts}
            if word.number is None and word.stem not in STOP_STEMS and "m" not in kinds and len(word.stem) > 2:
                nouns.add(word.stem)
        if self._nameless:
            # call_start and visit_date say what begins there: a call, a visit.
            for named in self.columns:
                own = [w for w in named.words if not w.concepts & _MOMENTS and w.stem not in STOP_STEMS]
                if named.column.name == self.profile.time_column and len(own) == 1 and len(named.words) > 1:
                    nouns.add(own[0].stem)
        return frozenset(nouns)

    def _time(self) -> Column | None:
        name = self.profile.time_column
        times = [n.column for n in self.columns if n.column.role == "time"]
        return next((c for c in times if c.name == name), times[0] if times and name is None else None)

    def is_row_noun(self, word: Word) -> bool:
        """Whether a word names what one row is: its noun, its table, or simply *rows*."""
        if word.stem in ROW_STEMS:
            return True
        if self._grouped_by(word):
            return False
        if word.stem in self.row_nouns:
            return True
        if self._nameless and word.concepts & ROW_CONCEPTS:
            places = [place for concept in word.concepts for place in self.by_atom.get(f"c:{concept}", ())]
            return not any(self.columns[index].head == part for index, part in places)
        own = {c for noun in self.row_nouns for c in NAMES.get((noun,), Entry()).concepts if CONCEPTS[c].kind != "g"}
        return bool(own & word.concepts)

    def _grouped_by(self, word: Word) -> bool:
        """Whether a noun is that of a column whose values recur: in a table of branches' days a row is no branch."""
        if word.stem == stem(self.profile.row_noun) or word.concepts & ROW_CONCEPTS:
            return False
        for atom in (word.stem, *(f"c:{concept}" for concept in word.concepts)):
            for index, part in self.by_atom.get(atom, ()):
                named = self.columns[index]
                recurs = named.column.distinct < 0.99 * self.profile.rows
                if named.head == part and named.column.role in ("category", "text", "identifier") and recurs:
                    return True
        return False

    def time_part(self, grain: str) -> Column | None:
        """The column that holds a part of the date by itself (``month`` 1 to 12), if there is one."""
        wanted = {"hour_of_day": "hour", "month_of_year": "month"}.get(grain, grain)
        for named in self.columns:
            if named.concept == wanted and _holds_part_of_date(named):
                return named.column
        return None

    def is_measure(self, column: Column) -> bool:
        """Whether numbers of this column are worth adding or averaging: not ids, not parts of dates."""
        if column.role != "number":
            return False
        named = self.by_name.get(column.name)
        return named is None or not _holds_part_of_date(named)

    def range(self, column: Column) -> tuple[dt.date, dt.date] | None:
        """First and last day of a time column."""
        try:
            return (
                dt.date.fromisoformat(str(column.minimum)[:10]),
                dt.date.fromisoformat(str(column.maximum)[:10]),
            )
        except ValueError:
            return None

    def truth(self, column: Column, wanted: bool) -> str | None:
        """The stored value for yes (or no) of a column of two truth values; None when it is not one."""
        if not column.values or len(column.values) > 2 or not column.values_complete:
            return None
        folded = {value.strip().casefold(): value for value in column.values}
        if not all(value in TRUE_WORDS | FALSE_WORDS for value in folded):
            return None
        return next((v for k, v in folded.items() if k in (TRUE_WORDS if wanted else FALSE_WORDS)), None)


ROW_STEMS = frozenset(stem(word) for word in ROW_WORDS)


def _value_phrases(column: Column) -> Iterable[tuple[tuple[str, ...], ValueHit]]:
    partial: dict[tuple[str, ...], set[str]] = {}
    for value in column.values[:MAX_VALUES]:
        if value in column.totals:
            continue  # *total* asks for a sum
        hit = ValueHit(column.name, value)
        for name in dict.fromkeys((value, column.labels.get(value, value))):
            if len(name) > 200:
                continue
            key = phrase_key(name)
            if not key or len(key) > LONGEST_PHRASE or (len(key) == 1 and name.replace(".", "", 1).isdigit()):
                continue
            yield key, hit
            if key[0].isascii():
                for length in range(1, len(key)):
                    partial.setdefault(key[:length], set()).add(value)
            else:
                for suffix in _VALUE_SUFFIXES:
                    if name.endswith(suffix) and len(name) - len(suffix) >= 2:
                        partial.setdefault(key[: -len(suffix)], set()).add(value)
    for key, owners in partial.items():
        alone = key[0]
        if len(owners) == 1 and (len(key) > 1 or (len(alone) > 3 and alone not in STOP_STEMS and not BASE.get(key))):
            yield key, ValueHit(column.name, next(iter(owners)), partial=True)


def _meant_alike(named: NamedColumn) -> Iterable[tuple[tuple[str, ...], ValueHit]]:
    """Other words for a value: *women* for ``F`` in a column of genders."""
    for words in VALUE_WORDS.get(named.concept or "", ()):
        for value in named.column.values:
            if value.strip().casefold() in words:
                for word in words:
                    if len(word) > 1 or not word.isascii():
                        yield phrase_key(word), ValueHit(named.column.name, value)


def _add(table: dict[tuple[str, ...], list[T]], key: tuple[str, ...], item: T) -> None:
    items = table.setdefault(key, [])
    if item not in items:
        items.append(item)
