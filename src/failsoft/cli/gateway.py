"""``failsoft serve --gateway``: the model gateway alone, with nothing loaded that it does not need."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from failsoft.base.errors import BadInput, ConfigError
from failsoft.cli.foreground import say_address, until_stopped
from failsoft.config import Settings, load_settings, settings_file

__all__ = ["run_alone", "wanted_alone"]

_ALONE = frozenset({"models", "keys", "gateway", "server", "data"})
"""Sections that a gateway alone needs; a file with others is for more than it."""


def _read(config: Path | None, flags: Mapping[str, Any]) -> Settings:
    return load_settings(config, flags={name: value for name, value in flags.items() if value is not None})


def _read_again(config: Path | None, flags: Mapping[str, Any]) -> Settings:
    settings = _read(config, flags)
    if not settings.models:
        raise ConfigError("there are no `models` any more")
    return settings


def wanted_alone(config: Path | None, flags: Mapping[str, Any], *, asked: bool) -> Settings | None:
    """The settings when the gateway shall be served alone, because somebody `asked` or there is nothing but models."""
    settings = _read(config, flags)
    if not asked and (not settings.models or settings.data or not settings.model_fields_set <= _ALONE):
        return None
    if not settings.models:
        raise BadInput("--gateway: the settings have no `models`", param="models")
    return settings


def run_alone(settings: Settings, config: Path | None, flags: Mapping[str, Any], *, as_json: bool) -> int:
    """Serves; gives the exit code: 0 after SIGTERM, 130 after Ctrl-C."""
    from failsoft.server.listening import listen_on, loop_factory

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with (
        listen_on(settings.server.host, settings.server.port) as sock,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        return runner.run(_serve(settings, sock, config, flags, as_json=as_json))


async def _serve(settings: Settings, sock: Any, config: Path | None, flags: Mapping[str, Any], *, as_json: bool) -> int:
    from failsoft.config.reload import Reloader
    from failsoft.server.collector import collect_rarely
    from failsoft.server.gateway_only import gateway_server

    collect_rarely(rounds=40)  # there is little to look at
    async with gateway_server(settings, sock, on_listening=partial(say_address, as_json=as_json)) as server:
        reloader = Reloader(
            settings, partial(_read_again, config, flags), server.reconfigure, file=settings_file(config)
        )
        return await until_stopped(server, reloader)
