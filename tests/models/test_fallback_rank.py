"""Traffic that fell back to a route ranks below the traffic whose first choice it is: no fallback storm."""

import asyncio

import pytest

from failsoft.base.errors import DownstreamUnavailable
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.models.chat_request import ChatRequest
from failsoft.models.gateway import Gateway
from failsoft.models.routes import Alias, Route
from failsoft.testing.fakes import FakeTransport, completion

POLICY = Policy(bulkhead=BulkheadPolicy(permits=4, queue=10), retry=RetryPolicy(queries=0), breaker=None)


def asked(model):
    return ChatRequest({"model": model, "messages": [{"role": "user", "content": "hi"}]}, 50)


@pytest.mark.parametrize("upstream_stream", ["always", "never"])
async def test_what_fell_back_holds_half_of_the_permits_at_most_and_its_own_traffic_goes_first(upstream_stream):
    gate = asyncio.Event()

    def answer(request):
        if "main" in request.url:
            raise DownstreamUnavailable("down")
        return completion("yes")

    class Slow(FakeTransport):
        def send(self, request):
            held = super().send(request)

            class Waiting:
                async def __aenter__(self):
                    response = await held.__aenter__()
                    await gate.wait()
                    return response

                async def __aexit__(self, *exc):
                    return await held.__aexit__(*exc)

            return Waiting()

    backup = Route("backup", "http://backup/v1", policy=POLICY, upstream_stream=upstream_stream)
    main = Route("main", "http://main/v1", policy=POLICY)
    kernel = Kernel()
    aliases = [Alias("chat", (main, backup), coalesce=False), Alias("notes", (backup,), coalesce=False)]
    gateway = Gateway(aliases, kernel, Slow(answer))
    guard = kernel.guards[backup.downstream]
    calls = []
    for model in ("chat", "chat", "chat", "notes", "notes"):
        request = asked(model)
        calls.append(asyncio.ensure_future(gateway.complete(request, gateway.record(request))))
        await asyncio.sleep(0.001)
    figures = guard.bulkhead.statistics(guard.now())
    assert (figures.in_use, figures.fallback_in_use, figures.fallback_waiting) == (4, 2, 1)
    gate.set()
    await asyncio.wait(calls)
    figures = guard.bulkhead.statistics(guard.now())
    assert (figures.in_use, figures.fallback_in_use, figures.waiting) == (0, 0, 0)
