"""A call's budget and id as they come in headers (T9), read from raw ASGI headers.

The shortest of what is announced holds, less the time that ``X-Start-Time`` says was spent in front of us, and never
more than is configured. A header that cannot be read is an error that names it: ignoring it would serve a client who
has gone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from failsoft.base.errors import BadInput
from failsoft.config.durations import parse_duration

__all__ = ["budget_of", "sound_id", "start_time"]

_MS_HEADERS: Final = (b"x-request-timeout-ms", b"x-envoy-expected-rq-timeout-ms")
_SOUND: Final = re.compile(rb"[\w.:/+=~-]{1,128}")
_START: Final = re.compile(r"(?:t=)?([0-9]{1,20}(?:\.[0-9]{1,9})?)", re.ASCII)


def budget_of(headers: Mapping[bytes, bytes], query: bytes, *, default: float, maximum: float, wall: float) -> float:
    """Seconds that the call has; may be 0 or less when all was spent in front. `wall`: seconds since the epoch.

    Raises :class:`~failsoft.base.errors.BadInput` whose ``param`` is the header, or ``max_wait`` of the query.
    """
    least = math.inf
    given = headers.get(b"x-max-wait")
    if given is not None:
        least = _duration("X-Max-Wait", given.decode("latin-1"), "")
    for name in _MS_HEADERS:
        given = headers.get(name)
        if given is not None:
            least = min(least, _duration(_titled(name), given.decode("latin-1"), "ms"))
    if query:
        for field, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if field == "max_wait":
                least = min(least, _duration("max_wait", value, ""))
    budget = min(default if least == math.inf else least, maximum)
    given = headers.get(b"x-start-time")
    if given is not None:
        budget -= max(0.0, wall - start_time(given.decode("latin-1")))
    return budget


def sound_id(headers: Mapping[bytes, bytes]) -> str | None:
    """The client's ``X-Request-ID``, if it is a sound one."""
    given = headers.get(b"x-request-id")
    if given is None or not _SOUND.fullmatch(given):
        return None
    return given.decode("ascii")


def _duration(name: str, text: str, unit: str) -> float:
    try:
        seconds = parse_duration(text.strip() + unit)
    except ValueError as error:
        raise BadInput(f"{name}: {error}", param=name) from None
    if not seconds > 0:
        raise BadInput(f"{name}: a budget is more than 0", param=name)
    return seconds


def start_time(text: str) -> float:
    """Seconds since the epoch, as nginx (``t=`` and seconds), Heroku (milliseconds) or Apache (microseconds) write."""
    match = _START.fullmatch(text.strip())
    if match is None:
        raise BadInput("X-Start-Time: should be a time since the epoch, like t=1735689600.123", param="X-Start-Time")
    number = float(match[1])
    for scale in (1.0, 1e3, 1e6, 1e9):
        if number / scale < 1e11:  # the year 5138
            return number / scale
    raise BadInput("X-Start-Time: is too large", param="X-Start-Time")


def _titled(name: bytes) -> str:
    return "-".join(part.capitalize() for part in name.decode().split("-"))
