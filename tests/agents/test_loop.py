"""The agent loop; numbers in names are those of the cases from the field."""

import asyncio
import json

from tests.agents.worlds import Script, agent, app, call, calls, last_results

from failsoft.base.errors import StreamCut
from failsoft.base.messages import ToolCall
from failsoft.runs.loop_model import Reply
from failsoft.testing.work import VirtualEvent
from failsoft.tools.python import tool
from failsoft.tools.registry import Default


@tool(downstream="stock")
async def stock(product: str) -> int:
    """How many there are."""
    return len(product)


@tool(downstream="broken", kind="external")
async def broken() -> None:
    """Fails."""
    raise RuntimeError("no luck")


@tool(downstream="slow", kind="external", timeout=30)
async def slow(seconds: float = 2.0) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return f"after {seconds:g} s"


async def test_a_question_is_answered_with_what_tools_bring():
    model = Script(calls(call("stock", product="tea")), lambda r: f"There are {last_results(r)[0]}.")
    async with app(model, stock) as running:
        result = await running.ask("How much tea?")
    assert result.status == "completed"
    assert result.answer == "There are 3."
    assert [t.kind for t in result.tasks] == ["agent"]


async def test_a_model_that_needs_no_tool_answers_at_once():
    async with app(Script("Hello."), stock) as running:
        assert (await running.ask("hi")).answer == "Hello."


async def test_calls_of_one_turn_are_made_at_once():
    model = Script(calls(*(call("slow", seconds=2.0 + i) for i in range(3))), "done")
    async with app(model, slow) as running:
        result = await running.ask("go", budget=30)
    assert result.answer == "done"
    assert result.elapsed == 4.0


async def test_case_5_a_tool_that_cancels_itself_is_a_result():
    @tool
    async def odd() -> None:
        raise asyncio.CancelledError

    model = Script(calls(call("odd")), lambda r: last_results(r)[0])
    async with app(model, odd) as running:
        result = await running.ask("go")
    assert result.status == "degraded"
    assert "tool_failed" in result.answer


async def test_case_6_a_tool_that_raises_system_exit_is_a_result():
    @tool
    def odd() -> None:
        raise SystemExit(3)

    model = Script(calls(call("odd")), lambda r: last_results(r)[0])
    async with app(model, odd) as running:
        result = await running.ask("go")
    assert "SystemExit" in result.answer


async def test_case_4_a_stream_that_breaks_off_leaves_what_was_said():
    model = Script(Reply("Half of an", error=StreamCut("silence"), finish=None))
    async with app(model) as running:
        result = await running.ask("go")
    assert result.status == "degraded"
    assert result.answer.startswith("Half of an")
    assert [s.reason for s in result.shortfalls] == ["stream_cut"]


async def test_case_10_slow_tools_are_cut_and_what_came_is_the_answer():
    model = Script(*(calls(call("slow", seconds=2.0 + i / 100)) for i in range(3)), seconds=0.01)
    async with app(model, slow) as running:
        result = await running.ask("go", budget=3.0)
    assert result.elapsed <= 3.0
    assert result.status == "degraded"
    assert "after 2 s" in result.answer


async def test_case_12_what_does_not_fit_is_refused_before_it_begins():
    @tool(downstream="report", kind="external", usual=18, timeout=30)
    async def report() -> str:
        raise AssertionError("was called")

    model = Script(calls(call("report")), lambda r: last_results(r)[0], seconds=0.1)
    async with app(model, report) as running:
        result = await running.ask("go", budget=9.0)
    assert "unaffordable" in result.answer
    assert "usually needs 18 s" in result.answer
    assert result.elapsed < 1


async def test_case_22_four_of_five_results_are_used():
    wanted = [call("stock", product="x" * i) for i in range(1, 5)]
    model = Script(calls(*wanted, call("broken")), lambda r: " ".join(last_results(r)[:4]))
    async with app(model, stock, broken) as running:
        result = await running.ask("go")
        assert running.orphans() == []
    assert result.answer.startswith("1 2 3 4")
    assert result.status == "degraded"
    assert result.shortfalls[0].reason == "tool_failed"


async def test_a_failure_that_was_made_good_is_none():
    fails = [True]

    @tool(downstream="shaky", kind="external")
    async def shaky(n: int) -> int:
        if fails.pop():
            fails.append(False)
            raise RuntimeError("once")
        return n

    model = Script(calls(call("shaky", n=1)), calls(call("shaky", n=2)), "fine")
    async with app(model, shaky) as running:
        assert (await running.ask("go")).status == "completed"


async def test_case_23_twenty_calls_with_a_limit_of_ten_are_exactly_ten():
    made = []

    @tool
    async def count(n: int) -> int:
        made.append(n)
        return n

    model = Script(calls(*(call("count", n=i) for i in range(20))), "done")
    async with app(model, count, calls=10) as running:
        result = await running.ask("go")
    assert sorted(made) == list(range(10))
    assert result.status == "degraded"
    assert [s.reason for s in result.shortfalls] == ["call_limit"]
    refused = [m for m in model.asked[1].messages if m["role"] == "tool" and "call_limit" in m["content"]]
    assert len(refused) == 10


async def test_case_24_the_same_query_twice_at_once_is_one_call():
    made = []

    @tool
    async def look(n: int) -> int:
        made.append(n)
        return n * 2

    @tool(kind="action")
    async def act(n: int) -> int:
        made.append(n)
        return n

    twice = calls(call("look", n=4), call("look", n=4), call("act", n=5), call("act", n=5))
    model = Script(twice, lambda r: " ".join(last_results(r)))
    async with app(model, look, act) as running:
        assert (await running.ask("go")).answer == "8 8 5 5"
    assert sorted(made) == [4, 5, 5]


async def test_case_38_arguments_that_were_cut_are_never_executed():
    made = []

    @tool(kind="action")
    async def send(to: str) -> str:
        made.append(to)
        return "sent"

    cut = Reply("", (ToolCall("a", "send", '{"to": "bob"'), ToolCall("b", "send", '{"to": "eve"}')), "length")
    model = Script(cut, lambda r: last_results(r)[0])
    async with app(model, send) as running:
        result = await running.ask("go")
    assert made == []
    assert "cut off" in result.answer


async def test_case_39_bad_arguments_go_back_to_the_model_once():
    bad = ["[1]", '{"product": 3}', '{"product": "a", "x": 1}', '{"product": NaN}', "{" * 10_000]
    bad.append(json.dumps({"product": "x" * 10_000_000}))
    for text in bad:
        wrong = calls(ToolCall("a", "stock", text))
        model = Script(wrong, lambda r: last_results(r)[0])
        async with app(model, stock) as running:
            result = await running.ask("go")
        assert '"error"' in result.answer, text[:50]
        assert result.status == "completed"
        model = Script(wrong, wrong, wrong)
        async with app(model, stock) as running:
            result = await running.ask("go")
        assert len(model.asked) == 3  # twice, and once for the answer
        assert model.asked[2].answer_only
        assert result.status == "failed" or result.degraded


async def test_case_40_an_unknown_tool_is_named_and_three_end_the_loop():
    unknown = calls(call("stok", product="tea"))
    model = Script(unknown, lambda r: last_results(r)[0])
    async with app(model, stock) as running:
        result = await running.ask("go")
    assert "there are: stock" in result.answer
    model = Script(unknown, calls(call("stoc")), calls(call("sto")), "I cannot.")
    async with app(model, stock) as running:
        result = await running.ask("go")
    assert result.status == "degraded"
    assert [s.reason for s in result.shortfalls] == ["unknown_tool"]
    assert len(model.asked) == 4


async def test_case_41_the_same_call_three_times_is_a_loop():
    made = []

    @tool
    async def look(n: int) -> int:
        made.append(n)
        return n

    model = Script(
        *[Reply("", (ToolCall(f"c{i}", "look", s),)) for i, s in enumerate(['{"n": 1}', "{'n':1}", '{ "n":1 }'])],
        "It is 1.",
    )
    async with app(model, look) as running:
        result = await running.ask("go")
    assert made == [1, 1]
    assert result.status == "degraded"
    assert result.answer.startswith("It is 1.")
    assert [s.reason for s in result.shortfalls] == ["loop_detected"]


async def test_case_42_arguments_as_models_write_them_are_read():
    for text in ['```json\n{"product": "tea"}\n```', "{'product': 'tea',}", '\ufeff{"product": "tea"}']:
        model = Script(calls(ToolCall("a", "stock", text)), lambda r: last_results(r)[0])
        async with app(model, stock) as running:
            assert (await running.ask("go")).answer == "3"


async def test_empty_replies_end_the_loop_with_what_there_is():
    model = Script(calls(call("stock", product="tea")), "", " ", "")
    async with app(model, stock) as running:
        result = await running.ask("go")
    assert result.status == "degraded"
    assert "stock: 3" in result.answer
    assert len(model.asked) == 4


async def test_a_model_that_never_stops_is_asked_for_its_answer():
    model = Script(*(calls(call("stock", product="x" * i)) for i in range(4)), lambda r: f"turn {len(model.asked)}")
    async with app(model, stock, turns=5) as running:
        result = await running.ask("go")
    assert result.answer.startswith("turn 5")
    assert [s.reason for s in result.shortfalls] == ["turn_limit"]
    assert "final answer now" in model.notes[-1]


async def test_little_time_is_for_the_answer_and_the_model_is_told():
    model = Script(*(calls(call("slow", seconds=1.0 + i / 100)) for i in range(4)), "what I have", seconds=1.0)
    model.lines = [
        lambda r: "what I have" if r.answer_only else calls(call("slow", seconds=1 + len(model.asked) / 100))
    ]
    async with app(model, slow) as running:
        result = await running.ask("go", budget=8.0)
    assert result.answer.startswith("what I have")
    assert [s.reason for s in result.shortfalls] == ["time_short"]
    assert result.elapsed <= 8.0


async def test_a_broken_tool_is_withdrawn_named_and_offered_again():
    model = Script(calls(call("broken")), "no")
    async with app(model, broken, stock) as running:
        guard = running.guards["broken"]
        now = asyncio.get_running_loop().time()
        guard.breaker.force_open(now, for_=60)
        await running.ask("go")
        assert model.offered[0] == ["stock"]
        assert "unavailable now: broken" in model.notes[0]
        await asyncio.sleep(61)
        guard.breaker.force_close(asyncio.get_running_loop().time())
        model.lines = ["yes"]
        await running.ask("go")
    assert model.offered[-1] == ["broken", "stock"]


async def test_a_default_serves_in_a_loop_too():
    @tool(downstream="rates", kind="external", fallback=Default(1.1))
    async def rate() -> float:
        raise RuntimeError("down")

    model = Script(calls(call("rate")), lambda r: last_results(r)[0])
    async with app(model, rate) as running:
        result = await running.ask("go")
    assert result.status == "degraded"
    assert "substitute" in result.answer
    assert "1.1" in result.answer


async def test_a_model_that_fails_leaves_what_tools_brought():
    model = Script(calls(call("stock", product="tea")), StreamCut("gone"))
    async with app(model, stock) as running:
        result = await running.ask("go")
    assert result.status == "degraded"
    assert "stock: 3" in result.answer


async def test_a_model_that_hangs_leaves_what_tools_brought():
    model = Script(calls(call("stock", product="tea")), 1000.0, "never")
    async with app(model, stock) as running:
        result = await running.ask("go", budget=4.0)
    assert result.elapsed <= 4.0
    assert "stock: 3" in result.answer


async def test_a_tool_that_ignores_its_cancellation_holds_nothing_up():
    release = asyncio.Event()

    @tool(downstream="stubborn", kind="external", timeout=1)
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    model = Script(calls(call("stubborn"), call("stock", product="tea")), lambda r: last_results(r)[1])
    async with app(model, stubborn, stock) as running:
        result = await running.ask("go", budget=10.0)
        assert result.answer.startswith("3")
        assert result.elapsed < 2
        release.set()
        await asyncio.sleep(0)


async def test_case_8_a_blocking_tool_returns_at_its_limit():
    done = VirtualEvent()

    @tool(downstream="blocking", kind="external", timeout=0.5)
    def blocking() -> None:
        done.wait(30)

    model = Script(calls(call("blocking")), lambda r: last_results(r)[0])
    async with app(model, blocking) as running:
        result = await running.ask("go", budget=10.0)
        assert "timeout" in result.answer
        assert result.elapsed < 1
        assert len(running.guards["blocking"].orphans()) == 1
        done.set()


# --- delegates -------------------------------------------------------------------------------------------------------


async def test_a_part_of_the_work_is_handed_on():
    inner = agent(Script(calls(call("stock", product="tea")), lambda r: last_results(r)[0]), stock, name="clerk")
    model = Script(calls(call("clerk", input="count the tea")), lambda r: f"The clerk says {last_results(r)[0]}.")
    async with app(model, others=[inner], delegates=("clerk",)) as running:
        result = await running.ask("go")
    assert result.answer == "The clerk says 3."
    assert result.status == "completed"


async def test_case_11_a_delegate_gets_what_is_left_less_the_reserve():
    inner = agent(Script(calls(call("slow", seconds=60.0)), "never"), slow, name="clerk", budget=60)
    model = Script(calls(call("clerk", input="go")), lambda r: "no clerk", seconds=0.5)
    async with app(model, others=[inner], delegates=("clerk",)) as running:
        result = await running.ask("go", budget=5.0)
    assert result.answer.startswith("no clerk")
    assert result.elapsed < 5.0


async def test_case_19_cancelling_a_run_cancels_its_delegates():
    ended = []

    @tool(downstream="long", kind="external")
    async def long() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(True)

    inner = agent(Script(calls(call("long"))), long, name="clerk")
    async with app(Script(calls(call("clerk", input="go"))), others=[inner], delegates=("clerk",)) as running:
        from failsoft.runs.result import RunRequest

        handle = running.start(RunRequest("go", budget_ms=60_000))
        await asyncio.sleep(1)
        handle.cancel()
        await asyncio.sleep(0.01)
        assert ended == [True]
        assert (await handle.result()).status == "cancelled"


async def test_case_44_an_agent_that_delegates_to_itself_is_bounded():
    model = Script(
        lambda r: calls(call("main", input=f"again {len(model.asked)}")) if r.tools and not r.answer_only else "enough"
    )
    async with app(model, delegates=("main",), depth=3, calls=7) as running:
        result = await running.ask("go")
    assert result.answer.startswith("enough")
    assert len(model.asked) < 20
    assert [] in model.offered  # at the greatest depth there is nobody left


async def test_case_44_the_tree_makes_no_more_calls_than_allowed():
    made = []

    @tool
    async def count(n: int) -> int:
        made.append(n)
        return n

    def many(request):
        if request.answer_only:
            return "enough"
        n = len(model.asked) * 10
        return calls(*(call("count", n=n + i) for i in range(2)), call("main", input=f"more {n}"))

    model = Script(many)
    async with app(model, count, delegates=("main",), depth=3, calls=9) as running:
        await running.ask("go")
    assert len(made) <= 9


# --- the stream ------------------------------------------------------------------------------------------------------


async def events_of(running, text):
    from failsoft.runs.result import RunRequest

    handle = running.start(RunRequest(text))
    found = [event async for event in handle.events()]
    return found, await handle.result()


async def test_what_was_streamed_is_the_answer():
    long = "A long answer. " * 40
    model = Script(calls(call("stock", product="tea"), text="Let me look."), long)
    async with app(model, stock) as running:
        events, result = await events_of(running, "go")
    said = "".join(e.data["text"] for e in events if e.kind == "text.delta")
    assert said == result.answer == long
    assert [e.data["text"] for e in events if e.kind == "thought.delta"] == ["Let me look."]
    assert [e.data["tool"] for e in events if e.kind == "tool.started"] == ["stock"]
    assert [e.data["status"] for e in events if e.kind == "tool.finished"] == ["completed"]
    assert len([e for e in events if e.kind == "text.delta"]) > 3


async def test_what_was_told_before_a_call_stays_in_the_answer():
    model = Script(calls(call("stock", product="tea"), text="First I explain. " * 20), "Three.")
    async with app(model, stock) as running:
        events, result = await events_of(running, "go")
    said = "".join(e.data["text"] for e in events if e.kind == "text.delta")
    assert said == result.answer
    assert result.answer.endswith("\n\nThree.")


async def test_a_session_s_next_turn_sees_the_last():
    model = Script("I am Bo.", lambda r: r.messages[2]["content"])
    async with app(model) as running:
        await running.ask("Who are you?", session_id="s")
        assert (await running.ask("What did you say?", session_id="s")).answer == "I am Bo."


async def test_every_call_is_answered_in_what_the_model_is_given():
    model = Script(calls(call("stock", product="a"), call("nothing"), call("broken")), "done")
    async with app(model, stock, broken) as running:
        await running.ask("go")
    messages = model.asked[-1].messages
    asked = [c["id"] for m in messages for c in m.get("tool_calls", ())]
    assert asked == [m["tool_call_id"] for m in messages if m["role"] == "tool"]


async def test_watchers_see_words_thoughts_and_calls_as_ag_ui_events():
    from failsoft.server.agui import Projection

    model = Script(calls(call("stock", product="tea"), text="Let me look."), "There are three. " * 30)
    async with app(model, stock) as running:
        events, result = await events_of(running, "go")
    projection = Projection(result.run_id)
    frames = b"".join(projection.frames(event, result.to_dict()) for event in events).decode()
    bodies = [json.loads(line[6:]) for line in frames.splitlines() if line.startswith("data: ")]
    types = [body["type"] for body in bodies]
    assert types.count("TOOL_CALL_START") == types.count("TOOL_CALL_END") == types.count("TOOL_CALL_RESULT") == 1
    assert types.count("TEXT_MESSAGE_START") == types.count("TEXT_MESSAGE_END") == 1
    assert "".join(b["delta"] for b in bodies if b["type"] == "TEXT_MESSAGE_CONTENT") == result.answer
    assert [b["value"]["text"] for b in bodies if b.get("name") == "thought"] == ["Let me look."]


async def test_a_degraded_end_goes_on_where_the_stream_was():
    from failsoft.server.agui import Projection

    model = Script(calls(call("stock", product="tea"), text="First I explain. " * 20), StreamCut("gone"))
    async with app(model, stock) as running:
        events, result = await events_of(running, "go")
    projection = Projection(result.run_id)
    frames = b"".join(projection.frames(event, result.to_dict()) for event in events).decode()
    bodies = [json.loads(line[6:]) for line in frames.splitlines() if line.startswith("data: ")]
    assert "".join(b["delta"] for b in bodies if b["type"] == "TEXT_MESSAGE_CONTENT") == result.answer
    assert "stock: 3" in result.answer
