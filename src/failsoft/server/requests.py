"""What a client sends: its body, read within bounds; its budget, from the body or a header; its request id."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from typing import Annotated, Literal, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from failsoft.base.clock import Sources
from failsoft.base.errors import BadInput
from failsoft.config.durations import parse_duration
from failsoft.server.call_budget import start_time
from failsoft.server.errors import BodyTooLarge, RequestTimeout
from failsoft.server.protocol import ARRIVED

__all__ = [
    "SESSION_ID",
    "RunBody",
    "budget_of",
    "idempotency_key",
    "known_query",
    "limit_of",
    "parsed",
    "read_body",
    "request_id",
    "run_body",
    "spent",
]

M = TypeVar("M", bound=BaseModel)

BODY_SECONDS = 10.0
"""How long a client may take to send its body."""

DISCARDED_BYTES = 4 << 20
DISCARDED_SECONDS = 1.0
"""How much of a body that is too large is read, and thrown away, before it is refused: a client that still sends
when its connection is closed sees a reset connection in place of the answer that says why."""

SESSION_ID = r"^[A-Za-z0-9][A-Za-z0-9._:@+=~-]{0,127}$"
_KEY = re.compile(r"[!-~]{1,255}")
_REQUEST_ID = re.compile(r"[\w.:/+=~-]{1,128}", re.ASCII)


class RunBody(BaseModel):
    """The body of ``POST /v1/runs``."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [{"input": "Which carrier had the longest mean delay in July?", "budget_ms": 5000}]
        },
    )

    input: str = Field(description="The question, in natural language.")
    agent: str | None = Field(None, description="Who answers; the configured default when left out.")
    budget_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="How long the answer may take, in milliseconds; wins over the headers."
    )
    session_id: Annotated[str, Field(pattern=SESSION_ID)] | None = Field(
        None, description="The conversation that the question belongs to: it is told what was said before."
    )
    mode: Literal["fast", "deep"] | None = Field(
        None, description="`fast`: optional tasks are left out and the answer is short; `deep`: nothing is spared."
    )
    background: bool = Field(
        False, description="Answer 202 as soon as the run is written to the store; it goes on whoever leaves."
    )
    strict: bool = Field(
        False, description="Answer a degraded result with 503, or 504 when time ran out, instead of 200."
    )
    stream: bool = Field(False, description="Answer with an event stream (AG-UI) instead of waiting for the result.")
    on_disconnect: Literal["cancel", "continue"] | None = Field(
        None, description="What happens to the run when its client goes away; `server.on_disconnect` when left out."
    )

    def check(self) -> None:
        """Raises :class:`~failsoft.base.errors.BadInput` for what does not go together."""
        if not self.background:
            return
        for name, given in (("stream", self.stream), ("strict", self.strict)):
            if given:
                raise BadInput(f"{name}: a background run answers at once; watch its events instead", param=name)
        if self.on_disconnect == "cancel":
            raise BadInput("on_disconnect: a background run has no client to wait for", param="on_disconnect")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, never more than `limit` bytes of it."""
    declared = request.headers.get("content-length")
    too_large = declared is not None and declared.isdecimal() and int(declared) > limit
    if too_large and request.headers.get("expect") is not None:
        raise _too_large(limit)  # it waits for a word before it sends
    body = bytearray()
    parts = request.stream()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while not too_large:
                part = await anext(parts, None)
                if part is None:
                    return bytes(body)
                body += part
                too_large = len(body) > limit
        body.clear()
        await _discard(parts)
    except TimeoutError:
        raise RequestTimeout(f"the body did not come within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise RequestTimeout("the client went away before its body was complete") from None
    raise _too_large(limit)


async def _discard(parts: AsyncGenerator[bytes, None]) -> None:
    seen = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARDED_SECONDS):
            async for part in parts:
                seen += len(part)
                if seen > DISCARDED_BYTES:
                    return


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over {limit} bytes", param="input", details={"limit_bytes": limit})


def run_body(raw: bytes) -> RunBody:
    """The request in `raw`; every mistake is a :class:`~failsoft.base.errors.BadInput` that names its field."""
    body = parsed(RunBody, raw, like='{"input": "…"}')
    body.check()
    return body


def parsed(model: type[M], raw: bytes, *, like: str) -> M:
    """The body that `raw` is; raises :class:`~failsoft.base.errors.BadInput`, which names the field."""
    if not raw.strip():
        raise BadInput(f"the body is empty; it should be JSON like {like}", param="body")
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = str(first["loc"][0]) if first["loc"] else "body"
        if first["type"] == "json_invalid":
            raise BadInput("the body is not JSON", param="body") from None
        if first["type"] == "extra_forbidden":
            known = ", ".join(model.model_fields)
            raise BadInput(f"{where[:80]}: unknown field; known are {known}", param=where[:80]) from None
        message = first["msg"].replace("Input should", "should").replace("String should", "should")
        raise BadInput(f"{where}: {message}", param=where) from None


_HEADERS = (("x-max-wait", "s"), ("x-request-timeout-ms", "ms"), ("x-envoy-expected-rq-timeout-ms", "ms"))


def budget_of(body: RunBody, request: Request, *, maximum: float) -> float | None:
    """The run's budget in seconds: the body's, else the shortest that a header (or ``?max_wait=``) names, else None.

    What Envoy announces is its own limit and not the caller's wish: over the maximum it is cut, where the others are
    refused.
    """
    if body.budget_ms is not None:
        return _checked(body.budget_ms / 1000, "budget_ms", maximum)
    found: list[float] = []
    given = [(name, request.headers.get(name), unit) for name, unit in _HEADERS]
    given.append(("max_wait", request.query_params.get("max_wait"), "s"))
    for name, text, unit in given:
        if text is None:
            continue
        try:
            seconds = parse_duration(text + "ms" if unit == "ms" else text)
        except ValueError as error:
            raise BadInput(f"{name}: {error}", param=name) from None
        if name.startswith("x-envoy"):
            seconds = min(seconds, maximum)
        found.append(_checked(seconds, name, maximum))
    return min(found, default=None)


def spent(request: Request, sources: Sources) -> float:
    """Seconds of the client's budget that are gone: in front of us, by ``X-Start-Time``, and until the loop had time.

    A start in the future is a clock that differs, and counts as now.
    """
    now = asyncio.get_running_loop().time()
    here = float(max(0.0, now - request.scope.get(ARRIVED, now)))
    given = request.headers.get("x-start-time")
    if given is None:
        return here
    return max(here, sources.wall() - start_time(given))


def _checked(seconds: float, param: str, maximum: float) -> float:
    if not seconds > 0:
        raise BadInput(f"{param}: a budget is more than 0", param=param)
    if seconds > maximum:
        raise BadInput(f"{param}: the longest budget is {maximum:g} s", param=param, details={"maximum_s": maximum})
    return seconds


def idempotency_key(request: Request) -> str | None:
    """The ``Idempotency-Key``, when there is one; anything but 1 to 255 visible ASCII characters is refused."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1 or not _KEY.fullmatch(given[0]):
        raise BadInput("Idempotency-Key: one, of 1 to 255 visible characters", param="Idempotency-Key")
    return str(given[0])


def limit_of(request: Request, *, default: int = 50, most: int = 200) -> int:
    """``?limit=``: how many entries a page has."""
    given = request.query_params.get("limit")
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) < 6 and 1 <= int(given) <= most):
        raise BadInput(f"limit: should be a number from 1 to {most}", param="limit")
    return int(given)


def known_query(request: Request, *names: str) -> None:
    """Refuses query parameters that nothing reads: a misspelt filter would filter nothing."""
    for name in request.query_params:
        if name not in names:
            known = ", ".join(names) or "none"
            raise BadInput(f"{name[:80]}: unknown parameter; known are {known}", param=name[:80])


def request_id(request: Request, sources: Sources) -> str:
    """The client's ``X-Request-ID`` when it is a sound one, else a new one."""
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else sources.new_id("req")
