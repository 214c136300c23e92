"""Cleaning what goes into a model and what comes out: cut inputs, limit notes, runaway repetition.

Tolerant reading of JSON is in :mod:`failsoft.models.loose_json`; :func:`clean_json` is here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from failsoft.models.loose_json import clean_json, strip_fences

__all__ = ["RepetitionWatch", "clean_json", "cut_input", "limit_note", "repeated_tail", "strip_fences"]

# --- repetition ----------------------------------------------------------------------------------------------------

_PROBE: Final = 12
"""Characters of the end that are looked for before it."""
_TRIES: Final = 48
"""Periods that are tried before a text is taken for not repeating."""
_WINDOW: Final = 8192
"""Characters of the end that are looked at."""


def repeated_tail(text: str, *, times: int = 8, least: int = 240, window: int = _WINDOW) -> int | None:
    """Where a text begins to repeat itself until its end: ``text[:position]`` keeps one copy of what is repeated.

    None unless the end is the same piece at least `times` times over, `least` characters in all, within the last
    `window` characters. Bounded cost: some ten microseconds, however long the text is.
    """
    if len(text) < least or times < 2:
        return None
    tail = text[-window:]
    size = len(tail)
    probe = tail[-_PROBE:]
    end = size - 1
    for _ in range(_TRIES):
        found = tail.rfind(probe, 0, end)
        if found < 0:
            return None
        period = size - _PROBE - found
        end = found + _PROBE - 1
        span = max(period * times, least)
        if span > size:
            return None
        if tail[size - span : size - period] == tail[size - span + period :]:
            start = _reach(tail, size - span, period)
            # one copy stays, so what is kept says it once
            return len(text) - size + start + period
    return None


def _reach(tail: str, start: int, period: int) -> int:
    """How far before `start` the same period goes on, by doubling steps and then halving them."""
    step = 64
    while step:
        before = start - step
        if before >= 0 and tail[before:start] == tail[before + period : start + period]:
            start = before
            step *= 2
        else:
            step //= 2
    return start


class RepetitionWatch:
    """:func:`repeated_tail` for streams: looks at the end after every ``every`` characters, and keeps no more of the
    text than it looks at.
    """

    __slots__ = ("_every", "_fresh", "_least", "_length", "_pieces", "_tail", "_times", "_window")

    def __init__(self, *, times: int = 8, least: int = 240, window: int = _WINDOW, every: int = 256) -> None:
        self._times = times
        self._least = least
        self._window = window
        self._every = every
        self._tail = ""
        self._pieces: list[str] = []
        self._fresh = 0
        self._length = 0

    def feed(self, piece: str) -> int | None:
        """Takes the next piece; the position in the whole text from which it only repeats itself, or None."""
        self._pieces.append(piece)
        self._fresh += len(piece)
        self._length += len(piece)
        if self._fresh < self._every:
            return None
        self._tail = (self._tail + "".join(self._pieces))[-self._window :]
        self._pieces.clear()
        self._fresh = 0
        found = repeated_tail(self._tail, times=self._times, least=self._least, window=self._window)
        return None if found is None else self._length - len(self._tail) + found

    def __repr__(self) -> str:
        return f"<RepetitionWatch characters={self._length}>"


# --- inputs --------------------------------------------------------------------------------------------------------

_MESSAGE: Final = 4
"""Tokens that a message takes beside its text."""
_ROUNDS: Final = 64
"""Long texts that are shortened before an input is sent as it is."""
_SHORTEST: Final = 200
"""Characters below which a text is not shortened further."""

CUT_MARK: Final = "[… {count} messages left out …]"
TEXT_MARK: Final = "\n[… {count} characters left out …]\n"


def limit_note(max_tokens: int) -> str:
    """A sentence for the prompt that tells a model its output limit, so that it ends in time instead of being cut."""
    words = max(1, int(max_tokens * 0.6))
    return (
        f"Your answer is cut off after {max_tokens} tokens (about {words} words): keep it shorter than that "
        "and end it properly."
    )


def cut_input(
    messages: Sequence[Mapping[str, Any]], budget_tokens: int, estimate: Callable[[str], int]
) -> list[dict[str, Any]]:
    """The conversation cut to about `budget_tokens` by `estimate` (tokens of a text), keeping what instructs.

    Kept: system messages, the first and the last user message and all after the last one (the tool calls under way).
    The oldest of the rest goes first, a call always together with its results, with a mark where something is missing;
    then long texts lose their middle, tool results first, the last user message last. Nothing is changed in place;
    an input that fits comes back as it is. When even the shortest form does not fit, that form is returned.
    """
    kept: list[dict[str, Any]] = [dict(message) for message in messages]
    costs = [_cost(message, estimate) for message in kept]
    over = sum(costs) - budget_tokens
    if over <= 0:
        return kept
    users = [index for index, message in enumerate(kept) if message.get("role") == "user"]
    last = users[-1] if users else len(kept) - 1
    fixed = {index for index, message in enumerate(kept) if message.get("role") in {"system", "developer"}}
    fixed.update(users[:1], range(last, len(kept)))
    gone: set[int] = set()
    mark = estimate(CUT_MARK) + _MESSAGE
    for group in _groups(kept, fixed):
        if over <= 0:
            break
        over -= sum(costs[index] for index in group) - (0 if gone else mark)
        gone.update(group)
    result: list[dict[str, Any]] = []
    for index, message in enumerate(kept):
        if index not in gone:
            result.append(message)
        elif index - 1 not in gone:
            run = index
            while run in gone:
                run += 1
            result.append({"role": "user", "content": CUT_MARK.format(count=run - index)})
    if over > 0:
        _shorten(result, over, estimate)
    return result


def _cost(message: Mapping[str, Any], estimate: Callable[[str], int]) -> int:
    total = _MESSAGE
    content = message.get("content")
    if isinstance(content, str):
        total += estimate(content)
    elif isinstance(content, list):
        total += sum(estimate(text) for part in content if isinstance(text := _text(part), str))
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            total += _MESSAGE + estimate(f"{function.get('name')}{function.get('arguments')}")
    return total


def _text(part: Any) -> Any:
    return part.get("text") if isinstance(part, dict) else None


def _groups(messages: list[dict[str, Any]], fixed: set[int]) -> list[list[int]]:
    """What may go, oldest first; an assistant's calls and their results are one."""
    groups: list[list[int]] = []
    for index, message in enumerate(messages):
        if index in fixed:
            continue
        if message.get("role") in {"tool", "function"} and groups and groups[-1][-1] == index - 1:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _shorten(messages: list[dict[str, Any]], over: int, estimate: Callable[[str], int]) -> None:
    """Takes the middle out of long texts until `over` tokens are gone; in place, the messages are copies."""
    last = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=len(messages) - 1)

    def rank(index: int) -> int:
        role = messages[index].get("role")
        if role in {"tool", "function"}:
            return 0
        if role in {"system", "developer"}:
            return 2
        return 3 if index == last else 1

    texts = [
        (rank(index), -len(message["content"]), index)
        for index, message in enumerate(messages)
        if isinstance(message.get("content"), str) and len(message["content"]) > _SHORTEST
    ]
    for _, _, index in sorted(texts)[:_ROUNDS]:
        if over <= 0:
            return
        text = messages[index]["content"]
        tokens = max(1, estimate(text))
        wanted = max(0, tokens - over - 8)
        size = max(_SHORTEST, int(len(text) * wanted / tokens))
        shorter = _without_middle(text, size)
        while size > _SHORTEST and tokens - estimate(shorter) < over:  # the middle was cheaper than the rest
            size = max(_SHORTEST, int(size * 0.8))
            shorter = _without_middle(text, size)
        over -= tokens - estimate(shorter)
        messages[index]["content"] = shorter


def _without_middle(text: str, size: int) -> str:
    """The first two and the last third of `size` characters: instructions stand at the beginning or the end."""
    if len(text) <= size + len(TEXT_MARK):
        return text
    head = size * 2 // 3
    tail = size - head
    return text[:head] + TEXT_MARK.format(count=len(text) - size) + text[len(text) - tail :]
