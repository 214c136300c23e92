"""What stands between a task of a run and its tool: a person's approval, an action's intent, the lease of the node.

Approvals are looked at before anything of the task starts, and are bound to the hash of its arguments. An action's
intent is written before its attempt: after a crash it says that the action may have happened. It is then done again
only if its tool is declared idempotent (it is given the same key), or a person has looked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from failsoft.base.errors import (
    ApprovalExpired,
    ApprovalRejected,
    BadInput,
    DownstreamRejected,
    FailsoftError,
    LeaseLost,
    OutcomeUnknown,
    Rejection,
    StoreError,
)
from failsoft.kernel.classify import as_error
from failsoft.runs.crew import Crew, within
from failsoft.stores.approvals import ActionIntent, ApprovalRecord, arguments_hash
from failsoft.stores.protocols import RunStore
from failsoft.tools.registry import ToolSpec

__all__ = ["ApprovalNeeded", "Gate"]

_DID_NOT_HAPPEN: Final = (Rejection, BadInput, DownstreamRejected)
"""Errors after which it is certain that an action did not happen."""


class ApprovalNeeded(FailsoftError):
    """A task may go on only when a person has said yes; the run waits for that."""

    type = "waiting"
    code = "approval_needed"
    status = 409

    def __init__(self, task: str, tool: str, arguments: Mapping[str, Any], reason: str, *, title: str = "") -> None:
        super().__init__(f"tool {tool!r} asks a person before it does this")
        self.task = task
        self.tool = tool
        self.arguments = arguments
        self.reason = reason
        self.title = title
        self.arguments_hash = arguments_hash(tool, arguments)

    @property
    def key(self) -> tuple[str, str, str]:
        """What an approval is for."""
        return (self.task, self.arguments_hash, self.reason)


class Gate:
    """One run's gate. ``epoch`` is asked when something is written: it grows when the run is taken over."""

    def __init__(
        self,
        run: str,
        store: RunStore | None,
        crew: Crew,
        wall: Callable[[], float],
        *,
        epoch: Callable[[], int],
        wait: float,
        may_call: Callable[[], bool] | None = None,
        note: Callable[[BaseException], object] | None = None,
    ) -> None:
        self.run = run
        """The run's id; another one when its idempotency key turns out to be an earlier run's."""
        self._store = store
        self._crew = crew
        self._wall = wall
        self._epoch = epoch
        self._wait = wait
        self._note = note
        self.may_call = may_call
        """Asked before each call, if there is anything to ask; set for runs that other nodes may take over."""
        self.approvals: dict[tuple[str, str, str], ApprovalRecord] = {}
        """What is known of this run's approvals."""
        self.refused: dict[tuple[str, str, str], FailsoftError] = {}
        """Approvals that could not be asked for."""
        self.unknown: set[str] = set()
        """Keys of actions that may have happened before a crash."""

    def load(self, approvals: Iterable[ApprovalRecord], intents: Iterable[ActionIntent]) -> None:
        """What the store knows of the run, when it goes on after a restart."""
        for record in sorted(approvals, key=lambda one: one.created):
            self.know(record)
        self.unknown.update(intent.key for intent in intents if not intent.ended)

    def know(self, record: ApprovalRecord) -> None:
        """An approval is as `record` says."""
        self.approvals[record.task, record.arguments_hash, record.reason] = record

    @property
    def pending(self) -> list[ApprovalRecord]:
        """Approvals that nobody has resolved yet."""
        return [record for record in self.approvals.values() if record.status == "pending"]

    def undecided(self, essential: Callable[[str], bool]) -> ApprovalRecord | None:
        """What was asked for an essential task and was never decided, not when it was asked anew either.

        `essential` is told the plan's task; a loop's calls are asked about under its name and one of their own. Of a
        list something was decided when it was for one of its items.
        """
        decided = [record for record in self.approvals.values() if record.status in ("approved", "rejected")]
        said = {record.arguments_hash for record in decided}
        lists = {record.task.partition("[")[0] for record in decided if "[" in record.task}
        for record in self.approvals.values():
            if record.status != "expired" or record.arguments_hash in said:
                continue
            if essential(record.task.partition(".")[0]) and record.task.partition("[")[0] not in lists:
                return record
        return None

    # --- before a task -----------------------------------------------------------------------------------------------

    def check(self, spec: ToolSpec, arguments: Mapping[str, Any], task: str, key: str, *, title: str = "") -> None:
        """Raises :class:`ApprovalNeeded` when a person has to say yes first, or what the person has said instead."""
        if spec.asks(arguments):
            self._demand(ApprovalNeeded(task, spec.name, arguments, "tool", title=title))
        if key in self.unknown and spec.kind == "action" and not spec.idempotent:
            self._demand(ApprovalNeeded(task, spec.name, arguments, "unknown_outcome", title=title))

    def _demand(self, need: ApprovalNeeded) -> None:
        if (error := self.refused.get(need.key)) is not None:
            raise error
        record = self.approvals.get(need.key)
        status = "pending" if record is None else record.status
        if status == "approved":
            return
        if status == "rejected":
            assert record is not None
            by = f" by {record.by}" if record.by else ""
            raise ApprovalRejected(
                f"what {need.tool!r} was about to do was rejected{by}", details={"note": record.note}
            )
        if status == "expired":
            raise ApprovalExpired(f"nobody said in time whether {need.tool!r} may do it")
        raise need

    # --- around an action --------------------------------------------------------------------------------------------

    async def act(
        self, spec: ToolSpec, arguments: Mapping[str, Any], task: str, key: str, attempt: Callable[[], Any]
    ) -> Any:
        """Makes an action's attempt, with its intent written before it.

        Raises what the attempt raises; :class:`StoreError` when the intent could not be written (an idempotent tool
        goes on without); :class:`OutcomeUnknown` when it may have happened before; :class:`LeaseLost`.
        """
        self.call()
        store = self._store
        if store is None:
            return await attempt()
        await self._intend(store, spec, arguments, task, key)
        try:
            return await attempt()
        except _DID_NOT_HAPPEN:
            await self._end(store, key)
            raise

    def call(self) -> None:
        """Raises :class:`LeaseLost` when this node may start no calls for the run."""
        if self.may_call is not None and not self.may_call():
            raise LeaseLost("this node could not renew its lease: the run is left to others", run_id=self.run)

    async def _intend(self, store: RunStore, spec: ToolSpec, arguments: Mapping[str, Any], task: str, key: str) -> None:
        intent = ActionIntent(key, spec.name, task, arguments_hash(spec.name, arguments), self._wall())
        try:
            known = await self._bounded(store.begin_action(self.run, self._epoch(), intent), "writing an intent")
        except FailsoftError as error:
            if error.code == "store_conflict":
                raise  # the run is another's, or has ended: nothing of it may happen any more
            if self._note is not None:
                self._note(error)
            if spec.idempotent:
                return
            raise StoreError(
                f"what {spec.name!r} was about to do could not be written down first, so it was not done",
                retry_after=1.0,
            ) from error
        if known is None or known.ended or (spec.idempotent and known.tool == spec.name):
            return
        allowed = self.approvals.get((task, intent.arguments_hash, "unknown_outcome"))
        if key in self.unknown and allowed is not None and allowed.status == "approved":
            self.unknown.discard(key)
            return
        raise OutcomeUnknown(f"{spec.name!r} may have done this before, and it is not declared idempotent")

    async def _end(self, store: RunStore, key: str) -> None:
        try:
            await self._bounded(store.end_action(self.run, self._epoch(), key), "writing an action's end")
        except FailsoftError as error:
            if self._note is not None:
                self._note(error)

    async def _bounded(self, work: Any, what: str) -> Any:
        at = asyncio.get_running_loop().time() + self._wait
        try:
            return await within(self._crew, work, at=at, what=what, run=self.run)
        except FailsoftError:
            raise
        except Exception as error:
            raise as_error(error) from error

    def __repr__(self) -> str:
        return f"<Gate {self.run} approvals={len(self.approvals)} unknown={len(self.unknown)}>"
