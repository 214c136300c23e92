"""How a model is asked for the analyst's plan: a small frame that it fills in, and the plan that a filled frame is.

A model that may write any plan writes too much, and a small one writes nonsense. So it is given the choices and no
more: the tables' own columns, values and periods, as a JSON schema; tasks, references and charts follow from what it
chose, by :func:`~failsoft.examples.analyst.plans.plan_of`, as they do from what the grammar reads.
"""

from __future__ import annotations

import calendar
import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, cast

from failsoft.base.errors import PlanRefused
from failsoft.examples.analyst.faithful import Faithful
from failsoft.examples.analyst.grammar.numeric import typed
from failsoft.examples.analyst.grammar.wording import read_back
from failsoft.examples.analyst.plans import plan_of
from failsoft.examples.analyst.spec import (
    Column,
    Filter,
    Grain,
    Group,
    Intent,
    Measure,
    Operator,
    Period,
    Query,
    Scalar,
    TableProfile,
)
from failsoft.examples.analyst.totals import without
from failsoft.runs.plan import Plan, PlanLimits
from failsoft.runs.planner import PlanRequest
from failsoft.tools.registry import ToolRegistry

__all__ = ["QuestionForm"]

_COLUMNS: Final = 40
"""Columns of one table that a model is told of."""
_VALUES: Final = 40
"""Values of a column that a model chooses among; of a column with more it writes the value itself."""
_SHOWN: Final = 8
"""Values of a column that the prompt names."""
_YEARS: Final = 6
"""Years of data whose periods are listed one by one; of more a model writes the period itself."""
_EXAMPLES: Final = 2
"""Tables for which the prompt has examples."""
_GRAINS: Final = ("year", "quarter", "month", "week", "day", "weekday", "hour")
_FINER: Final = {"hour": 7, "day": 6, "week": 4, "month": 3, "quarter": 2, "year": 1}
"""How many of the grains a time column has, by the finest that its values tell apart."""
_AGGREGATES: Final = ("sum", "mean", "median", "min", "max")
_DAYS: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(\.\.[0-9]{4}-[0-9]{2}-[0-9]{2})?$"
_PERIOD: Final = re.compile(r"(\d{4})(?:-Q([1-4])|-(\d{2})(?:-(\d{2}))?)?")
_ALL: Final = "all"

_HOW: Final = """You turn a question about tables into one JSON object and nothing else. Its keys:
table: the table that knows the answer.
measure: "count rows", or an aggregate and a column: sum for totals, mean for averages, distinct for how many different.
per: what the answer is split by, [] for one number. Columns, or year, quarter, month, week, day, weekday of the time.
where: conditions, [] for none. Only those that the question says.
time: the period that the question names, "all" if it names none: 2024, 2024-Q1, 2024-03, 2024-03-05.
against: the period to compare with, only if the question compares two periods.
order, limit: "desc" and N for the N highest, "asc" and N for the N lowest; only if the question asks for them.
share: true if the question asks for shares or percentages. unusual: true if it asks for what is unusual.
Names and values are written exactly as here:"""


class QuestionForm:
    """The form of the analyst's plans (:class:`~failsoft.runs.model_planner.PlanForm`) over some tables.

    What a reply brings in that the question does not say is left away; one that leaves out what it says is refused.
    """

    def __init__(self, profiles: Sequence[TableProfile]) -> None:
        self._profiles = {profile.table: profile for profile in profiles}
        self._faithful = {profile.table: Faithful(profile) for profile in profiles}
        self._prompt = _prompt(profiles)
        self._schema = _schema(profiles)

    def prompt(self, tools: ToolRegistry) -> str:
        """The same each time, byte by byte."""
        return self._prompt

    def schema(self, tools: ToolRegistry, limits: PlanLimits) -> dict[str, Any]:
        """The JSON schema of a frame: of each table only what it has."""
        return self._schema

    def plan(self, data: Mapping[str, Any], request: PlanRequest) -> Plan:
        """The plan that a reply stands for; one that has `tasks` is taken for a plan as it is.

        Raises :class:`PlanRefused`, whose ``details["reason"]`` is ``schema`` or ``left_out``.
        """
        if "tasks" in data:
            return Plan.from_dict(dict(data))
        try:
            profile = self._profiles[data["table"]]
            intent = _intent(data, profile, request)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanRefused(
                f"the model's reply does not fit the tables: {str(error)[:200]}", details={"reason": "schema"}
            ) from None
        intent = self._faithful[profile.table].checked(request.input, intent)
        other = intent.compare_to and without(intent.compare_to, profile)
        intent = replace(intent, query=without(intent.query, profile), compare_to=other)
        intent = replace(intent, chart=_chart(intent, request.input))
        return plan_of(replace(intent, reading=read_back(intent, profile)), profile)

    def __repr__(self) -> str:
        return f"<QuestionForm {', '.join(self._profiles)}>"


# --- the reply -------------------------------------------------------------------------------------------------------


def _intent(data: Mapping[str, Any], profile: TableProfile, request: PlanRequest) -> Intent:
    groups = tuple(_group(name, profile) for name in dict.fromkeys(data.get("per") or ()))
    filters = _joined([_filter(one, profile) for one in data.get("where") or ()])
    limit = data.get("limit") or None
    if limit is not None and (type(limit) is not int or not 1 <= limit <= 10_000):
        raise ValueError("limit")
    order = data.get("order") or ("desc" if limit else "natural")
    if order not in ("desc", "asc", "natural"):
        raise ValueError("order")
    query = Query(
        table=profile.table,
        measure=_measure(data["measure"], profile),
        group_by=groups,
        filters=filters,
        period=_period(data.get("time", _ALL), profile, request.language),
        order=cast("Literal['desc', 'asc', 'natural']", order) if groups else "natural",
        limit=limit if groups else None,
        share=data.get("share") is True and bool(groups),
    )
    against = _period(data.get("against", _ALL), profile, request.language)
    other = None
    if against is not None and query.period is not None and against != query.period:
        other = replace(query, period=against, order="natural", limit=None)
    return Intent(query, other, mark_unusual=data.get("unusual") is True and bool(groups), language=request.language)


def _measure(text: str, profile: TableProfile) -> Measure:
    aggregate, _, column = text.partition(" ")
    if text == "count rows":
        return Measure("count")
    if aggregate == "distinct":
        return Measure("count_distinct", profile.column(column).name)
    if aggregate not in _AGGREGATES or profile.column(column).role != "number":
        raise ValueError(f"measure {text[:80]!r}")
    return Measure(cast("Any", aggregate), column)


def _group(name: str, profile: TableProfile) -> Group:
    if any(column.name == name for column in profile.columns):
        column = profile.column(name)
        return Group(name, column.grain or "day") if column.role == "time" else Group(name)
    if profile.time_column is None or name not in _GRAINS:
        raise KeyError(name)
    return Group(profile.time_column, cast("Grain", name))


def _filter(one: Mapping[str, Any], profile: TableProfile) -> Filter:
    column = profile.column(one["column"])
    op, value = one.get("is", "="), one["value"]
    if op not in ("=", "!=", "<", "<=", ">", ">=", "contains") or not isinstance(value, str | int | float | bool):
        raise ValueError(f"where {column.name}")
    known: Scalar = value
    if isinstance(value, str):
        spelled = {each.casefold(): each for each in column.values}
        known = typed(column, spelled.get(value.casefold(), value))
    return Filter(column.name, cast("Operator", op), known)


def _joined(filters: Sequence[Filter]) -> tuple[Filter, ...]:
    """Several values of one column are alternatives: no row has two of them."""
    equal: dict[str, list[Scalar]] = {}
    for one in filters:
        if one.op == "=" and not isinstance(one.value, list):
            equal.setdefault(one.column, []).append(one.value)
    joined: list[Filter] = []
    for one in filters:
        values = equal.get(one.column, [])
        if one.op == "=" and len(values) > 1:
            joined.append(Filter(one.column, "in", list(dict.fromkeys(values))))
        else:
            joined.append(one)
    return tuple(one for index, one in enumerate(joined) if one not in joined[:index])


def _period(text: str, profile: TableProfile, language: str) -> Period | None:
    if text == _ALL or profile.time_column is None:
        return None
    first, _, last = text.partition("..")
    start, end, label = _span(first, language)
    if last:
        label = f"{first} – {last}"
        end = _span(last, language)[1]
    if end <= start:
        raise ValueError(f"time {text[:40]!r}")
    return Period(profile.time_column, start, end, label)


def _span(text: str, language: str) -> tuple[dt.date, dt.date, str]:
    found = _PERIOD.fullmatch(text)
    if found is None:
        raise ValueError(f"time {text[:40]!r}")
    year = int(found[1])
    zh = language == "zh"
    if found[2]:
        quarter = int(found[2])
        start = dt.date(year, 3 * quarter - 2, 1)
        return start, _months_on(start, 3), f"{year}年第{quarter}季度" if zh else f"Q{quarter} {year}"
    if found[4]:
        start = dt.date(year, int(found[3]), int(found[4]))
        return start, start + dt.timedelta(days=1), start.isoformat()
    if found[3]:
        start = dt.date(year, int(found[3]), 1)
        label = f"{year}年{start.month}月" if zh else f"{calendar.month_name[start.month]} {year}"
        return start, _months_on(start, 1), label
    return dt.date(year, 1, 1), dt.date(year + 1, 1, 1), f"{year}年" if zh else str(year)


def _months_on(day: dt.date, months: int) -> dt.date:
    month = day.month - 1 + months
    return dt.date(day.year + month // 12, month % 12 + 1, 1)


def _chart(intent: Intent, question: str) -> Literal["bar", "line", "compare"] | None:
    """The picture that fits, or that the question names."""
    groups = intent.query.group_by
    if not groups:
        return None
    if intent.compare_to is not None:
        return "compare"
    said = question.casefold()
    if "line" in said or "折线" in said:
        return "line"
    if "bar" in said or "柱" in said:
        return "bar"
    return "line" if any(group.grain not in (None, "weekday") for group in groups) else "bar"


# --- the schema ------------------------------------------------------------------------------------------------------


def _schema(profiles: Sequence[TableProfile]) -> dict[str, Any]:
    tables = [_table_schema(profile) for profile in profiles]
    return tables[0] if len(tables) == 1 else {"anyOf": tables}


def _table_schema(profile: TableProfile) -> dict[str, Any]:
    columns = _told(profile)
    conditions = [_condition(column) for column in columns if column.role != "time"]
    properties: dict[str, Any] = {
        "table": {"const": profile.table},
        "measure": {"enum": _measures(columns)},
        "per": {"type": "array", "maxItems": 2, "items": {"enum": _groups(profile, columns) or ["-"]}},
        "where": {
            "type": "array",
            "maxItems": 4 if conditions else 0,
            "items": {"anyOf": conditions} if len(conditions) > 1 else (conditions or [{"type": "null"}])[0],
        },
    }
    required = ["table", "measure", "per", "where"]
    if profile.time_column is not None:
        times = _times(profile)
        properties["time"] = {"anyOf": [{"enum": [_ALL, *times]}, {"type": "string", "pattern": _DAYS}]}
        required.append("time")
        if times:
            properties["against"] = {"enum": times}
    properties["order"] = {"enum": ["desc", "asc"]}
    properties["limit"] = {"type": "integer", "minimum": 1, "maximum": 1000}
    properties["share"] = {"const": True}
    properties["unusual"] = {"const": True}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _told(profile: TableProfile) -> tuple[Column, ...]:
    return profile.columns[:_COLUMNS]


def _measures(columns: Sequence[Column]) -> list[str]:
    made = ["count rows"]
    for column in columns:
        if column.role == "number":
            made += [f"{one} {column.name}" for one in _AGGREGATES]
        elif column.role in ("category", "identifier"):
            made.append(f"distinct {column.name}")
    return made


def _groups(profile: TableProfile, columns: Sequence[Column]) -> list[str]:
    named = [column.name for column in columns if column.role in ("category", "identifier")]
    if profile.time_column is None:
        return named
    finest = profile.column(profile.time_column).grain or "day"
    grains = list(_GRAINS[: _FINER.get(finest, 6)])
    return [*named, *(grain for grain in grains if grain not in named)]


def _condition(column: Column) -> dict[str, Any]:
    value: dict[str, Any]
    if column.role == "number":
        ops, value = ["=", "!=", "<", "<=", ">", ">="], {"type": "number"}
    elif column.values and column.values_complete and len(column.values) <= _VALUES:
        ops, value = ["=", "!="], {"enum": list(column.values)}
    else:
        ops, value = ["=", "!=", "contains"], {"type": "string", "maxLength": 80}
    return {
        "type": "object",
        "properties": {"column": {"const": column.name}, "is": {"enum": ops}, "value": value},
        "required": ["column", "is", "value"],
        "additionalProperties": False,
    }


def _times(profile: TableProfile) -> list[str]:
    """The years, quarters and months that the data has, when they are few."""
    bounds = _bounds(profile)
    if bounds is None or bounds[1].year - bounds[0].year >= _YEARS:
        return []
    first, last = bounds
    made: list[str] = []
    for year in range(first.year, last.year + 1):
        months = [m for m in range(1, 13) if (first.year, first.month) <= (year, m) <= (last.year, last.month)]
        made += [str(year), *dict.fromkeys(f"{year}-Q{(m + 2) // 3}" for m in months)]
        made += [f"{year}-{m:02}" for m in months]
    return made


def _bounds(profile: TableProfile) -> tuple[dt.date, dt.date] | None:
    if profile.time_column is None:
        return None
    column = profile.column(profile.time_column)
    try:
        return dt.date.fromisoformat(str(column.minimum)[:10]), dt.date.fromisoformat(str(column.maximum)[:10])
    except ValueError:
        return None


# --- the prompt ------------------------------------------------------------------------------------------------------


def _prompt(profiles: Sequence[TableProfile]) -> str:
    lines = [_HOW]
    for profile in profiles:
        bounds = _bounds(profile)
        span = f", {profile.time_column} from {bounds[0]} to {bounds[1]}" if bounds else ""
        lines.append(f"table {profile.table}, {profile.rows} rows{span}:")
        for column in _told(profile):
            if column.role == "number":
                lines.append(f"  {column.name}: number" + (f" in {column.unit}" if column.unit else ""))
            elif column.role != "time":
                known = ", ".join(value[:40] for value in column.values[:_SHOWN])
                more = "" if len(column.values) <= _SHOWN else ", …"
                lines.append(f"  {column.name}: {column.role}" + (f" ({known}{more})" if known else ""))
    lines.append("Examples:")
    for index, profile in enumerate(profiles[:_EXAMPLES]):
        examples = _examples(profile)[:: 2 if index else 1]
        lines += [f"{question}\n{json.dumps(frame, ensure_ascii=False)}" for question, frame in examples]
    return "\n".join(lines)


def _examples(profile: TableProfile) -> list[tuple[str, dict[str, Any]]]:
    """Questions about the table's own columns with their frames."""
    columns = _told(profile)
    table, times = profile.table, _times(profile)
    numbers = [column.name for column in columns if column.role == "number"]
    adding = [column.name for column in columns if column.role == "number" and column.additive]
    kinds = [column for column in columns if column.role == "category" and column.values]
    noun = profile.row_noun or "row"

    def frame(measure: str, per: Sequence[str] = (), where: Sequence[Any] = (), **more: Any) -> dict[str, Any]:
        made = {"table": table, "measure": measure, "per": list(per), "where": list(where)}
        if profile.time_column is not None:
            made["time"] = more.pop("time", _ALL)
        return {**made, **more}

    measure = f"sum {adding[0]}" if adding else "count rows"
    said = f"total {adding[0]}" if adding else f"number of {noun}s"
    mean = f"mean {numbers[-1]}" if numbers else "count rows"
    average = f"average {numbers[-1]}" if numbers else f"number of {noun}s"
    made = [(f"What is the {said} of {table}?", frame(measure))]
    if kinds:
        first, last = kinds[0], kinds[-1]
        one, other = (
            {"column": column.name, "is": "=", "value": column.values[at]} for column, at in ((first, -1), (last, 0))
        )
        made.append((f"How many {noun}s have {first.name} {first.values[-1]}?", frame("count rows", where=[one])))
        made.append((f"{said} per {last.name}", frame(measure, [last.name])))
        top = frame(measure, [last.name], order="desc", limit=4)
        made.append((f"the 4 {last.name}s with the highest {said}", top))
        made.append((f"每个{first.name}的{average}", frame(mean, [first.name])))
        if first is not last:
            values = f"{first.values[-1]} with {last.values[0]} {last.name}"
            made.append((f"What is the {average} of {values}?", frame(mean, where=[one, other])))
            made.append((f"{average} of {last.values[0]} per {first.name}", frame(mean, [first.name], [other])))
    months = [text for text in times if len(text) == 7 and "Q" not in text]
    if months:
        then = months[-1]
        when = f"{calendar.month_name[int(then[5:])]} {then[:4]}"
        per = [kinds[0].name] if kinds else []
        by = f" per {per[0]}" if per else ""
        made.append((f"{said} per month", frame(measure, ["month"])))
        made.append((f"{said}{by} in {when}", frame(measure, per, time=then)))
        if len(months) > 1:
            before = months[-2]
            past = f"{calendar.month_name[int(before[5:])]} {before[:4]}"
            made.append((f"compare {said}{by} in {when} with {past}", frame(measure, per, time=then, against=before)))
    return made
