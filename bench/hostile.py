"""How long other runs take while a tool does the worst it can: p99 with the hostile tool against p99 without, A B A B.

    python bench/hostile.py [--json] [--rounds N] [--seconds S] [--only NAME,NAME]

One process, one app. In each round runs of a quick agent are timed for S seconds alone, then for S seconds while runs
of one hostile agent follow each other. The ratio of the two p99 is taken per round, and the median over the rounds is
what counts, against 1.3: rounds next to each other share what else the machine does; the row of the tool that does
nothing bad is the noise that is left. Each lasts until a hostile run has ended, too. With each ratio comes what the
hostile run was told, so that a fault that was not met cannot pass for one that was borne. Where the hostile tool has
work of its own to do (a gigabyte of output, 100 MB in a result) it takes a core as any program does; on two cores that
shows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.tools import isolated

from failsoft.app import App
from failsoft.config import Settings
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner
from failsoft.tools.python import tool

LIMIT = 1.3
PAUSE = 0.002
"""Seconds between two runs of the quick agent: it is not the load that is measured."""


@tool(kind="external")
async def quick(n: int) -> int:
    """Others' work: a little waiting."""
    await asyncio.sleep(0.005)
    return n


@tool(kind="external")
async def well_behaved() -> str:
    """The control: what another agent costs that does no harm at all, and what the machine's noise makes of it."""
    await asyncio.sleep(0.02)
    return "done"


@tool(kind="external", timeout=1)
async def raises_base_exception() -> None:
    """Raises what nobody catches."""
    raise BaseException("boom")  # noqa: TRY002 - nobody else would raise it


@tool(kind="external", timeout=1)
async def returns_what_cannot_be_serialised() -> object:
    """Returns no plain data."""
    return {"a": [object()]}


@tool(kind="external", timeout=1)
async def blocks_the_loop() -> None:
    """Blocks everybody: a thread or a process would have kept it from others; so its breaker must, after three."""
    time.sleep(0.15)  # noqa: ASYNC251 - that is the point


@tool(kind="external", timeout=0.3)
async def ignores_its_cancellation() -> None:
    """Goes on for a while when told to stop."""
    for _ in range(3):
        try:
            await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            continue


def hostile(folder: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The tools of the issue, with their arguments."""
    return {
        "nothing_bad": (well_behaved, {}),
        "sleeps_in_c": (isolated.sleeps_in_c, {"seconds": 60}),
        "ignores_sigterm_and_forks": (isolated.stubborn, {"pids": str(folder / "pids")}),
        "writes_1_gb": (isolated.misbehaves, {"how": "prints 1 GB"}),
        "returns_100_mb": (isolated.misbehaves, {"how": "returns 100 MB"}),
        "raises_base_exception": (raises_base_exception, {}),
        "cannot_be_serialised": (returns_what_cannot_be_serialised, {}),
        "ignores_its_cancellation": (ignores_its_cancellation, {}),
        "blocks_the_loop": (blocks_the_loop, {}),
    }


def agent(name: str, one: Any, **arguments: Any) -> Agent:
    """An agent that does nothing else."""
    plan = Plan(tasks=(TaskSpec(id="t", tool=one.spec.name, arguments=arguments),))
    return Agent(name, tools=[one], planners=[StaticPlanner(plan)], breaker=None)


async def timed(app: App, seconds: float, until: asyncio.Event | None = None) -> list[float]:
    """How long each run of the quick agent took, for a while, and for longer until something has happened."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or (until is not None and not until.is_set()):
        began = time.perf_counter()
        result = await app.ask("?", agent="quick", budget=10.0)
        took.append(time.perf_counter() - began)
        if str(result.status) != "completed":
            raise SystemExit(f"error: a quick run was {result.status}: {result.to_dict()}")
        await asyncio.sleep(PAUSE)
    return took


async def again_and_again(app: App, name: str, told: set[str], ended: asyncio.Event) -> None:
    """Runs of a hostile agent, one behind the other, until cancelled."""
    while True:
        result = await app.ask("?", agent=name, budget=5.0)
        outcome = result.tasks[0].outcome
        told.add(str((outcome.provenance.reason if outcome is not None else None) or result.status))
        ended.set()
        await asyncio.sleep(0.02)


def p99(took: Sequence[float]) -> float:
    """The 99th percentile."""
    ordered = sorted(took)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


async def measure(app: App, name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """The ratios of one hostile tool, round by round."""
    ratios, alone, beside = [], [], []
    told: set[str] = set()
    for _ in range(rounds):
        before = await timed(app, seconds)
        ended = asyncio.Event()
        other = asyncio.create_task(again_and_again(app, name, told, ended))
        await asyncio.sleep(0)
        during = await timed(app, seconds, ended)
        other.cancel()
        await asyncio.wait([other])
        alone.append(p99(before))
        beside.append(p99(during))
        ratios.append(beside[-1] / alone[-1])
    return {
        "tool": name,
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(one, 3) for one in ratios],
        "p99_alone_ms": round(statistics.median(alone) * 1000, 3),
        "p99_beside_ms": round(statistics.median(beside) * 1000, 3),
        "told": sorted(told),
    }


async def bench(names: Sequence[str], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """All of them, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        tools = {name: one for name, one in hostile(Path(folder)).items() if not names or name in names}
        agents = [agent("quick", quick, n=1)]
        agents += [agent(name, one, **arguments) for name, (one, arguments) in tools.items()]
        async with App(Settings(), agents=agents, store="off") as app:
            await timed(app, 0.5)  # warm
            return [await measure(app, name, rounds, seconds) for name in tools]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    rows = asyncio.run(bench(names, options.rounds, options.seconds))
    if options.json:
        print(json.dumps({"limit": LIMIT, "tools": rows}))
    else:
        for row in rows:
            print(
                f"{row['tool']:28} p99 {row['p99_alone_ms']:7.2f} ms alone, {row['p99_beside_ms']:7.2f} ms beside: "
                f"x {row['ratio']:5.2f}  ({', '.join(row['told'])})"
            )
    raise SystemExit(0 if all(row["ratio"] <= LIMIT for row in rows) else 1)


if __name__ == "__main__":
    main()
