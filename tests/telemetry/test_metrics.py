"""Figures for Prometheus: what is counted, and rules that the real promtool has tested."""

import asyncio
import re
import subprocess
from pathlib import Path

from tests.server.serving import serving
from tests.services import program

from failsoft.base.events import Event
from failsoft.kernel.guard import Kernel
from failsoft.telemetry.exposition import Page
from failsoft.telemetry.metrics import RunMetrics, downstream_families

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"


def page_of(metrics):
    page = Page()
    metrics.add_to(page)
    return page.text().decode()


def ended(run, status, elapsed, budget, *reasons, error=None):
    data = {
        "status": status,
        "elapsed_ms": elapsed,
        "budget_ms": budget,
        "shortfalls": [{"reason": one} for one in reasons],
        "error": error,
    }
    return Event(f"run.{status}", 1.0, run=run, data=data)


def test_runs_are_counted_by_agent_and_end():
    metrics = RunMetrics()
    for run in "abc":
        metrics.hear(Event("run.received", 0.0, run=run, data={"agent": "x"}))
    metrics.hear(ended("a", "completed", 100.0, 1000.0))
    metrics.hear(ended("b", "degraded", 1051.0, 1000.0, "attempt_timeout", "breaker_open"))
    metrics.hear(ended("c", "failed", 10.0, 1000.0, error={"code": "deadline_exceeded"}))
    text = page_of(metrics)
    assert 'failsoft_runs_ended_total{agent="x",status="degraded"} 1' in text
    assert 'failsoft_runs_late_total{agent="x"} 1' in text
    assert 'failsoft_runs_timed_out_total{agent="x"} 2' in text
    assert 'failsoft_run_seconds_bucket{agent="x",status="completed",le="0.1"} 1' in text
    assert 'failsoft_run_budget_left_ratio_count{agent="x"} 3' in text


def test_rungs_breakers_and_stalls_are_counted():
    metrics = RunMetrics()
    done = {"rung": "stale", "reason": "breaker_open", "status": "degraded"}
    metrics.hear(Event("task.finished", 1.0, run="a", data=done))
    for kind, at in (("open", 1.0), ("half_open", 5.0), ("open", 6.0), ("half_open", 8.0), ("closed", 11.0)):
        metrics.hear(Event(f"breaker.{kind}", at, downstream="w"))
    text = page_of(metrics)
    assert 'failsoft_tasks_total{rung="stale",reason="breaker_open",status="degraded"} 1' in text
    assert 'failsoft_breaker_changes_total{downstream="w",state="open"} 2' in text
    assert 'failsoft_breaker_recovery_seconds_sum{downstream="w"} 10' in text
    assert "failsoft_loop_stalls_total 0" in text


async def test_downstreams_say_what_they_are_doing():
    kernel = Kernel()
    guard = kernel.guard("w", "core")
    await guard.call(asyncio.sleep, 0.0)
    page = Page()
    downstream_families(page, kernel)
    text = page.text().decode()
    assert 'failsoft_downstream_attempts_ended_total{downstream="w",counts="ok"} 1' in text
    assert 'failsoft_downstream_breaker_state{downstream="w",state="closed"} 1' in text
    assert 'failsoft_downstream_limit{downstream="w"}' in text


def test_the_rules_do_what_they_say():
    for verb, name in (("check", "failsoft.rules.yaml"), ("test", "failsoft.rules.test.yaml")):
        done = subprocess.run(
            [program("promtool", "prometheus"), verb, "rules", name],
            cwd=RULES,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


async def scraped():
    async with serving() as served:
        await served.post({"input": "hang", "budget_ms": 2000})
        async with served.client.get(f"{served.server.address}/metrics") as response:
            return await response.text()


def test_a_scrape_has_every_family_that_the_rules_use_and_is_sound():
    text = asyncio.run(scraped())
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    rules = (RULES / "failsoft.rules.yaml").read_text()
    used = set(re.findall(r"\bfailsoft_[a-z_]+", rules))
    assert used - families <= {"failsoft_runs_late_total"}  # of which there are none
    assert "failsoft_runs_timed_out_total" in families
    done = subprocess.run(
        [program("promtool", "prometheus"), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
