"""The sections of an answer, written from the results: lead sentence, table, chart, marks, assumptions, each with its
provenance.

Every number comes from a :class:`Result` or a :class:`Comparison`. What is not there yet, or not at all, is a section
too (:func:`missing`), so that a degraded answer is just another list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from failsoft.examples.analyst import anomaly, wording
from failsoft.examples.analyst.anomaly import Judgement
from failsoft.examples.analyst.compare import REASONS, Change, Comparison, same_period
from failsoft.examples.analyst.query import Result, ResultColumn
from failsoft.examples.analyst.spec import Intent, Query, Scalar, TableProfile, loading_notes

_TIED = 4
"""Groups of equal value that a sentence names."""
MAX_TABLE_ROWS = 200
"""Rows of a table in a report; the rest is counted under it."""
Status = Literal["ok", "partial", "stale", "missing"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; ``numeric`` are the columns to align to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...] = ()
    more: int = 0
    """Rows that were left out."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of an answer: ``provenance`` says where it is from, ``status`` and ``reason`` what is wrong with it."""

    title: str
    body: str = ""
    items: tuple[str, ...] = ()
    table: Table | None = None
    image: bytes | None = None
    provenance: str = ""
    sql: str = ""
    status: Status = "ok"
    reason: str = ""


def missing(title: str, reason: str) -> Section:
    """The section for a part that is not there, with the reason."""
    return Section(title, status="missing", reason=reason)


def write(
    intent: Intent,
    *,
    profile: TableProfile | None,
    result: Result | None = None,
    reference: Result | None = None,
    comparison: Comparison | None = None,
    judgement: Judgement | None = None,
    chart: bytes | None = None,
) -> list[Section]:
    """The sections of a complete answer, in the language of the question; parts that are None are simply not written.

    `result` is the answer to ``intent.query``, `reference` that to ``intent.compare_to``; with `comparison` the table
    shows both.
    """
    language = intent.language
    say = _Say(language, profile)
    sections = []
    if result is not None:
        where = provenance(result, profile, language)
        lead = say.comparison_lead(comparison, judgement) if comparison else say.result_lead(result, intent.focus)
        understood = (
            wording.pick(language, f"Understood as: {intent.reading}", f"理解为：{intent.reading}")
            if intent.reading
            else ""
        )
        sections.append(
            Section(
                wording.pick(language, "Answer", "结论"), lead, (understood,) if understood else (), provenance=where
            )
        )
        table = say.comparison_table(comparison, judgement) if comparison else say.result_table(result, judgement)
        sql = _sql(result, reference, language)
        sections.append(Section(wording.pick(language, "Figures", "数据"), table=table, provenance=where, sql=sql))
        if chart is not None:
            drawn = wording.pick(language, "Drawn from the figures above.", "根据上表绘制。")
            sections.append(Section(wording.pick(language, "Chart", "图表"), image=chart, provenance=drawn))
    if judgement is not None:
        sections.append(say.judgement(judgement, comparison, result))
    notes = _assumptions(intent, profile, result, reference, comparison)
    if notes:
        sections.append(
            Section(
                wording.pick(language, "Assumptions and notes", "假设与说明"),
                items=tuple(notes),
                provenance=wording.pick(
                    language, "From loading the data and from reading the question.", "来自数据读取和问题理解。"
                ),
            )
        )
    return sections


def lead(
    intent: Intent,
    *,
    profile: TableProfile | None,
    result: Result,
    comparison: Comparison | None = None,
    judgement: Judgement | None = None,
) -> str:
    """The answer in a sentence or two."""
    say = _Say(intent.language, profile)
    return say.comparison_lead(comparison, judgement) if comparison else say.result_lead(result, intent.focus)


def provenance(result: Result, profile: TableProfile | None, language: str) -> str:
    """Where the numbers came from: source, table, rows, and when."""
    used = f"{result.row_count:,}"
    rows = f"{profile.rows:,}" if profile else used
    gaps = (
        (f", {result.missing:,} without a value", f"，其中 {result.missing:,} 行没有数值")
        if result.missing
        else ("", "")
    )
    loaded = (
        (f", loaded {profile.loaded_at}", f"，读取于 {profile.loaded_at}")
        if profile and profile.loaded_at
        else ("", "")
    )
    return wording.pick(
        language,
        f"Source: {result.source}, table {result.table}, {used} of {rows} rows{gaps[0]}{loaded[0]}; "
        f"queried {result.executed_at}.",
        f"来源：{result.source}，表 {result.table}，使用 {rows} 行中的 {used} 行{gaps[1]}{loaded[1]}；"
        f"查询于 {result.executed_at}。",
    )


def _sql(result: Result, reference: Result | None, language: str) -> str:
    parts = []
    for answer in (result, reference):
        if answer is None:
            continue
        values = " ".join(", ".join(str(p) for p in answer.parameters).split())
        comment = f"\n-- {wording.pick(language, 'values', '参数')}: {values}" if values else ""
        parts.append(answer.sql + comment)
    return "\n\n".join(parts)


def _assumptions(
    intent: Intent,
    profile: TableProfile | None,
    result: Result | None,
    reference: Result | None,
    comparison: Comparison | None,
) -> list[str]:
    notes = [*intent.notes, *(loading_notes(intent, profile) if profile else ())]
    for answer in (result, reference):
        notes += [n.text(intent.language) for n in answer.notes] if answer else []
        if answer and answer.missing:
            notes.append(
                wording.pick(
                    intent.language,
                    f"{answer.missing:,} rows have no value and are left out",
                    f"{answer.missing:,} 行没有数值，未计入",
                )
                + (f" ({answer.query.period.label})" if answer.query.period and reference else "")
            )
    notes += [n.text(intent.language) for n in comparison.notes] if comparison else []
    return list(dict.fromkeys(notes))


class _Say:
    """Writes sentences and tables in one language."""

    def __init__(self, language: str, profile: TableProfile | None) -> None:
        self.language, self.profile = language, profile

    def _pick(self, en: str, zh: str) -> str:
        return wording.pick(self.language, en, zh)

    def _number(self, value: Scalar, column: ResultColumn, *, signed: bool = False) -> str:
        unit = "pp" if signed and column.unit == "%" else column.unit
        return wording.number(value, unit, self.language, signed=signed)

    def _label(self, key: Sequence[Scalar], groups: Sequence[ResultColumn]) -> str:
        return wording.key_label(key, [(g.name, g.grain) for g in groups], self.profile, self.language)

    def _measure(self, query: Query) -> str:
        return wording.measure_title(query.measure, self.profile, self.language)

    def _in(self, query: Query) -> str:
        if query.period is None:
            return ""
        return self._pick(f" in {query.period.label}", f"（{query.period.label}）")

    def _nothing(self, result: Result) -> str:
        return self._pick(
            f"There is no data for this question{self._in(result.query)}.",
            f"没有符合条件的数据{self._in(result.query)}。",
        )

    def _share_lead(self, result: Result, focus: str) -> str | None:
        """What share the one group has that was asked about; None when it has no row."""
        column, at = result.value_column, result.value_index
        for row in result.rows if len(result.columns) > at + 1 else ():
            share, key = row[at + 1], result.key(row)
            if len(key) == 1 and str(key[0]) == focus and isinstance(share, float):
                label = self._label(key, result.columns[:at])
                measure = f"{self._measure(result.query)}{self._in(result.query)}"
                part, whole = self._number(row[at], column), self._number(result.total, column)
                told = wording.percent(share, signed=False)
                return self._pick(
                    f"{label} is {told} of the {measure}: {part} of {whole}.",
                    f"{label}占{measure}的 {told}：{whole} 中的 {part}。",
                )
        return None

    def result_lead(self, result: Result, focus: str | None = None) -> str:
        """One sentence with the main numbers of an answer."""
        if focus is not None and (told := self._share_lead(result, focus)) is not None:
            return told
        column, at = result.value_column, result.value_index
        groups = result.columns[:at]
        measure, period = self._measure(result.query), self._in(result.query)
        known = [value for row in result.rows if isinstance(value := row[at], int | float)]
        if not groups:
            value = self._number(result.total, column)
            if result.query.measure.column is None:  # none at all is an answer, too
                return self._pick(f"The {measure}{period} is {value}.", f"{measure}{period}为 {value}。")
            if not result.row_count:
                return self._nothing(result)
            if result.total is None:
                return self._pick(f"No value of the {measure}{period} is known.", f"{measure}{period}没有可用数值。")
            rows = wording.rows_of(result.row_count - result.missing, self.profile, self.language)
            return self._pick(
                f"The {measure}{period} is {value} (from {rows}).", f"{measure}{period}为 {value}（基于 {rows}）。"
            )
        if not known:
            return self._nothing(result)
        total = self._number(result.total, column)
        whole = (
            self._pick("overall", "总体")
            if result.query.measure.aggregate not in {"sum", "count"}
            else self._pick("in all", "总计")
        )
        highest, lowest = max(known), min(known)
        from_below = result.query.order == "asc"
        first, said = (lowest, self._pick("lowest", "最低")) if from_below else (highest, self._pick("highest", "最高"))
        leaders = self._having(result, first, groups)
        shown = self._pick(
            f"{leaders} {'has' if self._alone(result, first) else 'have'} the {said} {measure}{period}: "
            f"{self._number(first, column)}",
            f"{measure}{period}{said}的是{leaders}：{self._number(first, column)}",
        )
        if highest != lowest and result.query.limit is None:
            other, opposite = (highest, "highest") if from_below else (lowest, "lowest")
            alone = self._alone(result, other)
            shown += self._pick(
                f"; the {opposite} {'is' if alone else 'are'} {self._having(result, other, groups)} with "
                f"{self._number(other, column)}",
                f"；{'最高' if from_below else '最低'}的是{self._having(result, other, groups)}："
                f"{self._number(other, column)}",
            )
        many = self._pick(
            f" ({whole} {total}, {result.groups:,} groups).", f"（{whole} {total}，共 {result.groups:,} 组）。"
        )
        return shown + many

    def _ties(self, result: Result, value: Scalar) -> list[tuple[Scalar, ...]]:
        """The groups with this value, those with it that the limit cut off among them."""
        at = result.value_index
        keys = [result.key(row) for row in result.rows if row[at] == value]
        return [*keys, *result.tied] if result.rows and result.rows[-1][at] == value else keys

    def _alone(self, result: Result, value: Scalar) -> bool:
        return len(self._ties(result, value)) == 1

    def _having(self, result: Result, value: Scalar, groups: Sequence[ResultColumn]) -> str:
        """The names of the groups with this value: all of a few that tie."""
        keys = self._ties(result, value)
        names = [self._label(key, groups) for key in keys[:_TIED]]
        if len(keys) > len(names):
            names.append(self._pick(f"{len(keys) - len(names)} more", f"另外 {len(keys) - len(names)} 个"))
        if len(names) == 1:
            return names[0]
        return self._pick(f"{', '.join(names[:-1])} and {names[-1]}", "、".join(names)) + self._pick(
            " (a tie)", "（并列）"
        )

    def comparison_lead(self, comparison: Comparison, judgement: Judgement | None) -> str:
        """The change of the whole, the largest moves and how many are unusual."""
        total, column = comparison.total, comparison.value
        measure = self._measure(comparison.left)
        left, right = comparison.left_label, comparison.right_label
        if total.value is None and total.reference is None:
            return self._pick(
                f"There is no data to compare {left} with {right}.", f"没有可用于比较 {left} 与 {right} 的数据。"
            )
        value, reference = self._number(total.value, column), self._number(total.reference, column)
        moved = self._moved(total, column)
        where = "in"
        if same_period(comparison):
            measure, where = f"{measure}{self._in(comparison.left)}", "for"
        text = self._pick(
            f"The {measure} is {value} {where} {left} and {reference} {where} {right}: {moved}.",
            f"{measure}：{left} 为 {value}，{right} 为 {reference}，{moved}。",
        )
        moves = sorted((r for r in comparison.rows if r.difference), key=lambda r: -abs(r.difference or 0))[:2]
        if comparison.groups and moves:
            listed = self._pick(", ", "、").join(
                f"{self._label(r.key, comparison.groups)} ({self._moved(r, column)})" for r in moves
            )
            text += self._pick(f" The largest changes: {listed}.", f"变化最大的是 {listed}。")
        if judgement is not None and judgement.judged:
            n = len(judgement.marks)
            count = self._pick(
                f"{n} unusual change{'s' if n != 1 else ''}" if n else "No change is unusual",
                f"{n} 项异常变化" if n else "没有异常变化",
            )
            text += self._pick(f" {count}.", f"{count}。")
        return text

    def _moved(self, row: Change, column: ResultColumn) -> str:
        if row.difference is None:
            return REASONS[row.reason].text(self.language) if row.reason else "–"
        difference = self._number(row.difference, column, signed=True)
        if row.percent is None or column.unit == "%":
            return difference
        return (
            f"{difference}, {wording.percent(row.percent)}"
            if self.language != "zh"
            else f"{difference}，{wording.percent(row.percent)}"
        )

    def result_table(self, result: Result, judgement: Judgement | None) -> Table:
        """The rows of an answer as texts."""
        at = result.value_index
        groups = result.columns[:at]
        unit = wording.unit_name(result.value_column.unit, self.language)
        title = self._measure(result.query) + (f" ({unit})" if unit else "")
        head = [*(wording.group_title(g.name, g.grain, self.profile, self.language) for g in groups), title]
        digits = wording.decimals([r[at] for r in result.rows])
        with_share, with_marks = len(result.columns) > at + 1, judgement is not None and bool(judgement.marks)
        rows = []
        for row in result.rows[:MAX_TABLE_ROWS]:
            cells = [
                wording.value_label(v, g.name, g.grain, self.profile, self.language)
                for v, g in zip(row[:at], groups, strict=True)
            ]
            cells.append(wording.number(row[at], decimals=digits))
            if with_share:
                share = row[at + 1]
                cells.append(wording.percent(share if isinstance(share, float) else None, signed=False))
            if with_marks and judgement is not None:
                cells.append(self._marked(judgement, result.key(row)))
            rows.append(tuple(cells))
        head += [self._pick("share", "占比")] if with_share else []
        head += [self._pick("unusual", "异常")] if with_marks else []
        numeric = tuple(range(at, at + 1 + with_share))
        return Table(tuple(head), tuple(rows), numeric, max(0, len(result.rows) - MAX_TABLE_ROWS))

    def _marked(self, judgement: Judgement, key: tuple[Scalar, ...]) -> str:
        mark = judgement.mark(key)
        return "" if mark is None else "▲" if mark.direction == "up" else "▼"

    def comparison_table(self, comparison: Comparison, judgement: Judgement | None) -> Table:
        """Value, reference, difference and percent of each group, and of the whole."""
        column = comparison.value
        unit = wording.unit_name(column.unit, self.language)
        suffix = f" ({unit})" if unit else ""
        head = [
            *(wording.group_title(g.name, g.grain, self.profile, self.language) for g in comparison.groups),
            comparison.left_label + suffix,
            comparison.right_label + suffix,
            self._pick("change", "变化"),
            self._pick("change in %", "变化率"),
            self._pick("remark", "备注"),
        ]
        every = [*comparison.rows, comparison.total]
        digits = wording.decimals([v for r in every for v in (r.value, r.reference, r.difference)])
        rows = []
        for row in every if comparison.groups else [comparison.total]:
            whole = row is comparison.total
            labels = [
                wording.value_label(v, g.name, g.grain, self.profile, self.language)
                for v, g in zip(row.key, comparison.groups, strict=False)
            ]
            if whole:
                labels = [self._pick("all", "全部"), *[""] * (len(comparison.groups) - 1)] if comparison.groups else []
            marked = self._marked(judgement, row.key) if judgement and not whole else ""
            remark = REASONS[row.reason].text(self.language) if row.reason else ""
            remark = " ".join(t for t in (f"{marked} {self._pick('unusual', '异常')}" if marked else "", remark) if t)
            rows.append(
                (
                    *labels,
                    wording.number(row.value, decimals=digits),
                    wording.number(row.reference, decimals=digits),
                    wording.number(row.difference, signed=True, decimals=digits),
                    wording.percent(row.percent),
                    remark,
                )
            )
        n = len(comparison.groups)
        cut = rows[: MAX_TABLE_ROWS - 1] + rows[-1:] if len(rows) > MAX_TABLE_ROWS else rows
        return Table(tuple(head), tuple(cut), tuple(range(n, n + 4)), len(rows) - len(cut) + comparison.left_out)

    def judgement(self, judgement: Judgement, comparison: Comparison | None, result: Result | None) -> Section:
        """What is unusual and by which yardstick."""
        column = comparison.value if comparison else result.value_column if result else None
        groups = comparison.groups if comparison else result.columns[: result.value_index] if result else ()
        items = [
            anomaly.mark_text(m, judgement, groups, column.unit if column else None, self.profile, self.language)
            for m in judgement.marks
        ]
        if judgement.judged and not items:
            body = self._pick("Nothing is unusual.", "没有异常。")
        else:
            body = "" if judgement.judged else self._pick("This could not be judged.", "无法判断。")
        method = " ".join(n.text(self.language) for n in judgement.notes)
        return Section(
            self._pick("What is unusual", "异常"),
            body,
            tuple(items),
            provenance=self._sentence(method),
            status="ok" if judgement.judged else "partial",
            reason="" if judgement.judged else method,
        )

    def _sentence(self, text: str) -> str:
        return text[:1].upper() + text[1:] + self._pick(".", "。") if text else ""
