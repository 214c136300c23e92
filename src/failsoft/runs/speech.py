"""What of a model's words reaches whoever listens to the run, and when.

Words of the answer are told as they come; words that only go with calls are thoughts. Which they are shows at the end
of a reply, so a reply that may still turn into calls is held back for its first sentence or so. What has been told is
part of the answer, whatever becomes of the rest: nobody hears a text that is not in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["Speech"]

_HELD: Final = 200
"""Characters of a reply that are held back while it may turn into calls."""
_PIECE: Final = 80
_PAUSE: Final = 0.05
"""An event for each so many characters, or after so many seconds, whichever is first."""
_MOST: Final = 400_000
"""Characters of one reply that are kept for an answer without its end."""


class Speech:
    """The words of one loop. ``tell(kind, text)`` is told of ``text.delta`` and ``thought.delta``; None: nobody is."""

    __slots__ = ("_calls", "_clock", "_kept", "_length", "_live", "_sent", "_tell", "_told_at", "_turn", "_waiting")

    def __init__(self, clock: Callable[[], float], tell: Callable[[str, str], Any] | None = None) -> None:
        self._clock = clock
        self._tell = tell
        self._kept = ""
        self._turn: list[str] = []
        self._length = 0
        self._sent = 0
        self._calls = False
        self._live = False
        self._told_at = clock()
        self._waiting: list[str] = []

    def begin(self, *, answering: bool) -> None:
        """A turn begins; when `answering`, its words are the answer."""
        self._turn, self._length, self._sent = [], 0, 0
        self._calls, self._live = False, answering
        self._told_at = self._clock()

    def said(self, text: str) -> None:
        """The model says something."""
        if self._length > _MOST:
            return
        self._turn.append(text)
        self._length += len(text)
        if self._live or (not self._calls and self._length > _HELD):
            self._live = True
            due = self._length - self._sent >= _PIECE or self._clock() - self._told_at >= _PAUSE
            if due:
                self._send("".join(self._turn)[self._sent :])

    def thought(self, text: str) -> None:
        """The model thinks something."""
        if self._tell is None:
            return
        self._waiting.append(text)
        if sum(map(len, self._waiting)) >= _PIECE or self._clock() - self._told_at >= _PAUSE:
            self._told_at = self._clock()
            self._tell("thought.delta", "".join(self._waiting))
            self._waiting = []

    def called(self) -> None:
        """The model begins to ask for calls."""
        self._calls = True

    def _send(self, text: str) -> None:
        if text:
            self._sent += len(text)
            self._told_at = self._clock()
            if self._tell is not None:
                self._tell("text.delta", text)

    def end(self, text: str, *, final: bool) -> None:
        """The turn is over with `text`; `final`: it is the answer."""
        if self._waiting and self._tell is not None:
            self._tell("thought.delta", "".join(self._waiting))
            self._waiting = []
        told = "".join(self._turn)[: self._sent]
        if not text.startswith(told):
            text = told
        self._turn, self._length = [], 0
        if final or self._sent:
            self._send(text[len(told) :])
            self._kept += text
            if not final and text:
                self._kept += "\n\n"
                if self._tell is not None:
                    self._tell("text.delta", "\n\n")
        elif text.strip() and self._tell is not None:
            self._tell("thought.delta", text)
        self._sent = 0

    @property
    def text(self) -> str:
        """The answer so far, with what is being said."""
        return self._kept + ("".join(self._turn) if self._live else "")

    def __repr__(self) -> str:
        return f"<Speech {len(self._kept)} characters>"
