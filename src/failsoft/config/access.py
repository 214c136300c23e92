"""Who may call: API keys, kept as digests, with their tenant and what each may use."""

from __future__ import annotations

import re

from pydantic import field_validator, model_validator

from failsoft.config.keys import Section, key

__all__ = ["KeySettings", "parse_rate"]

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_RATE = re.compile(
    r"\s*([1-9][0-9]{0,8})\s*/\s*(?:([1-9][0-9]{0,5})\s*)?(s|second|m|minute|h|hour|d|day)s?\s*", re.ASCII
)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_rate(text: str) -> tuple[int, float]:
    """A number of calls and the seconds they are for, from ``100/minute``, ``5/s`` or ``1000 / 10 minutes``."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError("should be a rate: 100/minute, 5/s, 1000/10 minutes")
    return int(match[1]), int(match[2] or 1) * _SECONDS[match[3][0]]


class KeySettings(Section):
    """One API key. Without any key everybody may call."""

    hash: str = key(..., 'The key\'s digest, `sha256:…`: `printf %s "$KEY" | sha256sum`.', scope="process")
    tenant: str | None = key(
        None, "Whose key it is: caches, queues and logs keep tenants apart. Default: the key's name.", scope="process",
        min_length=1, max_length=128,
    )  # fmt: skip
    rate: str | None = key(
        None, "Calls per time, like `100/minute`; more are answered 429. Default: no limit.", scope="process"
    )
    burst: int | None = key(
        None, "Calls of the rate that may come at once. Default: all of them.", scope="process", ge=1
    )
    concurrent: int | None = key(
        None, "Calls in flight at most; more are answered 429. Default: no limit.", scope="process", ge=1
    )
    models: tuple[str, ...] = key(
        (), "The aliases that it may use; others are answered 403. Default: all.", scope="process"
    )

    @model_validator(mode="after")
    def _burst_of_a_rate(self) -> KeySettings:
        if self.burst is not None and self.rate is None:
            raise ValueError("burst needs a rate")
        return self

    @field_validator("hash")
    @classmethod
    def _digest(cls, value: str) -> str:
        if not _DIGEST.fullmatch(value):
            raise ValueError("should be sha256: and 64 hexadecimal digits; the key itself is not written down")
        return value

    @field_validator("rate")
    @classmethod
    def _rate(cls, value: str | None) -> str | None:
        if value is not None:
            parse_rate(value)
        return value
