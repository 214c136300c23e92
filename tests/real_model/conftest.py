"""A real small model behind the gateway: for ``make test-model``, not collected by ``make test``.

``REAL_MODEL_PATHS`` names the file that ``scripts/real_model.py`` printed its paths to. The model's server runs
with two slots; the gateway before it is ``failsoft serve --gateway`` with two permits.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SLOTS = 2
PATHS = os.environ.get("REAL_MODEL_PATHS")

collect_ignore_glob = [] if PATHS else ["test_*.py"]
if PATHS:
    sys.path.append(str(ROOT / "bench"))  # for the strict client

_rows: list[tuple[str, str, float, str]] = []


@dataclass
class Model:
    """The gateway's chat completions, and the model server behind it."""

    gateway: str
    server: str

    @property
    def chat(self) -> str:
        return f"{self.gateway}/v1/chat/completions"


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Any:
    """``row(what, seconds, detail)`` adds a line to the table at the end."""

    def add(what: str, seconds: float, detail: str) -> None:
        _rows.append((request.node.name, what, seconds, detail))

    return add


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _rows:
        terminalreporter.write_sep("=", "what the real model did")
        for _, what, seconds, detail in _rows:
            terminalreporter.write_line(f"{what:44} {seconds:7.2f} s  {detail}")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    assert PATHS is not None
    paths = json.loads(Path(PATHS).read_text())
    folder = tmp_path_factory.mktemp("served")
    with contextlib.ExitStack() as stack:
        port = free_port()
        # threads that wait for each other crawl where others have the cores
        threads = "2" if os.getloadavg()[0] < 1.0 else "1"
        server = f"http://127.0.0.1:{port}"
        command = [
            paths["server"], "-m", paths["model"], "--host", "127.0.0.1", "--port", str(port), "-t", threads,
            "-np", str(SLOTS), "-c", "8192", "-b", "256", "-ub", "256", "--jinja", "--metrics", "--slots",
        ]  # fmt: skip
        stack.enter_context(running(command, folder / "llama.log", f"{server}/health", 180.0))
        mine = free_port()
        config = folder / "failsoft.yaml"
        config.write_text(json.dumps(settings(server)))  # JSON is YAML
        program = str(Path(sys.executable).with_name("failsoft"))
        command = [program, "serve", "--gateway", "--port", str(mine), "--config", str(config)]
        gateway = f"http://127.0.0.1:{mine}"
        stack.enter_context(running(command, folder / "gateway.log", f"{gateway}/health/readiness", 60.0))
        yield Model(gateway, server)


def settings(server: str) -> dict[str, Any]:
    route = {
        "base_url": f"{server}/v1",
        "model": "qwen",
        "guard": {"permits": SLOTS, "queue": 8, "retries": 0},
        "limits": {"first_content": "3m", "idle": "1m", "total": "10m", "least": "10m", "most": "10m"},
    }
    return {
        "models": {"qwen": {"coalesce": False, "routes": {"local": route}}},
        "gateway": {"budget": "10m", "connections": 16},
    }


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], log: Path, ready: str, within: float) -> Iterator[None]:
    """A server in a process of its own, once it answers at `ready`; terminated at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        end = time.monotonic() + within
        while not answers(ready):
            if process.poll() is not None or time.monotonic() > end:
                pytest.exit(f"{command[0]} did not start: {log.read_text()[-2000:]}", returncode=3)
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return int(response.status) == 200
    except OSError:
        return False
