"""Every error Failsoft raises: one root, stable codes, typed retryability, one JSON shape.

Foreign exceptions are mapped onto these where they enter (see :func:`failsoft.kernel.classify.classify`).
``status`` is the HTTP status a client sees, ``type`` the family it can switch on, ``code`` the exact cause.
Messages are for people and never hold secrets or arguments' values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = [
    "AddressRefused",
    "ApprovalConflict",
    "ApprovalExpired",
    "ApprovalRejected",
    "AttemptTimeout",
    "BadInput",
    "BreakerOpen",
    "CallTimeout",
    "ConfigError",
    "DeadlineExceeded",
    "Doomed",
    "DownstreamError",
    "DownstreamRejected",
    "DownstreamUnavailable",
    "EmptyResult",
    "Evicted",
    "FailsoftError",
    "FirstItemTimeout",
    "Forbidden",
    "IdempotencyConflict",
    "IdleTimeout",
    "InternalError",
    "LeaseLost",
    "MalformedResult",
    "NodeLost",
    "NotFound",
    "OutcomeUnknown",
    "PlanRefused",
    "QueueFull",
    "QueueTimeout",
    "RateLimited",
    "Rejection",
    "RunCancelled",
    "StoreConflict",
    "StoreError",
    "StoreOutdated",
    "StreamCut",
    "TaskTimeout",
    "TimeoutExceeded",
    "ToolFailed",
    "TotalTimeout",
    "Unaffordable",
    "Unauthorized",
    "UnknownAgent",
    "UnknownTool",
]


PRIVATE_DETAILS = frozenset({"exception", "message", "output", "traceback"})
"""Keys of ``details`` that stay in the process: what a tool's code printed or raised may hold what clients must not
see.
"""


class FailsoftError(Exception):
    """The root of all errors raised by Failsoft.

    Class attributes ``type``, ``code``, ``status`` and ``retryable`` are stable and documented in ``docs/errors.md``.
    Instances add ``param`` (the offending key, field or flag), ``downstream``, ``retry_after`` (seconds) and ``run_id``
    where they are known, and ``details`` (plain data for machines; :data:`PRIVATE_DETAILS` never reach a client).
    """

    type: ClassVar[str] = "internal_error"
    code: ClassVar[str] = "failsoft_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    """Whether the same request may succeed a little later (a promise to the client, not to our retry policy)."""

    def __init__(
        self,
        message: str = "",
        *,
        param: str | None = None,
        downstream: str | None = None,
        retry_after: float | None = None,
        run_id: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message or type(self).code.replace("_", " "))
        self.param = param
        self.downstream = downstream
        self.retry_after = retry_after
        self.run_id = run_id
        self.details: Mapping[str, Any] = details if details is not None else {}

    @property
    def message(self) -> str:
        """The text for people."""
        return str(self.args[0])

    def to_dict(self) -> dict[str, Any]:
        """The body of an error response: ``{"error": {"type", "code", "message", "param", "run_id",
        "retry_after"}}``.
        """
        body: dict[str, Any] = {
            "type": self.type,
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "run_id": self.run_id,
            "retry_after": self.retry_after,
        }
        if self.downstream is not None:
            body["downstream"] = self.downstream
        details = {name: value for name, value in self.details.items() if name not in PRIVATE_DETAILS}
        if details:
            body["details"] = details
        return {"error": body}

    @staticmethod
    def from_dict(error: Mapping[str, Any]) -> FailsoftError:
        """The error that what stands under ``"error"`` was made of; one with an unknown code is an internal one."""
        kinds: list[type[FailsoftError]] = [FailsoftError]
        for kind in kinds:
            if kind.__dict__.get("code") == error.get("code"):
                break
            kinds.extend(kind.__subclasses__())
        else:
            kind = InternalError
        made = kind.__new__(kind)
        FailsoftError.__init__(
            made,
            str(error.get("message", "")),
            param=error.get("param"),
            downstream=error.get("downstream"),
            retry_after=error.get("retry_after"),
            run_id=error.get("run_id"),
            details=error.get("details"),
        )
        return made

    def __repr__(self) -> str:
        where = f" downstream={self.downstream!r}" if self.downstream else ""
        return f"<{type(self).__name__} {self.code}{where}: {self.message}>"


# --- refused by us -------------------------------------------------------------------------------------------------


class Rejection(FailsoftError):
    """We refused before trying: never the downstream's failure, never counted by a breaker."""

    type = "rejected"
    code = "rejected"
    status = 503
    retryable = True


class QueueFull(Rejection):
    """The bulkhead's queue is full; ``retry_after`` is the usual time until a place is free."""

    code = "queue_full"


class QueueTimeout(Rejection):
    """The bounded wait for a permit ended before one was free."""

    code = "queue_timeout"


class Evicted(Rejection):
    """A waiting call made room for a more important one, or was shed under sustained overload."""

    code = "evicted"


class BreakerOpen(Rejection):
    """The downstream's breaker is open; ``retry_after`` is the time until it may be probed."""

    code = "breaker_open"


class Doomed(Rejection):
    """The wait and service that are to be expected exceed what is left of the budget."""

    code = "doomed"
    status = 504


class Unaffordable(Rejection):
    """Less budget is left than the call usually needs, or none at all."""

    code = "unaffordable"
    status = 504


class RateLimited(Rejection):
    """The caller's own rate or concurrency limit is used up."""

    type = "rate_limited"
    code = "rate_limited"
    status = 429


# --- time ran out --------------------------------------------------------------------------------------------------


class TimeoutExceeded(FailsoftError, TimeoutError):
    """A limit fired. ``limit`` names which one: ``attempt``, ``call``, ``task``, ``run``, ``first_item``, ``idle``,
    ``total``.
    """

    type = "timeout"
    code = "timeout"
    status = 504
    retryable = True
    limit: ClassVar[str] = "call"


class AttemptTimeout(TimeoutExceeded):
    """One try took longer than the attempt limit."""

    code = "attempt_timeout"
    limit = "attempt"


class CallTimeout(TimeoutExceeded):
    """A call, with its queueing, retries and back-offs, took longer than the call limit."""

    code = "call_timeout"
    limit = "call"


class TaskTimeout(TimeoutExceeded):
    """A task took longer than its share of the run's budget."""

    code = "task_timeout"
    limit = "task"


class DeadlineExceeded(TimeoutExceeded):
    """The run's end-to-end deadline passed."""

    code = "deadline_exceeded"
    limit = "run"


class FirstItemTimeout(TimeoutExceeded):
    """A stream brought no first item in time (for a model: no first token)."""

    code = "first_item_timeout"
    limit = "first_item"


class IdleTimeout(TimeoutExceeded):
    """A stream paused longer than the idle limit."""

    code = "idle_timeout"
    limit = "idle"


class TotalTimeout(TimeoutExceeded):
    """A stream took longer than its total limit."""

    code = "total_timeout"
    limit = "total"


# --- the downstream failed -----------------------------------------------------------------------------------------


class DownstreamError(FailsoftError):
    """A downstream failed; the subclasses say how."""

    type = "downstream_error"
    code = "downstream_error"
    status = 502
    retryable = True


class DownstreamUnavailable(DownstreamError):
    """Not reachable, connection lost, or it answered that it cannot serve now (502, 503, 504)."""

    code = "downstream_unavailable"
    status = 503


class DownstreamRejected(DownstreamError):
    """The downstream refused this request as wrong (its 4xx): the caller's fault, never a breaker's business."""

    code = "downstream_rejected"
    retryable = False


class EmptyResult(DownstreamError):
    """Success was reported but there is nothing in it: suspicious, degrades and alerts, does not break."""

    code = "empty_result"


class MalformedResult(DownstreamError):
    """An answer that cannot be read: garbage, wrong length, an error object under a success status."""

    code = "malformed_result"


class StreamCut(DownstreamError):
    """A stream ended before it said that it was complete."""

    code = "stream_cut"


class ToolFailed(DownstreamError):
    """A tool's own code raised; ``details`` has the exception's type."""

    code = "tool_failed"
    retryable = False


# --- the caller's fault --------------------------------------------------------------------------------------------


class BadInput(FailsoftError):
    """The request is wrong; ``param`` names the field, flag, file or column, ``details`` the place."""

    type = "invalid_request"
    code = "bad_input"
    status = 400


class AddressRefused(BadInput):
    """A request would have gone to an address that its tool may not reach: loopback, a private network, metadata."""

    code = "address_refused"


class ConfigError(BadInput):
    """A configuration is refused; the message starts with ``file:line:`` and names the path of the key."""

    type = "config_error"
    code = "bad_config"


class Unauthorized(FailsoftError):
    """No API key, or an unknown one."""

    type = "unauthorized"
    code = "unauthorized"
    status = 401


class Forbidden(FailsoftError):
    """The key is known but may not do this."""

    type = "forbidden"
    code = "forbidden"
    status = 403


class NotFound(FailsoftError):
    """No such thing, or it belongs to another tenant."""

    type = "not_found"
    code = "not_found"
    status = 404


class UnknownAgent(NotFound):
    """No agent of that name; ``details`` lists the agents there are."""

    code = "unknown_agent"


class UnknownTool(NotFound):
    """No tool of that name; ``details`` lists the tools there are."""

    code = "unknown_tool"


class IdempotencyConflict(FailsoftError):
    """The same ``Idempotency-Key`` came with another body."""

    type = "conflict"
    code = "idempotency_conflict"
    status = 409


class ApprovalConflict(FailsoftError):
    """The approval was already resolved, has expired, or its arguments have changed."""

    type = "conflict"
    code = "approval_conflict"
    status = 409


class ApprovalRejected(FailsoftError):
    """A person said no to what a task was about to do."""

    type = "rejected_by_person"
    code = "approval_rejected"
    status = 403


class ApprovalExpired(FailsoftError):
    """Nobody said yes or no in time to what a task was about to do."""

    type = "expired"
    code = "approval_expired"
    status = 410


# --- runs and stores -----------------------------------------------------------------------------------------------


class PlanRefused(FailsoftError):
    """A plan is not sound: a cycle, unknown or duplicate ids, too large, not affordable."""

    type = "plan_refused"
    code = "plan_refused"
    status = 422


class RunCancelled(FailsoftError):
    """The run was cancelled by its caller."""

    type = "cancelled"
    code = "run_cancelled"
    status = 499


class NodeLost(FailsoftError):
    """The process that drove the run died."""

    type = "internal_error"
    code = "node_lost"
    retryable = True


class StoreError(FailsoftError):
    """The store could not read or write."""

    type = "store_error"
    code = "store_error"
    status = 503
    retryable = True


class StoreOutdated(StoreError):
    """The store was written by another version of Failsoft: an older one is to be migrated, a newer one not touched."""

    code = "store_outdated"
    status = 500
    retryable = False


class LeaseLost(FailsoftError):
    """This process could not say in time that it lives: others may drive its background runs, so it starts no calls."""

    type = "store_error"
    code = "lease_lost"
    status = 503
    retryable = True


class OutcomeUnknown(FailsoftError):
    """An action may have happened before a crash, and its tool is not declared idempotent: a person has to look."""

    type = "conflict"
    code = "outcome_unknown"
    status = 409


class StoreConflict(StoreError):
    """A conditional write found another state: an older epoch, or the run had ended."""

    code = "store_conflict"
    status = 409
    retryable = False


class InternalError(FailsoftError):
    """A defect of ours. The message never shows internals to the client; the log has the trace."""

    code = "internal_error"
