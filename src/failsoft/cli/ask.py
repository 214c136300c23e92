"""``failsoft ask``: one question, from flags to exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from failsoft.app import App, store_of
from failsoft.base.errors import BadInput
from failsoft.base.jsontext import json_text
from failsoft.cli.main import BAD_INPUT, FAILED, INTERRUPTED, OK, Terminated, told
from failsoft.cli.show import Screen
from failsoft.cli.streams import visible
from failsoft.cli.times import UsualTimes
from failsoft.config import Settings, load_settings, parse_duration
from failsoft.drills.faults import parse_fault
from failsoft.drills.injector import Injector
from failsoft.drills.toxics import Toxic
from failsoft.examples.analyst.agent import NAME, analyst_app, loaded_sources
from failsoft.examples.analyst.sources import Sources, cache_folder
from failsoft.examples.analyst.toolset import DOWNSTREAMS
from failsoft.runs.handle import RunHandle
from failsoft.runs.result import RunRequest, RunResult, readable
from failsoft.runs.state import RunState
from failsoft.stores.protocols import RunStore

__all__ = ["Asked", "Ready", "asked_once", "exit_code", "ready", "run", "settings_of", "write_files"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What was given on the command line."""

    question: str
    agent: str | None
    data: list[Path] | None
    budget: str | None
    planner: str | None
    fault: list[str] | None
    out: Path | None
    as_json: bool
    config: Path | None
    load: list[str] | None = None


def run(asked: Asked) -> int:
    """Answers the question; gives the exit code. Bad input is raised, before anything has been loaded or written."""
    settings = settings_of(asked.config, data=asked.data, planner=asked.planner, flags={"load": asked.load or None})
    budget = _budget(asked.budget, settings)
    faults = [parse_fault(text) for text in asked.fault or ()]
    _check_question(asked.question, settings)
    if not asked.load and asked.agent not in (None, NAME):
        from failsoft.base.errors import UnknownAgent

        raise UnknownAgent(f"--agent: there is no agent {asked.agent!r}; there are: {NAME}", param="agent")
    if asked.out is not None and asked.out.exists() and not asked.out.is_dir():
        raise BadInput(f"--out: {asked.out} is not a folder", param="out")
    screen = Screen(Console(highlight=False), quiet=asked.as_json)
    request = RunRequest(asked.question, asked.agent, budget_ms=budget)
    if asked.load:
        from failsoft.cli.asking_loaded import ask_loaded

        result = ask_loaded(settings, request, screen, faults)
    else:
        with ready(settings, screen, question=asked.question) as prepared:

            async def answer() -> RunResult:
                async with prepared.app(faults) as app:
                    return await asked_once(app, request, screen)

            result = asyncio.run(answer())
    files = write_files(result, asked.out)
    if result.status is RunState.FAILED and result.error is not None and isinstance(result.error, BadInput):
        return told(result.error.message, as_json=asked.as_json, body=result.error.to_dict())
    if asked.as_json:
        sys.stdout.write(json_text({**result.to_dict(), "files": files}) + "\n")
    else:
        screen.result(result.to_dict(), files)
        if result.error is not None:
            sys.stderr.write(f"error: {visible(result.error.message)}\n")
    return exit_code(result)


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything that an app needs and that takes its time to be made."""

    settings: Settings
    sources: Sources
    times: UsualTimes

    @contextlib.asynccontextmanager
    async def _store(self) -> AsyncIterator[RunStore]:
        """The store that the settings name, else one in memory that knows the usual times."""
        store = store_of(self.settings)
        if store is None:
            async with self.times.store() as in_memory:
                yield in_memory
            return
        try:
            yield store
        finally:
            await store.aclose()

    @contextlib.asynccontextmanager
    async def app(self, faults: Sequence[tuple[str, Toxic]] = ()) -> AsyncIterator[App]:
        """The analyst's app, knowing how long things usually take, with the faults in place."""
        async with self._store() as store, analyst_app(self.settings, self.sources, store=store) as app:
            with Injector(app.kernel) as injector:
                for downstream, toxic in faults:
                    injector.inject(downstream, toxic)
                yield app


@contextlib.contextmanager
def ready(settings: Settings, screen: Screen, *, question: str | None = None) -> Iterator[Ready]:
    """Loads what has to be loaded (for one question, if it is known), before any budget and outside of any loop."""
    with contextlib.ExitStack() as stack:
        with _terminable():
            times = stack.enter_context(UsualTimes.kept_in(cache_folder(settings.cache_dir)))
            sources = stack.enter_context(loaded_sources(settings, screen.loading, question=question))
        yield Ready(settings, sources, times)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C, so that nothing half made is left behind."""
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    except KeyboardInterrupt:
        if stopped:  # the database makes its own of what was raised while it worked
            raise Terminated from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(result: RunResult) -> int:
    """0 answered, 1 failed or expired, 2 the question was wrong, 130 cancelled."""
    if result.status in (RunState.COMPLETED, RunState.DEGRADED):
        return OK
    if result.status is RunState.CANCELLED:
        return INTERRUPTED
    if result.status is RunState.EXPIRED:  # 410, but nothing that another question would mend
        return FAILED
    return BAD_INPUT if result.error is not None and 400 <= result.error.status < 499 else FAILED


async def asked_once(
    app: App,
    request: RunRequest,
    screen: Screen,
    end: Callable[[RunHandle], Awaitable[RunResult]] | None = None,
) -> RunResult:
    """One run, shown; Ctrl-C and SIGTERM cancel it, a second one ends the process. `end` waits for its end, if given,
    without a bar that moves: it may ask something.
    """
    remove = app.bus.add(screen.on_event)
    try:
        with screen.running(None) if end is None else contextlib.nullcontext():
            handle = app.start(await app.chosen(request))
            with _on_signals(handle.cancel):
                return await (handle.result() if end is None else end(handle))
    finally:
        remove()


@contextlib.contextmanager
def _on_signals(cancel: Any) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        for one in signals:
            loop.remove_signal_handler(one)
        cancel()

    with contextlib.suppress(
        NotImplementedError, RuntimeError, ValueError
    ):  # not in the main thread, or not on this system
        for one in signals:
            loop.add_signal_handler(one, stop)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            for one in signals:
                loop.remove_signal_handler(one)


def settings_of(
    config: Path | None,
    *,
    data: Sequence[Path] | None = None,
    planner: str | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings with the flags over them and the analyst's own below them."""
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    if data:
        given["data"] = [str(path.absolute()) for path in data]
    if planner is not None:
        given["run.planner"] = planner
    return load_settings(config, flags=given, defaults={"agent": NAME, "downstreams": DOWNSTREAMS})


def _budget(text: str | None, settings: Settings) -> float | None:
    """Milliseconds, or None for the default."""
    if text is None:
        return None
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise BadInput(f"--budget: {error}", param="budget") from None
    if not seconds > 0:
        raise BadInput("--budget: a budget is more than 0", param="budget")
    if seconds > settings.run.maximum_budget:
        raise BadInput(f"--budget: the longest budget is {settings.run.maximum_budget:g} s", param="budget")
    return seconds * 1000


def _check_question(question: str, settings: Settings) -> None:
    if not question.strip():
        raise BadInput("the question is empty", param="question")
    if not readable(question):
        raise BadInput("the question is not text in the encoding of this terminal", param="question")
    if len(question) > settings.run.max_question:
        raise BadInput(
            f"the question has {len(question)} characters; at most {settings.run.max_question} are read",
            param="question",
        )


def write_files(result: RunResult, out: Path | None) -> dict[str, str]:
    """Writes the artifacts, each whole or not at all, and the answer's text; gives their paths by name."""
    if out is None or result.status not in (RunState.COMPLETED, RunState.DEGRADED):
        return {}
    written: dict[str, str] = {}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in [(artifact.name, artifact.data) for artifact in result.artifacts]:
            half = out / f".{name}.{os.getpid()}.part"
            try:
                half.write_bytes(data)
                half.replace(out / name)
            finally:
                half.unlink(missing_ok=True)
            written[name] = str(out / name)
    except OSError as error:
        raise BadInput(f"--out: {out} cannot be written to: {error.strerror}", param="out") from None
    return written
