"""The analyst as an agent: questions to plans, tools under guards, answers from whatever there is."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from failsoft.app import App
from failsoft.base.errors import BadInput
from failsoft.config import Settings
from failsoft.drills.injector import Injector
from failsoft.drills.toxics import Error, Hang
from failsoft.examples.analyst.agent import analyst_app, loaded_sources, make_analyst
from failsoft.examples.analyst.compare import Comparison
from failsoft.examples.analyst.plans import BadQuestion, QuestionRule, intent_of
from failsoft.examples.analyst.query import Result
from failsoft.examples.analyst.replies import Replies
from failsoft.examples.analyst.sources import BadData, cache_folder, load_sources
from failsoft.examples.analyst.spec import to_dict
from failsoft.examples.analyst.toolset import DOWNSTREAMS, as_data
from failsoft.kernel.guard import Kernel
from failsoft.runs.answer import Parts
from failsoft.runs.plan import Plan, TaskSpec, check_plan
from failsoft.runs.planner import PlanRequest, StaticPlanner
from failsoft.tools.registry import ToolContext

pytestmark = pytest.mark.timeout(60)

ROWS = [
    "day,city,kind,amount",
    *(
        f"2024-{month:02d}-15,{city},{kind},{10 * month + i * 7 + (400 if (month, city) == (8, 'Lima') else 0)}"
        for month in range(1, 10)
        for i, city in enumerate(("Oslo", "Lima", "Rome", "Kyiv", "Bern"))
        for kind in ("a", "b")
    ),
]
COMPARE = "Compare Q3 2024 amount per city with Q2 2024 and mark unusual changes"


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Settings:
    folder = tmp_path_factory.mktemp("analyst")
    file = folder / "deals.csv"
    file.write_text("\n".join(ROWS) + "\n")
    return Settings.model_validate({"data": [file], "cache_dir": folder / "cache", "downstreams": DOWNSTREAMS})


@pytest.fixture(scope="module")
def sources(settings):
    with loaded_sources(settings) as sources:
        yield sources


async def until(condition):
    """Waits for what a thread does."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("waited in vain")


@pytest.fixture
def rule(sources):
    return QuestionRule(sources.profiles)


def test_a_question_becomes_the_tasks_that_it_needs(rule, sources):
    plan = rule(PlanRequest("total amount"))
    assert [task.id for task in plan.tasks] == ["query"]
    plan = rule(PlanRequest("amount per city"))
    assert [(task.id, task.needs, task.essential) for task in plan.tasks] == [
        ("query", (), True),
        ("chart", ("query",), False),
    ]
    plan = rule(PlanRequest(COMPARE))
    assert {task.id: task.needs for task in plan.tasks} == {
        "query": (),
        "reference": (),
        "compare": ("query", "reference"),
        "history": (),
        "unusual": ("compare", "history"),
        "chart": ("compare", "unusual"),
    }
    assert [task.id for task in plan.tasks if not task.essential] == ["history", "chart"]
    agent = make_analyst(sources)
    for question in ("total amount", "amount per city", COMPARE, "走势 amount 按月", "amount per month, mark unusual"):
        made = rule(PlanRequest(question))
        assert check_plan(Plan.from_json(made.to_json()), agent.tools) == made
        assert to_dict(intent_of(Plan.from_json(made.to_json()))) == made.data["intent"]


def test_titles_are_in_the_questions_language(rule):
    assert rule(PlanRequest("各 city 的 amount 总和是多少")).tasks[0].title == "所问的数字"


def test_a_wrong_question_names_what_there_is(rule):
    with pytest.raises(BadQuestion) as caught:
        rule(PlanRequest("mean profit per city"))
    assert caught.value.param == "input"
    assert caught.value.details["columns"] == {"deals": ["day", "city", "kind", "amount"]}
    assert caught.value.details["reason"].startswith("unknown_")
    json.dumps(caught.value.to_dict())


@pytest.mark.realtime
async def test_the_whole_way_gives_right_numbers_and_files(settings, sources):
    async with analyst_app(settings, sources) as app:
        result = await app.ask(COMPARE, budget=20.0)
        assert str(result.status) == "completed", result.to_dict()
        comparison = result.task("compare").value
        lima = next(row for row in comparison.rows if row.key == ("Lima",))
        expected = sum(2 * (10 * month + 7) for month in (7, 8, 9)) + 800
        assert (lima.value, lima.reference) == (expected, sum(2 * (10 * month + 7) for month in (4, 5, 6)))
        assert [mark.key for mark in result.task("unusual").value.marks] == [("Lima",)]
        assert result.answer is not None
        assert f"{expected:,}" in result.answer
        assert [artifact.name for artifact in result.artifacts] == ["chart.png", "report.html", "report.md"]
        assert result.artifacts[0].data.startswith(b"\x89PNG")
        assert "![" in result.artifacts[2].data.decode()
        assert app.guards["warehouse"].policy.bulkhead.permits == 32


@pytest.mark.realtime
@pytest.mark.parametrize("question", [COMPARE, "比较2024年第三季度和第二季度各 city 的 amount"])
async def test_without_the_warehouse_it_says_what_it_knows_and_keeps_the_budget(settings, sources, question):
    async with analyst_app(settings, sources) as app:
        with Injector(app.kernel) as injector:
            injector.inject("warehouse", Hang())
            result = await app.ask(question, budget=0.5)
        assert str(result.status) == "degraded"
        assert result.elapsed <= 0.55
        assert result.answer is not None
        for known in ("90", "day, city, kind, amount", "2024-01-15", "2024-09-15", "warehouse", "deals.csv"):
            assert known in result.answer
        assert {one.task for one in result.shortfalls} >= {"query", "reference", "compare"}
        statistics = app.guards["warehouse"].statistics()
        assert (statistics.in_use, statistics.waiting, statistics.orphans) == (0, 0, 0)
        assert str((await app.ask(question, budget=20.0)).status) == "completed"


@pytest.mark.realtime
async def test_a_failing_chart_costs_only_the_chart(settings, sources):
    async with analyst_app(settings, sources) as app:
        with Injector(app.kernel) as injector:
            injector.inject("charts", Error("crash"))
            result = await app.ask(COMPARE, budget=20.0)
        assert [one.task for one in result.shortfalls] == ["chart"]
        assert [artifact.name for artifact in result.artifacts] == ["report.html", "report.md"]
        assert result.answer is not None
        assert "Lima" in result.answer


@pytest.mark.realtime
async def test_stale_results_serve_when_the_warehouse_fails_later(settings, sources):
    async with analyst_app(settings, sources) as app:
        fresh = await app.ask("total amount", budget=20.0)
        with Injector(app.kernel) as injector:
            injector.inject("warehouse", Error("unavailable"))
            stale = await app.ask("total amount", budget=5.0)
        assert str(stale.status) == "degraded"
        outcome = stale.task("query").outcome
        assert outcome is not None
        assert (outcome.provenance.rung, outcome.provenance.age is not None) == ("stale", True)
        assert stale.task("query").value == fresh.task("query").value
        assert stale.answer is not None
        assert "may be out of date" in stale.answer


@pytest.mark.realtime
async def test_a_plan_that_no_grammar_made_is_answered_too(settings, sources):
    query = {"table": "deals", "measure": {"aggregate": "sum", "column": "amount"}, "group_by": [{"column": "city"}]}
    tasks = (
        TaskSpec(id="numbers", tool="query", arguments={"query": query}),
        TaskSpec(
            id="picture", tool="chart", arguments={"kind": "bar", "data": {"$from": "numbers"}}, needs=("numbers",)
        ),
    )
    agent = make_analyst(sources, model=StaticPlanner(Plan(tasks=tasks)))
    async with App(settings, agents=[agent]) as app:
        result = await app.ask("whatever", budget=20.0)
        assert str(result.status) == "completed", result.to_dict()
        assert result.answer is not None
        assert "Lima" in result.answer


@pytest.mark.realtime
async def test_wrong_queries_are_the_callers_fault_and_break_nothing(settings, sources):
    tasks = [
        {"table": "nowhere", "measure": {"aggregate": "count"}},
        {"table": "deals", "measure": {"aggregate": "sum", "column": "nothing"}},
        {"table": "deals", "measure": {"aggregate": "sum", "column": "city"}},
        {"table": "deals"},
    ]
    for query in tasks:
        plan = Plan(tasks=(TaskSpec(id="numbers", tool="query", arguments={"query": query}),))
        async with App(settings, agents=[make_analyst(sources, model=StaticPlanner(plan))]) as app:
            result = await app.ask("whatever", budget=20.0)
            assert str(result.status) == "degraded"
            assert app.guards["warehouse"].statistics().failed == 0, query


@pytest.mark.realtime
async def test_cancelling_interrupts_the_query_in_the_database(settings, sources):
    query = sources.get("deals")
    agent = make_analyst(sources)
    tool = agent.tools.get("query")
    started = threading.Event()
    interrupted = threading.Event()

    class Cursor:
        def execute(self, sql, parameters=()):
            started.set()
            assert interrupted.wait(10)
            raise RuntimeError("interrupted")

        def interrupt(self):
            interrupted.set()

        def close(self):
            pass

    class Connection:
        def cursor(self):
            return Cursor()

    slow = type(sources)([replace(query, connection=Connection())])
    tool = make_analyst(slow).tools.get("query")
    guard = Kernel().guard("warehouse", "data")
    arguments = {"query": {"table": "deals", "measure": {"aggregate": "count"}}}
    task = asyncio.create_task(tool.call(guard, arguments, ToolContext.current()))
    await until(started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert interrupted.is_set()
    await until(lambda: guard.statistics().in_use == 0)
    await guard.aclose()


def test_results_survive_as_json(rule, sources):
    from failsoft.examples.analyst.query import run

    intent = intent_of(rule(PlanRequest("amount per city")))
    assert intent is not None
    result = run(intent.query, sources.get("deals").connection.cursor(), profile=sources.profiles[0])
    again = as_data(Result, json.loads(json.dumps(to_dict(result))))
    assert again.rows == result.rows
    assert again.query == result.query
    with pytest.raises(Exception, match="no Comparison"):
        as_data(Comparison, {"rows": 3})


def test_answers_are_there_before_anything_is(sources):
    answer = Replies(sources.profiles)(Parts(PlanRequest("what?")))
    assert "deals" in answer.text
    assert [artifact.name for artifact in answer.artifacts] == ["report.html", "report.md"]


@pytest.mark.parametrize(
    ("planner", "model", "names"),
    [
        ("auto", None, ["rules"]),
        ("auto", StaticPlanner(Plan(tasks=(TaskSpec(id="x", tool="query"),))), ["static", "rules"]),
        ("rules", StaticPlanner(Plan(tasks=(TaskSpec(id="x", tool="query"),))), ["rules"]),
        ("model", StaticPlanner(Plan(tasks=(TaskSpec(id="x", tool="query"),))), ["static"]),
    ],
)
def test_planners_as_chosen(sources, planner, model, names):
    assert [one.name for one in make_analyst(sources, model=model, planner=planner).planners] == names


def test_the_model_planner_needs_a_model(sources):
    with pytest.raises(BadInput, match="set OPENAI_BASE_URL"):
        make_analyst(sources, planner="model")


def test_two_files_of_one_table_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text("n\n1\n")
    with pytest.raises(BadData, match="two files give a table 'x'"):
        load_sources([tmp_path / "a" / "x.csv", tmp_path / "b" / "x.csv"], cache=tmp_path / "cache")


def test_the_cache_is_where_it_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    assert cache_folder(tmp_path / "chosen", {}) == tmp_path / "chosen"
    assert cache_folder(None, {"XDG_CACHE_HOME": str(tmp_path / "x")}) == tmp_path / "x" / "failsoft"
    assert cache_folder(None, {"HOME": str(tmp_path)}) == tmp_path / ".cache" / "failsoft"
    assert cache_folder(None, {"HOME": ""}).parent == tmp_path / "temporary"
    (tmp_path / "file").write_text("")
    assert cache_folder(None, {"HOME": str(tmp_path / "file")}).parent == tmp_path / "temporary"
    with pytest.raises(BadData, match="cannot be written to; set cache_dir"):
        cache_folder(tmp_path / "file" / "below", {})


def test_what_draws_waits_for_a_picture_once_its_fonts_are_known(tmp_path, monkeypatch):
    warmed: list[Path] = []
    monkeypatch.setattr("failsoft.examples.analyst.agent._warm_up", warmed.append)
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "fonts"))
    table = tmp_path / "sales.csv"
    table.write_text("region,revenue\nnorth,1\n")
    settings = Settings(data=[table], cache_dir=tmp_path)
    with loaded_sources(settings):
        assert warmed == [tmp_path]
    (tmp_path / "fonts").mkdir()
    (tmp_path / "fonts" / "fontlist-v1.json").write_text("{}")
    with loaded_sources(settings):
        assert warmed == [tmp_path]
