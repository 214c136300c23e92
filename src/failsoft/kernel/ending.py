"""How an attempt ended: whose doing it was, what it counts as, and what the caller is told.

The usual end, a result in time, stands in :meth:`Guard._served <failsoft.kernel.guard.Guard>`; here is every other:
errors, limits, cancellations from outside, results that came late, and a loop that was blocked meanwhile.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, NamedTuple

from failsoft.base.errors import InternalError
from failsoft.kernel.admission import LIMIT_ERRORS
from failsoft.kernel.callee import own_cancel
from failsoft.kernel.classify import Classifier, Counts, Verdict, read
from failsoft.kernel.ticket import Ticket

if TYPE_CHECKING:
    from failsoft.kernel.guard import Guard

__all__ = ["Failure", "ended"]


class Failure(NamedTuple):
    """What to raise when there is no other attempt, and the reading that decides about one."""

    error: BaseException
    verdict: Verdict


def ended(
    guard: Guard, ticket: Ticket, value: Any, error: BaseException | None, reader: Classifier | None, size: float
) -> Failure | None:
    """Settles the ticket; None for a good value, else the failure. A cancellation from outside is raised again."""
    now = guard.now()
    guard.heap.disarm(ticket)
    task = ticket.owner
    outside = False
    if ticket.fired:
        outside = task.uncancel() > ticket.cancelling and isinstance(error, CancelledError)
    elif isinstance(error, CancelledError):
        outside = task.cancelling() > 0
    if outside or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        # the scope's own alarm may come from outside together with the ticket's: that does not excuse a slow downstream
        counts = Counts.TIMEOUT if _blamed(guard, ticket, now) else Counts.NEUTRAL
        guard.settle(ticket, counts, now, size, cut=not ticket.stalled, code="cancelled")
        assert error is not None
        raise error
    if ticket.fired or (error is None and now > ticket.when):
        late = _limit_passed(guard, ticket, now, size)
        if late is not None:
            if error is not None:
                late.error.__cause__ = error
            return late
    if error is not None and not isinstance(error, Exception):
        error = own_cancel(error)
    try:
        verdict = read(reader, value, error)
    except BaseException:
        guard.settle(ticket, Counts.NEUTRAL, now, size, code="cancelled")
        raise
    slept = now > ticket.when  # the loop was blocked: what came is taken, what it says about latency is not
    code = None if verdict.error is None else verdict.error.code
    guard.settle(ticket, Counts.NEUTRAL if slept else verdict.counts, now, size, code=code)
    if error is None and verdict.good:
        return None
    raised = error if error is not None and not isinstance(verdict.error, InternalError) else verdict.error
    if raised is None:
        raised = InternalError("a classifier called a result bad without an error")
    return Failure(raised, verdict)


def _blamed(guard: Guard, ticket: Ticket, now: float) -> bool:
    """Whether the downstream had the whole limit that fired, or was slow already."""
    if not ticket.fired or ticket.stalled:
        return False
    lasted = guard.lasted(ticket, now)
    if lasted < (ticket.when - ticket.since) / 2:  # the loop was away for most of it
        return False
    return not ticket.cut_short or lasted >= guard.hung_after


def _limit_passed(guard: Guard, ticket: Ticket, now: float, size: float) -> Failure | None:
    """The attempt's limit fired, or its result came after it. None: only the loop was late, the value may be used.

    Blamed on the downstream only when it had the whole limit, or was slow already: an attempt that the budget cut
    short, or a stall of our own, is neutral.
    """
    if not ticket.fired and ticket.scope.deadline > now:
        return None
    seconds = now - ticket.since
    which = ticket.limit if ticket.fired else ticket.scope.limit
    error = LIMIT_ERRORS[which](f"{guard.name}: the {which} limit passed after {seconds:.3f} s", downstream=guard.name)
    cut = bool(ticket.fired) and not ticket.stalled
    counts = Counts.TIMEOUT if _blamed(guard, ticket, now) else Counts.NEUTRAL
    guard.settle(ticket, counts, now, size, cut=cut, code=error.code)
    return Failure(error, Verdict(counts, retry=which == "attempt", error=error))
