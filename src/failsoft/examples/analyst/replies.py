"""What the client reads: Markdown, the chart and a report, from whatever has been found; also when nothing has.

Without the database there is still what was understood of the question, and what is known of the table from its
profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from failsoft.examples.analyst import report, wording
from failsoft.examples.analyst.anomaly import Judgement
from failsoft.examples.analyst.answer import Section, write
from failsoft.examples.analyst.compare import Comparison
from failsoft.examples.analyst.plans import intent_of
from failsoft.examples.analyst.query import Result
from failsoft.examples.analyst.spec import Intent, TableProfile
from failsoft.examples.analyst.toolset import as_data
from failsoft.runs.answer import Answer, Artifact, Parts, Shortfall
from failsoft.runs.reasons import reason_text

__all__ = ["Replies"]

CHART, REPORT, TEXT = "chart.png", "report.html", "report.md"
_TITLE = 200
"""Characters of the question that stand over a report."""


class Replies:
    """The analyst's answer function."""

    def __init__(self, profiles: Sequence[TableProfile]) -> None:
        self._profiles = {profile.table: profile for profile in profiles}

    def __call__(self, parts: Parts) -> Answer:
        """The answer, from what there is."""
        intent = intent_of(parts.plan)
        language = parts.language if intent is None else intent.language
        chart = parts.value("chart")
        png = chart if isinstance(chart, bytes) else None
        if intent is not None:
            sections = self._understood(intent, parts, png)
        else:
            sections = list(self._planned_otherwise(parts, png))
        sections += _shortfalls(parts, language)
        title = parts.request.input.strip()[:_TITLE]
        text = report.markdown(
            title, [replace(section, sql="") for section in sections], language=language, images=[CHART]
        )
        artifacts = [
            Artifact(
                REPORT,
                "text/html; charset=utf-8",
                report.html(title, sections, language=language).encode("utf-8", "replace"),
                title,
            ),
            Artifact(TEXT, "text/markdown; charset=utf-8", text.encode("utf-8", "replace"), title),
        ]
        if png is not None:
            artifacts.insert(0, Artifact(CHART, "image/png", png, title, "chart"))
        return Answer(text, tuple(artifacts), says_shortfalls=True)

    def _understood(self, intent: Intent, parts: Parts, chart: bytes | None) -> list[Section]:
        profile = self._profiles.get(intent.query.table)
        result = parts.value("query")
        reference, comparison = parts.value("reference"), parts.value("compare")
        judgement = parts.value("unusual")
        sections = write(
            intent,
            profile=profile,
            result=None if result is None else as_data(Result, result),
            reference=None if reference is None else as_data(Result, reference),
            comparison=None if comparison is None else as_data(Comparison, comparison),
            judgement=None if judgement is None else as_data(Judgement, judgement),
            chart=chart,
        )
        if result is not None:
            sections = _told_by_the_model(sections, parts.value("narrative"), intent.language)
        if result is None:
            sections = [_question(intent), *([_table(profile, intent.language)] if profile else []), *sections]
        return sections

    def _planned_otherwise(self, parts: Parts, chart: bytes | None) -> Iterator[Section]:
        """The results of a plan that no grammar made: each of them told in the same way."""
        reading = parts.plan.reading if parts.plan is not None else ""
        values = parts.values.values()
        judgement = next((value for value in values if isinstance(value, Judgement)), None)
        compared = [value for value in values if isinstance(value, Comparison)]
        taken = {id(query) for one in compared for query in (one.left, one.right)}
        for value in values:
            if isinstance(value, Result) and id(value.query) not in taken:
                intent = Intent(value.query, language=parts.language, reading=reading)
                yield from write(intent, profile=self._profiles.get(value.table), result=value, chart=chart)
                chart = None
        results = [value for value in values if isinstance(value, Result)]
        for one in compared:
            left = next((result for result in results if result.query is one.left), None)
            right = next((result for result in results if result.query is one.right), None)
            intent = Intent(one.left, one.right, language=parts.language, reading=reading)
            yield from write(
                intent,
                profile=self._profiles.get(one.left.table),
                result=left,
                reference=right,
                comparison=one,
                judgement=judgement,
                chart=chart,
            )
            chart = None
        if not results:
            for profile in self._profiles.values():
                yield _table(profile, parts.language)

    def __repr__(self) -> str:
        return f"<Replies {', '.join(self._profiles)}>"


def _told_by_the_model(sections: list[Section], narrative: Any, language: str) -> list[Section]:
    """With the model's own words behind the lead sentence, or with why there are none in its provenance."""
    if not isinstance(narrative, Mapping):
        return sections
    lead, *rest = sections
    text = str(narrative.get("text") or "")
    if text:
        where = wording.pick(
            language,
            "Written by the model from the figures; each of its numbers was found among them.",
            "由模型根据上述数据撰写；其中每个数字均已与数据核对。",
        )
        words = Section(wording.pick(language, "In words", "叙述"), text, provenance=where)
        return [lead, words, *rest]
    why = str(narrative.get("dropped") or "it was empty")
    left = wording.pick(language, f" The model's own words are left out: {why}.", f"模型的叙述未采用：{why}。")
    return [replace(lead, provenance=lead.provenance + left), *rest]


def _question(intent: Intent) -> Section:
    return Section(
        wording.pick(intent.language, "How the question was understood", "对问题的理解"),
        intent.reading,
        intent.notes,
        provenance=wording.pick(
            intent.language,
            "From the question and the table's profile; the numbers themselves are missing.",
            "来自问题本身与数据表概要；数字本身缺失。",
        ),
    )


def _table(profile: TableProfile, language: str) -> Section:
    """What is known without asking the database."""
    columns = ", ".join(column.name for column in profile.columns)
    items = [
        wording.pick(language, f"{profile.rows:,} rows", f"{profile.rows:,} 行"),
        wording.pick(language, f"columns: {columns}", f"列：{columns}"),
    ]
    time = next((column for column in profile.columns if column.name == profile.time_column), None)
    if time is not None and time.minimum is not None:
        first, last = str(time.minimum)[:10], str(time.maximum)[:10]
        items.insert(
            1, wording.pick(language, f"from {first} to {last} ({time.name})", f"{first} 至 {last}（{time.name}）")
        )
    return Section(
        wording.pick(language, f"What is known of the table {profile.table}", f"已知的数据表信息：{profile.table}"),
        items=tuple(items),
        provenance=wording.pick(
            language,
            f"Source: {profile.source}; from the profile made when it was loaded, as of {profile.loaded_at}.",
            f"来源：{profile.source}；取自 {profile.loaded_at} 加载时生成的概要。",
        ),
    )


def _shortfalls(parts: Parts, language: str) -> list[Section]:
    if not parts.shortfalls:
        return []
    causes = [_told(one, parts, language) for one in parts.shortfalls if one.reason != "dependency_failed"]
    follow = [one.title for one in parts.shortfalls if one.reason == "dependency_failed"]
    if follow:
        names = wording.pick(language, ", ", "、").join(follow)
        causes.append(wording.pick(language, f"missing for want of these: {names}", f"因此也缺失：{names}"))
    worst = "missing" if any(one.kind == "missing" for one in parts.shortfalls) else "stale"
    return [
        Section(
            wording.pick(language, "What is missing, and why", "缺失内容及原因"),
            items=tuple(causes),
            status="partial" if worst == "missing" else "stale",
            reason=wording.pick(language, "this answer is less than what was asked for.", "此回答少于所问的内容。"),
        )
    ]


def _told(shortfall: Shortfall, parts: Parts, language: str) -> str:
    """The shortfall with who is to blame and what it cost: ``… (warehouse: attempt_timeout after 3.00 s)``."""
    outcome = parts.outcomes.get(shortfall.task)
    tried = outcome.provenance.tried if outcome is not None else ()
    if not tried:
        return shortfall.text
    first = tried[0]
    why = reason_text(first.code, "zh" if language == "zh" else "en")
    if shortfall.kind != "missing":
        return f"{shortfall.text} ({first.rung}: {first.code})"
    return wording.pick(
        language,
        f"{shortfall.title}: {first.rung} was asked, but {why} ({first.code}, {first.seconds:.2f} s)",
        f"{shortfall.title}：{first.rung} {why}（{first.code}，{first.seconds:.2f} 秒）",
    )
