"""One page of figures for several processes: whoever is scraped asks the others, and none can hold it up."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.models_served import serving_models

from failsoft.base.errors import DownstreamUnavailable
from failsoft.kernel.guard import Kernel
from failsoft.server.peer_metrics import PeerMetrics
from failsoft.telemetry.exposition import Histogram, Page, merged
from failsoft.testing.fakes import FakeResponse, FakeTransport


def page(n: float, downstream: str = "db") -> str:
    made = Page()
    made.family("calls_total", "counter", "Calls.", [({"downstream": downstream}, n)])
    made.family("oldest_wait_seconds", "gauge", "Waits.", [({}, n)])
    made.family("in_use", "gauge", "Permits.", [({}, n)])
    held = Histogram([1.0, 2.0])
    held.observe(n)
    made.histograms("took_seconds", "Took.", [({}, held)])
    return made.text().decode()


def figures(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_counts_add_up_and_times_are_the_worst():
    found = figures(merged([page(1), page(2), page(5, "web")]).decode())
    assert found['calls_total{downstream="db"}'] == 3
    assert found['calls_total{downstream="web"}'] == 5
    assert (found["oldest_wait_seconds"], found["in_use"]) == (5, 8)
    assert [found[f'took_seconds_bucket{{le="{le}"}}'] for le in ("1", "2", "+Inf")] == [1, 2, 3]
    assert (found["took_seconds_sum"], found["took_seconds_count"]) == (8, 3)


def test_one_page_stays_what_it_is():
    assert merged([page(3)]).decode() == page(3)


LINES = ["# HELP a b", "# TYPE a counter", "# TYPE a gauge", "a 1", "a x", "a nan", "a -inf", "b 2"]


@given(st.text() | st.lists(st.sampled_from(LINES)))
def test_whatever_a_peer_says_harms_nothing(said):
    text = said if isinstance(said, str) else "\n".join(said)
    found = merged([page(1), text]).decode()
    assert figures(found)['calls_total{downstream="db"}'] == 1


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_finite_number_is_passed_on(number):
    text = f"# HELP a b\n# TYPE a gauge\na {number}\n"
    assert merged([text]).decode() == text


@pytest.mark.parametrize(
    "answer",
    [
        FakeResponse(status=500),
        FakeResponse(body=[None]),
        FakeResponse(body=[b"x" * (9 << 20)]),
        DownstreamUnavailable("refused"),
    ],
)
async def test_a_peer_that_does_not_answer_is_missing_and_not_waited_for(answer):
    transport = FakeTransport(FakeResponse(body=[page(2).encode()]), answer)
    peers = PeerMetrics(["http://10.0.0.1:1", "http://10.0.0.2:1/"], Kernel(), transport)
    began = asyncio.get_running_loop().time()
    found = figures((await peers.merged(page(1).encode())).decode())
    assert asyncio.get_running_loop().time() - began <= 1.01
    assert found['calls_total{downstream="db"}'] == 3
    assert found['failsoft_metrics_processes{state="merged"}'] == 2
    assert found['failsoft_metrics_processes{state="missing"}'] == 1
    assert [request.url for request in transport.requests] == [f"http://10.0.0.{n}:1/metrics?own=1" for n in (1, 2)]
    assert transport.open == 0


@pytest.mark.realtime
@pytest.mark.xdist_group("server")
async def test_a_process_answers_for_itself_and_its_peers():
    async with serving_models() as one:
        await one.chat()
        dead = "http://127.0.0.1:9"
        async with serving_models(server={"peers": [one.server.address, dead]}) as two:
            await two.chat()
            await two.chat()
            found = await two.scrape()
            calls = 'failsoft_gateway_calls_total{alias="gpt-x",route="main",operation="chat",status="200"}'
            assert (found[calls], (await one.scrape())[calls]) == (3, 1)
            assert found['failsoft_metrics_processes{state="missing"}'] == 1
            own = figures((await two.get("/metrics?own=1")).raw.decode())
            assert own[calls] == 2
