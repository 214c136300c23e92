"""Who answers when the request names nobody."""

import asyncio

import pytest
from tests.agents.worlds import Script
from tests.runs.worlds import agent, plan, task

from failsoft.app import App
from failsoft.base.errors import BadInput, ConfigError, DownstreamUnavailable, UnknownAgent
from failsoft.config import Settings, load_settings
from failsoft.runs.agents import Agent
from failsoft.runs.chooser import Chooser
from failsoft.runs.choosing import choose
from failsoft.runs.loop_model import Reply
from failsoft.runs.planner import StaticPlanner
from failsoft.runs.result import RunRequest
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


# --- by a model, when rules know none --------------------------------------------------------------------------------


def two(model, *, default=None, **options):
    both = [agent(plan(task("a")), name="tester"), agent(plan(task("a")), name="flights")]
    made = App(Settings(**({"agent": default} if default else {})), agents=both, store="off")
    made.chooser = Chooser(model, **options)
    return made


async def test_a_model_chooses_when_no_word_fits_and_only_then():
    model = Script('```json\n{"agent": "flights"}\n```', '{"agent": "tester"}')
    async with two(model, characters=100) as app:
        assert (await app.ask("late flights?")).agent == "flights"
        assert (await app.ask("hm?", agent="tester")).agent == "tester"
        assert model.asked == []
        assert (await app.ask("hm? " * 500)).agent == "flights"
        assert (await app.ask("hm?", agent="auto")).agent == "tester"
    first, second = model.asked
    assert first.max_tokens == 50
    assert sum(len(message["content"]) for message in first.messages) < 800
    assert "- flights:" in second.messages[0]["content"]


async def test_what_a_model_cannot_choose_is_left_to_the_default():
    for line in (
        DownstreamUnavailable("gone"), "no idea", '{"agent": null}', '{"agent": "nobody"}', '{"agent": ["tester"]}',
        Reply('{"agent": "tes', finish="length"), 1_000.0,
    ):  # fmt: skip
        async with two(Script(line), default="tester") as app:
            assert (await app.ask("hm?", agent="auto")).agent == "tester", line
        async with two(Script(line)) as app:
            with pytest.raises(UnknownAgent):
                await app.ask("hm?")


async def test_a_default_is_not_chosen_against_and_a_failing_model_is_not_asked():
    model = Script()
    async with two(model, default="tester") as app:
        assert (await app.ask("hm?")).agent == "tester"
    async with two(model, bypassed=lambda: True) as app:
        with pytest.raises(UnknownAgent):
            await app.ask("hm?")
        with pytest.raises(BadInput):
            await app.ask("   ")
    assert model.asked == []


async def test_choosing_is_spent_of_the_budget_and_bounded_by_a_share_of_it():
    loop = asyncio.get_running_loop()
    async with two(Script(1_000.0), default="tester") as app:
        began = loop.time()
        result = await app.ask("hm?", agent="auto", budget=5.0)
        assert loop.time() - began == 0.5
        assert (result.agent, result.elapsed) == ("tester", 0.5)


async def test_the_same_key_gives_the_same_run_whatever_a_model_would_choose_now():
    model = Script('{"agent": "flights"}', '{"agent": "tester"}')
    async with two(model) as app:
        request = RunRequest("hm?", idempotency_key="k")
        first = app.start(await app.chosen(request))
        again = app.start(await app.chosen(request))
        assert again.run_id == first.run_id
        assert (await first.result()).agent == "flights"
    assert len(model.asked) == 1


async def test_the_setting_names_a_model_of_the_gateway():
    models = {"small": {"routes": {"only": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}}}
    made = App(
        Settings.model_validate({"models": models, "run": {"chooser": "small"}}), agents=[agent(plan(task("a")))]
    )
    assert made.chooser is not None
    assert made.chooser.model.name == "small"
    assert App(Settings.model_validate({"models": models}), agents=[agent(plan(task("a")))]).chooser is None


def test_a_chooser_that_is_no_model_is_refused(tmp_path):
    file = tmp_path / "failsoft.yaml"
    file.write_text("run: {chooser: nobody}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"chooser.*nobody"):
        load_settings(file)
