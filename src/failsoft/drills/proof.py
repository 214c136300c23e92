"""The proof: every scenario run in real time, what was reached written down, and what fell short with it."""

from __future__ import annotations

import asyncio
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from failsoft.base.errors import BadInput
from failsoft.drills.plots import drawn
from failsoft.drills.running import Drilled, checked_scenario, run_scenario
from failsoft.drills.scenario import Scenario, load_scenario
from failsoft.drills.verdict import FIGURES

__all__ = ["proof_page", "prove"]

_HEAD: Final = """\
# Proof

What happens to Failsoft in the outages of the five incident reports, and in five more. Each scenario is run three
times at once, on the same machine: **healthy** (no fault), the **baseline** (the reports' naive platform,
[`drills/baseline`](../src/failsoft/drills/baseline/platform.py)) and **Failsoft**, under the same open-loop load, with
the same luck for each call, in the fault that the scenario file says. Answers are checked against known data:
*complete* is one with every part right; *degraded* says what it lacks, has nothing wrong, and carries all that its
healthy downstreams gave; all else, and whatever comes later than budget + 50 ms, is an *error*.

    make drills                         all of them, written to this page (under 20 minutes)
    failsoft drill run A2               one of them
    failsoft drill run A2 --virtual     in simulated time: the same code, without the machine's noise

Percentiles are over all requests, errors included, from when each *should* have been sent. Times are those of the
scenario file; times `scale` they are the reports'. Load that was sent more than 10 ms late (p99) voids a
verdict, and it says so. How to drill your own platform: [drills](drills.md).

"""


def prove(
    folder: Path,
    out: Path,
    *,
    seed: int,
    only: Sequence[str] = (),
    virtual: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> bool:
    """Runs the scenarios of `folder` (or `only` some), writes ``proof.md`` and ``proof/`` in `out`; whether all passed.

    What was run before and is not run now stays on the page. `virtual`: in simulated time, which the page says; what
    stops a real process cannot be simulated.
    """
    kept = out / "proof"
    kept.mkdir(parents=True, exist_ok=True)
    wanted = [file for file in _files(folder) if not only or load_scenario(file).id in only]
    for file, scenario in [(file, checked_scenario(file)) for file in wanted]:  # all are read before any runs
        simulated = virtual and scenario.kind != "process"
        drilled = asyncio.run(run_scenario(scenario, file, seed, virtual=simulated))
        about = {"faulted": _faulted(drilled), "clock": "simulated" if simulated else "real", "machine": _machine()}
        (kept / f"{scenario.id}.json").write_text(
            json.dumps({**drilled.verdict, **about}, indent=1) + "\n", encoding="utf-8"
        )
        (kept / f"{scenario.id}.svg").write_text(drawn(drilled), encoding="utf-8")
        short = [goal["name"] for goal in drilled.verdict["goals"] if not goal["pass"]]
        tell(f"{scenario.id}: " + ("passed" if not short else f"SHORT: {'; '.join(short)}"))
    text, passed = proof_page(folder, kept)
    (out / "proof.md").write_text(text, encoding="utf-8")
    return passed


def _files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.yaml"))
    if not found:
        raise BadInput(f"there are no scenarios in {folder}", param="dir")
    return found


def _faulted(drilled: Drilled) -> str | None:
    return next((one.faulted for one in drilled.arms.values() if one.faulted), None)


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"


def proof_page(folder: Path, kept: Path) -> tuple[str, bool]:
    """The page made of what is kept, and whether every scenario has passed."""
    told: list[tuple[Scenario, dict[str, Any] | None]] = []
    for file in _files(folder):
        scenario = load_scenario(file)
        stored = kept / f"{scenario.id}.json"
        told.append((scenario, json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else None))
    lines = [
        "|  | scenario | before, theirs | after, theirs | baseline here | Failsoft here | goals |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for scenario, result in told:
        lines.append(_row(scenario, result))
    text = _HEAD + "\n".join(lines) + "\n"
    short = [(scenario, goal) for scenario, result in told for goal in _short(result)]
    text += "\n## What falls short\n\n"
    if short:
        text += "".join(
            f"- **{scenario.id}**: {goal['name']}: {_number(goal['value'])}, wanted {goal['goal']}\n"
            for scenario, goal in short
        )
    simulated = [scenario.id for scenario, result in told if result is not None and result.get("clock") == "simulated"]
    if simulated:
        text += (
            f"- Measured in simulated time, where the processor costs nothing, and still to be measured in real time: "
            f"{', '.join(simulated)}\n"
        )
    missing = [scenario.id for scenario, result in told if result is None]
    if missing:
        text += f"- Not run: {', '.join(missing)}\n"
    if not short and not missing and not simulated:
        text += "Nothing in this run.\n"
    for scenario, result in told:
        if result is not None:
            text += _section(scenario, result)
    return text, not short and not missing


def _short(result: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [] if result is None else [goal for goal in result["goals"] if not goal["pass"]]


def _row(scenario: Scenario, result: dict[str, Any] | None) -> str:
    name = f"[{scenario.id}](#{_anchor(scenario)})"
    if result is None:
        return f"| {scenario.id} | {scenario.title} | {scenario.before} | {scenario.after} | – | – | not run |"
    reached = sum(goal["pass"] for goal in result["goals"])
    goals = f"{reached} of {len(result['goals'])}" + ("" if result["pass"] else " **short**")
    shown = [_summary(result[arm]) for arm in ("baseline", "failsoft")]
    return f"| {name} | {scenario.title} | {scenario.before} | {scenario.after} | {' | '.join(shown)} | {goals} |"


def _summary(figures: dict[str, Any]) -> str:
    return (
        f"p99 {_number(figures['p99_ms'])} ms, errors {_share(figures['error_rate'])}, "
        f"degraded {_share(figures['degraded_rate'])}"
    )


def _anchor(scenario: Scenario) -> str:
    return scenario.id.lower()


def _section(scenario: Scenario, result: dict[str, Any]) -> str:
    faulted = f", faulted: {result['faulted']}" if result.get("faulted") else ""
    clock = f"{result.get('clock', 'real')} time"
    arms = [arm for arm in ("healthy", "baseline", "failsoft") if arm in result]
    lines = [
        f"\n## {scenario.id}\n",
        f"{scenario.title}. Scale {result['scale']:g}, seed {result['seed']}{faulted}, {clock}.\n",
        *([f"{scenario.notes.strip()}\n"] if scenario.notes else []),
        "| goal | wanted | reached |  |",
        "| --- | --- | --- | --- |",
        *(
            f"| {goal['name']} | {goal['goal']} | {_number(goal['value'])} | {'ok' if goal['pass'] else '**short**'} |"
            for goal in result["goals"]
        ),
        "",
        f"|  | {' | '.join(arms)} |",
        f"| --- |{' --- |' * len(arms)}",
        *(f"| {name} | {' | '.join(_number(result[arm][name]) for arm in arms)} |" for name in FIGURES),
        "",
        f"![Percentiles over time, outcomes, queues and breakers; baseline and Failsoft](proof/{scenario.id}.svg)",
        "",
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _share(value: float | None) -> str:
    if value is None:
        return "–"
    share = 100 * value
    return f"{share:.0f} %" if share >= 10 else f"{share:.2g} %" if share else "0"
