"""The tickets: a person is asked first, and whatever happens there is one ticket at most."""

import asyncio
import contextlib

import pytest
from tests.agents.worlds import Script, call, calls, last_results
from tests.runs.outliving import LastingStore, Line, wall

from failsoft.app import App
from failsoft.base.clock import Sources
from failsoft.cli.ask import exit_code
from failsoft.config import Settings
from failsoft.examples.tickets.agent import NAME, make_tickets, tickets
from failsoft.examples.tickets.desk import TicketDesk
from failsoft.runs.durable import DurableLimits
from failsoft.runs.planner import PlanRequest
from failsoft.runs.result import RunRequest
from failsoft.runs.state import RunState

QUESTION = "Open a ticket: the printer on floor 2 is broken (high)"


@contextlib.asynccontextmanager
async def running(desk, store, model=None, *, dies=False, expires=3600.0):
    line = Line(store)
    app = App(
        Settings(agent=NAME),
        agents=[make_tickets(desk, model)],
        store=line,
        sources=Sources(wall=wall),
        durable=DurableLimits(approval_expires=expires),
    )
    async with app:
        yield app
        line.dead = dies


async def there(desk):
    return await asyncio.to_thread(desk.all)


async def asked(app):
    (one,) = (await app.approvals.list(status="pending")).approvals
    return one


async def result_of(app, run):
    while (handle := app.run(run)) is None:  # noqa: ASYNC110 - whenever it is taken over
        await asyncio.sleep(0.1)
    return await handle.result()


async def test_an_approved_ticket_is_opened_once(tmp_path):
    desk = TicketDesk(tmp_path / "tickets.json")
    await asyncio.to_thread(desk.create, "The old printer is broken", "low", "before")
    async with running(desk, LastingStore()) as app:
        handle = app.start(RunRequest(QUESTION, budget_ms=8_000))
        assert await handle.settled() is None
        assert len(await there(desk)) == 1
        waits = await asked(app)
        assert waits.arguments == {"title": "the printer on floor 2 is broken", "priority": "high"}
        await app.approvals.resolve(waits.id, "approved", by="ann")
        result = await handle.result()
    assert result.status == "completed"
    assert result.answer == (
        "Ticket #2 is open: the printer on floor 2 is broken (high).\nThere are:\n- #1 The old printer is broken (low)"
    )
    assert [ticket.number for ticket in await there(desk)] == [1, 2]


async def test_a_rejected_ticket_is_not_opened(tmp_path):
    desk = TicketDesk(tmp_path / "tickets.json")
    async with running(desk, LastingStore()) as app:
        handle = app.start(RunRequest(QUESTION))
        await handle.settled()
        await app.approvals.resolve((await asked(app)).id, "rejected")
        result = await handle.result()
    assert result.status == "degraded"
    assert result.answer.startswith("No ticket was opened.")
    assert result.shortfalls[0].reason == "approval_rejected"
    assert await there(desk) == []


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("model", [False, True])
async def test_when_nobody_answers_it_expires(tmp_path, model, restarted):
    """The same by rules and in a loop, with a restart in between or not."""
    desk, store = TicketDesk(tmp_path / "tickets.json"), LastingStore()

    def script():
        wanted = calls(call("create_ticket", title="Printer"))
        return Script(wanted, lambda r: f"Not opened: {last_results(r)[0]}") if model else None

    async with running(desk, store, script(), expires=600, dies=restarted) as app:
        handle = app.start(RunRequest("The printer does not print any more." if model else QUESTION))
        await handle.settled()
        waits = await asked(app)
        if not restarted:
            result = await handle.result()
    if restarted:
        async with running(desk, store, script(), expires=600) as app:
            result = await result_of(app, handle.run_id)
            assert (await app.approvals.get(waits.id)).status == "expired"
    assert result.status is RunState.EXPIRED
    assert result.error.code == result.shortfalls[0].reason == "approval_expired"
    assert result.answer.startswith("Not opened" if model else "No ticket was opened.")
    assert exit_code(result) == 1  # not 2: nobody asked anything wrong
    assert await there(desk) == []


@pytest.mark.parametrize("model", [False, True])
async def test_a_restart_in_between_changes_nothing(tmp_path, model):
    desk, store = TicketDesk(tmp_path / "tickets.json"), LastingStore()

    def script():
        wanted = calls(call("create_ticket", title="Printer"))
        return Script(wanted, lambda r: last_results(r)[0]) if model else None

    question = "The printer does not print any more." if model else QUESTION
    async with running(desk, store, script(), dies=True) as app:
        handle = app.start(RunRequest(question))
        await handle.settled()
        waits = await asked(app)
    async with running(desk, store, script()) as app:
        await asyncio.sleep(60)
        assert (await asked(app)).id == waits.id
        await app.approvals.resolve(waits.id, "approved")
        result = await result_of(app, handle.run_id)
    assert result.status == "completed"
    assert len(await there(desk)) == 1
    assert (await there(desk))[0].key.startswith(handle.run_id)


async def test_the_far_side_did_the_work_and_the_answer_was_lost(tmp_path):
    """Case 28."""
    desk, store = TicketDesk(tmp_path / "tickets.json"), LastingStore()
    create = desk.create
    lost = []

    def once_lost(title, priority, key):
        made = create(title, priority, key)
        if not lost:
            lost.append(key)
            raise ConnectionError("the answer was lost")
        return made

    desk.create = once_lost
    async with running(desk, store) as app:
        handle = app.start(RunRequest(QUESTION))
        await handle.settled()
        await app.approvals.resolve((await asked(app)).id, "approved")
        result = await handle.result()
        assert result.status == "degraded"
        assert len(lost) == 1  # an action is not repeated by itself
    assert (await asyncio.to_thread(desk.create, "again", "low", lost[0])).number == 1
    assert len(await there(desk)) == 1


async def test_a_model_opens_what_the_rules_do_not_understand(tmp_path):
    desk = TicketDesk(tmp_path / "tickets.json")
    model = Script(
        calls(call("find_tickets", text="printer")),
        calls(call("create_ticket", title="Printer", priority="high")),
        "I opened a ticket for the printer.",
    )
    async with running(desk, LastingStore(), model) as app:
        handle = app.start(RunRequest("My printer is on fire, do something"))
        await handle.settled()
        await app.approvals.resolve((await asked(app)).id, "approved")
        result = await handle.result()
    assert (result.status, result.answer) == ("completed", "I opened a ticket for the printer.")
    assert [(one.title, one.priority) for one in await there(desk)] == [("Printer", "high")]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("open a ticket: no water", {"title": "no water", "priority": "normal"}),
        ("Please create a ticket for the lift, low priority.", {"title": "the lift", "priority": "low"}),
        ("新建工单：二楼打印机坏了（高优先级）", {"title": "二楼打印机坏了", "priority": "high"}),
        ("Find tickets about the printer?", {"text": "the printer"}),
        ("查找关于打印机的工单", {"text": "打印机"}),
    ],
)
async def test_the_rules_understand(text, arguments, tmp_path):
    agent = make_tickets(TicketDesk(tmp_path / "t.json"))
    language = "zh" if not text.isascii() else "en"
    plan = await agent.planners[0].plan(PlanRequest(text, language=language), agent.tools, None)
    assert plan.tasks[-1].arguments == arguments


def test_one_key_is_one_ticket_for_two_desks_over_a_file(tmp_path):
    one, other = TicketDesk(tmp_path / "t.json"), TicketDesk(tmp_path / "t.json")
    assert one.create("a", "low", "k") == other.create("b", "high", "k")
    assert other.create("c", "low", "l").number == 2
    assert [ticket.title for ticket in one.find("c ticket")] == []


def test_the_agent_is_loaded_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TICKETS_FILE", str(tmp_path / "t.json"))
    assert tickets().name == NAME
