"""One arm of a drill: a system under load, measured.

``python -m failsoft.drills.arm`` runs one in a process of its own. The faults live in that process's memory and on its
loop, and end with it, however it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import Any, Final

from failsoft.base.errors import FailsoftError
from failsoft.config.durations import parse_duration
from failsoft.drills.backends import Backend
from failsoft.drills.baseline.platform import NaivePlatform
from failsoft.drills.load import Arrival, arrivals, drive
from failsoft.drills.models import GatewayPlatform, model_backends
from failsoft.drills.platforms import BareCalls, FailsoftPlatform
from failsoft.drills.requests import Reply, Request, RequestMaker, System, judged
from failsoft.drills.samples import Measured, Moment, Sample, quantile
from failsoft.drills.scenario import ArmName, LoadSpec, Scenario, load_scenario
from failsoft.drills.served import ServedPlatform
from failsoft.server.collector import collect_rarely
from failsoft.server.listening import loop_factory
from failsoft.testing.clock import VirtualTimeLoop
from failsoft.testing.clock import run as run_in_virtual_time

__all__ = ["run_arm"]

LATE: Final = 0.05
"""Seconds after its budget within which an answer counts."""
_LOOK_EVERY: Final = 0.25
_MOMENTS: Final = 4000

Progress = Callable[[float], None]
Platform = FailsoftPlatform | GatewayPlatform | ServedPlatform | NaivePlatform


async def run_arm(scenario: Scenario, arm: ArmName, seed: int, *, progress: Progress | None = None) -> list[Measured]:
    """Runs one arm on the running loop: its measurement, and with ``options.paired`` that of bare calls beside it."""
    drill = _Drill(scenario, arm, seed)
    return await drill.run(progress)


class _Drill:
    def __init__(self, scenario: Scenario, arm: ArmName, seed: int) -> None:
        self.scenario = scenario
        self.arm = arm
        self.seed = seed
        self.load: LoadSpec = (scenario.healthy or scenario.load) if arm == "healthy" else scenario.load
        self.maker = RequestMaker(scenario, seed, scenario.options.get("healthy_runs") if arm == "healthy" else None)
        self.ledger: dict[int, float] = {}
        self.kinds: dict[int, str] = {}
        """Which kind of request a key belongs to."""
        self.backends = self._backends()
        self.measured = Measured(arm, faulted=self.maker.faulted)
        self.bare: BareCalls | None = None
        self.beside = Measured("healthy", faulted=self.maker.faulted)
        self.zero = 0.0
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time if isinstance(self.loop, VirtualTimeLoop) else time.monotonic
        """The time to measure by: uvloop's own stands still while callbacks run, and counts milliseconds."""

    def _backends(self) -> dict[str, Backend]:
        if self.scenario.kind == "models":
            made = model_backends(self.scenario, self.seed, self.ledger, self.kinds)
            for backend in made.values():
                backend.kept_back = parse_duration(self.scenario.options.get("kept_back", 0))
            return made
        return {name: Backend(name, spec, self.seed, self.ledger) for name, spec in self.scenario.downstreams.items()}

    async def run(self, progress: Progress | None) -> list[Measured]:
        async with AsyncExitStack() as stack:
            paired = bool(self.scenario.options.get("paired")) and self.arm == "failsoft"
            bare_backends = self._backends() if paired else {}
            for backend in (*self.backends.values(), *bare_backends.values()):
                stack.push_async_callback(backend.aclose)
            system: System
            platform: Platform
            if self.scenario.kind == "process":
                which = "baseline" if self.arm == "baseline" else "failsoft"
                platform = await stack.enter_async_context(
                    ServedPlatform(self.scenario, self.backends, self.seed, which=which)
                )
            elif self.arm == "baseline":
                platform = NaivePlatform(self.scenario.baseline, self.backends)
                stack.push_async_callback(platform.aclose)
            else:
                made = GatewayPlatform if self.scenario.kind == "models" else FailsoftPlatform
                platform = await stack.enter_async_context(made(self.scenario, self.backends, self.seed))
            system = platform
            if paired:
                self.bare = BareCalls(bare_backends)
            began = self.loop.time() + 0.05
            self.zero = began + self.load.warmup
            watching = asyncio.ensure_future(self._watch(platform, progress))
            begin = self.loop.call_at(self.zero, self._begin, platform)
            try:
                sent = await drive(
                    arrivals(self.load, Random(f"{self.seed}/load")),
                    lambda arrival, due: self._client(system, arrival, due),
                    most=self.load.most,
                    began=began,
                    now=self.now,
                )
            finally:
                begin.cancel()
                watching.cancel()
                await asyncio.wait([watching])
            if isinstance(platform, ServedPlatform):
                await platform.finish()
            self._end(platform)
            self.measured.lateness, self.measured.unsent = sent.lateness, sent.unsent
        if self.bare is None:
            return [self.measured]
        bare = {one.at: one.seconds for one in self.beside.samples}
        added = sorted(one.seconds - bare[one.at] for one in self.measured.samples)
        self.measured.facts["added_p50_ms"] = quantile(added, 0.5) * 1000
        self.measured.facts["added_p99_ms"] = quantile(added, 0.99) * 1000
        return [self.measured, self.beside]

    # --- clients -------------------------------------------------------------------------------------------------

    async def _client(self, system: System, arrival: Arrival, due: float) -> None:
        request = self.maker.make(arrival.number)
        if self.bare is None:
            await self._asks(system, request, arrival, due, self.measured)
            return
        order = [(system, self.measured), (self.bare, self.beside)]
        if arrival.number % 2:
            order.reverse()
        await asyncio.gather(*(self._asks(one, request, arrival, due, measured) for one, measured in order))

    async def _asks(self, system: System, request: Request, arrival: Arrival, due: float, measured: Measured) -> None:
        """One client with its patience and its retries; a request that is asked again has the same keys."""
        clients = self.load.clients
        budget = request.budget
        patience = clients.patience if clients.patience is not None else budget + LATE
        outcome, right, code, rungs, tries = "error", 0, "", "", 0
        for tries in range(1, clients.retries + 2):
            asked = due if tries == 1 else self.now()
            for part in request.parts:
                self.ledger[part.key] = asked + budget
                self.kinds[part.key] = request.spec.name
            reply, code = await self._once(system, request, asked + patience)
            if reply is not None:
                in_time = self.now() - asked <= budget + LATE
                verdict, right = judged(request, reply, measured.faulted)
                outcome = verdict if in_time else "error"
                code = reply.code if in_time else reply.code or "late"
                rungs = reply.rungs
            if outcome != "error" or tries > clients.retries:
                break
            if clients.pause:
                await asyncio.sleep(clients.pause)
        if arrival.stage < 0:
            return
        spec = request.spec
        measured.samples.append(
            Sample(
                due - self.zero, self.now() - due, outcome, code, arrival.stage, spec.name, spec.tenant or "",
                spec.priority, request.uses, right, len(request.parts), rungs, tries,
            )
        )  # fmt: skip
        for part in request.parts:
            measured.offered[part.use] = measured.offered.get(part.use, 0) + 1

    async def _once(self, system: System, request: Request, leaves: float) -> tuple[Reply | None, str]:
        """One try: the reply, or None with why there was none."""
        try:
            async with asyncio.timeout_at(leaves):
                return await system.ask(request), ""
        except TimeoutError:
            return None, "client_left"
        except FailsoftError as error:
            return None, error.code
        except ExceptionGroup as errors:
            return None, type(errors.exceptions[0]).__name__
        except Exception as error:  # noqa: BLE001 - whatever the platform raises is what its client gets: an error
            return None, type(error).__name__

    # --- faults and what is seen ------------------------------------------------------------------------------------

    def _begin(self, platform: Platform) -> None:
        """The warm-up is over: faults begin, and counting does."""
        for backend in self.backends.values():
            backend.measure()
        if not isinstance(platform, NaivePlatform):
            platform.measure()
        if self.arm == "healthy":
            return
        stop = self.scenario.options.get("stop")
        if stop is not None and isinstance(platform, ServedPlatform):
            self.loop.call_later(parse_duration(stop["after"]), platform.stop)
            self.loop.call_later(parse_duration(stop["after"]) + parse_duration(stop["for"]), platform.resume)
        for index, fault in enumerate(self.scenario.faults):
            name = self.maker.faulted if fault.on == "faulted" else fault.on
            assert name is not None
            self.backends[name].inject(fault.made(), Random(f"{self.seed}/fault/{index}"))

    def _end(self, platform: Platform) -> None:
        measured = self.measured
        measured.seconds = self.loop.time() - self.zero
        measured.started = {name: backend.started for name, backend in self.backends.items()}
        measured.late_started = sum(backend.late_started for backend in self.backends.values())
        measured.late_ended = sum(backend.late_ended for backend in self.backends.values())
        for backend in self.backends.values():
            backend.heal()
        measured.facts["cut"] = sum(backend.cut for backend in self.backends.values())
        measured.facts["cut_in_vain"] = sum(backend.cut_in_vain for backend in self.backends.values())
        measured.breakers = [(at - self.zero, name, new) for at, name, new in platform.breakers]
        if not isinstance(platform, NaivePlatform):
            measured.extra = platform.extra
        else:
            measured.extra = platform.retries

    async def _watch(self, platform: Platform, progress: Progress | None) -> None:
        """Notes the system's state four times a second."""
        whole = self.load.warmup + sum(stage.lasting for stage in self.load.stages)
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            at = self.loop.time() - self.zero
            if progress is not None:
                progress(min(1.0, (at + self.load.warmup) / whole))
            if at < 0 or len(self.measured.moments) >= _MOMENTS:
                continue
            if isinstance(platform, NaivePlatform):
                self.measured.moments.append(Moment(at, {"all": platform.in_use}, {"all": platform.waiting}, {}))
                continue
            guards = platform.guards
            self.measured.moments.append(
                Moment(
                    at,
                    {name: guard.bulkhead.in_use for name, guard in guards.items()},
                    {name: guard.bulkhead.waiting for name, guard in guards.items()},
                    {name: str(g.breaker.state) for name, g in guards.items() if g.breaker.state != "closed"},
                )
            )


def main(arguments: list[str] | None = None) -> None:
    """Runs one arm in this process and prints what was measured as JSON; progress goes to standard error."""
    parser = argparse.ArgumentParser(prog="python -m failsoft.drills.arm", description=main.__doc__)
    parser.add_argument("file")
    parser.add_argument("arm", choices=["healthy", "baseline", "failsoft"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--virtual", action="store_true", help="in simulated time")
    given = parser.parse_args(arguments)
    scenario = load_scenario(given.file)

    def progress(share: float) -> None:
        sys.stderr.write(f"{share:.3f}\n")
        sys.stderr.flush()

    collect_rarely()
    if given.virtual and scenario.kind == "process":
        parser.error("a real process cannot be stopped in simulated time: leave out --virtual")
    if given.virtual:
        measured = run_in_virtual_time(_arm(scenario, given.arm, given.seed, progress))
    else:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            measured = runner.run(_arm(scenario, given.arm, given.seed, progress))
    json.dump([one.to_dict() for one in measured], sys.stdout)


async def _arm(scenario: Scenario, arm: ArmName, seed: int, progress: Progress) -> list[Measured]:
    """The arm, which is cancelled when whoever started this process has gone: standard input ends."""
    running = asyncio.ensure_future(run_arm(scenario, arm, seed, progress=progress))
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop) and not sys.stdin.isatty():
        threading.Thread(target=_cancel_with_parent, args=(loop, running), daemon=True, name="parent").start()
    return await running


def _cancel_with_parent(loop: asyncio.AbstractEventLoop, running: asyncio.Future[Any]) -> None:
    while os.read(sys.stdin.fileno(), 1024):  # not through a buffer, whose lock would be held at the interpreter's end
        pass
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(running.cancel)


if __name__ == "__main__":
    main()
