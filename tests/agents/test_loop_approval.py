"""An agent that is about to do what a person has to be asked about."""

import asyncio

from tests.agents.worlds import Script, agent, app, call, calls, last_results

from failsoft.runs.result import RunRequest
from failsoft.tools.python import tool
from failsoft.tools.registry import ToolContext


def desk():
    """A tool that opens tickets when a person agrees, and the keys it was given."""
    keys = []

    @tool(kind="action", approval=True)
    async def open_ticket(title: str, context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        return f"ticket: {title}"

    return open_ticket, keys


async def waiting(running, handle):
    while handle.state != "waiting_approval":
        await handle.changed()
    page = await running.approvals.list(status="pending")
    return list(page.approvals)


async def test_it_waits_for_the_person_and_goes_on_where_it_was():
    open_ticket, keys = desk()
    looked = []

    @tool
    async def look() -> str:
        looked.append(1)
        return "broken printer"

    model = Script(calls(call("look"), call("open_ticket", title="Printer")), lambda r: f"Done: {last_results(r)[-1]}")
    async with app(model, look, open_ticket, store="memory") as running:
        handle = running.start(RunRequest("Open a ticket", budget_ms=5_000))
        (asked,) = await waiting(running, handle)
        assert asked.tool == "open_ticket"
        assert keys == []
        await asyncio.sleep(1_000)
        await running.approvals.resolve(asked.id, "approved")
        result = await handle.result()
    assert (result.status, result.answer) == ("completed", "Done: ticket: Printer")
    assert len(keys) == len(looked) == 1
    assert len(model.asked) == 2  # it was not asked again what to do


async def test_a_rejection_is_something_that_the_model_is_told():
    open_ticket, keys = desk()
    model = Script(calls(call("open_ticket", title="Printer")), lambda r: last_results(r)[0])
    async with app(model, open_ticket, store="memory") as running:
        handle = running.start(RunRequest("Open a ticket", budget_ms=5_000))
        (asked,) = await waiting(running, handle)
        await running.approvals.resolve(asked.id, "rejected", by="Ann")
        result = await handle.result()
    assert keys == []
    assert "rejected by Ann" in result.answer
    assert result.status == "degraded"


async def test_two_calls_are_asked_about_each_by_itself():
    open_ticket, keys = desk()
    model = Script(
        calls(call("open_ticket", title="One"), call("open_ticket", title="Two")), lambda r: " ".join(last_results(r))
    )
    async with app(model, open_ticket, store="memory") as running:
        handle = running.start(RunRequest("Open tickets", budget_ms=5_000))
        for status in ("approved", "rejected"):
            (asked,) = await waiting(running, handle)
            await running.approvals.resolve(asked.id, status)
            await handle.changed()
        result = await handle.result()
    assert len(keys) == 1
    assert "ticket: One" in result.answer
    assert "approval_rejected" in result.answer


async def test_a_delegate_s_actions_are_asked_about_too():
    open_ticket, keys = desk()
    clerk = agent(Script(calls(call("open_ticket", title="Printer")), "opened"), open_ticket, name="clerk")
    model = Script(calls(call("clerk", input="open it")), lambda r: last_results(r)[0])
    async with app(model, others=[clerk], delegates=("clerk",), store="memory") as running:
        handle = running.start(RunRequest("Open a ticket", budget_ms=5_000))
        (asked,) = await waiting(running, handle)
        await running.approvals.resolve(asked.id, "approved")
        result = await handle.result()
    assert result.answer == "opened"
    assert len(keys) == 1
