"""Long text in pieces that a person can read as they come: split after punctuation, Chinese and Western alike.

A stream of words puts a space between them where it can be broken; Chinese has none, so a long chunk would appear at
once. The pieces put together are the text, to the letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["pieces"]

_LONG: Final = 64
"""Characters of a piece that need no splitting."""
_LEAST: Final = 12
"""Characters that a piece has at least, but the last."""

_ENDS: Final = (
    re.compile(r"\n+|[。！？；…]+[」』”’）》]*|[.!?;](?=\s)"),
    re.compile(r"[，、：,:]|\s"),
)
"""Where text is broken: best after a sentence, else after a part of one."""
_JOINED: Final = re.compile("[\u0300-\u036f\u200d\ufe00-\ufe0f\u20d0-\u20ff\U0001f3fb-\U0001f3ff]")
"""What belongs to the character before it."""


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of at most 64 characters (a few more where characters belong together)."""
    at = 0
    while len(text) - at > _LONG:
        cut = _cut(text, at)
        yield text[at:cut]
        at = cut
    if at < len(text):
        yield text[at:]


def _cut(text: str, at: int) -> int:
    for ends in _ENDS:
        found = at
        for match in ends.finditer(text, at + _LEAST, at + _LONG):
            found = match.end()
            if ends is _ENDS[0]:
                break  # the first sentence is a piece; the last comma is
        if found > at:
            return found
    cut = at + _LONG
    while cut < len(text) and (_JOINED.match(text, cut) or text[cut - 1] == "\u200d") and cut < at + 2 * _LONG:
        cut += 1
    return cut
