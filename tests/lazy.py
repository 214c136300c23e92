"""Heavy modules, loaded by the one worker that runs their tests and not by all when they collect."""

import importlib
from typing import Any

__all__ = ["Lazy"]


class Lazy:
    """Stands for a module, which is imported when something of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_pytest")):  # pytest asks everything whether it is a test, a fixture
            raise AttributeError(name)
        found = getattr(importlib.import_module(self._name), name)
        setattr(self, name, found)
        return found
