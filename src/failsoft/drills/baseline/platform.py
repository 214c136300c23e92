"""The platform of the five incident reports before they were mended, in a hundred lines.

One semaphore for every call to anything, a long limit per call, a retry, no deadline for the run, and nobody who
tells the downstreams that the client has gone. It is not a caricature: each of these was the code in production, each
figure is the reports'; all can be tuned, and tuned well it does well until something is slow.

Variant (report B): three blind retries, each after a planning call of 1.5 s, over one shared connection pool of 200.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from failsoft.drills.platforms import Queried
from failsoft.drills.requests import Part, Reply, Request
from failsoft.drills.scenario import BaselineSpec

__all__ = ["NaivePlatform"]


class NaivePlatform:
    """Answers as the reports' platforms did. ``permits`` waiting and in use can be read off."""

    def __init__(self, spec: BaselineSpec, backends: Mapping[str, Queried]) -> None:
        self.spec = spec
        self.waiting = 0
        self.in_use = 0
        self.retries = 0
        self.breakers: list[tuple[float, str, str]] = []
        """(loop time, downstream, ``open``): what its breakers did, if it has any."""
        self._failed: dict[str, deque[float]] = {name: deque(maxlen=spec.breaker or 1) for name in backends}
        self._closed_at: dict[str, float] = {}
        self._backends = backends
        self._permits = asyncio.Semaphore(spec.permits)
        self._pool = asyncio.Semaphore(spec.connections) if spec.connections is not None else None
        self._runs: set[asyncio.Task[Reply]] = set()

    async def ask(self, request: Request) -> Reply:
        """Runs to its end whether or not the client still waits: nobody tells it."""
        run = asyncio.ensure_future(self._run(request))
        self._runs.add(run)
        run.add_done_callback(self._forget)
        if self.spec.proxy is None:
            return await asyncio.shield(run)
        done, _ = await asyncio.wait([run], timeout=self.spec.proxy)
        return run.result() if done else Reply("failed", {}, "504")

    def _forget(self, run: asyncio.Task[Reply]) -> None:
        self._runs.discard(run)
        if not run.cancelled():
            run.exception()

    async def _run(self, request: Request) -> Reply:
        async with asyncio.timeout(self.spec.deadline):
            ends: dict[str, asyncio.Future[Any]] = {}

            async def task(part: Part) -> Any:
                for need in part.needs:
                    await ends[need]
                return await self._call(part)

            async with asyncio.TaskGroup() as group:
                for part in request.parts:
                    ends[part.id] = group.create_task(task(part))
            return Reply("completed", {name: end.result() for name, end in ends.items()})

    async def _call(self, part: Part) -> Any:
        for left in range(self.spec.retries, -1, -1):
            try:
                return await self._once(part.use, part.key)
            except Exception:
                if left == 0:
                    if part.use in self.spec.fallback:
                        return await self._once(self.spec.fallback[part.use], part.key)
                    raise
                self.retries += 1
            if self.spec.replan:
                await asyncio.sleep(self.spec.replan)
        raise AssertionError

    async def _once(self, use: str, key: int) -> Any:
        """One attempt, behind a breaker if there is one: that many failures in 10 s open it for 5 (report A)."""
        if self.spec.breaker is None:
            return await self._attempt(use, key)
        loop = asyncio.get_running_loop()
        if loop.time() < self._closed_at.get(use, 0.0):
            raise ConnectionError(f"the breaker of {use} is open")
        try:
            return await self._attempt(use, key)
        except Exception:
            now = loop.time()
            failed = self._failed[use]
            failed.append(now)
            if len(failed) == self.spec.breaker and now - failed[0] <= 10.0:
                self._closed_at[use] = now + 5.0
                self.breakers.append((now, use, "open"))
                failed.clear()
            raise

    async def _attempt(self, use: str, key: int) -> Any:
        self.waiting += 1
        try:
            await self._permits.acquire()
        finally:
            self.waiting -= 1
        self.in_use += 1
        try:
            async with asyncio.timeout(self.spec.limit):
                if self._pool is None:
                    return await self._backends[use].query(key)
                async with self._pool:
                    return await self._backends[use].query(key)
        finally:
            self.in_use -= 1
            self._permits.release()

    async def aclose(self) -> None:
        """Ends what still runs."""
        for run in list(self._runs):
            run.cancel()
        if self._runs:
            await asyncio.wait(self._runs)
