"""How people write durations, in settings, flags and headers alike."""

from __future__ import annotations

import math
import re

__all__ = ["parse_duration"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|h|d)?\s*", re.ASCII)


def parse_duration(value: object) -> float:
    """Seconds from a number or from text like ``5``, ``2.5s``, ``800ms``, ``2m``, ``1h``; raises ``ValueError``."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and len(value) < 40 and (match := _DURATION.fullmatch(value)):
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
    else:
        raise ValueError("should be a duration: seconds, or a number with ms, s, m, h or d")
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError("should be a finite duration, not negative")
    return seconds
