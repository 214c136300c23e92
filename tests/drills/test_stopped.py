"""A real process, stopped and continued: what its clients, its breakers and a drill that dies make of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from failsoft.drills.arm import run_arm
from failsoft.drills.scenario import Scenario

SMALL = {
    "id": "stopped",
    "kind": "process",
    "downstreams": {name: {"median": 0.02} for name in ("search", "prices", "charts", "archive")},
    "runs": [{"draw": 2, "shape": "chain"}],
    "settings": {
        "server": {"drain": 1},
        "downstreams": {"each": {"preset": "data", "attempt_timeout": 0.3, "breaker": {"consecutive_timeouts": 2}}},
    },
    "options": {"stop": {"after": "500ms", "for": "1s"}},
    "load": {"warmup": 1.0, "stages": [{"rate": 10, "for": 3.0}], "clients": {"budget": 6.0}},
    "goals": [{"name": "errors", "value": "failsoft.error_rate", "at_most": 0}],
}


@pytest.mark.deep
@pytest.mark.realtime
@pytest.mark.timeout(90)
async def test_a_stopped_process_opens_no_breaker_and_answers_everybody_when_it_is_back():
    (measured,) = await run_arm(Scenario.model_validate(SMALL), "failsoft", 1)
    assert measured.breakers == []
    assert {one.outcome for one in measured.samples} == {"complete"}
    slowest = max(one.seconds for one in measured.samples if one.at < 1.5)
    assert slowest > 0.7, "it was stopped indeed"


@pytest.mark.deep
def test_a_drill_that_is_killed_leaves_no_stopped_process():
    program = (
        "import subprocess, sys, os, signal, time\n"
        "sleeping = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "child = subprocess.Popen(sleeping, stdout=subprocess.DEVNULL, process_group=0)\n"
        "os.kill(child.pid, signal.SIGSTOP)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    # as an arm is started, in a session of its own, and the platform in a group of its own in that session
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as drill:
        assert drill.stdout is not None
        child = int(drill.stdout.readline())
        drill.kill()
    for _ in range(200):
        if state(child) in (None, "Z"):
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    pytest.fail(f"the child is still there: {state(child)}")


def state(pid: int) -> str | None:
    """A process's state as the system has it; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None
