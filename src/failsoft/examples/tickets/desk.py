"""A ticket system to try things on: tickets in a JSON file, made at most once for each idempotency key.

It stands for somebody else's system: another process, slow at times, that has done its work also when the answer was
lost. Two processes may use one file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from failsoft.base.errors import BadInput

__all__ = ["Priority", "Ticket", "TicketDesk"]

Priority = Literal["low", "normal", "high"]

_MOST: Final = 10_000
"""Tickets that a desk has room for."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ticket; ``key`` is the idempotency key that it was made with."""

    number: int
    title: str
    priority: str
    key: str


class TicketDesk:
    """The tickets in one file. Its methods block for as long as the file takes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, title: str, priority: Priority, key: str) -> Ticket:
        """Makes a ticket; the same `key` again gives the ticket that was made then, whatever else is asked."""
        with self._locked():
            tickets = self._read()
            for ticket in tickets:
                if ticket.key == key:
                    return ticket
            if len(tickets) >= _MOST:
                raise BadInput("the desk is full")
            made = Ticket(len(tickets) + 1, title, priority, key)
            half = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
            half.write_text(json.dumps([asdict(one) for one in (*tickets, made)], ensure_ascii=False), "utf-8")
            half.replace(self.path)
        return made

    def find(self, text: str) -> list[Ticket]:
        """Tickets in whose title a word of `text` stands, the newest first."""
        words = {word for word in text.casefold().split() if len(word) > 3 or not word.isascii()}
        return [one for one in reversed(self.all()) if any(word in one.title.casefold() for word in words)][:20]

    def all(self) -> list[Ticket]:
        """Every ticket, in the order they were made."""
        return self._read()

    def _read(self) -> list[Ticket]:
        try:
            data: list[dict[str, Any]] = json.loads(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return []
        return [Ticket(**one) for one in data]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(f".{self.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def __repr__(self) -> str:
        return f"<TicketDesk {self.path}>"
