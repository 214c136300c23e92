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


@drill.command()
def proxy(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients connect; port 0 takes a free one.")],
    to: Annotated[str, typer.Option(metavar="TARGET", help="What stands behind: HOST:PORT, or a URL.")],
    toxic: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND[:name=value,…]", help="A fault for as long as the proxy runs; may be repeated."),
    ] = None,
    control: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where faults are listed, added and removed over HTTP.")
    ] = "127.0.0.1:0",
    tcp: Annotated[bool, typer.Option("--tcp", help="Pass bytes of any protocol; one draw per connection.")] = False,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow addresses that are reachable from other machines.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Draws which exchanges are struck. Default: by chance.")] = None,
    json_: Json = False,
) -> None:
    """Stand in front of an HTTP or TCP server and do harm, until SIGTERM or Ctrl-C.

    \b
    Examples:
      failsoft drill proxy --listen 127.0.0.1:9000 --to 127.0.0.1:8000 --toxic latency:share=0.05,delay=20s
      failsoft drill proxy --listen 127.0.0.1:9000 --to https://api.example.com --control 127.0.0.1:9001
      curl -s localhost:9001/toxics -d '{"toxic": "stall:after=3", "lease": "30s"}'
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.drill_proxy import Proxying, run_proxy

    raise typer.Exit(run_proxy(Proxying(listen, to, toxic or [], control, tcp, expose, seed, json_)))


@drill.command()
def hold(
    toxic: Annotated[list[str], typer.Option(metavar="KIND[:name=value,…]", help="A fault; may be repeated.")],
    control: Annotated[str, typer.Option(metavar="URL", help="The control of a running `drill proxy`.")],
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="SECONDS", help="How long. Default: until SIGTERM or Ctrl-C.")
    ] = None,
    lease: Annotated[
        str, typer.Option(metavar="SECONDS", help="How long faults outlive a drill that was killed.")
    ] = "10s",
) -> None:
    """Hold faults at a running proxy for as long as this command runs, and not longer.

    \b
    Examples:
      failsoft drill hold --control http://127.0.0.1:9001 --toxic latency:delay=3s,share=0.1 --for 5m
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.drill_proxy import run_hold

    raise typer.Exit(run_hold(control, toxic, lasting, lease))


@drill.command()
def prove(
    only: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Which scenarios; default: all.")] = None,
    seed: Seed = 1,
    folder: Folder = Path("scenarios"),
    virtual: Annotated[
        bool,
        typer.Option("--virtual", help="In simulated time, on a machine too busy to measure on; the page says so."),
    ] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where proof.md and its plots are written.")] = Path("docs"),
) -> None:
    """Run every scenario in real time and write the proof: what was reached, and what fell short.

    \b
    Examples:
      failsoft drill prove
      failsoft drill prove A2 A3 --seed 7 --out /tmp/proof
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.drilling import prove_all

    raise typer.Exit(prove_all(folder, out, only or [], seed=seed, virtual=virtual))
