"""Whoever is on call is told of a new approval by a signed webhook, once, and never in a run's way."""

import asyncio
import json

from tests.runs.outliving import LastingStore, wall
from tests.runs.test_approvals import TOOLS, paying, pending
from tests.runs.worlds import agent, plan

from failsoft.app import App
from failsoft.base.clock import Sources
from failsoft.config import Settings
from failsoft.models.webhook import signature
from failsoft.runs.result import RunRequest
from failsoft.testing.fakes import FakeResponse, FakeTransport

WEBHOOK = {"webhook": "https://pager.example.com/hook", "webhook_secret": "whsec"}


def paged(transport: FakeTransport, **options) -> App:
    settings = Settings.model_validate({"approvals": WEBHOOK, "agent": "tester"})
    made = App(
        settings,
        agents=[agent(plan(paying(7)), tools=TOOLS)],
        store=LastingStore(),
        sources=Sources(wall=wall),
        **options,
    )
    made._transport = transport
    return made


async def test_a_new_approval_is_told_once_and_signed():
    transport = FakeTransport(FakeResponse(status=204))
    async with paged(transport) as app:
        handle = app.start(RunRequest("q"))
        await handle.settled()
        await asyncio.sleep(1)
        (request,) = transport.requests
        message = json.loads(request.body)
        (asked,) = await pending(app)
        assert (message["event"], message["run_id"], message["arguments"]) == ("approval", handle.run_id, {"amount": 7})
        assert message["arguments_hash"] == asked.arguments_hash
        at = int(request.headers["X-Failsoft-Signature"].split(",")[0].removeprefix("t="))
        assert request.headers["X-Failsoft-Signature"] == signature("whsec", request.body, at)
        handle.cancel()


async def test_a_receiver_that_fails_or_hangs_holds_no_run_up():
    for response in (FakeResponse(status=500), FakeResponse(body=[None], status=200)):
        transport = FakeTransport(response)
        async with paged(transport) as app:
            handle = app.start(RunRequest("q", budget_ms=4000))
            await handle.settled()
            assert asyncio.get_running_loop().time() % 1000 < 1
            (asked,) = await pending(app)
            await app.approvals.resolve(asked.id, "approved")
            assert (await handle.result()).status == "completed"
            await asyncio.sleep(60)
            assert 1 <= len(transport.requests) <= 4
        await asyncio.sleep(1000 - asyncio.get_running_loop().time() % 1000)
