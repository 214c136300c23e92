"""A worker's process and the parent's ends of its pipes: what its keeper's thread does with them, which may block.

The pipes are for requests, replies, output (standard output and error together), and the lifeline, on which nothing is
written: that it closes tells the child that its parent is gone. One more wakes the keeper's thread.
"""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from failsoft.base.errors import DownstreamError, DownstreamUnavailable
from failsoft.kernel.descendants import MARK, await_end, kill_with_descendants
from failsoft.kernel.environment import without_secrets

__all__ = ["OUTPUT", "Child", "Lost", "WorkerSettings"]

OUTPUT: Final = 65_536
"""Bytes of a worker's output that are kept: the last ones of the current call."""

_CHUNK: Final = 262_144
"""Bytes read at once, and asked for as the size of the output's pipe."""

_TICK: Final = 50
"""Milliseconds between looks at the process where the kernel gives no file descriptor for its end (not Linux)."""

_PROGRAM: Final = Path(__file__).with_name("worker.py")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How workers are made: ``max_result_bytes`` and ``memory_limit`` (of address space) in bytes, calls in number."""

    max_result_bytes: int = 10_000_000
    memory_limit: int | None = None
    max_calls: int = 1000
    allow_env: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)


class Lost(Exception):
    """The process is of no more use; with what it, and the call in it, end."""

    def __init__(
        self, error: DownstreamError | None = None, *, died: bool = False, value: Any = None, served: bool = False
    ) -> None:
        super().__init__()
        self.error = error
        self.died = died
        self.value = value
        self.served = served


class Child:
    """The process and the parent's ends of its pipes, for the keeper's thread alone; ``wake`` may be written by all."""

    def __init__(self, settings: WorkerSettings, mark: str) -> None:
        self._fds: list[int] = []
        self._out = memoryview(b"")
        self.pidfd = -1
        child: list[int] = []
        try:
            self.waking, self.wake = self._pipe(child=None)
            requests, self.requests = self._pipe(child=(child, 0))
            self.replies, replies = self._pipe(child=(child, 1))
            self.output, output = self._pipe(child=(child, 1))
            lifeline, _ = self._pipe(child=(child, 0))
            if sys.platform == "linux":
                with suppress(OSError):
                    fcntl.fcntl(self.output, fcntl.F_SETPIPE_SZ, _CHUNK)
            environment = {**without_secrets(os.environ, settings.allow_env), **settings.env, MARK: mark}
            self._popen = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-I", str(_PROGRAM), str(requests), str(replies), str(lifeline)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(requests, replies, lifeline),
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            self._close()
            raise
        finally:
            for fd in child:
                os.close(fd)
        self.pid = self._popen.pid
        self._poll = select.poll()
        for fd in (self.waking, self.replies, self.output):
            self._poll.register(fd, select.POLLIN)
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self.pidfd = os.pidfd_open(self.pid)
                self._fds.append(self.pidfd)
                self._poll.register(self.pidfd, select.POLLIN)

    def _pipe(self, child: tuple[list[int], int] | None) -> tuple[int, int]:
        """A pipe whose ends here do not block; the child's end is given as (list for it, 0 or 1)."""
        ends = os.pipe()
        for index, fd in enumerate(ends):
            if child is not None and child[1] == index:
                child[0].append(fd)
            else:
                self._fds.append(fd)
                os.set_blocking(fd, False)
        return ends

    @property
    def unsent(self) -> bool:
        """Whether a part of the request has not been taken yet."""
        return bool(self._out)

    def send(self, request: bytes) -> None:
        """Sends what goes into the pipe now; ``flush`` sends the rest."""
        self._out = memoryview(bytes(self._out) + request) if self._out else memoryview(request)
        self.flush()

    def flush(self) -> None:
        """Sends more, when there is room."""
        had = bool(self._out)
        try:
            while self._out:
                self._out = self._out[os.write(self.requests, self._out[:_CHUNK]) :]
        except BlockingIOError:
            self._poll.register(self.requests, select.POLLOUT)
            return
        except BrokenPipeError:
            self._out = memoryview(b"")
            self._unwatch(self.requests)
            raise Lost(DownstreamUnavailable("the worker closed its pipe"), died=self.dies()) from None
        if had:
            self._unwatch(self.requests)

    def wait(self) -> set[int]:
        """Blocks until something happens; the file descriptors on which."""
        ready = {fd for fd, _ in self._poll.poll(None if self.pidfd >= 0 else _TICK)}
        if self.waking in ready:
            with suppress(BlockingIOError):
                os.read(self.waking, 4096)
        return ready

    def readable(self, fd: int, within: int = 0) -> bool:
        """Whether a read gives something within that many milliseconds, be it the end of file."""
        asked = select.poll()
        asked.register(fd, select.POLLIN)
        return bool(asked.poll(within))

    def read_reply(self) -> bytes:
        """A piece of a reply; empty at the end of the pipe."""
        return os.read(self.replies, _CHUNK)

    def hear(self) -> bytes:
        """A piece of output; empty at its end."""
        try:
            said = os.read(self.output, _CHUNK)
        except BlockingIOError:
            return b""
        if not said:
            self._unwatch(self.output)
        return said

    def hear_out(self) -> bytes:
        """What has been printed up to now: the end of it, and bounded should somebody go on printing for ever."""
        said = bytearray()
        for _ in range(16):
            if not self.readable(self.output) or not (more := self.hear()):
                break
            said += more
        return bytes(said[-OUTPUT:])

    def _unwatch(self, fd: int) -> None:
        with suppress(KeyError):
            self._poll.unregister(fd)

    def died(self, ready: set[int]) -> bool:
        """Whether the process has ended by itself."""
        return self.pidfd in ready if self.pidfd >= 0 else not self.alive()

    def alive(self) -> bool:
        """Whether the process runs. Without a file descriptor for it, asking buries it, and its number is free."""
        return not self.readable(self.pidfd) if self.pidfd >= 0 else self._popen.poll() is None

    def dies(self) -> bool:
        """Whether it ends within a moment: the pipes of a process close a little before it has ended."""
        if self.pidfd >= 0:
            return self.readable(self.pidfd, within=200)
        until = time.monotonic() + 0.2
        while self.alive() and time.monotonic() < until:
            time.sleep(0.005)
        return not self.alive()

    def stop(self, mark: str) -> None:
        """Kills it with its descendants, and waits for those."""
        await_end(kill_with_descendants(self.pid, mark))

    def reap(self) -> int:
        """Waits for it and closes everything; its exit code, or the negative number of a signal."""
        status = self._popen.wait()
        with suppress(ChildProcessError):  # members of its group that came to us because we are init, or its stand-in
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        self._close()
        return status

    def _close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
