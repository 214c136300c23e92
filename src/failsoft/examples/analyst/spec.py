"""What a question is read into and what the tools answer with: the seam between the grammar and the tools.

The grammar (:mod:`~failsoft.examples.analyst.grammar`) turns a question into an :class:`Intent`, using only a
:class:`TableProfile`; the tools turn its :class:`Query` into SQL, comparisons and charts. Neither knows the other.
All values are plain data: ``to_dict``/``from_dict`` make them JSON, since plans travel as JSON.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Role = Literal["time", "number", "category", "identifier", "text"]
Grain = Literal["hour", "day", "week", "month", "quarter", "year", "weekday", "month_of_year", "hour_of_day"]
Aggregate = Literal["sum", "mean", "median", "min", "max", "count", "count_distinct"]
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "in", "not in", "contains"]
Scalar = str | int | float | bool | None

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Note:
    """Something assumed, left out or worth knowing, in both languages; ``code`` is stable, for programs."""

    code: str
    en: str
    zh: str
    column: str | None = None
    """The column it is about, when it is about one."""

    def text(self, language: str) -> str:
        """The note in `language` (``zh``, otherwise English)."""
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True, slots=True)
class Column:
    """One column as found in the data.

    ``values`` holds the distinct values of a category (most frequent first, at most 1 000, complete when
    ``values_complete``); ``minimum``/``maximum`` are set for numbers (float) and times (ISO text).
    ``labels`` maps a stored value to what people call it (``"UA" → "United Air Lines Inc."``), when the data knows.
    ``aliases`` are other names people use for the column, when the data's owner gave some.
    """

    name: str
    role: Role
    type: str
    distinct: int = 0
    nulls: int = 0
    values: tuple[str, ...] = ()
    values_complete: bool = False
    minimum: float | str | None = None
    maximum: float | str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    unit: str | None = None
    additive: bool = True
    """False when adding rows up is meaningless (a rate, a price, a delay, a temperature): the default is then mean."""
    grain: Grain | None = None
    """Of a time column: the finest grain its values tell apart (monthly figures: ``month``)."""
    totals: tuple[str, ...] = ()
    """Values of rows that add the others up (``Total``): they are left out unless a question names them."""


@dataclass(frozen=True, slots=True)
class TableProfile:
    """What is known of a table without asking the database again: kept beside the data when it is loaded."""

    table: str
    rows: int
    columns: tuple[Column, ...]
    time_column: str | None = None
    source: str = ""
    loaded_at: str = ""
    row_noun: str = "row"
    """What one row is, for counts: ``flight``, ``order``; ``row`` when nobody said."""
    notes: tuple[Note, ...] = ()
    """What was assumed while loading: the encoding, how dates were read, what was taken for missing."""

    def column(self, name: str) -> Column:
        """The column called `name`; raises ``KeyError``."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured: an aggregate of a column, or a count of rows when ``column`` is None."""

    aggregate: Aggregate
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A grouping: a column's values, or a time column cut by ``grain``."""

    column: str
    grain: Grain | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on a column. ``value`` is a list for ``in`` and ``not in``; None is what has no value.

    With a ``grain`` the condition is on that part of a time: on its ``weekday`` (1 is Monday), its ``hour_of_day``.
    A row passes when the condition holds or one of its ``alternatives`` does.
    """

    column: str
    op: Operator
    value: Scalar | list[Scalar]
    grain: Grain | None = None
    alternatives: tuple[Filter, ...] = ()


@dataclass(frozen=True, slots=True)
class Period:
    """A span of days ``[start, end)`` with the name it is reported by (``Q3 2013``, ``July``)."""

    column: str
    start: dt.date
    end: dt.date
    label: str


@dataclass(frozen=True, slots=True)
class Query:
    """One aggregation over one table."""

    table: str
    measure: Measure
    group_by: tuple[Group, ...] = ()
    filters: tuple[Filter, ...] = ()
    period: Period | None = None
    order: Literal["desc", "asc", "natural"] = "natural"
    limit: int | None = None
    share: bool = False
    """Also give each group's share of the total (of all groups, before ``limit``)."""


@dataclass(frozen=True, slots=True)
class Intent:
    """A question, understood.

    ``compare_to`` is the second period or the second value of a comparison (``left`` of the difference is ``query``,
    ``right`` is ``compare_to``); ``mark_unusual`` asks for robust outlier marks; ``chart`` names the picture, None for
    a single number. ``reading`` says back in the question's language what was understood; ``notes`` what was assumed.
    In a comparison ``query.order`` and ``query.limit`` rank the compared groups by ``rank``: the value of ``query``, or
    the change between the two; ``compare_to`` itself never carries an order or a limit, so that no group is missing.
    ``focus`` is the one group that was asked about, where the others are shown for what it is a share of. ``unread``
    are the words of the question that the numbers do not respect, because nobody understood them.
    """

    query: Query
    compare_to: Query | None = None
    rank: Literal["value", "change"] = "value"
    mark_unusual: bool = False
    focus: str | None = None
    chart: Literal["bar", "line", "compare"] | None = None
    language: Literal["en", "zh"] = "en"
    reading: str = ""
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def columns_of(query: Query) -> set[str]:
    """The names of all columns that a query reads."""
    tested = [one for condition in query.filters for one in (condition, *condition.alternatives)]
    found = {g.column for g in query.group_by} | {f.column for f in tested}
    return found | {c for c in (query.measure.column, query.period.column if query.period else None) if c}


def loading_notes(intent: Intent, profile: TableProfile) -> list[str]:
    """What was noted in loading the table; of what was noted of single columns, only what the answer stands on."""
    queries = [q for q in (intent.query, intent.compare_to) if q is not None]
    used = {c for q in queries for c in columns_of(q)}
    timed = {q.period.column for q in queries if q.period} | {g.column for q in queries for g in q.group_by if g.grain}
    told = [n for n in profile.notes if n.column is None or n.column in used]
    if timed != {profile.time_column}:  # which date is meant by default is nobody's concern then
        told = [n for n in told if n.code != "time_column"]
    kept_out = {f.column for q in queries for f in q.filters if f.op == "not in"}
    told = [n for n in told if n.code != "totals" or n.column in kept_out]
    return [n.text(intent.language) for n in told]


def to_dict(value: Any) -> Any:
    """Plain JSON data for any value of this module (dates become ISO text)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_dict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_dict(v) for v in value]
    if isinstance(value, dt.date):
        return value.isoformat()
    return value


class SpecError(ValueError):
    """Data that is not what it claims to be; ``path`` says where (``query.filters[0].op``), ``reason`` what is."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path or 'value'}: {reason}")
        self.path = path
        self.reason = reason


def from_dict(kind: type[T], data: object) -> T:
    """The inverse of :func:`to_dict` for any dataclass of this module; raises :class:`SpecError`.

    Strict, because plans also come from models: unknown keys, missing keys, wrong types and unknown words are errors,
    and no text is taken for a number. Keys that have a default may be left out.
    """
    value: T = _read_dataclass(kind, data, "")
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read_dataclass(kind: type, data: object, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise SpecError(path, f"expected an object ({kind.__name__}), got {type(data).__name__}")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in data:
        if key not in fields:
            raise SpecError(_at(path, str(key)), f"unknown key of {kind.__name__}; known are {', '.join(fields)}")
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for name, spec in fields.items():
        if name in data:
            values[name] = _read(hints[name], data[name], _at(path, name))
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise SpecError(_at(path, name), "missing")
    return kind(**values)


def _read(hint: Any, data: object, path: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for option in arguments:
            if _fits(option, data):
                return _read(option, data, path)
        raise SpecError(path, f"{type(data).__name__} is not allowed here")
    if origin is Literal:
        if not isinstance(data, str) or data not in arguments:
            raise SpecError(path, f"{str(data)[:40]!r} is not one of {', '.join(map(str, arguments))}")
        return data
    if not _fits(hint, data):
        raise SpecError(path, f"{type(data).__name__} is not allowed here")
    if origin is tuple and isinstance(data, list | tuple):
        return tuple(_read(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(data))
    if origin is list and isinstance(data, list | tuple):
        return [_read(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(data)]
    if origin is dict and isinstance(data, Mapping):
        return {str(k): _read(arguments[1], v, _at(path, str(k))) for k, v in data.items()}
    if hint is dt.date:
        try:
            return data if isinstance(data, dt.date) else dt.date.fromisoformat(str(data))
        except ValueError:
            raise SpecError(path, "not a date of the form YYYY-MM-DD") from None
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _read_dataclass(hint, data, path)
    return float(data) if hint is float and isinstance(data, int) else data


def _fits(hint: Any, data: object) -> bool:
    """Whether `data` has the outer shape of `hint`; decides between the options of a union."""
    origin = get_origin(hint)
    if origin in (tuple, list):
        return isinstance(data, list | tuple)
    if origin is Literal:
        return isinstance(data, str)
    if origin is dict or dataclasses.is_dataclass(hint):
        return isinstance(data, Mapping)
    if hint is dt.date:
        return isinstance(data, str | dt.date)
    if hint is int:
        return isinstance(data, int) and not isinstance(data, bool)
    if hint is float:
        return isinstance(data, int | float) and not isinstance(data, bool)
    return isinstance(data, hint)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
