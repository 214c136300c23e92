"""Ending a process with all that it has started, to the last.

A process group is killed as one; what has left it (a child in a session of its own, a daemon) is found by the tree of
parents, while the leader still lives, or by a mark in its environment once it does not. Everything found is stopped
before it is killed, so nothing forks away in between and no number can have passed to another process.

The tree and the mark are read from Linux' ``/proc``. Elsewhere only the group is killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["MARK", "await_end", "kill_with_descendants"]

MARK: Final = "FAILSOFT_WORKER"
"""The environment variable by which a worker's descendants are known."""

_ROUNDS: Final = 16
"""How often is looked for more before the killing; a tree deeper than that is killed only as far as found."""

_PROC: Final = Path("/proc")


def kill_with_descendants(leader: int, mark: str) -> set[int]:
    """Sends SIGKILL to a group leader that is not reaped yet, its group, and descendants; returns those found.

    May read hundreds of small files: not for an event loop's thread.
    """
    _signal_group(leader, signal.SIGSTOP)
    found = {leader}
    alive = _alive(leader)
    for _ in range(_ROUNDS):
        new = (_children(found) if alive else _marked(mark)) - found
        if not new:
            break
        _signal(new, signal.SIGSTOP)
        found |= new
        alive = True  # what they have started hangs on them
    _signal_group(leader, signal.SIGKILL)
    found.discard(leader)
    _signal(found, signal.SIGKILL)
    return found


def await_end(pids: Iterable[int], timeout: float = 1.0) -> bool:
    """Waits, blocking, until killed processes have ended; False if some have not after `timeout` seconds."""
    left = set(pids)
    until = time.monotonic() + timeout
    pause = 0.0005
    while left:
        for pid in list(left):
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # ours only if we are init, or its stand-in
            if not _alive(pid):
                left.discard(pid)
        if not left or time.monotonic() >= until:
            break
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return not left


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _signal_group(leader: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _alive(pid: int) -> bool:
    """Whether it exists and is no zombie."""
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except OSError:
        return False


def _children(pids: Iterable[int]) -> set[int]:
    found: set[int] = set()
    for pid in pids:
        with suppress(OSError):  # ended meanwhile
            for thread in (_PROC / str(pid) / "task").iterdir():
                with suppress(OSError):
                    found.update(map(int, (thread / "children").read_bytes().split()))
    return found


def _marked(mark: str) -> set[int]:
    """Processes of this user that were started with the mark in their environment."""
    sign = f"{MARK}={mark}".encode()
    found: set[int] = set()
    with suppress(OSError):
        for entry in _PROC.iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if sign in (entry / "environ").read_bytes().split(b"\0"):
                        found.add(int(entry.name))
    return found
