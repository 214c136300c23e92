"""``failsoft store`` and ``failsoft approvals``: the commands; what they do is imported when one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["approvals", "store"]

store = typer.Typer(
    name="store", help="Look after the store's file.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)
approvals = typer.Typer(
    name="approvals",
    help="Answer what runs ask people, at a running server or directly in a store's file.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

File = Annotated[Path | None, typer.Option("--store", metavar="FILE", help="The file. Default: `store.path`.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings; default: FAILSOFT_CONFIG, then ./failsoft.yaml."),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="A running server; its key is read from FAILSOFT_API_KEY. Default: the store's file.",
    ),
]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who says so. Default: the user's name here.")]
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; kept with the approval.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The approval's id.")]


@store.command()
def migrate(file: File = None, json_: Json = False, config: Config = None) -> None:
    """Bring the file of an older version up to date, in one transaction. Needs `failsoft[migrate]`.

    \b
    Examples:
      failsoft store migrate --store runs.db
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.keeping import migrate_file

    raise typer.Exit(migrate_file(file, config, as_json=json_))


@store.command()
def prune(file: File = None, json_: Json = False, config: Config = None) -> None:
    """Remove what was kept as long as the settings say; a running server does so by itself.

    \b
    Examples:
      failsoft store prune --store runs.db --json
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.keeping import prune_file

    raise typer.Exit(prune_file(file, config, as_json=json_))


@store.command()
def stats(file: File = None, json_: Json = False, config: Config = None) -> None:
    """Tell what is in the file: runs by state, rows by table, its size and revision.

    \b
    Examples:
      failsoft store stats --store runs.db
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.keeping import tell_statistics

    raise typer.Exit(tell_statistics(file, config, as_json=json_))


@approvals.command(name="list")
def list_(
    every: Annotated[bool, typer.Option("--all", help="Resolved ones, too. Default: those that wait.")] = False,
    url: Url = None,
    file: File = None,
    json_: Json = False,
    config: Config = None,
) -> None:
    """List what waits for a person.

    \b
    Examples:
      failsoft approvals list --store runs.db
      failsoft approvals list --url http://localhost:8080 --json
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.approving import list_all

    raise typer.Exit(list_all(url, file, config, every=every, as_json=json_))


@approvals.command()
def approve(
    id: Id,  # noqa: A002 - the argument's name in the help
    by: By = None,
    note: Note = "",
    url: Url = None,
    file: File = None,
    json_: Json = False,
    config: Config = None,
) -> None:
    """Say yes: the run goes on and does what it asked about, once.

    \b
    Examples:
      failsoft approvals approve apr_0192… --store runs.db --note "checked with finance"
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.approving import resolve

    raise typer.Exit(resolve(id, "approved", url, file, config, by=by, note=note, as_json=json_))


@approvals.command()
def reject(
    id: Id,  # noqa: A002 - the argument's name in the help
    by: By = None,
    note: Note = "",
    url: Url = None,
    file: File = None,
    json_: Json = False,
    config: Config = None,
) -> None:
    """Say no: the run goes on without it, and its answer says so.

    \b
    Examples:
      failsoft approvals reject apr_0192… --url http://localhost:8080 --note "not this month"
    """  # noqa: D301 - \b keeps the lines as they are
    from failsoft.cli.approving import resolve

    raise typer.Exit(resolve(id, "rejected", url, file, config, by=by, note=note, as_json=json_))
