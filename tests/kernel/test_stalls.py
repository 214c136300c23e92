"""The loop was away: what had arrived is taken, what is late is nobody's fault, and the time counts for nobody."""

import asyncio
from dataclasses import replace

from failsoft.base.errors import AttemptTimeout
from failsoft.kernel.breaker import BreakerPolicy
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.deadline import heap_of
from failsoft.kernel.guard import Guard, guard
from failsoft.kernel.policy import HedgePolicy, Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.testing.clock import virtual_loop

TOUCHY = Policy(
    attempt_timeout=1.0,
    call_timeout=10.0,
    retry=RetryPolicy(queries=0),
    bulkhead=BulkheadPolicy(permits=100),
    breaker=BreakerPolicy(
        window=30.0, minimum=5, failure_ratio=0.2, mean=0.9, slow_threshold=0.8, slow_ratio=0.2, consecutive_timeouts=3
    ),
)


async def steadily(one: Guard, calls: int, seconds: float, *, every: float = 0.05) -> list[object]:
    """Calls that take so long each, begun one after the other."""
    begun = []
    for _ in range(calls):
        begun.append(asyncio.create_task(one.call(asyncio.sleep, seconds, "served")))
        await asyncio.sleep(every)
    return await asyncio.gather(*begun, return_exceptions=True)


async def test_a_stop_of_five_seconds_under_load_is_not_taken_for_slow_calls():
    one = guard("d", TOUCHY)
    loop = virtual_loop()
    loop.call_at(1.51, loop.stall, 5.0)
    results = await steadily(one, 60, 0.3)
    assert set(results) == {"served"}
    statistics = one.breaker.statistics(loop.time())
    assert str(one.breaker.state) == "closed"
    assert statistics.slow == 0
    assert (one.latency.healthy_p95 or 0.0) < 0.4
    assert (one.bulkhead.service_time or 0.0) < 0.4
    assert 4.5 < heap_of(loop).lost <= 5.0


async def test_calls_in_flight_when_the_process_was_stopped_do_not_count_as_hung():
    breaker = BreakerPolicy(window=30.0, minimum=5, failure_ratio=None, slow_threshold=3.0, slow_ratio=0.2)
    one = guard("d", replace(TOUCHY, attempt_timeout=9.0, breaker=breaker))
    limited = guard("limited", TOUCHY)
    loop = virtual_loop()
    loop.call_at(0.31, loop.stall, 5.0)
    begun = asyncio.create_task(steadily(one, 6, 6.5))
    await steadily(limited, 10, 0.1)
    await one.call(asyncio.sleep, 0.1)  # whoever comes next counts those that hang
    assert await begun == ["served"] * 6
    assert one.breaker.statistics(loop.time()).slow == 0
    assert str(one.breaker.state) == "closed"


async def test_an_answer_that_takes_some_passes_to_reach_its_caller_is_taken():
    one = guard("d", TOUCHY)
    loop = virtual_loop()
    arrived = loop.create_future()
    loop.call_at(0.9, arrived.set_result, "answer")
    loop.call_at(0.5, loop.stall, 5.0)

    async def reads():
        answer = await arrived
        for _ in range(5):  # headers, a body in pieces, a wrapper or two
            await asyncio.sleep(0)
        return answer

    assert await one.call(reads) == "answer"
    assert one.statistics().timed_out == 0


async def test_an_answer_to_a_hedged_call_is_taken_after_a_stall():
    one = guard("d", replace(TOUCHY, hedge=HedgePolicy()))
    loop = virtual_loop()
    await steadily(one, 25, 0.1)
    arrived = loop.create_future()
    begun = loop.time()
    loop.call_at(begun + 0.9, arrived.set_result, "answer")
    loop.call_at(begun + 0.05, loop.stall, 5.0)

    async def reads():
        return await asyncio.shield(arrived)

    assert await one.call(reads) == "answer"
    assert str(one.breaker.state) == "closed"


async def test_what_was_due_in_the_last_moment_of_a_stall_is_not_blamed():
    one = guard("d", TOUCHY)
    loop = virtual_loop()
    loop.call_at(0.5, loop.stall, 0.7)  # awake at 1.2: the first calls' limits are 0.2 s late, the last one's 0.05
    results = await steadily(one, 4, 5.0)
    assert [type(result) for result in results] == [AttemptTimeout] * 4
    assert one.statistics().timed_out == 0
    assert str(one.breaker.state) == "closed"


async def test_what_is_due_while_the_loop_catches_up_is_not_blamed():
    one = guard("d", TOUCHY)
    loop = virtual_loop()
    busy = 0

    def works_off() -> None:
        """What has piled up meanwhile: 80 ms in each pass, which alone is no stall."""
        nonlocal busy
        busy += 1
        loop.stall(0.08)
        if busy < 20:
            loop.call_soon(works_off)

    def stops() -> None:
        loop.stall(5.0)
        loop.call_soon(works_off)

    asyncio.get_running_loop().call_at(2.0, stops)

    async def begins_late():
        await asyncio.sleep(1.9)
        limited = guard("other", replace(TOUCHY, attempt_timeout=5.6))  # due in the midst of it
        tasks = [limited.call(asyncio.sleep, 20.0) for _ in range(5)]
        return limited, await asyncio.gather(*tasks, return_exceptions=True)

    late = asyncio.create_task(begins_late())
    await steadily(one, 60, 0.3)
    limited, results = await late
    assert [type(result) for result in results] == [AttemptTimeout] * 5
    assert limited.statistics().timed_out == 0
    assert str(limited.breaker.state) == "closed"


async def test_catching_up_ends_and_then_a_downstream_that_hangs_is_blamed():
    one = guard("d", TOUCHY)
    loop = virtual_loop()
    loop.call_at(0.51, loop.stall, 2.0)
    await steadily(one, 20, 0.1)
    results = await steadily(one, 5, 50.0)
    assert {type(result) for result in results} & {AttemptTimeout}
    assert one.statistics().timed_out >= 3
    assert str(one.breaker.state) == "open"


async def test_small_hiccups_of_the_loop_do_not_excuse_a_downstream_that_hangs():
    one = guard("d", TOUCHY)
    loop = virtual_loop()
    for tenth in range(1, 40, 4):
        loop.call_at(tenth / 10, loop.stall, 0.12)
    await steadily(one, 40, 50.0)
    assert str(one.breaker.state) == "open", "in each second the downstream had most of its time"
