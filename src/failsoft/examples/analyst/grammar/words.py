"""From a question to words: cleaning, tokens, segmentation (Chinese has no spaces), each word with all its senses.

Everything here is linear in the length of the question: one regular expression without ambiguous repetition, and
dictionary look-ups of at most :data:`LONGEST_PHRASE` tokens from each position.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from failsoft.examples.analyst.grammar.lexicon import CONCEPTS, UNITS
from failsoft.examples.analyst.grammar.phrases import PHRASES, STOPS

LONGEST_PHRASE = 12
"""Tokens in the longest phrase that is looked up: bounds the work per position."""

_CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_LETTER = rf"[^\W\d_{_CJK}]"
_TOKENS = re.compile(
    rf"""
    (?P<date>\d{{4}}[-/]\d{{1,2}}(?:[-/]\d{{1,2}})?+(?![\d/-])|\d{{4}}\.\d{{1,2}}\.\d{{1,2}}(?![\d.])
      |\d{{1,2}}[./]\d{{1,2}}[./]\d{{4}}(?![\d./]))
    |(?P<number>(?:\d{{1,3}}(?:,\d{{3}})++(?![\d,])|\d++)(?:\.\d++)?+(?!{_LETTER}))
    |(?P<word>(?:{_LETTER}|\d)+(?:['’]{_LETTER}+)*)
    |(?P<cjk>[{_CJK}])
    |(?P<symbol>>=|<=|!=|<>|==|[^\s\w.])
    """,
    re.VERBOSE,
)
_QUOTED = re.compile(r"\"([^\"]{1,100})\"|“([^”]{1,100})”|「([^」]{1,100})」|《([^》]{1,100})》|‘([^’]{1,100})’")
_DASHES = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "‐": "-", "‑": "-", "～": "~", "〜": "~", "≥": ">=", "≤": "<=", "≠": "!="}
)
_IRREGULAR = MappingProxyType({"children": "child", "women": "woman", "men": "man", "mice": "mouse", "feet": "foot"})
_UMLAUTS: dict[int, str] = {ord("ä"): "ae", ord("ö"): "oe", ord("ü"): "ue", ord("ß"): "ss"}
_DIGITS = MappingProxyType({c: n for n, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2})
_SCALES = MappingProxyType({"十": 10, "百": 100, "千": 1000, "万": 10_000, "亿": 100_000_000})


class Token(NamedTuple):
    """The smallest piece: a run of letters and digits, a number, a date, one Chinese character, or a symbol."""

    text: str
    stem: str
    kind: str
    start: int
    end: int
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class ValueHit:
    """A column's value that a word may name; ``partial`` when only a part of its name was said."""

    column: str
    value: str
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """All that a phrase may mean."""

    senses: Mapping[str, str] = field(default_factory=dict)
    concepts: frozenset[str] = frozenset()
    columns: tuple[str, ...] = ()
    values: tuple[ValueHit, ...] = ()


Phrasebook = Mapping[tuple[str, ...], Entry]


@dataclass(slots=True)
class Word:
    """A phrase of the question with what it may mean; the readers mark it ``used`` once they know."""

    text: str
    stem: str
    kind: str
    start: int
    end: int
    senses: Mapping[str, str]
    concepts: frozenset[str]
    columns: tuple[str, ...]
    values: tuple[ValueHit, ...]
    number: float | None = None
    quoted: bool = False
    used: str = ""

    @property
    def known(self) -> bool:
        """Whether the dictionaries have the word at all."""
        return bool(self.senses or self.concepts or self.columns or self.values or self.number is not None)

    @property
    def stop(self) -> bool:
        """Whether it says nothing about the data."""
        return self.stem in STOP_STEMS or self.kind == "symbol"

    def has(self, kind: str) -> str | None:
        """The payload of the sense `kind`, None without that sense."""
        return self.senses.get(kind)


def clean(question: str) -> str:
    """Compatibility forms unified, control and direction characters gone: what is left is safe to match and to show."""
    if question.isascii() and question.isprintable():
        return question
    text = unicodedata.normalize("NFKC", question).translate(_DASHES)
    return "".join(
        " " if category in ("Cc", "Zs", "Zl", "Zp", "Cs", "Co", "Cn") else char
        for char, category in ((c, unicodedata.category(c)) for c in text)
        if category != "Cf"
    )


def fold(text: str) -> str:
    """Case and accents folded away; ``ä`` becomes ``a``."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def stem(text: str) -> str:
    """A light English plural stem, applied to both sides of every comparison."""
    word = fold(text).replace("’", "'")
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    for ending in ("'s", "'"):
        word = word.removesuffix(ending) or word
    if len(word) <= 3 or word[-1] != "s" or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "zes", "ches", "shes")):
        return word[:-2]
    return word[:-1]


def tokenize(text: str) -> list[Token]:
    """The tokens of a cleaned text."""
    quoted = [match.span() for match in _QUOTED.finditer(text)]
    tokens: list[Token] = []
    position = 0
    for match in _TOKENS.finditer(text):
        kind = match.lastgroup or "symbol"
        start, end = match.span()
        while position < len(quoted) and quoted[position][1] <= start:
            position += 1
        inside = position < len(quoted) and quoted[position][0] <= start and end <= quoted[position][1]
        tokens.append(Token(match.group(), stem(match.group()), kind, start, end, inside))
    return tokens


def phrase_key(phrase: str) -> tuple[str, ...]:
    """The key a phrase is looked up by."""
    return tuple(token.stem for token in tokenize(clean(phrase)))


STOP_STEMS = frozenset(stem(word) for word in STOPS)


def spellings(word: str) -> Iterable[str]:
    """A word as it is and as it is written without its letters: ``ä`` also as ``ae``."""
    yield word
    plain = word.translate(_UMLAUTS)
    if plain != word:
        yield plain
    if word.endswith("do") and len(word) > 5:
        yield word[:-1] + "a"  # cancelado, cancelada


def _build_base() -> Phrasebook:
    book: dict[tuple[str, ...], tuple[dict[str, str], set[str]]] = {}
    for words, senses in PHRASES.items():
        book.setdefault(phrase_key(" ".join(words) if words[0].isascii() else "".join(words)), ({}, set()))[0].update(
            senses
        )
    for concept in CONCEPTS.values():
        for phrase in concept.asked:
            book.setdefault(phrase_key(phrase.replace("_", " ")), ({}, set()))[1].add(concept.id)
    for word in (*STOPS, *UNITS):
        book.setdefault(phrase_key(word), ({}, set()))
    for concept in CONCEPTS.values():
        for phrase in concept.named:
            for spelling in spellings(phrase):
                key = phrase_key(spelling.replace("_", " "))
                if key not in book and len(key[0]) > 3:
                    book.setdefault(key, ({}, set()))[1].add(concept.id)
    return MappingProxyType(
        {k: Entry(MappingProxyType(senses), frozenset(concepts)) for k, (senses, concepts) in book.items() if k}
    )


BASE: Phrasebook = _build_base()
"""Function words and concepts: the same for every table."""


BASE_VOCABULARY = frozenset(part for key in BASE for part in key)
"""All words of it: none of them is a typing error."""
SAYING = frozenset(part for key, entry in BASE.items() if entry.senses for part in key)
"""Those that say what to do: a typing error may have been meant for one."""


def chinese_number(text: str) -> float | None:
    """``二十三`` → 23, ``二零一三`` → 2013; None for anything else."""
    if not text or any(c not in _DIGITS and c not in _SCALES for c in text) or len(text) > 12:
        return None
    if all(c in _DIGITS for c in text):
        return float("".join(str(_DIGITS[c]) for c in text))
    total = section = digit = 0
    for char in text:
        if char in _DIGITS:
            digit = _DIGITS[char]
        elif _SCALES[char] >= 10_000:
            total += (section + digit or 1) * _SCALES[char]
            section = digit = 0
        else:
            section += (digit or 1) * _SCALES[char]
            digit = 0
    return float(total + section + digit)


def _number(token: Token) -> float | None:
    if token.kind != "number" or len(token.text) > 30:
        return None
    return float(token.text.replace(",", ""))


def segment(tokens: Sequence[Token], text: str, books: Sequence[Phrasebook], longest: Mapping[str, int]) -> list[Word]:
    """The most covering cut of the tokens into known phrases: longest phrases win, unknown tokens stand alone.

    `longest` gives for a first token the length of the longest phrase that starts with it.
    """
    count = len(tokens)
    stems = [token.stem for token in tokens]
    best = [0.0] * (count + 1)
    step = [1] * (count + 1)
    for i in range(count - 1, -1, -1):
        best[i], step[i] = best[i + 1], 1
        reach = min(longest.get(stems[i], 1), LONGEST_PHRASE, count - i)
        for length in range(1, reach + 1):
            key = tuple(stems[i : i + length])
            entries = [book[key] for book in books if key in book]
            if entries and (weight := _weight(tokens[i : i + length], entries)) + best[i + length] > best[i]:
                best[i], step[i] = weight + best[i + length], length
        run = i
        while run < count and run - i < LONGEST_PHRASE and (stems[run] in _DIGITS or stems[run] in _SCALES):
            run += 1
            if (run - i) ** 2 + best[run] >= best[i]:
                best[i], step[i] = (run - i) ** 2 + best[run], run - i
    words: list[Word] = []
    i = 0
    while i < count:
        words.append(_word(tokens[i : i + step[i]], text, books))
        i += step[i]
    return words


def _weight(tokens: Sequence[Token], entries: Sequence[Entry]) -> float:
    size = sum(1 if token.kind == "cjk" else 2 for token in tokens)
    own = any(entry.columns or any(not hit.partial for hit in entry.values) for entry in entries)
    return size**2 + (1 if own else 0.0)


def _word(tokens: Sequence[Token], text: str, books: Sequence[Phrasebook]) -> Word:
    key = tuple(token.stem for token in tokens)
    senses: dict[str, str] = {}
    concepts: frozenset[str] = frozenset()
    columns: tuple[str, ...] = ()
    values: tuple[ValueHit, ...] = ()
    for book in books:
        if entry := book.get(key):
            senses |= entry.senses
            concepts |= entry.concepts
            columns += entry.columns
            values += entry.values
    said = text[tokens[0].start : tokens[-1].end]
    number = _number(tokens[0]) if len(tokens) == 1 else None
    if number is None and all(token.kind == "cjk" for token in tokens):
        number = chinese_number("".join(key))
    if number is None and "num" in senses:
        number = float(senses["num"])
    kind = tokens[0].kind
    quoted = all(token.quoted for token in tokens)
    joined = ("" if kind == "cjk" else " ").join(key)
    return Word(said, joined, kind, tokens[0].start, tokens[-1].end, senses, concepts, columns, values, number, quoted)


def longest_by_first(books: Iterable[Phrasebook]) -> Mapping[str, int]:
    """For the first token of each phrase, how long the longest phrase beginning with it is."""
    longest: dict[str, int] = {}
    for book in books:
        for key in book:
            longest[key[0]] = max(longest.get(key[0], 1), len(key))
    return longest


BASE_LONGEST = longest_by_first((BASE,))
