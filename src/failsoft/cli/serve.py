"""``failsoft serve``: the HTTP API until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from failsoft.base.errors import BadInput, StoreError
from failsoft.base.redaction import RedactingFilter, Redactor
from failsoft.cli.foreground import say_address, until_stopped
from failsoft.cli.loading import Loaded, load_agents
from failsoft.cli.show import Screen
from failsoft.config import Settings, load_settings, settings_file
from failsoft.config.reload import Reloader
from failsoft.drills.faults import parse_fault
from failsoft.drills.toxics import Toxic

if TYPE_CHECKING:
    from failsoft.cli.ask import Ready

__all__ = ["prepared_for", "run"]


def run(
    *,
    host: str | None,
    port: int | None,
    data: list[Path] | None,
    fault: list[str] | None,
    load: list[str] | None,
    store: Path | None,
    as_json: bool,
    config: Path | None,
) -> int:
    """Serves; gives the exit code: 0 after SIGTERM, 130 after Ctrl-C."""
    flags = {
        "server.host": host,
        "server.port": port,
        "load": load or None,
        "store.path": None if store is None else str(store.absolute()),
    }
    read = partial(_settings, config, data, flags)
    settings = read()
    refuse_unusable_store(settings)
    faults = [parse_fault(text) for text in fault or ()]
    from failsoft.server.serving import listen_on, loop_factory

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    redactor = Redactor(patterns=settings.redaction.patterns, names=settings.redaction.names)
    for handler in logging.getLogger().handlers:
        handler.addFilter(RedactingFilter(redactor))
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it tells of the font list that it makes once
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # its warnings are about clients: each could fill the log
    screen = Screen(Console(stderr=True, highlight=False), quiet=as_json)
    with (
        listen_on(settings.server.host, settings.server.port) as sock,
        prepared_for(settings, screen) as prepared,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        return runner.run(_serve(prepared, faults, sock, read, as_json=as_json, config=config))


def refuse_unusable_store(settings: Settings) -> None:
    """Refuses to serve over a file that is no store; one that is in use just now holds nothing up."""
    from failsoft.app import store_of

    store = store_of(settings)
    if store is None:
        return

    async def look() -> None:
        try:
            await store.durations()
        finally:
            await store.aclose()

    try:
        asyncio.run(look())
    except StoreError as error:
        if "locked" not in error.message and "busy" not in error.message:
            raise BadInput(f"--store: {error.message}", param="store") from None


def _settings(config: Path | None, data: list[Path] | None, flags: Mapping[str, Any]) -> Settings:
    settings = load_settings(config, flags={name: value for name, value in flags.items() if value is not None})
    if settings.load:  # the analyst, and all that it needs, is not even imported
        return settings
    from failsoft.cli.ask import settings_of

    return settings_of(config, data=data, flags=flags)


@contextlib.contextmanager
def prepared_for(settings: Settings, screen: Screen) -> Iterator[Ready | Loaded]:
    """Everything that an app of these settings needs: agents of your own, or the analyst with its data."""
    if settings.load:
        yield Loaded(settings, load_agents(settings.load))
        return
    from failsoft.cli.ask import ready

    with ready(settings, screen) as prepared:
        yield prepared


async def _serve(
    prepared: Ready | Loaded,
    faults: Sequence[tuple[str, Toxic]],
    sock: socket.socket,
    read: Callable[[], Settings],
    *,
    as_json: bool,
    config: Path | None,
) -> int:
    from failsoft.server.collector import collect_rarely
    from failsoft.server.serving import HttpServer

    collect_rarely()
    async with prepared.app(faults) as app:
        server = HttpServer(app, sock, on_listening=partial(say_address, as_json=as_json))
        reloader = Reloader(app.settings, read, app.reconfigure, file=settings_file(config))
        return await until_stopped(server, reloader)
