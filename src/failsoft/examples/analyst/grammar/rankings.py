"""How groups are ordered and cut: ``top 5``, ``the lowest``, ``worst``, ``sorted descending``, ``最高的三个``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from failsoft.examples.analyst.grammar.groupings import Asked, Groupings
from failsoft.examples.analyst.grammar.lexicon import ADJECTIVES, CONCEPTS
from failsoft.examples.analyst.grammar.mentions import Mention, Sentence
from failsoft.examples.analyst.grammar.schema import SchemaIndex
from failsoft.examples.analyst.grammar.words import Word
from failsoft.examples.analyst.spec import Column, Measure

MANY_GROUPS = 20
"""A ranking of more groups than this is cut at :data:`SHOWN` when the question gives no number."""
SHOWN = 10
_MOST = frozenset({"most", "least", "fewest", "最多", "最少", "最", "fastest", "最快"})


@dataclass(frozen=True, slots=True)
class Ranking:
    """How groups are ordered and cut, and whether by their value or by their change."""

    order: Literal["desc", "asc", "natural"] = "natural"
    limit: int | None = None
    rank: Literal["value", "change"] = "value"


def direction_of(sense: str, column: Column | None, schema: SchemaIndex) -> Literal["desc", "asc"]:
    """Which end *best*, *worst*, *highest* or *lowest* means for this measure."""
    if sense not in ("good", "bad"):
        return "desc" if sense == "high" else "asc"
    named = schema.by_name.get(column.name) if column is not None else None
    concepts = [CONCEPTS[c] for w in (named.words if named else ()) for c in w.concepts]
    low_is_good = any(c.kind == "m" and c.better == "asc" for c in concepts)
    return "asc" if (sense == "good") == low_is_good else "desc"


class Rankings:
    """Reads order and limit of one sentence; `mention` is where it names its measure."""

    def __init__(self, sentence: Sentence, groupings: Groupings, mention: Mention | None) -> None:
        self.sentence = sentence
        self.words = sentence.words
        self.schema = sentence.schema
        self.groupings = groupings
        self.mention = mention

    def read(self, measure: Measure, *, compared: bool) -> Ranking:
        """Order and limit of the groups, from what the question says about ranks."""
        found = self.groupings.found
        if not found:
            return Ranking()
        order, number = self._order(measure)
        by_change = compared and self.sentence.any("change") is not None and self._ranks_change()
        if by_change:
            order = self._change_order()
        if order == "natural":
            return Ranking()
        said = [a.number for a in found if a.number is not None]
        number = said[0] if said else number
        lead = next((a for a in found if a.how in ("which", "rank")), None)
        ranked = self.groupings.ranked or by_change
        if number is None and ranked and lead is not None:
            number = self._usual(lead)
        return Ranking(order, number, "change" if by_change else "value")

    def _ranks_change(self) -> bool:
        return any(w.stem in _MOST or w.has("high") or w.has("top") for w in self.words) or any(
            a.how == "which" for a in self.groupings.found
        )

    def _change_order(self) -> Literal["desc", "asc"]:
        ways = {w.senses["change"] for w in self.words if "change" in w.senses}
        least = any(w.has("high") == "low" or (w.has("top") == "asc") for w in self.words)
        falling = "down" in ways and "up" not in ways
        return "asc" if falling != least else "desc"

    def _order(self, measure: Measure) -> tuple[Literal["desc", "asc", "natural"], int | None]:
        column = self.schema.by_name[measure.column].column if measure.column else None
        order: Literal["desc", "asc", "natural"] = "natural"
        number = None
        for i, word in enumerate(self.words):
            if word.columns or word.used == "value":
                continue
            if word.has("dirword"):
                return ("desc" if word.senses["dirword"] == "desc" else "asc"), number
            if order != "natural":
                if number is None and word.has("top") and self._top_meant(i):
                    number = self._number_after(i)
                continue
            if word.has("top") and self._top_meant(i):
                order = "desc" if word.senses["top"] == "desc" else "asc"
                number = self._number_after(i)
            elif (word.has("adjhigh") or word.has("adjlow")) and self._extreme_is_rank(word):
                kind = "adjhigh" if word.has("adjhigh") else "adjlow"
                most = ADJECTIVES[word.senses[kind]][1]
                order = "desc" if (most == "desc") == (kind == "adjhigh") else "asc"
            elif word.has("busiest"):
                order = "desc" if word.senses["busiest"] == "desc" else "asc"
            elif (sense := word.has("high")) and self._extreme_is_rank(word):
                order = direction_of(sense, column, self.schema)
                number = self._number_after(i)
        if order == "natural" and self.groupings.sorted:
            order = "desc"
        return order, number

    def _extreme_is_rank(self, word: Word) -> bool:
        """Not the *maximum* of a maximum per group."""
        found = self.groupings.found
        return not (
            all(a.how == "per" for a in found)
            and (word.has("agg") or (self.mention is not None and word.stem not in ("most", "least", "fewest")))
        )

    def _top_meant(self, i: int) -> bool:
        word = self.words[i]
        return word.kind != "cjk" or self._number_after(i) is not None

    def _number_after(self, i: int) -> int | None:
        following = self.sentence.word(i + 1)
        if (
            following is not None
            and following.number is not None
            and following.used in ("", "group")
            and 0 < following.number <= 1000
        ):
            following.used = following.used or "group"
            return int(following.number)
        return None

    def _usual(self, asked: Asked) -> int | None:
        if not asked.plural:
            return 1
        column = self.schema.by_name[asked.group.column].column
        if (asked.group.grain is None and column.distinct > MANY_GROUPS) or any(w.has("top") for w in self.words):
            self.sentence.note(f"The first {SHOWN} are shown.", f"显示前 {SHOWN} 个。")
            return SHOWN
        return None
