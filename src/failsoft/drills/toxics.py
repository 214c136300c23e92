"""Faults, one small class each: what a toxic does to an attempt at a downstream.

``apply`` runs inside the attempt, under its limit, in place of the call; it may call on, late or not at all.
``ended`` is set when the fault's lease ends, so that nothing hangs longer than the fault itself. In front of a real
upstream the same classes work on bytes: ``ask`` before the request is passed on, ``body`` on the answer (see
:mod:`failsoft.drills.proxy`).
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

from failsoft.base.errors import (
    DownstreamError,
    DownstreamUnavailable,
    EmptyResult,
    FailsoftError,
    MalformedResult,
    StreamCut,
)

__all__ = [
    "KINDS",
    "Bandwidth",
    "Chunks",
    "Cut",
    "Delay",
    "Drip",
    "Empty",
    "Error",
    "ErrorUnder200",
    "Exchange",
    "Garbage",
    "Hang",
    "HttpError",
    "Jitter",
    "NoFinishReason",
    "RateLimit",
    "Refuse",
    "Reset",
    "SlowFirstByte",
    "Stall",
    "Term",
    "Toxic",
    "WrongLength",
    "pause",
]

Call = Callable[[], Awaitable[Any]]
Chunks = AsyncIterator[bytes]


class Exchange(Protocol):
    """One request and its answer as a proxy's toxics see them."""

    length: int | None
    """The declared length of the answer's body; a toxic may change it. None: it is sent in chunks."""

    @property
    def term(self) -> Term:
        """Of the fault's lease."""
        ...

    async def answer(self, status: int, body: bytes, *, kind: str = "application/json", **headers: str) -> None:
        """Answers in the upstream's place."""
        ...

    def abort(self) -> None:
        """Ends the connection with a reset."""
        ...

    def close(self) -> None:
        """Ends the connection without an answer."""
        ...


class Term(asyncio.Event):
    """How long a fault lasts: set when its lease ends. ``began`` is a loop time, ``rng`` the fault's own chance."""

    def __init__(self, rng: random.Random, began: float) -> None:
        super().__init__()
        self.rng = rng
        self.began = began


async def pause(seconds: float, ended: asyncio.Event) -> None:
    """Sleeps, but no longer than the fault lasts."""
    if ended.is_set() or seconds <= 0:
        return
    waiting = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait([waiting], timeout=seconds)
    finally:
        waiting.cancel()


@dataclass(frozen=True, slots=True)
class Toxic:
    """A fault of one kind. The base does no harm; each kind overrides what it harms."""

    kind: ClassVar[str] = "none"
    rewrites: ClassVar[bool] = False
    """Whether :meth:`body` changes how long the answer is."""
    http_only: ClassVar[bool] = False
    """Whether it needs a proxy that understands HTTP."""

    async def apply(self, call: Call, ended: Term) -> Any:
        """Does its harm to one attempt in process; `call` is what would have run."""
        return await call()

    async def ask(self, exchange: Exchange) -> bool:
        """In a proxy, before the request is passed on; True when it has been dealt with and is not."""
        return False

    def body(self, chunks: Chunks, exchange: Exchange) -> Chunks:
        """In a proxy, the answer's body."""
        return chunks

    def __str__(self) -> str:
        shown = ",".join(f"{each.name}={_shown(getattr(self, each.name))}" for each in fields(self))
        return f"{self.kind}:{shown}" if shown else self.kind


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class Aborted(Exception):
    """Raised by a toxic in the middle of a body: the proxy resets the connection."""


# --- time ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hang(Toxic):
    """Accepts the call and does nothing until the fault ends; then lets it through."""

    kind: ClassVar[str] = "hang"

    async def apply(self, call: Call, ended: Term) -> Any:
        """Waits for the fault's end, then calls on."""
        await ended.wait()
        return await call()

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        await exchange.term.wait()
        return False


@dataclass(frozen=True, slots=True)
class Delay(Toxic):
    """Latency: waits ``delay`` seconds before each call."""

    kind: ClassVar[str] = "latency"
    delay: float

    async def apply(self, call: Call, ended: Term) -> Any:
        """Waits, then calls on."""
        if not ended.is_set():
            await asyncio.sleep(self.delay)
        return await call()

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        await pause(self.delay, exchange.term)
        return False

    def __str__(self) -> str:
        return f"delay:{self.delay:g}s"


@dataclass(frozen=True, slots=True)
class Jitter(Toxic):
    """Waits a random time, uniform up to ``up_to`` seconds, before each call."""

    kind: ClassVar[str] = "jitter"
    up_to: float

    async def apply(self, call: Call, ended: Term) -> Any:
        """Waits, then calls on."""
        if not ended.is_set():
            await asyncio.sleep(self.up_to * ended.rng.random())
        return await call()

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        await pause(self.up_to * exchange.term.rng.random(), exchange.term)
        return False


@dataclass(frozen=True, slots=True)
class Bandwidth(Toxic):
    """Throughput down to the share ``rate``: a call takes 1 / ``rate`` times as long; a body comes at that pace.

    In a proxy ``bytes_per_second``, when more than 0, is the pace; else the pace of the upstream counts.
    """

    kind: ClassVar[str] = "bandwidth"
    rate: float = 0.1
    bytes_per_second: int = 0

    async def apply(self, call: Call, ended: Term) -> Any:
        """Calls, then waits for the rest of the time that it would have taken."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        value = await call()
        await pause((loop.time() - began) * (1.0 / self.rate - 1.0), ended)
        return value

    async def body(self, chunks: Chunks, exchange: Exchange) -> Chunks:
        """See :class:`Toxic`."""
        loop = asyncio.get_running_loop()
        before = loop.time()
        async for chunk in chunks:
            if self.bytes_per_second:
                await pause(len(chunk) / self.bytes_per_second, exchange.term)
            else:
                await pause((loop.time() - before) * (1.0 / self.rate - 1.0), exchange.term)
            yield chunk
            before = loop.time()


@dataclass(frozen=True, slots=True)
class SlowFirstByte(Toxic):
    """The downstream works as usual, but the first byte of its answer comes ``delay`` seconds late."""

    kind: ClassVar[str] = "slow_first_byte"
    delay: float

    async def apply(self, call: Call, ended: Term) -> Any:
        """Calls, then waits."""
        value = await call()
        await pause(self.delay, ended)
        return value

    async def body(self, chunks: Chunks, exchange: Exchange) -> Chunks:
        """See :class:`Toxic`."""
        first = True
        async for chunk in chunks:
            if first:
                await pause(self.delay, exchange.term)
                first = False
            yield chunk


# --- connections -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refuse(Toxic):
    """Nobody listens: the connection is refused (by a proxy: closed before a byte)."""

    kind: ClassVar[str] = "refuse"

    async def apply(self, call: Call, ended: Term) -> Any:
        """Raises instead of calling."""
        return await _raised(call, ended, ConnectionRefusedError("injected: refused"))

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        exchange.close()
        return True


@dataclass(frozen=True, slots=True)
class Reset(Toxic):
    """The connection is reset before anything of the answer has come."""

    kind: ClassVar[str] = "reset"

    async def apply(self, call: Call, ended: Term) -> Any:
        """Raises instead of calling."""
        return await _raised(call, ended, ConnectionResetError("injected: reset"))

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        exchange.abort()
        return True


@dataclass(frozen=True, slots=True)
class Cut(Toxic):
    """The answer breaks off in mid-body, after ``after`` bytes."""

    kind: ClassVar[str] = "cut"
    after: int = 1

    async def apply(self, call: Call, ended: Term) -> Any:
        """The downstream does its work; its answer is lost on the way."""
        value = await call()
        if ended.is_set():
            return value
        raise StreamCut("injected: cut")

    async def body(self, chunks: Chunks, exchange: Exchange) -> Chunks:
        """See :class:`Toxic`."""
        left = self.after
        async for chunk in chunks:
            if len(chunk) >= left:
                yield chunk[:left]
                raise Aborted
            left -= len(chunk)
            yield chunk


# --- answers ---------------------------------------------------------------------------------------------------------

_ERRORS: dict[str, type[FailsoftError] | type[Exception]] = {
    "unavailable": DownstreamUnavailable,
    "reset": ConnectionResetError,
    "refused": ConnectionRefusedError,
    "empty": EmptyResult,
    "malformed": MalformedResult,
    "crash": RuntimeError,
}
ERROR_CODES = tuple(_ERRORS)


@dataclass(frozen=True, slots=True)
class Error(Toxic):
    """Fails at once, in the way that ``code`` names: unavailable, reset, refused, empty, malformed or crash."""

    kind: ClassVar[str] = "error"
    http_only: ClassVar[bool] = True
    code: str = "unavailable"

    async def apply(self, call: Call, ended: Term) -> Any:
        """Raises instead of calling."""
        return await _raised(call, ended, _ERRORS[self.code](f"injected: {self.code}"))

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        await exchange.answer(503, b'{"error": {"message": "injected", "type": "server_error", "code": null}}')
        return True

    def __str__(self) -> str:
        return f"error:{self.code}"


@dataclass(frozen=True, slots=True)
class HttpError(Toxic):
    """Answers with the HTTP error ``status``; in process as what that status is mapped to."""

    kind: ClassVar[str] = "http_error"
    http_only: ClassVar[bool] = True
    status: int = 503

    async def apply(self, call: Call, ended: Term) -> Any:
        """Raises instead of calling."""
        made = DownstreamUnavailable if self.status >= 500 else DownstreamError
        return await _raised(call, ended, made(f"injected: status {self.status}"))

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        await exchange.answer(
            self.status, b'{"error": {"message": "injected", "type": "server_error", "code": "injected"}}'
        )
        return True


@dataclass(frozen=True, slots=True)
class ErrorUnder200(Toxic):
    """Says 200, and an error object in the body."""

    kind: ClassVar[str] = "error_under_200"
    http_only: ClassVar[bool] = True

    async def apply(self, call: Call, ended: Term) -> Any:
        """Raises what a client that looks into the body would."""
        return await _raised(call, ended, DownstreamError("injected: an error under 200"))

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        await exchange.answer(
            200, b'{"error": {"message": "overloaded", "type": "server_error", "code": "overloaded"}}'
        )
        return True


@dataclass(frozen=True, slots=True)
class Empty(Toxic):
    """Says 200, and nothing."""

    kind: ClassVar[str] = "empty_200"
    http_only: ClassVar[bool] = True

    async def apply(self, call: Call, ended: Term) -> Any:
        """Raises instead of calling."""
        return await _raised(call, ended, EmptyResult("injected: empty"))

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        await exchange.answer(200, b"")
        return True


@dataclass(frozen=True, slots=True)
class Garbage(Toxic):
    """Answers with what nobody can read."""

    kind: ClassVar[str] = "garbage"
    http_only: ClassVar[bool] = True

    async def apply(self, call: Call, ended: Term) -> Any:
        """Raises instead of calling."""
        return await _raised(call, ended, MalformedResult("injected: garbage"))

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        await exchange.answer(200, b'\x00\xff{"choices": [{"mess\xf0\x28\x8c')
        return True


@dataclass(frozen=True, slots=True)
class WrongLength(Toxic):
    """Declares ``more`` bytes than come, then closes."""

    kind: ClassVar[str] = "wrong_length"
    http_only: ClassVar[bool] = True
    more: int = 1000

    async def apply(self, call: Call, ended: Term) -> Any:
        """The answer of the wrong length cannot be told whole: the work was in vain."""
        value = await call()
        if ended.is_set():
            return value
        raise StreamCut("injected: fewer bytes than declared")

    async def body(self, chunks: Chunks, exchange: Exchange) -> Chunks:
        """See :class:`Toxic`."""
        whole = b"".join([chunk async for chunk in chunks])
        exchange.length = len(whole) + self.more
        yield whole
        raise Aborted


@dataclass(frozen=True, slots=True)
class RateLimit(Toxic):
    """Answers 429 with ``Retry-After: retry_after`` (seconds)."""

    kind: ClassVar[str] = "rate_limit"
    http_only: ClassVar[bool] = True
    retry_after: float = 1.0

    async def apply(self, call: Call, ended: Term) -> Any:
        """Raises instead of calling."""
        return await _raised(call, ended, DownstreamUnavailable("injected: 429", retry_after=self.retry_after))

    async def ask(self, exchange: Exchange) -> bool:
        """See :class:`Toxic`."""
        error = b'{"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}'
        await exchange.answer(429, error, **{"Retry-After": f"{self.retry_after:g}"})
        return True


# --- models ----------------------------------------------------------------------------------------------------------

_EVENT = re.compile(rb"\r?\n\r?\n")
_FINISH = re.compile(rb'"finish_reason":\s*"[a-z_]+"')


@dataclass(frozen=True, slots=True)
class Stall(Toxic):
    """A stream that goes silent after ``after`` events and says nothing more until the fault ends."""

    kind: ClassVar[str] = "stall"
    after: int = 3

    async def apply(self, call: Call, ended: Term) -> Any:
        """The answer is not there in one piece before the fault ends."""
        value = await call()
        await ended.wait()
        return value

    async def body(self, chunks: Chunks, exchange: Exchange) -> Chunks:
        """See :class:`Toxic`."""
        seen = 0
        async for event in _events(chunks):
            if seen >= self.after:
                await exchange.term.wait()
            yield event
            seen += 1


@dataclass(frozen=True, slots=True)
class Drip(Toxic):
    """A stream that comes in pieces of ``size`` bytes, ``every`` seconds one."""

    kind: ClassVar[str] = "drip"
    size: int = 8
    every: float = 0.2

    async def apply(self, call: Call, ended: Term) -> Any:
        """As long as an answer of 400 bytes would take."""
        value = await call()
        await pause(400 / self.size * self.every, ended)
        return value

    async def body(self, chunks: Chunks, exchange: Exchange) -> Chunks:
        """See :class:`Toxic`."""
        async for chunk in chunks:
            for at in range(0, len(chunk), self.size):
                yield chunk[at : at + self.size]
                await pause(self.every, exchange.term)


@dataclass(frozen=True, slots=True)
class NoFinishReason(Toxic):
    """A model's answer that ends without saying why: no finish reason, no ``[DONE]``."""

    kind: ClassVar[str] = "no_finish_reason"
    http_only: ClassVar[bool] = True
    rewrites: ClassVar[bool] = True

    async def apply(self, call: Call, ended: Term) -> Any:
        """Nobody can tell whether it is whole."""
        value = await call()
        if ended.is_set():
            return value
        raise StreamCut("injected: no finish reason")

    async def body(self, chunks: Chunks, exchange: Exchange) -> Chunks:
        """See :class:`Toxic`."""
        async for event in _events(chunks):
            if event.strip() != b"data: [DONE]":
                yield _FINISH.sub(b'"finish_reason": null', event)


async def _events(chunks: Chunks) -> Chunks:
    """The events of a stream, each with its blank line; the rest of the bytes at the end. At most 1 MiB is held."""
    held = b""
    async for chunk in chunks:
        held += chunk
        while (found := _EVENT.search(held)) is not None:
            yield held[: found.end()]
            held = held[found.end() :]
        if len(held) > 1 << 20:
            yield held
            held = b""
    if held:
        yield held


async def _raised(call: Call, ended: asyncio.Event, error: Exception) -> Any:
    if ended.is_set():
        return await call()
    raise error


KINDS: dict[str, type[Toxic]] = {
    made.kind: made
    for made in (
        Delay,
        Jitter,
        Bandwidth,
        SlowFirstByte,
        Hang,
        Refuse,
        Reset,
        Cut,
        Error,
        HttpError,
        ErrorUnder200,
        Empty,
        Garbage,
        WrongLength,
        RateLimit,
        Stall,
        Drip,
        NoFinishReason,
    )
}
"""Every kind of toxic by its name. A new one is a class here and its place in this list."""
