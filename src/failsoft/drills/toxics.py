"""Faults, one small class each: what a toxic does to an attempt at a downstream.

``apply`` runs inside the attempt, under its limit, in place of the call; it may call on, late or not at all.
``ended`` is set when the fault's lease ends, so that nothing hangs longer than the fault itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from failsoft.base.errors import BadInput, DownstreamUnavailable, EmptyResult, FailsoftError, MalformedResult
from failsoft.config.durations import parse_duration

__all__ = ["Delay", "Error", "Hang", "Toxic", "parse_fault"]

Call = Callable[[], Awaitable[Any]]


class Toxic(Protocol):
    """A fault of one kind."""

    async def apply(self, call: Call, ended: asyncio.Event) -> Any:
        """Does its harm to one attempt; `call` is what would have run."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Accepts the call and does nothing until the fault ends; then lets it through."""

    async def apply(self, call: Call, ended: asyncio.Event) -> Any:
        """Waits for the fault's end, then calls on."""
        await ended.wait()
        return await call()

    def __str__(self) -> str:
        return "hang"


@dataclass(frozen=True, slots=True)
class Delay:
    """Waits ``seconds`` before each call."""

    seconds: float

    async def apply(self, call: Call, ended: asyncio.Event) -> Any:
        """Waits, then calls on."""
        if not ended.is_set():
            await asyncio.sleep(self.seconds)
        return await call()

    def __str__(self) -> str:
        return f"delay:{self.seconds:g}s"


_ERRORS: dict[str, type[FailsoftError] | type[Exception]] = {
    "unavailable": DownstreamUnavailable,
    "reset": ConnectionResetError,
    "refused": ConnectionRefusedError,
    "empty": EmptyResult,
    "malformed": MalformedResult,
    "crash": RuntimeError,
}


@dataclass(frozen=True, slots=True)
class Error:
    """Fails at once, in the way that ``code`` names: unavailable, reset, refused, empty, malformed or crash."""

    code: str = "unavailable"

    async def apply(self, call: Call, ended: asyncio.Event) -> Any:
        """Raises instead of calling."""
        if ended.is_set():
            return await call()
        raise _ERRORS[self.code](f"injected: {self.code}")

    def __str__(self) -> str:
        return f"error:{self.code}"


def parse_fault(text: str) -> tuple[str, Toxic]:
    """Reads ``NAME=KIND[:argument]``: ``warehouse=hang``, ``charts=delay:300ms``, ``warehouse=error:reset``."""
    name, equals, rest = text.partition("=")
    kind, colon, argument = rest.partition(":")
    name, kind, argument = name.strip(), kind.strip(), argument.strip()
    if not equals or not name:
        raise _refused("should be NAME=KIND, for instance warehouse=hang")
    if kind == "hang" and not colon:
        return name, Hang()
    if kind == "delay":
        try:
            return name, Delay(parse_duration(argument))
        except ValueError:
            raise _refused("delay needs a duration, for instance charts=delay:300ms") from None
    if kind == "error":
        if not colon or argument in _ERRORS:
            return name, Error(argument or "unavailable")
        raise _refused(f"unknown error; known are {', '.join(_ERRORS)}")
    raise _refused("unknown kind of fault; known are hang, delay:DURATION and error[:CODE]")


def _refused(reason: str) -> BadInput:
    return BadInput(f"--fault: {reason}", param="fault")
