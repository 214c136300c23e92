"""Approvals over HTTP: asked, seen by their own tenant only, answered once, and the run goes on."""

import asyncio
import hashlib
from typing import Any

import pytest
from tests.runs.worlds import agent, plan, task
from tests.server.serving import events_of, serving, until

from failsoft.tools.python import tool

pytestmark = pytest.mark.realtime

KEYS: dict[str, Any] = {
    name: {"hash": "sha256:" + hashlib.sha256(f"sk-{name}".encode()).hexdigest(), "tenant": name}
    for name in ("blue", "red")
}
BLUE, RED = {"Authorization": "Bearer sk-blue"}, {"Authorization": "Bearer sk-red"}
PAID: list[int] = []


@tool(downstream="bank", kind="action", approval=True)
async def pay(amount: int) -> str:
    """Pays."""
    PAID.append(amount)
    return f"paid {amount}"


def payer() -> Any:
    spec = task("pay", "pay").model_copy(update={"arguments": {"amount": 7}})
    return agent(plan(spec), tools=[pay], name="payer")


@pytest.mark.parametrize(("answer", "status", "paid"), [("approved", "completed", [7]), ("rejected", "degraded", [])])
async def test_a_waiting_client_gets_202_and_the_run_goes_on_after_the_answer(answer, status, paid):
    PAID.clear()
    async with serving(store="memory", agents=[payer()], keys=KEYS) as served:
        code, headers, body = await served.post({"input": "q", "agent": "payer", "budget_ms": 3000}, **BLUE)
        run = body["run_id"]
        assert (code, body["status"], headers["location"]) == (202, "waiting_approval", f"/v1/runs/{run}")
        _, _, page = await served.get("/v1/approvals?status=pending", **BLUE)
        (asked,) = page["approvals"]
        assert (asked["run_id"], asked["tool"], asked["arguments"]) == (run, "pay", {"amount": 7})

        where = f"/v1/approvals/{asked['id']}"
        assert (await served.get("/v1/approvals", **RED))[2] == {"approvals": [], "next": None}
        assert (await served.get(where, **RED))[0] == 404
        assert (await served.post({"status": "approved"}, path=f"{where}/resolve", **RED))[0] == 404
        assert (await served.get("/v1/approvals"))[0] == 401

        async with served.client.get(f"{served.server.address}/v1/runs/{run}/events", headers=BLUE) as response:
            watching = asyncio.create_task(events_of(response))
            told = {"status": answer, "by": "ann", "note": "checked"}
            code, _, resolved = await served.post(told, path=f"{where}/resolve", **BLUE)
            assert (code, resolved["status"], resolved["by"]) == (200, answer, "ann")
            code, _, again = await served.post({"status": answer}, path=f"{where}/resolve", **BLUE)
            assert (code, again) == (200, resolved)
            other = {"approved": "rejected", "rejected": "approved"}[answer]
            code, _, conflict = await served.post({"status": other}, path=f"{where}/resolve", **BLUE)
            assert (code, conflict["error"]["code"]) == (409, "approval_conflict")
            events = await watching
        names = [event["name"] for event in events if event["type"] == "CUSTOM"]
        assert names.index("waiting_approval") < names.index("approval.resolved")
        assert events[-1]["result"]["status"] == status
        assert paid == PAID


async def test_a_streaming_client_that_leaves_a_waiting_run_does_not_end_it():
    PAID.clear()
    async with serving(store="memory", agents=[payer()]) as served:
        body = {"input": "q", "agent": "payer", "stream": True}
        async with served.client.post(f"{served.server.address}/v1/runs", json=body) as response:
            async for line in response.content:
                if b"waiting_approval" in line:
                    break
        await asyncio.sleep(0.1)
        _, _, page = await served.get("/v1/approvals")
        (asked,) = page["approvals"]
        await served.post({"status": "approved"}, path=f"/v1/approvals/{asked['id']}/resolve")
        await until(lambda: PAID == [7])


async def test_streams_of_runs_that_wait_for_a_person_do_not_hold_up_the_end():
    async with serving(store="memory", agents=[payer()], server={"drain": 0.1}) as served:
        body = {"input": "q", "agent": "payer", "stream": True}
        async with served.client.post(f"{served.server.address}/v1/runs", json=body) as response:
            async for line in response.content:
                if b"waiting_approval" in line:
                    break
            began = asyncio.get_running_loop().time()
            served.server.stop()
            rest = await response.content.read()
            assert asyncio.get_running_loop().time() - began < 3
        assert b"RUN_" not in rest


async def test_a_chat_with_an_agent_that_waits_says_so():
    async with serving(store="memory", agents=[payer()]) as served:
        said = {"model": "payer", "messages": [{"role": "user", "content": "q"}]}
        status, _, body = await served.post(said, path="/v1/chat/completions")
        assert (status, body["failsoft"]["status"]) == (200, "waiting_approval")
        run = body["failsoft"]["run_id"]
        assert run in body["choices"][0]["message"]["content"]
        code, _, view = await served.post({}, path=f"/v1/runs/{run}/cancel")
        assert (code, view["status"]) == (200, "cancelled")


BAD = [
    (b"", "body"), (b"{", "body"), (b"{}", "status"), (b'{"status": "maybe"}', "status"), (b'{"status": 1}', "status"),
    (b'{"status": "approved", "x": 1}', "x"), (b'{"status": "approved", "note": 7}', "note"),
]  # fmt: skip


async def test_what_is_no_answer_is_refused_by_field():
    async with serving(store="memory") as served:
        for raw, param in BAD:
            status, _, body = await served.post(raw=raw, path="/v1/approvals/apr_x/resolve")
            assert (status, body["error"]["param"]) == (400, param), raw
        assert (await served.post({"status": "approved"}, path="/v1/approvals/apr_x/resolve"))[0] == 404
        assert (await served.get("/v1/approvals/apr_x"))[0] == 404
        assert (await served.get("/v1/approvals?status=odd"))[0] == 400
    async with serving() as served:
        assert (await served.get("/v1/approvals"))[0] == 503
