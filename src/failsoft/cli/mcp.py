"""``failsoft mcp``: the agents as tools of one MCP client, over standard input and output."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from rich.console import Console

from failsoft.cli.main import OK
from failsoft.cli.serve import prepared_for
from failsoft.cli.show import Screen
from failsoft.config import load_settings

__all__ = ["run"]


def run(*, data: list[Path] | None, config: Path | None) -> int:
    """Serves until the client closes its end; what is not for the client goes to standard error."""
    settings = load_settings(config)
    if not settings.load:
        from failsoft.cli.ask import settings_of

        settings = settings_of(config, data=data)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    with prepared_for(settings, Screen(Console(stderr=True, highlight=False), quiet=True)) as prepared:

        async def serve() -> None:
            from failsoft.server.mcp_server import serve_stdio

            async with prepared.app(()) as app:
                await serve_stdio(app)

        asyncio.run(serve())
    return OK
