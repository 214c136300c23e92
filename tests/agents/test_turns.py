"""The decisions of a loop, without any loop."""

import pytest

from failsoft.base.errors import BadInput
from failsoft.runs.turns import Chosen, Decision, LoopLimits, Tree, Turns


def turns(deadline=10.0, usual=None, calls=100, **limits):
    return Turns(LoopLimits(**limits), Tree(calls), began=0.0, deadline=deadline, usual=usual)


def test_it_thinks_while_there_is_time_and_answers_before_there_is_none():
    loop = turns(usual=1.0)
    assert loop.next(0.0) == Decision("think")
    assert loop.next(8.0) == Decision("think")
    assert loop.next(8.01) == Decision("answer", "time_short")


def test_without_experience_a_share_is_kept_for_the_answer():
    assert turns().next(7.4) == Decision("think")
    assert turns().next(7.6) == Decision("answer", "time_short")


def test_an_answer_is_asked_for_once():
    loop = turns(usual=1.0)
    assert loop.next(9.0).step == "answer"
    assert loop.next(9.2) == Decision("stop", "time_short")


def test_what_cannot_be_answered_in_time_is_not_asked():
    assert turns(usual=4.0).next(8.1) == Decision("stop", "unaffordable")
    assert turns().next(10.0) == Decision("stop", "deadline_exceeded")


def test_it_learns_how_long_a_turn_takes():
    loop = turns()
    loop.took(4.0)
    assert loop.usual == 4.0
    loop.took(2.0)
    assert loop.usual == 3.0
    assert loop.next(5.0).step == "answer"


def test_the_last_turn_is_the_answer():
    loop = turns(turns=3)
    for _ in range(2):
        assert loop.next(0.0).step == "think"
        loop.took(0.0)
    assert loop.next(0.0) == Decision("answer", "turn_limit")


def test_without_calls_left_it_answers():
    loop = turns(calls=1)
    assert loop.next(0.0).step == "think"
    tree = Tree(1)
    assert (tree.take(3), tree.left) == (1, 0)
    assert turns(calls=0).next(0.0) == Decision("answer", "call_limit")


def test_other_arguments_or_another_turn_between_are_no_loop():
    loop = turns()
    for key in ("a", "a", "b", "a", "a"):
        assert loop.replied("", [Chosen(key)]) == "call"
    assert loop.replied("", [Chosen("a")]) == "refuse"
    assert loop.ending == "loop_detected"


def test_the_same_calls_in_another_order_are_the_same():
    loop = turns(same=2)
    assert loop.replied("", [Chosen("a"), Chosen("b")]) == "call"
    assert loop.replied("", [Chosen("b"), Chosen("a")]) == "refuse"


def test_unknown_tools_count_in_a_row_only():
    loop = turns()
    for known in (False, False, True, False, False):
        assert loop.replied("", [Chosen(f"t{known}{loop._row}", known=known)]) == "call"
    assert loop.replied("", [Chosen("x", known=False)]) == "refuse"


def test_one_sound_call_among_wrong_ones_goes_on():
    loop = turns()
    for i in range(5):
        assert loop.replied("", [Chosen(f"{i}", sound=False), Chosen(f"b{i}")]) == "call"
    assert loop.replied("", [Chosen("x", sound=False)]) == "call"
    assert loop.replied("", [Chosen("y", sound=False)]) == "refuse"


def test_an_empty_reply_is_asked_again_once():
    loop = turns()
    assert loop.replied("", []) == "again"
    assert loop.ending is None
    assert loop.replied(" \n", []) == "again"
    assert loop.next(0.0) == Decision("answer", "empty_replies")


@pytest.mark.parametrize("wrong", [{"turns": 0}, {"calls": 0}, {"depth": -1}, {"answer_share": 1.0}])
def test_limits_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadInput):
        LoopLimits(**wrong)
