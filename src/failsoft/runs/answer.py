"""Answers: from whatever has finished, at any moment, in milliseconds, without ever failing.

An agent may bring its own answer function; what it raises is caught and the generic answer takes its place. Either
way a degraded answer ends with what is missing, stale or substituted, and why, in the request's language.
"""

from __future__ import annotations

import base64
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from failsoft.base.outcomes import Outcome
from failsoft.runs.plan import Plan
from failsoft.runs.planner import Language, PlanRequest
from failsoft.runs.reasons import sentence

__all__ = [
    "Answer",
    "AnswerFunction",
    "Artifact",
    "Parts",
    "Shortfall",
    "build",
    "forgotten",
    "generic_answer",
    "prepared",
    "shortfalls",
]

_log = logging.getLogger(__name__)

_LEFT_OUT: Final = frozenset({"mode_fast", "condition_false"})
"""Reasons for which a task was left out on purpose."""
_ROWS: Final = 20
"""Rows of a table that the generic answer shows."""
_FILE_NAME: Final = re.compile(r"[^\x00-\x1f\x7f/\\:\ud800-\udfff]{1,200}")
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]+/[\w.+-]+( *; *[\w.+=\" -]+)*", re.ASCII)
_TEXT: Final = 4_000
"""Characters of one part that the generic answer shows."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that belongs to an answer: a chart, a report. ``task`` says which task it came from.

    The name is one of a file, without a folder, for it will be one; anything else is a ``ValueError``.
    """

    name: str
    media_type: str
    data: bytes
    title: str = ""
    task: str | None = None

    def __post_init__(self) -> None:
        if not _FILE_NAME.fullmatch(self.name) or self.name.startswith("."):
            raise ValueError(f"{self.name[:80]!r} is no file name")
        if not _MEDIA_TYPE.fullmatch(self.media_type):
            raise ValueError(f"{self.media_type[:80]!r} is no media type")

    def to_dict(self, *, data: bool = False) -> dict[str, Any]:
        """Plain JSON data; the bytes, as base64, only when asked for."""
        body: dict[str, Any] = {
            "name": self.name,
            "media_type": self.media_type,
            "title": self.title,
            "task": self.task,
            "bytes": len(self.data),
        }
        if data:
            body["data"] = base64.b64encode(self.data).decode("ascii")
        return body


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client reads: Markdown text and files.

    ``says_shortfalls``: the text itself already says what is missing and why, so the platform need not add it.
    """

    text: str
    artifacts: tuple[Artifact, ...] = ()
    says_shortfalls: bool = False


ShortfallKind = Literal["missing", "stale", "substituted", "truncated", "suspicious"]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One way in which an answer is less than what was asked for: which task, what, why (a reason code), in words.

    ``age`` is in seconds; ``as_of`` the moment that a stale value is of, in seconds since the epoch.
    """

    task: str
    title: str
    kind: ShortfallKind
    reason: str
    text: str
    age: float | None = None
    essential: bool = True
    as_of: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "task": self.task,
            "title": self.title,
            "kind": self.kind,
            "reason": self.reason,
            "text": self.text,
            "age_s": self.age,
            "as_of": self.as_of,
            "essential": self.essential,
        }


@dataclass(frozen=True, slots=True)
class Parts:
    """What an answer can be made of: the request, the plan, and the outcome of every task that has one.

    ``values`` holds the outcomes' values of the tasks that brought something; ``missing`` names those that did not.
    """

    request: PlanRequest
    plan: Plan | None = None
    outcomes: Mapping[str, Outcome[Any]] = field(default_factory=lambda: MappingProxyType({}))
    shortfalls: tuple[Shortfall, ...] = ()
    remaining: float = math.inf

    @property
    def language(self) -> Language:
        """The language to answer in."""
        return self.request.language

    @property
    def values(self) -> dict[str, Any]:
        """Results by task id, of the tasks that brought one."""
        return {task: o.value for task, o in self.outcomes.items() if o.provenance.served is not None}

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of the planned tasks that brought nothing."""
        if self.plan is None:
            return ()
        values = self.values
        return tuple(task.id for task in self.plan.tasks if task.id not in values)

    @property
    def degraded(self) -> bool:
        """Whether any part falls short."""
        return bool(self.shortfalls)

    def value(self, task: str, default: Any = None) -> Any:
        """The result of a task, or `default` when it brought nothing."""
        outcome = self.outcomes.get(task)
        return default if outcome is None or outcome.provenance.served is None else outcome.value


AnswerFunction = Callable[[Parts], Answer]


def shortfalls(
    plan: Plan | None, outcomes: Mapping[str, Outcome[Any]], language: Language, *, now: float | None = None
) -> tuple[Shortfall, ...]:
    """Everything in which the outcomes are less than what was asked for: what the plan leaves out, then in its order.

    With `now`, in seconds since the epoch, stale parts say what moment they are of.
    """
    found: list[Shortfall] = [_unread(plan.unread, language)] if plan is not None and plan.unread else []
    for task in plan.tasks if plan is not None else ():
        outcome = outcomes.get(task.id)
        if outcome is not None and (not outcome.provenance.degraded or outcome.provenance.reason in _LEFT_OUT):
            continue  # what nobody wanted is no shortfall
        kind: ShortfallKind
        age = None
        if outcome is None or outcome.provenance.served is None:
            kind, reason = "missing", (outcome.provenance.reason if outcome is not None else None) or "not_started"
        else:
            provenance = outcome.provenance
            age = provenance.age
            reason = provenance.reason or "unknown"
            if age is not None:
                kind = "stale"
            elif provenance.truncated:
                kind, reason = "truncated", provenance.reason or "truncated"
            elif not provenance.equivalent:
                kind = "substituted"
            else:
                kind, reason = "suspicious", provenance.reason or "empty_result"
        found.append(
            Shortfall(
                task.id,
                task.label,
                kind,
                reason,
                sentence(task.label, kind, reason, age, language, now),
                age,
                task.essential,
                None if age is None or now is None else now - age,
            )
        )
    return tuple(found)


def _unread(phrases: Sequence[str], language: Language) -> Shortfall:
    """What to say of an answer to a question of which a part was not understood."""
    if language == "zh":
        said = "、".join(f"“{phrase}”" for phrase in phrases)
        return Shortfall("", "问题", "missing", "not_understood", f"未能理解{said}；结果中未考虑。")
    said = ", ".join(f"'{phrase}'" for phrase in phrases)
    text = f"Not understood: {said}; the numbers ignore {'it' if len(phrases) == 1 else 'them'}."
    return Shortfall("", "The question", "missing", "not_understood", text)


def forgotten(language: Language) -> Shortfall:
    """What to say of an answer that was made without what was said before in its session."""
    title = "此前的对话" if language == "zh" else "What was said before"
    return Shortfall("", title, "missing", "memory_lost", sentence(title, "missing", "memory_lost", None, language))


def prepared(age: float, language: Language, *, now: float) -> Shortfall:
    """What to say of an answer that was prepared `age` seconds ago, and is given because models fail as a whole."""
    title = "回答" if language == "zh" else "The answer"
    text = sentence(title, "stale", "models_failing", age, language, now)
    return Shortfall("", title, "stale", "models_failing", text, age, True, now - age)


def build(parts: Parts, function: AnswerFunction | None) -> tuple[Answer, Parts, str | None]:
    """The answer, and, when the agent's own function failed, the name of what it raised. Never raises.

    The parts come back as the answer shows them: with one more shortfall when the generic answer had to take its place.
    """
    failed: str | None = None
    answer: Answer | None = None
    if function is not None:
        try:
            made: object = function(parts)
            if isinstance(made, Answer) and isinstance(made.text, str):
                answer = made
            else:
                failed = "no Answer returned"
        except BaseException as error:  # noqa: BLE001 - no answer function, however broken, costs the run its answer
            _log.warning("the agent's answer function failed", exc_info=True)
            failed = type(error).__name__
    if answer is None:
        answer = generic_answer(parts)
    if failed is not None:
        title = "报告" if parts.language == "zh" else "The report"
        text = sentence(title, "substituted", "tool_failed", None, parts.language)
        extra = Shortfall("", title, "substituted", "tool_failed", text)
        parts = replace(parts, shortfalls=(*parts.shortfalls, extra))
    if parts.shortfalls and not answer.says_shortfalls:
        lines = "\n".join(f"- {s.text}" for s in parts.shortfalls[:_ROWS])
        heading = "**这个回答不完整：**" if parts.language == "zh" else "**This answer is not complete:**"
        text = f"{answer.text}\n\n{heading}\n{lines}" if answer.text else f"{heading}\n{lines}"
        answer = Answer(text, answer.artifacts, says_shortfalls=True)
    return answer, parts, failed


def generic_answer(parts: Parts) -> Answer:
    """Each result under its task's title, as it is; for agents without an answer function of their own."""
    sections: list[str] = []
    if parts.plan is not None:
        if parts.plan.reading:
            sections.append(parts.plan.reading[:_TEXT])
        needed = {need for task in parts.plan.tasks for need in task.needs}
        values = parts.values
        ends = [task for task in parts.plan.tasks if task.id in values and task.id not in needed]
        # When an end of the plan is missing, what led to it is the best there is.
        shown = ends if not parts.missing else [task for task in parts.plan.tasks if task.id in values]
        for task in shown:
            try:
                body = _render(values[task.id], parts.language)
            except Exception:  # noqa: BLE001 - a value that cannot be shown must not cost the rest
                body = "?"
            sections.append(f"**{task.label}**: {body}" if "\n" not in body else f"**{task.label}**\n\n{body}")
    if len(sections) == 0 and not parts.shortfalls:
        sections.append("没有可以报告的结果。" if parts.language == "zh" else "There is nothing to report.")
    return Answer("\n\n".join(sections))


def _render(value: Any, language: Language) -> str:
    if isinstance(value, list | tuple) and value and all(isinstance(row, Mapping) for row in value[:_ROWS]):
        return _table(value, language)
    if isinstance(value, list | tuple):
        more = len(value) - _ROWS
        items = [f"- {_cell(item, language)}" for item in value[:_ROWS]]
        return "\n".join([*items, *([_more(more, language)] if more > 0 else [])]) or _nothing(language)
    if isinstance(value, Mapping):
        return "\n".join(f"- {str(k)[:200]}: {_cell(v, language)}" for k, v in list(value.items())[:_ROWS]) or _nothing(
            language
        )
    return _cell(value, language, _TEXT)


def _table(rows: Sequence[Mapping[str, Any]], language: Language) -> str:
    columns = list(dict.fromkeys(str(key) for row in rows[:_ROWS] for key in row))[:12]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += [
        "| " + " | ".join(_cell(row.get(c), language).replace("|", "\\|") for c in columns) + " |"
        for row in rows[:_ROWS]
    ]
    if len(rows) > _ROWS:
        lines.append("\n" + _more(len(rows) - _ROWS, language))
    return "\n".join(lines)


def _cell(value: Any, language: Language, limit: int = 200) -> str:
    if value is None:
        return _nothing(language)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return "无数值" if language == "zh" else "no number"
        return f"{value:,.6g}" if abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**30 else f"{value:.6g}"
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split()) if limit < _TEXT else text
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _nothing(language: Language) -> str:
    return "无" if language == "zh" else "none"


def _more(count: int, language: Language) -> str:
    return f"（另有 {count} 行）" if language == "zh" else f"(and {count} more)"
