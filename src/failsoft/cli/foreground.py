"""A server in the foreground: says where it listens, and serves until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from typing import TYPE_CHECKING

from failsoft.cli.main import INTERRUPTED, OK

if TYPE_CHECKING:
    from failsoft.config.reload import Reloader
    from failsoft.server.listening import Listening

__all__ = ["say_address", "until_stopped"]


def say_address(address: str, *, as_json: bool) -> None:
    """Prints where the server listens, for people or for programs."""
    with contextlib.suppress(OSError):  # who cannot be told is served all the same
        sys.stdout.write(json.dumps({"address": address}) + "\n" if as_json else f"listening on {address}\n")
        sys.stdout.flush()


async def until_stopped(server: Listening, reloader: Reloader) -> int:
    """Serves, with settings that change meanwhile; gives the exit code: 0 after SIGTERM, 130 after Ctrl-C."""
    code = OK

    def stop(one: signal.Signals) -> None:
        nonlocal code
        code = INTERRUPTED if one is signal.SIGINT else OK
        server.stop()

    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError):
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, stop, one)
        loop.add_signal_handler(signal.SIGHUP, reloader.ask)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(reloader.watch())
        try:
            await server.serve_until_stopped()
        finally:
            watching.cancel()
    return code
