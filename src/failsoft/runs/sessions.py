"""Sessions: what was said before in a conversation, so that its next turn can refer to it.

A turn is a run that answered. The newest are kept in memory as runs end, for the store is written behind and another
turn may come before it; older ones, and those of other processes, are read from the store.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from failsoft.base.messages import Message
from failsoft.stores.protocols import StoredRun

__all__ = ["Sessions", "Turn", "messages_of", "turn_of"]

TURNS: Final = 10
"""Turns that the next one is told of."""
_TEXT: Final = 4_000
"""Characters of a question or an answer that the next turn is told; the rest is cut out of the middle."""
_SESSIONS: Final = 2_000
_CUT: Final = " … "


@dataclass(frozen=True, slots=True)
class Turn:
    """One question with its answer. ``created`` in UTC seconds since the epoch."""

    run: str
    created: float
    status: str
    input: str
    answer: str | None
    agent: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "run_id": self.run,
            "created": round(self.created, 3),
            "agent": self.agent,
            "status": self.status,
            "input": self.input,
            "answer": self.answer,
        }


class Sessions:
    """The newest turns of the 2 000 sessions that were used last, by tenant and session."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str | None, str], deque[Turn]] = OrderedDict()

    def add(self, tenant: str | None, session: str, turn: Turn) -> None:
        """A turn has ended."""
        key = (tenant, session)
        turns = self._kept.get(key)
        if turns is None:
            turns = self._kept[key] = deque(maxlen=TURNS)
            if len(self._kept) > _SESSIONS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        short = Turn(turn.run, turn.created, turn.status, _short(turn.input), _short(turn.answer or ""), turn.agent)
        turns.append(short)

    def recent(self, tenant: str | None, session: str) -> tuple[Turn, ...]:
        """What is kept in memory of a session, oldest first."""
        return tuple(self._kept.get((tenant, session), ()))

    def __repr__(self) -> str:
        return f"<Sessions kept={len(self._kept)}>"


def turn_of(stored: StoredRun) -> Turn:
    """The turn that a stored run is; its answer is None when there is none (yet)."""
    record = stored.record
    return Turn(
        record.run,
        record.created,
        stored.state,
        str(record.request.get("input", "")),
        (stored.result or {}).get("answer"),
        record.agent,
    )


def messages_of(*sources: Iterable[Turn]) -> tuple[Message, ...]:
    """The newest turns that have an answer, each once, as a conversation, oldest first."""
    turns = {turn.run: turn for source in sources for turn in source if turn.answer}
    newest = sorted(turns.values(), key=lambda turn: (turn.created, turn.run))[-TURNS:]
    said: list[Message] = []
    for turn in newest:
        said.append(Message("user", _short(turn.input)))
        said.append(Message("assistant", _short(turn.answer or "")))
    return tuple(said)


def _short(text: str) -> str:
    if len(text) <= _TEXT:
        return text
    head = (_TEXT - len(_CUT)) // 2
    return text[:head] + _CUT + text[len(text) - (_TEXT - len(_CUT) - head) :]
