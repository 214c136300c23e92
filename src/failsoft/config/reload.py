"""Settings that change while the process runs: looked at by their file's time, read anew on demand, never half.

Settings that cannot be read leave the ones before in place, and it is said why. What changes needs its scope: ``run``
and ``downstream`` settings change in place, ``process`` settings at the next start, which is said, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from failsoft.base.errors import ConfigError
from failsoft.config.sections import Settings

__all__ = ["Reload", "Reloader", "changes"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reload:
    """What came of reading the settings anew: keys that ``changed``, keys that need a ``restart``, or the error."""

    changed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    error: str | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"the settings stay as they were: {self.error}"
        if not self.changed and not self.restart:
            return "nothing has changed"
        said = []
        if self.changed:
            said.append(f"changed: {', '.join(self.changed)}")
        if self.restart:
            said.append(f"at the next start: {', '.join(self.restart)}")
        return "; ".join(said)


class Reloader:
    """Reads settings anew by ``load()`` and hands good ones to ``apply(settings)``."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        apply: Callable[[Settings], None],
        *,
        file: Path | None = None,
    ) -> None:
        self.settings = settings
        self.last: Reload | None = None
        """What came of the last time; None while there was none."""
        self._load = load
        self._apply = apply
        self._with_models = bool(settings.models or settings.keys)
        self._file = file
        self._seen = self._stamp()
        self._asked = asyncio.Event()

    def _stamp(self) -> tuple[int, int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def ask(self) -> None:
        """Has :meth:`watch` read anew at once: for a signal's handler."""
        self._asked.set()

    async def watch(self, every: float = 1.0) -> None:
        """Looks every so many seconds, and when asked to, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), every)
            if self._asked.is_set():
                self._asked.clear()
                await self.reload()
            else:
                await self.look()

    async def look(self) -> Reload | None:
        """Reads anew when the file is another than last time; None when it is not."""
        stamp = await asyncio.to_thread(self._stamp)
        if stamp is None and self._seen is not None:  # one that is gone for a moment is being replaced
            _log.warning("settings: %s is gone; they stay as they were", self._file)
            self._seen = None
        if stamp == self._seen or stamp is None:
            return None
        return await self.reload()

    async def reload(self) -> Reload:
        """Reads anew, in a thread, whatever the file's time; never raises."""
        try:
            self._seen = stamp = await asyncio.to_thread(self._stamp)
            if stamp is not None and stamp[1] == 0:
                raise ConfigError("the file is empty")  # whoever writes it is not ready yet
            settings = await asyncio.to_thread(self._load)
            changed, restart = changes(self.settings, settings, with_models=self._with_models)
            if changed:
                self._apply(settings)
        except ConfigError as error:
            self.last = Reload(error=error.message)
        except Exception as error:  # noqa: BLE001 - the settings before are in place, and the process lives
            _log.exception("settings could not be applied")
            self.last = Reload(error=f"{type(error).__name__} while they were applied")
        else:
            self.settings = settings
            self.last = Reload(changed, restart)
        _log.log(logging.WARNING if self.last.error else logging.INFO, "settings: %s", self.last)
        return self.last


def changes(
    before: Settings, after: Settings, *, with_models: bool | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that differ: those that can change now, and those that need a restart.

    `with_models`: whether the process began with models, and so has what serves them; by default as `before` has.
    """
    now: list[str] = []
    later: list[str] = []
    fixed = (
        {"keys"} if (bool(before.models or before.keys) if with_models is None else with_models) else {"keys", "models"}
    )
    _differences(before, after, "", now, later, fixed)
    return tuple(now), tuple(later)


def _differences(before: Any, after: Any, path: str, now: list[str], later: list[str], fixed: set[str]) -> None:
    if before == after:
        return
    for name, field in type(after).model_fields.items():
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        here = f"{path}{name}"
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            _differences(old, new, f"{here}.", now, later, fixed)
        elif isinstance(old, dict) and isinstance(new, dict) and here in _NAMED:
            for one in sorted({*old, *new}):
                if old.get(one) == new.get(one):
                    continue
                if one in old and one in new:
                    _differences(old[one], new[one], f"{here}.{one}.", now, later, fixed)
                else:  # downstreams may come and go, and models where there were any; keys are made at the start
                    (later if here in fixed else now).append(f"{here}.{one}")
        else:
            extra = field.json_schema_extra
            scope = extra.get("scope") if isinstance(extra, dict) else "downstream"
            (later if scope == "process" else now).append(here)


_NAMED = frozenset({"downstreams", "models", "keys"})
