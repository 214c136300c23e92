"""Keys and their limits, as plain decisions."""

import hashlib

import pytest

from failsoft.base.errors import Forbidden, RateLimited, Unauthorized
from failsoft.config.access import KeySettings
from failsoft.server.auth import KeyRing, TokenBucket


def settings(key: str, **more) -> KeySettings:
    return KeySettings(hash="sha256:" + hashlib.sha256(key.encode()).hexdigest(), **more)


def test_a_bucket_lets_its_number_pass_at_once_and_then_its_rate():
    bucket = TokenBucket(10, 10.0)
    assert [bucket.take(100.0) for _ in range(10)] == [0.0] * 10
    assert bucket.take(100.0) == pytest.approx(1.0)
    assert bucket.take(100.5) == pytest.approx(0.5)
    assert bucket.take(101.0) == 0.0
    assert bucket.take(101.0) > 0
    assert [bucket.take(500.0) for _ in range(11)].count(0.0) == 10


def test_a_burst_is_smaller_than_the_rate_allows():
    bucket = TokenBucket(60, 60.0, burst=2)
    assert [bucket.take(0.0) == 0 for _ in range(4)] == [True, True, False, False]
    passed = sum(bucket.take(0.01 * step) == 0 for step in range(1, 6_001))
    assert 59 <= passed <= 60


def test_what_is_refused_takes_nothing():
    bucket = TokenBucket(1, 10.0)
    assert bucket.take(0.0) == 0
    for step in range(9):
        assert bucket.take(float(step)) > 0
    assert bucket.take(10.0) == 0


def test_only_known_keys_have_a_caller():
    ring = KeyRing({"team": settings("sk-abc", tenant="blue"), "solo": settings("sk-def")})
    assert ring.caller({b"authorization": b"Bearer sk-abc"}).tenant == "blue"
    assert ring.caller({b"authorization": b"Bearer  sk-def "}).tenant == "solo"
    assert ring.caller({b"x-api-key": b"sk-abc"}).name == "team"
    for headers in (
        {},
        {b"authorization": b""},
        {b"authorization": b"Basic sk-abc"},
        {b"authorization": b"Bearer sk-abd"},
        {b"authorization": b"Bearer " + b"x" * 100_000},
        {b"authorization": b"Bearer \xff\x00"},
    ):
        with pytest.raises(Unauthorized):
            ring.caller(headers)
    assert "sk-" not in repr(ring) + repr(ring.callers)


def test_without_keys_everybody_is_one_caller():
    ring = KeyRing({})
    assert ring.open
    assert ring.caller({}) is ring.caller({b"authorization": b"Bearer anything"})
    assert ring.caller({}).tenant is None


def test_places_are_counted_and_refused_ones_are_not():
    (caller,) = KeyRing({"a": settings("k", concurrent=1, rate="2/minute")}).callers
    caller.enter(0.0)
    with pytest.raises(RateLimited) as caught:
        caller.enter(0.0)
    assert caught.value.details["limit"] == "concurrent"
    assert caught.value.retry_after
    caller.leave()
    caller.enter(0.0)
    caller.leave()
    with pytest.raises(RateLimited) as caught:
        caller.enter(0.0)
    assert caught.value.details["limit"] == "rate"
    assert caught.value.retry_after == pytest.approx(30.0)
    assert (caller.in_flight, caller.refused) == (0, 2)


def test_models_may_be_named():
    (caller,) = KeyRing({"a": settings("k", models=("x",))}).callers
    caller.check("x")
    with pytest.raises(Forbidden):
        caller.check("y")
