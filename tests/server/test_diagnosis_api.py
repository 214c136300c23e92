"""What people and programs see of a running server: diagnosis, downstreams, and the commands that show them."""

import asyncio
import json
from hashlib import sha256

import pytest
from rich.console import Console
from tests.server.serving import serving, until

from failsoft.cli.main import execute
from failsoft.cli.seeing import frame

pytestmark = pytest.mark.realtime


async def command(capsys, *arguments):
    """Runs a command beside the server, in a thread."""
    code = await asyncio.to_thread(execute, list(arguments))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


async def test_a_degraded_run_says_why(capsys):
    async with serving() as served:
        _, _, body = await served.post({"input": "hang", "budget_ms": 2000})
        status, _, found = await served.get(f"/v1/runs/{body['run_id']}/diagnosis")
        assert (status, found["nature"], found["downstream"], found["limit"]) == (200, "slow", "warehouse", "run")
        assert sum(part["ms"] for part in found["spent"]) == pytest.approx(found["elapsed_ms"], abs=0.1)
        status, _, window = await served.get("/v1/diagnosis?last=1m")
        assert (status, window["statuses"], window["blamed"][0]["downstream"]) == (200, {"degraded": 1}, "warehouse")

        url = served.server.address
        code, out, _ = await command(capsys, "runs", "why", body["run_id"], "--url", url)
        assert (code, "slow: warehouse took" in out, "downstream warehouse" in out) == (0, True, True)
        code, out, _ = await command(capsys, "why", "--last", "5m", "--url", url)
        assert (code, "1 of 1 runs that fell short blame warehouse (slow)" in out) == (0, True)
        code, out, _ = await command(capsys, "why", "--json", "--url", url)
        assert (code, json.loads(out)["runs"]) == (0, 1)
        code, out, _ = await command(capsys, "runs", "list", "--url", url)
        assert (code, body["run_id"] in out) == (0, True)


async def test_what_cannot_be_diagnosed_is_told(capsys):
    async with serving() as served:
        assert (await served.get("/v1/runs/run_nowhere/diagnosis"))[0] == 404
        for bad in ("yesterday", "0", "-5s", "2000h", "nan"):
            status, _, body = await served.get(f"/v1/diagnosis?last={bad}")
            assert (status, body["error"]["param"]) == (400, "last"), bad
        url = served.server.address
        code, _, err = await command(capsys, "runs", "why", "run_nowhere", "--url", url)
        assert (code, err.startswith("error: ")) == (2, True)
    code, _, err = await command(capsys, "top", "--once", "--url", url)
    assert (code, "failsoft serve" in err, err.count("\n")) == (1, True, 1)
    assert (await command(capsys, "top", "--once", "--url", "ftp://x"))[0] == 2


async def test_top_shows_who_holds_and_who_waits_behind(capsys):
    settings = {"downstreams": {"warehouse": {"permits": 1, "queue": 5}}}
    async with serving(**settings) as served:
        asked = [asyncio.create_task(served.post({"input": "hang", "budget_ms": 3000})) for _ in range(2)]
        guard = served.app.guards["warehouse"]
        await until(lambda: guard.statistics().waiting >= 1)
        code, out, _ = await command(capsys, "top", "--once", "--url", served.server.address)
        view = (await served.get("/v1/downstreams"))[2]
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: guard.statistics().in_use == 0)
    assert code == 0
    assert "holds a permit" in out
    assert "/slow" in out
    assert "serving.py" in out
    assert "waits" in out
    (warehouse,) = [one for one in view["downstreams"] if one["name"] == "warehouse"]
    assert (warehouse["in_use"], warehouse["limit"]) == (1, 1)
    assert warehouse["waiters"][0]["priority"] == "normal"
    assert warehouse["holders"][0]["where"]


async def test_approvals_are_asked_of_the_same_server_with_the_same_key(capsys, monkeypatch):
    secret = "k" * 24
    async with serving(
        keys={"one": {"hash": f"sha256:{sha256(secret.encode()).hexdigest()}"}}, store="memory"
    ) as served:
        url = served.server.address
        code, _, err = await command(capsys, "approvals", "list", "--url", url)
        assert (code, "key" in err) == (2, True)
        monkeypatch.setenv("FAILSOFT_API_KEY", secret)
        assert await command(capsys, "approvals", "list", "--url", url) == (0, "nothing waits\n", "")
        code, _, err = await command(capsys, "approvals", "approve", "apr_nowhere", "--url", url)
        assert (code, "apr_nowhere" in err, err.count("\n")) == (2, True, 1)


def test_a_frame_takes_no_orders_from_names():
    console = Console(record=True, width=120)
    one = {
        "name": "\x1b[31mx", "breaker": "open", "in_use": 1, "limit": 1, "waiting": 0, "oldest_wait": 0.0, "orphans": 1,
        "threads": 0, "typical": 0.5, "timed_out": 3, "rejected": {"queue_full": 2}, "waiters": [],
        "holders": [{"run": "\x1b]0;own\x07", "task": None, "age_s": 12.5, "orphan": True, "where": None}],
    }  # fmt: skip
    console.print(frame({"downstreams": [one]}, 120))
    text = console.export_text(styles=False)
    assert "\x1b" not in text
    assert "ORPHAN" in text
    assert "12.50 s" in text
