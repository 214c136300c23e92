"""Running a callee apart from its caller: in a task of its own, or in a thread. Such a callee can be left behind at
its limit.

What is left behind keeps its permit, is listed, and gives the permit back when it has really ended.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from failsoft.base.errors import AttemptTimeout, ToolFailed
from failsoft.base.futures import heard
from failsoft.kernel.ticket import Ticket

if TYPE_CHECKING:
    from failsoft.kernel.guard import Guard

__all__ = ["Runner", "deliver", "detached", "in_time", "own_cancel", "threaded"]

Runner = Callable[["Guard", Ticket, Callable[..., Any], tuple[Any, ...]], Awaitable[Any]]
"""Runs ``fn(*args)`` for a ticket whose attempt the guard is in; sets ``ticket.callee``."""


def own_cancel(error: BaseException) -> ToolFailed:
    """A callee that raises ``CancelledError`` or the like by itself has failed; nobody asked its caller to stop."""
    failed = ToolFailed(
        f"{type(error).__name__} was raised by the callee", details={"exception": type(error).__qualname__}
    )
    failed.__cause__ = error
    return failed


def deliver(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Puts a callee's end into its caller's future, as something that a future can hold."""
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        answer.set_exception(error)
    else:
        answer.set_exception(own_cancel(error))


async def in_time(guard: Guard, ticket: Ticket, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A callee's own task: begins with its first step, or not at all if the loop was blocked past the limit by then."""
    if guard.now() >= ticket.when:
        raise _too_late(guard, ticket)
    return await fn(*args)


def _too_late(guard: Guard, ticket: Ticket) -> AttemptTimeout:
    return AttemptTimeout(f"{guard.name}: the {ticket.limit} limit passed before it began", downstream=guard.name)


async def _apart(
    guard: Guard, ticket: Ticket, fn: Callable[..., Any], args: tuple[Any, ...], answer: asyncio.Future[Any]
) -> None:
    """A callee's own task that answers with its last step: its caller wakes a pass of the loop earlier than by
    callback.
    """
    try:
        if guard.now() >= ticket.when:
            raise _too_late(guard, ticket)
        value = await fn(*args)
    except BaseException as error:
        deliver(answer, None, error)
        del answer  # the error's traceback holds this frame
        if isinstance(error, CancelledError | KeyboardInterrupt | SystemExit):
            raise  # it belongs to the task or to the loop; any other was told to the caller
    else:
        if not answer.done():
            answer.set_result(value)


async def detached(guard: Guard, ticket: Ticket, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Runs the callee in a task of its own, which is cancelled and not waited for when the caller has to go."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    child = loop.create_task(_apart(guard, ticket, fn, args, answer))
    guard.adopt(child)
    ticket.callee = child
    try:
        value = await answer
    except BaseException as error:
        if child.done():
            guard.dismiss(child)
        else:  # left behind: its permit goes back when it has ended

            def ended(task: asyncio.Task[Any]) -> None:
                guard.dismiss(task)
                guard.callee_ended(ticket)
                ticket.callee = None  # the task holds its cancellation, whose traceback holds the ticket

            child.add_done_callback(ended)
            if isinstance(error, CancelledError):
                child.cancel()
        heard(answer)
        del answer, child  # what they hold has a traceback that holds this frame
        raise
    guard.dismiss(child)
    return value


async def threaded(guard: Guard, ticket: Ticket, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Runs a plain function in a daemon thread of its downstream; it cannot be stopped, only left behind."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def ended(value: Any, error: BaseException | None) -> None:
        if ticket.settled:
            guard.callee_ended(ticket)
        else:
            deliver(answer, value, error)

    ticket.callee = guard.threads.start(loop, fn, args, ended)
    try:
        return await answer
    finally:
        heard(answer)
        if answer.done() and not answer.cancelled():  # `ended` was called, and is called once
            del answer  # the error that it may hold has a traceback that holds this frame


def bound(runner: Runner, guard: Guard, ticket: Ticket, fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """The runner as a callable of the callee's arguments alone, for an interceptor to call."""
    return partial(_run, runner, guard, ticket, fn)


def _run(runner: Runner, guard: Guard, ticket: Ticket, fn: Callable[..., Any], *args: Any) -> Awaitable[Any]:
    return runner(guard, ticket, fn, args)
