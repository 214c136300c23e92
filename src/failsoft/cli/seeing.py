"""``failsoft top``, ``why`` and ``runs``: what a running server sees, for people. The commands are in ``main``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from failsoft.base.errors import DownstreamUnavailable
from failsoft.base.jsontext import json_text
from failsoft.cli.remote import asked
from failsoft.cli.streams import visible

__all__ = ["frame", "list_runs", "top", "why_lately", "why_run"]

_COLOURS: Final = {"closed": "green", "half_open": "yellow", "open": "red"}
_SHOWN: Final = 20
"""Holders and waiters that a frame lists at most."""


def top(*, url: str | None, every: float, once: bool, as_json: bool) -> int:
    """Shows who waits for whom until Ctrl-C; ``once`` for a single frame."""
    if as_json:
        typer.echo(json_text(asked("/v1/downstreams", field="downstreams", url=url)))
        return 0
    console = Console()
    if once or not sys.stdout.isatty():
        console.print(frame(asked("/v1/downstreams", field="downstreams", url=url), console.width))
        return 0
    with Live(
        frame(asked("/v1/downstreams", field="downstreams", url=url), console.width),
        console=console,
        screen=True,
        auto_refresh=False,
    ) as live:
        while True:
            time.sleep(every)
            try:
                shown: Any = frame(asked("/v1/downstreams", field="downstreams", url=url), console.width)
            except DownstreamUnavailable as error:
                shown = Text(error.message, style="red")
            live.update(shown, refresh=True)


def frame(view: Mapping[str, Any], width: int) -> Group:
    """One picture of all downstreams: the table, then who holds and who waits; lines of `width` at most."""
    holders: list[tuple[float, str]] = []
    waiters: list[tuple[float, str]] = []
    rows: list[list[Text]] = []
    for one in view["downstreams"]:
        rows.append(_row(one))
        holders += [(held["age_s"], _holder(one["name"], held)) for held in one["holders"]]
        waiters += [(waits["age_s"], _waiter(one["name"], waits)) for waits in one["waiters"]]
    table = _table(rows, width)
    lines: list[Any] = [table]
    for title, entries in (("holds a permit", holders), ("waits", waiters)):
        if entries:
            entries.sort(key=lambda entry: -entry[0])
            more = f"  (+{len(entries) - _SHOWN} more)" if len(entries) > _SHOWN else ""
            lines += [Text(f"\n{title}, oldest first{more}", style="bold")]
            lines += [Text(text, no_wrap=True, overflow="ellipsis") for _, text in entries[:_SHOWN]]
    return Group(*lines)


_COLUMNS: Final = (
    "downstream", "breaker", "in use", "limit", "queue", "oldest", "orphans", "threads", "typical", "timed out",
    "rejected",
)  # fmt: skip
_DROPPED: Final = ("threads", "typical", "rejected", "timed out", "orphans")
"""What a narrow terminal is spared, the first first: who waits for whom is told by the others."""


def _row(one: Mapping[str, Any]) -> list[Text]:
    """A downstream's cells, one for each of the columns."""
    breaker, waiting = one["breaker"], one["waiting"]
    return [
        Text(visible(one["name"])),
        Text(breaker, style=_COLOURS.get(breaker, "")),
        Text(str(one["in_use"]), style="red" if one["in_use"] >= one["limit"] else ""),
        Text(str(one["limit"])),
        Text(str(waiting), style="yellow" if waiting else ""),
        Text(_seconds(one["oldest_wait"]) if waiting else "-"),
        Text(str(one["orphans"]), style="red" if one["orphans"] else ""),
        Text(str(one["threads"])),
        Text(_seconds(one["typical"]) if one["typical"] else "-"),
        Text(str(one["timed_out"])),
        Text(str(sum(one["rejected"].values()))),
    ]


def _table(rows: Sequence[Sequence[Text]], width: int) -> Table:
    """The columns that find room; a name too long for what is left is cut."""
    wide = {name: max([len(name), *(row[place].cell_len for row in rows)]) + 2 for place, name in enumerate(_COLUMNS)}
    shown = list(_COLUMNS)
    for name in _DROPPED:
        if sum(wide[one] for one in shown) > width + 2:
            shown.remove(name)
    room = max(8, width - sum(wide[one] for one in shown[1:]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(shown):
        table.add_column(name, justify="left" if place < 2 else "right", no_wrap=True)
    for row in rows:
        row[0].truncate(room, overflow="ellipsis")
        table.add_row(*(row[_COLUMNS.index(name)] for name in shown))
    return table


def _holder(downstream: str, held: Mapping[str, Any]) -> str:
    orphan = " ORPHAN" if held["orphan"] else ""
    where = f"  at {held['where'].rpartition('/')[2]}" if held.get("where") else ""
    return visible(f"{_seconds(held['age_s']):>8}  {downstream}{orphan}  {_whose(held)}{where}")


def _waiter(downstream: str, waits: Mapping[str, Any]) -> str:
    left = "" if waits["remaining_s"] is None else f"  {_seconds(waits['remaining_s'])} left"
    return visible(f"{_seconds(waits['age_s']):>8}  {downstream}  {_whose(waits)}  {waits['priority']}{left}")


def _whose(one: Mapping[str, Any]) -> str:
    """The end of the run's id, which tells runs apart, and the task."""
    return f"{(one['run'] or 'no run')[-8:]}/{one['task'] or '-'}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


# --- why -----------------------------------------------------------------------------------------------------------


def why_run(run: str, *, url: str | None, as_json: bool) -> int:
    """The diagnosis of one run."""
    found = asked(f"/v1/runs/{quote(run, safe='')}/diagnosis", field="spent", url=url)
    if as_json:
        typer.echo(json_text(found))
        return 0
    limit = f"; the {found['limit']} limit fired" if found["limit"] else ""
    typer.echo(f"{found['run_id']} {found['status']}: {found['elapsed_ms'] / 1000:.2f} s of "
               f"{found['budget_ms'] / 1000:.2f} s{limit}")  # fmt: skip
    typer.echo(f"{found['nature']}: {visible(found['cause'])}")
    typer.echo(f"do: {visible(found['suggestion'])}")
    whole = found["elapsed_ms"] or 1.0
    rows = [(part["what"], part["downstream"], part["task"], part["ms"]) for part in found["spent"]]
    _spent([(_label(*row[:3]), row[3] / 1000, row[3] / whole) for row in rows])
    return 0


def why_lately(last: str, *, url: str | None, as_json: bool) -> int:
    """What the runs of a while have in common."""
    found = asked(f"/v1/diagnosis?last={quote(last, safe='')}", field="statuses", url=url)
    if as_json:
        typer.echo(json_text(found))
        return 0
    ends = ", ".join(f"{count} {status}" for status, count in found["statuses"].items()) or "none"
    typer.echo(f"{found['runs']} runs in the last {last}: {ends}")
    typer.echo(visible(found["cause"]))
    typer.echo(f"do: {visible(found['suggestion'])}")
    for one in found["blamed"]:
        typer.echo(f"  {one['runs']:>6}  {visible(one['downstream'] or '-')} {one['nature']}")
    _spent([(what, None, share) for what, share in found["spent"].items()])
    return 0


def _label(what: str, downstream: str | None, task: str | None) -> str:
    where = f" {downstream}" if downstream else ""
    return visible(f"{what}{where}" + (f" ({task})" if task else ""))


def _spent(rows: Sequence[tuple[str, float | None, float]]) -> None:
    for label, seconds, share in rows:
        amount = "" if seconds is None else f"{_seconds(seconds):>9}"
        typer.echo(f"  {label:<40} {amount} {share:>6.1%} {'█' * round(40 * share)}")


def list_runs(*, url: str | None, limit: int, as_json: bool) -> int:
    """The newest runs, one a line."""
    found = asked(f"/v1/runs?limit={limit}", field="runs", url=url)
    if as_json:
        typer.echo(json_text(found))
        return 0
    for one in found["runs"]:
        when = datetime.fromtimestamp(one["created"], UTC).strftime("%H:%M:%S")
        typer.echo(
            visible(
                f"{one['run_id']}  {when}  {one['status']:<12} {one['agent']:<12} {' '.join(one['input'].split())[:60]}"
            )
        )
    return 0
