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

_BEGINNING: Final = 0.25
"""Seconds that processes without an environment have to show one: they are just being made."""

_PROC: Final = Path("/proc")


def kill_with_descendants(leader: int, mark: str) -> set[int]:
    """Sends SIGKILL to a group leader that is not reaped yet, its group, and descendants; returns those found.

    May read hundreds of small files: not for an event loop's thread.
    """
    _signal_group(leader, signal.SIGSTOP)
    found = {leader}
    orphaned = not _alive(leader)  # what it had started hangs on it no more
    until = time.monotonic() + _BEGINNING
    for _ in range(_ROUNDS):
        new, unsure = _marked(mark, leader) if orphaned else (set(), False)
        new = (new | _children(found)) - found
        while unsure and not new and time.monotonic() < until:
            time.sleep(0.001)
            new, unsure = _marked(mark, leader)
            new -= found
        if not new:
            break
        _signal(new, signal.SIGSTOP)
        found |= new
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


def _marked(mark: str, leader: int) -> tuple[set[int], bool]:
    """Processes of this user that were started with the mark in their environment; and whether there may be more.

    One that is just beginning its program has no environment for a moment. It may be one of them when it is no older
    than their leader.
    """
    sign = f"{MARK}={mark}".encode()
    born = _born(leader)
    found: set[int] = set()
    unsure = False
    with suppress(OSError):
        for entry in _PROC.iterdir():
            if entry.name.isdigit():
                pid = int(entry.name)
                with suppress(OSError):
                    environment = (entry / "environ").read_bytes()
                    if sign in environment.split(b"\0"):
                        found.add(pid)
                    elif not environment and _alive(pid) and _born(pid) >= born:
                        (entry / "exe").readlink()  # which fails for what is no program, like the kernel's own
                        unsure = True
    return found, unsure


def _born(pid: int) -> int:
    """When it was started, in ticks since the machine was; 0 when it is gone."""
    try:
        return int((_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
