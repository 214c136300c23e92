"""Kill -9 in the middle of background runs, restart, and count what was lost or done twice.

A real ``failsoft serve`` with a SQLite store, and a downstream in another process that counts. Each round starts 50
background runs of 6 tasks, kills the server when about half of the tasks are done, starts it again and waits for all.

    python bench/kill.py --json

``lost``: accepted runs that did not end with an answer. ``repeated_tasks``: tasks that were in the store as finished
when the server died and were called again. ``repeated_actions``: things that the downstream did more than once;
``book`` is idempotent there by its key, so only another key for the same thing could do that; ``pay`` is not, and a
person (this script, with the downstream's ledger) is asked when it may have happened. ``resume_p95_s``: from the start
of the new process to the run's first event in it. All but the last have to be 0.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

HERE = Path(__file__).parent
FAILSOFT = Path(sys.executable).with_name("failsoft")
TASKS = 6


# --- the downstream, in a process of its own -------------------------------------------------------------------------


def downstream() -> None:
    """Serves ``/look``, ``/book`` and ``/pay``, and ``/ledger`` with what was asked and done."""
    calls: list[tuple[str, str, str]] = []
    effects: Counter[str] = Counter()
    keys: set[str] = set()
    delay = float(os.environ.get("KILL_DELAY", "0.05"))

    async def serve(request: web.Request) -> web.Response:
        body = await request.json()
        what, thing = request.path.strip("/"), f"{body['run']}:{body['task']}"
        calls.append((what, body["run"], body["task"]))
        await asyncio.sleep(delay / 2)
        if what == "pay" or (what == "book" and (key := request.headers["idempotency-key"]) not in keys):
            if what == "book":
                keys.add(key)
            effects[thing] += 1
        await asyncio.sleep(delay / 2)
        return web.json_response({"ok": thing})

    async def ledger(request: web.Request) -> web.Response:
        since = int(request.query.get("since", "0"))
        return web.json_response({"calls": calls[since:], "count": len(calls), "effects": effects})

    app = web.Application()
    app.add_routes([web.post(f"/{one}", serve) for one in ("look", "book", "pay")])
    app.add_routes([web.get("/ledger", ledger)])

    async def main() -> None:
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        sockets = site._server.sockets  # type: ignore[union-attr]  # aiohttp has no other way to tell
        print(json.dumps({"address": f"http://127.0.0.1:{sockets[0].getsockname()[1]}"}), flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


# --- processes -------------------------------------------------------------------------------------------------------


def started(command: list[str], env: dict[str, str], log: Any) -> tuple[subprocess.Popen[str], str]:
    """A process that prints its address as JSON first."""
    process = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{command[0]} did not start, see {log.name}")
    return process, json.loads(line)["address"]


class Server:
    """``failsoft serve`` that can be killed and started again."""

    def __init__(self, folder: Path, url: str) -> None:
        self.store = folder / "runs.db"
        self._folder = folder
        self._url = url
        self._log = (folder / "serve.log").open("w")
        self.process: subprocess.Popen[str] | None = None
        self.address = ""
        self.began = 0.0

    def start(self) -> None:
        """Starts it; ``began`` is when, in UTC seconds."""
        self.began = time.time()
        load = f"{HERE / 'kill_app.py'}:agents"
        command = [str(FAILSOFT), "serve", "--port", "0", "--json", "--load", load, "--store", str(self.store)]
        env = {"KILL_DOWNSTREAM": self._url, "FAILSOFT_BACKGROUND__WIDTH": "16"}
        self.process, self.address = started(command, env, self._log)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(20)
        self._log.close()
        return code


def rows(store: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """What a query of another process finds in the file."""
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=10)
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


# --- rounds ----------------------------------------------------------------------------------------------------------


async def one_round(server: Server, url: str, session: aiohttp.ClientSession, runs: int) -> dict[str, Any]:
    """Starts runs, kills, starts the server again, waits for the end of all; gives the counts."""
    marked = [time.monotonic()]  # accepted, killed, up again, all ended
    asked = [
        session.post(f"{server.address}/v1/runs", json={"input": f"work {i}", "background": True}) for i in range(runs)
    ]
    accepted = []
    for answer in await asyncio.gather(*asked):
        body = await answer.json()
        if answer.status != 202:
            raise RuntimeError(f"not accepted: {answer.status} {body}")
        accepted.append(body["run_id"])
    marked.append(time.monotonic())
    marks = ", ".join("?" * runs)

    def finished() -> set[tuple[str, str]]:
        return set(rows(server.store, f"SELECT run, task FROM tasks WHERE run IN ({marks})", *accepted))

    for _ in range(2_000):
        if len(await asyncio.to_thread(finished)) >= runs * TASKS // 2:
            break
        await asyncio.sleep(0.01)
    server.kill()
    done = finished()
    ended = {
        run
        for (run,) in rows(
            server.store, f"SELECT run FROM runs WHERE terminal IS NOT NULL AND run IN ({marks})", *accepted
        )
    }
    before = (await (await session.get(f"{url}/ledger")).json())["count"]
    marked.append(time.monotonic())
    await asyncio.to_thread(server.start)
    marked.append(time.monotonic())
    await until_ended(server, url, session, accepted)
    marked.append(time.monotonic())
    ledger = await (await session.get(f"{url}/ledger", params={"since": before})).json()
    again = [(run, task) for _, run, task in ledger["calls"] if (run, task) in done]
    ends = dict(rows(server.store, f"SELECT run, terminal FROM runs WHERE run IN ({marks})", *accepted))
    resumed = rows(
        server.store, f"SELECT run, min(at) FROM events WHERE epoch > 1 AND run IN ({marks}) GROUP BY run", *accepted
    )
    return {
        "accepted": len(accepted),
        "interrupted": len(accepted) - len(ended),
        "finished_at_kill": len(done),
        "lost": sum(ends.get(run) not in ("completed", "degraded") for run in accepted),
        "repeated_tasks": len(again),
        "repeated_actions": sum(n - 1 for thing, n in ledger["effects"].items() if thing.partition(":")[0] in accepted),
        "resume_s": [round(at - server.began, 3) for _, at in resumed],
        "phases_s": [round(after - since, 1) for since, after in itertools.pairwise(marked)],
    }


async def until_ended(server: Server, url: str, session: aiohttp.ClientSession, accepted: list[str]) -> None:
    """Waits for the end of all runs; answers what they ask people, by the downstream's ledger, as a person would."""
    marks = ", ".join("?" * len(accepted))
    for _ in range(600):
        (left,) = (
            await asyncio.to_thread(
                rows, server.store, f"SELECT count(*) FROM runs WHERE terminal IS NULL AND run IN ({marks})", *accepted
            )
        )[0]
        if left == 0:
            return
        asked = await asyncio.to_thread(
            rows,
            server.store,
            f"SELECT approval, run, task FROM approvals WHERE status = 'pending' AND run IN ({marks})",
            *accepted,
        )
        if asked:
            effects = (await (await session.get(f"{url}/ledger")).json())["effects"]
            for approval, run, task in asked:
                said = {"status": "rejected" if f"{run}:{task}" in effects else "approved"}
                answer = await session.post(f"{server.address}/v1/approvals/{approval}/resolve", json=said)
                if answer.status not in {200, 409}:  # 409: its run has just ended
                    raise RuntimeError(f"not resolved: {answer.status} {await answer.text()}")
        await asyncio.sleep(0.1)


async def rounds(count: int, runs: int, seconds: float) -> dict[str, Any]:
    """All rounds, with one downstream and one store."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, (Path(name) / "downstream.log").open("w") as log:
        folder = Path(name)
        counting, url = started([sys.executable, __file__, "--downstream"], {}, log)
        server = Server(folder, url)
        results = []
        try:
            await asyncio.to_thread(server.start)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
                for _ in range(count):
                    if time.monotonic() - began > seconds:
                        break  # a busy machine: fewer kills, told as "kills"
                    results.append(await one_round(server, url, session, runs))
                    print(
                        json.dumps({**results[-1], "resume_s": max(results[-1]["resume_s"], default=None)}),
                        file=sys.stderr,
                    )
            code = await asyncio.to_thread(server.stop)
        finally:
            for process in (server.process, counting):
                if process is not None and process.poll() is None:
                    process.kill()
                    process.wait()
            print((folder / "serve.log").read_text()[-2000:], file=sys.stderr)
    resumes = sorted(second for one in results for second in one["resume_s"])
    sums = {
        name: sum(one[name] for one in results)
        for name in ("accepted", "interrupted", "finished_at_kill", "lost", "repeated_tasks", "repeated_actions")
    }
    return {
        "kills": len(results),
        **sums,
        "resumed": len(resumes),
        "resume_p95_s": resumes[int(0.95 * (len(resumes) - 1))] if resumes else None,
        "exit_code": code,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    """Prints one JSON object; exits 1 when anything was lost or done twice."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each start compiles everything anew
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="kept for likeness with the other benchmarks")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=240.0, help="no kill begins later than this")
    parser.add_argument("--downstream", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.downstream:
        downstream()
        return
    result = asyncio.run(rounds(arguments.kills, arguments.runs, arguments.seconds))
    print(json.dumps(result))
    sound = not (result["lost"] or result["repeated_tasks"] or result["repeated_actions"] or result["exit_code"])
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
