"""Which numbers a narrative may have: those that the tools brought, written as they are."""

import pytest

from failsoft.examples.analyst.narrative import objection, stray_numbers

FACTS = """The total revenue is 1,234.5 in Q1 2024 and 900 in Q1 2023: +334.5, +37.2 %.
The largest changes: north (-12).
region | revenue
north | 1,200.5
二区 | 34"""


@pytest.mark.parametrize(
    "text",
    [
        "Revenue was 1,234.5 in Q1 2024, up 37.2 % from 900.",
        "Revenue rose by 37.2 percent, though north fell by 12.",
        "One region leads; the first quarter was strong.",
        "营收为1234.5，比900高37.2%。",
        "二区为34。",
        "no number at all",
    ],
)
def test_their_own_are_allowed(text):
    assert stray_numbers(text, FACTS) == []
    assert objection(text, FACTS) == ""


@pytest.mark.parametrize(
    ("text", "stray"),
    [
        ("Revenue was 1,235.", "1,235"),
        ("Revenue was 1234.", "1234"),
        ("Revenue was 1.2 thousand.", "1.2 thousand"),
        ("Revenue was 900 %.", "900 %"),
        ("Revenue was 900 million.", "900 million"),
        ("Revenue nearly doubled.", "doubled"),
        ("It fell by half.", "half"),
        ("A threefold rise.", "threefold"),
        ("Seventeen regions.", "Seventeen"),
        ("It was ９９.", "99"),
        ("It was ½ of that.", "2"),
        ("It was Ⅷ.", None),
        ("增长了三倍。", "三倍"),
        ("It was ٣.", "٣"),
    ],
)
def test_any_other_is_found(text, stray):
    found = stray_numbers(text, FACTS)
    if stray is not None:
        assert stray in found
    assert objection(text, FACTS) or stray is None


@pytest.mark.parametrize("text", ["", "a" * 801, "see http://x", "![x](y)", "<b>", "a | b", "one\n\ntwo", "# Head"])
def test_what_is_no_short_plain_text_is_refused(text):
    assert objection(text, FACTS)
