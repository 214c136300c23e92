"""The frame that a model fills in: its schema, what a filled frame is a plan for, and what is not believed."""

import json

import pytest

from failsoft.base.errors import PlanRefused
from failsoft.examples.analyst.framing import QuestionForm
from failsoft.examples.analyst.plans import intent_of
from failsoft.examples.analyst.spec import Column, TableProfile
from failsoft.runs.planner import PlanRequest, language_of

TEAS = TableProfile(
    "teas",
    400,
    (
        Column("sold", "time", "DATE", minimum="2023-01-05", maximum="2024-03-30", grain="day"),
        Column("kind", "category", "VARCHAR", 3, values=("green", "black", "white"), values_complete=True),
        Column("shop", "category", "VARCHAR", 2, values=("Mill Lane", "Harbour"), values_complete=True),
        Column("grams", "number", "DOUBLE", minimum=1.0, maximum=900.0),
        Column("price", "number", "DOUBLE", minimum=2.0, maximum=30.0, additive=False),
    ),
    time_column="sold",
)
CUPS = TableProfile("cups", 9, (Column("colour", "category", "VARCHAR", 2, values=("red", "blue")),))
FORM = QuestionForm([TEAS, CUPS])


def frame(measure="sum grams", per=(), where=(), time="all", **more):
    where = [{"column": c, "is": op, "value": v} for c, op, v in where]
    return {"table": "teas", "measure": measure, "per": list(per), "where": where, "time": time, **more}


def plan(question, **wanted):
    return FORM.plan(frame(**wanted), PlanRequest(question, language=language_of(question)))


def query(question, **wanted):
    return intent_of(plan(question, **wanted)).query


def test_the_schema_has_the_table_s_own_names_values_and_periods_only():
    teas, cups = FORM.schema(None, None)["anyOf"]
    properties = teas["properties"]
    assert "sum grams" in properties["measure"]["enum"]
    assert "sum kind" not in properties["measure"]["enum"]
    assert properties["per"]["items"]["enum"][:2] == ["kind", "shop"]
    assert "hour" not in properties["per"]["items"]["enum"]  # days tell none apart
    kinds = properties["where"]["items"]["anyOf"][0]["properties"]
    assert (kinds["column"], kinds["value"]) == ({"const": "kind"}, {"enum": ["green", "black", "white"]})
    times = properties["time"]["anyOf"][0]["enum"]
    assert times[:3] == ["all", "2023", "2023-Q1"]
    assert times[-1] == "2024-03"
    assert "time" not in cups["properties"]


def test_the_prompt_is_the_same_each_time_and_its_examples_fit_the_schema():
    prompt = FORM.prompt(None)
    assert prompt == QuestionForm([TEAS, CUPS]).prompt(None)
    assert "table teas, 400 rows, sold from 2023-01-05 to 2024-03-30" in prompt
    lines = prompt.split("\n")
    examples = [(lines[i - 1], json.loads(line)) for i, line in enumerate(lines) if line.startswith('{"table"')]
    assert len(examples) > 8
    for question, filled in examples:
        made = intent_of(FORM.plan(filled, PlanRequest(question, language=language_of(question))))
        assert made.query.table == filled["table"]
        assert len(made.query.filters) == len(filled["where"])  # nothing of them is taken for made up
        assert len(made.query.group_by) == len(filled["per"])


def test_tasks_charts_and_words_follow_from_the_frame():
    made = plan("total grams per month in 2023", per=["month"], time="2023")
    assert [task.id for task in made.tasks] == ["query", "chart"]
    assert made.tasks[1].arguments["kind"] == "line"
    assert made.reading == "Sum of grams per month; 2023 (2023-01-01 to 2023-12-31)."


def test_two_periods_are_a_comparison():
    made = plan("compare total grams per kind in Q1 2024 with Q1 2023", per=["kind"], time="2024-Q1", against="2023-Q1")
    assert [task.id for task in made.tasks] == ["query", "reference", "compare", "chart"]
    intent = intent_of(made)
    assert (intent.compare_to.period.label, intent.compare_to.period.end.isoformat()) == ("Q1 2023", "2023-04-01")


def test_values_are_the_data_s_and_several_of_a_column_are_alternatives():
    made = query("total grams of green and black", where=[("kind", "=", "Green"), ("kind", "=", "black")])
    assert [(one.op, one.value) for one in made.filters] == [("in", ["green", "black"])]


@pytest.mark.parametrize(
    ("question", "wanted", "kept"),
    [
        ("total grams", {"per": ["kind"]}, {"group_by": ()}),
        ("total grams", {"per": ["month"]}, {"group_by": ()}),
        ("total grams", {"where": [("kind", "=", "green")]}, {"filters": ()}),
        ("total grams", {"where": [("price", ">", 5)]}, {"filters": ()}),
        ("total grams", {"time": "2024-03"}, {"period": None}),
        ("total grams per kind", {"per": ["kind"], "order": "desc", "limit": 4}, {"order": "natural", "limit": None}),
        ("total grams per kind", {"per": ["kind"], "share": True}, {"share": False}),
        ("total grams of green", {"per": ["kind"], "where": [("kind", "=", "green")]}, {"group_by": ()}),
    ],
)
def test_what_the_question_does_not_say_is_left_away(question, wanted, kept):
    made = query(question, **wanted)
    assert {name: getattr(made, name) for name in kept} == kept


def test_what_it_says_stays():
    made = query(
        "the 2 kinds with the highest total grams above 5 grams in Harbour",
        per=["kind"],
        where=[("shop", "=", "Harbour"), ("grams", ">", 5)],
        order="desc",
        limit=2,
    )
    assert (made.limit, made.order, len(made.filters)) == (2, "desc", 2)
    assert query("Which kind sold most grams?", per=["kind"], order="desc", limit=1).limit == 1
    assert len(query("Where is most tea sold by grams?", per=["shop"], order="desc").group_by) == 1
    assert query("grams over time", per=["month"]).group_by[0].grain == "month"
    assert query("哈伯的grams总和", where=[("shop", "=", "Harbour")]).filters  # perhaps a translation


@pytest.mark.parametrize(
    ("question", "wanted", "word"),
    [
        ("total grams of green tea", {}, "green"),
        ("total grams of green and black", {"where": [("kind", "=", "green")]}, "black"),
        ("total grams per kind", {}, "kind"),
        ("total price", {"measure": "mean grams"}, "price"),
        ("the 3 kinds with the highest total grams", {"per": ["kind"]}, "3"),
        ("total grams in 2023", {}, "2023"),
        ("total grams in March 2024", {"time": "2024-02"}, "March"),
        ("total grams per month", {}, "month"),
        ("total grams of kinds that are not green", {"where": [("kind", "=", "green")]}, "not"),
        ("average grams", {"measure": "median grams"}, "mean"),
        ("number of sales per shop", {"per": ["shop"]}, "count"),
    ],
)
def test_a_plan_that_leaves_something_out_is_refused_with_the_word(question, wanted, word):
    with pytest.raises(PlanRefused) as refused:
        plan(question, **wanted)
    assert refused.value.details["reason"] == "left_out"
    assert word in refused.value.message


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"table": "pots"},
        frame(measure="sum kind"),
        frame(measure=5),
        frame(per=["nobody"]),
        frame(per="kind"),
        frame(where=[("nobody", "=", 1)]),
        frame(where=[("kind", "like", "g")]),
        frame(where=[("kind", "=", ["a"])]),
        frame(time="soon"),
        frame(time="2024-03-05..2024-03-01"),
        frame(time="2024-13"),
        frame(per=["kind"], limit="3"),
        frame(per=["kind"], order="up"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(data):
    with pytest.raises(PlanRefused) as refused:
        FORM.plan(data, PlanRequest("total grams"))
    assert refused.value.details["reason"] == "schema"


def test_a_whole_plan_is_taken_as_it_is():
    made = FORM.plan({"tasks": [{"id": "a", "tool": "query", "arguments": {}}]}, PlanRequest("anything"))
    assert [task.id for task in made.tasks] == ["a"]
