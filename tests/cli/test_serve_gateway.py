"""``failsoft serve --gateway`` as a process: light, quick, and ended by a signal."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.deep import some_of

from failsoft.cli.main import execute

pytestmark = pytest.mark.timeout(60)

MODELS = "models: {hi: {routes: {text: {text: 'You said: {question}'}}}}\n"
OTHER_MODELS = """models:
  hi: {routes: {text: {text: 'Now: {question}'}}}
  bye: {routes: {text: {text: 'Bye.'}}}
"""
HEAVY = ("fastapi", "starlette", "failsoft.runs", "failsoft.tools", "failsoft.app", "duckdb", "numpy", "matplotlib")


def run(
    arguments: list[str], folder: Path, code: str = "from failsoft.cli import main; main()"
) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "FAILSOFT_"))}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=env)


def models(address: str) -> list[str]:
    with urllib.request.urlopen(f"{address}/health/readiness", timeout=20) as response:
        found: list[str] = json.load(response)["models"]
    return found


@pytest.mark.parametrize(("one", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.parametrize("flag", some_of([["--gateway"], []], each=2))
def test_models_alone_are_served_until_a_signal(tmp_path, flag, one, code):
    (tmp_path / "failsoft.yaml").write_text(MODELS)
    process = run(["serve", "--json", "--port", "0", *flag], tmp_path)
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        body = {"model": "hi", "messages": [{"role": "user", "content": "secret words"}]}
        request = urllib.request.Request(f"{address}/v1/chat/completions", data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=20) as response:
            assert json.load(response)["choices"][0]["message"]["content"] == "You said: secret words"
        with urllib.request.urlopen(f"{address}/health/readiness", timeout=20) as response:
            assert json.load(response) == {"status": "ready", "models": ["hi"]}
        (tmp_path / "failsoft.yaml").write_text(OTHER_MODELS)
        process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 20
        while (found := models(address)) != ["hi", "bye"] and time.monotonic() < until:
            time.sleep(0.05)
        assert found == ["hi", "bye"]
        with urllib.request.urlopen(request, timeout=20) as response:
            assert json.load(response)["choices"][0]["message"]["content"] == "Now: secret words"
        status = Path(f"/proc/{process.pid}/status")
        if status.exists():
            rss = int(status.read_text().partition("VmRSS:")[2].split()[0])
            assert rss <= 80 * 1024
        process.send_signal(one)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, "Traceback" in err) == (code, False), err
        for line in [json.loads(one) for one in err.splitlines() if one.startswith("{")]:
            assert (line["alias"], line["route"], line["status"]) == ("hi", "text", 200)
        assert "changed: models.bye, models.hi.routes" in err
        assert "secret" not in err
    finally:
        process.kill()
        process.communicate()


def test_the_gateway_alone_loads_nothing_of_runs_or_frameworks(tmp_path):
    code = f"""
import failsoft.cli.main, failsoft.cli.gateway, failsoft.server.gateway_only, sys
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    out, err = run([], tmp_path, code).communicate(timeout=50)
    assert (out.strip(), err) == ("[]", "")


def test_a_gateway_without_models_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert execute(["serve", "--gateway", "--port", "0"]) == 2
    assert capsys.readouterr().err.strip() == "error: --gateway: the settings have no `models`"


def test_the_gateway_alone_takes_no_data(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failsoft.yaml").write_text(MODELS)
    assert execute(["serve", "--gateway", "--data", "x.csv"]) == 2
    assert "--data" in capsys.readouterr().err
