"""Rows that add others up: a last line called *Total* would count everything twice."""

# ruff: noqa: S608 - SQL is put together from quoted identifiers and literals
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from failsoft.examples.analyst.spec import Column, Filter, Note, Query, TableProfile
from failsoft.examples.analyst.textsql import identifier, literal

_NAMES = """
total|totals|grand total|subtotal|sub total|sum|sums|overall|all|gesamt|gesamtsumme|summe|insgesamt|zwischensumme|
suma|totale|somme|ensemble|合计|总计|小计|总和|总额|全部
"""
_CALLED = tuple(name for name in _NAMES.replace("\n", "").split("|") if name)
_SURE = frozenset({"total", "totals", "grand total", "gesamt", "gesamtsumme", "summe", "insgesamt", "合计", "总计"})
"""Names that nothing else has; of others the numbers must show it."""
_OFF = 0.005
"""By how much a total may miss its parts, for rounding."""
_LEVELS = (1, 2, 3)
"""How often totals may add up all the rest: subtotals and a grand total do twice."""


def marked(connection: Any, table: str, columns: Sequence[Column]) -> tuple[list[Column], list[Note]]:
    """The columns, those with totals among their values marked, and what to say of them."""
    found, notes = list(columns), list[Note]()
    for i, column in enumerate(columns):
        if column.role not in ("category", "text", "identifier") or not column.type.startswith("VARCHAR"):
            continue
        values = _called(connection, table, column.name)
        if not values:
            continue
        sure = all(value.strip().rstrip(":").casefold() in _SURE for value in values)
        if not (_adds_up(connection, table, column.name, values, columns) or sure):
            continue
        found[i] = dataclasses.replace(column, totals=tuple(values))
        listed = ", ".join(values)
        notes.append(
            Note(
                "totals",
                f"rows whose {column.name} is {listed} add the others up and are left out",
                f"“{column.name}”为 {listed} 的行是其他行的合计，不计入",
                column.name,
            )
        )
    return found, notes


def left_out(query: Query, profile: TableProfile) -> tuple[Filter, ...]:
    """The conditions that keep totals out of a query, where it does not ask for them itself."""
    asked = [one for condition in query.filters for one in (condition, *condition.alternatives)]
    filters: list[Filter] = []
    for column in profile.columns:
        if not column.totals:
            continue
        values = {str(v) for f in asked if f.column == column.name for v in _listed(f)}
        if not values & set(column.totals):
            filters.append(Filter(column.name, "not in", list(column.totals)))
    return tuple(filters)


def without(query: Query, profile: TableProfile) -> Query:
    """The query without the rows that add others up."""
    filters = left_out(query, profile)
    return dataclasses.replace(query, filters=(*query.filters, *filters)) if filters else query


def _listed(condition: Filter) -> list[Any]:
    return condition.value if isinstance(condition.value, list) else [condition.value]


def _called(connection: Any, table: str, column: str) -> list[str]:
    quoted = identifier(column)
    listed = ", ".join(literal(name) for name in _CALLED)
    rows = connection.execute(
        f"SELECT DISTINCT {quoted} FROM {identifier(table)} WHERE rtrim(lower(trim({quoted})), ':') IN ({listed}) "
        "ORDER BY 1 LIMIT 5"
    ).fetchall()
    return [value for (value,) in rows]


def _adds_up(connection: Any, table: str, column: str, values: Sequence[str], columns: Sequence[Column]) -> bool:
    numbers = [c.name for c in columns if c.role == "number" and c.additive]
    listed = ", ".join(literal(value) for value in values)
    inside = f"coalesce({identifier(column)} IN ({listed}), false)"
    for name in numbers:
        number = identifier(name)
        totals, rest = connection.execute(
            f"SELECT sum({number}) FILTER (WHERE {inside})::DOUBLE, sum({number}) FILTER (WHERE NOT {inside})::DOUBLE "
            f"FROM {identifier(table)}"
        ).fetchone()
        if totals and rest and any(abs(totals - k * rest) <= _OFF * abs(k * rest) for k in _LEVELS):
            return True
    return False
