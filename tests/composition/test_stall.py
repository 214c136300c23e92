"""A callee that blocks the loop, and the other downstreams, whose limits pass meanwhile: their breakers stay closed."""

import asyncio
import time

import pytest
from tests.kernel import hostile

from failsoft.base.errors import AttemptTimeout, BreakerOpen
from failsoft.base.events import Event, EventBus
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.kernel.guard import Guard, Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.processes import ProcessPool, call_process
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.watchdog import LoopWatchdog

pytestmark = pytest.mark.may_block(reason="a blocked loop is the case in point")

TOUCHY = Policy(
    attempt_timeout=0.4,
    call_timeout=10.0,
    retry=RetryPolicy(queries=0),
    breaker=BreakerPolicy(consecutive_failures=1, consecutive_timeouts=1),
)


class Scene:
    """A kernel with a watchdog, a downstream that blocks the loop, and innocent ones."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.kernel = Kernel(bus=EventBus([self.events.append]))
        self.blocker = self.kernel.guard("blocker", Policy(breaker=TOUCHY.breaker, retry=TOUCHY.retry))
        self.innocent = [self.kernel.guard(f"innocent {number}", TOUCHY) for number in range(5)]
        self.watchdog = LoopWatchdog(self.kernel.bus, kernel=self.kernel)

    async def blocks(self, seconds: float) -> None:
        await asyncio.sleep(0.1)  # when the others are under way
        time.sleep(seconds)  # noqa: ASYNC251 - that is the fault

    async def play(self, *calls: asyncio.Task[object], seconds: float = 1.0) -> list[object]:
        self.watchdog.start()
        try:
            blocking = self.blocker.call(self.blocks, seconds)
            results = await asyncio.gather(blocking, *calls, return_exceptions=True)
            return list(results[1:])
        finally:
            self.watchdog.stop()  # tells of a stall that it has not told yet

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def assert_all_closed(self) -> None:
        for guard in (self.blocker, *self.innocent):
            assert guard.breaker.state == "closed", guard
            assert guard.statistics().timed_out == 0
            assert guard.statistics().in_use == 0
        assert not self.of("breaker.opened")
        (stalled,) = self.of("loop.stalled")
        assert any(frame.endswith(" Scene.blocks") for frame in stalled.data.stack)


def calls(guards: list[Guard], seconds: float) -> list[asyncio.Task[object]]:
    return [asyncio.ensure_future(guard.call(asyncio.sleep, seconds, "served")) for guard in guards]


@pytest.mark.realtime
async def test_answers_that_came_while_the_loop_was_blocked_are_served():
    scene = Scene()
    results = await scene.play(*calls(scene.innocent, 0.2))  # due before their limit, and all during the stall
    assert results == ["served"] * 5
    scene.assert_all_closed()


@pytest.mark.realtime
async def test_calls_that_have_no_answer_when_the_loop_is_back_time_out_and_open_nothing():
    scene = Scene()
    results = await scene.play(*calls(scene.innocent, 5.0))
    assert [type(result) for result in results] == [AttemptTimeout] * 5
    scene.assert_all_closed()
    assert all(guard.statistics().neutral == 1 for guard in scene.innocent)


@pytest.mark.realtime
async def test_a_worker_process_that_has_answered_meanwhile_is_served_and_one_that_has_not_is_killed():
    scene = Scene()
    async with ProcessPool(2) as pool:
        warm = scene.kernel.guard("warm")
        await asyncio.gather(*(call_process(warm, pool, hostile.nap, 0.05) for _ in range(2)))
        fast, slow = scene.innocent[:2]
        results = await scene.play(
            asyncio.ensure_future(call_process(fast, pool, hostile.nap, 0.2)),
            asyncio.ensure_future(call_process(slow, pool, hostile.nap, 100.0)),
        )
        assert results[0] is None
        assert isinstance(results[1], AttemptTimeout)
    scene.assert_all_closed()


@pytest.mark.realtime
async def test_who_blocks_the_loop_again_and_again_is_kept_away_from_everybody_else():
    scene = Scene()
    for _ in range(3):
        await scene.play(seconds=0.15)
    while len(scene.of("loop.stalled")) < 3:  # noqa: ASYNC110 - the last may be told in the next pass of the loop
        await asyncio.sleep(0)
    assert [event.downstream for event in scene.of("loop.stalled")] == ["blocker"] * 3
    with pytest.raises(BreakerOpen, match="blocker"):
        await scene.blocker.call(scene.blocks, 0.15)
    (opened,) = scene.of("breaker.open")
    assert "blocked the event loop 3 times" in opened.data.reason
    assert [guard.breaker.state for guard in scene.innocent] == ["closed"] * 5


@pytest.mark.realtime
async def test_whoever_only_waits_while_another_blocks_is_not_blamed():
    scene = Scene()
    for _ in range(3):
        await scene.play(*calls(scene.innocent, 0.3), seconds=0.15)
    assert [guard.breaker.state for guard in scene.innocent] == ["closed"] * 5
