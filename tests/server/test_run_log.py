"""The lines of runs and their calls: who, what, what was left, which limit fired; never what was said."""

import asyncio
import json
import os
from typing import Any

from tests.runs.worlds import app, plan, task

from failsoft.runs.limits import RunLimits
from failsoft.server.call_log import CallLog
from failsoft.server.run_log import RunLog


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
