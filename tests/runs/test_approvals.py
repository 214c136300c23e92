"""A person is asked before a task acts; each answer is a state of its own, bound to its arguments, and survives."""

import asyncio

import pytest
from tests.runs.outliving import LastingStore, process
from tests.runs.worlds import app, plan, task

from failsoft.base.errors import ApprovalConflict, BadInput, NotFound
from failsoft.runs.durable import DurableLimits
from failsoft.runs.limits import RunLimits
from failsoft.runs.result import RunRequest
from failsoft.runs.run import Run
from failsoft.runs.state import RunState
from failsoft.testing.cancellation import cancel_at_every_await
from failsoft.tools.python import tool
from failsoft.tools.registry import Alternate, ToolContext

PAID: list[tuple[int, str | None]] = []


@pytest.fixture(autouse=True)
def _nothing_paid():
    PAID.clear()


@tool(downstream="bank", kind="action", approval=True)
async def pay(amount: int, context: ToolContext) -> str:
    """Pays."""
    PAID.append((amount, context.idempotency_key))
    return f"paid {amount}"


@tool(downstream="bank", kind="action", approval=lambda arguments: arguments["amount"] > 100)
async def pay_some(amount: int, context: ToolContext) -> str:
    """Pays; asks for large sums only."""
    PAID.append((amount, context.idempotency_key))
    return f"paid {amount}"


TOOLS = [pay, pay_some]


def paying(amount: int = 5, name: str = "pay", tool: str = "pay", **options):
    return task(name, tool, **options).model_copy(update={"arguments": {"amount": amount}})


async def pending(app):
    return list((await app.approvals.list(status="pending")).approvals)


async def test_a_run_waits_for_a_person_and_goes_on_when_it_is_approved():
    what = plan(task("look", seconds=2), paying(needs=["look"]), task("tell", needs=["pay"], seconds=1))
    async with app(what, tools=TOOLS, store="memory") as one:
        loop = asyncio.get_running_loop()
        handle = one.start(RunRequest("q", budget_ms=8000))
        assert await handle.settled() is None
        assert (loop.time(), handle.state, PAID) == (2.0, RunState.WAITING_APPROVAL, [])
        (asked,) = await pending(one)
        assert (asked.run, asked.task, asked.tool, asked.arguments) == (handle.run_id, "pay", "pay", {"amount": 5})
        assert (asked.reason, asked.agent, asked.expires - asked.created) == ("tool", "tester", 86_400.0)
        await asyncio.sleep(5000)
        assert (handle.state, PAID) == (RunState.WAITING_APPROVAL, [])
        resolved = await one.approvals.resolve(asked.id, "approved", by="ann", note="fine")
        assert (resolved.status, resolved.by) == ("approved", "ann")
        result = await handle.result()
        assert (result.status, PAID) == (RunState.COMPLETED, [(5, f"{handle.run_id}:pay")])
        assert result.elapsed == 3.0
        assert result.stages["waiting"] == 5000.0
        assert [one.value for one in result.tasks] == ["done", "paid 5", "done"]
        assert (result.task("look").started, result.task("look").ended) == (0.0, 2.0)
        kinds = [event.kind async for event in handle.events()]
        assert kinds.count("run.waiting_approval") == kinds.count("approval.resolved") == 1
        assert kinds.count("task.finished") == 3
        assert kinds[-1] == "run.completed"


async def test_a_rejected_action_is_not_done_and_the_answer_says_so():
    what = plan(task("look"), paying(), task("tell", needs=["pay"]))
    async with app(what, tools=TOOLS, store="memory") as one:
        handle = one.start(RunRequest("q"))
        await handle.settled()
        (asked,) = await pending(one)
        await one.approvals.resolve(asked.id, "rejected", by="bob", note="too much")
        result = await handle.result()
        assert (result.status, PAID) == (RunState.DEGRADED, [])
        outcome = result.task("pay").outcome
        assert outcome is not None
        assert outcome.provenance.reason == "approval_rejected"
        assert result.task("tell").status == "skipped"
        assert "a person said no" in (result.answer or "")
        with pytest.raises(ApprovalConflict):
            await one.approvals.resolve(asked.id, "approved")


async def test_an_approval_that_expires_is_expired_and_not_rejected():
    """Case 53."""
    limits = DurableLimits(approval_expires=600)
    async with process(LastingStore(), what=plan(task("look", value=7), paying()), tools=TOOLS, durable=limits) as one:
        handle = one.start()
        await handle.settled()
        (asked,) = await pending(one.app)
        result = await handle.result()
        assert asyncio.get_running_loop().time() == 600
        assert (result.status, PAID) == (RunState.EXPIRED, [])
        assert result.error is not None
        assert (result.error.code, result.error.status) == ("approval_expired", 410)
        assert result.task("look").value == 7
        assert result.task("pay").outcome.provenance.reason == "approval_expired"
        assert (await one.app.approvals.get(asked.id)).status == "expired"
        with pytest.raises(ApprovalConflict) as caught:
            await one.app.approvals.resolve(asked.id, "approved")
        assert caught.value.details["status"] == "expired"
        stored = await one.line.store.load_run(handle.run_id)
        assert stored.terminal == "expired"


@pytest.mark.parametrize("said", ["approved", "rejected"])
async def test_what_was_never_decided_is_told_of_the_run_whatever_else_was(said):
    """Not only when the one that expires is the last that is waited for."""
    what = plan(paying(1, "one"), paying(2, "two"))
    limits = DurableLimits(approval_expires=600)
    async with process(LastingStore(), what=what, tools=TOOLS, durable=limits) as one:
        handle = one.start()
        await handle.settled()
        asked = {record.task: record for record in await pending(one.app)}
        await one.app.approvals.resolve(asked["one"].id, said)
        result = await handle.result()
        assert result.status is RunState.EXPIRED
        assert result.task("two").outcome.provenance.reason == "approval_expired"
        assert ([(1, f"{handle.run_id}:one")] if said == "approved" else []) == PAID


async def test_what_expires_for_something_optional_leaves_the_rest():
    what = plan(task("look"), paying(essential=False))
    limits = DurableLimits(approval_expires=600)
    async with process(LastingStore(), what=what, tools=TOOLS, durable=limits) as one:
        result = await one.start().result()
        assert (result.status, result.task("pay").outcome.provenance.reason) == (RunState.DEGRADED, "approval_expired")


async def test_two_approvals_in_one_run_each_reach_their_own_call():
    """Case 53."""
    what = plan(paying(1, "one"), paying(2, "two"), task("tell", needs=["one", "two"], tolerates_missing=True))
    async with app(what, tools=TOOLS, store="memory") as one:
        handle = one.start(RunRequest("q"))
        await handle.settled()
        asked = {record.task: record for record in await pending(one)}
        assert asked.keys() == {"one", "two"}
        await one.approvals.resolve(asked["two"].id, "approved")
        await asyncio.sleep(1)
        assert (PAID, handle.state) == ([(2, f"{handle.run_id}:two")], RunState.WAITING_APPROVAL)
        await one.approvals.resolve(asked["one"].id, "rejected")
        result = await handle.result()
        assert len(PAID) == 1
        assert result.status is RunState.DEGRADED
        assert (result.task("one").status, result.task("two").value) == ("failed", "paid 2")


def paying_each(*amounts, tool="pay", **options):
    made = paying(0, "each", tool, map={"over": list(amounts)}, **options)
    return plan(made.model_copy(update={"arguments": {"amount": {"$item": ""}}}), task("look", seconds=1))


async def of_the_list(app):
    """What waits, in the order of the items: asked at one instant of virtual time, they have no other."""
    return sorted(await pending(app), key=lambda need: need.task)


async def test_the_items_of_a_list_are_asked_about_together_and_each_is_done_once():
    async with app(paying_each(5, 6, 7), tools=TOOLS, store="memory") as one:
        handle = one.start(RunRequest("q"))
        await handle.settled()
        asked = await of_the_list(one)
        assert [(need.task, need.arguments["amount"]) for need in asked] == [
            ("each[0]", 5),
            ("each[1]", 6),
            ("each[2]", 7),
        ]
        for need, said in zip(asked, ["approved", "rejected", "approved"], strict=True):
            assert PAID == []  # nothing of it begins before all of it is answered
            await asyncio.sleep(1000)
            await one.approvals.resolve(need.id, said)
            await asyncio.sleep(0)
        result = await handle.result()
        assert [(5, f"{handle.run_id}:each[0]"), (7, f"{handle.run_id}:each[2]")] == PAID
        assert (result.status, result.task("each").value) == ("degraded", ["paid 5", None, "paid 7"])
        assert result.task("each").outcome.provenance.reason == "approval_rejected"
        assert result.elapsed == 1.0


async def test_items_that_need_nobody_wait_for_those_that_do():
    async with app(paying_each(5, 600, tool="pay_some"), tools=TOOLS, store="memory") as one:
        handle = one.start(RunRequest("q"))
        await handle.settled()
        (asked,) = await pending(one)
        assert (asked.task, asked.arguments, PAID) == ("each[1]", {"amount": 600}, [])
        await one.approvals.resolve(asked.id, "approved")
        result = await handle.result()
        assert (result.status, result.task("each").value) == ("completed", ["paid 5", "paid 600"])


@pytest.mark.parametrize("answered", [0, 1])
async def test_items_that_nobody_answered_end_the_run_only_when_no_item_was_answered(answered):
    limits = DurableLimits(approval_expires=600)
    async with process(LastingStore(), what=paying_each(5, 6), tools=TOOLS, durable=limits) as one:
        handle = one.start()
        await handle.settled()
        for need in (await of_the_list(one.app))[:answered]:
            await one.app.approvals.resolve(need.id, "approved")
        result = await handle.result()
        assert [amount for amount, _ in PAID] == [5][:answered]
        if answered:
            assert (result.status, result.task("each").value) == ("degraded", ["paid 5", None])
            assert result.task("each").outcome.provenance.reason == "approval_expired"
        else:
            assert result.status is RunState.EXPIRED


async def test_a_list_that_waits_survives_its_process():
    store = LastingStore()
    async with process(store, what=paying_each(5, 6), tools=TOOLS, dies=True) as first:
        handle = first.start()
        await handle.settled()
        one, two = await of_the_list(first.app)
        await first.app.approvals.resolve(one.id, "approved")
        await asyncio.sleep(5)
        first.line.dead = True
    async with process(store, what=paying_each(5, 6), tools=TOOLS) as second:
        await asyncio.sleep(60)
        assert ([need.id for need in await pending(second.app)], PAID) == ([two.id], [])
        await second.app.approvals.resolve(two.id, "approved")
        assert (await second.result(handle.run_id)).status == "completed"
    assert [amount for amount, _ in PAID] == [5, 6]


async def test_only_what_the_rule_says_is_asked_about():
    what = plan(paying(100, "small", "pay_some"), paying(101, "large", "pay_some"))
    async with app(what, tools=TOOLS, store="memory") as one:
        handle = one.start(RunRequest("q"))
        await handle.settled()
        assert [record.task for record in await pending(one)] == ["large"]
        assert [amount for amount, _ in PAID] == [100]
        handle.cancel()


async def test_nobody_is_asked_about_what_cannot_be_done():
    wrong = task("pay", "pay", needs=["look"]).model_copy(update={"arguments": {"amount": {"$from": "look"}}})
    async with app(plan(wrong, task("look", value="much")), tools=TOOLS, store="memory") as one:
        handle = one.start(RunRequest("q"))
        assert (await handle.result()).task("pay").outcome.provenance.reason == "bad_input"
        assert await pending(one) == []


async def test_without_a_store_there_is_nobody_to_ask():
    async with app(plan(paying()), tools=TOOLS, store="off") as one:
        result = await one.start(RunRequest("q")).result()
        assert (result.status, PAID) == (RunState.DEGRADED, [])
        assert result.task("pay").outcome.provenance.reason == "store_error"


async def test_a_question_that_cannot_be_written_is_not_waited_for():
    async with process(LastingStore(), what=plan(task("look"), paying()), tools=TOOLS) as one:
        one.line.dead = True
        result = await one.start().result()
        assert (result.status, PAID) == (RunState.DEGRADED, [])
        assert result.task("pay").outcome.provenance.reason == "store_error"
        assert "approvals" in [failure["part"] for failure in result.failures]


async def test_an_alternate_that_asks_is_passed_over():
    @tool(downstream="bank", kind="external", alternates=[Alternate("pay")])
    async def free(amount: int) -> str:
        """Fails."""
        raise RuntimeError("no")

    async with app(plan(paying(5, "free", "free")), tools=[pay, free], store="memory") as one:
        result = await one.start(RunRequest("q")).result()
        assert (result.status, PAID) == (RunState.DEGRADED, [])


async def test_the_cut_leaves_what_waits_for_a_person_alone():
    """What hangs is cut at the budget; the question, and what depends on its answer, is not."""
    what = plan(task("hang", "hanging"), paying(), task("tell", needs=["pay", "hang"], tolerates_missing=True))
    async with app(what, tools=TOOLS, store="memory") as one:
        handle = one.start(RunRequest("q", budget_ms=4000))
        assert await handle.settled() is None
        assert asyncio.get_running_loop().time() <= 4.0
        (asked,) = await pending(one)
        await asyncio.sleep(100)
        await one.approvals.resolve(asked.id, "approved")
        result = await handle.result()
        assert [one.status for one in result.tasks] == ["failed", "completed", "completed"]
        assert result.elapsed <= 8.0


async def test_other_arguments_need_another_approval():
    """Case 53: what was approved is not what is about to be done."""
    amounts = iter([5, 6])

    @tool(downstream="price", kind="external", timeout=100)
    async def price() -> int:
        """A price that changes."""
        amount: int = next(amounts)
        return amount

    what = plan(
        task("price", "price", timeout=50),
        task("pay", "pay", needs=["price"]).model_copy(update={"arguments": {"amount": {"$from": "price"}}}),
    )
    store = LastingStore()
    async with process(store, what=what, tools=[*TOOLS, price], dies=True) as one:
        handle = one.start()
        await handle.settled()
        (asked,) = await pending(one.app)
        assert asked.arguments == {"amount": 5}
        await one.app.approvals.resolve(asked.id, "approved")
        one.line.dead = True
    store._rows[handle.run_id].tasks.clear()  # the price was never written down, so it is asked for again
    PAID.clear()
    async with process(store, what=what, tools=[*TOOLS, price]) as other:
        await asyncio.sleep(30)
        assert PAID == []
        (again,) = await pending(other.app)
        assert (again.arguments, again.id != asked.id) == ({"amount": 6}, True)
        await other.app.approvals.resolve(again.id, "approved")
        assert (await other.result(handle.run_id)).status is RunState.COMPLETED
        assert [amount for amount, _ in PAID] == [6]


@pytest.mark.parametrize("when", ["before", "between", "after"])
async def test_a_run_that_waits_survives_its_process(when):
    """Case 54: the approval is still there, and resuming works, also when it was resolved while nobody was there."""
    store = LastingStore()
    what = plan(task("look", seconds=1), paying(needs=["look"]), task("tell", needs=["pay"]))
    async with process(store, what=what, tools=TOOLS, dies=True) as one:
        handle = one.start(tenant="t")
        await handle.settled()
        (asked,) = await pending(one.app)
        one.line.dead = True
        if when == "before":
            await store.resolve_approval(asked.id, "approved", at=asked.created + 1)
    if when == "between":
        await store.resolve_approval(asked.id, "approved", at=asked.created + 1)
    async with process(store, what=what, tools=TOOLS) as other:
        await asyncio.sleep(30)
        if when == "after":
            assert other.app.run(handle.run_id).state is RunState.WAITING_APPROVAL
            assert await pending(other.app) == [asked]
            await other.app.approvals.resolve(asked.id, "approved", tenant="t")
        result = await other.result(handle.run_id)
        assert (result.status, PAID) == (RunState.COMPLETED, [(5, f"{handle.run_id}:pay")])


async def test_an_approval_resolved_by_another_process_reaches_the_one_that_waits():
    store = LastingStore()
    async with process(store, what=plan(paying()), tools=TOOLS) as one:
        handle = one.start()
        await handle.settled()
        async with process(store, what=plan(paying()), tools=TOOLS) as other:
            (asked,) = await pending(other.app)
            await other.app.approvals.resolve(asked.id, "approved")
            result = await handle.result()
            assert (result.status, len(PAID)) == (RunState.COMPLETED, 1)
            assert asyncio.get_running_loop().time() <= 4


async def test_a_run_that_waits_is_handed_on_when_its_process_ends():
    store = LastingStore()
    async with process(store, what=plan(paying()), tools=TOOLS) as one:
        handle = one.start()
        await handle.settled()
    stored = await store.load_run(handle.run_id)
    assert stored is not None
    assert (stored.node, stored.record.background, stored.state) == ("", True, "waiting_approval")
    async with process(store, what=plan(paying()), tools=TOOLS) as other:
        await asyncio.sleep(1)
        (asked,) = await pending(other.app)
        await other.app.approvals.resolve(asked.id, "approved")
        assert (await other.result(handle.run_id)).status is RunState.COMPLETED
    assert len(PAID) == 1


async def test_cancelling_a_run_that_waits_withdraws_its_questions():
    async with app(plan(paying()), tools=TOOLS, store="memory") as one:
        handle = one.start(RunRequest("q"))
        await handle.settled()
        (asked,) = await pending(one)
        assert handle.cancel()
        assert (await handle.result()).status is RunState.CANCELLED
        await asyncio.sleep(0.1)
        assert (await one.approvals.get(asked.id)).status == "withdrawn"
        with pytest.raises(ApprovalConflict):
            await one.approvals.resolve(asked.id, "approved")
        await asyncio.sleep(1)
        assert (handle.state, PAID) == (RunState.CANCELLED, [])


async def test_approvals_are_each_tenants_own():
    async with app(plan(paying()), tools=TOOLS, store="memory") as one:
        handle = one.start(RunRequest("q", tenant="blue"))
        await handle.settled()
        (asked,) = await pending(one)
        with pytest.raises(NotFound):
            await one.approvals.get(asked.id, tenant="red")
        with pytest.raises(NotFound):
            await one.approvals.resolve(asked.id, "approved", tenant="red")
        assert (await one.approvals.list(tenant="red")).approvals == ()
        with pytest.raises(BadInput):
            await one.approvals.resolve(asked.id, "expired")
        handle.cancel()


async def test_a_waiting_run_takes_no_place_in_the_lane():
    limits = DurableLimits(width=1)
    what = plan(paying(), task("slow", needs=["pay"], seconds=5))
    async with process(LastingStore(), what=what, tools=TOOLS, durable=limits) as one:
        handles = [one.start(background=True) for _ in range(3)]
        for handle in handles:
            assert await handle.settled() is None
        for asked in await pending(one.app):
            await one.app.approvals.resolve(asked.id, "approved")
        results = [await handle.result() for handle in handles]
        assert [result.status for result in results] == [RunState.COMPLETED] * 3
        assert asyncio.get_running_loop().time() == 15
        assert one.app.durable.lane.in_use == 0


# --- repeated degradation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["approved", "rejected"])
async def test_after_so_many_degradations_in_a_row_a_person_is_asked(said):
    """D11: the third answer in a row that would lack the figures is not given before somebody has looked."""
    broken = True

    @tool(downstream="figures", kind="external")
    async def figures() -> int:
        """Figures, when they work."""
        if broken:
            raise RuntimeError("no")
        return 42

    limits = RunLimits(review_after=3)
    what = plan(task("figures", "figures"), task("tell", "join", needs=["figures"], parts=[{"$from": "figures"}]))
    async with app(what, tools=[figures], store="memory", limits=limits) as one:
        for _ in range(2):
            assert (await one.ask("q")).status is RunState.DEGRADED
        handle = one.start(RunRequest("q"))
        assert await handle.settled() is None
        (asked,) = await pending(one)
        assert (asked.reason, asked.task, asked.tool) == ("repeated_degradation", "figures", "figures")
        assert (await one.ask("q")).status is RunState.DEGRADED  # one person is asked, not everybody held up
        broken = False
        await one.approvals.resolve(asked.id, said)
        result = await handle.result()
        if said == "approved":
            assert (result.status, result.task("tell").value) == (RunState.COMPLETED, [42])
        else:
            assert result.status is RunState.DEGRADED
        for _ in range(5):
            assert (await one.ask("q")).status is RunState.COMPLETED


# --- cancellation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("background", "flavour"), [(False, "suspended"), (True, "granted")])
def test_a_run_can_be_cancelled_wherever_it_waits(background, flavour):
    """Case 18: planning, running, asking, waiting for a person, going on, ending; exactly one terminal event."""
    seen: list[Run] = []

    async def make():
        seen.clear()
        PAID.clear()
        what = plan(task("look", seconds=1), paying(needs=["look"]))
        async with app(what, tools=TOOLS, store=LastingStore()) as one:
            request = RunRequest("q", background=background, idempotency_key="k")
            run = Run("run_1", request, one.agents.get(), 8.0, one._parts)
            run.on_end = one._on_end
            one._active[run.id] = run
            seen.append(run)
            crew = one._parts.crew
            crew.start(approving(one), name="a person")
            await run.drive()

    async def approving(one):
        while not (asked := await pending(one)):  # noqa: ASYNC110 - whenever it is asked
            await asyncio.sleep(0.5)
        await one.approvals.resolve(asked[0].id, "approved")

    def check():
        (run,) = seen
        if run.cell.value is RunState.RECEIVED and not run.events:
            return  # the app was cancelled before it began
        kinds = [event.kind for event in run.events]
        terminal = [kind for kind in kinds if kind in {"run.cancelled", "run.completed"}]
        assert terminal == kinds[-1:] == [f"run.{run.cell.value}"]
        assert len(PAID) <= 1
        assert run.ended.is_set()

    assert cancel_at_every_await(make, lambda: check() if seen else None, flavours=[flavour], limit=200) >= 10
