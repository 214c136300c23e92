"""Questions that a table can answer, for who asked one that it cannot."""

from __future__ import annotations

from failsoft.examples.analyst.grammar.schema import SchemaIndex


def example_questions(schema: SchemaIndex, *, zh: bool, timed: bool) -> list[str]:
    """Two or three questions that this very table can answer."""
    columns = schema.columns
    measures = [n for n in columns if schema.is_measure(n.column)]
    chosen = next((n for n in measures if n.concept == "revenue"), measures[0] if measures else None)
    measure = chosen.column.name if chosen else None
    group = next((n.column.name for n in columns if n.column.role == "category" and n.column.distinct != 1), None)
    found: list[str] = []
    if measure and group:
        found.append(f"各{group}的{measure}" if zh else f"{measure} per {group}")
        found.append(f"{measure}最高的3个{group}" if zh else f"top 3 {group} by {measure}")
    if timed:
        found.append(f"按月统计{measure or '行数'}" if zh else f"{measure or 'number of rows'} per month")
    if len(found) < 2:
        found.append("一共有多少行" if zh else "how many rows")
    if len(found) < 2:
        name = group or columns[0].column.name if columns else ""
        found.append(f"有多少不同的{name}" if zh else f"how many different {name}")
    return found
