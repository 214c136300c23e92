"""One JSON line for each run, for each call of its tasks (whose, which downstream, what was left, which limit fired),
and for each time the loop was blocked.

Lines hold names, codes and figures; never what was asked, said or passed. They go the way of the gateway's lines: in
batches, by a thread of their own, dropped and counted when nobody reads them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from failsoft.base.errors import FailsoftError, TimeoutExceeded
from failsoft.base.events import Event, EventBus
from failsoft.kernel.scope import current_scope
from failsoft.server.call_log import CallLog

__all__ = ["RunLine", "RunLog", "StallLine", "TaskCallLine"]

_TERMINAL: Final = frozenset({"run.completed", "run.degraded", "run.failed", "run.cancelled", "run.expired"})
_HEARD: Final = _TERMINAL | {"attempt.finished", "call.rejected", "call.waited", "loop.stalled", "run.received"}
_RUNNING: Final = 25_000
"""Runs whose agents are remembered until they end, and calls whose wait is until their attempt does."""
_NOTHING: Final = 0.001
_CUT: Final = {"run": "deadline_exceeded", "task": "task_timeout"}
_QUEUE: Final = frozenset({"queue_full", "queue_timeout", "evicted", "doomed"})
_OTHERS: Final = {"breaker_open": "breaker", "unaffordable": "run", "not_started": "run", "rate_limited": "rate"}


class TaskCallLine(msgspec.Struct, omit_defaults=True, tag_field="event", tag="call"):
    """One attempt of a call, or its rejection (``attempt`` 0). Times in milliseconds, ``ts`` in seconds since 1970.

    ``queue_ms`` is what it waited for its permit before, in no other time here; left out when it did not.
    ``limit`` names the limit that fired: ``attempt``, ``call``, ``task``, ``run``, ``queue``, ``first_item``, ``idle``,
    ``total``, ``breaker``.
    """

    ts: float
    run: str
    downstream: str | None
    task: str | None = None
    tenant: str | None = None
    attempt: int = 0
    ms: float = 0.0
    queue_ms: float | None = None
    remaining_ms: float | None = None
    code: str | None = None
    limit: str | None = None


class StallLine(msgspec.Struct, omit_defaults=True, tag_field="event", tag="stall"):
    """For so long the event loop was blocked; by whom, and ``where``, as far as it was seen."""

    ts: float
    ms: float
    run: str | None = None
    task: str | None = None
    tenant: str | None = None
    downstream: str | None = None
    where: str | None = None


class RunLine(msgspec.Struct, omit_defaults=True, tag_field="event", tag="run"):
    """A run that has ended. ``short`` lists what its answer lacks, as ``task=reason``."""

    ts: float
    run: str
    status: str
    ms: float
    budget_ms: float
    remaining_ms: float
    agent: str | None = None
    tenant: str | None = None
    code: str | None = None
    limit: str | None = None
    short: list[str] = []


class RunLog:
    """A listener of the bus that writes lines of runs; ``close()`` ends it. ``wall`` gives seconds since the epoch."""

    def __init__(self, bus: EventBus, log: CallLog, wall: Callable[[], float]) -> None:
        self._log = log
        self._wall = wall
        self._agents: OrderedDict[str, str] = OrderedDict()
        self._waited: OrderedDict[tuple[str | None, ...], float] = OrderedDict()
        self._remove = bus.add(self._on_event, only=_HEARD.__contains__) if log.on else None

    def _on_event(self, event: Event) -> None:
        if event.kind == "loop.stalled":
            self._write_stall(event)
            return
        run = event.run
        if run is None:
            return
        kind = event.kind
        if kind == "attempt.finished":
            ended = event.data
            code = ended.code
            if code == "cancelled" and ended.remaining <= _NOTHING:  # by a deadline, and the event comes from its scope
                code = _CUT.get(current_scope().limit, code)
            self._write_call(event, run, ended.attempt, ended.seconds, ended.remaining, code)
        elif kind == "call.rejected":
            error = event.data
            left = current_scope().deadline - event.at
            self._write_call(event, run, 0, 0.0, left, error.code if isinstance(error, FailsoftError) else None)
        elif kind == "call.waited":
            key = (run, event.task, event.downstream)
            self._waited[key] = self._waited.get(key, 0.0) + event.data
            if len(self._waited) > _RUNNING:
                self._waited.popitem(last=False)
        elif kind == "run.received":
            self._agents[run] = str(event.data.get("agent", ""))
            if len(self._agents) > _RUNNING:
                self._agents.popitem(last=False)
        elif kind in _TERMINAL:
            self._write_run(event, run, event.data)

    def _write_call(
        self, event: Event, run: str, attempt: int, seconds: float, left: float | None, code: str | None
    ) -> None:
        self._log.write(
            TaskCallLine(
                round(self._wall(), 3),
                run,
                event.downstream,
                event.task,
                event.tenant,
                attempt,
                round(seconds * 1000, 3),
                round(self._waited.pop((run, event.task, event.downstream), 0.0) * 1000, 3) or None,
                None if left is None or left > 1e9 else round(left * 1000, 3),
                code,
                None if code is None else _limit(code),
            )
        )

    def _write_stall(self, event: Event) -> None:
        stall = event.data
        self._log.write(
            StallLine(
                round(self._wall(), 3),
                round(stall.seconds * 1000, 3),
                event.run,
                event.task,
                event.tenant,
                stall.downstream,
                stall.stack[-1] if stall.stack else None,
            )
        )

    def _write_run(self, event: Event, run: str, data: Mapping[str, Any]) -> None:
        short = data.get("shortfalls") or ()
        error = data.get("error")
        elapsed, budget = float(data.get("elapsed_ms") or 0.0), float(data.get("budget_ms") or 0.0)
        code = error["code"] if error else None
        fired = [_limit(one["reason"]) for one in short] if error is None else [_limit(str(code))]
        self._log.write(
            RunLine(
                round(self._wall(), 3),
                run,
                event.kind.partition(".")[2],
                elapsed,
                budget,
                round(budget - elapsed, 3),
                self._agents.pop(run, None),
                event.tenant,
                code,
                next((limit for limit in fired if limit is not None), None),
                [f"{one['task']}={one['reason']}" for one in short][:50],
            )
        )

    def close(self) -> None:
        """Listens no more, and writes what is left."""
        if self._remove is not None:
            self._remove()
        self._log.close()

    def __repr__(self) -> str:
        return f"<RunLog running={len(self._agents)} {self._log!r}>"


@lru_cache(maxsize=256)
def _limit(code: str) -> str | None:
    """The limit that an error's code or a shortfall's reason stands for; None when it was none."""
    if code in _QUEUE:
        return "queue"
    if code in _OTHERS:
        return _OTHERS[code]
    known = FailsoftError.from_dict({"code": code})
    return known.limit if isinstance(known, TimeoutExceeded) and known.code == code else None
