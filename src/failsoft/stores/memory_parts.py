"""The parts of the memory store besides runs: approvals and intents, leases, and what is listed and pruned."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from failsoft.base.errors import ApprovalConflict, FailsoftError, NotFound, StoreConflict
from failsoft.stores.approvals import (
    ActionIntent,
    ApprovalPage,
    ApprovalRecord,
    ApprovalStatus,
    Resolution,
)
from failsoft.stores.keeping import (
    Pruned,
    Retention,
    StoreStatistics,
)
from failsoft.stores.leases import LostRun
from failsoft.stores.protocols import RunRecord, StoredEvent, StoredRun, TaskRecord

__all__ = ["MemoryApprovals", "MemoryKeeping", "MemoryLeases", "Row"]


@dataclass(slots=True)
class Row:
    """A run."""

    record: RunRecord
    epoch: int
    node: str
    state: str = "received"
    snapshot: Mapping[str, Any] = field(default_factory=dict)
    terminal: str | None = None
    result: Mapping[str, Any] | None = None
    tasks: dict[str, TaskRecord] = field(default_factory=dict)
    events: list[StoredEvent] = field(default_factory=list)
    actions: dict[str, ActionIntent] = field(default_factory=dict)
    approvals: list[str] = field(default_factory=list)
    size: int = 0
    ended: float | None = None
    deaths: int = 0
    background: bool = False

    def stored(self, *, whole: bool) -> StoredRun:
        """As the port gives it; with its tasks and events when `whole`."""
        return StoredRun(
            replace(self.record, background=self.background),
            self.epoch,
            self.node,
            self.state,
            dict(self.snapshot),
            self.terminal,
            self.result,
            dict(self.tasks) if whole else {},
            tuple(self.events) if whole else (),
            self.ended,
            self.deaths,
        )


class _Rows:
    def __init__(self) -> None:
        self._rows: OrderedDict[str, Row] = OrderedDict()
        self._approvals: dict[str, ApprovalRecord] = {}
        self._leases: dict[str, float] = {}

    def _held_row(self, run: str, epoch: int) -> Row | StoreConflict:
        """The row of a run that has not ended and is at that epoch, or why it is not to be written to."""
        row = self._rows.get(run)
        if row is None:
            return StoreConflict(f"there is no run {run}")
        if row.terminal is not None:
            return StoreConflict(f"run {run} has ended as {row.terminal}")
        if row.epoch != epoch:
            return StoreConflict(f"run {run} is at epoch {row.epoch}, not {epoch}")
        return row

    def _row(self, run: str, epoch: int) -> Row:
        row = self._held_row(run, epoch)
        if isinstance(row, FailsoftError):
            raise row
        return row

    def _drop(self, run: str) -> None:
        raise NotImplementedError


class MemoryApprovals(_Rows):
    """Approvals and intents; they go with their run."""

    async def ask_approval(self, run: str, epoch: int, record: ApprovalRecord) -> ApprovalRecord:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""
        row = self._row(run, epoch)
        same = (record.task, record.arguments_hash, record.reason)
        for known in [self._approvals[one] for one in row.approvals]:
            if (known.task, known.arguments_hash, known.reason) == same and known.status != "withdrawn":
                return known
        for known in [self._approvals[one] for one in row.approvals]:
            if known.task == record.task and known.status == "pending":
                self._approvals[known.id] = replace(known, status="withdrawn", resolved=record.created)
        row.approvals.append(record.id)
        self._approvals[record.id] = record
        return record

    async def resolve_approval(
        self,
        approval: str,
        status: Resolution,
        *,
        at: float,
        by: str | None = None,
        note: str = "",
        tenant: str | None = None,
    ) -> ApprovalRecord:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""
        known = await self.load_approval(approval, tenant=tenant)
        if known is None:
            raise NotFound(f"there is no approval {approval[:80]!r}", param="approval_id")
        if known.status == "pending" and status in ("approved", "rejected") and at >= known.expires:
            known = self._approvals[approval] = replace(known, status="expired", resolved=at)
        if known.status != "pending":
            raise resolved_before(known)
        known = self._approvals[approval] = replace(known, status=status, resolved=at, by=by, note=note)
        return known

    async def load_approval(self, approval: str, *, tenant: str | None = None) -> ApprovalRecord | None:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""
        known = self._approvals.get(approval)
        return None if known is None or (tenant is not None and known.tenant != tenant) else known

    async def list_approvals(
        self,
        *,
        tenant: str | None = None,
        status: ApprovalStatus | None = None,
        run: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> ApprovalPage:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""
        found = [
            one
            for _, one in sorted(self._approvals.items(), reverse=True)
            if (tenant is None or one.tenant == tenant)
            and (status is None or one.status == status)
            and (run is None or one.run == run)
            and (after is None or one.id < after)
        ]
        page = tuple(found[:limit])
        return ApprovalPage(page, page[-1].id if len(found) > len(page) > 0 else None)

    async def begin_action(self, run: str, epoch: int, intent: ActionIntent) -> ActionIntent | None:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""
        row = self._row(run, epoch)
        known = row.actions.get(intent.key)
        if known is None:
            row.actions[intent.key] = intent
        return known

    async def end_action(self, run: str, epoch: int, key: str) -> None:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""
        row = self._row(run, epoch)
        if (known := row.actions.get(key)) is not None:
            row.actions[key] = replace(known, ended=True)

    async def load_actions(self, run: str) -> Sequence[ActionIntent]:
        """See :class:`~failsoft.stores.approvals.ApprovalStore`."""
        row = self._rows.get(run)
        return () if row is None else tuple(row.actions.values())

    def _drop_approvals(self, row: Row) -> None:
        for one in row.approvals:
            self._approvals.pop(one, None)


def resolved_before(known: ApprovalRecord) -> ApprovalConflict:
    """Why an approval cannot be resolved any more."""
    told = "has expired" if known.status == "expired" else f"was {known.status} before"
    return ApprovalConflict(
        f"approval {known.id} {told}", param="approval_id", run_id=known.run, details={"status": known.status}
    )


class MemoryLeases(_Rows):
    """Leases of nodes, which matter only to those who share this memory."""

    async def renew_lease(self, node: str, until: float) -> None:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""
        self._leases[node] = until

    async def drop_lease(self, node: str) -> None:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""
        self._leases.pop(node, None)

    async def leases(self) -> Mapping[str, float]:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""
        return dict(self._leases)

    async def lost_runs(self, now: float, *, limit: int = 100) -> Sequence[LostRun]:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""
        found = [
            LostRun(run, row.epoch, row.node, row.background, row.state, row.deaths)
            for run, row in self._rows.items()
            if row.terminal is None and not self._leases.get(row.node, 0.0) >= now
        ]
        return sorted(found, key=lambda one: one.run)[:limit]

    async def held_runs(self, node: str, *, limit: int = 1000) -> Sequence[LostRun]:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""
        found = [
            LostRun(run, row.epoch, row.node, row.background, row.state, row.deaths)
            for run, row in self._rows.items()
            if row.terminal is None and row.node == node
        ]
        return sorted(found, key=lambda one: one.run)[:limit]

    async def release_run(self, run: str, epoch: int) -> None:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""
        self._row(run, epoch).node = ""

    async def detach_run(self, run: str, epoch: int) -> None:
        """See :class:`~failsoft.stores.leases.LeaseStore`."""
        self._row(run, epoch).background = True


class MemoryKeeping(_Rows):
    """Lists, sessions, pruning, figures."""

    async def read_events(
        self, run: str, *, tenant: str | None = None, after: tuple[int, int] | None = None, limit: int = 500
    ) -> Sequence[StoredEvent]:
        """See :class:`~failsoft.stores.protocols.RunStore`."""
        row = self._rows.get(run)
        if row is None or (tenant is not None and row.record.tenant != tenant):
            return ()
        ordered = sorted(row.events, key=lambda one: (one.epoch, one.seq))
        return [one for one in ordered if after is None or (one.epoch, one.seq) > after][:limit]

    async def prune(self, retention: Retention, *, now: float, batch: int = 500) -> Pruned:
        """See :class:`~failsoft.stores.keeping.KeepingStore`."""
        runs = details = 0
        for run, row in list(self._rows.items()):
            if row.ended is None or row.terminal is None:
                continue
            keep = retention.runs
            if row.record.idempotency_key is not None:
                keep = max(keep, retention.keyed)
            if row.record.session is not None:
                keep = max(keep, retention.sessions)
            if runs < batch and row.ended + keep <= now:
                self._drop(run)
                runs += 1
            elif (row.events or row.tasks) and row.ended + retention.details <= now:
                details += 1
                row.events.clear()
                row.tasks.clear()
        gone = [node for node, until in self._leases.items() if until + retention.leases <= now]
        for node in gone:
            del self._leases[node]
        return Pruned(runs, details, len(gone), runs >= batch)

    async def statistics(self) -> StoreStatistics:
        """See :class:`~failsoft.stores.keeping.KeepingStore`."""
        rows = self._rows.values()
        return StoreStatistics(
            runs=dict(Counter(row.state for row in rows)),
            rows={
                "runs": len(rows),
                "events": sum(len(row.events) for row in rows),
                "tasks": sum(len(row.tasks) for row in rows),
                "approvals": len(self._approvals),
                "actions": sum(len(row.actions) for row in rows),
                "leases": len(self._leases),
            },
            oldest=min((row.record.created for row in rows), default=None),
        )
