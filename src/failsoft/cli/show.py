"""What a person sees of a run: its plan, its progress while it runs, its answer, and where the time went.

On a terminal progress is one live line that is redrawn; elsewhere one line for each task that ends.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from failsoft.base.events import Event
from failsoft.cli.streams import visible
from failsoft.cli.waterfall import bars_of, drawn, ms

__all__ = ["Screen"]

MAX_KEPT = 5_000
"""Events that are kept for the picture of where the time went."""

_STYLES = {"completed": "bold green", "degraded": "bold yellow", "failed": "bold red", "cancelled": "bold red"}


def _for_terminals(answer: str, files: Mapping[str, str]) -> str:
    """The answer without its title, which the reader has just typed, and with pictures as places."""

    def place(match: re.Match[str]) -> str:
        return f"*{files.get(match[1]) or f'{match[1]}: give --out DIR to have it written'}*"

    text = re.sub(r"\A# .*\n+", "", answer)
    return visible(re.sub(r"!\[[^\]]*\]\(([^)\s]+)\)", place, text))


class _Left(ProgressColumn):
    """The time left, counting down between two estimates."""

    def render(self, task: Task) -> Text:
        until, latest = task.fields.get("until"), task.fields.get("latest")
        if until is None:
            left = 0.0 if latest is None else latest - task.get_time()
            return Text(f"at most {ms(left)} left" if left >= 0.05 else "", style="dim")
        left = until - task.get_time()
        return Text(f"about {ms(left)} left" if left >= 0.05 else "any moment now", style="dim")


class Screen:
    """Shows runs on a console; with ``quiet`` it only listens (for ``--json``)."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self.events: list[Event] = []
        self._titles: dict[str, str] = {}
        self._run: str | None = None
        self._bar: tuple[Progress, TaskID] | None = None

    @contextlib.contextmanager
    def loading(self, what: str) -> Iterator[Any]:
        """A progress bar for loading data; gives the function to report steps to: ``report(done, total)``."""
        if self.quiet or not self.console.is_terminal:
            if not self.quiet:
                self.console.print(Text(f"loading {visible(what)} …", style="dim"))
            yield None
            return
        bar = Progress(
            TextColumn("loading {task.description}", markup=False), BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            console=self.console, transient=True,
        )  # fmt: skip
        with bar:
            task = bar.add_task(visible(what), total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    @contextlib.contextmanager
    def running(self, run: str | None) -> Iterator[None]:
        """Shows progress of `run` until the block ends."""
        self.events.clear()
        self._titles.clear()
        self._run = run
        if self.quiet or not self.console.is_terminal:
            yield
            return
        bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24),
            TextColumn("{task.percentage:>3.0f} %"), _Left(), console=self.console, transient=True,
        )  # fmt: skip
        with bar:
            self._bar = (bar, bar.add_task("planning", total=1.0, until=None, latest=None))
            try:
                yield
            finally:
                self._bar = None

    def question(self, text: str, *, number: str = "") -> None:
        """The question, as a heading."""
        if not self.quiet:
            self.console.print()
            self.console.print(Text(f"{number}{visible(text)}", style="bold"))

    def say(self, text: str) -> None:
        """A line of explanation."""
        if not self.quiet:
            self.console.print(Text(visible(text), style="yellow"))

    def on_event(self, event: Event) -> None:
        """A listener for the bus: keeps what the picture needs and shows what is new."""
        if event.run is None or (self._run is not None and event.run != self._run):
            return
        if len(self.events) < MAX_KEPT:
            self.events.append(event)
        if self.quiet:
            return
        if event.kind == "plan.made":
            self._plan(event.data)
        elif event.kind == "task.finished" and event.task is not None:
            self._finished(event)
        elif event.kind == "run.eta" and self._bar is not None:
            self._eta(event.data)

    def _plan(self, plan: Mapping[str, Any]) -> None:
        tasks = plan.get("tasks", ())
        if plan.get("reading"):
            self.console.print(Text.assemble(("understood as  ", "dim"), visible(str(plan["reading"]))))
        for note in plan.get("notes", ()):
            self.console.print(Text.assemble(("assumed        ", "dim"), visible(str(note))))
        for index, task in enumerate(tasks):
            self._titles[task["id"]] = visible(task.get("title") or task["id"])
            needs = f" ← {', '.join(task['needs'])}" if task.get("needs") else ""
            optional = "" if task.get("essential", True) else " (optional)"
            line = f"{task['id']}: {self._titles[task['id']]}{needs}{optional}"
            self.console.print(Text.assemble(("plan           " if index == 0 else " " * 15, "dim"), line))

    def _finished(self, event: Event) -> None:
        data: Mapping[str, Any] = event.data
        good = data["status"] == "completed"
        mark = ("✓", "green") if good else ("~", "yellow") if data["served"] is not None else ("✗", "red")
        why = "" if good else f"  {data['reason']}" if data["served"] is None else f"  {data['rung']}: {data['reason']}"
        seconds = ms(data["elapsed_ms"] / 1000) if data["elapsed_ms"] is not None else "not started"
        title = self._titles.get(event.task or "", event.task or "")
        self.console.print(Text.assemble((f"{mark[0]} ", mark[1]), f"{title}  ", (f"{seconds}{why}", "dim")))

    def _eta(self, data: Mapping[str, Any]) -> None:
        assert self._bar is not None
        bar, task = self._bar
        eta = data.get("eta_s")
        running = ", ".join(self._titles.get(name, name) for name in data.get("running", ()))[:50]
        until = None if eta is None else bar.get_time() + eta
        latest = None if data.get("at_most_s") is None else bar.get_time() + data["at_most_s"]
        done = float(data.get("done") or 0.0)
        bar.update(task, completed=done, description=running or "…", until=until, latest=latest)

    def result(self, result: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """The answer, the picture of where the time went, and the files."""
        if self.quiet:
            return
        console = self.console
        console.print()
        from rich.markdown import Markdown  # with all that it draws code in, half a second of a slow start

        console.print(Markdown(_for_terminals(str(result.get("answer") or ""), files)))
        console.print()
        status = str(result["status"])
        elapsed, budget = result["elapsed_ms"] / 1000, result["budget_ms"] / 1000
        console.print(
            Text.assemble(
                (status, _STYLES.get(status, "bold")),
                f" in {ms(elapsed)} of {ms(budget)}",
                ("  where the time went:", "dim"),
            )
        )
        for line in drawn(bars_of(self.events), budget=budget, elapsed=elapsed, width=min(console.width, 110)):
            console.print(Text(line), no_wrap=True, overflow="crop")
        for name, path in files.items():
            console.print(Text.assemble((f"written: {name}  ", "dim"), path))
