"""``failsoft serve`` as a process: it listens, answers, and ends when told to."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from tests.deep import some_of

from failsoft.cli.main import execute

pytestmark = pytest.mark.timeout(90)


def asked(address, body, path="/v1/runs"):
    request = urllib.request.Request(address + path, data=json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.parametrize(("one", "code"), some_of([(signal.SIGTERM, 0), (signal.SIGINT, 130)], each=2))
def test_serving_the_analyst_until_a_signal(sales, cache, tmp_path, one, code):
    command = [sys.executable, "-c", "from failsoft.cli import main; main()", "serve", "--json", "--port", "0"]
    settings = tmp_path / "failsoft.yaml"
    settings.write_text("run: {budget: 20s}\n")
    process = subprocess.Popen(
        [*command, "--data", str(sales)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")} | {"FAILSOFT_CACHE_DIR": str(cache)},
    )
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        if one is signal.SIGTERM:
            status, body = asked(address, {"input": "revenue per region", "budget_ms": 20_000})
            assert (status, body["status"]) == (200, "completed")
            assert "750" in body["answer"]
            with urllib.request.urlopen(f"{address}/v1/runs/{body['run_id']}/artifacts/chart.png", timeout=5) as chart:
                assert chart.headers["content-type"] == "image/png"
                assert chart.read().startswith(b"\x89PNG")
            settings.write_text("run: {budget: 21s}\n")
            process.send_signal(signal.SIGHUP)  # settings change while it runs
            until = time.monotonic() + 10
            while body["budget_ms"] != 21_000 and time.monotonic() < until:
                status, body = asked(address, {"input": "revenue per region"})
            assert (status, body["budget_ms"]) == (200, 21_000)
            status, body = asked(address, {"input": "mean profit per region"})
            assert (status, body["error"]["code"], body["error"]["param"]) == (400, "bad_question", "input")
            assert body["error"]["details"]["columns"] == {"sales": ["day", "region", "product", "revenue"]}
        process.send_signal(one)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, "Traceback" in err) == (code, False), err
    finally:
        process.kill()
        process.communicate()


def test_a_taken_port_is_one_line(capsys, sales):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert execute(["serve", "--port", str(port), "--data", str(sales)]) == 2
    err = capsys.readouterr().err.strip()
    assert err.startswith(f"error: --port: cannot listen on 127.0.0.1:{port}: ")


@pytest.mark.parametrize("arguments", [["--port", "70000"], ["--port", "x"], ["--fault", "x"], ["--data", "gone.csv"]])
def test_bad_flags_are_one_line(capsys, arguments):
    assert execute(["serve", "--port", "0", *arguments]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("error: ")
