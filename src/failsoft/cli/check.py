"""``failsoft check``: whether the settings are good, where a run's budget is to go, and what a hang would do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from failsoft.app import limits_of
from failsoft.base.jsontext import json_text
from failsoft.cli.loading import load_agents
from failsoft.cli.main import BAD_INPUT, OK
from failsoft.config import Settings, load_settings
from failsoft.runs.agents import Agent
from failsoft.runs.fallbacks import Uncovered, uncovered
from failsoft.runs.hanging import Hang, hangs
from failsoft.runs.stages import Stage, stage_budget

__all__ = ["run"]


def run(file: Path | None, *, hang: bool, as_json: bool) -> int:
    """Checks and prints; gives the exit code: 0 good, 2 not."""
    settings, agents = read(file)
    limits = limits_of(settings)

    def policy(downstream: str, default: str) -> Any:
        return settings.policy(downstream, default=default)

    gaps = [gap for agent in agents for gap in uncovered(agent)]
    stages = {agent.name: stage_budget(agent, policy, limits) for agent in agents}
    rows = hangs(agents, policy, limits) if hang else []
    if as_json:
        body: dict[str, Any] = {
            "good": not gaps,
            "profile": settings.profile,
            "budget_s": settings.run.budget,
            "uncovered": [{"agent": gap.agent, "tool": gap.tool, "task": gap.task} for gap in gaps],
            "stages": {name: [stage.to_dict() for stage in made] for name, made in stages.items()},
        }
        if hang:
            body["hang"] = [row.to_dict() for row in rows]
        sys.stdout.write(json_text(body) + "\n")
    else:
        _show(settings, gaps, stages, rows)
    return BAD_INPUT if gaps else OK


def read(file: Path | None) -> tuple[Settings, tuple[Agent, ...]]:
    """The settings, and the agents that would be served under them: those that they load, else the analyst."""
    settings = load_settings(file)
    if settings.load:
        return settings, load_agents(settings.load)
    from failsoft.cli.ask import settings_of
    from failsoft.examples.analyst.agent import sketch

    return settings_of(file), (sketch(),)


def _show(settings: Settings, gaps: list[Uncovered], stages: dict[str, list[Stage]], rows: list[Hang]) -> None:
    console = Console(highlight=False)
    for gap in gaps:
        console.print(f"error: {gap}", style="bold red", markup=False)
    if not gaps:
        console.print(f"The settings are good (profile {settings.profile}).", markup=False)
    for name, made in stages.items():
        table = Table(title=f"Where the budget of agent {name} is planned to go", title_justify="left")
        table.add_column("stage")
        table.add_column("seconds", justify="right")
        table.add_column("own limit", justify="right")
        table.add_column("why")
        for stage in made:
            limit = "" if stage.limit is None else f"{stage.limit:g}"
            table.add_row(stage.name, f"{stage.seconds:.3f}", limit, stage.why)
        table.add_section()
        table.add_row("sum", f"{sum(stage.seconds for stage in made):.3f}", "", "the run's budget")
        console.print(table)
    if rows:
        table = Table(title="If it hangs now", title_justify="left")
        for title in ("downstream", "agent", "answers within", "client sees", "strict", "instead"):
            table.add_column(title)
        for row in rows:
            for one in row.agents:
                instead = "; ".join(f"{tool}: {text}" for tool, text in one.instead.items())
                table.add_row(
                    row.downstream, one.agent, f"{one.answers_within:.3f} s", one.sees, str(one.strict), instead
                )
            if row.spared:
                table.add_row(row.downstream, ", ".join(row.spared), "as always", "completed", "200", "")
        console.print(table)
        opens = {row.downstream: row.opens_after for row in rows if row.opens_after is not None}
        for downstream, count in opens.items():
            console.print(
                f"After {count} such calls {downstream}'s breaker opens, and runs answer at once.", markup=False
            )
