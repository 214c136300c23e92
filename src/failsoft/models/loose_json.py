"""JSON as models write it: in fences, among prose, with other quotes, commas too many, full-width marks.

What is read is never more than what is there: a text that ends in the middle of a value is refused, not completed,
since arguments that were cut off must not become something that can be executed.

The order: strict; inside fences; the largest value inside prose; our own tolerant reading, in linear time; then
``json-repair``, if it is installed (extra ``models``), on at most 16 KB and with bounded work. Nesting is bounded
throughout.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, Final, SupportsIndex

import msgspec

from failsoft.base.errors import MalformedResult

__all__ = ["MAX_DEPTH", "clean_json", "strip_fences"]

MAX_DEPTH: Final = 64
"""Levels of nesting that are read."""
_MAX_STRICT: Final = 16 * 1024 * 1024
"""Characters that are read at all."""
_MAX_LOOSE: Final = 256 * 1024
"""Characters that are read tolerantly by us; longer texts must be JSON, in prose or fences at most."""
_MAX_REPAIR: Final = 16 * 1024
"""Characters that json-repair gets; at 10 µs each, more would hold up a loop."""
_REPAIR_LOOKS: Final = 8
"""Characters that it may look at for each one there is: usually it takes 3, but for 42 KB of stray quotes it took three
minutes.
"""
_STARTS: Final = 64
"""Places in prose at which a value is looked for."""

_decode = msgspec.json.Decoder().decode


def clean_json(text: str, *, finish_reason: str | None = None, truncated: bool = False) -> tuple[Any, list[str]]:
    """The value in a model's output, and notes on what had to be forgiven (empty when it was strict JSON).

    Raises :class:`~failsoft.base.errors.MalformedResult` and nothing else: when there is no value, when it is nested
    more than 64 levels deep, and when it was cut: `truncated`, ``finish_reason == "length"``, or by its own looks.
    """
    if truncated or finish_reason == "length":
        raise MalformedResult("the output was cut off: it is not read as JSON", details={"fault": "truncated"})
    if len(text) > _MAX_STRICT:
        raise MalformedResult(f"the output has more than {_MAX_STRICT} characters")
    try:
        return _read(text)
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> MalformedResult:
    return MalformedResult(f"the output is nested more than {MAX_DEPTH} levels deep", details={"fault": "depth"})


def _read(text: str) -> tuple[Any, list[str]]:
    body = text.strip()
    notes: list[str] = []
    if body.startswith("\ufeff"):
        body = body.lstrip("\ufeff").strip()
        notes.append("byte order mark")
    if not body:
        raise MalformedResult("the output is empty", details={"fault": "no_json"})
    value = _strict(body)
    if value is not _NOTHING:
        return value, notes
    inside = strip_fences(body)
    if inside != body:
        notes.append("code fence")
        value = _strict(inside)
        if value is not _NOTHING:
            return value, notes
    found = _largest(inside, _scan)
    if found is None and inside != body:
        found = _largest(body, _scan)
    if len(inside) <= _MAX_LOOSE:
        loose = _largest(inside, _read_loose)
        if loose is not None and (found is None or loose[1] > found[1]):
            return loose[0], [*notes, "loose punctuation"]
    if found is not None:
        return found[0], [*notes, "text around it"]
    value = _repaired(inside)
    if value is not _NOTHING:
        return value, [*notes, "repaired"]
    raise MalformedResult("there is no JSON in the output", details={"fault": "no_json"})


_NOTHING: Final = object()


def _strict(text: str) -> Any:
    """The value of strict JSON, else ``_NOTHING``."""
    try:
        value = _decode(text)
    except (msgspec.MsgspecError, ValueError):
        return _NOTHING
    _check_depth(value, text)
    return value


def _check_depth(value: Any, text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    stack = [(value, 1)]
    while stack:
        one, depth = stack.pop()
        if isinstance(one, dict | list):
            if depth > MAX_DEPTH:
                raise _too_deep()
            stack.extend((part, depth + 1) for part in (one.values() if isinstance(one, dict) else one))


# --- fences --------------------------------------------------------------------------------------------------------

_FENCE: Final = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_ONE_LINE: Final = re.compile(r"```(?:[A-Za-z0-9]+(?=[\s{\[]))?(.*)```", re.DOTALL)


def strip_fences(text: str) -> str:
    """What stands inside the first code fence of a text, without the fence; the text itself when there is none.

    A fence that is never closed ends with the text.
    """
    opening = _FENCE.search(text)
    if opening is None:
        short = _ONE_LINE.fullmatch(text.strip())
        return text if short is None else short[1].strip()
    for closing in _FENCE.finditer(text, opening.end()):
        same = closing[1][0] == opening[1][0] and len(closing[1]) >= len(opening[1])
        if same and not closing[2].strip():
            return text[opening.end() : closing.start()].strip()
    return text[opening.end() :].strip()


# --- values inside of prose ----------------------------------------------------------------------------------------


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity are no JSON


_scan: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode
_BRACKET: Final = re.compile(r"[\[{｛［]")
_DATA_BEGINS: Final = re.compile(r"""[\[{｛［]\s*["'“”＂‘{\[｛［]""")


def _largest(text: str, read: Callable[[str, int], tuple[Any, int]]) -> tuple[Any, int] | None:
    """The longest object or list that `read` finds in a text, with its length; None when there is none.

    Values inside of broken ones do not count; one that begins and never ends says that the output was cut.
    """
    best: tuple[Any, int] | None = None
    position = 0
    for _ in range(_STARTS):
        start = _BRACKET.search(text, position)
        if start is None:
            break
        begin = start.start()
        try:
            value, position = read(text, begin)
        except ValueError:
            end = _end_of(text, begin)
            if end is None:
                if _DATA_BEGINS.match(text, begin):
                    raise MalformedResult("the output ends in the middle", details={"fault": "truncated"}) from None
                position = begin + 1
            else:
                position = end
            continue
        if best is None or position - begin > best[1]:
            _check_depth(value, text[begin:position])
            best = (value, position - begin)
    return best


# --- tolerant reading ----------------------------------------------------------------------------------------------

_AFTER: Final = r"\s{0,20}(?:[,:}\]，：、｝］]|$|//|/\*)"
"""What follows a closing quote; an apostrophe inside a word does not end a string in single quotes."""

# Groups are not repeated possessively: Python 3.11.2 (Debian 12) reads such patterns wrongly (gh-101955).
_QUOTED: Final = {
    "'": r"(?P<single>'(?:[^'\\]|\\.|'(?!" + _AFTER + r"))*')",
    "“": r'(?P<wide>[“”„＂](?:[^“”„＂"\\]|\\.|[“”„＂"](?!' + _AFTER + r'))*[“”„＂"])',
    "‘": r"(?P<curly>[‘’](?:[^‘’\\]|\\.|[‘’](?!" + _AFTER + r"))*[‘’])",
}
_SAME_QUOTE: Final = {"'": "'", "“": "“", "”": "“", "„": "“", "＂": "“", "‘": "‘", "’": "‘"}


@functools.cache  # one for each set of quotes: eight
def _tokens(quotes: str) -> re.Pattern[str]:
    """One token of a text, where the quotes in `quotes` make strings and others are marks."""
    return re.compile(
        r'\s*+(?:(?P<double>"(?:[^"\\]|\\.)*")|'
        + "".join(f"{_QUOTED[quote]}|" for quote in quotes)
        + r"(?P<number>-?(?:0|[1-9][0-9]{0,400})(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?(?![\w.]))"
        r"|(?P<word>[A-Za-z_$][\w$-]{0,200})"
        r"|(?P<comment>//[^\n]*+|/\*(?:[^*]|\*(?!/))*\*/)"
        r"|(?P<mark>.))",
        re.DOTALL,
    )


_MARKS: Final = {"｛": "{", "｝": "}", "［": "[", "］": "]", "，": ",", "、": ",", "：": ":"}
_WORDS: Final = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def _unescape(match: re.Match[str]) -> str:
    found = match[1]
    if found[0] != "u" or len(found) < 5:
        return _ESCAPES.get(found, found)
    first = int(found[1:5], 16)
    if len(found) == 11 and 0xD800 <= first < 0xDC00:
        return chr(0x10000 + ((first - 0xD800) << 10) + (int(found[7:11], 16) - 0xDC00))
    text = "\ufffd" if 0xD800 <= first < 0xE000 else chr(first)
    return text if len(found) == 5 else text + "\ufffd"


def _read_loose(text: str, begin: int) -> tuple[Any, int]:
    """The object or list that begins at `begin`, and where it ends: with other quotes, full-width marks, comments, bare
    keys, Python's words and a comma too many; in linear time, without recursion.

    Raises ``ValueError`` for anything else, an end too early included.
    """
    stack: list[dict[str, Any] | list[Any]] = []
    key: str | None = None
    state = _VALUE
    for token in _tokens("'“‘").finditer(text, begin):
        kind = token.lastgroup or ""
        if kind == "comment":
            continue
        piece = token[kind]
        mark = _MARKS.get(piece, piece) if kind == "mark" else ""
        if mark in _OPENING and state in _BEFORE_VALUE:
            if len(stack) >= MAX_DEPTH:
                raise _too_deep()
            new: dict[str, Any] | list[Any] = {} if mark == "{" else []
            if stack:
                _put(stack[-1], key, new)
            stack.append(new)
            state = _KEY if mark == "{" else _ITEM
            continue
        if not stack:
            raise ValueError(begin)
        whole = stack[-1]
        if mark in _CLOSING:
            if isinstance(whole, dict) is not (mark == "}") or state in {_COLON, _VALUE}:
                raise ValueError(token.start())
            stack.pop()
            if not stack:
                return whole, token.end()
            state = _COMMA
        elif mark == "," and state == _COMMA:
            state = _KEY if isinstance(whole, dict) else _ITEM
        elif mark == ":" and state == _COLON:
            state = _VALUE
        elif state == _KEY and kind in _KEYS:
            key = _string(kind, piece)
            state = _COLON
        elif state in _BEFORE_VALUE and kind in _VALUES:
            _put(whole, key, _value(kind, piece))
            state = _COMMA
        else:
            raise ValueError(token.start())
    raise ValueError(begin)


_VALUE, _ITEM, _KEY, _COLON, _COMMA = range(5)
"""What must come next; where an item or a key may come, the end may come, too."""
_BEFORE_VALUE: Final = frozenset({_VALUE, _ITEM})
_OPENING: Final = frozenset("{[")
_CLOSING: Final = frozenset("}]")
_STRINGS: Final = frozenset({"double", "single", "wide", "curly"})
_KEYS: Final = _STRINGS | {"word"}
_VALUES: Final = _STRINGS | {"word", "number"}


def _put(whole: dict[str, Any] | list[Any], key: str | None, value: Any) -> None:
    if isinstance(whole, list):
        whole.append(value)
    else:
        assert key is not None
        whole[key] = value


def _string(kind: str, piece: str) -> str:
    if kind == "word":
        return piece
    inner = piece[1:-1]
    return _ESCAPE.sub(_unescape, inner) if "\\" in inner else inner


def _value(kind: str, piece: str) -> Any:
    if kind == "word":
        if piece not in _WORDS:
            raise ValueError(piece)
        return _WORDS[piece]
    if kind == "number":
        number = json.loads(piece)
        if number in {float("inf"), float("-inf")}:
            raise ValueError(piece)
        return number
    return _string(kind, piece)


def _end_of(text: str, begin: int) -> int | None:
    """Where the bracket that opens at `begin` is closed; None when it never is."""
    depth = 0
    quotes = "'“‘"
    position = begin
    while (token := _tokens(quotes).match(text, position)) is not None:
        position = token.end()
        if token.lastgroup != "mark":
            continue
        mark = _MARKS.get(token["mark"], token["mark"])
        if mark in "{[":
            depth += 1
        elif mark in "}]":
            depth -= 1
            if depth <= 0:
                return position
        elif mark == '"':
            return None  # a string that never ends
        elif mark in _SAME_QUOTE:  # an apostrophe: no later one of its kind can end a string either; look no more
            quotes = quotes.replace(_SAME_QUOTE[mark], "")
        elif mark == "/" and text.startswith("*", position):
            return None  # a comment that never ends
    return None


# --- the library ---------------------------------------------------------------------------------------------------


class _Spent(Exception):
    """The library has looked at too many characters."""


class _Metered(str):
    """A text that counts how often it is looked at, and ends the looking: a bound that needs no clock."""

    __slots__ = ("left",)
    left: list[int]

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        left = self.left
        left[0] -= 1
        if left[0] < 0:
            raise _Spent
        found = str.__getitem__(self, key)
        if isinstance(key, slice):
            part = _Metered(found)
            part.left = left
            return part
        return found


def _plain(value: Any) -> Any:
    """The value with plain strings only."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return value


def _repaired(text: str) -> Any:
    """What json-repair makes of the first value in a text, which must be closed; ``_NOTHING`` without the library."""
    start = _BRACKET.search(text)
    if start is None or len(text) > _MAX_REPAIR:
        return _NOTHING
    end = _end_of(text, start.start())
    if end is None:
        return _NOTHING
    try:
        import json_repair
    except ImportError:
        return _NOTHING
    if _NO_NUMBER.search(text, start.start(), end):
        raise MalformedResult("NaN and infinity are no JSON", details={"fault": "no_json"})
    broken = _Metered(text[start.start() : end])
    depth = deepest = 0
    for mark in _ANY_BRACKET.finditer(broken):
        depth += 1 if mark[0] in "{[" else -1
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise _too_deep()
    broken.left = [len(broken) * _REPAIR_LOOKS + 2000]
    try:
        value = _plain(json_repair.loads(broken, skip_json_loads=True))
    except Exception:  # noqa: BLE001 - a parser of garbage may raise anything; there is then no value
        return _NOTHING
    if not isinstance(value, dict | list) or not value:
        return _NOTHING
    _check_depth(value, broken)
    return value


_NO_NUMBER: Final = re.compile(r"[:\[,]\s{0,20}-?(?:NaN|Infinity|nan|inf)\b")
_ANY_BRACKET: Final = re.compile(r"[\[\]{}]")
