"""Numbers in words and their units: *two weeks*, *a thousand*, *half an hour*; and what they are in a column's unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from failsoft.examples.analyst.grammar.schema import name_parts
from failsoft.examples.analyst.grammar.words import Word, fold, stem
from failsoft.examples.analyst.spec import Column

_SMALL_WORDS = """
one 1 two 2 three 3 four 4 five 5 six 6 seven 7 eight 8 nine 9 ten 10 eleven 11 twelve 12 thirteen 13 fourteen 14
fifteen 15 sixteen 16 seventeen 17 eighteen 18 nineteen 19 twenty 20 thirty 30 forty 40 fifty 50 sixty 60 seventy 70
eighty 80 ninety 90 zwei 2 drei 3 vier 4 funf 5 sechs 6 sieben 7 acht 8 neun 9 zehn 10 elf 11 zwolf 12 zwanzig 20
dreissig 30 vierzig 40 funfzig 50 sechzig 60 siebzig 70 achtzig 80 neunzig 90
"""
_SCALE_WORDS = (
    "hundred 100 hundert 100 dozen 12 dutzend 12 thousand 1000 tausend 1000 million 1000000 billion 1000000000"
)


def _pairs(text: str) -> Mapping[str, float]:
    words = text.split()
    return MappingProxyType({word: float(number) for word, number in zip(words[::2], words[1::2], strict=True)})


_SMALL = _pairs(_SMALL_WORDS)
_SCALE = _pairs(_SCALE_WORDS)
_ONE = frozenset({"a", "an", "one", "ein", "eine", "einer", "einem", "einen", "eines"})
_HALF = frozenset({"half", "halbe", "halben", "halbes"})

_UNITS = """
time  | 0.001 | ms millisecond millisecondes millisekunde millisekunden 毫秒
time  | 1 | s sec second sekunde sekunden 秒 秒钟 秒数
time  | 60 | min minute minuten 分钟 分钟数
time  | 3600 | h hr hour stunde stunden std 小时 钟头 小时数
time  | 86400 | day tag tage tagen 天 日 天数
time  | 604800 | week woche wochen 周 星期 个星期 周数
span  | 1 | month monat monate monaten 月 个月 月数
span  | 3 | quarter quartal quartale 季度 个季度
span  | 12 | year jahr jahre jahren yr 年
mass  | 0.001 | g gram gramm 克
mass  | 1 | kg kilo kilogram kilogramm 公斤 千克
mass  | 1000 | t ton tonne tonnen 吨
way   | 0.001 | mm millimeter millimetre 毫米
way   | 0.01 | cm centimeter centimetre 厘米
way   | 1 | m meter metre 米
way   | 1000 | km kilometer kilometre 公里 千米
way   | 1609.344 | mi mile
bytes | 1 | byte b
bytes | 1000 | kb kilobyte
bytes | 1000000 | mb megabyte
bytes | 1000000000 | gb gigabyte
"""
_MONTH = 86400 * 365.25 / 12
"""Seconds of a month, where months are to be days or days months."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time, of months (``span``), of mass, of length (``way``) or of data, in the base unit of its kind."""

    kind: str
    size: float


def _table() -> Mapping[str, Unit]:
    units: dict[str, Unit] = {}
    for line in _UNITS.strip().splitlines():
        kind, size, words = (part.strip() for part in line.split("|"))
        for word in words.split():
            units[word] = Unit(kind, float(size))
    return MappingProxyType(units)


UNIT_WORDS: Mapping[str, Unit] = _table()


def unit_of(column: Column) -> Unit | None:
    """The unit that a column is known to be in, by its unit or by its name; None when nothing says."""
    if column.unit:
        return UNIT_WORDS.get(stem(column.unit))
    parts = name_parts(column.name)
    if "per" in parts:
        parts = parts[: parts.index("per")]
    own = [UNIT_WORDS[part] for part in reversed(parts) if part in UNIT_WORDS and (len(part) > 1 or not part.isascii())]
    if not own and len(parts) > 1 and parts[-1] in ("t", "g", "h"):  # cargo_t
        return UNIT_WORDS[parts[-1]]
    if own or not parts:
        return own[0] if own else None
    return next((unit for end, unit in _COMPOUND if fold(parts[-1]).endswith(end) and len(parts[-1]) > len(end)), None)


_COMPOUND = tuple(
    (word, UNIT_WORDS[word])
    for word in (
        "tage",
        "wochen",
        "stunden",
        "minuten",
        "sekunden",
        "天",
        "天数",
        "小时",
        "小时数",
        "分钟",
        "分钟数",
        "monate",
    )
)
"""Last parts of compounds that say the unit: *Liegetage*, *住院天*."""


def said_unit(words: Iterable[Word]) -> Unit | None:
    """The unit among the words behind a number; ``m`` may be a million or a metre, and is neither."""
    for word in words:
        if word.stem in UNIT_WORDS and word.stem not in ("m", "b", "s"):
            return UNIT_WORDS[word.stem]
    return None


def converted(value: float, said: Unit, own: Unit) -> float | None:
    """`value` of the unit `said` in the unit `own`; None when the one is no measure of the other."""
    if said.kind == own.kind:
        return value * said.size / own.size
    if {said.kind, own.kind} == {"time", "span"}:
        seconds = value * (said.size * _MONTH if said.kind == "span" else said.size)
        return seconds / (own.size * _MONTH if own.kind == "span" else own.size)
    return None


def number_in_words(words: Sequence[Word], i: int) -> tuple[float, int] | None:
    """The number that is spelled out from word `i` on, and where the words go on.

    *two*, *twenty-five*, *a hundred and ten*, *a thousand*; *a* alone is one only before a unit, as *half* is a half.
    """
    j, total, current, seen = i, 0.0, 0.0, False
    while j < len(words) and not words[j].used:
        word = fold(words[j].text)
        if (joined := _joined(word)) is not None and not seen:
            current, seen = joined, True
        elif word in _SMALL:
            current, seen = current + _SMALL[word], True
        elif word in _SCALE and (seen or j == i or words[j - 1].stem in _ONE):
            current, seen = (current or 1.0) * _SCALE[word], True
            if _SCALE[word] >= 1000:
                total, current = total + current, 0.0
        elif not (
            (
                seen
                and (word == "-" or (word in ("and", "und") and fold(words[j - 1].text) in _SCALE))
                and j + 1 < len(words)
                and fold(words[j + 1].text) in _SMALL
            )
            or (j == i and word in _ONE and j + 1 < len(words) and fold(words[j + 1].text) in _SCALE)
        ):
            break
        j += 1
    if seen:
        return total + current, j
    if (
        words[i].stem in _HALF
        and i + 2 < len(words)
        and words[i + 1].stem in _ONE
        and fold(words[i + 2].text) in _SCALE
    ):
        return 0.5 * _SCALE[fold(words[i + 2].text)], i + 3
    return _one_of(words, i)


def _joined(word: str) -> float | None:
    """*fünfhundert*, *zweitausend*, *einhundert*: written in one word."""
    for scale in ("hundert", "tausend"):
        first = word.removesuffix(scale)
        if first != word and (first == "ein" or first in _SMALL):
            return (1.0 if first == "ein" else _SMALL[first]) * _SCALE[scale]
    return None


def _one_of(words: Sequence[Word], i: int) -> tuple[float, int] | None:
    """*a week*, *half a day*, *half an hour*."""
    value, j = 1.0, i
    if words[j].stem in _HALF:
        value, j = 0.5, j + 1
    if j < len(words) and words[j].stem in _ONE:
        j += 1
        if value == 1.0 and j < len(words) and words[j].stem in _HALF:
            value, j = 0.5, j + 1
    if j == i or j >= len(words) or words[j].stem not in UNIT_WORDS or len(words[j].stem) < 2:
        return None
    return value, j
