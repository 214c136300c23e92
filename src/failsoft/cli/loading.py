"""Agents of your own for ``failsoft serve``: read from a module or a file, and an app over them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from failsoft.app import App, store_of
from failsoft.base.errors import ConfigError
from failsoft.config import Settings
from failsoft.drills.injector import Injector
from failsoft.drills.toxics import Toxic
from failsoft.runs.agents import Agent

__all__ = ["Loaded", "load_agents"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """An app over agents that were loaded."""

    settings: Settings
    agents: tuple[Agent, ...]

    @contextlib.asynccontextmanager
    async def app(self, faults: Sequence[tuple[str, Toxic]] = ()) -> AsyncIterator[App]:
        """The running app, with the faults in place; its store is closed with it."""
        store = store_of(self.settings)
        try:
            async with App(self.settings, agents=self.agents, store=store or "memory") as app:
                with Injector(app.kernel) as injector:
                    for downstream, toxic in faults:
                        injector.inject(downstream, toxic)
                    yield app
        finally:
            if store is not None:
                await store.aclose()


def load_agents(places: Iterable[str]) -> tuple[Agent, ...]:
    """The agents at ``package.module:name`` or ``file.py:name``; raises :class:`ConfigError` naming the place."""
    found: list[Agent] = []
    for place in places:
        where, colon, name = place.rpartition(":")
        if not colon or not where or not name.isidentifier():
            raise ConfigError(f"load: {place!r} should be package.module:name or file.py:name", param="load")
        try:
            value: Any = getattr(_module(where), name)
            if callable(value) and not isinstance(value, Agent):
                value = value()
            agents = (value,) if isinstance(value, Agent) else tuple(value)
        except Exception as error:
            raise ConfigError(f"load: {place}: {type(error).__name__}: {error}", param="load") from error
        if not agents or not all(isinstance(one, Agent) for one in agents):
            raise ConfigError(f"load: {place} is neither an agent nor several", param="load")
        found += agents
    return tuple(found)


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        if "" not in sys.path:
            sys.path.insert(0, "")
        return importlib.import_module(where)
    path = Path(where).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{where} cannot be read")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # what stands beside it, and itself where a worker process looks for it
    spec.loader.exec_module(module)
    return module
