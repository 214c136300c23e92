"""What a caller gets wrong (a classifier that raises, a size of nought, a stream that is never left) costs the caller
an error. It cost the downstream a permit for ever, and the caller's later, unrelated work a cancellation.
"""

import asyncio
import contextlib
import gc
import math
import sys
import warnings
from dataclasses import replace
from typing import Any, cast

import pytest

from failsoft.base.errors import ConfigError, InternalError, ToolFailed
from failsoft.kernel.adaptive import AdaptiveLimitPolicy
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.cache import CachePolicy
from failsoft.kernel.classify import Counts, Verdict
from failsoft.kernel.deadline import deadline_scope, heap_of
from failsoft.kernel.guard import guard
from failsoft.kernel.ladder import Rung, climb
from failsoft.kernel.policy import HedgePolicy, Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.kernel.scope import scope
from failsoft.testing.cancellation import cancel_at_every_await

POLICY = Policy(attempt_timeout=2.0, bulkhead=BulkheadPolicy(permits=1, queue=0))
POLICIES = {
    "in place": POLICY,
    "detachable": replace(POLICY, detachable=True),
    "hedged": replace(POLICY, hedge=HedgePolicy()),
}


async def fine():
    await asyncio.sleep(0.1)
    return 1


async def broken():
    await asyncio.sleep(0.1)
    raise ConnectionResetError("no")


class NotAnException(BaseException):
    pass


async def hostile():
    await asyncio.sleep(0.1)
    raise NotAnException


async def streamed():
    yield 1
    await asyncio.sleep(1.0)
    yield 2


async def cut_stream():
    await asyncio.sleep(0.1)
    raise ConnectionResetError("no")
    yield 1


def raises(value: Any, error: Any) -> Any:
    raise KeyError("status")


JUNK: list[Any] = [
    raises,
    lambda value, error: True,
    lambda value, error: "failed",
    lambda value, error: Verdict("very bad"),
    lambda value, error: Verdict(Counts.FAILED, error=cast("Any", ValueError("mine"))),
    lambda value, error: Verdict(Counts.FAILED, retry=True, retry_after=math.nan),
    lambda value, error: Verdict(Counts.FAILED, retry=True, retry_after=cast("Any", "soon")),
]


def nothing_held(g):
    figures = g.statistics()
    assert (figures.in_use, figures.waiting, figures.orphans) == (0, 0, 0)
    assert not g.holders()
    assert len(heap_of(asyncio.get_running_loop())) == 0


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("callee", [fine, broken])
@pytest.mark.parametrize("way", POLICIES)
async def test_a_classifier_that_is_no_good_costs_the_call_and_nothing_else(way, callee, junk):
    g = guard("d", POLICIES[way])
    for _ in range(3):
        with pytest.raises(InternalError, match="classifier"):
            await g.call(callee, classify=junk)
        nothing_held(g)
    await asyncio.sleep(60.0)  # no alarm was left to cancel this
    assert g.statistics().neutral == 3
    assert await g.call(fine) == 1
    await g.aclose()


@pytest.mark.parametrize("junk", JUNK)
async def test_a_classifier_that_is_no_good_in_threads_fetches_and_streams(junk):
    g = guard("d", replace(POLICY, coalesce=True))
    with pytest.raises(InternalError):
        await g.call_sync(lambda: 1, classify=junk)
    nothing_held(g)
    with pytest.raises(InternalError):
        await g.fetch("key", fine, classify=junk)
    nothing_held(g)
    with pytest.raises(InternalError):
        async with g.stream(cut_stream, classify=junk):
            pass
    nothing_held(g)
    await asyncio.sleep(60.0)
    await g.aclose()


async def test_what_the_classifier_raised_is_kept_as_the_cause():
    with pytest.raises(InternalError, match="KeyError") as failure:
        await guard("d", POLICY).call(fine, classify=raises)
    assert isinstance(failure.value.__cause__, KeyError)


async def test_a_classifier_that_stops_the_program_stops_it_and_leaves_nothing():
    def stop(value, error):
        raise KeyboardInterrupt

    g = guard("d", POLICY)
    for callee in (fine, broken):
        with pytest.raises(KeyboardInterrupt):
            await g.call(callee, classify=stop)
        nothing_held(g)
    with pytest.raises(KeyboardInterrupt):
        async with g.stream(cut_stream, classify=stop):
            pass
    nothing_held(g)


@pytest.mark.parametrize("way", POLICIES)
def test_a_bad_classifier_and_a_cancellation_at_every_await(way):
    g = None

    async def make():
        nonlocal g
        g = guard("d", POLICIES[way])
        with contextlib.suppress(InternalError):
            await g.call(fine, classify=raises)

    async def check():
        await asyncio.sleep(10.0)
        nothing_held(g)
        await g.aclose()

    assert cancel_at_every_await(make, check) >= 1


OPTIONS = [
    {"size": 0},
    {"size": -1.0},
    {"size": math.nan},
    {"size": math.inf},
    {"size": 10**400},
    {"size": "big"},
    {"timeout": math.nan},
    {"timeout": "1 s"},
    {"kind": "bogus"},
    {"priority": 7},
    {"priority": "high"},
    {"tenant": ["a"]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_an_option_that_makes_no_sense_is_refused_before_anything_is_held(options):
    g = guard("d", POLICY)
    name = next(iter(options))
    for _ in range(2):
        with pytest.raises((ValueError, TypeError), match=name):
            await g.call(fine, **options)
        with pytest.raises((ValueError, TypeError), match=name):
            await g.call_sync(lambda: 1, **options)
        with pytest.raises((ValueError, TypeError), match=name):
            g.stream(streamed, **options)
        with pytest.raises((ValueError, TypeError)):
            await g.fetch("key", fine, **options)
        nothing_held(g)
    with scope(fallback=True):
        assert await g.call(fine) == 1
    await g.aclose()


@pytest.mark.parametrize(
    ("policy", "figures"),
    [
        (BulkheadPolicy, {"permits": 1.5}),
        (BulkheadPolicy, {"permits": math.nan}),
        (BulkheadPolicy, {"permits": True}),
        (BulkheadPolicy, {"queue": 0.5}),
        (AdaptiveLimitPolicy, {"minimum": 1.5}),
        (AdaptiveLimitPolicy, {"max_epoch": math.nan}),
        (RetryPolicy, {"queries": 1.5}),
        (RetryPolicy, {"jitter": "some"}),
        (Policy, {"kind": "bogus"}),
    ],
)
def test_a_policy_of_figures_that_are_none_is_refused(policy: Any, figures: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError)):
        policy(**figures)


async def test_a_stream_that_is_dropped_without_being_left_gives_its_permit_back():
    g = guard("d", POLICY)
    for idle in (None, 30.0):
        items = await g.stream(streamed, idle=idle).__aenter__()
        assert await anext(items) == 1
        assert g.statistics().in_use == 1
        holder = [items]
        del items
        with pytest.warns(ResourceWarning, match="never left"):
            holder.clear()
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        assert g.statistics().in_use == 0
    await asyncio.sleep(60.0)
    nothing_held(g)


async def test_a_dropped_stream_gives_its_permit_back_where_warnings_are_errors(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: told.append(raised.exc_type))
    g = guard("d", POLICY)
    items = await g.stream(streamed).__aenter__()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        del items
        gc.collect()
    assert told == [ResourceWarning]
    await asyncio.sleep(1.0)
    nothing_held(g)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_a_stale_value_hides_no_option_that_makes_no_sense(options):
    g = guard("d", replace(POLICY, cache=CachePolicy(ttl=1.0, jitter=0.0)))
    assert (await g.fetch("key", fine)).value == 1
    await asyncio.sleep(10.0)
    with pytest.raises((ValueError, TypeError)):
        await g.fetch("key", fine, **options)
    assert g.flights.started == 1
    nothing_held(g)


def test_a_deadline_is_a_number():
    for which in ("seconds", "at"):
        with pytest.raises(ValueError, match=which):
            deadline_scope(**{which: math.nan})


async def test_a_rung_that_cannot_say_whether_it_is_there_is_passed_over():
    def unsure():
        raise KeyError("breaker")

    outcome = await climb([Rung("first", fine, available=unsure), Rung("second", fine, kind="alternate")])
    assert outcome.provenance.served == "second"
    assert outcome.provenance.tried[0].code == "tool_failed"


@pytest.mark.parametrize("way", [*POLICIES, "fetched", "in a thread", "streamed"])
async def test_what_is_no_exception_comes_out_as_the_same_error_everywhere(way, caplog):
    g = guard("d", POLICIES.get(way, POLICY))

    def in_thread():
        raise NotAnException

    async def in_stream():
        raise NotAnException
        yield 1

    async def one():
        if way == "in a thread":
            await g.call_sync(in_thread)
        elif way == "fetched":
            await g.fetch("key", hostile)
        elif way == "streamed":
            async with g.stream(in_stream):
                pass
        else:
            await g.call(hostile)

    with pytest.raises(ToolFailed) as failure:
        await one()
    assert isinstance(failure.value.__cause__, NotAnException)
    del failure
    await asyncio.sleep(10.0)
    nothing_held(g)
    gc.collect()
    assert "never retrieved" not in caplog.text
    await g.aclose()


@pytest.mark.parametrize("way", [*POLICIES, "fetched"])
@pytest.mark.parametrize("callee", [broken, hostile])
def test_a_failure_in_the_instant_of_a_cancellation_is_not_complained_of(way, callee, caplog):
    g = None

    async def make():
        nonlocal g
        g = guard("d", POLICIES.get(way, POLICY))
        with contextlib.suppress(ConnectionError, ToolFailed):
            await (g.fetch("key", callee) if way == "fetched" else g.call(callee))

    async def check():
        await asyncio.sleep(10.0)
        gc.collect()
        assert "never retrieved" not in caplog.text
        await g.aclose()

    assert cancel_at_every_await(make, check) >= 1
