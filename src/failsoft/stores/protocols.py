"""The store port: where a run's truth is kept, so that any process that holds the run may drive it.

Every write of a run carries the writer's **epoch** and takes effect only ``WHERE epoch = ? AND terminal IS NULL``:
whoever lost the run, or comes after its end, gets :class:`~failsoft.base.errors.StoreConflict` and changes nothing.
Timestamps are UTC seconds since the epoch; loop time never gets here. Values are plain JSON data.

All methods may raise :class:`~failsoft.base.errors.StoreError`; callers bound them by time. Implementations prove
themselves with :func:`failsoft.testing.contracts.check_store`. Besides runs a store keeps approvals and the intents of
actions (:mod:`~failsoft.stores.approvals`), leases (:mod:`~failsoft.stores.leases`), and what is listed, remembered
and pruned (:mod:`~failsoft.stores.keeping`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from failsoft.base.errors import FailsoftError
from failsoft.stores.approvals import ApprovalStore
from failsoft.stores.keeping import KeepingStore
from failsoft.stores.leases import LeaseStore

__all__ = [
    "AppendEvents",
    "CreateRun",
    "Created",
    "Duration",
    "FinishRun",
    "FinishTask",
    "RunRecord",
    "RunStore",
    "SaveSnapshot",
    "StoredEvent",
    "StoredRun",
    "TaskRecord",
    "Write",
]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as it was accepted. ``body_hash`` identifies the request under an ``idempotency_key``."""

    run: str
    agent: str
    request: Mapping[str, Any]
    created: float
    budget: float
    node: str
    tenant: str | None = None
    session: str | None = None
    background: bool = False
    idempotency_key: str | None = None
    body_hash: str = ""


@dataclass(frozen=True, slots=True)
class Created:
    """What :meth:`RunStore.create_run` found: ``run`` is the earlier one of the same key when ``existing``."""

    run: str
    epoch: int
    existing: bool = False


class StoredEvent(NamedTuple):
    """A run's event with wall-clock time."""

    epoch: int
    seq: int
    kind: str
    at: float
    task: str | None = None
    data: Any = None


class TaskRecord(NamedTuple):
    """A finished task: its status, its value and provenance, and when it ran (seconds from the run's start)."""

    task: str
    status: str
    value: Any = None
    provenance: Mapping[str, Any] = MappingProxyType({})
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Duration:
    """How long something took, in seconds, for the history that progress and scheduling learn from."""

    key: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CreateRun:
    """Write: a run that is accepted without waiting for the store; see :meth:`RunStore.create_run`."""

    record: RunRecord

    @property
    def run(self) -> str:
        """The run's id."""
        return self.record.run


@dataclass(frozen=True, slots=True)
class AppendEvents:
    """Write: events of a run, in order."""

    run: str
    epoch: int
    events: tuple[StoredEvent, ...]


class FinishTask(NamedTuple):
    """Write: a finished task; a second one for the same task replaces the first."""

    run: str
    epoch: int
    record: TaskRecord


@dataclass(frozen=True, slots=True)
class SaveSnapshot:
    """Write: the run's state and plan as of now; replaces the one before."""

    run: str
    epoch: int
    state: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FinishRun:
    """Write: the terminal state and result, ``at`` a UTC time. At most one ever takes effect for a run."""

    run: str
    epoch: int
    terminal: str
    result: Mapping[str, Any]
    at: float = 0.0


Write = CreateRun | AppendEvents | FinishTask | SaveSnapshot | FinishRun
"""A write that may be grouped with others; all but the first are conditional."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it stands in the store. ``terminal``, ``result`` and ``ended`` (UTC) are None until it has ended.

    ``deaths`` is how many nodes died while they held it.
    """

    record: RunRecord
    epoch: int
    node: str
    state: str = "received"
    snapshot: Mapping[str, Any] = field(default_factory=dict)
    terminal: str | None = None
    result: Mapping[str, Any] | None = None
    tasks: Mapping[str, TaskRecord] = field(default_factory=dict)
    events: tuple[StoredEvent, ...] = ()
    ended: float | None = None
    deaths: int = 0


class RunStore(ApprovalStore, LeaseStore, KeepingStore, Protocol):
    """Where runs are kept, and all else."""

    async def create_run(self, record: RunRecord) -> Created:
        """Inserts a run with epoch 1, held by ``record.node``.

        With an idempotency key already used by the tenant: the earlier run when ``body_hash`` is the same, else raises
        :class:`~failsoft.base.errors.IdempotencyConflict`. An id that exists raises ``StoreConflict``.
        """
        ...

    async def write(self, writes: Sequence[Write]) -> list[FailsoftError | None]:
        """Makes the writes in order, durably, as one group; for each None, or the conflict that it met.

        One write's conflict does not touch the others. Raises when nothing could be written at all.
        """
        ...

    async def append_events(self, run: str, epoch: int, events: Sequence[StoredEvent]) -> None:
        """One :class:`AppendEvents`; raises its conflict."""
        ...

    async def finish_task(self, run: str, epoch: int, record: TaskRecord) -> None:
        """One :class:`FinishTask`; raises its conflict."""
        ...

    async def save_snapshot(self, run: str, epoch: int, state: str, data: Mapping[str, Any]) -> None:
        """One :class:`SaveSnapshot`; raises its conflict."""
        ...

    async def finish_run(self, run: str, epoch: int, terminal: str, result: Mapping[str, Any], at: float = 0.0) -> None:
        """One :class:`FinishRun`; raises its conflict: a run ends once."""
        ...

    async def acquire(self, run: str, node: str, *, expected: int | None = None, died: bool = False) -> int:
        """Takes the run over for `node`; its epoch grows by one and is returned. The former holder's writes conflict.

        `died` when the former holder did, which is counted. Raises ``StoreConflict`` when the run has ended or its
        epoch is not `expected`; ``NotFound`` when there is none.
        """
        ...

    async def load_run(self, run: str, *, tenant: str | None = None) -> StoredRun | None:
        """The run with its tasks and events; None when there is none, or another tenant's (when `tenant` is given)."""
        ...

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
        """Runs of exactly that tenant (None: those of no tenant), newest first, without their tasks and events.

        Ids are ordered in time. ``after`` is the last run of the page before, which is how pages follow each other.
        """
        ...

    async def read_events(
        self, run: str, *, tenant: str | None = None, after: tuple[int, int] | None = None, limit: int = 500
    ) -> Sequence[StoredEvent]:
        """The run's events after the id `after` (epoch, seq), in order; none for another tenant's run."""
        ...

    async def record_durations(self, durations: Sequence[Duration]) -> None:
        """Adds to the history; only the newest few per key are kept."""
        ...

    async def durations(self) -> Mapping[str, Sequence[float]]:
        """The history by key, oldest first, bounded per key and in keys."""
        ...

    async def aclose(self) -> None:
        """Writes what is pending and lets go of everything."""
        ...


class SingleWrites:
    """The single writes by :meth:`RunStore.write`, for implementations to inherit."""

    async def write(self, writes: Sequence[Write]) -> list[FailsoftError | None]:
        """See :class:`RunStore`."""
        raise NotImplementedError

    async def _one(self, write: Write) -> None:
        error = (await self.write([write]))[0]
        if error is not None:
            raise error

    async def append_events(self, run: str, epoch: int, events: Sequence[StoredEvent]) -> None:
        """See :class:`RunStore`."""
        await self._one(AppendEvents(run, epoch, tuple(events)))

    async def finish_task(self, run: str, epoch: int, record: TaskRecord) -> None:
        """See :class:`RunStore`."""
        await self._one(FinishTask(run, epoch, record))

    async def save_snapshot(self, run: str, epoch: int, state: str, data: Mapping[str, Any]) -> None:
        """See :class:`RunStore`."""
        await self._one(SaveSnapshot(run, epoch, state, data))

    async def finish_run(self, run: str, epoch: int, terminal: str, result: Mapping[str, Any], at: float = 0.0) -> None:
        """See :class:`RunStore`."""
        await self._one(FinishRun(run, epoch, terminal, result, at))
