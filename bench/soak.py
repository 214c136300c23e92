"""The gateway under abuse: a third of the calls cancelled at random moments, a third against random faults, then calm.

    python bench/soak.py [--json] [--requests 20000] [--concurrency 200] [--clean 2000] [--seed 1]

``failsoft serve --gateway`` runs in a process of its own; its upstreams and its clients run here. After the abuse every
clean call must be answered rightly, nothing may be in flight, no upstream may have more open connections than a pool
has, and the gateway's memory may not have grown by 10 MB or more since the first quarter of the abuse. Prints the
figures; the exit code is 1 unless all holds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from strict_client import Reply, Served, ask, get, served

from failsoft.testing.upstream import FakeUpstream

GOOD = "All is well."
BAD = "All is broken here."
POOL = 250
"""Connections to an upstream; more calls at once than there are, so that none waits for one."""
GROWTH_MB = 10.0

FAULTS = (
    "refused", "reset_before_headers", "tls_garbage", "text_garbage", "status_500", "status_503", "status_529",
    "status_429", "error_under_200", "empty_200", "malformed_json", "no_choices", "null_content", "headers_never",
    "slow_first_token", "role_then_silence", "stall", "cut", "cut_before_content", "slow_drip:0:0.02",
    "no_finish_reason", "bad_chunk", "error_in_stream", "wrong_length", "context_length", "ok",
)  # fmt: skip
"""Those that take a route out for minutes (keys, quotas, Retry-After) are left out: they would end the abuse."""


def settings(main: FakeUpstream, good: FakeUpstream) -> dict[str, Any]:
    wide = {"permits": POOL, "queue": 400}
    better = {"base_url": good.base_url, "model": "ok", "equivalent": True, "guard": wide}
    broken = {"base_url": main.base_url, "limits": {"first_content": "500ms", "idle": "500ms", "total": "2s"}}
    never = 1_000_000
    return {
        "models": {
            "good": {"coalesce": False, "routes": {"good": better}},
            # as it is out of the box: the breaker opens and the alias leaves the broken route
            "broken": {
                "coalesce": False,
                "routes": {"main": {**broken, "model": "any", "guard": wide}, "good": better},
            },
            # and one that never learns, so that faults never end
            "stubborn": {
                "coalesce": False,
                "stickiness": {"errors": never, "timeouts": never},
                "routes": {
                    "stubborn": {**broken, "model": "any", "guard": {**wide, "breaker": {"enabled": False}}},
                    "good": better,
                },
            },
        },
        "gateway": {"log": "off", "connections": POOL},
    }


def rss_mb(pid: int) -> float:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match.group(1)) / 1024 if match else 0.0


def verdict(model: str, reply: Reply) -> str:
    """``right``, ``error: CODE`` (a clean one) or what is wrong."""
    if reply.problems:
        return reply.problems[0]
    if reply.complete:
        if reply.text == GOOD and reply.finish == "stop":
            return "right"
        if model != "good" and reply.text == BAD:  # the broken route has its good moments
            return "right"
        return "a truncated or mixed answer passes for complete"
    if reply.error is None or reply.done or reply.finish is not None:
        return "a broken answer says that it is complete"
    return f"error: {reply.error.get('code')}"


class Soak:
    def __init__(self, gateway: Served, options: argparse.Namespace) -> None:
        self.gateway = gateway
        self.requests: int = options.requests
        self.concurrency: int = options.concurrency
        self.rng = random.Random(options.seed)
        self.outcomes: dict[str, Counter[str]] = {"plain": Counter(), "cancelled": Counter(), "faults": Counter()}
        self.next = 0
        self.ended = 0
        self.rss_early: float | None = None
        self.most_in_flight = 0

    async def one(self, session: aiohttp.ClientSession, model: str, number: int, budget: float = 30.0) -> str:
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": f"question {number}"}]}
        if number % 2:
            body["stream"] = True
        return verdict(model, await ask(session, self.gateway.chat, body, budget=budget))

    async def abuse(self, session: aiohttp.ClientSession) -> None:
        async def worker() -> None:
            while self.next < self.requests:
                number, self.next = self.next, self.next + 1
                kind = self.rng.choice(("plain", "cancelled", "faults"))
                if kind == "cancelled":
                    call = asyncio.create_task(self.one(session, self.rng.choice(("good", "stubborn")), number))
                    await asyncio.wait([call], timeout=self.rng.uniform(0.0, 0.4))
                    gone = call.cancel()
                    await asyncio.wait([call])
                    outcome = "cancelled" if gone else call.result()
                elif kind == "faults":
                    outcome = await self.one(session, self.rng.choice(("broken", "stubborn")), number)
                else:
                    outcome = await self.one(session, "good", number)
                self.outcomes[kind][outcome] += 1
                self.ended += 1
                if self.ended == self.requests // 4:
                    self.rss_early = rss_mb(self.gateway.pid)
                if self.ended % max(1, self.requests // 10) == 0:
                    flying = (await in_flight(session, self.gateway))["calls"]
                    self.most_in_flight = max(self.most_in_flight, flying)
                    told = f"{self.ended} of {self.requests}, {flying} in flight, {rss_mb(self.gateway.pid):.1f} MB"
                    print(told, file=sys.stderr, flush=True)

        async with asyncio.TaskGroup() as group:
            for _ in range(self.concurrency):
                group.create_task(worker())

    async def calm(self, session: aiohttp.ClientSession, number: int) -> Counter[str]:
        left = iter(range(number))
        outcomes: Counter[str] = Counter()

        async def worker() -> None:
            for one in left:
                outcomes[await self.one(session, "good", one)] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(min(50, self.concurrency)):
                group.create_task(worker())
        return outcomes


async def in_flight(session: aiohttp.ClientSession, gateway: Served) -> dict[str, int]:
    """What the gateway says it still does: calls, permits held, calls that wait for one, callees left behind."""
    async with session.get(f"{gateway.url}/metrics") as response:
        page = await response.text()
    match = re.search(r"^failsoft_gateway_in_flight (\S+)$", page, re.MULTILINE)
    if match is None:
        raise SystemExit("error: the gateway does not say how many calls are in flight")
    found = {"calls": int(float(match.group(1)))}
    guards = (await get(session, f"{gateway.url}/v1/downstreams"))["downstreams"]
    for name in ("in_use", "waiting", "orphans"):
        found[name] = sum(guard[name] for guard in guards)
    return found


async def soak(options: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(options.seed + 1)
    began = time.monotonic()
    async with (
        asyncio.timeout(options.seconds),
        FakeUpstream(BAD, pause=0.001, keep=10) as main,
        FakeUpstream(GOOD, pause=0.002, keep=10) as good,
        served(settings(main, good)) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        main.script(rng.choice(FAULTS) for _ in range(options.requests * 2))
        good.default, main.default = "ok", "status_500"
        run = Soak(gateway, options)
        rss_start = rss_mb(gateway.pid)
        await run.abuse(session)
        abused = main.count
        clean = await run.calm(session, options.clean)
        await asyncio.sleep(1.0)
        flying = await in_flight(session, gateway)
        rss_end = rss_mb(gateway.pid)
        sockets = {"main": main.open, "good": good.open}
        busy = {"main": main.busy, "good": good.busy}
    rss_early = run.rss_early or rss_start
    broken = sum(n for kind in run.outcomes.values() for what, n in kind.items() if not what.startswith(_FAIR))
    checks = {
        "clean_all_right": clean == Counter(right=options.clean),
        "plain_all_right": set(run.outcomes["plain"]) <= {"right"},
        "no_broken_answer": broken == 0,
        "nothing_in_flight": not any(flying.values()) and not any(busy.values()),
        "sockets_within_pool": all(number <= POOL for number in sockets.values()),
        "memory": rss_end - rss_early < GROWTH_MB,
        "gauge_moved": run.most_in_flight > 0,
        "faults_met": abused > options.requests / 20,
        "cancelled_in_time": run.outcomes["cancelled"]["cancelled"] > options.requests / 20,
    }
    return {
        "passed": all(checks.values()),
        "checks": checks,
        "requests": run.ended,
        "seconds": round(time.monotonic() - began, 1),
        "outcomes": {kind: dict(counts) for kind, counts in run.outcomes.items()},
        "clean": dict(clean),
        "faults_shown": abused,
        "most_in_flight": run.most_in_flight,
        "in_flight": flying,
        "open_upstream_sockets": sockets,
        "pool": POOL,
        "rss_mb": {"start": round(rss_start, 1), "early": round(rss_early, 1), "end": round(rss_end, 1)},
    }


_FAIR = ("right", "error: ", "cancelled")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--clean", type=int, help="clean calls after it; default: a tenth of the requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800.0, help="when to give up")
    options = parser.parse_args()
    if options.clean is None:
        options.clean = max(1, options.requests // 10)
    result = asyncio.run(soak(options))
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name}: {value}")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
