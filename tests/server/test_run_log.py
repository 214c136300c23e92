"""The lines of runs and their calls: who, what, what was left, which limit fired; never what was said."""

import asyncio
import json
import os
from typing import Any

from tests.runs.worlds import app, plan, task

from failsoft.base.events import Event, EventBus
from failsoft.config import Settings
from failsoft.kernel.watchdog import Stall
from failsoft.runs.limits import RunLimits
from failsoft.server.call_log import CallLog
from failsoft.server.run_log import RunLog

ONE_AT_A_TIME = Settings.model_validate({"downstreams": {"work": {"permits": 1}}})


class Kept(CallLog):
    """Keeps its lines."""

    def __init__(self) -> None:
        super().__init__(2)
        self.lines: list[dict[str, Any]] = []

    def write(self, line: Any) -> None:
        import msgspec

        self.lines.append(json.loads(msgspec.json.encode(line)))

    def close(self, wait: float = 1.0) -> None:
        pass


async def test_each_run_and_each_call_is_a_line_with_its_limit():
    log = Kept()
    made = plan(task("good", value="sk-secret-answer"), task("bad", "broken"), task("slow", "hanging"))
    async with app(made) as world:
        lines = RunLog(world.bus, log, lambda: 1_700_000_000.0)
        result = await world.ask("what is my secret?", budget=2.0, tenant="blue")
        await asyncio.sleep(1)
        lines.close()
        await world.ask("not seen")
    run = {"run": result.run_id, "tenant": "blue", "ts": 1_700_000_000.0}
    calls = {line["task"]: line for line in log.lines if line["event"] == "call"}
    assert calls["good"] == {
        **run, "event": "call", "task": "good", "downstream": "work", "attempt": 1, "ms": 0.0, "remaining_ms": 1950.0,
    }  # fmt: skip
    assert (calls["bad"]["code"], "limit" in calls["bad"]) == ("tool_failed", False)
    assert (calls["slow"]["code"], calls["slow"]["limit"], calls["slow"]["ms"]) == ("deadline_exceeded", "run", 1950.0)
    (ended,) = [line for line in log.lines if line["event"] == "run"]
    assert ended == {
        **run, "event": "run", "agent": "tester", "status": "degraded", "ms": 1950.0, "budget_ms": 2000.0,
        "remaining_ms": 50.0, "limit": "run", "short": ["bad=tool_failed", "slow=deadline_exceeded"],
    }  # fmt: skip
    assert "secret" not in json.dumps(log.lines)


async def test_a_refused_call_is_a_line_that_names_the_queue():
    log = Kept()
    async with app(plan(task("a", "hanging"))) as world:
        RunLog(world.bus, log, lambda: 0.0)
        asks = [asyncio.create_task(world.ask("q", budget=1.0)) for _ in range(80)]
        await asyncio.gather(*asks)
    assert {line.get("limit") for line in log.lines if line["event"] == "call"} >= {"queue", "run"}


async def test_a_run_that_fails_says_its_code_and_one_that_is_cancelled_too():
    log = Kept()
    async with app(plan(task("a", "hanging")), limits=RunLimits(planning_share=0.1)) as world:
        RunLog(world.bus, log, lambda: 0.0)
        asking = asyncio.create_task(world.ask("q"))
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.wait([asking])
    (ended,) = [line for line in log.lines if line["event"] == "run"]
    assert (ended["status"], ended["code"]) == ("cancelled", "run_cancelled")


async def test_lines_go_to_a_descriptor_as_json():
    reading, writing = os.pipe()
    log = CallLog(writing)
    async with app(plan(task("a"))) as world:
        lines = RunLog(world.bus, log, world.sources.wall)
        await world.ask("q")
    await asyncio.get_running_loop().run_in_executor(None, lines.close)
    os.close(writing)
    with os.fdopen(reading) as told:
        kinds = [json.loads(line)["event"] for line in told]
    assert kinds == ["call", "run"]


async def test_a_wait_for_a_permit_is_in_the_line_of_what_it_was_for():
    log = Kept()
    made = plan(*(task(name, seconds=1.0) for name in "ab"))
    async with app(made, settings=ONE_AT_A_TIME) as world:
        RunLog(world.bus, log, lambda: 0.0)
        await world.ask("q", budget=8.0)
        await asyncio.sleep(1)
    waits = {line["task"]: (line["ms"], line.get("queue_ms")) for line in log.lines if line["event"] == "call"}
    assert waits == {"a": (1000.0, None), "b": (1000.0, 1000.0)}


async def test_a_refusal_says_what_was_left_too():
    log = Kept()
    async with app(plan(task("a", "hanging"))) as world:
        RunLog(world.bus, log, lambda: 0.0)
        await asyncio.gather(*(world.ask("q", budget=1.0) for _ in range(80)))
        await asyncio.sleep(1)
    refused = [line for line in log.lines if line["event"] == "call" and line.get("attempt", 0) == 0]
    assert refused
    assert all(0.0 <= line["remaining_ms"] <= 1000.0 for line in refused)


async def test_a_blocked_loop_is_a_line_that_says_where():
    log, bus = Kept(), EventBus()
    RunLog(bus, log, lambda: 5.0)
    stall = Stall(0.75, ("server.py:1 serve", "tool.py:7 crunch"), "task-1", downstream="reports")
    bus.emit(Event("loop.stalled", 1.0, None, "run_1", "a", "blue", 0, 0, stall))
    bus.emit(Event("loop.stalled", 2.0, None, None, None, None, 0, 0, Stall(0.2, (), None)))
    assert log.lines == [
        {
            "event": "stall", "ts": 5.0, "ms": 750.0, "run": "run_1", "task": "a", "tenant": "blue",
            "downstream": "reports", "where": "tool.py:7 crunch",
        },
        {"event": "stall", "ts": 5.0, "ms": 200.0},
    ]  # fmt: skip
