"""The event bus and its bounded subscriptions."""

import asyncio

import pytest

from failsoft.base.events import Event, EventBus


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_whatever_a_listener_raises_is_counted_and_the_others_hear(error):
    bus, heard = EventBus(), []

    def broken(event):
        raise error

    bus.add(broken)
    bus.add(heard.append)
    bus.emit(Event("x", 0.0))
    assert (bus.errors, type(bus.last_error), len(heard)) == (1, error, 1)


def test_a_listener_hears_of_the_kinds_it_asked_for_and_is_asked_once():
    bus, heard, everything, asked = EventBus(), [], [], []

    def only(kind):
        asked.append(kind)
        return kind == "x"

    bus.emit(Event("x", 0.0))  # before anybody listens, and not remembered
    remove = bus.add(heard.append, only=only)
    bus.add(everything.append)
    for kind in ("x", "y", "x", "y"):
        bus.emit(Event(kind, 1.0))
    assert [event.kind for event in heard] == ["x", "x"]
    assert [event.kind for event in everything] == ["x", "y", "x", "y"]
    assert asked == ["x", "y"]
    remove()
    bus.emit(Event("x", 2.0))
    assert (len(heard), len(everything)) == (2, 5)


def test_what_is_remembered_of_kinds_has_a_bound():
    bus, heard = EventBus(), []
    bus.add(heard.append, only=lambda kind: kind.startswith("k"))
    for n in range(2_500):
        bus.emit(Event(f"k{n}", 0.0))
    assert len(heard) == 2_500
    assert len(bus._by_kind) <= 1_000


def test_a_listener_is_removed_once_and_for_all():
    bus, heard = EventBus(), []
    remove = bus.add(heard.append)
    remove()
    remove()
    bus.emit(Event("x", 0.0))
    assert heard == []
    assert repr(bus) == "<EventBus listeners=0 errors=0>"


async def test_a_full_subscription_drops_its_oldest_and_counts():
    bus = EventBus()
    with bus.subscribe(size=3, only=lambda event: event.kind == "x") as events:
        for number in range(5):
            bus.emit(Event("x", float(number)))
            bus.emit(Event("y", 0.0))
        assert events.dropped == 2
        assert [(await anext(events)).at for _ in range(3)] == [2.0, 3.0, 4.0]
    assert [event async for event in events] == []
    assert bus.listeners == ()


async def test_a_reader_is_woken_and_a_cancelled_one_leaves_nothing():
    bus = EventBus()
    events = bus.subscribe()
    reader = asyncio.create_task(anext(events))
    await asyncio.sleep(1.0)
    bus.emit(Event("x", 1.0, run="r", seq=3, epoch=2))
    assert (await reader).id == "2.3"
    reader = asyncio.create_task(anext(events))
    await asyncio.sleep(1.0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    bus.emit(Event("y", 2.0))
    events.close()
    assert [event.kind async for event in events] == ["y"]
