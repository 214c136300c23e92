"""The webhook: signed, off the calls' path, bounded, tried again a few times and no more."""

import asyncio
import hmac
import json
import random
from hashlib import sha256

import pytest

from failsoft.base.clock import Sources
from failsoft.base.errors import DownstreamUnavailable
from failsoft.kernel.guard import Kernel
from failsoft.models.webhook import Webhook, WebhookPolicy
from failsoft.testing.fakes import FakeResponse, FakeTransport

WELL = FakeResponse((), 204, {})
SECRET = "a-shared-secret"


def hook(*responses, **policy):
    transport = FakeTransport(*responses)
    sources = Sources(wall=lambda: 1_800_000_000.5, rng=random.Random(1))
    made = Webhook(WebhookPolicy("http://ops.test/hook", SECRET, **policy), Kernel(sources=sources), transport)
    return made, transport


def bodies(transport):
    return [json.loads(request.body) for request in transport.requests]


async def test_a_message_is_signed_and_says_what_happened():
    webhook, transport = hook(WELL)
    webhook.tell("L2", "gpt-x", "main", {"entered": True, "instances": 2})
    assert not transport.requests  # the call that saw it goes on first
    await webhook.aclose()
    (request,) = transport.requests
    message = json.loads(request.body)
    assert message.pop("id").startswith("evt_")
    assert message == {
        "event": "L2", "at": 1_800_000_000.5, "alias": "gpt-x", "route": "main", "entered": True, "instances": 2
    }  # fmt: skip
    right = hmac.new(SECRET.encode(), b"1800000000." + request.body, sha256).hexdigest()
    assert request.headers["X-Failsoft-Signature"] == f"t=1800000000,v1={right}"
    assert (webhook.sent, webhook.failed, webhook.dropped) == (1, 0, 0)
    assert SECRET not in repr(webhook) + repr(webhook.policy) + repr(request)


@pytest.mark.parametrize("answer", [DownstreamUnavailable("no"), FakeResponse((), 503, {}), FakeResponse((), 429, {})])
async def test_it_is_tried_again_with_the_same_id_and_then_given_up(answer):
    webhook, transport = hook(answer)
    webhook.tell("alert", "gpt-x", "main", {"reading": "quota"})
    await asyncio.sleep(60.0)
    assert len(transport.requests) == 3
    assert len({message["id"] for message in bodies(transport)}) == 1
    assert (webhook.sent, webhook.failed) == (0, 1)
    await webhook.aclose()


async def test_what_the_receiver_refuses_is_not_sent_again():
    webhook, transport = hook(FakeResponse((), 404, {}), WELL)
    webhook.tell("alert", "gpt-x", "main", {"reading": "quota"})
    webhook.tell("alert", "gpt-x", "main", {"reading": "dns"})
    await asyncio.sleep(60.0)
    assert [message["reading"] for message in bodies(transport)] == ["quota", "dns"]
    assert (webhook.sent, webhook.failed) == (1, 1)
    await webhook.aclose()


async def test_the_same_alert_is_told_once_in_a_while_with_how_often_it_was_seen():
    webhook, transport = hook(WELL)
    for _ in range(50):
        webhook.tell("alert", "gpt-x", "main", {"reading": "dns"})
        await asyncio.sleep(2.0)
    webhook.tell("alert", "gpt-x", "backup", {"reading": "dns"})
    await webhook.aclose()
    assert [(message["route"], message["seen_since"]) for message in bodies(transport)] == [
        ("main", 1), ("main", 30), ("backup", 1)
    ]  # fmt: skip


async def test_a_receiver_that_hangs_holds_nothing_up_and_what_waits_is_bounded():
    webhook, transport = hook(lambda _: (_ for _ in ()).throw(DownstreamUnavailable("down")), waiting=4)
    for number in range(100):
        webhook.tell("alert", "gpt-x", f"route-{number}", {"reading": "dns"})
    assert webhook.dropped == 96
    await asyncio.sleep(300.0)
    assert webhook.failed == 4
    assert len(transport.requests) <= 12
    await webhook.aclose()


async def test_closing_waits_a_moment_and_no_longer():
    webhook, _ = hook(lambda _: FakeResponse((), 503, {}))
    webhook.tell("alert", "gpt-x", "main", {"reading": "dns"})
    webhook.tell("alert", "gpt-x", "main", {"reading": "tls"})
    began = asyncio.get_running_loop().time()
    await webhook.aclose(within=2.0)
    assert asyncio.get_running_loop().time() - began <= 2.0
    assert webhook.dropped == 1


async def test_only_what_was_asked_for_is_told():
    webhook, transport = hook(WELL, events=frozenset({"L1"}))
    webhook.tell("alert", "gpt-x", "main", {"reading": "dns"})
    webhook.tell("L1", "gpt-x", "main", {"entered": True})
    await webhook.aclose()
    assert [message["event"] for message in bodies(transport)] == ["L1"]
