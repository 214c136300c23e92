"""What was said before, cut to what a model can take, and told so that it accepts it.

A window keeps the newest of a conversation in so many tokens; what falls out of it can be summed up by a model, within
its own small limit, or else is named as left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

__all__ = ["NOT_DONE", "Summariser", "Wire", "sound", "summarised", "window"]

Wire = dict[str, Any]
"""A message in the OpenAI format."""
Summariser = Callable[[str], Awaitable[str]]
"""Sums a text up."""

NOT_DONE: Final = '{"error": {"code": "cancelled", "message": "the call was cancelled before it had a result"}}'
"""The result of a call that has none."""
_LEFT_OUT: Final = "(Earlier parts of this conversation were left out: {count} messages.)"
_SUMMARY: Final = "(Earlier in this conversation, summed up: {text})"
_SUMMED: Final = 24_000
"""Characters that are summed up at most, the newest."""
_SUMMARY_LENGTH: Final = 2_000
"""Characters of a summary that are kept."""


def sound(messages: Sequence[Mapping[str, Any]]) -> list[Wire]:
    """The same conversation with every call answered, and without results that answer none."""
    made: list[Wire] = []
    waiting: list[str] = []

    def settle() -> None:
        made.extend({"role": "tool", "tool_call_id": one, "content": NOT_DONE} for one in waiting)
        waiting.clear()

    for message in messages:
        if message.get("role") == "tool":
            call = message.get("tool_call_id")
            if call in waiting:
                waiting.remove(call)
                made.append(dict(message))
            continue
        settle()
        made.append(dict(message))
        waiting.extend(str(call.get("id")) for call in message.get("tool_calls") or ())
    settle()
    return made


def window(
    messages: Sequence[Wire],
    limit: float,
    count: Callable[[Wire], float],
    *,
    keep: Collection[int] = (),
    summary: str = "",
) -> list[Wire]:
    """The newest messages of at most `limit` tokens by `count`; system prompts and those at `keep` stay.

    Calls and their results are kept or left out together; where something is left out, its `summary` takes its place,
    or a note that says so.
    """
    costs = [count(message) for message in messages]
    if sum(costs) <= limit:
        return list(messages)
    kept = {i for i, m in enumerate(messages) if m["role"] == "system" or i in keep}
    left = limit - sum(costs[i] for i in kept)
    groups: list[list[int]] = []
    for i, message in enumerate(messages):
        if i in kept:
            continue
        if message["role"] == "tool" and groups and groups[-1][-1] == i - 1:
            groups[-1].append(i)
        else:
            groups.append([i])
    for group in reversed(groups):
        cost = sum(costs[i] for i in group)
        if cost > left:
            break
        left -= cost
        kept.update(group)
    dropped = len(messages) - len(kept)
    chosen = [messages[i] for i in sorted(kept)]
    if dropped:
        head = next((i for i, m in enumerate(chosen) if m["role"] != "system"), len(chosen))
        note = _SUMMARY.format(text=summary) if summary else _LEFT_OUT.format(count=dropped)
        chosen.insert(head, {"role": "user", "content": note})
    return chosen


async def summarised(
    messages: Sequence[Wire],
    limit: float,
    count: Callable[[Wire], float],
    summarise: Summariser | None = None,
    *,
    keep: Collection[int] = (),
) -> tuple[list[Wire], str | None]:
    """:func:`window`, with what falls out of it summed up; and the code of the error when that failed.

    `summarise` is awaited under the current deadline, and only when something falls out; when it fails, the window says
    that something was left out, as it does without one.
    """
    short = window(messages, limit, count, keep=keep)
    there = {id(message) for message in short}
    lost = [m for m in messages if id(m) not in there]
    if summarise is None or not lost:
        return short, None
    told = "\n".join(f"{m['role']}: {m.get('content') or ''}" for m in lost)[-_SUMMED:]
    try:
        text = (await summarise(told)).strip()
    except Exception as error:  # noqa: BLE001 - whatever a summariser raises costs the conversation only its summary
        return short, str(getattr(error, "code", "tool_failed"))
    return window(messages, limit, count, keep=keep, summary=text[:_SUMMARY_LENGTH]), None
