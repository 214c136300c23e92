"""Golden answers: exact parameters, a date, and served while models fail as a whole."""

from datetime import UTC, datetime

import pytest
from tests.agents.worlds import Script, app

from failsoft.app import App
from failsoft.base.errors import ConfigError, DownstreamUnavailable
from failsoft.config import load_settings
from failsoft.runs.golden import Golden, GoldenAnswers

DAY = 86_400.0


def answers(*more, **options):
    given = {"parameters": {"region": "EMEA", "quarter": "Q3 2024"}, **options}
    return GoldenAnswers([Golden("Revenue of {region} in {quarter}?", "1.2 M", 1_000.0, **given), *more])


def test_the_same_question_in_other_spelling_is_the_same():
    golden = answers()
    for question in ("Revenue of EMEA in Q3 2024?", "  revenue  OF emea in q3 2024 ", "Revenue of EMEA in Q3 2024."):
        served = golden.find(question, now=1_060.0)
        assert served is not None, question
        assert (served.text, served.age) == ("1.2 M", 60.0)


@pytest.mark.parametrize(
    "question",
    [
        "Revenue of EMEA in Q2 2024?",
        "Revenue of APAC in Q3 2024?",
        "Revenue of EMEA in Q3 2024 and Q4 2024?",
        "Revenue of not EMEA in Q3 2024?",
        "No revenue of EMEA in Q3 2024?",
        "Revenue of EMEA",
        "Revenue of EMEA in Q3 2024 " + "x" * 1000,
    ],
)
def test_case_50_any_other_parameter_is_another_question(question):
    assert answers().find(question, now=1_060.0) is None


def test_what_is_too_old_is_not_served_and_the_newest_is():
    golden = answers(
        Golden("Revenue of {region} in {quarter}?", "1.3 M", 2_000.0, {"region": "emea", "quarter": "q3 2024"}),
        fresh_for=DAY,
    )
    found = golden.find("Revenue of EMEA in Q3 2024", now=2_000.0)
    assert found is not None
    assert found.text == "1.3 M"
    assert golden.find("Revenue of EMEA in Q3 2024", now=2_001.0 + 7 * DAY) is None


def test_case_49_a_tenant_s_and_an_agent_s_are_theirs():
    golden = answers(tenant="red", agent="analyst")
    assert golden.find("Revenue of EMEA in Q3 2024", now=1_000.0, agent="analyst", tenant="blue") is None
    assert golden.find("Revenue of EMEA in Q3 2024", now=1_000.0, agent="other", tenant="red") is None
    assert golden.find("Revenue of EMEA in Q3 2024", now=1_000.0, agent="analyst", tenant="red") is not None


def test_many_slots_take_no_time():
    pattern = " x ".join("{" + name + "}" for name in "abcdef")
    golden = GoldenAnswers([Golden(pattern, "1", 0.0, dict.fromkeys("abcdef", "v"))])
    assert golden.find("x " * 249 + "y", now=0.0) is None


FILE = """
answers:
  - question: "How many {thing} are there?"
    parameters: {thing: cars}
    answer: "Three."
    as_of: 2026-11-30
    fresh_for: 2d
"""


def test_a_file_is_read(tmp_path):
    path = tmp_path / "golden.yaml"
    path.write_text(FILE)
    golden = GoldenAnswers.load(path)
    at = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    found = golden.find("how many cars are there", now=at)
    assert found is not None
    assert (found.text, found.age, len(golden)) == ("Three.", DAY, 1)


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("answers: 3", "answers"),
        ("a: [", "golden"),
        (FILE.replace("thing: cars", "other: cars"), "answers[0].parameters"),
        (FILE.replace("as_of: 2026-11-30", "as_of: soon"), "answers[0].as_of"),
        (FILE.replace("fresh_for", "fresh"), "answers[0].fresh"),
        (FILE.replace('"Three."', "3"), "answers[0].answer"),
        (FILE.replace("2d", "2x"), "answers[0].fresh_for"),
    ],
)
def test_a_file_that_is_wrong_names_the_place(tmp_path, text, param):
    path = tmp_path / "golden.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        GoldenAnswers.load(path)
    assert caught.value.param == param


async def test_while_models_fail_as_a_whole_prepared_answers_come_first():
    model = Script(DownstreamUnavailable("down"))
    on = [False]
    made = app(model, golden=GoldenAnswers([Golden("how many {thing}", "Three.", 0.0, {"thing": "cars"}, 1e12)]))
    made.models_failing = lambda: on[0]
    async with made as running:
        before = await running.ask("How many cars?")
        assert before.shortfalls[0].reason == "downstream_unavailable"
        on[0] = True
        result = await running.ask("How many cars?")
        other = await running.ask("How many bikes?")
    assert result.status == "degraded"
    assert result.answer.startswith("Three.")
    assert result.shortfalls[0].reason == "models_failing"
    assert result.planner == "golden"
    assert other.shortfalls[0].reason == "downstream_unavailable"
    assert len(model.asked) == 2


def test_the_settings_name_the_file(tmp_path):
    (tmp_path / "golden.yaml").write_text(FILE)
    (tmp_path / "failsoft.yaml").write_text("golden: golden.yaml")
    made = App(load_settings(tmp_path / "failsoft.yaml", environ={}), store="off")
    assert made.golden is not None
    assert len(made.golden) == 1
    (tmp_path / "golden.yaml").write_text("answers: 3")
    with pytest.raises(ConfigError, match="list of `answers`"):
        App(load_settings(tmp_path / "failsoft.yaml", environ={}), store="off")
