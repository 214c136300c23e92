"""What tasks usually take, kept between invocations, so that a new process can say from the start how long it will be.

A small file in the cache; losing it costs nothing but estimates, so nothing that goes wrong with it is an error.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from failsoft.stores.memory import MemoryStore
from failsoft.stores.protocols import Duration

__all__ = ["FILE", "UsualTimes"]

FILE = "usual-times.json"
_BYTES = 2_000_000
_KEYS = 200
_PER_KEY = 20
"""What is kept at most: keys, and the newest durations of each."""


class UsualTimes:
    """Durations in seconds by key. Read before the loop runs and saved after it: files are not for the loop."""

    def __init__(self, known: Mapping[str, Sequence[float]]) -> None:
        self.known = known

    @classmethod
    @contextlib.contextmanager
    def kept_in(cls, folder: Path) -> Iterator[UsualTimes]:
        """Those in `folder`; what is known at the end of the block is left there."""
        times = cls(_read(folder / FILE))
        yield times
        kept = {key: list(values)[-_PER_KEY:] for key, values in list(times.known.items())[-_KEYS:]}
        half = folder / f"{FILE}.{os.getpid()}.part"
        with contextlib.suppress(OSError):
            try:
                half.write_text(json.dumps(kept), encoding="utf-8")
                half.replace(folder / FILE)
            finally:
                half.unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def store(self) -> AsyncIterator[MemoryStore]:
        """A store that begins with what is known and adds what it learns."""
        store = MemoryStore()
        await store.record_durations([Duration(key, value) for key, values in self.known.items() for value in values])
        try:
            yield store
        finally:
            self.known = await store.durations()

    def __repr__(self) -> str:
        return f"<UsualTimes keys={len(self.known)}>"


def _read(file: Path) -> dict[str, list[float]]:
    try:
        with file.open("rb") as stream:
            known = json.loads(stream.read(_BYTES))
        return {
            str(key): [
                float(value)
                for value in values[-_PER_KEY:]
                if isinstance(value, int | float) and math.isfinite(value) and value >= 0
            ]
            for key, values in list(known.items())[:_KEYS]
        }
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}
