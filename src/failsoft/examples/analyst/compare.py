"""Two answers set against each other, group by group.

``left`` is the value, ``right`` the reference: difference = value − reference, percent = difference / |reference|.
Where a percent change has no meaning it is None and ``reason`` says why; nothing is divided by zero and no missing
value is taken for 0. A group that is in one answer only is ``new`` or ``vanished``. Differences are taken in decimal,
so that 0.3 − 0.1 is 0.2.

When both answers are cut by the same time grain inside two different periods (July–September with April–June),
periods are paired by their place: the first month with the first month.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from failsoft.examples.analyst import timecut
from failsoft.examples.analyst.query import Result, ResultColumn
from failsoft.examples.analyst.spec import Group, Note, Query, Scalar, TableProfile

Status = Literal["both", "new", "vanished"]
Reason = Literal["reference_zero", "reference_missing", "value_missing", "new", "vanished"]
REASONS: dict[Reason, Note] = {
    "reference_zero": Note("reference_zero", "no percentage: the reference is 0", "基准为 0，无法计算百分比"),
    "reference_missing": Note("reference_missing", "the reference has no value", "基准没有数值"),
    "value_missing": Note("value_missing", "there is no value to compare", "没有可比较的数值"),
    "new": Note("new", "new: not there before", "新增：基准期没有"),
    "vanished": Note("vanished", "gone: no longer there", "消失：本期没有"),
}


_GRAINS_ZH: dict[str, str] = {"hour": "小时", "day": "日", "week": "周", "month": "月", "quarter": "季度", "year": "年"}


@dataclass(frozen=True, slots=True)
class Change:
    """One group's change. ``counts`` are the table's rows behind value and reference."""

    key: tuple[Scalar, ...]
    value: float | None
    reference: float | None
    difference: float | None
    percent: float | None
    status: Status
    reason: Reason | None
    counts: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes, and that of the total (over all rows, not over the groups)."""

    groups: tuple[ResultColumn, ...]
    value: ResultColumn
    left_label: str
    right_label: str
    rows: tuple[Change, ...]
    total: Change
    left: Query
    right: Query
    left_out: int = 0
    """Groups that ranking and limit left out of ``rows``."""
    notes: tuple[Note, ...] = ()


def changes(
    left: Result,
    right: Result,
    *,
    left_label: str = "",
    right_label: str = "",
    rank: Literal["value", "change"] = "value",
    order: Literal["desc", "asc", "natural"] = "natural",
    limit: int | None = None,
) -> Comparison:
    """Compare two answers to the same question about two periods or two subsets.

    Both must come from queries without order and limit (:func:`~failsoft.examples.analyst.query.unranked`); `order`
    and `limit` apply here, to the value of `left` or, with ``rank="change"``, to the difference. Groups without a
    rank come last. Raises ``ValueError`` when the answers are not grouped alike or do not hold numbers.
    """
    groups = tuple(c for c in left.columns if c.kind == "group")
    if [(c.column, c.grain) for c in groups] != [(c.column, c.grain) for c in right.columns if c.kind == "group"]:
        raise ValueError("the two answers are not grouped alike")
    position = left.value_index
    values = {left.key(row): (_number(row[position]), n) for row, n in zip(left.rows, left.counts, strict=True)}
    paired, notes = _pairing(left, right, groups)
    references = {
        paired(right.key(row)): (_number(row[position]), n) for row, n in zip(right.rows, right.counts, strict=True)
    }
    rows = [_change(key, values.get(key), references.get(key)) for key in dict.fromkeys([*values, *references])]
    total = _change((), (_number(left.total), left.row_count), (_number(right.total), right.row_count))
    ranked = _ranked(rows, rank, order)
    kept = ranked if limit is None else ranked[:limit]
    return Comparison(
        groups=groups,
        value=left.value_column,
        left_label=left_label or _label(left.query, right.query),
        right_label=right_label or _label(right.query, left.query),
        rows=tuple(kept),
        total=total,
        left=left.query,
        right=right.query,
        left_out=len(ranked) - len(kept),
        notes=(*notes, *_truncation(left, right)),
    )


def _truncation(left: Result, right: Result) -> list[Note]:
    if not (left.truncated or right.truncated):
        return []
    return [
        Note(
            "truncated", "there are more groups than were fetched: some changes are missing", "分组过多，部分变化未列出"
        )
    ]


def _number(value: Scalar) -> float | None:
    if isinstance(value, str):
        raise ValueError(f"only numbers can be compared, not {value!r}")  # noqa: TRY004 - the value is wrong for this use
    return value if value is not None and math.isfinite(value) else None


def _label(query: Query, other: Query) -> str:
    """What sets a query apart from the other: its period, or the values it is about."""
    if query.period is not None and query.period != other.period:
        return query.period.label
    own = [item for item in query.filters if item not in other.filters]
    return ", ".join(f"{'≠ ' if item.op in ('!=', 'not in') else ''}{item.value}" for item in own or query.filters)


def same_period(comparison: Comparison) -> bool:
    """Whether both sides are about the same time (or all of it): two values are compared, not two periods."""
    return comparison.left.period == comparison.right.period


def subtract(value: float, reference: float) -> float:
    """Value − reference without the noise of binary fractions; whole numbers stay whole."""
    if isinstance(value, int) and isinstance(reference, int):
        return value - reference
    return float(Decimal(repr(value)) - Decimal(repr(reference)))


def _change(
    key: tuple[Scalar, ...], left: tuple[float | None, int] | None, right: tuple[float | None, int] | None
) -> Change:
    value, count = left or (None, 0)
    reference, reference_count = right or (None, 0)
    status: Status = "both" if left and right else "new" if left else "vanished"
    difference = percent = None
    reason: Reason | None = None
    if value is not None and reference is not None:
        difference = subtract(value, reference)
        if reference == 0:
            reason = "reference_zero"
        else:
            percent = difference / abs(reference)
    elif status != "both":
        reason = "new" if status == "new" else "vanished"
    else:
        reason = "reference_missing" if reference is None else "value_missing"
    return Change(key, value, reference, difference, percent, status, reason, (count, reference_count))


def _ranked(rows: list[Change], rank: str, order: str) -> list[Change]:
    if order == "natural":
        return rows
    known = [r for r in rows if (r.difference if rank == "change" else r.value) is not None]
    unknown = [r for r in rows if (r.difference if rank == "change" else r.value) is None]
    sign = -1 if order == "desc" else 1
    return sorted(known, key=lambda r: sign * ((r.difference if rank == "change" else r.value) or 0)) + unknown


class _Pairing:
    """Names the reference's groups as the value's are named; shifts times by the distance of the two periods."""

    def __init__(self, at: int | None = None, shift: int = 0) -> None:
        self.at, self.shift = at, shift

    def __call__(self, key: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        if self.at is None:
            return key
        found = timecut.start(str(key[self.at]))
        if found is None:
            return key
        moment, grain = found
        return (*key[: self.at], timecut.name(timecut.after(moment, grain, self.shift), grain), *key[self.at + 1 :])


def _pairing(left: Result, right: Result, groups: Sequence[ResultColumn]) -> tuple[_Pairing, list[Note]]:
    first, second = left.query.period, right.query.period
    at = next((i for i, c in enumerate(groups) if c.grain and c.grain not in timecut.CYCLIC), None)
    if at is None or first is None or second is None or first.start == second.start:
        return _Pairing(), []
    grain = groups[at].grain
    if grain is None:
        return _Pairing(), []
    shift = timecut.distance(_midnight(second.start), _midnight(first.start), grain)
    note = Note(
        "paired_by_place",
        f"each {grain} is compared with the one at the same place in {second.label}",
        f"各{_GRAINS_ZH.get(grain, '期')}与{second.label}中对应位置比较",
    )
    return _Pairing(at, shift), [note]


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime(day.year, day.month, day.day)  # noqa: DTZ001 - the data has no zone


def coverage(query: Query, profile: TableProfile) -> Note | None:
    """A warning when the data does not cover the query's period: then like is not compared with like."""
    period = query.period
    if period is None:
        return None
    try:
        column = profile.column(period.column)
    except KeyError:
        return None
    if not isinstance(column.minimum, str) or not isinstance(column.maximum, str):
        return None
    first, last = dt.date.fromisoformat(column.minimum[:10]), dt.date.fromisoformat(column.maximum[:10])
    known = {"week": 7, "month": 31, "quarter": 92, "year": 366}
    step = known.get(column.grain or "day") or _usual_step(profile, column.name)
    if first >= period.end or last < period.start:
        return Note(
            "no_data",
            f"the data has nothing in {period.label}; it runs from {first} to {last}",
            f"数据不含{period.label}，范围是 {first} 至 {last}",
        )
    late, early = first > period.start + dt.timedelta(days=step - 1), last < period.end - dt.timedelta(days=step)
    if not (late or early):
        return None
    return Note(
        "partial_period",
        f"{period.label} is not covered completely: the data runs from {first} to {last}",
        f"{period.label}的数据不完整：数据范围是 {first} 至 {last}",
    )


def _usual_step(profile: TableProfile, name: str) -> int:
    """Days within which the data's next date is to be expected, going by how many different ones there are."""
    column = profile.column(name)
    if not isinstance(column.minimum, str) or not isinstance(column.maximum, str) or column.distinct < 2:
        return 1
    span = (dt.date.fromisoformat(column.maximum[:10]) - dt.date.fromisoformat(column.minimum[:10])).days
    step = span / (column.distinct - 1)
    return 1 if step <= 1 else math.ceil(step * 1.5)


def history_query(
    comparison_left: Query, comparison_right: Query, profile: TableProfile, *, periods: int = 24
) -> Query | None:
    """The query for what is usual: the same measure and groups, period by period, up to the compared ones.

    Only for two single periods of the same grain (two months, quarters, …) of the profile's time; None otherwise.
    Starts with the first complete period of the data, at most `periods` before the compared ones.
    """
    left, right = comparison_left.period, comparison_right.period
    if left is None or right is None or left.column != right.column or any(g.grain for g in comparison_left.group_by):
        return None
    grain, other = timecut.grain_of(left.start, left.end), timecut.grain_of(right.start, right.end)
    if grain is None or grain != other or grain[1] != 1:
        return None
    try:
        column = profile.column(left.column)
    except KeyError:
        return None
    if not isinstance(column.minimum, str):
        return None
    last = max(left.end, right.end)
    first = min(left.start, right.start)
    start = timecut.after(_midnight(first), grain[0], -periods).date()
    data_start = dt.date.fromisoformat(column.minimum[:10])
    tolerance = dt.timedelta(days=_usual_step(profile, left.column))
    while start + tolerance <= data_start:
        start = timecut.after(_midnight(start), grain[0]).date()
    if start >= first:
        return None
    label = f"{start.isoformat()} – {last.isoformat()}"
    return replace(
        comparison_left,
        group_by=(*comparison_left.group_by, Group(left.column, grain[0])),
        period=replace(left, start=start, end=last, label=label),
        order="natural",
        limit=None,
        share=False,
    )
