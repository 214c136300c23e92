"""Every word of a question is respected by the numbers, or the answer says which were not."""

import asyncio
import contextlib

import pytest
from tests.examples.asking import Asked

from failsoft.config import Settings
from failsoft.examples.analyst.agent import analyst_app, loaded_sources
from failsoft.examples.analyst.grammar import QuestionError
from failsoft.examples.analyst.toolset import DOWNSTREAMS
from failsoft.runs.answer import shortfalls
from failsoft.runs.plan import Plan
from failsoft.runs.strict import http_status

pytestmark = pytest.mark.timeout(60)

SHOP = """
    day,branch,article,pieces,takings
    2024-01-05,Mitte,Roll,10,20.5
    2024-01-06,Nord,Bread,3,12
    2024-02-09,Mitte,Bread,4,16
    2024-02-10,Nord,Roll,20,41
    2024-03-15,Mitte,Cake,2,18
"""


@pytest.fixture
def shop(tmp_path):
    return Asked(tmp_path, shop=SHOP)


@pytest.mark.parametrize(
    ("question", "left"),
    [
        ("takings when it rains", ("when it rains",)),
        ("takings frobnicated by branch", ("frobnicated",)),
        ("takings and pieces by branch", ("pieces",)),
        ("takings of late", ("late",)),
        ("average takings over", ("over",)),
    ],
)
def test_words_that_no_part_of_the_query_stands_for_are_told(shop, question, left):
    assert shop.read(question).unread == left


@pytest.mark.parametrize(
    "question",
    [
        "total takings",
        "please show me the takings per branch in January, if you can",
        "which branch had the highest takings?",
        "compare takings in January with February per branch and mark unusual changes",
        "what share of takings comes from Mitte",
        "how many pieces were sold",
        "takings between 2024-01-05 and 2024-02-09",
        "各branch的takings",
    ],
)
def test_a_question_that_is_understood_leaves_nothing(shop, question):
    assert shop.read(question).unread == ()


def run(folder, question):
    file = folder / "shop.csv"
    file.write_text("\n".join(line.strip() for line in SHOP.strip().splitlines()) + "\n")
    settings = Settings.model_validate({"data": [file], "cache_dir": folder / "cache", "downstreams": DOWNSTREAMS})

    async def asked(sources):
        async with analyst_app(settings, sources) as app:
            return await app.ask(question, budget=20.0)

    with loaded_sources(settings) as sources:
        return asyncio.run(asked(sources))


def test_a_question_that_was_read_in_part_is_answered_as_degraded_and_says_what_the_numbers_ignore(tmp_path):
    result = run(tmp_path, "total takings when it rains")
    assert str(result.status) == "degraded"
    assert [one.reason for one in result.shortfalls] == ["not_understood"]
    assert "Not understood: 'when it rains'; the numbers ignore it." in result.answer
    assert "107.5" in result.answer
    assert http_status(result).status == 200
    assert http_status(result, strict=True).status == 422


def test_a_question_that_was_read_whole_is_completed(tmp_path):
    result = run(tmp_path, "total takings")
    assert str(result.status) == "completed"
    assert result.shortfalls == ()


def test_what_a_plan_leaves_out_of_the_request_is_a_shortfall_of_its_answer():
    plan = Plan(tasks=(), unread=("at night", "by Tuesday"))
    (told,) = shortfalls(plan, {}, "en")
    assert told.text == "Not understood: 'at night', 'by Tuesday'; the numbers ignore them."
    (told,) = shortfalls(plan, {}, "zh")
    assert "at night" in told.text
    assert shortfalls(Plan(tasks=()), {}, "en") == ()


BASES = (
    "total takings",
    "how many rows",
    "takings per branch",
    "average pieces per article",
    "which branch had the highest takings",
)
RESTRICTIONS = (
    *("on weekends", "on Fridays", "in early February", "from 9 February on", "late", "when it rains", "at night"),
    *(
        "over a thousand",
        "over ten",
        "more than twice",
        "for vegans",
        "without Roll",
        "excluding Mitte",
        "other than Nord",
    ),
    *("by hand", "during lockdown", "before noon", "after lunch", "per capita", "not refunded"),
    *("of regular customers", "with a discount", "in thousands", "recently", "so far this century", "via /checkout"),
)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_a_restriction_changes_the_query_or_is_refused_or_told(shop, base, restriction):
    plain = shop.read(base)
    assert not plain.unread
    with contextlib.suppress(QuestionError):
        restricted = shop.read(f"{base} {restriction}")
        assert restricted.unread or restricted.query != plain.query
