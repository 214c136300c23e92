"""Which of several tables a question is about: the one that knows most of its words, or an error that names them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from failsoft.examples.analyst.grammar.mentions import read_words
from failsoft.examples.analyst.grammar.schema import SchemaIndex
from failsoft.examples.analyst.grammar.wording import QuestionError
from failsoft.examples.analyst.grammar.words import Word
from failsoft.examples.analyst.spec import Intent, columns_of

_TRIED = 100
"""Places of a question at which a table's name is looked for."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """A table with the words of a question as it knows them; ``unsaid`` when the question does not name it."""

    schema: SchemaIndex
    words: list[Word]
    corrections: list[tuple[str, str]]
    unsaid: bool


def read_for(text: str, schemas: Sequence[SchemaIndex]) -> Fitting:
    """The table that fits best; raises ``QuestionError`` (``ambiguous``) when two fit equally and neither is named."""
    found: list[tuple[float, Fitting]] = []
    for schema in schemas:
        words, corrections = read_words(text, schema)
        name = _named(text, words, schema) if len(schemas) > 1 else range(0)
        fit = _fit(words, schema) + 4.0 * bool(name)
        if _only_name(schema.profile.table, words, name):
            for i in name:
                words[i].used = "table"
        found.append((fit, Fitting(schema, words, corrections, unsaid=not name)))
    most = max(fit for fit, _ in found)
    best = [fitting for fit, fitting in found if fit == most]
    if len(best) > 1 and most > 0:
        names = [fitting.schema.profile.table for fitting in best]
        raise QuestionError(
            "ambiguous",
            f"The question fits several tables equally: {', '.join(names)}. Please name the one that is meant.",
            choices=tuple(names),
        )
    return best[0]


def also_in(intent: Intent, schema: SchemaIndex, schemas: Sequence[SchemaIndex]) -> list[str]:
    """Other tables with all the columns that were read from this one."""
    columns = columns_of(intent.query)
    return [
        other.profile.table
        for other in schemas
        if other is not schema and columns and columns <= {column.name for column in other.profile.columns}
    ]


def _named(text: str, words: Sequence[Word], schema: SchemaIndex) -> range:
    """The words that spell the table's name."""
    name = schema.profile.table.casefold()
    starts, ends = [word.start for word in words], [word.end for word in words]
    for said in dict.fromkeys((name, name.replace("_", " "))):
        for found in itertools.islice(re.finditer(re.escape(said), text.casefold()), _TRIED):
            if found.start() in starts and found.end() in ends:
                return range(starts.index(found.start()), ends.index(found.end()) + 1)
    return range(0)


def _only_name(table: str, words: Sequence[Word], name: range) -> bool:
    """Whether the words are nothing but a name: *sales_2024*, *table orders*, and not the *orders* that are counted."""
    if not name:
        return False
    before = words[name.start - 1].stem if name.start else ""
    return "_" in table or before in ("table", "file", "of", "in", "from", "aus", "von", "表", "文件")


def _fit(words: Sequence[Word], schema: SchemaIndex) -> float:
    """How much of a question a table knows, to choose between tables."""
    fit = 0.0
    for word in words:
        if word.columns or any(not hit.partial for hit in word.values):
            fit += 2
        elif any(f"c:{concept}" in schema.by_atom for concept in word.concepts) or word.values:
            fit += 1
        if word.stem in schema.row_nouns:
            fit += 1.5
    return fit
