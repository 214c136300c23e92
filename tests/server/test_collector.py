"""The collector of a server: what survives two collections is looked at no more, until there is too much of it."""

import subprocess
import sys

import pytest

from failsoft.server import collector
from failsoft.server.collector import Collector


class Gc:
    """What the collector asks of CPython's."""

    def __init__(self):
        self.calls = []

    def freeze(self):
        self.calls.append("freeze")

    def unfreeze(self):
        self.calls.append("unfreeze")


class Time:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def world(monkeypatch):
    fake, time = Gc(), Time()
    monkeypatch.setattr(collector, "gc", fake)
    one = Collector(rounds=40, now=time)

    def collection(generation, collected=0):
        fake.calls.clear()
        one("start", {"generation": generation})
        assert not fake.calls
        one("stop", {"generation": generation, "collected": collected})
        return list(fake.calls)

    return fake, time, collection


def test_what_survives_a_second_collection_is_frozen(world):
    _, _, collection = world
    assert [collection(generation) for generation in (0, 1, 2)] == [[], ["freeze"], ["freeze"]]


def test_all_is_looked_at_again_after_ten_minutes(world):
    _, time, collection = world
    time.now = 599.0
    assert collection(1) == ["freeze"]
    time.now = 600.0
    assert [collection(1) for _ in range(3)] == [["unfreeze"], [], []]  # freezing would put the full one off
    assert [collection(generation) for generation in (2, 1)] == [["freeze"], ["freeze"]]
    time.now = 1200.0
    assert collection(1) == ["unfreeze"]


def rounds(collection, collected):
    """How many second collections there are until a full one."""
    made = 0
    while collection(1) == ["freeze"]:
        made += 1
    assert collection(2, collected) == ["freeze"]
    return made


def test_all_is_looked_at_again_the_sooner_the_more_garbage_was_found(world):
    _, _, collection = world
    assert [rounds(collection, 100) for _ in range(6)] == [40, 80, 160, 320, 400, 400]
    assert [rounds(collection, 1_000_000) for _ in range(6)] == [400, 200, 100, 50, 25, 20]
    assert [rounds(collection, 0) for _ in range(2)] == [20, 40]


def test_cycles_that_were_frozen_are_found_in_the_end():
    code = """
import gc
from failsoft.server.collector import collect_rarely
collect_rarely(rounds=40)
class Node: pass
kept = []
for n in range(500_000):
    node = Node(); node.me = node
    kept.append(node)
    if len(kept) > 50_000: kept.clear()
print(gc.callbacks[-1].full > 0, len(gc.get_objects()) + gc.get_freeze_count())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    looked, left = done.stdout.split()
    assert looked == "True"
    assert int(left) < 350_000  # of a million
