"""Which columns the words of a question name: exactly, by a part of the name, or by a concept both sides share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rapidfuzz import process
from rapidfuzz.distance import OSA

from failsoft.examples.analyst.grammar.lexicon import CONCEPTS, PREFERRED, RELATED
from failsoft.examples.analyst.grammar.schema import NamedColumn, SchemaIndex
from failsoft.examples.analyst.grammar.words import Token, Word, segment, stem, tokenize
from failsoft.examples.analyst.spec import Column

MAX_CORRECTIONS = 24
"""Unknown words of one question that are looked up fuzzily."""
_PER_UNIT = frozenset({"price", "cost", "rate", "consumption", "salary"})
_LINKS = frozenset({"of", "the", "的", "de", "der", "des", "du", "la"})


@dataclass(frozen=True, slots=True)
class Hit:
    """A column that a mention may mean, by its own name (``literal``) or by a neighbouring concept (``related``)."""

    column: Column
    score: float
    literal: bool
    related: bool = False


@dataclass(slots=True)
class Mention:
    """Words ``[start, end)`` that name a column; ``used`` says what for, once a reader has taken it."""

    start: int
    end: int
    text: str
    hits: tuple[Hit, ...]
    used: str = ""

    def columns(self, *roles: str) -> list[Hit]:
        """The hits whose column has one of these roles (all hits without roles)."""
        return [hit for hit in self.hits if not roles or hit.column.role in roles]


@dataclass(slots=True)
class Sentence:
    """A question on its way to an intent: its words, the columns they mention, and what was assumed so far."""

    words: list[Word]
    schema: SchemaIndex
    language: str
    text: str = ""
    mentions: list[Mention] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """What a reader knows that it leaves out."""

    time: Column | None = None
    """The time that the question's periods and cuts are of."""
    _owners: dict[int, Mention] = field(default_factory=dict)
    _ending: dict[int, Mention] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mentions = find_mentions(self.words, self.schema)
        for mention in self.mentions:
            mention.text = self.said(mention.start, mention.end)
        self.time = self.schema.time
        self._owners = {i: mention for mention in self.mentions for i in range(mention.start, mention.end)}
        self._ending = {mention.end: mention for mention in self.mentions}

    def add(self, mention: Mention) -> None:
        """Take in what a word names that the table's dictionary does not know."""
        self.mentions = sorted([*self.mentions, mention], key=lambda m: m.start)
        self._owners |= dict.fromkeys(range(mention.start, mention.end), mention)
        self._ending[mention.end] = mention

    def said(self, start: int, end: int) -> str:
        """The words ``[start, end)`` as they were written, at most 60 characters."""
        return self.text[self.words[start].start : self.words[end - 1].end][:60] if start < end else ""

    def mention_at(self, index: int) -> Mention | None:
        """The mention that covers the word at `index`."""
        return self._owners.get(index)

    def mention_ending(self, index: int) -> Mention | None:
        """The mention whose last word stands right before `index`."""
        return self._ending.get(index)

    def word(self, index: int) -> Word | None:
        """The word at `index`, None outside."""
        return self.words[index] if 0 <= index < len(self.words) else None

    def use(self, start: int, end: int, why: str) -> None:
        """Mark words as understood."""
        for word in self.words[start:end]:
            word.used = word.used or why

    def take(self, mention: Mention, why: str) -> None:
        """Mark a mention and its words as understood."""
        mention.used = why
        self.use(mention.start, mention.end, why)

    def note(self, en: str, zh: str) -> None:
        """Remember an assumption, once."""
        text = zh if self.language == "zh" else en
        if text not in self.notes and len(self.notes) < 20:
            self.notes.append(text)

    def left(self, said: str) -> None:
        """Remember a phrase that the numbers will not respect."""
        if said not in self.unread:
            self.unread.append(said)

    def any(self, kind: str) -> int | None:
        """The first word with the sense `kind`; a value that is called so (*History*) says nothing else."""
        return next((i for i, w in enumerate(self.words) if kind in w.senses and w.used != "value"), None)


def read_words(text: str, schema: SchemaIndex) -> tuple[list[Word], list[tuple[str, str]]]:
    """The words of a cleaned question and the spellings that were corrected on the way, as (written, read)."""
    tokens = _denied(tokenize(text), schema)
    corrected, corrections = _correct(tokens, schema)
    return segment(corrected, text, schema.books, schema.longest), corrections


def _denied(tokens: Sequence[Token], schema: SchemaIndex) -> list[Token]:
    """*unreturned* as *not returned*, where the table knows what is returned and not what is unreturned."""
    made: list[Token] = []
    for token in tokens:
        rest = token.stem[2:]
        known = (rest,) in schema.book or rest in schema.own_words
        denies = known and token.kind == "word" and token.stem.startswith("un") and len(rest) > 3
        if denies and token.stem not in schema.vocabulary:
            middle = token.start + 2
            made.append(Token(token.text[:2], "not", "word", token.start, middle, token.quoted))
            made.append(Token(token.text[2:], rest, "word", middle, token.end, token.quoted))
        else:
            made.append(token)
    return made


def _correct(tokens: Sequence[Token], schema: SchemaIndex) -> tuple[list[Token], list[tuple[str, str]]]:
    found: dict[str, str] = {}
    tried: set[str] = set()
    for position, token in enumerate(tokens):
        word = token.stem
        if token.kind != "word" or len(word) < 5 or word in schema.vocabulary or word in tried or not word.isalpha():
            continue
        if len(tried) >= MAX_CORRECTIONS or len(word) > 40:
            break
        tried.add(word)
        name = token.text[0].isupper() and position > 0
        distance = 1 if len(word) < 8 else 2
        for choices in (schema.own_words,) if name else (schema.own_words, schema.spelled):
            near = process.extract(word, choices, scorer=OSA.distance, score_cutoff=distance, limit=2)
            near = [n for n in near if len(n[0]) >= 4 and (n[0][0] == word[0] or len(word) >= 7)]
            if near and (len(near) == 1 or near[0][1] < near[1][1]):
                found[word] = near[0][0]
                break
        if word not in found and (written_out := _written_out(word, schema)) is not None:
            found[word] = written_out
    changed = [t._replace(stem=found.get(t.stem, t.stem)) if t.kind == "word" else t for t in tokens]
    return changed, [(t.text, found[t.stem]) for t in tokens if t.kind == "word" and t.stem in found]


def _written_out(word: str, schema: SchemaIndex) -> str | None:
    """The word of a column's name that `word` spells out or derives from: *exp* for expectancy."""
    near = {
        part.stem
        for named in schema.columns
        for part in named.words
        if (len(word) >= 5 and part.stem.startswith(word))
        or (
            not part.concepts
            and (
                (3 <= len(part.stem) <= len(word) - 2 and word.startswith(part.stem))
                or (len(part.stem) >= 6 and word[:5] == part.stem[:5] and abs(len(word) - len(part.stem)) <= 4)
            )
        )
    }
    return near.pop() if len(near) == 1 else None


def find_mentions(words: Sequence[Word], schema: SchemaIndex) -> list[Mention]:
    """Left to right, the longest run of words that names a column; several columns may fit the same run."""
    mentions: list[Mention] = []
    i = 0
    while i < len(words):
        mention = _mention(words, i, schema)
        if mention is None:
            i += 1
        else:
            mentions.append(mention)
            i = mention.end
    return mentions


def _atoms(word: Word) -> Iterable[str]:
    yield word.stem
    for concept in word.concepts:
        yield f"c:{concept}"


def _mention(words: Sequence[Word], i: int, schema: SchemaIndex) -> Mention | None:
    first = words[i]
    if (first.number is not None and not first.columns) or (first.text not in schema.small and _idle(words, i)):
        return None
    best: dict[str, tuple[int, Hit]] = {}
    if (small := schema.small.get(first.text)) is not None and _must_be_name(words, i):
        best[first.text] = (i + 1, Hit(small.column, 1.0, literal=True))
    for name in first.columns:
        named = schema.by_name[name]
        best[name] = (i + 1, Hit(named.column, 1.0, literal=True))
    starts = {place[0] for atom in _atoms(first) for place in schema.by_atom.get(atom, ())}
    for index in sorted(starts):
        named = schema.columns[index]
        reached = _extend(words, i, named)
        if reached and (named.column.name not in best or reached[0] > best[named.column.name][0]):
            best[named.column.name] = reached
    if first.has("grain") and first.text.casefold() not in best:  # *the busiest day*, of a table with a column *days*
        best = {name: found for name, found in best.items() if found[0] > i + 1 or name not in schema.lengths}
    if not best:
        return _related(words, i, schema)
    end = max(reach for reach, _ in best.values())
    hits = sorted((hit for reach, hit in best.values() if reach == end), key=lambda h: -h.score)
    text = " ".join(w.text for w in words[i:end])
    return Mention(i, end, text, tuple(hits))


def _must_be_name(words: Sequence[Word], i: int) -> bool:
    """Whether an aggregate or a *per* asks for a noun and only this little word is there: ``sum of a``, ``total a``."""
    following = words[i + 1] if i + 1 < len(words) else None
    if following is not None and not following.stop:
        return False
    j = i - 1
    while j >= 0 and words[j].stem in _LINKS:
        j -= 1
    return j >= 0 and any(words[j].has(kind) for kind in ("agg", "per", "high", "which", "count"))


def _idle(words: Sequence[Word], i: int) -> bool:
    """Whether a word that says little (*table*, *level*, *case*) is a part of a column's name by mere chance.

    It is none where something asks for it: *per table*, *which level*, *table 7*.
    """
    word = words[i]
    if not word.stop or word.senses or word.concepts or word.columns:
        return False
    before, after = (words[i - 1] if i else None), (words[i + 1] if i + 1 < len(words) else None)
    if after is not None and (after.number is not None or not (after.stop or after.known)):
        return False
    asked = ("per", "which", "count", "top", "high", "join")
    return before is None or not any(before.has(kind) for kind in asked)


def _extend(words: Sequence[Word], i: int, named: NamedColumn) -> tuple[int, Hit] | None:
    """How far the words from `i` keep naming parts of this column, and how well."""
    free = set(range(len(named.words)))
    j, end, weight, literal = i, i, 0.0, True
    while j < len(words) and free and j - i < 8:
        word = words[j]
        part = next((p for p in sorted(free, reverse=True) if named.words[p].stem == word.stem), None)
        if part is None:
            shared = [p for p in sorted(free, reverse=True) if named.words[p].concepts & word.concepts]
            if shared:
                part, literal = shared[0], False
        if part is not None:
            free.discard(part)
            weight += named.words[part].weight
            j += 1
            end = j
        elif j > i and (word.stem in _LINKS or (word.stem == "per" and named.concept in _PER_UNIT)):
            j += 1
        else:
            break
    if end == i:
        return None
    total = sum(word.weight for word in named.words)
    score = weight / total * (1.0 if literal else 0.9)
    if named.head in free:
        # Only a lesser word of the name was said: enough if it is its own word and the head is a mere kind or way.
        head = named.concept
        lesser = head in ("category", "method", "status", "level", "segment", "location")
        if not literal or not (
            lesser
            or (
                named.column.role == "number"
                and not words[i].concepts
                and not words[i].stop
                and len(words[i].text) > 1
                and stem(words[i].text) == words[i].stem
            )
        ):
            return None
        score *= 0.4
    return end, Hit(named.column, score, literal)


def _related(words: Sequence[Word], i: int, schema: SchemaIndex) -> Mention | None:
    for concept in sorted(words[i].concepts):
        for other in RELATED.get(concept, ()):
            hits = [
                Hit(schema.columns[index].column, 0.3 * schema.columns[index].words[part].weight, False, related=True)
                for index, part in schema.by_atom.get(f"c:{other}", ())
                if schema.columns[index].head == part
            ]
            if hits:
                return Mention(i, i + 1, words[i].text, tuple(hits))
    return None


def choose(mention: Mention, hits: Sequence[Hit], schema: SchemaIndex) -> list[Hit]:
    """The best of several columns; more than one only when nothing tells them apart."""
    if not hits:
        return []
    top = max(hit.score for hit in hits)
    best = [hit for hit in hits if hit.score >= top - 0.01]
    if len(best) > 1:
        literal = [hit for hit in best if hit.literal]
        best = literal or best
    if len(best) > 1:
        for concept, qualifiers in PREFERRED.items():
            preferred = [
                hit
                for hit in best
                if any(concept in w.concepts for w in schema.by_name[hit.column.name].words)
                and any(q in w.concepts for q in qualifiers for w in schema.by_name[hit.column.name].words)
            ]
            if len(preferred) == 1:
                return preferred
    return best


def choose_and_tell(sentence: Sentence, mention: Mention, hits: Sequence[Hit]) -> list[Hit]:
    """:func:`choose`, with a note on what was assumed when one column was chosen."""
    best = choose(mention, hits, sentence.schema)
    if len(best) != 1 or not hits:
        return best
    chosen, top = best[0], max(hit.score for hit in hits)
    rivals = [hit.column.name for hit in hits if hit.score >= top - 0.01]
    names = ", ".join(rivals)
    if len(rivals) > 1:
        sentence.note(
            f"'{mention.text}' may be any of {names}; {chosen.column.name} is taken.",
            f"“{mention.text}”可能是 {names}，按 {chosen.column.name} 理解。",
        )
    elif not chosen.literal or chosen.score < 0.45:
        sentence.note(
            f"'{mention.text}' is read as {chosen.column.name}.", f"“{mention.text}”按 {chosen.column.name} 理解。"
        )
    return best


def missing_concept(word: Word) -> str | None:
    """The id of the measure or thing a word names, for words that named no column of this table."""
    return next((c for c in sorted(word.concepts) if CONCEPTS[c].kind in "me"), None)
