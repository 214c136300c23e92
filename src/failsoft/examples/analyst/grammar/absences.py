"""What has no value (yet): ``not returned``, ``unpaid``, ``still open``, ``未归还``; and what has one."""

from __future__ import annotations

from collections.abc import Sequence

from failsoft.examples.analyst.grammar.conditions import Conditions
from failsoft.examples.analyst.grammar.mentions import Mention, Sentence
from failsoft.examples.analyst.spec import Column, Filter

_OPEN_WORDS = "open outstanding pending unfinished ongoing active offen ausstehend laufend"
_OPEN = frozenset(_OPEN_WORDS.split())
_STILL = frozenset({"still", "currently", "yet", "noch", "仍", "还"})
_YET = frozenset(
    {
        "yet",
        "so",
        "far",
        "until",
        "now",
        "been",
        "have",
        "has",
        "had",
        "were",
        "was",
        "are",
        "is",
        "be",
        "worden",
        "wurde",
    }
)
_BEFORE = 3
"""Words between a negation and what it denies, at most."""


class Absences:
    """Reads the conditions on whether a value is there; after all other conditions."""

    def __init__(self, sentence: Sentence, conditions: Conditions, period: str | None) -> None:
        self.sentence = sentence
        self.words = sentence.words
        self.schema = sentence.schema
        self.conditions = conditions
        self.period = period
        """The time column that the question's period is of."""

    def read(self) -> None:
        """All of them that the sentence says."""
        for mention in self.sentence.mentions:
            if not mention.used or mention.used == "left":
                self._mentioned(mention)
        self._open()

    def _mentioned(self, mention: Mention) -> None:
        columns = [hit.column for hit in mention.hits if hit.column.nulls and self._may_lack(hit.column)]
        if not columns:
            return
        denied = self._denial(mention.start)
        if denied is not None:
            self._take(mention, columns, denied, lacking=True)
        elif columns[0].role == "time" and columns[0].name != self.period and self._stated(mention):
            self._take(mention, columns, range(0), lacking=False)

    def _may_lack(self, column: Column) -> bool:
        return column.role in ("time", "category", "text", "identifier") and self.schema.truth(column, True) is None

    def _denial(self, at: int) -> range | None:
        """The words of the negation before word `at`: *not yet been*, *un*, 没有."""
        for j in range(at - 1, max(at - 1 - _BEFORE, -1), -1):
            word = self.words[j]
            if word.has("not") or word.stem == "no" or word.has("op") == "!=":
                return range(j, at)
            if word.stem not in _YET and word.stem not in ("a", "an", "any", "the"):
                return None
        return None

    def _stated(self, mention: Mention) -> bool:
        """Whether the name says what happened to the rows: *returned loans*, *loans that were returned*."""
        word = self.words[mention.start]
        before = self.sentence.word(mention.start - 1) if mention.start else None
        if word.kind == "cjk":
            following = self.sentence.word(mention.end)
            return before is not None and (before.stem == "已" or (following is not None and following.stem == "的"))
        following = self.sentence.word(mention.end)
        attributive = following is not None and (
            self.schema.is_row_noun(following) or self._tells_rows_apart(self.sentence.mention_at(mention.end))
        )
        said = before is not None and before.stem in (
            "were",
            "was",
            "been",
            "are",
            "is",
            "already",
            "have",
            "has",
            "had",
        )
        return word.text.casefold().endswith(("ed", "en", "t", "id")) and (attributive or said)

    def _tells_rows_apart(self, mention: Mention | None) -> bool:
        rows = self.schema.profile.rows
        hits = mention.hits if mention is not None else ()
        return any(hit.column.role == "identifier" and hit.column.distinct >= 0.99 * rows for hit in hits)

    def _take(self, mention: Mention, columns: Sequence[Column], denied: range, *, lacking: bool) -> None:
        times = [column for column in columns if column.role == "time"]
        column = (times or list(columns))[0]
        start = denied.start if denied else mention.start
        for j in denied:
            self.words[j].used = self.words[j].used or "condition"
        after = self.sentence.word(mention.end)
        if after is not None and after.stem == "yet":
            after.used = "condition"
        self.sentence.take(mention, "condition")
        self._add(column, self.sentence.said(start, mention.end), start, mention.end, lacking=lacking)

    def _add(self, column: Column, said: str, start: int, end: int, *, lacking: bool) -> None:
        self.conditions.add(Filter(column.name, "=" if lacking else "!=", None), start, end)
        rows = f"{column.name} has {'no' if lacking else 'a'} value"
        self.sentence.note(
            f"'{said}' is read as the rows where {rows}.",
            f"“{said}”理解为“{column.name}”{'没有值' if lacking else '有值'}的行。",
        )

    def _open(self) -> None:
        """``still out``, ``open``: what has no end, when only one time of the table can be missing."""
        ends = [n.column for n in self.schema.columns if n.column.role == "time" and n.column.nulls]
        if len(ends) != 1 or any(f.column == ends[0].name and f.value is None for f in self.conditions.filters):
            return
        for i, word in enumerate(self.words):
            if word.used or word.values or word.columns:
                continue
            before = self.sentence.word(i - 1) if i else None
            still = before is not None and before.stem in _STILL and not before.used
            if word.stem in _OPEN or (still and word.stem in ("out", "here", "in", "away", "there", "missing", "未")):
                start = i - 1 if still else i
                self.sentence.use(start, i + 1, "condition")
                self._add(ends[0], self.sentence.said(start, i + 1), start, i + 1, lacking=True)
                return
