"""Puts faults in front of downstreams, in process, as leases: each ends by hand, by time, or with its injector.

A fault runs inside the guarded attempt, so it meets the same limits, breakers and permits as a real one.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from failsoft.base.errors import BadInput
from failsoft.drills.faults import ends_after
from failsoft.drills.toxics import Term, Toxic
from failsoft.kernel.guard import Guard, Kernel

__all__ = ["Injector", "Lease"]

_MAX_PER_DOWNSTREAM = 16


class Lease:
    """One fault at one downstream, active until it ends. Ending it twice is harmless."""

    def __init__(self, downstream: str, toxic: Toxic, end: Callable[[Lease], None], *, rng: random.Random) -> None:
        self.downstream = downstream
        self.toxic = toxic
        self.applied = 0
        self.ended = Term(rng, asyncio.get_running_loop().time())
        self.timer: asyncio.TimerHandle | None = None
        self._end = end

    def end(self) -> None:
        """Takes the fault away; what hangs in it goes on."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if not self.ended.is_set():
            self.ended.set()
            self._end(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def __repr__(self) -> str:
        state = "ended" if self.ended.is_set() else "active"
        return f"<Lease {self.downstream}={self.toxic} {state} applied={self.applied}>"


class Injector:
    """The faults of one kernel's downstreams; leaving its ``with`` ends them all.

    ::

        with Injector(kernel) as injector:
            injector.inject("warehouse", Hang(), seconds=3)
    """

    def __init__(self, kernel: Kernel, *, rng: random.Random | None = None) -> None:
        self._kernel = kernel
        self._rng = rng or kernel.sources.rng
        self._leases: dict[str, list[Lease]] = {}

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The active faults, oldest first within a downstream."""
        return tuple(lease for leases in self._leases.values() for lease in leases)

    def inject(self, downstream: str, toxic: Toxic, *, seconds: float | None = None) -> Lease:
        """Puts `toxic` in front of `downstream`, for `seconds` or until the lease is ended.

        Several faults at one downstream nest, the first outermost. Raises :class:`~failsoft.base.errors.BadInput` for a
        downstream that nobody has registered.
        """
        guard = self._kernel.guards.get(downstream)
        if guard is None:
            known = ", ".join(sorted(self._kernel.guards)) or "none"
            raise BadInput(f"--fault: no downstream is called {downstream!r}; there are: {known}", param="fault")
        leases = self._leases.setdefault(downstream, [])
        if len(leases) >= _MAX_PER_DOWNSTREAM:
            raise BadInput(f"--fault: {downstream} has {len(leases)} faults already", param="fault")
        lease = Lease(downstream, toxic, self._ended, rng=self._rng)
        leases.append(lease)
        ends = min(math.inf if seconds is None else seconds, ends_after(toxic))
        if ends < math.inf:
            lease.timer = asyncio.get_running_loop().call_later(ends, lease.end)
        self._install(guard, leases)
        return lease

    def close(self) -> None:
        """Ends every fault."""
        for lease in self.leases:
            lease.end()

    def __enter__(self) -> Injector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ended(self, lease: Lease) -> None:
        leases = self._leases[lease.downstream]
        leases.remove(lease)
        guard = self._kernel.guards.get(lease.downstream)
        if guard is not None:
            self._install(guard, leases)
        if not leases:
            del self._leases[lease.downstream]

    @staticmethod
    def _install(guard: Guard, leases: list[Lease]) -> None:
        guard.interceptor = _intercepting(tuple(leases)) if leases else None

    def __repr__(self) -> str:
        return f"<Injector {', '.join(f'{one.downstream}={one.toxic}' for one in self.leases) or 'idle'}>"


def _intercepting(leases: tuple[Lease, ...]) -> Callable[..., Awaitable[Any]]:
    async def intercept(fn: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        async def through(index: int) -> Any:
            if index == len(leases):
                return await fn(*args)
            lease = leases[index]
            lease.applied += 1
            return await lease.toxic.apply(lambda: through(index + 1), lease.ended)

        return await through(0)

    return intercept
