"""``or`` between conditions: either may hold (``status = 404 or status = 500``); all else is *and*."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from failsoft.examples.analyst.grammar.mentions import Sentence
from failsoft.examples.analyst.grammar.wording import Voice
from failsoft.examples.analyst.spec import Filter, Scalar

_REACH = 4
"""Words between two conditions that an *or* joins, at most."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A condition and the words ``[start, end)`` that say it."""

    start: int
    end: int
    condition: Filter


def combined(sentence: Sentence, placed: Sequence[Placed]) -> list[Filter]:
    """The conditions as the query has them: alternatives in one, each once.

    Raises ``QuestionError`` where *and* and *or* meet and nothing says which comes first.
    """
    runs: list[list[Placed]] = []
    linked = ""
    for one in sorted(placed, key=lambda p: (p.start, p.end)):
        before = runs[-1][-1] if runs else None
        link = _link(sentence, before, one) if before is not None else ""
        if link == "or":
            if linked == "and" and _columns(runs[-1]) != {one.condition.column}:
                raise _unclear(sentence)
            runs[-1].append(one)
        else:
            if link == "and" and len(runs[-1]) > 1 and len(_columns(runs[-1])) > 1:
                raise _unclear(sentence)
            runs.append([one])
            linked = link
    filters: list[Filter] = []
    order = {id(one): at for at, one in enumerate(placed)}
    for run in sorted(runs, key=lambda run: min(order[id(one)] for one in run)):
        for condition in _one_of(run):
            if condition not in filters:
                filters.append(condition)
    return filters


def _columns(run: Sequence[Placed]) -> set[str]:
    return {one.condition.column for one in run}


def _link(sentence: Sentence, first: Placed, second: Placed) -> str:
    """``or`` or ``and``, where nothing else stands between two conditions; empty otherwise."""
    between = sentence.words[first.end : second.start]
    opening = sentence.words[second.start] if second.start < len(sentence.words) else None
    if opening is not None and opening.has("post") and opening.stem.startswith("or ") and not between:
        return "or"
    if len(between) > _REACH:
        return ""
    joins = [w.senses["join"] for w in between if "join" in w.senses]
    mentions = {id(sentence.mention_at(i)) for i in range(first.end, second.start) if sentence.mention_at(i)}
    if len(mentions) > 1 or not all(
        "or" in joins
        or w.stop
        or w.has("join")
        or w.has("op")
        or w.has("not")
        or w.used
        or sentence.mention_at(first.end + k)
        for k, w in enumerate(between)
    ):
        return ""
    if "or" in joins:
        for word in between:
            if word.has("join"):
                word.used = word.used or "condition"
        return "or"
    return "and" if "and" in joins else ""


def _one_of(run: Sequence[Placed]) -> list[Filter]:
    """One condition with its alternatives; what is excluded either way is excluded all the same."""
    if len(run) == 1:
        return [run[0].condition]
    conditions = list(dict.fromkeys(_key(one.condition) for one in run))
    whole = [next(one.condition for one in run if _key(one.condition) == key) for key in conditions]
    if all(one.op in ("!=", "not in") for one in whole):
        return whole  # not from A or B: from neither
    merged: list[Filter] = []
    for _, same in itertools.groupby(
        sorted(whole, key=lambda f: (f.column, f.grain or "", f.op)),
        key=lambda f: (f.column, f.grain, f.op in ("=", "in")),
    ):
        members = list(same)
        if len(members) > 1 and members[0].op in ("=", "in"):
            values: list[Scalar] = []
            for one in members:
                values += one.value if isinstance(one.value, list) else [one.value]
            members = [replace(members[0], op="in", value=list(dict.fromkeys(values)))]
        merged += members
    return [merged[0]] if len(merged) == 1 else [replace(merged[0], alternatives=tuple(merged[1:]))]


def _key(condition: Filter) -> tuple[str, str, str, str]:
    return condition.column, condition.grain or "", condition.op, repr(condition.value)


def _unclear(sentence: Sentence) -> Exception:
    names = [n.column.name for n in sentence.schema.columns]
    return Voice(sentence.language).error(
        "ambiguous",
        "'and' and 'or' are mixed between conditions, and nothing says which belong together; ask for each of them.",
        "条件之间混用了“且”和“或”，无法确定如何组合；请分别提问。",
        names,
    )
