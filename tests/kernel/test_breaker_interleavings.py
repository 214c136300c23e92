"""Every interleaving of a few calls with every end, by exhaustive search of the breaker's whole state space.

A node is (breaker, what is in flight, time). From each one, all moves are tried: another call asks, any call in flight
ends in any way, hangs or is lost, time passes. Nodes that are equal are visited once. What must hold at every node is
asserted there.
"""

import io
import pickle
import random
from itertools import product
from typing import Any

import pytest
from tests.deep import some_of

from failsoft.kernel.breaker import Admission, Breaker, BreakerPolicy, BreakerState, ProbeCap

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
CALLS, LATEST = 3, 1.0
ENDS = ("ok", "failed", "timeout", "neutral")
RULES: dict[str, Any] = {
    "failure_ratio": None,
    "consecutive_timeouts": 2,
    "consecutive_failures": 2,
    "open_jitter": 0.0,
    "open_for": 1.0,
    "open_max": 1.0,
    "inflight_age": 0.5,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "one probe closes": {"probes": 1, "close_after": 1, "ramp": 0.0},
    "two at once, two needed": {"probes": 2, "close_after": 2, "ramp": 0.0},
    "two at once, one needed": {"probes": 2, "close_after": 1, "ramp": 0.0},
    "one at once, two needed, ramp": {"probes": 1, "close_after": 2, "ramp": 1.0},
    "trips at once, two probes, ramp": {"probes": 2, "close_after": 2, "ramp": 1.0, "failures": 1},
}


class Half(random.Random):
    """Chance without state, so that nodes are small and comparable."""

    def random(self):
        return 0.5

    def __reduce__(self):
        return "HALF"


HALF = Half()
POLICIES = [
    BreakerPolicy(**{**RULES, **settings, "probe_lease": lease})
    for settings in SETTINGS.values()
    for lease in (1.0, 2.0)
]


def policy_at(index):
    return POLICIES[index]


def as_bytes(node):
    """Pickled, but for the policies, which are named: they are most of a breaker's bytes and never change."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {BreakerPolicy: lambda policy: (policy_at, (POLICIES.index(policy),))}
    pickler.dump(node)
    return out.getvalue()


def plain(call):
    return (tuple(call[0]), *call[1:])


def call_of(plain_call):
    return (Admission(*plain_call[0]), *plain_call[1:])


class Node:
    """A breaker, the calls in flight as (admission, hung, taken at), the calls lost, and the time."""

    def __init__(self, breaker, cap, in_flight=(), lost=(), asked=0, now=0.0):
        self.breaker, self.cap, self.in_flight, self.lost = breaker, cap, in_flight, lost
        self.asked, self.now = asked, now

    def frozen(self):
        """The node as bytes: equal nodes give equal bytes, and :meth:`thawed` gives a node of its own each time."""
        calls = sorted(map(plain, self.in_flight)), sorted(map(plain, self.lost))
        return as_bytes((self.breaker, self.cap, *calls, self.asked, self.now))

    @classmethod
    def thawed(cls, frozen):
        breaker, cap, in_flight, lost, asked, now = pickle.loads(frozen)
        return cls(breaker, cap, tuple(map(call_of, in_flight)), tuple(map(call_of, lost)), asked, now)

    def places(self):
        """Probes that hold a place: in flight or lost, and within their lease."""
        held = [call for call in self.in_flight + self.lost if call[0].probe]
        return sum(1 for _, _, at in held if self.now < at + self.breaker.policy.probe_lease)


def look(breaker, now):
    return breaker.statistics(now), breaker.generation, breaker.clear, breaker.standing


def ask(node):
    before = look(node.breaker, node.now)
    free = node.places() < node.breaker.policy.probes
    told = node.breaker.retry_in(node.now)
    admission = node.breaker.admit(node.now)
    node.asked += 1
    after = node.breaker.state
    if before[0].state is CLOSED:
        assert told is None
        assert after is CLOSED
        assert admission in (node.breaker.standing, None)
        assert admission is not None or not before[2]
    elif told is not None:
        assert admission is None
        assert after is before[0].state
    else:
        assert free
        assert admission is not None
        assert admission.probe
        assert after is HALF_OPEN
    if admission is not None:
        assert admission.generation == node.breaker.generation
        node.in_flight += ((admission, False, node.now),)


def end(node, call, how):
    node.in_flight = without(node.in_flight, call)
    admission, hung, at = call
    before = look(node.breaker, node.now)
    stale = admission.generation != node.breaker.generation
    node.breaker.settle(admission, how, node.now - at, node.now, hung_counted=hung)
    after = look(node.breaker, node.now)
    if stale or (how == "neutral" and not hung):
        assert same_but_for_places(after, before), "a stale or neutral end counted"
    elif admission.probe:
        assert node.breaker.state is (
            OPEN
            if how != "ok"
            else CLOSED
            if before[0].good_probes + 1 == node.breaker.policy.close_after
            else HALF_OPEN
        )
    if admission.probe:
        once = look(node.breaker, node.now)
        for again in ENDS:
            node.breaker.settle(admission, again, 0.0, node.now, hung_counted=hung)
        node.breaker.hung(admission, node.now)
        assert look(node.breaker, node.now) == once, "a second settling counted"


def same_but_for_places(after, before):
    fields = [name for name in before[0].__slots__ if name not in ("probes", "retry_in")]
    return after[1:] == before[1:] and all(getattr(after[0], name) == getattr(before[0], name) for name in fields)


def hang(node, call):
    admission, _, at = call
    node.in_flight = (*without(node.in_flight, call), (admission, True, at))
    before = look(node.breaker, node.now)
    node.breaker.hung(admission, node.now)
    if admission.generation != before[1]:
        assert look(node.breaker, node.now) == before
    elif admission.probe:
        assert node.breaker.state is OPEN


def lose(node, call):
    node.in_flight, node.lost = without(node.in_flight, call), (*node.lost, call)


def without(calls, call):
    left = list(calls)
    left.remove(call)
    return tuple(left)


def moves(node, calls, latest):
    if node.asked < calls:
        yield ask, ()
    for call in sorted(set(node.in_flight)):
        for how in ENDS:
            yield end, (call, how)
        yield lose, (call,)
        if not call[1] and node.now > call[2]:
            yield hang, (call,)
    if node.now < latest:
        yield passes, ()


def passes(node):
    node.now += 1.0


def holds_at(node, generation):
    breaker, shown = node.breaker, node.breaker.statistics(node.now)
    assert shown.probes == node.places() == node.cap.in_use(node.now) <= breaker.policy.probes
    assert breaker.generation >= generation
    assert breaker.standing.generation == breaker.generation
    assert not breaker.clear or breaker.state is CLOSED
    assert shown.hung == sum(1 for call in node.in_flight + node.lost if counted_as_hung(call, breaker))
    assert shown.listener_errors == 0


def counted_as_hung(call, breaker):
    return call[1] and not call[0].probe and call[0].generation == breaker.generation


def closes_in_the_end(node):
    """Whatever is lost or in flight: wait, send good calls, and it carries full load again."""
    breaker, now = node.breaker, node.now
    for _ in range(20):
        now += 2.0
        admission = breaker.admit(now)
        if admission is not None:
            breaker.settle(admission, "ok", 0.0, now)
        if breaker.clear:
            return
    pytest.fail(f"does not close: {breaker!r}")


def start(settings, state):
    cap = ProbeCap(8)
    breaker = Breaker(BreakerPolicy(**{**RULES, **settings}), rng=HALF, probe_cap=cap)
    node = Node(breaker, cap)
    if state is not CLOSED:
        breaker.force_open(0.0, for_=0.0)
    return node


BEGINNINGS = {
    "closed": (CLOSED, 2.0),
    "leases outlive their round": (OPEN, 2.0),
    "leases expire with it": (OPEN, 1.0),
}


@pytest.mark.parametrize(("beginning", "settings"), some_of(product(BEGINNINGS, SETTINGS), each=4))
def test_every_interleaving_of_three_calls(beginning, settings):
    state, probe_lease = BEGINNINGS[beginning]
    first = start({**SETTINGS[settings], "probe_lease": probe_lease}, state).frozen()
    seen, to_visit, reached = {first}, [first], set()
    while to_visit:
        frozen = to_visit.pop()
        for move, arguments in moves(Node.thawed(frozen), CALLS, LATEST):
            node = Node.thawed(frozen)
            generation = node.breaker.generation
            move(node, *arguments)
            holds_at(node, generation)
            after = node.frozen()
            if after not in seen:
                seen.add(after)
                to_visit.append(after)
                reached.add(node.breaker.state)
                closes_in_the_end(node)
    assert len(seen) > 100
    assert reached == {CLOSED, OPEN, HALF_OPEN}
