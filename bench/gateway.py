"""The gateway's cost, beside the floor (a bare proxy with the same HTTP client) and its peers, in one run.

    python bench/gateway.py [--json] [--peers none|all|NAME,NAME] [--rounds 5] [--seconds 3] [--install]

One core for the gateway, the other for the load (wrk) and the upstream (a C program built here). Rounds are
interleaved, figures are medians: added latency at c = 1 over asking the upstream directly, requests a second and CPU
at c = 32, streams a second at c = 8. Each peer lives in an environment of its own under ``.bench/``; ``--install``
makes those that are missing. Loopback only, bounded, stops by itself. Needs ``wrk`` and ``gcc`` (Debian packages of
these names).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE / "gateway_peers"
HOMES = HERE.parent / ".bench"
TICKS = os.sysconf("SC_CLK_TCK")

FEATURES = [
    "API keys with tenants",
    "per-key rate and concurrency limits",
    "deadline and budget headers",
    "guard: breaker, bulkhead, limits, retry budget, adaptive samples",
    "route order with stickiness and failure reading",
    "metrics",
    "one JSON log line per call",
    "upstream always streamed (auto for this bench: as the client asks)",
]

CONFIG = """\
models:
  gpt-x:
    coalesce: false
    routes:
      up:
        base_url: http://127.0.0.1:{port}/v1
        model: gpt-x
        api_key: ${{BENCH_UPSTREAM_KEY}}
        upstream_stream: auto
        capacity: 256
        guard: {{permits: 256, queue: 256}}
keys:
  bench:
    hash: {hash}
    tenant: bench
    rate: 100000000/second
    concurrent: 10000
"""


@dataclass
class Target:
    """Something that answers chat completions on loopback."""

    name: str
    command: list[str]
    url: str
    env: dict[str, str] = field(default_factory=dict)
    model: str = "gpt-x"
    auth: str = "Bearer sk-test"
    cwd: Path | None = None
    ready: str = "/v1/models"
    wait: float = 60.0
    base_from_output: bool = False
    asked: bool = True
    """Whether it is ready when it has answered a question; one that wants headers of its own only has to be there."""
    streams: bool = True


@dataclass
class Running:
    """A started target with what its start cost."""

    target: Target
    process: subprocess.Popen[bytes]
    start_s: float
    pids: list[int]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def children(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += children(int(child))
    return found


def cpu_seconds(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(parts[11]) + int(parts[12])
    return total / TICKS


def rss_mb(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            total += int(match.group(1)) if match else 0
    return total / 1024


@contextlib.contextmanager
def upstream() -> Iterator[int]:
    binary = HOMES / "upstream"
    HOMES.mkdir(exist_ok=True)
    subprocess.run(["gcc", "-O2", "-w", "-o", str(binary), str(PEERS / "upstream.c")], check=True)
    port = free_port()
    process = subprocess.Popen(["taskset", "-c", "1", str(binary), str(port), str(PEERS / "chat.json"), "0"])
    try:
        wait_for(f"http://127.0.0.1:{port}/stat", 10.0)
        yield port
    finally:
        process.kill()
        process.wait()


def wait_for(url: str, seconds: float, *, auth: str = "", post: bytes | None = None) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            request = urllib.request.Request(
                url, data=post, headers={"Authorization": auth, "Content-Type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=2).read()
            return
        except Exception as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and post is None:
                return
            if time.monotonic() > end:
                raise RuntimeError(f"{url} did not answer: {error!r}") from error
            time.sleep(0.02)


def start(target: Target, log: Path) -> Running:
    env = {**os.environ, **target.env}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # else each start compiles everything anew
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["taskset", "-c", "0", *target.command],
            env=env,
            cwd=target.cwd,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    body = json.dumps({"model": target.model, "messages": [{"role": "user", "content": "x"}]}).encode()
    if target.base_from_output:
        end = time.monotonic() + target.wait
        while not (match := re.search(rb"BASE (\S+)", log.read_bytes())):
            if time.monotonic() > end or process.poll() is not None:
                raise RuntimeError(f"{target.name} did not start: {log.read_bytes()[-500:]!r}")
            time.sleep(0.05)
        target.url = match.group(1).decode().rstrip("/") + "/chat/completions"
    try:
        wait_for(target.url, target.wait, auth=target.auth, post=body if target.asked else None)
    except RuntimeError as error:
        stop(Running(target, process, 0.0, [process.pid]))
        raise RuntimeError(f"{error}; its log ends: {log.read_bytes()[-800:].decode('utf-8', 'replace')}") from None
    took = time.monotonic() - began
    return Running(target, process, took, children(process.pid))


def stop(running: Running) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()


def wrk(url: str, target: Target, *, connections: int, seconds: float, stream: bool) -> dict[str, float]:
    script = PEERS / ("stream.lua" if stream else "post.lua")
    env = {**os.environ, **target.env, "LUA_DIR": str(PEERS), "AUTH": target.auth, "MODEL": target.model}
    if target.name == "portkey":
        env["PORTKEY"] = f"http://127.0.0.1:{target.env['UPSTREAM_PORT']}/v1"
    done = subprocess.run(
        ["taskset", "-c", "1", "wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(script), url],
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds + 30,
        check=True,
    )
    match = re.search(r"JSON (\{.*\})", done.stdout)
    if match is None:
        raise RuntimeError(f"wrk said nothing of {target.name}: {done.stdout[-300:]} {done.stderr[-300:]}")
    return {key: float(value) for key, value in json.loads(match.group(1)).items()}


def measure(running: Running, seconds: float) -> dict[str, float]:
    """One round: latency at c = 1, throughput and CPU at c = 32, streams at c = 8."""
    target = running.target
    one = wrk(target.url, target, connections=1, seconds=seconds, stream=False)
    before = cpu_seconds(running.pids)
    many = wrk(target.url, target, connections=32, seconds=seconds, stream=False)
    cpu = cpu_seconds(running.pids) - before
    bad = one["non2xx"] + many["non2xx"] + one["errs"] + many["errs"]
    figures = {
        "p50_us": one["p50"],
        "p99_us": one["p99"],
        "req_s": many["rps"],
        "cpu_us": cpu / max(1.0, many["n"]) * 1e6,
        "bad": bad,
    }
    if target.streams:
        sse = wrk(target.url, target, connections=8, seconds=seconds, stream=True)
        figures["sse_s"] = sse["rps"] if not sse["non2xx"] else 0.0
        figures["bad"] += sse["errs"]
    return figures


def failsoft_target(port: int, folder: Path) -> Target:
    config = folder / "failsoft.yaml"
    config.write_text(CONFIG.format(port=port, hash="sha256:" + hashlib.sha256(b"sk-bench").hexdigest()))
    mine = free_port()
    return Target(
        "failsoft",
        [
            str(Path(sys.executable).parent / "failsoft"),
            "serve",
            "--gateway",
            "--port",
            str(mine),
            "--config",
            str(config),
        ],
        f"http://127.0.0.1:{mine}/v1/chat/completions",
        env={"BENCH_UPSTREAM_KEY": "sk-fake"},
        auth="Bearer sk-bench",
    )


def floor_target(port: int) -> Target:
    mine = free_port()
    command = [
        sys.executable, "-m", "uvicorn", "floor:app", "--host", "127.0.0.1", "--port", str(mine), "--loop", "uvloop",
        "--http", "httptools", "--no-access-log", "--log-level", "warning",
    ]  # fmt: skip
    return Target(
        "floor",
        command,
        f"http://127.0.0.1:{mine}/v1/chat/completions",
        env={"FLOOR_UPSTREAM": f"http://127.0.0.1:{port}/v1"},
        cwd=PEERS,
    )


PACKAGES = {
    "litellm": ("litellm[proxy]",),
    "smg": ("smg",),
    "tensorzero": ("tensorzero",),
    "mlflow": ("mlflow[gateway]",),
    "portkey": ("@portkey-ai/gateway",),
}


def install(name: str) -> None:
    """Installs a peer into an environment of its own."""
    home = HOMES / name
    wanted = "\n".join(PACKAGES[name])
    if (home / "installed").exists() and (home / "installed").read_text() == wanted:
        return
    print(f"installing {' '.join(PACKAGES[name])} …", file=sys.stderr, flush=True)
    home.mkdir(parents=True, exist_ok=True)
    if name == "portkey":
        subprocess.run(["npm", "install", "--silent", "--prefix", str(home), *PACKAGES[name]], check=True)
    else:
        uv = shutil.which("uv") or str(HERE.parent / ".tools/bin/uv")
        subprocess.run([uv, "--no-config", "venv", "--quiet", "--allow-existing", str(home / "env")], check=True)
        python = str(home / "env/bin/python")
        # Without configuration: this project's pins are not the peer's.
        subprocess.run(
            [uv, "--no-config", "pip", "install", "--quiet", "--python", python, *PACKAGES[name]], check=True
        )
    (home / "installed").write_text(wanted)


def peer_target(name: str, port: int, folder: Path) -> Target:
    mine = free_port()
    home = HOMES / name
    url = f"http://127.0.0.1:{mine}/v1/chat/completions"
    bin_ = home / "env/bin"
    if name == "litellm":
        config = folder / "litellm.yaml"
        config.write_text((PEERS / "litellm.yaml").read_text().replace("18091", str(port)))
        env = {
            "LITELLM_MASTER_KEY": "sk-bench", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
        }  # fmt: skip
        command = [
            str(bin_ / "litellm"),
            "--config",
            str(config),
            "--host",
            "127.0.0.1",
            "--port",
            str(mine),
            "--num_workers",
            "1",
        ]
        return Target(name, command, url, env=env, auth="Bearer sk-bench", wait=120.0)
    if name == "smg":
        command = [
            str(bin_ / "smg"), "launch", "--host", "127.0.0.1", "--port", str(mine), "--backend", "openai",
            "--worker-urls", f"http://127.0.0.1:{port}", "--history-backend", "none",
            "--prometheus-port", str(free_port()), "--log-level", "error",
        ]  # fmt: skip
        return Target(name, command, url)
    if name == "tensorzero":
        config = folder / "tz.toml"
        config.write_text((PEERS / "tz.toml").read_text().replace("18091", str(port)))
        command = [str(bin_ / "python"), str(PEERS / "tz_serve.py"), str(config)]
        return Target(
            name, command, url, env={"RUST_LOG": "error"}, model="tensorzero::model_name::gpt-x", base_from_output=True
        )
    if name == "mlflow":
        config = folder / "mlflow.yaml"
        config.write_text((PEERS / "mlflow.yaml").read_text().replace("18091", str(port)))
        command = [
            str(bin_ / "mlflow"), "gateway", "start", "--config-path", str(config), "--host", "127.0.0.1",
            "--port", str(mine), "--workers", "1",
        ]  # fmt: skip
        return Target(
            name, command, url.replace("/v1/chat/completions", "/v1/chat/completions"),
            env={"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}, wait=120.0,
        )  # fmt: skip
    if name == "portkey":
        command = [
            "node",
            str(home / "node_modules/@portkey-ai/gateway/build/start-server.js"),
            f"--port={mine}",
            "--headless",
        ]
        env = {"TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost", "NODE_ENV": "production", "UPSTREAM_PORT": str(port)}
        return Target(name, command, url, env=env, streams=False, asked=False)
    raise SystemExit(f"error: no peer is called {name!r}; there are {', '.join(PACKAGES)}")


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    names = {name for one in rounds for name in one}
    return {name: statistics.median(one[name] for one in rounds if name in one) for name in sorted(names)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--peers", default="none", help="none, all, or names: " + ", ".join(PACKAGES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--install", action="store_true", help="install peers that are missing")
    options = parser.parse_args()
    for tool in ("wrk", "gcc", "taskset"):
        if shutil.which(tool) is None:
            raise SystemExit(
                f"error: {tool} is missing; on Debian: apt-get install {tool.replace('taskset', 'util-linux')}"
            )
    names = list(PACKAGES) if options.peers == "all" else [] if options.peers == "none" else options.peers.split(",")
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary, upstream() as port:
        folder = Path(temporary)
        targets = [floor_target(port), failsoft_target(port, folder)]
        for name in names:
            try:
                if options.install:
                    install(name)
                targets.append(peer_target(name, port, folder))
            except (subprocess.CalledProcessError, OSError) as error:
                failed[name] = f"not installed: {error}"
        direct = Target("direct", [], f"http://127.0.0.1:{port}/v1/chat/completions")
        rounds: dict[str, list[dict[str, float]]] = {target.name: [] for target in targets}
        straight: list[dict[str, float]] = []
        starts: dict[str, list[float]] = {target.name: [] for target in targets}
        memory: dict[str, list[float]] = {target.name: [] for target in targets}
        for number in range(options.rounds):
            straight.append(wrk(direct.url, direct, connections=1, seconds=options.seconds, stream=False))
            for target in targets:
                if target.name in failed:
                    continue
                print(f"round {number + 1}/{options.rounds}: {target.name} …", file=sys.stderr, flush=True)
                try:
                    running = start(target, folder / f"{target.name}.log")
                except RuntimeError as error:
                    failed[target.name] = str(error)
                    continue
                try:
                    wrk(target.url, target, connections=8, seconds=1.0, stream=False)
                    rounds[target.name].append(measure(running, options.seconds))
                    starts[target.name].append(running.start_s)
                    memory[target.name].append(rss_mb(children(running.process.pid)))
                except (RuntimeError, subprocess.SubprocessError) as error:
                    failed[target.name] = str(error)
                finally:
                    stop(running)
    base = medians(straight)
    figures: dict[str, dict[str, float]] = {}
    for name, several in rounds.items():
        if not several:
            continue
        found = medians(several)
        figures[name] = {
            "added_p50_us": round(found["p50_us"] - base["p50"], 1),
            "added_p99_us": round(found["p99_us"] - base["p99"], 1),
            "req_s": round(found["req_s"], 1),
            "sse_s": round(found.get("sse_s", 0.0), 1),
            "cpu_us": round(found["cpu_us"], 1),
            "rss_mb": round(statistics.median(memory[name]), 1),
            "start_s": round(statistics.median(starts[name]), 3),
            "bad": found["bad"],
        }
    floor, mine = figures.get("floor", {}), figures.get("failsoft", {})
    ratios = {}
    if floor and mine:
        ratios = {
            "req_s": round(mine["req_s"] / floor["req_s"], 3),
            "sse_s": round(mine["sse_s"] / floor["sse_s"], 3) if floor["sse_s"] else None,
            "added_p50": round(mine["added_p50_us"] / floor["added_p50_us"], 3),
            "features_cpu_us": round(mine["cpu_us"] - floor["cpu_us"], 1),
        }
    result = {
        "direct_p50_us": round(base["p50"], 1),
        "floor": floor,
        "failsoft": mine,
        "peers": {name: one for name, one in figures.items() if name not in {"floor", "failsoft"}},
        "ratios_to_floor": ratios,
        "features": FEATURES,
        "failed": failed,
    }
    if options.json:
        print(json.dumps(result))
    else:
        for name, one in figures.items():
            print(f"{name:12s} " + "  ".join(f"{key} {value:g}" for key, value in one.items()))
        print("failsoft to floor:", ratios)
        for name, why in failed.items():
            print(f"{name}: {why}")
    return 1 if "failsoft" in failed or "floor" in failed else 0


if __name__ == "__main__":
    sys.exit(main())
