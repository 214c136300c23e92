"""Two values of one column are told apart by their names, also short ones; a share asked of one group leads."""

import pytest

from failsoft.app import App
from failsoft.config import Settings
from failsoft.examples.analyst.agent import loaded_sources, make_analyst
from failsoft.examples.analyst.toolset import DOWNSTREAMS

ROWS = [
    "opened;team;minutes",
    *(f"2025-0{1 + n % 6}-11;{team};{n * scale}" for n in range(1, 13) for team, scale in (("net", 2), ("db", 3))),
    *(f"2025-0{n}-12;web;100" for n in range(1, 7)),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teams")
    file = folder / "tickets.csv"
    file.write_text("\n".join(ROWS) + "\n")
    made = Settings.model_validate({"data": [file], "cache_dir": folder / "cache", "downstreams": DOWNSTREAMS})
    with loaded_sources(made) as sources:
        yield made, sources


@pytest.mark.parametrize(
    ("question", "lead"),
    [
        ("difference in average minutes between net and db", "The average minutes is 13 for net and 19.5 for db: −6.5"),
        ("net vs db average minutes in Q1 2025", "The average minutes in Q1 2025 is 12 for net and 18 for db: −6"),
        ("total minutes of db", "The total minutes is 234 "),
        ("net和db的平均minutes差多少", "平均minutes：net 为 13，db 为 19.5，−6.5"),
        ("compare total minutes of db with all others", "The total minutes is 234 for db and 756 for ≠ db: −522"),
        ("What share of the minutes comes from db?", "db is 23.6% of the total minutes: 234 of 990."),
        ("db的minutes占比是多少", "db占minutes合计的 23.6%：990 中的 234。"),
    ],
)
async def test_what_was_asked_about_leads_the_answer(question, lead, sources):
    settings, loaded = sources
    async with App(settings, agents=[make_analyst(loaded)]) as app:
        result = await app.ask(question, budget=60)
    assert lead in result.answer
