"""In-process faults: what each does to a guarded call, and that every one of them ends."""

import asyncio

import pytest

from failsoft.base.errors import AttemptTimeout, BadInput, CallTimeout, DeadlineExceeded, DownstreamUnavailable
from failsoft.drills.faults import parse_fault
from failsoft.drills.injector import Injector
from failsoft.drills.toxics import Delay, Error, Hang
from failsoft.kernel.deadline import deadline_scope
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy


def now():
    return asyncio.get_running_loop().time()


async def answer():
    return 42


def kernel(**policy):
    kernel = Kernel()
    kernel.guard("warehouse", Policy(**{"retry": RetryPolicy(queries=0), **policy}))
    return kernel


async def test_hang_holds_the_attempt_to_its_limit_and_frees_its_permit():
    one = kernel(attempt_timeout=2.0)
    guard = one.guards["warehouse"]
    began = now()
    with Injector(one) as injector:
        injector.inject("warehouse", Hang())
        with pytest.raises(AttemptTimeout):
            await guard.call(answer)
    assert now() - began == 2.0
    assert guard.statistics().in_use == 0
    assert await guard.call(answer) == 42


async def test_hang_meets_the_runs_deadline():
    one = kernel(call_timeout=None)
    began = now()
    with Injector(one) as injector:
        injector.inject("warehouse", Hang())
        with pytest.raises(DeadlineExceeded):
            async with deadline_scope(0.5):
                await one.guards["warehouse"].call(answer)
    assert now() - began == 0.5


async def test_ending_a_hang_lets_the_call_through():
    one = kernel(call_timeout=30.0)
    injector = Injector(one)
    lease = injector.inject("warehouse", Hang(), seconds=3.0)
    began = now()
    assert await one.guards["warehouse"].call(answer) == 42
    assert now() - began == 3.0
    assert (injector.leases, one.guards["warehouse"].interceptor) == ((), None)
    assert repr(lease) == "<Lease warehouse=hang ended applied=1>"


async def test_hang_of_a_plain_function_starts_no_thread():
    one = kernel(call_timeout=1.0)
    with Injector(one) as injector:
        injector.inject("warehouse", Hang())
        with pytest.raises(CallTimeout):
            await one.guards["warehouse"].call_sync(lambda: 42)
    assert one.guards["warehouse"].orphans() == []
    assert one.guards["warehouse"].statistics().threads == 0
    await one.aclose()


async def test_delay_comes_before_the_call():
    one = kernel()
    with Injector(one) as injector:
        injector.inject("warehouse", Delay(1.5))
        began = now()
        assert await one.guards["warehouse"].call(answer) == 42
        assert now() - began == 1.5


@pytest.mark.parametrize("code", ["unavailable", "reset", "refused"])
async def test_error_counts_as_the_downstreams_failure(code):
    one = kernel()
    with Injector(one) as injector:
        injector.inject("warehouse", Error(code))
        with pytest.raises((DownstreamUnavailable, ConnectionError)):
            await one.guards["warehouse"].call(answer)
    assert one.guards["warehouse"].statistics().failed == 1


async def test_faults_nest_and_end_apart():
    one = kernel()
    with Injector(one) as injector:
        injector.inject("warehouse", Delay(1.0))
        error = injector.inject("warehouse", Error())
        began = now()
        with pytest.raises(DownstreamUnavailable):
            await one.guards["warehouse"].call(answer)
        assert now() - began == 1.0
        error.end()
        error.end()
        assert await one.guards["warehouse"].call(answer) == 42
        assert repr(injector) == "<Injector warehouse=delay:1s>"
    assert repr(injector) == "<Injector idle>"


async def test_only_the_named_downstream_suffers():
    one = kernel()
    one.guard("charts")
    with Injector(one) as injector:
        injector.inject("warehouse", Hang())
        assert await one.guards["charts"].call(answer) == 42


async def test_leaving_by_an_error_ends_the_faults():
    one = kernel()

    def fail_under_a_fault():
        with Injector(one) as injector:
            injector.inject("warehouse", Hang(), seconds=1000.0)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_under_a_fault()
    assert one.guards["warehouse"].interceptor is None


async def test_unknown_downstream_and_too_many_faults_are_refused():
    one = kernel()
    with Injector(one) as injector:
        with pytest.raises(BadInput, match="no downstream is called 'warehose'; there are: warehouse"):
            injector.inject("warehose", Hang())
        for _ in range(16):
            injector.inject("warehouse", Delay(0.0))
        with pytest.raises(BadInput, match="16 faults already"):
            injector.inject("warehouse", Delay(0.0))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("warehouse=hang", ("warehouse", Hang())),
        ("charts=delay:300ms", ("charts", Delay(0.3))),
        ("charts=delay:2", ("charts", Delay(2.0))),
        ("warehouse=error", ("warehouse", Error("unavailable"))),
        ("warehouse=error:reset", ("warehouse", Error("reset"))),
        (" warehouse = hang ", ("warehouse", Hang())),
    ],
)
def test_faults_as_people_write_them(text, fault):
    assert parse_fault(text) == fault
    assert parse_fault(f"{fault[0]}={fault[1]}") == fault


@pytest.mark.parametrize(
    "text",
    [
        "",
        "warehouse",
        "=hang",
        "warehouse=",
        "x=hung",
        "x=hang:3",
        "x=delay",
        "x=delay:soon",
        "x=error:odd",
        "x=error:",
    ],
)
def test_what_is_no_fault_is_refused(text):
    with pytest.raises(BadInput, match=r"^--fault: ") as caught:
        parse_fault(text)
    assert caught.value.param == "fault"
