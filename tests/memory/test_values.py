"""Noted values: by space, for as long as said, in bounds."""

import asyncio

import pytest

from failsoft.base.errors import BadInput
from failsoft.memory.values import LocalValues, ValueStore


def values(**options):
    return LocalValues(asyncio.get_running_loop().time, **options)


async def test_a_value_is_found_again_with_its_age():
    store = values()
    assert isinstance(store, ValueStore)
    await store.put("t", "colour", {"name": "red"})
    await asyncio.sleep(5)
    found = await store.get("t", "colour")
    assert found is not None
    assert (found.value, found.age) == ({"name": "red"}, 5.0)
    assert await store.delete("t", "colour")
    assert await store.get("t", "colour") is None
    assert not await store.delete("t", "colour")


async def test_spaces_are_apart():
    store = values()
    await store.put("a", "k", 1)
    assert await store.get("b", "k") is None
    assert await store.keys("b") == []


async def test_it_is_kept_for_as_long_as_said():
    store = values()
    await store.put("t", "k", 1, keep=10)
    await asyncio.sleep(9.9)
    assert await store.get("t", "k") is not None
    await asyncio.sleep(0.1)
    assert await store.keys("t") == []
    assert await store.get("t", "k") is None


async def test_the_least_recently_used_goes_first():
    store = values(entries=2)
    for key in ("a", "b"):
        await store.put("t", key, key)
    await store.get("t", "a")
    await store.put("t", "c", "c")
    assert sorted(await store.keys("t")) == ["a", "c"]


async def test_bytes_and_spaces_are_bounded():
    store = values(room=10_000, spaces=2)
    for i in range(20):
        await store.put("t", f"k{i}", "x" * 1_000)
    assert len(await store.keys("t")) < 10
    for space in ("u", "v"):
        await store.put(space, "k", 1)
    assert await store.get("t", "k19") is None
    with pytest.raises(BadInput):
        await store.put("t", "big", "x" * 20_000)


async def test_names_are_newest_first_and_by_prefix():
    store = values()
    for key in ("x1", "y1", "x2"):
        await store.put("t", key, 0)
        await asyncio.sleep(1)
    assert await store.keys("t", prefix="x") == ["x2", "x1"]
    with pytest.raises(BadInput):
        await store.put("t", "", 0)
