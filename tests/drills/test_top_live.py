"""``failsoft top`` on a real terminal, while A2's load and its fault go on: what a person sees."""

import asyncio
import os
import re
import shlex
import sys
from pathlib import Path
from random import Random

import pytest
from tests.server.serving import until
from tests.services import program

from failsoft.app import App
from failsoft.drills.backends import Backend
from failsoft.drills.load import Arrival, arrivals, drive
from failsoft.drills.platforms import desk, settings_for
from failsoft.drills.requests import RequestMaker
from failsoft.drills.scenario import load_scenario
from failsoft.runs.result import RunRequest
from failsoft.server.serving import HttpServer, listen_on

A2 = load_scenario(Path(__file__).parents[2] / "scenarios" / "A2.yaml")

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(60)]


class Terminal:
    """A terminal of 150 by 50 with a command in it, on a tmux server of its own."""

    def __init__(self, tmux: str, socket: Path, command: str) -> None:
        self.tmux = [tmux, "-S", str(socket), "-f", "/dev/null"]
        self.command = command

    async def _run(self, *arguments: str) -> str:
        # Not the size of the terminal that the tests were started in, which programs believe more than their own.
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment = {**inherited, "TERM": "xterm-256color"}
        process = await asyncio.create_subprocess_exec(
            *self.tmux, *arguments, stdout=asyncio.subprocess.PIPE, env=environment
        )
        out, _ = await process.communicate()
        return out.decode()

    async def __aenter__(self) -> "Terminal":
        await self._run("new-session", "-d", "-x", "150", "-y", "50", self.command)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._run("kill-server")

    async def screen(self) -> str:
        return await self._run("capture-pane", "-p")


@pytest.fixture
def tmux() -> str:
    return program("tmux", "tmux")


def row(screen: str, name: str) -> list[str]:
    """The cells of a downstream's line, its name first; units are a word of their own."""
    return next((line.split() for line in screen.splitlines() if line.split()[:1] == [name]), [])


async def test_top_shows_whom_a2s_fault_holds_up_while_it_does(tmux, tmp_path):
    seed = 1
    maker = RequestMaker(A2, seed)
    faulted = maker.faulted
    assert faulted is not None
    backends = {name: Backend(name, spec, seed, {}) for name, spec in A2.downstreams.items()}
    quiet = A2.model_copy(update={"settings": {**A2.settings, "server": {"log": "off", "drain": 1}}})
    sock = listen_on("127.0.0.1", 0)
    async with App(settings_for(quiet), agents=[desk(backends)], store="off") as app:
        server = HttpServer(app, sock)
        serving = asyncio.create_task(server.serve_until_stopped())
        await until(lambda: server.started)
        backends[faulted].inject(A2.faults[0].made(), Random(f"{seed}/fault/0"))

        async def client(arrival: Arrival, due: float) -> None:
            request = maker.make(arrival.number)
            await app.start(RunRequest(request.text, budget_ms=request.budget * 1000)).result()

        loop = asyncio.get_running_loop()
        lasting = A2.load.stages[0].model_copy(update={"lasting": 30.0})
        planned = arrivals(A2.load.model_copy(update={"stages": (lasting,), "warmup": 0.0}), Random(seed))
        load_began = loop.time()
        load = asyncio.create_task(drive(planned, client, most=500, began=load_began))
        words = [sys.executable, "-c", "from failsoft.cli import main; main()", "top", "--every", "0.1", "--url"]
        try:
            async with Terminal(tmux, tmp_path / "tmux", shlex.join([*words, str(server.address)])) as terminal:
                screens: list[str] = []
                drawn: set[str] = set()
                told = ""
                while loop.time() < lasting.lasting + load_began and not (told and len(drawn) > 2):
                    await asyncio.sleep(0.1)
                    screens.append(await terminal.screen())
                    drawn |= {screens[-1].strip()} - {""}
                    cells = row(screens[-1], faulted)
                    stuck = re.search(rf" ms  {faulted}  \S{{8}}/t0  at backends\.py:\d+ \w+", screens[-1])
                    if not told and cells and int(cells[-2]) > 0 and stuck:
                        told = screens[-1]
        finally:
            load.cancel()
            await asyncio.wait([load])
            server.stop()
            await asyncio.wait_for(serving, 10)
    for backend in backends.values():
        await backend.aclose()
    assert told, screens[-1] if screens else "nothing"
    assert told.split()[:4] == ["downstream", "breaker", "in", "use"]
    assert "holds a permit, oldest first" in told
    for name in backends:
        cells = row(told, name)
        assert cells[1] in ("closed", "open", "half_open")
        assert (int(cells[2]) <= int(cells[3])) and int(cells[3]) == 8
        assert (int(cells[-2]) > 0) == (name == faulted), f"only {faulted} times out:\n{told}"
    assert len(drawn) > 2, "it is drawn anew"
