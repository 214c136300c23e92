"""Small tables that tests ask: written as CSV, loaded as any file is, answered by the rules and the database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from failsoft.examples.analyst import data, query
from failsoft.examples.analyst.grammar import Grammar
from failsoft.examples.analyst.query import Result
from failsoft.examples.analyst.spec import Intent


class Asked:
    """Tables in memory; :meth:`sql` says what is true of them."""

    def __init__(self, folder: Path, **tables: str) -> None:
        self.connection: Any = duckdb.connect()
        profiles = []
        for name, text in tables.items():
            file = folder / f"{name}.csv"
            file.write_text("\n".join(line.strip() for line in text.strip().splitlines()) + "\n", encoding="utf-8")
            profiles.append(data.load(file, database=self.connection))
        self.profiles = {profile.table: profile for profile in profiles}
        self.grammar = Grammar(profiles)

    def read(self, question: str) -> Intent:
        """What the rules make of it."""
        return self.grammar.read(question)

    def result(self, question: str) -> Result:
        """The database's answer to it."""
        asked = self.read(question).query
        return query.run(asked, self.connection, profile=self.profiles[asked.table])

    def total(self, question: str) -> Any:
        """The number of an answer; fails when the question was read only in part."""
        intent = self.read(question)
        assert not intent.unread, intent.unread
        return self.result(question).total

    def rows(self, question: str) -> Sequence[Any]:
        """The rows of an answer; fails when the question was read only in part."""
        assert not self.read(question).unread
        return self.result(question).rows

    def sql(self, statement: str) -> Any:
        """The truth."""
        (value,) = self.connection.execute(statement).fetchone()
        return value
