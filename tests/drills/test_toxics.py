"""Each toxic in process: what it makes of one call. And how faults are written: shares, ramps, schedules."""

import asyncio
import random

import pytest

from failsoft.base.errors import (
    BadInput,
    DownstreamError,
    DownstreamUnavailable,
    EmptyResult,
    MalformedResult,
    StreamCut,
)
from failsoft.drills.faults import Strike, made_toxic, parse_fault, parse_toxic
from failsoft.drills.injector import Injector
from failsoft.drills.toxics import KINDS, Delay, Hang, Jitter, Term
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy


def now():
    return asyncio.get_running_loop().time()


async def answer():
    await asyncio.sleep(0.1)
    return 42


async def struck(text, *, after=10.0):
    """What one call under a toxic gives, and how long it takes; the fault ends `after` seconds."""
    term = Term(random.Random(3), now())
    asyncio.get_running_loop().call_later(after, term.set)
    began = now()
    try:
        value = await parse_toxic(text).apply(answer, term)
    except Exception as error:
        value = type(error)
    return value, round(now() - began, 6)


@pytest.mark.parametrize(
    ("text", "value", "seconds"),
    [
        ("latency:delay=2s", 42, 2.1),
        ("bandwidth:rate=0.1", 42, 1.0),
        ("slow_first_byte:delay=500ms", 42, 0.6),
        ("hang", 42, 10.1),
        ("refuse", ConnectionRefusedError, 0.0),
        ("reset", ConnectionResetError, 0.0),
        ("cut", StreamCut, 0.1),
        ("error:code=crash", RuntimeError, 0.0),
        ("http_error:status=503", DownstreamUnavailable, 0.0),
        ("http_error:status=404", DownstreamError, 0.0),
        ("error_under_200", DownstreamError, 0.0),
        ("empty_200", EmptyResult, 0.0),
        ("garbage", MalformedResult, 0.0),
        ("wrong_length", StreamCut, 0.1),
        ("rate_limit:retry_after=3", DownstreamUnavailable, 0.0),
        ("stall:after=2", 42, 10.0),
        ("drip:size=100,every=0.5", 42, 2.1),
        ("no_finish_reason", StreamCut, 0.1),
    ],
)
async def test_what_each_makes_of_a_call(text, value, seconds):
    assert await struck(text) == (value, seconds)


async def test_jitter_is_uniform_and_drawn_from_the_faults_own_chance():
    term = Term(random.Random(1), 0.0)
    took = []
    for _ in range(50):
        began = now()
        await Jitter(2.0).apply(answer, term)
        took.append(now() - began - 0.1)
    assert min(took) < 0.3
    assert max(took) > 1.7


def test_every_kind_is_shown_above():
    (mark,) = test_what_each_makes_of_a_call.pytestmark
    assert {case[0].split(":")[0] for case in mark.args[1]} | {"jitter"} == set(KINDS)


async def test_an_ended_fault_does_no_harm():
    term = Term(random.Random(1), 0.0)
    term.set()
    for kind, made in KINDS.items():
        given = {"delay": 5.0} if kind in ("latency", "slow_first_byte") else {"up_to": 5.0} if kind == "jitter" else {}
        began = now()
        assert await made(**given).apply(answer, term) == 42, kind
        assert now() - began == pytest.approx(0.1), kind


# --- when -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("hang:share=0.25", {0.0: 0.25, 99.0: 0.25}),
        ("hang:after=10s,for=5s", {9.9: 0.0, 10.0: 1.0, 14.9: 1.0, 15.0: 0.0}),
        ("hang:ramp=10s", {0.0: 0.0, 5.0: 0.5, 10.0: 1.0, 20.0: 1.0}),
        ("hang:share=0.5,ramp=10s,after=2s", {1.0: 0.0, 7.0: 0.25, 12.0: 0.5}),
        ("hang:on=2s,off=1s", {0.0: 1.0, 1.9: 1.0, 2.0: 0.0, 2.9: 0.0, 3.0: 1.0}),
    ],
)
def test_shares_over_time(text, shares):
    strike = parse_toxic(text)
    assert isinstance(strike, Strike)
    assert {at: strike.share_at(at) for at in shares} == shares


async def test_what_hangs_goes_on_when_the_schedule_is_over():
    kernel = Kernel()
    guard = kernel.guard("d", Policy(retry=RetryPolicy(queries=0)))
    with Injector(kernel) as injector:
        injector.inject("d", parse_toxic("hang:after=1s,for=4s"))
        await asyncio.sleep(2.0)
        assert await guard.call(answer) == 42
        assert now() == pytest.approx(5.1)
        assert injector.leases == ()


async def test_a_share_of_the_calls_is_struck():
    kernel = Kernel()
    guard = kernel.guard("d", Policy(retry=RetryPolicy(queries=0), breaker=None))
    failed = 0
    with Injector(kernel, rng=random.Random(7)) as injector:
        lease = injector.inject("d", parse_toxic("reset:share=0.2"))
        for _ in range(1000):
            try:
                await guard.call(answer)
            except ConnectionResetError:
                failed += 1
        assert lease.applied == 1000
    assert 160 < failed < 240


@pytest.mark.parametrize(
    "text",
    [
        "latency:delay=20,share=0.05",
        "hang",
        "stall:after=3",
        "bandwidth:rate=0.1,bytes_per_second=0",
        "error:code=reset",
    ],
)
def test_a_fault_is_shown_as_it_may_be_written(text):
    made = parse_toxic(text)
    shown = str(made)
    assert parse_fault(f"x={shown}") == ("x", made)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("odd", "unknown kind of toxic 'odd'; known are latency, "),
        ("latency", "latency needs delay, for instance latency:delay=2s"),
        ("latency:delay=soon", "latency: delay: should be a duration"),
        ("latency:delay=1s,share=2", "share is between 0 and 1"),
        ("latency:delay=1s,often=2", "latency has no 'often'; it takes delay, share, "),
        ("latency:1s", "'1s' should be name=value"),
        ("bandwidth:rate=0", "should be a finite number above 0"),
        ("error:code=odd", "known are unavailable, "),
        ("hang:on=0s", "on must be more than 0"),
    ],
)
def test_what_is_no_fault_is_told(text, told):
    with pytest.raises(BadInput, match=told.replace("(", r"\(")):
        parse_toxic(text)


def test_faults_of_the_command_line_may_be_any_toxic():
    assert parse_fault("warehouse=latency:delay=20s,share=0.05") == (
        "warehouse",
        Strike(Delay(20.0), share=0.05),
    )
    assert parse_fault("warehouse=hang:for=3s") == ("warehouse", Strike(Hang(), lasting=3.0))
    with pytest.raises(BadInput, match=r"^--fault: latency needs delay"):
        parse_fault("warehouse=latency")


def test_figures_may_be_numbers():
    assert made_toxic("latency", delay=2) == Delay(2.0)
