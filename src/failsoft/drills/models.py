"""Model drills: fake models whose answers take as long as their input is large, and the gateway before them.

The gateway is the real one, with everything that an alias, its routes and its guards do; only the wire is a fake.
"""

from __future__ import annotations

import asyncio
import json
import math
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, Self
from urllib.parse import urlsplit

from failsoft.base.clock import Sources
from failsoft.base.errors import DownstreamUnavailable
from failsoft.base.events import Event
from failsoft.base.transport import HttpRequest, HttpResponse
from failsoft.config import Settings
from failsoft.drills.backends import Backend, known_value
from failsoft.drills.requests import Reply, Request
from failsoft.drills.scenario import BackendSpec, Scenario
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Guard, Kernel
from failsoft.models.chat_request import ChatRequest
from failsoft.models.gateway import Gateway
from failsoft.testing.fakes import FakeResponse

__all__ = ["GatewayPlatform", "ModelBackend", "model_backends"]

_SHARES: Final = (0.0, 0.5, 0.9, 0.99, 1.0)
_WORD: Final = "word "


class ModelBackend(Backend):
    """A model server: how long it works depends on the request's kind, by that kind's p50, p90, p99 and maximum.

    ``speed`` divides the times: a smaller model. Between the quantiles times are interpolated on a logarithmic scale;
    the fastest takes a third of the median.
    """

    def __init__(
        self,
        name: str,
        spec: BackendSpec,
        seed: int,
        ledger: Mapping[int, float],
        *,
        kinds: Mapping[int, str],
        quantiles: Mapping[str, Sequence[float]],
        speed: float,
    ) -> None:
        super().__init__(name, spec, seed, ledger)
        self._kinds = kinds
        self._points = {kind: tuple(map(math.log, (q[0] / 3, *q))) for kind, q in quantiles.items()}
        self._speed = speed

    def seconds_of(self, key: int, drawn: float) -> float:
        """See :class:`~failsoft.drills.backends.Backend`."""
        points = self._points[self._kinds[key]]
        at = max(1, bisect_left(_SHARES, drawn))
        low, high = _SHARES[at - 1], _SHARES[at]
        part = (drawn - low) / (high - low)
        return math.exp(points[at - 1] + part * (points[at] - points[at - 1])) / self._speed


def model_backends(
    scenario: Scenario, seed: int, ledger: Mapping[int, float], kinds: Mapping[int, str]
) -> dict[str, Backend]:
    """The model servers of a scenario: ``options.quantiles`` by kind of request, ``options.speed`` by server."""
    quantiles = scenario.options["quantiles"]
    speeds = scenario.options.get("speed", {})
    return {
        name: ModelBackend(name, spec, seed, ledger, kinds=kinds, quantiles=quantiles, speed=speeds.get(name, 1.0))
        for name, spec in scenario.downstreams.items()
    }


class _Wire:
    """Carries the gateway's requests to the model servers: ``http://NAME/v1`` is the server called NAME."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = backends

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        """See :class:`~failsoft.base.transport.Transport`."""
        backend = self._backends[urlsplit(request.url).hostname or ""]
        asked = json.loads(request.body or b"{}")
        key = int(str(asked["messages"][-1]["content"]).split(" ", 1)[0])
        try:
            value = await backend.query(key)
        except OSError as error:
            raise DownstreamUnavailable(f"connection failed: {type(error).__name__}") from error
        yield FakeResponse(_stream(json.dumps(value)))

    async def aclose(self) -> None:
        """See :class:`~failsoft.base.transport.Transport`."""


def _stream(text: str) -> list[bytes | float | BaseException | None]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    return [chunk({"role": "assistant", "content": text}), chunk({}, "stop"), b"data: [DONE]\n\n"]


class GatewayPlatform:
    """The model gateway for one drill; ``breakers`` collects what they did, with loop times."""

    def __init__(self, scenario: Scenario, backends: Mapping[str, Backend], seed: int) -> None:
        settings = Settings.model_validate(scenario.settings)
        sources = Sources(rng=Random(f"{seed}/failsoft"))
        self.kernel = Kernel(sources=sources)
        self.gateway = Gateway(settings.aliases(), self.kernel, _Wire(backends), sources=sources)
        self.breakers: list[tuple[float, str, str]] = []
        self._words: Mapping[str, int] = scenario.options.get("words", {})
        self._aliases: Mapping[str, str] = scenario.options.get("alias", {})
        self._remove = self.kernel.bus.add(self._note)
        self._extra = 0

    def _note(self, event: Event) -> None:
        if event.kind.startswith("breaker."):
            self.breakers.append((event.at, event.downstream or "", event.kind.removeprefix("breaker.")))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._remove()
        await self.kernel.aclose()

    @property
    def guards(self) -> Mapping[str, Guard]:
        """The guards by downstream."""
        return self.kernel.guards

    def measure(self) -> None:
        """From now on extra attempts are counted."""
        self._extra = self._attempts()

    def _attempts(self) -> int:
        return sum(one.retries + one.hedges for one in (guard.statistics() for guard in self.guards.values()))

    @property
    def extra(self) -> int:
        """Retries and hedges since measuring began."""
        return self._attempts() - self._extra

    async def ask(self, request: Request) -> Reply:
        """One chat completion, as the gateway's door asks for it."""
        (part,) = request.parts
        kind = request.spec.name
        text = f"{part.key} {_WORD * self._words.get(kind, 20)}"
        chat = ChatRequest(
            {"model": self._aliases.get(kind, "chat"), "messages": [{"role": "user", "content": text}]}, len(text)
        )
        now = asyncio.get_running_loop().time()
        async with deadline_scope(at=now + request.budget, tenant=request.spec.tenant):
            record = self.gateway.record(chat)
            answer = await self.gateway.complete(chat, record)
        content = answer["choices"][0]["message"]["content"]
        found: dict[str, Any] = {}
        if content.startswith("{"):
            value = json.loads(content)
            if value == known_value(str(value["of"]), part.key):  # each model has the same data under its own name
                found[part.id] = known_value(part.use, part.key)
            else:
                found[part.id] = value
        return Reply("degraded" if record.degraded else "completed", found, "", f"route {record.route}")
