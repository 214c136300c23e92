"""Every fault of a model's upstream, streaming and not, met over HTTP: main broken, backup healthy.

    python bench/faults.py [--json] [--only NAME,NAME] [--target URL --ports MAIN,BACKUP]

Right is the backup's full answer as long as nothing of the main route's has reached the client, and a clean error
after that: never a truncated answer that passes for complete. Always inside the client's budget (X-Max-Wait, and 50 ms)
and with no connection to an upstream left busy. The gateway runs with its default limits in a process of its own;
``--target`` asks another one instead, whose main and backup routes must be at the ports given here, under the model's
own name. Prints one line for each fault and mode; the exit code is 1 unless all is right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp
from strict_client import Reply, ask, served

from failsoft.testing.upstream import FakeUpstream

MAIN = "Only the main route says such words and everybody can tell them from others."
BACKUP = "The backup has answered this, all of it, to the very last word."
BUDGET = 4.0
GRACE = 0.05
CLOSED_WITHIN = 0.3


@dataclass(frozen=True)
class Fault:
    """A way to be broken: what the main upstream does, or where it is; what is right."""

    name: str
    does: str = ""
    where: str = "{main}"
    backup: str = "ok"
    right: str = "served"
    budget: float = BUDGET
    asked: bool = True
    """Whether the main upstream must have seen the request."""
    slow: bool = False
    """Whether the main route's own answer, all of it, would be right, too."""
    by_name: bool = True
    """Whether another gateway can meet it, too."""

    @property
    def plan(self) -> str:
        return self.does or self.name


FAULTS = (
    # the eighteen
    Fault("connection_refused", "refused", "http://127.0.0.1:{nobody}/v1", asked=False, by_name=False),
    Fault("reset_before_headers"),
    Fault("name_not_found", "ok", "http://upstream.invalid/v1", asked=False, by_name=False),
    Fault("tls_garbage"),
    Fault("text_garbage"),
    Fault("status_500"),
    Fault("status_503"),
    Fault("status_429"),
    Fault("status_429_retry_after"),
    Fault("status_401"),
    Fault("error_under_200"),
    Fault("empty_200"),
    Fault("malformed_json"),
    Fault("no_choices"),
    Fault("headers_never"),
    Fault("slow_first_token"),
    Fault("stall"),
    Fault("cut"),
    Fault("slow_drip", "slow_drip:0:0.02", slow=True),
    # and more
    Fault("tls_to_plain", "ok", "https://127.0.0.1:{main_port}/v1", asked=False, by_name=False),
    Fault("status_529"),
    Fault("status_404"),
    Fault("quota"),
    Fault("null_content"),
    Fault("role_then_silence"),
    Fault("cut_before_content"),
    Fault("no_finish_reason"),
    Fault("bad_chunk"),
    Fault("error_in_stream"),
    Fault("wrong_length"),
    Fault("context_length"),  # another route's model may have more room
    # nobody can answer: an error, in time
    Fault("all_hang", "headers_never", backup="headers_never", right="refused", budget=1.0),
    Fault("all_broken", "status_500", backup="status_503", right="refused"),
    Fault("backup_hangs", "status_500", backup="slow_first_token", right="refused", budget=1.0),
    # the caller's own fault: told, and nobody else is asked
    Fault("bad_request", right="told"),
    Fault("content_filter", right="told"),
)


def judge(fault: Fault, reply: Reply, main: FakeUpstream, backup: FakeUpstream, before: tuple[int, int]) -> list[str]:
    """What is wrong with a reply; nothing when it is right."""
    wrong = list(reply.problems)
    if reply.seconds > fault.budget + GRACE:
        wrong.append(f"took {reply.seconds:.3f} s of {fault.budget:g}")
    if fault.asked and main.count == before[0]:
        wrong.append("the main upstream was not asked, so nothing was shown")
    if fault.right == "told":
        if reply.status != 400 or reply.error is None:
            wrong.append(f"status {reply.status} for the caller's fault")
        if backup.count != before[1]:
            wrong.append("the backup was asked, too")
        return wrong
    if reply.complete:
        if fault.right == "refused":
            wrong.append("passes for an answer that nobody gave")
        elif reply.text != BACKUP and not (fault.slow and reply.text == MAIN):
            wrong.append(f"a truncated or mixed answer passes for complete: {reply.text[:60]!r}")
        elif reply.finish != "stop":
            wrong.append(f"finish_reason {reply.finish!r}")
        return wrong
    if reply.done or reply.finish is not None:
        wrong.append("a broken answer says that it is complete")
    if reply.error is None:
        wrong.append(f"neither an answer nor an error (status {reply.status})")
    elif fault.right == "served" and not reply.text:
        wrong.append(f"nothing was said, yet the backup did not serve: {reply.status} {reply.error.get('code')}")
    if reply.status == 200 and not reply.stream:
        wrong.append("an error under status 200")
    if reply.text and not MAIN.startswith(reply.text.rstrip()):
        wrong.append(f"text that nobody said: {reply.text[:60]!r}")
    return wrong


async def idle(*upstreams: FakeUpstream) -> bool:
    """Whether no upstream works for anybody, soon."""
    for _ in range(int(CLOSED_WITHIN / 0.01)):
        if not any(one.busy for one in upstreams):
            return True
        await asyncio.sleep(0.01)
    return False


async def run(faults: Iterable[Fault], chat: str, main: FakeUpstream, backup: FakeUpstream, *, own: bool) -> list[Any]:
    cases = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        for fault in faults:
            for mode in ("whole", "stream"):
                body: dict[str, Any] = {
                    "model": f"{fault.name}-{mode}" if own else fault.plan,
                    "messages": [{"role": "user", "content": f"{fault.name} {mode}"}],
                }
                if mode == "stream":
                    body["stream"] = True
                before = (main.count, backup.count)
                reply = await ask(session, chat, body, budget=fault.budget)
                free = await idle(main, backup)
                wrong = judge(fault, reply, main, backup, before)
                if not free:
                    wrong.append(f"connections left busy: main {main.busy}, backup {backup.busy}")
                    main.drop()
                    backup.drop()
                how = "the backup's answer" if reply.complete else f"an error ({(reply.error or {}).get('code')})"
                cases.append(
                    {
                        "fault": fault.name,
                        "mode": mode,
                        "passed": not wrong,
                        "why": "; ".join(wrong) or how,
                        "seconds": round(reply.seconds, 3),
                    }
                )
                one = cases[-1]
                mark = "pass" if one["passed"] else "FAIL"
                print(
                    f"{mark}  {fault.name:24} {mode:7} {one['seconds']:6.3f} s  {one['why']}",
                    file=sys.stderr,
                    flush=True,
                )
    return cases


def settings(faults: Iterable[Fault], main: FakeUpstream, backup: FakeUpstream) -> dict[str, Any]:
    with socket.socket() as one:  # bound, then closed: nobody listens there
        one.bind(("127.0.0.1", 0))
        nobody = one.getsockname()[1]
    places = {"main": main.base_url, "nobody": nobody, "main_port": main.base_url.split(":")[2].split("/")[0]}
    models = {}
    for fault in faults:
        for mode in ("whole", "stream"):
            name = f"{fault.name}-{mode}"
            models[name] = {
                "routes": {
                    f"main-{name}": {"base_url": fault.where.format(**places), "model": fault.plan},
                    f"backup-{name}": {"base_url": backup.base_url, "model": fault.backup, "equivalent": True},
                }
            }
    return {"models": models, "gateway": {"log": "off"}}


async def bench(options: argparse.Namespace) -> list[Any]:
    names = set(options.only.split(",")) if options.only else None
    faults = [one for one in FAULTS if (names is None or one.name in names) and (one.by_name or not options.target)]
    ports = [int(port) for port in options.ports.split(",")] if options.ports else [0, 0]
    async with FakeUpstream(MAIN, pause=0.01, port=ports[0]) as main, FakeUpstream(BACKUP, port=ports[1]) as backup:
        if options.target:
            faults = [one for one in faults if one.backup == "ok"]
            backup.default = "ok"
            return await run(faults, options.target, main, backup, own=False)
        async with served(settings(faults, main, backup)) as gateway:
            return await run(faults, gateway.chat, main, backup, own=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", help="faults to try: " + ", ".join(one.name for one in FAULTS))
    parser.add_argument("--target", help="chat completions of another gateway")
    parser.add_argument("--ports", help="where the main upstream and the backup listen, for --target")
    options = parser.parse_args()
    if bool(options.target) != bool(options.ports):
        parser.error("--target and --ports go together")
    cases = asyncio.run(bench(options))
    passed = sum(one["passed"] for one in cases)
    if options.json:
        print(json.dumps({"passed": passed, "total": len(cases), "cases": cases}))
    else:
        print(f"passed {passed} of {len(cases)}")
    return 0 if cases and passed == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
