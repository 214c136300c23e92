"""``failsoft serve --gateway``: the model gateway alone, with nothing loaded that it does not need."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from failsoft.base.errors import BadInput
from failsoft.cli.foreground import say_address, until_stopped
from failsoft.config import Settings, load_settings

__all__ = ["run_alone", "wanted_alone"]

_ALONE = frozenset({"models", "keys", "gateway", "server", "data"})
"""Sections that a gateway alone needs; a file with others is for more than it."""


def wanted_alone(config: Path | None, flags: Mapping[str, Any], *, asked: bool) -> Settings | None:
    """The settings when the gateway shall be served alone, because somebody `asked` or there is nothing but models."""
    settings = load_settings(config, flags={name: value for name, value in flags.items() if value is not None})
    if not asked and (not settings.models or settings.data or not settings.model_fields_set <= _ALONE):
        return None
    if not settings.models:
        raise BadInput("--gateway: the settings have no `models`", param="models")
    return settings


def run_alone(settings: Settings, *, as_json: bool) -> int:
    """Serves; gives the exit code: 0 after SIGTERM, 130 after Ctrl-C."""
    from failsoft.server.listening import listen_on, loop_factory

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with (
        listen_on(settings.server.host, settings.server.port) as sock,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        return runner.run(_serve(settings, sock, as_json=as_json))


async def _serve(settings: Settings, sock: Any, *, as_json: bool) -> int:
    from failsoft.server.collector import collect_rarely
    from failsoft.server.gateway_only import gateway_server

    collect_rarely(rounds=40)  # there is little to look at
    async with gateway_server(settings, sock, on_listening=partial(say_address, as_json=as_json)) as server:
        return await until_stopped(server)
