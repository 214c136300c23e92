"""The model's say in which agent answers: asked when rules know none, with little time and little text.

What it says counts only if it is the name of an agent; whatever goes wrong leaves the choice to the default.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from failsoft.kernel.classify import as_error
from failsoft.kernel.deadline import deadline_scope
from failsoft.models.loose_json import clean_json
from failsoft.runs.agents import Agent
from failsoft.runs.loop_model import LoopModel, TurnRequest

__all__ = ["Chooser"]

_log = logging.getLogger(__name__)

_TOKENS: Final = 50
"""Tokens that a model may say: a name."""
_AGENTS: Final = 50
"""Agents that a model is told of; the first ones."""
_PROMPT: Final = (
    "You choose who answers a question. Reply with one JSON object and nothing else: "
    '{"agent": "one of the names"}, or {"agent": null} when it is for none of them. The agents:\n'
)


@dataclass(frozen=True, slots=True)
class Chooser:
    """Has a ``model`` choose what rules cannot. ``bypassed`` says whether models fail as a whole: then none is asked.

    ``limit`` in seconds is all that the model gets, and no more than ``share`` of the request's budget; ``characters``
    is how much of the question, and of all descriptions together, it is given.
    """

    model: LoopModel
    bypassed: Callable[[], bool] = lambda: False
    limit: float = 2.0
    share: float = 0.1
    characters: int = 3_000

    async def choose(self, agents: Sequence[Agent], question: str, budget: float) -> Agent | None:
        """The agent that the model names; None when it names none of them, fails, or has no time.

        ``budget`` is what the request has left, in seconds. Raises nothing but a cancellation.
        """
        known = {agent.name: agent for agent in agents[:_AGENTS]}
        limit = min(self.limit, self.share * budget)
        if len(known) < 2 or limit <= 0 or self.bypassed():
            return None
        try:
            async with deadline_scope(at=asyncio.get_running_loop().time() + limit, limit="task"):
                name = await self._named(known, question)
        except Exception as error:  # noqa: BLE001 - whatever a model raises, the choice is left to the default
            _log.warning("no model chose an agent: %s", as_error(error).message)
            return None
        return None if name is None else known.get(name)

    async def _named(self, known: dict[str, Agent], question: str) -> str | None:
        each = self.characters // len(known)
        told = "\n".join(f"- {name}: {_cut(agent.description, each)}" for name, agent in known.items())
        messages = [
            {"role": "system", "content": _PROMPT + told},
            {"role": "user", "content": _cut(question, self.characters)},
        ]
        reply = await self.model.reply(TurnRequest(messages, (), True, _nothing, _nothing, lambda: None, _TOKENS, 0.0))
        if reply.error is not None:
            raise reply.error
        data, _ = clean_json(reply.text, finish_reason=reply.finish)
        name = data.get("agent") if isinstance(data, dict) else None
        return name if isinstance(name, str) else None


def _nothing(text: str) -> None:
    return None


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} …"
