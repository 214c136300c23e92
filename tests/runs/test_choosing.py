"""Who answers when the request names nobody."""

import pytest
from tests.runs.worlds import agent, plan, task

from failsoft.app import App
from failsoft.base.errors import UnknownAgent
from failsoft.config import Settings
from failsoft.runs.agents import Agent
from failsoft.runs.choosing import choose
from failsoft.runs.planner import StaticPlanner
from failsoft.tools.python import tool


@tool(downstream="mail")
async def send_mail(to: str) -> str:
    """Sends a letter by e-mail."""
    return to


def one(name: str, description: str, *tools) -> Agent:
    return Agent(name, description, tools, [StaticPlanner(plan(task("a")))])


AGENTS = [
    one("analyst", "Answers questions about revenue and sales, with charts."),
    one("travel_desk", "Answers questions about flights, hotels and bookings."),
    one("clerk", "Answers questions about everything else.", send_mail),
    one("kefu", "回答关于退款和发票的问题。"),
]


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("What was the revenue per region?", "analyst"),
        ("Book me a flight to Oslo", "travel_desk"),
        ("which hotel is nearest", "travel_desk"),
        ("Ask the analyst whether hotels sell", "analyst"),
        ("send an email to Ann", "clerk"),
        ("我想退款", "kefu"),
        ("发票在哪里", "kefu"),
        ("questions about answers", None),
        ("", None),
    ],
)
def test_the_agent_whose_own_words_fit_best_is_chosen(question, name):
    chosen = choose(AGENTS, question)
    assert (chosen.name if chosen else None) == name
    again = choose(AGENTS, question)
    assert again is chosen


async def test_a_request_that_names_nobody_gets_the_default_and_auto_the_fitting_one():
    both = [agent(plan(task("a")), name="tester"), agent(plan(task("a")), name="flights")]
    async with App(agents=both, store="off") as without_default:
        assert (await without_default.ask("late flights?")).agent == "flights"
        with pytest.raises(UnknownAgent):
            await without_default.ask("hm?")
        assert (await without_default.ask("hm?", agent="tester")).agent == "tester"
    async with App(Settings(agent="tester"), agents=both, store="off") as with_default:
        assert (await with_default.ask("late flights?")).agent == "tester"
        assert (await with_default.ask("late flights?", agent="auto")).agent == "flights"
        assert (await with_default.ask("hm?", agent="auto")).agent == "tester"
