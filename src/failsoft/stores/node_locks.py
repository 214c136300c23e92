"""A file lock for each node beside a store's file: the system takes it from a process that dies, however it dies.

So a restart after a kill need not wait for a lease to end. Where there are no such locks, leases alone decide.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

try:
    import fcntl

    _LOCKS = True
except ImportError:  # pragma: no cover - Windows
    _LOCKS = False

__all__ = ["NodeLocks"]


class NodeLocks:
    """Locks named for nodes; used by one thread."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._held: dict[str, int] = {}  # at most one per node that this process drives

    def _file(self, node: str) -> Path:
        safe = re.sub(r"[^\w.-]", "_", node, flags=re.ASCII)
        return self._store.with_name(f"{self._store.name}.{safe}.lock")

    def hold(self, node: str) -> None:
        """Takes the node's lock and keeps it; nothing to do when it is held, or cannot be had."""
        if not _LOCKS or node in self._held:
            return
        descriptor = -1
        try:
            descriptor = os.open(self._file(node), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # the lease alone speaks for the node
            if descriptor >= 0:
                os.close(descriptor)
            return
        self._held[node] = descriptor

    def drop(self, node: str) -> None:
        """Gives the node's lock back and removes its file."""
        descriptor = self._held.pop(node, None)
        if descriptor is not None:
            self._file(node).unlink(missing_ok=True)
            os.close(descriptor)

    def is_free(self, node: str) -> bool:
        """Whether the node had a lock and lost it, so is gone for certain; its file is then removed."""
        if not _LOCKS or node in self._held:
            return False
        try:
            descriptor = os.open(self._file(node), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            self._file(node).unlink(missing_ok=True)
            return True
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Gives every lock back, as if the process had died: whoever looks for it finds it free."""
        while self._held:
            os.close(self._held.popitem()[1])

    def __repr__(self) -> str:
        return f"<NodeLocks held={sorted(self._held)}>"
