"""Libraries that a kind of tools needs and that are not always there."""

from __future__ import annotations

import importlib

from failsoft.base.errors import BadInput

__all__ = ["require"]


def require(module: str, extra: str) -> None:
    """Imports `module` where a tool is declared, so that no call waits for it on the loop.

    Raises :class:`BadInput` naming the extra when it is not installed.
    """
    try:
        importlib.import_module(module)
    except ImportError:
        raise BadInput(f"{module} is not installed: pip install 'failsoft[{extra}]'", param="tools") from None
