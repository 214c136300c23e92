"""``failsoft ask --load``: a question to agents of your own, and to the person here what they may do."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence

from failsoft.app import App
from failsoft.base.errors import ApprovalConflict, BadInput, UnknownAgent
from failsoft.cli.loading import Loaded, load_agents
from failsoft.cli.show import Screen
from failsoft.cli.streams import visible
from failsoft.config import Settings
from failsoft.drills.toxics import Toxic
from failsoft.runs.handle import RunHandle
from failsoft.runs.result import RunRequest, RunResult
from failsoft.runs.state import RunState
from failsoft.stores.approvals import ApprovalRecord

__all__ = ["ask_loaded"]


def ask_loaded(
    settings: Settings, request: RunRequest, screen: Screen, faults: Sequence[tuple[str, Toxic]] = ()
) -> RunResult:
    """The answer of one of the settings' loaded agents; the only one needs no name."""
    from failsoft.cli.ask import asked_once

    agents = load_agents(settings.load)
    names = ", ".join(one.name for one in agents)
    if request.agent is not None and request.agent not in {one.name for one in agents}:
        raise UnknownAgent(f"--agent: there is no agent {request.agent!r}; there are: {names}", param="agent")
    if len(agents) == 1:
        settings = settings.model_copy(update={"agent": agents[0].name})

    async def answer() -> RunResult:
        async with Loaded(settings, agents).app(faults) as app:
            return await asked_once(app, request, screen, lambda handle: _through(app, handle, settings))

    return asyncio.run(answer())


async def _through(app: App, handle: RunHandle, settings: Settings) -> RunResult:
    """The run's end, with a person asked whenever it waits for one: here if there is one, else told how.

    Raises :class:`BadInput` when nobody could ever answer: there is no terminal, and no other process sees the store.
    """
    told: set[str] = set()
    while (result := await handle.settled()) is None:
        page = await app.approvals.list(run=handle.run_id, status="pending")
        for one in page.approvals:
            if one.id in told:
                continue
            told.add(one.id)
            if sys.stdin.isatty() and sys.stderr.isatty():
                yes = await asyncio.to_thread(_asked, one)
                try:
                    await app.approvals.resolve(one.id, "approved" if yes else "rejected")
                except ApprovalConflict as error:  # answered elsewhere meanwhile, or too late: the run goes by that
                    sys.stderr.write(f"{visible(error.message)}\n")
            elif settings.store.path is None:
                handle.cancel()
                await handle.result()
                raise BadInput(
                    f"a person has to say yes to {_said(one)}, and nobody can: this is no terminal, the store is in "
                    "memory. Name a file by store.path (FAILSOFT_STORE__PATH=runs.db), or ask at a terminal",
                    param="store.path",
                )
            else:
                file = shlex.quote(str(settings.store.path))
                sys.stderr.write(
                    f"waits for a person: {_said(one)}\n  failsoft approvals approve {one.id} --store {file}\n"
                )
        while handle.state is RunState.WAITING_APPROVAL:
            await handle.changed()
    return result


def _asked(one: ApprovalRecord) -> bool:
    sys.stderr.write(f"{_said(one)}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes", "是"}


def _said(one: ApprovalRecord) -> str:
    arguments = ", ".join(f"{name}={value!r:.200}" for name, value in one.arguments.items())
    return visible(f"{one.tool}({arguments})")
