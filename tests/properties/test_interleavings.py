"""A few thousand of bench/interleavings.py's random worlds, and that it would see what it looks for."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.deep import depth

from failsoft.kernel import admission
from failsoft.kernel.budget import RetryBudget
from failsoft.kernel.bulkhead import Bulkhead
from failsoft.kernel.deadline import DeadlineHeap
from failsoft.kernel.guard import Guard
from failsoft.kernel.probes import ProbeLeases

ROOT = Path(__file__).parents[2]
bench: Any = importlib.import_module("bench.interleavings")


def violations(n, seed):
    worlds = bench.Interleavings(seed)
    worlds.run(n)
    worlds.close()
    return worlds


@pytest.mark.parametrize("seed", range(4))
def test_every_invariant_holds(seed):
    worlds = violations(depth(60, 1000), seed)
    assert dict(worlds.violations) == dict.fromkeys(bench.INVARIANTS, 0), worlds.worst
    assert len(worlds.seen) > 20  # of everything that can happen, something did


def test_the_same_seed_gives_the_same_trace_in_every_process():
    here = violations(20, 5)
    command = [sys.executable, ROOT / "bench/interleavings.py", "--n", "20", "--seed", "5", "--json"]
    there = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"}, timeout=60
    )
    printed = json.loads(there.stdout)
    assert printed["trace"] == here.hash.hexdigest()
    assert printed["total"] == 0
    assert violations(20, 6).hash.hexdigest() != here.hash.hexdigest()


def nothing(*_, **__):
    return None


def one_too_many(self, now, lease, limit, take=ProbeLeases.take):
    return take(self, now, lease, limit + 1)


def always(self, now):
    self._tokens -= 1.0
    return True


@pytest.mark.parametrize(
    ("seen", "defects"),
    [
        ("permits_in_use", [(admission, "_leave", nothing)]),
        ("unexpected_errors", [(DeadlineHeap, "disarm", nothing)]),
        ("probes_above_limit", [(ProbeLeases, "take", one_too_many), (ProbeLeases, "retry_in", nothing)]),
        ("budget_negative", [(RetryBudget, "withdraw", always)]),
        ("started_late", [(Guard, "_afford", nothing)]),
        ("children", [(Guard, "callee_ended", nothing)]),
        ("waiting", [(Bulkhead, "grant", nothing)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_defect_is_seen(monkeypatch, seen, defects):
    for target, name, defect in defects:
        monkeypatch.setattr(target, name, defect)
    worlds = bench.Interleavings(1)
    worlds.run(60, until=lambda: worlds.violations[seen] > 0)
    worlds.close()
    assert worlds.violations[seen] > 0, dict(worlds.violations)
