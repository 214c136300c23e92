"""``failsoft check``: good settings, wrong ones, the stages of a budget, and what a hang does."""

import json

import pytest

from failsoft.cli.main import execute


def test_good_settings_and_where_the_budget_goes(capsys):
    assert execute(["check"]) == 0
    out = capsys.readouterr().out
    assert "The settings are good (profile production)." in out
    assert "Where the budget of agent analyst is planned to go" in out
    assert "8.000" in out
    assert "If it hangs now" not in out


def test_the_table_of_hangs(capsys):
    assert execute(["check", "--hang"]) == 0
    out = capsys.readouterr().out
    assert "If it hangs now" in out
    assert "warehouse" in out
    assert "breaker opens, and runs answer at once." in out


def test_both_as_json(capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("profile: staging\nrun: {budget: 4s}\ndownstreams: {charts: {call_timeout: 1s}}\n")
    assert execute(["check", str(file), "--hang", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["good"], body["profile"], body["budget_s"], body["uncovered"]) == (True, "staging", 4.0, [])
    assert sum(stage["seconds"] for stage in body["stages"]["analyst"]) == pytest.approx(4.0)
    rows = {row["downstream"]: row["agents"][0] for row in body["hang"]}
    assert rows["charts"]["answers_within_s"] == pytest.approx(1.05)
    assert rows["warehouse"]["answers_within_s"] == 4.0
    assert rows["warehouse"]["client_sees"] == "degraded"


def test_limits_that_do_not_fit_are_one_line_with_both_places(capsys, tmp_path):
    file = tmp_path / "failsoft.yaml"
    file.write_text("run:\n  budget: 9s\noutside:\n  client: 8s\n")
    assert execute(["check"]) == 2
    said = capsys.readouterr().err
    assert said == "error: failsoft.yaml:2: run.budget: 9 s must be below the 8 s of outside.client (failsoft.yaml:4)\n"


BARE = """
from failsoft import tool
from failsoft.runs.agents import Agent
from failsoft.runs.plan import Plan, TaskSpec
from failsoft.runs.planner import StaticPlanner

@tool(downstream="crm", timeout=2)
async def customers() -> list: ...

@tool(downstream="mail")
async def unused() -> None: ...

agent = Agent("bare", "", [customers, unused], [StaticPlanner(Plan(tasks=(TaskSpec(id="a", tool="customers"),)))])
"""


def test_an_agent_of_ones_own_that_could_not_answer_is_refused(capsys, tmp_path):
    (tmp_path / "mine.py").write_text(BARE)
    (tmp_path / "failsoft.yaml").write_text("load: ['mine.py:agent']\n")
    assert execute(["check", "--hang", "--json"]) == 2
    body = json.loads(capsys.readouterr().out)
    assert body["uncovered"] == [{"agent": "bare", "tool": "customers", "task": "a"}]
    rows = {row["downstream"]: row for row in body["hang"]}
    assert rows["crm"]["agents"][0]["answers_within_s"] == pytest.approx(2.05)
    assert rows["mail"]["not_affected"] == ["bare"]
    assert execute(["check"]) == 2
    assert "task 'a' (tool 'customers') is essential and has no fallback" in " ".join(capsys.readouterr().out.split())
