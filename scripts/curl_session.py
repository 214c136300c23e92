"""Write docs/session.md: a session with curl, as it really went.

    python scripts/curl_session.py            fail when the page is not what happens now
    python scripts/curl_session.py --write    write the page

A server with a small agent is started on loopback, every command on the page is run against it by a shell, and what it
prints is put under it. What differs each time (ids, times, addresses) is replaced.
"""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from failsoft.app import App
from failsoft.config import Settings
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import PlanRequest, RulesPlanner
from failsoft.server.serving import HttpServer, listen_on
from failsoft.tools.python import tool
from failsoft.tools.registry import Tool, ToolContext

PAGE = Path(__file__).parents[1] / "docs" / "session.md"
ADDRESS = "localhost:8080"
TIMES = re.compile(r"(_ms|_s|_at|^created|^expires|^resolved|^done|^arguments_hash)$")


# --- the agent -------------------------------------------------------------------------------------------------------


@tool(downstream="warehouse")
async def sales(region: str) -> list[dict[str, Any]]:
    """Reads sales."""
    await asyncio.sleep(0.1)
    return [{"region": region, "revenue": 1200}]


@tool(downstream="forecasts", kind="external", timeout=30)
async def forecast() -> str:
    """Never answers."""
    await asyncio.get_running_loop().create_future()
    return ""


@tool(downstream="writer", kind="external")
async def report(rows: list[dict[str, Any]], context: ToolContext) -> str:
    """Writes, and says how far it is."""
    for step in range(1, 5):
        await asyncio.sleep(0.05)
        context.progress(step / 4)
    return f"{rows[0]['region']}: {rows[0]['revenue']}"


@tool(downstream="mail", kind="action", approval=True)
async def send_mail(to: str) -> str:
    """Sends something that cannot be called back."""
    return f"sent to {to}"


def plan_for(request: PlanRequest) -> Plan | None:
    """Plans by the words of the question."""
    words = request.input.lower()
    tasks = []
    if "sales" in words:
        tasks.append(TaskSpec(id="sales", title="Sales of the north", tool="sales", arguments={"region": "north"}))
    if "report" in words:
        rows = {"rows": {"$from": "sales"}}
        tasks.append(TaskSpec(id="report", title="Report", tool="report", arguments=rows, needs=("sales",)))
    if "forecast" in words:
        tasks.append(TaskSpec(id="forecast", title="Forecast", tool="forecast"))
    if "mail" in words:
        tasks.append(TaskSpec(id="mail", title="Mail to Ann", tool="send_mail", arguments={"to": "ann"}))
    return Plan(tasks=tuple(tasks)) if tasks else None


def agent() -> Agent:
    """The agent of the page."""
    tools: list[Tool] = [sales, forecast, report, send_mail]
    return Agent("clerk", "Knows sales, writes reports, sends mail.", tools=tools, planners=[RulesPlanner(plan_for)])


# --- the steps -------------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """A command with what is told about it; ``keep`` are the keys of a JSON answer that are shown."""

    text: str
    command: str
    keep: tuple[str, ...] = ()
    title: str = ""
    learn: Callable[[str], dict[str, str]] = field(default=lambda _: {})
    """Names for later commands, from what this one printed."""


def _run_id(printed: str) -> dict[str, str]:
    return {"RUN": re.findall(r"run_[0-9a-f]{32}", printed)[0]}


def _approval_id(printed: str) -> dict[str, str]:
    return {"APPROVAL": re.findall(r"apr_[0-9a-f]{32}", printed)[0]}


RUNS = f"{ADDRESS}/v1/runs"
STEPS = [
    Step(
        "One question, one answer, inside the budget.",
        f'curl -s {RUNS} -d \'{{"input": "sales and a report", "budget_ms": 3000}}\'',
        ("run_id", "status", "answer", "elapsed_ms", "budget_ms"),
        "Ask and wait",
    ),
    Step(
        "The forecast hangs. The answer comes in time all the same, and says what is missing.",
        f'curl -s {RUNS} -d \'{{"input": "sales and forecast", "budget_ms": 600}}\'',
        ("status", "answer", "shortfalls", "task", "reason", "text", "elapsed_ms", "provenance"),
        "A part of it hangs",
    ),
    Step(
        "A caller that wants codes gets one, with the cause, and with what there is under `run`.",
        f"curl -s -w '\\nHTTP %{{http_code}}\\n' {RUNS} "
        f'-d \'{{"input": "sales and forecast", "budget_ms": 600, "strict": true}}\'',
        ("error", "type", "code", "message", "run", "status", "answer"),
    ),
    Step(
        "Every event has an id, an estimate of the time left comes along (once is shown here), and there is one end.",
        f'curl -sN {RUNS} -d \'{{"input": "sales and a report", "stream": true}}\'',
        (),
        "Watch, with the time left",
    ),
    Step(
        "A background run is written to the store, then accepted. It needs no client.",
        f'curl -si {RUNS} -d \'{{"input": "sales and a report", "background": true}}\' '
        "| grep -i -e '^HTTP' -e '^location'",
        (),
        "Leave, and come back",
        _run_id,
    ),
    Step(
        "Somebody watches it, and the connection breaks after a few events …",
        f"curl -sN {RUNS}/$RUN/events | grep --line-buffered -e '^id' -e '^data' | head -8",
    ),
    Step(
        "… and comes back with the last id: nothing is missed, nothing told twice.",
        f"curl -sN -H 'Last-Event-ID: 1.5' {RUNS}/$RUN/events",
    ),
    Step(
        "What it was made of can be read for a while after its end.",
        f"curl -s {RUNS}/$RUN",
        ("run_id", "status", "background", "tasks", "id", "provenance", "served"),
    ),
    Step(
        "A run that would take long …",
        f'curl -s {RUNS} -d \'{{"input": "forecast", "budget_ms": 60000, "background": true}}\'',
        ("run_id", "background"),
        "Cancel",
        _run_id,
    ),
    Step(
        "… is cancelled, and what it had open is closed.", f"curl -s -X POST {RUNS}/$RUN/cancel", ("run_id", "status")
    ),
    Step(
        "Mail cannot be called back, so a person is asked first: 202, and the run waits with its time standing still.",
        f'curl -s {RUNS} -d \'{{"input": "mail"}}\'',
        ("run_id", "status"),
        "A person is asked",
        _run_id,
    ),
    Step(
        "What waits for an answer:",
        f"curl -s '{ADDRESS}/v1/approvals?status=pending'",
        ("approvals", "id", "run_id", "tool", "title", "arguments", "to", "status", "expires"),
        "",
        _approval_id,
    ),
    Step(
        "The answer. The same once more changes nothing; another one would be 409.",
        f'curl -s {ADDRESS}/v1/approvals/$APPROVAL/resolve -d \'{{"status": "approved", "by": "ann"}}\'',
        ("id", "status", "by"),
    ),
    Step(
        "The run goes on by itself.",
        f"curl -sN {RUNS}/$RUN/events >/dev/null; curl -s {RUNS}/$RUN",
        ("run_id", "status", "answer"),
    ),
    Step(
        "Questions of one session are told what was said before; the conversation can be read.",
        f'curl -s {RUNS} -d \'{{"input": "sales", "session_id": "talk"}}\' >/dev/null; '
        f"curl -s {ADDRESS}/v1/sessions/talk",
        ("session_id", "turns", "input", "status", "answer"),
        "A conversation",
    ),
    Step(
        "Any OpenAI client can ask an agent.",
        f"curl -s {ADDRESS}/v1/chat/completions "
        '-d \'{"model": "agent/clerk", "messages": [{"role": "user", "content": "sales"}]}\'',
        ("model", "choices", "message", "content", "finish_reason", "failsoft", "run_id", "status", "degraded"),
        "Agents as models",
    ),
]


# --- running them ----------------------------------------------------------------------------------------------------


@contextmanager
def served() -> Iterator[str]:
    """A server in a thread; gives its address."""
    loop = asyncio.new_event_loop()
    up = threading.Event()
    servers: list[HttpServer] = []

    async def serve() -> None:
        quiet = {"gateway": {"log": "off"}, "server": {"log": "off", "drain": 0.2}, "agent": "clerk"}
        with listen_on("127.0.0.1", 0) as sock:
            async with App(Settings.model_validate(quiet), agents=[agent()], store="memory") as app:
                await app.ask("sales and a report")  # so that there is something to estimate from
                servers.append(HttpServer(app, sock, on_listening=lambda _: up.set()))
                await servers[0].serve_until_stopped()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    if not up.wait(20):
        raise SystemExit("the server did not start")
    try:
        yield servers[0].address.removeprefix("http://")
    finally:
        loop.call_soon_threadsafe(servers[0].stop)
        thread.join(10)
        loop.close()


def page() -> str:
    """The page, from what happens now."""
    parts = [
        "# A session with curl",
        "",
        "What happened when `scripts/curl_session.py` ran these commands; ids, times and addresses are replaced, and",
        "of long answers some fields are shown. [HTTP API](http.md) explains them.",
    ]
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    with served() as address:
        for step in STEPS:
            shown = step.command
            command = step.command.replace(ADDRESS, address)
            for name, value in names.items():
                command = command.replace(f"${name}", value)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20, check=False)
            names.update(step.learn(done.stdout))
            if step.title:
                parts += ["", f"## {step.title}"]
            parts += ["", step.text, "", "```console", f"$ {shown}", *_shown(done.stdout, step, known), "```"]
    return "\n".join(parts) + "\n"


def _shown(printed: str, step: Step, known: dict[str, str]) -> list[str]:
    lines: list[str] = []
    estimated = False
    for line in printed.replace("\r", "").strip().split("\n"):
        if line.startswith("{"):
            lines += json.dumps(_kept(json.loads(line), step.keep), indent=2, ensure_ascii=False).split("\n")
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if event["type"] == "CUSTOM" and event["name"] == "eta":
                if estimated or event["value"]["eta_s"] in (None, 0) or step.command.endswith("/events"):
                    if lines and lines[-1].startswith("id: "):
                        lines.pop()
                    continue
                estimated = True
            lines.append("data: " + json.dumps(_short(event), ensure_ascii=False))
        elif line and not line.startswith((":", "retry:")):
            lines.append(line)
    return [_constant(line, known) for line in lines]


def _kept(value: Any, keys: tuple[str, ...]) -> Any:
    """The fields that are shown, with times replaced."""
    if isinstance(value, list):
        return [_kept(one, keys) for one in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, inner in value.items():
        if key in keys:
            found[key] = "…" if TIMES.search(key) and isinstance(inner, int | float) else _kept(inner, keys)
    return found


def _short(event: dict[str, Any]) -> dict[str, Any]:
    """An event of a stream without what is long, and with times replaced."""
    found: dict[str, Any] = {}
    for key, value in event.items():
        if key in ("snapshot", "result"):
            found[key] = "…"
        elif key == "value" and event.get("name") == "eta":
            found[key] = {"done": 0.5, "eta_s": "…", "at_most_s": "…", "running": value["running"]}
        elif key == "value":
            found[key] = {inner: "…" if TIMES.search(inner) else one for inner, one in value.items()}
        else:
            found[key] = value
    return found


def _constant(line: str, known: dict[str, str]) -> str:
    """The line with ids that are the same each time."""

    def named(match: re.Match[str]) -> str:
        kind = match[1]
        count = sum(name.startswith(kind) for name in known.values())
        return known.setdefault(match[0], f"{kind}_{count + 1}")

    line = re.sub(r"(run|apr)_[0-9a-f]{32}", named, line)
    line = re.sub(r"^id: 1\.(?:[6-9]|\d\d+)$", "id: 1.…", line)
    return line.replace('"…"', "…")


def main() -> int:
    """0 when the page is true."""
    made = page()
    if "--write" in sys.argv:
        PAGE.write_text(made)
        return 0
    if not PAGE.exists() or PAGE.read_text() != made:
        sys.stderr.write("docs/session.md is not what happens now: run scripts/curl_session.py --write\n")
        import difflib

        before = PAGE.read_text().splitlines() if PAGE.exists() else []
        sys.stderr.write("\n".join(difflib.unified_diff(before, made.splitlines(), "page", "now", lineterm="")) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
