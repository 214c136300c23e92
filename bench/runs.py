"""What a run costs above its tasks: no-op tasks, in one run with the peers.

    python bench/runs.py [--json] [--rounds 5] [--peers none|all|NAME,NAME] [--install] [--only task,ratio,…]

Every part runs in a process of its own, bounded, and stops by itself; loopback only. CPU time of the process, all its
threads counted, with the collector set as ``failsoft serve`` sets it; medians of rounds.

* ``task_us_memory``, ``task_us_sqlite``: one no-op task of a chain of 100, planning, checking, scheduling, guarding,
  events and answer included; with the store off, and with SQLite on until everything is written.
* ``plan_1000_ratio``: a task of a 1 000-task plan against one of a 10-task plan, the worse of a chain and of
  independent tasks.
* ``turn_us``: one turn of an agent's loop with a call of a no-op tool, over a model that replies at once, in a loop
  of 50 turns; ``turn_200_ratio``: a turn of a 200-turn loop against one of a 10-turn loop, each without its run's cost.
* ``bytes_per_waiting_run``: 10 000 runs wait on one slow downstream with 10 000 permits: what the process grew by, for
  each.
* ``healthy_p99_ratio``: a healthy tool's p99 while they wait, over its p99 in the idle app; the median of rounds.
* ``http_run_added_ms``: p50 of ``POST /v1/runs`` for 3 no-op tasks over one connection; the tasks take nothing, so all
  of it is added. ``http_floor_ms`` is the server's liveness page over the same connection.
* ``rss_mb``, ``start_s``: ``failsoft serve`` with the analyst's data loaded before: memory when it is ready, and the
  time until then (its CPU time is ``start_cpu_s``).
* ``peers``: µs of CPU per no-op step of a chain of 100 (for the agent frameworks 10 steps of one tool call each, asked
  for by a model that answers at once in the same process), each with its environment under ``.bench/runs_peers/``;
  ``--install`` makes those that are missing. ``asyncio_timeout_us`` is a yardstick for the machine: the CPU time of
  ``async with asyncio.timeout(…)``, 4.2 where the goals were set. What is ``normalised`` is in its units: it is taken
  before every round, for others may use the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import http.client
import json
import math
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HOMES = HERE.parent / ".bench" / "runs_peers"
STEPS = 100
YARDSTICK = 4.2
"""µs of an ``asyncio.timeout`` where the goals were set."""
AGENT_STEPS = 10
"""Agent frameworks send all that was said before with every step: ten are kind to them."""
PACKAGES = {
    "langgraph": ["langgraph", "langgraph-checkpoint-sqlite"],
    "llamaindex": ["llama-index-workflows"],
    "openai-agents": ["openai-agents"],
    "pydantic-ai": ["pydantic-ai-slim"],
}
PART_TIMEOUT = 180.0
"""Seconds that one part may take."""


# --- the parts that run in a child ---


def app_of(tasks: int, shape: str, *, store: Any = "off", budget: float = 60.0) -> Any:
    """An app whose agent always plans that many no-op tasks: a ``chain``, or ``wide``."""
    from failsoft.app import App
    from failsoft.config import Settings
    from failsoft.runs.agents import Agent
    from failsoft.runs.answer import Answer
    from failsoft.runs.plan import Plan, PlanLimits, TaskSpec
    from failsoft.runs.planner import StaticPlanner
    from failsoft.tools.python import tool

    @tool
    async def noop() -> None:
        """Does nothing."""

    specs = tuple(
        TaskSpec(id=f"t{i}", tool="noop", needs=(f"t{i - 1}",) if shape == "chain" and i else ()) for i in range(tasks)
    )
    agent = Agent(
        "noop",
        "Does nothing.",
        [noop],
        [StaticPlanner(Plan(tasks=specs))],
        answer=lambda parts: Answer("done"),
        limits=PlanLimits(max_tasks=max(100, tasks)),
        budget=budget,
    )
    return App(Settings(agent="noop"), agents=[agent], store=store)


async def cpu_per_task(app: Any, tasks: int, runs: int, rounds: int) -> tuple[float, float]:
    """Seconds of CPU per task, and the same in yardsticks, one taken before each round: medians of rounds."""
    async with app as running:
        for _ in range(3):
            result = await running.ask("nothing")
            assert result.status == "completed", result.to_dict()
        found, relative = [], []
        for _ in range(rounds):
            gc.collect()
            unit = await yardstick(1)
            start = time.process_time()
            for _ in range(runs):
                await running.ask("nothing")
            if running._recorder is not None:
                await running._recorder.drain()
            found.append((time.process_time() - start) / (runs * tasks))
            relative.append(found[-1] / unit)
        return statistics.median(found), statistics.median(relative)


async def yardstick(rounds: int = 7) -> float:
    """Seconds of CPU of one ``asyncio.timeout``: the least of some rounds."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(2_000):
            async with asyncio.timeout(60):  # noqa: ASYNC100 - its cost is the question
                pass
        found.append((time.process_time() - start) / 2_000)
    return min(found)


def named(name: str, cost: tuple[float, float]) -> dict[str, float]:
    """A cost in µs, as it is and as it would be where the goals were set."""
    return {name: cost[0] * 1e6, f"{name}_normalised": cost[1] * YARDSTICK}


def part_task(rounds: int) -> dict[str, Any]:
    from failsoft.stores.sqlite import SqliteStore

    figures = named("task_us_memory", asyncio.run(cpu_per_task(app_of(STEPS, "chain"), STEPS, 10, rounds)))
    figures |= named("run_us_of_one_task", asyncio.run(cpu_per_task(app_of(1, "chain"), 1, 200, rounds)))
    with tempfile.TemporaryDirectory() as folder:

        async def stored() -> tuple[float, float]:
            store = SqliteStore(Path(folder) / "runs.db")
            try:
                return await cpu_per_task(app_of(STEPS, "chain", store=store), STEPS, 10, rounds)
            finally:
                await store.aclose()

        figures |= named("task_us_sqlite", asyncio.run(stored()))
    figures["asyncio_timeout_us"] = asyncio.run(yardstick()) * 1e6
    return figures


def part_ratio(rounds: int) -> dict[str, Any]:
    ratios = {}
    for shape in ("chain", "wide"):
        small = asyncio.run(cpu_per_task(app_of(10, shape), 10, 100, rounds))[1]
        large = asyncio.run(cpu_per_task(app_of(1000, shape), 1000, 1, rounds))[1]
        ratios[f"plan_1000_ratio_{shape}"] = large / small
    return {"plan_1000_ratio": max(ratios.values()), **ratios}


def part_turn(rounds: int) -> dict[str, Any]:
    from failsoft.app import App
    from failsoft.base.messages import ToolCall
    from failsoft.config import Settings
    from failsoft.runs.agents import Agent
    from failsoft.runs.loop import Loop
    from failsoft.runs.loop_model import Reply
    from failsoft.runs.turns import LoopLimits
    from failsoft.tools.python import tool

    @tool
    async def noop(n: int) -> None:
        """Does nothing."""

    class Model:
        """Calls the tool in each turn of a loop but the last."""

        name = "at once"

        def __init__(self, turns: int) -> None:
            self.turns = turns
            self.asked = 0

        async def reply(self, request: Any) -> Reply:
            self.asked += 1
            if self.asked % self.turns == 0:
                return Reply("done")
            return Reply("", (ToolCall(f"c{self.asked}", "noop", f'{{"n": {self.asked}}}'),), "tool_calls")

    def cost(turns: int) -> tuple[float, float]:
        limits = LoopLimits(turns=turns + 1, calls=turns + 1, window=10**9)
        agent = Agent("noop", "Does nothing.", [noop], loop=Loop(Model(turns), limits=limits), budget=60)
        return asyncio.run(
            cpu_per_task(App(Settings(agent="noop"), agents=[agent], store="off"), 1, 500 // turns, rounds)
        )

    one, ten, fifty, many = cost(1), cost(10), cost(50), cost(200)
    turn = (fifty[0] - one[0]) / 49, (fifty[1] - one[1]) / 49
    return named("turn_us", turn) | {"turn_200_ratio": ((many[1] - one[1]) / 199) / ((ten[1] - one[1]) / 9)}


def part_waiting(rounds: int, runs: int = 10_000) -> dict[str, Any]:
    from failsoft.app import App
    from failsoft.config import Settings
    from failsoft.runs.agents import Agent
    from failsoft.runs.plan import Plan, TaskSpec
    from failsoft.runs.planner import StaticPlanner
    from failsoft.runs.result import RunRequest
    from failsoft.tools.python import tool

    async def measure() -> dict[str, Any]:
        gate = asyncio.Event()

        @tool(kind="external", timeout=600)
        async def slow() -> str:
            """Waits until it is told."""
            await gate.wait()
            return "here"

        @tool
        async def healthy() -> str:
            """Answers at once."""
            await asyncio.sleep(0)
            return "here"

        agents = [
            Agent(one.spec.name, "", [one], [StaticPlanner(Plan(tasks=(TaskSpec(id="a", tool=one.spec.name),)))])
            for one in (slow, healthy)
        ]
        guards = {"slow": {"permits": runs, "queue": runs, "call_timeout": "600s", "attempt_timeout": "600s"}}
        settings = Settings.model_validate({"run": {"maximum_budget": 600}, "downstreams": guards})

        async def p99(app: App, calls: int = 400) -> float:
            took = []
            for _ in range(calls):
                start = time.perf_counter()
                result = await app.ask("quick", agent="healthy", budget=10.0)
                took.append(time.perf_counter() - start)
                assert result.status == "completed"
            return sorted(took)[math.ceil(0.99 * calls) - 1]

        ratios, sizes = [], []
        async with App(settings, agents=agents, store="off") as app:
            await p99(app)
            for _ in range(rounds):
                gc.collect()
                idle, before = await p99(app), memory()
                gate.clear()
                handles = [app.start(RunRequest("wait", agent="slow", budget_ms=600_000)) for _ in range(runs)]
                while app.kernel.guards["slow"].bulkhead.in_use < runs:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.01)
                gc.collect()
                sizes.append((memory() - before) / runs)
                ratios.append(await p99(app) / idle)
                gate.set()
                ended = [(await handle.result()).status for handle in handles]
                assert set(ended) == {"completed"}, set(ended)
                del handles
        return {
            "bytes_per_waiting_run": round(sizes[0]),
            "healthy_p99_ratio": statistics.median(ratios),
            "waiting_runs": runs,
        }

    return asyncio.run(measure())


def memory() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def part_served() -> None:
    """A server of three no-op tasks, until its input ends; prints its port."""
    from failsoft.server.listening import listen_on, loop_factory
    from failsoft.server.serving import HttpServer

    async def serve() -> None:
        with listen_on("127.0.0.1", 0) as sock:
            async with app_of(3, "wide") as app:
                server = HttpServer(app, sock, on_listening=lambda address: print(address, flush=True))
                loop = asyncio.get_running_loop()
                loop.add_reader(sys.stdin, server.stop)
                await server.serve_until_stopped()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve())


# --- the parts that look from outside ---


def part_http(rounds: int) -> dict[str, Any]:
    child = subprocess.Popen(
        [sys.executable, __file__, "--part", "served"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        address = child.stdout.readline().strip().removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=10)

        def p50(method: str, path: str, body: str | None, calls: int) -> float:
            took = []
            for _ in range(calls):
                start = time.perf_counter()
                connection.request(method, path, body, {"content-type": "application/json"})
                response = connection.getresponse()
                response.read()
                assert response.status == 200, response.status
                took.append(time.perf_counter() - start)
            return statistics.median(took) * 1e3

        body = json.dumps({"input": "nothing"})
        p50("POST", "/v1/runs", body, 100)
        runs, floors = [], []
        for _ in range(rounds):
            runs.append(p50("POST", "/v1/runs", body, 200))
            floors.append(p50("GET", "/health/liveness", None, 200))
        connection.close()
        return {"http_run_added_ms": statistics.median(runs), "http_floor_ms": statistics.median(floors)}
    finally:
        with contextlib.suppress(OSError):
            assert child.stdin is not None
            child.stdin.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def part_start(rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-c", "from failsoft.cli import main; main()", "serve", "--port", "0", "--json"]
    starts, sizes, spent = [], [], []
    for _ in range(min(3, rounds) + 1):
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert child.stdout is not None
            json.loads(child.stdout.readline())
            starts.append(time.perf_counter() - began)
            status = Path(f"/proc/{child.pid}/status").read_text()
            sizes.append(int(status.split("VmRSS:")[1].split()[0]) / 1024)
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            spent.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        finally:
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    # the first may have loaded the data
    return {
        "rss_mb": max(sizes[1:]),
        "start_s": statistics.median(starts[1:]),
        "start_cpu_s": statistics.median(spent[1:]),
    }


def part_peers(names: Iterable[str], rounds: int, *, make: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name in names:
        home = HOMES / name
        try:
            if make:
                install(name)
            if not (home / "installed").exists():
                figures[name] = "not installed"
                continue
            script = HERE / "runs_peers" / f"{name.replace('-', '_')}_steps.py"
            steps = AGENT_STEPS if name in {"openai-agents", "pydantic-ai"} else STEPS
            done = subprocess.run(
                [str(home / "env/bin/python"), str(script), str(steps), str(rounds)],
                capture_output=True, text=True, timeout=PART_TIMEOUT, check=True,
            )  # fmt: skip
            for key, value in json.loads(done.stdout.splitlines()[-1]).items():
                figures[key] = round(value, 1)
        except subprocess.CalledProcessError as error:
            last = (error.stderr or "").strip().splitlines()[-1:] or [""]
            figures[name] = f"failed: {last[0][:200]}"
        except subprocess.TimeoutExpired:
            figures[name] = "took too long"
    return figures


def install(name: str) -> None:
    """Installs a peer into an environment of its own."""
    home = HOMES / name
    if (home / "installed").exists():
        return
    print(f"installing {name} …", file=sys.stderr, flush=True)
    home.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    python = str(home / "env/bin/python")
    subprocess.run([uv, "--no-config", "venv", "--quiet", "--allow-existing", str(home / "env")], check=True)
    subprocess.run([uv, "--no-config", "pip", "install", "--quiet", "--python", python, *PACKAGES[name]], check=True)
    (home / "installed").write_text(" ".join(PACKAGES[name]))


# --- the whole -----------------------------------------------------------------------------------------------------

IN_CHILDREN: dict[str, Callable[[int], dict[str, Any]]] = {
    "task": part_task,
    "ratio": part_ratio,
    "turn": part_turn,
    "waiting": part_waiting,
}
OUTSIDE: dict[str, Callable[[int], dict[str, Any]]] = {"http": part_http, "start": part_start}


def in_child(part: str, rounds: int) -> dict[str, Any]:
    """A part in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--part", part, "--rounds", str(rounds)],
            capture_output=True, text=True, timeout=PART_TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {f"{part}_failed": "took too long"}
    if done.returncode != 0:
        return {f"{part}_failed": (done.stderr.strip().splitlines() or ["?"])[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: list[str] | None = None) -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each start compiles everything anew
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default="none", help=f"none, all, or some of {', '.join(PACKAGES)}")
    parser.add_argument("--install", action="store_true", help="install peers that are missing")
    parser.add_argument("--only", default="", help=f"some of {', '.join((*IN_CHILDREN, *OUTSIDE, 'peers'))}")
    parser.add_argument("--part", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.part == "served":
        part_served()
        return 0
    if options.part is not None:
        from failsoft.server.collector import collect_rarely

        collect_rarely()  # as `failsoft serve` does
        print(json.dumps(IN_CHILDREN[options.part](options.rounds)))
        return 0
    only = set(filter(None, options.only.split(",")))
    figures: dict[str, Any] = {}
    for part in IN_CHILDREN:
        if not only or part in only:
            figures |= in_child(part, options.rounds)
    for part, look in OUTSIDE.items():
        if not only or part in only:
            figures |= look(options.rounds)
    names = list(PACKAGES) if options.peers == "all" else [one for one in options.peers.split(",") if one in PACKAGES]
    figures["peers"] = part_peers(names, options.rounds, make=options.install)
    figures |= {"python": platform.python_version(), "machine": f"{platform.machine()} {platform.system()}"}
    figures = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:26} {value}")
    return 1 if any(name.endswith("_failed") for name in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
