"""An agent that is about to do what a person has to be asked about."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.agents.worlds import Script, agent, app, call, calls, last_results
from tests.runs.outliving import LastingStore, Line, wall

from failsoft.app import App
from failsoft.base.clock import Sources
from failsoft.config import Settings
from failsoft.runs.durable import DurableLimits
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


# --- restarts and ends ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def lasting(store, model, *tools, expires=600.0, dies=False):
    """A process over a store that outlives it; `dies`: nothing more of it reaches the store after the block."""
    line = Line(store)
    one = App(
        agents=[agent(model, *tools, name="main")],
        settings=Settings(agent="main"),
        store=line,
        sources=Sources(wall=wall),
        durable=DurableLimits(approval_expires=expires),
    )
    async with one:
        yield one
        line.dead = dies


async def taken_over(running, run_id):
    while running.run(run_id) is None:  # noqa: ASYNC110 - whenever it is taken over
        await asyncio.sleep(0.1)
    return await running.run(run_id).result()


def two_tickets():
    """A model that opens one ticket, then another, then says what it was told, however often it is asked anew."""

    def line(request):
        told = [message["content"] for message in request.messages if message["role"] == "tool"]
        return calls(call("open_ticket", title=f"T{len(told)}")) if len(told) < 2 else " ".join(told)

    return Script(line)


@pytest.mark.parametrize("ending", ["approved", "rejected", "expired"])
async def test_a_restart_while_it_waits_repeats_nothing_that_was_done(ending):
    store, made = LastingStore(), []

    @tool(kind="action", approval=True)
    async def open_ticket(title: str, context: ToolContext) -> str:
        made.append((title, context.idempotency_key))
        return f"ticket: {title}"

    async with lasting(store, two_tickets(), open_ticket, dies=True) as running:
        handle = running.start(RunRequest("Open two tickets", budget_ms=5_000))
        (first,) = await waiting(running, handle)
        await running.approvals.resolve(first.id, "approved")
        await handle.changed()
        (second,) = await waiting(running, handle)
        assert [title for title, _ in made] == ["T0"]
    async with lasting(store, two_tickets(), open_ticket) as running:
        await asyncio.sleep(60)
        assert [title for title, _ in made] == ["T0"]
        assert [one.id for one in (await running.approvals.list(status="pending")).approvals] == [second.id]
        if ending != "expired":
            await running.approvals.resolve(second.id, ending)
        result = await taken_over(running, handle.run_id)
        assert (await running.approvals.get(second.id)).status == ending
    assert [title for title, _ in made] == (["T0", "T1"] if ending == "approved" else ["T0"])
    assert len({key for _, key in made}) == len(made)
    assert "ticket: T0" in result.answer
    if ending == "approved":
        assert (result.status, "ticket: T1" in result.answer) == ("completed", True)
    else:
        status = "expired" if ending == "expired" else "degraded"
        assert (result.status, f"approval_{ending}" in result.answer) == (status, True)


async def test_an_approval_that_expires_in_a_loop_is_something_that_the_model_is_told():
    open_ticket, keys = desk()
    model = Script(calls(call("open_ticket", title="Printer")), lambda r: f"Not opened: {last_results(r)[0]}")
    async with lasting(LastingStore(), model, open_ticket) as running:
        handle = running.start(RunRequest("Open a ticket", budget_ms=5_000))
        (asked,) = await waiting(running, handle)
        result = await handle.result()
        assert asyncio.get_running_loop().time() == 600
        assert (await running.approvals.get(asked.id)).status == "expired"
    assert (result.status, keys) == ("expired", [])
    assert "Not opened" in result.answer
    assert "approval_expired" in result.answer
    assert result.error.code == "approval_expired"
    assert [(one.reason, one.kind) for one in result.shortfalls] == [("approval_expired", "truncated")]
    assert result.tasks[0].outcome.provenance.tried[0].code == "approval_expired"
    assert result.to_dict()["status"] == "expired"
    assert len(model.asked) == 2


@pytest.mark.parametrize(("said", "status"), [("approved", "completed"), ("rejected", "degraded")])
async def test_what_expired_and_was_decided_when_the_loop_asked_anew_was_decided(said, status):
    open_ticket, keys = desk()
    wanted = calls(call("open_ticket", title="Printer"))
    model = Script(wanted, wanted, lambda r: last_results(r)[0])
    async with lasting(LastingStore(), model, open_ticket) as running:
        handle = running.start(RunRequest("Open a ticket", budget_ms=5_000))
        (first,) = await waiting(running, handle)
        await asyncio.sleep(601)
        (second,) = await waiting(running, handle)
        assert second.id != first.id
        await running.approvals.resolve(second.id, said)
        result = await handle.result()
    assert (result.status, len(keys)) == (status, 1 if said == "approved" else 0)


async def test_a_delegate_s_action_that_nobody_decided_is_told_of_the_run():
    open_ticket, keys = desk()
    clerk = agent(Script(calls(call("open_ticket", title="Printer")), "not opened"), open_ticket, name="clerk")
    model = Script(calls(call("clerk", input="open it")), lambda r: last_results(r)[0])
    async with app(model, others=[clerk], delegates=("clerk",), store="memory") as running:
        handle = running.start(RunRequest("Open a ticket", budget_ms=5_000))
        await waiting(running, handle)
        result = await handle.result()
    assert (result.status, keys) == ("expired", [])
    assert "not opened" in result.answer


async def test_a_loop_that_thinks_otherwise_after_a_restart_leaves_no_question_open():
    store = LastingStore()
    open_ticket, keys = desk()
    async with lasting(store, Script(calls(call("open_ticket", title="Printer"))), open_ticket, dies=True) as running:
        handle = running.start(RunRequest("Open a ticket", budget_ms=5_000))
        (asked,) = await waiting(running, handle)
        await store.resolve_approval(asked.id, "approved", at=asked.created + 1)
    async with lasting(store, Script("There is one already."), open_ticket) as running:
        result = await taken_over(running, handle.run_id)
        assert list((await running.approvals.list(status="pending")).approvals) == []
    assert (result.status, result.answer, keys) == ("completed", "There is one already.", [])


async def test_an_action_whose_end_was_not_written_is_not_done_again_unasked():
    """The process dies in the middle of the action: a person is asked whether it may be done again."""
    store, made = LastingStore(), []
    begun = asyncio.Event()

    @tool(kind="action")
    async def open_ticket(title: str, context: ToolContext) -> str:
        made.append(context.idempotency_key)
        begun.set()
        if len(made) == 1:
            await asyncio.sleep(1_000)
        return f"ticket: {title}"

    wanted = calls(call("open_ticket", title="Printer"))
    async with lasting(store, Script(wanted), open_ticket, dies=True) as running:
        handle = running.start(RunRequest("Open a ticket", background=True))
        await begun.wait()
        await asyncio.sleep(0.5)
    async with lasting(store, Script(wanted, lambda r: last_results(r)[0]), open_ticket) as running:
        while not (found := list((await running.approvals.list(status="pending")).approvals)):  # noqa: ASYNC110 - whenever it is asked
            await asyncio.sleep(0.5)
        assert (found[0].reason, len(made)) == ("unknown_outcome", 1)
        await running.approvals.resolve(found[0].id, "approved")
        result = await taken_over(running, handle.run_id)
    assert result.answer == "ticket: Printer"
    assert made[0] == made[1]
