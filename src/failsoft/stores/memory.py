"""The store in this process's memory: the embedded default, and the model that the others are compared with."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Final

from failsoft.base.errors import FailsoftError, IdempotencyConflict, NotFound, StoreConflict
from failsoft.base.weights import weight
from failsoft.stores.memory_parts import MemoryApprovals, MemoryKeeping, MemoryLeases, Row
from failsoft.stores.protocols import (
    AppendEvents,
    Created,
    CreateRun,
    Duration,
    FinishTask,
    RunRecord,
    SaveSnapshot,
    SingleWrites,
    StoredRun,
    Write,
)

__all__ = ["MemoryStore"]

DURATIONS_PER_KEY: Final = 50
DURATION_KEYS: Final = 1_000
UNENDED: Final = 25_000
"""Runs without an end that are kept: more than can run at once, so that only those whose end was lost are dropped."""


class MemoryStore(MemoryApprovals, MemoryLeases, MemoryKeeping, SingleWrites):
    """Keeps the newest ``max_runs`` ended runs with results of about ``room`` bytes; running ones are never dropped.

    Nothing survives the process.
    """

    def __init__(self, *, max_runs: int = 1_000, max_events: int = 10_000, room: int = 256 << 20) -> None:
        super().__init__()
        self._ended: deque[str] = deque()
        self._keys: dict[tuple[str | None, str | None], str] = {}
        self._durations: OrderedDict[str, deque[float]] = OrderedDict()
        self._max_runs = max_runs
        self._max_events = max_events
        self._room = room
        self._held = 0

    @property
    def durable(self) -> bool:
        """No: what is in memory goes with the process."""
        return False

    async def create_run(self, record: RunRecord) -> Created:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        return self._create(record)

    def _create(self, record: RunRecord) -> Created:
        key = (record.tenant, record.idempotency_key)
        if record.idempotency_key is not None:
            earlier = self._keys.get(key)
            if earlier is not None:
                row = self._rows[earlier]
                if row.record.body_hash != record.body_hash:
                    raise IdempotencyConflict(
                        "this Idempotency-Key was used with another request", param="Idempotency-Key", run_id=earlier
                    )
                return Created(earlier, row.epoch, existing=True)
        if record.run in self._rows:
            raise StoreConflict(f"there is a run {record.run} already")
        if record.idempotency_key is not None:
            self._keys[key] = record.run
        self._rows[record.run] = Row(record, 1, record.node, background=record.background)
        if len(self._rows) > self._max_runs + UNENDED:
            self._drop(next(iter(self._rows)))
        return Created(record.run, 1)

    async def write(self, writes: Sequence[Write]) -> list[FailsoftError | None]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        return [self._write(write) for write in writes]

    def _write(self, write: Write) -> FailsoftError | None:
        if isinstance(write, CreateRun):
            try:
                self._create(write.record)
            except FailsoftError as error:
                return error
            return None
        row = self._held_row(write.run, write.epoch)
        if isinstance(row, FailsoftError):
            return row
        if isinstance(write, AppendEvents):
            row.events.extend(write.events)
            del row.events[: -self._max_events]
        elif isinstance(write, FinishTask):
            row.tasks[write.record.task] = write.record
            size = weight(write.record.value)
            row.size += size
            self._held += size
        elif isinstance(write, SaveSnapshot):
            row.state, row.snapshot = write.state, write.data
        else:
            row.state = row.terminal = write.terminal
            row.result = write.result
            row.ended = write.at
            self._ended.append(write.run)
            self._forget()
        return None

    def _forget(self) -> None:
        while len(self._ended) > self._max_runs or (self._held > self._room and len(self._ended) > 1):
            self._drop(self._ended.popleft())

    def _drop(self, run: str) -> None:
        row = self._rows.pop(run, None)
        if row is None:
            return
        self._held -= row.size
        if row.record.idempotency_key is not None:
            self._keys.pop((row.record.tenant, row.record.idempotency_key), None)
        self._drop_approvals(row)

    async def acquire(self, run: str, node: str, *, expected: int | None = None, died: bool = False) -> int:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        row = self._rows.get(run)
        if row is None:
            raise NotFound(f"there is no run {run}")
        if row.terminal is not None or (expected is not None and row.epoch != expected):
            raise StoreConflict(f"run {run} is at epoch {row.epoch} and {row.terminal or 'running'}")
        row.epoch += 1
        row.node = node
        row.deaths += died
        return row.epoch

    async def load_run(self, run: str, *, tenant: str | None = None) -> StoredRun | None:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        row = self._rows.get(run)
        if row is None or (tenant is not None and row.record.tenant != tenant):
            return None
        return row.stored(whole=True)

    async def list_runs(
        self,
        *,
        tenant: str | None,
        session: str | None = None,
        agent: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Sequence[StoredRun]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        found = [
            run
            for run, row in self._rows.items()
            if row.record.tenant == tenant
            and (session is None or row.record.session == session)
            and (agent is None or row.record.agent == agent)
            and (state is None or row.state == state)
            and (after is None or run < after)
        ]
        return [self._rows[run].stored(whole=False) for run in nlargest(limit, found)]

    async def record_durations(self, durations: Sequence[Duration]) -> None:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        for one in durations:
            kept = self._durations.get(one.key)
            if kept is None:
                kept = self._durations[one.key] = deque(maxlen=DURATIONS_PER_KEY)
                if len(self._durations) > DURATION_KEYS:
                    self._durations.popitem(last=False)
            kept.append(one.seconds)

    async def durations(self) -> Mapping[str, Sequence[float]]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        return {key: tuple(kept) for key, kept in self._durations.items()}

    async def aclose(self) -> None:
        """Nothing to do."""

    def __repr__(self) -> str:
        return f"<MemoryStore runs={len(self._rows)}>"
