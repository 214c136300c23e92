"""Aliases changed while calls are in flight: those end where they began, what is still true is kept, the rest goes."""

import asyncio
import dataclasses

import pytest

from failsoft.base.errors import DownstreamUnavailable, NotFound
from failsoft.kernel.bulkhead import BulkheadPolicy
from failsoft.kernel.cache import CachePolicy
from failsoft.kernel.guard import Kernel
from failsoft.kernel.policy import Policy
from failsoft.kernel.retry import RetryPolicy
from failsoft.models.chat_request import ChatRequest
from failsoft.models.gateway import Gateway
from failsoft.models.routes import Alias, Route
from failsoft.models.staged import StagedPolicy
from failsoft.testing.fakes import FakeTransport, completion

POLICY = Policy(bulkhead=BulkheadPolicy(permits=4, queue=10), retry=RetryPolicy(queries=0), breaker=None)
MAIN = Route("main", "http://main/v1", api_key="one", policy=POLICY)
BACKUP = Route("backup", "http://backup/v1", policy=POLICY)


class World:
    """A gateway whose upstreams answer with their host's name, but for those that are `down`."""

    def __init__(self, *aliases):
        self.down = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = []
        self.kernel = Kernel()
        self.transport = FakeTransport(self.answer)
        self.gateway = Gateway(aliases, self.kernel, self.transport)

    def answer(self, request):
        host = request.url.split("/")[2]
        self.asked.append((host, request.headers.get("Authorization")))
        if host in self.down:
            raise DownstreamUnavailable("down")
        return completion(host)

    async def ask(self, model="chat", text="hi"):
        request = ChatRequest({"model": model, "messages": [{"role": "user", "content": text}]}, 50)
        record = self.gateway.record(request)
        answer = await self.gateway.complete(request, record)
        return answer["choices"][0]["message"]["content"], record


async def test_aliases_come_go_and_change():
    world = World(Alias("chat", (MAIN,)), Alias("old", (BACKUP,)))
    assert (await world.ask())[0] == "main"
    world.gateway.reconfigure([Alias("chat", (BACKUP,)), Alias("new", (Route("text", text="hello"),))])
    assert (await world.ask())[0] == "backup"
    assert (await world.ask("new"))[0] == "hello"
    with pytest.raises(NotFound, match="there are chat, new"):
        await world.ask("old")
    assert list(world.gateway.aliases) == ["chat", "new"]
    assert [world.gateway.serves(name) for name in ("chat", "old", "new")] == [True, False, True]
    assert set(world.kernel.guards) == {BACKUP.downstream}  # nobody goes to the other any more


async def test_a_new_key_is_used_at_once_under_a_guard_of_its_own():
    world = World(Alias("chat", (MAIN,)))
    await world.ask()
    changed = dataclasses.replace(MAIN, api_key="two")
    world.gateway.reconfigure([Alias("chat", (changed,))])
    await world.ask()
    assert [key for _, key in world.asked] == ["Bearer one", "Bearer two"]
    assert set(world.kernel.guards) == {changed.downstream}


async def test_what_was_learned_of_a_route_stays_with_it_wherever_it_stands_now():
    world = World(Alias("chat", (MAIN, BACKUP)))
    world.down.add("main")
    for _ in range(3):  # three errors in a row: the alias leaves its first route
        assert (await world.ask())[0] == "backup"
    guard, state = world.kernel.guards[BACKUP.downstream], world.gateway.state("chat")
    staged, load = state.routes[1].staged, state.routes[1].load
    world.asked.clear()
    third = Route("third", "http://third/v1", policy=POLICY)
    slower = dataclasses.replace(BACKUP, staged=StagedPolicy(shortened=3.0), capacity=7)
    world.gateway.reconfigure([Alias("chat", (MAIN, third, slower), description="now with three")])
    now = world.gateway.state("chat").routes[2]
    assert (now.guard, now.staged, now.load) == (guard, staged, load)
    assert (now.staged.policy.shortened, now.load.capacity) == (3.0, 7)
    # The first route is left alone still; the new one is better than the one in use, and is tried by the next request.
    assert [(await world.ask())[0] for _ in range(2)] == ["third", "third"]
    assert [host for host, _ in world.asked] == ["third", "third"]


async def test_policies_change_in_place():
    world = World(Alias("chat", (MAIN,)))
    guard = world.kernel.guards[MAIN.downstream]
    fewer = dataclasses.replace(MAIN, policy=dataclasses.replace(POLICY, bulkhead=BulkheadPolicy(permits=2, queue=10)))
    world.gateway.reconfigure([Alias("chat", (fewer,))])
    assert world.kernel.guards[MAIN.downstream] is guard
    assert guard.bulkhead.limit == 2


async def test_cached_answers_stay_while_the_same_routes_would_give_them():
    cached = Alias("chat", (MAIN,), cache=CachePolicy(ttl=60.0))
    world = World(cached)
    await world.ask()
    world.gateway.reconfigure([dataclasses.replace(cached, description="other words", heartbeat=1.0)])
    assert (await world.ask())[1].cache == "hit"
    world.gateway.reconfigure([dataclasses.replace(cached, routes=(dataclasses.replace(MAIN, system="Be brief."),))])
    assert (await world.ask())[1].cache == "miss"
    world.gateway.reconfigure([Alias("chat", (MAIN,))])
    assert (await world.ask())[1].cache != "hit"


async def test_calls_in_flight_end_where_they_began_and_leave_nothing():
    gate = asyncio.Event()

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

    world = World(Alias("chat", (MAIN, BACKUP)))
    world.gateway.transport = Slow(world.answer)
    guard = world.kernel.guards[MAIN.downstream]
    calls = [asyncio.ensure_future(world.ask(text=f"question {n}")) for n in range(6)]  # two of them in the queue
    await asyncio.sleep(0.01)
    world.gateway.reconfigure([Alias("other", (Route("text", text="hello"),))])
    assert world.kernel.guards == {}
    assert (await world.ask("other"))[0] == "hello"
    gate.set()
    assert [(await call)[0] for call in calls] == ["main"] * 6
    figures = guard.statistics()
    assert (figures.in_use, figures.waiting, figures.ok) == (0, 0, 6)
    await world.kernel.aclose()


async def test_aliases_that_contradict_each_other_change_nothing():
    world = World(Alias("chat", (MAIN,)))
    other = dataclasses.replace(MAIN, policy=Policy())
    with pytest.raises(ValueError, match="guards the same route"):
        world.gateway.reconfigure([Alias("a", (MAIN,)), Alias("b", (other,))])
    with pytest.raises(ValueError, match="two aliases"):
        world.gateway.reconfigure([Alias("a", (MAIN,)), Alias("a", (MAIN,))])
    assert list(world.gateway.aliases) == ["chat"]
    assert (await world.ask())[0] == "main"


async def test_a_thousand_keys_leave_one_guard():
    world = World(Alias("chat", (MAIN,)))
    for number in range(1000):
        world.gateway.reconfigure([Alias("chat", (dataclasses.replace(MAIN, api_key=str(number)),))])
        if number % 100 == 0:
            await world.ask()
    assert len(world.kernel.guards) == 1
    assert world.kernel._retired == []
