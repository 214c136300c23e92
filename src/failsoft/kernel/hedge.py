"""Hedging: a second attempt of a query when the first takes longer than usual; the first answer wins.

The delay starts when the first attempt has its permit and is the recent p95 of successes ("The Tail at Scale", Dean &
Barroso, CACM 2013). A hedge never queues: it needs a free permit, an empty queue, a clear breaker and a token of both
budgets, its own (``share`` of first attempts) and the one it shares with retries; without them the first attempt goes
on undisturbed. So in a global slow-down, when everything is slower than its p95, hedges stay within their share.

The loser is cancelled at once and is a censored sample: it would have taken longer than it was given.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from failsoft.base.futures import heard
from failsoft.kernel.callee import deliver, in_time
from failsoft.kernel.classify import Counts
from failsoft.kernel.ticket import Ticket

if TYPE_CHECKING:
    from failsoft.kernel.guard import Guard

__all__ = ["hedged"]


async def hedged(guard: Guard, ticket: Ticket, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Runs ``fn(*args)`` for `ticket`, with a second leg when it is slow; runs in place of the attempt.

    Whichever leg answers first gives the value, and `ticket` becomes that leg's. A leg that fails while the other still
    runs is forgotten; when both fail the first one's error is raised.
    """
    race = _Race(guard, ticket, fn, args)
    delay = guard.hedge_delay()
    timer = None if delay is None else race.loop.call_later(delay, race.hedge)
    try:
        return await race.answer
    finally:
        if timer is not None:
            timer.cancel()
        heard(race.answer)
        race.end()


class _Race:
    def __init__(self, guard: Guard, ticket: Ticket, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.guard = guard
        self.ticket = ticket
        self.fn = fn
        self.args = args
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        self.second: Ticket | None = None
        self.first_error: BaseException | None = None
        self._start(ticket)

    def _start(self, ticket: Ticket) -> None:
        child = self.loop.create_task(in_time(self.guard, self.ticket, self.fn, self.args))
        ticket.callee = child
        self.guard.adopt(child)
        child.add_done_callback(self._ended)

    def hedge(self) -> None:
        """The delay is over: start the second leg if it is free to have, and if there is time left for it."""
        if self.answer.done() or self.ticket.callee is None or self.ticket.callee.done():
            return
        if self.loop.time() >= self.ticket.when:  # due at the same instant, or the loop was blocked
            return
        second = self.guard.hedge_ticket(self.ticket)
        if second is not None:
            self.second = second
            self._start(second)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """A leg has really ended."""
        self.guard.dismiss(task)
        second = self.second
        ticket = second if second is not None and second.callee is task else self.ticket
        error: BaseException | None = CancelledError() if task.cancelled() else task.exception()
        if ticket.settled:  # the race was over: an orphan's permit goes back, and what it raised is nobody's concern
            self.guard.callee_ended(ticket)
            return
        if self.answer.done():
            return
        other = second if ticket is self.ticket else self.ticket
        if error is None:
            if ticket is second:
                self._swap(ticket)
            self.answer.set_result(task.result())
            return
        if self.first_error is None or ticket is self.ticket:
            self.first_error = error
        if other is None or other.settled or other.callee is None or other.callee.done():
            deliver(self.answer, None, self.first_error)

    def _swap(self, second: Ticket) -> None:
        """The second leg won: the caller's ticket takes over its part, and the hedge's ticket the loser's."""
        first = self.ticket
        first.admission, second.admission = second.admission, first.admission
        first.since, second.since = second.since, first.since
        first.lost, second.lost = second.lost, first.lost
        first.hung, second.hung = second.hung, first.hung
        first.callee, second.callee = second.callee, first.callee

    def end(self) -> None:
        """Cancels whatever still runs and settles the other leg; the caller settles its own."""
        for ticket in (self.ticket, self.second):
            if ticket is not None and isinstance(ticket.callee, asyncio.Task) and not ticket.callee.done():
                ticket.callee.cancel()
        second = self.second
        if second is not None and not second.settled:
            failed = second.callee is not None and second.callee.done()
            self.guard.settle_leg(second, Counts.FAILED if failed else Counts.NEUTRAL, cut=not failed)
