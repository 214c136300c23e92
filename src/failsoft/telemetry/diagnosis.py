"""Why a run was slow or degraded: where its budget went, which limit fired, who is to blame, and what to change.

The time of a run is told along its **critical chain**: from the end back through the task that ended last, the one it
waited for longest, and so on. Every instant of the run belongs to exactly one part, so the parts sum to what elapsed:

* ``door``: spent in front of us; ``planning``; ``queue``: waiting for a permit; ``downstream``: inside an attempt;
  ``backoff``: pausing between attempts; ``review``: waiting for a person; ``answer``: assembling; ``own``: the rest.

*Blocked* is a run that waited for permits or was turned away while the calls themselves took their usual time; *slow*
is one whose downstream took long or gave no answer. Pure: facts in, diagnosis out.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from failsoft.telemetry.timeline import CUT, Span

__all__ = ["Diagnosis", "Part", "RunFacts", "TaskFacts", "Window", "diagnose", "summarise"]

Nature = Literal["slow", "blocked", "failing", "planning", "door", "question", "own", "none"]

BLOCKED: Final = frozenset({"queue_full", "queue_timeout", "evicted", "doomed"})
"""Refusals that speak of a lack of permits."""
LIMITS: Final = {
    "attempt_timeout": "attempt",
    "call_timeout": "call",
    "task_timeout": "task",
    "deadline_exceeded": "run",
    "not_started": "run",
    "queue_timeout": "queue",
    "doomed": "queue",
    "first_item_timeout": "first_item",
    "idle_timeout": "idle",
    "total_timeout": "total",
}
"""Which limit an error's code speaks of."""
_TIMEOUTS: Final = frozenset(LIMITS) - {"queue_timeout", "doomed"} | {CUT}


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """A task: times in seconds since the run began. ``reason`` is the code why it was not served as asked."""

    id: str
    downstream: str
    needs: tuple[str, ...] = ()
    started: float | None = None
    ended: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a diagnosis is made from; times in seconds since the run began, ``spans`` in those, too. ``error`` is the
    code of the run's own.
    """

    run: str
    status: str
    elapsed: float
    budget: float
    door: float = 0.0
    planning: float = 0.0
    answer: float = 0.0
    tasks: tuple[TaskFacts, ...] = ()
    spans: tuple[Span, ...] = ()
    error: str | None = None
    reason: str | None = None
    """Why the answer as a whole, and no task of it, is less than what was asked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the critical chain."""

    what: str
    seconds: float
    downstream: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a run was as it was. ``parts`` sum to ``elapsed``; ``limit`` is the one that fired first, if any did;
    ``before`` what had eaten the budget until then, largest first.
    """

    run: str
    status: str
    nature: Nature
    downstream: str | None
    cause: str
    suggestion: str
    elapsed: float
    budget: float
    parts: tuple[Part, ...]
    limit: str | None = None
    before: tuple[Part, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, times in milliseconds."""
        return {
            "run_id": self.run,
            "status": self.status,
            "nature": self.nature,
            "downstream": self.downstream,
            "cause": self.cause,
            "suggestion": self.suggestion,
            "elapsed_ms": round(self.elapsed * 1000, 3),
            "budget_ms": round(self.budget * 1000, 3),
            "limit": self.limit,
            "spent": [_part(part) for part in self.parts],
            "spent_before_the_limit": [_part(part) for part in self.before],
            "details": dict(self.details),
        }


def _part(part: Part) -> dict[str, Any]:
    return {
        "what": part.what,
        "downstream": part.downstream,
        "task": part.task,
        "ms": round(part.seconds * 1000, 3),
    }


# --- where the time went -------------------------------------------------------------------------------------------


def _chain(tasks: Sequence[TaskFacts]) -> list[TaskFacts]:
    """The tasks that determined when the run could end, first to last."""
    by_id = {task.id: task for task in tasks if task.started is not None}
    chain: list[TaskFacts] = []
    last = max(by_id.values(), key=_end, default=None)
    while last is not None and last not in chain:
        chain.append(last)
        before = [by_id[need] for need in last.needs if need in by_id]
        last = max(before, key=_end, default=None)
    return chain[::-1]


def _end(task: TaskFacts) -> float:
    return task.ended if task.ended is not None else float("inf")


def _parts(facts: RunFacts) -> list[Part]:
    """Every instant from the beginning to the end, in the order of time."""
    parts: list[Part] = []
    now = 0.0

    def until(end: float, what: str, downstream: str | None = None, task: str | None = None) -> None:
        nonlocal now
        end = min(end, facts.elapsed)
        if end > now:
            parts.append(Part(what, end - now, downstream, task))
            now = end

    until(facts.door, "door")
    chain = _chain(facts.tasks)
    first = min((t.started for t in facts.tasks if t.started is not None), default=None)
    if facts.planning > 0.0:
        ready = first if first is not None else facts.elapsed
        until(max(now, ready - facts.planning), "own")
        until(min(ready, now + facts.planning), "planning")
    spans: defaultdict[str | None, list[Span]] = defaultdict(list)
    for span in facts.spans:
        spans[span.task].append(span)
    for task in chain:
        assert task.started is not None
        until(task.started, "own")
        end = min(_end(task), facts.elapsed)
        failed: str | None = None
        for span in sorted((one for one in spans[task.id] if one.what != "refused"), key=lambda one: one.start):
            if span.start > now:
                # between a call that failed and the next to the same the task pauses: its retries are not the guard's
                again = failed == span.downstream
                until(min(span.start, end), "backoff" if again else "own", failed if again else None, task.id)
            failed = span.downstream if span.what == "attempt" and span.code is not None else None
            what = "downstream" if span.what == "attempt" else span.what
            until(min(span.end, end), what, span.downstream, task.id)
        rest = "own" if spans[task.id] else "downstream"
        until(end, rest, task.downstream if rest == "downstream" else None, task.id)
    until(facts.elapsed - facts.answer, "own")
    until(facts.elapsed, "answer" if facts.answer > 0.0 else "own")
    return parts


def _merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts of one kind, downstream and task as one, in the order of their first."""
    sums: dict[tuple[str, str | None, str | None], float] = {}
    for part in parts:
        key = (part.what, part.downstream, part.task)
        sums[key] = sums.get(key, 0.0) + part.seconds
    return tuple(Part(what, seconds, downstream, task) for (what, downstream, task), seconds in sums.items())


# --- who is to blame -----------------------------------------------------------------------------------------------


def _limit(facts: RunFacts) -> tuple[str | None, float]:
    """The limit that fired first, and when."""
    fired = [(span.end, LIMITS[span.code]) for span in facts.spans if span.code in LIMITS]
    fired += [(_end(task), LIMITS[task.reason]) for task in facts.tasks if task.reason in LIMITS]
    if facts.error in LIMITS:
        fired.append((facts.elapsed, LIMITS[facts.error]))
    if not fired:
        return None, facts.elapsed
    at, limit = min(fired, key=lambda one: one[0])  # of those at one instant the innermost, which come first
    return limit, min(at, facts.elapsed)


def _guilty(facts: RunFacts, parts: Sequence[Part]) -> tuple[str | None, set[str]]:
    """The downstream that cost most, and the tasks that suffered from it.

    Tasks that were not served as asked come first; among their downstreams the one with the most time on it, or else
    with the most refusals. A run that was only slow blames what its critical chain spent most on.
    """
    short = {task.id for task in facts.tasks if task.reason is not None}
    cost: defaultdict[str, float] = defaultdict(float)
    called = {span.task for span in facts.spans}
    for span in facts.spans:
        if span.task in short:
            cost[span.downstream] += span.end - span.start + (1e-3 if span.code is not None else 0.0)
    for task in facts.tasks:
        if task.id in short and task.id not in called:
            if task.reason in ("dependency_failed", "mode_fast", "condition_false") or task.started is None:
                continue
            cost[task.downstream] += (_end(task) if task.ended is not None else facts.elapsed) - task.started
    if not cost:
        for part in parts:
            if part.downstream is not None:
                cost[part.downstream] += part.seconds
    if not cost:
        return None, short
    worst = max(cost, key=lambda name: cost[name])
    return worst, short


def _nature(facts: RunFacts, downstream: str, short: set[str]) -> tuple[Nature, str]:
    """Whether a downstream was slow, failed, or was not to be had; and the words for it."""
    spans = [span for span in facts.spans if span.downstream == downstream]
    own = [span for span in spans if span.task in short] or spans
    waited = _covered(span for span in own if span.what == "queue")
    inside = _covered(span for span in own if span.what == "attempt")
    codes = Counter(span.code for span in own if span.code is not None)
    timed_out = sum(codes[code] for code in _TIMEOUTS) + sum(
        1 for task in facts.tasks if task.id in short and task.reason in _TIMEOUTS and not codes
    )
    turned_away = sum(codes[code] for code in BLOCKED)
    failed = sum(1 for span in own if span.what == "attempt" and span.code is not None and span.code not in _TIMEOUTS)
    if failed and failed >= timed_out and short:
        code = next(span.code for span in own if span.what == "attempt" and span.code not in (None, *_TIMEOUTS))
        return "failing", f"{downstream} failed ({code})"
    if codes["breaker_open"] and not timed_out and not turned_away:
        why = next((span.why for span in own if span.code == "breaker_open" and span.why), "")
        nature: Nature = "failing" if "fail" in why and "time" not in why else "slow"
        return nature, f"{downstream} was not tried: its breaker is open{f' ({why})' if why else ''}"
    if (turned_away or waited > inside) and not (timed_out and inside >= waited):
        text = f"{waited:.2f} s in the queue of {downstream}, {inside:.2f} s in its calls"
        if turned_away:
            text += f"; turned away {turned_away} times ({', '.join(sorted(c for c in codes if c in BLOCKED))})"
        return "blocked", text
    text = f"{downstream} took {inside:.2f} s"
    return "slow", text + (f" and gave no answer within its limit {timed_out} times" if timed_out else "")


def _covered(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of them was open: what is done at the same time takes its time once."""
    covered, until = 0.0, -math.inf
    for start, end in sorted((span.start, span.end) for span in spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


_SUGGESTIONS: Final[Mapping[str, str]] = {
    "slow": "give {d} an alternate or stale_for, or a shorter attempt limit (downstreams.{d}.attempt_timeout) so that "
    "what comes after it still fits",
    "blocked": "see who holds its permits (failsoft top, GET /v1/downstreams); if they are busy and not stuck, raise "
    "downstreams.{d}.permits or give it fewer calls",
    "failing": "give {d} an alternate or stale_for; look at {d} itself",
    "planning": "put the rules planner first, or give the planning model a shorter limit",
    "door": "look at what stands in front (a proxy's queue, a client's own retries), or give the run more budget",
    "own": "look for stalls of the loop (events loop.stalled) and for a queue of ready tasks (width)",
    "none": "nothing: it was served as asked",
}

_OF_THE_RUN: Final[Mapping[str, tuple[Nature, str, str]]] = {
    "plan_refused": (
        "planning",
        "no planner made a plan that could be followed",
        "read in the run's error what was wrong with it; if the plan did not fit, give the run more budget",
    ),
    "not_understood": (
        "question",
        "a part of the question was not understood",
        "ask in other words, or name columns and values as the data does; the answer says what was left out",
    ),
    "memory_lost": (
        "failing",
        "what was said before in the session could not be read in time",
        "look at the store (failsoft_store_* in /metrics), or give memory more of the budget",
    ),
    "models_failing": (
        "failing",
        "the models fail as a whole: the answer was prepared before",
        "see which routes are out, and why (GET /v1/downstreams)",
    ),
}
"""What no downstream is to blame for, by the code of the run's error or of what its answer lacks as a whole."""


def diagnose(facts: RunFacts) -> Diagnosis:
    """The diagnosis of a run, ended or not."""
    parts = _parts(facts)
    limit, at = _limit(facts)
    downstream, short = _guilty(facts, parts)
    by_what: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        by_what[part.what] += part.seconds
    outside = by_what["downstream"] + by_what["queue"] + by_what["backoff"]
    nature: Nature
    whole = _OF_THE_RUN.get(facts.error or facts.reason or "") if not short else None
    if whole is not None:
        nature, cause, downstream = whole[0], whole[1], None
    elif by_what["door"] > max(outside, by_what["planning"], by_what["own"]):
        nature, cause, downstream = "door", f"{by_what['door']:.2f} s had passed before it came to the door", None
    elif downstream is not None and (short or outside >= max(by_what["planning"], by_what["own"])):
        nature, cause = _nature(facts, downstream, short)
    elif by_what["planning"] > by_what["own"]:
        nature, cause, downstream = "planning", f"planning took {by_what['planning']:.2f} s", None
    else:
        nature, cause, downstream = "own", f"{by_what['own']:.2f} s passed between the calls", None
    if facts.status == "completed" and not short and facts.elapsed <= 0.8 * facts.budget:
        suggestion = _SUGGESTIONS["none"]
    else:
        suggestion = _SUGGESTIONS[nature].format(d=downstream) if whole is None else whole[2]
    eaten: list[Part] = []
    now = 0.0
    for part in parts:
        if now >= at:
            break
        eaten.append(Part(part.what, min(part.seconds, at - now), part.downstream, part.task))
        now += part.seconds
    before = sorted(_merged(eaten), key=lambda part: -part.seconds)[:3] if limit is not None else ()
    return Diagnosis(
        run=facts.run,
        status=facts.status,
        nature=nature,
        downstream=downstream,
        cause=cause,
        suggestion=suggestion,
        elapsed=facts.elapsed,
        budget=facts.budget,
        parts=_merged(parts),
        limit=limit,
        before=tuple(before),
        details={"short": sorted(short), "refusals": dict(_refusals(facts.spans, lambda s: s.downstream))},
    )


def _refusals(spans: Iterable[Span], key: Callable[[Span], str]) -> Counter[str]:
    return Counter(key(span) for span in spans if span.what == "refused")


# --- over a window -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """What the runs of a while have in common: how many, how they ended, whom they blame, where their time went."""

    seconds: float
    runs: int
    statuses: Mapping[str, int]
    blamed: tuple[tuple[str, str, int], ...]
    spent: Mapping[str, float]
    cause: str
    suggestion: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; ``spent`` as shares of all their time."""
        return {
            "seconds": self.seconds,
            "runs": self.runs,
            "statuses": dict(self.statuses),
            "blamed": [{"downstream": name, "nature": nature, "runs": runs} for name, nature, runs in self.blamed],
            "spent": {what: round(share, 4) for what, share in self.spent.items()},
            "cause": self.cause,
            "suggestion": self.suggestion,
        }


def summarise(diagnoses: Sequence[Diagnosis], seconds: float) -> Window:
    """The runs of the last `seconds` as one. Only runs that fell short blame anybody."""
    blamed: Counter[tuple[str, str]] = Counter()
    words: dict[tuple[str, str], Diagnosis] = {}
    time: defaultdict[str, float] = defaultdict(float)
    short = 0
    for one in diagnoses:
        for part in one.parts:
            time[part.what] += part.seconds
        if one.status != "completed":
            short += 1
            key = (one.downstream or "", one.nature)
            blamed[key] += 1
            words[key] = one
    whole = sum(time.values()) or 1.0
    cause, suggestion = "no run fell short", _SUGGESTIONS["none"]
    if blamed:
        (name, nature), count = blamed.most_common(1)[0]
        cause = f"{count} of {short} runs that fell short blame {name or 'no downstream'} ({nature})"
        suggestion = words[name, nature].suggestion
    return Window(
        seconds=seconds,
        runs=len(diagnoses),
        statuses=Counter(one.status for one in diagnoses),
        blamed=tuple((name, nature, count) for (name, nature), count in blamed.most_common(10)),
        spent={what: value / whole for what, value in sorted(time.items(), key=lambda one: -one[1])},
        cause=cause,
        suggestion=suggestion,
    )
