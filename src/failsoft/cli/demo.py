"""``failsoft demo``: two questions over real data, then the first again while a dependency is broken."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from failsoft.cli.ask import asked_once, ready, settings_of, write_files
from failsoft.cli.main import FAILED, INTERRUPTED, OK
from failsoft.cli.show import Screen
from failsoft.cli.waterfall import ms
from failsoft.drills.faults import parse_fault
from failsoft.drills.toxics import Toxic
from failsoft.examples.analyst.sales import write_csv
from failsoft.runs.result import RunRequest, RunResult

__all__ = ["run"]

BUDGET = 5.0
"""Seconds for each question."""
LATE = 0.05
"""Seconds after the budget within which every answer must be there."""

FLIGHTS = "Which 5 carriers had the longest mean departure delay in July?"
SALES = "Compare Q3 2024 revenue per region with Q2 2024 and mark unusual changes"


@dataclass(frozen=True, slots=True)
class Scene:
    """One question of the demo, and how it must end."""

    name: str
    question: str
    expected: str
    data: tuple[Path, ...] = ()
    faults: tuple[tuple[str, Toxic], ...] = ()


def run(*, fault: str, out: Path, as_json: bool) -> int:
    """Shows all scenes; 0 only if each ended as expected and within its budget."""
    broken = parse_fault(fault)
    screen = Screen(Console(highlight=False), quiet=as_json)
    with tempfile.TemporaryDirectory(prefix="failsoft-demo-") as folder:
        sales = write_csv(Path(folder) / "sales.csv")
        scenes = (
            Scene("flights", FLIGHTS, "completed"),
            Scene("sales", SALES, "completed", data=(sales,)),
            Scene(f"flights, {fault}", FLIGHTS, "degraded", faults=(broken,)),
        )
        ended = []
        for number, scene in enumerate(scenes, start=1):
            result = _shown(scene, screen, f"{number}/{len(scenes)}  ", out)
            ended.append((scene, result))
            if str(result.status) == "cancelled":
                return INTERRUPTED
    return _judged(ended, as_json=as_json)


def _shown(scene: Scene, screen: Screen, number: str, out: Path) -> RunResult:
    settings = settings_of(None, data=scene.data, planner="rules")
    screen.question(scene.question, number=number)
    for downstream, toxic in scene.faults:
        screen.say(f"with a fault: {downstream} = {toxic}")
    with ready(settings, screen, question=scene.question) as prepared:

        async def answer() -> RunResult:
            async with prepared.app(scene.faults) as app:
                return await asked_once(app, RunRequest(scene.question, budget_ms=BUDGET * 1000), screen)

        result = asyncio.run(answer())
    folder = out / "".join(c if c.isalnum() else "-" for c in scene.name).replace("--", "-")
    screen.result(result.to_dict(), write_files(result, folder))
    return result


def _judged(ended: Sequence[tuple[Scene, RunResult]], *, as_json: bool) -> int:
    rows: list[dict[str, Any]] = []
    for scene, result in ended:
        rungs = {t.id: f"{t.outcome.provenance.rung}" for t in result.tasks if t.outcome is not None}
        kept = result.elapsed <= result.budget + LATE
        rows.append(
            {
                "run": scene.name,
                "status": str(result.status),
                "expected": scene.expected,
                "elapsed_ms": round(result.elapsed * 1000, 1),
                "budget_ms": round(result.budget * 1000, 1),
                "rungs": rungs,
                "ok": kept and str(result.status) == scene.expected,
            }
        )
    good = all(row["ok"] for row in rows)
    if as_json:
        sys.stdout.write(json.dumps({"ok": good, "runs": rows}, ensure_ascii=False) + "\n")
        return OK if good else FAILED
    sys.stdout.write("\n")
    width = max(len(row["run"]) for row in rows)
    for row in rows:
        spent = f"{ms(row['elapsed_ms'] / 1000)} / {ms(row['budget_ms'] / 1000)}"
        used = ", ".join(f"{task} {rung}" for task, rung in row["rungs"].items())
        wrong = "" if row["ok"] else f"  NOT AS EXPECTED ({row['expected']} within the budget)"
        sys.stdout.write(f"{row['run']:<{width}}  {row['status']:<9}  {spent:>17}  rungs: {used}{wrong}\n")
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    return OK if good else FAILED
