"""The part of the store port about what people and downstreams must not be asked for twice: approvals and actions.

An **approval** is bound to the hash of its arguments: other arguments are another approval. It is resolved once, by a
compare-and-set. An **intent** is written before an action's attempt and says, after a crash, that it may have happened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import msgspec

__all__ = [
    "ActionIntent",
    "ApprovalPage",
    "ApprovalRecord",
    "ApprovalStatus",
    "ApprovalStore",
    "Resolution",
    "arguments_hash",
]

ApprovalStatus = Literal["pending", "approved", "rejected", "expired", "withdrawn"]
"""``withdrawn``: nobody waits for it any more, because its run was cancelled or its arguments have changed."""

Resolution = Literal["approved", "rejected", "expired", "withdrawn"]


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """A question to a person: may this task do this? Times are UTC seconds; ``by`` and ``note`` are the person's.

    ``reason`` is ``tool`` (the tool asks), ``repeated_degradation`` (approved: try once more; rejected: leave it) or
    ``unknown_outcome`` (an action may have happened before a crash; approved: do it once more).
    """

    id: str
    run: str
    task: str
    tool: str
    arguments: Mapping[str, Any]
    arguments_hash: str
    reason: str
    created: float
    expires: float
    tenant: str | None = None
    agent: str = ""
    title: str = ""
    status: ApprovalStatus = "pending"
    resolved: float | None = None
    by: str | None = None
    note: str = ""

    def as_of(self, now: float) -> ApprovalRecord:
        """As it stands at `now`: one whose time is over has expired, also where nobody was there to write that down."""
        return self if self.status != "pending" or now < self.expires else replace(self, status="expired")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "id": self.id,
            "run_id": self.run,
            "task": self.task,
            "tool": self.tool,
            "title": self.title,
            "agent": self.agent,
            "arguments": dict(self.arguments),
            "arguments_hash": self.arguments_hash,
            "reason": self.reason,
            "status": self.status,
            "created": self.created,
            "expires": self.expires,
            "resolved": self.resolved,
            "by": self.by,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class ApprovalPage:
    """Some approvals, newest first, and the cursor of those that follow, None at the end."""

    approvals: tuple[ApprovalRecord, ...]
    after: str | None = None

    def as_of(self, now: float, status: ApprovalStatus | None) -> ApprovalPage:
        """The page as it stands at `now`: of those asked for as `status`, those that still are."""
        found = (one.as_of(now) for one in self.approvals)
        return ApprovalPage(tuple(one for one in found if status in (None, one.status)), self.after)


@dataclass(frozen=True, slots=True)
class ActionIntent:
    """An action is about to be tried: ``key`` is what its downstream knows it by. ``ended`` once its end is known."""

    key: str
    tool: str
    task: str
    arguments_hash: str
    at: float
    ended: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)


class ApprovalStore(Protocol):
    """Where approvals and the intents of actions are kept."""

    async def ask_approval(self, run: str, epoch: int, record: ApprovalRecord) -> ApprovalRecord:
        """Writes a pending approval of a run that is held at `epoch`, or gives the one there is.

        The same task with the same ``arguments_hash`` and ``reason`` has one approval, whatever was said about it,
        unless it was withdrawn; pending ones of the task with other arguments are withdrawn. Raises ``StoreConflict``
        like every write of a run.
        """
        ...

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
        """Resolves a pending approval, once.

        Raises ``NotFound`` (also for another tenant's) and :class:`~failsoft.base.errors.ApprovalConflict` when it has
        been resolved before, or, for approved and rejected, when it expires at `at` or did before: it is then expired.
        """
        ...

    async def load_approval(self, approval: str, *, tenant: str | None = None) -> ApprovalRecord | None:
        """The approval; None when there is none, or another tenant's (when `tenant` is given)."""
        ...

    async def list_approvals(
        self,
        *,
        tenant: str | None = None,
        status: ApprovalStatus | None = None,
        run: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> ApprovalPage:
        """Approvals, newest first (by id), those after the cursor `after`; every restriction that is given holds."""
        ...

    async def begin_action(self, run: str, epoch: int, intent: ActionIntent) -> ActionIntent | None:
        """Writes the intent of a run held at `epoch`: None, and the attempt may begin; or the earlier one of that key.

        Raises ``StoreConflict`` like every write of a run.
        """
        ...

    async def end_action(self, run: str, epoch: int, key: str) -> None:
        """The end of an action is known, whatever it was. Raises ``StoreConflict`` like every write of a run."""
        ...

    async def load_actions(self, run: str) -> Sequence[ActionIntent]:
        """The intents of a run, oldest first."""
        ...


def arguments_hash(tool: str, arguments: Mapping[str, Any]) -> str:
    """What an approval is bound to: the tool and its arguments, in whatever order they were written."""
    encoded = msgspec.json.encode([tool, dict(arguments)], enc_hook=repr, order="sorted")
    return hashlib.sha256(encoded).hexdigest()
