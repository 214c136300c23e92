"""``failsoft ask``: answers with the right numbers, degraded ones in time, bad input in one line."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.deep import some_of

from failsoft.cli.main import execute

pytestmark = pytest.mark.timeout(60)

TIMEOUTS = {"deadline_exceeded", "task_timeout", "attempt_timeout"}
COMPARE = "Compare Q3 2024 revenue per region with Q2 2024"


def asked(capsys, *arguments):
    code = execute(["ask", "--json", *map(str, arguments)])
    out, _ = capsys.readouterr()
    assert out.count("\n") == 1, out
    return code, json.loads(out)


def refused(capsys, *arguments):
    """The one line of a refusal; nothing may be on stdout."""
    code = execute(["ask", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert code == 2, (code, out, err)
    lines = err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    return lines[-1]


def test_json_is_one_object_with_all_that_is_promised(capsys, sales):
    code, body = asked(capsys, "--data", sales, "--budget", "5", COMPARE)
    assert code == 0
    assert {
        "status",
        "answer",
        "provenance",
        "elapsed_ms",
        "budget_ms",
        "tasks",
        "run_id",
        "artifacts",
        "error",
    } <= set(body)
    assert (body["status"], body["budget_ms"], body["error"]) == ("completed", 5000, None)
    assert body["elapsed_ms"] < 5000
    for number in ("600", "150", "450", "400", "1,000", "550"):
        assert number in body["answer"]
    assert {task["id"]: task["status"] for task in body["tasks"]} == {
        "query": "completed",
        "reference": "completed",
        "compare": "completed",
        "chart": "completed",
    }


@pytest.mark.parametrize(
    ("question", "numbers"),
    [
        ("total revenue", ["1,550"]),
        ("revenue per product, highest first", ["950", "600"]),
        ("revenue in july 2024", ["450"]),
        ("各地区的销售额 revenue", ["750", "800"]),
        ("how many rows per region", ["4"]),
    ],
)
def test_right_numbers_for_questions_of_many_kinds(capsys, sales, question, numbers):
    code, body = asked(capsys, "--data", sales, question)
    assert (code, body["status"]) == (0, "completed"), body["error"]
    for number in numbers:
        assert number in body["answer"], body["answer"]


def test_people_see_plan_progress_answer_and_where_the_time_went(capsys, sales):
    assert execute(["ask", "--data", str(sales), COMPARE]) == 0
    out, _ = capsys.readouterr()
    for shown in (
        "understood as",
        "plan",
        "✓ the numbers asked for",
        "where the time went",
        "planning",
        "aggregation",
        "in all",
    ):
        assert shown in out, out
    assert "│" in out
    assert "completed in" in out


def test_files_are_written_where_asked(capsys, sales, tmp_path):
    code, body = asked(capsys, "--data", sales, "--out", tmp_path / "new" / "place", "revenue per region")
    assert code == 0
    assert set(body["files"]) == {"chart.png", "report.html", "report.md"}
    written = sorted((tmp_path / "new" / "place").iterdir())
    assert [file.name for file in written] == ["chart.png", "report.html", "report.md"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert "<html" in written[1].read_text()


def test_without_out_nothing_is_written(capsys, sales, tmp_path):
    asked(capsys, "--data", sales, "revenue per region")
    assert [file.name for file in tmp_path.iterdir()] == ["sales.csv"]


@pytest.mark.parametrize(
    ("fault", "budget", "codes"),
    [
        ("warehouse=hang", 0.6, TIMEOUTS),
        ("warehouse=error:unavailable", 5, {"downstream_unavailable"}),
        ("warehouse=delay:10s", 0.6, TIMEOUTS),
    ],
)
def test_a_broken_warehouse_gives_a_degraded_answer_in_time(capsys, sales, fault, budget, codes):
    exit_code, body = asked(capsys, "--data", sales, "--budget", budget, "--fault", fault, COMPARE)
    assert (exit_code, body["status"]) == (0, "degraded")
    assert body["elapsed_ms"] <= body["budget_ms"] + 50
    reasons = {one["task"]: one["reason"] for one in body["provenance"]["shortfalls"]}
    assert reasons["query"] in codes
    assert reasons["compare"] in ("dependency_failed", "not_started")
    for known in ("8 rows", "day, region, product, revenue", "2024-04-03", "2024-09-30", "warehouse", "Q3 2024"):
        assert known in body["answer"], body["answer"]


def test_a_broken_chart_costs_only_the_chart(capsys, sales):
    code, body = asked(capsys, "--data", sales, "--fault", "charts=error:crash", COMPARE)
    assert (code, body["status"]) == (0, "degraded")
    assert [one["task"] for one in body["provenance"]["shortfalls"]] == ["chart"]
    assert "450" in body["answer"]
    assert [one["name"] for one in body["artifacts"]] == ["report.html", "report.md"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([""], "the question is empty"),
        (["   "], "the question is empty"),
        (["x" * 1_000_000], "the question has 1000000 characters; at most 10000"),
        (["q", "--agent", "nobody"], "--agent: there is no agent 'nobody'; there are: analyst"),
        (["q", "--budget", "0"], "--budget: a budget is more than 0"),
        (["q", "--budget", "-1"], "--budget"),
        (["q", "--budget", "soon"], "--budget: should be a duration"),
        (["q", "--budget", "nan"], "--budget"),
        (["q", "--budget", "1e999"], "--budget"),
        (["q", "--budget", "121"], "--budget: the longest budget is 120 s"),
        (["q", "--budget"], "--budget"),
        (["q", "--planner", "oracle"], "--planner: run.planner: should be 'auto', 'rules' or 'model'"),
        (["q", "--planner", "model"], "--planner: there is no model; set OPENAI_BASE_URL or model.base_url"),
        (["q", "--fault", "warehouse"], "--fault: should be NAME=KIND"),
        (["q", "--fault", "warehouse=explode"], "--fault: unknown kind of fault"),
        (["q", "--config", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["q", "--data", "nowhere.csv"], "nowhere.csv: there is no such file"),
        (["q", "--data", "."], "this is a folder, not a file"),
        (["q", "--colour", "red"], "No such option: --colour"),
        ([], "Missing argument"),
        (["q", "more"], "unexpected extra argument"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_change(capsys, sales, arguments, says):
    if "--data" not in arguments:
        arguments = ["--data", str(sales), *arguments]
    assert says in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"a,b\n", "no rows"),
        (b"a,b\n1,2\n3,4,5\n", "line 3"),
        (b"\x00\x01\x02\x03binary\x00\xff", ""),
        (b"PAR1 but not really PAR1", ""),
    ],
)
def test_broken_files_are_refused_and_leave_nothing(capsys, tmp_path, cache, content, says):
    file = tmp_path / "broken.csv"
    file.write_bytes(content)
    before = {one.name for one in cache.iterdir()}
    line = refused(capsys, "total", "--data", file)
    assert "broken.csv" in line
    assert says in line
    assert {one.name for one in cache.iterdir()} - before <= {"matplotlib", "usual-times.json"}


def test_unknown_columns_are_told_with_those_there_are(capsys, sales):
    line = refused(capsys, "--data", sales, "mean profit per region")
    assert "profit" in line
    assert "day, region, product, revenue" in line


def test_with_json_a_refusal_is_the_error_object(capsys, sales):
    code, body = asked(capsys, "--data", sales, "mean profit per region")
    assert code == 2
    assert (body["error"]["code"], body["error"]["param"]) == ("bad_question", "input")
    assert body["error"]["details"]["columns"] == {"sales": ["day", "region", "product", "revenue"]}
    code, body = asked(capsys, "--budget", "0", "q")
    assert (code, body["error"]["type"], body["error"]["param"]) == (2, "invalid_request", "budget")
    assert body["error"].keys() >= {"type", "code", "message", "param", "run_id", "retry_after"}
    code, body = asked(capsys, "--colour", "red", "q")
    assert (code, body["error"]["type"]) == (2, "invalid_request")


def test_settings_file_is_obeyed(capsys, sales, tmp_path):
    file = tmp_path / "failsoft.yaml"
    file.write_text("run: {budget: 2500ms}\ndata: [sales.csv]\ndownstreams: {warehouse: {attempt_timeout: 200ms}}\n")
    code, body = asked(capsys, "--fault", "warehouse=hang", "total revenue")
    assert (code, body["status"], body["budget_ms"]) == (0, "degraded", 2500)
    assert body["elapsed_ms"] < 2000


def test_usual_times_are_kept_for_the_next_estimate(capsys, sales, cache):
    asked(capsys, "--data", sales, "revenue per region")
    known = json.loads((cache / "usual-times.json").read_text())
    assert known["tool:query"]
    (cache / "usual-times.json").write_text("{broken")
    assert asked(capsys, "--data", sales, "revenue per region")[0] == 0


MAIN = """
import sys
from failsoft.cli import main
try:
    main()
finally:
    print("matplotlib" in sys.modules, file=sys.stderr)
"""


def started(*arguments, cache, cwd):
    """Tells at last whether it loaded what draws."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")} | {"FAILSOFT_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, cwd=cwd)


def test_ctrl_c_cancels_the_run_and_exits_130(sales, cache, tmp_path):
    process = started(
        "ask",
        "--data",
        sales,
        "--budget",
        "60",
        "--fault",
        "warehouse=delay:50s",
        "total revenue",
        cache=cache,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("plan "):
            break
    time.sleep(0.2)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert (process.returncode, "Traceback" in err) == (130, False), err
    assert "cancelled" in out + err


@pytest.mark.parametrize("question", some_of(["total revenue", "revenue per planet"], each=2))
def test_a_reader_that_leaves_is_no_crash_and_without_a_chart_nothing_that_draws_is_loaded(
    sales, cache, tmp_path, question
):
    process = started("ask", "--json", "--data", sales, question, cache=cache, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == "False\n"
    process.stderr.close()
    process.wait(20)
