"""Fakes that behave: tools, planners, stores and transports that answer, fail, hang or ignore cancellation on command.

They are for users' tests as much as for ours; time passes on whatever loop runs them, so use the virtual-time one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from failsoft.base.errors import FailsoftError, MalformedResult, StoreError
from failsoft.base.transport import HttpRequest, HttpResponse
from failsoft.stores.memory import MemoryStore
from failsoft.stores.protocols import Created, Duration, RunRecord, StoredRun, Write

__all__ = [
    "FakePlanner",
    "FakeResponse",
    "FakeStore",
    "FakeTransport",
    "completion",
    "hang",
    "ignore_cancellation",
]


async def hang() -> None:
    """Waits for ever, and stops when told to."""
    await asyncio.get_running_loop().create_future()


async def ignore_cancellation(until: asyncio.Event) -> None:
    """Waits for `until` whatever it is told: each cancellation is swallowed."""
    while not until.is_set():
        try:
            await until.wait()
        except asyncio.CancelledError:
            continue


@dataclass
class FakePlanner:
    """Plans by ``makes``: a plan, an error to raise, or a function of the request; after ``delay`` seconds.

    A :class:`~failsoft.runs.planner.Planner`; untyped, since what is shipped for tests does not import what it tests.
    """

    makes: Any
    name: str = "fake"
    delay: float = 0.0
    asked: list[Any] = field(default_factory=list)

    async def plan(self, request: Any, tools: Any, context: Any) -> Any:
        """See :class:`~failsoft.runs.planner.Planner`."""
        self.asked.append(request)
        if self.delay:
            await asyncio.sleep(self.delay)
        if isinstance(self.makes, BaseException):
            raise self.makes
        return self.makes(request) if callable(self.makes) else self.makes


class FakeStore(MemoryStore):
    """A memory store that can be broken: ``fails`` raises, ``hangs`` waits for ever; ``calls`` is what was asked."""

    def __init__(self, *, fails: BaseException | bool = False, hangs: bool = False, delay: float = 0.0) -> None:
        super().__init__()
        self.fails = fails
        self.hangs = hangs
        self.delay = delay
        self.calls: list[str] = []

    async def _gate(self, what: str) -> None:
        self.calls.append(what)
        if self.hangs:
            await hang()
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.fails:
            raise self.fails if isinstance(self.fails, BaseException) else StoreError("the disk is full")

    async def create_run(self, record: RunRecord) -> Created:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        await self._gate("create_run")
        return await super().create_run(record)

    async def write(self, writes: Sequence[Write]) -> list[FailsoftError | None]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        await self._gate("write")
        return await super().write(writes)

    async def load_run(self, run: str, *, tenant: str | None = None) -> StoredRun | None:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        await self._gate("load_run")
        return await super().load_run(run, tenant=tenant)

    async def record_durations(self, durations: Sequence[Duration]) -> None:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        await self._gate("record_durations")
        await super().record_durations(durations)

    async def durations(self) -> Mapping[str, Sequence[float]]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        await self._gate("durations")
        return await super().durations()


@dataclass
class FakeResponse:
    """A scripted response: ``body`` has bytes to send, seconds to wait, errors to raise, or ``None`` to hang."""

    body: Sequence[bytes | float | BaseException | None] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    closed: bool = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """See :class:`~failsoft.base.transport.HttpResponse`."""
        for item in self.body:
            if isinstance(item, bytes):
                yield item
            elif item is None:
                await hang()
            elif isinstance(item, BaseException):
                raise item
            else:
                await asyncio.sleep(item)

    async def read(self, limit: int) -> bytes:
        """See :class:`~failsoft.base.transport.HttpResponse`."""
        body = b"".join([chunk async for chunk in self.chunks()])
        if len(body) > limit:
            raise MalformedResult(f"the body has more than {limit} bytes")
        return body


class FakeTransport:
    """Answers requests with scripted responses in order, the last one for ever; ``requests`` keeps what was sent.

    A response may also be an error to raise, or a function of the request. ``open`` counts connections not yet closed.
    """

    def __init__(self, *responses: FakeResponse | BaseException | Callable[[HttpRequest], FakeResponse]) -> None:
        self._responses = list(responses)
        self.requests: list[HttpRequest] = []
        self.open = 0
        self.closed = False

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        """See :class:`~failsoft.base.transport.Transport`."""
        self.requests.append(request)
        made = self._responses.pop(0) if len(self._responses) > 1 else self._responses[0]
        if isinstance(made, BaseException):
            raise made
        response = made if isinstance(made, FakeResponse) else made(request)
        self.open += 1
        try:
            yield response
        finally:
            response.closed = True
            self.open -= 1

    async def aclose(self) -> None:
        """See :class:`~failsoft.base.transport.Transport`."""
        self.closed = True


def completion(*pieces: str, finish: str | None = "stop", done: bool = True) -> FakeResponse:
    """A streamed chat completion in the OpenAI format: role, pieces, finish reason, usage, end."""

    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        body = {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"

    body: list[bytes | float | BaseException | None] = [
        chunk({"role": "assistant"}),
        *(chunk({"content": piece}) for piece in pieces),
    ]
    if finish is not None:
        body += [chunk({}, finish), b'data: {"choices": [], "usage": {"prompt_tokens": 1}}\n\n']
    if done:
        body.append(b"data: [DONE]\n\n")
    return FakeResponse(body)
