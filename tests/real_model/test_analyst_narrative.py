"""The analyst's narrative by the real model: no number in it that no tool brought, in figures or in words.

The plans are the rules', so that only the narrative is the model's. What has another number is to be dropped, which
costs the answer nothing.
"""

import contextlib
import time

import pytest

from failsoft.app import App
from failsoft.config.reading import load_settings
from failsoft.examples.analyst.agent import loaded_sources, make_analyst
from failsoft.examples.analyst.framing import QuestionForm
from failsoft.examples.analyst.narrative import Narrated, facts, make_narrator, stray_numbers
from failsoft.examples.analyst.plans import QuestionRule, intent_of
from failsoft.examples.analyst.query import Result
from failsoft.examples.analyst.replies import Replies
from failsoft.examples.analyst.toolset import DOWNSTREAMS, as_data, make_tools
from failsoft.runs.agents import Agent
from failsoft.runs.model_planner import ModelPlanner
from failsoft.runs.planner import RulesPlanner
from failsoft.transports.aiohttp_transport import AiohttpTransport

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(900)]

LATE = 0.5
HIVES = "harvested,apiary,variety,jars\n" + "".join(
    f"2023-{month:02}-{day:02},{apiary},{variety},{11 + (month * 7 + day * 3 + len(apiary)) % 29}\n"
    for month in (5, 6, 7, 8)
    for day in (3, 18)
    for apiary in ("Hilltop", "Orchard", "Lakeside")
    for variety in ("lime", "clover")
)
QUESTIONS = (
    "total jars per apiary",
    "total jars of clover by month",
    "How many harvests were there?",
    "average jars per variety",
    "各apiary的jars总和",
)


def plain_text(text):
    """Without the white space and the marks of Markdown, which the answer sets in its own way."""
    return "".join(text.replace("\\", "").split())


@pytest.fixture(scope="module")
def hives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hives")
    (folder / "hives.csv").write_text(HIVES)
    given = {"data": [str(folder / "hives.csv")], "cache_dir": str(folder / "cache")}
    given |= {"run": {"budget": "100s"}, "downstreams": {"model": {"call_timeout": "80s"}}}
    settings = load_settings(environ={}, flags=given, defaults={"downstreams": DOWNSTREAMS})
    with loaded_sources(settings) as sources:
        yield settings, sources


@pytest.mark.parametrize("budget", [40.0, 3.0])
async def test_a_narrative_has_no_number_but_the_tools_and_keeps_the_budget(model, hives, row, budget):
    settings, sources = hives
    shown = 0
    async with contextlib.AsyncExitStack() as stack:
        transport = AiohttpTransport()
        stack.push_async_callback(transport.aclose)
        form = QuestionForm(sources.profiles)
        endpoint = ModelPlanner(
            transport, base_url=f"{model.gateway}/v1", api_key="", model="qwen", form=form
        ).endpoint  # fmt: skip
        agent = Agent(
            "analyst",
            "Answers questions about tables.",
            tools=(*make_tools(sources), make_narrator(sources.profiles, endpoint)),
            planners=[Narrated(RulesPlanner(QuestionRule(sources.profiles)))],
            answer=Replies(sources.profiles),
            makes_up_for=("query", "chart", "narrate"),
        )
        plain = make_analyst(sources)
        app = await stack.enter_async_context(App(settings, agents=[agent]))
        without = await stack.enter_async_context(App(settings, agents=[plain]))
        app.kernel.guard("model", settings.policy("model", default="model"))
        for question in QUESTIONS:
            began = time.perf_counter()
            result = await app.ask(question, budget=budget)
            seconds = time.perf_counter() - began
            assert seconds <= budget + LATE
            assert str(result.status) == "completed", result.to_dict()
            told = next(task.value for task in result.tasks if task.tool == "narrate")
            if told is None:
                row(question, seconds, "not told")
                continue
            row(question, seconds, told["text"][:150] or told["dropped"])
            first = (await without.ask(question, budget=10.0)).answer.strip().splitlines()[4]
            assert first in result.answer  # the rules' text stands there in any case
            if told["text"]:
                shown += 1
                value = as_data(Result, next(task for task in result.tasks if task.tool == "query").value)
                intent = intent_of(result.plan)
                brought = facts(intent, sources.get(intent.query.table).profile, value)
                assert stray_numbers(told["text"], brought) == []
                assert plain_text(told["text"])[:20] in plain_text(result.answer)
            else:
                assert told["dropped"] in result.answer or not question.isascii()
    row(f"narratives with {budget:g} s", 0.0, f"{shown} of {len(QUESTIONS)} shown")
