"""Whether an answer is good enough to be given as it is, found out in tiers (requirement D8).

First its status, which costs nothing; then a small model, with capped input, at most 100 tokens of output and a limit
of its own; then rules, when there is no model, no time, or the model fails. While models fail as a whole none is asked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from failsoft.kernel.classify import as_error
from failsoft.kernel.deadline import deadline_scope, remaining
from failsoft.models.hygiene import repeated_tail
from failsoft.models.loose_json import clean_json
from failsoft.runs.loop_model import LoopModel, TurnRequest

__all__ = ["Judge", "Judgement", "by_rules"]

Tier = Literal["status", "model", "rules"]

TOKENS: Final = 100
"""Tokens that a judge may say."""
_NUMBER: Final = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?![\w])")
_PROMPT: Final = (
    "You judge an answer. Reply with one JSON object and nothing else: "
    '{"ok": true or false, "why": "a few words"}. It is not ok when it does not answer the question, contradicts the '
    "facts, or is no sensible text."
)


class Judgement(NamedTuple):
    """``good``: may be given as it is; ``tier``: who said so; ``why``: in a few words. ``failed``: why no model did."""

    good: bool
    tier: Tier
    why: str = ""
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges answers. ``model`` None: by status and rules only. ``bypassed`` says whether models fail as a whole.

    ``limit`` in seconds is all that the model gets, and no more than ``share`` of what is left; ``characters`` is how
    much of question, facts and answer together it is given.
    """

    model: LoopModel | None = None
    bypassed: Callable[[], bool] = lambda: False
    limit: float = 2.0
    share: float = 0.25
    characters: int = 3_000

    async def judge(self, question: str, answer: str, *, complete: bool = True, facts: Sequence[str] = ()) -> Judgement:
        """Judges an answer under the current deadline; raises nothing but a cancellation."""
        if not answer.strip():
            return Judgement(False, "status", "the answer is empty")
        if not complete:
            return Judgement(False, "status", "the answer is not complete")
        if self.model is None:
            return by_rules(answer, facts)
        if self.bypassed():
            return by_rules(answer, facts)._replace(failed="bypassed")
        limit = min(self.limit, self.share * remaining())
        if limit <= 0:
            return by_rules(answer, facts)._replace(failed="unaffordable")
        try:
            at = asyncio.get_running_loop().time() + limit
            async with deadline_scope(at=at, limit="task"):
                return await self._by_model(self.model, question, answer, facts)
        except Exception as error:  # noqa: BLE001 - whatever a judge's model raises, rules judge
            return by_rules(answer, facts)._replace(failed=as_error(error).code)

    async def _by_model(self, model: LoopModel, question: str, answer: str, facts: Sequence[str]) -> Judgement:
        third = self.characters // 3
        parts = (("Question", question), ("Facts", "\n".join(facts) or "none"), ("Answer", answer))
        text = "\n\n".join(f"{name}: {_cut(part, third)}" for name, part in parts)
        messages = [{"role": "system", "content": _PROMPT}, {"role": "user", "content": text}]
        request = TurnRequest(messages, (), True, _nothing, _nothing, lambda: None, TOKENS, 0.0)
        reply = await model.reply(request)
        if reply.error is not None:
            raise reply.error
        data, _ = clean_json(reply.text, finish_reason=reply.finish)
        if not isinstance(data, dict) or not isinstance(data.get("ok"), bool):
            return by_rules(answer, facts)._replace(failed="malformed_result")
        return Judgement(data["ok"], "model", str(data.get("why") or "")[:200])


def by_rules(answer: str, facts: Sequence[str] = ()) -> Judgement:
    """What can be told without a model: repeated text, and numbers that no tool has brought."""
    if repeated_tail(answer) is not None:
        return Judgement(False, "rules", "the answer repeats itself")
    if facts:
        known = {_number(text) for fact in facts for text in _NUMBER.findall(fact)}
        said = [number for text in _NUMBER.findall(answer) if abs(number := _number(text)) > 12]
        strange = [number for number in said if not any(_near(number, other) for other in known)]
        if len(strange) > len(said) / 2:
            return Judgement(False, "rules", "its numbers are not those of the tools")
    return Judgement(True, "rules")


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _near(one: float, other: float) -> bool:
    """Equal as people round."""
    return abs(one - other) <= 0.006 * max(abs(one), abs(other))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-(most // 3) :]}"


def _nothing(text: str) -> None:
    return None
