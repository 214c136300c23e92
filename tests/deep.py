"""Two depths of the same tests: what the everyday suite tries, and all of it (``make test-deep``)."""

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

DEEP = bool(os.environ.get("TEST_DEEP"))
"""Whether exhaustive searches and properties run at their full depth."""


def depth(everyday: int, deep: int) -> int:
    """How many examples, worlds or rounds to try."""
    return deep if DEEP else everyday


def some_of(every: Iterable[T], *, each: int) -> Sequence[T]:
    """All of them in the deep suite; of every `each` the first in the everyday one."""
    return list(every)[:: 1 if DEEP else each]
