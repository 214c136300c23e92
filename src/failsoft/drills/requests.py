"""The requests of a drill: what clients ask, what a right answer is, and how an answer is judged."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from failsoft.drills.backends import known_value
from failsoft.drills.scenario import RunSpec, Scenario

__all__ = ["Part", "Reply", "Request", "RequestMaker", "System", "judged", "parsed"]

_PART: Final = re.compile(r"(\w+)=([\w-]+):(\d+)(?:<([\w,]+))?")


@dataclass(frozen=True, slots=True)
class Part:
    """One call that a request needs: a task's id, the downstream it uses, the key it asks for, the tasks it needs."""

    id: str
    use: str
    key: int
    needs: tuple[str, ...] = ()
    essential: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """One question. ``text`` is what Failsoft's clients send; ``parts`` is what it means."""

    number: int
    spec: RunSpec
    parts: tuple[Part, ...]
    budget: float
    uses: bool

    @property
    def text(self) -> str:
        """The question as it is asked: ``look up a=search:12 b=prices:13 c=charts:14<a,b``."""
        told = " ".join(
            f"{part.id}={part.use}:{part.key}" + (f"<{','.join(part.needs)}" if part.needs else "")
            for part in self.parts
        )
        return f"look up {told}"


def parsed(text: str) -> tuple[Part, ...]:
    """The parts of a question, as Failsoft's rules read it."""
    return tuple(
        Part(found[1], found[2], int(found[3]), tuple(found[4].split(",")) if found[4] else ())
        for found in _PART.finditer(text)
    )


@dataclass(frozen=True, slots=True)
class Reply:
    """What a system answered: ``status`` completed, degraded or failed, values by task, which code, which rungs."""

    status: str
    values: Mapping[str, Any]
    code: str = ""
    rungs: str = ""


class System(Protocol):
    """What a drill is run against."""

    async def ask(self, request: Request) -> Reply:
        """Answers; raises when it cannot. Cancelled when the client leaves."""
        ...


class RequestMaker:
    """Makes the requests of a scenario, the same ones for every system; of the kinds in `only` if it is given."""

    def __init__(self, scenario: Scenario, seed: int, only: Collection[str] | None = None) -> None:
        self._scenario = scenario
        self._rng = Random(f"{seed}/requests")
        self._kinds = [run for run in scenario.runs if only is None or run.name in only]
        self._weights = [run.weight for run in self._kinds]
        self.faulted = faulted_of(scenario, seed)

    def make(self, number: int) -> Request:
        """The next request."""
        spec = self._rng.choices(self._kinds, self._weights)[0] if len(self._kinds) > 1 else self._kinds[0]
        others = [name for name in self._scenario.downstreams if name != self.faulted]
        self._rng.shuffle(others)
        uses: list[tuple[str, tuple[str, ...], bool]]
        if spec.draw:
            drawn = self._rng.sample(list(self._scenario.downstreams), spec.draw)
            uses = []
            for index, name in enumerate(drawn):
                earlier = tuple(f"t{i}" for i in range(index))
                last = index == len(drawn) - 1
                needs = earlier[-1:] if spec.shape == "chain" else earlier if spec.shape == "join" and last else ()
                uses.append((name, needs, True))
        else:
            uses = [(self._named(task.use, others), task.needs, task.essential) for task in spec.tasks]
        parts: list[Part] = []
        for index, (name, needs, essential) in enumerate(uses):
            for copy in range(spec.fan_out):
                own = f"t{index}" if spec.fan_out == 1 else f"t{index}x{copy}"
                parts.append(Part(own, name, number * 64 + index * spec.fan_out + copy, needs, essential))
        used = any(part.use == self.faulted for part in parts)
        return Request(number, spec, tuple(parts), self._scenario.load.clients.budget, used)

    def _named(self, use: str, others: list[str]) -> str:
        if use == "other":
            return others.pop()
        if use == "faulted":
            assert self.faulted is not None
            return self.faulted
        return use


def faulted_of(scenario: Scenario, seed: int) -> str | None:
    """The downstream that suffers, drawn by the seed; None when the scenario has no such thing."""
    if not scenario.faulted:
        return None
    return Random(f"{seed}/faulted").choice(list(scenario.faulted))


def judged(request: Request, reply: Reply, faulted: str | None) -> tuple[str, int]:
    """The outcome of an answer in time, and how many of its parts are right.

    Complete: every part right. Degraded: it says so, nothing in it is wrong, and all that does not come from the
    faulted downstream is there. Anything else is an error.
    """
    right = 0
    lacking_healthy = wrong = False
    for part in request.parts:
        value = reply.values.get(part.id)
        if value == known_value(part.use, part.key):
            right += 1
        elif value is not None:
            wrong = True
        elif part.use != faulted and faulted is not None:
            lacking_healthy = True
    if reply.status == "completed" and right == len(request.parts):
        return "complete", right
    if reply.status == "degraded" and not wrong and not lacking_healthy:
        return "degraded", right
    return "error", right
