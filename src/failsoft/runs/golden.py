"""Golden answers: prepared results for frequent questions, served first while models fail as a whole.

::

    answers:
      - question: "revenue of {region} in {quarter}"
        parameters: {region: EMEA, quarter: Q3 2024}
        answer: "EMEA had a revenue of 1.2 M in Q3 2024."
        as_of: 2026-11-30
        fresh_for: 7d

A question fits when its words are those of the pattern, apart from case, spaces and the mark at its end, and each of
its parameters is exactly the entry's: another region, number or date is another question. What is older than
``fresh_for`` is not served, and what is served says of when it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from failsoft.base.errors import ConfigError, FailsoftError
from failsoft.tools.registry import seconds

__all__ = ["Golden", "GoldenAnswers", "Served"]

_MOST: Final = 10_000
"""Answers in one file."""
_LONGEST: Final = 500
"""Characters of a question that has a prepared answer."""
_SLOTS: Final = 6
_SLOT: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
_KEYS: Final = frozenset({"question", "parameters", "answer", "as_of", "fresh_for", "agent", "tenant"})


@dataclass(frozen=True, slots=True)
class Golden:
    """A prepared answer. ``as_of`` is when it was true, in UTC seconds since the epoch; ``fresh_for`` in seconds.

    Without an ``agent`` it is any agent's; without a ``tenant`` any tenant's.
    """

    question: str
    answer: str
    as_of: float
    parameters: Mapping[str, str] = field(default_factory=dict)
    fresh_for: float = 7 * 86_400.0
    agent: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A prepared answer for a question, and its age in seconds."""

    text: str
    age: float
    as_of: float


class GoldenAnswers:
    """The prepared answers, by pattern and by parameters."""

    __slots__ = ("_patterns", "_size")

    def __init__(self, answers: Iterable[Golden] = ()) -> None:
        self._patterns: dict[str, tuple[re.Pattern[str], tuple[str, ...], dict[tuple[str, ...], list[Golden]]]] = {}
        self._size = 0
        for one in answers:
            self._add(one)

    def _add(self, one: Golden) -> None:
        slots = tuple(_SLOT.findall(one.question))
        if len(set(slots)) < len(slots) or len(slots) > _SLOTS:
            raise ConfigError(f"a question has up to {_SLOTS} parameters, each once", param="question")
        if set(slots) != set(one.parameters):
            raise ConfigError(
                f"the parameters of {one.question[:80]!r} are {', '.join(slots) or 'none'}", param="parameters"
            )
        if not _plain(_SLOT.sub("", one.question)):
            raise ConfigError("a question needs words beside its parameters", param="question")
        pattern = self._patterns.get(one.question)
        if pattern is None:
            parts = _SLOT.split(_plain(one.question, keep=slots))
            # split gives text, name, text, name, …, text
            made = "".join(f"(?P<{part}>.+?)" if i % 2 else re.escape(part) for i, part in enumerate(parts))
            pattern = self._patterns[one.question] = (re.compile(made, re.DOTALL), slots, {})
        self._size += 1
        if self._size > _MOST:
            raise ConfigError(f"at most {_MOST} answers can be prepared", param="answers")
        pattern[2].setdefault(tuple(_plain(one.parameters[slot]) for slot in slots), []).append(one)

    @classmethod
    def load(cls, path: Path) -> GoldenAnswers:
        """The answers in a YAML file; raises :class:`ConfigError` naming the entry and key that is wrong."""
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            data = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}", param="golden") from None
        except (YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{path} is no YAML: {str(error).splitlines()[0]}", param="golden") from None
        entries = data.get("answers") if isinstance(data, dict) else None
        if not isinstance(entries, list):
            raise ConfigError(f"{path} needs a list of `answers`", param="answers")
        made = cls()
        for index, entry in enumerate(entries):
            where = f"answers[{index}]"
            try:
                made._add(_read(entry))
            except ConfigError as error:
                raise ConfigError(f"{path}: {where}: {error.message}", param=f"{where}.{error.param}") from None
        return made

    def find(self, question: str, *, now: float, agent: str | None = None, tenant: str | None = None) -> Served | None:
        """The prepared answer for a question at `now` (UTC seconds since the epoch); None when there is none."""
        if len(question) > _LONGEST:
            return None
        plain = _plain(question)
        best: Golden | None = None
        for pattern, slots, answers in self._patterns.values():
            match = pattern.fullmatch(plain)
            if match is None:
                continue
            for one in answers.get(tuple(match[slot].strip() for slot in slots), ()):
                fits = one.agent in (None, agent) and one.tenant in (None, tenant)
                if fits and now - one.as_of <= one.fresh_for and (best is None or one.as_of > best.as_of):
                    best = one
        return None if best is None else Served(best.answer, max(0.0, now - best.as_of), best.as_of)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<GoldenAnswers {self._size}>"


def _plain(text: str, keep: Iterable[str] = ()) -> str:
    """Without case, double spaces and the mark at the end; the names in braces of `keep` stay as they are."""
    made = " ".join(text.split()).strip().rstrip("?？.。!！ ").casefold()
    for name in keep:
        made = made.replace("{" + name.casefold() + "}", "{" + name + "}")
    return made


def _read(entry: Any) -> Golden:
    if not isinstance(entry, dict):
        raise ConfigError("an answer is a mapping", param="")
    unknown = next((key for key in entry if key not in _KEYS), None)
    if unknown is not None:
        raise ConfigError(f"there is no key {unknown!r}; there are: {', '.join(sorted(_KEYS))}", param=str(unknown))
    for key in ("question", "answer"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise ConfigError(f"{key} must be text", param=key)
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise ConfigError("parameters must be a mapping", param="parameters")
    try:
        fresh = seconds(entry.get("fresh_for", "7d"))
    except (FailsoftError, TypeError) as error:
        raise ConfigError(f"fresh_for: {error}", param="fresh_for") from None
    for key in ("agent", "tenant"):
        if entry.get(key) is not None and not isinstance(entry[key], str):
            raise ConfigError(f"{key} must be text", param=key)
    return Golden(
        entry["question"],
        entry["answer"],
        _moment(entry.get("as_of")),
        {str(name): str(value) for name, value in parameters.items()},
        fresh,
        entry.get("agent"),
        entry.get("tenant"),
    )


def _moment(value: Any) -> float:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise ConfigError("as_of must be a date, like 2026-11-30, or a date with its time", param="as_of")
    return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
