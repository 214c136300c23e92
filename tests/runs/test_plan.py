import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failsoft.base.errors import BadInput, PlanRefused
from failsoft.runs.plan import Fallback, Plan, PlanLimits, TaskSpec, check_plan, references, resolve
from failsoft.tools.python import tool
from failsoft.tools.registry import ToolRegistry


@tool
async def query(sql: str, limit: int = 10) -> list[Any]:
    """Asks."""
    return []


@tool
async def chart(rows: list[dict[str, Any]], title: str = "") -> str:
    """Draws."""
    return ""


TOOLS = ToolRegistry([query, chart])


def task(name, tool_name="query", needs=(), **arguments):
    return TaskSpec(id=name, tool=tool_name, needs=needs, arguments=arguments or {"sql": "select 1"})


def refused(plan, **limits):
    with pytest.raises(PlanRefused) as caught:
        check_plan(plan, TOOLS, PlanLimits(**limits) if limits else None)
    return caught.value


def test_a_sound_plan_passes_and_survives_json():
    plan = Plan(
        tasks=(
            task("q"),
            TaskSpec(
                id="c",
                tool="chart",
                needs=("q",),
                arguments={"rows": {"$from": "q", "path": "rows"}, "title": "是"},
                title="Chart",
                essential=False,
                priority="optional",
                fallback=Fallback(value=None),
                timeout=2.5,
            ),
        ),
        reading="Revenue per region",
        notes=("assumed 2024",),
        data={"intent": {"x": [1]}},
    )
    assert check_plan(plan, TOOLS) is plan
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_dict(json.loads(plan.to_json())) == plan


def test_plans_are_immutable():
    plan = Plan(tasks=(task("q"),))
    with pytest.raises(ValueError, match="frozen"):
        plan.reading = "other"
    with pytest.raises(ValueError, match="frozen"):
        plan.tasks[0].id = "other"


def test_a_cycle_is_named():
    error = refused(
        Plan(tasks=(task("d"), task("a", needs=("c", "d")), task("b", needs=("a",)), task("c", needs=("b",))))
    )
    assert error.details["reason"] == "cycle"
    cycle = error.details["cycle"]
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {"a", "b", "c"}
    assert " → ".join(cycle) in error.message


def test_a_task_that_needs_itself_is_a_cycle():
    assert refused(Plan(tasks=(task("a", needs=("a",)),))).details["cycle"] == ["a", "a"]


@pytest.mark.parametrize(
    ("tasks", "reason", "param"),
    [
        ((), "no_task", "tasks"),
        (tuple(task(f"t{i}") for i in range(101)), "too_many_tasks", "tasks"),
        ((task("a"), task("a")), "duplicate_id", "tasks[1].id"),
        ((task("a", needs=("b",)),), "unknown_need", "tasks[0].needs"),
        ((task("a", "bogus"),), "unknown_tool", "tasks[0].tool"),
        ((TaskSpec(id="a", tool="x", kind="model"),), "unknown_kind", "tasks[0].kind"),
        ((task("a", sql=5),), "bad_arguments", "tasks[0].arguments.sql"),
        ((task("a", limit=5),), "bad_arguments", "tasks[0].arguments.sql"),
        ((task("a", sql="s", nope=1),), "bad_arguments", "tasks[0].arguments.nope"),
        ((task("a"), task("b", sql={"$from": "a"})), "not_a_dependency", "tasks[1].arguments.sql"),
        ((task("a"), task("b", sql={"$from": "zzz"}, needs=("a",))), "not_a_dependency", "tasks[1].arguments.sql"),
        ((task("a"), task("b", sql={"$from": 5}, needs=("a",))), "bad_reference", "tasks[1].arguments.sql"),
        ((task("a"), task("b", sql={"$from": "a", "x": 1}, needs=("a",))), "bad_reference", "tasks[1].arguments.sql"),
    ],
)
def test_unsound_plans_are_refused_with_reason_and_place(tasks, reason, param):
    error = refused(Plan(tasks=tasks))
    assert error.details["reason"] == reason
    assert error.param == param


def test_an_unknown_tool_is_told_which_there_are():
    error = refused(Plan(tasks=(task("a", "bogus"),)))
    assert "query, chart" in error.message
    assert error.details["tools"] == ["query", "chart"]


def test_a_wrong_argument_beside_a_reference_is_still_found():
    plan = Plan(
        tasks=(task("q"), TaskSpec(id="c", tool="chart", needs=("q",), arguments={"rows": {"$from": "q"}, "title": 5}))
    )
    assert refused(plan).param == "tasks[1].arguments.title"


def test_references_reach_everything_that_ended_before():
    plan = Plan(tasks=(task("a"), task("b", needs=("a",)), task("c", needs=("b",), sql={"$from": "a"})))
    check_plan(plan, TOOLS)


def test_absurdly_nested_arguments_are_refused():
    deep: object = 1
    for _ in range(5_000):
        deep = [deep]
    assert refused(Plan(tasks=(task("a", sql=deep),))).details["reason"] == "too_deep"
    with pytest.raises(PlanRefused):
        Plan.from_json('{"tasks": ' + "[" * 100_000 + "]" * 100_000 + "}")


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"tasks": "x"},
        {"tasks": [], "extra": 1},
        {"version": 2, "tasks": []},
        {"tasks": [{"id": "", "tool": "query"}]},
        {"tasks": [{"id": "a b", "tool": "query"}]},
        {"tasks": [{"id": "a"}]},
        {"tasks": [{"id": "a", "tool": "query", "timeout": 0}]},
        {"tasks": [{"id": "a", "tool": "query", "timeout": float("nan")}]},
        {"tasks": [{"id": "a", "tool": "query", "priority": "high"}]},
    ],
)
def test_data_that_is_no_plan_is_refused(data):
    with pytest.raises(PlanRefused) as caught:
        Plan.from_dict(data)
    assert caught.value.param


def test_the_place_of_a_schema_error_is_named():
    with pytest.raises(PlanRefused) as caught:
        Plan.from_dict({"tasks": [{"id": "a", "tool": "query"}, {"id": "b", "tool": "query", "weight": -1}]})
    assert caught.value.param == "tasks[1].weight"


@dataclasses.dataclass
class Table:
    rows: list[Any]
    name: str = "t"


def test_references_are_replaced_by_results_and_their_parts():
    values = {"q": {"rows": [{"n": 1}, {"n": 2}]}, "t": Table([7])}
    arguments = {
        "all": {"$from": "q"},
        "part": {"$from": "q", "path": "rows[1].n"},
        "last": {"$from": "q", "path": "rows[-1]"},
        "field": {"$from": "t", "path": "rows[0]"},
        "nested": [{"x": {"$from": "t", "path": "name"}}],
        "default": {"$from": "q", "path": "nope", "default": 3},
        "plain": {"a": [1]},
        "gone": {"$from": "z"},
        "gone_default": {"$from": "z", "default": []},
    }
    assert len(references(arguments)) == 8
    assert resolve(arguments, values, {"z"}) == {
        "all": values["q"],
        "part": 2,
        "last": {"n": 2},
        "field": 7,
        "nested": [{"x": "t"}],
        "default": 3,
        "plain": {"a": [1]},
        "gone": None,
        "gone_default": [],
    }


@pytest.mark.parametrize("path", ["nope", "rows[9]", "rows.n", "__class__", "rows[0].__class__", "[0]"])
def test_a_path_that_leads_nowhere_is_bad_input_and_nothing_else_is_reached(path):
    with pytest.raises(BadInput) as caught:
        resolve({"x": {"$from": "q", "path": path}}, {"q": {"rows": [{"n": 1}]}})
    assert caught.value.param == "x"


@given(st.integers(2, 12), st.data())
def test_any_dag_passes_and_any_back_edge_is_a_cycle(size, data):
    edges = [tuple(f"t{j}" for j in range(i) if data.draw(st.booleans())) for i in range(size)]
    tasks = [TaskSpec(id=f"t{i}", tool="query", arguments={"sql": "s"}, needs=edges[i]) for i in range(size)]
    check_plan(Plan(tasks=tuple(data.draw(st.permutations(tasks)))), TOOLS)
    last, first = tasks[-1], tasks[0]
    if first.id in last.needs:
        looped = [first.model_copy(update={"needs": (last.id,)}), *tasks[1:]]
        assert refused(Plan(tasks=tuple(looped))).details["reason"] == "cycle"
