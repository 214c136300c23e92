"""The grammars of invented tables, each made when a test first reads with it."""

import functools
import json
from pathlib import Path

from failsoft.examples.analyst.grammar import Grammar
from failsoft.examples.analyst.spec import TableProfile, from_dict

TABLES = json.loads((Path(__file__).parent / "grammar_tables.json").read_text(encoding="utf-8"))


@functools.cache
def grammar(table: str) -> Grammar:
    return Grammar([from_dict(TableProfile, TABLES[table])])
