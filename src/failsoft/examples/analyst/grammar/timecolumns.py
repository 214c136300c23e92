"""Which of several dates a question means: the one whose name its verb shares (*discharged in May*, *due in March*)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType

from failsoft.examples.analyst.grammar.mentions import Hit, Mention, Sentence
from failsoft.examples.analyst.grammar.schema import name_parts
from failsoft.examples.analyst.grammar.words import Word, fold
from failsoft.examples.analyst.spec import Column

_PLAIN_WORDS = "date time at on day datum dt ts timestamp month year when zeit zeitpunkt tag of the am um is was"
_PLAIN = frozenset(_PLAIN_WORDS.split())
_ENDINGS = ("ments", "ment", "tion", "sion", "ing", "ed", "en", "al", "es", "er", "e", "s", "y", "d", "t")
_IRREGULAR = MappingProxyType(
    {"paid": "pay", "born": "birth", "sold": "sale", "sent": "send", "bought": "buy", "left": "leav", "began": "begin",
     "begun": "begin", "started": "start", "ended": "end", "built": "build"}
)  # fmt: skip
_PARTICIPLE = re.compile(r"ge(\w{4,}?)(?:te[nrsm]?|t)")
"""*geliefert*, *gelieferten*."""
_ZH_ENDINGS = ("日期", "时间", "时刻", "日", "时")
_CUES = ("month", "rel", "relday", "half", "season", "third", "grain", "dayname")
_SHARED = 4
"""Letters that a verb and a column's name share at least, when they are not the same."""

Named = list[tuple[int, Column]]
"""Places in the sentence, each with the date that its word names."""


def named_times(sentence: Sentence) -> Named:
    """The words that name one of several dates; empty where there is only one date."""
    times = [n.column for n in sentence.schema.columns if n.column.role == "time"]
    if len(times) < 2:
        return []
    found: Named = []
    for i, word in enumerate(sentence.words):
        mention = sentence.mention_at(i)
        if mention is not None and mention.start != i:
            continue
        rows = mention is not None and any(hit.column.role == "identifier" for hit in mention.hits)
        if rows or word.stem in _PLAIN:
            continue  # bookings are not named after the day they were booked on, and *on* is no booked_on
        literal = [hit.column for hit in mention.hits] if mention is not None else []
        if len(literal) == 1 and literal[0].role == "time":
            found.append((i, literal[0]))
            continue
        meant = [column for column in times if _names(word, column, sentence, i)]
        if len(meant) == 1:
            found.append((i, meant[0]))
            if mention is None and not word.senses and not word.values:
                sentence.add(Mention(i, i + 1, word.text, (Hit(meant[0], 0.6, literal=False),)))
    return found


def chosen_time(sentence: Sentence, named: Named) -> Column | None:
    """The date that the question's periods are of: the one named nearest before them; the table's own if none is."""
    columns = {column.name: column for _, column in named}
    if not columns:
        return sentence.schema.time
    cue = next((i for i, word in enumerate(sentence.words) if _is_cue(word)), len(sentence.words))
    before = [column for i, column in named if i <= cue]
    return before[-1] if before else named[0][1]


def owner(named: Named, place: int) -> Column | None:
    """The date that is named nearest before word `place`."""
    before = [column for i, column in named if i < place]
    return before[-1] if before else None


def _is_cue(word: Word) -> bool:
    if word.kind == "date" or any(word.has(k) for k in _CUES):
        return True
    return word.has("relyear") is not None or (word.number is not None and 1000 <= word.number <= 2999)


def _names(word: Word, column: Column, sentence: Sentence, i: int) -> bool:
    following = sentence.word(i + 1)
    if word.stem == "due" and following is not None and following.stem == "to":
        return False
    if word.kind == "cjk":
        return any(said in column.name for said in _chinese(sentence, i, column.name))
    if word.kind != "word" or len(word.stem) < 3 or word.stem in _PLAIN:
        return False
    return any(_related(_root(word.stem), part) for part in _roots(column))


def _chinese(sentence: Sentence, i: int, name: str) -> Iterator[str]:
    bare = next((name.removesuffix(end) for end in _ZH_ENDINGS if name.endswith(end)), name)
    if len(bare) > 1 and sentence.text[sentence.words[i].start :].startswith(bare):
        yield bare


def _roots(column: Column) -> Sequence[str]:
    parts = [fold(part).removesuffix("datum") for part in name_parts(column.name)]
    return [_root(part) for part in parts if part and part not in _PLAIN and part.isascii()]


def _root(word: str) -> str:
    word = _IRREGULAR.get(word, word)
    german = _PARTICIPLE.fullmatch(word)
    bare = german[1] if german is not None else word
    for ending in _ENDINGS:
        if bare.endswith(ending) and len(bare) - len(ending) >= 3:
            bare = bare[: -len(ending)]
            break
    return bare[:-1] if len(bare) > 3 and bare[-1] == bare[-2] and bare[-1] not in "aeiou" else bare


def _related(a: str, b: str) -> bool:
    if a == b:
        return True
    shared = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return shared >= _SHARED and shared >= 0.6 * max(len(a), len(b))
