"""A short narrative by the model, from what the tools brought; every number in it must be one of theirs.

It is an optional task behind the numbers: it never costs the answer its time, its status or its own text. What the
model writes is checked before anybody sees it: with a number, or a word for one, that the facts lack it is dropped.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

from failsoft.base.errors import CallTimeout, PlanRefused
from failsoft.examples.analyst.anomaly import Judgement
from failsoft.examples.analyst.answer import write
from failsoft.examples.analyst.compare import Comparison
from failsoft.examples.analyst.plans import intent_of
from failsoft.examples.analyst.query import Result
from failsoft.examples.analyst.spec import Intent, TableProfile, from_dict
from failsoft.examples.analyst.toolset import Data, as_data
from failsoft.runs.chat_endpoint import ChatEndpoint
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import PlanContext, Planner, PlanRequest
from failsoft.tools.python import PythonTool, tool
from failsoft.tools.registry import Default, ToolContext, ToolRegistry

__all__ = ["TASK", "Narrated", "facts", "make_narrator", "objection", "stray_numbers"]

TASK: Final = "narrative"
_ROWS: Final = 12
"""Rows of a table that the model is told."""
_TOKENS: Final = 160
_CHARACTERS: Final = 800
_LIMIT: Final = 20.0
"""Seconds that the text may take, whatever is left."""
_SHARE: Final = 0.7
"""The part of what is left of the budget that it may take: the rest is the answer's."""
_LEAST: Final = 1.0
"""Seconds below which the model is not asked."""
_NUMBER: Final = re.compile(
    r"(\d+(?:,\d{3})*(?:\.\d+)?)(?:\s*(%|percent|thousand|million|billion|k\b|bn\b|千|百|万|亿|倍))?", re.IGNORECASE
)
_WORDS: Final = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|sixty|seventy|eighty|"
    r"ninety|hundreds?|thousands?|millions?|billions?|dozens?|twice|thrice|doubl(?:e|ed|es|ing)|tripl(?:e|ed|es|ing)|"
    r"hal(?:f|ved|ves|ving)|\w+(?:teen|fold))\b",
    re.IGNORECASE,
)
"""Words that say a number; the firsts, ones, thirds and quarters of plain speech are not among them."""
_HAN: Final = re.compile(r"[二两三四五六七八九十百千万亿半倍]+")
_UNPLAIN: Final = re.compile(r"https?:|www\.|\]\(|[<>`|#*\[\]{}\\]|\n\s*\n")

_HOW: Final = """You answer a question in two or three plain sentences, from the facts you are given and nothing else.
Use only numbers that the facts have, written exactly as there; compute none, round none, and name no other.
No lists, no headings, no links. Write in {language}."""


def facts(
    intent: Intent,
    profile: TableProfile | None,
    result: Result,
    reference: Result | None = None,
    comparison: Comparison | None = None,
    judgement: Judgement | None = None,
) -> str:
    """What the tools brought, in the words and figures of the answer."""
    sections = write(
        intent, profile=profile, result=result, reference=reference, comparison=comparison, judgement=judgement
    )
    lines = [sections[0].body]
    table = sections[1].table
    if table is not None:
        lines.append(" | ".join(table.head))
        lines += [" | ".join(row) for row in table.rows[:_ROWS]]
    if judgement is not None:
        lines += [text for section in sections[2:3] for text in (section.body, *section.items[:5]) if text]
    return "\n".join(lines)


def _numbers(text: str) -> set[tuple[float, str]]:
    return {(float(digits.replace(",", "")), suffix.lower()) for digits, suffix in _NUMBER.findall(text)}


def stray_numbers(text: str, known: str) -> list[str]:
    """The numbers in a text, in figures or in words, that are not among those in `known`; signs are not compared."""
    text, known = (unicodedata.normalize("NFKC", one).replace("percent", "%") for one in (text, known))
    there = _numbers(known)
    bare = {number for number, _ in there}
    stray = [
        f"{digits} {suffix}".strip()
        for digits, suffix in _NUMBER.findall(text)
        if (float(digits.replace(",", "")), suffix.lower()) not in there
        and not (suffix == "" and float(digits.replace(",", "")) in bare)
    ]
    stray += [
        char for char in text if char.isnumeric() and not char.isascii() and not _HAN.match(char) and char != "一"
    ]
    said = {word.lower() for word in _WORDS.findall(known)}
    stray += [word for word in _WORDS.findall(text) if word.lower() not in said]
    outside = _NUMBER.sub(" ", text)
    stray += [word for word in _HAN.findall(outside) if word not in known]
    return list(dict.fromkeys(stray))


def objection(text: str, known: str) -> str:
    """Why a narrative is not shown; empty when it may be."""
    if not text.strip():
        return "it was empty"
    if len(text) > _CHARACTERS:
        return "it was too long"
    if _UNPLAIN.search(text):
        return "it was no plain text"
    stray = stray_numbers(text, known)
    return f"it had a number that is not the tools': {stray[0][:40]}" if stray else ""


def make_narrator(profiles: Sequence[TableProfile], endpoint: ChatEndpoint) -> PythonTool[..., Any]:
    """The tool that has the narrative written. It gives ``text``, and ``dropped``: the reason when there is none."""
    known_tables = {profile.table: profile for profile in profiles}

    @tool(
        name="narrate",
        kind="external",
        downstream=endpoint.downstream,
        timeout=_LIMIT,
        fallback=Default({"text": "", "dropped": "the model did not write it"}, equivalent=True),
    )
    async def narrate(
        question: str,
        intent: dict[str, Any],
        query: Data,
        context: ToolContext,
        reference: Data = None,
        compare: Data = None,
        unusual: Data = None,
    ) -> dict[str, str]:
        """Tells in two or three sentences what the tools found."""
        meant = from_dict(Intent, intent)
        told = facts(
            meant,
            known_tables.get(meant.query.table),
            as_data(Result, query),
            None if reference is None else as_data(Result, reference),
            None if compare is None else as_data(Comparison, compare),
            None if unusual is None else as_data(Judgement, unusual),
        )
        left = min(_LIMIT, context.remaining() * _SHARE)
        if left < _LEAST or endpoint.model is None:
            return {"text": "", "dropped": "there was no time for it"}
        how = _HOW.format(language="Chinese" if meant.language == "zh" else "English")
        messages = [
            {"role": "system", "content": how},
            {"role": "user", "content": f"Question: {question}\nFacts:\n{told}"},
        ]
        try:
            async with asyncio.timeout(left):
                written = "".join([piece async for piece in endpoint.deltas(endpoint.body(messages, _TOKENS))])
        except TimeoutError:
            raise CallTimeout("the model did not write it in time", downstream=endpoint.downstream) from None
        text = written.strip()
        why = objection(text, told)
        return {"text": "" if why else text, "dropped": why}

    return narrate


class Narrated:
    """A planner whose plans end with the narrative, unless the model has just failed, or was too slow to plan."""

    def __init__(self, inner: Planner) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """The planner's own name."""
        return self._inner.name

    async def plan(self, request: PlanRequest, tools: ToolRegistry, context: PlanContext) -> Plan:
        """See :class:`~failsoft.runs.planner.Planner`."""
        plan = await self._inner.plan(request, tools, context)
        if intent_of(plan) is None or any(one.code != PlanRefused.code for one in context.refused):
            return plan
        there = {task.id for task in plan.tasks}
        needs = tuple(name for name in ("query", "reference", "compare", "unusual") if name in there)
        arguments: dict[str, Any] = {name: {"$from": name} for name in needs}
        arguments |= {"question": request.input, "intent": plan.data["intent"]}
        title = "模型的叙述" if request.language == "zh" else "the model's own words"
        task = TaskSpec(
            id=TASK,
            tool="narrate",
            arguments=arguments,
            needs=needs,
            title=title,
            essential=False,
            priority="optional",
            tolerates_missing=len(needs) > 1,
        )
        return plan.model_copy(update={"tasks": (*plan.tasks, task)})

    def __repr__(self) -> str:
        return f"<Narrated {self._inner!r}>"
