"""Running a scenario: its arms, each in a process of its own, and the verdict.

The arms run at the same time by default, so that whatever the machine does meets all of them alike.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from failsoft.base.errors import InternalError
from failsoft.config import Settings
from failsoft.drills.platforms import settings_for
from failsoft.drills.samples import Measured
from failsoft.drills.scenario import ArmName, Scenario, load_scenario, mistake
from failsoft.drills.verdict import unknown_figure, verdict

__all__ = ["Drilled", "arms_of", "checked_scenario", "run_scenario"]

_OUTPUT: Final = 256 << 20
"""Bytes that an arm may print."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Drilled:
    """A drill that was run: what was measured, and what is said of it."""

    scenario: Scenario
    seed: int
    arms: dict[str, Measured]
    verdict: dict[str, Any]


def arms_of(scenario: Scenario) -> tuple[ArmName, ...]:
    """The arms that have to be run; the healthy one comes with the other when they are paired."""
    return ("baseline", "failsoft") if scenario.options.get("paired") else ("healthy", "baseline", "failsoft")


def checked_scenario(file: Path) -> Scenario:
    """Reads a scenario that is to be run, and finds before anything runs what only an arm, or the verdict, would find.

    Raises ``BadInput`` naming file and line.
    """
    scenario = load_scenario(file)
    text = file.read_text(encoding="utf-8")
    if (unknown := unknown_figure(scenario)) is not None:
        raise mistake(file, text, unknown)
    try:
        if scenario.kind == "models":
            Settings.model_validate(scenario.settings)
        else:
            settings_for(scenario)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        loc = ["settings", *first["loc"]]
        if loc[1:2] == ["downstreams"] and len(loc) > 2 and loc[2] not in scenario.settings["downstreams"]:
            loc[2] = "each"
        place = ".".join(str(part) for part in loc)
        raise mistake(file, text, f"{place}: {first['msg'].removeprefix('Value error, ')}", loc) from None
    return scenario


async def run_scenario(
    scenario: Scenario,
    file: Path,
    seed: int,
    *,
    progress: Progress | None = None,
    virtual: bool = False,
    in_turn: bool = False,
) -> Drilled:
    """Runs all arms and judges. `virtual`: in simulated time, without the machine's noise; `in_turn`: one by one."""
    arms = arms_of(scenario)
    if in_turn:
        found = [await _arm(file, arm, seed, progress, virtual=virtual) for arm in arms]
    else:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_arm(file, arm, seed, progress, virtual=virtual)) for arm in arms]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found = [task.result() for task in tasks]
    measured = {one.arm: one for several in found for one in several}
    return Drilled(scenario, seed, measured, verdict(scenario, seed, measured))


async def _arm(file: Path, arm: ArmName, seed: int, progress: Progress | None, *, virtual: bool) -> Sequence[Measured]:
    """One arm in a process that ends with this one: its input is a pipe of ours."""
    command = [sys.executable, "-m", "failsoft.drills.arm", str(file), arm, "--seed", str(seed)]
    if virtual:
        command.append("--virtual")
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=1 << 20,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said: list[str] = []
        telling = asyncio.ensure_future(_tell(process.stderr, arm, progress, said))
        output = bytearray()
        while chunk := await process.stdout.read(1 << 16):
            output += chunk
            if len(output) > _OUTPUT:
                raise InternalError(f"the arm {arm} printed more than {_OUTPUT} bytes")
        await telling
        code = await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code != 0:
        raise InternalError(f"the arm {arm} ended with {code}: {' | '.join(said[-3:])}")
    return [Measured.from_dict(one) for one in json.loads(output)]


async def _tell(stream: asyncio.StreamReader, arm: str, progress: Progress | None, said: list[str]) -> None:
    async for line in stream:
        text = line.decode(errors="replace").strip()
        try:
            share = float(text)
        except ValueError:
            said.append(text)
            del said[:-50]
            continue
        if progress is not None:
            progress(arm, share)
