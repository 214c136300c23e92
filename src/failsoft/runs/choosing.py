"""Which agent answers when the request names none: rules over what the agents say of themselves.

An agent's name counts most, then its description, then its tools. A word that all agents share says nothing. Chinese
has no spaces: there, pairs of characters count as words. The same question always gets the same agent. When no
word fits, a model may be asked: :mod:`failsoft.runs.chooser`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from failsoft.runs.agents import Agent

__all__ = ["AUTO", "choose"]

AUTO: Final = "auto"
"""The name by which a request leaves the choice to the platform, also when there is a default."""

_WORD: Final = re.compile(r"[a-z0-9]+|[\u3400-\u9fff]+")
_SAYS_NOTHING: Final = frozenset(
    re.findall(
        r"\w+",
        """a an and any are as at be by can do does for from has have how i in is it its me my of on or that the this to
        was what when which who will with you your about answer answers question questions agent""",
    )
)
_NAME, _DESCRIPTION, _TOOLS = 3.0, 2.0, 1.0


def choose(agents: Iterable[Agent], question: str) -> Agent | None:
    """The agent whose own words fit the question best, the first of equals; None when no word fits any."""
    candidates = list(agents)
    asked = _words(question)
    weights = [_weights(agent) for agent in candidates]
    shared = Counter(word for weight in weights for word in weight)
    best: tuple[float, Agent] | None = None
    for agent, weight in zip(candidates, weights, strict=True):
        score = sum(
            weight[word] / shared[word]
            for word in asked & weight.keys()
            if shared[word] < len(candidates) or len(candidates) == 1
        )
        if score > 0 and (best is None or score > best[0]):
            best = (score, agent)
    return None if best is None else best[1]


def _weights(agent: Agent) -> dict[str, float]:
    """The words an agent goes by, each with its best weight."""
    found: dict[str, float] = {}
    tools = " ".join(f"{spec.name} {spec.description}" for spec in agent.tools.specs)
    for text, weight in ((tools, _TOOLS), (agent.description, _DESCRIPTION), (agent.name, _NAME)):
        found.update(dict.fromkeys(_words(text), weight))
    return found


def _words(text: str) -> set[str]:
    found: set[str] = set()
    for match in _WORD.finditer(text.lower().replace("_", " ")):
        word = match.group()
        if word[0] > "z":
            found.update(word[i : i + 2] for i in range(max(1, len(word) - 1)))
        elif word not in _SAYS_NOTHING:
            found.add(_stem(word))
    return found


def _stem(word: str) -> str:
    """Singular and plural, and the usual endings, are one word; no more than that."""
    for ending in ("ings", "ing", "ies", "es", "ed", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word.removesuffix("e") if len(word) > 4 else word
