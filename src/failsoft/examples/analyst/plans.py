"""A question becomes a plan: read by the grammar, then one task for each thing that is needed to answer it.

::

    query ──┐                     ┌── unusual ──┐
    reference ──> compare ──┬─────┘             ├──> chart
    history (optional) ─────┘─────────────────── ┘

The intent travels in the plan's data, for the answer; tasks get their parts of it as plain JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from failsoft.base.errors import BadInput
from failsoft.examples.analyst.compare import history_query
from failsoft.examples.analyst.grammar import Grammar, QuestionError
from failsoft.examples.analyst.query import unranked
from failsoft.examples.analyst.spec import Intent, Query, TableProfile, from_dict, loading_notes, to_dict
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import PlanRequest

__all__ = ["BadQuestion", "QuestionRule", "intent_of", "plan_of"]

_TITLES = {
    "query": ("the numbers asked for", "所问的数字"),
    "reference": ("the numbers to compare with", "用于比较的数字"),
    "history": ("earlier periods, to tell what is usual", "以往各期，用于判断是否异常"),
    "compare": ("the comparison", "比较"),
    "unusual": ("what is unusual", "异常之处"),
    "chart": ("the chart", "图表"),
}


class BadQuestion(BadInput):
    """A question that cannot be answered as asked; ``details`` has reason, choices and the columns there are."""

    code = "bad_question"


class QuestionRule:
    """The rule of the ``rules`` planner: reads with the grammar of some tables."""

    def __init__(self, profiles: Sequence[TableProfile]) -> None:
        self._profiles = {profile.table: profile for profile in profiles}
        self._grammar = Grammar(profiles)

    def __call__(self, request: PlanRequest) -> Plan:
        """The plan; raises :class:`BadQuestion`, which ends the run: nothing is guessed around a wrong column."""
        try:
            intent = self._grammar.read(request.input)
        except QuestionError as error:
            columns = {table: [c.name for c in profile.columns] for table, profile in self._profiles.items()}
            raise BadQuestion(
                error.message,
                param="input",
                details={"reason": error.code, "choices": list(error.choices), "columns": columns},
            ) from error
        return plan_of(intent, self._profiles[intent.query.table])

    def __repr__(self) -> str:
        return f"<QuestionRule {', '.join(self._profiles)}>"


def intent_of(plan: Plan | None) -> Intent | None:
    """The intent that a plan of :func:`plan_of` was made from; None for other plans."""
    known = plan.data.get("intent") if plan is not None else None
    return from_dict(Intent, known) if known is not None else None


def plan_of(intent: Intent, profile: TableProfile) -> Plan:
    """The tasks that answer an intent."""
    tasks = _comparison(intent, profile) if intent.compare_to is not None else _single(intent)
    if intent.chart is not None:
        shown = "compare" if intent.compare_to is not None else "query"
        judged = any(task.id == "unusual" for task in tasks)
        arguments: dict[str, Any] = {
            "kind": intent.chart,
            "data": {"$from": shown},
            "title": intent.reading,
            "language": intent.language,
            "judgement": {"$from": "unusual"} if judged else None,
        }
        needs = (shown, "unusual") if judged else (shown,)
        # Without a judgement the chart is drawn unmarked; without data there is nothing to draw.
        tasks.append(_task("chart", "chart", arguments, intent, needs=needs, optional=True, tolerates_missing=judged))
    return Plan(
        tasks=tuple(tasks),
        reading=intent.reading,
        notes=_noted(intent, profile),
        unread=intent.unread,
        data={"intent": to_dict(intent)},
    )


def _noted(intent: Intent, profile: TableProfile) -> tuple[str, ...]:
    """What was assumed in reading the question, and in loading what the answer stands on."""
    return tuple(dict.fromkeys((*intent.notes, *loading_notes(intent, profile))))


def _single(intent: Intent) -> list[TaskSpec]:
    tasks = [_asks("query", intent.query, intent)]
    if intent.mark_unusual:
        arguments = {"of": {"$from": "query"}, "history": None}
        tasks.append(_task("unusual", "unusual", arguments, intent, needs=("query",)))
    return tasks


def _comparison(intent: Intent, profile: TableProfile) -> list[TaskSpec]:
    assert intent.compare_to is not None
    query, reference = intent.query, intent.compare_to
    tasks = [_asks("query", unranked(query), intent), _asks("reference", unranked(reference), intent)]
    arguments = {
        "value": {"$from": "query"},
        "reference": {"$from": "reference"},
        "rank": intent.rank,
        "order": query.order,
        "limit": query.limit,
    }
    tasks.append(_task("compare", "compare", arguments, intent, needs=("query", "reference")))
    if intent.mark_unusual:
        history = history_query(query, reference, profile)
        needs: tuple[str, ...] = ("compare",)
        known: Any = None
        if history is not None:
            tasks.append(_asks("history", history, intent, optional=True))
            needs, known = ("compare", "history"), {"$from": "history"}
        judged = {"of": {"$from": "compare"}, "history": known}
        tasks.append(_task("unusual", "unusual", judged, intent, needs=needs, tolerates_missing=history is not None))
    return tasks


def _asks(task: str, query: Query, intent: Intent, *, optional: bool = False) -> TaskSpec:
    return _task(task, "query", {"query": to_dict(replace(query))}, intent, optional=optional)


def _task(
    task: str,
    tool: str,
    arguments: dict[str, Any],
    intent: Intent,
    *,
    needs: tuple[str, ...] = (),
    optional: bool = False,
    tolerates_missing: bool = False,
) -> TaskSpec:
    en, zh = _TITLES[task]
    return TaskSpec(
        id=task,
        tool=tool,
        arguments=arguments,
        needs=needs,
        title=zh if intent.language == "zh" else en,
        essential=not optional,
        priority="optional" if optional else "normal",
        tolerates_missing=tolerates_missing,
        weight=3.0 if tool in ("query", "chart") else 1.0,
    )
