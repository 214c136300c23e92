"""Token estimates: near the truth without a tokenizer, nearer after a few reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.models.tokens import TokenEstimate, raw_count

KNOWN = [  # with the vocabularies o200k and qwen3
    ("The quick brown fox jumps over the lazy dog. " * 5, 51, 51),
    ("Which airline had the most delayed flights in March, and by how many minutes on average? ", 19, 19),
    ("Самолёт вылетел с опозданием на двадцать минут, потому что экипаж не успел подготовиться. " * 3, 82, 92),
    ("今天的航班有多少延误？请按机场统计，并说明主要原因。" * 5, 90, 65),
    ("오늘 항공편이 얼마나 지연되었습니까? 공항별로 집계해 주세요. " * 4, 85, 86),
    ("本日の便の遅延は何分ですか。空港ごとに集計してください。" * 4, 85, 76),
    ("Der Flug hatte zwanzig Minuten Verspätung, weil die Besatzung nicht rechtzeitig fertig war. " * 4, 93, 101),
    ("def f(x):\n    return [y ** 2 for y in range(x) if y % 3 == 0]\n" * 10, 260, 260),
    ("🚀🎉😀👍 " * 10, 61, 59),
]


@pytest.mark.parametrize(("text", "o200k", "qwen3"), KNOWN)
def test_estimates_are_within_a_third(text, o200k, qwen3):
    assert 0.66 <= raw_count(text) / ((o200k + qwen3) / 2) <= 1.34


def test_counting():
    estimate = TokenEstimate()
    assert estimate.count("") == 0
    assert estimate.count("a") >= 1
    assert 10 <= estimate.count("🚀" * 10) <= 20
    assert estimate.count("\ud800") >= 1
    text = "Hello, how are you?"
    assert estimate.count_messages([{"role": "user", "content": text}]) > estimate.count(text)


def test_messages_count_parts_pictures_calls_and_tools():
    estimate = TokenEstimate()
    text = {"role": "user", "content": "x y z " * 50}
    parts = {"role": "user", "content": [{"type": "text", "text": "x y z " * 50}]}
    assert estimate.count_messages([text]) == estimate.count_messages([parts])
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "x" * 100_000}}]}
    assert 500 < estimate.count_messages([picture]) < 2000
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    assert estimate.count_messages([call]) > estimate.count_messages([{"role": "assistant", "content": None}])
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert estimate.count_messages([text], tools=tools) > estimate.count_messages([text])


def test_a_models_ratio_is_learned_from_reports():
    estimate = TokenEstimate()
    text = "word " * 400
    raw = raw_count(text)
    estimate.observe("m", raw, round(raw * 1.5))
    assert estimate.count(text, "m") == pytest.approx(raw * 1.5, rel=0.01)  # the first report counts in full
    for _ in range(60):
        estimate.observe("m", raw, round(raw * 0.8))
    assert estimate.count(text, "m") == pytest.approx(raw * 0.8, rel=0.02)
    assert estimate.count(text, "other") == estimate.count(text) == pytest.approx(raw, rel=0.01)


def test_odd_reports_teach_nothing_or_little():
    estimate = TokenEstimate()
    for reported in (None, 0, 5, -3):
        estimate.observe("m", 100.0, reported)
    estimate.observe("m", 5.0, 1000)
    estimate.observe("m", float("nan"), 1000)
    assert estimate.ratio("m") == 1.0
    estimate.observe("m", 100.0, 10**9)
    assert estimate.ratio("m") == 4.0
    estimate.observe("n", 10.0**9, 100)
    assert estimate.ratio("n") == 0.25


def test_ratios_are_bounded_in_number():
    estimate = TokenEstimate(models=3)
    for n in range(10):
        estimate.observe(f"m{n}", 100.0, 150)
    assert [estimate.ratio(f"m{n}") for n in (6, 7, 9)] == [1.0, 1.5, 1.5]
    assert repr(estimate) == "<TokenEstimate models=3>"
    with pytest.raises(ValueError, match="weight"):
        TokenEstimate(weight=0)


@given(st.text(max_size=200))
def test_any_text_has_a_count_that_grows_with_it(text):
    count = raw_count(text)
    assert 0 <= count <= 2 * len(text)
    assert raw_count(text + "x") >= count
