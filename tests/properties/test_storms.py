"""Random storms of runs, in virtual time: whatever tools, planners, stores, listeners, answers and clients do, every
run has one beginning and one end inside its budget, and in the end nothing is left.
"""

import asyncio
import random
from collections.abc import Callable

import pytest
from tests.runs.worlds import app, plan, task

from failsoft.base.errors import BreakerOpen, IdempotencyConflict
from failsoft.base.events import EventBus
from failsoft.runs.answer import Answer
from failsoft.runs.handle import RunHandle
from failsoft.runs.plan import Plan
from failsoft.runs.result import RunRequest
from failsoft.testing.fakes import FakePlanner, FakeStore, ignore_cancellation
from failsoft.tools.python import tool
from failsoft.tools.registry import Default

ENDS = {"run.completed", "run.degraded", "run.failed", "run.cancelled"}
BUDGETS = (1, 1, 5, 20, 100, 1_000, 5_000, 60_000)


class Fatal(BaseException):
    """No Exception, and none that Python knows."""


class Weather:
    """What goes wrong in one storm, drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.calm = asyncio.Event()

    def odds(self, chance: float) -> bool:
        return self.dice.random() < chance

    def tools(self):
        @tool(downstream="odd")
        async def odd() -> object:
            what = self.dice.randrange(10)
            if what < 3:
                raise self.dice.choice([Fatal, asyncio.CancelledError, RuntimeError, OSError, TimeoutError])
            if what == 3:
                await ignore_cancellation(self.calm)
                return "late"
            if what == 4:
                mine = asyncio.current_task()
                assert mine is not None
                mine.cancel()
            await asyncio.sleep(self.dice.choice([0, 0, 0.001, 0.5, 20.0]))
            return object() if what == 5 else "fine"

        @tool(kind="action", downstream="act", fallback=Default(3))
        async def act() -> int:
            await asyncio.sleep(self.dice.random())
            if self.odds(0.3):
                raise RuntimeError
            return 1

        return [odd, act]

    def plan(self, request) -> Plan:
        tasks = []
        for i in range(self.dice.randrange(1, 7)):
            options = {"timeout": 0.1 + self.dice.random() * 3} if self.odds(0.3) else {}
            needs = [f"t{j}" for j in range(i) if self.odds(0.3)]
            which = self.dice.choice(["odd", "odd", "work", "broken", "hanging", "act"])
            tasks.append(task(f"t{i}", which, needs=needs, essential=self.odds(0.7), **options))
        return plan(*tasks)

    def planners(self) -> list[FakePlanner]:
        good = FakePlanner(self.plan, delay=self.dice.choice([0, 0, 0.1, 3]))
        bad = FakePlanner(self.dice.choice([Fatal(), RuntimeError(), asyncio.CancelledError()]), name="bad")
        return [bad, good] if self.odds(0.3) else [good]

    def answer(self, parts) -> object:
        what = self.dice.randrange(6)
        if what < 2:
            raise (Fatal(), asyncio.CancelledError())[what]
        return None if what == 2 else Answer("fine")

    def store(self):
        fails = self.dice.choice([True, Fatal(), asyncio.CancelledError(), ValueError()])
        return self.dice.choice(
            ["off", "memory", FakeStore(), FakeStore(fails=fails), FakeStore(hangs=True), FakeStore(delay=0.3)]
        )

    def listen(self, event) -> None:
        if self.odds(0.1):
            raise self.dice.choice([Fatal, asyncio.CancelledError, RuntimeError])

    def start(self, start: Callable[[RunRequest], RunHandle]) -> RunHandle | None:
        loop = asyncio.get_running_loop()
        number, budget = self.dice.randrange(5), self.dice.choice(BUDGETS)
        key = f"k{number}" if self.odds(0.3) else None
        tenant = self.dice.choice([None, "a", "b"])
        try:
            handle = start(RunRequest(f"question {number}", budget_ms=budget, idempotency_key=key, tenant=tenant))
        except (IdempotencyConflict, BreakerOpen):
            return None
        if self.odds(0.2):
            handle.cancel()
        elif self.odds(0.3):
            loop.call_later(self.dice.random() * 2, handle.cancel)
        elif self.odds(0.1):
            loop.call_later(self.dice.random() * 2, handle.wrap_up, "shutting_down")
        return handle


@pytest.mark.parametrize("seed", range(30))
async def test_every_run_of_a_storm_ends_once_in_time_and_leaves_nothing(seed):
    weather = Weather(seed)
    bus = EventBus()
    if weather.odds(0.5):
        bus.add(weather.listen)
    answer = weather.answer if weather.odds(0.5) else None
    store = weather.store()
    async with app(planners=weather.planners(), tools=weather.tools(), store=store, answer=answer, bus=bus) as running:
        handles = []
        for _ in range(weather.dice.randrange(1, 25)):
            if (handle := weather.start(running.start)) is not None:
                handles.append(handle)
            if weather.odds(0.3):
                await asyncio.sleep(weather.dice.random() * 0.5)
        for handle in handles:
            result = await handle.result()
            events = [event async for event in handle.events()]
            kinds = [event.kind for event in events]
            assert (kinds[0], [kind for kind in kinds if kind in ENDS]) == ("run.received", kinds[-1:])
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert result.elapsed <= result.budget + 1e-9
            finished = [event.task for event in events if event.kind == "task.finished"]
            assert len(set(finished)) == len(finished)
            if result.plan is not None and result.status != "cancelled":
                assert set(finished) == {one.id for one in result.plan.tasks}
        assert running.runs == []
        weather.calm.set()
        await asyncio.sleep(2)
        for guard in running.guards.values():
            figures = guard.statistics()
            assert (figures.in_use, figures.waiting, guard.holders()) == (0, 0, [])
        assert running.orphans() == []
