"""Texts found by what they mean."""

import asyncio

import pytest

from failsoft.base.errors import BadInput, DownstreamUnavailable, MalformedResult
from failsoft.memory.vectors import VectorMemory


class Words:
    """A vector for each text: how often each of some words is in it."""

    words = ("red", "green", "blue", "car", "house")

    def __init__(self):
        self.fails = None
        self.calls = 0

    async def embed(self, texts):
        self.calls += 1
        if self.fails is not None:
            raise self.fails
        return [[text.count(word) + 0.01 for word in self.words] for text in texts]


def memory(embedder=None, **options):
    return VectorMemory(embedder or Words(), asyncio.get_running_loop().time, **options)


async def test_the_nearest_comes_first():
    one = memory()
    await one.add("t", {"a": "red car", "b": "blue house", "c": "green car"}, {"source": "x"})
    await asyncio.sleep(3)
    hits = await one.search("t", "a red car", limit=2)
    assert [hit.id for hit in hits] == ["a", "c"]
    assert hits[0].score == pytest.approx(1.0)
    assert (hits[0].text, hits[0].data, hits[0].age) == ("red car", {"source": "x"}, 3.0)
    assert [hit.id for hit in await one.search("t", "red car", least=0.9)] == ["a"]


async def test_tenants_find_their_own_only():
    one = memory()
    await one.add("a", {"x": "red car"})
    assert await one.search("b", "red car") == []


async def test_a_later_text_replaces_an_earlier_and_the_oldest_goes():
    one = memory(entries=2, spaces=1)
    await one.add("t", {"a": "red", "b": "blue"})
    await one.add("t", {"a": "green"})
    await one.add("t", {"c": "car"})
    assert {hit.id for hit in await one.search("t", "house", limit=9)} == {"a", "c"}
    assert (await one.search("t", "green"))[0].text == "green"
    assert one.forget("t", "a")
    assert not one.forget("t", "a")
    await one.add("u", {"a": "red"})
    assert len(one) == 1


async def test_an_embedder_that_fails_changes_nothing():
    words = Words()
    one = memory(words)
    await one.add("t", {"a": "red"})
    words.fails = DownstreamUnavailable("gone")
    with pytest.raises(DownstreamUnavailable):
        await one.add("t", {"b": "blue"})
    words.fails = None
    assert [hit.id for hit in await one.search("t", "red", limit=9)] == ["a"]


@pytest.mark.parametrize("vectors", [[], [[1.0], [2.0]], [["a"]], [[float("nan")]], [[0.0, 0.0]], [[]], None])
async def test_what_is_no_vector_is_refused(vectors):
    class Broken:
        async def embed(self, texts):
            return vectors

    with pytest.raises(MalformedResult):
        await memory(Broken()).add("t", {"a": "red"})


async def test_many_texts_are_embedded_in_parts():
    words = Words()
    one = memory(words)
    await one.add("t", {f"n{i}": f"red {i}" for i in range(600)})
    assert words.calls == 3
    with pytest.raises(BadInput):
        await one.add("t", {"a": " "})
