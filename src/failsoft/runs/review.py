"""Approvals: questions to people about what a task is about to do, and what becomes of them.

An approval is bound to the hash of its arguments and resolved once: approved, rejected or expired, each its own state.
While a run waits for one, nothing of it runs and its deadline stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeVar

from failsoft.base.clock import Sources
from failsoft.base.errors import ApprovalConflict, BadInput, NotFound, StoreError
from failsoft.runs.crew import Crew, within
from failsoft.runs.gate import ApprovalNeeded
from failsoft.stores.approvals import ApprovalPage, ApprovalRecord, ApprovalStatus
from failsoft.stores.protocols import RunStore

__all__ = ["Approvals", "Reviews"]

T = TypeVar("T")


class Approvals(Protocol):
    """What a door (HTTP, command line) needs to show approvals and have them resolved."""

    async def list(
        self,
        *,
        tenant: str | None = None,
        status: ApprovalStatus | None = None,
        run: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> ApprovalPage:
        """Approvals, newest first; ``after`` is the cursor of the page before."""
        ...

    async def get(self, approval: str, *, tenant: str | None = None) -> ApprovalRecord:
        """One approval; raises :class:`~failsoft.base.errors.NotFound`, also for another tenant's."""
        ...

    async def resolve(
        self,
        approval: str,
        status: Literal["approved", "rejected"],
        *,
        tenant: str | None = None,
        by: str | None = None,
        note: str = "",
    ) -> ApprovalRecord:
        """Resolves it, once, and lets its run go on.

        Raises :class:`~failsoft.base.errors.NotFound`, :class:`~failsoft.base.errors.ApprovalConflict` (resolved
        before, or expired), :class:`~failsoft.base.errors.BadInput` for another status.
        """
        ...


class Reviews:
    """The approvals of an app, over its store.

    ``on_asked`` is told of each that is new, ``on_resolved`` of each that was resolved here; neither may block or
    raise. ``expires`` is how many seconds a person has.
    """

    def __init__(
        self,
        store: RunStore | None,
        crew: Crew,
        sources: Sources,
        *,
        wait: float = 5.0,
        expires: float = 86_400.0,
    ) -> None:
        self._store = store
        self._crew = crew
        self._sources = sources
        self._wall = sources.wall
        self._wait = wait
        self.expires = expires
        self.on_asked: Callable[[ApprovalRecord], None] | None = None
        self.on_resolved: Callable[[ApprovalRecord], None] | None = None

    async def _ask(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """Whatever is asked of the store, bounded in time."""
        at = asyncio.get_running_loop().time() + self._wait
        try:
            return await within(self._crew, work, at=at, what=what)
        except TimeoutError:
            raise StoreError(f"{what} took longer than {self._wait:g} s", retry_after=1.0) from None

    @property
    def store(self) -> RunStore:
        """The store; raises :class:`StoreError` when the app keeps nothing."""
        if self._store is None:
            raise StoreError("there are no approvals: the store is off")
        return self._store

    async def list(
        self,
        *,
        tenant: str | None = None,
        status: ApprovalStatus | None = None,
        run: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> ApprovalPage:
        """See :class:`Approvals`."""
        work = self.store.list_approvals(tenant=tenant, status=status, run=run, limit=limit, after=after)
        return (await self._ask(work, "listing approvals")).as_of(self._wall(), status)

    async def get(self, approval: str, *, tenant: str | None = None) -> ApprovalRecord:
        """See :class:`Approvals`."""
        found = await self._ask(self.store.load_approval(approval, tenant=tenant), "reading an approval")
        if found is None:
            raise NotFound(f"there is no approval {approval[:80]!r}", param="approval_id")
        return found.as_of(self._wall())

    async def resolve(
        self,
        approval: str,
        status: Literal["approved", "rejected"],
        *,
        tenant: str | None = None,
        by: str | None = None,
        note: str = "",
    ) -> ApprovalRecord:
        """See :class:`Approvals`."""
        if status not in ("approved", "rejected"):
            raise BadInput("status: should be approved or rejected", param="status")
        if len(note) > 2_000 or (by is not None and len(by) > 200):
            raise BadInput("note: should have at most 2000 characters, and a name 200", param="note")
        work = self.store.resolve_approval(approval, status, at=self._wall(), by=by, note=note, tenant=tenant)
        resolved = await self._ask(work, "resolving an approval")
        if self.on_resolved is not None:
            self.on_resolved(resolved)
        return resolved

    # --- for runs ----------------------------------------------------------------------------------------------------

    async def ask(
        self, need: ApprovalNeeded, *, run: str, epoch: int, tenant: str | None, agent: str
    ) -> ApprovalRecord:
        """Writes the question, or finds the one that was asked before; raises what the store raises."""
        now = self._wall()
        record = ApprovalRecord(
            id=self._sources.new_id("apr"),
            run=run,
            task=need.task,
            tool=need.tool,
            arguments=dict(need.arguments),
            arguments_hash=need.arguments_hash,
            reason=need.reason,
            created=now,
            expires=now + self.expires,
            tenant=tenant,
            agent=agent,
            title=need.title,
        )
        asked = await self._ask(self.store.ask_approval(run, epoch, record), "writing an approval")
        if asked.id == record.id and self.on_asked is not None:
            self.on_asked(asked)
        return asked

    async def expire(self, record: ApprovalRecord) -> ApprovalRecord:
        """Its time is over: gives it as it is then, which may be resolved in the last moment."""
        work = self.store.resolve_approval(record.id, "expired", at=self._wall())
        try:
            return await self._ask(work, "expiring an approval")
        except ApprovalConflict:
            return await self.get(record.id)

    async def withdraw(self, records: Sequence[ApprovalRecord]) -> None:
        """Nobody waits for them any more."""
        for record in records:
            work = self.store.resolve_approval(record.id, "withdrawn", at=self._wall())
            with contextlib.suppress(ApprovalConflict, NotFound):
                await self._ask(work, "withdrawing an approval")

    def __repr__(self) -> str:
        return f"<Reviews {self._store!r}>"
