"""Which changes, and which points of a time line, are unusual: robust marks, and an honest word where there is too
little to judge.

The yardstick is the median and the median absolute deviation (MAD), which a few odd values cannot move. A value is
marked when its modified z-score |0.6745 · (x − median) / MAD| is above 3.5 (B. Iglewicz and D. C. Hoaglin, *How to
Detect and Handle Outliers*, ASQC 1993). When more than half of the values are equal the MAD is 0 and 1.2533 · the
mean absolute deviation takes its place, as there; among groups it is that of the *other* groups, for an odd one among
n raises it so much that its own score never exceeds n / 1.2533 (3.2 among four). MADs of fewer than ten values are too
small on average and are enlarged by the factors of C. Croux and P. J. Rousseeuw, *Time-efficient algorithms for two
highly robust estimators of scale* (COMPSTAT 1992).

For changes between two periods the yardstick is, in this order:

* **history**: the group's own earlier changes over the same distance, where there are six or more earlier periods.
  With three or more groups, what moved all of them (the median change of each period: season, growth) is taken out
  first. With fewer than ten earlier changes the spread of all groups' earlier changes is the least that is allowed
  for.
* **groups**: the other groups' changes now, where there are four or more.
* otherwise nothing is judged, and that is said.

Changes smaller than :data:`AT_LEAST` are never marked, and changes of counts that counting noise alone explains are
not either (Poisson: standard deviation √(value + reference)).

How often ordinary (normal) values get a mark all the same, by simulation: 9 in 100 with five earlier changes, 5 with
six or seven, 3 with nine, 1 with 20, each before the floors above; among 4 to 40 groups without anything odd, some
group in about one case of ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from failsoft.examples.analyst import timecut, wording
from failsoft.examples.analyst.compare import Change, Comparison
from failsoft.examples.analyst.query import Result, ResultColumn
from failsoft.examples.analyst.spec import Grain, Note, Scalar, TableProfile

THRESHOLD = 3.5
AT_LEAST = 0.02
"""Deviations from the usual smaller than this (2 percentage points, or 2 % of the usual size) are not worth a mark."""
MIN_PERIODS = 6
MIN_GROUPS = 4
MIN_POINTS = 8
"""Points of a time line below which none is judged."""
SEASONS: dict[str, int] = {"hour": 24, "day": 7, "week": 52, "month": 12, "quarter": 4}
_SMALL_SAMPLE = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}

Method = Literal["history", "groups", "season", "neighbours"]


@dataclass(frozen=True, slots=True)
class Mark:
    """One unusual value: ``observed`` against ``usual`` (low, high), both in the judgement's ``measure``."""

    key: tuple[Scalar, ...]
    observed: float
    usual: tuple[float, float]
    score: float
    direction: Literal["up", "down"]
    method: Method


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was judged and how. ``measure`` says what was looked at: ``percent`` change, ``difference``, or the
    ``value`` itself.

    ``unjudged`` are groups for which there was no yardstick or no change to judge.
    """

    judged: bool
    measure: Literal["percent", "difference", "value"]
    marks: tuple[Mark, ...] = ()
    methods: tuple[Method, ...] = ()
    unjudged: tuple[tuple[Scalar, ...], ...] = ()
    notes: tuple[Note, ...] = ()

    def mark(self, key: tuple[Scalar, ...]) -> Mark | None:
        """The mark of a group or a point, if it has one."""
        return next((m for m in self.marks if m.key == key), None)


@dataclass(frozen=True, slots=True)
class Spread:
    """A centre and a robust standard deviation."""

    centre: float
    deviation: float

    def score(self, value: float) -> float:
        """How many robust standard deviations `value` is off: 0.6745 · (x − median) / MAD."""
        off = value - self.centre
        return off / self.deviation if self.deviation else math.copysign(math.inf, off) if off else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Median and robust standard deviation of one or more finite values, see the module's text."""
    n, centre = len(values), median(values)
    correction = _SMALL_SAMPLE.get(n, n / (n - 0.8) if n > 9 else 1.0)
    if mad := _mad(values):
        return Spread(centre, mad * correction / 0.6745)
    return Spread(centre, 1.253314 * fmean(abs(v - centre) for v in values))


def unusual(
    comparison: Comparison, *, history: Result | None = None, threshold: float = THRESHOLD, at_least: float = AT_LEAST
) -> Judgement:
    """Mark the groups whose change is unusual.

    `history` answers :func:`~failsoft.examples.analyst.compare.history_query`; without it, or where it is too short,
    groups are judged against each other.
    """
    rows = [r for r in comparison.rows if r.difference is not None]
    series = _series(history, comparison) if history is not None else {}
    by_percent = _percent_makes_sense(rows, series)
    measure: Literal["percent", "difference"] = "percent" if by_percent else "difference"
    now = {r.key: (r.percent if by_percent else r.difference) or 0.0 for r in rows}
    floor = at_least if by_percent else at_least * _size(rows)
    yardsticks = _from_history(series, comparison, now, by_percent)
    across = _from_groups(now) if len(now) >= MIN_GROUPS else {}
    marks, methods, unjudged = [], [], [r.key for r in comparison.rows if r.difference is None]
    for row in rows:
        yardstick: tuple[Spread, Method] | None = yardsticks.get(row.key) or across.get(row.key)
        if yardstick is None:
            unjudged.append(row.key)
            continue
        usual, method = yardstick
        least = max(usual.deviation, floor / threshold, _counting_noise(comparison, row, by_percent))
        score = Spread(usual.centre, least).score(now[row.key])
        methods.append(method)
        if abs(score) > threshold:
            bounds = (usual.centre - threshold * least, usual.centre + threshold * least)
            direction: Literal["up", "down"] = "up" if score > 0 else "down"
            marks.append(Mark(row.key, now[row.key], bounds, round(score, 2), direction, method))
    marks.sort(key=lambda m: -abs(m.score))
    judged = bool(methods)
    return Judgement(
        judged,
        measure,
        tuple(marks),
        tuple(dict.fromkeys(methods)),
        tuple(unjudged),
        tuple(_explained(judged, methods, unjudged, rows)),
    )


def _percent_makes_sense(rows: Sequence[Change], series: dict[tuple[Scalar, ...], dict[int, float]]) -> bool:
    compared = all(r.reference is not None and r.reference > 0 and r.value is not None and r.value >= 0 for r in rows)
    return compared and all(v > 0 for known in series.values() for v in known.values())


def _size(rows: Sequence[Change]) -> float:
    sizes = [max(abs(r.value or 0.0), abs(r.reference or 0.0)) for r in rows]
    return median(sizes) if sizes else 0.0


def _counting_noise(comparison: Comparison, row: Change, by_percent: bool) -> float:
    if comparison.value.aggregate != "count" or row.value is None or row.reference is None:
        return 0.0
    noise = math.sqrt(row.value + row.reference)
    return noise / row.reference if by_percent else noise


def _series(history: Result, comparison: Comparison) -> dict[tuple[Scalar, ...], dict[int, float]]:
    """Values of each group by the period's place, counted back from the later of the compared ones (-1, -2, …)."""
    period, other = comparison.left.period, comparison.right.period
    if period is None or other is None:
        return {}
    column = history.columns[history.value_index - 1]
    grain = column.grain
    if grain is None or grain in timecut.CYCLIC:
        return {}
    latest = timecut.start(max(period.start, other.start).isoformat())
    series: dict[tuple[Scalar, ...], dict[int, float]] = {}
    for row in history.rows:
        *key, name = history.key(row)
        value = row[history.value_index]
        found = timecut.start(str(name))
        if found is None or latest is None or isinstance(value, str | None) or not math.isfinite(value):
            continue
        place = timecut.distance(latest[0], found[0], grain)
        if place < 0:
            series.setdefault(tuple(key), {})[place] = value
    return series


def _from_history(
    series: dict[tuple[Scalar, ...], dict[int, float]],
    comparison: Comparison,
    now: dict[tuple[Scalar, ...], float],
    by_percent: bool,
) -> dict[tuple[Scalar, ...], tuple[Spread, Method]]:
    """The yardstick of each group with enough history; its centre includes what moves all groups now."""
    lag = _lag(comparison)
    if not lag:
        return {}
    earlier = {key: _changes(values, lag, by_percent) for key, values in series.items() if key in now}
    earlier = {key: c for key, c in earlier.items() if len(series[key]) >= MIN_PERIODS and len(c) >= MIN_PERIODS - 1}
    if not earlier:
        return {}
    common_now = 0.0
    if len(now) >= 3 and len(earlier) >= 3:
        common_now = median(now.values())
        places = {place for c in earlier.values() for place in c}
        common = {p: median([c[p] for c in earlier.values() if p in c]) for p in places}
        earlier = {key: {p: v - common[p] for p, v in c.items()} for key, c in earlier.items()}
    pooled = spread([v for c in earlier.values() for v in c.values()]).deviation
    yardsticks: dict[tuple[Scalar, ...], tuple[Spread, Method]] = {}
    for key, c in earlier.items():
        own = spread(list(c.values()))
        deviation = own.deviation if len(c) >= 10 else max(own.deviation, pooled)
        yardsticks[key] = (Spread(own.centre + common_now, deviation), "history")
    return yardsticks


def _lag(comparison: Comparison) -> int:
    """Periods from the reference to the value, negative when the value is earlier; 0 unless both are single periods."""
    period, other = comparison.left.period, comparison.right.period
    if period is None or other is None:
        return 0
    grain = timecut.grain_of(period.start, period.end)
    first, second = timecut.start(other.start.isoformat()), timecut.start(period.start.isoformat())
    if grain is None or grain[1] != 1 or first is None or second is None:
        return 0
    return timecut.distance(first[0], second[0], grain[0])


def _changes(values: dict[int, float], lag: int, by_percent: bool) -> dict[int, float]:
    found = {}
    for place, value in values.items():
        reference = values.get(place - lag)
        if reference is not None and not (by_percent and reference == 0):
            found[place] = (value - reference) / abs(reference) if by_percent else value - reference
    return found


def _from_groups(now: dict[tuple[Scalar, ...], float]) -> dict[tuple[Scalar, ...], tuple[Spread, Method]]:
    """One yardstick for all; where most groups agree exactly (MAD 0), each is judged by the others alone."""
    values = list(now.values())
    common = spread(values)
    if _mad(values) > 0:
        return dict.fromkeys(now, (common, "groups"))
    keys = list(now)
    return {key: (spread(values[:i] + values[i + 1 :]), "groups") for i, key in enumerate(keys)}


def _mad(values: Sequence[float]) -> float:
    """The median absolute deviation; one of rounding noise, by the size of the values, is 0."""
    centre = median(values)
    mad = median([abs(v - centre) for v in values])
    return mad if mad > 1e-12 * max(map(abs, values)) else 0.0


def _explained(
    judged: bool, methods: Iterable[Method], unjudged: Sequence[object], rows: Sequence[Change]
) -> list[Note]:
    notes = []
    used = set(methods)
    if "history" in used:
        notes.append(
            Note(
                "yardstick_history",
                "unusual means: far from the group's own earlier changes (modified z-score by median and MAD above 3.5)"
                + ("; what moved all groups alike was taken out" if len(rows) >= 3 else ""),
                "“异常”指明显偏离该组自身的历史变化（基于中位数和 MAD 的修正 z 值大于 3.5）"
                + ("，已扣除各组共同的变化" if len(rows) >= 3 else ""),
            )
        )
    if "groups" in used:
        notes.append(
            Note(
                "yardstick_groups",
                "unusual means: far from the other groups' changes (modified z-score by median and MAD above 3.5)",
                "“异常”指明显偏离其他各组的变化（基于中位数和 MAD 的修正 z 值大于 3.5）",
            )
        )
    if not judged:
        notes.append(
            Note(
                "not_judged",
                f"whether a change is unusual cannot be judged: {len(rows)} changes, fewer than {MIN_GROUPS}, "
                f"and no {MIN_PERIODS} earlier periods",
                f"无法判断变化是否异常：只有 {len(rows)} 项变化（少于 {MIN_GROUPS}），"
                f"也没有 {MIN_PERIODS} 个以上的历史时间段",
            )
        )
    elif unjudged:
        notes.append(
            Note("some_not_judged", f"{len(unjudged)} groups could not be judged", f"有 {len(unjudged)} 组无法判断")
        )
    return notes


def unusual_points(result: Result, *, threshold: float = THRESHOLD, at_least: float = AT_LEAST) -> Judgement:
    """Mark the unusual points of a time line (or of one for each group).

    A point is compared with those one and two seasons before and after it (day: a week, month: a year, …), of which
    the closest counts, or with the median of its six neighbours, whichever has been the better guide. The result must
    be grouped by a time grain, last or alone; otherwise nothing is judged.
    """
    at = next(
        (i for i, c in enumerate(result.columns) if c.kind == "group" and c.grain and c.grain not in timecut.CYCLIC),
        None,
    )
    if at is None:
        return Judgement(
            False,
            "value",
            notes=(Note("no_time", "only a time line can be judged this way", "只有时间序列才能这样判断"),),
        )
    lines: dict[tuple[Scalar, ...], list[tuple[tuple[Scalar, ...], float]]] = {}
    for row in result.rows:
        key, value = result.key(row), row[result.value_index]
        if key[at] is not None and not isinstance(value, str | None) and math.isfinite(value):
            lines.setdefault((*key[:at], *key[at + 1 :]), []).append((key, value))
    marks: list[Mark] = []
    methods: list[Method] = []
    short = []
    for group, line in lines.items():
        line.sort(key=lambda item: str(item[0][at]))
        if len(line) < MIN_POINTS:
            short.append(group)
            continue
        found, method = _judge_line(line, at, result.columns[at], threshold, at_least)
        marks += found
        methods.append(method)
    notes = [Note(f"yardstick_{m}", *_POINT_TEXT[m]) for m in dict.fromkeys(methods)]
    if short or not lines:
        notes.append(
            Note(
                "too_few_points",
                f"fewer than {MIN_POINTS} points are too few to judge",
                f"少于 {MIN_POINTS} 个点，无法判断",
            )
        )
    marks.sort(key=lambda m: -abs(m.score))
    return Judgement(bool(methods), "value", tuple(marks), tuple(dict.fromkeys(methods)), tuple(short), tuple(notes))


_POINT_TEXT: dict[Method, tuple[str, str]] = {
    "season": (
        "unusual means: far from the same season's other values (modified z-score by median and MAD above 3.5)",
        "“异常”指与其他周期的同期值相比偏离过大（基于中位数和 MAD 的修正 z 值大于 3.5）",
    ),
    "neighbours": (
        "unusual means: far from the median of the neighbouring points (modified z-score by median and MAD above 3.5)",
        "“异常”指明显偏离相邻各点的中位数（基于中位数和 MAD 的修正 z 值大于 3.5）",
    ),
}


def _judge_line(
    line: list[tuple[tuple[Scalar, ...], float]], at: int, column: ResultColumn, threshold: float, at_least: float
) -> tuple[list[Mark], Method]:
    values = [v for _, v in line]
    near = {i: v - median(_neighbours(values, i)) for i, v in enumerate(values)}
    same = _same_season(line, at, column.grain)
    method: Method = "neighbours"
    residuals, usual = near, spread(list(near.values()))
    if sum(-1 in others for others in same.values()) >= MIN_POINTS:
        season, seasonal = _season_residuals(values, same)
        if seasonal.deviation < usual.deviation:
            method, residuals, usual = "season", season, seasonal
    deviation = max(usual.deviation, at_least * median(map(abs, values)) / threshold)
    marks = []
    for i, residual in residuals.items():
        score = Spread(usual.centre, deviation).score(residual)
        others = list(same[i].values()) if method == "season" else []
        if abs(score) <= threshold or (len(others) == 1 and abs(near[others[0]]) > abs(near[i])):
            continue  # of the two that were compared with each other it is the other one that is odd
        expected = values[i] - residual + usual.centre
        bounds = (expected - threshold * deviation, expected + threshold * deviation)
        marks.append(Mark(line[i][0], values[i], bounds, round(score, 2), "up" if score > 0 else "down", method))
    return marks, method


def _neighbours(values: list[float], i: int) -> list[float]:
    start = max(0, min(i - 3, len(values) - 7))
    return [values[j] for j in range(start, min(start + 7, len(values))) if j != i]


def _same_season(
    line: list[tuple[tuple[Scalar, ...], float]], at: int, grain: Grain | None
) -> dict[int, dict[int, int]]:
    """For each point the places of those one and two seasons before and after it, by the number of seasons."""
    length = SEASONS.get(grain or "")
    if length is None or grain is None:
        return {}
    places = {s[0]: i for i, (key, _) in enumerate(line) if (s := timecut.start(str(key[at])))}
    found: dict[int, dict[int, int]] = {}
    for moment, i in places.items():
        moments = {k: timecut.after(moment, grain, k * length) for k in (-2, -1, 1, 2)}
        if others := {k: places[m] for k, m in moments.items() if m in places}:
            found[i] = others
    return found


def _season_residuals(values: list[float], same: dict[int, dict[int, int]]) -> tuple[dict[int, float], Spread]:
    """Each point less the closest of those in the same season, moved by a season's usual growth; and what is usual.

    The closest, because a point is not odd as long as another season knows its like: else each odd point would make its
    counterparts odd, too. Usual is the spread of all differences between one season and the next.
    """
    steps = {i: values[i] - values[others[-1]] for i, others in same.items() if -1 in others}
    growth = median(steps.values())
    closest = {
        i: min((values[i] - values[j] + k * growth for k, j in others.items()), key=abs) for i, others in same.items()
    }
    return closest, Spread(0.0, spread(list(steps.values())).deviation)


def mark_text(
    mark: Mark,
    judgement: Judgement,
    groups: Sequence[ResultColumn],
    unit: str | None,
    profile: TableProfile | None,
    language: str,
) -> str:
    """One mark as a sentence: who, what, and what would have been usual."""
    name = wording.key_label(mark.key, [(g.name, g.grain) for g in groups], profile, language)
    if judgement.measure == "percent":
        observed = wording.percent(mark.observed)
        low, high = (wording.percent(b) for b in mark.usual)
    else:
        signed = judgement.measure == "difference"
        observed = wording.number(mark.observed, unit, language, signed=signed)
        low, high = (wording.number(b, unit, language, signed=signed) for b in mark.usual)
    arrow = "▲" if mark.direction == "up" else "▼"
    if language == "zh":
        return f"{arrow} {name}：{observed}，通常在 {low} 到 {high} 之间"
    return f"{arrow} {name}: {observed}, where {low} to {high} would be usual"
