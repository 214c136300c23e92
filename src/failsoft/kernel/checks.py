"""What a call may be told: options that make no sense are refused before anything is held for it."""

from __future__ import annotations

import math
import sys
from numbers import Real
from typing import Any, Final, get_args

from failsoft.base.outcomes import Kind, Priority

__all__ = ["check_options", "is_whole"]

_KINDS: Final = frozenset(get_args(Kind))
_PRIORITIES: Final = range(len(Priority.NAMES))


def check_options(kind: object, priority: object, tenant: object, timeout: Any, size: Any) -> None:
    """Raises ``ValueError`` or ``TypeError`` naming the option that is wrong; None stands for one that was not given.

    A timeout may be infinite, or already over; it may not be NaN, which is neither before nor after anything.
    """
    if kind is not None and kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(sorted(_KINDS))}, not {kind!r}")
    if priority is not None and priority not in _PRIORITIES:
        raise ValueError(f"priority must be one of 0 (critical), 1 (normal) and 2 (optional), not {priority!r}")
    if tenant is not None and not isinstance(tenant, str):
        raise TypeError(f"tenant must be a text, not a {type(tenant).__name__}")
    if timeout is not None and (not _is_number(timeout) or math.isnan(timeout)):
        raise ValueError(f"timeout must be a number of seconds, not {timeout!r}")
    if not _is_number(size) or not 0 < size <= sys.float_info.max:
        raise ValueError(f"size must be a finite number above 0, not {size!r}")


def is_whole(value: object, least: int) -> bool:
    """Whether `value` is a whole number, and `least` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return type(value) in (int, float) or isinstance(value, Real)  # the first costs a tenth
