"""The split of a run's budget over its plan: whoever keeps to it leaves enough for what follows."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.runs.worlds import App, app, plan, task, work

from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner
from failsoft.runs.split import allowance, fits, tails
from failsoft.tools.python import tool

seconds = st.floats(0.001, 100.0)


@st.composite
def graphs(draw):
    """A plan, the usual time of each task, and which are essential."""
    size = draw(st.integers(1, 12))
    specs = []
    for i in range(size):
        needs = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        specs.append(TaskSpec(id=f"t{i}", tool="x", needs=tuple(f"t{j}" for j in needs)))
    usual = draw(st.lists(seconds, min_size=size, max_size=size))
    essential = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return Plan(tasks=tuple(specs)), usual, essential


@given(graphs(), st.floats(1.0, 10.0), st.data())
def test_when_all_fits_it_still_fits_whatever_of_their_allowances_tasks_use(graph, room, data):
    made, usual, _ = graph
    shape = made.shape
    essential = [True] * len(usual)
    tail = tails(shape, usual, essential)
    cut = room * max(tail)
    ends: dict[int, float] = {}
    for i in shape.order:
        start = max((ends[need] for need in shape.needs[i]), default=0.0)
        left = cut - start
        assert left >= tail[i] * (1 - 1e-9)  # it can still be done, with all that follows
        allowed = allowance(left, usual[i], tail[i] - usual[i])
        assert usual[i] * (1 - 1e-9) <= allowed <= left * (1 + 1e-9)
        ends[i] = start + data.draw(st.floats(0.0, 1.0)) * allowed
    assert max(ends.values()) <= cut * (1 + 1e-9)


@given(st.floats(-1.0, 100.0), st.none() | seconds, st.floats(0.0, 100.0))
def test_an_allowance_is_never_more_than_there_is_nor_negative(left, usual, after):
    assert 0.0 <= allowance(left, usual, after) <= max(0.0, left)


def test_the_last_task_of_a_way_and_one_without_history_get_everything():
    assert allowance(8.0, 1.0, 0.0) == 8.0
    assert allowance(8.0, None, 0.0) == 8.0
    assert allowance(0.0, 1.0, 1.0) == 0.0


def test_what_is_over_goes_to_the_task_that_runs():
    assert allowance(10.0, 1.0, 2.0) == 10.0 - 2.5  # no more than 1.25 times the usual is kept
    assert allowance(3.3, 1.0, 2.0) == 3.3 / 3  # little is over: in proportion
    assert allowance(2.5, 1.0, 2.0) == 2.0  # it does not fit: twice the usual


@given(graphs())
def test_tails_are_the_longest_essential_way(graph):
    made, usual, essential = graph
    found = tails(made.shape, usual, essential)

    def longest(i):
        return usual[i] + max((longest(d) for d in made.shape.dependants[i] if essential[d]), default=0.0)

    assert found == [longest(i) for i in range(len(usual))]


def test_an_optional_task_fits_with_what_needs_it():
    assert fits(3.0, 1.0, 2.0)
    assert not fits(2.9, 1.0, 2.0)
    assert fits(0.1, None, 0.0)


async def test_each_task_is_told_what_it_may_spend():
    @tool(kind="external")
    async def first() -> None:
        await asyncio.sleep(1.0)

    made = plan(task("a", "first"), task("b", needs=["a"], seconds=2.0))
    async with app(made, tools=[first]) as running:
        await running.ask("question", budget=8)
        seen = []
        remove = running.bus.add(lambda event: seen.append(event) if event.kind == "task.started" else None)
        result = await running.ask("question", budget=8)
        remove()
    may = {event.task: event.data["budget_ms"] for event in seen}
    cut = 8_000 - 50
    assert may["a"] == cut - 2_500  # 1.25 times what b usually needs is kept
    assert may["b"] == cut - 1_000
    assert result.elapsed == 3.0


async def test_an_optional_task_that_would_leave_nothing_for_an_essential_one_behind_it_is_skipped():
    tasks = [
        task("extra", seconds=2.0, essential=False),
        task("end", "join", ["extra"], parts=[{"$from": "extra"}], tolerates_missing=True),
    ]

    @tool(kind="external")
    async def join(parts: list) -> list:
        await asyncio.sleep(2.0)
        return parts

    one = Agent("tester", "", [work, join], [StaticPlanner(plan(*tasks))])
    async with App(agents=[one], store="off") as running:
        assert (await running.ask("question", budget=8)).task("extra").status == "completed"
        short = await running.ask("question", budget=3)
    assert short.task("extra").outcome.provenance.reason == "unaffordable"
    assert short.task("end").value == [None]
