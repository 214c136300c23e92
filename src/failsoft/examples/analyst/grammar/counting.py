"""How many of a thing (*how many rolls were sold*): the sum of a column that counts, where a table has one."""

from __future__ import annotations

from failsoft.examples.analyst.grammar.lexicon import PERSON_WORDS, PLACE_WORDS
from failsoft.examples.analyst.grammar.mentions import Mention, Sentence
from failsoft.examples.analyst.grammar.schema import SchemaIndex
from failsoft.examples.analyst.grammar.words import Word
from failsoft.examples.analyst.spec import Column, Measure

_TRADED_WORDS = """
sold sell selling bought buy purchased ordered produced made baked shipped delivered harvested consumed
issued rented served
verkauft verkaufte verkauften gekauft bestellt produziert geliefert 卖 卖出 卖了 卖掉 销售 售出 出售 购买 买 生产
"""
_TRADED = frozenset(_TRADED_WORDS.split())
_COUNTING = frozenset(
    {
        "count",
        "sold",
        "piece",
        "pieces",
        "number",
        "num",
        "anzahl",
        "stuck",
        "stück",
        "menge",
        "数量",
        "个数",
        "份数",
        "件数",
    }
)
_NOT_THINGS = frozenset({*PERSON_WORDS, *PLACE_WORDS, "channel", "status", "method", "payment"})


class Counting:
    """Reads what is counted by a column, for :class:`~failsoft.examples.analyst.grammar.measures.Measures`."""

    sentence: Sentence
    words: list[Word]
    schema: SchemaIndex

    def _pieces(self, *, thing: bool, said: str) -> Measure | None:
        """The sum of the one column that counts; without a verb of trade only for a `thing` counted by itself."""
        traded = any(w.stem in _TRADED or w.text.casefold() in _TRADED for w in self.words)
        columns = self._counts() if traded or thing else []
        if len(columns) != 1:
            return None
        name = columns[0].name
        if traded:
            self.sentence.note(f"Units sold are the sum of {name}.", f"售出数量按 {name} 的总和计算。")
        else:
            self.sentence.note(
                f"How many '{said}' is read as the sum of {name}, not the number of rows.",
                f"“{said}”的数量按 {name} 的总和计算，而不是行数。",
            )
        return Measure("sum", name)

    def _counts(self) -> list[Column]:
        """The columns that count: those of quantities, else those that are called *count*."""
        numbers = [n for n in self.schema.columns if n.column.role == "number" and n.column.additive]
        quantities = [n.column for n in numbers if n.concept == "quantity"]
        if quantities:
            return quantities
        return [n.column for n in numbers if n.words[n.head].stem in _COUNTING or n.column.name.casefold() in _COUNTING]

    def _is_thing(self, j: int) -> bool:
        """Whether word `j`, a value, names something that is counted: a product, and no person, place or way."""
        for hit in self.words[j].values:
            named = self.schema.by_name[hit.column]
            if any(word.concepts & _NOT_THINGS for word in named.words):
                return False
        following = self.sentence.word(j + 1)
        return following is None or not self.schema.is_row_noun(following)

    def _is_product(self, mention: Mention) -> bool:
        return any(self.schema.by_name[hit.column.name].concept == "product" for hit in mention.hits)

    def _pieces_after(self, j: int) -> Measure | None:
        """``how many cancelled rolls``: of the value that follows, where a column counts it."""
        word = self.sentence.word(j)
        if word is None or word.used != "value":
            return None
        return self._pieces(thing=self._is_thing(j), said=word.text)

    def _people(self, j: int) -> Measure:
        self.words[j].used = "measure"
        self.sentence.note("Each row is counted as one.", "每一行计为一个。")
        return Measure("count")

    def _sales(self, mention: Mention) -> bool:
        """``number of sales``: rows, unless a column of sales counts them."""
        word = self.words[mention.start]
        if word.stem != "sale" or any(h.literal for h in mention.hits) or mention.end - mention.start > 1:
            return False
        self.sentence.take(mention, "measure")
        self.sentence.note("Each row is counted as one sale.", "每一行计为一笔销售。")
        return True
