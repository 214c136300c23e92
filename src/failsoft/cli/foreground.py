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
    from failsoft.server.listening import Listening

__all__ = ["say_address", "until_stopped"]


def say_address(address: str, *, as_json: bool) -> None:
    """Prints where the server listens, for people or for programs."""
    with contextlib.suppress(OSError):  # who cannot be told is served all the same
        sys.stdout.write(json.dumps({"address": address}) + "\n" if as_json else f"listening on {address}\n")
        sys.stdout.flush()


async def until_stopped(server: Listening) -> int:
    """Serves; gives the exit code: 0 after SIGTERM, 130 after Ctrl-C."""
    code = OK

    def stop(one: signal.Signals) -> None:
        nonlocal code
        code = INTERRUPTED if one is signal.SIGINT else OK
        server.stop()

    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError):
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, stop, one)
    await server.serve_until_stopped()
    return code
