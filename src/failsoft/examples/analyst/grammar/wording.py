"""What the grammar says: typed errors and the sentence that says back what was understood, in both languages."""

from __future__ import annotations

from collections.abc import Sequence

from failsoft.examples.analyst.spec import Filter, Group, Intent, Measure, Period, Query, TableProfile
from failsoft.examples.analyst.wording import WEEKDAYS


class QuestionError(ValueError):
    """A question that cannot be answered as asked, said so that the next try can succeed.

    ``code`` is one of ``empty_question``, ``question_too_long``, ``no_table``, ``no_measure`` (nothing says what to
    measure), ``unknown_metric``, ``unknown_column``, ``unknown_value``, ``ambiguous``, ``no_time_column``,
    ``period_out_of_range``, ``bad_period``, ``not_supported``. ``choices`` lists what there is instead: columns, values
    or example questions. ``message`` is in the question's language.
    """

    def __init__(self, code: str, message: str, *, choices: Sequence[str] = (), param: str = "question") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.choices = tuple(choices)


class Voice:
    """Says things in the question's language."""

    def __init__(self, language: str) -> None:
        self.zh = language == "zh"

    def say(self, en: str, zh: str) -> str:
        """The sentence in the language at hand."""
        return zh if self.zh else en

    def error(self, code: str, en: str, zh: str, choices: Sequence[str] = ()) -> QuestionError:
        """A typed error in the language at hand."""
        return QuestionError(code, self.say(en, zh), choices=choices)

    def listing(self, items: Sequence[str], most: int = 30) -> str:
        """``a, b, c`` with an end."""
        shown = [str(item)[:60] for item in items[:most]]
        if len(items) > most:
            shown.append(self.say(f"and {len(items) - most} more", f"等共 {len(items)} 个"))
        return ("、" if self.zh else ", ").join(shown)


_AGGREGATES = {
    "sum": ("sum of {0}", "{0}的总和"),
    "mean": ("mean of {0}", "{0}的平均值"),
    "median": ("median of {0}", "{0}的中位数"),
    "min": ("smallest {0}", "{0}的最小值"),
    "max": ("largest {0}", "{0}的最大值"),
    "count": ("number of rows with {0}", "有{0}的行数"),
    "count_distinct": ("number of different {0}", "不同{0}的个数"),
}
_GRAINS = {
    "hour": ("hour", "小时"),
    "day": ("day", "天"),
    "week": ("week", "周"),
    "month": ("month", "月"),
    "quarter": ("quarter", "季度"),
    "year": ("year", "年"),
    "weekday": ("day of the week", "星期几"),
    "month_of_year": ("month of the year", "一年中的月份"),
    "hour_of_day": ("hour of the day", "一天中的小时"),
}
_OPERATORS = {"in": ("in", "属于"), "not in": ("not in", "不属于"), "contains": ("contains", "包含"), "!=": ("≠", "≠")}
_OPERATORS |= {"<=": ("≤", "≤"), ">=": ("≥", "≥")}


def read_back(intent: Intent, profile: TableProfile) -> str:
    """One sentence: measure, grouping, filters, periods with their dates, order."""
    zh = intent.language == "zh"
    query, other = intent.query, intent.compare_to
    measure = _measure(query.measure, profile, zh)
    groups = [_group(group, profile, zh) for group in query.group_by]
    extra: list[str] = []
    if query.filters:
        extra.append(("条件：" if zh else "only where ") + _filters(query.filters, zh))
    if query.period:
        extra.append(_dated(query.period, profile, zh))
    if other is not None:
        extra.append(_comparison(query, other, zh))
    if query.order != "natural":
        by_change = intent.rank == "change"
        down = query.order == "desc"
        if zh:
            extra.append(f"按{'变化' if by_change else '数值'}从{'高到低' if down else '低到高'}")
        else:
            extra.append(f"{'highest' if down else 'lowest'} {'change ' if by_change else ''}first")
    if query.limit is not None:
        extra.append(
            f"前 {query.limit} 个"
            if zh
            else f"the first {query.limit} only"
            if query.limit > 1
            else "the first one only"
        )
    if query.share:
        extra.append("并给出占比" if zh else "with shares of the total")
    if intent.mark_unusual:
        extra.append("标出异常值" if zh else "unusual values marked")
    if zh:
        head = f"按{'、'.join(groups)}统计{measure}" if groups else measure
        return "；".join([head, *extra]) + "。"
    head = measure + (f" per {' and '.join(groups)}" if groups else "")
    return "; ".join([head[:1].upper() + head[1:], *extra]) + "."


def _measure(measure: Measure, profile: TableProfile, zh: bool) -> str:
    if measure.column is None:
        noun = profile.row_noun or "row"
        return ("行数" if noun == "row" else f"{noun} 的数量") if zh else f"number of {noun}s"
    return _AGGREGATES[measure.aggregate][zh].format(measure.column)


def _group(group: Group, profile: TableProfile, zh: bool) -> str:
    if not group.grain:
        return group.column
    if group.column == profile.time_column:
        return _GRAINS[group.grain][zh]
    return f"{group.column}的{_GRAINS[group.grain][1]}" if zh else f"{_GRAINS[group.grain][0]} of {group.column}"


def _dated(period: Period, profile: TableProfile, zh: bool) -> str:
    """The period, with the date that it is of when that is not the table's own."""
    if period.column == profile.time_column:
        return _period(period, zh)
    return f"{period.column} 在{_period(period, zh)}" if zh else f"{period.column} in {_period(period, zh)}"


def _filters(filters: Sequence[Filter], zh: bool) -> str:
    return (" 且 " if zh else " and ").join(_either(item, zh) for item in filters)


def _either(item: Filter, zh: bool) -> str:
    if not item.alternatives:
        return _filter(item, zh)
    return "(" + (" 或 " if zh else " or ").join(_filter(one, zh) for one in (item, *item.alternatives)) + ")"


def _filter(item: Filter, zh: bool) -> str:
    if item.value is None:
        known = item.op == "!="
        return item.column + (("有值" if known else "没有值") if zh else (" is known" if known else " has no value"))
    values = item.value if isinstance(item.value, list) else [item.value]
    said = ", ".join(str(v) if item.grain != "weekday" else WEEKDAYS[int(str(v)) - 1][zh] for v in values)
    name = f"{_GRAINS[item.grain][zh]}" if item.grain else item.column
    if item.grain:
        name = f"{item.column}的{name}" if zh else f"the {name} of {item.column}"
    return f"{name} {_OPERATORS.get(item.op, (item.op, item.op))[zh]} {said}"


def _period(period: Period, zh: bool) -> str:
    last = period.end.fromordinal(period.end.toordinal() - 1)
    span = f"{period.start}" if last == period.start else f"{period.start} {'至' if zh else 'to'} {last}"
    return f"{period.label}（{span}）" if zh else f"{period.label} ({span})"


def _comparison(query: Query, other: Query, zh: bool) -> str:
    if other.period is not None and other.period != query.period:
        return f"与{_period(other.period, zh)}比较" if zh else f"compared with {_period(other.period, zh)}"
    theirs = [item for item in other.filters if item not in query.filters]
    return f"与 {_filters(theirs, zh)} 比较" if zh else f"compared with {_filters(theirs, zh)}"
