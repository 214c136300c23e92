"""Futures that are no longer waited for."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["heard"]


def heard(answer: asyncio.Future[Any]) -> None:
    """Whoever waited for `answer` no longer does: an error that came at the same instant is nobody's concern.

    Without this asyncio logs, whenever the future is collected, an exception that was never retrieved.
    """
    if answer.done() and not answer.cancelled():
        answer.exception()
