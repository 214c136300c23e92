"""How many tokens a text has, without a tokenizer: by script, then corrected by what upstreams report.

Counting letters, digits, marks and characters of other scripts needs a few passes over the bytes in C; the weights are
those of current vocabularies on average. For limits and for cutting inputs this is enough, and the ratio between
reported and estimated counts is learned per model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

__all__ = ["TokenEstimate", "raw_count"]

_LETTERS: Final = bytes(range(65, 91)) + bytes(range(97, 123))
_NOT_MARKS: Final = _LETTERS + b"0123456789 \n\r\t" + bytes(range(128, 256))
_ASCII: Final = bytes(range(128))
_WIDE_LEADS: Final = bytes(range(0xE3, 0xEE))
"""First bytes of CJK, kana and Hangul in UTF-8 (U+3000 to U+DFFF)."""
_OTHER_LEADS: Final = bytes(range(0xC0, 0xE3)) + b"\xee\xef"

# Least squares over our own pages, sources and questions in both scripts, between the vocabularies o200k and qwen3.
_PER_LETTER: Final = 0.216
_PER_SPACE: Final = 0.13
_PER_DIGIT: Final = 1.0
_PER_MARK: Final = 0.48
_PER_LINE: Final = 0.6
_PER_WIDE: Final = 0.7
_PER_OTHER: Final = 0.36
_PER_FOUR: Final = 1.5

_MESSAGE: Final = 4
_REPLY: Final = 3
_IMAGE: Final = 800
"""Tokens of a picture, sound or file whose size is not known."""

_encode = msgspec.json.Encoder().encode


def raw_count(text: str) -> float:
    """The estimate before correction."""
    data = text.encode("utf-8", "surrogatepass")
    size = len(data)
    rest = data.translate(None, _LETTERS)
    letters = size - len(rest)
    tokens = letters * _PER_LETTER
    if not rest:
        return tokens
    marks = rest.translate(None, _NOT_MARKS)
    spaces = rest.count(b" ")
    lines = rest.count(b"\n")
    tokens += len(marks) * _PER_MARK + spaces * _PER_SPACE + lines * _PER_LINE
    if len(data) == len(text):
        digits = len(rest) - len(marks) - spaces - lines
        return tokens + max(0, digits) * _PER_DIGIT
    beyond = rest.translate(None, _ASCII)
    digits = len(rest) - len(beyond) - len(marks) - spaces - lines
    wide = len(beyond) - len(beyond.translate(None, _WIDE_LEADS))
    other = len(beyond) - len(beyond.translate(None, _OTHER_LEADS))
    four = len(text) - (size - len(beyond)) - wide - other
    return tokens + max(0, digits) * _PER_DIGIT + wide * _PER_WIDE + other * _PER_OTHER + max(0, four) * _PER_FOUR


class TokenEstimate:
    """Estimates per model. ``weight`` is the share of each new report in the learned ratio, which stays within
    ``least`` and ``most``; at most ``models`` ratios are kept, least recently reported out first.
    """

    __slots__ = ("_ratios", "least", "models", "most", "weight")

    def __init__(self, *, weight: float = 0.1, least: float = 0.25, most: float = 4.0, models: int = 256) -> None:
        if not (0 < weight <= 1 and 0 < least <= 1 <= most and models >= 1):
            raise ValueError("needs 0 < weight <= 1, least <= 1 <= most and models >= 1")
        self.weight = weight
        self.least = least
        self.most = most
        self.models = models
        self._ratios: OrderedDict[str, float] = OrderedDict()

    def ratio(self, model: str | None) -> float:
        """Reported over estimated tokens, as learned; 1 for a model not yet seen."""
        return 1.0 if model is None else self._ratios.get(model, 1.0)

    def count(self, text: str, model: str | None = None) -> int:
        """Tokens of a text."""
        return round(raw_count(text) * self.ratio(model) + 0.5) if text else 0

    def count_messages(
        self, messages: Iterable[Mapping[str, Any]], model: str | None = None, *, tools: Any = None
    ) -> int:
        """Tokens of a conversation and of the tools offered with it."""
        return round(self.raw_messages(messages, tools=tools) * self.ratio(model) + 0.5)

    def raw_messages(self, messages: Iterable[Mapping[str, Any]], *, tools: Any = None) -> float:
        """The estimate before correction, for :meth:`observe`."""
        total: float = _REPLY
        texts: list[str] = []  # counted together: the estimate is a sum over characters
        for message in messages:
            total += _MESSAGE
            content = message.get("content")
            if type(content) is str:
                texts.append(content)
            elif type(content) is list:
                for part in content:
                    text = part.get("text") if isinstance(part, dict) else None
                    if isinstance(text, str):
                        texts.append(text)
                    else:
                        total += _IMAGE
            calls = message.get("tool_calls")
            if calls:
                texts.append(_encode(calls).decode())
        if tools:
            texts.append(_encode(tools).decode())
        return total + raw_count("".join(texts))

    def observe(self, model: str, estimated: float, reported: int | None) -> None:
        """Learns from a report: `estimated` by :meth:`raw_messages` or :func:`raw_count`, `reported` in the usage.

        Small prompts (fewer than 20 tokens) teach nothing, since what a template adds outweighs them.
        """
        if not isinstance(reported, int) or reported < 20 or not estimated >= 20:
            return
        seen = min(self.most, max(self.least, reported / estimated))
        known = self._ratios.get(model)
        # the first report counts in full: any tokenizer's truth beats no knowledge
        self._ratios[model] = seen if known is None else known + self.weight * (seen - known)
        self._ratios.move_to_end(model)
        if len(self._ratios) > self.models:
            self._ratios.popitem(last=False)

    def __repr__(self) -> str:
        return f"<TokenEstimate models={len(self._ratios)}>"
