"""Answers drawn as PNG: bars, lines and comparisons, with what is unusual marked.

Only matplotlib's objects are used, nothing of pyplot and no global settings, so any thread may draw. The one font,
Noto Sans SC (SIL Open Font License), comes with the package ``pylopdf-fonts-zh-cn`` and has Latin, Greek, Cyrillic,
Japanese and Chinese glyphs; a character that it lacks is drawn as ``□``. The same input gives the same bytes, as long
as matplotlib stays the same. No data gives a picture that says so.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, get_font
from matplotlib.ticker import MaxNLocator

from failsoft.examples.analyst import timecut, wording
from failsoft.examples.analyst.anomaly import Judgement, Mark
from failsoft.examples.analyst.compare import Change, Comparison
from failsoft.examples.analyst.query import Result, ResultColumn
from failsoft.examples.analyst.spec import Scalar, TableProfile

MAX_BARS = 60
"""Bars of a picture; what is left out is said under it."""
MAX_LINES = 8
"""Lines that get a colour and a name; more are drawn in grey."""
DPI = 144
INK, SOFT, GRID, PAPER = "#1f2933", "#616e7c", "#e4e7eb", "#ffffff"
BLUE, PALE, ALERT = "#2f6db5", "#b8cce4", "#d9480f"
LINES = (
    "#2f6db5",
    "#d9822b",
    "#3a9188",
    "#a05195",
    "#7a8f29",
    "#c4485a",
    "#5d6d7e",
    "#8c6d46",
)  # apart also for the colour-blind
_SHORT_UNITS = {"%", "$", "€", "£", "¥"}
Kind = Literal["bar", "line", "compare"]


@functools.cache
def font_path() -> Path:
    """The font file, found without importing its package; raises ``RuntimeError`` when it is not installed."""
    found = importlib.util.find_spec("pylopdf_fonts_zh_cn")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("the package pylopdf-fonts-zh-cn is not installed; install failsoft[analyst]")
    return Path(found.submodule_search_locations[0]) / "NotoSansSC-Regular.otf"


@functools.cache
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(str(font_path())).get_charmap())


def drawable(text: str) -> str:
    """`text` with ``□`` for what the font cannot draw and without line breaks."""
    return "".join(c if ord(c) in _glyphs() else " " if c.isspace() else "□" for c in text)


def draw(
    kind: Kind,
    data: Result | Comparison,
    *,
    title: str,
    profile: TableProfile | None = None,
    judgement: Judgement | None = None,
    language: str = "en",
    source: str = "",
) -> bytes:
    """A PNG of an answer.

    Args:
        kind: ``compare`` for a :class:`Comparison`; ``line`` for a result grouped by time; otherwise ``bar``.
        data: the answer.
        title: what the picture shows; long titles are wrapped.
        profile: gives names, units and labels.
        judgement: what is unusual; those are marked.
        language: ``zh`` or ``en``.
        source: a line under the picture.
    """
    picture = _Picture(profile, judgement, language)
    if isinstance(data, Comparison):
        picture.compare(data)
    elif kind == "line" and _time_position(data) is not None:
        picture.lines(data)
    else:
        picture.bars(data)
    return picture.png(title, source)


def _time_position(result: Result) -> int | None:
    return next((i for i, c in enumerate(result.columns) if c.kind == "group" and c.grain), None)


def _shortened(text: str, length: int = 34) -> str:
    """`text` cut to a width in half-width characters; a short code in parentheses at its end stays."""
    if _width(text) <= length:
        return text
    name, bracket, code = text.rpartition(" (")
    if bracket and _width(code) <= 8:
        return f"{name[: _cut(name, length - _width(code) - 3)].rstrip()}… ({code}"
    return text[: _cut(text, length - 1)].rstrip() + "…"


def _width(text: str) -> int:
    return sum(2 if ord(c) > 0x2E80 else 1 for c in text)


def _cut(text: str, width: int) -> int:
    used = 0
    for i, c in enumerate(text):
        used += 2 if ord(c) > 0x2E80 else 1
        if used > width:
            return i
    return len(text)


def _wrapped(text: str, width: int) -> str:
    lines: list[str] = []
    rest = text
    while rest and len(lines) < 3:
        at = _cut(rest, width)
        if at < len(rest) and " " in rest[:at]:
            at = rest[:at].rindex(" ")
        lines.append(rest[:at].strip())
        rest = rest[at:].strip()
    if rest:
        lines[-1] = lines[-1][:-1] + "…"
    return "\n".join(lines)


class _Picture:
    """One figure in the making."""

    def __init__(self, profile: TableProfile | None, judgement: Judgement | None, language: str) -> None:
        self.profile, self.judgement, self.language = profile, judgement, language
        self.figure = Figure(figsize=(8, 4.5), dpi=DPI, facecolor=PAPER)
        FigureCanvasAgg(self.figure)
        self.left_out = 0
        self.legend_items: list[tuple[str, str]] = []

    def _font(self, size: float) -> FontProperties:
        return FontProperties(fname=str(font_path()), size=size)

    def _say(self, en: str, zh: str) -> str:
        return wording.pick(self.language, en, zh)

    def _axes(self, height: float) -> Axes:
        self.figure.set_size_inches(8, height)
        axes = self.figure.add_axes((0.1, 0.1, 0.8, 0.8))
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0, colors=SOFT)
        axes.set_axisbelow(True)
        return axes

    def _ticks(
        self,
        axes: Axes,
        which: Literal["x", "y"],
        places: Sequence[float],
        labels: Sequence[str],
        size: float = 9,
        turned: int = 0,
    ) -> None:
        axis = axes.xaxis if which == "x" else axes.yaxis
        axis.set_ticks(list(places), [drawable(t) for t in labels])
        for label in axis.get_ticklabels():
            label.set(fontproperties=self._font(size), color=SOFT, parse_math=False)
            if turned:
                label.set(rotation=turned, ha="right", rotation_mode="anchor")

    def _text(self, axes: Axes, x: float, y: float, text: str, size: float, color: str, **extra: Any) -> None:
        axes.annotate(
            drawable(text),
            (x, y),
            fontproperties=self._font(size),
            color=color,
            parse_math=False,
            annotation_clip=False,
            **extra,
        )

    def _value_axis(
        self, axes: Axes, which: Literal["x", "y"], values: Sequence[float], column: ResultColumn, room: float
    ) -> None:
        low, high = min(0.0, *values), max(0.0, *values)
        span = (high - low) or 1.0
        low, high = low - (span * room if low < 0 else 0), high + (span * room if high > 0 or low == 0 else 0)
        ticks = [
            t
            for t in MaxNLocator(6, integer=all(isinstance(v, int) for v in values)).tick_values(low, high)
            if low <= t <= high
        ]
        labels = [wording.number(_whole(t), column.unit if column.unit == "%" else None, self.language) for t in ticks]
        self._ticks(axes, which, ticks, labels)
        (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
        axes.grid(visible=True, axis=which, color=GRID, linewidth=0.8)
        zero = axes.axvline if which == "x" else axes.axhline
        zero(0, color=SOFT, linewidth=0.9)

    def _value_title(self, column: ResultColumn, table_measure: Any) -> str:
        name = wording.measure_title(table_measure, self.profile, self.language)
        unit = wording.unit_name(column.unit, self.language)
        return f"{name} ({unit})" if unit else name

    def _axis_title(self, axes: Axes, which: Literal["x", "y"], text: str) -> None:
        label = (axes.set_xlabel if which == "x" else axes.set_ylabel)(drawable(_shortened(text, 60)), labelpad=8)
        label.set(fontproperties=self._font(9.5), color=SOFT, parse_math=False)

    def _mark(self, key: tuple[Scalar, ...]) -> Mark | None:
        return self.judgement.mark(key) if self.judgement else None

    def _label(self, key: Sequence[Scalar], groups: Sequence[ResultColumn]) -> str:
        return wording.key_label(key, [(g.name, g.grain) for g in groups], self.profile, self.language)

    def nothing(self) -> None:
        """A picture that says that there is nothing to draw."""
        axes = self._axes(2.2)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        self._ticks(axes, "x", [], [])
        self._ticks(axes, "y", [], [])
        self._text(axes, 0.5, 0.5, self._say("No data to draw", "没有可绘制的数据"), 13, SOFT, ha="center", va="center")

    def bars(self, result: Result) -> None:
        """Horizontal bars for categories; columns for periods."""
        groups = [c for c in result.columns if c.kind == "group"]
        at = result.value_index
        known = [(result.key(r), r[at]) for r in result.rows]
        bars = [(k, v) for k, v in known if not isinstance(v, str | None) and math.isfinite(v)]
        self.left_out = max(0, len(bars) - MAX_BARS)
        bars = bars[:MAX_BARS]
        if not bars:
            self.nothing()
            return
        values = [v for _, v in bars]
        labels = [self._label(k, groups) for k, _ in bars]
        marks = [self._mark(k) for k, _ in bars]
        colors = [ALERT if m else BLUE for m in marks]
        if any(marks):
            self.legend_items = [(ALERT, self._say("unusual", "异常"))]
        unit = result.value_column.unit if result.value_column.unit in _SHORT_UNITS else None
        places = wording.decimals(values, brief=True)
        texts = [wording.number(v, unit, self.language, decimals=places) for v in values]
        title = self._value_title(result.value_column, result.query.measure)
        if len(groups) == 1 and groups[0].grain and len(bars) <= 31:
            self._columns(bars, values, labels, colors, texts, result, title)
            return
        axes = self._axes(1.7 + 0.27 * len(bars))
        axes.barh(range(len(bars)), values, color=colors, height=0.68)
        self._value_axis(axes, "x", values, result.value_column, 0.12)
        self._ticks(axes, "y", range(len(bars)), [_shortened(t) for t in labels], size=9.5)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        for i, (value, text) in enumerate(zip(values, texts, strict=True)):
            beyond = -4 if value < 0 else 4
            self._text(
                axes,
                value,
                i,
                text,
                8.5,
                colors[i] if marks[i] else INK,
                xytext=(beyond, 0),
                textcoords="offset points",
                ha="right" if value < 0 else "left",
                va="center",
            )
        self._axis_title(axes, "x", title)

    def _columns(
        self,
        bars: Sequence[Any],
        values: list[float],
        labels: list[str],
        colors: list[str],
        texts: list[str],
        result: Result,
        title: str,
    ) -> None:
        axes = self._axes(4.5)
        axes.bar(range(len(bars)), values, color=colors, width=0.72)
        self._value_axis(axes, "y", values, result.value_column, 0.08)
        crowded = len(bars) * max(_width(t) for t in labels) > 88
        turned = 45 if crowded else 0
        self._ticks(axes, "x", range(len(bars)), [_shortened(t, 20) for t in labels], turned=turned)
        axes.set_xlim(-0.6, len(bars) - 0.4)
        if len(bars) * max(_width(t) for t in texts) <= 100:
            for i, (value, text) in enumerate(zip(values, texts, strict=True)):
                self._text(
                    axes,
                    i,
                    value,
                    text,
                    8.5,
                    INK,
                    xytext=(0, -4 if value < 0 else 4),
                    textcoords="offset points",
                    ha="center",
                    va="top" if value < 0 else "bottom",
                )
        self._axis_title(axes, "y", title)

    def lines(self, result: Result) -> None:
        """One line for each group over time, with gaps where there is no value."""
        position = _time_position(result)
        groups = [c for c in result.columns if c.kind == "group"]
        if position is None:
            self.nothing()
            return
        grain = groups[position].grain
        at = result.value_index
        lines: dict[tuple[Scalar, ...], dict[Scalar, float]] = {}
        for row in result.rows:
            key, value = result.key(row), row[at]
            if key[position] is None:
                continue
            good = not isinstance(value, str | None) and math.isfinite(value)
            lines.setdefault((*key[:position], *key[position + 1 :]), {})[key[position]] = value if good else math.nan  # type: ignore[assignment]
        names = _time_names({name for line in lines.values() for name in line}, grain)
        known = [v for line in lines.values() for v in line.values() if not math.isnan(v)]
        if not names or not known:
            self.nothing()
            return
        axes = self._axes(4.6)
        places = {name: i for i, name in enumerate(names)}
        others = [g for i, g in enumerate(groups) if i != position]
        size = sorted(lines, key=lambda k: -sum(abs(v) for v in lines[k].values() if not math.isnan(v)))
        colored = {k: LINES[i] for i, k in enumerate(size[:MAX_LINES])}
        for key in reversed(size):
            values = [lines[key].get(name, math.nan) for name in names]
            alone = [v if not math.isnan(v) and _isolated(values, i) else math.nan for i, v in enumerate(values)]
            color = colored.get(key, "#cbd2d9")
            axes.plot(
                range(len(names)), values, color=color, linewidth=2 if key in colored else 1, solid_capstyle="round"
            )
            axes.plot(
                range(len(names)),
                alone if len(names) > 40 else values,
                color=color,
                linestyle="",
                marker="o",
                markersize=3.6,
            )
            if others and key in colored:
                self.legend_items.append((color, _shortened(self._label(key, others), 24)))
        self.legend_items.reverse()
        self._value_axis(axes, "y", known, result.value_column, 0.1)
        self._tight_range(axes, known)
        step = max(1, -(-len(names) // 12))
        shown = list(range(0, len(names), step))
        labels = [
            wording.value_label(names[i], groups[position].name, grain, self.profile, self.language) for i in shown
        ]
        turned = 30 if len(shown) * max(map(_width, labels)) > 84 else 0
        self._ticks(axes, "x", shown, labels, turned=turned)
        axes.set_xlim(-0.5, len(names) - 0.5)
        self._mark_points(axes, position, places)
        self._axis_title(axes, "y", self._value_title(result.value_column, result.query.measure))

    def _tight_range(self, axes: Axes, known: list[float]) -> None:
        """Lines need not start at 0 when that would flatten them; bars must."""
        low, high = min(known), max(known)
        if low > 0 and high - low < 0.35 * high:
            span = (high - low) or high * 0.1
            bottom, top = low - 0.25 * span, high + 0.2 * span
            ticks = [t for t in MaxNLocator(6).tick_values(bottom, top) if bottom <= t <= top]
            self._ticks(axes, "y", ticks, [wording.number(_whole(t), None, self.language) for t in ticks])
            axes.set_ylim(bottom, top)

    def _mark_points(self, axes: Axes, position: int, places: dict[Scalar, int]) -> None:
        marks = [m for m in (self.judgement.marks if self.judgement else ()) if m.key[position] in places]
        digits = wording.decimals([m.observed for m in marks], brief=True)
        placed: list[tuple[float, float]] = []
        (low, high), across = axes.get_ylim(), len(places)
        for mark in marks:
            x = places[mark.key[position]]
            axes.plot(
                [x],
                [mark.observed],
                marker="o",
                markersize=9,
                markerfacecolor="none",
                markeredgecolor=ALERT,
                markeredgewidth=2,
            )
            here = (x / across, (mark.observed - low) / (high - low))
            if len(placed) < 6 and all(abs(here[0] - a) > 0.13 or abs(here[1] - b) > 0.07 for a, b in placed):
                placed.append(here)
                up = mark.direction == "up"
                text = f"{'▲' if up else '▼'} {wording.number(mark.observed, None, self.language, decimals=digits)}"
                self._text(
                    axes,
                    x,
                    mark.observed,
                    text,
                    8.5,
                    ALERT,
                    xytext=(0, 9 if up else -9),
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if up else "top",
                )
        if marks:
            self.legend_items.append((ALERT, self._say("unusual", "异常")))

    def compare(self, comparison: Comparison) -> None:
        """Two bars for each group, the reference pale, with the change beside them."""
        rows = [r for r in comparison.rows if r.value is not None or r.reference is not None]
        self.left_out = comparison.left_out + max(0, len(rows) - MAX_BARS // 2)
        rows = rows[: MAX_BARS // 2]
        values = [v for r in rows for v in (r.value, r.reference) if v is not None]
        if not rows or not values:
            self.nothing()
            return
        axes = self._axes(1.95 + 0.46 * len(rows))
        places = range(len(rows))
        marks = [self._mark(r.key) for r in rows]
        axes.barh(
            [i - 0.19 for i in places],
            [r.value or 0.0 for r in rows],
            color=[ALERT if m else BLUE for m in marks],
            height=0.36,
        )
        axes.barh([i + 0.19 for i in places], [r.reference or 0.0 for r in rows], color=PALE, height=0.36)
        self._value_axis(axes, "x", values, comparison.value, 0.24)
        self._ticks(axes, "y", places, [_shortened(self._label(r.key, comparison.groups)) for r in rows], size=9.5)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        for i, (row, mark) in enumerate(zip(rows, marks, strict=True)):
            ends = [v for v in (row.value, row.reference) if v is not None]
            left = max(ends) <= 0 and min(ends) < 0
            arrow = "" if mark is None else "▲ " if mark.direction == "up" else "▼ "
            self._text(
                axes,
                min(ends) if left else max(ends),
                i,
                arrow + self._change_text(row, comparison),
                9,
                ALERT if mark else INK,
                xytext=(-5 if left else 5, 0),
                textcoords="offset points",
                ha="right" if left else "left",
                va="center",
            )
        self.legend_items = [
            (BLUE, _shortened(comparison.left_label or self._say("value", "本期"), 24)),
            (PALE, _shortened(comparison.right_label or self._say("reference", "基准"), 24)),
        ]
        if any(marks):
            self.legend_items.append((ALERT, self._say("unusual", "异常")))
        self._axis_title(axes, "x", self._value_title(comparison.value, comparison.left.measure))

    def _change_text(self, row: Change, comparison: Comparison) -> str:
        if row.status != "both":
            return self._say(row.status, "新增" if row.status == "new" else "消失")
        judged_by_size = self.judgement is not None and self.judgement.measure == "difference"
        unit = comparison.value.unit
        if row.percent is None or judged_by_size or unit == "%":
            shown = "pp" if unit == "%" else unit if unit in _SHORT_UNITS else None
            return wording.number(row.difference, shown, self.language, signed=True)
        return wording.percent(row.percent)

    def png(self, title: str, source: str) -> bytes:
        """Place title, legend and source around the axes so that nothing is cut off, and render."""
        figure = self.figure
        width, height = figure.get_size_inches()
        heading = _wrapped(drawable(title), 68)
        lines = heading.count("\n") + 1
        top = 1 - 0.14 / height
        figure.text(
            0.25 / width,
            top,
            heading,
            fontproperties=self._font(13),
            color=INK,
            va="top",
            parse_math=False,
            linespacing=1.25,
        )
        used = 0.2 + 0.27 * lines
        if self.legend_items:
            used += self._legend(0.25 / width, 1 - (used + 0.13) / height, width, height)
        under = [t for t in (self._left_out_text(), source) if t]
        bottom = 0.12
        if under:
            figure.text(
                0.25 / width,
                0.1 / height,
                drawable(_shortened(" · ".join(under), 120)),
                fontproperties=self._font(7.5),
                color=SOFT,
                va="bottom",
                parse_math=False,
            )
            bottom += 0.2
        axes = figure.axes[0]
        box = axes.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]  # the Agg canvas has one
        inner = axes.get_window_extent()
        if box is not None:
            left = 0.2 + (inner.x0 - box.x0) / DPI
            right = 0.2 + max(0.0, (box.x1 - inner.x1) / DPI)
            low = bottom + (inner.y0 - box.y0) / DPI
            axes.set_position(
                (left / width, low / height, 1 - (left + right) / width, max(0.2, 1 - (low + used + 0.15) / height))
            )
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=DPI, facecolor=PAPER, metadata={"Software": None})
        return out.getvalue()

    def _left_out_text(self) -> str:
        return self._say(f"{self.left_out} more not shown", f"另有 {self.left_out} 组未显示") if self.left_out else ""

    def _legend(self, x: float, y: float, width: float, height: float) -> float:
        """Coloured squares with names in one or more rows; returns the height used, in inches."""
        left, rows = x, 1
        for color, name in self.legend_items:
            size = (0.34 + 0.078 * _width(name)) / width
            if left + size > 0.99 and left > x:
                left, rows, y = x, rows + 1, y - 0.24 / height
            self.figure.text(left, y, "■", fontproperties=self._font(11), color=color, va="center", parse_math=False)
            self.figure.text(
                left + 0.2 / width,
                y,
                drawable(name),
                fontproperties=self._font(9),
                color=SOFT,
                va="center",
                parse_math=False,
            )
            left += size
        return 0.26 * rows


def _whole(value: float) -> float:
    rounded = round(value, 10)
    return int(rounded) if rounded == int(rounded) else rounded


def _isolated(values: Sequence[float], i: int) -> bool:
    before = math.isnan(values[i - 1]) if i else True
    after = math.isnan(values[i + 1]) if i + 1 < len(values) else True
    return before and after


def _time_names(names: set[Scalar], grain: Any) -> list[Scalar]:
    """All periods from the first to the last, so that gaps take room; in order."""
    if grain in timecut.CYCLIC:
        return sorted(names, key=lambda n: (not isinstance(n, int), n if isinstance(n, int) else 0))
    starts = sorted(s[0] for n in names if (s := timecut.start(str(n))))
    if not starts:
        return []
    if timecut.distance(starts[0], starts[-1], grain) > 20_000:
        return [timecut.name(s, grain) for s in starts]
    return [timecut.name(s, grain) for s in timecut.between(starts[0], starts[-1], grain, 20_001)]
