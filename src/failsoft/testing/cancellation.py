"""Cancel a coroutine at every place where it can be cancelled, one after the other, and see what it leaves."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Literal

from failsoft.testing.clock import run, where_it_waits

__all__ = ["Flavour", "cancel_at_every_await"]

Flavour = Literal["suspended", "granted"]
"""When the cancel comes.

``suspended``: at once when the coroutine has suspended itself, so while what it awaits is still pending.
``granted``: in the same iteration of the loop in which what it awaits has been completed, after that completion and
before the coroutine learns of it. Whoever gave it a permit, a lock or an item believes it to be delivered.
"""


def cancel_at_every_await(
    make: Callable[[], Coroutine[Any, Any, object]],
    check: Callable[[], object] | None = None,
    *,
    flavours: Collection[Flavour] = ("suspended", "granted"),
    may_complete: bool = False,
    limit: int = 1000,
    patience: float = 10.0,
) -> int:
    """Run ``make()`` again and again, cancelled at its 1st, 2nd, 3rd … suspension, until it ends before the nth.

    Each run is a task of its own on a fresh virtual-time loop. A suspension is every return of the task's step to the
    loop, including a bare ``sleep(0)``; an ``await`` that does not suspend cannot be cancelled and does not count, nor
    do the suspensions of child tasks or of cleaning up after the cancel. After each run, the last and uncancelled one
    included, these must hold:

    * The task ended cancelled; with `may_complete` it may also have returned. No other exception took its place.
    * ``task.cancelling()`` is 1, the one request made here: nobody took that back, nobody left one of their own.
    * No other task is left, neither after the task nor after `check`.
    * `check()` did not raise.

    Args:
        make: called on the loop, once for each run; makes everything afresh.
        check: called on the loop when the task has ended; awaited if it gives an awaitable.
        flavours: when to cancel; see ``Flavour``. A bare ``sleep(0)`` awaits nothing, so both are the same there.
        may_complete: whether it is documented that a cancel may come too late, and the result be returned.
        limit: how many suspensions to try at most.
        patience: as in ``VirtualTimeLoop``, in real seconds.

    Returns:
        The number of suspensions at which the coroutine was cancelled, the same for each flavour.

    Raises:
        AssertionError: one of the above does not hold; a note says where the cancel came.
        BaseException: what `check` or the uncancelled run raised, or ``Deadlock``, with the same note.
    """
    tried: dict[Flavour, int] = {}
    for flavour in flavours:
        for nth in itertools.count(1):
            if nth > limit:
                raise AssertionError(f"not through after {limit} suspensions; does it end at all?")
            trial = _Trial(make, nth, flavour, may_complete)
            try:
                run(trial.judged(check), patience=patience)
            except BaseException as error:
                error.add_note(f"{trial}")
                raise
            if not trial.cancels:
                tried[flavour] = nth - 1
                break
    if len(set(tried.values())) != 1:
        raise AssertionError(f"not deterministic, or no flavour: {tried}")
    return next(iter(tried.values()))


class _Trial:
    """One run, with a cancel at the `nth` suspension."""

    def __init__(
        self, make: Callable[[], Coroutine[Any, Any, object]], nth: int, flavour: Flavour, may_complete: bool
    ) -> None:
        self.make = make
        self.nth = nth
        self.flavour = flavour
        self.may_complete = may_complete
        self.suspensions = 0
        self.cancels = 0
        self.place = ""

    def __str__(self) -> str:
        if not self.place:
            return f"not cancelled: ended before suspension {self.nth}"
        return f"cancelled at suspension {self.nth} ({self.flavour}), in {self.place}"

    async def judged(self, check: Callable[[], object] | None) -> None:
        task = asyncio.get_running_loop().create_task(_Observed(self.make(), self.suspended), name="cancelled")
        await asyncio.wait([task])
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            raise AssertionError(f"tasks are left: {sorted(map(where_it_waits, left))}")
        if (requests := task.cancelling()) != self.cancels:
            raise AssertionError(f"task.cancelling() is {requests} in the end and must be {self.cancels}")
        if not self.cancels:
            task.result()
        elif not task.cancelled():
            if (error := task.exception()) is not None:
                raise AssertionError(f"the cancel became {error!r}") from error
            if not self.may_complete:
                raise AssertionError(f"the cancel was swallowed: it returned {task.result()!r}")
        if check is not None and inspect.isawaitable(verdict := check()):
            await verdict

    def suspended(self, awaited: object) -> None:
        """The task's step is about to return to the loop, to go on when `awaited` is done."""
        self.suspensions += 1
        if self.suspensions != self.nth:
            return
        task = asyncio.current_task()
        assert task is not None
        self.place = where_it_waits(task)

        def cancel(_: object) -> None:
            self.cancels += 1
            task.cancel()

        if self.flavour == "granted" and asyncio.isfuture(awaited):
            # The task's own wake-up is added after this, when the step has returned; so the cancel comes before it.
            awaited.add_done_callback(cancel)
        else:
            # Within its own step, a cancel is kept for the step's end: the loop then cancels `awaited` at once.
            cancel(awaited)


class _Observed(Coroutine[Any, Any, object]):
    """A coroutine that says when it is suspended, and on what; to look at, it is the inner one."""

    def __init__(self, inner: Coroutine[Any, Any, object], suspended: Callable[[object], None]) -> None:
        self._inner = inner
        self._suspended = suspended

    def __getattr__(self, name: str) -> Any:  # cr_frame, cr_await, __qualname__ …
        return getattr(self._inner, name)

    def __await__(self) -> Any:
        return self._inner.__await__()

    def send(self, value: Any, /) -> Any:
        awaited = self._inner.send(value)
        self._suspended(awaited)
        return awaited

    def throw(self, *error: Any) -> Any:
        awaited = self._inner.throw(*error)
        self._suspended(awaited)
        return awaited

    def close(self) -> None:
        self._inner.close()
