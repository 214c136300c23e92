"""``failsoft drill``: outages reproduced and survived. The commands; what they do is imported when one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["drill"]

drill = typer.Typer(
    name="drill",
    help="Break things on purpose and see what becomes of the answers: scenarios, and faults in front of anything.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Seed = Annotated[int, typer.Option(help="Draws the faulted downstream, the requests, the luck of each call.")]
Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where scenarios are.")]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]


@drill.command()
def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario, or the id of one in --dir.")],
    seed: Seed = 1,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with plots there (HTML, needs no network).")
    ] = None,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="In simulated time: the same code, without the machine's noise.")
    ] = False,
    in_turn: Annotated[
        bool, typer.Option("--in-turn", help="One arm after the other, not all at the same time.")
    ] = False,
    folder: Folder = Path("scenarios"),
    json_: Json = False,
) -> None:
    """Run a scenario: healthy, the naive baseline, and Failsoft, under the same load; then judge.

    \b
    Examples:
      failsoft drill run scenarios/A2.yaml
      failsoft drill run A2 --seed 7 --report a2.html
      failsoft drill run scenarios/A2.yaml --json

    \b
    Exit codes: 0 every goal is reached, 1 one is not or the drill is void, 2 bad input, 130 Ctrl-C.
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.drilling import run_one

    raise typer.Exit(run_one(file, folder, seed=seed, report=report, virtual=virtual, in_turn=in_turn, as_json=json_))


@drill.command(name="list")
def list_(folder: Folder = Path("scenarios"), json_: Json = False) -> None:
    """List the scenarios there are."""
    from failsoft.cli.drilling import list_all

    raise typer.Exit(list_all(folder, as_json=json_))


@drill.command()
def new(file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; must not exist.")]) -> None:
    """Write a small scenario to start from."""
    from failsoft.cli.drilling import write_new

    raise typer.Exit(write_new(file))
