"""What seeing costs: CPU time of a guarded call and of a run with every listener on, against none, in one run.

    python bench/telemetry.py [--rounds 15] [--calls 2000] [--runs 200] [--json]

``guard_added_us``: a guarded call inside a run, with timeline, metrics and traces listening, above one without
listeners. ``rps_loss``: the share of runs per CPU second that is lost with all of them on (three no-op tasks a run).
Every arm runs in turn (A B A B); medians of the rounds. Goals: 6 µs and 0.15.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from failsoft.app import App
from failsoft.base.events import EventBus
from failsoft.config import Settings
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Kernel
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import RulesPlanner
from failsoft.telemetry.metrics import RunMetrics
from failsoft.telemetry.timeline import Timeline
from failsoft.telemetry.traces import Traces
from failsoft.tools.python import tool


@tool(downstream="nothing")
async def nothing() -> int:
    """Answers at once."""
    return 1


PLAN = Plan(tasks=tuple(TaskSpec(id=f"t{i}", tool="nothing") for i in range(3)))


def listeners() -> list[Any]:
    """Everything that listens in a server, but for the exporter's thread."""
    return [
        Timeline().hear,
        RunMetrics().hear,
        Traces(lambda span: None, share=0.01, wall=time.time).hear,
    ]


async def calls_with(bus: EventBus, n: int) -> Callable[[], Awaitable[None]]:
    guard = Kernel(bus=bus).guard("nothing", "core")

    async def immediate() -> int:
        return 1

    async def arm() -> None:
        async with deadline_scope(3600.0, run="bench", task="t"):
            for _ in range(n):
                await guard.call(immediate)

    return arm


async def medians(arms: dict[str, Callable[[], Awaitable[None]]], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for arm in arms.values():
        await arm()
    for turn in range(rounds):
        for name in list(arms) if turn % 2 else reversed(list(arms)):
            gc.collect()
            began = time.process_time()
            await arms[name]()
            taken[name].append(time.process_time() - began)
    return {name: statistics.median(times) for name, times in taken.items()}


async def measured(rounds: int, calls: int, runs: int) -> dict[str, Any]:
    quiet, loud = EventBus(), EventBus(listeners())
    found = await medians({"quiet": await calls_with(quiet, calls), "loud": await calls_with(loud, calls)}, rounds)
    added = (found["loud"] - found["quiet"]) / calls * 1e6

    def agent() -> Agent:
        return Agent("a", "Nothing.", tools=[nothing], planners=[RulesPlanner(lambda _: PLAN)])

    async with (
        App(Settings(), agents=[agent()], store="off") as without,
        App(Settings(), agents=[agent()], store="off") as with_all,
    ):
        without.bus.listeners = ()
        with_all.bus.add(listeners()[2])

        def asking(app: App) -> Callable[[], Awaitable[None]]:
            async def arm() -> None:
                for _ in range(runs):
                    await app.ask("it", budget=60.0)

            return arm

        of_runs = await medians({"quiet": asking(without), "loud": asking(with_all)}, rounds)
    return {
        "guard_added_us": round(added, 2),
        "guard_us": round(found["quiet"] / calls * 1e6, 2),
        "rps_loss": round(1 - of_runs["quiet"] / of_runs["loud"], 4),
        "run_us": round(of_runs["quiet"] / runs * 1e6, 1),
        "run_with_all_us": round(of_runs["loud"] / runs * 1e6, 1),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    figures = asyncio.run(measured(given.rounds, given.calls, given.runs))
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<18} {value}")


if __name__ == "__main__":
    main()
