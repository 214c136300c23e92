"""Runs that outlive their clients, lists, sessions, codes for strict callers, time spent in front: over sockets."""

import asyncio
import hashlib
import json
import time
from typing import Any

import aiohttp
import pytest
from tests.server.serving import Served, events_of, serving, until

from failsoft.stores.memory import MemoryStore

pytestmark = pytest.mark.realtime

KEYS: dict[str, Any] = {
    name: {"hash": "sha256:" + hashlib.sha256(f"sk-{name}".encode()).hexdigest(), "tenant": name}
    for name in ("blue", "red")
}
BLUE, RED = {"Authorization": "Bearer sk-blue"}, {"Authorization": "Bearer sk-red"}


async def watch(served: Served, run_id: str, query: str = "", **headers: str) -> tuple[int, list[dict[str, Any]]]:
    url = f"{served.server.address}/v1/runs/{run_id}/events{query}"
    async with served.client.get(url, headers=headers) as response:
        return response.status, await events_of(response)


async def test_a_background_run_goes_on_and_is_found_watched_and_cancelled_by_its_id():
    async with serving(store="memory") as served:
        status, headers, body = await served.post({"input": "hang", "budget_ms": 700, "background": True})
        run = body["run_id"]
        assert (status, headers["location"], headers["x-run-id"]) == (202, f"/v1/runs/{run}", run)
        assert (body["background"], body["answer"]) == (True, None)
        status, events = await watch(served, run)
        assert (status, events[0]["type"], events[-1]["type"]) == (200, "RUN_STARTED", "RUN_FINISHED")
        last = events[-1]["id"]
        assert (await watch(served, run, **{"Last-Event-ID": last}))[0] == 204
        assert (await watch(served, run, f"?after={last}"))[0] == 204
        status, rest = await watch(served, run, **{"Last-Event-ID": events[0]["id"]})
        assert (status, rest) == (200, events[1:])
        _, _, view = await served.get(f"/v1/runs/{run}?values=true")
        assert (view["status"], view["tasks"][0]["value"], view["plan"]["tasks"][0]["id"]) == ("degraded", 5, "sum")

        _, _, body = await served.post({"input": "hang", "budget_ms": 60_000, "background": True})
        watching = asyncio.create_task(watch(served, body["run_id"]))
        await asyncio.sleep(0.1)
        watching.cancel()  # watching it and leaving does not end it
        await asyncio.sleep(0.1)
        assert (await served.get(f"/v1/runs/{body['run_id']}"))[2]["status"] == "dispatching"
        await served.post({}, path=f"/v1/runs/{body['run_id']}/cancel")
        await until(lambda: served.app.guards["warehouse"].statistics().in_use == 0)


@pytest.mark.parametrize("extra", [{"stream": True}, {"strict": True}, {"on_disconnect": "cancel"}])
async def test_what_makes_no_sense_in_the_background_is_refused(extra):
    async with serving(store="memory") as served:
        status, _, body = await served.post({"input": "add", "background": True, **extra})
        assert (status, body["error"]["param"]) == (400, next(iter(extra)))
        assert served.app.known_runs() == []


async def test_a_background_run_that_cannot_be_written_is_refused():
    async with serving() as served:
        status, _, body = await served.post({"input": "add", "background": True})
        assert (status, body["error"]["code"]) == (503, "store_error")


@pytest.mark.parametrize(
    ("question", "status", "kind", "code"),
    [("hang", 504, "timeout", "deadline_exceeded"), ("odd", 503, "invalid_request", "bad_input")],
)
async def test_a_strict_caller_gets_a_code_with_the_cause_and_what_there_is(question, status, kind, code):
    async with serving() as served:
        asked = {"input": question, "budget_ms": 2500, "strict": True}
        got, headers, body = await served.post(asked)
        error = body["error"]
        assert (got, error["type"], error["code"], error["run_id"]) == (status, kind, code, headers["x-run-id"])
        assert error["details"]["shortfalls"][0]["reason"] == code
        assert (body["run"]["status"], bool(body["run"]["answer"])) == ("degraded", True)
        assert (await served.post({"input": "add", "strict": True}))[0] == 200
        url = f"{served.server.address}/v1/runs"
        async with served.client.post(url, json={**asked, "stream": True}) as response:
            events = await events_of(response)
        assert (events[-1]["type"], events[-1]["result"]["status"]) == ("RUN_ERROR", "degraded")


STARTS = [
    ("{s:.3f}", 200),
    ("t={s:.3f}", 200),
    ("t={ms:.0f}", 200),
    ("{ms:.0f}", 200),
    ("t={us:.0f}", 200),
    ("{us:.0f}", 200),
    ("{later:.3f}", 200),
    ("{long:.3f}", 504),
    ("0", 504),
    ("now", 400),
    ("t=", 400),
    ("-5", 400),
    ("NaN", 400),
    ("1" * 300, 400),
]


async def test_time_spent_in_front_is_of_the_budget():
    async with serving() as served:

        async def ask(form: str, expected: int) -> None:
            now = time.time()
            start = now - 2
            text = form.format(s=start, ms=start * 1e3, us=start * 1e6, later=now + 900, long=now - 900)
            status, _, body = await served.post({"input": "hang", "budget_ms": 3000}, X_Start_Time=text)
            assert status == expected, (form, body)
            if status == 400:
                assert body["error"]["param"] == "X-Start-Time"
            elif status == 504:
                assert body["error"]["code"] == "deadline_exceeded"
            elif "later" in form:
                assert body["elapsed_ms"] > 2500
            else:
                assert time.time() - now < 2
                assert 2000 <= body["elapsed_ms"] <= 3050

        await asyncio.gather(*(ask(form, expected) for form, expected in STARTS))


async def test_lists_pages_and_sessions_are_a_tenants_own():
    async with serving(store="memory", keys=KEYS) as served:
        runs = []
        for number in range(5):
            session = {"session_id": "talk"} if number < 3 else {}
            _, _, body = await served.post({"input": f"add {number}", **session}, **BLUE)
            runs.append(body["run_id"])
        await served.post({"input": "add secret", "session_id": "talk"}, **RED)

        _, _, first = await served.get("/v1/runs?limit=2", **BLUE)
        assert [one["run_id"] for one in first["runs"]] == runs[:2:-1]
        _, _, second = await served.get(f"/v1/runs?limit=2&after={first['next']}", **BLUE)
        assert [one["run_id"] for one in second["runs"]] == runs[2:0:-1]
        _, _, last = await served.get(f"/v1/runs?limit=2&after={second['next']}", **BLUE)
        assert ([one["run_id"] for one in last["runs"]], last["next"]) == (runs[:1], None)
        assert first["runs"][0].keys() == {
            "run_id", "agent", "session_id", "status", "input", "background", "created",
        }  # fmt: skip
        _, _, some = await served.get("/v1/runs?session_id=talk&status=completed&agent=adder", **BLUE)
        assert [one["run_id"] for one in some["runs"]] == runs[2::-1]
        assert (await served.get("/v1/runs?status=failed", **BLUE))[2] == {"runs": [], "next": None}

        _, _, talk = await served.get("/v1/sessions/talk", **BLUE)
        assert [turn["input"] for turn in talk["turns"]] == ["add 0", "add 1", "add 2"]
        assert all(turn["answer"] and turn["status"] == "completed" for turn in talk["turns"])
        _, _, newest = await served.get("/v1/sessions/talk?limit=2", **BLUE)
        assert [turn["input"] for turn in newest["turns"]] == ["add 1", "add 2"]
        _, _, older = await served.get(f"/v1/sessions/talk?limit=2&before={newest['before']}", **BLUE)
        assert ([turn["input"] for turn in older["turns"]], older["before"]) == (["add 0"], None)
        _, _, theirs = await served.get("/v1/sessions/talk", **RED)
        assert [turn["input"] for turn in theirs["turns"]] == ["add secret"]

        for path in (f"/v1/runs/{runs[0]}", f"/v1/runs/{runs[0]}/events", "/v1/sessions/none", "/v1/sessions/%2e%2e"):
            status, _, body = await served.get(path, **RED)
            assert (status, body["error"]["code"]) == (404, "not_found"), path
        for query in ("limit=0", "limit=x", "limit=201", "limit=٣", "colour=red", "limit=1&limt=2"):
            status, _, body = await served.get(f"/v1/runs?{query}", **BLUE)
            assert (status, body["error"]["code"]) == (400, "bad_input"), query
        _, _, agents = await served.get("/v1/agents", **RED)
        assert [(one["name"], one["default"], one["planners"]) for one in agents["agents"]] == [
            ("adder", True, ["rules"])
        ]
        assert {one["name"] for one in agents["agents"][0]["tools"]} == {"add", "hang", "stubborn", "odd"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_keys_limits_hold_for_runs_and_its_place_is_given_back(stream):
    keys = {"blue": {**KEYS["blue"], "concurrent": 1}, "red": {**KEYS["red"], "rate": "2/h"}}
    async with serving(store="memory", keys=keys) as served:
        asked = {"input": "hang", "budget_ms": 500, "stream": stream}

        async def ask() -> int:
            async with served.client.post(f"{served.server.address}/v1/runs", json=asked, headers=BLUE) as response:
                await response.read()
                return int(response.status)

        asking = asyncio.create_task(ask())
        await until(lambda: len(served.app.runs) == 1)
        status, headers, body = await served.post(asked, **BLUE)
        assert (status, body["error"]["code"], headers["retry-after"]) == (429, "rate_limited", "1")
        assert (await served.post({"input": "add"}, **RED))[0] == 200
        assert await asking == 200
        assert (await served.post(raw=b"{", **BLUE))[0] == 400
        assert (await served.post({"input": "add"}, **BLUE))[0] == 200
        assert (await served.post({"input": "add", "background": True}, **BLUE))[0] == 202
        assert [caller.in_flight for caller in served.server.openai.ring.callers] == [0, 0]
        assert [(await served.post({"input": "add"}, **RED))[0] for _ in range(2)] == [200, 429]


async def test_figures_of_runs_can_be_scraped():
    async with serving() as served:
        await served.post({"input": "add"})
        for _ in range(2):
            await served.post({"input": "hang", "budget_ms": 1300})
        async with served.client.get(f"{served.server.address}/metrics") as response:
            page = await response.text()
        assert 'failsoft_runs_ended_total{agent="adder",status="degraded"} 2' in page
        assert "failsoft_runs_running 0" in page


class Failing(MemoryStore):
    """Cannot be read."""

    async def list_runs(self, **wanted: Any):
        raise OSError("disk")

    async def load_run(self, run: str, **wanted: Any):
        raise OSError("disk")


async def test_a_store_that_fails_is_a_503_and_never_a_500():
    async with serving(store=Failing()) as served:
        _, _, body = await served.post({"input": "add"})
        assert (await served.get(f"/v1/runs/{body['run_id']}"))[0] == 200  # memory knows it
        for path in ("/v1/runs", "/v1/sessions/x", "/v1/runs/run_x", "/v1/runs/run_x/events"):
            status, _, told = await served.get(path)
            assert (status, told["error"]["code"]) == (503, "store_error"), path


async def test_a_run_of_another_process_is_seen_followed_and_cancelled():
    store = MemoryStore()
    async with serving(store=store) as one, serving(store=store) as two:
        _, _, body = await one.post({"input": "hang", "budget_ms": 30_000, "background": True})
        run = body["run_id"]
        following = asyncio.create_task(watch(two, run))
        await until(lambda: len(store._rows[run].events) > 3)
        status, _, view = await two.get(f"/v1/runs/{run}")
        assert (status, view["status"], [task["id"] for task in view["tasks"]]) == (200, "dispatching", ["sum", "slow"])
        status, _, view = await two.post({}, path=f"/v1/runs/{run}/cancel")
        assert (status, view["status"], view["error"]["code"]) == (200, "cancelled", "run_cancelled")
        status, events = await following
        assert (status, events[0]["type"], events[-1]["type"]) == (200, "RUN_STARTED", "RUN_ERROR")
        assert (await two.post({}, path=f"/v1/runs/{run}/cancel"))[2] == view
        one.app.run(run).cancel()


async def test_a_client_that_does_not_read_is_cut_off_and_costs_no_memory():
    """Case 48."""
    async with serving(server={"drain": 1, "write_timeout": 0.3, "heartbeat": 0.05}) as served:
        body = json.dumps({"input": "hang", "stream": True, "budget_ms": 30_000, "on_disconnect": "continue"}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
        writer.transport.pause_reading()
        writer.write(b"POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: len(served.app.runs) == 1)
        run = next(iter(served.app._active.values()))
        for _ in range(400):
            run.emit("text.delta", None, {"text": "x" * 60_000})
            await asyncio.sleep(0.002)
        server = served.server.server_state
        await until(lambda: not server.connections, 10)
        assert not run.cell.terminal
        run.task.cancel()
        writer.close()
        del reader


async def test_events_are_not_buffered_on_their_way():
    async with serving(store="memory") as served:
        _, _, body = await served.post({"input": "add"})
        async with served.client.get(f"{served.server.address}/v1/runs/{body['run_id']}/events") as response:
            assert response.headers["cache-control"] == "no-cache, no-transform"
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["x-run-id"] == body["run_id"]
            assert response.headers["x-request-id"].startswith("req_")
            assert (await response.content.readline()) == b"retry: 1000\n"
        with pytest.raises(aiohttp.ClientError):
            async with served.client.post(f"{served.server.address}/v1/runs/{body['run_id']}/events") as response:
                response.raise_for_status()


async def test_when_nearly_all_clients_leave_at_once_nothing_of_them_is_left():
    """Case 56, with fewer clients."""
    async with serving(store="memory") as served:
        asked = b'{"input": "hang", "budget_ms": 30000, "stream": %s}'
        said = b"POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
        _, _, body = await served.post({"input": "hang", "budget_ms": 30_000, "background": True})
        watch = b"GET /v1/runs/%s/events HTTP/1.1\r\nhost: x\r\n\r\n" % body["run_id"].encode()
        clients = []
        for number in range(150):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            raw = asked % (b"true" if number % 3 else b"false")
            writer.write(watch if number % 2 else said % (len(raw), raw))
            clients.append((reader, writer))
        await until(lambda: len(served.app.runs) == 76)
        for _, writer in clients[:140]:
            writer.transport.abort()
        await until(lambda: len(served.app.runs) <= 6, 2)
        for run in served.app.runs:
            assert run.wrap_up("shutting_down") or run.cancel()

        async def last(reader: asyncio.StreamReader) -> bytes:
            seen = b""
            while not any(end in seen for end in (b"RUN_FINISHED", b"RUN_ERROR", b'"status":"degraded"')):
                piece = await reader.read(65_536)
                assert piece
                seen += piece
            return seen

        told = await asyncio.gather(*(last(reader) for reader, _ in clients[140:]))
        assert len(told) == 10
        for _, writer in clients[140:]:
            writer.close()
        await until(lambda: served.app.guards["warehouse"].statistics().in_use == 0)
        await until(lambda: len(served.server.server_state.connections) <= 1)
        assert (served.app.runs, len(served.server.openai.calls)) == ([], 0)
