"""The one shape of errors, and what never gets into it."""

import inspect

import pytest

from failsoft.base import errors
from failsoft.base.errors import FailsoftError, QueueFull, ToolFailed

CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, FailsoftError)]


def test_codes_are_unique_and_every_class_is_documented_and_public():
    assert len({one.code for one in CLASSES}) == len(CLASSES)
    assert all(one.__doc__ for one in CLASSES)
    assert {one.__name__ for one in CLASSES} <= set(errors.__all__)


@pytest.mark.parametrize("error", CLASSES, ids=lambda one: one.code)
def test_every_error_has_the_same_shape(error):
    body = error(param="x", downstream="d", retry_after=1.0, run_id="r", details={"limit": 3}).to_dict()["error"]
    assert list(body) == ["type", "code", "message", "param", "run_id", "retry_after", "downstream", "details"]
    assert 400 <= error.status <= 599
    assert body["message"]


def test_what_a_tool_printed_or_raised_stays_in_the_process():
    error = ToolFailed("x", details={"traceback": "secret", "output": "secret", "message": "secret", "bytes": 3})
    assert error.to_dict()["error"]["details"] == {"bytes": 3}
    assert "details" not in ToolFailed("x", details={"traceback": "secret"}).to_dict()["error"]


def test_the_repr_says_what_and_where():
    assert repr(QueueFull("no place", downstream="d")) == "<QueueFull queue_full downstream='d': no place>"
