"""The exact cache: its key holds all that may matter, and only complete answers are kept."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.kernel.cache import CachePolicy
from failsoft.models.answers import AnswerCache, cache_key, is_complete

ASKED = {
    "model": "m",
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "how do I enable X?"}],
    "temperature": 0.0,
    "max_tokens": 100,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}, "b": {}}}}}],
}


def key(tenant="t", alias="main", **change):
    return cache_key({**ASKED, **change}, tenant, alias)


def test_another_tenant_alias_prompt_or_parameter_is_another_key():
    """Cases 49 and 50."""
    others = [
        key(tenant="u"),
        key(tenant=None),
        key(tenant="None"),
        key(alias="other"),
        key(model="n"),
        key(messages=[{"role": "system", "content": "S"}, ASKED["messages"][1]]),
        key(messages=[ASKED["messages"][0], {"role": "user", "content": "how do I disable X?"}]),
        key(temperature=0.1),
        key(max_tokens=101),
        key(tools=[]),
        key(tool_choice="none"),
        key(response_format={"type": "json_object"}),
        key(seed=1),
        key(n=1),  # set to its default is not the same as absent
        key(n=None),
        key(top_p=1.0),
        key(top_p=1),
        key(unheard_of={"x": [1]}),
        key(stop=["a", "b"]),
        key(stop=["b", "a"]),
    ]
    assert len({key(), *others}) == len(others) + 1
    assert len(key()) == 32


def test_how_an_answer_is_delivered_and_filed_is_not_in_the_key():
    for name in ("stream", "stream_options", "metadata", "store", "user", "safety_identifier", "prompt_cache_key"):
        assert key(**{name: {"x": 1}}) == key()


def test_the_order_of_keys_matters_in_schemas_only():
    turned = dict(reversed(ASKED.items()))
    turned["messages"] = [dict(reversed(message.items())) for message in ASKED["messages"]]
    assert cache_key(turned, "t", "main") == key()
    schema = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"b": {}, "a": {}}}}}]
    assert key(tools=schema) != key()


def test_the_request_is_not_changed():
    before = json.dumps(ASKED)
    key(stream=True)
    assert json.dumps(ASKED) == before


LEAF = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=3)
PLAIN = LEAF | st.lists(LEAF, max_size=2) | st.dictionaries(st.text(max_size=2), LEAF, max_size=2)


@given(st.dictionaries(st.text(max_size=3), PLAIN, max_size=3), st.dictionaries(st.text(max_size=3), PLAIN, max_size=3))
def test_keys_are_equal_exactly_when_requests_are(one, other):
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (cache_key(one, "t", "a") == cache_key(other, "t", "a")) is same


# --- keeping -------------------------------------------------------------------------------------------------------


def answer(*reasons, content="x"):
    return {
        "choices": [
            {"index": n, "message": {"role": "assistant", "content": content}, "finish_reason": reason}
            for n, reason in enumerate(reasons)
        ]
    }


@pytest.mark.parametrize(
    ("result", "complete"),
    [
        (answer("stop"), True),
        (answer("tool_calls"), True),
        (answer("stop", "tool_calls"), True),
        (answer("length"), False),
        (answer("stop", "length"), False),
        (answer("content_filter"), False),
        (answer(None), False),
        ({"choices": []}, False),
        ({}, False),
        ({"choices": ["x"]}, False),
    ],
)
def test_only_complete_answers_are_kept(result, complete):
    """Case 51."""
    assert is_complete(result) is complete
    cache = AnswerCache(rng=random.Random(1))
    assert cache.put(b"k", result, 0.0) is complete
    assert (cache.fresh(b"k", 1.0) is not None) is complete


def test_degraded_answers_are_never_kept():
    cache = AnswerCache(rng=random.Random(1))
    assert not cache.put(b"k", answer("stop"), 0.0, degraded=True)
    assert cache.stale(b"k", 0.0) is None


def test_answers_are_fresh_then_stale_then_gone_and_nobody_can_change_them():
    cache = AnswerCache(CachePolicy(ttl=10, stale_for=100, jitter=0), rng=random.Random(1))
    kept = answer("stop")
    assert cache.put(b"k", kept, 5.0)
    kept["choices"].clear()
    found = cache.fresh(b"k", 14.0)
    assert found is not None
    assert found.age == 9.0
    found.result()["choices"].clear()
    assert found.result() == answer("stop")
    assert json.loads(found.body) == answer("stop")
    assert cache.fresh(b"k", 15.0) is None
    late = cache.stale(b"k", 100.0)
    assert late is not None
    assert late.age == 95.0
    assert cache.stale(b"k", 115.0) is None
    assert len(cache) == 0


def test_lifetimes_are_jittered_and_bytes_are_bounded():
    cache = AnswerCache(CachePolicy(ttl=100, max_bytes=20_000, jitter=0.1), rng=random.Random(1))
    for n in range(100):
        cache.put(b"k%d" % n, answer("stop", content="x" * 1000), 0.0)
    assert cache.statistics().bytes <= 20_000
    assert 10 <= len(cache) <= 16
    assert not cache.put(b"big", answer("stop", content="x" * 3000), 0.0)
    some = [n for n in range(100) if cache.fresh(b"k%d" % n, 98.0)]
    assert 0 < len(some) < len(cache)
    cache.reconfigure(CachePolicy(entries=2))
    assert len(cache) == 2
    cache.drop(b"k99")
    cache.drop(b"k99")
    assert len(cache) == 1
    assert "entries=1" in repr(cache)
