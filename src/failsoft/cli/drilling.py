"""What ``failsoft drill`` does."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from failsoft.base.errors import BadInput
from failsoft.base.jsontext import json_text
from failsoft.cli.main import FAILED, OK
from failsoft.drills.running import Drilled, arms_of, checked_scenario, run_scenario
from failsoft.drills.scenario import load_scenario

__all__ = ["list_all", "prove_all", "run_one", "write_new"]

_MOST = 1000
"""Scenarios that are looked at in one folder."""


def _found(file: str, folder: Path) -> Path:
    path = Path(file)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return path
    named = folder / f"{file}.yaml"
    if not named.is_file():
        known = ", ".join(sorted(one.stem for one in folder.glob("*.yaml"))) or "none"
        raise BadInput(f"there is no scenario {file!r} in {folder}; there are: {known}", param="file")
    return named


def run_one(
    file: str, folder: Path, *, seed: int, report: Path | None, virtual: bool, in_turn: bool, as_json: bool
) -> int:
    """Runs one scenario and tells the verdict."""
    path = _found(file, folder)
    scenario = checked_scenario(path)
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description:>9}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=as_json, transient=True) as bars:
        arms = {arm: bars.add_task(arm, total=1.0) for arm in arms_of(scenario)}
        drilled = asyncio.run(
            run_scenario(
                scenario,
                path,
                seed,
                progress=lambda arm, share: bars.update(arms[arm], completed=share),  # type: ignore[index]  # one of them
                virtual=virtual,
                in_turn=in_turn,
            )
        )
    if report is not None:
        from failsoft.drills.report import write_report

        write_report(drilled, report)
    if as_json:
        sys.stdout.write(json_text(drilled.verdict) + "\n")
    else:
        _show(drilled, Console(highlight=False))
    return OK if drilled.verdict["pass"] else FAILED


def _show(drilled: Drilled, console: Console) -> None:
    """Figures and goals as tables."""
    told = drilled.verdict
    console.print(f"{told['id']}  {drilled.scenario.title}", soft_wrap=True)
    faulted = next((one.faulted for one in drilled.arms.values() if one.faulted), None)
    console.print(f"scale {told['scale']:g}, seed {told['seed']}" + (f", faulted: {faulted}" if faulted else ""))
    arms = [arm for arm in ("healthy", "baseline", "failsoft") if arm in told]
    table = Table("", *arms, box=None)
    for name in told[arms[0]]:
        table.add_row(name, *(_number(told[arm][name]) for arm in arms))
    console.print(table)
    goals = Table("goal", "wanted", "reached", "", box=None)
    for goal in told["goals"]:
        goals.add_row(goal["name"], goal["goal"], _number(goal["value"]), "ok" if goal["pass"] else "SHORT")
    console.print(goals)
    console.print("passed" if told["pass"] else "not passed")


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}"


def list_all(folder: Path, *, as_json: bool) -> int:
    """The scenarios of a folder with their titles."""
    found = []
    for path in sorted(folder.glob("*.yaml"))[:_MOST]:
        scenario = load_scenario(path)
        found.append({"id": scenario.id, "file": str(path), "title": scenario.title, "scale": scenario.scale})
    if as_json:
        sys.stdout.write(json.dumps({"scenarios": found}, ensure_ascii=False) + "\n")
        return OK
    if not found:
        raise BadInput(f"there are no scenarios in {folder}; make one with: failsoft drill new FILE", param="dir")
    for one in found:
        sys.stdout.write(f"{one['id']:<8} {one['title']}\n")
    return OK


NEW = """\
# A drill: what is slow or broken, for whom, and what must become of the answers.
id: mine
title: A tenth of one downstream's calls hang
scale: 1

downstreams:
  search: {median: 40ms}
  prices: {median: 40ms}
  charts: {median: 60ms}
  archive: {median: 60ms}
faulted: [search, prices, charts, archive] # the seed draws one

runs:
  - {draw: 3, shape: join} # three downstreams for each question; the last call needs the results of the others

settings: # a failsoft.yaml; `each` stands for every downstream
  downstreams:
    each: {preset: data, attempt_timeout: 300ms, retries: 0, hedge: {quantile: 0.99, share: 0.1}}

load: # requests a second, whether earlier ones were answered or not
  warmup: 3s
  stages: [{rate: 30, for: 10s}]
  clients: {budget: 3s}

faults:
  - {on: faulted, toxic: hang, share: 0.1, after: 2s}

baseline: {permits: 100, limit: 30s, retries: 1}

goals:
  - {name: p99 against healthy, value: failsoft.p99_ms, over: healthy.p99_ms, at_most: 3}
  - {name: errors, value: failsoft.error_rate, at_most: 0}
  - {name: degraded, value: failsoft.degraded_rate, at_most: 0.1}
"""


def write_new(file: Path) -> int:
    """Writes the scenario above."""
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(NEW)
    except FileExistsError:
        raise BadInput(f"{file} is there already", param="file") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}", param="file") from None
    sys.stdout.write(f"{file}: written; run it with: failsoft drill run {file}\n")
    return OK


def prove_all(folder: Path, out: Path, only: list[str], *, seed: int, virtual: bool = False) -> int:
    """Runs the proof; tells one line for each scenario."""
    from failsoft.drills.proof import prove

    def tell(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    known = {load_scenario(file).id for file in folder.glob("*.yaml")}
    if unknown := [one for one in only if one not in known]:
        raise BadInput(f"there is no scenario {unknown[0]!r}; there are: {', '.join(sorted(known))}", param="only")
    return OK if prove(folder, out, seed=seed, only=only, virtual=virtual, tell=tell) else FAILED
