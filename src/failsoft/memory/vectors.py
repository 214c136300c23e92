"""Texts found again by what they mean: exact search over the vectors of an embedder, each tenant apart.

The search compares with every vector of a space, in one product of numpy; for the 10 000 texts that a space may have
that takes a millisecond or two, and it is exact. An :class:`Embedder` is whatever makes vectors of texts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from failsoft.base.errors import BadInput, MalformedResult

__all__ = ["Embedder", "Hit", "VectorMemory"]

_TEXT: Final = 8_000
"""Characters of a text that are kept and embedded."""
_AT_ONCE: Final = 256
"""Texts that are embedded by one call."""


@runtime_checkable
class Embedder(Protocol):
    """Makes vectors of texts; under the current deadline."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector for each text, all of one length; raises typed errors."""
        ...


class Hit(NamedTuple):
    """A text that was found: ``score`` is the cosine of the angle to the question, 1 for the same direction."""

    id: str
    text: str
    score: float
    data: Mapping[str, Any]
    age: float


class _Space:
    """One tenant's texts; rows of the matrix are in the order of ``rows``."""

    __slots__ = ("items", "matrix", "rows")

    def __init__(self) -> None:
        self.items: OrderedDict[str, tuple[str, Mapping[str, Any], float, Any]] = OrderedDict()
        self.matrix: Any = None
        self.rows: list[str] = []


class VectorMemory:
    """At most ``entries`` texts for each space, and ``spaces`` of them; the oldest go first."""

    def __init__(
        self, embedder: Embedder, clock: Callable[[], float], *, entries: int = 10_000, spaces: int = 200
    ) -> None:
        if entries < 1 or spaces < 1:
            raise BadInput("entries and spaces must be at least 1", param="memory")
        self._embedder = embedder
        self._clock = clock
        self._entries = entries
        self._spaces_most = spaces
        self._spaces: OrderedDict[str, _Space] = OrderedDict()
        self._length: int | None = None

    async def add(self, space: str, texts: Mapping[str, str], data: Mapping[str, Any] | None = None) -> None:
        """Keeps texts by their ids, a later one of the same id in place of an earlier; `data` goes with each.

        Nothing is kept when the embedder fails.
        """
        if len(texts) > self._entries:
            raise BadInput(f"at most {self._entries} texts fit", param="texts")
        for name, text in texts.items():
            if not text.strip():
                raise BadInput(f"text {name[:80]!r} is empty", param="texts")
        short = {name: text[:_TEXT] for name, text in texts.items()}
        names = list(short)
        vectors: list[Any] = []
        for start in range(0, len(names), _AT_ONCE):
            part = [short[name] for name in names[start : start + _AT_ONCE]]
            vectors.extend(self._sound(await self._embedder.embed(part), len(part)))
        kept = self._spaces.setdefault(space, _Space())
        self._spaces.move_to_end(space)
        now = self._clock()
        for name, vector in zip(names, vectors, strict=True):
            kept.items.pop(name, None)
            kept.items[name] = (short[name], dict(data or {}), now, vector)
        while len(kept.items) > self._entries:
            kept.items.popitem(last=False)
        kept.matrix = None
        while len(self._spaces) > self._spaces_most:
            self._spaces.popitem(last=False)

    async def search(self, space: str, question: str, *, limit: int = 5, least: float = 0.0) -> list[Hit]:
        """The texts nearest in meaning, best first, none below the score `least`."""
        import numpy as np

        kept = self._spaces.get(space)
        if kept is None or not kept.items or not question.strip() or limit < 1:
            return []
        (vector,) = self._sound(await self._embedder.embed([question[:_TEXT]]), 1)
        if not kept.items:
            return []
        self._spaces.move_to_end(space)
        if kept.matrix is None:
            kept.rows = list(kept.items)
            kept.matrix = np.stack([item[3] for item in kept.items.values()])
        scores = kept.matrix @ vector
        best = np.argsort(-scores, kind="stable")[:limit]
        now = self._clock()
        found = []
        for row in best:
            score = float(scores[row])
            if score < least:
                break
            text, data, at, _ = kept.items[kept.rows[row]]
            found.append(Hit(kept.rows[row], text, score, data, now - at))
        return found

    def forget(self, space: str, name: str) -> bool:
        """Forgets a text; whether there was one."""
        kept = self._spaces.get(space)
        if kept is None or kept.items.pop(name, None) is None:
            return False
        kept.matrix = None
        return True

    def _sound(self, vectors: Sequence[Sequence[float]], number: int) -> list[Any]:
        """The vectors as rows of length one; raises :class:`MalformedResult` when they are none."""
        import numpy as np

        try:
            rows = np.asarray(vectors, dtype=np.float32)
        except (TypeError, ValueError):
            raise MalformedResult("the embedder's vectors are no numbers of one length") from None
        if rows.ndim != 2 or len(rows) != number or rows.shape[1] == 0 or not np.isfinite(rows).all():
            raise MalformedResult(f"the embedder gave no {number} sound vectors")
        if self._length is None:
            self._length = rows.shape[1]
        if rows.shape[1] != self._length:
            raise MalformedResult(f"the embedder's vectors have {rows.shape[1]} numbers, not {self._length} as before")
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not (lengths > 0).all():
            raise MalformedResult("the embedder gave a vector of zeros")
        return list(rows / lengths)

    def __len__(self) -> int:
        return sum(len(kept.items) for kept in self._spaces.values())

    def __repr__(self) -> str:
        return f"<VectorMemory spaces={len(self._spaces)} texts={len(self)}>"
