"""What ``failsoft store …`` does with a store's file."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from failsoft.app import retention_of, store_of
from failsoft.base.errors import BadInput
from failsoft.base.jsontext import json_text
from failsoft.cli.main import OK
from failsoft.config import Settings, load_settings
from failsoft.stores.protocols import RunStore

__all__ = ["file_settings", "migrate_file", "opened", "prune_file", "tell_statistics"]


def file_settings(file: Path | None, config: Path | None) -> Settings:
    """The settings with the file's path in them; raises :class:`BadInput` when there is none, or no such file."""
    flags = {} if file is None else {"store.path": str(file.absolute())}
    settings = load_settings(config, flags=flags)
    if settings.store.path is None:
        raise BadInput("--store: which file? The settings have no store.path", param="store")
    if not settings.store.path.is_file():
        raise BadInput(f"--store: there is no file {settings.store.path}", param="store")
    return settings


def opened(settings: Settings) -> RunStore:
    """The store of the settings."""
    store = store_of(settings)
    assert store is not None
    return store


def migrate_file(file: Path | None, config: Path | None, *, as_json: bool) -> int:
    """Migrates; gives the exit code."""
    from failsoft.stores.migrating import migrate

    path = file_settings(file, config).store.path
    assert path is not None
    before, after = migrate(path)
    done = {"path": str(path), "before": before, "after": after}
    text = f"{path} is up to date (revision {after})" if before in (None, after) else f"{path}: {before} → {after}"
    _say(done, text, as_json=as_json)
    return OK


def prune_file(file: Path | None, config: Path | None, *, as_json: bool) -> int:
    """Prunes; gives the exit code."""
    settings = file_settings(file, config)

    async def prune() -> dict[str, Any]:
        from failsoft.runs.upkeep import prune_all

        store = opened(settings)
        try:
            pruned = await prune_all(store, retention_of(settings), now=time.time())
        finally:
            await store.aclose()
        return {"runs": pruned.runs, "details": pruned.details, "leases": pruned.leases}

    done = asyncio.run(prune())
    text = f"removed {done['runs']} runs, the details of {done['details']} more, {done['leases']} leases"
    _say(done, text, as_json=as_json)
    return OK


def tell_statistics(file: Path | None, config: Path | None, *, as_json: bool) -> int:
    """Tells what is there; gives the exit code."""
    settings = file_settings(file, config)

    async def count() -> dict[str, Any]:
        store = opened(settings)
        try:
            found = await store.statistics()
        finally:
            await store.aclose()
        return {
            "runs": dict(found.runs),
            "rows": dict(found.rows),
            "oldest": found.oldest,
            "bytes": found.size,
            "revision": found.revision,
        }

    done = asyncio.run(count())
    lines = [f"revision {done['revision']}, {done['bytes']:,} bytes"]
    lines += [f"{number:>8} runs {state}" for state, number in sorted(done["runs"].items())]
    lines += [f"{number:>8} {table}" for table, number in done["rows"].items() if table != "runs"]
    _say(done, "\n".join(lines), as_json=as_json)
    return OK


def _say(done: dict[str, Any], text: str, *, as_json: bool) -> None:
    sys.stdout.write((json_text(done) if as_json else text) + "\n")
