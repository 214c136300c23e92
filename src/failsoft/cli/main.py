"""The commands and their flags; what they do is imported only when one of them runs, so that ``--help`` is quick.

Exit codes: 0 answered (in full or degraded), 1 the run failed, 2 bad input (one line on stderr, ``error: …``; with
``--json`` the error object on stdout), 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from failsoft import __version__
from failsoft.base.errors import FailsoftError
from failsoft.base.jsontext import json_text
from failsoft.cli.drill import drill
from failsoft.cli.store import approvals
from failsoft.cli.store import store as store_commands
from failsoft.cli.streams import abandoned, made_lenient, told_everything, visible

__all__ = ["BAD_INPUT", "FAILED", "INTERRUPTED", "OK", "TERMINATED", "Terminated", "app", "main"]

OK, FAILED, BAD_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


class Terminated(SystemExit):
    """SIGTERM came while nothing was running yet that could be cancelled."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


app = typer.Typer(
    name="failsoft",
    help="Answers questions within their time budget, whatever is slow or broken behind it.",
    epilog='Start with: failsoft demo, or: failsoft ask "Which carrier had the longest mean delay in July?"',
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings; default: FAILSOFT_CONFIG, then ./failsoft.yaml."),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="A CSV or Parquet file to answer from; may be repeated. Default: flights of 2013.",
    ),
]
Fault = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="NAME=KIND",
        help="Break a downstream on purpose: warehouse=hang, charts=delay:300ms, warehouse=error:reset.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]
Store = Annotated[
    Path | None,
    typer.Option("--store", metavar="FILE", help="Where runs are kept. Default: `store.path`, else in memory."),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where chart and report are written. Default: none are.")
]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"failsoft {__version__}")
        raise typer.Exit(OK)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Answers questions within their time budget, whatever is slow or broken behind it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question, in English or Chinese.", show_default=False)],
    agent: Annotated[str | None, typer.Option(help="Who answers. Default: the settings' `agent`.")] = None,
    data: Data = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="How long the answer may take: 5, 2.5s, 800ms. Default: `run.budget`."),
    ] = None,
    planner: Annotated[
        str | None, typer.Option(metavar="rules|model|auto", help="Who makes the plan. Default: `run.planner`.")
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:NAME", help="Agents of your own, instead of the analyst."),
    ] = None,
    fault: Fault = None,
    out: Out = None,
    json_: Json = False,
    config: Config = None,
) -> None:
    """Answer one question, showing plan, progress, answer and where the time went.

    \b
    Examples:
      failsoft ask "Which 5 carriers had the longest mean departure delay in July?"
      failsoft ask --data sales.csv "Compare Q3 revenue per region with Q2 and mark unusual changes"
      failsoft ask --json --budget 800ms "flights per month" | jq .status
      failsoft ask --fault warehouse=hang "flights per month"
      failsoft ask --load failsoft.examples.tickets.agent:tickets "Open a ticket: the printer is broken"

    \b
    Exit codes: 0 answered (also when degraded), 1 failed or expired, 2 bad input, 130 Ctrl-C.
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.ask import Asked, run

    raise typer.Exit(run(Asked(question, agent, data, budget, planner, fault, out, json_, config, load)))


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on. Default: `server.host`.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0 takes a free one. Default: `server.port`.")] = None,
    data: Data = None,
    fault: Fault = None,
    gateway: Annotated[
        bool,
        typer.Option(
            "--gateway", help="Serve the model gateway alone. Default: when the settings have `models` and no agent."
        ),
    ] = False,
    load: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:NAME", help="Agents of your own, instead of the analyst. Default: `load`."),
    ] = None,
    store: Store = None,
    json_: Json = False,
    config: Config = None,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C.

    \b
    Examples:
      failsoft serve --port 8080 --data sales.csv
      curl -s localhost:8080/v1/runs -d '{"input": "revenue per region", "budget_ms": 5000}'
      curl -sN localhost:8080/v1/runs -d '{"input": "revenue per region", "stream": true}'

    With --json the address is printed as one JSON object as soon as it listens.
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.gateway import run_alone, wanted_alone

    flags = {"server.host": host, "server.port": port}
    if not (data or fault or load or store) and (settings := wanted_alone(config, flags, asked=gateway)) is not None:
        raise typer.Exit(run_alone(settings, config, flags, as_json=json_))
    if gateway:
        raise typer.BadParameter("the gateway alone takes neither --data nor --fault", param_hint="--gateway")

    from failsoft.cli.serve import run

    raise typer.Exit(
        run(host=host, port=port, data=data, fault=fault, load=load, store=store, as_json=json_, config=config)
    )


@app.command()
def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="Settings; default: FAILSOFT_CONFIG, then ./failsoft.yaml.", show_default=False
        ),
    ] = None,
    hang: Annotated[
        bool, typer.Option("--hang", help="For each downstream: if it hangs now, who suffers and what do clients see.")
    ] = False,
    json_: Json = False,
) -> None:
    """Check the settings, and show where a run's budget is planned to go.

    Refuses settings whose limits do not fit into each other (call < task < run < client ≤ proxy), and agents that
    could not answer without one of their tools. Needs no data and calls nobody.

    \b
    Examples:
      failsoft check
      failsoft check failsoft.yaml --hang
      failsoft check --hang --json | jq .hang

    \b
    Exit codes: 0 good, 2 not.
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.check import run

    raise typer.Exit(run(file, hang=hang, as_json=json_))


@app.command()
def mcp(
    data: Data = None,
    config: Config = None,
) -> None:
    """Serve the agents as tools to one MCP client, over standard input and output, until it leaves.

    A running `failsoft serve` has the same at /mcp, for many clients.

    \b
    Examples:
      failsoft mcp --data sales.csv
      {"mcpServers": {"sales": {"command": "failsoft", "args": ["mcp", "--data", "sales.csv"]}}}
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.mcp import run

    raise typer.Exit(run(data=data, config=config))


@app.command()
def demo(
    fault: Annotated[
        str, typer.Option(metavar="NAME=KIND", help="The fault under which the first question is repeated.")
    ] = "warehouse=hang",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where charts and reports are written.")] = Path(
        "demo-output"
    ),
    json_: Json = False,
) -> None:
    """Answer two questions from real data, then the first again with a dependency that hangs.

    Needs no key, no server and no network. The last lines say for each run: status, elapsed / budget, rungs used.
    Exits 0 only if every status is as expected and the run under the fault kept its budget.

    \b
    Examples:
      failsoft demo
      failsoft demo --fault warehouse=error:unavailable
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.demo import run

    raise typer.Exit(run(fault=fault, out=out, as_json=json_))


app.add_typer(drill)
app.add_typer(store_commands)
app.add_typer(approvals)


Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A running server. Default: FAILSOFT_URL, then http://127.0.0.1:8080."),
]


@app.command()
def top(
    url: Url = None,
    every: Annotated[float, typer.Option(min=0.1, max=60.0, help="Seconds between two pictures.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    json_: Json = False,
) -> None:
    """Watch a server: queues, permits, breakers; who holds them, where it is stuck, who waits behind.

    \b
    Examples:
      failsoft top
      failsoft top --url http://127.0.0.1:9000 --once
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.seeing import top as show

    raise typer.Exit(show(url=url, every=every, once=once, as_json=json_))


@app.command()
def why(
    last: Annotated[str, typer.Option(metavar="DURATION", help="How far back: 90s, 15m, 1h.")] = "15m",
    url: Url = None,
    json_: Json = False,
) -> None:
    """Say why runs fell short lately: whom they blame, where their time went, what to change.

    \b
    Examples:
      failsoft why
      failsoft why --last 1h --json
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.seeing import why_lately

    raise typer.Exit(why_lately(last, url=url, as_json=json_))


runs = typer.Typer(name="runs", help="The runs of a running server.", no_args_is_help=True, rich_markup_mode=None)


@runs.command(name="why")
def runs_why(run: Annotated[str, typer.Argument(metavar="ID")], url: Url = None, json_: Json = False) -> None:
    """Say why a run was slow or degraded: where its budget went, which limit fired, whom to blame, what to change.

    \b
    Examples:
      failsoft runs why run_019a22d9550077ea86a94f1ae5d13b7f
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.seeing import why_run

    raise typer.Exit(why_run(run, url=url, as_json=json_))


@runs.command(name="list")
def runs_list(
    url: Url = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many.")] = 20,
    json_: Json = False,
) -> None:
    """List the newest runs.

    \b
    Examples:
      failsoft runs list --limit 5
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.seeing import list_runs

    raise typer.Exit(list_runs(url=url, limit=limit, as_json=json_))


app.add_typer(runs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    made_lenient()
    code = execute(arguments)
    if (error := told_everything()) is not None:
        code = _unwritten(error)
    # What comes now is the interpreter's end: whoever is in a hurry then gets it at once, without a trace.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def execute(arguments: Sequence[str]) -> int:
    """Runs one command and gives its exit code; every expected error becomes one line (or one JSON object)."""
    as_json = "--json" in arguments
    try:
        code = app(args=list(arguments), prog_name="failsoft", standalone_mode=False)
    except FailsoftError as error:
        return told(error.message, as_json=as_json, body=error.to_dict(), code=error.status)
    except Terminated:
        return TERMINATED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        return _unwritten(error)
    except Exception as error:
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        return told(_usage(error, format_message()), as_json=as_json)
    return code if isinstance(code, int) else OK


def _unwritten(error: OSError) -> int:
    """The system refused what nothing can be done without, standard output most likely."""
    abandoned()
    if not isinstance(error, BrokenPipeError):  # else nobody reads any more, and that is that
        where = f"{error.filename}: " if error.filename is not None else ""
        with contextlib.suppress(OSError, ValueError):
            typer.echo(f"error: {where}{error.strerror or error}", err=True)
    return FAILED


def told(message: str, *, as_json: bool, body: dict[str, Any] | None = None, code: int = 400) -> int:
    """Prints an error and gives the exit code it stands for."""
    if as_json:
        inner = {"type": "invalid_request", "code": "bad_input", "message": message}
        typer.echo(json_text(body or {"error": {**inner, "param": None, "run_id": None, "retry_after": None}}))
    else:
        typer.echo("error: " + visible(" ".join(message.split())), err=True)
    return BAD_INPUT if 400 <= code < 499 else FAILED


def _usage(error: Exception, message: str) -> str:
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "failsoft")
    return f"{message.rstrip('.')}; see: {command} --help"
