"""More of the cases from the field, as they show in a loop: stores that fail, late results, crash loops, windows."""

import asyncio

from tests.agents.worlds import Script, app, call, calls, last_results

from failsoft.testing.fakes import FakeStore
from failsoft.tools.python import tool


@tool(downstream="stock")
async def stock(product: str) -> int:
    """How many there are."""
    await asyncio.sleep(0.1)
    return len(product)


async def test_case_7_a_store_that_fails_costs_no_answer_and_is_told():
    model = Script(calls(call("stock", product="tea")), "three")
    async with app(model, stock, store=FakeStore(fails=OSError("disk full"))) as running:
        result = await running.ask("go")
        await asyncio.sleep(5)
        assert running.statistics().recorder.errors
    assert (result.status, result.answer) == ("completed", "three")


async def test_case_15_a_result_after_the_limit_is_none():
    @tool(downstream="late", kind="external", timeout=1)
    async def late() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)
        return "too late"

    model = Script(calls(call("late")), lambda r: last_results(r)[0])
    async with app(model, late) as running:
        result = await running.ask("go")
    assert result.status == "degraded"
    assert "too late" not in result.answer
    assert "timeout" in result.answer


async def test_case_25_a_tool_in_a_crash_loop_slows_nobody_and_is_withdrawn():
    @tool(downstream="crashing", kind="external")
    async def crashing(n: int) -> None:
        raise ConnectionError("gone")

    turns = [calls(call("crashing", n=i), call("stock", product="x" * i)) for i in range(1, 31)]
    model = Script(*turns, "done")
    async with app(model, crashing, stock, turns=40, calls=100) as running:
        result = await running.ask("go", budget=60)
    assert result.answer.startswith("done")
    assert result.elapsed < 30 * 0.1 + 0.05
    assert model.offered[0] == ["crashing", "stock"]
    assert model.offered[-1] == ["stock"]


async def test_a_long_conversation_is_cut_to_its_window_and_still_accepted():
    @tool
    async def page(n: int) -> str:
        return f"{n} " + "word " * 200

    turns = [calls(call("page", n=i)) for i in range(8)]
    model = Script(*turns, "done")
    async with app(model, page, turns=20, window=900) as running:
        result = await running.ask("the question")
    assert result.status == "completed"
    last = model.asked[-1].messages
    assert [m["role"] for m in last[:3]] == ["system", "user", "user"]
    assert "left out" in last[1]["content"]
    assert last[2]["content"] == "the question"
    asked = [c["id"] for m in last for c in m.get("tool_calls", ())]
    assert asked == [m["tool_call_id"] for m in last if m["role"] == "tool"]
    assert len(asked) < 8


async def test_a_long_result_is_cut_and_says_so():
    @tool
    async def long() -> str:
        return "x" * 5_000

    model = Script(calls(call("long")), lambda r: last_results(r)[0])
    async with app(model, long, result=100) as running:
        assert "cut: 4900 more characters" in (await running.ask("go")).answer
